//! Mailboxes of several processes, of which any is killed at any moment: the others learn of it, and what came is right and in order. A
//! shared buffer among eight: one copy, which nobody writes, gone with the last who has it.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::ChildStdout;

use madrigal::mailbox::{
    Buffer, Change, Data, Draft, Filter, Kind, Letter, MailError, Mailbox, Mailboxes, Policy, PortAddress,
};
use madrigal::{Worker, time};
use madrigal_message::worker::Options;
use madrigal_progress::message::MessageDriver;
use madrigal_testkit::noise::Noise;
use madrigal_testkit::{place, stacked};

use super::Other;

/// How often a process is killed; `MADRIGAL_TEST_KILLS` for more.
const ROUNDS: u64 = 12;
/// Bytes of the buffer that eight share.
const SHARED: usize = 16 << 20;

fn mailboxes(driver: &str, directory: &str) -> Mailboxes {
    let driver = stacked::message_driver(driver).expect("a driver");
    let place = madrigal::message::Place { directory: directory.to_owned(), ..place() };
    let worker = Worker::open(&Options { drivers: &[driver], place, max_spin_ns: 50_000 }).expect("opens");
    Mailboxes::open(&worker).expect("opens")
}

fn soon() -> Option<u64> {
    Some(time::now_ns() + 250_000_000_000)
}

fn bytes(tag: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (tag.wrapping_mul(37) ^ at ^ (at >> 8)) as u8).collect()
}

/// The other process's part.
pub(crate) fn part(words: &[&str]) {
    let [role, driver, directory, others @ ..] = words else { panic!("unclear: {words:?}") };
    let all = mailboxes(driver, directory);
    let own = all.mailbox(role, 8).expect("a mailbox");
    println!("{}", own.address());
    let others: Vec<PortAddress> =
        others.iter().filter(|at| !at.is_empty()).map(|at| at.parse().expect("an address")).collect();
    match *role {
        "store" => {
            all.offer(64 << 20);
            loop {
                all.turn(None);
            }
        }
        "receiver" => receive_for_ever(&own),
        "sender" => send_for_ever(&all, &own, &others),
        "reader" => read_shared(&all, &own),
        "vandal" => write_shared(&own),
        _ => panic!("unclear: {words:?}"),
    }
}

/// Gets or drops whatever comes.
fn receive_for_ever(own: &Mailbox) {
    let mut noise = Noise::new(3);
    loop {
        let Ok(Some(header)) = own.wait(&Filter::default(), soon()) else { continue };
        if noise.below(3) > 0
            && let Ok(data) = own.get(header.id, soon())
        {
            assert!(data[..] == bytes(header.tag, data.len()), "what came is right");
        } else {
            let _ = own.discard(header.id);
        }
    }
}

/// Puts numbered messages, of which the first receiver gets all, with data anywhere. Others may be killed meanwhile.
fn send_for_ever(all: &Mailboxes, own: &Mailbox, others: &[PortAddress]) {
    let [to, other, store] = others else { panic!("three others") };
    all.add_store(store);
    let mut noise = Noise::new(u64::from(std::process::id()));
    let mut tag = 0;
    loop {
        let policy = [Policy::Receiver, Policy::Sender, Policy::Elsewhere][noise.below(3)];
        let letter = Letter { tag, kind: Kind::Data, policy };
        let data = bytes(tag, 1 + noise.size(100_000));
        let mut draft = Draft::new(data.len()).expect("memory");
        draft.bytes_mut().copy_from_slice(&data);
        let buffer = Buffer::from(draft.seal().expect("seals"));
        let data = if noise.below(3) == 0 { Data::Buffer(&buffer) } else { Data::Bytes(&buffer) };
        let receivers = [to.clone(), other.clone()];
        let receivers = if noise.below(2) == 0 { &receivers[..] } else { &receivers[..1] };
        match own.put(receivers, letter, data, soon()) {
            Ok(_) => tag += 1,
            Err(MailError::Lost { to: lost, .. }) if lost == to.name => return,
            Err(MailError::Lost { .. } | MailError::NoStore(_) | MailError::NoStorage { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn started(task: &str) -> (Other, PortAddress, BufReader<ChildStdout>) {
    let mut other = Other::start(task);
    let mut printed = BufReader::new(other.0.stdout.take().expect("a pipe"));
    let mut line = String::new();
    printed.read_line(&mut line).expect("its address");
    (other, line.trim().parse().expect("an address"), printed)
}

/// One of three is killed: the sender, the third process that keeps data, the other receiver.
pub(crate) fn killed(driver: &'static dyn MessageDriver) {
    let directory = place().directory;
    let rounds = std::env::var("MADRIGAL_TEST_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(ROUNDS);
    let here = mailboxes(driver.name(), &directory);
    let into = here.mailbox("in", 8).expect("a mailbox");
    let mut noise = Noise::new(u64::from(std::process::id()));
    let mut told: HashMap<&str, usize> = HashMap::new();
    for round in 0..rounds {
        let start = |role: &str, more: &str| started(&format!("mail {role} {} {directory} {more}", driver.name()));
        let (store, store_at, _) = start("store", "");
        let (receiver, receiver_at, _) = start("receiver", "");
        let all = format!("{} {receiver_at} {store_at}", into.address());
        let (sender, sender_at, _) = start("sender", &all);
        let mut sequence = 0;
        // One that has sent nothing may be killed before it is known.
        take(&into, &mut sequence, 1 + noise.below(60) as u64, &mut told);
        let (mut sender, mut others) = (Some(sender), vec![Some(store), Some(receiver)]);
        let victim = (round % 3) as usize;

        if victim < 2 {
            others[victim].take().into_iter().for_each(Other::kill);
            // The sender goes on without.
            take(&into, &mut sequence, 30, &mut told);
        }
        sender.take().into_iter().for_each(Other::kill);
        drain(&into, &sender_at, &mut sequence, &mut told);
        others.into_iter().flatten().for_each(Other::kill);
    }
    assert_eq!(here.held(), Default::default(), "nothing is left");
    assert!(told["right"] > 0, "{told:?}");
}

/// Takes so many messages, each the one behind the last.
fn take(into: &Mailbox, sequence: &mut u64, count: u64, told: &mut HashMap<&'static str, usize>) {
    for _ in 0..count {
        let header = into.wait(&Filter::default(), soon()).expect("it is open").expect("a message");
        *sequence += 1;
        assert_eq!(header.sequence, *sequence);
        match into.get(header.id, soon()) {
            Ok(data) => {
                assert!(header.size == 0 || data[..] == bytes(header.tag, header.size as usize), "what came is right");
                *told.entry("right").or_default() += 1;
            }
            Err(MailError::DataLost { .. }) => {
                into.discard(header.id).expect("it stays");
                *told.entry("lost").or_default() += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Takes what had come, until the loss of its sender is told.
fn drain(into: &Mailbox, from: &PortAddress, sequence: &mut u64, told: &mut HashMap<&'static str, usize>) {
    let is_it = |change: &Change| matches!(change, Change::Lost { from: lost, .. } if lost.parse::<PortAddress>().is_ok_and(|lost| lost.node.id == from.node.id));
    let mut is_lost = false;
    loop {
        is_lost |= into.changes().iter().any(is_it);
        let count = into.list(&Filter::default(), 99).len() as u64;
        take(into, sequence, count, told);
        if is_lost && count == 0 {
            return;
        }
    }
}

/// Gets a buffer, reads all of it, and has it until it is told to let it go.
fn read_shared(all: &Mailboxes, own: &Mailbox) {
    let header = own.wait(&Filter::default(), soon()).expect("it is open").expect("a message");
    let buffer = own.get(header.id, soon()).expect("its data");
    assert!(buffer.is_shared() && buffer.len() == SHARED);
    // That it is mapped, and no more held for this process: nobody turns it while it reads what it is told.
    assert!(all.flush(soon()));
    println!("{}", buffer.iter().map(|byte| u64::from(*byte)).sum::<u64>());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("told");
    drop(buffer);
    println!("gone");
    std::io::stdin().read_line(&mut line).expect("told");
}

#[allow(unsafe_code)]
fn write_shared(own: &Mailbox) {
    let header = own.wait(&Filter::default(), soon()).expect("it is open").expect("a message");
    let buffer = own.get(header.id, soon()).expect("its data");
    // SAFETY: none: that is what is tested. The kernel ends the process.
    unsafe { buffer.as_ptr().cast_mut().write_volatile(1) };
    println!("written");
}

/// The mapping of a buffer in a process's smaps: its permissions, and kB by name.
fn mapping(pid: u32, name: &str) -> Option<(String, HashMap<String, usize>)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps")).ok()?;
    let mut lines = text.lines().skip_while(|line| !line.contains(name));
    let permissions = lines.next()?.split(' ').nth(1)?.to_owned();
    let sizes = lines.map_while(|line| {
        let (key, rest) = line.split_once(':')?;
        let is_key = key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        is_key.then(|| (key.to_owned(), rest.trim().trim_end_matches(" kB").parse().unwrap_or(0)))
    });
    Some((permissions, sizes.collect()))
}

/// Features: L9, L10.
pub(crate) fn one_copy(driver: &'static dyn MessageDriver) {
    let directory = place().directory;
    let here = mailboxes(driver.name(), &directory);
    let out = here.mailbox("out", 1).expect("a mailbox");
    let mut draft = Draft::new(SHARED).expect("memory");
    draft.bytes_mut().fill(3);
    let buffer = Buffer::from(draft.seal().expect("seals"));
    let own = std::process::id();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let line = maps.lines().find(|line| line.starts_with(&format!("{:x}-", buffer.as_ptr() as usize)));
    let name = line.and_then(|line| line.split_whitespace().find(|word| word.contains("madrigal-buffer-")));
    let name = name.expect("its mapping").to_owned();
    let start = |role: &str| started(&format!("mail {role} {} {directory}", driver.name()));
    let mut readers: Vec<_> = (0..8).map(|_| start("reader")).collect();
    let to: Vec<PortAddress> = readers.iter().map(|(_, at, _)| at.clone()).collect();
    let letter = Letter { tag: 1, kind: Kind::Data, policy: Policy::Sender };
    assert_eq!(out.put(&to, letter, Data::Buffer(&buffer), soon()), Ok(8));
    for (_, _, printed) in &mut readers {
        let mut sum = String::new();
        printed.read_line(&mut sum).expect("its sum");
        assert_eq!(sum.trim().parse(), Ok(3 * SHARED as u64));
    }
    let pids: Vec<u32> = readers.iter().map(|(other, ..)| other.0.id()).chain([own]).collect();
    let mut together = 0;
    for pid in &pids {
        let (permissions, kb) = mapping(*pid, &name).expect("it is mapped");
        assert_eq!(permissions, "r--s");
        assert!(*pid == own || kb["Rss"] == SHARED >> 10, "{kb:?}");
        together += kb["Pss"];
    }
    // The writer itself has not read all of it by this mapping, so it may count for less.
    let one = SHARED >> 10;
    assert!((one * 7 / 8..=one * 9 / 8).contains(&together), "one copy is {one} kB, and they have {together} kB");
    drop(buffer);
    // The writer's is gone; four readers are killed, four let it go.
    assert!(here.flush(soon()));
    assert!(mapping(own, &name).is_none());
    let rest = readers.split_off(4);
    drop(readers);
    for (other, _, mut printed) in rest {
        let pid = other.0.id();
        assert!(mapping(pid, &name).is_some());
        let mut other = other;
        other.0.stdin.as_mut().expect("a pipe").write_all(b"\n").expect("it lives");
        let mut line = String::new();
        printed.read_line(&mut line).expect("an answer");
        assert_eq!((line.trim(), mapping(pid, &name).is_none()), ("gone", true));
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it lives").flatten();
        let targets = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        assert!(!targets.into_iter().any(|target| target.to_string_lossy().contains(&name)));
    }
    vandal(driver, &here, &out);
}

/// Who writes what it was given is ended by the kernel, and harms nobody.
fn vandal(driver: &'static dyn MessageDriver, here: &Mailboxes, out: &Mailbox) {
    let mut draft = Draft::new(10_000).expect("memory");
    draft.bytes_mut().fill(7);
    let buffer = Buffer::from(draft.seal().expect("seals"));
    let (mut other, at, mut printed) = started(&format!("mail vandal {} {}", driver.name(), place().directory));
    let letter = Letter { tag: 1, kind: Kind::Data, policy: Policy::Receiver };
    assert_eq!(out.put(&[at], letter, Data::Buffer(&buffer), soon()), Ok(1));
    let mut line = String::new();
    printed.read_line(&mut line).expect("its end");
    assert_eq!((&line[..], other.0.wait().expect("is our child").signal()), ("", Some(11)));
    assert!(buffer.iter().all(|byte| *byte == 7));
    assert!(here.flush(soon()));
}
