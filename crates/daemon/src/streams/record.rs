//! The log line at a pipe's end: what it was, the bytes each way, how long it was open, and whether it was reset.

use crate::units::SECOND;

/// What the log is to say of a pipe when it ends.
pub(crate) struct Record {
    /// What was said when it began.
    pub(crate) line: String,
    pub(crate) since: u64,
}

impl Record {
    /// `carried`: bytes from the end that began it, and from the other one.
    pub(crate) fn told(&self, now: u64, carried: [u64; 2], broken: bool) -> String {
        let [there, back] = carried;
        let open = now.saturating_sub(self.since);
        let (seconds, rest) = (open / SECOND, open % SECOND / (SECOND / 1000));
        let broken = if broken { ", reset" } else { "" };
        format!("ended: {}: {there} B there, {back} B back, {seconds}.{rest:03} s{broken}", self.line)
    }
}
