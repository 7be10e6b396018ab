//! The log line at a pipe's end: what it was, the bytes each way, how long it was open, and whether it was reset.

use crate::units::SECOND;

/// The data of the log line at a pipe's end.
pub(crate) struct Record {
    /// The line of its beginning.
    pub(crate) line: String,
    pub(crate) since: u64,
}

impl Record {
    /// The line of its end; `carried` are the bytes from the end that began it and from the other end.
    pub(crate) fn describe(&self, now: u64, carried: [u64; 2], broken: bool) -> String {
        let [there, back] = carried;
        let open = now.saturating_sub(self.since);
        let (seconds, rest) = (open / SECOND, open % SECOND / (SECOND / 1000));
        let broken = if broken { ", reset" } else { "" };
        format!("ended: {}: {there} B there, {back} B back, {seconds}.{rest:03} s{broken}", self.line)
    }
}
