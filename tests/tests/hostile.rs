//! A peer of the same user that writes nonsense into shared memory: its own connections may break, nothing else may.

use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::Ordering::Relaxed;

use madrigal_report::{Reason, Report};
use madrigal_shm_ring::arena::UNIT;
use madrigal_shm_ring::layout::{Block, Direction, ReaderLine, SEALED, SMALL_RING, Slot, WriterLine, small_ring};
use madrigal_tests::host::{self, Choices, How, Running, Scratch};
use madrigal_tests::net;

const ACTOR: &str = env!("CARGO_BIN_EXE_actor");
/// Where the first slots of an arena lie, and its first large blocks.
const SLOTS_AT: u64 = 64 << 10;
const BLOCKS_AT: u64 = 64 << 20;

fn start(scratch: &Scratch, words: &[&str]) -> Running {
    Running::start(host::command(How::Wrapped, ACTOR, scratch).args(words))
}

/// Addresses of the arenas mapped in a process.
fn arenas(pid: i32) -> Vec<u64> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let ours = maps.lines().filter(|l| l.contains("memfd:madrigal-arena"));
    ours.filter_map(|l| u64::from_str_radix(l.split('-').next()?, 16).ok()).collect()
}

/// A word that some code may take badly.
fn bad_word(choices: &mut Choices) -> u64 {
    match choices.below(8) {
        0 => 0,
        1 => u64::MAX,
        2 => 1 << 63,
        3 => (1 << 63) - 1 - choices.below(4096),
        4 => choices.below(8),
        5 => choices.below(1 << 21),
        // A block that looks legal.
        6 => choices.below(1 << 18) << 8 | choices.below(24),
        _ => choices.number(),
    }
}

/// Writes one bad word somewhere in the lines of the first slots, the header or the rings.
fn spoil(memory: &File, arena: u64, choices: &mut Choices) {
    let at = match choices.below(20) {
        // Beyond magic number and version, which only matter once: who is bound, and which units are lent.
        0 => 16 + choices.below(400) * 8,
        1 => SLOTS_AT + choices.below(6) * 4096 + 1024 + choices.below(384) * 8,
        2 => BLOCKS_AT + choices.below(1 << 17) * 8,
        _ => SLOTS_AT + choices.below(6) * 4096 + choices.below(96) * 8,
    };
    let word = bad_word(choices).to_ne_bytes();
    // Whole words, half words, bytes.
    let len = [8, 8, 4, 1][choices.below(4) as usize];
    // An error means that the noise has ended: it is started anew.
    let _ = memory.write_at(&word[..len], arena + at);
}

/// Spoils what the noisy process shares with its victim, `words` times, in bursts.
fn fuzz(noise: &mut Running, choices: &mut Choices, words: u64) {
    let mut done = 0;
    while done < words && noise.is_running() {
        let memory = File::options().write(true).open(format!("/proc/{}/mem", noise.pid()));
        let (Ok(memory), Some(&arena)) = (memory, arenas(noise.pid()).first()) else {
            net::sleep_ms(1);
            done += 1;
            continue;
        };
        for _ in 0..=choices.below(40) {
            spoil(&memory, arena, choices);
            done += 1;
        }
        std::thread::sleep(std::time::Duration::from_micros(choices.below(3000)));
    }
}

fn ticks(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// Spoils what a noisy peer shares with a server, while a good peer goes on. `to_the_end`: the good one must end well in time, and
/// the server must come to rest.
fn survives(server: &str, to_the_end: bool) {
    let mut choices = Choices::new();
    let scratch = Scratch::new();
    let (file, going) = (scratch.path().join("port"), scratch.path().join("going"));
    std::fs::write(&going, "").unwrap();
    let mut victim = start(&scratch, &[server, file.to_str().unwrap()]);
    let port = host::until("a port", || std::fs::read_to_string(&file).ok());
    let mut good = start(&scratch, &["good", &port, going.to_str().unwrap()]);
    for _ in 0..8 {
        let mut noise = start(&scratch, &["noise", &port]);
        host::until("an arena", || (!noise.is_running() || !arenas(noise.pid()).is_empty()).then_some(()));
        fuzz(&mut noise, &mut choices, 3000);
        noise.kill();
        assert!(victim.is_running(), "the victim died: {:?}", victim.wait());
        assert!(good.is_running(), "a good peer suffered: {:?}", good.wait());
    }
    if !to_the_end {
        good.kill();
        return victim.kill();
    }
    std::fs::remove_file(&going).unwrap();
    let text = good.wait().expect_success().text();
    assert!(text.contains("path=shm why=none missed=0"), "{text}");
    // It still takes connections and moves them.
    let text = host::run(host::command(How::Wrapped, ACTOR, &scratch).args(["ask", &port])).expect_success().text();
    assert!(text.contains("path=shm"), "{text}");
    // Nothing of the dead is still being worked on.
    let pid = victim.pid();
    host::until("the dead connections to go", || (Report::of(pid as u32).ok()?.records().count() <= 1).then_some(()));
    comes_to_rest(pid);
    victim.kill();
}

fn comes_to_rest(pid: i32) {
    host::until("rest", || {
        let before = ticks(pid);
        net::sleep_ms(500);
        (ticks(pid) - before <= 2).then_some(())
    });
}

/// A peer seals its direction, claims for ever to be ringing a doorbell, and sends a byte that it does not count.
fn rests_behind_a_stray_byte(server: &str, killed: bool) {
    let scratch = Scratch::new();
    let (file, going) = (scratch.path().join("port"), scratch.path().join("going"));
    std::fs::write(&going, "").unwrap();
    let victim = start(&scratch, &[server, file.to_str().unwrap()]);
    let port = host::until("a port", || std::fs::read_to_string(&file).ok());
    let mut peer = start(&scratch, &["stray", &port, going.to_str().unwrap()]);
    host::until("a ring", || {
        let report = Report::of(victim.pid() as u32).ok()?;
        report.records().any(|record| record.shm_in.load(Relaxed) > 0).then_some(())
    });
    // Its last bytes of ping-pong are answered.
    net::sleep_ms(100);
    let arena = host::until("an arena", || arenas(peer.pid()).first().copied());
    let memory = File::options().read(true).write(true).open(format!("/proc/{}/mem", peer.pid())).unwrap();
    let line = arena + SLOTS_AT + offset_of!(Slot, dir) as u64;
    let mut tail = [0; 8];
    memory.read_exact_at(&mut tail, line + offset_of!(WriterLine, tail) as u64).unwrap();
    memory.write_all_at(&1u32.to_ne_bytes(), line + offset_of!(WriterLine, ringing) as u64).unwrap();
    let sealed = u64::from_ne_bytes(tail) | SEALED;
    memory.write_all_at(&sealed.to_ne_bytes(), line + offset_of!(WriterLine, tail) as u64).unwrap();
    std::fs::remove_file(&going).unwrap();
    net::sleep_ms(100);
    if killed {
        peer.kill();
    }
    comes_to_rest(victim.pid());
}

/// A server that is stopped, and a client whose message to it lies in the ring.
struct Unread {
    server: Running,
    client: Running,
    /// The client's memory, and where its arena is in there.
    memory: File,
    arena: u64,
    /// Position behind the message.
    tail: u64,
}

/// Bytes of a message of those that take turns.
const MESSAGE: u64 = 16;

impl Unread {
    fn new(scratch: &Scratch, checks: bool) -> Self {
        let file = scratch.path().join("port");
        let start = |words: &[&str]| {
            let mut command = host::command(How::Wrapped, ACTOR, scratch);
            Running::start(command.env("MADRIGAL_CHECK", if checks { "1" } else { "0" }).args(words))
        };
        let server = start(&["serve", file.to_str().unwrap(), "turns"]);
        let port = host::until("a port", || std::fs::read_to_string(&file).ok());
        let client = start(&["connect", &port, "turns"]);
        for process in [&server, &client] {
            let in_ring =
                |pid: u32| Report::of(pid).ok()?.records().any(|r| r.shm_in.load(Relaxed) > 200).then_some(());
            host::until("a ring", || in_ring(process.pid() as u32));
        }
        let arena = arenas(client.pid())[0];
        let memory = File::options().read(true).write(true).open(format!("/proc/{}/mem", client.pid())).unwrap();
        let this = Self { server, client, memory, arena, tail: 0 };
        let tail = host::until("an unread message", || this.stop());
        Self { tail, ..this }
    }

    /// Stops the server; the position behind what it has not read.
    fn stop(&self) -> Option<u64> {
        net::kill(self.server.pid(), libc::SIGSTOP).unwrap();
        host::until("a stop", || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.server.pid())).unwrap();
            stat.rsplit(')').next().unwrap().trim_start().starts_with('T').then_some(())
        });
        net::sleep_ms(20);
        let tail = self.word(offset_of!(Direction, w) + offset_of!(WriterLine, tail));
        let head = self.word(offset_of!(Direction, r) + offset_of!(ReaderLine, head));
        if tail == head + MESSAGE {
            return Some(tail);
        }
        net::kill(self.server.pid(), libc::SIGCONT).unwrap();
        None
    }

    /// A word of the direction from the client to the server.
    fn word(&self, at: usize) -> u64 {
        let mut bytes = [0; 8];
        self.memory.read_exact_at(&mut bytes, self.direction() + at as u64).unwrap();
        u64::from_ne_bytes(bytes)
    }

    /// The last byte of the message, and where it lies.
    fn last(&self) -> (u64, u8) {
        let at = self.arena + SLOTS_AT + small_ring(0) as u64 + (self.tail - 1) % SMALL_RING as u64;
        let mut byte = [0];
        self.memory.read_exact_at(&mut byte, at).unwrap();
        (at, byte[0])
    }

    fn direction(&self) -> u64 {
        self.arena + SLOTS_AT + offset_of!(Slot, dir) as u64
    }

    /// The server goes on; both have to see a reset, and no byte that was not sent. Why nothing moves in the server any more, if so.
    fn assert_resets(self) -> Option<Reason> {
        let report = Report::of(self.server.pid() as u32).unwrap();
        net::kill(self.server.pid(), libc::SIGCONT).unwrap();
        for process in [self.server, self.client] {
            let text = process.wait().expect_success().text();
            assert!(text.contains("how=reset"), "{text}");
        }
        report.off()
    }
}

#[test]
fn a_changed_byte_is_found_by_its_sum() {
    let scratch = Scratch::new();
    let unread = Unread::new(&scratch, true);
    let (at, byte) = unread.last();
    unread.memory.write_all_at(&[byte ^ 1], at).unwrap();
    assert_eq!(unread.assert_resets(), Some(Reason::Contradiction), "it may be a fault of ours");
}

#[test]
fn a_block_that_was_not_lent_is_not_read() {
    let scratch = Scratch::new();
    let unread = Unread::new(&scratch, false);
    // What lies there was never sent.
    unread.memory.write_all_at(&[!unread.last().1; UNIT], unread.arena + BLOCKS_AT).unwrap();
    let word = Block { offset: BLOCKS_AT as usize, size: UNIT }.pack();
    let at = unread.direction() + (offset_of!(Direction, w) + offset_of!(WriterLine, block)) as u64;
    unread.memory.write_all_at(&word.to_ne_bytes(), at).unwrap();
    assert_eq!(unread.assert_resets(), None, "a peer may write what it likes");
}

#[test]
fn an_error_that_is_none_ends_no_program() {
    for word in [4_u32, 0xffff_ff04] {
        let scratch = Scratch::new();
        let Unread { server, mut client, memory, arena, .. } = Unread::new(&scratch, false);
        // The server's error for its peer: the peer broke the protocol, by this errno.
        let at = offset_of!(Slot, dir) + offset_of!(Direction, r) + offset_of!(ReaderLine, gone);
        memory.write_all_at(&word.to_ne_bytes(), arena + SLOTS_AT + at as u64).unwrap();
        client.kill();
        net::kill(server.pid(), libc::SIGCONT).unwrap();
        let text = server.wait().expect_success().text();
        assert!(text.contains("how="), "{text}");
    }
}

#[test]
fn garbage_in_an_arena_kills_no_event_loop() {
    survives("echo", false);
}

#[test]
fn garbage_in_an_arena_kills_no_thread() {
    survives("echo-threads", false);
}

#[test]
fn an_event_loop_serves_on_after_garbage_in_an_arena() {
    survives("echo", true);
}

#[test]
fn threads_come_to_rest_after_garbage_in_an_arena() {
    survives("echo-threads", true);
}

#[test]
fn threads_and_event_loops_come_to_rest_behind_a_stray_byte() {
    for server in ["echo-threads", "echo"] {
        rests_behind_a_stray_byte(server, false);
        rests_behind_a_stray_byte(server, true);
    }
}

#[test]
fn garbage_among_the_offers() {
    let mut choices = Choices::new();
    let scratch = Scratch::new();
    let file = scratch.path().join("port");
    let mut victim = start(&scratch, &["echo", file.to_str().unwrap()]);
    let port = host::until("a port", || std::fs::read_to_string(&file).ok());
    let name = host::until("the table", || scratch.left_over().pop());
    let table = File::options().write(true).open(scratch.shared().join(name)).unwrap();
    let len = table.metadata().unwrap().len();
    for _ in 0..30 {
        let client = start(&scratch, &["ask", &port]);
        for _ in 0..4000 {
            let word = bad_word(&mut choices).to_ne_bytes();
            let width = [8, 4, 4, 1][choices.below(4) as usize];
            table.write_at(&word[..width], choices.below(len - 8)).unwrap();
        }
        client.wait().expect_success();
        assert!(victim.is_running());
    }
}
