//! The life of a table's file, with real processes as users.

use super::*;
use crate::stage;
use crate::tuple::Tuple;
use std::os::fd::AsRawFd;
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
    assert_eq!(text(Some("/tmp/UID/m-UID")), format!("/tmp/{own}/m-{own}"));
    assert_eq!(text(Some(&"/x".repeat(200))), "");
    assert_eq!(Directory::named(Some(&"/x".repeat(200))).check(1), Err(Reason::DirMissing));
}

#[test]
fn an_offer_is_found_once_and_by_its_tuple_only() {
    let place = Place::new("offer");
    let opened = place.directory().open(7).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (tuple, reverse) = (Tuple::default(), Tuple::default());
    tuple.learn(client.as_raw_fd(), true).unwrap();
    reverse.learn(client.as_raw_fd(), false).unwrap();
    let table = opened.table();
    let posted = table.post(&tuple, |offer| offer.slot.store(5, Ordering::Relaxed)).unwrap();
    assert!(table.find(&reverse).is_none());
    let found = table.find(&tuple).unwrap();
    assert_eq!((table.index_of(found), found.slot.load(Ordering::Relaxed)), (table.index_of(posted), 5));
    assert!(table.find(&tuple).is_none());
    assert_eq!((posted.stage.load(Ordering::Relaxed), table.posts()), (stage::TAKEN, 1));
    assert!(!table.is_marked(8080));
    table.mark(8080);
    assert!(table.is_marked(8080) && !table.is_marked(8081));
    place.directory().leave(table, opened.entry);
}

#[test]
fn the_last_user_removes_the_file() {
    let place = Place::new("last");
    let directory = place.directory();
    let (first, second) = (directory.open(1).unwrap(), directory.open(2).unwrap());
    assert_eq!(directory.tables().len(), 2);
    assert!(directory.tables().iter().all(|t| t.users == [std::process::id()]));
    assert_eq!(directory.tidy(), 0);
    directory.leave(first.table(), first.entry);
    assert_eq!(place.files(), 1);
    directory.leave(second.table(), second.entry);
    assert_eq!(place.files(), 0);
}

#[test]
fn a_table_whose_users_are_dead_is_tidied_and_one_with_a_living_user_is_not() {
    let place = Place::new("dead");
    let directory = place.directory();
    let opened = directory.open(1).unwrap();
    let mut other = Command::new("sleep").arg("600").spawn().unwrap();
    opened.table().users[opened.entry.unwrap() as usize].become_of(other.id());
    assert_eq!(directory.tables()[0].users, [other.id()]);
    assert_eq!((directory.tidy(), place.files()), (0, 1));
    // As `kill -9` leaves it: nobody strikes the entry.
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!((directory.tidy(), place.files()), (1, 0));
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
    directory.leave(lost.table(), lost.entry);
    assert_eq!(place.files(), 1);
    directory.leave(twin.table(), twin.entry);
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
