//! The adapters of a stack as one: what an upper one makes of the link's bytes is the link of the one below it.

use crate::contract::{Adapter, AddError, Broken, Lane, ONLY};
use crate::stack::{Element, Stack};
use crate::{ADAPTERS, Entry, Parts};

/// Bytes that go from one adapter to the next at once.
const MOVED: usize = 64 << 10;

/// The adapters of a stack, over the stream [`ONLY`]; nothing where it has none, where `parts` lacks what one of them needs, or where each
/// stream of a stripe would be enciphered for itself: these have no adapter in common. `clock`: nanoseconds, by which each of several is told how
/// long it took; one alone is told by its driver, as ever.
pub fn chain(stack: &Stack, clock: fn() -> u64, mut parts: Parts) -> Option<Box<dyn Adapter>> {
    if stack.has("tls") && stack.has("stripe") && !stack.is_enciphered_once() {
        return None;
    }
    let mut below: Option<Box<dyn Adapter>> = None;
    for entry in stack.elements().iter().rev().filter_map(|element| entry(*element)) {
        let upper = (entry.make)(&mut parts)?;
        below = Some(match below {
            Some(lower) => {
                Box::new(Over { upper, lower, clock, bytes: Vec::new(), now: 0, passed: false, broken: None })
            }
            None => upper,
        });
    }
    below
}

/// The adapter of an element that is one of the table.
fn entry(element: Element) -> Option<&'static Entry> {
    ADAPTERS.iter().find(|entry| entry.name == element.name())
}

/// Makes a call of an adapter, and tells it how long that took.
fn timed<T>(clock: fn() -> u64, adapter: &mut dyn Adapter, call: impl FnOnce(&mut dyn Adapter) -> T) -> T {
    let begun = clock();
    let result = call(adapter);
    adapter.took(clock().saturating_sub(begun));
    result
}

/// An adapter whose one stream is the link of another.
struct Over {
    upper: Box<dyn Adapter>,
    lower: Box<dyn Adapter>,
    clock: fn() -> u64,
    /// On their way from the upper to the lower one; empty between two calls.
    bytes: Vec<u8>,
    now: u64,
    /// The lower one knows that nothing more will be written.
    passed: bool,
    /// What was found while bytes were consumed.
    broken: Option<Broken>,
}

impl Over {
    /// Gives the lower one what it has room for; and the end, behind everything.
    fn push(&mut self) {
        loop {
            let room = self.lower.room().min(MOVED);
            if room > 0 {
                let (now, bytes) = (self.now, &mut self.bytes);
                timed(self.clock, &mut *self.upper, |upper| upper.transmit(now, ONLY, room, bytes));
            }
            if self.bytes.is_empty() {
                break;
            }
            // It has room for all of them.
            self.lower.write(&self.bytes);
            self.bytes.clear();
        }
        if self.passed && self.upper.is_flushed() {
            self.lower.finish();
        }
    }

    /// Gives the upper one what can be read of the lower one.
    fn pull(&mut self) -> Result<(), Broken> {
        loop {
            let front = self.lower.front();
            if front.is_empty() {
                return Ok(());
            }
            let taken = timed(self.clock, &mut *self.upper, |upper| upper.receive(self.now, ONLY, front))?;
            if taken == 0 {
                return Ok(());
            }
            self.lower.consume(taken);
        }
    }
}

impl Adapter for Over {
    fn add(&mut self, now: u64, lane: Lane) -> Result<(), AddError> {
        self.lower.add(now, lane)
    }

    fn remove(&mut self, lane: Lane) {
        self.lower.remove(lane);
    }

    fn is_ready(&self) -> bool {
        self.upper.is_ready() && self.lower.is_ready()
    }

    fn room(&self) -> usize {
        self.upper.room()
    }

    fn write(&mut self, bytes: &[u8]) -> usize {
        self.upper.write(bytes)
    }

    fn finish(&mut self) {
        self.upper.finish();
        self.passed = true;
    }

    fn transmit(&mut self, now: u64, lane: Lane, room: usize, out: &mut Vec<u8>) {
        self.now = now;
        self.push();
        timed(self.clock, &mut *self.lower, |lower| lower.transmit(now, lane, room, out));
    }

    fn receive(&mut self, now: u64, lane: Lane, bytes: &[u8]) -> Result<usize, Broken> {
        self.now = now;
        if let Some(broken) = self.broken.take() {
            return Err(broken);
        }
        let mut taken = 0;
        loop {
            let rest = bytes.get(taken..).unwrap_or_default();
            let count = timed(self.clock, &mut *self.lower, |lower| lower.receive(now, lane, rest))?;
            self.pull()?;
            taken += count;
            if count == 0 || taken == bytes.len() {
                return Ok(taken);
            }
        }
    }

    fn front(&self) -> &[u8] {
        self.upper.front()
    }

    fn consume(&mut self, count: usize) {
        self.upper.consume(count);
        self.broken = self.pull().err().or(self.broken.take());
    }

    fn is_at_end(&self) -> bool {
        self.upper.is_at_end()
    }

    fn is_flushed(&self) -> bool {
        self.upper.is_flushed() && self.lower.is_flushed()
    }

    fn set_rate(&mut self, rate: u64) {
        self.upper.set_rate(rate);
        self.lower.set_rate(rate);
    }

    fn deadline(&self) -> u64 {
        self.upper.deadline().min(self.lower.deadline())
    }

    fn handle_time(&mut self, now: u64) {
        self.now = now;
        self.upper.handle_time(now);
        self.lower.handle_time(now);
    }

    fn held(&self) -> usize {
        self.upper.held() + self.lower.held() + self.bytes.capacity()
    }
}
