//! A linked peer: the pair, both directions, and how the peer is notified.

use std::os::fd::{AsFd, BorrowedFd};

use madrigal_base::node::NodeId;
use madrigal_progress::message::{LinkError, LinkIndex, Sent, Sink};
use madrigal_progress::wait::Peer as Seen;
use madrigal_sys::fd::Fd;
use madrigal_sys::{cpu, time};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::copy;
use super::greet::Greeting;
use super::layout::CELLS;
use super::notice::{listen, owes};
use super::pair::{PageMap, Pair};
use super::reader::{Found, Reader};
use super::writer::{Broken, Writer};

/// What a doorbell is made of.
const DING: [u8; 1] = [1];

/// A node as this process knows it.
pub(super) struct Peer {
    pub(super) node: NodeId,
    pub(super) phase: Phase,
}

/// How far a link is.
pub(super) enum Phase {
    /// The peer's waiting line was full.
    Later,
    /// Our greeting was sent, and not answered yet.
    Dialing { socket: Fd, pair: Pair },
    /// Usable.
    Up(Box<Up>),
    /// Over.
    Down(LinkError),
}

/// A usable link.
pub(super) struct Up {
    pair: Pair,
    page: PageMap,
    /// Which bit of the peer's notification page stands for the link.
    slot: u32,
    pub(super) socket: Fd,
    side: usize,
    writer: Writer,
    reader: Reader,
    /// The common line is ours to write.
    has_line: bool,
    patience: Patience,
    /// The port polls this link, ...
    pub(super) watched: bool,
    /// ... and found something lately.
    pub(super) active: bool,
    /// Something waits for room.
    pub(super) blocked: bool,
    /// Nothing more is read: the peer broke the protocol.
    pub(super) broken: bool,
    /// The peer's process, if its memory can be copied; else why not.
    pub(super) copy: Result<u32, String>,
}

/// For how many polls the common line is not read after it was given away. A read takes the line from the peer, which is about to write the
/// answer. An answer cannot be there at once. The number is learnt from the polls that answers took. A caller that does much between two
/// polls, such as system calls, leaves none out: a late poll costs more than early ones.
#[derive(Default)]
struct Patience {
    polls: u32,
    /// Polls left out.
    first: u32,
    answers: u32,
    /// When the first poll was, of a wait that is timed.
    since: u64,
    /// Much is done between polls.
    slow: bool,
}

/// The most polls that are left out, ...
const PATIENT: u32 = 24;
/// ... and after how many more polls an answer still teaches something.
const NEAR: u32 = 12;
/// One in so many answers is timed: ...
const TIMED: u32 = 64;
/// ... polls with nothing in between follow each other faster than this.
const SLOW_NS: u64 = 250;

impl Patience {
    #[inline]
    fn begin(&mut self) {
        self.polls = 0;
    }

    #[inline]
    fn holds_back(&mut self) -> bool {
        self.polls = self.polls.saturating_add(1);
        if self.polls <= 2 && self.answers.is_multiple_of(TIMED) {
            return self.time();
        }
        self.polls <= self.first && !self.slow
    }

    /// Measures the time between the first two polls. The first is left out: reading a line that the peer has takes long by itself.
    #[cold]
    fn time(&mut self) -> bool {
        let now = time::now_ns();
        if self.polls == 1 {
            self.since = now;
            return true;
        }
        self.slow = now.saturating_sub(self.since) > SLOW_NS;
        self.polls <= self.first && !self.slow
    }

    /// An answer is there. Found by the first poll, it may have been there before. Found soon after, that poll came too early. An answer
    /// that took much longer teaches nothing.
    #[inline]
    fn learn(&mut self, found: &Found<'_>) {
        self.answers = self.answers.wrapping_add(1);
        let after = self.polls.wrapping_sub(self.first);
        if !found.is_common || after > NEAR {
            return;
        }
        if after > 1 {
            self.first = (self.first + 1).min(PATIENT);
        } else {
            self.first = self.first.saturating_sub(1);
        }
    }
}

/// What a visit found.
#[derive(Default)]
pub(super) struct Visit {
    /// How many frames were delivered.
    pub(super) frames: usize,
    /// What no honest peer does.
    pub(super) nonsense: Option<&'static str>,
}

impl Up {
    /// The link over `socket` with the peer that sent `greeting`. `side`: 0 for the side that made the pair.
    pub(super) fn new(socket: Fd, pair: Pair, page: PageMap, side: usize, greeting: &Greeting) -> Self {
        let pid = madrigal_sys::raw::peer_credentials(std::os::fd::AsRawFd::as_raw_fd(&socket)).map_or(0, |who| who.0);
        Self {
            pair,
            page,
            slot: greeting.slot,
            socket,
            side,
            writer: Writer::new(side),
            reader: Reader::new(1 - side),
            has_line: side == 0,
            patience: Patience::default(),
            watched: false,
            active: false,
            blocked: false,
            broken: false,
            copy: copy::probe(pid, greeting.nonce_at, greeting.nonce).map(|()| pid),
        }
    }

    /// Sends as `Port::send` specifies.
    #[inline]
    pub(super) fn send(&mut self, head: &[u8], body: &[std::io::IoSlice<'_>], skip: usize) -> Result<Sent, Broken> {
        let ours = self.has_line;
        let sent = self.writer.send(&self.pair, &mut self.has_line, head, body, skip);
        if ours && !self.has_line {
            self.patience.begin();
        }
        if owes(&self.pair.direction(self.side).wake.notice) {
            self.notify();
        }
        sent
    }

    /// Takes up to `most` frames.
    #[inline]
    pub(super) fn visit(&mut self, link: LinkIndex, most: usize, sink: &mut dyn Sink) -> Visit {
        let mut visit = Visit::default();
        while visit.frames < most && !self.broken {
            // Patience counts polls of a caller that does nothing else. Where others run in between, one poll may be all there is for long.
            let has_line = self.has_line || self.patience.holds_back() && !sink.crowded();
            let Some(found) = self.reader.peek(&self.pair, has_line) else { break };
            if !self.has_line {
                self.patience.learn(&found);
            }
            if let Err(what) = self.reader.take(&self.pair, &found, &mut self.has_line, link, sink) {
                self.broken = true;
                visit.nonsense = Some(what);
            }
            visit.frames += 1;
        }
        if self.reader.gave_room {
            self.reader.gave_room = false;
            if owes(&self.pair.direction(1 - self.side).want.want) {
                self.notify();
            }
        }
        visit
    }

    /// The peer is gone: what it wrote is there, and the next visit finds all of it.
    pub(super) fn last_visit(&mut self, link: LinkIndex, sink: &mut dyn Sink) -> Visit {
        self.patience = Patience::default();
        // No more than this can be in the pair.
        self.visit(link, CELLS + 1, sink)
    }

    /// Requests a notice of the next frame from the peer; true: there is one.
    pub(super) fn listen(&mut self) -> bool {
        let notice = &self.pair.direction(1 - self.side).wake.notice;
        listen(notice, || self.reader.peek(&self.pair, self.has_line).is_some() && !self.broken)
    }

    /// Requests a notice of room from the peer; true: there is some.
    pub(super) fn wait_for_room(&mut self) -> bool {
        listen(&self.pair.direction(self.side).want.want, || self.writer.has_room(&self.pair))
    }

    /// Notifies the peer that there is something.
    #[cold]
    fn notify(&self) {
        if self.page.get().post(self.slot) {
            // Full means that it rings already; a peer that is gone needs no bell.
            let _ = rustix::net::send(&self.socket, &DING, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }

    /// Takes doorbells out; true: the peer is gone.
    pub(super) fn hush(&self) -> bool {
        let mut bells = [0u8; 64];
        loop {
            match rustix::net::recv(&self.socket, &mut bells, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return true,
                Ok((n, _)) if n == bells.len() => {}
                Ok(_) | Err(Errno::AGAIN) => return false,
                Err(Errno::INTR) => {}
                Err(_) => return true,
            }
        }
    }

    /// The processor on which the peer last polled.
    pub(super) fn seen(&self) -> Seen {
        match self.page.get().cpu.0.load(core::sync::atomic::Ordering::Relaxed) {
            0 => Seen::Unknown,
            cpu if cpu == cpu::current() + 1 => Seen::Here,
            _ => Seen::Elsewhere,
        }
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
