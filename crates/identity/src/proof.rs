//! A renewed certificate on a connection that was made with the one before: TLS requests certificates at the beginning only, and traffic on
//! a connection should not end with a login that was renewed in time.
//!
//! ```text
//!  length of all that follows (4)   certificates (1)   each: length (2), DER   length (2), signature
//! ```
//! The signature covers a secret that only the two ends of that one connection know (RFC 8446, 7.5: exporters), another one for each end.
//! So a proof is valid on its connection alone, and no other proof is valid there.

use rustls::SignatureScheme;
use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

use crate::credentials::Credentials;
use crate::peer::Peer;
use crate::refusal::Refusal;

/// Goes before the secret: what is signed here is good for nothing else.
const MEANT_FOR: &[u8] = b"madrigal: the certificate of this end was renewed\0";
/// No proof is longer: certificates have less than a kilobyte each.
const LONGEST: usize = 16 << 10;

/// Certificates, and that their key signed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proof {
    chain: Vec<CertificateDer<'static>>,
    signature: Vec<u8>,
}

impl Proof {
    /// The certificates.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    /// As bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut body = vec![self.chain.len() as u8];
        for part in self.chain.iter().map(AsRef::as_ref).chain([self.signature.as_slice()]) {
            body.extend((part.len() as u16).to_le_bytes());
            body.extend(part);
        }
        [&(body.len() as u32).to_le_bytes()[..], &body].concat()
    }

    /// Reads what [`Proof::bytes`] gave; `None`: more must come.
    pub fn read(bytes: &[u8]) -> Result<Option<Self>, Refusal> {
        let malformed = || Refusal::Malformed { why: "no proof of a renewed certificate".to_owned() };
        let Some((len, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
        let len = usize::try_from(u32::from_le_bytes(*len)).ok().filter(|len| *len <= LONGEST).ok_or_else(malformed)?;
        let Some(body) = rest.get(..len) else { return Ok(None) };
        let (count, mut rest) = body.split_first().ok_or_else(malformed)?;
        let mut part = || {
            let (len, more) = rest.split_first_chunk::<2>()?;
            let (part, more) = more.split_at_checked(usize::from(u16::from_le_bytes(*len)))?;
            rest = more;
            Some(part.to_vec())
        };
        let chain = (0..*count).map(|_| part().map(CertificateDer::from)).collect::<Option<Vec<_>>>();
        let (chain, signature) = chain.zip(part()).ok_or_else(malformed)?;
        if rest.is_empty() { Ok(Some(Self { chain, signature })) } else { Err(malformed()) }
    }
}

impl Credentials {
    /// What is shown now, proved on a connection whose other end knows `secret`, too; `None`: the key cannot sign.
    pub fn prove(&self, secret: &[u8]) -> Option<Proof> {
        let key = self.shown_now();
        let signer = key.key.choose_scheme(&[SignatureScheme::ECDSA_NISTP256_SHA256])?;
        let signature = signer.sign(&[MEANT_FOR, secret].concat()).ok()?;
        Some(Proof { chain: key.cert.clone(), signature })
    }

    /// Judges a proof of the other end, and its certificates as a handshake would now.
    pub fn judge_proof(&self, proof: &Proof, secret: &[u8]) -> Result<Peer, Refusal> {
        let peer = self.judge(&proof.chain)?;
        let leaf = proof.chain.first().ok_or(Refusal::NoCertificate)?;
        let malformed = |error: webpki::Error| Refusal::Malformed { why: error.to_string() };
        let signed = [MEANT_FOR, secret].concat();
        let end = EndEntityCert::try_from(leaf).map_err(malformed)?;
        end.verify_signature(webpki::aws_lc_rs::ECDSA_P256_SHA256, &signed, &proof.signature)
            .map_err(|_| Refusal::NotAllowed { who: peer.to_string(), why: "comes without a proof of its key" })?;
        Ok(peer)
    }
}
