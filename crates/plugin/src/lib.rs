//! Layer 1: drivers that others compiled. `include/madrigal-driver.h` has the contract for them.
//!
//! ```text
//!   Found: the descriptions in a directory --> Plugin: a driver by its description
//!                                                 | loads it when first needed, forgets it when nothing holds it
//!   Listening, Link (ends, signal) --hold--> Library: the functions
//!   before: trust (whose the file is), object (what is in it)
//! ```
//! A shared object is loaded while something needs it: to tell whether it is usable, a listener, an attempt, a connection. What it
//! returns is checked; what it does inside, as any code in the process, is not.
#![allow(unsafe_code)]

mod abi;
mod description;
mod library;
mod link;
mod listener;
mod object;
mod trust;

use core::ptr;
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use madrigal_base::error::{ConnectError, ListenError, Os};
use madrigal_base::ids::Reach;
use madrigal_base::locator::{Address, Locator};
use madrigal_progress::driver::{Connecting, Driver, Facts, Listener, Place};

use description::{Description, Form};
use library::{Bad, Library, Text, done};
use link::Link;
use listener::{Attempt, Listening, connect_error};

/// The longest description, in bytes.
const DESCRIPTION_MOST: usize = 16 << 10;

/// What a directory of drivers has.
#[derive(Default)]
pub struct Found {
    drivers: Vec<Plugin>,
    refused: Vec<String>,
}

impl Found {
    /// Reads the descriptions, `NAME.toml`, of a directory; loads nothing. `taken`: names that are no longer free.
    pub fn read(directory: &Path, taken: impl Fn(&str) -> bool) -> Self {
        let mut found = Self::default();
        let names = match named(directory) {
            Ok(names) => names,
            Err(why) => return Self { refused: vec![why], ..found },
        };
        for name in names {
            if Locator::is_scheme(&name) && name.len() < abi::NAME_ROOM && !taken(&name) {
                found.drivers.push(Plugin::new(directory, &name));
            } else {
                let why = if taken(&name) {
                    "the name is taken"
                } else {
                    "no name of a driver: at most 31 lower-case letters and digits"
                };
                found.refused.push(format!("{}/{name}.toml: {why}", directory.display()));
            }
        }
        found
    }

    /// The drivers, in the order of their names; also those that cannot be loaded, and say so when they are used.
    pub fn drivers(&self) -> &[Plugin] {
        &self.drivers
    }

    /// The shared object of the driver of that name. `None`: there is none, or its description is wrong.
    pub fn file(&self, name: &str) -> Option<&Path> {
        self.drivers.iter().find(|driver| driver.name == name)?.file()
    }

    /// Why the directory, or a description of it, has no driver.
    pub fn refused(&self) -> &[String] {
        &self.refused
    }
}

/// What descriptions of the directory are called.
fn named(directory: &Path) -> Result<Vec<String>, String> {
    if trust::has_more_rights() {
        return Err(format!("{}: a program with more rights than its user loads no drivers", directory.display()));
    }
    if !directory.is_absolute() {
        return Err(format!("{} is no absolute path", directory.display()));
    }
    let wrong = |error| format!("{}: {error}", directory.display());
    let entries = std::fs::read_dir(trust::real(directory)?).map_err(wrong)?;
    let name = |entry: std::fs::DirEntry| entry.file_name().to_str()?.strip_suffix(".toml").map(str::to_owned);
    let mut names: Vec<_> = entries.filter_map(|entry| name(entry.ok()?)).collect();
    names.sort_unstable();
    Ok(names)
}

/// A driver in a shared object.
pub struct Plugin {
    name: &'static str,
    takes: &'static str,
    /// Where it is, and the description; or why it cannot be used.
    described: Result<(PathBuf, Description), String>,
    /// What is loaded now.
    loaded: Mutex<Weak<Library>>,
}

impl Plugin {
    fn new(directory: &Path, name: &str) -> Self {
        let described = describe(directory, name);
        let form = described.as_ref().map_or("...", |(_, description)| match description.form {
            Form::Name => "NAME",
            Form::Inet => "ADDRESS:PORT with a numeric address",
        });
        // Errors have these texts, and drivers are for the life of the process.
        let takes = Box::leak(format!("{name}://{form}").into_boxed_str());
        let name = Box::leak(name.to_owned().into_boxed_str());
        Self { name, takes, described, loaded: Mutex::new(Weak::new()) }
    }

    /// The shared object, unless the description is wrong.
    pub fn file(&self) -> Option<&Path> {
        self.described.as_ref().ok().map(|(file, _)| file.as_path())
    }

    /// The functions: those that are loaded, or else loaded now.
    fn library(&self) -> Result<Arc<Library>, String> {
        let (file, _) = self.described.as_ref().map_err(Clone::clone)?;
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = loaded.upgrade() {
            return Ok(library);
        }
        let library = Library::load(file, self.name)?;
        *loaded = Arc::downgrade(&library);
        Ok(library)
    }

    /// What stands behind `NAME://`, if that is an address of this driver's.
    fn address(&self, locator: &Locator) -> Option<CString> {
        let (_, description) = self.described.as_ref().ok()?;
        let fits = match locator.address() {
            Address::Name(_) => description.form == Form::Name,
            Address::Inet(_) => description.form == Form::Inet,
            _ => false,
        };
        CString::new(locator.address().to_string()).ok().filter(|_| fits)
    }
}

fn describe(directory: &Path, name: &str) -> Result<(PathBuf, Description), String> {
    let path = trust::real(&directory.join(format!("{name}.toml")))?;
    let text = trust::text(&path, DESCRIPTION_MOST)?;
    let description =
        Description::parse(&path.display().to_string(), name, &text).map_err(|error| error.to_string())?;
    Ok((directory.join(&description.file), description))
}

impl Driver for Plugin {
    fn name(&self) -> &'static str {
        self.name
    }

    fn facts(&self) -> Facts {
        // Of one that has no description nothing is used but the reason.
        let known = self.described.as_ref().map(|(_, description)| (description.reach, description.one_user));
        let (reach, one_user) = known.unwrap_or((Reach::Network, false));
        Facts { reach, one_user, takes: self.takes }
    }

    fn usable(&self, place: &Place) -> Result<(), String> {
        let library = self.library()?;
        let Some(usable) = library.calls.usable else { return Ok(()) };
        let mut why = Text::new("");
        // SAFETY: a function of a loaded driver; a place that lives as long as the call, and room for a text.
        let code = with_place(place, |place| done(unsafe { usable(place, why.room()) }));
        match (code, why.read()) {
            (Ok(()), _) => Ok(()),
            (Err(_), Ok(why)) if !why.is_empty() => Err(why),
            (Err(Bad::Os(errno)), Ok(_)) => Err(Os(errno).to_string()),
            (Err(Bad::Broke(what)), _) | (_, Err(Bad::Broke(what))) => Err(format!("the driver {what}")),
            (_, Err(Bad::Os(errno))) => Err(Os(errno).to_string()),
        }
    }

    fn address_for(&self, name: &str) -> Option<Locator> {
        match self.described.as_ref().ok()?.1.form {
            Form::Name => Locator::name(self.name, name).ok(),
            Form::Inet => Some(Locator::inet(self.name, ([127, 0, 0, 1], 0).into())),
        }
    }

    fn listen(&self, at: &Locator, place: &Place) -> Result<Box<dyn Listener>, ListenError> {
        let library = self.library().map_err(|why| ListenError::Unusable { at: at.clone(), why })?;
        let bad_address = || ListenError::BadAddress { at: at.clone(), takes: self.takes };
        let address = self.address(at).ok_or_else(bad_address)?;
        let mut made = ptr::null_mut();
        let mut real = Text::new(&at.address().to_string());
        // SAFETY: a function of a loaded driver; texts that end, a place that lives as long as the call, and two places for the answer.
        let listen =
            |place| done(unsafe { (library.calls.listen)(place, address.as_ptr(), &raw mut made, real.room()) });
        let listening = with_place(place, listen).and_then(|()| Listening::new(&library, made, at, &real));
        match listening {
            Ok(listening) => Ok(Box::new(listening)),
            Err(Bad::Os(libc::EADDRINUSE)) => Err(ListenError::InUse { at: at.clone() }),
            Err(Bad::Os(libc::EINVAL)) => Err(bad_address()),
            Err(Bad::Os(errno)) => Err(ListenError::System { at: at.clone(), os: Os(errno) }),
            Err(Bad::Broke(what)) => Err(ListenError::Unusable { at: at.clone(), why: format!("the driver {what}") }),
        }
    }

    fn connect(&self, to: &Locator, place: &Place) -> Result<Connecting, ConnectError> {
        let no_path = |why| ConnectError::NoPath { to: to.to_string(), why };
        let library = self.library().map_err(no_path)?;
        let bad_address = || ConnectError::BadAddress { to: to.clone(), takes: self.takes };
        let address = self.address(to).ok_or_else(bad_address)?;
        let mut made = ptr::null_mut();
        // SAFETY: as in `listen`.
        let connect = |place| done(unsafe { (library.calls.connect)(place, address.as_ptr(), &raw mut made) });
        let connecting = match with_place(place, connect) {
            Ok(()) => {
                Link::new(&library, made).and_then(|link| link.connection(to.clone(), to.clone())).map(Connecting::Done)
            }
            Err(Bad::Os(libc::EINPROGRESS)) => {
                Link::new(&library, made).map(|link| Connecting::Pending(Box::new(Attempt { link, to: to.clone() })))
            }
            Err(Bad::Os(libc::EINVAL)) => return Err(bad_address()),
            Err(bad) => Err(bad),
        };
        connecting.map_err(|bad| connect_error(to, bad))
    }
}

/// Calls with the place as the header has it.
fn with_place(place: &Place, call: impl FnOnce(*const abi::Place) -> Result<(), Bad>) -> Result<(), Bad> {
    let directory = CString::new(place.directory.as_str()).map_err(|_| Bad::Os(libc::EINVAL))?;
    let size = u32::try_from(size_of::<abi::Place>()).unwrap_or(0);
    let place = abi::Place { size, reserved: 0, directory: directory.as_ptr() };
    call(&raw const place)
}
