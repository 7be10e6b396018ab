//! Keeps the file of known hosts up to date.

use madrigal_selector::route::Figures;

use crate::daemon::Daemon;
use crate::routing::known::{KnownWay, seconds};
use crate::units::SECOND;

/// The time from the first change to the next write.
const WRITE_AFTER: u64 = 5 * SECOND;

impl Daemon {
    /// Records the way of a call that was connected.
    pub(crate) fn save_way(&mut self, host: usize, way: &str) {
        let name = self.name(host).to_owned();
        if self.known_file.known.set_last(&name, way) {
            self.save_soon();
        }
    }

    /// Records the figures of a way, and how many connections its link should have; `None`: it cannot have several, or that is not known yet.
    pub(crate) fn save_figures(&mut self, host: usize, way: &str, figures: Figures, connections: Option<u8>) {
        let before = self.known_file.known.way(self.name(host), way);
        let connections = connections.or(before.map(|before| before.connections)).unwrap_or(0);
        let known = KnownWay { figures, at: seconds(), connections };
        let name = self.name(host).to_owned();
        self.known_file.known.set_way(&name, way, known);
        // A new time alone is not written.
        if before.is_none_or(|before| (before.figures, before.connections) != (figures, connections)) {
            self.save_soon();
        }
    }

    /// Whether a connection of ours to a host worked before.
    pub(crate) fn has_dialled_before(&self, host: usize) -> bool {
        self.known_file.known.way(self.name(host), "direct").is_some()
    }

    fn save_soon(&mut self) {
        self.known_file.due = self.known_file.due.min(self.now + WRITE_AFTER);
    }

    /// Writes the file, if there is a change whose time has come.
    pub(crate) fn save_known(&mut self, until: u64) {
        if self.known_file.due > until {
            return;
        }
        self.known_file.due = u64::MAX;
        if let Err(error) = self.known_file.write() {
            let text = format!("cannot write {}: {error}", self.known_file.file.display());
            self.log_line(&text);
        }
    }
}
