//! Links of messages of which a part may be lost: for data that is better in time than whole.

use core::ffi::{c_char, c_int, c_void};

use madrigal::lossy::Class;

use super::arguments::{Place, memory, opened, text, time};
use super::guard::{count, status};
use super::links::runtime_of;
use super::types::{mdg_lossy_acceptor, mdg_lossy_link, mdg_runtime};
use crate::codes::{MDG_EINVAL, MDG_ETOOLONG, MDG_OK};
use crate::failure::Failure;
use crate::lossy::{About, Acceptor, Link};
use crate::object::{Object, with};
use crate::table::Lane;

/// Of a message: all of it is there. See mdg_lossy_receive().
pub const MDG_FATE_WHOLE: u32 = 0;
/// Pieces of it are lost.
pub const MDG_FATE_PARTLY: u32 = 1;
/// It failed: nothing of it is there.
pub const MDG_FATE_FAILED: u32 = 2;

/// Numbers of a class, and of what is told of a message.
const OF_CLASS: usize = 4;

/// Listens at "vrp/udp://ADDRESS:PORT" for links of messages of which a part may be lost, and puts the acceptor's handle into *acceptor.
///
/// Each message has one of `count` classes, 15 at most, which are numbered from 0. `classes` has four numbers for each: how many of a
/// thousand bytes may be lost, of how many bytes that follow each other (1 to 16 MiB), a multiple of how many bytes at which pieces that
/// are lost begin (1 to 1000: the length of a record), and how many bytes at the front of each message are never lost. With a `count` of
/// 0 there is one class: of "vrp(N)/udp://ADDRESS:PORT" N of a thousand bytes may be lost, in 1 MiB. Both ends name the same classes.
///
/// Links are enciphered, and both processes show certificates of one grid and one user, as with "tls" (see mdg_listen()). The acceptor's
/// address is told by mdg_address(). Does not block.
///
/// Returns 0, or MDG_EADDRESS, MDG_EINUSE, MDG_EUNUSABLE (no certificate, a class that cannot be), MDG_ESYSTEM, MDG_EHANDLE, MDG_ETYPE,
/// MDG_EINVAL, MDG_EFULL, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_lossy_listen(
    runtime: mdg_runtime,
    at: *const c_char,
    classes: *const u32,
    count: usize,
    acceptor: *mut mdg_lossy_acceptor,
) -> c_int {
    let make = || {
        // SAFETY: the program vouches for its text.
        let at = unsafe { text(at, "`at`") }?;
        // SAFETY: the program vouches for its numbers.
        let classes = unsafe { classes_of(classes, count) }?;
        Ok(Object::LossyAcceptor(Box::new(Acceptor::listen(runtime_of(runtime)?, at, &classes)?)))
    };
    // SAFETY: the program vouches for its pointers.
    status(|| unsafe { opened::<Acceptor>(acceptor, "`acceptor`", make) }.map(|_| MDG_OK))
}

/// Waits for the next link, at most `timeout_ns` nanoseconds (MDG_FOREVER: without end; 0: only looks), and puts its handle into *link.
/// Turns the engine meanwhile.
///
/// Returns 0, or MDG_ETIMEDOUT, MDG_ECLOSED, MDG_ESYSTEM, MDG_EHANDLE, MDG_ETYPE, MDG_EINVAL, MDG_EFULL, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_lossy_accept(
    acceptor: mdg_lossy_acceptor,
    timeout_ns: i64,
    link: *mut mdg_lossy_link,
) -> c_int {
    let make = || {
        let timeout_ns = time(timeout_ns)?;
        with(acceptor, Lane::Main, |its: &Acceptor| Ok(Object::LossyLink(Box::new(its.accept(timeout_ns)?))))
    };
    // SAFETY: the program vouches for its pointers.
    status(|| unsafe { opened::<Link>(link, "`link`", make) }.map(|_| MDG_OK))
}

/// Connects to where a process listens by mdg_lossy_listen(), with the same classes, waits at most `timeout_ns` nanoseconds (MDG_FOREVER:
/// until it is decided, 15 s at most), and puts the link's handle into *link. Turns the engine meanwhile.
///
/// Returns 0, or MDG_EREFUSED, MDG_ETIMEDOUT, MDG_EADDRESS, MDG_ENOPATH (certificates, or other classes at the other end: the text says
/// which), MDG_ECLOSED, MDG_ESYSTEM, MDG_EHANDLE, MDG_ETYPE, MDG_EINVAL, MDG_EFULL, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_lossy_connect(
    runtime: mdg_runtime,
    to: *const c_char,
    classes: *const u32,
    count: usize,
    timeout_ns: i64,
    link: *mut mdg_lossy_link,
) -> c_int {
    let make = || {
        // SAFETY: the program vouches for its text.
        let to = unsafe { text(to, "`to`") }?;
        // SAFETY: the program vouches for its numbers.
        let classes = unsafe { classes_of(classes, count) }?;
        let link = Link::connect(&runtime_of(runtime)?, to, &classes, time(timeout_ns)?)?;
        Ok(Object::LossyLink(Box::new(link)))
    };
    // SAFETY: the program vouches for its pointers.
    status(|| unsafe { opened::<Link>(link, "`link`", make) }.map(|_| MDG_OK))
}

/// Sends a message of that class, `len` bytes from `buf`, 1 to 16,777,215, which are copied. It is to be there within `within_ns`
/// nanoseconds (MDG_FOREVER: it may take any time); what would come later is not sent again, and if too much is missing then, it fails.
/// Waits at most `timeout_ns` nanoseconds for room: 16 MiB may be under way.
///
/// Returns its number in its class, from 0 on, or MDG_ETIMEDOUT (there was no room), MDG_EGONE (the peer closed, or died), MDG_ECLOSED,
/// MDG_EINVAL (no such class, no such length), MDG_EHANDLE, MDG_ETYPE, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_lossy_send(
    link: mdg_lossy_link,
    class_number: c_int,
    buf: *const c_void,
    len: usize,
    within_ns: i64,
    timeout_ns: i64,
) -> i64 {
    count(|| {
        let no_class = |_| Failure::new(MDG_EINVAL, format!("{class_number} is no class"));
        let class = u8::try_from(class_number).map_err(no_class)?;
        // SAFETY: the program vouches for its buffer until this returns.
        let (piece, times) = (unsafe { memory(buf, len) }?, (time(within_ns)?, time(timeout_ns)?));
        let bytes: &[u8] = if piece.is_empty() {
            &[]
        } else {
            // SAFETY: as many bytes are readable, and changed by nobody until this returns, as the program vouches.
            unsafe { core::slice::from_raw_parts(piece.at(), piece.len()) }
        };
        with(link, Lane::Second, |its: &Link| its.send(class, bytes, times).map(i64::from))
    })
}

/// Waits for the next message, at most `timeout_ns` nanoseconds (MDG_FOREVER: without end; 0: only looks), and copies it to `buf`; what is
/// lost of it is 0. Those of a class come in order. Turns the engine meanwhile.
///
/// `about` has room for four numbers: its class, its number, one of MDG_FATE_WHOLE to MDG_FATE_FAILED, and how many pieces are lost. Of
/// these go to `lost`, which has room for `most`, two numbers for each: the first byte, and the one behind the last. The sender is told of
/// the same ones (mdg_lossy_settled()). Either may be NULL, `lost` with a `most` of 0.
///
/// Returns its length, which is 0 of one that failed, or MDG_ETOOLONG (it is longer than `len`, or more pieces are lost than `most`; it
/// stays, and `about` is written), MDG_ETIMEDOUT, MDG_EGONE (the peer closed, and every message was received), MDG_ERESET (the peer died),
/// MDG_ECLOSED, MDG_ECORRUPT, MDG_EBUSY (another thread is receiving), MDG_EHANDLE, MDG_ETYPE, MDG_EINVAL, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_lossy_receive(
    link: mdg_lossy_link,
    buf: *mut c_void,
    len: usize,
    timeout_ns: i64,
    about: *mut u32,
    lost: *mut u32,
    most: usize,
) -> i64 {
    count(|| {
        // SAFETY: the program vouches for its buffer until this returns.
        let (piece, timeout_ns) = (unsafe { memory(buf, len) }?, time(timeout_ns)?);
        let told = Told::new(about, lost, most)?;
        with(link, Lane::Main, |its: &Link| {
            its.receive(timeout_ns, |bytes, about| {
                // SAFETY: the program vouches for its pointers.
                unsafe { told.put(about) }?;
                if bytes.len() > len {
                    let why = format!("a message of {} bytes, and there is room for {len}", bytes.len());
                    return Err(Failure::new(MDG_ETOOLONG, why));
                }
                piece.fill(bytes);
                Ok(bytes.len() as i64)
            })
        })
    })
}

/// Waits for what became of a message that was sent, at most `timeout_ns` nanoseconds. `about` and `lost` are as in mdg_lossy_receive().
/// Each message is told of once; of those that nobody asked about the last 65,536 are kept. Turns the engine meanwhile.
///
/// Returns 0, or MDG_ETOOLONG (more pieces are lost than `most`; the report stays, and `about` is written), MDG_ETIMEDOUT, MDG_ERESET (the
/// link is over), MDG_ECLOSED, MDG_EBUSY (another thread asks), MDG_EHANDLE, MDG_ETYPE, MDG_EINVAL, MDG_EFORKED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mdg_lossy_settled(
    link: mdg_lossy_link,
    timeout_ns: i64,
    about: *mut u32,
    lost: *mut u32,
    most: usize,
) -> c_int {
    status(|| {
        let (told, timeout_ns) = (Told::new(about, lost, most)?, time(timeout_ns)?);
        with(link, Lane::Second, |its: &Link| {
            // SAFETY: the program vouches for its pointers.
            its.settled(timeout_ns, |about| unsafe { told.put(about) })
        })?;
        Ok(MDG_OK)
    })
}

/// Waits until it is known of every message that was sent what became of it, at most `timeout_ns` nanoseconds. Turns the engine meanwhile.
///
/// Returns 0, or MDG_ETIMEDOUT, MDG_ERESET (the link is over, and of some it is not known), MDG_ECLOSED, MDG_EHANDLE, MDG_ETYPE,
/// MDG_EINVAL, MDG_EFORKED.
#[unsafe(no_mangle)]
pub extern "C" fn mdg_lossy_flush(link: mdg_lossy_link, timeout_ns: i64) -> c_int {
    status(|| {
        let timeout_ns = time(timeout_ns)?;
        with(link, Lane::Second, |its: &Link| its.flush(timeout_ns))?;
        Ok(MDG_OK)
    })
}

/// Classes of the program's, four numbers each.
///
/// # Safety
/// So many numbers may be read there, unless it is null.
unsafe fn classes_of(at: *const u32, count: usize) -> Result<Vec<Class>, Failure> {
    if count == 0 {
        return Ok(Vec::new());
    }
    // More than there may be are refused by what is below, and not read.
    let count = count.min(usize::from(u8::MAX));
    // SAFETY: the caller's contract.
    let piece = unsafe { memory(at.cast(), count * OF_CLASS * size_of::<u32>()) }?;
    // SAFETY: not null, so many bytes may be read there, and bytes have no alignment.
    let bytes = unsafe { core::slice::from_raw_parts(piece.at(), piece.len()) };
    let numbers = bytes.as_chunks::<4>().0.iter().map(|number| u32::from_ne_bytes(*number)).collect::<Vec<_>>();
    let of = |four: &[u32; OF_CLASS]| {
        let [tolerance, window, granularity, must] = *four;
        Class { tolerance, window: window.into(), granularity, must }
    };
    Ok(numbers.as_chunks::<OF_CLASS>().0.iter().map(of).collect())
}

/// Places for what is told of a message.
struct Told {
    about: *mut u32,
    lost: *mut u32,
    most: usize,
}

impl Told {
    fn new(about: *mut u32, lost: *mut u32, most: usize) -> Result<Self, Failure> {
        if most > 0 {
            Place::new(lost, "`lost`")?;
        }
        Ok(Self { about, lost, most })
    }

    /// # Safety
    /// Four numbers may be written to `about`, and twice `most` to `lost`, unless they are null.
    unsafe fn put(&self, about: &About) -> Result<(), Failure> {
        let lost = about.lost.as_deref().unwrap_or_default();
        let fate = match &about.lost {
            Some(lost) if lost.is_empty() => MDG_FATE_WHOLE,
            Some(_) => MDG_FATE_PARTLY,
            None => MDG_FATE_FAILED,
        };
        let four = [u32::from(about.class), about.number, fate, u32::try_from(lost.len()).unwrap_or(u32::MAX)];
        if !self.about.is_null() {
            // SAFETY: not null, and the caller's contract.
            unsafe { self.about.cast::<[u32; OF_CLASS]>().write(four) };
        }
        if self.most > 0 && lost.len() > self.most {
            let why = format!("{} pieces are lost, and there is room for {}", lost.len(), self.most);
            return Err(Failure::new(MDG_ETOOLONG, why));
        }
        for (at, (from, to)) in lost.iter().take(self.most).enumerate() {
            // SAFETY: `at` is less than `most`, and the caller's contract.
            unsafe { self.lost.cast::<[u32; 2]>().add(at).write([*from, *to]) };
        }
        Ok(())
    }
}
