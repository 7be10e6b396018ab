//! A membership beside a daemon that is played by the test. Features (docs/features.md): I4.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use madrigal_pools::record::Entry;
use madrigal_pools::wire::{LONGEST_REQUEST, Reply, Request, decode, encode};
use madrigal_pools::{Change, Event, Member, Membership, PoolError, View, Wish};
use madrigal_proto::client::DONE;
use madrigal_proto::frame;
use madrigal_sys::time::now_ns;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// A folder that ends with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("madrigal-membership-{name}-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A deadline that is not reached.
fn soon() -> Option<u64> {
    Some(now_ns() + 200_000_000_000)
}

fn wish() -> Wish {
    Wish { pool: "p".to_owned(), ..Wish::default() }
}

/// The daemon's end of a program.
struct Session(UnixStream, Vec<u8>);

impl Session {
    /// Accepts a program, and lets it in as member 0.
    fn accept(listener: &UnixListener) -> Self {
        let mut this = Self(listener.accept().unwrap().0, Vec::new());
        this.0.read_exact(&mut [0; 9]).unwrap();
        this.0.write_all(&[&frame::prefix(1, 0).unwrap()[..], &[DONE]].concat()).unwrap();
        assert!(matches!(this.next().entry, Entry::Join { .. }));
        let mut view = View::default();
        view.members.insert(0, Member::default());
        this.say(&Reply::Welcome { me: 0, view });
        this
    }

    fn say(&mut self, reply: &Reply) {
        self.0.write_all(&encode(reply)).unwrap();
    }

    fn next(&mut self) -> Request {
        loop {
            if let Some((request, whole)) = decode(&self.1, LONGEST_REQUEST).unwrap() {
                self.1.drain(..whole);
                return request;
            }
            let mut bytes = [0; 1000];
            let count = self.0.read(&mut bytes).unwrap();
            assert!(count > 0, "the program has ended");
            self.1.extend_from_slice(&bytes[..count]);
        }
    }
}

#[test]
fn who_asks_again_stays_the_same_candidate() {
    let folder = Folder::new("elect");
    let listener = UnixListener::bind(folder.0.join("daemon.sock")).unwrap();
    std::thread::scope(|scope| {
        let accepted = scope.spawn(|| Session::accept(&listener));
        let member = Membership::join(std::slice::from_ref(&folder.0), wish(), soon()).unwrap();
        let mut daemon = accepted.join().unwrap();
        for _ in 0..3 {
            let early = member.elect("master", false, Some(0)).unwrap_err();
            assert!(matches!(early, PoolError::TimedOut(_)), "{early}");
        }
        let late = member.signal(&[], "x", Some(0)).unwrap_err();
        assert!(matches!(late, PoolError::TimedOut(_)), "{late}");
        let (elect, signal) = (daemon.next(), daemon.next());
        assert_eq!(elect.entry, Entry::Elect { name: "master".to_owned(), for_life: false });
        assert!(matches!(signal.entry, Entry::Signal { .. }), "it was asked twice: {signal:?}");
        let change = Change::Elected { name: "master".to_owned(), winner: 0, for_life: false };
        daemon.say(&Reply::Event(Event { number: 1, change }));
        daemon.say(&Reply::Answer { number: elect.number, result: Ok(()) });
        daemon.say(&Reply::Answer { number: signal.number, result: Ok(()) });
        assert_eq!(member.elect("master", false, soon()).unwrap(), (0, 1));
        // Another rule is another question.
        let other = member.elect("master", true, Some(0)).unwrap_err();
        assert!(matches!(other, PoolError::TimedOut(_)), "{other}");
        assert_eq!(daemon.next().entry, Entry::Elect { name: "master".to_owned(), for_life: true });
    });
}

#[test]
fn a_full_accept_queue_is_waited_for() {
    let folder = Folder::new("queue");
    let path = folder.0.join("daemon.sock");
    let flags = SocketFlags::CLOEXEC;
    let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let first = UnixStream::connect(&path).unwrap();
    let hangs = Membership::begin(std::slice::from_ref(&folder.0), wish(), Some(now_ns() + 20_000_000)).unwrap_err();
    assert!(matches!(hangs, PoolError::TimedOut(_)), "{hangs:?}");
    assert!(hangs.to_string().starts_with("the daemon of this host does not answer"), "{hangs}");
    drop(first);
    let listener = UnixListener::from(listener);
    std::thread::scope(|scope| {
        let accepted = scope.spawn(|| {
            drop(listener.accept().unwrap());
            Session::accept(&listener)
        });
        assert_eq!(Membership::join(std::slice::from_ref(&folder.0), wish(), soon()).unwrap().id(), Some(0));
        drop(accepted.join().unwrap());
    });
}
