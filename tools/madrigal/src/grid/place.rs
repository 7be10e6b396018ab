//! Where a grid is described: the directory of this user's identity, and `grid.toml` in it.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use madrigal_daemon::grid::{self, Grid};
use madrigal_identity as identity;
use rustix::fs::{FlockOperation, flock};

use super::failure::Failure;

/// The mode of a description: there is nothing secret in it.
const MODE: u32 = 0o644;

/// The directory.
pub(super) struct Place {
    pub(super) dir: PathBuf,
}

/// While this is held no other command changes the description.
pub(super) struct Lock(#[allow(dead_code, reason = "held until it is dropped")] File);

impl Place {
    pub(super) fn find() -> Result<Self, Failure> {
        Ok(Self { dir: identity::directory(|name| std::env::var(name).ok())? })
    }

    /// The description.
    pub(super) fn file(&self) -> PathBuf {
        self.dir.join(identity::GRID)
    }

    /// Waits until no other command changes the description.
    pub(super) fn lock(&self) -> Result<Lock, Failure> {
        let dir = File::open(&self.dir).map_err(|error| failed("open", &self.dir, &error))?;
        flock(&dir, FlockOperation::LockExclusive).map_err(|errno| failed("lock", &self.dir, &errno.into()))?;
        Ok(Lock(dir))
    }

    /// The text of the description.
    pub(super) fn text(&self) -> Result<String, Failure> {
        let path = self.file();
        grid::read_text(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                let advice = "type madrigal grid init NAME, or go to where that was typed";
                Failure::Failed(format!("there is no {}: {advice}", path.display()))
            }
            _ => failed("read", &path, &error),
        })
    }

    /// Parses a text; errors name the file.
    pub(super) fn parse(&self, text: &str) -> Result<Grid, Failure> {
        Ok(Grid::read(&self.file().display().to_string(), text)?)
    }

    /// Replaces the description in one step: a reader gets the old text or the new one, also after a crash.
    pub(super) fn write(&self, text: &str) -> Result<(), Failure> {
        let file = self.file();
        // If its name is a symbolic link, the file behind the link is replaced.
        let path = fs::canonicalize(&file).unwrap_or(file);
        replace(&path, text).map_err(|error| failed("write", &path, &error))
    }

    /// The host that this machine is by its certificate, if it has one.
    pub(super) fn own(&self) -> Option<String> {
        crate::local_grid::certified(&self.dir)
    }
}

fn failed(what: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::Failed(format!("cannot {what} {}: {error}", path.display()))
}

fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let mode = fs::metadata(path).map_or(MODE, |data| data.permissions().mode() & 0o777);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let fresh = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let _ = fs::remove_file(&fresh);
    let put = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&fresh)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&fresh, path)?;
        File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
    };
    put().inspect_err(|_| drop(fs::remove_file(&fresh)))
}
