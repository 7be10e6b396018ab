//! Where programs run, one after the other, and how.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fs, io};

use serde::{Deserialize, Serialize};

use super::quiet::Quiet;
use super::tasks;
use super::transcript::Entry;
use crate::compare::Verdict;
use crate::program::Side;
use crate::share::Map;

/// How soon connections earn their rings.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Serialize, Deserialize, clap::ValueEnum)]
pub enum Mode {
    /// As for every program.
    Default,
    /// With the first byte.
    #[value(name = "eager-first")]
    Eager,
    /// With the first byte, sealed and earned again at random points.
    #[value(name = "eager-random")]
    Random,
}

/// Where things are, the same for all runs.
#[derive(Clone, Debug)]
pub struct Place {
    /// The program that is one process of a program.
    pub play: PathBuf,
    /// The library to preload.
    pub library: PathBuf,
    /// Whether the library compares checksums.
    pub check: bool,
    /// Whether processes may write to our standard error.
    pub loud: bool,
    /// Seconds after which an unfinished step counts as hanging.
    pub patience: f64,
}

/// How a program is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct How {
    /// Which processes are wrapped.
    pub side: Side,
    /// How eagerly.
    pub mode: Mode,
}

/// Compares a step that is done with the plain one.
pub type Judge<'a> = dyn FnMut(usize, &Entry) -> Verdict + 'a;

/// One worker's place for runs, one after the other.
pub struct Bench {
    pub(super) place: Place,
    pub(super) map: Map,
    pub(super) region: PathBuf,
    pub(super) folder: PathBuf,
    pub(super) quiet: Quiet,
    pub(super) cpu: usize,
    /// A process of the run had connections in rings.
    pub(super) rings: Cell<bool>,
}

/// How many numbers were given, to places and to runs.
pub(super) static RUNS: AtomicU64 = AtomicU64::new(0);

impl Bench {
    /// A place below a folder of memory files.
    pub fn new(place: Place, cpu: usize) -> io::Result<Self> {
        let base = if Path::new("/dev/shm").is_dir() { PathBuf::from("/dev/shm") } else { std::env::temp_dir() };
        let number = RUNS.fetch_add(1, Ordering::Relaxed);
        if number == 0 {
            sweep(&base);
        }
        let folder = base.join(format!("{FOLDERS}{}-{number}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let region = folder.join("region");
        let map = Map::create(&region)?;
        Ok(Self { place, map, region, folder, quiet: Quiet::open()?, cpu, rings: Cell::new(false) })
    }

    /// Changes what is known of the place.
    pub fn place_mut(&mut self) -> &mut Place {
        &mut self.place
    }

    /// Whether connections of the last run were in rings.
    pub fn rings(&self) -> bool {
        self.rings.get()
    }
}

/// How the names of all folders begin; then comes a process.
const FOLDERS: &str = "madrigal-fuzz-";

/// Removes what killed fuzzers have left.
fn sweep(base: &Path) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(FOLDERS)?.split('-').next()?.parse().ok());
        if process.is_some_and(|process| !tasks::lives(process)) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}
