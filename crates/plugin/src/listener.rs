//! A listener of a loaded driver, and an attempt to connect.

use core::ptr::{self, NonNull};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use madrigal_base::error::{AcceptError, ConnectError, Os};
use madrigal_base::locator::Locator;
use madrigal_progress::driver::{Connection, Listener, Pending, Signal};
use madrigal_sys::fd::Fd;

use crate::abi;
use crate::library::{Bad, Library, Text, copied, done};
use crate::link::Link;

/// What listens.
pub(crate) struct Listening {
    held: Held,
    signal: Arc<Waits>,
    at: Locator,
}

/// What the driver made, until `listener_close`.
struct Held {
    at: NonNull<abi::Listener>,
    library: Arc<Library>,
}

// SAFETY: the header says that any thread calls a listener's functions, one at a time, which `&mut self` sees to.
unsafe impl Send for Held {}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: the driver's own function and listener, which is open until here; the library is let go of afterwards, with the fields.
        unsafe { (self.library.calls.listener_close)(self.at.as_ptr()) };
    }
}

/// The copy of its descriptor.
struct Waits(Fd);

impl Signal for Waits {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// `accept` takes out what made it readable.
    fn woken(&self) {}
}

impl Listening {
    /// Takes over what a driver has just made; it is closed where an error is returned. `real`: what the driver wrote of its address.
    pub(crate) fn new(
        library: &Arc<Library>,
        made: *mut abi::Listener,
        asked: &Locator,
        real: &Text,
    ) -> Result<Self, Bad> {
        let at = NonNull::new(made).ok_or(Bad::Broke("made no listener, and returned no error"))?;
        let held = Held { at, library: Arc::clone(library) };
        let real = locator(asked, real)?;
        // SAFETY: the driver's own function and listener.
        let fd = unsafe { (library.calls.listener_descriptor)(at.as_ptr()) };
        Ok(Self { held, signal: Arc::new(Waits(copied(fd)?)), at: real })
    }

    fn next(&mut self) -> Result<Connection, Bad> {
        let library = &self.held.library;
        let mut made = ptr::null_mut();
        let mut peer = Text::new(&self.at.address().to_string());
        // SAFETY: the driver's own function and listener, one at a time by `&mut self`; two places for the answer.
        done(unsafe { (library.calls.accept)(self.held.at.as_ptr(), &raw mut made, peer.room()) })?;
        let link = Link::new(library, made)?;
        link.connection(self.at.clone(), locator(&self.at, &peer)?)
    }
}

/// The locator of what a driver wrote.
fn locator(of: &Locator, text: &Text) -> Result<Locator, Bad> {
    let text = format!("{}://{}", of.scheme(), text.read()?);
    text.parse().map_err(|_| Bad::Broke("wrote an address that is none"))
}

impl Listener for Listening {
    fn accept(&mut self) -> Result<Option<Connection>, AcceptError> {
        match self.next() {
            Ok(connection) => Ok(Some(connection)),
            Err(Bad::Os(libc::EAGAIN)) => Ok(None),
            Err(Bad::Os(errno)) => Err(AcceptError::System { at: self.at.clone(), os: Os(errno) }),
            Err(Bad::Broke(what)) => Err(AcceptError::Driver { at: self.at.clone(), what }),
        }
    }

    fn locator(&self) -> &Locator {
        &self.at
    }

    fn signal(&self) -> Arc<dyn Signal> {
        Arc::clone(&self.signal) as Arc<dyn Signal>
    }
}

/// An attempt that goes on.
pub(crate) struct Attempt {
    pub(crate) link: Arc<Link>,
    pub(crate) to: Locator,
}

impl Pending for Attempt {
    fn poll(&mut self) -> Result<Option<Connection>, ConnectError> {
        let made = self.link.connected().and_then(|()| {
            let link = Arc::clone(&self.link);
            link.connection(self.to.clone(), self.to.clone())
        });
        match made {
            Ok(connection) => Ok(Some(connection)),
            Err(Bad::Os(libc::EAGAIN)) => Ok(None),
            Err(bad) => Err(connect_error(&self.to, bad)),
        }
    }

    fn signal(&self) -> Arc<dyn Signal> {
        Arc::clone(&self.link) as Arc<dyn Signal>
    }
}

/// Why a connection could not be made.
pub(crate) fn connect_error(to: &Locator, bad: Bad) -> ConnectError {
    match bad {
        Bad::Os(libc::ECONNREFUSED) => ConnectError::Refused { to: to.clone() },
        Bad::Os(libc::EAGAIN) => ConnectError::Busy { to: to.clone() },
        Bad::Os(errno) => ConnectError::System { to: to.clone(), os: Os(errno) },
        Bad::Broke(what) => ConnectError::NoPath { to: to.to_string(), why: format!("its driver {what}") },
    }
}
