//! What a host needs of a grid, in one piece, and how it is brought there: plainly over an encrypted and authenticated connection (ssh), or
//! sealed with a code by any way at all. Sealed it is of no use without the code, nor the code without it; with both one has the host's
//! key. The code is made for one parcel and never used again, so its key seals one message.

use std::path::{Path, PathBuf};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

use crate::authority::Issued;
use crate::error::IdentityError;
use crate::facts::Facts;
use crate::files::{self, Access, Bundle, HOST, LIST, REVOKED, TRUST};
use crate::moment::Moment;
use crate::name::Name;
use crate::revoked;
use crate::verify::Trust;

/// The description of the grid, beside the files of its identity.
pub const GRID: &str = "grid.toml";

/// What every parcel begins with.
const MAGIC: &[u8] = b"madrigal-parcel 1\n";
/// What a sealed one begins with.
const SEALED: &str = "m1.";
/// No parcel is longer.
const LONGEST: usize = 4 << 20;
/// No sealed one is longer: Linux passes no argument of 128 KiB to a command.
const LONGEST_LINE: usize = 120_000;
/// What the key of a sealed parcel is derived for.
const PURPOSE: &[u8] = b"madrigal parcel 1";
/// Digits of codes (Crockford 1982): none is taken for another.
const DIGITS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
/// Digits of a code: a hundred bits, too many to guess.
const CODE_DIGITS: usize = 20;

/// What a host needs: the grid's certificate and its list of what was taken back, the description of the grid, and, but for a host that
/// has one, its own certificate and key.
pub struct Parcel {
    host: Option<Bundle>,
    root: CertificateDer<'static>,
    list: Option<Vec<u8>>,
    grid: String,
    until: Moment,
}

/// Why a parcel is not opened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParcelError {
    /// Something else, or a part of one.
    #[error("that is no line of `madrigal grid add`, or not all of it: copy the whole line, from {SEALED} to its end")]
    Nonsense,
    /// Another code, or a line that was changed.
    #[error(
        "the code is not that of this line, or a part of the line is missing: copy both again from where `madrigal grid add` was typed"
    )]
    Code,
    /// It was to be used earlier.
    #[error(
        "the line was good until {until}, and it is {now} here: type `madrigal grid add` with --again where the CA is"
    )]
    Late {
        /// Its last second.
        until: Moment,
        /// This host's clock.
        now: Moment,
    },
    /// A line that no shell passes on.
    #[error(
        "the line would be {length} bytes long, and a command takes up to {LONGEST_LINE}: bring it by ssh \
         (--ssh), or make grid.toml shorter"
    )]
    Long {
        /// Its length.
        length: usize,
    },
    /// What seals is not there.
    #[error("the parcel cannot be sealed: {0}")]
    Seal(&'static str),
}

/// What was put in place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Installed {
    /// The host whose certificate came along.
    pub host: Option<Name>,
    /// The files whose content changed, or that are new.
    pub changed: Vec<PathBuf>,
}

impl Issued {
    /// The certificate with its key, for a host that reads the description `grid`; good for sealed delivery until `until`.
    pub fn parcel(self, grid: &str, until: Moment) -> Parcel {
        let (root, list) = self.trusted();
        Parcel { host: Some(self.into_bundle()), root, list, grid: grid.to_owned(), until }
    }
}

impl Parcel {
    /// For hosts that have certificates: the description `grid`, and what `dir` has of the grid for everybody.
    pub fn update(dir: &Path, grid: &str, until: Moment) -> Result<Self, IdentityError> {
        const ADVICE: &str = "type this where the grid's ca.pem is";
        let root = Trust::read(dir)?.root;
        let list = files::read_one(&dir.join(REVOKED), LIST, ADVICE)?;
        Ok(Self { host: None, root, list, grid: grid.to_owned(), until })
    }

    /// The text of the description.
    pub fn description(&self) -> &str {
        &self.grid
    }

    /// The host whose certificate and key are in it; `None` where there are none.
    pub fn host(&self) -> Result<Option<Name>, IdentityError> {
        self.host.as_ref().map(owner).transpose()
    }

    /// The last second in which a sealed one is opened.
    pub fn until(&self) -> Moment {
        self.until
    }

    /// As bytes, in which the key lies open.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let mut put = |part: Part, body: &[u8]| {
            bytes.push(part as u8);
            bytes.extend_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
            bytes.extend_from_slice(body);
        };
        if let Some(host) = &self.host {
            put(Part::Key, host.key.secret_pkcs8_der());
            host.chain.iter().for_each(|certificate| put(Part::Certificate, certificate));
        }
        put(Part::Root, &self.root);
        self.list.iter().for_each(|list| put(Part::List, list));
        put(Part::Grid, self.grid.as_bytes());
        put(Part::Until, &self.until.0.to_le_bytes());
        bytes
    }

    /// Reads what [`Parcel::to_bytes`] wrote.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ParcelError> {
        let mut rest = bytes.strip_prefix(MAGIC).filter(|rest| rest.len() <= LONGEST).ok_or(ParcelError::Nonsense)?;
        let (mut key, mut chain, mut root, mut list, mut grid, mut until) = (None, Vec::new(), None, None, None, None);
        while let Some((part, body, behind)) = Part::take(rest) {
            rest = behind;
            match part {
                Part::Key => key = Some(PrivatePkcs8KeyDer::from(body.to_vec())),
                Part::Certificate => chain.push(CertificateDer::from(body.to_vec())),
                Part::Root => root = Some(CertificateDer::from(body.to_vec())),
                Part::List => list = Some(body.to_vec()),
                Part::Grid => grid = String::from_utf8(body.to_vec()).ok(),
                Part::Until => until = body.try_into().ok().map(|body| Moment(i64::from_le_bytes(body))),
            }
        }
        let (Some(root), Some(grid), Some(until), true) = (root, grid, until, rest.is_empty()) else {
            return Err(ParcelError::Nonsense);
        };
        let host = key.map(|key| Bundle { chain, key });
        Ok(Self { host, root, list, grid, until })
    }

    /// As a line of letters, digits, `-`, `_` and `.`, and the code without which it is of no use.
    pub fn seal(&self) -> Result<(String, String), ParcelError> {
        let code = fresh_code().ok_or(ParcelError::Seal("the kernel gives no random bytes"))?;
        let mut bytes = self.to_bytes();
        let done = key_of(&code).seal_in_place_append_tag(first_nonce(), Aad::from(SEALED.as_bytes()), &mut bytes);
        done.map_err(|_| ParcelError::Seal("the cipher refuses"))?;
        let spoken = code.as_bytes().chunks(4).map(|four| String::from_utf8_lossy(four)).collect::<Vec<_>>().join("-");
        let line = format!("{SEALED}{}", BASE64_URL_SAFE_NO_PAD.encode(bytes));
        if line.len() > LONGEST_LINE { Err(ParcelError::Long { length: line.len() }) } else { Ok((line, spoken)) }
    }

    /// Opens what [`Parcel::seal`] wrote, if it is not too late.
    pub fn open(line: &str, code: &str, now: Moment) -> Result<Self, ParcelError> {
        let body =
            line.trim().strip_prefix(SEALED).filter(|body| body.len() <= LONGEST).ok_or(ParcelError::Nonsense)?;
        let mut bytes = BASE64_URL_SAFE_NO_PAD.decode(body).map_err(|_| ParcelError::Nonsense)?;
        let opened = key_of(&plain_code(code)).open_in_place(first_nonce(), Aad::from(SEALED.as_bytes()), &mut bytes);
        let parcel = Self::from_bytes(opened.map_err(|_| ParcelError::Code)?)?;
        if now > parcel.until {
            return Err(ParcelError::Late { until: parcel.until, now });
        }
        Ok(parcel)
    }

    /// Puts everything into `dir`, made if need be. What is of another grid, or of another host, is not replaced without `force`.
    pub fn install(&self, dir: &Path, force: bool) -> Result<Installed, IdentityError> {
        files::make_directory(dir)?;
        let host = self.host()?;
        if !force {
            self.may_install(dir, host.as_ref())?;
        }
        let mut changed = Vec::new();
        if let Some(bundle) = &self.host {
            bundle.write(&dir.join(HOST))?;
            changed.push(dir.join(HOST));
        }
        changed.extend(revoked::write_trusted(dir, &self.root, self.list.as_deref())?);
        let path = dir.join(GRID);
        let there = files::read(&path, Access::Public)?;
        if there.as_deref() != Some(self.grid.as_bytes()) {
            if let Some(there) = there {
                files::write(&dir.join(format!("{GRID}.old")), Access::Public, &there)?;
            }
            files::write(&path, Access::Public, self.grid.as_bytes())?;
            changed.push(path);
        }
        Ok(Installed { host, changed })
    }

    fn may_install(&self, dir: &Path, host: Option<&Name>) -> Result<(), IdentityError> {
        let advice = "add --force to leave that grid, or set MADRIGAL_CONFIG_DIR to another directory";
        match files::read_trust(dir)? {
            Some(there) if there != self.root => {
                let what = "the certificate of another CA".to_owned();
                return Err(IdentityError::Exists { path: dir.join(TRUST), what, advice });
            }
            // A host that gets a description of a grid must be in it.
            None if host.is_none() => {
                let what = "certificate of a grid";
                let advice = "type madrigal grid add HOST where the CA is";
                return Err(IdentityError::Missing { path: dir.join(TRUST), what, advice });
            }
            _ => {}
        }
        let path = dir.join(HOST);
        let (Some(there), Some(host)) = (Bundle::read(&path, "remove it, or add --force")?, host) else {
            return Ok(());
        };
        match owner(&there) {
            Ok(other) if other != *host => {
                let advice =
                    "add --force if this is another host by now, or set MADRIGAL_CONFIG_DIR to another directory";
                Err(IdentityError::Exists { path, what: format!("the certificate of host {other}"), advice })
            }
            _ => Ok(()),
        }
    }
}

/// Whose certificate that is.
fn owner(bundle: &Bundle) -> Result<Name, IdentityError> {
    let wrong = || IdentityError::Make("the parcel holds no certificate of a host".to_owned());
    let facts = bundle.chain.first().and_then(|first| Facts::read(first).ok()).ok_or_else(wrong)?;
    facts.subject.role.name().cloned().ok_or_else(wrong)
}

/// What a piece of a parcel is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Key = 1,
    Certificate = 2,
    Root = 3,
    List = 4,
    Grid = 5,
    Until = 6,
}

impl Part {
    const ALL: [Self; 6] = [Self::Key, Self::Certificate, Self::Root, Self::List, Self::Grid, Self::Until];

    /// The first piece, and what comes behind it.
    fn take(bytes: &[u8]) -> Option<(Self, &[u8], &[u8])> {
        let (head, rest) = bytes.split_first_chunk::<5>()?;
        let part = Self::ALL.into_iter().find(|part| *part as u8 == head[0])?;
        let len = u32::from_le_bytes([head[1], head[2], head[3], head[4]]);
        let (body, behind) = rest.split_at_checked(usize::try_from(len).ok()?)?;
        Some((part, body, behind))
    }
}

/// A fresh random code.
fn fresh_code() -> Option<String> {
    let mut bytes = [0u8; CODE_DIGITS];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    let digit = |byte: &u8| char::from(DIGITS[usize::from(byte % 32)]);
    (got == Ok(bytes.len())).then(|| bytes.iter().map(digit).collect())
}

/// The digits of a code, however it was typed.
fn plain_code(typed: &str) -> String {
    let digit = |c: char| match c.to_ascii_uppercase() {
        'O' => '0',
        'I' | 'L' => '1',
        other => other,
    };
    typed.chars().filter(|c| c.is_ascii_alphanumeric()).map(digit).collect()
}

fn key_of(code: &str) -> LessSafeKey {
    // One block of output is all a key takes: neither step can fail.
    let secret = Salt::new(HKDF_SHA256, &[]).extract(code.as_bytes());
    let okm = secret.expand(&[PURPOSE], &AES_256_GCM).expect("a key is shorter than 255 blocks");
    LessSafeKey::new(UnboundKey::from(okm))
}

/// A key seals one message.
fn first_nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}
