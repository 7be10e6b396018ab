//! Files into rings: sendfile(2) without the kernel's socket. The file is read straight into the ring.

use core::ffi::c_int;

use libc::off64_t;
use madrigal_shm_ring::ring::Span;
use madrigal_sys::{Errno, file, raw};

use super::progress::Progress;
use super::target::Target;
use super::{recv, send};
use crate::lifecycle::earn;
use crate::outcome::Outcome;
use crate::state::session::{Piece, Put};
use crate::state::sock::{Ref, Sock, mode};
use crate::state::socket::view;
use crate::state::teardown;

/// One sendfile(2).
pub(crate) struct Transfer<'a> {
    /// The socket it goes by.
    pub(crate) to: &'a Target,
    pub(crate) file: c_int,
    /// Where in the file it begins.
    pub(crate) at: off64_t,
    pub(crate) n: usize,
    pub(crate) progress: Progress,
}

impl Transfer<'_> {
    /// It restarts behind a signal handler.
    fn begin_again(&self, s: &Sock) {
        self.progress.begin_again(s);
        self.to.begin_again();
    }
}

/// Sends a part of a file; `Pass`: the kernel carries everything, and what the call has not sent by then is the kernel's, in order
/// ([`send::in_order`]).
pub(crate) fn transfer(op: &Transfer<'_>) -> Outcome {
    let Some(s) = op.to.enter() else { return Outcome::Pass };
    let fd = op.to.fd();
    earn::step(&s, fd);
    recv::leave_at_random(&s, fd);
    send::flush_deferred(&s, fd);
    let outcome = if s.mode() == mode::SESSION { in_session(&s, op) } else { None };
    send::flush_deferred(&s, fd);
    match outcome {
        Some(outcome) => outcome,
        None if op.progress.done() > 0 => Outcome::Pass,
        None => send::result_elsewhere(&s, fd, || rest(op), Ok).unwrap_or(Outcome::Pass),
    }
}

/// How much of the file a call would send. `None`: the kernel knows.
fn rest(op: &Transfer<'_>) -> Option<usize> {
    let size = file::size(op.file)?;
    Some(usize::try_from(size - op.at).unwrap_or(0).min(op.n))
}

fn in_session(s: &Ref, op: &Transfer<'_>) -> Option<Outcome> {
    let v = view(s, op.to.fd())?;
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
                v.wake(sleeper);
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
            Put::Full => {
                op.to.pin(s);
                match send::await_space(&v, &op.progress) {
                    Ok(send::Waited::Ready) => {}
                    Ok(send::Waited::Slept) => return Some(Outcome::Again),
                    Ok(send::Waited::Restarts) => {
                        op.begin_again(s);
                        return Some(Outcome::Again);
                    }
                    Err(e) => return Some(op.progress.end(Err(e))),
                }
            }
            Put::Broken => {
                v.spoil();
                return Some(op.progress.end(Err(Errno::PIPE)));
            }
            Put::Plain | Put::Over | Put::Failed(_) => {
                teardown::mark_due(s);
                return None;
            }
        }
    }
}

/// Reads what comes next of the file into free space; how many bytes.
fn read(op: &Transfer<'_>, span: &Span, from: usize) -> Result<usize, Errno> {
    let (ptr, room) = span.pieces()[0];
    let at = op.at + (op.progress.done() + from) as off64_t;
    // SAFETY: free space of a ring, under the send lock.
    unsafe { raw::pread(op.file, ptr, room, at) }
}
