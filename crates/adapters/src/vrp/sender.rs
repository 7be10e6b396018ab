//! The end that sends messages: cuts them into pieces, and sends again what the receiver requests.
//!
//! ```text
//!   a piece   unsent --> sent --(done: the receiver has it, or gave it up)--> gone
//!               |          |
//!               |          +--(wanted, in time)--> sent again
//!               |          +--(wanted, too late)-+
//!               +--(the deadline comes)----------+--> skipped: the receiver gives it up, or the message fails
//! ```
//! Behind the last datagrams no later ones show that they are missing: the control stream reports how far pieces were sent.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::skips::Skips;
use super::wire::{self, About, Frame, LENGTH, MESSAGE, MOST_BYTES, NUMBER, PIECE, Piece};
use super::{
    Broken, Class, LEAST_WINDOW, LONGEST, Lost, MOST_CLASSES, MOST_CONTROL, MOST_REPEATED, MOST_UNREAD, OVERHEAD,
};
use crate::ranges::Spans;

const MILLISECOND: u64 = 1_000_000;
/// The last datagrams are reported to the receiver so long behind them.
const TAIL: u64 = 10 * MILLISECOND;
/// What must come is repeated for so long after something was lost.
const LOSSY: u64 = 10_000 * MILLISECOND;
/// How often, and how many datagrams later each time: before the receiver takes it for lost.
const REPEATS: u32 = 2;
const APART: u64 = 1;
/// No message is begun while so many bytes of the control stream wait.
const FULL_CONTROL: usize = 256 << 10;

/// What is sent.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Message {
    /// Its bytes: one at least, [`LONGEST`] at most.
    pub bytes: Vec<u8>,
    /// When it must be there, by the clock of all calls. `None`: it may take any time.
    pub deadline: Option<u64>,
}

/// Why a message was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// No such class.
    #[error("there is no class {0} on this connection")]
    Class(u8),
    /// It is empty, or too long.
    #[error("a message of {0} bytes: there may be 1 to {LONGEST}")]
    Length(usize),
    /// There is no room for it now; when messages are settled there is.
    #[error("no room for {0} more bytes of messages")]
    Full(usize),
    /// The class had 2^32 messages, or 2^48 bytes.
    #[error("class {0} has had all messages that it can have")]
    Numbers(u8),
}

/// What became of a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settled {
    /// Its class.
    pub class: u8,
    /// Its number: messages of a class are counted from 0.
    pub message: u32,
    /// What of it did not arrive. `None`: it failed, and nothing of it is read.
    pub lost: Option<Lost>,
}

/// A message that is not settled.
#[derive(Debug)]
struct Outgoing {
    about: About,
    bytes: Vec<u8>,
    deadline: u64,
    /// Behind the last byte that was ever sent.
    next: u32,
    /// The receiver has room for it, and may get frames about it.
    begun: bool,
    /// Its deadline has passed: nothing more of it is sent.
    expired: bool,
    /// What must be sent again.
    again: Spans,
}

#[derive(Debug)]
struct Flow {
    class: Class,
    /// The number of the next message, and where it begins.
    next: u32,
    sent: u64,
    messages: BTreeMap<u32, Outgoing>,
    /// The last message that was begun.
    last: Option<u32>,
}

/// One end of one direction.
#[derive(Debug)]
pub struct Sender {
    flows: Vec<Flow>,
    /// Messages with parts that were never sent, oldest first; and those with parts that go again.
    unsent: VecDeque<(u8, u32)>,
    again: VecDeque<(u8, u32)>,
    /// Messages whose front is repeated: from which datagram on, and how often.
    repeats: VecDeque<(u64, u8, u32, u32)>,
    /// When each message must be there.
    deadlines: BTreeSet<(u64, u8, u32)>,
    /// The next datagram's number, and when the last one went.
    number: u64,
    last_sent: u64,
    /// When a report of how far pieces were sent went to the receiver, if no later datagram shows it.
    reported_at: Option<u64>,
    /// Until then what must come is repeated.
    lossy_until: u64,
    control: Vec<u8>,
    /// What goes by it later.
    skips: Skips,
    /// What was charged, and may be.
    charged: u64,
    credit: u64,
    window: u64,
    held: usize,
    backlog: usize,
    round_trip: u64,
    settled: VecDeque<Settled>,
}

impl Sender {
    /// For these classes, [`MOST_CLASSES`] at most; `window` is the receiver's, and `backlog` the bytes of messages that are kept here.
    pub fn new(classes: &[Class], window: u64, backlog: usize) -> Self {
        let window = window.clamp(LEAST_WINDOW, MOST_UNREAD);
        let flow =
            |class: &Class| Flow { class: class.bounded(), next: 0, sent: 0, messages: BTreeMap::new(), last: None };
        Self {
            flows: classes.iter().take(MOST_CLASSES).map(flow).collect(),
            unsent: VecDeque::new(),
            again: VecDeque::new(),
            repeats: VecDeque::new(),
            deadlines: BTreeSet::new(),
            number: 0,
            last_sent: 0,
            reported_at: None,
            lossy_until: 0,
            control: Vec::new(),
            skips: Skips::default(),
            charged: 0,
            credit: window,
            window,
            held: 0,
            backlog,
            round_trip: 100 * MILLISECOND,
            settled: VecDeque::new(),
        }
    }

    // --- the program's side ---------------------------------------------------------------------------------------------------

    /// How many bytes of messages it would take now; of any length where it holds none.
    pub fn room(&self) -> usize {
        self.backlog.saturating_sub(self.held)
    }

    /// Takes a message; its number in its class.
    pub fn send(&mut self, class: u8, message: Message) -> Result<u32, Refused> {
        let len = message.bytes.len();
        let room = self.room();
        let flow = self.flows.get_mut(usize::from(class)).ok_or(Refused::Class(class))?;
        match () {
            () if !(1..=LONGEST).contains(&len) => return Err(Refused::Length(len)),
            () if len > room && self.held > 0 => return Err(Refused::Full(len)),
            () if flow.next == u32::MAX || flow.sent + len as u64 >= MOST_BYTES => return Err(Refused::Numbers(class)),
            () => {}
        }
        let (id, deadline) = (flow.next, message.deadline.unwrap_or(u64::MAX));
        let about = About { class, message: id, total: len as u32, at: flow.sent };
        let (bytes, again) = (message.bytes, Spans::default());
        flow.messages.insert(id, Outgoing { about, bytes, deadline, next: 0, begun: false, expired: false, again });
        flow.next += 1;
        flow.sent += len as u64;
        self.held += len + OVERHEAD as usize;
        self.unsent.push_back((class, id));
        if deadline != u64::MAX {
            self.deadlines.insert((deadline, class, id));
        }
        Ok(id)
    }

    /// The outcome of the next settled message; each is returned once.
    pub fn settled(&mut self) -> Option<Settled> {
        self.settled.pop_front()
    }

    // --- the network's side ---------------------------------------------------------------------------------------------------

    /// How long a datagram and its answer take, as the connection below measures it.
    pub fn set_round_trip(&mut self, round_trip: u64) {
        self.round_trip = round_trip.max(MILLISECOND);
    }

    /// Adds one datagram of up to `longest` bytes, which is sent now; false: there is none to be sent. `longest` has room for 17 bytes and
    /// [`Class::granularity`].
    pub fn datagram(&mut self, now: u64, longest: usize, out: &mut Vec<u8>) -> bool {
        let begin = out.len();
        out.extend_from_slice(&self.number.to_le_bytes()[..NUMBER]);
        let longest = longest.max(NUMBER + PIECE + 1);
        let mut last = None;
        loop {
            // The one before needs its length then.
            let (at, len) = (out.len(), if last.is_some() { LENGTH } else { 0 });
            let room = longest.saturating_sub(at - begin + len);
            if !self.piece(now, (room, longest - NUMBER), out) {
                break;
            }
            if let Some(before) = last {
                let piece = out.split_off(at);
                wire::not_last(before, out);
                out.extend_from_slice(&piece);
            }
            last = Some(at + len);
        }
        if last.is_none() {
            out.truncate(begin);
            return false;
        }
        (self.number, self.last_sent, self.reported_at) = (self.number + 1, now, None);
        true
    }

    /// Adds up to `room` bytes of the control stream to `out`; they count as sent.
    pub fn control(&mut self, room: usize, out: &mut Vec<u8>) {
        if self.skips.is_full() || !self.control.is_empty() {
            self.skips.flush(&mut self.control);
        }
        let count = room.min(self.control.len());
        out.extend(self.control.drain(..count));
    }

    /// Takes bytes of the receiver's control stream; how many. What is left is for when more came.
    pub fn receive_control(&mut self, now: u64, bytes: &[u8]) -> Result<usize, Broken> {
        wire::each(bytes, |frame| self.handle(now, frame))
    }

    /// A frame of the receiver.
    pub(super) fn handle(&mut self, now: u64, frame: Frame) -> Result<(), Broken> {
        match frame {
            Frame::Want { class, from, to } => self.want(now, class, from, to),
            Frame::Done { class, message, lost } => self.settle(now, class, message, Some(lost)),
            Frame::Failed { class, message } => self.settle(now, class, message, None),
            Frame::Credit { taken } if taken > self.charged => Err(Broken::Unsent { got: taken, sent: self.charged }),
            Frame::Credit { taken } => {
                self.credit = self.credit.max(taken + self.window);
                Ok(())
            }
            Frame::Skip { .. } | Frame::Reach { .. } => Err(Broken::Frame(frame.kind())),
        }
    }

    /// When [`Sender::handle_time`] is due; never: `u64::MAX`.
    pub fn deadline(&self) -> u64 {
        let message = self.deadlines.first().map(|(at, _, _)| *at);
        self.tail_due().into_iter().chain(message).chain(self.skips.due()).min().unwrap_or(u64::MAX)
    }

    /// The time has come; or any other.
    pub fn handle_time(&mut self, now: u64) {
        while let Some((_, class, id)) = self.deadlines.first().copied().filter(|(at, _, _)| *at <= now) {
            self.deadlines.pop_first();
            self.expire(now, class, id);
        }
        if self.skips.due().is_some_and(|due| due <= now) {
            self.skips.flush(&mut self.control);
        }
        if self.tail_due().is_some_and(|due| due <= now) {
            self.reported_at = Some(now);
            for flow in &self.flows {
                let Some(message) = flow.last.and_then(|id| flow.messages.get(&id)) else { continue };
                Frame::Reach { about: message.about, to: message.next }.write(&mut self.control);
            }
        }
    }

    /// Bytes of memory for messages.
    pub fn held(&self) -> usize {
        self.held + self.control.len() + self.skips.len()
    }

    // --- what goes next -------------------------------------------------------------------------------------------------------

    fn message(&mut self, class: u8, id: u32) -> Option<&mut Outgoing> {
        self.flows.get_mut(usize::from(class))?.messages.get_mut(&id)
    }

    /// Adds a piece of up to `room` bytes, of `most` that a datagram has: what goes again, then what is repeated, then what was never sent.
    /// A message that fits into a datagram is not spread over two, each of which may be lost.
    fn piece(&mut self, now: u64, (room, most): (usize, usize), out: &mut Vec<u8>) -> bool {
        let Some((class, id, from, end)) =
            self.next_again().or_else(|| self.next_repeat()).or_else(|| self.next_unsent(now))
        else {
            return false;
        };
        let (number, is_lossy) = (self.number, now < self.lossy_until);
        let flow = &mut self.flows[usize::from(class)];
        let Class { granularity, must, .. } = flow.class;
        let Some(message) = flow.messages.get_mut(&id) else { return false };
        let total = message.about.total;
        let left = |bytes: usize, head: usize| bytes.saturating_sub(head).min(u16::MAX.into()) as u32;
        let is_whole = from == 0 && end == total && end <= left(room, MESSAGE);
        let to = if is_whole { end } else { cut((from, end), must.min(total), granularity, left(room, PIECE)) };
        let is_first = from == message.next;
        let is_torn = is_first && from == 0 && to < end && end <= left(most, MESSAGE) && room < most;
        if to == from || is_torn {
            self.put_back(class, id, (from, end), is_first);
            return false;
        }
        Piece { about: message.about, from, bytes: &message.bytes[from as usize..to as usize] }.write(out);
        message.next = message.next.max(to);
        if is_first && from == 0 && is_lossy && (1..=MOST_REPEATED).contains(&must) {
            self.repeats.push_back((number + APART, class, id, REPEATS));
        }
        if to < end {
            self.put_back(class, id, (to, end), is_first);
        }
        true
    }

    /// What of a message was taken out, and does not fit.
    fn put_back(&mut self, class: u8, id: u32, (from, to): (u32, u32), is_first: bool) {
        if is_first {
            return self.unsent.push_front((class, id));
        }
        if let Some(message) = self.message(class, id) {
            message.again.insert(u64::from(from), u64::from(to));
            if self.again.front() != Some(&(class, id)) {
                self.again.push_front((class, id));
            }
        }
    }

    fn next_again(&mut self) -> Option<(u8, u32, u32, u32)> {
        while let Some((class, id)) = self.again.front().copied() {
            let span = self.message(class, id).and_then(|message| message.again.take_first());
            if let Some((from, to)) = span {
                return Some((class, id, from as u32, to as u32));
            }
            self.again.pop_front();
        }
        None
    }

    fn next_repeat(&mut self) -> Option<(u8, u32, u32, u32)> {
        let number = self.number;
        while let Some((_, class, id, left)) = self.repeats.pop_front_if(|(from, ..)| *from <= number) {
            let must = self.flows[usize::from(class)].class.must;
            let Some(total) = self.message(class, id).map(|message| message.about.total) else { continue };
            if left > 1 {
                self.repeats.push_back((number + APART, class, id, left - 1));
            }
            return Some((class, id, 0, must.min(total)));
        }
        None
    }

    /// What of the oldest message was never sent.
    fn next_unsent(&mut self, now: u64) -> Option<(u8, u32, u32, u32)> {
        while let Some((class, id)) = self.unsent.front().copied() {
            if !self.begin(now, class, id) {
                return None;
            }
            self.unsent.pop_front();
            let Some(message) = self.message(class, id).filter(|message| !message.expired) else { continue };
            if message.next < message.about.total {
                return Some((class, id, message.next, message.about.total));
            }
        }
        None
    }

    /// Begins a message if the receiver has room for it: frames about it may then go. False: not now.
    fn begin(&mut self, now: u64, class: u8, id: u32) -> bool {
        let (credit, charged, waiting) = (self.credit, self.charged, self.control.len() + self.skips.len());
        let flow = &mut self.flows[usize::from(class)];
        let Some(message) = flow.messages.get_mut(&id).filter(|message| !message.begun) else { return true };
        let charge = OVERHEAD + u64::from(message.about.total);
        if charged + charge > credit || waiting > FULL_CONTROL {
            return false;
        }
        message.begun = true;
        self.charged += charge;
        flow.last = Some(id);
        if message.expired {
            skip(now, message, (0, message.about.total), &mut self.skips);
        }
        true
    }

    // --- what is lost ---------------------------------------------------------------------------------------------------------

    /// When the report of how far pieces were sent is due. `None`: nothing is under way, or something goes on.
    fn tail_due(&self) -> Option<u64> {
        let waits = |flow: &Flow| flow.last.is_some_and(|id| flow.messages.contains_key(&id));
        self.flows.iter().any(waits).then(|| match self.reported_at {
            Some(at) => at + self.round_trip * 3 / 2 + 2 * TAIL,
            None => self.last_sent + TAIL.max(self.round_trip / 4),
        })
    }

    /// A deadline has come: what was not sent of the message will not be.
    fn expire(&mut self, now: u64, class: u8, id: u32) {
        let Some(message) = self.flows[usize::from(class)].messages.get_mut(&id) else { return };
        message.expired = true;
        if !message.begun {
            // It is reported when the receiver has room for it.
            return;
        }
        let mut left = vec![(message.next, message.about.total)];
        while let Some((from, to)) = message.again.take_first() {
            left.push((from as u32, to as u32));
        }
        left.into_iter().filter(|(from, to)| from < to).for_each(|span| skip(now, message, span, &mut self.skips));
    }

    /// The receiver wants bytes of a class again.
    fn want(&mut self, now: u64, class: u8, from: u64, to: u64) -> Result<(), Broken> {
        let patience = self.round_trip * 3 / 4;
        let flow = self.flows.get_mut(usize::from(class)).ok_or(Broken::Class(class))?;
        self.lossy_until = now + LOSSY;
        for (id, message) in &mut flow.messages {
            let (begin, end) = (message.about.at, message.about.at + u64::from(message.next));
            if begin >= to || !message.begun {
                break;
            }
            if end <= from {
                continue;
            }
            let span = ((from.max(begin) - begin) as u32, (to.min(end) - begin) as u32);
            if message.expired || now.saturating_add(patience) >= message.deadline {
                skip(now, message, span, &mut self.skips);
            } else {
                // A message with more to repeat is listed already: frequent requests make the list no longer.
                if message.again.is_empty() {
                    self.again.push_back((class, *id));
                }
                message.again.insert(u64::from(span.0), u64::from(span.1));
            }
            let waiting = self.control.len() + self.skips.len();
            if waiting > MOST_CONTROL {
                return Err(Broken::Deaf(waiting));
            }
        }
        Ok(())
    }

    /// The receiver has all of a message that it will have; or forgets it.
    fn settle(&mut self, now: u64, class: u8, id: u32, lost: Option<Lost>) -> Result<(), Broken> {
        let flow = self.flows.get_mut(usize::from(class)).ok_or(Broken::Class(class))?;
        let must = flow.class.must;
        let wrong = |why| Broken::Message { class, message: id, why };
        let message = flow.messages.get(&id).filter(|message| message.begun);
        let total = message.ok_or(wrong("it was not sent, or is settled"))?.about.total;
        let may_lose = |(from, to): &(u32, u32)| *from >= must.min(total) && *to <= total;
        if !lost.iter().flatten().all(may_lose) {
            return Err(wrong("it lost what must come, or what it does not have"));
        }
        if lost.as_ref().is_none_or(|lost| !lost.is_empty()) {
            self.lossy_until = now + LOSSY;
        }
        if let Some(gone) = flow.messages.remove(&id) {
            self.held -= gone.bytes.len() + OVERHEAD as usize;
            self.deadlines.remove(&(gone.deadline, class, id));
        }
        self.settled.push_back(Settled { class, message: id, lost });
        Ok(())
    }
}

/// Reports to the receiver that these bytes will not come.
fn skip(now: u64, message: &mut Outgoing, span: (u32, u32), skips: &mut Skips) {
    message.next = message.next.max(span.1);
    skips.add(now, message.about, span);
}

/// Where a piece ends that has room for `most` bytes: at the end, or at a multiple of the granularity behind what must come.
fn cut((from, end): (u32, u32), must: u32, granularity: u32, most: u32) -> u32 {
    let furthest = end.min(from.saturating_add(most));
    if furthest == end || furthest <= must {
        return furthest;
    }
    (must + (furthest - must) / granularity * granularity).max(from)
}
