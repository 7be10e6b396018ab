//! Send ports and receive ports whose process is killed: the others learn of it, and what had come before is whole and in order.

use std::io::{BufRead as _, BufReader};

use madrigal::ports::{Change, PortAddress, PortError, PortType, Ports};
use madrigal::{Worker, time};
use madrigal_message::worker::Options;
use madrigal_progress::message::MessageDriver;
use madrigal_testkit::noise::Noise;
use madrigal_testkit::{place, stacked};

use super::Other;

/// How often a process is killed.
const ROUNDS: u64 = 10;

fn ports(driver: &'static dyn MessageDriver, directory: &str) -> Ports {
    let place = madrigal::message::Place { directory: directory.to_owned(), ..place() };
    Ports::open(&Worker::open(&Options { drivers: &[driver], place, max_spin_ns: 50_000 }).expect("opens"))
        .expect("opens")
}

/// The process that is killed: sends numbered messages for ever, and throws away what it gets.
pub(crate) fn send_for_ever(driver: &str, directory: &str, to: &str) {
    let ports = ports(stacked::message_driver(driver).expect("a driver"), directory);
    let back = ports.receive_port("back", &PortType::default()).expect("a port");
    println!("{}", back.address());
    let mut out = ports.send_port("out", &PortType::default()).expect("a port");
    let to: PortAddress = to.parse().expect("an address");
    out.connect(&to, Some(time::now_ns() + 250_000_000_000)).expect("connects");
    let mut noise = Noise::new(7);
    for number in 0u64.. {
        let array = vec![number; noise.size(30_000)];
        let mut message = out.message();
        message.write(number);
        message.write_array(&array);
        if out.send(&message).is_err() {
            return;
        }
        drop(back.receive(Some(0)));
    }
}

pub(crate) fn killed(driver: &'static dyn MessageDriver) {
    let directory = place().directory;
    let here = ports(driver, &directory);
    let into = here.receive_port("in", &PortType::default()).expect("a port");
    let mut noise = Noise::new(3);
    for _ in 0..ROUNDS {
        let mut other = Other::start(&format!("ports {} {directory} {}", driver.name(), into.address()));
        let mut reply = here.send_port("reply", &PortType::default()).expect("a port");
        let mut back = String::new();
        let printed = other.0.stdout.take().expect("a pipe");
        BufReader::new(printed).read_line(&mut back).expect("its address");
        let back: PortAddress = back.trim().parse().expect("an address");
        let (mut is_connected, count) = (false, noise.below(300) as u64);
        let mut next = 0;
        while next < count || !is_connected {
            if let Some(mut message) = into.receive(Some(time::now_ns() + 1_000_000)).expect("nothing is being read") {
                assert_eq!(message.read(), Ok(next));
                let array = message.read_vec::<u64>().expect("an array");
                assert!(array.iter().all(|value| *value == next));
                next += 1;
            }
            if !is_connected {
                reply.connect(&back, Some(time::now_ns() + 250_000_000_000)).expect("connects");
                is_connected = true;
            }
        }
        let mut message = reply.message();
        message.write(1u8);
        reply.send(&message).expect("it lives");
        other.kill();
        next = drain(&into, next);
        assert!(next >= count);
        let failed = loop {
            if let Err(error) = reply.send(&message) {
                break error;
            }
            here.turn(Some(time::now_ns() + 1_000_000));
        };
        assert!(matches!(failed, PortError::Lost { .. }), "{failed}");
        assert!(into.connected().is_empty());
    }
}

/// Takes what had come, in order, until the loss is told. A message of which a part is missing is an error.
fn drain(into: &madrigal::ports::ReceivePort, mut next: u64) -> u64 {
    loop {
        if let Some(mut message) = into.receive(Some(time::now_ns() + 1_000_000)).expect("nothing is being read") {
            assert_eq!(message.read(), Ok(next));
            match message.read_vec::<u64>() {
                Ok(array) => assert!(array.iter().all(|value| *value == next)),
                Err(error) => assert!(matches!(error, PortError::Lost { .. }), "{error}"),
            }
            next += 1;
        }
        if into.changes().iter().any(|change| matches!(change, Change::Lost { .. })) {
            return next;
        }
    }
}
