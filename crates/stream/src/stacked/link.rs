//! One end of a stacked link: the adapters, and the connections that carry what they make.
//!
//! Everything is done by [`Link::pump`], under one lock: by whoever reads or writes, by the handlers of the connections' reads and
//! writes, and when a time has come that an adapter waits for. Reads of the connections are posted always, so that the other end learns
//! what has come even while nobody here reads.

use std::collections::BTreeMap;
use std::mem;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use madrigal_adapters::contract::{Adapter, Broken, Lane, ONLY};
use madrigal_base::locator::Locator;
use madrigal_progress::driver::Waker;
use madrigal_progress::engine::{Class, Engine, Next, Registration, Source, Work};
use madrigal_sys::{Errno, time};

use super::pace::Pace;
use crate::half::Filled;
use crate::op::Handler;
use crate::vlink::VLink;

/// Bytes that are read from a connection, or given to one, at once.
const MOVED: usize = 128 << 10;
/// The most that is kept for an end that is not known.
const MOST_UNKNOWN: usize = 1 << 20;

/// One end, shared by its reader, its writer and the handlers of its connections.
pub(super) struct Link {
    pub(super) local: Locator,
    pub(super) peer: Locator,
    /// Called when the reader or the writer, who wait, have something to do.
    report: OnceLock<Waker>,
    /// How long the end of the link waits for the other end to take anything of what was written.
    linger: u64,
    state: Mutex<State>,
}

/// What is guarded.
pub(super) struct State {
    pub(super) adapters: Box<dyn Adapter>,
    lanes: BTreeMap<Lane, Carrier>,
    /// Makes further connections; at the end that connected.
    further: Option<Box<dyn Further>>,
    /// The adapter whose peer has sent what it must not send: there is no link any more.
    broken: Option<Broken>,
    /// Who waits for the other end to be known.
    wanting: Option<WhenReady>,
    /// The reader has found nothing more, the writer no room: a report is due when there is.
    pub(super) reader_waits: bool,
    pub(super) writer_waits: bool,
    /// Nobody reads any more: what comes is dropped.
    pub(super) is_deaf: bool,
    closing: Option<Closing>,
    timer: Option<Registration>,
    /// The earliest time for which the timer is set.
    set_for: u64,
    pace: Pace,
    /// The other end's system is asked whether it is there.
    asks_after: bool,
    /// Bytes that the connections have taken.
    taken: u64,
    /// For what is given to a connection; empty between two calls.
    out: Vec<u8>,
}

/// What is called once the other end is known, or will never be: then with the reason.
pub(super) type WhenReady = Box<dyn FnOnce(Result<(), String>) + Send>;

/// Makes the connections of a link beside its first one.
pub(super) trait Further: Send {
    /// Makes those that are missing, of a link that has so many. Called with the link locked.
    fn dial(&mut self, now: u64, has: usize, link: &Arc<Link>);

    /// One that was being made is there.
    fn made(&mut self, now: u64);

    /// One of them was not made.
    fn not_made(&mut self, now: u64);

    /// When [`Further::dial`] may do something that it has not done now; never: `u64::MAX`.
    fn deadline(&self) -> u64;
}

/// The end of the link waits until everything written is there.
struct Closing {
    /// What is called then.
    then: Waker,
    /// What the adapters held, and the connections had taken, when the time began to run.
    since: (usize, u64),
    until: u64,
}

/// A connection of the link.
struct Carrier {
    link: VLink,
    is_writing: bool,
    is_reading: bool,
    /// What came, and no adapter has taken, is a part of the buffer, which a posted read has.
    buffer: Vec<u8>,
    rest: Range<usize>,
    /// Nothing more will come.
    is_over: bool,
    /// It takes nothing more.
    is_broken: bool,
}

impl Link {
    /// A link over its first connection.
    pub(super) fn new(
        (engine, class): (&Arc<Engine>, Class),
        (adapters, linger): (Box<dyn Adapter>, u64),
        first: VLink,
        further: Option<Box<dyn Further>>,
    ) -> Result<Arc<Self>, Errno> {
        let state = State {
            adapters,
            lanes: BTreeMap::new(),
            further,
            broken: None,
            wanting: None,
            reader_waits: true,
            writer_waits: false,
            is_deaf: false,
            closing: None,
            timer: None,
            set_for: u64::MAX,
            pace: Pace::default(),
            asks_after: false,
            taken: 0,
            out: Vec::new(),
        };
        let (local, peer) = (first.local().clone(), first.peer().clone());
        let link = Arc::new(Self { local, peer, report: OnceLock::new(), linger, state: Mutex::new(state) });
        let timer = engine.register(class, None, Arc::new(Timer(Arc::downgrade(&link))))?;
        let mut state = link.lock();
        state.timer = Some(timer);
        state.carry(ONLY, first);
        drop(state);
        link.pump();
        Ok(link)
    }

    /// Whether one more connection by this number would be taken.
    pub(super) fn can_join(&self, lane: Lane) -> bool {
        let state = self.lock();
        state.is_alive() && state.adapters.is_ready() && !state.lanes.contains_key(&lane)
    }

    /// One more connection; nothing, where the link has it already, or is over.
    pub(super) fn join(self: &Arc<Self>, lane: Lane, by: VLink) {
        let mut state = self.lock();
        if state.is_alive() && state.adapters.is_ready() && state.adapters.add(time::now_ns(), lane).is_ok() {
            state.carry(lane, by);
        }
        drop(state);
        self.pump();
    }

    /// A further connection was made.
    pub(super) fn made(self: &Arc<Self>, lane: Lane, by: VLink) {
        if let Some(further) = &mut self.lock().further {
            further.made(time::now_ns());
        }
        self.join(lane, by);
    }

    /// From now on this is called when a reader or a writer that found nothing has something to do; once only. What was there before is found
    /// by the first read and the first write.
    pub(super) fn report_to(&self, report: Waker) {
        let _ = self.report.set(report);
    }

    /// From now on the other end's system is asked now and then whether it is there.
    pub(super) fn ask_after(&self) {
        let mut state = self.lock();
        state.asks_after = true;
        state.lanes.values().for_each(|carrier| carrier.link.ask_after());
    }

    /// For how many seconds nothing has come from the other end's system by any connection, though it was asked again and again.
    pub(super) fn unanswered_s(&self) -> u64 {
        self.lock().lanes.values().map(|carrier| carrier.link.unanswered_s()).min().unwrap_or(0)
    }

    /// How many connections carry it.
    pub(super) fn carriers(&self) -> usize {
        self.lock().lanes.len()
    }

    /// Calls `then` once the other end is known, or there is no link any more: at once where that is so.
    pub(super) fn when_ready(self: &Arc<Self>, then: WhenReady) {
        self.lock().wanting = Some(then);
        self.pump();
    }

    /// A connection that was to be made was not.
    pub(super) fn not_made(self: &Arc<Self>) {
        if let Some(further) = &mut self.lock().further {
            further.not_made(time::now_ns());
        }
        self.pump();
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves everything as far as it goes, and wakes whoever waits for that.
    pub(super) fn pump(self: &Arc<Self>) {
        let mut state = self.lock();
        let now = time::now_ns();
        if state.adapters.deadline() <= now {
            state.adapters.handle_time(now);
        }
        let mut gone = state.take_in(now, self);
        state.give_out(now, self);
        let further = state.make_more(now, self);
        gone.extend(state.end_if_broken());
        let (wakes, finished, ready) = (state.wakes(), state.finished(now, self.linger), state.ready());
        // With the time at which a close gives up, which has just begun to run.
        state.set_timer(now);
        drop(state);
        // What is being made for it calls back when it is given up.
        drop(further);
        // Closed without the lock: a read is posted, which has a handle of its own.
        gone.iter().for_each(|link| drop(link.close()));
        if let Some(report) = self.report.get().filter(|_| wakes) {
            report();
        }
        if let Some(then) = finished {
            then();
        }
        if let Some((then, ready)) = ready {
            then(ready);
        }
    }

    /// Nothing more will be written. Whether everything is there, or will never be.
    pub(super) fn finish(self: &Arc<Self>, then: &Waker) -> bool {
        let mut state = self.lock();
        if state.closing.is_none() {
            // What came and was not read is lost: the other end is to see no proper end.
            if state.adapters.front().is_empty() {
                state.adapters.finish();
            }
            state.closing = Some(Closing { then: Arc::clone(then), since: (usize::MAX, 0), until: 0 });
        }
        drop(state);
        self.pump();
        self.lock().is_finished(time::now_ns(), self.linger)
    }

    /// Ends the link at once: what a connection has not taken is not sent any more.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        let is_done = state.lanes.values().all(|carrier| !carrier.is_writing);
        let (lanes, further) = (mem::take(&mut state.lanes), state.further.take());
        let (timer, wanting) = (state.timer.take(), state.wanting.take());
        drop(state);
        for Carrier { link, .. } in lanes.values() {
            if is_done { drop(link.close()) } else { link.abort() }
        }
        drop((further, timer, wanting));
    }
}

impl State {
    /// Whether a connection carries it.
    pub(super) fn is_alive(&self) -> bool {
        self.broken.is_none() && !self.lanes.is_empty()
    }

    /// Whether what is written can still go.
    pub(super) fn is_writable(&self) -> bool {
        self.broken.is_none() && self.lanes.values().any(|carrier| !carrier.is_broken)
    }

    fn carry(&mut self, lane: Lane, link: VLink) {
        if self.asks_after {
            link.ask_after();
        }
        let (is_writing, is_reading, is_broken, is_over) = (false, false, false, false);
        let carrier = Carrier { link, is_writing, is_reading, is_broken, buffer: vec![0; MOVED], rest: 0..0, is_over };
        self.lanes.insert(lane, carrier);
    }

    /// The adapter for whose sake there is no link any more, if the other end sent it what it must not send.
    pub(super) fn broken(&self) -> Option<&'static str> {
        self.broken.as_ref().map(Broken::adapter)
    }

    /// Gives the adapters what came. Returns connections that have ended.
    fn take_in(&mut self, now: u64, link: &Arc<Link>) -> Vec<VLink> {
        let mut ended = Vec::new();
        for (lane, carrier) in &mut self.lanes {
            loop {
                let rest = carrier.buffer.get(carrier.rest.clone()).unwrap_or_default();
                let begun = time::now_ns();
                match self.adapters.receive(now, *lane, rest) {
                    Ok(taken) => carrier.rest.start += taken,
                    Err(broken) => self.broken = self.broken.take().or(Some(broken)),
                }
                self.adapters.took(time::now_ns() - begun);
                if !self.adapters.is_ready() && self.adapters.held() > MOST_UNKNOWN {
                    self.broken = self.broken.take().or(Some(Broken::Early));
                }
                // What is dropped makes room for the rest.
                if !self.is_deaf || self.broken.is_some() || !drop_front(&mut *self.adapters) {
                    break;
                }
            }
            if carrier.rest.is_empty() && carrier.is_over {
                ended.push(*lane);
            } else if carrier.rest.is_empty() && !carrier.is_reading {
                carrier.is_reading = true;
                read(&carrier.link, mem::take(&mut carrier.buffer), link, *lane);
            }
        }
        ended.into_iter().filter_map(|lane| self.lose(lane)).collect()
    }

    /// A connection is gone.
    fn lose(&mut self, lane: Lane) -> Option<VLink> {
        self.adapters.remove(lane);
        self.lanes.remove(&lane).map(|carrier| carrier.link)
    }

    /// Nothing more goes by a connection. What came by it can still be read if it is the last one; else it comes by the others.
    fn cannot_write(&mut self, lane: Lane) -> Option<VLink> {
        self.lanes.get_mut(&lane)?.is_broken = true;
        if self.is_writable() { self.lose(lane) } else { None }
    }

    /// Gives connections what the adapters have for them.
    fn give_out(&mut self, now: u64, link: &Arc<Link>) {
        for (lane, carrier) in &mut self.lanes {
            while !carrier.is_writing {
                let begun = time::now_ns();
                self.adapters.transmit(now, *lane, MOVED, &mut self.out);
                self.adapters.took(time::now_ns() - begun);
                if self.out.is_empty() {
                    break;
                }
                let taken = carrier.link.write_now(&self.out).unwrap_or(0);
                self.taken += taken as u64;
                self.pace.took(taken);
                if taken < self.out.len() {
                    carrier.is_writing = true;
                    self.pace.begin(now);
                    write(&carrier.link, self.out.split_off(taken), link, *lane);
                }
                self.out.clear();
            }
        }
    }

    /// Makes connections that are wanted. Returns what makes them once none is wanted any more.
    fn make_more(&mut self, now: u64, link: &Arc<Link>) -> Option<Box<dyn Further>> {
        if !self.is_alive() || self.closing.is_some() {
            return self.further.take();
        }
        if let Some(further) = self.further.as_mut().filter(|_| self.adapters.is_ready()) {
            further.dial(now, self.lanes.len(), link);
        }
        None
    }

    /// Where the other end sent what it must not send, all connections end.
    fn end_if_broken(&mut self) -> Vec<VLink> {
        let lanes = if self.broken.is_some() { mem::take(&mut self.lanes) } else { BTreeMap::new() };
        lanes.into_values().map(|carrier| carrier.link).collect()
    }

    fn set_timer(&mut self, now: u64) {
        let further = self.further.as_ref().map_or(u64::MAX, |further| further.deadline());
        let closing = self.closing.as_ref().map_or(u64::MAX, |closing| closing.until);
        let at = self.adapters.deadline().min(further).min(closing);
        let is_set = self.set_for > now && self.set_for <= at;
        if let Some(timer) = self.timer.as_ref().filter(|_| at < u64::MAX && at > now && !is_set) {
            timer.wake_at(at);
            self.set_for = at;
        }
    }

    /// Who waits for the other end to be known, if it is, or never will be.
    fn ready(&mut self) -> Option<(WhenReady, Result<(), String>)> {
        let ready = match &self.broken {
            Some(broken) => Err(broken.to_string()),
            None if self.lanes.is_empty() => Err("the other end closed the connection before it was known".to_owned()),
            None if self.adapters.is_ready() => Ok(()),
            None => return None,
        };
        Some((self.wanting.take()?, ready))
    }

    /// Whether something is to be reported.
    fn wakes(&mut self) -> bool {
        let alive = self.is_alive();
        let reader = self.reader_waits && (self.is_readable() || !alive);
        let writer = self.writer_waits && (self.adapters.room() > 0 || !self.is_writable());
        self.reader_waits &= !reader;
        self.writer_waits &= !writer;
        reader || writer
    }

    /// Who waits for the end of the link, if that has come.
    fn finished(&mut self, now: u64, linger: u64) -> Option<Waker> {
        let finished = self.is_finished(now, linger);
        self.closing.as_ref().filter(|_| finished).map(|closing| Arc::clone(&closing.then))
    }

    /// Whether a read gives bytes, or the end.
    pub(super) fn is_readable(&self) -> bool {
        !self.adapters.front().is_empty() || self.adapters.is_at_end()
    }

    /// Whether what was written is there, or nothing of it goes for long.
    fn is_finished(&mut self, now: u64, linger: u64) -> bool {
        let is_flushed = self.adapters.is_flushed() && self.lanes.values().all(|lane| !lane.is_writing);
        let is_over = is_flushed || !self.is_writable();
        let Some(closing) = &mut self.closing else { return false };
        // What is acknowledged is not held any more; an adapter without acknowledgements is done when all of it is taken.
        let is_at = (self.adapters.held(), self.taken);
        if is_at.0 < closing.since.0 || is_at.1 > closing.since.1 {
            (closing.since, closing.until) = (is_at, now + linger);
        }
        is_over || now >= closing.until
    }
}

/// Posts a read of a connection.
fn read(by: &VLink, buffer: Vec<u8>, link: &Arc<Link>, lane: Lane) {
    let link = Arc::clone(link);
    let handler = Handler::new(move |_: &VLink, outcome: Result<Filled, _>| {
        let mut state = link.lock();
        if let Some(carrier) = state.lanes.get_mut(&lane) {
            carrier.is_reading = false;
            match outcome {
                Ok(Filled { buf, len: len @ 1.. }) => (carrier.buffer, carrier.rest) = (buf, 0..len),
                _ => carrier.is_over = true,
            }
        }
        drop(state);
        link.pump();
    });
    by.read_with(buffer, handler);
}

/// Posts a write of a connection.
fn write(by: &VLink, bytes: Vec<u8>, link: &Arc<Link>, lane: Lane) {
    let (link, count) = (Arc::clone(link), bytes.len());
    let handler = Handler::new(move |_: &VLink, outcome: Result<Vec<u8>, _>| {
        let (mut state, now) = (link.lock(), time::now_ns());
        if outcome.is_err() {
            let gone = state.cannot_write(lane);
            drop(state);
            gone.iter().for_each(VLink::abort);
            return link.pump();
        }
        if let Some(carrier) = state.lanes.get_mut(&lane) {
            carrier.is_writing = false;
            let is_busy = state.lanes.values().any(|carrier| carrier.is_writing);
            state.taken += count as u64;
            state.pace.took(count);
            if let Some(rate) = state.pace.rate(now, is_busy) {
                state.adapters.set_rate(rate);
            }
        }
        drop(state);
        link.pump();
    });
    by.write_with(bytes, handler);
}

/// Pumps a link when a time has come.
struct Timer(Weak<Link>);

impl Source for Timer {
    fn work(&self, _budget: u32) -> Work {
        if let Some(link) = self.0.upgrade() {
            link.pump();
        }
        Work { count: 0, next: Next::Park }
    }

    fn arm(&self) -> bool {
        false
    }
}

/// Drops what can be read; whether there was anything.
fn drop_front(adapters: &mut dyn Adapter) -> bool {
    let some = !adapters.front().is_empty();
    while let count @ 1.. = adapters.front().len() {
        adapters.consume(count);
    }
    some
}
