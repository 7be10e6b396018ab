//! How links come about: dialling, answering, and both at once.
//!
//! A node listens on a Unix socket. The dialling node makes the pair, and sends its id. The answering node checks user and id, and sends
//! its own. The dialling node checks them, too. Where both dial at once the attempt of the lower id counts. The lower one closes what the
//! higher one dialled. The higher one gives up its attempt for the one it finds in its own queue.

use std::os::fd::{AsFd, AsRawFd};

use madrigal_base::error::Os;
use madrigal_base::node::NodeId;
use madrigal_progress::message::LinkError;
use madrigal_sys::fd::Fd;
use madrigal_sys::{Errno, raw, time};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::net::SocketFlags;

use super::greet::{self, ANSWERER, DIALER, Greeting, Received};
use super::link::{Peer, Phase, Up};
use super::name;
use super::pair::{PageMap, Pair};
use super::port::{CHECK_NS, Event, Inbox};

/// The socket on which nodes dial us.
pub(super) const LISTENER: u64 = u64::MAX;
/// Connections halfway have this and a serial number.
const HALFWAY: u64 = 1 << 62;
/// Beyond so many connections halfway the oldest is dropped.
const MOST_HALFWAY: usize = 64;
/// Events taken by one call.
const EVENTS: usize = 32;
/// The reason of a link whose peer has closed its end of the socket.
const CLOSED: &str = "its process ended, or closed";

impl Inbox {
    /// Begins to link; the index of the link.
    pub(super) fn dial(&mut self, node: NodeId) -> Result<u32, String> {
        if node == self.me {
            return Err("that is this process itself".to_owned());
        }
        let index = u32::try_from(self.peers.len()).map_err(|_| "too many links".to_owned())?;
        let phase = self.call(node, index)?;
        self.peers.push(Peer { node, phase });
        self.known.insert(node, index);
        Ok(index)
    }

    fn call(&mut self, node: NodeId, index: u32) -> Result<Phase, String> {
        let text = |errno: Errno| Os(errno.raw_os_error()).to_string();
        let socket = match name::connect(node) {
            Ok(socket) => socket,
            Err(Errno::CONNREFUSED) => return Err("no such node on this host".to_owned()),
            Err(Errno::AGAIN) => {
                self.next_check = self.next_check.min(time::now_ns() + CHECK_NS);
                return Ok(Phase::Later);
            }
            Err(errno) => return Err(text(errno)),
        };
        let (_, owner) = raw::peer_credentials(socket.as_raw_fd()).map_err(text)?;
        if owner != own_uid() {
            return Err(format!("it belongs to user {owner}"));
        }
        let (pair, fd) = Pair::create().map_err(|errno| format!("no shared memory: {}", text(errno)))?;
        for direction in [0, 1] {
            pair.direction(direction).wake.notice.store(1, core::sync::atomic::Ordering::Release);
        }
        greet::send(&socket, self.greeting(node, index), &[fd.as_fd(), self.page_fd.as_fd()]).map_err(text)?;
        epoll::add(&self.epoll, &socket, EventData::new_u64(index.into()), EventFlags::IN).map_err(text)?;
        Ok(Phase::Dialing { socket, pair })
    }

    fn greeting(&self, to: NodeId, slot: u32) -> Greeting {
        Greeting { from: self.me, to, slot, nonce_at: self.nonce.address(), nonce: self.nonce.value() }
    }

    /// Reads the events of the descriptors: peers that dial, that answered, that rang, that are gone.
    pub(super) fn check_descriptors(&mut self) {
        loop {
            let mut events = [const { core::mem::MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
            let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
            let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, Some(&now)) else { break };
            let count = events.len();
            for event in events.iter() {
                match event.data.u64() {
                    LISTENER => self.answer_all(),
                    key if key & HALFWAY != 0 => self.handle_halfway(key),
                    index => self.reported(index as u32),
                }
            }
            if count < EVENTS {
                break;
            }
        }
        self.next_check = time::now_ns() + CHECK_NS;
        self.call_again();
    }

    /// Dials again where the peer's queue was full.
    fn call_again(&mut self) {
        if !self.peers.iter().any(|peer| matches!(peer.phase, Phase::Later)) {
            return;
        }
        for index in 0..self.peers.len() {
            let Some(Peer { node, phase: Phase::Later }) = self.peers.get(index) else { continue };
            let node = *node;
            match self.call(node, index as u32) {
                Ok(phase) => self.peers[index].phase = phase,
                Err(tried) => {
                    self.events
                        .push_back(Event::Down(index as u32, LinkError::Unreachable { node, tried, absent: false }));
                }
            }
        }
    }

    /// A link's socket is readable.
    fn reported(&mut self, index: u32) {
        let Some(peer) = self.peers.get_mut(index as usize) else { return };
        let node = peer.node;
        match &peer.phase {
            Phase::Up(up) => {
                if up.hush() {
                    // Once is enough: the descriptor would be reported for ever.
                    let _ = epoll::delete(&self.epoll, up.descriptor());
                    self.events.push_back(Event::End(index, CLOSED.to_owned()));
                }
            }
            Phase::Dialing { socket, .. } => match greet::receive(socket, ANSWERER) {
                Received::NotYet => {}
                Received::Whole(greeting, fds) if greeting.from == node && greeting.to == self.me => {
                    self.answered(index, &greeting, &fds);
                }
                Received::End => self.refused(index),
                Received::Whole(..) | Received::Bad => self.give_up(index, "another node answered"),
            },
            Phase::Later | Phase::Down(_) => {}
        }
    }

    fn answered(&mut self, index: u32, greeting: &Greeting, fds: &[Fd]) {
        let Some(page) = fds.first().and_then(|fd| PageMap::attach(fd).ok()) else {
            return self.give_up(index, "its answer came without memory");
        };
        let Some(peer) = self.peers.get_mut(index as usize) else { return };
        let Phase::Dialing { socket, pair } = core::mem::replace(&mut peer.phase, Phase::Later) else { return };
        peer.phase = Phase::Up(Box::new(Up::new(socket, pair, page, 0, greeting)));
        self.events.push_back(Event::Up(index));
    }

    /// The peer closed instead of answering: because it dialled us itself, or because it is gone.
    fn refused(&mut self, index: u32) {
        self.answer_all();
        if self.peers.get(index as usize).is_some_and(|peer| matches!(peer.phase, Phase::Dialing { .. })) {
            self.give_up(index, "it closed before it answered");
        }
    }

    fn give_up(&mut self, index: u32, why: &str) {
        let Some(peer) = self.peers.get_mut(index as usize) else { return };
        if let Phase::Dialing { socket, .. } = &peer.phase {
            let _ = epoll::delete(&self.epoll, socket);
        }
        let error = LinkError::Unreachable { node: peer.node, tried: format!("inbox: {why}"), absent: false };
        self.events.push_back(Event::Down(index, error));
    }

    /// Answers every node that dials.
    fn answer_all(&mut self) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        loop {
            match rustix::net::accept_with(&self.listener, flags).map(Fd::from) {
                Ok(socket) => {
                    if raw::peer_credentials(socket.as_raw_fd()).is_ok_and(|(_, uid)| uid == own_uid()) {
                        self.handle_socket(socket);
                    }
                }
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                // No connection waits, or there is no descriptor for it.
                Err(_) => return,
            }
        }
    }

    /// Receives the greeting of a node that dialled; without one the connection waits among the halfway ones.
    fn handle_socket(&mut self, socket: Fd) {
        match greet::receive(&socket, DIALER) {
            Received::Whole(greeting, fds) => self.answer(socket, &greeting, &fds),
            Received::End | Received::Bad => {}
            Received::NotYet => {
                if self.halfway.len() >= MOST_HALFWAY {
                    self.halfway.remove(0);
                }
                self.serial += 1;
                let key = HALFWAY | self.serial;
                if epoll::add(&self.epoll, &socket, EventData::new_u64(key), EventFlags::IN).is_ok() {
                    self.halfway.push((key, socket));
                }
            }
        }
    }

    fn handle_halfway(&mut self, key: u64) {
        if let Some(at) = self.halfway.iter().position(|(halfway, _)| *halfway == key) {
            let (_, socket) = self.halfway.remove(at);
            let _ = epoll::delete(&self.epoll, &socket);
            self.handle_socket(socket);
        }
    }

    /// Answers a node that dialled; closes the connection if the greeting is for another node, or the link is not wanted.
    fn answer(&mut self, socket: Fd, greeting: &Greeting, fds: &[Fd]) {
        let node = greeting.from;
        if greeting.to != self.me || node == self.me {
            return;
        }
        let index = match self.known.get(&node).copied() {
            None => u32::try_from(self.peers.len()).unwrap_or(u32::MAX),
            Some(index) => match self.peers.get(index as usize).map(|peer| &peer.phase) {
                Some(Phase::Later) => index,
                Some(Phase::Dialing { .. }) if node < self.me => index,
                _ => return,
            },
        };
        let [pair, page] = fds else { return };
        let (Ok(pair), Ok(page)) = (Pair::attach(pair), PageMap::attach(page)) else { return };
        let answer = self.greeting(node, index);
        let data = EventData::new_u64(index.into());
        if greet::send(&socket, answer, &[self.page_fd.as_fd()]).is_err()
            || epoll::add(&self.epoll, &socket, data, EventFlags::IN).is_err()
        {
            return;
        }
        let phase = Phase::Up(Box::new(Up::new(socket, pair, page, 1, greeting)));
        match self.peers.get_mut(index as usize) {
            Some(peer) => {
                if let Phase::Dialing { socket, .. } = &peer.phase {
                    let _ = epoll::delete(&self.epoll, socket);
                }
                peer.phase = phase;
            }
            None => {
                self.peers.push(Peer { node, phase });
                self.known.insert(node, index);
            }
        }
        self.events.push_back(Event::Up(index));
    }
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}
