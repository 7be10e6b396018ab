//! Ports whose type names a stack of adapters, in processes that have a driver of messages beside it.
//!
//! Features (docs/features.md): I2, I5, I8, B14.

use std::sync::Arc;
use std::thread;

use madrigal::ports::{PortAddress, PortError, Ports, ReceivePort, SendPort};
use madrigal::{Worker, stacked_messages, time};

use super::common::{Context, connected, kind, message_of, soon, turning};
use super::hostile::Stranger;
use crate::Case;
use crate::vlinks::certificates;

/// The suite.
pub static CASES: &[Case<Context>] = &[
    Case { name: "ports_of_a_stack_are_carried_by_it_alone", run: carried },
    Case { name: "another_stack_is_refused_with_the_key", run: other_stacks },
    Case { name: "a_stack_that_cannot_be_is_refused_at_open", run: no_stack },
    Case { name: "who_names_the_stack_and_comes_otherwise_is_refused", run: comes_otherwise },
    Case { name: "a_process_connects_to_its_own", run: own },
];

/// All adapters.
const ALL: &str = "stack=adoc/tls/stripe(2)/tcp";

/// A process with stacks.
fn process(c: &Context) -> (Ports, Arc<Worker>) {
    let worker = c.worker();
    worker.set_stacks(Arc::new(|text| Ok(Box::new(stacked_messages(text, Some(certificates()))?))));
    (Ports::open(&worker).expect("opens"), worker)
}

/// Sends a number and a long array, and reads them.
fn exchange(out: &mut SendPort, near: &Ports, into: &ReceivePort) {
    let long: Vec<u64> = (0..200_000).collect();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut message = out.message();
            message.write(7u32);
            message.write_array(&long);
            out.send(&message).expect("is sent");
            assert!(near.flush(soon()));
        });
        let mut message = message_of(into);
        assert_eq!(message.read(), Ok(7u32));
        assert_eq!(message.read_vec(), Ok(long.clone()));
        message.finish().expect("the end");
    });
}

/// The drivers by which a process reaches others, and frames that came by each.
fn paths(worker: &Worker) -> Vec<&'static str> {
    let mut paths: Vec<_> = worker.reached().into_iter().filter_map(|reached| Some(reached.path?.0)).collect();
    paths.sort_unstable();
    paths
}

fn carried(c: &Context) {
    let ((near, worker), (far, other)) = (process(c), process(c));
    let plain = far.receive_port("plain", &kind("")).expect("a port");
    let all = far.receive_port("all", &kind(ALL)).expect("a port");
    assert_ne!(plain.address().node.id, all.address().node.id);
    let mut by_all = connected(&near, &all.address(), ALL, &far);
    assert_eq!(paths(&worker), ["adoc/tls/stripe(2)/tcp"]);
    exchange(&mut by_all, &near, &all);
    let mut by_plain = connected(&near, &plain.address(), "", &far);
    exchange(&mut by_plain, &near, &plain);
    exchange(&mut by_all, &near, &all);
    // The same two processes, by two ways.
    for worker in [worker, other] {
        let paths = paths(&worker);
        assert!(paths.len() == 2 && paths.contains(&"adoc/tls/stripe(2)/tcp"), "{paths:?}");
    }
    // A text with a number keeps the stack that is open.
    let again = far.receive_port("again", &kind(ALL)).expect("a port");
    assert_eq!(again.address().node, all.address().node);
}

fn other_stacks(c: &Context) {
    let ((near, _worker), (far, _other)) = (process(c), process(c));
    let into = far.receive_port("in", &kind("stack=stripe(2)/tcp")).expect("a port");
    let plain = far.receive_port("plain", &kind("")).expect("a port");
    for (ours, to, told) in [
        ("stack=adoc/tcp", &into, "the send port has stack=adoc/tcp, the receive port stack=stripe(2)/tcp"),
        ("", &into, "the send port has no stack, the receive port stack=stripe(2)/tcp"),
        ("stack=adoc/tcp", &plain, "the send port has stack=adoc/tcp, the receive port no stack"),
    ] {
        let mut out = near.send_port("out", &kind(ours)).expect("a port");
        let refused = out.connect(&to.address(), soon());
        assert_eq!(refused, Err(PortError::Refused { to: to.address().name, why: told.to_owned() }));
    }
    // All else is compared as ever, by the process of the receive port.
    let stop = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        let _turning = turning(scope, &far, &stop);
        let mut out = near.send_port("out", &kind("stack=stripe(2)/tcp, unit=metre")).expect("a port");
        let refused = out.connect(&into.address(), soon()).expect_err("another type").to_string();
        assert!(refused.contains("the send port has unit=metre, the receive port no unit"), "{refused}");
    });
}

fn no_stack(c: &Context) {
    let (ports, _worker) = process(c);
    for (stack, why) in [
        ("gzip/tcp", "there is no `gzip`"),
        ("tls/adoc/tcp", "what is enciphered cannot be compressed"),
        ("stripe(33)/tcp", "N from 1 to 32"),
        ("stripe(2)/tls/tcp", "write `tls/stripe(N)`"),
        ("adoc", "a stack ends with `tcp`"),
        ("tcp", "the driver alone needs no stack"),
    ] {
        let kind = kind(&format!("stack={stack}"));
        let told = ports.receive_port("in", &kind).map(drop).expect_err(stack).to_string();
        assert!(told.contains(why), "{stack}: {told}");
        assert_eq!(ports.send_port("out", &kind).map(drop).expect_err(stack).to_string(), told);
    }
    let bare = Ports::open(&c.worker()).expect("opens");
    let told = bare.receive_port("in", &kind("stack=adoc/tcp")).map(drop).expect_err("none").to_string();
    assert_eq!(told, "`adoc/tcp`: messages of this program have no stacks");
}

/// Nothing of such a port goes in the clear because somebody asks for it in the clear.
fn comes_otherwise(c: &Context) {
    let (far, _other) = process(c);
    let into = far.receive_port("in", &kind("stack=tls/tcp")).expect("a port");
    let plain = far.receive_port("plain", &kind("")).expect("a port");
    let stranger = Stranger::of(c, &PortAddress { name: "in".to_owned(), node: plain.address().node });
    let answer = stranger.asks_for("in", "stack=tls/tcp", &far);
    assert_eq!(answer.as_deref(), Some("the send port does not come by stack=tls/tcp"));
    assert!(into.connected().is_empty());
}

fn own(c: &Context) {
    let loopback = madrigal::message_driver("loopback").expect("always there");
    let (ports, _worker) = process(&Context { drivers: [&c.drivers[..], &[loopback]].concat() });
    let into = ports.receive_port("in", &kind("stack=adoc/tcp")).expect("a port");
    let mut out = ports.send_port("out", &kind("stack=adoc/tcp")).expect("a port");
    out.connect(&into.address(), Some(time::now_ns() + 250_000_000_000)).expect("connects");
    let mut message = out.message();
    message.write(5u8);
    out.send(&message).expect("is sent");
    assert_eq!(message_of(&into).read(), Ok(5u8));
}
