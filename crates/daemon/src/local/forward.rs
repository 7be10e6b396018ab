//! A local port whose connections are carried to another host.

use std::net::TcpListener;

use crate::wire::Target;

/// A local port whose connections are carried to another host.
pub(crate) struct Forward {
    pub(crate) listener: TcpListener,
    pub(crate) target: Target,
}
