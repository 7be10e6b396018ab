//! The worker of this process: one for all domains, while any of them has an endpoint.

use std::ffi::{CStr, CString};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use madrigal::worker_with;
use madrigal_base::config::Settings;
use madrigal_base::node::{NodeAddress, NodeId};
use madrigal_message::endpoint::Stall;
use madrigal_message::worker::Worker;
use madrigal_progress::message::LinkError;

use crate::guard::lock;

static WORKER: Mutex<Weak<Worker>> = Mutex::new(Weak::new());

/// The worker there is, or a new one. `Err`: why not, in one sentence.
pub(crate) fn worker() -> Result<Arc<Worker>, String> {
    let mut kept = lock(&WORKER);
    if let Some(worker) = kept.upgrade() {
        return Ok(worker);
    }
    let worker = worker_with(&settings()).map_err(|error| error.to_string())?;
    *kept = Arc::downgrade(&worker);
    Ok(worker)
}

/// The environment's `MADRIGAL_*` keys. A value that does not parse leaves the default in force; `madrigal exec` has reported it.
pub(crate) fn settings() -> Settings {
    let texts = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    Settings::from_pairs(std::env::vars_os().filter_map(texts)).0
}

/// The texts of errors, by number.
static ERRORS: Mutex<Vec<&'static CStr>> = Mutex::new(Vec::new());
/// The most texts; each is stored for ever.
const ENOUGH: usize = 64;
/// Their numbers begin behind every error number of libfabric.
const NUMBERS: i32 = 0x1_0000;

/// Prints for the user of the rank why something failed: the only output of this library, each text once. Returns its number for
/// [`text_of`].
#[cold]
pub(crate) fn complain(text: &str) -> Option<i32> {
    note(text, true)
}

/// Stores a text under a number; with `aloud` prints it the first time.
fn note(text: &str, aloud: bool) -> Option<i32> {
    let mut errors = lock(&ERRORS);
    if let Some(at) = errors.iter().position(|known| known.to_bytes() == text.as_bytes()) {
        return Some(NUMBERS + at as i32);
    }
    let kept = CString::new(text).ok().filter(|_| errors.len() < ENOUGH)?;
    errors.push(Box::leak(kept.into_boxed_c_str()));
    if aloud {
        let line = format!("madrigal: {text}\n");
        let _ = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
    }
    Some(NUMBERS + errors.len() as i32 - 1)
}

/// The text of that number.
pub(crate) fn text_of(number: i32) -> Option<&'static CStr> {
    let at = usize::try_from(number.checked_sub(NUMBERS)?).ok()?;
    lock(&ERRORS).get(at).copied()
}

/// Some node was lost.
static LOST: AtomicBool = AtomicBool::new(false);

/// Prints why a node cannot be reached, or is gone though it was still needed. If a node is gone the launcher ends all others, so only the
/// first loss is printed; the program gets an error for each.
#[cold]
pub(crate) fn explain(me: NodeId, to: &NodeAddress, why: &LinkError) -> Option<i32> {
    let (us, them) = (ourselves(me), whom(to));
    match why {
        LinkError::Unreachable { tried, .. } => complain(&format!("{us} cannot reach {them}: {tried}")),
        LinkError::Silent { seconds, .. } => complain(&format!(
            "{us} has had no answer from {them} for {seconds} s: its host, or the network to it, is down"
        )),
        LinkError::Gone { why, .. } => {
            note(&format!("{us} has lost {them}: {why}"), !LOST.swap(true, Ordering::Relaxed))
        }
        LinkError::Corrupt { what, .. } => complain(&format!("{us} has given up {them}, which sent nonsense: {what}")),
        _ => None,
    }
}

/// Prints that nothing could be sent to a node for long, and what waits.
#[cold]
pub(crate) fn complain_of(me: NodeId, stall: &Stall) {
    let Stall { to, seconds, what } = stall;
    complain(&format!("{} could send nothing to {} for {seconds} s: {what}", ourselves(me), whom(to)));
}

/// This node in words, for the user.
fn ourselves(me: NodeId) -> String {
    format!("node {me} on {}", rustix::system::uname().nodename().to_string_lossy())
}

/// Another node and its host in words.
fn whom(to: &NodeAddress) -> String {
    let host = name_in(&contents("/etc/hosts"), &to.addresses).map_or_else(String::new, |name| format!(" on {name}"));
    format!("node {}{host}", to.id)
}

/// The host with one of these addresses in a list such as /etc/hosts. No name server is queried: that could take long.
fn name_in<'a>(hosts: &'a str, addresses: &[IpAddr]) -> Option<&'a str> {
    hosts.lines().find_map(|line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let address: IpAddr = words.next()?.parse().ok()?;
        words.next().filter(|_| !address.is_loopback() && addresses.contains(&address))
    })
}

/// The text of a short file; nothing where it cannot be read.
fn contents(path: &str) -> String {
    use rustix::fs::{Mode, OFlags};
    let Ok(file) = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        return String::new();
    };
    let mut bytes = vec![0; LONGEST_LIST];
    let mut len = 0;
    while let Some(room) = bytes.get_mut(len..).filter(|room| !room.is_empty())
        && let Ok(count @ 1..) = rustix::io::read(&file, room)
    {
        len += count;
    }
    bytes.truncate(len);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The most bytes of a list of hosts that are read.
const LONGEST_LIST: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_found_by_any_address() {
        let hosts =
            "127.0.0.1 localhost\n# 10.0.0.1 gone\n10.0.0.1\n 10.0.0.2\th2 alias # comment\nnonsense\nfd00::2 h3";
        let name = |address: &str| name_in(hosts, &["10.9.9.9", address].map(|address| address.parse().unwrap()));
        assert_eq!(name("10.0.0.2"), Some("h2"));
        assert_eq!(name("fd00::2"), Some("h3"));
        assert_eq!([name("127.0.0.1"), name("10.0.0.1"), name("10.0.0.3")], [None; 3]);
    }

    #[test]
    fn what_was_told_is_found_by_its_number() {
        let number = complain("something of a test").unwrap();
        assert_eq!(complain("something of a test"), Some(number));
        assert_eq!(text_of(number), Some(c"something of a test"));
        assert!(text_of(number + 1).is_none() && text_of(113).is_none() && text_of(i32::MIN).is_none());
    }
}
