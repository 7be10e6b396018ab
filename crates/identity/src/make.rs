//! Makes keys and certificates. Keys are ECDSA on P-256, serial numbers random.

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
    RevokedCertParams, SanType, SerialNumber,
};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

use crate::error::IdentityError;
use crate::facts::{Facts, Serial};
use crate::files::Bundle;
use crate::moment::{Moment, Validity};
use crate::name::{Role, Subject};
use crate::revoked::Revoked;

/// A signer: a key, its owner, and the certificates that prove it, without the grid's own.
pub(crate) struct Signer {
    pub(crate) facts: Facts,
    pub(crate) above: Vec<CertificateDer<'static>>,
    issuer: Issuer<'static, KeyPair>,
}

impl Signer {
    /// The owner of the first certificate of `chain`, or of `root` where that is empty.
    pub(crate) fn new(facts: Facts, bundle: &Bundle) -> Result<Self, IdentityError> {
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&bundle.key, &PKCS_ECDSA_P256_SHA256)?;
        let life = Validity { from: facts.from, to: facts.to };
        let params = params(&facts.subject, life, &facts.serial)?;
        Ok(Self { facts, above: bundle.chain.clone(), issuer: Issuer::new(params, key) })
    }

    /// Signs a new certificate, no longer valid than this signer itself.
    pub(crate) fn sign(&self, role: Role, life: Validity) -> Result<Bundle, IdentityError> {
        let (now, to) = (Moment::now(), self.facts.to);
        if now > to {
            let who = self.facts.subject.spoken();
            return Err(IdentityError::Ended { who, at: to, advice: "type madrigal login, or make it anew" });
        }
        let subject = Subject { grid: self.facts.subject.grid.clone(), role };
        let life = Validity { from: life.from, to: life.to.min(to) };
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let certificate = params(&subject, life, &random_serial()?)?.signed_by(&key, &self.issuer)?;
        let mut chain = vec![certificate.der().clone()];
        chain.extend(self.above.iter().cloned());
        Ok(Bundle { chain, key: PrivatePkcs8KeyDer::from(key.serialize_der()) })
    }

    /// Signs a list of what was taken back.
    pub(crate) fn sign_list(&self, list: &Revoked) -> Result<Vec<u8>, IdentityError> {
        let entry = |(serial, at): (&Serial, &Moment)| RevokedCertParams {
            serial_number: SerialNumber::from_slice(&serial.0),
            revocation_time: at.to_date(),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: Moment::now().to_date(),
            next_update: self.facts.to.to_date(),
            crl_number: SerialNumber::from(list.number),
            issuing_distribution_point: None,
            revoked_certs: list.serials.iter().map(entry).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        Ok(params.signed_by(&self.issuer)?.der().to_vec())
    }
}

/// Makes the authority of a grid: its certificate and its key.
pub(crate) fn root(subject: &Subject, life: Validity) -> Result<Bundle, IdentityError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let certificate = params(subject, life, &random_serial()?)?.self_signed(&key)?;
    let chain = vec![certificate.der().clone()];
    Ok(Bundle { chain, key: PrivatePkcs8KeyDer::from(key.serialize_der()) })
}

fn params(subject: &Subject, life: Validity, serial: &Serial) -> Result<CertificateParams, IdentityError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, subject.spoken());
    params.subject_alt_names = vec![SanType::URI(subject.to_string().try_into()?)];
    (params.not_before, params.not_after) = (life.from.to_date(), life.to.to_date());
    params.serial_number = Some(SerialNumber::from_slice(&serial.0));
    params.key_identifier_method = KeyIdMethod::Sha256;
    params.use_authority_key_identifier_extension = true;
    if let Some(below) = subject.role.signs() {
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(below));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    } else {
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    }
    Ok(params)
}

/// 126 random bits; none is lost to the sign or to leading zeros.
fn random_serial() -> Result<Serial, IdentityError> {
    let mut bytes = [0u8; 16];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    if got.ok() != Some(bytes.len()) {
        return Err(IdentityError::Make("the kernel gives no random bytes".to_owned()));
    }
    bytes[0] = bytes[0] & 0x7f | 0x40;
    Ok(Serial::new(&bytes))
}
