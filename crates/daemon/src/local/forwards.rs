//! Forwarded ports: `madrigal forward`.

use std::net::{Ipv4Addr, SocketAddr};

use crate::daemon::Daemon;
use crate::descriptor::Descriptor;
use crate::local::forward::Forward;
use crate::local::libc_socket;
use crate::poll::Token;
use crate::socket;
use crate::streams::call::{Caller, CallerKind};
use crate::wire::Target;

impl Daemon {
    /// Listens at a local port for a client.
    pub(crate) fn begin_forward(&mut self, client: Token, target: Target) -> Result<Vec<u8>, String> {
        if self.grid.host(&target.host).is_none() {
            return Err(format!("the grid has no host `{}`; there are {}", target.host, self.grid.names()));
        }
        let at = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), target.from);
        let token = self.new_token();
        let made =
            libc_socket::listen_at(at).and_then(|socket| self.poll.add_listener(&socket, token).map(|()| socket));
        let listener = made.map_err(|errno| format!("cannot listen at {at}: {errno}"))?;
        let port = socket::local_addr(&listener).map_or(0, |at| at.port());
        let Some(client) = self.clients.get_mut(&client) else { return Err("the client left".to_owned()) };
        (client.forward, client.deadline) = (Some(token), u64::MAX);
        self.descriptors.insert(token, Descriptor::Forward);
        self.forwards.insert(token, Forward { listener, target });
        Ok(port.to_string().into_bytes())
    }

    /// Accepts connections to a forwarded port, and begins a call for each.
    pub(crate) fn accept_forwarded(&mut self, forward: Token) {
        while let Some(Forward { listener, target }) = self.forwards.get(&forward) {
            let Some(socket) = libc_socket::accept(listener) else { return };
            let target = target.clone();
            let token = self.new_token();
            if self.poll.add(&socket, token).is_ok() {
                libc_socket::reset_at_close(&socket, true);
                self.call(Caller { socket, token, kind: CallerKind::Forward, staged: Vec::new() }, target);
            }
        }
    }
}
