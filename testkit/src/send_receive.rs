//! The promises of send ports and receive ports, over any driver of messages: processes are workers, each on a thread of its own.
//!
//! Features (docs/features.md): I1, I2, I3, I13, L14.

pub mod carried;
mod common;
mod hostile;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use madrigal::ports::{BULK, Change, Item, Number, Order, PortAddress, PortError, Ports, ReadMessage, SendPort};
use madrigal::time;

use crate::Case;
use crate::noise::Noise;
use common::{connected, kind, message_of, nothing, soon, turning};

pub use common::{Context, context};

/// The suite.
pub static CASES: &[Case<Context>] = &[
    Case { name: "every_kind_of_item_arrives_in_either_order_of_bytes", run: every_item },
    Case { name: "ports_of_other_types_and_shapes_are_refused", run: refused },
    Case { name: "what_is_read_otherwise_is_told_and_loses_nothing_else", run: read_otherwise },
    Case { name: "one_port_sends_to_many", run: to_many },
    Case { name: "many_ports_send_to_one_and_each_in_order", run: from_many },
    Case { name: "many_to_many", run: many_to_many },
    Case { name: "ends_that_go_are_told", run: ends },
    Case { name: "a_receiver_that_closes_at_once_is_told", run: hostile::closes_at_once },
    Case { name: "upcalls_answer", run: upcalls },
    Case { name: "two_that_send_much_to_each_other_read_meanwhile", run: both_send },
    Case { name: "an_upcall_may_be_replaced_and_may_panic", run: odd_upcalls },
    Case { name: "nobody_waits_beyond_a_deadline", run: deadlines },
    Case { name: "what_is_no_message_ends_its_connection_only", run: hostile::no_messages },
    Case { name: "who_gives_a_head_late_keeps_nobody_beyond_a_deadline", run: hostile::late_head },
    Case { name: "a_flood_of_calls_keeps_nobody_beyond_a_deadline", run: hostile::flood },
];

fn every_item(c: &Context) {
    for order in [Order::Little, Order::Big] {
        let (near, far) = (Ports::open_with(&c.worker(), order).expect("opens"), c.ports());
        let into = far.receive_port("in", &kind("unit=metre")).expect("a port");
        let mut out = connected(&near, &into.address(), "unit=metre", &far);
        let long: Vec<f64> = (0..100_000).map(|n| f64::from(n) / 7.0).collect();
        let shorts: Vec<i16> = (0..5000).map(|n| (n * 13 - 30_000) as i16).collect();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut message = out.message();
                message.write(-7i8);
                message.write(7u16);
                message.write(u64::MAX - 1);
                message.write(1.5f32);
                message.write_text("träge Größe");
                message.begin_record();
                message.write_array(&[1i32, -2, 3]);
                message.write_array(&long);
                message.begin_record();
                message.end_record();
                message.end_record();
                message.write_copy(&shorts);
                message.write_array::<u8>(&[]);
                let finished = out.send(&message).expect("is sent");
                assert_eq!(finished.receivers, 1);
                assert!(finished.bytes > 810_000, "{finished:?}");
                assert!(near.flush(soon()));
            });
            let mut message = message_of(&into);
            assert_eq!(into.receive(Some(0)).err(), Some(PortError::Busy));
            assert_eq!((message.from(), message.number()), ("out", 1));
            assert_eq!(message.peek(), Ok(Item::Number(Number::I8)));
            assert_eq!(message.read(), Ok(-7i8));
            assert_eq!(message.read(), Ok(7u16));
            assert_eq!(message.read(), Ok(u64::MAX - 1));
            assert_eq!(message.read(), Ok(1.5f32));
            assert_eq!(message.read_text().as_deref(), Ok("träge Größe"));
            message.begin_record().expect("a record");
            assert_eq!(message.read_vec(), Ok(vec![1i32, -2, 3]));
            let mut got = vec![0f64; long.len()];
            message.read_array(&mut got).expect("an array");
            assert_eq!(got, long);
            message.begin_record().expect("a record");
            message.end_record().expect("its end");
            message.end_record().expect("its end");
            assert_eq!(message.read_vec(), Ok(shorts.clone()));
            assert_eq!(message.peek(), Ok(Item::Array(Number::U8, 0)));
            assert_eq!(message.read_vec::<u8>(), Ok(vec![]));
            message.finish().expect("the end");
        });
    }
}

fn refused(c: &Context) {
    let (near, far) = (c.ports(), c.ports());
    let into = far.receive_port("in", &kind("unit=metre, connection=one-to-one")).expect("a port");
    assert_eq!(far.receive_port("in", &kind("")).err(), Some(PortError::InUse("in".to_owned())));
    assert!(matches!(far.receive_port("a\nb", &kind("")).err(), Some(PortError::Name(_))));
    let text = into.address().to_string();
    assert_eq!(text.parse::<PortAddress>().as_ref(), Ok(&into.address()));
    assert!("in@12".parse::<PortAddress>().is_err());
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _turning = turning(scope, &far, &stop);
        let ask = |of: &str, to: &PortAddress| {
            let mut port = near.send_port("out", &kind(of)).expect("a port");
            port.connect(to, soon()).map(|()| port)
        };
        let why = |of: &str, to: &PortAddress| ask(of, to).err().expect("refused").to_string();
        let told = why("unit=foot, connection=one-to-one", &into.address());
        assert!(told.contains("the send port has unit=foot, the receive port unit=metre"), "{told}");
        let told = why("connection=one-to-one", &into.address());
        assert!(told.contains("the send port has no unit, the receive port unit=metre"), "{told}");
        let none = PortAddress { name: "none".to_owned(), ..into.address() };
        assert!(why("", &none).contains("there is no receive port `none`"));
        into.set_enabled(false);
        assert!(why("unit=metre, connection=one-to-one", &into.address()).contains("takes no connections now"));
        into.set_enabled(true);
        let mut first = ask("unit=metre, connection=one-to-one", &into.address()).expect("connects");
        assert!(why("unit=metre, connection=one-to-one", &into.address()).contains("has its one connection"));
        let other = PortAddress { name: "other".to_owned(), ..into.address() };
        assert_eq!(first.connect(&other, soon()), Err(PortError::One("one-to-one".to_owned())));
        assert_eq!(first.connect(&into.address(), soon()), Ok(()));
        assert_eq!(first.connected(), [into.address()]);
        drop(first);
        // It leaves behind its messages, and nobody has received these.
        let again = (0..20).find_map(|_| {
            thread::sleep(std::time::Duration::from_millis(1));
            ask("unit=metre, connection=one-to-one", &into.address()).ok()
        });
        assert!(again.is_none());
    });
}

/// The second of three messages is read wrongly, in each way; what is not read is thrown away, long arrays, too.
fn read_otherwise(c: &Context) {
    let (near, far) = (c.ports(), c.ports());
    let into = far.receive_port("in", &kind("")).expect("a port");
    let mut out = connected(&near, &into.address(), "", &far);
    let long = vec![9u32; BULK];
    thread::scope(|scope| {
        let sender = scope.spawn(|| {
            for number in 0..30u64 {
                let mut message = out.message();
                message.write(number);
                message.write_array(&long);
                message.write_text("end");
                message.write_array(&long);
                out.send(&message).expect("is sent");
            }
            assert!(near.flush(soon()));
        });
        for number in 0..30u64 {
            let mut message = message_of(&into);
            assert_eq!(message.read(), Ok(number));
            match number % 5 {
                0 => {
                    let told = message.read::<u8>().expect_err("an array is next").to_string();
                    assert_eq!(told, "one u8 is read, and an array of 4096 u32 is next");
                }
                1 => {
                    let told = message.read_array(&mut [0u32; 7]).expect_err("another length").to_string();
                    assert_eq!(told, "an array of 7 u32 is read, and an array of 4096 u32 is next");
                    assert_eq!(message.read_vec(), Ok(long.clone()));
                }
                2 => assert!(message.read_text().is_err() && message.begin_record().is_err()),
                3 => {
                    assert_eq!(message.read_vec(), Ok(long.clone()));
                    let told = message.finish().expect_err("more is there").to_string();
                    assert_eq!(told, "the end of the message is read, and a text of 3 bytes is next");
                    continue;
                }
                _ => {}
            }
            drop(message);
        }
        // The last send waits for what is thrown away.
        while !sender.is_finished() {
            far.turn(Some(time::now_ns() + 1_000_000));
        }
    });
    assert!(into.changes().iter().all(|change| matches!(change, Change::Connected { .. })));
}

/// Sends numbered messages of all sizes.
fn send_numbered(port: &mut SendPort, sender: u64, count: u64) {
    let mut noise = Noise::new(sender + 1);
    for number in 0..count {
        let array = vec![sender ^ number; noise.size(20_000)];
        let mut message = port.message();
        message.write(sender);
        message.write(number);
        message.write_array(&array);
        port.send(&message).expect("is sent");
    }
}

/// Reads one; its sender and number.
fn read_numbered(mut message: ReadMessage) -> (u64, u64) {
    let (sender, number) = (message.read::<u64>().expect("its sender"), message.read::<u64>().expect("its number"));
    assert_eq!(message.number(), number + 1);
    let array = message.read_vec::<u64>().expect("an array");
    assert!(array.iter().all(|value| *value == sender ^ number));
    message.finish().expect("the end");
    (sender, number)
}

const MESSAGES: u64 = 60;

fn to_many(c: &Context) {
    let near = c.ports();
    let fars: Vec<Ports> = (0..4).map(|_| c.ports()).collect();
    let intos: Vec<_> =
        fars.iter().map(|far| far.receive_port("in", &kind("connection=one-to-many")).expect("a port")).collect();
    let addresses: Vec<_> = intos.iter().map(|into| into.address()).collect();
    thread::scope(|scope| {
        for into in intos {
            scope.spawn(move || {
                for number in 0..MESSAGES {
                    assert_eq!(read_numbered(message_of(&into)), (3, number));
                }
            });
        }
        let mut port = near.send_port("out", &kind("connection=one-to-many")).expect("a port");
        addresses.iter().for_each(|to| port.connect(to, soon()).expect("connects"));
        send_numbered(&mut port, 3, MESSAGES);
        // Nothing leaves while nobody calls anything.
        assert!(near.flush(soon()));
    });
}

fn from_many(c: &Context) {
    let far = c.ports();
    let into = far.receive_port("in", &kind("connection=many-to-one")).expect("a port");
    let to = into.address();
    thread::scope(|scope| {
        for sender in 0..4 {
            let (near, to) = (c.ports(), &to);
            scope.spawn(move || {
                let mut port =
                    near.send_port(&format!("out{sender}"), &kind("connection=many-to-one")).expect("a port");
                port.connect(to, soon()).expect("connects");
                send_numbered(&mut port, sender, MESSAGES);
                drop(port);
                assert!(near.flush(soon()));
            });
        }
        let mut next = [0; 4];
        for _ in 0..4 * MESSAGES {
            let (sender, number) = read_numbered(message_of(&into));
            assert_eq!(number, next[sender as usize], "of {sender}");
            next[sender as usize] += 1;
        }
        let mut changes = Vec::new();
        while changes.len() < 8 {
            nothing(&into, 1_000_000);
            changes.extend(into.changes());
        }
        assert_eq!(changes.iter().filter(|change| matches!(change, Change::Left { .. })).count(), 4, "{changes:?}");
    });
}

fn many_to_many(c: &Context) {
    let all: Vec<Ports> = (0..3).map(|_| c.ports()).collect();
    let intos: Vec<_> = all.iter().map(|ports| ports.receive_port("in", &kind("")).expect("a port")).collect();
    let addresses: Vec<_> = intos.iter().map(|into| into.address()).collect();
    let got = AtomicU64::new(0);
    thread::scope(|scope| {
        for (me, (ports, into)) in all.iter().zip(intos).enumerate() {
            let (addresses, got) = (&addresses, &got);
            scope.spawn(move || {
                let mut port = ports.send_port("out", &kind("")).expect("a port");
                // A driver that leaves the process does not lead back into it.
                for (_, to) in addresses.iter().enumerate().filter(|(other, _)| *other != me) {
                    port.connect(to, soon()).expect("connects");
                }
                // Short ones, so that nobody waits for a receiver that itself sends.
                for number in 0..MESSAGES {
                    let mut message = port.message();
                    message.write(me as u64);
                    message.write(number);
                    message.write_copy(&[me as u64 ^ number; 20]);
                    port.send(&message).expect("is sent");
                }
                let mut next = [0; 3];
                while next.iter().sum::<u64>() < 2 * MESSAGES {
                    let (sender, number) = read_numbered(message_of(&into));
                    assert_eq!(number, next[sender as usize]);
                    next[sender as usize] += 1;
                    got.fetch_add(1, Ordering::Relaxed);
                }
                // The others may still need this process's answers.
                while got.load(Ordering::Relaxed) < 6 * MESSAGES {
                    ports.turn(Some(time::now_ns() + 1_000_000));
                }
            });
        }
    });
}

fn ends(c: &Context) {
    let (near, far) = (c.ports(), c.ports());
    let into = far.receive_port("in", &kind("")).expect("a port");
    let other = far.receive_port("other", &kind("")).expect("a port");
    let to = into.address();
    let mut out = connected(&near, &to, "", &far);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _turning = turning(scope, &far, &stop);
        out.connect(&other.address(), soon()).expect("connects");
    });
    let mut message = out.message();
    message.write(1u8);
    out.send(&message).expect("is sent");
    out.disconnect(&to).expect("leaves");
    assert!(near.flush(soon()));
    assert_eq!(out.disconnect(&to), Err(PortError::NotConnected("in".to_owned())));
    // What was sent before is received, and then the end is told.
    assert_eq!(message_of(&into).read(), Ok(1u8));
    let mut changes = Vec::new();
    while !changes.contains(&Change::Left { from: "out".to_owned() }) {
        nothing(&into, 1_000_000);
        changes.extend(into.changes());
    }
    assert_eq!(changes.len(), 2, "{changes:?}");
    // The receiver goes, and the sender learns why.
    drop(other);
    let lost = loop {
        far.turn(Some(0));
        if let Some(lost) = out.take_lost().pop() {
            break lost;
        }
    };
    assert!(lost.0.name == "other" && lost.1.to_string().contains("the receive port is closed"), "{lost:?}");
    let mut message = out.message();
    message.write(1u8);
    assert!(matches!(out.send(&message), Err(PortError::NotConnected(_))));
}

/// A server whose upcall answers, on a thread that only turns.
fn upcalls(c: &Context) {
    let (client, server) = (c.ports(), c.ports());
    let questions = server.receive_port("questions", &kind("receive=upcall")).expect("a port");
    let answers = client.receive_port("answers", &kind("")).expect("a port");
    let (to, back) = (questions.address(), answers.address());
    let mut reply = {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let _turning = turning(scope, &client, &stop);
            let mut reply = server.send_port("reply", &kind("")).expect("a port");
            reply.connect(&back, soon()).expect("connects");
            reply
        })
    };
    let busy = AtomicBool::new(false);
    questions.on_message(move |mut message| {
        assert!(!busy.swap(true, Ordering::AcqRel), "one after the other");
        let numbers = message.read_vec::<f64>().expect("numbers");
        message.finish().expect("the end");
        let mut answer = reply.message();
        answer.write(numbers.iter().sum::<f64>());
        reply.send(&answer).expect("is sent");
        busy.store(false, Ordering::Release);
    });
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _turning = [turning(scope, &server, &stop), turning(scope, &server, &stop)];
        let mut ask = client.send_port("ask", &kind("receive=upcall")).expect("a port");
        ask.connect(&to, soon()).expect("connects");
        for number in 1..=200 {
            let numbers = vec![f64::from(number); number as usize * 10];
            let mut message = ask.message();
            message.write_array(&numbers);
            ask.send(&message).expect("is sent");
            let mut answer = message_of(&answers);
            assert_eq!(answer.read(), Ok(f64::from(number) * f64::from(number * 10)));
        }
    });
    drop(questions);
}

/// More than may be unread, from each of two processes whose upcalls read: each waits for room at the other.
fn both_send(c: &Context) {
    const COUNT: u64 = 2500;
    let both = [c.ports(), c.ports()];
    let intos = both.each_ref().map(|ports| ports.receive_port("in", &kind("receive=upcall")).expect("a port"));
    let read: [Arc<AtomicU64>; 2] = Default::default();
    for (into, read) in intos.iter().zip(&read) {
        let read = Arc::clone(read);
        into.on_message(move |_| {
            read.fetch_add(1, Ordering::Relaxed);
        });
    }
    let outs = [0, 1].map(|at| connected(&both[at], &intos[1 - at].address(), "receive=upcall", &both[1 - at]));
    let text = "x".repeat(40_000);
    thread::scope(|scope| {
        for (mut out, ports) in outs.into_iter().zip(&both) {
            let (text, read) = (&text, &read);
            scope.spawn(move || {
                for _ in 0..COUNT {
                    let mut message = out.message();
                    message.write_text(text);
                    out.send(&message).expect("is sent");
                }
                while read.iter().any(|read| read.load(Ordering::Relaxed) < COUNT) {
                    ports.turn(Some(time::now_ns() + 1_000_000));
                }
            });
        }
    });
}

/// One that sets another one while it runs, which panics while a send waits: the send has the panic once nothing is lent any more.
fn odd_upcalls(c: &Context) {
    let (near, far) = (c.ports(), c.ports());
    let into = Arc::new(near.receive_port("in", &kind("")).expect("a port"));
    let mut out = connected(&far, &into.address(), "", &near);
    let sends = |out: &mut SendPort, number: u32| {
        let mut message = out.message();
        message.write(number);
        out.send(&message).expect("is sent");
        assert!(far.flush(soon()));
    };
    let (its, ran) = (Arc::clone(&into), Arc::new(AtomicU64::new(0)));
    let count = Arc::clone(&ran);
    into.on_message(move |mut message| {
        assert_eq!(message.read(), Ok(1u32));
        count.fetch_add(1, Ordering::Relaxed);
        its.on_message(|_| panic!("as it is wanted"));
    });
    sends(&mut out, 1);
    while ran.load(Ordering::Relaxed) == 0 {
        near.turn(Some(0));
    }
    // The receiver of a long array takes it late, so that the send waits, and runs the upcall.
    let (late, long) = (far.receive_port("late", &kind("")).expect("a port"), vec![7u64; 1 << 20]);
    let mut reply = connected(&near, &late.address(), "", &far);
    sends(&mut out, 2);
    let told = thread::scope(|scope| {
        let reader = scope.spawn(|| {
            thread::sleep(std::time::Duration::from_millis(50));
            assert_eq!(message_of(&late).read_vec(), Ok(long.clone()));
        });
        let mut message = reply.message();
        message.write_array(&long);
        let mut told = catch_unwind(AssertUnwindSafe(|| reply.send(&message))).err();
        // It was all taken before the wait, or what was taken goes on.
        while told.is_none() || !reader.is_finished() {
            let turned = catch_unwind(AssertUnwindSafe(|| near.turn(Some(time::now_ns() + 1_000_000))));
            told = told.or(turned.err());
        }
        told.expect("the panic")
    });
    assert_eq!(told.downcast_ref::<&str>(), Some(&"as it is wanted"));
    // It is not called again: the port is read as others are.
    sends(&mut out, 3);
    assert_eq!(message_of(&into).read(), Ok(3u32));
    let text = "x".repeat((64 << 20) + 1);
    let mut message = out.message();
    message.write_text(&text);
    assert!(matches!(out.send(&message), Err(PortError::TooLong(_))));
}

fn deadlines(c: &Context) {
    let (near, far) = (c.ports(), c.ports());
    let into = far.receive_port("in", &kind("")).expect("a port");
    nothing(&into, 0);
    nothing(&into, 2_000_000);
    // Nobody answers.
    let mut out = near.send_port("out", &kind("")).expect("a port");
    let asked = out.connect(&into.address(), Some(time::now_ns() + 5_000_000));
    assert_eq!(asked, Err(PortError::TimedOut("in".to_owned())));
    // The answer comes too late, and the connection is given back.
    let mut changes = Vec::new();
    while changes.len() < 2 {
        near.turn(Some(0));
        nothing(&into, 1_000_000);
        changes.extend(into.changes());
    }
    assert!(into.connected().is_empty(), "{changes:?}");
    // Nobody turns what is closed.
    thread::scope(|scope| {
        let turning = scope.spawn(|| near.turn(None));
        near.close();
        turning.join().expect("ends");
    });
}
