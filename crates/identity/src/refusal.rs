//! Why a peer is not let in, in words on the side that refuses, and by the alert's name on the other.

use core::cell::RefCell;

use rustls::{AlertDescription, CertificateError, Error};

use crate::moment::Moment;

/// Why a connection did not come to be. What a refused peer claims is not proven, only safe to print.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// It showed no certificate.
    #[error("the peer has no certificate: it must have a login or a host certificate of this grid")]
    NoCertificate,
    /// A certificate of another grid.
    #[error("wrong grid: the peer is {who}, and this is grid {ours}")]
    WrongGrid {
        /// The name it claims.
        who: String,
        /// Our grid.
        ours: String,
    },
    /// Too late.
    #[error("expired: the certificate of {who} ended at {at}, and it is {now} here")]
    Expired {
        /// Whose certificate.
        who: String,
        /// Its last second.
        at: Moment,
        /// Our clock.
        now: Moment,
    },
    /// Too early, or a clock is wrong.
    #[error("not yet valid: the certificate of {who} begins at {from}, and it is {now} here (is a clock wrong?)")]
    NotYetValid {
        /// Whose certificate.
        who: String,
        /// Its first second.
        from: Moment,
        /// Our clock.
        now: Moment,
    },
    /// The authority took it back.
    #[error("revoked: the certificate of {who}, serial {serial}, was taken back at {at}")]
    Revoked {
        /// Whose certificate.
        who: String,
        /// Its serial number.
        serial: String,
        /// Since when.
        at: Moment,
    },
    /// The signature of another signer.
    #[error("not signed by the CA of grid {grid}: the certificate of {who}")]
    NotSignedBy {
        /// The name it claims.
        who: String,
        /// The grid whose authority did not sign it.
        grid: String,
    },
    /// Signed by a certificate that may not sign that, or used for what it is not meant for.
    #[error("not allowed: the certificate of {who} {why}")]
    NotAllowed {
        /// Whose certificate.
        who: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Nothing of ours.
    #[error("no certificate of a grid: {why}")]
    Malformed {
        /// What is wrong with it.
        why: String,
    },
    /// A host or user of this grid, but not the one that was called.
    #[error("wrong peer: called {wanted}, and {who} answered")]
    WrongPeer {
        /// The name of the peer that answered.
        who: String,
        /// The name that was called.
        wanted: String,
    },
    /// A process of another user.
    #[error("another user: the peer is {who}, and this is {ours}")]
    OtherUser {
        /// The name of the peer.
        who: String,
        /// Our name.
        ours: String,
    },
    /// No TLS 1.3, or noise.
    #[error("no TLS 1.3 of a grid: {0}")]
    Protocol(String),
    /// The other side refused us.
    #[error("refused by the peer: {}: {}", alert_name(*.0), alert_advice(*.0))]
    ByPeer(AlertDescription),
}

impl Refusal {
    /// A short name that never changes, for logs and scripts.
    pub fn name(&self) -> &'static str {
        match self {
            Self::NoCertificate => "no-certificate",
            Self::WrongGrid { .. } => "wrong-grid",
            Self::Expired { .. } => "expired",
            Self::NotYetValid { .. } => "not-yet-valid",
            Self::Revoked { .. } => "revoked",
            Self::NotSignedBy { .. } => "not-signed",
            Self::NotAllowed { .. } => "not-allowed",
            Self::Malformed { .. } => "malformed",
            Self::WrongPeer { .. } => "wrong-peer",
            Self::OtherUser { .. } => "other-user",
            Self::Protocol(_) => "protocol",
            Self::ByPeer(_) => "by-peer",
        }
    }

    /// The cause of an error of a connection that has one of our configurations. Call it on the thread that got the error, before that
    /// processes another connection: rustls has no room for the name of the refused certificate, so that is kept beside it.
    pub fn of(error: &Error) -> Self {
        match error {
            Error::InvalidCertificate(_) => {
                LAST.with(RefCell::take).unwrap_or_else(|| Self::Malformed { why: error.to_string() })
            }
            Error::NoCertificatesPresented => Self::NoCertificate,
            Error::AlertReceived(alert) => Self::ByPeer(*alert),
            other => Self::Protocol(other.to_string()),
        }
    }

    /// The error that makes rustls send the most precise alert.
    pub(crate) fn into_tls(self) -> Error {
        let error = match &self {
            Self::Expired { .. } => CertificateError::Expired,
            Self::NotYetValid { .. } => CertificateError::NotValidYet,
            Self::Revoked { .. } => CertificateError::Revoked,
            Self::NotSignedBy { .. } => CertificateError::UnknownIssuer,
            Self::NotAllowed { .. } => CertificateError::InvalidPurpose,
            Self::Malformed { .. } => CertificateError::BadEncoding,
            _ => CertificateError::ApplicationVerificationFailure,
        };
        LAST.with(|last| last.replace(Some(self)));
        Error::InvalidCertificate(error)
    }
}

thread_local! {
    /// The refusal behind the last `InvalidCertificate` of this thread: verifiers run inside the call that returns the error.
    static LAST: RefCell<Option<Refusal>> = const { RefCell::new(None) };
}

/// The alert's name in RFC 8446.
fn alert_name(alert: AlertDescription) -> String {
    if alert == AlertDescription::UnknownCA {
        return "unknown_ca".to_owned();
    }
    let mut name = String::new();
    for c in format!("{alert:?}").chars() {
        if c.is_ascii_uppercase() && name.bytes().last().is_some_and(|b| b.is_ascii_lowercase()) {
            name.push('_');
        }
        name.push(c.to_ascii_lowercase());
    }
    name
}

fn alert_advice(alert: AlertDescription) -> &'static str {
    match alert {
        AlertDescription::CertificateExpired => {
            "our certificate has expired or is not valid yet: type madrigal login --status, and compare the clocks"
        }
        AlertDescription::CertificateRevoked => "our certificate was revoked: ask whoever runs the CA for another",
        AlertDescription::UnknownCA => "its grid has another CA than ours",
        AlertDescription::AccessDenied => "it belongs to another grid than we do",
        AlertDescription::CertificateRequired => "it asks for a certificate, and we have none: type madrigal login",
        AlertDescription::UnsupportedCertificate => "our certificate is not meant for connections",
        AlertDescription::BadCertificate => "it cannot read our certificate",
        AlertDescription::ProtocolVersion => "it speaks TLS 1.3 only",
        _ => "it did not say more",
    }
}
