//! Circuits: messages among a group of processes, packed and unpacked piece by piece.

use core::ffi::{c_int, c_void};
use std::sync::Arc;

use madrigal_base::node::NodeAddress;
use madrigal_sys::piece::Piece;

use super::arguments::{Place, memory, opened, time};
use super::guard::status;
use super::links::runtime_of;
use super::types::{mdg_circuit, mdg_handle, mdg_packing, mdg_runtime, mdg_unpacking};
use crate::circuit::{Circuit, Packing, Promise, Unpacking, Wanted};
use crate::codes::{MDG_EINVAL, MDG_ETIMEDOUT, MDG_ETYPE, MDG_OK};
use crate::failure::Failure;
use crate::launched;
use crate::mailboxes::Mailbox;
use crate::object::{Object, ending, with};
use crate::ports::SendPort;
use crate::runtime::deadline;
use crate::table::Lane;

/// Bytes of a node's address.
pub const MDG_ADDRESS: usize = 64;
/// A flag of mdg_circuit_open(): messages carry tags. All nodes of a group give the same flags.
pub const MDG_TAGS: u32 = 1;
/// Any node, for mdg_begin_unpacking().
pub const MDG_ANY: c_int = -1;

/// What a sender promises of a piece: nothing; the bytes may change as soon as mdg_pack() returns, for they are copied.
pub const MDG_SAFER: c_int = 0;
/// The bytes may change until mdg_end_packing(): what they are then is sent.
pub const MDG_LATER: c_int = 1;
/// The bytes do not change until mdg_end_packing() returns. For a receiver: they are there when mdg_end_unpacking() returns.
pub const MDG_CHEAPER: c_int = 2;
/// What a receiver wants of a piece: the bytes are there when mdg_unpack() returns, so that they can say what follows.
pub const MDG_EXPRESS: c_int = 3;

fn circuit_of(handle: mdg_circuit) -> Result<Arc<Circuit>, Failure> {
    with(handle, Lane::Main, |circuit: &Arc<Circuit>| Ok(Arc::clone(circuit)))
}

/// Opens a Circuit, which has an address, and is to join a group; its handle goes into *circuit. `flags` is 0 or MDG_TAGS. Any number of
/// Circuits of a runtime share one link to each other process. Does not block.
///
/// What is sent on a Circuit goes by the nearest of shared memory, a fabric and TCP that reaches the other node, looked for at the first
/// message. Whoever waits in a call of a Circuit makes progress for all of the runtime's; nobody else does, mdg_turn() neither.
///
/// mdg_close() of a Circuit waits until copies of MDG_SAFER pieces have left, and throws away what nobody unpacked.
///
/// Returns 0, or MDG_EUNUSABLE (no driver of messages works here), MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFULL, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_circuit_open(runtime: mdg_runtime, flags: u32, circuit: *mut mdg_circuit) -> c_int {
    let make = || {
        let runtime = runtime_of(runtime)?;
        if flags & !MDG_TAGS != 0 {
            return Err(Failure::new(MDG_EINVAL, format!("{flags:#x} has flags that are not known")));
        }
        Ok(Object::Circuit(Circuit::open(&runtime, flags & MDG_TAGS != 0)?))
    };
    // SAFETY: the program vouches for its pointers.
    status(|| unsafe { opened::<Arc<Circuit>>(circuit, "`circuit`", make) }.map(|_| MDG_OK))
}

/// Copies the Circuit's address, MDG_ADDRESS bytes, to `address`. The program brings all addresses of a group to all its nodes by
/// whatever it has. Does not block.
///
/// Returns 0, or MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_circuit_address(circuit: mdg_circuit, address: *mut c_void) -> c_int {
    status(|| {
        let place = Place::new(address.cast::<[u8; MDG_ADDRESS]>(), "`address`")?;
        let mut bytes = [0; MDG_ADDRESS];
        let encoded = circuit_of(circuit)?.address.encode(MDG_ADDRESS);
        bytes.iter_mut().zip(encoded).for_each(|(to, from)| *to = from);
        // SAFETY: the program vouches for its pointers.
        unsafe { place.put(bytes) };
        Ok(MDG_OK)
    })
}

/// Joins a group of `count` nodes, whose addresses lie one behind the other at `addresses`, MDG_ADDRESS bytes each: every node gives the
/// same ones in the same order, its own among them. A node's rank is its place there. A Circuit joins once. Nothing is sent yet; does not
/// block.
///
/// Returns this node's rank, or MDG_ERANK (its own address is not among them), MDG_EADDRESS, MDG_EBUSY (it has joined before),
/// MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_circuit_join(circuit: mdg_circuit, addresses: *const c_void, count: usize) -> c_int {
    status(|| {
        let circuit = circuit_of(circuit)?;
        let len = count.checked_mul(MDG_ADDRESS).ok_or_else(|| Failure::new(MDG_EINVAL, "too many nodes"))?;
        // SAFETY: the program vouches for its buffer until this returns.
        let bytes = unsafe { memory(addresses, len) }?.bytes();
        let node = |bytes| NodeAddress::decode(bytes).map_err(Failure::from);
        let nodes = bytes.chunks_exact(MDG_ADDRESS).map(node).collect::<Result<Vec<_>, _>>()?;
        Ok(c_int::try_from(circuit.join(&nodes)?).unwrap_or(c_int::MAX))
    })
}

/// Joins the group of all processes that one launcher started: mpiexec of MPICH or of an MPI made from it, or `madrigal run`. Each of them
/// calls this once, and waits for the others, at most `timeout_ns` nanoseconds (MDG_FOREVER: without end). The ranks are the launcher's; how
/// many there are goes into *size, which may be NULL. A process that nobody launched is a group of one. A program that uses an MPI, too, brings
/// addresses to all by that instead (mdg_circuit_join()), for a launcher answers one library; so does one that was started by PMIx alone
/// (Open MPI's mpirun). The launcher's barrier is not turned back: after MDG_ETIMEDOUT the job is best ended.
///
/// Returns this node's rank, or MDG_EUNUSABLE (the launcher's answer, in the text), MDG_ETIMEDOUT, MDG_ELOST (the launcher is gone),
/// MDG_EBUSY (the launcher was asked before, or the Circuit has joined), MDG_EINVAL, MDG_ESYSTEM, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_circuit_world(circuit: mdg_circuit, timeout_ns: i64, size: *mut c_int) -> c_int {
    status(|| {
        let (circuit, place) = (circuit_of(circuit)?, Place::new(size, "`size`").ok());
        let mut own = circuit.address.encode(MDG_ADDRESS);
        own.resize(MDG_ADDRESS, 0);
        let all = launched::exchange(&own, deadline(time(timeout_ns)?))?;
        let nodes = all.iter().map(|bytes| NodeAddress::decode(bytes).map_err(Failure::from));
        let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
        let rank = circuit.join(&nodes)?;
        if let Some(place) = place {
            // SAFETY: the program vouches for its pointers.
            unsafe { place.put(c_int::try_from(nodes.len()).unwrap_or(c_int::MAX)) };
        }
        Ok(c_int::try_from(rank).unwrap_or(c_int::MAX))
    })
}

/// Begins a message to the node of rank `to`; its handle goes into *packing. Without MDG_TAGS `tag` is 0. Nothing is sent before
/// mdg_end_packing(); mdg_close() of the handle sends nothing. Messages may be packed in several threads. Does not block.
///
/// Returns 0, or MDG_ERANK, MDG_EBUSY (no group was joined), MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFULL, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_begin_packing(
    circuit: mdg_circuit,
    to: c_int,
    tag: u64,
    packing: *mut mdg_packing,
) -> c_int {
    let make = || {
        let to = usize::try_from(to).unwrap_or(usize::MAX);
        Ok(Object::Packing(Box::new(Packing::begin(circuit_of(circuit)?, to, tag)?)))
    };
    // SAFETY: the program vouches for its pointers.
    status(|| unsafe { opened::<Packing>(packing, "`packing`", make) }.map(|_| MDG_OK))
}

/// Adds a piece of `len` bytes to a message. `mode` is what is promised of them: MDG_SAFER, MDG_LATER or MDG_CHEAPER; bytes that are not
/// MDG_SAFER are lent until mdg_end_packing() returns, or the handle is closed. The receiver unpacks the same pieces in the same
/// order; neither lengths nor modes are sent. Does not block.
///
/// Returns 0, or MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_pack(packing: mdg_packing, buf: *const c_void, len: usize, mode: c_int) -> c_int {
    status(|| {
        // SAFETY: the program vouches for its buffer as long as it is lent.
        let piece = unsafe { memory(buf, len) }?;
        let promise = match mode {
            MDG_SAFER => Promise::Safer,
            MDG_LATER => Promise::Later,
            MDG_CHEAPER => Promise::Cheaper,
            _ => return Err(Failure::new(MDG_EINVAL, format!("{mode} is no mode of a piece that is packed"))),
        };
        with(packing, Lane::Main, |packing: &Packing| {
            packing.pack(piece, promise)?;
            Ok(MDG_OK)
        })
    })
}

/// Sends a message and closes its handle, whatever is returned; memory that was lent is the program's again.
///
/// Pieces up to 4 KiB are the library's when this returns. They have left, too, where there is a path to the node and room in it; else they
/// leave while somebody is in a call of a Circuit: call mdg_flush() before a long time without one. For longer pieces that are not
/// MDG_SAFER it waits for the receiver, and so it does where the receiver has 64 MiB of ours that it did not unpack: nodes that all send
/// must also unpack now and then.
///
/// Returns 0, or MDG_ELOST (the text says what was tried), MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub extern "C" fn mdg_end_packing(packing: mdg_packing) -> c_int {
    status(|| {
        ending(packing, |its: &Packing, take| {
            take()?;
            its.end()?;
            Ok(MDG_OK)
        })
    })
}

/// Waits until whatever was sent on any Circuit or by any port of the runtime has left, or is given up because its node is gone, at most
/// `timeout_ns` nanoseconds (MDG_FOREVER: without end; 0: only sends what there is room for). What has left may not have been received.
/// `of` is a Circuit or a send port; or a mailbox: then it waits also until the data that this process keeps of its messages were read.
///
/// Returns 0, or MDG_ETIMEDOUT (nothing was lost), MDG_ECLOSED (another thread closed it), MDG_EBUSY (no group was joined), MDG_EINVAL,
/// MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub extern "C" fn mdg_flush(of: mdg_handle, timeout_ns: i64) -> c_int {
    status(|| {
        let timeout_ns = time(timeout_ns)?;
        match circuit_of(of) {
            Err(failure) if failure.code == MDG_ETYPE => {
                match with(of, Lane::Main, |port: &SendPort| port.flush(timeout_ns)) {
                    Err(failure) if failure.code == MDG_ETYPE => {
                        with(of, Lane::Main, |mailbox: &Mailbox| mailbox.flush(timeout_ns))?;
                    }
                    port => port?,
                }
            }
            circuit => circuit?.flush(timeout_ns)?,
        }
        Ok(MDG_OK)
    })
}

/// Waits for a message, at most `timeout_ns` nanoseconds (MDG_FOREVER: without end; 0: only looks): of the node of rank `from`, or of
/// MDG_ANY; with a tag that equals `tag` but for the bits of `ignore` (all ones: any tag). Of those that fit, the one that came first.
/// Its handle goes into *unpacking. Messages may be unpacked in several threads.
///
/// Returns 0, or MDG_ETIMEDOUT, MDG_ELOST (that node is gone; of MDG_ANY, all others are), MDG_ECLOSED (the Circuit was closed), MDG_ERANK,
/// MDG_EBUSY (no group was joined), MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFULL, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_begin_unpacking(
    circuit: mdg_circuit,
    from: c_int,
    tag: u64,
    ignore: u64,
    timeout_ns: i64,
    unpacking: *mut mdg_unpacking,
) -> c_int {
    let make = || {
        let (circuit, timeout_ns) = (circuit_of(circuit)?, time(timeout_ns)?);
        let from = (from != MDG_ANY).then(|| usize::try_from(from).unwrap_or(usize::MAX));
        let message = circuit.receive(&Wanted { from, tag, ignore }, timeout_ns)?;
        let message = message.ok_or_else(|| Failure::new(MDG_ETIMEDOUT, "no such message came in time"))?;
        Ok(Object::Unpacking(Box::new(Unpacking::new(circuit, message))))
    };
    // SAFETY: the program vouches for its pointers.
    status(|| unsafe { opened::<Unpacking>(unpacking, "`unpacking`", make) }.map(|_| MDG_OK))
}

/// Who sent a message, and its tag. Either place may be NULL. Does not block.
///
/// Returns 0, or MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_sender(unpacking: mdg_unpacking, from: *mut c_int, tag: *mut u64) -> c_int {
    status(|| {
        let (rank, its) = with(unpacking, Lane::Main, |unpacking: &Unpacking| Ok((unpacking.from, unpacking.tag)))?;
        if let Ok(place) = Place::new(from, "`from`") {
            // SAFETY: the program vouches for its pointers.
            unsafe { place.put(c_int::try_from(rank).unwrap_or(c_int::MAX)) };
        }
        if let Ok(place) = Place::new(tag, "`tag`") {
            // SAFETY: the program vouches for its pointers.
            unsafe { place.put(its) };
        }
        Ok(MDG_OK)
    })
}

/// Takes the next piece of a message, `len` bytes to `buf`. `mode` is MDG_EXPRESS or MDG_CHEAPER; memory for the latter is lent until
/// mdg_end_unpacking() returns, or the handle is closed. Waits for the sender only for an MDG_EXPRESS piece above 4 KiB.
///
/// Returns 0, or MDG_ELOST, MDG_EMISMATCH (the sender packed other pieces), MDG_EBUSY (another thread is unpacking this message),
/// MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_unpack(unpacking: mdg_unpacking, buf: *mut c_void, len: usize, mode: c_int) -> c_int {
    status(|| {
        // SAFETY: the program vouches for its buffer as long as it is lent.
        let piece: Piece = unsafe { memory(buf, len) }?;
        if mode != MDG_EXPRESS && mode != MDG_CHEAPER {
            return Err(Failure::new(MDG_EINVAL, format!("{mode} is no mode of a piece that is unpacked")));
        }
        with(unpacking, Lane::Main, |unpacking: &Unpacking| {
            unpacking.unpack(piece, mode == MDG_EXPRESS)?;
            Ok(MDG_OK)
        })
    })
}

/// Waits until every piece of a message is there, and closes its handle, whatever is returned but MDG_EBUSY.
///
/// Returns 0, or MDG_EMISMATCH (the sender packed other pieces), MDG_ELOST, MDG_EBUSY (another thread is unpacking this message),
/// MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub extern "C" fn mdg_end_unpacking(unpacking: mdg_unpacking) -> c_int {
    status(|| {
        ending(unpacking, |its: &Unpacking, take| {
            let mut rest = its.rest()?;
            take()?;
            its.end(&mut rest)?;
            Ok(MDG_OK)
        })
    })
}
