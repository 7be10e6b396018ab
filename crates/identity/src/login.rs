//! Logging in: out of what a user has for long, or the authority's own key, certificates for hours, which every site of the grid accepts.

use std::path::{Path, PathBuf};

use rustls::pki_types::CertificateDer;
use webpki::KeyUsage;

use crate::authority::{Authority, Issued};
use crate::error::IdentityError;
use crate::facts::Facts;
use crate::files::{self, AUTHORITY, AUTHORITY_KEY, Bundle, HOST, IDENTITY, LIST, LOGIN, REVOKED, USER};
use crate::make::Signer;
use crate::moment::{HOUR, Moment, Validity};
use crate::name::{Name, Role, Subject};
use crate::peer::Peer;
use crate::refusal::Refusal;
use crate::verify::Trust;

/// How long a login lasts by default.
pub const LOGIN_SECONDS: i64 = 12 * HOUR;

const NO_IDENTITY: &str = "whoever runs the CA types madrigal ca issue --user YOU; copy what that writes here";
const NO_LOGIN: &str = "type madrigal login";

/// Logs a user in for so many seconds. `user` is needed where the authority's own key logs in, and else must be the owner of the identity.
pub fn login(dir: &Path, user: Option<&Name>, seconds: i64) -> Result<Peer, IdentityError> {
    files::judge_directory(dir)?;
    let trust = Trust::read(dir)?;
    let life = Validity::seconds(seconds);
    let session = session(dir, &trust, user, life)?;
    let path = dir.join(LOGIN);
    let signer = signer_of(&path, &session, &trust, NO_LOGIN)?;
    let Role::Login(name) = signer.facts.subject.role.clone() else {
        return Err(IdentityError::Make("a login was asked for, and something else came".to_owned()));
    };
    let own = signer.sign(Role::User(name), life)?;
    let peer = judge(&trust, &dir.join(IDENTITY), &own.chain, NO_IDENTITY)?;
    session.write(&path)?;
    own.write(&dir.join(USER))?;
    renew_host(dir, &signer, life)?;
    Ok(peer)
}

/// A host's certificate that a login gave ends with that login: the next one gives it anew.
fn renew_host(dir: &Path, signer: &Signer, life: Validity) -> Result<(), IdentityError> {
    let path = dir.join(HOST);
    let Some(there) = Bundle::read(&path, NO_HOST)? else { return Ok(()) };
    let facts = first(&path, &there.chain, NO_HOST)?;
    match &facts.subject.role {
        // A certificate signed by the authority comes alone.
        Role::Host(host) if there.chain.len() > 1 && facts.subject.grid == signer.facts.subject.grid => {
            signer.sign(Role::Host(host.clone()), life)?.write(&path)
        }
        _ => Ok(()),
    }
}

/// Logs in again, for as long as before, if less than a third of the time is left; `None`: there is no need yet.
pub fn renew(dir: &Path) -> Result<Option<Peer>, IdentityError> {
    let path = dir.join(LOGIN);
    let missing = || IdentityError::Missing { path: path.clone(), what: "login", advice: NO_LOGIN };
    let session = Bundle::read(&path, NO_LOGIN)?.ok_or_else(missing)?;
    let facts = first(&path, &session.chain, NO_LOGIN)?;
    let life = facts.to.after(facts.from);
    if facts.to.after(Moment::now()) > life / 3 {
        return Ok(None);
    }
    login(dir, facts.subject.role.name(), life.max(HOUR)).map(Some)
}

/// Ends a login here: its files are removed. Copies elsewhere last until they expire. Returns whether there was one.
pub fn logout(dir: &Path) -> Result<bool, IdentityError> {
    let mut was = false;
    for path in [USER, LOGIN].map(|file| dir.join(file)) {
        match std::fs::remove_file(&path) {
            Ok(()) => was = true,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(files::io(&path, "remove it")(error)),
        }
    }
    Ok(was)
}

/// Issues the certificate of a host by the login in `dir`: good until that ends, and believed by that user's own daemons and processes.
pub fn issue_host(dir: &Path, host: &Name, life: Validity) -> Result<Issued, IdentityError> {
    files::judge_directory(dir)?;
    let trust = Trust::read(dir)?;
    let path = dir.join(LOGIN);
    let missing = || IdentityError::Missing { path: path.clone(), what: "login", advice: NO_LOGIN };
    let session = Bundle::read(&path, NO_LOGIN)?.ok_or_else(missing)?;
    let signer = signer_of(&path, &session, &trust, NO_LOGIN)?;
    let bundle = signer.sign(Role::Host(host.clone()), life)?;
    judge(&trust, &path, &bundle.chain, NO_LOGIN)?;
    let list = files::read_one(&dir.join(REVOKED), LIST, NO_LOGIN)?;
    Issued::new(bundle, trust.root.clone(), list)
}

/// The certificate with which a login signs, by the user's identity, or by the authority where its key is here.
fn session(dir: &Path, trust: &Trust, user: Option<&Name>, life: Validity) -> Result<Bundle, IdentityError> {
    let path = dir.join(IDENTITY);
    if let Some(identity) = Bundle::read(&path, NO_IDENTITY)? {
        let signer = signer_of(&path, &identity, trust, NO_IDENTITY)?;
        let name = signer.facts.subject.role.name().cloned();
        let name =
            name.filter(|name| user.is_none_or(|user| user == name)).ok_or_else(|| IdentityError::Unreadable {
                path: path.clone(),
                why: format!("it is of {}", signer.facts.subject.spoken()),
                advice: "leave --user away, or copy that user's identity here",
            })?;
        return signer.sign(Role::Login(name), life);
    }
    if !Authority::exists(dir) {
        return Err(IdentityError::Missing { path, what: "identity of a user", advice: NO_IDENTITY });
    }
    let name = user.cloned().ok_or(IdentityError::Missing {
        path,
        what: "identity of a user",
        advice: "type madrigal login --user NAME, for the CA is here and may log anybody in",
    })?;
    Ok(Authority::open(dir)?.issue(Role::Login(name), life)?.into_bundle())
}

fn signer_of(path: &Path, bundle: &Bundle, trust: &Trust, advice: &'static str) -> Result<Signer, IdentityError> {
    let facts = first(path, &bundle.chain, advice)?;
    let unusable = |refusal| IdentityError::Unusable { path: path.to_owned(), refusal, advice };
    let (who, now) = (facts.subject.spoken(), Moment::now());
    if facts.subject.grid != trust.grid {
        return Err(unusable(Refusal::WrongGrid { who, ours: trust.grid.to_string() }));
    }
    if now > facts.to {
        return Err(unusable(Refusal::Expired { who, at: facts.to, now }));
    }
    Signer::new(facts, bundle)
}

fn first(path: &Path, chain: &[CertificateDer<'static>], advice: &'static str) -> Result<Facts, IdentityError> {
    let wrong = |why: String| IdentityError::Unreadable { path: path.to_owned(), why, advice };
    let first = chain.first().ok_or_else(|| wrong("it holds no certificate".to_owned()))?;
    Facts::read(first).map_err(|refusal| wrong(refusal.to_string()))
}

/// Whether peers would let in the owner of these certificates.
pub(crate) fn judge(
    trust: &Trust,
    path: &Path,
    chain: &[CertificateDer<'static>],
    advice: &'static str,
) -> Result<Peer, IdentityError> {
    let unusable = |refusal| IdentityError::Unusable { path: path.to_owned(), refusal, advice };
    let (leaf, above) = chain.split_first().ok_or_else(|| unusable(Refusal::NoCertificate))?;
    trust.judge(leaf, above, Moment::now(), KeyUsage::client_auth()).map_err(unusable)
}

/// One thing that a user or host has here.
#[derive(Debug)]
pub struct Held {
    /// Its file.
    pub path: PathBuf,
    /// `ca`, `identity`, `login`, `user` or `host`.
    pub kind: &'static str,
    /// Whose it is; `None`: its file cannot be read.
    pub subject: Option<Subject>,
    /// Its serial number, in hexadecimal digits.
    pub serial: Option<String>,
    /// Its first and last second.
    pub life: Option<Validity>,
    /// What is wrong with it, and what to type.
    pub problem: Option<IdentityError>,
}

/// What there is in `dir`, and whether it is good. Fails where nothing at all is trusted.
pub fn status(dir: &Path) -> Result<(Name, Vec<Held>), IdentityError> {
    files::judge_directory(dir)?;
    let trust = Trust::read(dir)?;
    let key = format!("{AUTHORITY}/{AUTHORITY_KEY}");
    let files = [
        ("ca", &*key, NO_LOGIN),
        ("identity", IDENTITY, NO_IDENTITY),
        ("user", USER, NO_LOGIN),
        ("host", HOST, NO_HOST),
    ];
    let held =
        files.into_iter().filter_map(|(kind, file, advice)| held(&trust, dir.join(file), kind, advice)).collect();
    Ok((trust.grid.clone(), held))
}

pub(crate) const NO_HOST: &str =
    "type madrigal ca issue --host NAME where the CA or a login is, and copy what that writes here";

fn held(trust: &Trust, path: PathBuf, kind: &'static str, advice: &'static str) -> Option<Held> {
    let empty = Held { path: path.clone(), kind, subject: None, serial: None, life: None, problem: None };
    let bundle = match Bundle::read(&path, advice) {
        Ok(bundle) => bundle?,
        Err(problem) => return Some(Held { problem: Some(problem), ..empty }),
    };
    let facts = match first(&path, &bundle.chain, advice) {
        Ok(facts) => facts,
        Err(problem) => return Some(Held { problem: Some(problem), ..empty }),
    };
    let problem = match facts.subject.role {
        Role::Authority => None,
        Role::Host(_) | Role::User(_) => judge(trust, &path, &bundle.chain, advice).err(),
        _ => signer_of(&path, &bundle, trust, advice).err(),
    };
    let life = Some(Validity { from: facts.from, to: facts.to });
    Some(Held { path, kind, serial: Some(facts.serial.to_string()), subject: Some(facts.subject), life, problem })
}
