//! Making and ending connections.

use core::ptr;
use core::sync::atomic::Ordering;

use libc::{c_int, pollfd, sockaddr};
use madrigal_fuzz_sockets::op::{Family, Op, Slot};
use madrigal_fuzz_sockets::program::Kind;
use madrigal_fuzz_sockets::raw;
use madrigal_fuzz_sockets::via::{AcceptVia, ConnectHow};

use crate::context::{Answer, StepContext, call, ending};
use crate::{c, state};

/// A step about connections.
pub(crate) fn play(context: &StepContext, op: &Op) {
    match *op {
        Op::Listen { slot, family, nonblock } => listen(context, slot, family, nonblock),
        Op::Connect { slot, to, how, four } => connect(context, slot, to, how, four),
        Op::Refused { nonblock } => refused(context, nonblock),
        Op::Accept { slot, from, via } => accept(context, slot, from, via),
        // SAFETY: no memory is passed.
        Op::Shutdown { slot, how } => drop(context.call(|| unsafe { c::shutdown(state::fd(slot), how) })),
        Op::Names { slot } => names(context, slot),
        _ => {}
    }
}

/// An address with room for each family.
#[repr(C, align(8))]
struct Address {
    bytes: [u8; 28],
    len: u32,
}

impl Address {
    /// The loopback address, or with `any` every address.
    fn new(family: Family, port: u16, any: bool) -> Self {
        let mut bytes = [0; 28];
        bytes[2..4].copy_from_slice(&port.to_be_bytes());
        let (number, len) = if family == Family::Four { (libc::AF_INET, 16) } else { (libc::AF_INET6, 28) };
        bytes[..2].copy_from_slice(&(number as u16).to_ne_bytes());
        match family {
            Family::Four => bytes[4..8].copy_from_slice(&[127, 0, 0, 1]),
            Family::Six => bytes[23] = 1,
            Family::Mapped if any => {}
            Family::Mapped => bytes[18..24].copy_from_slice(&[0xFF, 0xFF, 127, 0, 0, 1]),
        }
        Self { bytes, len }
    }

    fn at(&self) -> *const sockaddr {
        self.bytes.as_ptr().cast()
    }
}

fn domain(family: Family) -> c_int {
    if family == Family::Four { libc::AF_INET } else { libc::AF_INET6 }
}

fn listen(context: &StepContext, slot: Slot, family: Family, nonblock: bool) {
    let kind = libc::SOCK_STREAM | if nonblock { libc::SOCK_NONBLOCK } else { 0 };
    let address = Address::new(family, 0, true);
    // SAFETY: an address of our own.
    unsafe {
        let made = context.call(|| c::socket(domain(family), kind, 0));
        context.open(slot, made);
        let fd = made.ret as c_int;
        context.note(call(|| c::bind(fd, address.at(), address.len)));
        context.note(call(|| c::listen(fd, 64)));
        let code = if family == Family::Four { 0 } else { 1 << 16 } | if family == Family::Six { 1 << 17 } else { 0 };
        state::state().region.ports[slot as usize].store(u32::from(raw::ports(fd).0) | code, Ordering::SeqCst);
    }
}

/// The family and port of a listener, as it stored them; a client uses that family.
pub(crate) fn target(to: Slot) -> (Family, u16) {
    let state = state::state();
    let mut told = state.region.ports[to as usize].load(Ordering::SeqCst);
    while told == 0 && state.program.free && state.region.killed.load(Ordering::SeqCst) == 0 {
        // The listening process runs beside this one.
        raw::sleep_us(100);
        told = state.region.ports[to as usize].load(Ordering::SeqCst);
    }
    let family = match told >> 16 {
        0 => Family::Four,
        1 => Family::Mapped,
        _ => Family::Six,
    };
    (family, told as u16)
}

/// A connection to a listener, for programs that run freely.
pub(crate) fn dial(to: Slot, nonblock: bool) -> Result<c_int, i32> {
    let (family, port) = target(to);
    let address = Address::new(family, port, false);
    // SAFETY: an address of our own.
    unsafe {
        let made = call(|| c::socket(domain(family), libc::SOCK_STREAM, 0));
        if made.ret < 0 {
            return Err(made.errno);
        }
        let fd = made.ret as c_int;
        let done = call(|| c::connect(fd, address.at(), address.len));
        nodelay(fd);
        if done.ret < 0 {
            c::close(fd);
            return Err(done.errno);
        }
        if nonblock {
            c::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK);
        }
        Ok(fd)
    }
}

/// What is written goes at once.
pub(crate) fn nodelay(fd: c_int) {
    let one: c_int = 1;
    // SAFETY: a value of our own.
    unsafe { c::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, (&raw const one).cast(), 4) };
}

fn connect(context: &StepContext, slot: Slot, to: Slot, how: ConnectHow, four: bool) {
    let (mut family, port) = target(to);
    if family == Family::Mapped && four {
        family = Family::Four;
    }
    let address = Address::new(family, port, false);
    let kind = libc::SOCK_STREAM | if how == ConnectHow::SockNonblock { libc::SOCK_NONBLOCK } else { 0 };
    // SAFETY: an address of our own.
    unsafe {
        let made = call(|| c::socket(domain(family), kind, 0));
        let fd = made.ret as c_int;
        context.keep(made);
        context.open(slot, made);
        let to = |fd| call(|| c::connect(fd, address.at(), address.len));
        if how == ConnectHow::Block {
            context.note(to(fd));
        } else {
            c::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK);
            context.note(to(fd));
            let mut entry = pollfd { fd, events: libc::POLLOUT, revents: 0 };
            context.note(call(|| c::poll(&raw mut entry, 1, 2000)));
            context.record.add(entry.revents as u64);
            context.note(error(fd));
            context.note(to(fd));
            context.note(to(fd));
            if how == ConnectHow::Nonblock {
                c::fcntl(fd, libc::F_SETFL, 0);
            }
        }
        remember(slot, fd, family == Family::Six);
    }
}

/// Stores the ports of the connection for the sequencer.
fn remember(slot: Slot, fd: c_int, six: bool) {
    if let Some(Kind::End(conn, _)) = state::state().program.slots.get(slot as usize) {
        let (own, peer) = raw::ports(fd);
        let ports = &state::state().region.conns[*conn as usize];
        ports.client.store(u32::from(own), Ordering::SeqCst);
        ports.server.store(u32::from(peer), Ordering::SeqCst);
        ports.family.store(if six { 6 } else { 4 }, Ordering::SeqCst);
    }
}

/// `SO_ERROR`.
pub(crate) fn error(fd: c_int) -> Answer {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as u32;
    // SAFETY: an int of our own.
    let answer =
        call(|| unsafe { c::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut value).cast(), &raw mut len) });
    if answer.ret < 0 { answer } else { Answer { ret: i64::from(value), errno: 0 } }
}

/// A port that is bound and has no listener.
fn refused(context: &StepContext, nonblock: bool) {
    let own = Address::new(Family::Four, 0, false);
    let kind = libc::SOCK_STREAM | if nonblock { libc::SOCK_NONBLOCK } else { 0 };
    // SAFETY: addresses of our own.
    unsafe {
        let silent = c::socket(libc::AF_INET, libc::SOCK_STREAM, 0);
        context.note(call(|| c::bind(silent, own.at(), own.len)));
        let address = Address::new(Family::Four, raw::ports(silent).0, false);
        let fd = c::socket(libc::AF_INET, kind, 0);
        context.call(|| c::connect(fd, address.at(), address.len));
        let mut entry = pollfd { fd, events: libc::POLLOUT | libc::POLLIN, revents: 0 };
        context.note(call(|| c::poll(&raw mut entry, 1, 1000)));
        context.record.add(entry.revents as u64);
        context.note(error(fd));
        context.note(crate::context::count(|| c::send(fd, own.bytes.as_ptr().cast(), 1, libc::MSG_NOSIGNAL)));
        c::close(fd);
        c::close(silent);
    }
}

fn accept(context: &StepContext, slot: Slot, from: Slot, via: AcceptVia) {
    let fd = state::fd(from);
    let mut name = [0u64; 16];
    let mut len = size_of_val(&name) as u32;
    let (at, len_at) = (name.as_mut_ptr().cast::<sockaddr>(), &raw mut len);
    let none = ptr::null_mut();
    // SAFETY: an address of our own.
    let answer = context.call(|| unsafe {
        match via {
            AcceptVia::Accept => c::accept(fd, at, len_at),
            AcceptVia::Accept4 => c::accept4(fd, none, ptr::null_mut(), 0),
            AcceptVia::Nonblock => c::accept4(fd, none, ptr::null_mut(), libc::SOCK_NONBLOCK),
            AcceptVia::Cloexec => c::accept4(fd, at, len_at, libc::SOCK_CLOEXEC),
        }
    });
    context.open(slot, answer);
}

/// The ports, by what the connection is known to have: numbers differ from run to run.
fn names(context: &StepContext, slot: Slot) {
    let state = state::state();
    let Some((conn, side)) = state.program.end(slot) else { return };
    let ports = &state.region.conns[conn as usize];
    let known = [ports.client.load(Ordering::SeqCst), ports.server.load(Ordering::SeqCst)];
    let fd = state::fd(slot);
    for own in [true, false] {
        let mut name = [0u8; 32];
        let mut len = name.len() as u32;
        let (at, len_at) = (name.as_mut_ptr().cast::<sockaddr>(), &raw mut len);
        // SAFETY: an address of our own.
        let answer =
            call(|| unsafe { if own { c::getsockname(fd, at, len_at) } else { c::getpeername(fd, at, len_at) } });
        context.note(answer);
        let port = u32::from(u16::from_be_bytes([name[2], name[3]]));
        let expected = known[usize::from((side == 1) == own)];
        context.record.add(if answer.ret < 0 { ending::FULL } else { u64::from(port == expected) });
        context.record.add(u64::from(name[0]));
        context.record.add(u64::from(len));
    }
    context.keep(Answer { ret: 0, errno: 0 });
}
