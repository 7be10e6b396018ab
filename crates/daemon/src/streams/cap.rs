//! Caps: limits on what all streams under a rule carry together, each way. Each way has an allowance, which grows with time up to a burst.
//! Pipes without an allowance wait in a queue.

use std::collections::{BTreeMap, VecDeque};

use crate::grid::Grid;
use crate::poll::Token;
use crate::units::SECOND;

/// The allowance that is worth a read.
const LEAST: u64 = 4 << 10;
/// What may go at once after a pause: a fiftieth of a second's bytes, and at least this.
const SHORTEST_BURST: u64 = 16 << 10;

/// Which way bytes of a call go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// To the other host.
    Out,
    /// From there.
    In,
}

/// The allowances of all rules that cap something, by the rules' names.
#[derive(Default)]
pub(crate) struct Caps(BTreeMap<String, [Allowance; 2]>);

impl Caps {
    /// How many bytes a pipe may read now. With 0 it waits, and is among those that [`Caps::due`] names later.
    pub(crate) fn allowed(&mut self, rule: &str, way: Way, pipe: Token, (grid, now): (&Grid, u64)) -> usize {
        let Some(rate) = grid.cap(rule) else { return usize::MAX };
        let ways = self.0.entry(rule.to_owned()).or_insert_with(|| [Allowance::new(now), Allowance::new(now)]);
        ways[way as usize].allowed(rate, pipe, now)
    }

    /// A pipe has read so many bytes.
    pub(crate) fn spend(&mut self, rule: &str, way: Way, count: usize) {
        if let Some(ways) = self.0.get_mut(rule) {
            let allowance = &mut ways[way as usize];
            allowance.bytes = allowance.bytes.saturating_sub(count as u64);
        }
    }

    /// A pipe has ended.
    pub(crate) fn forget(&mut self, rule: &str, pipe: Token) {
        self.0.get_mut(rule).into_iter().flatten().for_each(|way| way.waiting.retain(|waits| *waits != pipe));
    }

    /// When the next pipe may go on.
    pub(crate) fn deadline(&self) -> u64 {
        self.0.values().flatten().map(|way| way.due).min().unwrap_or(u64::MAX)
    }

    /// The pipes that may go on now: the first of each queue. A pipe whose other end has no room does not hold up others.
    pub(crate) fn due(&mut self, now: u64) -> Vec<Token> {
        let due = self.0.values_mut().flatten().filter(|way| way.due <= now);
        due.filter_map(|way| way.take_next(now)).collect()
    }

    /// The description was read again. Returns the pipes that wait: they request again. Allowances without a rule are removed.
    pub(crate) fn follow(&mut self, grid: &Grid) -> Vec<Token> {
        let waiting = self.0.values_mut().flatten().flat_map(|way| {
            (way.due, way.current) = (u64::MAX, None);
            way.waiting.drain(..)
        });
        let waiting = waiting.collect();
        self.0.retain(|rule, _| grid.cap(rule).is_some());
        waiting
    }
}

/// The allowance of one way.
struct Allowance {
    /// Bytes a second.
    rate: u64,
    bytes: u64,
    /// The time up to which it has grown.
    grown: u64,
    /// The pipes that wait, the next one first.
    waiting: VecDeque<Token>,
    /// The pipe that goes next, and has not requested yet.
    current: Option<Token>,
    /// When the first of them may go on.
    due: u64,
}

impl Allowance {
    fn new(now: u64) -> Self {
        Self { rate: 1, bytes: SHORTEST_BURST, grown: now, waiting: VecDeque::new(), current: None, due: u64::MAX }
    }

    fn allowed(&mut self, rate: u64, pipe: Token, now: u64) -> usize {
        self.grow(rate, now);
        let is_current = self.current == Some(pipe);
        if is_current {
            self.current = None;
        }
        if (is_current || self.waiting.is_empty()) && self.bytes >= LEAST {
            if !self.waiting.is_empty() {
                // The next pipe goes after this one, with what this one leaves.
                self.due = now;
            }
            return usize::try_from(self.bytes).unwrap_or(usize::MAX);
        }
        match self.waiting.contains(&pipe) {
            true => {}
            false if is_current => self.waiting.push_front(pipe),
            false => self.waiting.push_back(pipe),
        }
        self.due = self.due.min(self.enough_at(now));
        0
    }

    /// Takes the next pipe out of the queue. The one behind it is due when the allowance for another read has grown.
    fn take_next(&mut self, now: u64) -> Option<Token> {
        self.current = self.waiting.pop_front();
        let again = now + LEAST * SECOND / self.rate + 1;
        self.due = if self.waiting.is_empty() { u64::MAX } else { again };
        self.current
    }

    /// When there are bytes enough for a read.
    fn enough_at(&self, now: u64) -> u64 {
        now + LEAST.saturating_sub(self.bytes) * SECOND / self.rate + 1
    }

    fn grow(&mut self, rate: u64, now: u64) {
        self.rate = rate;
        let most = SHORTEST_BURST.max(rate / 50);
        let grown = u128::from(now.saturating_sub(self.grown)) * u128::from(rate) / u128::from(SECOND);
        let grown = u64::try_from(grown).unwrap_or(u64::MAX);
        // Parts of a byte are not lost.
        if grown > 0 {
            self.bytes = self.bytes.saturating_add(grown).min(most);
            self.grown = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::MILLISECOND;

    /// Pipes that always have more to send, and read up to 32 KiB at a time; what each has read within 10 s.
    fn run(rate: u64, pipes: usize) -> Vec<u64> {
        let text = format!("[site.a]\nhosts = {{ a1 = [], b1 = [] }}\n[rule.night]\ncap = '{}k'\n", rate * 8 / 1000);
        let grid = Grid::read("grid.toml", &text).unwrap();
        let (mut caps, mut read, end) = (Caps::default(), vec![0; pipes], 10 * SECOND);
        let mut ready: VecDeque<usize> = (0..pipes).collect();
        let (mut now, mut passes) = (0, 0);
        while now < end {
            while let Some(pipe) = ready.pop_front() {
                let most = caps.allowed("night", Way::Out, pipe as Token, (&grid, now)).min(32 << 10);
                caps.spend("night", Way::Out, most);
                read[pipe] += most as u64;
                if most > 0 {
                    ready.push_back(pipe);
                }
            }
            let next = caps.deadline();
            passes = if next > now { 0 } else { passes + 1 };
            assert!(next >= now && passes <= pipes, "it turns on the spot");
            now = next;
            ready.extend(caps.due(now).into_iter().map(|pipe| pipe as usize));
        }
        read
    }

    #[test]
    fn all_pipes_together_carry_the_rate_and_each_its_share() {
        for rate in [16_000, 1_000_000, 100_000_000] {
            for pipes in [1, 2, 7] {
                let read = run(rate, pipes);
                let (all, share) = (read.iter().sum::<u64>(), 10 * rate / pipes as u64);
                assert!(
                    (10 * rate - rate / 100 - LEAST..10 * rate + 2 * (rate / 50).max(SHORTEST_BURST)).contains(&all),
                    "{read:?}"
                );
                let slack = 2 * (rate / 50).max(SHORTEST_BURST);
                assert!(read.iter().all(|one| one.abs_diff(share) <= slack), "{rate}: {read:?}");
            }
        }
    }

    #[test]
    fn the_two_ways_do_not_take_from_each_other_and_who_ended_holds_up_nobody() {
        let text = "[site.a]\nhosts.a1 = []\n[rule.night]\ncap = '80k'\n";
        let grid = Grid::read("grid.toml", text).unwrap();
        let mut caps = Caps::default();
        let all = SHORTEST_BURST as usize;
        assert_eq!(caps.allowed("night", Way::Out, 1, (&grid, 0)), all);
        caps.spend("night", Way::Out, all);
        assert_eq!(caps.allowed("night", Way::In, 1, (&grid, 0)), all);
        assert_eq!([1, 2].map(|pipe| caps.allowed("night", Way::Out, pipe, (&grid, 0))), [0, 0]);
        caps.forget("night", 1);
        // 4 KiB at 10,000 bytes a second.
        let due = caps.deadline();
        assert_eq!(due / MILLISECOND, 409);
        assert_eq!(caps.due(due), [2]);
        assert!(caps.allowed("night", Way::Out, 2, (&grid, due)) >= LEAST as usize);
    }

    /// The current pipe does not request, because its other end has no room: the next one goes on, and the first gets its share later.
    #[test]
    fn who_cannot_go_on_holds_up_nobody() {
        let grid = Grid::read("grid.toml", "[site.a]\nhosts.a1 = []\n[rule.night]\ncap = '80k'\n").unwrap();
        let mut caps = Caps::default();
        let all = caps.allowed("night", Way::In, 1, (&grid, 0));
        caps.spend("night", Way::In, all);
        assert_eq!([1, 2, 3].map(|pipe| caps.allowed("night", Way::In, pipe, (&grid, 0))), [0; 3]);
        let mut went = Vec::new();
        for _ in 0..4 {
            let now = caps.deadline();
            assert!(now < 10 * SECOND);
            for pipe in caps.due(now) {
                if pipe != 1 {
                    assert!(caps.allowed("night", Way::In, pipe, (&grid, now)) > 0);
                    caps.spend("night", Way::In, LEAST as usize);
                    went.push(pipe);
                }
            }
            if went.len() == 2 {
                break;
            }
        }
        assert_eq!((went, caps.deadline()), (vec![2, 3], u64::MAX));
        assert!(caps.allowed("night", Way::In, 1, (&grid, 9 * SECOND)) > 0);
    }

    #[test]
    fn a_rule_that_is_gone_caps_nothing() {
        let grid = |rule| Grid::read("grid.toml", &format!("[site.a]\nhosts.a1 = []\n[rule.night]\n{rule}\n")).unwrap();
        let (before, after) = (grid("cap = '8k'"), grid("class = 'bulk'"));
        let mut caps = Caps::default();
        let all = caps.allowed("night", Way::Out, 1, (&before, 0));
        caps.spend("night", Way::Out, all);
        assert_eq!(caps.allowed("night", Way::Out, 1, (&before, 0)), 0);
        assert_eq!(caps.follow(&after), [1]);
        assert_eq!(caps.allowed("night", Way::Out, 1, (&after, 0)), usize::MAX);
        assert_eq!(caps.deadline(), u64::MAX);
    }
}
