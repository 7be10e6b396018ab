//! The life of a table's file, with real processes as users.

use super::*;
use std::io::Write as _;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::process::Command;

/// A directory of this test's own, removed at its end; fails if anything is left in it.
struct Place(PathBuf);

impl Place {
    fn new(what: &str) -> Self {
        let path = PathBuf::from(format!("/dev/shm/madrigal-test-{}-{what}", std::process::id()));
        assert!(!path.exists());
        Self(path)
    }

    fn directory(&self) -> Directory {
        Directory::named(self.0.to_str())
    }

    fn files(&self) -> usize {
        std::fs::read_dir(&self.0).map_or(0, Iterator::count)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let left = self.files();
        let _ = std::fs::remove_dir_all(&self.0);
        assert!(std::thread::panicking() || left == 0, "{left} files left");
    }
}

#[test]
fn uid_in_a_name_is_replaced_and_a_long_name_names_nothing() {
    let own = rustix::process::geteuid().as_raw();
    let text = |path| Directory::named(path).path().to_str().unwrap().to_owned();
    assert_eq!(text(None), format!("/dev/shm/madrigal-{own}"));
    assert_eq!(text(Some("")), format!("/dev/shm/madrigal-{own}"));
    assert_eq!(text(Some("here")), format!("/dev/shm/madrigal-{own}"), "what is no path from / counts as not set");
    assert_eq!(text(Some("/tmp/UID/m-UID")), format!("/tmp/{own}/m-{own}"));
    assert_eq!(text(Some(&"/x".repeat(200))), "");
    assert_eq!(Directory::named(Some(&"/x".repeat(200))).check(1), Err(Reason::DirMissing));
}

#[test]
fn the_last_user_removes_the_register() {
    let place = Place::new("last");
    let directory = place.directory();
    let (first, second) = (directory.open(1).unwrap(), directory.open(2).unwrap());
    assert_eq!(directory.tables().len(), 2);
    assert!(directory.tables().iter().all(|t| t.users == [std::process::id()]));
    assert_eq!(directory.tidy(), 0);
    directory.leave(first.table, first.entry);
    assert_eq!(place.files(), 1);
    directory.leave(second.table, second.entry);
    assert_eq!(place.files(), 0);
}

#[test]
fn all_processes_find_one_table() {
    let place = Place::new("one");
    let directory = place.directory();
    let (first, second) = (directory.open(1).unwrap(), directory.open(1).unwrap());
    first.table.mark(80);
    assert!(second.table.is_marked(80) && !core::ptr::eq(first.table, second.table));
    assert!(directory.reenter(1, first.table, first.fd.as_raw_fd()).unwrap().is_none());
    directory.leave(first.table, first.entry);
    directory.leave(second.table, second.entry);
}

/// A process that only has the table's descriptor, as a forked child has.
fn holder(table: &Opened) -> std::process::Child {
    rustix::io::fcntl_setfd(&table.fd, rustix::io::FdFlags::empty()).unwrap();
    let child = Command::new("sleep").arg("600").spawn().unwrap();
    while std::fs::read_to_string(format!("/proc/{}/comm", child.id())).unwrap() != "sleep\n" {
        std::thread::yield_now();
    }
    child
}

#[test]
fn who_leaves_names_another_that_has_the_table() {
    let place = Place::new("heir");
    let directory = place.directory();
    let opened = directory.open(1).unwrap();
    opened.table.mark(80);
    let mut child = holder(&opened);
    let entry = opened.table.users.iter().position(|user| user.is_free()).unwrap();
    opened.table.users[entry].become_of(child.id(), opened.fd.as_raw_fd() as u32);
    directory.leave(opened.table, opened.entry);
    assert_eq!((directory.tables()[0].users.clone(), place.files()), (vec![child.id()], 1));
    drop(opened.fd);
    let found = directory.open(1).unwrap();
    assert!(found.table.is_marked(80));
    // As `kill -9` leaves it: the entry is not struck.
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(directory.tidy(), 0);
    directory.leave(found.table, found.entry);
}

#[test]
fn a_register_that_names_only_the_dead_is_tidied() {
    let place = Place::new("dead");
    let directory = place.directory();
    let opened = directory.open(1).unwrap();
    let file = place.0.join("offers-1");
    let mut bytes = std::fs::read(&file).unwrap();
    let mut dead = Command::new("true").spawn().unwrap();
    bytes[..4].copy_from_slice(&dead.id().to_le_bytes());
    dead.wait().unwrap();
    std::fs::write(&file, &bytes).unwrap();
    assert_eq!((directory.tidy(), place.files()), (1, 0));
    drop(opened);
}

#[test]
fn a_register_that_is_cut_short_or_full_of_nonsense_harms_nobody() {
    let place = Place::new("cut");
    let directory = place.directory();
    let opened = directory.open(1).unwrap();
    for nonsense in [vec![], vec![0xff; 4096], vec![1; 17]] {
        let file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(place.0.join("offers-1"));
        file.unwrap().write_all(&nonsense).unwrap();
        opened.table.mark(81);
        let other = directory.open(1).unwrap();
        assert!(opened.table.is_marked(81) && !other.table.is_marked(81), "another table was found or made");
        directory.leave(other.table, other.entry);
    }
    directory.leave(opened.table, opened.entry);
    let _ = std::fs::remove_file(place.0.join("offers-1"));
}

#[test]
fn a_file_that_was_never_finished_is_tidied() {
    let place = Place::new("stump");
    assert_eq!(place.directory().make(), Ok(true));
    std::fs::write(place.0.join("offers-3"), b"").unwrap();
    assert_eq!((place.directory().tidy(), place.files()), (1, 0));
}

#[test]
fn names_of_listeners_that_are_gone_are_tidied_and_others_are_not() {
    let place = Place::new("deaf");
    assert_eq!(place.directory().make(), Ok(true));
    let listen = |name: &str| std::os::unix::net::UnixListener::bind(place.0.join(name)).unwrap();
    drop(listen("gone.sock"));
    let there = listen("there.sock");
    std::fs::write(place.0.join("notes"), b"").unwrap();
    assert_eq!((place.directory().tidy(), place.files()), (1, 2));
    drop(there);
    assert_eq!((place.directory().tidy(), place.files()), (1, 1));
    std::fs::remove_file(place.0.join("notes")).unwrap();
}

#[test]
fn a_removed_file_of_the_same_name_is_not_mistaken_for_ours() {
    let place = Place::new("twin");
    let directory = place.directory();
    let lost = directory.open(1).unwrap();
    std::fs::remove_file(place.0.join("offers-1")).unwrap();
    let twin = directory.open(1).unwrap();
    assert!(!core::ptr::eq(lost.table, twin.table));
    assert!(
        directory.reenter(1, lost.table, lost.fd.as_raw_fd()).unwrap().is_some(),
        "the register knows another table"
    );
    directory.leave(twin.table, twin.entry);
    assert_eq!(place.files(), 0);
    directory.leave(lost.table, lost.entry);
}

#[test]
fn check_names_what_is_wrong_and_leaves_nothing() {
    let place = Place::new("check");
    let directory = place.directory();
    assert_eq!(directory.check(1), Ok(()));
    assert!(!place.0.exists());
    assert_eq!(directory.make(), Ok(true));
    rustix::fs::chmod(&place.0, Mode::from_raw_mode(0o755)).unwrap();
    assert_eq!(directory.check(1), Err(Reason::DirUnsafe));
    assert!(matches!(directory.open(1), Err(Reason::DirUnsafe)));
    rustix::fs::chmod(&place.0, Mode::RWXU).unwrap();
    assert_eq!((directory.check(1), place.files()), (Ok(()), 0));
    assert_eq!(Directory::named(Some("/nowhere/at/all")).check(1), Err(Reason::DirMissing));
    assert!(matches!(Directory::named(Some("/proc/madrigal")).check(1), Err(Reason::DirMissing | Reason::DirReadOnly)));
}
