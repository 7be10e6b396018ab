//! The files: where they are, their access rights, and how they are replaced atomically.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use pem::{EncodeConfig, LineEnding, Pem};
use rustix::fs::OFlags;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

use crate::error::IdentityError;

/// The grid's certificate, which is all that is trusted.
pub const TRUST: &str = "ca.pem";
/// What the authority took back.
pub const REVOKED: &str = "revoked.pem";
/// This host's certificates and key.
pub const HOST: &str = "host.pem";
/// The user's, while logged in.
pub const USER: &str = "user.pem";
/// What `madrigal login` signs with, while logged in.
pub const LOGIN: &str = "login.pem";
/// What logs the user in.
pub const IDENTITY: &str = "identity.pem";
/// The authority's key, below [`AUTHORITY`].
pub(crate) const AUTHORITY_KEY: &str = "key.pem";
/// What the authority has issued, below [`AUTHORITY`].
pub(crate) const ISSUED: &str = "issued";
/// The authority's directory.
pub const AUTHORITY: &str = "ca";

/// No file of ours is larger.
const LARGEST: u64 = 4 << 20;
/// The PEM label of a certificate.
const CERTIFICATE: &str = "CERTIFICATE";
/// The PEM label of a key.
const KEY: &str = "PRIVATE KEY";
/// The PEM label of a revocation list.
pub(crate) const LIST: &str = "X509 CRL";

/// Access rights of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    /// Only the owner reads it.
    Secret,
    /// Everybody may read it, and only the owner may change it.
    Public,
}

impl Access {
    fn mode(self) -> u32 {
        match self {
            Self::Secret => 0o600,
            Self::Public => 0o644,
        }
    }
}

/// The directory of this user's identity: `MADRIGAL_CONFIG_DIR`, else `madrigal` in `XDG_CONFIG_HOME`, else `~/.config/madrigal`.
/// `variable` reads the environment.
pub fn directory(variable: impl Fn(&str) -> Option<String>) -> Result<PathBuf, IdentityError> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    let home = || set("HOME").map(PathBuf::from).ok_or(IdentityError::NoHome);
    if let Some(dir) = set("MADRIGAL_CONFIG_DIR") {
        return match (dir.strip_prefix("~/"), dir.starts_with('/')) {
            (Some(rest), _) => Ok(home()?.join(rest)),
            (None, true) => Ok(PathBuf::from(dir)),
            (None, false) => Err(IdentityError::NoPath(dir)),
        };
    }
    // The XDG base directory specification: relative paths there mean nothing.
    if let Some(dir) = set("XDG_CONFIG_HOME").filter(|dir| dir.starts_with('/')) {
        return Ok(Path::new(&dir).join("madrigal"));
    }
    Ok(home()?.join(".config/madrigal"))
}

pub(crate) fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> IdentityError {
    move |source| IdentityError::Io { path: path.to_owned(), action, source }
}

/// Which file this is, and which state of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stamp(u64, u64, u64, i64, i64);

impl Stamp {
    /// `None`: there is no such file.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let m = fs::metadata(path).ok()?;
        Some(Self(m.dev(), m.ino(), m.size(), m.mtime(), m.mtime_nsec()))
    }
}

/// Reads a whole file; `None`: it is not there. Refuses what others could have read or changed, what is no file, and what is too long.
pub(crate) fn read(path: &Path, access: Access) -> Result<Option<Vec<u8>>, IdentityError> {
    // Without NONBLOCK the open of a FIFO waits for its writer.
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(path, "open it")(error)),
    };
    let facts = file.metadata().map_err(io(path, "look at it"))?;
    let wrong = |what: String| io(path, "read it")(std::io::Error::other(what));
    if !facts.is_file() {
        return Err(wrong("it is no regular file".to_owned()));
    }
    judge(path, &facts, access)?;
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(io(path, "read it"))?;
    if bytes.len() as u64 > LARGEST {
        return Err(wrong(format!("it is longer than {} MiB", LARGEST >> 20)));
    }
    Ok(Some(bytes))
}

/// Refuses a directory in which others could replace files. It need not exist.
pub(crate) fn judge_directory(dir: &Path) -> Result<(), IdentityError> {
    match fs::metadata(dir) {
        Ok(facts) if facts.mode() & 0o022 != 0 => {
            let mode = facts.mode() & 0o777;
            Err(IdentityError::Open { path: dir.to_owned(), verb: "write", mode, wanted: 0o700 })
        }
        Ok(facts) => owned(dir, &facts),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(io(dir, "look at it")(error)),
    }
}

fn judge(path: &Path, facts: &fs::Metadata, access: Access) -> Result<(), IdentityError> {
    let (forbidden, verb, wanted) = match access {
        Access::Secret => (0o077, "read", 0o600),
        Access::Public => (0o022, "write", 0o644),
    };
    let mode = facts.mode() & 0o777;
    if mode & forbidden != 0 {
        let verb = if mode & 0o044 == 0 { "write" } else { verb };
        return Err(IdentityError::Open { path: path.to_owned(), verb, mode, wanted });
    }
    owned(path, facts)
}

/// Root may own what we read, for it could change it anyway.
fn owned(path: &Path, facts: &fs::Metadata) -> Result<(), IdentityError> {
    let (owner, user) = (facts.uid(), rustix::process::geteuid().as_raw());
    if owner == user || owner == 0 {
        return Ok(());
    }
    Err(IdentityError::Owner { path: path.to_owned(), owner, user })
}

/// Makes a directory, and what it lies in, for the owner only.
pub(crate) fn make_directory(dir: &Path) -> Result<(), IdentityError> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io(dir, "make it"))?;
    judge_directory(dir)
}

/// Puts a file there in one step: a reader sees the old one or the new one.
pub(crate) fn write(path: &Path, access: Access, bytes: &[u8]) -> Result<(), IdentityError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let fresh = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let _ = fs::remove_file(&fresh);
    let put = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(access.mode()).open(&fresh)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&fresh, path)
    };
    put().map_err(|error| {
        let _ = fs::remove_file(&fresh);
        io(path, "write it")(error)
    })
}

/// A key and the certificates that belong to it, the key's own first, those that signed it behind; one file, so that it is replaced
/// in one step.
pub(crate) struct Bundle {
    /// The certificates, without the grid's own.
    pub(crate) chain: Vec<CertificateDer<'static>>,
    /// The key.
    pub(crate) key: PrivatePkcs8KeyDer<'static>,
}

impl Bundle {
    /// `None`: there is no such file.
    pub(crate) fn read(path: &Path, advice: &'static str) -> Result<Option<Self>, IdentityError> {
        let Some(bytes) = read(path, Access::Secret)? else { return Ok(None) };
        let wrong = |why: &str| IdentityError::Unreadable { path: path.to_owned(), why: why.to_owned(), advice };
        let parts = pem::parse_many(bytes).map_err(|error| wrong(&error.to_string()))?;
        let (mut chain, mut key) = (Vec::new(), None);
        for part in parts {
            match part.tag() {
                CERTIFICATE => chain.push(CertificateDer::from(part.into_contents())),
                KEY => key = Some(PrivatePkcs8KeyDer::from(part.into_contents())),
                _ => return Err(wrong("it holds something that is neither key nor certificate")),
            }
        }
        let key = key.ok_or_else(|| wrong("it holds no key"))?;
        Ok(Some(Self { chain, key }))
    }

    /// Puts it there.
    pub(crate) fn write(&self, path: &Path) -> Result<(), IdentityError> {
        let mut text = encode(KEY, self.key.secret_pkcs8_der());
        for certificate in &self.chain {
            text += &encode(CERTIFICATE, certificate);
        }
        write(path, Access::Secret, text.as_bytes())
    }
}

/// Reads a file with one thing in it, certificate or list; `None`: there is no such file.
pub(crate) fn read_one(path: &Path, tag: &str, advice: &'static str) -> Result<Option<Vec<u8>>, IdentityError> {
    let Some(bytes) = read(path, Access::Public)? else { return Ok(None) };
    let wrong = |why: String| IdentityError::Unreadable { path: path.to_owned(), why, advice };
    let part = pem::parse(bytes).map_err(|error| wrong(error.to_string()))?;
    if part.tag() != tag {
        return Err(wrong(format!("it holds no {tag}")));
    }
    Ok(Some(part.into_contents()))
}

/// Reads the grid's certificate; `None`: there is none.
pub(crate) fn read_trust(dir: &Path) -> Result<Option<CertificateDer<'static>>, IdentityError> {
    const ADVICE: &str = "ask whoever runs the CA for its ca.pem";
    Ok(read_one(&dir.join(TRUST), CERTIFICATE, ADVICE)?.map(CertificateDer::from))
}

/// Puts the grid's certificate there.
pub(crate) fn write_trust(dir: &Path, root: &CertificateDer<'_>) -> Result<(), IdentityError> {
    write(&dir.join(TRUST), Access::Public, encode(CERTIFICATE, root).as_bytes())
}

pub(crate) fn encode(tag: &str, contents: &[u8]) -> String {
    pem::encode_config(&Pem::new(tag, contents), EncodeConfig::new().set_line_ending(LineEnding::LF))
}
