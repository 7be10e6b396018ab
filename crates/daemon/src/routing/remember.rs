//! Keeps the file of known hosts up to date.

use madrigal_selector::route::Figures;

use crate::daemon::Daemon;
use crate::routing::known::{KnownWay, seconds};
use crate::units::SECOND;

/// The file is written this long after the first change.
const SOON: u64 = 5 * SECOND;

impl Daemon {
    /// Remembers by which way a call to a host got through.
    pub(crate) fn remember_way(&mut self, host: usize, way: &str) {
        let name = self.name(host).to_owned();
        if self.memory.known.set_last(&name, way) {
            self.remember_soon();
        }
    }

    /// Remembers what was measured.
    pub(crate) fn remember(&mut self, host: usize, way: &str, figures: Figures) {
        let known = KnownWay { figures, at: seconds() };
        let before = self.memory.known.way(self.name(host), way);
        let name = self.name(host).to_owned();
        self.memory.known.learn(&name, way, known);
        // The time alone is no news.
        if before.is_none_or(|before| before.figures != figures) {
            self.remember_soon();
        }
    }

    /// Whether a connection of ours to a host worked before: then it is worth to try often.
    pub(crate) fn could_dial(&self, host: usize) -> bool {
        self.memory.known.way(self.name(host), "direct").is_some()
    }

    fn remember_soon(&mut self) {
        self.memory.due = self.memory.due.min(self.now + SOON);
    }

    /// Writes what is known, if there is something new and it is time.
    pub(crate) fn write_known(&mut self, until: u64) {
        if self.memory.due > until {
            return;
        }
        self.memory.due = u64::MAX;
        if let Err(error) = self.memory.write() {
            let text = format!("cannot write {}: {error}", self.memory.file.display());
            self.note(&text);
        }
    }
}
