//! The front before a store that is played by the test.

use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use madrigal_pools::wire::{LONGEST_REPLY, decode, encode};
use rustix::event::epoll;

use super::*;
use crate::pools::connections::Kind;

/// Keeps what it is asked for.
#[derive(Default)]
struct Played {
    appended: Vec<Record>,
    forgotten: usize,
}

impl Store for Played {
    fn watch(&mut self, _: u64, _: &str, _: &mut Connections) -> Result<(), String> {
        Ok(())
    }
    fn forget(&mut self, _: &str, _: &mut Connections) {
        self.forgotten += 1;
    }
    fn append(&mut self, _: &str, record: Record, _: &mut Connections) {
        self.appended.push(record);
    }
    fn take_told(&mut self, _: Option<(Token, bool)>, _: &mut Connections) -> Vec<Told> {
        Vec::new()
    }
    fn place(&self) -> String {
        String::new()
    }
}

struct Bed {
    front: Front,
    store: Played,
    connections: Connections,
}

impl Bed {
    fn new() -> Self {
        let set = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).unwrap());
        let (store, connections) = (Played::default(), Connections::new(set));
        Self { front: Front::new("h@s".to_owned()), store, connections }
    }

    /// A program that has sent these requests; its end of the socket.
    fn program(&mut self, entries: &[Entry]) -> UnixStream {
        let (ours, its) = UnixStream::pair().unwrap();
        let request =
            |(number, entry): (u64, &Entry)| encode(&Request { number, pool: "p".to_owned(), entry: entry.clone() });
        let inbox = (1..).zip(entries).flat_map(request).collect();
        let token = self.connections.add(Kind::Program, ours.into(), None, inbox).unwrap();
        self.front.begin(token);
        self.front.handle(token, &mut self.store, &mut self.connections);
        its
    }

    fn tell(&mut self, told: Told, now: u64) {
        self.front.handle_told(told, now, &mut self.store, &mut self.connections);
    }

    /// Tells the records that were added.
    fn tell_added(&mut self, now: u64) {
        for record in core::mem::take(&mut self.store.appended) {
            self.tell(Told::Record("p".to_owned(), record), now);
        }
    }

    /// What a program has been told.
    fn replies(&mut self, socket: &mut UnixStream) -> Vec<Reply> {
        self.connections.flush_all();
        socket.set_nonblocking(true).unwrap();
        let (mut bytes, mut replies) = (Vec::new(), Vec::new());
        let _ = socket.read_to_end(&mut bytes);
        while let Some((reply, whole)) = decode(&bytes, LONGEST_REPLY).unwrap() {
            replies.push(reply);
            bytes.drain(..whole);
        }
        replies
    }
}

fn join() -> Entry {
    Entry::Join { size: None, rank: None, location: String::new(), blob: Vec::new() }
}

#[test]
fn a_refused_pool_ends_those_that_want_to_join_it() {
    let mut bed = Bed::new();
    let mut program = bed.program(&[join()]);
    bed.tell(Told::Refused("p".to_owned(), Refusal::Full("no room".to_owned())), 0);
    let replies = bed.replies(&mut program);
    assert_eq!(replies, [Reply::Answer { number: 1, result: Err(Refusal::Full("no room".to_owned())) }]);
    assert_eq!((bed.store.forgotten, bed.front.copies.len(), bed.front.sessions.len()), (1, 0, 0));
}

#[test]
fn the_loss_of_an_earlier_number_is_no_loss() {
    let mut bed = Bed::new();
    let mut program = bed.program(&[join()]);
    bed.tell(Told::Snapshot("p".to_owned(), Pool::default()), 0);
    bed.tell_added(0);
    let number = bed.front.daemon;
    bed.tell(Told::Lost(number.wrapping_add(1), "another one".to_owned()), 0);
    assert!(matches!(bed.replies(&mut program)[..], [Reply::Welcome { me: 0, .. }]));
    bed.tell(Told::Lost(number, "this one".to_owned()), 0);
    assert_eq!(bed.replies(&mut program), [Reply::Dead { why: "this one".to_owned() }]);
}

#[test]
fn a_daemon_that_answers_in_time_is_not_lost() {
    let mut bed = Bed::new();
    let far = |session, entry| Record { daemon: 7, session, request: 1, entry };
    let mut pool = Pool::default();
    pool.apply(&far(1, join()));
    let _program = bed.program(&[join(), Entry::Suspect { member: 0 }]);
    bed.tell(Told::Snapshot("p".to_owned(), pool.clone()), 0);
    bed.tell_added(0);
    assert_eq!(bed.front.deadline(), Some(ANSWERS_WITHIN));
    bed.tell(Told::Record("p".to_owned(), far(0, Entry::Alive)), 1);
    assert_eq!(bed.front.deadline(), None);
    // And one that does not is.
    let _other = bed.program(&[join(), Entry::Suspect { member: 0 }]);
    bed.tell_added(0);
    bed.front.handle_timers(ANSWERS_WITHIN, &mut bed.store, &mut bed.connections);
    assert!(matches!(bed.store.appended[..], [Record { entry: Entry::Lost { daemon: 7 }, .. }]));
}

#[test]
fn what_is_too_long_is_refused_before_the_log() {
    let mut bed = Bed::new();
    let long = Entry::Set { own: false, key: "k".to_owned(), value: Some(vec![1; limits::TEXT + 1]) };
    let mut program = bed.program(&[join(), long]);
    assert_eq!(bed.store.appended.len(), 1);
    bed.tell(Told::Snapshot("p".to_owned(), Pool::default()), 0);
    bed.tell_added(0);
    let replies = bed.replies(&mut program);
    assert!(replies.iter().any(|reply| matches!(reply, Reply::Answer { number: 2, result: Err(Refusal::Invalid(_)) })));
    assert!(replies.iter().any(|reply| matches!(reply, Reply::Welcome { .. })), "{replies:?}");
}
