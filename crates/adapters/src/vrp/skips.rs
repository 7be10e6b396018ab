//! Reports of bytes that will not come. They wait for each other, for each packet of the connection below has its own head.

use super::wire::{About, Frame};

const MILLISECOND: u64 = 1_000_000;
/// They wait for so long, or for so many bytes of them.
const WAIT: u64 = 25 * MILLISECOND;
const MANY: usize = 512;

/// Reports that wait.
#[derive(Debug, Default)]
pub(super) struct Skips {
    bytes: Vec<u8>,
    /// Since when the first of them waits.
    since: u64,
}

impl Skips {
    /// These bytes of a message will not come.
    pub(super) fn add(&mut self, now: u64, about: About, (from, to): (u32, u32)) {
        if self.bytes.is_empty() {
            self.since = now;
        }
        Frame::Skip { about, from, to }.write(&mut self.bytes);
    }

    /// How many bytes they are.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there are enough of them to go now.
    pub(super) fn is_full(&self) -> bool {
        self.bytes.len() >= MANY
    }

    /// When they go; `None`: there are none.
    pub(super) fn due(&self) -> Option<u64> {
        (!self.bytes.is_empty()).then_some(self.since.saturating_add(WAIT))
    }

    /// Puts them behind what goes by the control stream.
    pub(super) fn flush(&mut self, control: &mut Vec<u8>) {
        control.append(&mut self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_wait_for_each_other() {
        let about = About { class: 0, message: 1, total: 10, at: 100 };
        let (mut skips, mut control) = (Skips::default(), Vec::new());
        assert_eq!((skips.due(), skips.is_full()), (None, false));
        skips.add(7, about, (0, 4));
        skips.add(9, about, (5, 10));
        assert_eq!(skips.due(), Some(7 + WAIT), "for the first one");
        skips.flush(&mut control);
        assert_eq!((skips.len(), skips.due()), (0, None));
        let (first, len) = Frame::read(&control).unwrap().unwrap();
        let second = Frame::read(&control[len..]).unwrap().unwrap();
        assert_eq!(first, Frame::Skip { about, from: 0, to: 4 });
        assert_eq!(second, (Frame::Skip { about, from: 5, to: 10 }, control.len() - len));
        (0..MANY).for_each(|_| skips.add(0, about, (0, 1)));
        assert!(skips.is_full());
    }
}
