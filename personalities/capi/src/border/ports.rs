//! Send ports and receive ports: typed messages, one way, to one port or to many.

use core::ffi::{c_char, c_int, c_void};

use madrigal::ports::{Item, Number, ReadMessage, WriteMessage};

use super::arguments::{Place, give_text, memory, opened, text, time};
use super::circuits::{MDG_CHEAPER, MDG_SAFER};
use super::guard::{count, status};
use super::links::runtime_of;
use super::types::{mdg_handle, mdg_incoming, mdg_message, mdg_receive_port, mdg_runtime, mdg_send_port};
use crate::codes::{MDG_EINVAL, MDG_ETOOLONG, MDG_ETYPE, MDG_OK};
use crate::failure::Failure;
use crate::object::{Object, ending, with};
use crate::ports::{Incoming, ReceivePort, SendPort, Written, ended};
use crate::table::Lane;

/// A number of 8 bits with a sign (int8_t). The kinds of numbers of messages.
pub const MDG_INT8: c_int = 1;
/// uint8_t.
pub const MDG_UINT8: c_int = 2;
/// int16_t.
pub const MDG_INT16: c_int = 3;
/// uint16_t.
pub const MDG_UINT16: c_int = 4;
/// int32_t.
pub const MDG_INT32: c_int = 5;
/// uint32_t.
pub const MDG_UINT32: c_int = 6;
/// int64_t.
pub const MDG_INT64: c_int = 7;
/// uint64_t.
pub const MDG_UINT64: c_int = 8;
/// float, of 32 bits.
pub const MDG_FLOAT32: c_int = 9;
/// double, of 64 bits.
pub const MDG_FLOAT64: c_int = 10;

/// What mdg_item() finds: the end of the message.
pub const MDG_ITEM_NOTHING: c_int = 0;
/// A number.
pub const MDG_ITEM_NUMBER: c_int = 1;
/// An array of numbers.
pub const MDG_ITEM_ARRAY: c_int = 2;
/// A text.
pub const MDG_ITEM_TEXT: c_int = 3;
/// The beginning of a record.
pub const MDG_ITEM_BEGIN: c_int = 4;
/// The end of a record.
pub const MDG_ITEM_END: c_int = 5;

fn number_of(kind: c_int) -> Result<Number, Failure> {
    let number = u8::try_from(kind).ok().and_then(Number::of_code);
    number.ok_or_else(|| Failure::new(MDG_EINVAL, format!("{kind} is no kind of number")))
}

/// Bytes of an array.
fn bytes_of(number: Number, count: usize) -> Result<usize, Failure> {
    let bytes = count.checked_mul(number.size());
    bytes.ok_or_else(|| Failure::new(MDG_EINVAL, format!("{count} numbers are more than there is memory for")))
}

/// Opens a receive port named `name`, and puts its handle into *port. `type` is what send ports must have, too: `key=value`, several with
/// commas between them, "" for none. The keys `connection` (one-to-one, one-to-many, many-to-one, many-to-many), `receive` (explicit, upcall)
/// and `stack` (such as adoc/tls/stripe(4)/tcp: what carries the messages, and nothing else does) mean something here; all others are the
/// program's. mdg_address() of the port is what others connect to. Does not block.
///
/// Ports answer others, and see that these are gone, while a thread of the process is in a call of a port, and then only. mdg_close() tells
/// its senders, and throws away what was not received.
///
/// Returns 0, or MDG_EINUSE (there is one of that name), MDG_EUNUSABLE (no driver of messages works here, or there cannot be such a stack),
/// MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFULL, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_receive_port_open(
    runtime: mdg_runtime,
    name: *const c_char,
    r#type: *const c_char,
    port: *mut mdg_receive_port,
) -> c_int {
    let make = || {
        // SAFETY: the program vouches for its texts.
        let (name, kind) = unsafe { (text(name, "`name`")?, text(r#type, "`type`")?) };
        Ok(Object::ReceivePort(Box::new(ReceivePort::open(&runtime_of(runtime)?, name, kind)?)))
    };
    // SAFETY: the program vouches for its pointers.
    status(|| unsafe { opened::<ReceivePort>(port, "`port`", make) }.map(|_| MDG_OK))
}

/// Opens a send port named `name`, which those it connects to are told, of a type (see mdg_receive_port_open()), and puts its handle into
/// *port. It has no connection. mdg_close() leaves all receive ports, which still get what was sent. Does not block.
///
/// Returns as mdg_receive_port_open().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_send_port_open(
    runtime: mdg_runtime,
    name: *const c_char,
    r#type: *const c_char,
    port: *mut mdg_send_port,
) -> c_int {
    let make = || {
        // SAFETY: the program vouches for its texts.
        let (name, kind) = unsafe { (text(name, "`name`")?, text(r#type, "`type`")?) };
        Ok(Object::SendPort(Box::new(SendPort::open(&runtime_of(runtime)?, name, kind)?)))
    };
    // SAFETY: the program vouches for its pointers.
    status(|| unsafe { opened::<SendPort>(port, "`port`", make) }.map(|_| MDG_OK))
}

/// Connects to a receive port, whose address `to` its process has from mdg_address(), and waits for that process's answer at most
/// `timeout_ns` nanoseconds (MDG_FOREVER: until it answers, or is gone). A port sends to all that it is connected to.
///
/// Returns 0, or MDG_EREFUSED (the text says why: the key in which the types differ, no such port, it has its one connection),
/// MDG_ETIMEDOUT, MDG_ELOST, MDG_EBUSY (the type allows one connection), MDG_ECLOSED (the runtime was closed), MDG_EADDRESS, MDG_EINVAL,
/// MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_port_connect(port: mdg_send_port, to: *const c_char, timeout_ns: i64) -> c_int {
    status(|| {
        // SAFETY: the program vouches for its text.
        let (to, timeout_ns) = (unsafe { text(to, "`to`") }?, time(timeout_ns)?);
        with(port, Lane::Main, |port: &SendPort| port.connect(to, timeout_ns))?;
        Ok(MDG_OK)
    })
}

/// Leaves a receive port, which still gets what was sent before.
///
/// Returns 0, or MDG_EGONE (there is no such connection), MDG_EADDRESS, MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_port_disconnect(port: mdg_send_port, to: *const c_char) -> c_int {
    status(|| {
        // SAFETY: the program vouches for its text.
        let to = unsafe { text(to, "`to`") }?;
        with(port, Lane::Main, |port: &SendPort| port.disconnect(to))?;
        Ok(MDG_OK)
    })
}

/// Copies what became of a port's connections since the last call to `buf`, as a JSON array that ends with a nul, cut to `len` bytes: of a
/// receive port "connected", "left" and "lost", of a send port "lost", each with the other port and, of one lost, why. Where they do not fit
/// they are told again by the next call. Does not block.
///
/// Returns the text's length without the nul, or MDG_EBUSY (another thread is sending by the port, or connecting it), MDG_EINVAL (`buf` is
/// NULL and `len` is not 0), MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_port_changes(port: mdg_handle, buf: *mut c_char, len: usize) -> i64 {
    count(|| {
        let mut length = 0;
        let mut tell = |told: &str| {
            // SAFETY: the program vouches for its buffer.
            length = unsafe { give_text(buf, len, told) }?;
            Ok(told.len() < len)
        };
        match with(port, Lane::Main, |port: &SendPort| port.changes(&mut tell)) {
            Err(failure) if failure.code == MDG_ETYPE => {
                with(port, Lane::Main, |port: &ReceivePort| port.changes(&mut tell))?;
            }
            told => told?,
        }
        Ok(length)
    })
}

/// Makes an empty message for a send port, and puts its handle into *message. Does not block.
///
/// Returns 0, or MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFULL, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_message_new(port: mdg_send_port, message: *mut mdg_message) -> c_int {
    let make = || with(port, Lane::Main, |port: &SendPort| Ok(Object::Written(Box::new(port.message()?))));
    // SAFETY: the program vouches for its pointers.
    status(|| unsafe { opened::<Written>(message, "`message`", make) }.map(|_| MDG_OK))
}

/// Adds a number of that kind (MDG_INT8 to MDG_FLOAT64), which lies at `value`. Does not block.
///
/// Returns 0, or MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_put_number(message: mdg_message, kind: c_int, value: *const c_void) -> c_int {
    status(|| {
        let number = number_of(kind)?;
        // SAFETY: the program vouches for its buffer until this returns.
        let piece = unsafe { memory(value, number.size()) }?;
        written(message, |its| its.write_number(number, piece.bytes()))
    })
}

/// Adds an array of `count` numbers of that kind, which lie at `values`. With MDG_CHEAPER an array of more than 4 KiB is lent until the
/// message's handle is closed, and is sent from where it lies; with MDG_SAFER it is copied at once. Does not block.
///
/// Returns 0, or MDG_EINVAL, MDG_EBUSY (another thread is sending the message), MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_put_array(
    message: mdg_message,
    kind: c_int,
    values: *const c_void,
    count: usize,
    mode: c_int,
) -> c_int {
    status(|| {
        let number = number_of(kind)?;
        if mode != MDG_SAFER && mode != MDG_CHEAPER {
            return Err(Failure::new(MDG_EINVAL, format!("{mode} is no mode of an array")));
        }
        // SAFETY: the program vouches for its buffer as long as it is lent.
        let piece = unsafe { memory(values, bytes_of(number, count)?) }?;
        written(message, |its| match mode {
            MDG_CHEAPER => its.write_array_of(number, piece.bytes()),
            _ => its.write_copy_of(number, piece.bytes()),
        })
    })
}

/// Adds a text, UTF-8, which ends with a nul at `value`. Does not block.
///
/// Returns 0, or MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_put_text(message: mdg_message, value: *const c_char) -> c_int {
    status(|| {
        // SAFETY: the program vouches for its text.
        let value = unsafe { text(value, "`value`") }?;
        written(message, |its| its.write_text(value))
    })
}

/// Begins a record: what follows belongs together, up to mdg_put_end(). Records may lie in records. Does not block.
///
/// Returns 0, or MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub extern "C" fn mdg_put_begin(message: mdg_message) -> c_int {
    status(|| written(message, WriteMessage::begin_record))
}

/// Ends a record. Does not block.
///
/// Returns 0, or MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub extern "C" fn mdg_put_end(message: mdg_message) -> c_int {
    status(|| written(message, WriteMessage::end_record))
}

fn written(message: mdg_message, write: impl FnOnce(&mut WriteMessage<'static>)) -> Result<c_int, Failure> {
    with(message, Lane::Main, |its: &Written| {
        its.write(write)?;
        Ok(MDG_OK)
    })
}

/// Sends a message to every receive port that a send port is connected to; it may be sent again, by other ports, too. Waits until all have
/// its arrays of more than 4 KiB, and where a receiver has no room: as mdg_end_packing().
///
/// Returns to how many receive ports it went, or MDG_EGONE (the port has no connection), MDG_ELOST or MDG_EREFUSED (the last one it had is
/// lost, and why), MDG_ETOOLONG (more than 64 MiB of numbers, texts and short arrays), MDG_EBUSY, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub extern "C" fn mdg_port_send(port: mdg_send_port, message: mdg_message) -> c_int {
    status(|| {
        let finished = with(port, Lane::Main, |port: &SendPort| {
            with(message, Lane::Main, |message: &Written| port.send(message))
        })?;
        Ok(c_int::try_from(finished.receivers).unwrap_or(c_int::MAX))
    })
}

/// Waits for a message of any send port, at most `timeout_ns` nanoseconds (MDG_FOREVER: without end; 0: only looks), and puts its handle
/// into *incoming. Messages of one send port come in the order in which they were sent. One message of a port at a time: until it is ended
/// (mdg_incoming_end(), mdg_close()) there is no other.
///
/// Returns 0, or MDG_ETIMEDOUT, MDG_EBUSY (one is being read), MDG_ECLOSED (the port or the runtime was closed), MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE,
/// MDG_EFULL, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_port_receive(
    port: mdg_receive_port,
    timeout_ns: i64,
    incoming: *mut mdg_incoming,
) -> c_int {
    let make = || {
        let timeout_ns = time(timeout_ns)?;
        let message = with(port, Lane::Main, |port: &ReceivePort| port.receive(timeout_ns))?;
        Ok(Object::Incoming(Box::new(message)))
    };
    // SAFETY: the program vouches for its pointers.
    status(|| unsafe { opened::<Incoming>(incoming, "`incoming`", make) }.map(|_| MDG_OK))
}

/// Copies the name of the send port that a message came from to `buf`, with a nul, cut to `len` bytes. Does not block.
///
/// Returns the name's length, or MDG_EINVAL (`buf` is NULL and `len` is not 0), MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_incoming_from(incoming: mdg_incoming, buf: *mut c_char, len: usize) -> i64 {
    // SAFETY: the program vouches for its buffer.
    count(|| with(incoming, Lane::Main, |its: &Incoming| unsafe { give_text(buf, len, &its.from) }))
}

/// What comes next in a message. Of numbers, their kind goes into *kind; of an array, how many there are into *count, of a text, how many
/// bytes. Either place may be NULL. Does not block.
///
/// Returns one of MDG_ITEM_NOTHING to MDG_ITEM_END, or MDG_ECORRUPT, MDG_EBUSY, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_item(incoming: mdg_incoming, kind: *mut c_int, count: *mut usize) -> c_int {
    status(|| {
        let item = reading(incoming, |message| Ok(message.peek()?))?;
        let (what, number, many) = match item {
            Item::Number(number) => (MDG_ITEM_NUMBER, Some(number), 1),
            Item::Array(number, many) => (MDG_ITEM_ARRAY, Some(number), usize::try_from(many).unwrap_or(usize::MAX)),
            Item::Text(bytes) => (MDG_ITEM_TEXT, None, bytes),
            Item::Begin => (MDG_ITEM_BEGIN, None, 0),
            Item::End => (MDG_ITEM_END, None, 0),
            Item::Nothing => (MDG_ITEM_NOTHING, None, 0),
        };
        if let (Ok(place), Some(number)) = (Place::new(kind, "`kind`"), number) {
            // SAFETY: the program vouches for its pointers.
            unsafe { place.put(c_int::from(number as u8)) };
        }
        if let Ok(place) = Place::new(count, "`count`") {
            // SAFETY: the program vouches for its pointers.
            unsafe { place.put(many) };
        }
        Ok(what)
    })
}

/// Takes the next item, a number of that kind, to `value`. Does not block.
///
/// Returns 0, or MDG_EMISMATCH (something else is next, which stays), MDG_ECORRUPT, MDG_EBUSY, MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE,
/// MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_get_number(incoming: mdg_incoming, kind: c_int, value: *mut c_void) -> c_int {
    status(|| {
        let number = number_of(kind)?;
        let mut bytes = [0; 8];
        let bytes = bytes.get_mut(..number.size()).unwrap_or_default();
        // SAFETY: the program vouches for its buffer until this returns.
        let piece = unsafe { memory(value, bytes.len()) }?;
        reading(incoming, |message| Ok(message.read_number_into(number, bytes)?))?;
        piece.fill(bytes);
        Ok(MDG_OK)
    })
}

/// Takes the next item, an array of `count` numbers of that kind, to `values`. An array of more than 4 KiB comes straight from the
/// sender's memory where that can be, and is waited for.
///
/// Returns 0, or MDG_EMISMATCH (something else is next, which stays), MDG_ELOST, MDG_ECORRUPT, MDG_EBUSY, MDG_EINVAL, MDG_EHANDLE,
/// MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_get_array(
    incoming: mdg_incoming,
    kind: c_int,
    values: *mut c_void,
    count: usize,
) -> c_int {
    status(|| {
        let number = number_of(kind)?;
        // SAFETY: the program vouches for its buffer until this returns.
        let piece = unsafe { memory(values, bytes_of(number, count)?) }?;
        let bytes: &mut [u8] = if piece.is_empty() {
            &mut []
        } else {
            // SAFETY: as many bytes are writable, and used by nobody else until this returns, as the program vouches.
            unsafe { core::slice::from_raw_parts_mut(piece.at(), piece.len()) }
        };
        reading(incoming, |message| Ok(message.read_array_into(number, bytes)?))?;
        Ok(MDG_OK)
    })
}

/// Takes the next item, a text, to `buf`, with a nul. Does not block.
///
/// Returns its length without the nul, or MDG_ETOOLONG (`len` is not more than that: the text stays), MDG_EMISMATCH (something else is
/// next, which stays), MDG_ECORRUPT, MDG_EBUSY, MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_get_text(incoming: mdg_incoming, buf: *mut c_char, len: usize) -> i64 {
    count(|| {
        let value = reading(incoming, |message| match message.peek()? {
            Item::Text(bytes) if bytes >= len => Err(Failure::new(
                MDG_ETOOLONG,
                format!("a text of {bytes} bytes and a nul, and there is room for {len}"),
            )),
            _ => Ok(message.read_text()?),
        })?;
        // SAFETY: the program vouches for its buffer.
        unsafe { give_text(buf, len, &value) }
    })
}

/// Takes the next item, the beginning of a record (MDG_ITEM_BEGIN) or its end (MDG_ITEM_END). Does not block.
///
/// Returns 0, or MDG_EMISMATCH (something else is next, which stays), MDG_ECORRUPT, MDG_EBUSY, MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE,
/// MDG_EFORKED.
#[unsafe(no_mangle)]
pub extern "C" fn mdg_get_record(incoming: mdg_incoming, item: c_int) -> c_int {
    status(|| {
        let get = match item {
            MDG_ITEM_BEGIN => ReadMessage::begin_record,
            MDG_ITEM_END => ReadMessage::end_record,
            _ => return Err(Failure::new(MDG_EINVAL, format!("{item} is neither MDG_ITEM_BEGIN nor MDG_ITEM_END"))),
        };
        reading(incoming, |message| Ok(get(message)?))?;
        Ok(MDG_OK)
    })
}

fn reading<R>(incoming: mdg_incoming, read: impl FnOnce(&mut ReadMessage) -> Result<R, Failure>) -> Result<R, Failure> {
    with(incoming, Lane::Main, |its: &Incoming| its.read(read))
}

/// Ends a message, and closes its handle, whatever is returned but MDG_EBUSY. What was not read is thrown away.
///
/// Returns 0, or MDG_EMISMATCH (something was not read), MDG_EBUSY (another thread is reading it), MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub extern "C" fn mdg_incoming_end(incoming: mdg_incoming) -> c_int {
    status(|| {
        ending(incoming, |its: &Incoming, take| {
            let mut rest = its.rest()?;
            take()?;
            rest.take().ok_or_else(ended)?.finish()?;
            Ok(MDG_OK)
        })
    })
}
