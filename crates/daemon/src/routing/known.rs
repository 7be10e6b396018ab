//! The file of known hosts: the way to each that worked last, and the figures of each way. It outlives the daemon. A file that does not parse
//! is renamed, which the log reports: everything in it is measured again.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use madrigal_selector::route::Figures;
use serde::{Deserialize, Serialize};

/// The version of the file.
const VERSION: u32 = 1;
/// The longest file that is read.
const LONGEST: u64 = 1 << 20;
/// Ways of one host in the file.
const MOST_WAYS: usize = 8;

/// What is known of the other hosts.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Known {
    version: u32,
    /// The hosts, by their names.
    hosts: BTreeMap<String, KnownHost>,
}

/// What is known of one host.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
struct KnownHost {
    /// The way of the last connection.
    #[serde(default)]
    last: Option<String>,
    /// The ways, by their names.
    #[serde(default)]
    ways: BTreeMap<String, KnownWay>,
}

/// What is known of a way.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct KnownWay {
    /// Its figures.
    #[serde(default)]
    pub(crate) figures: Figures,
    /// When they were measured, in seconds since 1970.
    #[serde(default)]
    pub(crate) at: u64,
    /// How many connections a link by it was best with; 0 where that is not known.
    #[serde(default)]
    pub(crate) connections: u8,
}

/// What is known, and its file.
pub(crate) struct KnownFile {
    pub(crate) known: Known,
    pub(crate) file: PathBuf,
    /// When it is to be written.
    pub(crate) due: u64,
}

impl KnownFile {
    /// Reads a file. Returns what was wrong with it, too.
    pub(crate) fn new(file: PathBuf) -> (Self, Option<String>) {
        let (known, problem) = Known::read(&file);
        (Self { known, file, due: u64::MAX }, problem)
    }

    /// Writes the file.
    pub(crate) fn write(&self) -> std::io::Result<()> {
        self.known.write(&self.file)
    }
}

impl Known {
    /// Reads a file, which may be absent. One that does not parse is renamed; the second value is a line about it for the log.
    fn read(path: &Path) -> (Self, Option<String>) {
        match try_read(path) {
            Ok(known) => (known, None),
            Err(why) => {
                let renamed = with_ending(path, "bad");
                let moved = std::fs::rename(path, &renamed);
                let what =
                    moved.map_or_else(|error| error.to_string(), |()| format!("it is {} now", renamed.display()));
                let text = format!("{} cannot be read: {why}; {what}, and all is measured again", path.display());
                (Self::default(), Some(text))
            }
        }
    }

    /// Writes the file in one step, readable by its user only.
    fn write(&self, path: &Path) -> std::io::Result<()> {
        let new = with_ending(path, "new");
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = std::fs::File::options().write(true).create_new(true).mode(0o600).open(&new)?;
        let known = Self { version: VERSION, hosts: self.hosts.clone() };
        file.write_all(&serde_json::to_vec_pretty(&known).unwrap_or_default())?;
        file.write_all(b"\n")?;
        std::fs::rename(&new, path)
    }

    /// What is known of a way to a host.
    pub(crate) fn way(&self, host: &str, way: &str) -> Option<KnownWay> {
        self.hosts.get(host)?.ways.get(way).copied()
    }

    /// The way that worked last.
    pub(crate) fn last(&self, host: &str) -> Option<&str> {
        self.hosts.get(host)?.last.as_deref()
    }

    /// Sets the way that worked last. Returns whether it was another one before.
    pub(crate) fn set_last(&mut self, host: &str, way: &str) -> bool {
        let known = self.hosts.entry(host.to_owned()).or_default();
        let is_new = known.last.as_deref() != Some(way);
        if is_new {
            known.last = Some(way.to_owned());
        }
        is_new
    }

    /// Sets what is known of a way. Of too many ways the oldest is removed.
    pub(crate) fn set_way(&mut self, host: &str, way: &str, known: KnownWay) {
        let ways = &mut self.hosts.entry(host.to_owned()).or_default().ways;
        let before = ways.insert(way.to_owned(), known);
        let oldest = ways.iter().min_by_key(|(_, known)| known.at).map(|(way, _)| way.clone());
        if let Some(oldest) = oldest.filter(|_| before.is_none() && ways.len() > MOST_WAYS) {
            ways.remove(&oldest);
        }
    }
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}

fn try_read(path: &Path) -> Result<Known, String> {
    let no_follow = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
    let file = match std::fs::File::options().read(true).custom_flags(no_follow).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Known::default()),
        Err(error) => return Err(error.to_string()),
    };
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text).map_err(|error| error.to_string())?;
    let known: Known = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    if known.version == VERSION { Ok(known) } else { Err(format!("its version is {}", known.version)) }
}

/// Seconds since 1970.
pub(crate) fn seconds() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    u64::try_from(time.tv_sec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("madrigal-known-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn a_file_reads_back_and_is_its_users_only() {
        let folder = folder("back");
        let path = folder.join("known.json");
        assert_eq!(Known::read(&path), (Known::default(), None));
        let mut known = Known { version: VERSION, ..Known::default() };
        let figures =
            Figures { round_trip_us: Some(20_000), rate: Some(95_000_000), again_ppm: Some(0), mtu: Some(1500) };
        known.set_way("b1", "direct", KnownWay { figures, at: 7, connections: 4 });
        known.hosts.get_mut("b1").unwrap().last = Some("through r".to_owned());
        known.write(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Known::read(&path), (known.clone(), None));
        assert_eq!((known.last("b1"), known.way("b1", "direct").unwrap().figures), (Some("through r"), figures));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_broken_file_is_set_aside_with_one_line() {
        let folder = folder("broken");
        let path = folder.join("known.json");
        for (text, why) in [
            ("{\"version\":1,\"hosts\":{", "EOF"),
            ("[]", "invalid"),
            ("{\"version\":9,\"hosts\":{}}", "its version is 9"),
        ] {
            std::fs::write(&path, text).unwrap();
            let (known, problem) = Known::read(&path);
            let problem = problem.unwrap();
            assert!(
                known == Known::default() && problem.contains(why) && problem.contains("known.json.bad now"),
                "{problem}"
            );
            assert!(!path.exists() && std::fs::read_to_string(folder.join("known.json.bad")).unwrap() == text);
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_oldest_of_too_many_ways_is_forgotten() {
        let mut known = Known::default();
        for n in 0..20 {
            known.set_way("b1", &format!("through r{n}"), KnownWay { at: n, ..KnownWay::default() });
        }
        assert_eq!(known.hosts["b1"].ways.len(), MOST_WAYS);
        assert!(known.way("b1", "through r19").is_some() && known.way("b1", "through r11").is_none());
    }
}
