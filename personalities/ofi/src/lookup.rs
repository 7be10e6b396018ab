//! Lookup: endpoints that are found by host and port, for programs that exchange no addresses themselves.
//!
//! ```text
//!   fi_getinfo(node, service, FI_SOURCE) -> endpoint: AddressServer, listens there      who connects is told the endpoint's address
//!   fi_av_insert of such a place         -> Question: connects and reads it    from then on it is a peer like any other
//! ```
//! What is told is what `fi_getname` gives and no secret; who is dialled by it still has to prove who it is. There is no thread: who asks
//! is answered, and an answer read, when a queue or a counter of that domain is.

use std::net::{Ipv4Addr, SocketAddrV4};

use madrigal_base::node::NodeAddress;
use madrigal_sys::fd::Fd;
use madrigal_sys::time;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use crate::names::LONG;

/// Who waits to be accepted.
const BACKLOG: i32 = 64;
/// A server is checked once in so many nanoseconds, ...
const SELDOM_NS: u64 = 1_000_000;
/// ... and so many are answered in one check.
const AT_ONCE: usize = 16;
/// Nobody answers yet: asked again after so long, ...
const AGAIN_NS: u64 = 50_000_000;
/// ... until that much has passed.
const PATIENCE_NS: u64 = 10_000_000_000;

/// Where an endpoint can be asked for its address.
pub(crate) struct AddressServer {
    fd: Fd,
    checked: u64,
}

impl AddressServer {
    /// Listens there; `None` where that cannot be: several endpoints may be opened with one source address, and only one can be found
    /// by it.
    pub(crate) fn open(at: SocketAddrV4) -> Option<Self> {
        let fd = socket().ok()?;
        sockopt::set_socket_reuseaddr(&fd, true).ok()?;
        rustix::net::bind(&fd, &at).ok()?;
        rustix::net::listen(&fd, BACKLOG).ok()?;
        Some(Self { fd, checked: 0 })
    }

    /// Tells everybody who asked.
    pub(crate) fn answer(&mut self, own: impl Fn() -> NodeAddress) {
        let now = time::now_ns();
        if now.saturating_sub(self.checked) < SELDOM_NS {
            return;
        }
        self.checked = now;
        for _ in 0..AT_ONCE {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let Ok(caller) = rustix::net::accept_with(&self.fd, flags).map(Fd::from) else { return };
            // There is room for so few bytes in a new connection; who is gone already need not be told.
            let _ = rustix::net::send(&caller, &own().encode(LONG), SendFlags::NOSIGNAL);
        }
    }
}

/// An address that is being asked for.
pub(crate) struct Question {
    to: SocketAddrV4,
    /// `None` until it is time to try again.
    fd: Option<Fd>,
    bytes: [u8; LONG],
    got: usize,
    /// When it was last tried, and when nobody will answer any more.
    tried: u64,
    end: u64,
}

/// What came of a question so far.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// Nothing.
    NotYet,
    /// Who lives there.
    Node(NodeAddress),
    /// Nobody of ours.
    Nobody,
}

impl Question {
    /// Asks there.
    pub(crate) fn ask(to: SocketAddrV4) -> Self {
        let now = time::now_ns();
        Self { to, fd: dial(to).ok(), bytes: [0; LONG], got: 0, tried: now, end: now.saturating_add(PATIENCE_NS) }
    }

    /// Polls for the answer.
    pub(crate) fn poll(&mut self) -> Answer {
        let Some(fd) = &self.fd else { return self.again() };
        let Some(room) = self.bytes.get_mut(self.got..).filter(|room| !room.is_empty()) else { return self.read() };
        match rustix::net::recv(fd, room, RecvFlags::DONTWAIT) {
            Ok((_, count)) if count > 0 => {
                self.got += count;
                if self.got >= LONG { self.read() } else { Answer::NotYet }
            }
            Err(Errno::AGAIN | Errno::INTR) if time::now_ns() < self.end => Answer::NotYet,
            // Nobody listens there yet, or whoever did is just going.
            _ => {
                self.fd = None;
                self.again()
            }
        }
    }

    fn read(&self) -> Answer {
        NodeAddress::decode(&self.bytes).map_or(Answer::Nobody, Answer::Node)
    }

    #[cold]
    fn again(&mut self) -> Answer {
        let now = time::now_ns();
        if now >= self.end {
            return Answer::Nobody;
        }
        if now.saturating_sub(self.tried) >= AGAIN_NS {
            (self.fd, self.got, self.tried) = (dial(self.to).ok(), 0, now);
        }
        Answer::NotYet
    }
}

/// The place a `sockaddr_in` names, if one can listen or ask there.
pub(crate) fn place(bytes: &[u8], listen: bool) -> Option<SocketAddrV4> {
    let &[f0, f1, p0, p1, a, b, c, d, ..] = bytes else { return None };
    let at = SocketAddrV4::new(Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([p0, p1]));
    let inet = i32::from(u16::from_ne_bytes([f0, f1])) == libc::AF_INET;
    (inet && at.port() != 0 && (listen || !at.ip().is_unspecified())).then_some(at)
}

fn socket() -> Result<Fd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).map(Fd::from)
}

fn dial(to: SocketAddrV4) -> Result<Fd, Errno> {
    let fd = socket()?;
    match rustix::net::connect(&fd, &to) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(fd),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use madrigal_base::node::NodeId;
    use rustix::net::getsockname;

    use super::*;

    fn local(port: u16) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)
    }

    fn port(fd: &Fd) -> u16 {
        std::net::SocketAddr::try_from(getsockname(fd).unwrap()).unwrap().port()
    }

    fn someone() -> NodeAddress {
        let addresses = vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        NodeAddress { channel: 3, port: 4711, addresses, ..NodeAddress::bare(NodeId::new(77).unwrap()) }
    }

    #[test]
    fn who_asks_at_a_door_is_told() {
        let mut server = AddressServer::open(local(0)).unwrap();
        let at = local(port(&server.fd));
        assert!(AddressServer::open(at).is_none(), "only one can be found there");
        let mut questions: Vec<_> = (0..3).map(|_| Question::ask(at)).collect();
        for question in &mut questions {
            let answer = loop {
                server.answer(someone);
                match question.poll() {
                    Answer::NotYet => std::thread::yield_now(),
                    answer => break answer,
                }
            };
            assert_eq!(answer, Answer::Node(someone()));
        }
    }

    #[test]
    fn a_door_opened_late_is_found() {
        let closed = port(&AddressServer::open(local(0)).unwrap().fd);
        let mut question = Question::ask(local(closed));
        assert_eq!(question.poll(), Answer::NotYet);
        let Some(mut server) = AddressServer::open(local(closed)) else {
            return println!("skipped: somebody took the port");
        };
        let answer = loop {
            server.answer(someone);
            match question.poll() {
                Answer::NotYet => std::thread::yield_now(),
                answer => break answer,
            }
        };
        assert_eq!(answer, Answer::Node(someone()));
    }

    #[test]
    fn nonsense_and_silence_end() {
        let listener = AddressServer::open(local(0)).unwrap();
        let mut question = Question::ask(local(port(&listener.fd)));
        let caller = loop {
            if let Ok(caller) = rustix::net::accept_with(&listener.fd, SocketFlags::CLOEXEC) {
                break Fd::from(caller);
            }
        };
        rustix::net::send(&caller, &[0xff; LONG], SendFlags::NOSIGNAL).unwrap();
        let answer = loop {
            match question.poll() {
                Answer::NotYet => std::thread::yield_now(),
                answer => break answer,
            }
        };
        assert_eq!(answer, Answer::Nobody);
        let mut question = Question::ask(local(port(&listener.fd)));
        question.end = 0;
        assert_eq!(question.poll(), Answer::Nobody);
    }

    #[test]
    fn only_whole_places_count() {
        let bytes = crate::info::place::sockaddr(local(80));
        assert_eq!(place(&bytes, false), Some(local(80)));
        assert_eq!(place(&bytes[..7], false), None);
        assert_eq!(place(&crate::info::place::sockaddr(local(0)), true), None);
        let any = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 80);
        assert_eq!(place(&crate::info::place::sockaddr(any), false), None);
        assert_eq!(place(&crate::info::place::sockaddr(any), true), Some(any));
        assert_eq!(place(&someone().encode(LONG)[..0], true), None);
    }
}
