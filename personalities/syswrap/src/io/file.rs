//! Files into rings: sendfile(2) without the kernel's socket. The file is read straight into the ring.

use core::ffi::c_int;

use libc::off64_t;
use madrigal_drivers::shm::ring::Span;
use madrigal_sys::{Errno, file, raw};

use super::progress::Progress;
use super::{recv, send};
use crate::lifecycle::earn;
use crate::outcome::Outcome;
use crate::state::session::{Piece, Put};
use crate::state::settle;
use crate::state::sock::{self, Ref, mode};
use crate::state::socket::view;

/// One sendfile(2).
pub(crate) struct Transfer {
    pub(crate) out: c_int,
    pub(crate) file: c_int,
    /// Where in the file it begins.
    pub(crate) at: off64_t,
    pub(crate) n: usize,
    pub(crate) progress: Progress,
}

/// Sends a part of a file; `Pass`: the kernel carries everything, and what the call has not sent by then is the kernel's, in order
/// ([`send::in_order`]).
pub(crate) fn transfer(op: &Transfer) -> Outcome {
    let Some(s) = sock::enter(op.out) else { return Outcome::Pass };
    earn::step(&s, op.out);
    recv::leave_at_random(&s, op.out);
    send::flush_deferred(&s, op.out);
    let outcome = if s.mode() == mode::SESSION { in_session(&s, op) } else { None };
    send::flush_deferred(&s, op.out);
    match outcome {
        Some(outcome) => outcome,
        None if op.progress.done() > 0 => Outcome::Pass,
        None => send::told_elsewhere(&s, op.out, rest(op), Ok).unwrap_or(Outcome::Pass),
    }
}

/// How much of the file a call would send. `None`: the kernel knows.
fn rest(op: &Transfer) -> Option<usize> {
    let size = file::size(op.file)?;
    Some(usize::try_from(size - op.at).unwrap_or(0).min(op.n))
}

fn in_session(s: &Ref, op: &Transfer) -> Option<Outcome> {
    let v = view(s, op.out)?;
    loop {
        // Nothing more comes from the file: its end, or an error.
        let mut over = None;
        let put = {
            let guard = v.s.wlock.lock();
            if guard.nested() {
                return Some(Outcome::Fail(Errno::INTR));
            }
            let done = op.progress.done();
            let piece = Piece { left: op.n - done, whole: done == 0 && !op.progress.nonblocking(s, 0), more: false };
            send::put(&v, piece, |span, from| {
                let got = read(op, span, from);
                over = Some(got).filter(|got| got.is_err() || *got == Ok(0));
                Ok(got.unwrap_or(0))
            })
        };
        match put {
            Put::Bytes(n, sleeper) => {
                s.count_ring(n, true);
                send::wake(&v, sleeper);
                op.progress.add(n);
                if op.progress.done() == op.n || over.is_some() {
                    return Some(Outcome::Done(op.progress.done()));
                }
            }
            Put::Full if over.is_some() => return Some(op.progress.end(over.unwrap_or(Ok(0)))),
            Put::Full if op.progress.nonblocking(s, 0) => {
                v.note_full();
                if !v.want() {
                    return Some(op.progress.end(Err(Errno::AGAIN)));
                }
            }
            Put::Full => match send::await_space(&v, &op.progress) {
                Ok(send::Waited::Looked) => {}
                Ok(send::Waited::Slept | send::Waited::Restarts) => return Some(Outcome::Again),
                Err(e) => return Some(op.progress.end(Err(e))),
            },
            Put::Broken => {
                v.spoil();
                return Some(op.progress.end(Err(Errno::PIPE)));
            }
            Put::Plain | Put::Over | Put::Failed(_) => {
                settle::note(s);
                return None;
            }
        }
    }
}

/// Reads what comes next of the file into free space; how many bytes.
fn read(op: &Transfer, span: &Span, from: usize) -> Result<usize, Errno> {
    let (ptr, room) = span.pieces()[0];
    let at = op.at + (op.progress.done() + from) as off64_t;
    // SAFETY: free space of a ring, under the send lock.
    unsafe { raw::pread(op.file, ptr, room, at) }
}
