//! How a worker seeks the nodes that receives wait for, over a scripted driver.
//!
//! Features (docs/features.md): B4.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use madrigal_base::ids::Reach;
use madrigal_base::node::{NodeAddress, NodeId};
use madrigal_message::endpoint::{Completion, PeerId, Receive, Send, Status};
use madrigal_message::worker::Options;
use madrigal_message::{Endpoint, Worker};
use madrigal_progress::driver::{Facts, Place};
use madrigal_progress::message::{Explained, LinkError, LinkIndex, MessageDriver, Port, Sent, Sink};
use madrigal_sys::piece::Piece;

/// The calls that the driver got, and the events it shall report.
#[derive(Default)]
struct Script {
    /// How often it was asked for a link.
    asked: usize,
    /// How often the worker was about to sleep.
    armed: usize,
    /// The link cannot be made.
    fails: bool,
    /// Where it fails, every address refused.
    absent: bool,
    /// It is no driver for such a node.
    refuses: bool,
    /// The number of the link.
    link: u32,
}

struct Scripted(Arc<Mutex<Script>>);

fn lock(script: &Mutex<Script>) -> MutexGuard<'_, Script> {
    script.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MessageDriver for Scripted {
    fn name(&self) -> &'static str {
        "told"
    }

    fn facts(&self) -> Facts {
        Facts { reach: Reach::Network, one_user: false, takes: "" }
    }

    fn usable(&self, _place: &Place) -> Result<(), String> {
        Ok(())
    }

    fn open(&self, _me: NodeId, _place: &Place) -> Result<Box<dyn Port>, String> {
        Ok(Box::new(Scripted(Arc::clone(&self.0))))
    }
}

impl Port for Scripted {
    fn publish(&self, _address: &mut NodeAddress) {}

    fn link(&mut self, _to: &NodeAddress) -> Result<LinkIndex, String> {
        let mut script = lock(&self.0);
        script.asked += 1;
        if script.refuses { Err("another network".to_owned()) } else { Ok(LinkIndex(script.link)) }
    }

    fn send(&mut self, _link: LinkIndex, _head: &[u8], _body: &[IoSlice<'_>], _skip: usize) -> Result<Sent, LinkError> {
        Ok(Sent::Part(0))
    }

    fn poll(&mut self, sink: &mut dyn Sink) -> usize {
        let mut script = lock(&self.0);
        if !core::mem::take(&mut script.fails) {
            return 0;
        }
        let (down, absent) = (LinkIndex(script.link), script.absent);
        script.link += 1;
        drop(script);
        sink.down(down, LinkError::Unreachable { node: them().id, tried: "as told".into(), absent });
        1
    }

    fn short(&self) -> usize {
        64
    }

    fn cut(&mut self, _link: LinkIndex) {}

    fn arm(&mut self) -> bool {
        lock(&self.0).armed += 1;
        false
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn woken(&mut self) {}

    fn explain(&self, _link: LinkIndex) -> Explained {
        Explained::default()
    }
}

/// A driver of what is not there.
struct Missing;

impl MessageDriver for Missing {
    fn name(&self) -> &'static str {
        "missing"
    }

    fn facts(&self) -> Facts {
        Facts { reach: Reach::Network, one_user: false, takes: "" }
    }

    fn usable(&self, _place: &Place) -> Result<(), String> {
        Err("no card".to_owned())
    }

    fn open(&self, _me: NodeId, _place: &Place) -> Result<Box<dyn Port>, String> {
        Err("no card".to_owned())
    }
}

fn them() -> NodeAddress {
    NodeAddress { port: 1, addresses: vec![[10, 0, 0, 1].into()], ..NodeAddress::bare(NodeId::new(7).expect("not 0")) }
}

/// A worker over such a driver, an endpoint, and the peer.
struct Scene {
    script: Arc<Mutex<Script>>,
    worker: Arc<Worker>,
    endpoint: Endpoint,
    peer: PeerId,
}

fn scene() -> Scene {
    let (script, driver) = scripted();
    scene_of(script, &[driver, &Missing])
}

fn scripted() -> (Arc<Mutex<Script>>, &'static dyn MessageDriver) {
    let script = Arc::new(Mutex::new(Script::default()));
    (Arc::clone(&script), Box::leak(Box::new(Scripted(script))))
}

fn scene_of(script: Arc<Mutex<Script>>, drivers: &[&'static dyn MessageDriver]) -> Scene {
    let options = Options { drivers, place: Place::default(), max_spin_ns: 50_000 };
    let worker = Worker::open(&options).expect("opens");
    let endpoint = worker.endpoint(worker.space()).expect("a channel");
    let peer = endpoint.peer(&them());
    Scene { script, worker, endpoint, peer }
}

impl Scene {
    fn asked(&self) -> usize {
        lock(&self.script).asked
    }

    fn poll(&self) -> Option<Completion> {
        let done = self.endpoint.next(true);
        self.worker.idle();
        done
    }

    fn until_asked(&self, times: usize) {
        while self.asked() < times {
            assert_eq!(self.poll(), None);
        }
    }

    /// The link fails; returns all completions.
    fn fail(&self) -> Vec<Completion> {
        lock(&self.script).fails = true;
        let mut done = Vec::new();
        while lock(&self.script).fails {
            done.extend(self.poll());
        }
        done.extend(core::iter::from_fn(|| self.poll()));
        done
    }

    fn receive(&self, from: Option<PeerId>) {
        let receive = Receive { from, tag: Some(1), ignore: 0, parts: &[Piece::EMPTY], token: 1, multi: None };
        self.endpoint.receive(&receive).expect("receives");
    }

    fn send(&self) {
        let parts = &[Piece::EMPTY];
        let send = Send { to: self.peer, tag: Some(1), data: None, parts, token: 2, inject: false, delivery: false };
        self.endpoint.send(&send).expect("sends");
    }
}

#[test]
fn a_receive_that_is_posted_late_is_looked_for_and_again_after_a_failure() {
    let scene = scene();
    // It sleeps, and no receive waits.
    while lock(&scene.script).armed < 3 {
        scene.poll();
    }
    assert_eq!(scene.asked(), 0);
    scene.receive(Some(scene.peer));
    scene.until_asked(1);
    // Nobody sends: that it cannot be reached is no failure of the receive, and no lasting one.
    assert_eq!(scene.fail(), []);
    scene.until_asked(2);
    assert!(scene.worker.lost().is_empty() && scene.endpoint.why(scene.peer).is_none());
}

#[test]
fn who_waits_for_one_that_is_not_there_any_more_hears_of_it() {
    let scene = scene();
    lock(&scene.script).absent = true;
    scene.receive(None);
    scene.until_asked(1);
    assert_eq!(scene.fail(), [], "one for anybody waits on");
    scene.receive(Some(scene.peer));
    scene.until_asked(2);
    let done = scene.fail();
    assert!(matches!(&done[..], [done] if (done.status, done.from) == (Status::Gone, Some(scene.peer))), "{done:?}");
    assert!(matches!(&scene.worker.lost()[..], [(to, LinkError::Unreachable { .. })] if *to == them()));
}

#[test]
fn one_for_anybody_makes_everybody_looked_for() {
    let scene = scene();
    scene.receive(None);
    scene.until_asked(1);
}

#[test]
fn a_peer_is_not_given_up_while_another_driver_tries() {
    let ((first, near), (second, far)) = (scripted(), scripted());
    let mut scene = scene_of(first, &[near, far]);
    scene.send();
    scene.until_asked(1);
    assert_eq!(scene.fail(), []);
    scene.script = second;
    scene.until_asked(1);
    assert_eq!(scene.endpoint.why(scene.peer), None);
    assert_eq!(scene.fail().len(), 1, "no other one is left");
    assert!(matches!(scene.endpoint.why(scene.peer), Some(LinkError::Unreachable { .. })));
}

#[test]
fn who_is_not_awaited_is_looked_for_after_a_while() {
    let scene = scene();
    let other = NodeAddress { id: NodeId::new(8).expect("not 0"), ..them() };
    scene.receive(Some(scene.endpoint.peer(&other)));
    scene.until_asked(2);
}

#[test]
fn who_sends_while_one_looks_has_the_whole_time_and_an_error_that_says_why() {
    let scene = scene();
    scene.receive(Some(scene.peer));
    scene.until_asked(1);
    scene.send();
    // The same link is asked for once more.
    scene.until_asked(2);
    let done = scene.fail();
    assert!(done.iter().all(|done| (done.status, done.from) == (Status::Gone, Some(scene.peer))), "{done:?}");
    assert_eq!(done.len(), 2, "{done:?}");
    let lost = scene.worker.lost();
    assert!(matches!(&lost[..], [(to, LinkError::Unreachable { tried, .. })] if *to == them() && tried == "as told"));
    assert!(scene.worker.lost().is_empty());
}

#[test]
fn a_message_nobody_knows_of_is_taken_back() {
    let scene = scene();
    scene.send();
    assert!(scene.endpoint.cancel_send(2) && !scene.endpoint.cancel_send(2));
    let done = scene.poll().expect("is told");
    assert_eq!((done.status, done.token), (Status::Canceled, 2));
    assert!(scene.worker.flush(Some(0)), "nothing of it waits");
    assert_eq!(scene.fail(), []);
}

#[test]
fn a_driver_that_could_not_be_opened_is_named_where_the_others_have_no_way() {
    let scene = scene();
    lock(&scene.script).refuses = true;
    scene.send();
    let done = core::iter::repeat_with(|| scene.poll()).find_map(|done| done).expect("is told");
    assert_eq!((done.status, done.token), (Status::Gone, 2));
    let lost = scene.worker.lost();
    let [(_, LinkError::Unreachable { tried, .. })] = &lost[..] else { panic!("{lost:?}") };
    assert_eq!(tried, "told: another network; missing: no card");
}

#[test]
fn who_waits_for_one_that_no_driver_takes_hears_of_it() {
    let scene = scene();
    lock(&scene.script).refuses = true;
    scene.receive(None);
    scene.until_asked(2);
    scene.receive(Some(scene.peer));
    let done = core::iter::repeat_with(|| scene.poll()).find_map(|done| done).expect("is told");
    assert_eq!((done.status, done.token, done.from), (Status::Gone, 1, Some(scene.peer)));
    assert_eq!(scene.poll(), None, "one for anybody waits on");
    assert_eq!(scene.worker.lost().len(), 1);
}

#[test]
fn nobody_looks_for_himself() {
    let scene = scene();
    let me = scene.endpoint.peer(&scene.endpoint.address());
    scene.receive(Some(me));
    while lock(&scene.script).armed < 3 {
        scene.poll();
    }
    assert_eq!(scene.asked(), 0);
}
