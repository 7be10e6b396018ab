//! A provider for libfabric: unmodified MPI programs over Madrigal.
//!
//! libfabric finds this library by its name, `libmadrigal-fi.so`, in a directory of `FI_PROVIDER_PATH`, and calls its one export,
//! [`fi_prov_ini`]. Everything else goes through tables of functions. One binary serves libfabric 1.17 to 2.6; nothing of libfabric is
//! linked.
//!
//! ```text
//!   info       what we can do, for which hints           abi      libfabric's structures (madrigal-ofi-abi)
//!   object     a C object and what is ours behind it     names    addresses as MPIs carry them
//!   lookup     addresses found by host and port            bell     a descriptor to sleep on
//!   fabric -> domain -> ep, av, cq, cntr, mr, poll; eq   the objects
//!   guard      the wrapper of every call of libfabric's
//!   state      everything of a domain behind its lock; polls the endpoints, files their completions
//!   worker    the one worker of this process
//! ```
//! Reliable datagram endpoints only: one endpoint is one channel of the process's worker (`madrigal_message`).
//! Rules: a domain's state has one owner, its lock, and a C handle is only ever shared (`&`); nothing panics through libfabric;
//! nothing is printed except why a peer cannot be reached, once.
#![allow(unsafe_code)]

mod av;
mod bell;
mod cntr;
mod cq;
mod domain;
mod ep;
mod eq;
mod fabric;
mod guard;
mod info;
mod lookup;
mod mr;
mod names;
mod object;
mod poll;
mod slab;
mod state;
mod worker;

use std::ffi::c_void;
use std::sync::Once;

use abi::info::Provider;
use abi::version;
use madrigal_ofi_abi as abi;

/// The entry point: it returns the description of this provider. libfabric writes into that, so there is one for the life of the process.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut c_void {
    static QUIET: Once = Once::new();
    // A panic of ours is caught and reported as an error, and not on the host program's stderr.
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| {})));
    PROVIDER.0.get().cast()
}

struct Shared(std::cell::UnsafeCell<Provider>);

// SAFETY: only libfabric writes to it, under its own lock; we give out the address and never access it again.
unsafe impl Sync for Shared {}

static PROVIDER: Shared = Shared(std::cell::UnsafeCell::new(Provider {
    version: version(0, 1),
    // The interface version of this code; a program that requests a later one does not see this provider.
    fi_version: version(2, 6),
    context: [std::ptr::null_mut(); 4],
    name: info::NAME.as_ptr(),
    getinfo: info::getinfo,
    fabric: fabric::open,
    cleanup,
}));

extern "C" fn cleanup() {}
