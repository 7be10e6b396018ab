//! What the cases of ports have in common: processes, which are workers, and ports of theirs that are connected.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use madrigal::ports::{PortAddress, PortType, Ports, ReadMessage, ReceivePort, SendPort};
use madrigal::{Worker, time};
use madrigal_message::worker::Options;
use madrigal_progress::message::MessageDriver;

use crate::place;

/// What a case gets: a driver that joins workers of this process.
pub struct Context {
    pub(super) drivers: Vec<&'static dyn MessageDriver>,
}

/// Makes the context for a driver.
pub fn context(driver: &'static dyn MessageDriver) -> Context {
    Context { drivers: vec![driver] }
}

impl Context {
    pub(super) fn worker(&self) -> Arc<Worker> {
        Worker::open(&Options { drivers: &self.drivers, place: place(), max_spin_ns: 50_000 }).expect("opens")
    }

    pub(super) fn ports(&self) -> Ports {
        Ports::open(&self.worker()).expect("opens")
    }
}

pub(super) fn kind(text: &str) -> PortType {
    text.parse().expect(text)
}

pub(super) fn soon() -> Option<u64> {
    Some(time::now_ns() + 250_000_000_000)
}

pub(super) fn after(ns: u64) -> Option<u64> {
    Some(time::now_ns() + ns)
}

/// The next message, within a time.
pub(super) fn message_of(port: &ReceivePort) -> ReadMessage {
    port.receive(soon()).expect("none is being read").expect("a message")
}

/// No message comes for a time.
pub(super) fn nothing(port: &ReceivePort, ns: u64) {
    assert!(port.receive(Some(time::now_ns() + ns)).expect("none is being read").is_none());
}

/// A process whose thread does what is due until it is dropped.
pub(super) struct Turning<'s> {
    stop: &'s AtomicBool,
}

impl Drop for Turning<'_> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

/// Turns a process's ports on another thread.
pub(super) fn turning<'s, 'e>(scope: &'s thread::Scope<'s, 'e>, ports: &Ports, stop: &'e AtomicBool) -> Turning<'e> {
    let ports = ports.clone();
    scope.spawn(move || {
        while !stop.load(Ordering::Acquire) {
            ports.turn(Some(time::now_ns() + 1_000_000));
        }
    });
    Turning { stop }
}

/// Connects from another thread than the one that answers.
pub(super) fn connected(near: &Ports, to: &PortAddress, of: &str, far: &Ports) -> SendPort {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _turning = turning(scope, far, &stop);
        let mut port = near.send_port("out", &kind(of)).expect("a port");
        port.connect(to, soon()).expect("connects");
        port
    })
}
