//! A way to a host that a stream might take.

use madrigal_selector::route::Route;

use crate::poll::Token;

/// A way to a host that a stream might take.
pub(crate) struct Candidate {
    pub(crate) route: Route,
    /// The link where it begins; none where the way is closed.
    pub(crate) link: Option<Token>,
    /// The age of its figures in seconds, where they are of an earlier time.
    pub(crate) ago: Option<u64>,
}

/// Why a relay does not carry the streams of a host.
pub(crate) fn relay_refuses(relay: &str, host: &str) -> String {
    format!("{relay} carries nothing of {host}: see `carries` and `deny` in its grid.toml")
}
