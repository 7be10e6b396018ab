//! What is asked of the daemon, on its Unix socket: frames of [`madrigal_proto::frame`] as in `daemon/src/wire.rs`.

use core::ffi::c_int;
use core::fmt::Write as _;
use core::mem::MaybeUninit;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use std::io::IoSlice;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use madrigal_proto::client::{DONE, ROUTE, VERDICT};
use madrigal_proto::frame::{self, Front};
use madrigal_proto::hosts;
use madrigal_sys::fd::Fd;
use madrigal_sys::process::StackPath;
use madrigal_sys::{Errno, raw, tcp, time};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix,
    SocketFlags, SocketType,
};

/// How long the daemon, which has nothing to wait for, may take to answer a program that waits anyway, where there is no other way and where
/// there may be one; and one that does not wait, when that connects, and when it asks why it failed.
const PATIENCE_NS: u64 = 2_000_000_000;
const BRIEF_NS: u64 = 500_000_000;
const CONNECT_NS: u64 = 50_000_000;
const VERDICT_NS: u64 = 200_000_000;
/// After so long a wait the process does not wait again for this time.
const WARY_NS: u64 = 2_000_000_000;
/// Until when the daemon is thought to hang.
static HANGS_UNTIL: AtomicU64 = AtomicU64::new(0);
/// The longest answer of use.
const LONGEST: usize = 512;

/// Where the daemon lets sockets wait, and where they are refused; each of IPv4 and of IPv6.
pub(super) struct Ports {
    pub(super) decoys: [u16; 2],
    pub(super) refusing: [u16; 2],
}

impl Ports {
    fn of([four, six, refusing_four, refusing_six]: hosts::Ports) -> Option<Self> {
        (four != 0 || six != 0).then_some(Self { decoys: [four, six], refusing: [refusing_four, refusing_six] })
    }
}

/// How a program connects.
#[derive(Clone, Copy)]
pub(super) struct Manner {
    /// It waits in its calls.
    pub(super) blocks: bool,
    /// There is no way but by the daemon.
    pub(super) must: bool,
}

/// Has the daemon connect the program's socket `fd` to a port of `host`, which was asked for as `asked`; where it is to wait. An error:
/// there is no daemon, or it does not want to; `TIMEDOUT`: it hangs, and will not do it when it wakes. A program whose socket does not
/// block is not kept: a daemon that is slow to answer finds question and socket when it wakes, and until then that connects, as with a host
/// that does not answer.
pub(super) fn route(fd: c_int, host: &str, asked: SocketAddr, manner: Manner) -> Result<Ports, Errno> {
    let Manner { blocks, must } = manner;
    let mut body = StackPath::empty();
    let written = write!(body, r#"{{"host":"{host}","port":{},"asked":"{asked}","waits":{blocks}}}"#, asked.port());
    written.map_err(|_| Errno::NAMETOOLONG)?;
    // SAFETY: the program's own descriptor, which it keeps open at least until the call we are in returns.
    let passed = unsafe { BorrowedFd::borrow_raw(fd) };
    let mut answer = Answer::default();
    let whole = match (blocks, must) {
        (true, true) => PATIENCE_NS,
        (true, false) => BRIEF_NS,
        (false, _) => CONNECT_NS,
    };
    let patience = match is_wary() {
        false => whole,
        // Where there is no other way it has a moment more.
        true if blocks && must => CONNECT_NS,
        true => 0,
    };
    let question = Question { kind: ROUTE, body: body.as_c_str().to_bytes(), passed: Some(passed), waits: blocks };
    let ports = match answer.ask(&question, patience) {
        Ok(text) => core::str::from_utf8(text).ok().and_then(hosts::read_ports),
        Err(Errno::TIMEDOUT) => {
            HANGS_UNTIL.store(time::now_ns() + WARY_NS, Ordering::Relaxed);
            if blocks {
                return Err(Errno::TIMEDOUT);
            }
            super::hosts::ports()
        }
        Err(errno) => return Err(errno),
    };
    ports.and_then(Ports::of).ok_or(Errno::PROTO)
}

/// Whether a call of this process waited in vain for the daemon lately.
fn is_wary() -> bool {
    time::now_ns() < HANGS_UNTIL.load(Ordering::Relaxed)
}

/// Why the daemon made the connect of `fd` fail, if it did, and answers at once where the program does not wait.
pub(super) fn verdict(fd: c_int, blocks: bool) -> Option<Errno> {
    let mut body = StackPath::empty();
    write!(body, "{}", tcp::cookie(fd).ok()?).ok()?;
    let mut answer = Answer::default();
    let question = Question { kind: VERDICT, body: body.as_c_str().to_bytes(), passed: None, waits: false };
    let patience = match blocks {
        true => PATIENCE_NS,
        false if is_wary() => 0,
        false => VERDICT_NS,
    };
    let text = answer.ask(&question, patience).ok()?;
    let code = core::str::from_utf8(text).ok()?.parse::<i32>().ok()?;
    (1..4096).contains(&code).then(|| madrigal_sys::errno_from(code))
}

/// What is asked.
struct Question<'a> {
    kind: u8,
    body: &'a [u8],
    passed: Option<BorrowedFd<'a>>,
    /// An answer that comes too late is to be none, and the daemon is to know that nobody heard it.
    waits: bool,
}

/// What the daemon answers.
struct Answer {
    bytes: [u8; LONGEST],
    len: usize,
}

impl Default for Answer {
    fn default() -> Self {
        Self { bytes: [0; LONGEST], len: 0 }
    }
}

impl Answer {
    /// Asks, and waits for the answer; its body, if the daemon did what it was asked. `TIMEDOUT`: it has the question, and did not answer
    /// within `patience`.
    fn ask(&mut self, question: &Question<'_>, patience: u64) -> Result<&[u8], Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = Fd::from(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?);
        let until = time::now_ns() + patience;
        call(&socket, until)?;
        send_frame(&socket, question.kind, question.body, question.passed)?;
        while !self.is_whole()? {
            let now = time::now_ns();
            let late = now >= until;
            if late && !question.waits {
                return Err(Errno::TIMEDOUT);
            }
            if late {
                // From now on the daemon cannot answer; it may have done so just before.
                let _ = rustix::net::shutdown(&socket, Shutdown::Read);
            } else {
                raw::wait_readable(&[socket.as_raw_fd()], until - now);
            }
            let room = self.bytes.get_mut(self.len..).unwrap_or_default();
            match rustix::net::recv(&socket, room, RecvFlags::DONTWAIT) {
                Ok((0, _)) if late => return Err(Errno::TIMEDOUT),
                Err(Errno::AGAIN) if late => return Err(Errno::TIMEDOUT),
                Ok((0, _)) => return Err(Errno::CONNRESET),
                Ok((count, _)) => self.len += count,
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return Err(errno),
            }
        }
        match frame::front(self.received(), LONGEST) {
            Ok(Front::Whole { head: &[DONE], body }) => Ok(body),
            _ => Err(Errno::PROTO),
        }
    }

    fn received(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    fn is_whole(&self) -> Result<bool, Errno> {
        match frame::front(self.received(), LONGEST) {
            // A long refusal: that it is one is enough.
            Ok(Front::More(_)) if self.len == LONGEST => Err(Errno::MSGSIZE),
            Ok(Front::More(_)) => Ok(false),
            Ok(_) => Ok(true),
            Err(_) => Err(Errno::PROTO),
        }
    }
}

/// Connects to the daemon. Where very many do that at once it is a moment before there is room.
fn call(socket: &Fd, until: u64) -> Result<(), Errno> {
    let address = SocketAddrUnix::new(super::hosts::path("daemon.sock").as_c_str())?;
    loop {
        match rustix::net::connect(socket, &address) {
            Err(Errno::AGAIN) if time::now_ns() < until => {
                let _ = rustix::thread::nanosleep(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 1_000_000 });
            }
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Sends a frame: small enough to go at once or not at all.
fn send_frame(socket: &Fd, kind: u8, body: &[u8], passed: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    let prefix = frame::prefix(1, body.len() as u64).ok_or(Errno::MSGSIZE)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let rights = passed.map(|fd| [fd]);
    if let Some(rights) = &rights {
        control.push(SendAncillaryMessage::ScmRights(rights));
    }
    let pieces = [IoSlice::new(&prefix), IoSlice::new(core::slice::from_ref(&kind)), IoSlice::new(body)];
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let sent = rustix::net::sendmsg(socket, &pieces, &mut control, flags)?;
    if sent == prefix.len() + 1 + body.len() { Ok(()) } else { Err(Errno::AGAIN) }
}
