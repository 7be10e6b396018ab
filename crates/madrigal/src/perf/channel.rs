//! The ping-pong over a bare channel: frames without a head, by a driver's port that has nothing above it. What a Circuit takes
//! longer is the price of sharing that driver: channels, matching, order, credit, packing.

use std::io::IoSlice;

use madrigal_base::config::Settings;
use madrigal_base::node::{NodeAddress, NodeId};
use madrigal_progress::driver::Place;
use madrigal_progress::message::{LinkError, LinkIndex, MessageDriver, Placement, Port, Sent, Sink};
use madrigal_sys::{process, time};

use super::job::{Job, POLLS, START_NS};
use super::report::PerfError;

/// How long a port is polled after its last frame.
const SETTLE_NS: u64 = 1_000_000;

/// One end, and the link with the other.
pub(super) struct Channel {
    port: Box<dyn Port>,
    me: NodeId,
    link: Option<LinkIndex>,
    inbox: Inbox,
    /// Frames that were answered: the next question may come before it is waited for.
    answered: u64,
}

impl Channel {
    /// Opens a port that nothing else uses.
    pub(super) fn open(driver: &dyn MessageDriver, settings: &Settings, size: usize) -> Result<Self, PerfError> {
        let unfit = || PerfError::Method { method: driver.name().to_owned() };
        let directory = settings.directory(rustix::process::geteuid().as_raw());
        let place = Place { directory, network: settings.network.clone(), daemons: Vec::new() };
        let me = NodeId::new(process::random() | 1).ok_or_else(unfit)?;
        let port = driver.open(me, &place).map_err(|_| unfit())?;
        let inbox = Inbox { up: None, is_down: false, is_placed: false, frames: 0, bytes: vec![0; size] };
        Ok(Self { port, me, link: None, inbox, answered: 1 })
    }

    /// What the other end needs to reach this one.
    pub(super) fn address(&self) -> NodeAddress {
        let mut address = NodeAddress::bare(self.me);
        self.port.publish(&mut address);
        address
    }

    /// Whether messages of the size it was opened for are frames that come whole, as [`Channel::join`] found: others are placed by the
    /// layer above, which is not here.
    pub(super) fn carries(&self) -> bool {
        self.is_short() && !self.inbox.is_placed
    }

    fn is_short(&self) -> bool {
        self.inbox.bytes.len() <= self.port.short()
    }

    /// Reaches the other end, or waits until it does; then both know that frames pass.
    pub(super) fn join(&mut self, to: Option<&NodeAddress>, mut alive: impl FnMut() -> bool) -> Result<(), PerfError> {
        let until = time::now_ns() + START_NS;
        if let Some(to) = to {
            self.port.link(to).map_err(|_| PerfError::Gone)?;
        }
        while self.inbox.up.is_none() {
            self.port.poll(&mut self.inbox);
            if self.inbox.is_down || time::now_ns() > until || !alive() {
                return Err(PerfError::Gone);
            }
            std::thread::yield_now();
        }
        self.link = self.inbox.up;
        let first = vec![0; if self.is_short() { self.inbox.bytes.len() } else { 1 }];
        match to {
            Some(_) => self.send(&first).and_then(|()| self.receive(0)),
            None => self.receive(0).and_then(|()| self.send(&first)),
        }?;
        self.settle();
        Ok(())
    }

    /// Lets what was sent last leave: some drivers need polls for that, and for a while there are none.
    fn settle(&mut self) {
        let until = time::now_ns() + SETTLE_NS;
        while time::now_ns() < until {
            self.port.poll(&mut self.inbox);
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), PerfError> {
        let link = self.link.ok_or(PerfError::Gone)?;
        let mut polls = Polls::default();
        loop {
            match self.port.send(link, &[], &[IoSlice::new(bytes)], 0) {
                Ok(Sent::All) => return Ok(()),
                // Short frames go whole or not at all.
                Ok(Sent::Part(_)) => self.poll(&mut polls)?,
                Err(_) => return Err(PerfError::Gone),
            }
        }
    }

    /// Waits for the frame behind the first so many, which is then in the inbox.
    fn receive(&mut self, count: u64) -> Result<(), PerfError> {
        let mut polls = Polls::default();
        while self.inbox.frames <= count {
            self.poll(&mut polls)?;
        }
        Ok(())
    }

    /// Polls for frames. Too many polls that find nothing are an error: the peer is gone.
    #[inline]
    fn poll(&mut self, polls: &mut Polls) -> Result<(), PerfError> {
        let found = self.port.poll(&mut self.inbox) > 0;
        if self.inbox.is_down || !(found || polls.more()) {
            return Err(PerfError::Gone);
        }
        Ok(())
    }
}

/// Polls that find nothing.
#[derive(Default)]
struct Polls {
    count: u32,
    /// When they end; 0: not known yet.
    until: u64,
}

impl Polls {
    /// Whether to poll once more.
    #[inline]
    fn more(&mut self) -> bool {
        core::hint::spin_loop();
        self.count = self.count.wrapping_add(1);
        if !self.count.is_multiple_of(POLLS) {
            return true;
        }
        // On a busy machine both may share a processor.
        std::thread::yield_now();
        let now = time::now_ns();
        if self.until == 0 {
            self.until = now + START_NS;
        }
        now < self.until
    }
}

impl Job {
    pub(super) fn ask_channel(self, channel: &mut Channel) -> Result<f64, PerfError> {
        let (mut out, mut count) = (vec![0; self.size], channel.inbox.frames);
        self.timed(|last| {
            out[0] = u8::from(last);
            channel.send(&out)?;
            channel.receive(count)?;
            count += 1;
            Ok(())
        })
    }

    pub(super) fn answer_channel(self, channel: &mut Channel) -> Result<(), PerfError> {
        let (out, mut count) = (vec![0; self.size], channel.answered);
        loop {
            channel.receive(count)?;
            channel.send(&out)?;
            count += 1;
            if channel.inbox.bytes.first() != Some(&0) {
                channel.answered = count;
                channel.settle();
                return Ok(());
            }
        }
    }
}

/// Takes what comes.
struct Inbox {
    up: Option<LinkIndex>,
    is_down: bool,
    is_placed: bool,
    frames: u64,
    bytes: Vec<u8>,
}

impl Sink for Inbox {
    fn up(&mut self, link: LinkIndex, _node: NodeId) {
        self.up = Some(link);
    }

    fn down(&mut self, _link: LinkIndex, _why: LinkError) {
        self.is_down = true;
    }

    #[inline]
    fn frame(&mut self, _link: LinkIndex, _head: &[u8], body: &[u8]) {
        let len = body.len().min(self.bytes.len());
        self.bytes[..len].copy_from_slice(&body[..len]);
        self.frames += 1;
    }

    fn place(&mut self, _link: LinkIndex, _head: &[u8], _len: usize, _placement: &mut Placement) {
        self.is_placed = true;
    }

    fn arrived(&mut self, _link: LinkIndex, _head: &[u8]) {
        self.frames += 1;
    }
}
