//! The messages of a class that are not read, at their receiver's: which of their bytes came, and which are given up.

use std::collections::{BTreeMap, BTreeSet};

use super::budget::Budget;
use super::wire::About;
use super::{Broken, Class, LONGEST, Lost, OVERHEAD};
use crate::ranges::Ranges;

/// Messages of a class may be so many behind the oldest that is not read.
const MOST_AHEAD: u32 = 1 << 20;
/// So many bytes are given up, or requested, at a time.
const CHUNK: u32 = 4096;

/// What becomes of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Open,
    Done,
    Failed,
}

/// A message that is not read.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) about: About,
    pub(super) bytes: Vec<u8>,
    pub(super) state: State,
    pub(super) lost: Lost,
    came: Ranges,
    /// It was read before its turn.
    read: bool,
}

/// What is read of one: its bytes, and what of them is lost.
pub(super) type Taken = (About, State, Vec<u8>, Lost);

impl Incoming {
    fn end(&self) -> u64 {
        self.about.at + u64::from(self.about.total)
    }

    /// What it counts.
    pub(super) fn charge(&self) -> u64 {
        OVERHEAD + u64::from(self.about.total)
    }

    /// What did not come of it.
    fn missing(&self) -> Lost {
        let (mut at, mut lost) = (0, Lost::new());
        while let Some((from, to)) = self.came.missing(at, u64::from(self.about.total)) {
            lost.push((from as u32, to as u32));
            at = to;
        }
        lost
    }
}

/// What was decided of bytes that are lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    GivenUp,
    /// They must come, or too much would be lost; or it is unknown of which messages they are.
    Wanted,
}

/// A class.
#[derive(Debug)]
pub(super) struct Flow {
    class: Class,
    budget: Budget,
    /// The next message that is read, and where it begins.
    pub(super) next: u32,
    read_to: u64,
    pub(super) messages: BTreeMap<u32, Incoming>,
    /// Those that are settled, and not read.
    unread: BTreeSet<u32>,
    /// Which message begins where.
    begins: BTreeMap<u64, u32>,
    /// What came, or will not; and the end behind its last byte.
    known: Ranges,
    top: u64,
}

impl Flow {
    pub(super) fn new(class: &Class) -> Self {
        let class = class.bounded();
        let (messages, unread, begins, known) = Default::default();
        Self { class, budget: Budget::new(class), next: 0, read_to: 0, messages, unread, begins, known, top: 0 }
    }

    /// The next message that is read, and where it begins.
    pub(super) fn place(&self) -> (u32, u64) {
        (self.next, self.read_to)
    }

    /// How many holes there are.
    pub(super) fn holes(&self) -> usize {
        self.known.holes()
    }

    /// Whether messages are far from being read.
    pub(super) fn is_beyond(&self, about: &About, window: u64) -> bool {
        about.at + u64::from(about.total) > self.read_to + window
    }

    /// Something is known of a byte, and of whatever lies before it: what of that is missing is returned.
    pub(super) fn reach(&mut self, from: u64, to: u64) -> Option<(u64, u64)> {
        let gap = (from > self.top).then_some((self.top, from));
        self.top = self.top.max(to);
        gap
    }

    /// Whether the oldest message can be read.
    pub(super) fn has_next(&self) -> bool {
        self.unread.first() == Some(&self.next)
    }

    /// A message is read: the oldest one. (What was read early behind it is forgotten with it.)
    pub(super) fn take(&mut self) -> Option<Taken> {
        if self.has_next() { self.take_any() } else { None }
    }

    /// A message is read: any that is settled.
    pub(super) fn take_any(&mut self) -> Option<Taken> {
        let message = self.messages.get_mut(&self.unread.pop_first()?)?;
        message.read = true;
        let (bytes, lost) = (std::mem::take(&mut message.bytes), std::mem::take(&mut message.lost));
        Some((message.about, message.state, bytes, lost))
    }

    /// The oldest message is forgotten, if it was read.
    pub(super) fn forget_oldest(&mut self) -> Option<Incoming> {
        self.messages.get(&self.next).filter(|message| message.read)?;
        let message = self.messages.remove(&self.next)?;
        self.begins.remove(&message.about.at);
        self.next += 1;
        self.read_to = message.end();
        self.budget.forget_before(self.read_to);
        Some(message)
    }

    // --- what comes -----------------------------------------------------------------------------------------------------------

    /// Whether a message is new here, and may be.
    pub(super) fn is_new(&self, about: &About) -> Result<bool, Broken> {
        let wrong = |why| Err(Broken::Message { class: about.class, message: about.message, why });
        if about.message < self.next {
            return Ok(false);
        }
        if about.message - self.next > MOST_AHEAD {
            return wrong("it is too far ahead");
        }
        if let Some(message) = self.messages.get(&about.message) {
            return if message.about == *about { Ok(false) } else { wrong("it has two places, or lengths") };
        }
        let before = self.messages.range(..about.message).next_back().map(|(id, message)| (*id, message.end()));
        let (id, end) = before.map_or((self.next, self.read_to), |(id, end)| (id + 1, end));
        let behind = self.messages.range(about.message..).next().map(|(id, message)| (*id, message.about.at));
        let own_end = about.at + u64::from(about.total);
        let fits = |gap: u32, from: u64, to: u64| if gap == 0 { from == to } else { from + u64::from(gap) <= to };
        let is_behind = fits(about.message - id, end, about.at);
        let is_before = behind.is_none_or(|(next, begin)| fits(next - about.message - 1, own_end, begin));
        if is_behind && is_before { Ok(true) } else { wrong("it lies in another message") }
    }

    /// There is such a message.
    pub(super) fn insert(&mut self, about: About) {
        let (bytes, state, lost, came) = (Vec::new(), State::Open, Lost::new(), Ranges::default());
        self.begins.insert(about.at, about.message);
        self.messages.insert(about.message, Incoming { about, bytes, state, lost, came, read: false });
    }

    /// Bytes came; by how many the holes in the message grew.
    pub(super) fn put(&mut self, id: u32, from: u32, bytes: &[u8]) -> isize {
        let Some(message) = self.messages.get_mut(&id).filter(|message| message.state == State::Open) else { return 0 };
        if message.bytes.is_empty() {
            message.bytes = vec![0; message.about.total as usize];
        }
        let to = from as usize + bytes.len();
        message.bytes[from as usize..to].copy_from_slice(bytes);
        let before = message.came.holes();
        message.came.insert(u64::from(from), to as u64);
        self.known.insert(message.about.at + u64::from(from), message.about.at + to as u64);
        message.came.holes() as isize - before as isize
    }

    /// Everything of a message came, or will not. With how many holes it was counted.
    pub(super) fn finish(&mut self, id: u32) -> Option<(&Lost, usize)> {
        let message = self.messages.get_mut(&id).filter(|message| message.state == State::Open)?;
        let (at, end) = (message.about.at, message.end());
        if self.known.missing(at, end).is_some() {
            return None;
        }
        message.lost = message.missing();
        message.bytes.resize(message.about.total as usize, 0);
        message.state = State::Done;
        self.unread.insert(id);
        // What came late is not lost.
        self.budget.settle(at, end, &message.lost);
        Some((&message.lost, std::mem::take(&mut message.came).holes()))
    }

    /// Nothing of a message is read. With how many holes it was counted.
    pub(super) fn fail(&mut self, id: u32) -> Option<usize> {
        let message = self.messages.get_mut(&id).filter(|message| message.state == State::Open)?;
        message.state = State::Failed;
        self.unread.insert(id);
        message.bytes = Vec::new();
        self.known.insert(message.about.at, message.end());
        self.budget.settle(message.about.at, message.end(), &Lost::new());
        Some(std::mem::take(&mut message.came).holes())
    }

    // --- what does not --------------------------------------------------------------------------------------------------------

    /// The first bytes of these that are missing, of one message, or of none that is known; few enough to be decided on together.
    pub(super) fn missing(&self, from: u64, to: u64) -> Option<(u64, u64)> {
        let (from, to) = self.known.missing(from, to)?;
        let Some(message) = self.message_at(from) else {
            let next = self.begins.range(from..).next().map_or(to, |(begin, _)| *begin);
            return Some((from, to.min(next)));
        };
        let must = message.about.at + u64::from(self.class.must.min(message.about.total));
        let chunk = u64::from((CHUNK / self.class.granularity).max(1) * self.class.granularity);
        let end = if from < must { must } else { message.end().min(from + chunk) };
        Some((from, to.min(end)))
    }

    /// Bytes that [`Flow::missing`] gave are lost: may they be?
    pub(super) fn lose(&mut self, from: u64, to: u64) -> Fate {
        let Some(message) = self.message_at(from) else { return Fate::Wanted };
        let is_must = from < message.about.at + u64::from(self.class.must);
        if is_must || !self.budget.give_up(from, to, self.top) {
            return Fate::Wanted;
        }
        self.known.insert(from, to);
        Fate::GivenUp
    }

    /// The message that these bytes are all of, if nothing of it came and the ones before it and behind it are known.
    pub(super) fn between(&self, class: u8, from: u64, to: u64) -> Option<About> {
        let before = self.begins.range(..from).next_back().map(|(_, id)| *id + 1);
        let message = before.unwrap_or(self.next);
        let (begin, behind) = self.begins.range(from..).next()?;
        let begins_here =
            before.and_then(|id| self.messages.get(&(id - 1))).map_or(self.read_to, Incoming::end) == from;
        let total = u32::try_from(to - from).ok().filter(|total| *total as usize <= LONGEST)?;
        let is_alone = *behind == message + 1 && *begin == to && begins_here && self.class.must == 0;
        is_alone.then_some(About { class, message, total, at: from })
    }

    /// Whose bytes they are.
    pub(super) fn id_at(&self, position: u64) -> Option<u32> {
        self.message_at(position).map(|message| message.about.message)
    }

    fn message_at(&self, position: u64) -> Option<&Incoming> {
        let (_, id) = self.begins.range(..=position).next_back()?;
        self.messages.get(id).filter(|message| position < message.end())
    }
}
