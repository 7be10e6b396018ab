//! Enciphered links of programs: the certificate that a process shows, of the grid that its configuration names.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use madrigal_adapters::contract::Adapter;
use madrigal_adapters::tls::Tls;
use madrigal_identity::{Credentials, IdentityError, Kind, directory};
use madrigal_stream::MakeTls;

/// Certificates of a grid, for links that are enciphered.
#[derive(Clone)]
pub struct GridTls {
    read: Arc<dyn Fn() -> Result<Credentials, String> + Send + Sync>,
}

/// For [`Runtime::set_tls`](crate::Runtime::set_tls): the user's login, or else the host's certificate, in the directory where `madrigal
/// login` writes them (`MADRIGAL_CONFIG_DIR`, or `~/.config/madrigal`). Read when the first link needs it, and again when its file changes.
pub fn grid_tls() -> GridTls {
    made_with(|| directory(|name| std::env::var(name).ok()))
}

/// As [`grid_tls`], of that directory.
pub fn grid_tls_in(dir: &Path) -> GridTls {
    let dir = dir.to_owned();
    made_with(move || Ok(dir.clone()))
}

fn made_with(dir: impl Fn() -> Result<PathBuf, IdentityError> + Send + Sync + 'static) -> GridTls {
    let kept: Mutex<Option<Credentials>> = Mutex::default();
    let read = move || {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(credentials) = &*kept {
            return Ok(credentials.clone());
        }
        let credentials = dir().and_then(|dir| of_process(&dir)).map_err(|error| error.to_string())?;
        Ok(kept.insert(credentials).clone())
    };
    GridTls { read: Arc::new(read) }
}

impl GridTls {
    /// What this process shows, and whom it lets in; or why it has no certificate.
    pub fn credentials(&self) -> Result<Credentials, String> {
        (self.read)()
    }

    /// Makes ends of the adapter `tls`.
    pub fn ends(&self) -> MakeTls {
        let its = self.clone();
        Arc::new(move |role| Ok(Box::new(Tls::new(&its.credentials()?, role)?) as Box<dyn Adapter>))
    }
}

/// A process of a user shows the user's certificate, if there is one.
fn of_process(dir: &Path) -> Result<Credentials, IdentityError> {
    match Credentials::load_as(dir, Kind::User)? {
        Some(user) => Ok(user),
        None => Credentials::load(dir),
    }
}
