//! The other end of a connection.

use core::fmt;

use rustls::pki_types::CertificateDer;

use crate::facts::Chain;
use crate::moment::Moment;
use crate::name::Role;
use crate::refusal::Refusal;

/// What connects.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// A daemon on a host.
    Host,
    /// A process of a user.
    User,
}

impl Kind {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::User => "user",
        }
    }
}

/// The other end, as its certificates describe it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Peer {
    /// The grid.
    pub grid: String,
    /// What connects.
    pub kind: Kind,
    /// The host's name, or the user's.
    pub name: String,
    /// For a host: the user whose login vouches for it; `None`: the grid's authority does. For a user: that user.
    pub user: Option<String>,
    /// The certificate's serial number, in hexadecimal digits.
    pub serial: String,
    /// The last second in which its certificates are valid, all of them.
    pub not_after: Moment,
}

impl Peer {
    pub(crate) fn of(chain: &Chain) -> Result<Self, Refusal> {
        let subject = &chain.leaf.subject;
        let (kind, name) = match &subject.role {
            Role::Host(name) => (Kind::Host, name),
            Role::User(name) => (Kind::User, name),
            _ => {
                let why = "signs others and connects to nobody";
                return Err(Refusal::NotAllowed { who: subject.spoken(), why });
            }
        };
        Ok(Self {
            grid: subject.grid.to_string(),
            kind,
            name: name.to_string(),
            user: chain.user().map(ToString::to_string),
            serial: chain.leaf.serial.to_string(),
            not_after: chain.ends(),
        })
    }

    /// Whether this is the daemon of `host`. The grid's authority vouches for any host. A login only vouches for hosts of its own user, so
    /// only that user accepts such a host: `user` is the caller.
    pub fn is(&self, host: &str, user: Option<&str>) -> Result<(), Refusal> {
        let ours = self.user.is_none() || self.user.as_deref() == user;
        if self.kind == Kind::Host && self.name == host && ours {
            return Ok(());
        }
        Err(Refusal::WrongPeer { who: self.to_string(), wanted: format!("host {host}") })
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.word(), self.name)?;
        match (&self.user, self.kind) {
            (Some(user), Kind::Host) => write!(f, " of {user}, grid {}", self.grid),
            _ => write!(f, " of grid {}", self.grid),
        }
    }
}

/// The owner of this chain, which the handshake of one of our configurations has let in (`peer_certificates` of the connection). For a
/// chain from anywhere else it only repeats its claims; [`Credentials::judge`](crate::Credentials::judge) verifies them.
pub fn peer(chain: &[CertificateDer<'_>]) -> Result<Peer, Refusal> {
    let (leaf, above) = chain.split_first().ok_or(Refusal::NoCertificate)?;
    let chain = Chain::read(leaf, above)?;
    chain.judge_roles()?;
    Peer::of(&chain)
}
