//! How a connection ends.

use noq_proto::{ConnectionError, TransportErrorCode};

/// TLS's alerts among the error codes of QUIC (RFC 9001, section 4.8).
const ALERTS: core::ops::Range<u64> = 0x100..0x200;

/// Why a connection has ended.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Ended {
    /// The other end takes no connection now.
    #[error("it takes no connection")]
    Refused,
    /// The other end closed it, with this reason.
    #[error("closed by peer: {0}")]
    ByPeer(String),
    /// One end's certificate was refused, or the handshake failed otherwise: this end's error, or the other one's alert.
    #[error("{0}")]
    Tls(rustls::Error),
    /// Nothing came for long.
    #[error("it is silent")]
    Silent,
    /// Nobody is there any more, as was reported, and nothing came since.
    #[error("nobody is there any more")]
    Gone,
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl Ended {
    pub(crate) fn of(error: &ConnectionError) -> Self {
        match error {
            ConnectionError::ConnectionClosed(close) => match u64::from(close.error_code) {
                _ if close.error_code == TransportErrorCode::CONNECTION_REFUSED => Self::Refused,
                code if ALERTS.contains(&code) => {
                    Self::Tls(rustls::Error::AlertReceived(((code - ALERTS.start) as u8).into()))
                }
                _ => Self::Other(error.to_string()),
            },
            ConnectionError::ApplicationClosed(close) => {
                Self::ByPeer(String::from_utf8_lossy(&close.reason).into_owned())
            }
            ConnectionError::TransportError(own) => {
                let tls = own.crypto.as_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
                tls.map_or_else(|| Self::Other(error.to_string()), |error| Self::Tls(error.clone()))
            }
            ConnectionError::TimedOut => Self::Silent,
            other => Self::Other(other.to_string()),
        }
    }
}
