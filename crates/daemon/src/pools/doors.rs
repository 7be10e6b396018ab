//! What the daemon hands to the thread of pools: programs that ask for pools, and the streams of other daemons, or of itself, to the host
//! that keeps them.

use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::service::{Beginning, Handed};
use crate::daemon::Daemon;
use crate::poll::Token;
use crate::socket;
use crate::streams::egress::Requester;
use crate::streams::pipe::{End, Side};
use crate::wire::{self, ConnectReply};

impl Daemon {
    /// A client of the control socket asks for pools.
    pub(crate) fn hand_program_over(&mut self, token: Token, rest: Vec<u8>) {
        let Some(client) = self.clients.remove(&token) else { return };
        self.descriptors.remove(&token);
        self.poll.remove(&client.socket);
        if socket::send(&client.socket, &wire::frame(wire::DONE, b"")).is_err() {
            return;
        }
        // Unknown where it is of another pid namespace; then the end of its socket alone tells.
        let pid = Pid::from_raw(socket::peer_pid(&client.socket).cast_signed());
        let process = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        self.hand_over(Handed::Program(client.socket, process, rest));
    }

    /// A daemon asks for the pools that this one keeps.
    pub(crate) fn handle_pools_question(&mut self, requester: Requester, from: &str) {
        if let Err(why) = self.may_keep_for(from) {
            return match requester {
                Requester::Call(call) => self.call_failed(call, &why),
                Requester::Stream(stream) => self.send_reply(stream, ConnectReply::Refused, &why),
            };
        }
        let Ok((ours, its)) = socket_pair() else { return };
        let token = self.new_token();
        if self.poll.add(&its, token).is_err() {
            return;
        }
        self.hand_over(Handed::Peer(ours));
        let end = End::Socket { socket: its, token, is_tcp: false };
        match requester {
            Requester::Call(call) => self.call_connected(call, end, Vec::new()),
            Requester::Stream(stream) => {
                self.send_reply(stream, ConnectReply::Connected, "");
                let _ = self.join(Side::new(End::Stream(stream), Vec::new()), Side::new(end, Vec::new()));
            }
        }
    }

    /// The description was read again: where pools are kept stays as it was.
    pub(crate) fn follow_pools(&mut self) {
        if self.grid.pools != *self.pools.settings() {
            self.log_line(
                "pools: [pools] of the grid.toml has changed; that counts from the next start of this daemon on",
            );
        }
    }

    fn may_keep_for(&self, from: &str) -> Result<(), String> {
        let own = self.own();
        if self.pools.settings().etcd.is_some() {
            return Err(format!(
                "pools are in etcd, by the grid.toml of {}: all hosts must have the same file",
                own.name
            ));
        }
        let keeper = &self.pools.settings().keeper;
        if *keeper != own.name {
            return Err(format!(
                "{} keeps no pools, by its grid.toml; {keeper} does: all hosts must have the same file",
                own.name
            ));
        }
        if from != own.name && !self.grid.lets_in(own.site, from) {
            return Err(format!("{} lets nothing of {from} in: see `from` and `deny` in its grid.toml", own.name));
        }
        Ok(())
    }

    fn hand_over(&mut self, what: Handed) {
        let own = self.own();
        let site = self.grid.sites.get(own.site).map_or("", |site| site.name.as_str());
        let location = format!("{}@{site}", own.name);
        let control = self.runtime.socket();
        if let Err(why) = self.pools.hand(what, || Beginning { control, location }) {
            self.log_line(&format!("pools: {why}"));
        }
    }
}

fn socket_pair() -> Result<(OwnedFd, OwnedFd), rustix::io::Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}
