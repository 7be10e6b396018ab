//! The end of each connection in the log: what it was, how much went either way, how long it was open, and whether it broke.

use crate::daemon::{Daemon, SECOND};
use crate::pipes::Pipe;
use crate::poll::Token;

/// What the log is to say of a pipe when it ends.
pub(crate) struct Record {
    /// What was said when it began.
    line: String,
    since: u64,
}

impl Daemon {
    /// The end of a pipe is to be told by the words that told of its beginning.
    pub(crate) fn record(&mut self, pipe: Token, line: &str) {
        let record = Record { line: line.to_owned(), since: self.now };
        match self.pipes.get_mut(&pipe) {
            Some(pipe) => pipe.record = Some(record),
            // It broke as it began.
            None => self.note(&record.told(self.now, [0, 0], true)),
        }
    }

    /// A pipe ends.
    pub(crate) fn note_end(&mut self, pipe: &Pipe, broken: bool) {
        if let Some(record) = &pipe.record {
            self.note(&record.told(self.now, pipe.carried(), broken && !pipe.is_over()));
        }
    }
}

impl Record {
    /// `carried`: bytes from the end that began it, and from the other one.
    fn told(&self, now: u64, carried: [u64; 2], broken: bool) -> String {
        let [there, back] = carried;
        let open = now.saturating_sub(self.since);
        let (seconds, rest) = (open / SECOND, open % SECOND / (SECOND / 1000));
        let broken = if broken { ", reset" } else { "" };
        format!("ended: {}: {there} B there, {back} B back, {seconds}.{rest:03} s{broken}", self.line)
    }
}
