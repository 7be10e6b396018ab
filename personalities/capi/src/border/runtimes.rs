//! Runtimes, what every handle has, and the end of everything.

use core::ffi::{c_char, c_int};
use std::sync::Arc;

use super::arguments::{descriptor, give_text, opened};
use super::guard::{be_quiet, count, status};
use super::types::{mdg_handle, mdg_runtime};
use crate::codes::{MDG_ETYPE, MDG_OK};
use crate::failure::Failure;
use crate::object::{Object, all, any, take};
use crate::runtime::Runtime;
use crate::{fork, why};

/// The library's version, such as "0.1.0". The text is static. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn mdg_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Opens a runtime, configured by the environment's MADRIGAL_* variables (madrigal(1)), and puts its handle into *runtime.
///
/// A process may have several; they share nothing. Nothing listens and no thread is started. Everything else is opened from a runtime,
/// and closed with it. A process that forks later has children that cannot use Madrigal (MDG_EFORKED); one that forks before may. Does
/// not block. Thread-safe, as every function here.
///
/// Returns 0, or MDG_EINVAL, MDG_ESYSTEM (no descriptor is free), MDG_EFULL, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_runtime_open(runtime: *mut mdg_runtime) -> c_int {
    let make = || {
        be_quiet();
        fork::begin()?;
        Ok(Object::Runtime(Runtime::open()?))
    };
    // SAFETY: the program vouches for its pointers.
    status(|| unsafe { opened::<Arc<Runtime>>(runtime, "`runtime`", make) }.map(|_| MDG_OK))
}

/// Closes whatever a handle names. The handle is nothing from then on, and no call is refused for being made too late.
///
/// * A runtime: everything opened from it is closed first, at once. Operations that are posted complete with MDG_ECLOSED, and their
///   handlers are called before this returns, or in a thread that is turning the engine at this moment. No memory that was lent is
///   touched any more, and every descriptor is closed. Waits for a thread that mdg_fd() began.
/// * A link: as mdg_post_close(): what was posted to be written is written, as long as somebody turns the engine; what is posted to be
///   read completes with MDG_ECLOSED. Bytes of the peer's that were not read are dropped, and it is told so by a reset.
/// * An acceptor: nobody listens any more; accepts complete with MDG_ECLOSED.
/// * A link of messages of which a part may be lost: what was sent goes on as long as somebody turns the engine, ten seconds at most in
///   which the peer takes nothing.
/// * An operation: it is taken back, as by mdg_cancel().
/// * A Circuit: who waits for a message of it gets MDG_ECLOSED. See mdg_circuit_open().
/// * A pool: this process leaves it, as by mdg_pool_leave() but without waiting; who waits for something of it gets MDG_ECLOSED.
/// * A message that is packed or unpacked: it is not sent, or the rest of it is thrown away.
/// * A mailbox: what is in it is dropped, and who waits gets MDG_ECLOSED. A buffer: its memory is gone from this process. It is closed with
///   no runtime.
/// * A watch or a timer: its handler is not called any more, but may be running in another thread.
///
/// Does not block but for what is said above. Returns 0, or MDG_EHANDLE (also where another thread closes the same handle first),
/// MDG_EBUSY (an operation that another thread waits for, a message that another thread is unpacking), MDG_EFORKED.
#[unsafe(no_mangle)]
pub extern "C" fn mdg_close(handle: mdg_handle) -> c_int {
    status(|| {
        let object = any(handle)?;
        if let Object::Runtime(runtime) = &*object {
            return close_runtime(handle, runtime);
        }
        match &*object {
            Object::Op(op) => {
                let mut asked = op.ask()?;
                take(handle)?;
                // Its result is dropped.
                let _ = asked.cancel();
            }
            Object::Unpacking(unpacking) => {
                let mut rest = unpacking.rest()?;
                take(handle)?;
                *rest = None;
            }
            Object::Written(message) => {
                let mut rest = message.rest()?;
                take(handle)?;
                *rest = None;
            }
            Object::Incoming(message) => {
                let mut rest = message.rest()?;
                take(handle)?;
                *rest = None;
            }
            other => {
                take(handle)?;
                end(other);
            }
        }
        Ok(MDG_OK)
    })
}

/// Ends an object whose handle is gone.
fn end(object: &Object) {
    match object {
        Object::Link(link) => {
            drop(link.api.close());
            link.runtime.leaves(&link.api);
        }
        Object::Listeners(listeners) => listeners.close(),
        Object::Watch(_, watch) => {
            // SAFETY: the kernel looks the number up; if the program closed it before, it finds nothing that is in the set.
            if let Ok(fd) = unsafe { descriptor(watch.fd()) } {
                watch.end(fd);
            }
        }
        Object::Timer(_, timer) => timer.end(),
        Object::Circuit(circuit) => circuit.close(),
        Object::ReceivePort(port) => port.api.close(),
        Object::LossyAcceptor(acceptor) => acceptor.api.close(),
        Object::LossyLink(link) => link.api.close(),
        Object::Mailbox(mailbox) => mailbox.api.close(),
        Object::Pool(pool) => pool.api.close(),
        Object::Op(_) | Object::Packing(_) | Object::Unpacking(_) | Object::Runtime(_) => {}
        Object::SendPort(_) | Object::Written(_) | Object::Incoming(_) | Object::Buffer(_) => {}
    }
}

fn close_runtime(handle: mdg_handle, runtime: &Arc<Runtime>) -> Result<c_int, Failure> {
    take(handle)?;
    // What another thread opens from now on is closed by that thread.
    runtime.shut();
    let its = || all().into_iter().filter_map(|handle| Some((handle, any(handle).ok()?)));
    let is_its = |object: &Object| object.runtime().is_some_and(|other| Arc::ptr_eq(other, runtime));
    let its = || its().filter(|(_, object)| is_its(object));
    // All links refuse first: if both ends of a link are here, the one must not report the end of the other.
    for (_, object) in its() {
        if let Object::Link(link) = &*object {
            link.api.refuse();
        }
    }
    for (handle, object) in its() {
        if let Object::Link(link) = &*object {
            link.api.abort();
        }
        object.take_back();
        if take(handle).is_ok() {
            end(&object);
        }
    }
    runtime.finish();
    Ok(MDG_OK)
}

/// Copies what is known of a handle to `buf`, as JSON that ends with a nul, cut to `len` bytes.
///
/// Of a link: its driver and adapter, both addresses, and where Madrigal chose the path, the others and why not. Of a runtime: every
/// driver, whether it works here and why not, and what was wrong with the environment. More members may come. Does not block.
///
/// Returns the text's length without the nul (call again with more room where that is `len` or more), or MDG_EHANDLE, MDG_EINVAL (`buf`
/// is NULL and `len` is not 0), MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_why(handle: mdg_handle, buf: *mut c_char, len: usize) -> i64 {
    count(|| {
        let text = why::why(&*any(handle)?);
        // SAFETY: the program vouches for its buffer.
        unsafe { give_text(buf, len, &text) }
    })
}

/// Copies an address to `buf`, a text that ends with a nul, cut to `len` bytes: of an acceptor, what others connect to (a port that was
/// left open is filled in); of a link, the peer's address as far as the driver knows it. Does not block.
///
/// Returns the text's length without the nul, or MDG_EHANDLE, MDG_ETYPE, MDG_EINVAL (`buf` is NULL and `len` is not 0), MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_address(handle: mdg_handle, buf: *mut c_char, len: usize) -> i64 {
    count(|| {
        let text = match &*any(handle)? {
            Object::Listeners(listeners) => listeners.address.clone(),
            Object::Link(link) => link.api.peer().to_string(),
            Object::ReceivePort(port) => port.api.address().to_string(),
            Object::LossyAcceptor(acceptor) => acceptor.address.clone(),
            Object::LossyLink(link) => link.api.peer().to_string(),
            Object::Mailbox(mailbox) => mailbox.api.address().to_string(),
            _ => {
                return Err(Failure::new(
                    MDG_ETYPE,
                    "only links, acceptors, receive ports and mailboxes have addresses",
                ));
            }
        };
        // SAFETY: the program vouches for its buffer.
        unsafe { give_text(buf, len, &text) }
    })
}
