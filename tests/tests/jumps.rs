//! A program that leaves its waits by siglongjmp(3) out of a signal handler, at any time: plain, and in rings.
//!
//! Features (docs/features.md): P2.

use std::process::Command;
use std::sync::atomic::Ordering;

use madrigal_report::{Record, Report};
use madrigal_tests::host::{self, How, Running, Scratch};
use madrigal_tests::trials::need;

madrigal_tests::trials![every_byte_is_there_behind_a_jump,];

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/jumps/jumps.c");

/// Four bytes each.
const NUMBERS: &str = "30000";

fn every_byte_is_there_behind_a_jump() {
    let scratch = Scratch::new();
    let program = scratch.path().join("jumps");
    need("cc");
    host::run(Command::new("cc").args(["-O1", "-Wall", "-Werror", "-o"]).arg(&program).arg(SOURCE)).expect_success();
    for how in How::ALL {
        let mut running = Running::start(host::command(how, &program, &scratch).arg(NUMBERS));
        let pid = running.pid() as u32;
        let by_ring = |record: &Record| record.shm_in.load(Ordering::Relaxed) > 0;
        let moved = || Report::of(pid).is_ok_and(|report| report.records().any(by_ring));
        let moved = how.is_wrapped().then(|| {
            host::until("a ring, or the end", || {
                if moved() { Some(true) } else { (!running.is_running()).then_some(false) }
            })
        });
        eprintln!("{how:?} {moved:?} {:?}", Report::of(pid).is_ok());
        let ended = running.wait().expect_success();
        assert!(moved != Some(false), "{how:?}: no ring, {} {}", ended.text(), String::from_utf8_lossy(&ended.err));
    }
}
