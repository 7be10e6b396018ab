//! Programs between two sockets, on a FILE, and beside other readers.

use core::ffi::c_char;
use core::ptr;
use core::sync::atomic::Ordering;

use madrigal_fuzz_sockets::op::{RelayVia, Slot};
use madrigal_fuzz_sockets::raw;
use madrigal_fuzz_sockets::via::{RecvVia, SendVia};

use super::wire::send_bytes;
use crate::context::{Answer, StepContext, count, ending};
use crate::{c, loops, memory, receive, state};

/// Carries what comes from one socket to the other, and the end, too.
pub(super) fn relay(context: &StepContext, from: Slot, to: Slot, via: RelayVia) {
    let (from, to) = (state::fd(from), state::fd(to));
    let (sum, end) = match via {
        RelayVia::Copy => copy(context, from, to, (SendVia::Write, RecvVia::Read)),
        RelayVia::Vector => copy(context, from, to, (SendVia::Writev, RecvVia::Readv)),
        RelayVia::Splice => splice(from, to),
    };
    // SAFETY: no memory is passed.
    unsafe { c::shutdown(to, libc::SHUT_WR) };
    loops::tell(context, sum, end);
}

fn copy(context: &StepContext, from: i32, to: i32, via: (SendVia, RecvVia)) -> (usize, u64) {
    let mut sum = 0;
    loop {
        match receive::some(context, from, 30_000, via.1, 0) {
            Ok([]) => return (sum, ending::END),
            Ok(data) => {
                sum += data.len();
                if let Err(end) = send_bytes(context, to, &mut data.to_vec(), via.0) {
                    return (sum, end);
                }
            }
            Err(libc::EINTR) => {}
            Err(libc::EAGAIN) => loops::wait_for(from, libc::POLLIN),
            Err(errno) => return (sum, ending::ERROR + errno as u64),
        }
    }
}

fn splice(from: i32, to: i32) -> (usize, u64) {
    let (mut ends, mut sum) = ([-1; 2], 0);
    let none = ptr::null_mut();
    // SAFETY: room for two descriptors, which are our own.
    unsafe {
        c::pipe2(ends.as_mut_ptr(), 0);
        let end = 'all: loop {
            let mut left = match count(|| c::splice(from, none, ends[1], none, 65536, 0)) {
                Answer { ret: 0, .. } => break ending::END,
                Answer { ret: -1, errno: libc::EINTR } => continue,
                Answer { ret: -1, errno } => break ending::ERROR + errno as u64,
                Answer { ret, .. } => ret,
            };
            sum += left as usize;
            while left > 0 {
                match count(|| c::splice(ends[0], none, to, none, left as usize, 0)) {
                    Answer { ret: -1, errno: libc::EINTR } => {}
                    Answer { ret: -1, errno } => break 'all ending::ERROR + errno as u64,
                    Answer { ret, .. } => left -= ret,
                }
            }
        };
        c::close(ends[0]);
        c::close(ends[1]);
        (sum, end)
    }
}

/// Reads lines by one FILE and writes them by another, until the end.
pub(super) fn file_echo(context: &StepContext, slot: Slot) {
    let fd = state::fd(slot);
    let line = memory::bytes(5000);
    let mut sum = 0;
    // SAFETY: FILEs on descriptors of our own, and memory of our own.
    unsafe {
        let copy = c::dup(fd);
        let (input, output) = (c::fdopen(fd, c"r".as_ptr()), c::fdopen(copy, c"w".as_ptr()));
        while !c::fgets(line.as_mut_ptr().cast::<c_char>(), 4000, input).is_null() {
            let len = libc::strlen(line.as_ptr().cast());
            sum += len;
            c::fwrite(line.as_ptr().cast(), 1, len, output);
            c::fflush(output);
        }
        context.record.add(c::ferror(input) as u64);
        context.record.add(c::ferror(output) as u64);
        c::fclose(output);
        c::fclose(input);
    }
    state::set_fd(slot, -1);
    context.keep(Answer { ret: sum as i64, errno: 0 });
}

/// Receives beside others until the end; each then stores the sum of all.
pub(super) fn share(context: &StepContext, slot: Slot, chunk: usize, sharers: u8) {
    let (mut got, mut sum) = (0i64, 0u64);
    let end = loop {
        match receive::some(context, state::fd(slot), chunk, RecvVia::Recv, 0) {
            Ok([]) => break ending::END,
            Ok(data) => {
                got += data.len() as i64;
                sum += data.iter().map(|byte| u64::from(*byte)).sum::<u64>();
            }
            Err(libc::EINTR) => {}
            Err(libc::EAGAIN) => loops::wait_for(state::fd(slot), libc::POLLIN),
            Err(errno) => break ending::ERROR + errno as u64,
        }
    };
    let region = &state::state().region;
    region.shared_sum.fetch_add(sum, Ordering::SeqCst);
    region.shared_bytes.fetch_add(got as u64, Ordering::SeqCst);
    region.sharers.fetch_add(1, Ordering::SeqCst);
    while region.sharers.load(Ordering::SeqCst) < u32::from(sharers) {
        raw::sleep_us(200);
    }
    context.keep(Answer { ret: region.shared_bytes.load(Ordering::SeqCst) as i64, errno: 0 });
    context.record.add(region.shared_sum.load(Ordering::SeqCst));
    context.record.add(end);
}
