//! The end that receives messages: puts pieces together, decides what to do about missing ones, and delivers what is settled, in order.
//!
//! ```text
//!   bytes   missing --(later ones came, or time passed)--> lost --(may be given up)--> given up --+
//!              |                                            |  ^                                  +--> the message is done
//!              |                                      requested  +--(and lost again)              |
//!              +--------------------(they come)-----------------------------------> there --------+
//! ```
//! What the sender reports as not coming is given up, or the message fails.

use super::gaps::{Gap, Gaps};
use super::incoming::{Fate, Flow, State, Taken};
use super::wire::{self, About, Frame, Piece, number_of};
use super::{Broken, Class, LEAST_WINDOW, Lost, MOST_CLASSES, MOST_CONTROL, MOST_UNREAD, OVERHEAD};

/// The most holes in all messages: more than there are datagrams in what a sender may send.
const MOST_HOLES: usize = 60_000;
const FIRST_ROUND_TRIP: u64 = 100_000_000;

/// A message that arrived.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Arrived {
    /// Its class.
    pub class: u8,
    /// Its number: messages of a class are counted from 0, and [`Receiver::take`] gives them in order.
    pub message: u32,
    /// Its bytes; those that are lost are 0. Of a message that failed there are none.
    pub bytes: Vec<u8>,
    /// What of it is lost. `None`: it failed.
    pub lost: Option<Lost>,
}

/// One end of one direction.
#[derive(Debug)]
pub struct Receiver {
    flows: Vec<Flow>,
    /// The flow that is read next.
    next_flow: usize,
    window: u64,
    /// What is not read, what was, and what of that was reported to the sender.
    held: u64,
    taken: u64,
    reported: u64,
    gaps: Gaps,
    control: Vec<u8>,
    /// In messages; those between them the flows know.
    holes: usize,
}

impl Receiver {
    /// For these classes, [`MOST_CLASSES`] at most; they and `window` are the sender's.
    pub fn new(classes: &[Class], window: u64) -> Self {
        Self {
            flows: classes.iter().take(MOST_CLASSES).map(Flow::new).collect(),
            next_flow: 0,
            window: window.clamp(LEAST_WINDOW, MOST_UNREAD),
            held: 0,
            taken: 0,
            reported: 0,
            gaps: Gaps::new(FIRST_ROUND_TRIP),
            control: Vec::new(),
            holes: 0,
        }
    }

    /// How long a datagram and its answer take, as the connection below measures it.
    pub fn set_round_trip(&mut self, round_trip: u64) {
        self.gaps.set_round_trip(round_trip);
    }

    /// The next message, of each class in turn; `None`: none is whole yet.
    pub fn take(&mut self) -> Option<Arrived> {
        self.take_by(Flow::take)
    }

    /// The next message, of each class in turn, also where an earlier one of its class is not whole yet; `None`: none is.
    pub fn take_any(&mut self) -> Option<Arrived> {
        self.take_by(Flow::take_any)
    }

    /// The next message of that class; `None`: none is whole yet.
    pub fn take_of(&mut self, class: u8) -> Option<Arrived> {
        self.take_at(usize::from(class), Flow::take)
    }

    /// Whether [`Receiver::take_of`] gives a message of that class.
    pub fn has(&self, class: u8) -> bool {
        self.flows.get(usize::from(class)).is_some_and(Flow::has_next)
    }

    /// Whether the control stream has something for the sender.
    pub fn owes(&self) -> bool {
        !self.control.is_empty()
    }

    fn take_by(&mut self, take: fn(&mut Flow) -> Option<Taken>) -> Option<Arrived> {
        let (count, first) = (self.flows.len(), self.next_flow);
        let (at, arrived) =
            (0..count).map(|step| (first + step) % count).find_map(|at| Some((at, self.take_at(at, take)?)))?;
        self.next_flow = at + 1;
        Some(arrived)
    }

    fn take_at(&mut self, at: usize, take: fn(&mut Flow) -> Option<Taken>) -> Option<Arrived> {
        let (about, state, bytes, lost) = take(self.flows.get_mut(at)?)?;
        while let Some(message) = self.flows[at].forget_oldest() {
            self.free(message.charge());
        }
        let lost = (state == State::Done).then_some(lost);
        Some(Arrived { class: about.class, message: about.message, bytes, lost })
    }

    /// A datagram came.
    pub fn receive(&mut self, now: u64, datagram: &[u8]) -> Result<(), Broken> {
        let (number, mut rest) = number_of(datagram)?;
        let number = self.gaps.note(number);
        while !rest.is_empty() {
            let flow = |class: u8| self.flows.get(usize::from(class)).map(Flow::place).ok_or(Broken::Class(class));
            let (piece, behind) = Piece::read(rest, flow)?;
            self.put(now, number, &piece)?;
            rest = behind;
        }
        self.settle_lost(now)
    }

    /// Takes bytes of the sender's control stream; how many. What is left is for when more came.
    pub fn receive_control(&mut self, now: u64, bytes: &[u8]) -> Result<usize, Broken> {
        wire::each(bytes, |frame| self.handle(now, frame))
    }

    /// A frame of the sender.
    pub(super) fn handle(&mut self, now: u64, frame: Frame) -> Result<(), Broken> {
        match frame {
            Frame::Skip { about, from, to } => self.skip(now, about, from, to)?,
            Frame::Reach { about, to } => {
                let end = about.at + u64::from(to);
                self.open(about)?;
                self.reach(now, None, about.class, (end, end));
            }
            _ => return Err(Broken::Frame(frame.kind())),
        }
        self.settle_lost(now)
    }

    /// Adds up to `room` bytes of the control stream to `out`; they count as sent.
    pub fn control(&mut self, room: usize, out: &mut Vec<u8>) {
        let count = room.min(self.control.len());
        out.extend(self.control.drain(..count));
    }

    /// When [`Receiver::handle_time`] is due; never: `u64::MAX`.
    pub fn deadline(&self) -> u64 {
        self.gaps.due().unwrap_or(u64::MAX)
    }

    /// The time has come; or any other.
    pub fn handle_time(&mut self, now: u64) -> Result<(), Broken> {
        self.settle_lost(now)
    }

    /// Bytes that are not read, and what is kept of their messages.
    pub fn held(&self) -> u64 {
        self.held
    }

    // --- what comes -----------------------------------------------------------------------------------------------------------

    fn put(&mut self, now: u64, number: u64, piece: &Piece<'_>) -> Result<(), Broken> {
        let About { class, message, at, .. } = piece.about;
        self.open(piece.about)?;
        let from = at + u64::from(piece.from);
        self.reach(now, Some(number), class, (from, from + piece.bytes.len() as u64));
        let flow = &mut self.flows[usize::from(class)];
        self.holes = self.holes.saturating_add_signed(flow.put(message, piece.from, piece.bytes));
        self.finish(class, message);
        if self.holes + self.flows.iter().map(Flow::holes).sum::<usize>() > MOST_HOLES {
            return Err(Broken::Message { class, message, why: "with it there are too many holes" });
        }
        Ok(())
    }

    /// There is such a message, or was.
    fn open(&mut self, about: About) -> Result<(), Broken> {
        let (window, flow) = (self.window, self.flows.get_mut(usize::from(about.class)));
        let flow = flow.ok_or(Broken::Class(about.class))?;
        if flow.is_new(&about)? {
            let held = self.held + OVERHEAD + u64::from(about.total);
            if held > window || flow.is_beyond(&about, window) {
                return Err(Broken::Credit { held, window });
            }
            self.held = held;
            flow.insert(about);
        }
        Ok(())
    }

    /// Something is known of these bytes of a class: what of those before them is missing is seen now.
    fn reach(&mut self, now: u64, number: Option<u64>, class: u8, (from, to): (u64, u64)) {
        if let Some((from, to)) = self.flows[usize::from(class)].reach(from, to) {
            self.gaps.see(now, number, Gap { class, from, to });
        }
    }

    /// A message may be all there will be.
    fn finish(&mut self, class: u8, message: u32) {
        if let Some((lost, holes)) = self.flows[usize::from(class)].finish(message) {
            Frame::Done { class, message, lost: lost.clone() }.write(&mut self.control);
            self.holes -= holes;
        }
    }

    fn fail(&mut self, class: u8, message: u32) {
        if let Some(holes) = self.flows[usize::from(class)].fail(message) {
            Frame::Failed { class, message }.write(&mut self.control);
            self.holes -= holes;
        }
    }

    // --- what does not --------------------------------------------------------------------------------------------------------

    /// Decides of what is lost by now.
    fn settle_lost(&mut self, now: u64) -> Result<(), Broken> {
        while let Some(Gap { class, mut from, to }) = self.gaps.next_lost(now) {
            while let Some((first, last)) = self.flows[usize::from(class)].missing(from, to) {
                from = last;
                if self.lose(class, first, last)? == Fate::Wanted {
                    Frame::Want { class, from: first, to: last }.write(&mut self.control);
                    self.gaps.ask(now, Gap { class, from: first, to: last });
                }
            }
        }
        if self.control.len() > MOST_CONTROL { Err(Broken::Deaf(self.control.len())) } else { Ok(()) }
    }

    /// Bytes of one message, or of one that nothing is known of, are lost.
    fn lose(&mut self, class: u8, from: u64, to: u64) -> Result<Fate, Broken> {
        let flow = &mut self.flows[usize::from(class)];
        if let Some(about) = flow.between(class, from, to) {
            self.open(about)?;
        }
        let flow = &mut self.flows[usize::from(class)];
        let (mut at, mut fate) = (from, Fate::GivenUp);
        // An unknown message may be longer than what is decided on at a time.
        while let Some((first, last)) = flow.missing(at, to) {
            at = last;
            if flow.lose(first, last) == Fate::Wanted {
                fate = Fate::Wanted;
            }
        }
        if let Some(message) = flow.id_at(from) {
            self.finish(class, message);
        }
        Ok(fate)
    }

    /// The sender will not send these bytes of a message: they are given up, or it fails.
    fn skip(&mut self, now: u64, about: About, from: u32, to: u32) -> Result<(), Broken> {
        let class = about.class;
        self.open(about)?;
        let (mut at, end) = (about.at + u64::from(from), about.at + u64::from(to));
        self.reach(now, None, class, (at, end));
        while let Some((first, last)) = self.flows[usize::from(class)].missing(at, end) {
            at = last;
            if self.flows[usize::from(class)].lose(first, last) != Fate::GivenUp {
                self.fail(class, about.message);
            }
        }
        self.finish(class, about.message);
        Ok(())
    }

    /// A message was read: the sender gets a report now and then, and may send as much more.
    fn free(&mut self, charge: u64) {
        self.held -= charge;
        self.taken += charge;
        if self.taken - self.reported >= self.window / 8 {
            self.reported = self.taken;
            Frame::Credit { taken: self.taken }.write(&mut self.control);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vrp::{Message, Sender};

    #[test]
    fn a_message_that_is_whole_waits_for_an_earlier_one_only_where_order_is_wanted() {
        let classes = [Class::default()];
        let (mut sender, mut receiver) = (Sender::new(&classes, 0, 1 << 20), Receiver::new(&classes, 0));
        let mut datagrams = Vec::new();
        for number in 0..4u8 {
            assert!(sender.send(0, Message { bytes: vec![number; 100], deadline: None }).is_ok());
            let mut datagram = Vec::new();
            assert!(sender.datagram(0, 1200, &mut datagram));
            datagrams.push(datagram);
        }
        let arrived =
            |message: Option<Arrived>| message.map(|message| (message.message, message.bytes[0], message.lost));
        let whole = |number: u8| Some((u32::from(number), number, Some(Vec::new())));
        for late in [1, 2] {
            receiver.receive(0, &datagrams[late]).unwrap();
        }
        assert_eq!(receiver.take(), None, "the first one is missing");
        assert_eq!(arrived(receiver.take_any()), whole(1));
        assert_eq!(arrived(receiver.take_any()), whole(2));
        assert_eq!((receiver.take_any(), receiver.held()), (None, 2 * (100 + OVERHEAD)));
        receiver.receive(0, &datagrams[0]).unwrap();
        receiver.receive(0, &datagrams[3]).unwrap();
        assert_eq!(arrived(receiver.take()), whole(0));
        assert_eq!(receiver.held(), 100 + OVERHEAD, "what was read early is forgotten with it");
        assert_eq!(arrived(receiver.take()), whole(3));
        assert_eq!((receiver.take(), receiver.take_any(), receiver.held()), (None, None, 0));
    }

    #[test]
    fn a_message_that_fits_into_a_datagram_is_not_spread_over_two() {
        let mut sender = Sender::new(&[Class::default()], 0, 1 << 20);
        let mut take = |lengths: &[usize]| {
            for len in lengths {
                assert!(sender.send(0, Message { bytes: vec![1; *len], deadline: None }).is_ok());
            }
            let mut datagrams = Vec::new();
            loop {
                let mut datagram = Vec::new();
                if !sender.datagram(0, 1200, &mut datagram) {
                    return datagrams;
                }
                datagrams.push(datagram.len());
            }
        };
        let alone = take(&[900]);
        assert_eq!(take(&[900, 900, 900]), [alone[0]; 3]);
        // Short ones go together, and what does not fit goes on where it is.
        assert_eq!(take(&[100, 100, 100]).len(), 1);
        assert_eq!(take(&[900, 3000]).len(), 4);
    }
}
