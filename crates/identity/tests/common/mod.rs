//! A grid for one test, and peers that do what ours never would.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use madrigal_identity::{Authority, Credentials, DAY, Moment, Name, Refusal, Validity};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    ClientConfig, ClientConnection, Connection, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    ServerConnection, SignatureScheme,
};

pub(crate) fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

/// A day from now on.
pub(crate) fn day() -> Validity {
    Validity::seconds(DAY)
}

/// Over since an hour.
pub(crate) fn past() -> Validity {
    let now = Moment::now();
    Validity { from: now.plus(-DAY), to: now.plus(-3600) }
}

/// Not before an hour from now.
pub(crate) fn future() -> Validity {
    let now = Moment::now();
    Validity { from: now.plus(3600), to: now.plus(DAY) }
}

/// A directory that is removed at the end.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("madrigal-identity-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A grid with its authority.
pub(crate) struct Grid {
    pub(crate) folder: Folder,
    pub(crate) ca: Authority,
}

impl Grid {
    pub(crate) fn new(grid: &str) -> Self {
        let folder = Folder::new();
        let ca = Authority::create(&folder.0, &name(grid), day(), false).unwrap();
        Self { folder, ca }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.folder.0
    }

    /// The directory of a host that the authority vouches for.
    pub(crate) fn host(&self, host: &str, life: Validity) -> PathBuf {
        let dir = self.folder.0.join(format!("of-{host}"));
        self.ca.issue_host(&name(host), life).unwrap().install(&dir, true).unwrap();
        dir
    }

    /// The directory of a user, not yet logged in.
    pub(crate) fn user(&self, user: &str, life: Validity) -> PathBuf {
        let dir = self.folder.0.join(format!("of-{user}"));
        self.ca.issue_user(&name(user), life).unwrap().install(&dir, true).unwrap();
        dir
    }

    /// What a host connects with.
    pub(crate) fn credentials(&self, host: &str) -> Credentials {
        Credentials::load(&self.host(host, day())).unwrap()
    }

    /// The credentials of a user who has logged in.
    pub(crate) fn logged_in(&self, user: &str) -> (PathBuf, Credentials) {
        let dir = self.user(user, day());
        madrigal_identity::login(&dir, None, 3600).unwrap();
        let credentials = Credentials::load(&dir).unwrap();
        (dir, credentials)
    }
}

/// A key and certificates, used without asking whether they are good.
pub(crate) struct Raw {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: PrivatePkcs8KeyDer<'static>,
}

impl Raw {
    pub(crate) fn read(path: &Path) -> Self {
        let (mut chain, mut key) = (Vec::new(), None);
        for part in pem::parse_many(std::fs::read(path).unwrap()).unwrap() {
            match part.tag() {
                "CERTIFICATE" => chain.push(part.into_contents().into()),
                _ => key = Some(part.into_contents().into()),
            }
        }
        Self { chain, key: key.unwrap() }
    }

    fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(self.key.clone_key())
    }

    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        let builder = ClientConfig::builder().dangerous().with_custom_certificate_verifier(Arc::new(Anybody));
        Arc::new(builder.with_client_auth_cert(self.chain.clone(), self.key()).unwrap())
    }

    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        let builder = ServerConfig::builder().with_client_cert_verifier(Arc::new(Anybody));
        Arc::new(builder.with_single_cert(self.chain.clone(), self.key()).unwrap())
    }
}

/// A client without a certificate.
pub(crate) fn nobody() -> Arc<ClientConfig> {
    let builder = ClientConfig::builder().dangerous();
    Arc::new(builder.with_custom_certificate_verifier(Arc::new(Anybody)).with_no_client_auth())
}

/// Lets any peer in.
#[derive(Debug)]
struct Anybody;

fn any_scheme() -> Vec<SignatureScheme> {
    rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
}

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        any_scheme()
    }
}

impl ClientCertVerifier for Anybody {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        any_scheme()
    }
}

/// Two ends, joined by memory.
pub(crate) struct Pair {
    pub(crate) client: Connection,
    pub(crate) server: Connection,
}

impl Pair {
    pub(crate) fn new(client: Arc<ClientConfig>, server: Arc<ServerConfig>) -> Self {
        let client = ClientConnection::new(client, madrigal_identity::server_name()).unwrap();
        Self { client: client.into(), server: ServerConnection::new(server).unwrap().into() }
    }

    /// Carries bytes until there are none; the first error of each end, as the end's own words.
    pub(crate) fn shake(&mut self) -> [Option<Refusal>; 2] {
        self.shake_with(|_, _| {})
    }

    /// The same, with a man in the middle that may change each flight; `change` gets whether it comes from the client.
    pub(crate) fn shake_with(&mut self, mut change: impl FnMut(bool, &mut Vec<u8>)) -> [Option<Refusal>; 2] {
        let mut errors = [None, None];
        for _ in 0..20 {
            let there = carry(&mut self.client, &mut self.server, &mut errors[1], |bytes| change(true, bytes));
            let back = carry(&mut self.server, &mut self.client, &mut errors[0], |bytes| change(false, bytes));
            if !there && !back {
                break;
            }
        }
        errors
    }
}

fn carry(
    from: &mut Connection,
    to: &mut Connection,
    error: &mut Option<Refusal>,
    change: impl FnOnce(&mut Vec<u8>),
) -> bool {
    let mut bytes = Vec::new();
    while from.wants_write() {
        from.write_tls(&mut bytes).unwrap();
    }
    if bytes.is_empty() {
        return false;
    }
    change(&mut bytes);
    feed(to, &bytes, error);
    true
}

/// Gives bytes to an end; an end that is in error takes no more.
pub(crate) fn feed(to: &mut Connection, mut bytes: &[u8], error: &mut Option<Refusal>) {
    while !bytes.is_empty() && error.is_none() {
        if to.read_tls(&mut bytes).is_err() {
            break;
        }
        if let Err(wrong) = to.process_new_packets() {
            *error = Some(Refusal::of(&wrong));
        }
    }
}
