//! The types of the header.
#![allow(non_camel_case_types)]

use core::ffi::c_void;

/// Names something that was opened. Never 0, and below 2^63. A handle that was closed is never used again: a call with it fails with
/// MDG_EHANDLE, and one with a handle of another kind with MDG_ETYPE.
pub type mdg_handle = u64;
/// The engine and the drivers of a process.
pub type mdg_runtime = mdg_handle;
/// A stream of bytes between two processes.
pub type mdg_link = mdg_handle;
/// A place where links arrive.
pub type mdg_acceptor = mdg_handle;
/// An operation that was posted.
pub type mdg_op = mdg_handle;
/// A descriptor of the program's own in the engine.
pub type mdg_watch = mdg_handle;
/// A timer of the program's own in the engine.
pub type mdg_timer = mdg_handle;
/// A place in a group of processes that send each other messages.
pub type mdg_circuit = mdg_handle;
/// A message that is being packed.
pub type mdg_packing = mdg_handle;
/// A message that is being unpacked.
pub type mdg_unpacking = mdg_handle;
/// A port from which messages go to all ports that it is connected to.
pub type mdg_send_port = mdg_handle;
/// A named port where messages arrive.
pub type mdg_receive_port = mdg_handle;
/// A message that is written, item by item.
pub type mdg_message = mdg_handle;
/// A message that came, and is read item by item.
pub type mdg_incoming = mdg_handle;
/// A place for the headers of messages, whose data lie elsewhere until they are read.
pub type mdg_mailbox = mdg_handle;
/// Bytes that are written once, and shared by processes of a host.
pub type mdg_buffer = mdg_handle;

/// A link of messages of which a part may be lost.
pub type mdg_lossy_link = mdg_handle;
/// A place where such links arrive.
pub type mdg_lossy_acceptor = mdg_handle;
/// This process's place in a pool.
pub type mdg_pool = mdg_handle;

/// A time that never passes. Any other negative time is MDG_EINVAL: what is left of a time that has passed is 0.
pub const MDG_FOREVER: i64 = -1;

/// A function of the program's that is called when something completes or is ready: with what was given beside it (`user`), with the
/// handle it was asked of, and with the result, which is an error's code if it is negative; then mdg_error_text() says more.
///
/// It is called by a thread that turns the engine (mdg_turn(), or any call that waits), never inside the call it was given to, and
/// without any lock: it may call whatever is declared here. It must return: no exception and no longjmp(3) may leave it.
pub type mdg_handler = Option<unsafe extern "C" fn(user: *mut c_void, handle: mdg_handle, result: i64)>;
