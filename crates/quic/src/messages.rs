//! Both directions of loss-tolerant messages over one connection.
//!
//! The dialling end sends the classes, in front of its control stream: a byte for the version, one for their count, and for each tolerance,
//! 4, window, 8, granularity, 4, must, 4, with their little end first. Both directions have the same.

use madrigal_adapters::vrp::{self, Arrived, Class, HEAD, MOST_CLASSES, Message, Receiver, Refused, Sender, Settled};

use crate::Carrier;

/// The version of all this.
const VERSION: u8 = 2;
/// Bytes of a class in the greeting.
const CLASS: usize = 20;
/// No more is added to the control stream while so many bytes of it wait.
const AHEAD: usize = 64 << 10;

/// Why messages cannot go on.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Broken {
    /// What the peer sent.
    #[error(transparent)]
    Vrp(#[from] vrp::Broken),
    /// It has another version.
    #[error("the peer speaks version {0} of loss-tolerant messages, and this end version {VERSION}")]
    Version(u8),
    /// It has too many classes, or none.
    #[error("the peer has {0} classes of messages: there may be 1 to {MOST_CLASSES}")]
    Classes(u8),
}

/// One end of both directions.
#[derive(Debug)]
pub struct Messages {
    ends: Option<(Sender, Receiver)>,
    classes: Vec<Class>,
    window: u64,
    backlog: usize,
    /// Of the control stream: what came and is no whole frame yet, and what the connection has not taken.
    unread: Vec<u8>,
    unsent: Vec<u8>,
    /// A datagram that the connection had no room for, and when it takes it.
    held: Option<Vec<u8>>,
    ready_at: u64,
}

impl Messages {
    /// The dialling end. `window`: bytes that the peer may send and were not read; `backlog`: bytes of messages that are kept until they
    /// are settled.
    pub fn dial(classes: &[Class], window: u64, backlog: usize) -> Self {
        let classes = &classes[..classes.len().min(MOST_CLASSES)];
        let mut unsent = vec![VERSION, classes.len() as u8];
        for class in classes {
            unsent.extend(class.tolerance.to_le_bytes());
            unsent.extend(class.window.to_le_bytes());
            unsent.extend([class.granularity, class.must].iter().flat_map(|word| word.to_le_bytes()));
        }
        let ends = Some((Sender::new(classes, window, backlog), Receiver::new(classes, window)));
        let classes = classes.to_vec();
        Self { ends, classes, window, backlog, unread: Vec::new(), unsent, held: None, ready_at: u64::MAX }
    }

    /// The other end, which learns what classes there are.
    pub fn accept(window: u64, backlog: usize) -> Self {
        let (ends, classes, unread, unsent) = (None, Vec::new(), Vec::new(), Vec::new());
        Self { ends, classes, window, backlog, unread, unsent, held: None, ready_at: u64::MAX }
    }

    /// Whether both ends know the classes: what is sent before is refused.
    pub fn is_ready(&self) -> bool {
        self.ends.is_some()
    }

    /// The classes, once both ends know them.
    pub fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// Takes a message; its number in its class.
    pub fn send(&mut self, class: u8, message: Message) -> Result<u32, Refused> {
        self.ends.as_mut().ok_or(Refused::Class(class))?.0.send(class, message)
    }

    /// How many bytes of messages would be taken now.
    pub fn room(&self) -> usize {
        self.ends.as_ref().map_or(0, |(sender, _)| sender.room())
    }

    /// A message that arrived.
    pub fn take(&mut self) -> Option<Arrived> {
        self.ends.as_mut()?.1.take()
    }

    /// The next message of that class.
    pub fn take_of(&mut self, class: u8) -> Option<Arrived> {
        self.ends.as_mut()?.1.take_of(class)
    }

    /// Whether [`Messages::take_of`] gives a message of that class.
    pub fn has(&self, class: u8) -> bool {
        self.ends.as_ref().is_some_and(|(_, receiver)| receiver.has(class))
    }

    /// Whether [`Messages::pump`] has something to do, for what was read makes room that the other end does not know of.
    pub fn owes(&self) -> bool {
        self.ends.as_ref().is_some_and(|(_, receiver)| receiver.owes())
    }

    /// A message that arrived, also where an earlier one of its class did not yet.
    pub fn take_any(&mut self) -> Option<Arrived> {
        self.ends.as_mut()?.1.take_any()
    }

    /// What became of a message that was sent.
    pub fn settled(&mut self) -> Option<Settled> {
        self.ends.as_mut()?.0.settled()
    }

    /// When [`Messages::pump`] is due, if nothing happens before; never: `u64::MAX`.
    pub fn deadline(&self) -> u64 {
        let own = self.ends.as_ref().map(|(sender, receiver)| sender.deadline().min(receiver.deadline()));
        own.map_or(u64::MAX, |own| own.min(self.ready_at))
    }

    /// Passes on what came by the connection, and gives it what it has room for. To be called whenever something came, something was sent,
    /// [`Messages::send`] took something, and at the deadline.
    pub fn pump(&mut self, now: u64, carrier: &mut impl Carrier) -> Result<(), Broken> {
        carrier.set_time(now);
        carrier.read(&mut self.unread);
        self.greet()?;
        let Some((sender, receiver)) = &mut self.ends else { return Ok(()) };
        let round_trip = carrier.round_trip();
        sender.set_round_trip(round_trip);
        receiver.set_round_trip(round_trip);
        while let Some(datagram) = carrier.receive() {
            receiver.receive(now, &datagram)?;
        }
        let taken = vrp::receive_control(now, &self.unread, sender, receiver)?;
        self.unread.drain(..taken);
        if sender.deadline() <= now {
            sender.handle_time(now);
        }
        if receiver.deadline() <= now {
            receiver.handle_time(now)?;
        }
        while let Some(longest) = carrier.longest().filter(|longest| *longest > HEAD) {
            let mut next = || {
                let mut datagram = Vec::with_capacity(longest);
                sender.datagram(now, longest, &mut datagram).then_some(datagram)
            };
            let Some(datagram) = self.held.take().or_else(&mut next) else { break };
            if let Err(back) = carrier.send(datagram) {
                self.held = Some(back);
                break;
            }
        }
        self.ready_at = carrier.ready_at();
        if self.unsent.len() < AHEAD {
            // The receiver's first: the peer waits for what it requests. All of each: no frame is in the middle of another one.
            receiver.control(usize::MAX, &mut self.unsent);
            sender.control(usize::MAX, &mut self.unsent);
        }
        let taken = carrier.write(&self.unsent);
        self.unsent.drain(..taken);
        Ok(())
    }

    /// Reads what classes there are, if that is still to be learnt.
    fn greet(&mut self) -> Result<(), Broken> {
        let (None, Some([version, count])) = (&self.ends, self.unread.first_chunk()) else { return Ok(()) };
        if *version != VERSION {
            return Err(Broken::Version(*version));
        }
        if !(1..=MOST_CLASSES).contains(&usize::from(*count)) {
            return Err(Broken::Classes(*count));
        }
        let end = 2 + CLASS * usize::from(*count);
        let Some(bytes) = self.unread.get(2..end) else { return Ok(()) };
        let classes: Vec<Class> = bytes.chunks_exact(CLASS).map(class).collect();
        self.unread.drain(..end);
        self.ends = Some((Sender::new(&classes, self.window, self.backlog), Receiver::new(&classes, self.window)));
        self.classes = classes;
        Ok(())
    }
}

fn class(bytes: &[u8]) -> Class {
    let four = |at: usize| bytes[at..at + 4].iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
    let window = u64::from(four(8)) << 32 | u64::from(four(4));
    Class { tolerance: four(0), window, granularity: four(12), must: four(16) }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// A connection that loses nothing, as far as one end sees it.
    #[derive(Default)]
    struct Line {
        sent: VecDeque<Vec<u8>>,
        came: VecDeque<Vec<u8>>,
        out: Vec<u8>,
        unread: Vec<u8>,
        /// Datagrams that it takes, and bytes.
        room: usize,
        takes: usize,
    }

    impl Carrier for Line {
        fn longest(&mut self) -> Option<usize> {
            Some(1200)
        }

        fn set_time(&mut self, _now: u64) {}

        fn ready_at(&self) -> u64 {
            u64::MAX
        }

        fn send(&mut self, datagram: Vec<u8>) -> Result<(), Vec<u8>> {
            if self.room == 0 {
                return Err(datagram);
            }
            self.room -= 1;
            self.sent.push_back(datagram);
            Ok(())
        }

        fn receive(&mut self) -> Option<Vec<u8>> {
            self.came.pop_front()
        }

        fn write(&mut self, bytes: &[u8]) -> usize {
            let count = bytes.len().min(self.takes);
            self.out.extend(&bytes[..count]);
            count
        }

        fn read(&mut self, out: &mut Vec<u8>) {
            out.append(&mut self.unread);
        }

        fn round_trip(&self) -> u64 {
            20_000_000
        }
    }

    #[test]
    fn classes_are_the_dialling_ends_and_nothing_is_lost_for_want_of_room() {
        let classes = [Class { tolerance: 70, window: 1 << 33, granularity: 188, must: 12 }; 3];
        let (mut one, mut other) = (Messages::dial(&classes, 0, 1 << 20), Messages::accept(0, 1 << 20));
        let (mut here, mut there) = (Line { takes: 7, ..Line::default() }, Line { takes: 7, ..Line::default() });
        assert!(one.is_ready() && !other.is_ready());
        assert_eq!(other.send(0, Message { bytes: vec![1], deadline: None }), Err(Refused::Class(0)));
        assert_eq!(one.send(2, Message { bytes: vec![7; 5000], deadline: None }), Ok(0));
        let mut got = None;
        for step in 0..200 {
            here.room = usize::from(step % 2 == 0);
            let now = step * 1_000_000;
            one.pump(now, &mut here).unwrap();
            there.came.append(&mut here.sent);
            there.unread.append(&mut here.out);
            other.pump(now, &mut there).unwrap();
            here.unread.append(&mut there.out);
            got = other.take().or(got);
        }
        let got = got.expect("it arrived");
        assert_eq!((got.class, got.bytes, got.lost), (2, vec![7; 5000], Some(vec![])));
        let settled = one.settled().expect("it is settled");
        assert_eq!((settled.class, settled.message, settled.lost), (2, 0, Some(vec![])));
        let (sender, _) = other.ends.as_ref().unwrap();
        assert_eq!(format!("{sender:?}").matches("must: 12").count(), 3);
    }

    /// Both halves of an end have much to send, and the connection takes little: no frame gets into the middle of another one.
    #[test]
    fn frames_stay_whole_where_many_wait() {
        let (mut one, mut other) = (Messages::dial(&[Class::default()], 0, 1 << 20), Messages::accept(0, 1 << 20));
        let (mut here, mut there) = (Line { takes: 1 << 20, ..Line::default() }, Line::default());
        there.room = usize::MAX;
        one.pump(0, &mut here).unwrap();
        there.unread.append(&mut here.out);
        other.pump(0, &mut there).unwrap();
        here.takes = 0;
        let mut answers = |one: &mut Messages, here: &mut Line, now: u64| {
            for _ in 0..3000 {
                assert!(other.send(0, Message { bytes: vec![1], deadline: None }).is_ok());
            }
            other.pump(now, &mut there).unwrap();
            here.came.append(&mut there.sent);
            one.pump(now, here).unwrap();
        };
        answers(&mut one, &mut here, 1);
        // They are too late before they can be sent.
        for _ in 0..2000 {
            assert!(one.send(0, Message { bytes: vec![1], deadline: Some(2) }).is_ok());
        }
        one.pump(3, &mut here).unwrap();
        here.takes = 1000;
        answers(&mut one, &mut here, 4);
        for now in 5..400 {
            one.pump(now, &mut here).unwrap();
            there.unread.append(&mut here.out);
            other.pump(now, &mut there).unwrap();
        }
        assert!(one.unsent.is_empty());
        let all = std::iter::from_fn(|| other.settled()).filter(|settled| settled.lost == Some(Vec::new())).count();
        let failed = std::iter::from_fn(|| other.take()).filter(|message| message.lost.is_none()).count();
        assert_eq!((all, failed), (6000, 2000));
    }

    #[test]
    fn a_greeting_that_cannot_be_is_refused() {
        let refused = |bytes: &[u8]| {
            let mut line = Line { unread: bytes.to_vec(), ..Line::default() };
            Messages::accept(0, 1 << 20).pump(0, &mut line)
        };
        assert_eq!(refused(&[VERSION + 1, 1]), Err(Broken::Version(VERSION + 1)));
        assert_eq!(refused(&[VERSION, 0]), Err(Broken::Classes(0)));
        assert_eq!(refused(&[VERSION, 17]), Err(Broken::Classes(17)));
        assert_eq!(refused(&[VERSION, 1]), Ok(()), "more may come");
        assert_eq!(refused(&[VERSION]), Ok(()));
    }
}
