//! Two processes: a bare ring with pipes for doorbells, and links over every method that leaves a process. Every byte is checked.
//!
//! The other process is this program, started once more with its task in the environment.
//!
//! Features (docs/features.md): A7 and A13 (the other process has one thread, its own), B2, B3, L6, L9, L10.

#[path = "two_processes/mailboxes.rs"]
mod mailboxes;
#[path = "two_processes/ports.rs"]
mod ports;

use std::io::{Read as _, Write as _};
use std::process::{Child, Command, ExitCode, Stdio};

use libtest_mimic::{Arguments, Failed, Trial};
use madrigal::config::Settings;
use madrigal::error::WriteError;
use madrigal::ids::Reach;
use madrigal::{Runtime, VLink};
use madrigal_progress::driver::Driver;
use madrigal_shm_ring::arena::{Arena, LARGEST, Tag, UNIT};
use madrigal_shm_ring::layout::want;
use madrigal_shm_ring::ring::{Consumer, Producer, Sleeper, Trouble};
use madrigal_testkit::noise::{Noise, Stream};
use madrigal_testkit::watchdog::Watchdog;
use madrigal_testkit::{added, all_drivers, place, stacked, tidy};

/// The variable with the role of a started copy.
const TASK: &str = "_MADRIGAL_TESTKIT_TASK";
/// Bytes through the bare ring.
const RING_TOTAL: u64 = 40_000_000;
/// Bytes each way over a link.
const LINK_TOTAL: u64 = 20_000_000;

fn main() -> ExitCode {
    if let Ok(task) = std::env::var(TASK) {
        let words: Vec<&str> = task.split(' ').collect();
        match words[..] {
            ["ring", pid, fd, id] => ring::write(pid, fd, id),
            ["talk", directory, at] => talk(&dial(directory, at), 2, 1),
            ["flood", directory, at] => flood(&dial(directory, at)),
            ["ports", driver, directory, to] => ports::send_for_ever(driver, directory, to),
            ["mail", ref rest @ ..] => mailboxes::part(rest),
            _ => return ExitCode::FAILURE,
        }
        return alone();
    }
    added::start();
    let mut trials = vec![trial("ring::grows_and_is_sealed_and_loses_nothing".to_owned(), ring::read)];
    for driver in all_drivers().into_iter().filter(|driver| driver.facts().reach != Reach::Process) {
        trials.push(trial(format!("{}::carries_both_ways_at_once", driver.name()), move || both_ways(driver)));
        trials.push(trial(format!("{}::a_killed_peer_is_an_end_or_an_error", driver.name()), move || killed(driver)));
    }
    let stack = stacked::message_driver("adoc/stripe(2)/tcp").expect("a stack");
    let own = madrigal_testkit::own_message_drivers().into_iter().chain([stack]);
    for driver in own.filter(|driver| driver.name() != "loopback") {
        let name = format!("{}::who_is_connected_to_a_killed_process_learns_of_it", driver.name());
        trials.push(trial(name, move || ports::killed(driver)));
        let name = format!("{}::mailboxes_of_those_who_are_not_killed_go_on", driver.name());
        trials.push(trial(name, move || mailboxes::killed(driver)));
        let name = format!("{}::eight_readers_share_one_copy", driver.name());
        trials.push(trial(name, move || mailboxes::one_copy(driver)));
    }
    let conclusion = libtest_mimic::run(&Arguments::from_args(), trials);
    tidy();
    conclusion.exit_code()
}

/// Whether only callers polled for messages, waited for them and completed operations: there is no thread but the first, once
/// those of the task that were joined are gone.
fn alone() -> ExitCode {
    let threads = || std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    let gone = (0..250_000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        threads() == 1
    });
    if gone { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn trial(name: String, run: impl FnOnce() + Send + 'static) -> Trial {
    Trial::test(name.clone(), move || {
        let _dog = Watchdog::set(&name);
        run();
        Ok::<(), Failed>(())
    })
}

/// The other process; killed on drop if it still runs.
struct Other(Child);

impl Other {
    fn start(task: &str) -> Self {
        let mut command = Command::new("/proc/self/exe");
        Self(command.env(TASK, task).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts"))
    }

    /// Ends a process that goes on for ever: one that has ended itself found something wrong.
    fn kill(mut self) {
        assert_eq!(self.0.try_wait().expect("is our child"), None, "it has failed before it was killed");
    }

    fn succeeds(mut self) {
        assert!(self.0.wait().expect("is our child").success(), "the other process failed");
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // It ended before, or ends now.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A ring without driver, link or engine: its two ends in two processes, and a pipe each way for the doorbells.
#[allow(unsafe_code)]
mod ring {
    use super::*;

    /// The reader's half, and the whole of the test.
    pub(crate) fn read() {
        use std::os::fd::AsRawFd as _;
        let (arena, fd) = Arena::create().expect("an arena");
        let slot = arena.take_slot().expect("a slot");
        let (direction, memory) = (&arena.slot(slot).expect("is there").dir[0], arena.memory());
        direction.reset();
        Producer::default().open(direction, arena.small_block(slot, 0));
        let task = format!("ring {} {} {}", std::process::id(), fd.as_raw_fd(), arena.id());
        let mut other = Other::start(&task);
        let (mut bells, mut space) = (other.0.stdout.take().expect("a pipe"), other.0.stdin.take().expect("a pipe"));
        let (mut stream, mut sizes, mut buf) = (Stream::new(1), Noise::new(2), vec![0; 300_000]);
        let (mut slept, mut rung) = (0, 0);
        loop {
            let span = match Consumer.data(direction, &memory) {
                Ok(span) => span,
                Err(Trouble::Sealed) => break,
                Err(trouble) => panic!("{trouble:?}"),
            };
            if span.is_empty() {
                if !Consumer.arm(direction) {
                    slept += 1;
                    bells.read_exact(&mut [0]).expect("a bell");
                }
                continue;
            }
            let len = sizes.size(buf.len());
            // SAFETY: `buf` is longer than `len`; the span was just given.
            let n = unsafe { span.copy_out(0, buf.as_mut_ptr(), len) };
            stream.check(&buf[..n]);
            if Consumer.consume(direction, &span, n).expect("nobody else reads") {
                rung += 1;
                space.write_all(&[1]).expect("the writer lives");
            }
        }
        assert_eq!(stream.at, RING_TOTAL);
        assert!(slept > 0 && rung > 0, "both handshakes were used: {slept} {rung}");
        drop(space);
        other.succeeds();
    }

    /// The writer's half: three blocks, one after the other, then the seal.
    pub(crate) fn write(pid: &str, fd: &str, id: &str) {
        let (pid, fd, id) = (pid.parse().expect("pid"), fd.parse().expect("fd"), id.parse().expect("id"));
        let arena = Arena::attach_from(pid, fd, id).expect("the arena");
        let (direction, memory) = (&arena.slot(0).expect("is there").dir[0], arena.memory());
        let producer = Producer::default();
        let session = Tag::fresh(id);
        producer.open(direction, arena.small_block(0, 0));
        let (mut bells, mut space) = (std::io::stdout(), std::io::stdin());
        let mut ring = move || bells.write_all(&[1]).and_then(|()| bells.flush()).expect("the reader lives");
        let mut sleep = move || space.read_exact(&mut [0]).expect("a bell");
        let (mut stream, mut sizes, mut blocks) = (Stream::new(1), Noise::new(3), vec![LARGEST, UNIT]);
        let mut rest: Vec<u8> = Vec::new();
        while stream.at < RING_TOTAL || !rest.is_empty() {
            let grown = RING_TOTAL / 40 * (3 - blocks.len() as u64);
            if let Some(&size) = blocks.last().filter(|_| stream.at > grown) {
                if producer.unread(direction, &memory) != Ok(0) {
                    if !producer.want(direction, &memory, want::ALL) {
                        sleep();
                    }
                    continue;
                }
                let old = producer.block(&memory).expect("ours");
                producer.move_to(direction, arena.take_block(size, session, 0).expect("room"));
                arena.give_block(old, session, 0).expect("lent to us");
                blocks.pop();
            }
            if rest.is_empty() {
                rest = stream.take(sizes.size(200_000).min((RING_TOTAL - stream.at) as usize));
            }
            let span = producer.space(direction, &memory, 1).expect("an honest reader");
            if span.is_empty() {
                if !producer.want(direction, &memory, want::HALF) {
                    sleep();
                }
                continue;
            }
            // SAFETY: `rest` is readable for its length; the span was just given.
            let n = unsafe { span.copy_in(0, rest.as_ptr(), rest.len()) };
            if producer.publish(direction, &span, n).expect("nobody sealed") != Sleeper::Nobody {
                ring();
            }
            rest.drain(..n);
        }
        producer.seal(direction);
        ring();
    }
}

fn runtime(directory: &str) -> Runtime {
    let settings = Settings { dir: directory.to_owned(), ..Settings::default() };
    Runtime::with_settings(&settings).expect("starts")
}

fn dial(directory: &str, at: &str) -> VLink {
    runtime(directory).connect(&at.parse().expect("a locator")).wait().expect("connects")
}

/// Starts the other process and accepts its connection.
fn accept(driver: &dyn Driver, task: &str) -> (VLink, Other) {
    let runtime = runtime(&place().directory);
    let name = format!("two-{task}-{}", std::process::id());
    let acceptor = runtime.listen(&driver.address_for(&name).expect("an address")).expect("listens");
    let other = Other::start(&format!("{task} {} {}", place().directory, acceptor.locator()));
    (acceptor.accept().wait().expect("accepts"), other)
}

/// Writes one stream and reads the other, each on a thread of its own, in pieces of all sizes.
fn talk(link: &VLink, out: u64, back: u64) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, mut sizes) = (Stream::new(out), Noise::new(out));
            while stream.at < LINK_TOTAL {
                let len = sizes.size(150_000).min((LINK_TOTAL - stream.at) as usize);
                link.write(stream.take(len)).wait().expect("writes");
            }
        });
        let (mut stream, mut sizes) = (Stream::new(back), Noise::new(!back));
        while stream.at < LINK_TOTAL {
            let filled = link.read(vec![0; sizes.size(150_000)]).wait().expect("reads");
            assert_ne!(filled.len, 0, "the end came early");
            stream.check(filled.bytes());
        }
    });
    link.close().wait();
}

/// Writes until there is no reader.
fn flood(link: &VLink) {
    let (mut stream, mut sizes) = (Stream::new(7), Noise::new(7));
    while link.write(stream.take(sizes.size(20_000))).wait().is_ok() {}
}

fn both_ways(driver: &dyn Driver) {
    let (link, other) = accept(driver, "talk");
    talk(&link, 1, 2);
    other.succeeds();
}

fn killed(driver: &dyn Driver) {
    let (link, mut other) = accept(driver, "flood");
    let mut stream = Stream::new(7);
    while stream.at < 1_000_000 {
        stream.check(link.read(vec![0; 5_000]).wait().expect("reads").bytes());
    }
    other.0.kill().expect("is our child");
    // Its sent bytes are still read, in order, up to the end or to the error that reports missing bytes.
    while let Ok(filled) = link.read(vec![0; 5_000]).wait()
        && filled.len > 0
    {
        stream.check(filled.bytes());
    }
    let error = loop {
        if let Err(error) = link.write(vec![1; 1_000]).wait() {
            break error;
        }
    };
    assert!(matches!(error, WriteError::PeerGone { .. }), "{error}");
}
