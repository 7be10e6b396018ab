//! The socket to the daemon, and the descriptor for poll(2): an epoll with that socket, and with an eventfd that is readable while the
//! program has events to take.

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use madrigal_proto::client::{DONE, FAILED, POOL};
use madrigal_proto::frame::{self, Front};
use madrigal_sys::raw;
use madrigal_sys::time::now_ns;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use super::failure::PoolError;
use crate::wire::{self, Reply, Request};

/// The longest refusal of a daemon.
const LONGEST_ANSWER: usize = 8 << 10;
/// The pause before the daemon's accept queue is tried again.
const AGAIN: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(super) struct Channel {
    socket: OwnedFd,
    bell: OwnedFd,
    set: OwnedFd,
    buffers: Mutex<Buffers>,
}

#[derive(Debug, Default)]
struct Buffers {
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    /// The bell is readable.
    shown: bool,
}

impl Channel {
    /// Connects to the daemon in the first of these directories that has one, and asks it for pools.
    pub(super) fn open(directories: &[PathBuf], deadline: Option<u64>) -> Result<Self, PoolError> {
        let mut found = Err(PoolError::NoDaemon);
        for directory in directories {
            match connect(directory, deadline) {
                Err(PoolError::NoDaemon) => {}
                other => {
                    found = other;
                    break;
                }
            }
        }
        let socket = found?;
        let system = |what| move |errno| PoolError::System { what, errno };
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(system("eventfd(2)"))?;
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll_create1(2)"))?;
        for (number, fd) in [(0, &socket), (1, &bell)] {
            epoll::add(&set, fd, epoll::EventData::new_u64(number), epoll::EventFlags::IN)
                .map_err(system("epoll_ctl(2)"))?;
        }
        let mut buffers = Buffers { outbox: request(), ..Buffers::default() };
        loop {
            buffers.flush(&socket);
            let ended = buffers.fill(&socket).err();
            if buffers.is_accepted()? {
                return Ok(Self { socket, bell, set, buffers: Mutex::new(buffers) });
            }
            if let Some(ended) = ended {
                return Err(PoolError::Daemon(ended));
            }
            let left = deadline.map(|deadline| deadline.saturating_sub(now_ns()));
            if left == Some(0) {
                return Err(hangs());
            }
            wait(&socket, !buffers.outbox.is_empty(), left).map_err(system("poll(2)"))?;
        }
    }

    /// Sends a request: at once, or as the socket takes it, in [`Self::receive`].
    pub(super) fn send(&self, request: &Request) {
        let mut buffers = self.lock();
        buffers.outbox.extend_from_slice(&wire::encode(request));
        buffers.flush(&self.socket);
    }

    /// Hands over every reply that is there; an error, when the socket has ended: why.
    pub(super) fn receive(&self, mut handle: impl FnMut(Reply)) -> Result<(), String> {
        let mut buffers = self.lock();
        buffers.flush(&self.socket);
        let ended = buffers.fill(&self.socket);
        let mut taken = 0;
        while let Some(rest) = buffers.inbox.get(taken..).filter(|rest| !rest.is_empty()) {
            match wire::decode(rest, wire::LONGEST_REPLY) {
                Ok(Some((reply, whole))) => {
                    taken += whole;
                    handle(reply);
                }
                Ok(None) => break,
                Err(nonsense) => return Err(format!("the daemon sends nonsense: {nonsense}")),
            }
        }
        buffers.inbox.drain(..taken);
        ended
    }

    /// Makes the descriptor readable, or no more so than the socket is.
    pub(super) fn show(&self, shown: bool) {
        let mut buffers = self.lock();
        if buffers.shown == shown {
            return;
        }
        buffers.shown = shown;
        // Its count is 0 or 1: neither can block.
        let _ = if shown {
            rustix::io::write(&self.bell, &1u64.to_ne_bytes())
        } else {
            rustix::io::read(&self.bell, &mut [0; 8])
        };
    }

    /// Sleeps until something has come, or there is room for what is to be sent, or so many nanoseconds have passed.
    pub(super) fn sleep(&self, left: Option<u64>) -> Result<(), Errno> {
        let sends = !self.lock().outbox.is_empty();
        wait(&self.socket, sends, left)
    }

    /// Ends the socket both ways: who sleeps wakes. What was sent is read all the same.
    pub(super) fn end(&self) {
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn lock(&self) -> MutexGuard<'_, Buffers> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}

impl Buffers {
    fn flush(&mut self, socket: &OwnedFd) {
        let mut sent = 0;
        while let Some(rest) = self.outbox.get(sent..).filter(|rest| !rest.is_empty()) {
            match rustix::net::send(socket, rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => sent += count,
                Err(Errno::INTR) => {}
                // What else is wrong, a read tells.
                Err(_) => break,
            }
        }
        self.outbox.drain(..sent);
    }

    fn fill(&mut self, socket: &OwnedFd) -> Result<(), String> {
        let mut buffer = [0; 16 << 10];
        loop {
            match rustix::net::recv(socket, &mut buffer, RecvFlags::DONTWAIT) {
                Ok((0, _)) | Err(Errno::CONNRESET | Errno::PIPE) => {
                    return Err("the daemon of this host has ended".to_owned());
                }
                Ok((count, _)) => self.inbox.extend_from_slice(buffer.get(..count).unwrap_or_default()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(errno.to_string()),
            }
        }
    }

    /// Whether the daemon has accepted; takes its answer off the front.
    fn is_accepted(&mut self) -> Result<bool, PoolError> {
        let front = frame::front(&self.inbox, LONGEST_ANSWER).map_err(|_| nonsense())?;
        match front {
            Front::More(_) => Ok(false),
            Front::Whole { head: &[DONE], .. } => {
                let taken = front.taken();
                self.inbox.drain(..taken);
                Ok(true)
            }
            Front::Whole { head: &[FAILED], body } => {
                let text = String::from_utf8_lossy(body);
                Err(PoolError::Daemon(text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()))
            }
            _ => Err(nonsense()),
        }
    }
}

fn nonsense() -> PoolError {
    PoolError::Daemon("it answers nonsense".to_owned())
}

fn hangs() -> PoolError {
    let hangs = "the daemon of this host does not answer: see its log, or `madrigal down` and `madrigal up`";
    PoolError::TimedOut(hangs.to_owned())
}

fn request() -> Vec<u8> {
    let prefix = frame::prefix(1, 0).unwrap_or_default();
    [&prefix[..], &[POOL]].concat()
}

/// Connects to the daemon of this user in a directory.
fn connect(directory: &std::path::Path, deadline: Option<u64>) -> Result<OwnedFd, PoolError> {
    let system = |what| move |errno| PoolError::System { what, errno };
    let address =
        SocketAddrUnix::new(directory.join("daemon.sock")).map_err(system("the path of the daemon's socket"))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let made = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let socket = made.map_err(system("socket(2)"))?;
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => break,
            Err(Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR | Errno::ACCESS) => return Err(PoolError::NoDaemon),
            // Its accept queue is full, and poll(2) does not tell when it is not (connect(2), EAGAIN).
            Err(Errno::AGAIN | Errno::INTR) if deadline.is_none_or(|deadline| now_ns() < deadline) => {
                std::thread::sleep(AGAIN);
            }
            Err(Errno::AGAIN | Errno::INTR) => return Err(hangs()),
            Err(errno) => return Err(PoolError::System { what: "connect(2) to the daemon", errno }),
        }
    }
    let own = rustix::process::geteuid().as_raw();
    let is_ours = raw::peer_credentials(socket.as_raw_fd()).is_ok_and(|(_, user)| user == own || user == 0);
    if is_ours { Ok(socket) } else { Err(PoolError::NoDaemon) }
}

fn wait(socket: &OwnedFd, sends: bool, left: Option<u64>) -> Result<(), Errno> {
    let events = if sends { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    let limit = left.map(|ns| Timespec {
        tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: (ns % 1_000_000_000) as i64,
    });
    match poll(&mut [PollFd::new(socket, events)], limit.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}
