//! Whether to keep polling for an answer to what was just sent, before the worker returns to its caller. A caller may do much between two
//! polls: MPICH gives the processor away after each, which takes longer than the answer.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use madrigal_sys::time;

/// The longest time of such polling: how long any caller may spin without a reason.
const ANSWER_NS: u64 = 2_000;
/// Polls between two reads of the clock.
const BURST: u32 = 16;
/// An answer that came is worth one more try, up to so many; ...
const WORTH: u32 = 16;
/// ... one that did not costs so many; ...
const VAIN: u32 = 4;
/// ... and where none are left, it is tried once in so many.
const TRIED: u32 = 256;

/// State about answers. As in `Idle`, updates need no lock.
#[derive(Default)]
pub(super) struct Answers {
    /// Something was sent; since then there was no poll and nothing came.
    expected: AtomicBool,
    worth: AtomicU32,
    untried: AtomicU32,
}

impl Answers {
    /// Something is sent.
    #[inline]
    pub(super) fn expect(&self) {
        self.expected.store(true, Ordering::Relaxed);
    }

    /// Something came.
    #[inline]
    pub(super) fn forget(&self) {
        self.expected.store(false, Ordering::Relaxed);
    }

    /// Whether this is the first poll after something was sent.
    #[inline]
    pub(super) fn are_expected(&self) -> bool {
        let expected = self.expected.load(Ordering::Relaxed);
        if expected {
            self.forget();
        }
        expected
    }

    /// Polls for an answer, if they were worth it lately or it is time to try them again.
    #[inline]
    pub(super) fn polls(&self) -> Option<Polls<'_>> {
        let may = self.worth.load(Ordering::Relaxed) > 0 || self.is_time_to_ask();
        may.then_some(Polls { answers: self, polls: 0, until: 0 })
    }

    /// Once in so many times.
    #[inline]
    pub(super) fn is_time_to_ask(&self) -> bool {
        let untried = self.untried.load(Ordering::Relaxed).wrapping_add(1);
        self.untried.store(untried, Ordering::Relaxed);
        untried.is_multiple_of(TRIED)
    }
}

/// The polls of a caller that waits for an answer that may be near.
pub struct Polls<'a> {
    answers: &'a Answers,
    polls: u32,
    /// Of the monotonic clock; 0: not known yet.
    until: u64,
}

impl Polls<'_> {
    /// Whether to poll once more.
    #[inline]
    pub fn more(&mut self) -> bool {
        self.polls = self.polls.wrapping_add(1);
        !self.polls.is_multiple_of(BURST) || self.has_time()
    }

    #[cold]
    fn has_time(&mut self) -> bool {
        let now = time::now_ns();
        if self.until == 0 {
            self.until = now + ANSWER_NS;
        }
        now < self.until
    }

    /// Something came, or nothing did.
    #[inline]
    pub fn end(self, came: bool) {
        let worth = self.answers.worth.load(Ordering::Relaxed);
        let worth = if came { (worth + 1).min(WORTH) } else { worth.saturating_sub(VAIN) };
        self.answers.worth.store(worth, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn are_looked_for_once_after_something_was_sent() {
        let answers = Answers::default();
        assert!(!answers.are_expected());
        answers.expect();
        assert!(answers.are_expected() && !answers.are_expected());
        answers.expect();
        answers.forget();
        assert!(!answers.are_expected(), "something came meanwhile");
    }

    #[test]
    fn are_looked_for_while_they_come_and_else_seldom() {
        let answers = Answers::default();
        let tries = |count: u32, came: bool| {
            let polls = (0..count).filter_map(|_| answers.polls().map(|polls| polls.end(came)));
            polls.count() as u32
        };
        assert_eq!(tries(10 * TRIED, false), 10, "nothing is known");
        assert!(tries(2 * TRIED, true) > TRIED);
        assert_eq!(tries(100, true), 100);
        assert!(tries(TRIED / 2, false) <= WORTH / VAIN, "it learns quickly");
    }

    #[test]
    fn end_after_a_while() {
        let answers = Answers { worth: AtomicU32::new(1), ..Answers::default() };
        let mut polls = answers.polls().unwrap();
        let begun = time::now_ns();
        while polls.more() {}
        assert!(polls.polls >= 2 * BURST && time::now_ns() - begun >= ANSWER_NS);
    }
}
