//! The five primitives, posted: read, write, connect, accept, close; and how they complete.

use core::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use madrigal::Handler;

use super::arguments::{Call, How, Place, memory, one_of, text, time};
use super::guard::{count, status};
use super::links::{listeners_of, runtime_of};
use super::types::{mdg_acceptor, mdg_handle, mdg_handler, mdg_link, mdg_op, mdg_runtime};
use crate::codes::MDG_OK;
use crate::dial::{Made, dial};
use crate::failure::Failure;
use crate::link::{VLinkHandle, named};
use crate::listeners::Arrival;
use crate::object::{Object, Room, ending, with};
use crate::op::{Op, Outcome, Posted};
use crate::runtime::Runtime;
use crate::slot::{Slot, Then};
use crate::table::Lane;

/// Posts a read into `buf`, up to `len` bytes. Does not block. The buffer is the library's until the operation completed or was taken
/// back. Reads of one link complete in the order they were posted.
///
/// Exactly one of `handler` and `op` is given, here and in the other four. With a handler, that is called once, with `user`, the link and
/// the result. Else the operation's handle goes into *op, to be tested, waited for, or taken back; it must come to one of these ends.
/// The result is the number of bytes, 0 at the end of the stream, or an error as mdg_read() returns.
///
/// Returns 0, or MDG_EHANDLE, MDG_ETYPE, MDG_EINVAL, MDG_EFULL, MDG_EFORKED: then nothing was posted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_post_read(
    link: mdg_link,
    buf: *mut c_void,
    len: usize,
    handler: mdg_handler,
    user: *mut c_void,
    op: *mut mdg_op,
) -> c_int {
    status(|| {
        let how = one_of(Call::new(handler, user), op)?;
        // SAFETY: the program vouches for its buffer until the operation is over.
        let piece = unsafe { memory(buf, len) }?;
        with(link, Lane::Main, |at: &VLinkHandle| {
            match how {
                How::Keep(kept) => {
                    let posted = Posted::Read(at.api.clone(), at.api.read_lent(piece).into_owned());
                    // SAFETY: the program vouches for its pointers.
                    unsafe { kept.give(&at.runtime, posted) }?;
                }
                How::Call(call) => at.api.read_lent_with(
                    piece,
                    Handler::new(move |api, outcome: Result<madrigal::Filled, _>| {
                        let result = outcome.map(|filled| filled.len as i64);
                        call.call(link, result.map_err(|error| named(api, error)));
                    }),
                ),
            }
            Ok(MDG_OK)
        })
    })
}

/// Posts a write of all `len` bytes of `buf`. Does not block. The bytes must stay as they are until the operation completed or was taken
/// back. Writes of one link complete in the order they were posted. The result is `len`, or an error as mdg_write() returns.
///
/// `handler`, `user`, `op` and what is returned: see mdg_post_read().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_post_write(
    link: mdg_link,
    buf: *const c_void,
    len: usize,
    handler: mdg_handler,
    user: *mut c_void,
    op: *mut mdg_op,
) -> c_int {
    status(|| {
        let how = one_of(Call::new(handler, user), op)?;
        // SAFETY: the program vouches for its buffer until the operation is over.
        let piece = unsafe { memory(buf, len) }?;
        with(link, Lane::Second, |at: &VLinkHandle| {
            match how {
                How::Keep(kept) => {
                    let posted = Posted::Write(at.api.clone(), at.api.write_lent(piece).into_owned(), len);
                    // SAFETY: the program vouches for its pointers.
                    unsafe { kept.give(&at.runtime, posted) }?;
                }
                How::Call(call) => at.api.write_lent_with(
                    piece,
                    Handler::new(move |api, outcome: Result<Vec<u8>, _>| {
                        call.call(link, outcome.map(|_| len as i64).map_err(|error| named(api, error)));
                    }),
                ),
            }
            Ok(MDG_OK)
        })
    })
}

/// Posts a connect to an address or a card. Does not block. The result is the link's handle, or an error as mdg_connect() returns; it
/// comes after 15 s for each path at the latest, as long as somebody turns the engine. A handler is called with the runtime's handle.
///
/// `handler`, `user`, `op`: see mdg_post_read(). Returns 0, or MDG_EADDRESS, MDG_ENODRIVER, MDG_EHANDLE, MDG_ETYPE, MDG_EINVAL,
/// MDG_EFULL, MDG_EFORKED: then nothing was posted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_post_connect(
    runtime: mdg_runtime,
    to: *const c_char,
    handler: mdg_handler,
    user: *mut c_void,
    op: *mut mdg_op,
) -> c_int {
    status(|| {
        let how = one_of(Call::new(handler, user), op)?;
        let from = runtime_of(runtime)?;
        // SAFETY: the program vouches for its text.
        let to = unsafe { text(to, "`to`") }?;
        match how {
            How::Keep(kept) => {
                let slot = Slot::new();
                let dial = dial(&from, to, Then::Keep(Arc::clone(&slot)))?;
                // SAFETY: the program vouches for its pointers.
                unsafe { kept.give(&from, Posted::Connect(dial, slot)) }?;
            }
            How::Call(call) => {
                let its = Arc::clone(&from);
                let handler = move |made: Made| {
                    let outcome = made.map(|(link, choice)| Outcome::Link(link, choice));
                    call.call(runtime, number(&its, outcome));
                };
                dial(&from, to, Then::Call(Box::new(handler)))?;
            }
        }
        Ok(MDG_OK)
    })
}

/// Posts an accept: it completes with the next link that arrives. Does not block. The result is the link's handle, or an error as
/// mdg_accept() returns. Accepts of one acceptor complete in the order they were posted.
///
/// `handler`, `user`, `op` and what is returned: see mdg_post_read().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_post_accept(
    acceptor: mdg_acceptor,
    handler: mdg_handler,
    user: *mut c_void,
    op: *mut mdg_op,
) -> c_int {
    status(|| {
        let how = one_of(Call::new(handler, user), op)?;
        let listeners = listeners_of(acceptor)?;
        match how {
            How::Keep(kept) => {
                let slot = Slot::new();
                let posted = Posted::Accept(Arc::clone(&listeners), Arc::clone(&slot));
                // SAFETY: the program vouches for its pointers.
                unsafe { kept.give(&listeners.runtime, posted) }?;
                listeners.accept(Then::Keep(slot));
            }
            How::Call(call) => {
                let its = Arc::clone(&listeners.runtime);
                let handler = move |arrival: Arrival| {
                    call.call(acceptor, number(&its, arrival.map(|link| Outcome::Link(link, None))));
                };
                listeners.accept(Then::Call(Box::new(handler)));
            }
        }
        Ok(MDG_OK)
    })
}

/// Posts the end of a link: reads posted before complete with MDG_ECLOSED, writes posted before are written, then the peer sees the end of
/// the stream. Later posts fail. Does not block. The result is 0 when the link is closed on this side. The handle stays until
/// mdg_close().
///
/// `handler`, `user`, `op` and what is returned: see mdg_post_read().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_post_close(
    link: mdg_link,
    handler: mdg_handler,
    user: *mut c_void,
    op: *mut mdg_op,
) -> c_int {
    status(|| {
        let how = one_of(Call::new(handler, user), op)?;
        with(link, Lane::Main, |at: &VLinkHandle| {
            match how {
                How::Keep(kept) => {
                    let slot = Slot::new();
                    // SAFETY: the program vouches for its pointers.
                    unsafe { kept.give(&at.runtime, Posted::Close(Arc::clone(&slot))) }?;
                    at.api.close_with(Handler::new(move |(), ()| {
                        Then::Keep(Arc::clone(&slot)).complete(());
                    }));
                }
                How::Call(call) => at.api.close_with(Handler::new(move |(), ()| call.call(link, Ok(0)))),
            }
            Ok(MDG_OK)
        })
    })
}

/// Looks whether an operation completed, turning the engine once. Does not block. If it did, its result goes into *result and its handle
/// is nothing any more.
///
/// Returns 1 if it completed (whatever the result), 0 if not yet; or MDG_EHANDLE, MDG_ETYPE, MDG_EINVAL, MDG_EBUSY (another thread waits
/// for it), MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_test(op: mdg_op, result: *mut i64) -> c_int {
    status(|| {
        let place = Place::new(result, "`result`")?;
        // SAFETY: the program vouches for its pointers.
        ask(op, 0, |result| unsafe { place.put(result) })
    })
}

/// Waits until an operation completed, at most `timeout_ns` nanoseconds (MDG_FOREVER: without end; 0: as mdg_test()). Spins as the wait
/// policy allows, then sleeps; everything else in the runtime goes on meanwhile, and handlers are called.
///
/// Returns as mdg_test(); 0: the time passed, and the operation is still posted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_wait(op: mdg_op, timeout_ns: i64, result: *mut i64) -> c_int {
    status(|| {
        let place = Place::new(result, "`result`")?;
        let timeout_ns = time(timeout_ns)?;
        // SAFETY: the program vouches for its pointers.
        ask(op, timeout_ns, |result| unsafe { place.put(result) })
    })
}

/// Takes an operation back, and closes its handle: memory that was lent to it is the program's again. Does not block.
///
/// A read that had completed is not lost: its bytes are in the buffer, and their number is returned. Of a write, the number of bytes
/// that were taken before; of others 0. A connection that came of a connect is closed; one that came of an accept waits for the next.
///
/// Returns 0 or more, or the error the operation ended with, or MDG_EHANDLE, MDG_ETYPE, MDG_EBUSY (another thread waits for it),
/// MDG_EFORKED.
#[unsafe(no_mangle)]
pub extern "C" fn mdg_cancel(op: mdg_op) -> i64 {
    count(|| {
        ending(op, |its: &Op, take| {
            let mut asked = its.ask()?;
            take()?;
            asked.cancel()
        })
    })
}

fn ask(op: mdg_op, timeout_ns: i64, give: impl FnOnce(i64)) -> Result<c_int, Failure> {
    ending(op, |its: &Op, take| {
        let Some(outcome) = its.ask()?.wait(timeout_ns) else { return Ok(0) };
        // It may have gone with the runtime meanwhile.
        let _ = take();
        give(number(&its.runtime, outcome).unwrap_or_else(|failure| i64::from(crate::failure::note(failure))));
        Ok(1)
    })
}

/// The number an outcome is for C: bytes, or the handle of a link.
fn number(runtime: &Arc<Runtime>, outcome: Result<Outcome, Failure>) -> Result<i64, Failure> {
    match outcome? {
        Outcome::Count(count) => Ok(count),
        Outcome::Link(api, choice) => {
            let link = VLinkHandle { runtime: Arc::clone(runtime), api, choice };
            // Handles are below 2^63.
            Room::take()?.fill::<VLinkHandle>(Object::Link(Box::new(link))).map(mdg_handle::cast_signed)
        }
    }
}
