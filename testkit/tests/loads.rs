//! A driver that is loaded and unloaded a thousand times leaves nothing behind. The only test of its program, whose memory it counts.
//!
//! Features (docs/features.md): D1.
#![allow(unsafe_code)]

use std::io::IoSlice;
use std::path::Path;

use madrigal_plugin::{Found, Plugin};
use madrigal_progress::driver::{Connecting, Driver as _, Ends, Packet, Place, Read, Wrote};
use madrigal_testkit::added::{EXAMPLES, compile_examples};

/// How often.
const TIMES: usize = 1000;
/// So often before it is counted: the first times fill caches of the C library's and of the loader's.
const BEFORE: usize = 200;

#[test]
fn a_thousand_loads_leave_nothing() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("loads-{}", std::process::id()));
    compile_examples(&directory);
    let found = Found::read(&directory, |_| false);
    let place = Place { directory: directory.display().to_string(), ..Place::default() };
    let mut before = None;
    for round in 0..TIMES {
        if round == BEFORE {
            before = Some(counts());
        }
        for driver in found.drivers() {
            use_once(driver, &place);
            assert!(!is_mapped(driver), "{} is still loaded after use {round}", driver.name());
        }
    }
    assert_eq!(found.drivers().len(), EXAMPLES.len());
    let (before, after) = (before.unwrap(), counts());
    assert_eq!((before.0, before.1), (after.0, after.1), "descriptors, mappings");
    // What malloc(3) keeps in its caches counts as given out, and varies by some hundred bytes: not a byte a load is lost.
    let loads = (TIMES - BEFORE) * EXAMPLES.len();
    assert!(after.2 < before.2 + loads, "{} bytes before, {} after {loads} loads", before.2, after.2);
    std::fs::remove_dir_all(directory).unwrap();
}

/// A listener, a connection, a few bytes.
fn use_once(driver: &Plugin, place: &Place) {
    let at = driver.address_for("loads").unwrap();
    let mut listener = driver.listen(&at, place).unwrap();
    assert!(is_mapped(driver));
    let Connecting::Done(near) = driver.connect(&at, place).unwrap() else { panic!("it is decided at once") };
    let far = listener.accept().unwrap().unwrap();
    match (near.ends, far.ends) {
        (Ends::Bytes(_rx, mut tx), Ends::Bytes(mut rx, _tx)) => {
            assert_eq!(tx.write(&[IoSlice::new(b"abc")]), Ok(Wrote::Bytes(3)));
            assert_eq!(rx.read(&mut [0; 8]), Ok(Read::Bytes(3)));
        }
        (Ends::Packets(_rx, mut tx), Ends::Packets(mut rx, _tx)) => {
            assert_eq!(tx.send(&[IoSlice::new(b"abc")]), Ok(Wrote::Bytes(3)));
            assert_eq!(rx.packet(), Ok(Packet::Bytes(b"abc")));
            rx.release();
        }
        _ => panic!("the ends are of two paradigms"),
    }
}

fn maps() -> String {
    std::fs::read_to_string("/proc/self/maps").unwrap()
}

fn is_mapped(driver: &Plugin) -> bool {
    maps().contains(&driver.file().unwrap().display().to_string())
}

/// Open descriptors, mappings of memory, bytes that malloc(3) has given out.
fn counts() -> (usize, usize, usize) {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mappings = maps().lines().count();
    // SAFETY: it only counts.
    let memory = unsafe { libc::mallinfo2() };
    (descriptors, mappings, memory.uordblks + memory.hblkhd)
}
