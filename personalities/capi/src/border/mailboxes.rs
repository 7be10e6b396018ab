//! Mailboxes: headers go to the receiver, data lie where they are told to. Buffers that several processes map.

use core::ffi::{CStr, c_char, c_int, c_void};

use madrigal::mailbox::{Data, Filter, Header, Kind, Letter, Place as Lies, Policy, PortAddress};

use super::arguments::{Place, give_text, memory, opened, text, time};
use super::guard::{count, status};
use super::links::runtime_of;
use super::types::{mdg_buffer, mdg_mailbox, mdg_runtime};
use crate::codes::{MDG_EGONE, MDG_EINVAL, MDG_OK};
use crate::failure::Failure;
use crate::fork;
use crate::mailboxes::{Buffer, Mailbox};
use crate::object::{Object, with};
use crate::ports::address;
use crate::runtime::deadline;
use crate::table::Lane;

/// A message that passes the others, with places of its own in a mailbox. The kinds of messages.
pub const MDG_URGENT: c_int = 0;
/// A message of a program's.
pub const MDG_DATA: c_int = 1;
/// A message between the parts of a system: in order with data, with places of its own.
pub const MDG_MANAGEMENT: c_int = 2;
/// Any kind, for one who selects.
pub const MDG_ANY_KIND: c_int = -1;

/// The data of a message lie in the receiver's process. The policies of storage.
pub const MDG_AT_RECEIVER: c_int = 0;
/// They stay in the sender's process until they are read.
pub const MDG_AT_SENDER: c_int = 1;
/// They lie in a third process: of those that offer memory, the one with the least load.
pub const MDG_AT_THIRD: c_int = 2;

/// A message that is put into mailboxes.
#[repr(C)]
pub struct mdg_letter {
    /// The addresses of the mailboxes, each once.
    pub to: *const *const c_char,
    /// How many: 1 to 512.
    pub to_count: usize,
    /// The program's own: receivers select by it.
    pub tag: u64,
    /// MDG_URGENT, MDG_DATA or MDG_MANAGEMENT.
    pub kind: c_int,
    /// MDG_AT_RECEIVER, MDG_AT_SENDER or MDG_AT_THIRD.
    pub policy: c_int,
}

/// Which messages are meant: all that agree with everything that is given.
#[repr(C)]
pub struct mdg_filter {
    /// The address of the mailbox that they are from, or NULL: any.
    pub source: *const c_char,
    /// Their tag, or NULL: any.
    pub tag: *const u64,
    /// Their kind, or MDG_ANY_KIND.
    pub kind: c_int,
}

/// A message as its receiver sees it, before any data move.
#[repr(C)]
pub struct mdg_header {
    /// By which it is got or dropped: of this mailbox, never used again.
    pub id: u64,
    /// The sender's tag.
    pub tag: u64,
    /// Which message of that sender to this mailbox it is; the first one is 1.
    pub sequence: u64,
    /// Bytes of its data.
    pub size: u64,
    /// Its kind.
    pub kind: c_int,
    /// Where its data were to lie.
    pub policy: c_int,
    /// 1 where they lie in this process now, else 0.
    pub is_here: c_int,
}

/// Opens a mailbox named `name`, with so many places for each sender and each kind of message (1 to 65536), and puts its handle into *mailbox.
/// mdg_address() of it is what others put messages to. Messages are put by it, too. Does not block.
///
/// Mailboxes answer others, give them data, and see that these are gone, while a thread of the process is in a call of a mailbox, and then only:
/// a process that keeps data for others has to be in mdg_mailbox_turn() or another one. mdg_close() drops what is in it; data that were put by
/// it stay until they are read, or the runtime is closed.
///
/// Returns 0, or MDG_EINUSE (there is one of that name), MDG_EUNUSABLE (no driver of messages works here), MDG_EINVAL, MDG_EHANDLE,
/// MDG_ETYPE, MDG_EFULL, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_mailbox_open(
    runtime: mdg_runtime,
    name: *const c_char,
    places: u32,
    mailbox: *mut mdg_mailbox,
) -> c_int {
    let make = || {
        // SAFETY: the program vouches for its text.
        let name = unsafe { text(name, "`name`") }?;
        Ok(Object::Mailbox(Box::new(Mailbox::open(&runtime_of(runtime)?, name, places)?)))
    };
    // SAFETY: the program vouches for its pointers.
    status(|| unsafe { opened::<Mailbox>(mailbox, "`mailbox`", make) }.map(|_| MDG_OK))
}

/// Puts a message into mailboxes: the header into each, `len` bytes of data to where the letter says, one copy for all. The bytes are free when
/// this returns. Waits at most `timeout_ns` nanoseconds (MDG_FOREVER: without end): for the first answer of a receiver, for a place in a mailbox
/// that is full, for memory. Nobody has anything of it when it fails.
///
/// Returns how many mailboxes have it (less than `to_count` where some were lost meanwhile), or MDG_ETIMEDOUT (the text says who does not read,
/// or does not answer), MDG_EREFUSED (there is no such mailbox, or it was closed), MDG_ELOST, MDG_EUNUSABLE (MDG_AT_THIRD, and nobody is known
/// to offer memory: mdg_mailbox_add_store()), MDG_ECLOSED, MDG_EADDRESS, MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_mailbox_put(
    mailbox: mdg_mailbox,
    letter: *const mdg_letter,
    data: *const c_void,
    len: usize,
    timeout_ns: i64,
) -> c_int {
    status(|| {
        // SAFETY: the program vouches for its buffer until this returns.
        let piece = unsafe { memory(data, len) }?;
        // SAFETY: the program vouches for its letter.
        unsafe { put(mailbox, letter, Data::Bytes(piece.bytes()), timeout_ns) }
    })
}

/// The same of a buffer that is sealed: no byte is copied here, and none to processes of this host where it was made by mdg_buffer_new().
///
/// Returns as mdg_mailbox_put(), or MDG_EBUSY (it is not sealed).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_mailbox_put_buffer(
    mailbox: mdg_mailbox,
    letter: *const mdg_letter,
    buffer: mdg_buffer,
    timeout_ns: i64,
) -> c_int {
    status(|| {
        let bytes = with(buffer, Lane::Main, Buffer::bytes)?;
        // SAFETY: the program vouches for its letter.
        unsafe { put(mailbox, letter, Data::Buffer(&bytes), timeout_ns) }
    })
}

/// # Safety
/// The letter, and what it points to, is as its declaration says, or null.
unsafe fn put(
    mailbox: mdg_mailbox,
    letter: *const mdg_letter,
    data: Data<'_>,
    timeout_ns: i64,
) -> Result<c_int, Failure> {
    let timeout_ns = time(timeout_ns)?;
    // SAFETY: the caller's contract.
    let letter = unsafe { letter.as_ref() }.ok_or_else(|| Failure::new(MDG_EINVAL, "`letter` is NULL"))?;
    let what = Letter { tag: letter.tag, kind: kind_of(letter.kind)?, policy: policy_of(letter.policy)? };
    // SAFETY: the caller's contract.
    let to = unsafe { receivers(letter) }?;
    let count = with(mailbox, Lane::Main, |its: &Mailbox| Ok(its.api.put(&to, what, data, deadline(timeout_ns))?))?;
    Ok(c_int::try_from(count).unwrap_or(c_int::MAX))
}

/// # Safety
/// As [`put`].
unsafe fn receivers(letter: &mdg_letter) -> Result<Vec<PortAddress>, Failure> {
    if letter.to.is_null() || letter.to_count > MOST_RECEIVERS {
        return Err(Failure::new(MDG_EINVAL, format!("`to` is NULL, or of more than {MOST_RECEIVERS} mailboxes")));
    }
    let one = |at: usize| {
        // SAFETY: there are `to_count` pointers, as the program vouches.
        let to = unsafe { letter.to.add(at).read() };
        // SAFETY: the program vouches for its texts.
        address(unsafe { text(to, "an address of `to`") }?)
    };
    (0..letter.to_count).map(one).collect()
}

/// More pointers are not looked at.
const MOST_RECEIVERS: usize = 512;

/// Copies the headers of messages in a mailbox that are meant to `headers`, at most `count` of them: urgent ones first, each kind as they came,
/// those of one sender in the order in which they were put. `filter` may be NULL: all. No data move. Does not block.
///
/// Returns how many, or MDG_EADDRESS, MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_mailbox_list(
    mailbox: mdg_mailbox,
    filter: *const mdg_filter,
    headers: *mut mdg_header,
    count: usize,
) -> i64 {
    self::count(|| {
        if headers.is_null() && count > 0 {
            return Err(Failure::new(MDG_EINVAL, "`headers` is NULL"));
        }
        // SAFETY: the program vouches for its filter.
        let filter = unsafe { filter_of(filter) }?;
        let found = with(mailbox, Lane::Main, |its: &Mailbox| Ok(its.api.list(&filter, count)))?;
        for (at, header) in found.iter().enumerate() {
            // SAFETY: there is room for `count` headers, as the program vouches, and `found` has no more.
            unsafe { headers.add(at).write(header_of(header)) };
        }
        Ok(found.len() as i64)
    })
}

/// Waits for a message that is meant at most `timeout_ns` nanoseconds (MDG_FOREVER: without end; 0: only looks), and puts its header into
/// *header. It stays in the mailbox. `filter` may be NULL: any.
///
/// Returns 0, or MDG_ETIMEDOUT, MDG_ECLOSED (the mailbox or the runtime was closed), MDG_EADDRESS, MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE,
/// MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_mailbox_wait(
    mailbox: mdg_mailbox,
    filter: *const mdg_filter,
    timeout_ns: i64,
    header: *mut mdg_header,
) -> c_int {
    status(|| {
        let (timeout_ns, place) = (time(timeout_ns)?, Place::new(header, "`header`")?);
        // SAFETY: the program vouches for its filter.
        let filter = unsafe { filter_of(filter) }?;
        let found = with(mailbox, Lane::Main, |its: &Mailbox| Ok(its.api.wait(&filter, deadline(timeout_ns))?))?;
        let found = found.ok_or_else(|| Failure::new(crate::codes::MDG_ETIMEDOUT, "no such message came in time"))?;
        // SAFETY: the program vouches for its pointers.
        unsafe { place.put(header_of(&found)) };
        Ok(MDG_OK)
    })
}

/// Copies the address of the mailbox that a message is from to `buf`, with a nul, cut to `len` bytes. Does not block.
///
/// Returns its length, or MDG_EGONE (there is no such message any more), MDG_EINVAL (`buf` is NULL and `len` is not 0), MDG_EHANDLE, MDG_ETYPE,
/// MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_mailbox_source(mailbox: mdg_mailbox, id: u64, buf: *mut c_char, len: usize) -> i64 {
    count(|| {
        let source = header(mailbox, id)?.source.to_string();
        // SAFETY: the program vouches for its buffer.
        unsafe { give_text(buf, len, &source) }
    })
}

/// Copies the node of the process in which the data of a message lie to `buf`, with a nul, cut to `len` bytes; "" where that is this one. Does
/// not block.
///
/// Returns as mdg_mailbox_source().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_mailbox_holder(mailbox: mdg_mailbox, id: u64, buf: *mut c_char, len: usize) -> i64 {
    count(|| {
        let holder = match header(mailbox, id)?.place {
            Lies::Here => String::new(),
            Lies::At(at) => at.id.to_string(),
        };
        // SAFETY: the program vouches for its buffer.
        unsafe { give_text(buf, len, &holder) }
    })
}

/// Takes a message out of a mailbox: its data come, from wherever they lie, and the handle of a buffer with them goes into *buffer. Waits for
/// them at most `timeout_ns` nanoseconds (MDG_FOREVER: without end). Where it fails the message stays, to be got again or dropped.
///
/// Returns 0, or MDG_ETIMEDOUT, MDG_ELOST (they are lost with the process that had them, which the text names), MDG_EGONE (it was got or dropped,
/// or never was), MDG_ETOOLONG (there is not so much memory), MDG_ECLOSED, MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFULL, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_mailbox_get(
    mailbox: mdg_mailbox,
    id: u64,
    timeout_ns: i64,
    buffer: *mut mdg_buffer,
) -> c_int {
    let make = || {
        let timeout_ns = time(timeout_ns)?;
        let bytes = with(mailbox, Lane::Main, |its: &Mailbox| Ok(its.api.get(id, deadline(timeout_ns))?))?;
        Ok(Object::Buffer(Box::new(Buffer::of(bytes))))
    };
    // SAFETY: the program vouches for its pointers.
    status(|| unsafe { opened::<Buffer>(buffer, "`buffer`", make) }.map(|_| MDG_OK))
}

/// Takes a message out of a mailbox without its data, which are freed where they lie if no other message needs them. Does not block.
///
/// Returns 0, or MDG_EGONE (it was got or dropped, or never was), MDG_ECLOSED, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub extern "C" fn mdg_mailbox_drop(mailbox: mdg_mailbox, id: u64) -> c_int {
    status(|| {
        with(mailbox, Lane::Main, |its: &Mailbox| Ok(its.api.discard(id)?))?;
        Ok(MDG_OK)
    })
}

/// Copies what became of those who send to a mailbox since the last call to `buf`, as mdg_port_changes(): "connected", "left" and "lost", each with
/// the sender's address. Does not block.
///
/// Returns the text's length without the nul, or MDG_EINVAL (`buf` is NULL and `len` is not 0), MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_mailbox_changes(mailbox: mdg_mailbox, buf: *mut c_char, len: usize) -> i64 {
    count(|| {
        let mut length = 0;
        let tell = |told: &str| {
            // SAFETY: the program vouches for its buffer.
            length = unsafe { give_text(buf, len, told) }?;
            Ok(told.len() < len)
        };
        with(mailbox, Lane::Main, |its: &Mailbox| its.changes(tell))?;
        Ok(length)
    })
}

/// From now on this process keeps so many bytes of data of messages between others. What it keeps stays where that becomes less. Does not block.
///
/// Returns 0, or MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub extern "C" fn mdg_mailbox_offer(mailbox: mdg_mailbox, bytes: u64) -> c_int {
    status(|| {
        with(mailbox, Lane::Main, |its: &Mailbox| {
            its.runtime.mailboxes()?.offer(bytes);
            Ok(MDG_OK)
        })
    })
}

/// The process of the mailbox at `address` offers memory: messages of this process whose data are to lie elsewhere may use it. Does not block.
///
/// Returns 0, or MDG_EADDRESS, MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_mailbox_add_store(mailbox: mdg_mailbox, address: *const c_char) -> c_int {
    status(|| {
        // SAFETY: the program vouches for its text.
        let address = unsafe { text(address, "`address`") }?;
        with(mailbox, Lane::Main, |its: &Mailbox| its.add_store(address))?;
        Ok(MDG_OK)
    })
}

/// Answers others, and gives them data, for `timeout_ns` nanoseconds (MDG_FOREVER: until the runtime is closed).
///
/// Returns 0, or MDG_ECLOSED, MDG_EINVAL, MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub extern "C" fn mdg_mailbox_turn(mailbox: mdg_mailbox, timeout_ns: i64) -> c_int {
    status(|| {
        let timeout_ns = time(timeout_ns)?;
        with(mailbox, Lane::Main, |its: &Mailbox| its.turn(timeout_ns))?;
        Ok(MDG_OK)
    })
}

/// Makes a buffer of `len` bytes, all 0, that processes of one host can share, and puts its handle into *buffer. It is written where
/// mdg_buffer_data() says, then sealed, then put into mailboxes. It belongs to no runtime: its memory is there until mdg_close() of its handle, in
/// this process, and of all others who got it in theirs; the kernel counts these, killed or not. Does not block.
///
/// Returns 0, or MDG_ESYSTEM (no memory, no descriptor is free), MDG_EINVAL (no byte), MDG_EFULL, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_buffer_new(len: usize, buffer: *mut mdg_buffer) -> c_int {
    let make = || {
        // A child has not what lies there while it is written.
        fork::begin()?;
        Ok(Object::Buffer(Box::new(Buffer::draft(len)?)))
    };
    // SAFETY: the program vouches for its pointers.
    status(|| unsafe { opened::<Buffer>(buffer, "`buffer`", make) }.map(|_| MDG_OK))
}

/// From now on nobody writes a buffer: who does so, by an address of before too, gets SIGSEGV. Of one that is sealed or was got from a mailbox,
/// nothing. Does not block.
///
/// Returns 0, or MDG_ESYSTEM (it is lost), MDG_EBUSY (another thread seals it), MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub extern "C" fn mdg_buffer_seal(buffer: mdg_buffer) -> c_int {
    status(|| {
        with(buffer, Lane::Main, Buffer::seal)?;
        Ok(MDG_OK)
    })
}

/// Puts the address of a buffer's bytes into *data: the same before it is sealed and after, and as long as its handle is open. They may be written
/// until it is sealed, and only by a process that made it. Does not block.
///
/// Returns how many there are, or MDG_EINVAL, MDG_ECLOSED (it could not be sealed), MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_buffer_data(buffer: mdg_buffer, data: *mut *mut c_void) -> i64 {
    count(|| {
        let place = Place::new(data, "`data`")?;
        let (at, len) = with(buffer, Lane::Main, Buffer::place)?;
        // SAFETY: the program vouches for its pointers.
        unsafe { place.put(at) };
        Ok(len as i64)
    })
}

fn header(mailbox: mdg_mailbox, id: u64) -> Result<Header, Failure> {
    let found = with(mailbox, Lane::Main, |its: &Mailbox| Ok(its.api.header(id)))?;
    found.ok_or_else(|| Failure::new(MDG_EGONE, format!("no message {id} is in the mailbox")))
}

fn header_of(header: &Header) -> mdg_header {
    mdg_header {
        id: header.id,
        tag: header.tag,
        sequence: header.sequence,
        size: header.size,
        kind: header.kind as c_int,
        policy: header.policy as c_int,
        is_here: c_int::from(header.place == Lies::Here),
    }
}

/// # Safety
/// The filter, and what it points to, is as its declaration says, or null.
unsafe fn filter_of(filter: *const mdg_filter) -> Result<Filter, Failure> {
    // SAFETY: the caller's contract.
    let Some(filter) = (unsafe { filter.as_ref() }) else { return Ok(Filter::default()) };
    let source = if filter.source.is_null() {
        None
    } else {
        // SAFETY: the caller's contract.
        let source = unsafe { CStr::from_ptr(filter.source) };
        let source = source.to_str().map_err(|_| Failure::new(MDG_EINVAL, "`source` is not UTF-8"))?;
        Some(address(source)?)
    };
    // SAFETY: the caller's contract.
    let tag = unsafe { filter.tag.as_ref() }.copied();
    let kind = if filter.kind == MDG_ANY_KIND { None } else { Some(kind_of(filter.kind)?) };
    Ok(Filter { source, tag, kind })
}

fn kind_of(kind: c_int) -> Result<Kind, Failure> {
    let known = u8::try_from(kind).ok().and_then(Kind::of_code);
    known.ok_or_else(|| Failure::new(MDG_EINVAL, format!("{kind} is no kind of message")))
}

fn policy_of(policy: c_int) -> Result<Policy, Failure> {
    let known = u8::try_from(policy).ok().and_then(Policy::of_code);
    known.ok_or_else(|| Failure::new(MDG_EINVAL, format!("{policy} is no policy of storage")))
}
