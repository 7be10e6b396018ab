//! Where the pools of a grid are kept: `[pools]` in grid.toml.
//!
//! ```toml
//! [pools]
//! keeper = "a1"                            # in the daemon of that host
//! ```
//! ```toml
//! [pools]
//! etcd = ["https://10.1.0.2:2379", "https://10.2.0.2:2379"]
//! ca = "/etc/madrigal/etcd-ca.pem"
//! ```

use std::path::PathBuf;

use madrigal_document::{FileError, Table};

/// Where pools are kept.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PoolSettings {
    /// The host whose daemon keeps them: the first relay in the file, or its first host, unless the file names one.
    pub keeper: String,
    /// Instead: etcd.
    pub etcd: Option<EtcdSettings>,
}

/// An etcd, and how it is asked.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EtcdSettings {
    /// The URLs of its servers.
    pub endpoints: Vec<String>,
    /// What all keys begin with.
    pub prefix: String,
    /// The certificate of its authority, a file.
    pub ca: Option<PathBuf>,
    /// This client's certificate and key, files.
    pub cert: Option<PathBuf>,
    /// See [`Self::cert`].
    pub key: Option<PathBuf>,
    /// The user of etcd's.
    pub user: Option<String>,
    /// The file with the user's password.
    pub password_file: Option<PathBuf>,
}

/// What all keys begin with, unless the file says otherwise.
const PREFIX: &str = "/madrigal/";
/// The keys that are for etcd alone.
const OF_ETCD: [&str; 6] = ["prefix", "ca", "cert", "key", "user", "password_file"];

impl PoolSettings {
    /// Reads the table, if there is one; `first` keeps the pools unless it says otherwise.
    pub(super) fn read(
        table: Option<&Table<'_>>,
        first: &str,
        is_host: impl Fn(&str) -> bool,
    ) -> Result<Self, FileError> {
        let mut settings = Self { keeper: first.to_owned(), etcd: None };
        let Some(table) = table else { return Ok(settings) };
        table.only(&["keeper", "etcd", "prefix", "ca", "cert", "key", "user", "password_file"])?;
        if let Some(value) = table.get("keeper") {
            let name = value.text()?;
            if !is_host(name) {
                return Err(value.error(format!("the grid has no host `{name}`")));
            }
            if table.get("etcd").is_some() {
                return Err(value.error("pools are kept by a host or by etcd: leave one of the two out"));
            }
            name.clone_into(&mut settings.keeper);
        }
        settings.etcd = EtcdSettings::read(table)?;
        Ok(settings)
    }
}

impl EtcdSettings {
    fn read(table: &Table<'_>) -> Result<Option<Self>, FileError> {
        let Some(etcd) = table.get("etcd") else {
            let lone = OF_ETCD.into_iter().find(|key| table.get(key).is_some());
            return lone.map_or(Ok(None), |key| Err(table.error(format!("{key} is for etcd, which is not named"))));
        };
        let mut endpoints = Vec::new();
        for value in etcd.list() {
            let url = value.text()?.trim_end_matches('/');
            if !["http://", "https://"].iter().any(|scheme| url.len() > scheme.len() && url.starts_with(scheme)) {
                return Err(value.error("must be a URL such as \"http://10.1.0.2:2379\""));
            }
            endpoints.push(url.to_owned());
        }
        if endpoints.is_empty() {
            return Err(etcd.error("must be a URL such as \"http://10.1.0.2:2379\", or several"));
        }
        let text = |key: &str| table.get(key).map(|value| value.text().map(str::to_owned)).transpose();
        let file = |key: &str| Ok(text(key)?.map(PathBuf::from));
        let prefix = text("prefix")?.filter(|prefix| !prefix.is_empty()).unwrap_or_else(|| PREFIX.to_owned());
        let (ca, cert, key) = (file("ca")?, file("cert")?, file("key")?);
        if ca.is_none() && endpoints.iter().any(|url| url.starts_with("https")) {
            return Err(etcd.error("give the certificate of its authority, too: ca = \"FILE\""));
        }
        if cert.is_some() != key.is_some() {
            return Err(table.error("cert and key belong together"));
        }
        let (user, password_file) = (text("user")?, file("password_file")?);
        Ok(Some(Self { endpoints, prefix, ca, cert, key, user, password_file }))
    }
}
