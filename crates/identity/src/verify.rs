//! Which peers are let in: certificates of this grid, by webpki's path building and our own rules, independent of DNS names.

use std::sync::{Mutex, PoisonError};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible, SignatureScheme};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use crate::error::IdentityError;
use crate::facts::{Chain, Facts};
use crate::files::{REVOKED, TRUST, read_trust};
use crate::moment::Moment;
use crate::name::{Name, Role};
use crate::peer::Peer;
use crate::refusal::Refusal;
use crate::revoked::Watched;

const ADVICE: &str = "ask whoever runs the CA for its ca.pem, or type madrigal ca init GRID to make a grid of your own";

/// What is trusted: one grid's authority, less what it took back.
pub(crate) struct Trust {
    pub(crate) grid: Name,
    pub(crate) root: CertificateDer<'static>,
    anchor: TrustAnchor<'static>,
    revoked: Mutex<Watched>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl core::fmt::Debug for Trust {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Trust({})", self.grid)
    }
}

impl Trust {
    /// Reads the grid's certificate and its list of what was taken back.
    pub(crate) fn read(dir: &std::path::Path) -> Result<Self, IdentityError> {
        let path = dir.join(TRUST);
        let missing = || IdentityError::Missing { path: path.clone(), what: "certificate of a grid", advice: ADVICE };
        let root = read_trust(dir)?.ok_or_else(missing)?;
        let wrong = |why: String| IdentityError::Unreadable { path: path.clone(), why, advice: ADVICE };
        let facts = Facts::read(&root).map_err(|refusal| wrong(refusal.to_string()))?;
        if facts.subject.role != Role::Authority {
            return Err(wrong(format!("it is the certificate of {}, not of a CA", facts.subject.spoken())));
        }
        let now = Moment::now();
        if now > facts.to {
            let refusal = Refusal::Expired { who: facts.subject.spoken(), at: facts.to, now };
            return Err(IdentityError::Unusable {
                path: path.clone(),
                refusal,
                advice: "ask whoever runs the CA for the new one",
            });
        }
        let anchor = anchor_from_trusted_cert(&root).map_err(|error| wrong(error.to_string()))?.to_owned();
        let revoked = Mutex::new(Watched::read(dir.join(REVOKED), &root)?);
        let algorithms = rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms;
        Ok(Self { grid: facts.subject.grid, root, anchor, revoked, algorithms })
    }

    /// Whether a chain is let in. Its order must be the order of signing, with nothing in it that is not needed: so its content may be
    /// trusted afterwards.
    pub(crate) fn judge(
        &self,
        leaf: &CertificateDer<'_>,
        above: &[CertificateDer<'_>],
        now: Moment,
        usage: KeyUsage,
    ) -> Result<Peer, Refusal> {
        let chain = Chain::read(leaf, above)?;
        chain.judge_grid(&self.grid)?;
        self.judge_signatures((leaf, above), &chain, now, usage)?;
        chain.judge_roles()?;
        chain.judge_time(now)?;
        self.judge_revoked(&chain)?;
        Peer::of(&chain)
    }

    fn judge_signatures(
        &self,
        (leaf, above): (&CertificateDer<'_>, &[CertificateDer<'_>]),
        chain: &Chain,
        now: Moment,
        usage: KeyUsage,
    ) -> Result<(), Refusal> {
        let malformed = |error: webpki::Error| Refusal::Malformed { why: error.to_string() };
        let who = || chain.leaf.subject.spoken();
        let time = UnixTime::since_unix_epoch(core::time::Duration::from_secs(now.0.unsigned_abs()));
        let anchors = [self.anchor.clone()];
        let end = EndEntityCert::try_from(leaf).map_err(|error| match error {
            webpki::Error::CaUsedAsEndEntity => {
                Refusal::NotAllowed { who: who(), why: "signs others and connects to nobody" }
            }
            error => malformed(error),
        })?;
        let path = end.verify_for_usage(self.algorithms.all, &anchors, above, time, usage, None, None);
        let path = path.map_err(|error| match error {
            webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey => {
                Refusal::NotSignedBy { who: who(), grid: self.grid.to_string() }
            }
            webpki::Error::CaUsedAsEndEntity => {
                Refusal::NotAllowed { who: who(), why: "signs others and connects to nobody" }
            }
            error => chain.judge_time(now).err().unwrap_or_else(|| malformed(error)),
        })?;
        let same = path.intermediate_certificates().map(webpki::Cert::der).eq(above.iter().cloned());
        if same {
            Ok(())
        } else {
            Err(Refusal::NotAllowed { who: who(), why: "comes with others that did not sign it" })
        }
    }

    /// Serial numbers are random and the grid's authority may take back any of them, also those that a login gave.
    fn judge_revoked(&self, chain: &Chain) -> Result<(), Refusal> {
        let mut revoked = self.revoked.lock().unwrap_or_else(PoisonError::into_inner);
        let list = revoked.now(&self.root);
        for facts in chain.each() {
            if let Some(&at) = list.serials.get(&facts.serial) {
                let (who, serial) = (facts.subject.spoken(), facts.serial.to_string());
                return Err(Refusal::Revoked { who, serial, at });
            }
        }
        Ok(())
    }

    fn judge_for_tls(
        &self,
        leaf: &CertificateDer<'_>,
        above: &[CertificateDer<'_>],
        now: UnixTime,
        usage: KeyUsage,
    ) -> Result<(), Error> {
        let now = Moment(i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
        self.judge(leaf, above, now, usage).map(drop).map_err(Refusal::into_tls)
    }
}

/// TLS 1.2 is not supported.
fn never() -> Result<HandshakeSignatureValid, Error> {
    Err(Error::PeerIncompatible(PeerIncompatible::Tls13RequiredForQuic))
}

impl ClientCertVerifier for Trust {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        above: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.judge_for_tls(leaf, above, now, KeyUsage::client_auth())?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        never()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, leaf, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl ServerCertVerifier for Trust {
    /// Names are not checked: the caller compares the peer's name, with [`Peer::is`](crate::Peer::is).
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        above: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.judge_for_tls(leaf, above, now, KeyUsage::server_auth())?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        never()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, leaf, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
