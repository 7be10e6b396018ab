//! An event loop that serves many connections: what comes goes back.

use core::ptr;
use core::sync::atomic::Ordering;

use libc::c_int;
use madrigal_fuzz_sockets::op::Slot;
use madrigal_fuzz_sockets::via::FreeWait;

use super::watch::{Ready, Watch};
use crate::context::{Answer, StepContext, call, count, ending};
use crate::{c, connections, state};

/// The listener's token.
const LISTENER: u64 = u64::MAX;

/// A connection being served.
struct Served {
    fd: c_int,
    /// What came and has not gone back.
    owed: Vec<u8>,
    /// Nothing more comes.
    ended: bool,
}

/// Accepts `conns` connections and serves them all to their end.
pub(super) fn serve(context: &StepContext, from: Slot, conns: u16, wait: FreeWait) {
    let listener = state::fd(from);
    // SAFETY: no memory is passed.
    unsafe { c::fcntl(listener, libc::F_SETFL, libc::O_NONBLOCK) };
    let mut watch = Watch::new(wait);
    watch.add(listener, LISTENER, true, false);
    let mut served: Vec<Option<Served>> = Vec::new();
    let mut over = 0;
    while over < usize::from(conns) {
        let idle = served.iter().all(Option::is_none);
        if idle && state::state().region.killed.load(Ordering::SeqCst) != 0 {
            break;
        }
        for ready in watch.wait() {
            if ready.token == LISTENER {
                accept_all(listener, &mut watch, &mut served);
                watch.change(listener, true, false);
            } else if let Some(place) = served.get_mut(ready.token as usize)
                && let Some(one) = place
            {
                let end = echo_ready(one, ready, &mut watch);
                if let Some(end) = end {
                    if end != ending::END {
                        context.record.add(end);
                    }
                    watch.remove(one.fd);
                    // SAFETY: no memory is passed.
                    unsafe { c::close(one.fd) };
                    *place = None;
                    over += 1;
                }
            }
        }
    }
    context.keep(Answer { ret: over as i64, errno: 0 });
}

fn accept_all(listener: c_int, watch: &mut Watch, served: &mut Vec<Option<Served>>) {
    loop {
        // SAFETY: no name is asked for.
        let got = call(|| unsafe { c::accept4(listener, ptr::null_mut(), ptr::null_mut(), libc::SOCK_NONBLOCK) });
        if got.ret < 0 {
            return;
        }
        connections::nodelay(got.ret as c_int);
        watch.add(got.ret as c_int, served.len() as u64, true, false);
        served.push(Some(Served { fd: got.ret as c_int, owed: Vec::new(), ended: false }));
    }
}

/// Takes what is there, gives back what goes; how the connection ended, if it did.
fn echo_ready(one: &mut Served, ready: Ready, watch: &mut Watch) -> Option<u64> {
    if ready.input && !one.ended {
        let mut room = [0u8; 16384];
        loop {
            // SAFETY: memory of our own.
            let got = count(|| unsafe { c::recv(one.fd, room.as_mut_ptr().cast(), room.len(), 0) });
            match (got.ret, got.errno) {
                (0, _) => one.ended = true,
                (-1, libc::EAGAIN | libc::EINTR) => {}
                (-1, errno) => return Some(ending::ERROR + errno as u64),
                (n, _) => {
                    one.owed.extend_from_slice(&room[..n as usize]);
                    if watch.is_edge() {
                        continue;
                    }
                }
            }
            break;
        }
    }
    while !one.owed.is_empty() {
        // SAFETY: memory of our own.
        let put = count(|| unsafe { c::send(one.fd, one.owed.as_ptr().cast(), one.owed.len(), libc::MSG_NOSIGNAL) });
        match (put.ret, put.errno) {
            (-1, libc::EINTR) => {}
            (-1, libc::EAGAIN) => break,
            (-1, errno) => return Some(ending::ERROR + errno as u64),
            (n, _) => drop(one.owed.drain(..n as usize)),
        }
    }
    if one.ended && one.owed.is_empty() {
        return Some(ending::END);
    }
    watch.change(one.fd, !one.ended, !one.owed.is_empty());
    None
}
