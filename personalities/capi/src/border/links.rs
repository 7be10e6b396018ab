//! Links, and where they arrive: the calls that wait.

use core::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use madrigal::Address;

use super::arguments::{memory, opened, text, time};
use super::guard::{count, status};
use super::types::{mdg_acceptor, mdg_link, mdg_runtime};
use crate::codes::{MDG_ETIMEDOUT, MDG_OK};
use crate::dial::dial;
use crate::failure::Failure;
use crate::link::VLinkHandle;
use crate::listeners::Listeners;
use crate::object::{Object, with};
use crate::runtime::Runtime;
use crate::slot::{Slot, Then};
use crate::table::Lane;

/// The runtime of a handle.
pub(super) fn runtime_of(handle: mdg_runtime) -> Result<Arc<Runtime>, Failure> {
    with(handle, Lane::Main, |runtime: &Arc<Runtime>| Ok(Arc::clone(runtime)))
}

/// The acceptor of a handle.
pub(super) fn listeners_of(handle: mdg_acceptor) -> Result<Arc<Listeners>, Failure> {
    with(handle, Lane::Main, |listeners: &Arc<Listeners>| Ok(Arc::clone(listeners)))
}

/// Listens at an address by the driver it names, and puts the acceptor's handle into *acceptor.
///
/// Addresses are "tcp://ADDRESS:PORT" with numbers (port 0: the kernel's choice, see mdg_address()), to connect also "tcp://HOST:PORT" with
/// a host of the grid (docs/drivers/tcp.md), "shm://NAME" among processes of one user on one host, "loopback://NAME" inside this process. A stack of adapters may stand in front: links of
/// "adoc/stripe(4)/tcp://ADDRESS:PORT" are compressed where that makes them faster, and have four connections; both ends name the same
/// stack. With "tls" in it ("tls/tcp://ADDRESS:PORT", above any "stripe") links are enciphered, and both processes show certificates of one
/// grid and one user (`madrigal login`): a peer that is not let in never arrives, and its mdg_connect() fails with the reason. So do those
/// of "vrp/udp://ADDRESS:PORT", which go by QUIC: on a line that loses packets faster than TCP; messages of which a part may be lost go by
/// mdg_lossy_listen(). Links can arrive as soon as this returns, and wait to be accepted. Does not block.
///
/// Returns 0, or MDG_EADDRESS, MDG_ENODRIVER, MDG_EINUSE, MDG_EUNUSABLE, MDG_ESYSTEM, MDG_EHANDLE, MDG_ETYPE, MDG_EINVAL, MDG_EFULL,
/// MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_listen(runtime: mdg_runtime, at: *const c_char, acceptor: *mut mdg_acceptor) -> c_int {
    let make = || {
        let runtime = runtime_of(runtime)?;
        // SAFETY: the program vouches for its text.
        let at: Address = unsafe { text(at, "`at`") }?.parse()?;
        let api = runtime.api.listen_at(&at)?;
        let address = Address { locator: api.locator().clone(), ..at }.to_string();
        Ok(Object::Listeners(Listeners::new(runtime, address, vec![api])))
    };
    // SAFETY: the program vouches for its pointers.
    status(|| unsafe { opened::<Arc<Listeners>>(acceptor, "`acceptor`", make) }.map(|_| MDG_OK))
}

/// Listens as NAME by every driver that may be used and works here, on this host only. The acceptor's address (mdg_address()) is a card,
/// one word to hand to others: who connects to it goes by the best path there is (mdg_why() says which, and why not the others).
///
/// Does not block. Returns as mdg_listen().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_serve(runtime: mdg_runtime, name: *const c_char, acceptor: *mut mdg_acceptor) -> c_int {
    let make = || {
        let runtime = runtime_of(runtime)?;
        // SAFETY: the program vouches for its text.
        let server = runtime.api.serve(unsafe { text(name, "`name`") }?)?;
        Ok(Object::Listeners(Listeners::new(runtime, server.card().to_string(), server.acceptors().to_vec())))
    };
    // SAFETY: the program vouches for its pointers.
    status(|| unsafe { opened::<Arc<Listeners>>(acceptor, "`acceptor`", make) }.map(|_| MDG_OK))
}

/// Waits for the next link that arrives, at most `timeout_ns` nanoseconds (MDG_FOREVER: without end; 0: only looks), and puts its
/// handle into *link. Turns the engine meanwhile.
///
/// Returns 0, or MDG_ETIMEDOUT, MDG_ECLOSED (the acceptor was closed), MDG_ESYSTEM (later it may do), MDG_EHANDLE, MDG_ETYPE,
/// MDG_EINVAL, MDG_EFULL, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_accept(acceptor: mdg_acceptor, timeout_ns: i64, link: *mut mdg_link) -> c_int {
    let make = || {
        let (listeners, timeout_ns) = (listeners_of(acceptor)?, time(timeout_ns)?);
        let slot = Slot::new();
        listeners.accept(Then::Keep(Arc::clone(&slot)));
        // Given up, it may still have come in time.
        let arrival = listeners.runtime.wait(&slot, timeout_ns).or_else(|| listeners.give_up(&slot));
        let late = || Err(Failure::new(MDG_ETIMEDOUT, format!("nobody connected to {} in time", listeners.address)));
        let api = arrival.unwrap_or_else(late)?;
        Ok(Object::Link(Box::new(VLinkHandle { runtime: Arc::clone(&listeners.runtime), api, choice: None })))
    };
    // SAFETY: the program vouches for its pointers.
    status(|| unsafe { opened::<VLinkHandle>(link, "`link`", make) }.map(|_| MDG_OK))
}

/// Connects to an address (see mdg_listen()) or a card (see mdg_serve()), waits at most `timeout_ns` nanoseconds (MDG_FOREVER: until it
/// is decided, which takes no more than 15 s for each path) and puts the link's handle into *link. Turns the engine meanwhile. The peer
/// may not have accepted yet: what is written waits for it.
///
/// Returns 0, or MDG_EREFUSED, MDG_EBUSY, MDG_ETIMEDOUT, MDG_EPERM, MDG_EADDRESS, MDG_ENODRIVER, MDG_ENOPATH, MDG_ECLOSED (the runtime was
/// closed), MDG_ESYSTEM, MDG_EHANDLE, MDG_ETYPE, MDG_EINVAL, MDG_EFULL, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_connect(
    runtime: mdg_runtime,
    to: *const c_char,
    timeout_ns: i64,
    link: *mut mdg_link,
) -> c_int {
    let make = || {
        let (runtime, timeout_ns) = (runtime_of(runtime)?, time(timeout_ns)?);
        // SAFETY: the program vouches for its text.
        let to = unsafe { text(to, "`to`") }?;
        let slot = Slot::new();
        let dial = dial(&runtime, to, Then::Keep(Arc::clone(&slot)))?;
        let made = runtime.wait(&slot, timeout_ns).or_else(|| dial.give_up(&slot));
        let late = || Err(Failure::new(MDG_ETIMEDOUT, format!("cannot connect to {to}: it was not decided in time")));
        let (api, choice) = made.unwrap_or_else(late)?;
        Ok(Object::Link(Box::new(VLinkHandle { runtime, api, choice })))
    };
    // SAFETY: the program vouches for its pointers.
    status(|| unsafe { opened::<VLinkHandle>(link, "`link`", make) }.map(|_| MDG_OK))
}

/// Reads into `buf`, up to `len` bytes: waits until there is at least one, at most `timeout_ns` nanoseconds (MDG_FOREVER: without end;
/// 0: only looks). Spins as the wait policy allows, then sleeps; other links go on meanwhile. The buffer is the program's again when
/// this returns. Reads of one link complete in the order they began.
///
/// Returns how many bytes were read, 0 at the end of the stream (or if `len` is 0), or MDG_ETIMEDOUT (nothing was lost), MDG_ERESET (the
/// peer died, or closed without reading what we had sent), MDG_ECLOSED (our own side), MDG_ECORRUPT, MDG_ESYSTEM, MDG_EHANDLE, MDG_ETYPE,
/// MDG_EINVAL, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_read(link: mdg_link, buf: *mut c_void, len: usize, timeout_ns: i64) -> i64 {
    count(|| {
        // SAFETY: the program vouches for its buffer until this returns, and nobody looks at it after.
        let (piece, timeout_ns) = (unsafe { memory(buf, len) }?, time(timeout_ns)?);
        with(link, Lane::Main, |link: &VLinkHandle| link.read(piece, timeout_ns))
    })
}

/// Writes `len` bytes from `buf`: waits until all were taken, at most `timeout_ns` nanoseconds (MDG_FOREVER: without end; 0: only what
/// there is room for now). The buffer is the program's again when this returns. Bytes that were taken are not yet the peer's.
///
/// Returns how many bytes were taken, less than `len` only if the time passed; or MDG_ETIMEDOUT (none were), MDG_EGONE (the peer closed,
/// or died), MDG_ECLOSED (our own side), MDG_ECORRUPT, MDG_ESYSTEM, MDG_EHANDLE, MDG_ETYPE, MDG_EINVAL, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_write(link: mdg_link, buf: *const c_void, len: usize, timeout_ns: i64) -> i64 {
    count(|| {
        // SAFETY: the program vouches for its buffer until this returns, and nobody looks at it after.
        let (piece, timeout_ns) = (unsafe { memory(buf, len) }?, time(timeout_ns)?);
        with(link, Lane::Second, |link: &VLinkHandle| link.write(piece, timeout_ns))
    })
}
