//! What a daemon or a program connects with: its certificate and key, its trusted authority, and the TLS configurations made of both.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::{ClientConfig, ResolvesClientCert, Resumption};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, ServerConfig};
use rustls::sign::CertifiedKey;
use rustls::{SignatureScheme, version::TLS13};
use webpki::KeyUsage;

use crate::error::IdentityError;
use crate::files::{self, Bundle, HOST, Stamp, USER};
use crate::login::{NO_HOST, judge};
use crate::moment::Moment;
use crate::peer::{Kind, Peer};
use crate::refusal::Refusal;
use crate::verify::Trust;

const NEITHER: &str = "type madrigal login, or get this host a certificate with madrigal ca issue --host NAME";
const NO_LOGIN: &str = "type madrigal login";

/// The certificate shown to peers, the peers let in, and the configurations for both. A renewed login and a longer list of what was revoked
/// take effect at the next connection.
#[derive(Clone)]
pub struct Credentials {
    trust: Arc<Trust>,
    shown: Arc<Shown>,
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl Credentials {
    /// Reads the directory: the host's certificate if there is a good one, else the user's login.
    pub fn load(dir: &Path) -> Result<Self, IdentityError> {
        match Self::load_as(dir, Kind::Host) {
            Ok(Some(host)) => Ok(host),
            Ok(None) => {
                let path = dir.join(USER);
                let missing = || IdentityError::Missing { path, what: "login nor host.pem", advice: NEITHER };
                Self::load_as(dir, Kind::User)?.ok_or_else(missing)
            }
            Err(host) => Self::load_as(dir, Kind::User).ok().flatten().ok_or(host),
        }
    }

    /// Reads the directory as one of both only; `None`: it has no such certificate.
    pub fn load_as(dir: &Path, kind: Kind) -> Result<Option<Self>, IdentityError> {
        files::judge_directory(dir)?;
        let trust = Arc::new(Trust::read(dir)?);
        let path = dir.join(if kind == Kind::Host { HOST } else { USER });
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let Some(now) = Now::read(&path, kind, &trust, &provider)? else { return Ok(None) };
        let now = Mutex::new(now);
        let shown = Arc::new(Shown { path, kind, now, trust: trust.clone(), provider: provider.clone() });
        let server = Arc::new(server(&provider, &trust, &shown)?);
        let client = Arc::new(client(&provider, &trust, &shown)?);
        Ok(Some(Self { trust, shown, server, client }))
    }

    /// For the accepting side.
    pub fn server(&self) -> Arc<ServerConfig> {
        self.server.clone()
    }

    /// For the connecting side. Names of servers are not checked: pass [`server_name`], and check [`Peer::is`] afterwards.
    pub fn client(&self) -> Arc<ClientConfig> {
        self.client.clone()
    }

    /// Our identity for peers, now.
    pub fn own(&self) -> Peer {
        self.shown.now().1
    }

    /// The certificate and key that are shown now.
    pub(crate) fn shown_now(&self) -> Arc<CertifiedKey> {
        self.shown.now().0
    }

    /// The grid.
    pub fn grid(&self) -> &str {
        self.trust.grid.as_str()
    }

    /// Whether a process that shows this certificate wants links with that peer: one of the same user, or one that no user's login vouches
    /// for at either end (a host's, of which the CA decides).
    pub fn admits(&self, peer: &Peer) -> Result<(), Refusal> {
        let own = self.own();
        match (&own.user, &peer.user) {
            (Some(ours), Some(theirs)) if ours != theirs => {
                Err(Refusal::OtherUser { who: peer.to_string(), ours: own.to_string() })
            }
            _ => Ok(()),
        }
    }

    /// Judges a chain again, as a handshake would now: for connections that last longer than certificates do.
    pub fn judge(&self, chain: &[CertificateDer<'_>]) -> Result<Peer, Refusal> {
        let (leaf, above) = chain.split_first().ok_or(Refusal::NoCertificate)?;
        self.trust.judge(leaf, above, Moment::now(), KeyUsage::client_auth())
    }
}

/// A name by which a client may call any server: names are neither sent nor checked.
pub fn server_name() -> ServerName<'static> {
    ServerName::IpAddress(core::net::IpAddr::V4(core::net::Ipv4Addr::UNSPECIFIED).into())
}

fn server(
    provider: &Arc<CryptoProvider>,
    trust: &Arc<Trust>,
    shown: &Arc<Shown>,
) -> Result<ServerConfig, IdentityError> {
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(&[&TLS13]);
    let builder = builder.map_err(|error| IdentityError::Make(error.to_string()))?;
    let mut config = builder.with_client_cert_verifier(trust.clone()).with_cert_resolver(shown.clone());
    // A session taken up again would not be judged again.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn client(
    provider: &Arc<CryptoProvider>,
    trust: &Arc<Trust>,
    shown: &Arc<Shown>,
) -> Result<ClientConfig, IdentityError> {
    let builder = ClientConfig::builder_with_provider(provider.clone()).with_protocol_versions(&[&TLS13]);
    let builder = builder.map_err(|error| IdentityError::Make(error.to_string()))?;
    let verified = builder.dangerous().with_custom_certificate_verifier(trust.clone());
    let mut config = verified.with_client_cert_resolver(shown.clone());
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    Ok(config)
}

/// The certificate that is shown, read again whenever its file changes.
struct Shown {
    path: PathBuf,
    kind: Kind,
    now: Mutex<Now>,
    trust: Arc<Trust>,
    provider: Arc<CryptoProvider>,
}

/// One state of the file.
#[derive(Clone)]
struct Now {
    stamp: Option<Stamp>,
    key: Arc<CertifiedKey>,
    peer: Peer,
}

impl Now {
    /// `None`: there is no such file.
    fn read(path: &Path, kind: Kind, trust: &Trust, provider: &CryptoProvider) -> Result<Option<Self>, IdentityError> {
        let advice = if kind == Kind::Host { NO_HOST } else { NO_LOGIN };
        let wrong = |why: String| IdentityError::Unreadable { path: path.to_owned(), why, advice };
        let stamp = Stamp::of(path);
        let Some(Bundle { chain, key }) = Bundle::read(path, advice)? else { return Ok(None) };
        let peer = judge(trust, path, &chain, advice)?;
        if peer.kind != kind {
            return Err(wrong(format!("it is the certificate of {peer}")));
        }
        let key = provider.key_provider.load_private_key(PrivateKeyDer::Pkcs8(key));
        let key = CertifiedKey::new(chain, key.map_err(|error| wrong(error.to_string()))?);
        key.keys_match().map_err(|_| wrong("the key in it is not the certificate's".to_owned()))?;
        Ok(Some(Self { stamp, key: Arc::new(key), peer }))
    }
}

impl Shown {
    /// A file that vanished, or that holds nothing good, changes nothing: what is shown then ends by itself.
    fn now(&self) -> (Arc<CertifiedKey>, Peer) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = Stamp::of(&self.path);
        if stamp != now.stamp {
            now.stamp = stamp;
            if let Ok(Some(newer)) = Now::read(&self.path, self.kind, &self.trust, &self.provider) {
                *now = newer;
            }
        }
        (now.key.clone(), now.peer.clone())
    }
}

impl core::fmt::Debug for Shown {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Shown({})", self.path.display())
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.now().0)
    }
}

impl ResolvesClientCert for Shown {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.now().0)
    }

    fn has_certs(&self) -> bool {
        true
    }
}
