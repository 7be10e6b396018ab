//! A grid's authority: its key, what it has issued, what it took back.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustls::pki_types::CertificateDer;

use crate::error::IdentityError;
use crate::facts::{Facts, Serial};
use crate::files::{self, AUTHORITY, AUTHORITY_KEY, Access, Bundle, HOST, IDENTITY, ISSUED, LIST, REVOKED, TRUST};
use crate::make::{self, Signer};
use crate::moment::{Moment, Validity};
use crate::name::{Name, Role, Subject};
use crate::revoked::{self, Revoked};
use crate::verify::Trust;

const NO_CA: &str = "type madrigal ca init GRID, or go to where that was typed";
const NO_READ: &str = "restore it from a copy, or type madrigal ca init GRID --force and issue everything again";

/// The authority of a grid, with its key at hand.
pub struct Authority {
    dir: PathBuf,
    root: CertificateDer<'static>,
    signer: Signer,
}

/// A certificate that the authority has issued.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Serial number, in hexadecimal digits.
    pub serial: String,
    /// `host`, `identity` or `login`.
    pub kind: String,
    /// Of the host or user.
    pub name: String,
    /// The last second in which it is valid.
    pub not_after: Moment,
    /// When it was taken back, if it was.
    pub revoked: Option<Moment>,
}

/// Which certificates are meant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Which {
    /// All of a host.
    Host(Name),
    /// All of a user: identities and logins.
    User(Name),
    /// One, by its serial number in hexadecimal digits; it need not be in the authority's books (a login may have signed it).
    Serial(String),
}

impl Which {
    fn means(&self, entry: &Entry) -> bool {
        match self {
            Self::Host(host) => entry.kind == "host" && entry.name == host.as_str(),
            Self::User(user) => entry.kind != "host" && entry.name == user.as_str(),
            Self::Serial(text) => {
                Serial::parse(text).is_some_and(|serial| Serial::parse(&entry.serial) == Some(serial))
            }
        }
    }

    fn spoken(&self) -> String {
        match self {
            Self::Host(host) => format!("host {host}"),
            Self::User(user) => format!("user {user}"),
            Self::Serial(text) => format!("serial {}", text.escape_debug()),
        }
    }
}

impl Authority {
    /// Makes a grid: its authority in `dir`, which from then on trusts it.
    pub fn create(dir: &Path, grid: &Name, life: Validity, force: bool) -> Result<Self, IdentityError> {
        files::make_directory(dir)?;
        // Two at once would leave the key of one with the certificate of the other.
        let _alone = lock(dir)?;
        let home = dir.join(AUTHORITY);
        if !force {
            refuse_to_replace(dir)?;
        } else if home.exists() {
            // Only out of the way: after --force by mistake it can be moved back by hand.
            let aside = dir.join(format!("{AUTHORITY}-until-{}", Moment::now().0));
            fs::rename(&home, aside).map_err(files::io(&home, "move it aside"))?;
        }
        files::make_directory(&home)?;
        let subject = Subject { grid: grid.clone(), role: Role::Authority };
        let bundle = make::root(&subject, life)?;
        bundle.write(&home.join(AUTHORITY_KEY))?;
        files::write(&home.join(ISSUED), Access::Secret, b"")?;
        if let Some(root) = bundle.chain.first() {
            files::write_trust(dir, root)?;
        }
        let authority = Self::open(dir)?;
        authority.publish(&Revoked { number: 1, ..Revoked::default() })?;
        Ok(authority)
    }

    /// Opens the authority in `dir`, by its key.
    pub fn open(dir: &Path) -> Result<Self, IdentityError> {
        files::judge_directory(dir)?;
        let home = dir.join(AUTHORITY);
        files::judge_directory(&home)?;
        let path = home.join(AUTHORITY_KEY);
        let missing = || IdentityError::Missing { path: path.clone(), what: "key of a CA", advice: NO_CA };
        let wrong = |why: String| IdentityError::Unreadable { path: path.clone(), why, advice: NO_READ };
        let mut bundle = Bundle::read(&path, NO_READ)?.ok_or_else(missing)?;
        let root = bundle.chain.pop().ok_or_else(|| wrong("it holds no certificate".to_owned()))?;
        let facts = Facts::read(&root).map_err(|refusal| wrong(refusal.to_string()))?;
        if facts.subject.role != Role::Authority {
            return Err(wrong(format!("it is the key of {}", facts.subject.spoken())));
        }
        let signer = Signer::new(facts, &bundle)?;
        Ok(Self { dir: dir.to_owned(), root, signer })
    }

    /// Keeps others from issuing and revoking at the same time, until it is dropped.
    fn lock(&self) -> Result<fs::File, IdentityError> {
        lock(&self.dir.join(AUTHORITY))
    }

    /// Whether `dir` has the key of an authority.
    pub fn exists(dir: &Path) -> bool {
        dir.join(AUTHORITY).join(AUTHORITY_KEY).exists()
    }

    /// The grid.
    pub fn grid(&self) -> &Name {
        &self.signer.facts.subject.grid
    }

    /// The last second in which it signs.
    pub fn not_after(&self) -> Moment {
        self.signer.facts.to
    }

    /// Issues the certificate of a host.
    pub fn issue_host(&self, host: &Name, life: Validity) -> Result<Issued, IdentityError> {
        self.issue(Role::Host(host.clone()), life)
    }

    /// Issues what a user logs in with.
    pub fn issue_user(&self, user: &Name, life: Validity) -> Result<Issued, IdentityError> {
        self.issue(Role::Identity(user.clone()), life)
    }

    /// Signs, and writes it into the books first: what is not in the books cannot be taken back by name.
    pub(crate) fn issue(&self, role: Role, life: Validity) -> Result<Issued, IdentityError> {
        let _lock = self.lock()?;
        let issued = Issued::new(self.signer.sign(role, life)?, self.root.clone(), self.list_bytes()?)?;
        let facts = &issued.facts;
        let name = facts.subject.role.name().map_or("-", Name::as_str);
        let line = format!("{}\t{}\t{name}\t{}\n", facts.serial, facts.subject.role.word(), facts.to.0);
        let path = self.dir.join(AUTHORITY).join(ISSUED);
        let mut books = files::read(&path, Access::Secret)?.unwrap_or_default();
        books.extend_from_slice(line.as_bytes());
        files::write(&path, Access::Secret, &books)?;
        Ok(issued)
    }

    /// What was issued, the oldest first.
    pub fn issued(&self) -> Result<Vec<Entry>, IdentityError> {
        let path = self.dir.join(AUTHORITY).join(ISSUED);
        let books = files::read(&path, Access::Secret)?.unwrap_or_default();
        let revoked = self.revoked()?;
        let entry = |line: &str| {
            let mut cells = line.split('\t');
            let (serial, kind, name, to) = (cells.next()?, cells.next()?, cells.next()?, cells.next()?);
            let revoked = revoked.serials.get(&Serial::parse(serial)?).copied();
            let not_after = Moment(to.parse().ok()?);
            Some(Entry { serial: serial.into(), kind: kind.into(), name: name.into(), not_after, revoked })
        };
        Ok(String::from_utf8_lossy(&books).lines().filter_map(entry).collect())
    }

    /// Takes certificates back, and returns those that were not taken back before. The signed list is in `revoked.pem`; it must be copied
    /// to all hosts that need it.
    pub fn revoke(&self, which: &Which) -> Result<Vec<Entry>, IdentityError> {
        let (_lock, now) = (self.lock()?, Moment::now());
        let mut entries: Vec<_> = self.issued()?.into_iter().filter(|entry| which.means(entry)).collect();
        if let (true, Which::Serial(text)) = (entries.is_empty(), which)
            && let Some(serial) = Serial::parse(text)
        {
            let serial = serial.to_string();
            let unknown = "-".to_owned();
            entries.push(Entry { serial, kind: unknown.clone(), name: unknown, not_after: now, revoked: None });
        }
        if entries.is_empty() {
            return Err(IdentityError::NotIssued { what: which.spoken() });
        }
        let mut list = self.revoked()?;
        entries.retain(|entry| {
            let serial = Serial::parse(&entry.serial).filter(|serial| !list.serials.contains_key(serial));
            serial.is_some_and(|serial| list.serials.insert(serial, now).is_none())
        });
        list.number += 1;
        self.publish(&list)?;
        entries.iter_mut().for_each(|entry| entry.revoked = Some(now));
        Ok(entries)
    }

    fn revoked(&self) -> Result<Revoked, IdentityError> {
        Revoked::read(&self.dir.join(REVOKED), &self.root)
    }

    fn list_bytes(&self) -> Result<Option<Vec<u8>>, IdentityError> {
        files::read_one(&self.dir.join(REVOKED), LIST, NO_READ)
    }

    fn publish(&self, list: &Revoked) -> Result<(), IdentityError> {
        let text = files::encode(LIST, &self.signer.sign_list(list)?);
        files::write(&self.dir.join(REVOKED), Access::Public, text.as_bytes())
    }
}

/// Waits until no other process has a directory locked.
fn lock(dir: &Path) -> Result<fs::File, IdentityError> {
    let lock = fs::File::open(dir).map_err(files::io(dir, "open it"))?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|e| files::io(dir, "lock it")(e.into()))?;
    Ok(lock)
}

fn refuse_to_replace(dir: &Path) -> Result<(), IdentityError> {
    let key = dir.join(AUTHORITY).join(AUTHORITY_KEY);
    if key.exists() {
        let advice = "add --force to replace it, which makes every certificate it issued worthless";
        return Err(IdentityError::Exists { path: key, what: "the key of a CA".to_owned(), advice });
    }
    let path = dir.join(TRUST);
    if path.exists() {
        let what =
            Trust::read(dir).map_or("a CA's certificate".to_owned(), |t| format!("the certificate of grid {}", t.grid));
        let advice = "add --force to leave that grid, or set MADRIGAL_CONFIG_DIR to another directory";
        return Err(IdentityError::Exists { path, what, advice });
    }
    Ok(())
}

/// A certificate just made, with its key, not yet in any file.
pub struct Issued {
    bundle: Bundle,
    pub(crate) facts: Facts,
    root: CertificateDer<'static>,
    list: Option<Vec<u8>>,
}

impl Issued {
    pub(crate) fn new(
        bundle: Bundle,
        root: CertificateDer<'static>,
        list: Option<Vec<u8>>,
    ) -> Result<Self, IdentityError> {
        let made = bundle.chain.first().ok_or_else(|| IdentityError::Make("nothing was made".to_owned()))?;
        let facts = Facts::read(made).map_err(|refusal| IdentityError::Make(refusal.to_string()))?;
        Ok(Self { bundle, facts, root, list })
    }

    /// What its holder must trust: the grid's certificate, and the list of what was taken back.
    pub(crate) fn trusted(&self) -> (CertificateDer<'static>, Option<Vec<u8>>) {
        (self.root.clone(), self.list.clone())
    }

    pub(crate) fn into_bundle(self) -> Bundle {
        self.bundle
    }

    /// Whose it is.
    pub fn subject(&self) -> &Subject {
        &self.facts.subject
    }

    /// Its serial number, in hexadecimal digits.
    pub fn serial(&self) -> String {
        self.facts.serial.to_string()
    }

    /// The last second in which it is valid.
    pub fn not_after(&self) -> Moment {
        self.facts.to
    }

    /// The file of a directory that it belongs in.
    pub fn file(&self) -> &'static str {
        match self.facts.subject.role {
            Role::Host(_) => HOST,
            _ => IDENTITY,
        }
    }

    /// Refuses if [`Issued::install`] would replace something. Asked before anything is signed.
    pub fn may_install(dir: &Path, file: &str, root: Option<&[u8]>) -> Result<(), IdentityError> {
        let path = dir.join(file);
        if path.exists() {
            let what = "a certificate with its key".to_owned();
            return Err(IdentityError::Exists { path, what, advice: "add --force to replace it, or --out DIR" });
        }
        let there = files::read_trust(dir)?;
        if there.is_some_and(|there| root.is_some_and(|root| root != there.as_ref())) {
            let what = "the certificate of another CA".to_owned();
            let advice = "add --force to leave that grid, or --out DIR";
            return Err(IdentityError::Exists { path: dir.join(TRUST), what, advice });
        }
        Ok(())
    }

    /// Puts it, its key, and what the holder is to trust into a directory, made if need be. That directory is all its host or user
    /// needs. Without `force` nothing is replaced.
    pub fn install(&self, dir: &Path, force: bool) -> Result<PathBuf, IdentityError> {
        files::make_directory(dir)?;
        if !force {
            Self::may_install(dir, self.file(), Some(self.root.as_ref()))?;
        }
        let path = dir.join(self.file());
        self.bundle.write(&path)?;
        revoked::write_trusted(dir, &self.root, self.list.as_deref())?;
        Ok(path)
    }
}
