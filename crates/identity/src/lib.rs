//! Authentication in a grid. An authority signs for hosts and for users; users log in for hours. The connecting side shows a certificate
//! and requires one, over TLS 1.3. Works on files only: the owner of the sockets runs the connections.
//!
//! ```text
//!  the grid's authority (ca.pem, ca/key.pem)
//!    |- host b1                    host.pem       a daemon
//!    |- identity ann               identity.pem   for long, at home
//!    |    `- login ann             login.pem      for hours
//!    |         |- user ann         user.pem       ann's processes
//!    |         `- host b2          host.pem       ann's daemon there, believed by ann alone
//!    `- login bob                  ...            where the authority's own key logs in
//! ```
//!
//! A certificate names its owner by one address, `madrigal://GRID/KIND/NAME`. A peer is let in if its chain is exactly a path down this
//! tree, every certificate in it is of this grid, valid now and not revoked, and the connection proves the key of the last one. Names of
//! hosts in DNS play no part. Sessions are never resumed, so every connection is judged.
//!
//! ```
//! use madrigal_identity::{Authority, Credentials, Name, Validity, DAY};
//! let dir = std::env::temp_dir().join(format!("madrigal-doc-{}", std::process::id()));
//! let grid = Authority::create(&dir, &Name::parse("lyon")?, Validity::seconds(DAY), false)?;
//! grid.issue_host(&Name::parse("b1")?, Validity::seconds(DAY))?.install(&dir, false)?;
//! let credentials = Credentials::load(&dir)?;
//! assert_eq!(credentials.own().to_string(), "host b1 of grid lyon");
//! let connection = rustls::ServerConnection::new(credentials.server());
//! # assert!(connection.is_ok());
//! # std::fs::remove_dir_all(dir).ok();
//! # Ok::<(), madrigal_identity::IdentityError>(())
//! ```
#![forbid(unsafe_code)]

mod authority;
mod credentials;
mod error;
mod facts;
mod files;
mod login;
mod make;
mod moment;
mod name;
mod parcel;
mod peer;
mod proof;
mod refusal;
mod revoked;
mod verify;

pub use authority::{Authority, Entry, Issued, Which};
pub use credentials::{Credentials, server_name};
pub use error::IdentityError;
pub use files::{AUTHORITY, HOST, IDENTITY, LOGIN, REVOKED, TRUST, USER, directory};
pub use login::{Held, LOGIN_SECONDS, issue_host, login, logout, renew, status};
pub use moment::{DAY, HOUR, Moment, Validity};
pub use name::{NAME_LEN, Name, NameError, Role, Subject};
pub use parcel::{GRID, Installed, Parcel, ParcelError};
pub use peer::{Kind, Peer, peer};
pub use proof::Proof;
pub use refusal::Refusal;
