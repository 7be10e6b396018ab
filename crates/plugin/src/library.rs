//! A shared object that is loaded, and its functions. Who holds one may call them; the last one who lets go unloads it.

use core::ffi::{c_char, c_int};
use std::path::Path;
use std::sync::Arc;

use libloading::os::unix::{Library as Loaded, RTLD_LOCAL, RTLD_NOW};
use madrigal_sys::fd::Fd;

use crate::abi::{self, Driver, OfConnection, OfListener, TEXT_ROOM};
use crate::{object, trust};

/// A loaded driver.
pub(crate) struct Library {
    pub(crate) calls: Calls,
    /// Behind the functions, which are of its memory.
    _loaded: Loaded,
}

/// The driver's functions.
pub(crate) struct Calls {
    pub(crate) by_output: bool,
    pub(crate) cheap: bool,
    pub(crate) usable: Option<abi::Usable>,
    pub(crate) listen: abi::Listen,
    pub(crate) accept: abi::Accept,
    pub(crate) listener_descriptor: OfListener<c_int>,
    pub(crate) listener_close: OfListener<()>,
    pub(crate) connect: abi::Connect,
    pub(crate) connected: Option<OfConnection<c_int>>,
    pub(crate) descriptor: OfConnection<c_int>,
    pub(crate) woken: Option<abi::Woken>,
    pub(crate) arm_read: Option<OfConnection<c_int>>,
    pub(crate) arm_write: Option<OfConnection<c_int>>,
    pub(crate) reading: Reading,
    pub(crate) write: abi::Write,
    pub(crate) close: OfConnection<()>,
}

/// What is read, by paradigm.
#[derive(Clone, Copy)]
pub(crate) enum Reading {
    Bytes(abi::Read),
    Packets { packet: abi::Packet, release: OfConnection<()>, longest: OfConnection<usize> },
}

impl Library {
    /// Loads the driver called `name`, after a look at the file. `Err`: why it is none, or may not be loaded.
    pub(crate) fn load(path: &Path, name: &str) -> Result<Arc<Self>, String> {
        let path = trust::real(path)?;
        object::check(&path, name)?;
        let wrong = |why: String| format!("{}: {why}", path.display());
        // SAFETY: what the object does while it is loaded and unloaded is up to it, as in any program that links it; the user asked for
        // it by name, and nobody else could have written it (`trust`).
        let loaded = unsafe { Loaded::open(Some(&path), RTLD_NOW | RTLD_LOCAL) };
        let loaded = loaded.map_err(|error| wrong(format!("cannot be loaded: {}", reason(&error))))?;
        // SAFETY: the variable has that type: what is read from it below is checked, and `object` has seen its size.
        let found = unsafe { loaded.get::<*const Driver>(abi::SYMBOL) };
        let at: *const Driver = *found.map_err(|error| wrong(reason(&error)))?;
        if at.is_null() || !at.is_aligned() {
            return Err(wrong("its variable is not where one can be".into()));
        }
        // SAFETY: not null, aligned, as large as `object` has seen, and a constant of an object that stays loaded; every pattern of bits is a value.
        let driver = unsafe { at.read() };
        // Of this path another file may have been loaded before.
        object::fits(&driver.head, name).map_err(wrong)?;
        let calls = calls(&driver).map_err(wrong)?;
        Ok(Arc::new(Self { calls, _loaded: loaded }))
    }
}

/// What the loader says.
fn reason(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

fn calls(driver: &Driver) -> Result<Calls, String> {
    if driver.flags & !(abi::BY_OUTPUT | abi::CHEAP) != 0 || driver.reserved != 0 {
        return Err(format!("it has flags that version 1 has not: {:#x}, {:#x}", driver.flags, driver.reserved));
    }
    Ok(Calls {
        by_output: driver.flags & abi::BY_OUTPUT != 0,
        cheap: driver.flags & abi::CHEAP != 0,
        usable: driver.usable,
        listen: needed(driver.listen, "listen")?,
        accept: needed(driver.accept, "accept")?,
        listener_descriptor: needed(driver.listener_descriptor, "listener_descriptor")?,
        listener_close: needed(driver.listener_close, "listener_close")?,
        connect: needed(driver.connect, "connect")?,
        connected: driver.connected,
        descriptor: needed(driver.descriptor, "descriptor")?,
        woken: driver.woken,
        arm_read: driver.arm_read,
        arm_write: driver.arm_write,
        reading: reading(driver)?,
        write: needed(driver.write, "write")?,
        close: needed(driver.close, "close")?,
    })
}

fn reading(driver: &Driver) -> Result<Reading, String> {
    match (driver.read, driver.packet, driver.release, driver.longest) {
        (Some(read), None, None, None) => Ok(Reading::Bytes(read)),
        (None, Some(packet), Some(release), Some(longest)) => Ok(Reading::Packets { packet, release, longest }),
        _ => Err("it has neither `read` alone nor `packet`, `release` and `longest` without it".into()),
    }
}

fn needed<F>(function: Option<F>, name: &str) -> Result<F, String> {
    function.ok_or_else(|| format!("it has no `{name}`"))
}

/// Why a call did not do what it should.
pub(crate) enum Bad {
    /// An error's number.
    Os(i32),
    /// The driver broke its contract.
    Broke(&'static str),
}

/// The result of a call, from 0 on.
pub(crate) fn result(code: isize) -> Result<usize, Bad> {
    match code {
        0.. => Ok(code.unsigned_abs()),
        -4095..=-1 => Err(Bad::Os(i32::try_from(-code).unwrap_or(libc::EIO))),
        _ => Err(Bad::Broke("returned a number that is neither a result nor an error")),
    }
}

/// The same of calls that give 0 or an error.
pub(crate) fn done(code: c_int) -> Result<(), Bad> {
    match result(code as isize)? {
        0 => Ok(()),
        _ => Err(Bad::Broke("returned a number where 0 or an error belongs")),
    }
}

/// A copy of a descriptor of the driver's, so that what is polled is there as long as we poll it.
pub(crate) fn copied(descriptor: c_int) -> Result<Fd, Bad> {
    if descriptor < 0 {
        return Err(Bad::Broke("has no descriptor"));
    }
    // SAFETY: not -1; for this call only, which fails where nothing is open.
    let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(descriptor) };
    match rustix::io::fcntl_dupfd_cloexec(borrowed, 3) {
        Ok(copy) => Ok(Fd::from(copy)),
        Err(rustix::io::Errno::BADF) => Err(Bad::Broke("gave a descriptor that is not open")),
        Err(errno) => Err(Bad::Os(errno.raw_os_error())),
    }
}

/// Room for a text of the driver's.
pub(crate) struct Text([u8; TEXT_ROOM]);

impl Text {
    /// With that in it, cut off where there is no room.
    pub(crate) fn new(text: &str) -> Self {
        let mut room = [0; TEXT_ROOM];
        // The last byte stays NUL.
        room.iter_mut().take(TEXT_ROOM - 1).zip(text.bytes()).for_each(|(to, from)| *to = from);
        Self(room)
    }

    pub(crate) fn room(&mut self) -> *mut c_char {
        self.0.as_mut_ptr().cast()
    }

    /// What the driver wrote.
    pub(crate) fn read(&self) -> Result<String, Bad> {
        let end = self.0.iter().position(|&byte| byte == 0).ok_or(Bad::Broke("wrote a text that does not end"))?;
        Ok(String::from_utf8_lossy(self.0.get(..end).unwrap_or_default()).into_owned())
    }
}
