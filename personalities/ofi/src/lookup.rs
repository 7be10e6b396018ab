//! Lookup: finds endpoints by host and port, for programs that exchange no addresses themselves.
//!
//! ```text
//!   fi_getinfo(node, service, FI_SOURCE) -> endpoint: AddressServer, listens there      sends a client the endpoint's address
//!   fi_av_insert of such a place         -> Question: connects and reads it    from then on it is a peer like any other
//! ```
//! The answer is the result of `fi_getname` and no secret; a node that is dialled by it still has to prove its identity. There is no
//! thread: clients are answered, and answers read, when a queue or a counter of that domain is read.

use std::net::{Ipv4Addr, SocketAddrV4};

use madrigal_base::node::NodeAddress;
use madrigal_sys::fd::Fd;
use madrigal_sys::time;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use crate::names::LONG;

/// Clients that may wait to be accepted.
const BACKLOG: i32 = 64;
/// The least time between two checks of a server, ...
const SELDOM_NS: u64 = 1_000_000;
/// ... and the most clients that one check answers.
const AT_ONCE: usize = 16;
/// Without an answer, the time until the next attempt, ...
const AGAIN_NS: u64 = 50_000_000;
/// ... and the time limit of all attempts.
const PATIENCE_NS: u64 = 10_000_000_000;

/// The listener at which clients get an endpoint's address.
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

    /// Accepts waiting clients, and sends each the address.
    pub(crate) fn answer(&mut self, own: impl Fn() -> NodeAddress) {
        let now = time::now_ns();
        if now.saturating_sub(self.checked) < SELDOM_NS {
            return;
        }
        self.checked = now;
        for _ in 0..AT_ONCE {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let Ok(caller) = rustix::net::accept_with(&self.fd, flags).map(Fd::from) else { return };
            // There is always room for so few bytes in a new connection; an error means that the client is gone.
            let _ = rustix::net::send(&caller, &own().encode(LONG), SendFlags::NOSIGNAL);
        }
    }
}

/// A query for an address, under way.
pub(crate) struct Question {
    to: SocketAddrV4,
    /// `None` until it is time to try again.
    fd: Option<Fd>,
    bytes: [u8; LONG],
    got: usize,
    /// When it was last tried, and when it is given up.
    tried: u64,
    end: u64,
}

/// The result of a query so far.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// Nothing.
    NotYet,
    /// The node there.
    Node(NodeAddress),
    /// No Madrigal node is there.
    Nobody,
}

impl Question {
    /// Begins a query.
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
            // There is no listener yet, or it is just closing.
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

/// The place that a `sockaddr_in` names, if it is possible to listen, or to send a query, there.
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
    fn a_query_at_the_listener_is_answered() {
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
    fn a_listener_opened_late_is_found() {
        let (mut question, mut server) = loop {
            let closed = port(&AddressServer::open(local(0)).unwrap().fd);
            let mut question = Question::ask(local(closed));
            assert_eq!(question.poll(), Answer::NotYet);
            // Another process may have taken the port.
            if let Some(server) = AddressServer::open(local(closed)) {
                break (question, server);
            }
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
