//! What the authority took back: a list that it signs, read again whenever its file changes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{CertificateRevocationList, FromDer as _, X509Certificate};

use crate::error::IdentityError;
use crate::facts::Serial;
use crate::files::{self, Access, LIST, REVOKED, Stamp, TRUST};
use crate::moment::Moment;

const ADVICE: &str = "ask whoever runs the CA for its revoked.pem";

/// The serial numbers taken back, with the time, and the number of the list.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Revoked {
    pub(crate) number: u64,
    pub(crate) serials: BTreeMap<Serial, Moment>,
}

impl Revoked {
    /// Reads a list and checks that `root` signed it.
    pub(crate) fn parse(der: &[u8], root: &CertificateDer<'_>) -> Result<Self, &'static str> {
        let (rest, list) = CertificateRevocationList::from_der(der).map_err(|_| "it is no revocation list")?;
        let (_, root) = X509Certificate::from_der(root).map_err(|_| "the grid's certificate cannot be read")?;
        if !rest.is_empty() || list.issuer() != root.subject() {
            return Err("it is not the list of this grid");
        }
        list.verify_signature(root.public_key()).map_err(|_| "the grid's CA did not sign it")?;
        let number = list.crl_number().and_then(|number| u64::try_from(number.clone()).ok());
        let entry = |e: &x509_parser::revocation_list::RevokedCertificate<'_>| {
            (Serial::new(e.raw_serial()), Moment(e.revocation_date.timestamp()))
        };
        Ok(Self {
            number: number.ok_or("it has no number")?,
            serials: list.iter_revoked_certificates().map(entry).collect(),
        })
    }

    /// Reads the file; without one nothing is revoked.
    pub(crate) fn read(path: &Path, root: &CertificateDer<'_>) -> Result<Self, IdentityError> {
        let Some(der) = files::read_one(path, LIST, ADVICE)? else { return Ok(Self::default()) };
        let wrong =
            |why: &str| IdentityError::Unreadable { path: path.to_owned(), why: why.to_owned(), advice: ADVICE };
        Self::parse(&der, root).map_err(wrong)
    }
}

/// Puts the grid's certificate there, and a list of what was taken back that is newer than the one that is there; which files are new.
pub(crate) fn write_trusted(
    dir: &Path,
    root: &CertificateDer<'static>,
    list: Option<&[u8]>,
) -> Result<Vec<PathBuf>, IdentityError> {
    let same = files::read_trust(dir)?.as_ref() == Some(root);
    let mut changed = Vec::new();
    if !same {
        files::write_trust(dir, root)?;
        changed.push(dir.join(TRUST));
    }
    let Some(list) = list else { return Ok(changed) };
    let path = dir.join(REVOKED);
    let number = |list: &Revoked| list.number;
    let (ours, theirs) = (Revoked::parse(list, root), Revoked::read(&path, root));
    if !same || ours.as_ref().map_or(0, number) > theirs.as_ref().map_or(0, number) {
        files::write(&path, Access::Public, files::encode(LIST, list).as_bytes())?;
        changed.push(path);
    }
    Ok(changed)
}

/// The list in force, and the file it is from.
pub(crate) struct Watched {
    path: PathBuf,
    stamp: Option<Stamp>,
    list: Revoked,
}

impl Watched {
    pub(crate) fn read(path: PathBuf, root: &CertificateDer<'_>) -> Result<Self, IdentityError> {
        let stamp = Stamp::of(&path);
        let list = Revoked::read(&path, root)?;
        Ok(Self { path, stamp, list })
    }

    /// The list in force. A changed file is read; one that cannot be read, or that is older than the list in force, changes nothing: a lost
    /// file lets no revoked peer in again.
    pub(crate) fn now(&mut self, root: &CertificateDer<'_>) -> &Revoked {
        let stamp = Stamp::of(&self.path);
        if stamp != self.stamp {
            self.stamp = stamp;
            let newer = Revoked::read(&self.path, root).ok().filter(|list| list.number > self.list.number);
            self.list = newer.unwrap_or_else(|| core::mem::take(&mut self.list));
        }
        &self.list
    }
}
