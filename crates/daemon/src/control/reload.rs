//! Reads grid.toml again while the daemon runs: at SIGHUP, and when a client requests it. An error in it is reported, and nothing changes.

use std::io::Read as _;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::Signal;

use crate::control::description::{Reloaded, compare, in_old_places};
use crate::daemon::Daemon;
use crate::descriptor::Descriptor;
use crate::grid::{self, Grid};
use crate::link::peer::Peer;
use crate::poll::Token;
use crate::units::MILLISECOND;
use crate::{socket, start};

/// The least time between two readings because of SIGHUP. Signals that come meanwhile count as one.
const HANGUP_PAUSE: u64 = 200 * MILLISECOND;
/// Why a link ends: its peer was removed.
const TAKEN_OUT: &str = "it is no host of the grid any more";
/// Why a link ends: the description does not allow plain ones.
const MUST_BE_ENCIPHERED: &str = "links with it must be enciphered by now";

impl Daemon {
    /// Sets the file of the description.
    pub fn reads(&mut self, file: &Path) {
        self.source.file = std::path::absolute(file).ok();
    }

    /// From now on SIGHUP makes the daemon read the description again. The handler writes to a socket, so that no signal is missed between
    /// two sleeps.
    pub(crate) fn heed_hangups(&mut self) -> Result<(), Errno> {
        let of = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let (ours, handlers) = UnixStream::pair().map_err(of)?;
        ours.set_nonblocking(true).map_err(of)?;
        signal_hook::low_level::pipe::register(Signal::HUP.as_raw(), handlers).map_err(of)?;
        let token = self.new_token();
        self.poll.add(&ours, token)?;
        self.descriptors.insert(token, Descriptor::Hangups);
        self.source.hangups = Some(ours);
        Ok(())
    }

    /// SIGHUP came, once or many times. The description is read in this pass, but not before [`HANGUP_PAUSE`] after the last reading.
    pub(crate) fn handle_hangups(&mut self) {
        let mut hangups = self.source.hangups.as_ref();
        let came = hangups.as_mut().is_some_and(|hangups| matches!(hangups.read(&mut [0; 4096]), Ok(1..)));
        if came {
            self.source.due = self.source.due.min(self.source.not_before);
        }
    }

    /// Reads the description again, if a reading because of SIGHUP is due.
    pub(crate) fn reload_after_hangups(&mut self) {
        if self.source.due <= self.now {
            (self.source.due, self.source.not_before) = (u64::MAX, self.now + HANGUP_PAUSE);
            // `reload` has logged the error.
            let _ = self.reload();
        }
    }

    /// Reads the description again. Returns the changes as JSON.
    pub(crate) fn reload(&mut self) -> Result<Vec<u8>, String> {
        match self.read_again() {
            Ok(changes) => {
                self.log_line(&changes.to_string());
                Ok(serde_json::to_vec(&changes).unwrap_or_default())
            }
            Err(why) => {
                let why = format!("{why}; the daemon keeps the hosts that it has");
                self.log_line(&why);
                Err(why)
            }
        }
    }

    fn read_again(&mut self) -> Result<Reloaded, String> {
        let file = self.source.file.clone().ok_or("the daemon was started without a file")?;
        let name = file.display().to_string();
        let text = grid::read_text(&file).map_err(|error| format!("cannot read {name}: {error}"))?;
        let new = Grid::read(&name, &text).map_err(|error| error.to_string())?;
        let own = &self.own().name;
        if new.host(own).is_none() {
            return Err(format!("{name} has no host `{own}`, which this one is"));
        }
        let changes = compare(&self.grid, &new);
        let new = in_old_places(&self.grid, new)?;
        self.listen_as(&new)?;
        self.end_links(&new);
        let old = std::mem::replace(&mut self.grid, new);
        let now = self.now;
        self.peers.resize_with(self.grid.hosts.len(), || Peer::new(now));
        self.follow(&old);
        let waiting = self.caps.follow(&self.grid);
        self.runnable.extend(waiting);
        self.write_hosts();
        self.wake_calls();
        self.advertise_soon();
        self.open_relay_quic();
        self.follow_pools();
        Ok(changes)
    }

    /// Moves the listeners to the addresses of the new description, if these changed.
    fn listen_as(&mut self, new: &Grid) -> Result<(), String> {
        let lack = self.credentials.as_ref().err();
        let places = |grid: &Grid| start::places(grid, self.own_index, lack).map_err(|error| error.to_string());
        let (before, after) = (places(&self.grid)?, places(new)?);
        let goes = |at: &SocketAddr| !after.contains(at);
        let ports: Vec<Token> = self
            .ports
            .iter()
            .filter(|(_, port)| is_at(socket::local_addr(port), &before, goes))
            .map(|(token, _)| *token)
            .collect();
        for token in ports {
            self.descriptors.remove(&token);
            self.ports.remove(&token);
        }
        let fresh = after.iter().filter(|at| !before.contains(at)).copied();
        let listeners = fresh.map(start::listen_at).collect::<Result<Vec<_>, _>>();
        let failed = match listeners {
            Ok(listeners) => return self.add_ports(listeners).map_err(|errno| errno.to_string()),
            Err(error) => error.to_string(),
        };
        // Restores the old listeners: no other process used these addresses.
        let old = before.into_iter().filter(goes).filter_map(|at| start::listen_at(at).ok()).collect();
        self.add_ports(old).map_err(|errno| errno.to_string())?;
        Err(failed)
    }

    /// Seeks ways again to hosts whose addresses or command changed. Dials of addresses that were removed end.
    fn follow(&mut self, old: &Grid) {
        for (at, host) in self.grid.hosts.iter().enumerate() {
            let before = old.hosts.get(at);
            if before.is_none_or(|before| before.addresses != host.addresses || before.via != host.via) {
                let known = &mut self.peers[at];
                known.failures.retain(|address, _| host.addresses.contains(address));
                known.direct = None;
            }
        }
        for at in 0..self.peers.len() {
            self.dial_soon(at);
        }
        let wrong = |peer: usize, address: SocketAddr| !self.grid.hosts[peer].addresses.contains(&address);
        let dials: Vec<Token> =
            self.dials.iter().filter(|(_, dial)| wrong(dial.peer, dial.address)).map(|(token, _)| *token).collect();
        for token in dials {
            self.descriptors.remove(&token);
            self.dials.remove(&token);
        }
    }

    /// Ends the links that a new description does not allow.
    fn end_links(&mut self, new: &Grid) {
        let links: Vec<(Token, &str)> =
            self.links.keys().filter_map(|token| Some((*token, self.must_end(new, *token)?))).collect();
        for (token, why) in links {
            self.close_link_with(token, why);
        }
    }

    /// Why a link must end, if it must.
    fn must_end(&self, new: &Grid, token: Token) -> Option<&'static str> {
        // Further connections end with their link.
        let link = self.links.get(&token).filter(|link| link.joins.is_none())?;
        let peer = link.up().map(|up| up.peer).or(link.dialled.map(|(peer, _)| peer))?;
        let (own, host) = (new.hosts.get(self.own_index)?, new.hosts.get(peer)?);
        let plain = !link.is_enciphered() && link.method() != "command";
        match () {
            () if host.is_gone() => Some(TAKEN_OUT),
            () if plain && !new.is_trusted_between(own, host) => Some(MUST_BE_ENCIPHERED),
            () => None,
        }
    }
}

/// Whether a listener is at one of the places for which `goes` is true. Where IPv6 is missing, a listener at all addresses has IPv4 only.
fn is_at(own: Option<SocketAddr>, places: &[SocketAddr], goes: impl Fn(&SocketAddr) -> bool) -> bool {
    let Some(own) = own else { return false };
    let same = |at: &&SocketAddr| {
        **at == own || (at.port() == own.port() && at.ip().is_unspecified() && own.ip().is_unspecified())
    };
    places.iter().find(same).is_some_and(goes)
}
