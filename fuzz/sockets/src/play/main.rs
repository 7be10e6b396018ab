//! `madrigal-fuzz-play REGION ACTOR STEP SLOTS`: one process of a program. It waits for steps in the region's page, makes the step's call
//! through the C library, and leaves what the call gave.
//!
//! It has a C main of its own, since Rust's handles signals whose state the tested library queries.
#![no_main]
#![allow(unsafe_code)]

mod actor;
mod aio;
mod c;
mod connections;
mod context;
mod descriptors;
mod files;
mod free;
mod loops;
mod memory;
mod options;
mod passing;
mod processes;
mod receive;
mod sets;
mod signals;
mod state;
mod stdio;
mod transmit;
mod waits;

use core::ffi::{CStr, c_char, c_int};

use madrigal_fuzz_sockets::raw;

/// Where the C library begins.
#[unsafe(no_mangle)]
extern "C-unwind" fn main(count: c_int, list: *const *const c_char) -> c_int {
    let texts: Vec<&'static CStr> = (0..count as usize)
        .map(|at| {
            // SAFETY: the C library gives `count` texts that stay as long as the process.
            unsafe { CStr::from_ptr(*list.add(at)) }
        })
        .collect();
    let [program, region, actor, step, slots] = texts.as_slice() else { return usage() };
    let number = |text: &CStr| text.to_str().ok().and_then(|text| text.parse::<u32>().ok());
    let (Some(actor), Some(step)) = (number(actor), number(step)) else { return usage() };
    if !state::begin(program, region, slots.to_str().unwrap_or("")) {
        return usage();
    }
    signals::begin();
    if slots.to_bytes() == b"-" {
        raw::die_with_parent();
    }
    actor::live(actor as u8, step);
    0
}

fn usage() -> c_int {
    eprintln!("usage: madrigal-fuzz-play REGION ACTOR STEP SLOTS (started by madrigal-fuzz-sockets)");
    2
}
