//! A connection of a loaded driver, and its ends.

use core::ffi::c_void;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, Ordering};
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use libc::iovec;
use madrigal_base::error::{Os, ReadError, WriteError};
use madrigal_base::locator::Locator;
use madrigal_progress::driver::{
    ByteRx, ByteTx, Connection, Ends, Packet, PacketRx, PacketTx, Read, Signal, Watched, Wrote,
};
use madrigal_sys::fd::Fd;

use crate::abi::{self, OfConnection};
use crate::library::{Bad, Calls, Library, Reading, copied, result};

/// The most parts of one write (IOV_MAX of Linux).
const MOST_PARTS: usize = 1024;

/// A connection of the driver's: closed when its ends and signals are gone.
pub(crate) struct Link {
    held: Held,
    fd: Fd,
    /// The descriptor was reported with a hang-up, which `woken` has not told the driver.
    ended: AtomicBool,
}

/// What the driver made, until `close`.
struct Held {
    at: NonNull<abi::Connection>,
    library: Arc<Library>,
}

// SAFETY: the header says which functions are called beside each other, by any thread; `Reader` and `Writer` have `&mut self` for those that
// are not, and `Drop` runs when nobody else holds it.
unsafe impl Send for Held {}
// SAFETY: as above.
unsafe impl Sync for Held {}

impl Held {
    fn calls(&self) -> &Calls {
        &self.library.calls
    }

    /// Calls a function of the driver's that has nothing but the connection.
    fn call<R>(&self, function: OfConnection<R>) -> R {
        // SAFETY: the driver's own function and connection; it is loaded while `library` is held, and open until `drop`.
        unsafe { function(self.at.as_ptr()) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // The last call; the library is let go of afterwards, with the fields.
        self.call(self.calls().close);
    }
}

impl Link {
    /// Takes over what a driver has just made; it is closed where an error is returned.
    pub(crate) fn new(library: &Arc<Library>, made: *mut abi::Connection) -> Result<Arc<Self>, Bad> {
        let at = NonNull::new(made).ok_or(Bad::Broke("made no connection, and returned no error"))?;
        let held = Held { at, library: Arc::clone(library) };
        let fd = copied(held.call(held.calls().descriptor))?;
        Ok(Arc::new(Self { held, fd, ended: AtomicBool::new(false) }))
    }

    /// How an attempt stands.
    pub(crate) fn connected(&self) -> Result<(), Bad> {
        let connected = self.held.calls().connected;
        let function = connected.ok_or(Bad::Broke("has no `connected`, and returned EINPROGRESS"))?;
        crate::library::done(self.held.call(function))
    }

    /// The connection for those above.
    pub(crate) fn connection(self: Arc<Self>, local: Locator, peer: Locator) -> Result<Connection, Bad> {
        let reader = |release| Reader { link: Arc::clone(&self), peer: peer.clone(), release };
        let writer = |longest| Writer { link: Arc::clone(&self), peer: peer.clone(), longest };
        let ends = match self.held.calls().reading {
            Reading::Bytes(read) => {
                Ends::Bytes(Box::new(ByteReader { read, end: reader(None) }), Box::new(writer(usize::MAX)))
            }
            Reading::Packets { packet, release, longest } => {
                let longest = self.held.call(longest);
                if longest == 0 || isize::try_from(longest).is_err() {
                    return Err(Bad::Broke("has no length for its longest packet"));
                }
                let rx = PacketReader { packet, longest, end: reader(Some(release)), lent: false };
                Ends::Packets(Box::new(rx), Box::new(writer(longest)))
            }
        };
        Ok(Connection { ends, signal: self, local, peer })
    }
}

impl Signal for Link {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn by_output(&self) -> bool {
        self.held.calls().by_output
    }

    fn ended(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    fn woken(&self) {
        if let Some(woken) = self.held.calls().woken {
            let ended = self.ended.swap(false, Ordering::Relaxed);
            // SAFETY: as in `Held::call`; it may be called beside any other but `close`.
            unsafe { woken(self.held.at.as_ptr(), i32::from(ended)) };
        }
    }
}

/// What reading ends have in common.
struct Reader {
    link: Arc<Link>,
    peer: Locator,
    release: Option<OfConnection<()>>,
}

impl Reader {
    fn arm(&self) -> bool {
        let held = &self.link.held;
        held.calls().arm_read.is_some_and(|arm| held.call(arm) != 0)
    }

    #[cold]
    fn error(&self, bad: Bad) -> ReadError {
        let peer = self.peer.clone();
        match bad {
            Bad::Os(libc::ECONNRESET | libc::EPIPE) => ReadError::Reset { peer },
            Bad::Os(libc::EPROTO) => ReadError::Corrupt { peer, what: "its driver refused what it sent" },
            Bad::Os(errno) => ReadError::System { peer, os: Os(errno) },
            Bad::Broke(what) => ReadError::Driver { peer, what },
        }
    }
}

/// The reading end of a stream.
struct ByteReader {
    read: abi::Read,
    end: Reader,
}

impl Watched for ByteReader {
    fn arm(&mut self) -> bool {
        self.end.arm()
    }

    fn cheap(&self) -> bool {
        self.end.link.held.calls().cheap
    }
}

impl ByteRx for ByteReader {
    fn read(&mut self, buf: &mut [u8]) -> Result<Read, ReadError> {
        if buf.is_empty() {
            return Ok(Read::Bytes(0));
        }
        let at = self.end.link.held.at.as_ptr();
        // SAFETY: as in `Held::call`; the buffer is as long as said, and `&mut self` keeps other readers out.
        match result(unsafe { (self.read)(at, buf.as_mut_ptr().cast::<c_void>(), buf.len()) }) {
            Ok(0) => Ok(Read::End),
            Ok(n) if n <= buf.len() => Ok(Read::Bytes(n)),
            Ok(_) => Err(self.end.error(Bad::Broke("read more bytes than it was asked for"))),
            Err(Bad::Os(libc::EAGAIN)) => Ok(Read::WouldBlock),
            Err(bad) => Err(self.end.error(bad)),
        }
    }
}

/// The reading end of packets.
struct PacketReader {
    packet: abi::Packet,
    longest: usize,
    end: Reader,
    /// There is a packet in front that the driver has lent.
    lent: bool,
}

impl Watched for PacketReader {
    fn arm(&mut self) -> bool {
        self.end.arm()
    }

    fn cheap(&self) -> bool {
        self.end.link.held.calls().cheap
    }
}

impl PacketRx for PacketReader {
    fn packet(&mut self) -> Result<Packet<'_>, ReadError> {
        let (mut bytes, mut len) = (ptr::null(), 0);
        let at = self.end.link.held.at.as_ptr();
        // SAFETY: as in `Held::call`; two places for the answer, and `&mut self` keeps other readers out.
        match result(unsafe { (self.packet)(at, &raw mut bytes, &raw mut len) } as isize) {
            Ok(1) if len > self.longest => Err(self.end.error(Bad::Broke("gave a packet above the longest one"))),
            Ok(1) if bytes.is_null() && len > 0 => Err(self.end.error(Bad::Broke("gave a packet that is nowhere"))),
            Ok(1) => {
                self.lent = true;
                if len == 0 {
                    // It may be anywhere.
                    return Ok(Packet::Bytes(&[]));
                }
                // SAFETY: the driver lends so many bytes there until `release`, which takes `&mut self`.
                Ok(Packet::Bytes(unsafe { core::slice::from_raw_parts(bytes.cast::<u8>(), len) }))
            }
            Ok(0) => Ok(Packet::End),
            Ok(_) => Err(self.end.error(Bad::Broke("returned a number where 0, 1 or an error belongs"))),
            Err(Bad::Os(libc::EAGAIN)) => Ok(Packet::WouldBlock),
            Err(bad) => Err(self.end.error(bad)),
        }
    }

    fn release(&mut self) {
        if let Some(release) = self.end.release.filter(|_| core::mem::take(&mut self.lent)) {
            self.end.link.held.call(release);
        }
    }
}

/// The writing end, of either paradigm.
struct Writer {
    link: Arc<Link>,
    peer: Locator,
    longest: usize,
}

impl Watched for Writer {
    fn arm(&mut self) -> bool {
        let held = &self.link.held;
        held.calls().arm_write.is_some_and(|arm| held.call(arm) != 0)
    }

    fn cheap(&self) -> bool {
        self.link.held.calls().cheap
    }
}

impl Writer {
    /// How many bytes of the parts the driver took.
    fn call(&mut self, parts: &[IoSlice<'_>]) -> Result<Option<usize>, WriteError> {
        let held = &self.link.held;
        // SAFETY: as in `Held::call`; an `IoSlice` has the layout of an iovec (std), which is readable for its length, and `&mut self` keeps
        // other writers out.
        let wrote = unsafe { (held.calls().write)(held.at.as_ptr(), parts.as_ptr().cast::<iovec>(), parts.len()) };
        match result(wrote) {
            Ok(n) => Ok(Some(n)),
            Err(Bad::Os(libc::EAGAIN)) => Ok(None),
            Err(bad) => Err(self.error(bad)),
        }
    }

    #[cold]
    fn error(&self, bad: Bad) -> WriteError {
        let peer = self.peer.clone();
        match bad {
            Bad::Os(libc::EPIPE | libc::ECONNRESET) => WriteError::PeerGone { peer },
            Bad::Os(libc::EPROTO) => WriteError::Corrupt { peer, what: "its driver refused what it sent" },
            Bad::Os(errno) => WriteError::System { peer, os: Os(errno) },
            Bad::Broke(what) => WriteError::Driver { peer, what },
        }
    }
}

impl ByteTx for Writer {
    fn write(&mut self, bufs: &[IoSlice<'_>]) -> Result<Wrote, WriteError> {
        let Some(first) = bufs.iter().position(|buf| !buf.is_empty()) else { return Ok(Wrote::Bytes(0)) };
        let bufs = bufs.get(first..).unwrap_or_default();
        let parts = bufs.get(..MOST_PARTS).unwrap_or(bufs);
        let len: usize = parts.iter().map(|part| part.len()).sum();
        match self.call(parts)? {
            None => Ok(Wrote::WouldBlock),
            Some(n) if (1..=len).contains(&n) => Ok(Wrote::Bytes(n)),
            Some(0) => Err(self.error(Bad::Broke("wrote nothing, and returned no error"))),
            Some(_) => Err(self.error(Bad::Broke("wrote more bytes than it was given"))),
        }
    }
}

impl PacketTx for Writer {
    fn send(&mut self, parts: &[IoSlice<'_>]) -> Result<Wrote, WriteError> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len > self.longest {
            return Err(WriteError::TooLong { peer: self.peer.clone(), len, max: self.longest });
        }
        let wrote = if parts.len() <= MOST_PARTS {
            self.call(parts)?
        } else {
            let whole: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
            self.call(&[IoSlice::new(&whole)])?
        };
        match wrote {
            None => Ok(Wrote::WouldBlock),
            Some(n) if n == len => Ok(Wrote::Bytes(n)),
            Some(_) => Err(self.error(Bad::Broke("sent a part of a packet"))),
        }
    }

    fn max(&self) -> usize {
        self.longest
    }
}
