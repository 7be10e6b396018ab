//! What the cases of mailboxes have in common: processes, which are workers, each turned by a thread of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use madrigal::mailbox::{Buffer, Filter, Header, Held, Kind, Letter, Limits, Mailbox, Mailboxes, Policy};
use madrigal::{Worker, time};
use madrigal_message::worker::Options;
use madrigal_progress::message::MessageDriver;

use crate::place;

/// What a case gets: a driver that joins workers of this process.
pub struct Context {
    drivers: Vec<&'static dyn MessageDriver>,
}

/// Makes the context for a driver.
pub fn context(driver: &'static dyn MessageDriver) -> Context {
    Context { drivers: vec![driver] }
}

impl Context {
    pub(super) fn worker(&self) -> Arc<Worker> {
        Worker::open(&Options { drivers: &self.drivers, place: place(), max_spin_ns: 50_000 }).expect("opens")
    }

    /// A process whose thread does what is due until it is dropped.
    pub(super) fn process(&self) -> Process {
        self.limited(Limits::default())
    }

    pub(super) fn limited(&self, limits: Limits) -> Process {
        let all = Mailboxes::open_with(&self.worker(), limits).expect("opens");
        let stop = Arc::new(AtomicBool::new(false));
        let (turned, stopped) = (all.clone(), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Acquire) {
                turned.turn(Some(time::now_ns() + 1_000_000));
            }
        });
        Process { all, stop, thread: Some(thread) }
    }

    /// As many.
    pub(super) fn processes<const N: usize>(&self) -> [Process; N] {
        core::array::from_fn(|_| self.process())
    }
}

/// A process, as far as these cases go.
pub(super) struct Process {
    pub(super) all: Mailboxes,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Process {
    pub(super) fn mailbox(&self, name: &str, places: u32) -> Mailbox {
        self.all.mailbox(name, places).expect("a mailbox")
    }

    /// What lies there, once that is so: what was let go of is told by messages.
    pub(super) fn comes_to_hold(&self, held: Held) {
        while self.all.held() != held {
            thread::yield_now();
        }
    }

    /// The same of nothing, nor is anything on its way from there.
    pub(super) fn comes_to_hold_nothing(&self) {
        self.comes_to_hold(Held::default());
        assert!(self.all.flush(soon()));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

pub(super) fn soon() -> Option<u64> {
    Some(time::now_ns() + 250_000_000_000)
}

pub(super) fn after(ns: u64) -> Option<u64> {
    Some(time::now_ns() + ns)
}

pub(super) fn letter(tag: u64, policy: Policy) -> Letter {
    Letter { tag, kind: Kind::Data, policy }
}

pub(super) fn bytes(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (seed.wrapping_mul(31) ^ at ^ (at >> 8)) as u8).collect()
}

/// The next message, within a time.
pub(super) fn next(mailbox: &Mailbox) -> Header {
    mailbox.wait(&Filter::default(), soon()).expect("it is open").expect("a message")
}

/// The data of the next message.
pub(super) fn got(mailbox: &Mailbox) -> (Header, Buffer) {
    let header = next(mailbox);
    let buffer = mailbox.get(header.id, soon()).expect("its data");
    assert_eq!(buffer.len() as u64, header.size);
    (header, buffer)
}
