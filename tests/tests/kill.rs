//! Processes killed at random moments: the survivor sees an exact prefix and a clean end, and nothing stays behind.
//!
//! Features (docs/features.md): P2.

use std::path::Path;

use madrigal_report::Report;
use madrigal_tests::host::{self, Choices, How, Running, Scratch};
use madrigal_tests::net;

const ACTOR: &str = env!("CARGO_BIN_EXE_actor");

fn start(scratch: &Scratch, words: &[&str]) -> Running {
    Running::start(host::command(How::Wrapped, ACTOR, scratch).args(words))
}

fn port(file: &Path) -> String {
    host::until("a port", || std::fs::read_to_string(file).ok())
}

/// A server and a client on one connection, which stands.
fn couple(scratch: &Scratch, serve: &str, connect: &str) -> (Running, Running) {
    let file = scratch.path().join("port");
    let up = scratch.path().join("port.up");
    for old in [&file, &up] {
        let _ = std::fs::remove_file(old);
    }
    let server = start(scratch, &["serve", file.to_str().unwrap(), serve]);
    let client = start(scratch, &["connect", &port(&file), connect]);
    host::until("a connection", || up.exists().then_some(()));
    (server, client)
}

/// Waits for a random moment: sometimes within the first steps, sometimes in full swing.
fn moment(choices: &mut Choices) {
    let most = [300, 3000, 12_000, 30_000][choices.below(4) as usize];
    std::thread::sleep(std::time::Duration::from_micros(choices.below(most)));
}

/// What was killed.
#[derive(PartialEq, Eq)]
enum Victim {
    Single,
    Threaded,
}

/// The survivor's last line, checked, and what is left of both.
fn survived(scratch: &Scratch, victim: Victim, ended: &host::Ended, ways: &[&str]) {
    let text = ended.text();
    assert_eq!(ended.status, 0, "{text}{}", String::from_utf8_lossy(&ended.err));
    let how = text.split_whitespace().find_map(|w| w.strip_prefix("how=")).unwrap_or("nothing");
    assert!(ways.contains(&how), "{text}");
    assert!(text.contains("missed=0"), "{text}");
    let never_opened = ["why=unearned", "why=not-open", "path=none"].iter().any(|w| text.contains(w));
    if !scratch.left_over().is_empty() && (never_opened || victim == Victim::Threaded) {
        // The survivor never came to look at the shared directory, or some thread of the dead process was still on its way
        // out: what is left is for the next start to remove.
        next_start(scratch);
    }
    assert_eq!(scratch.left_over(), [""; 0], "{text}");
}

fn next_start(scratch: &Scratch) {
    let file = scratch.path().join("next");
    let ended = host::run(host::command(How::Wrapped, ACTOR, scratch).args(["both", file.to_str().unwrap()]));
    let text = ended.expect_success().text();
    assert!(text.contains("path=shm") && text.contains("missed=0"), "{text}");
}

#[test]
fn a_killed_sender_leaves_a_prefix_and_an_end() {
    let mut choices = Choices::new();
    let scratch = Scratch::new();
    for round in 0..60 {
        let accepting_sends = round % 2 == 0;
        let (server, client) =
            if accepting_sends { couple(&scratch, "send", "receive") } else { couple(&scratch, "receive", "send") };
        moment(&mut choices);
        let (mut sender, receiver) = if accepting_sends { (server, client) } else { (client, server) };
        sender.kill();
        // It had read everything that came its way, unless it died while it still warmed up.
        survived(&scratch, Victim::Single, &receiver.wait(), &["eof", "reset"]);
    }
}

#[test]
fn a_killed_receiver_breaks_the_pipe() {
    let mut choices = Choices::new();
    let scratch = Scratch::new();
    for round in 0..60 {
        let (server, client) =
            if round % 2 == 0 { couple(&scratch, "send", "receive") } else { couple(&scratch, "receive", "send") };
        moment(&mut choices);
        let (sender, mut receiver) = if round % 2 == 0 { (server, client) } else { (client, server) };
        receiver.kill();
        survived(&scratch, Victim::Single, &sender.wait(), &["eof", "reset", "pipe"]);
    }
}

fn both_ways(mode: &str, rounds: usize) {
    let mut choices = Choices::new();
    let scratch = Scratch::new();
    for _ in 0..rounds {
        let (server, client) = couple(&scratch, mode, mode);
        moment(&mut choices);
        let (mut killed, survivor) = if choices.below(2) == 0 { (server, client) } else { (client, server) };
        killed.kill();
        let victim = if mode == "duplex" { Victim::Threaded } else { Victim::Single };
        survived(&scratch, victim, &survivor.wait(), &["eof", "reset", "pipe"]);
    }
}

#[test]
fn a_kill_while_taking_turns_leaves_a_prefix() {
    both_ways("turns", 40);
}

#[test]
fn a_kill_in_both_directions_leaves_a_prefix() {
    both_ways("duplex", 40);
}

#[test]
fn a_sender_killed_after_it_moved_ends_the_stream_without_error() {
    let mut choices = Choices::new();
    let scratch = Scratch::new();
    for _ in 0..20 {
        let (server, mut client) = couple(&scratch, "receive", "send");
        let pid = client.pid() as u32;
        // Once it is in a ring the sender has nothing to read any more: TCP would show a plain end.
        let in_ring = |r: &madrigal_report::Record| r.shm_out.load(std::sync::atomic::Ordering::Relaxed) > 10_000;
        host::until("a ring", || Report::of(pid).ok()?.records().any(in_ring).then_some(()));
        moment(&mut choices);
        client.kill();
        let ended = server.wait();
        survived(&scratch, Victim::Single, &ended, &["eof"]);
    }
}

#[test]
fn what_two_killed_processes_leave_goes_with_the_next_start() {
    let mut choices = Choices::new();
    let scratch = Scratch::new();
    for _ in 0..10 {
        let (mut server, mut client) = couple(&scratch, "duplex", "duplex");
        net::sleep_ms(10 + choices.below(30));
        server.kill();
        client.kill();
        next_start(&scratch);
        scratch.assert_empty();
    }
}
