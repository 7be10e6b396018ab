//! The installed libfabric, loaded when it is first wanted: everything unsafe about it, behind calls that are not.
//!
//! Nothing is linked: structures and numbers are those of `madrigal_ofi_abi`, functions are found by name, and everything else goes
//! through the tables that libfabric's objects carry. We ask for interface 1.17 at most, so later libraries behave as that one did.
#![allow(unsafe_code)]

mod wire;

use core::ffi::{CStr, c_char, c_int, c_void};
use core::marker::PhantomData;
use core::mem::transmute;
use core::ptr::{self, NonNull};
use std::cell::Cell;
use std::ffi::CString;
use std::sync::OnceLock;

use madrigal_ofi_abi::flags;
use madrigal_ofi_abi::info::{FabricAttr, Info};
use madrigal_ofi_abi::object::FabricFid;
use madrigal_ofi_abi::version;

pub(super) use wire::{DATA, Event, Posted, Wire};

type GetInfo = unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const Info, *mut *mut Info) -> c_int;
type FreeInfo = unsafe extern "C" fn(*mut Info);
type DupInfo = unsafe extern "C" fn(*const Info) -> *mut Info;
type OpenFabric = unsafe extern "C" fn(*mut FabricAttr, *mut *mut FabricFid, *mut c_void) -> c_int;
type Version = unsafe extern "C" fn() -> u32;
type StrError = unsafe extern "C" fn(c_int) -> *const c_char;

/// The library's functions. It stays loaded for the life of the process.
struct Library {
    getinfo: GetInfo,
    freeinfo: FreeInfo,
    dupinfo: DupInfo,
    fabric: OpenFabric,
    version: Version,
    strerror: StrError,
}

const SONAME: &CStr = c"libfabric.so.1";
/// The interface version requested of the library.
const INTERFACE: u32 = version(1, 17);

fn library() -> Result<&'static Library, String> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    LIBRARY.get_or_init(load).as_ref().map_err(Clone::clone)
}

#[rustfmt::skip]
fn load() -> Result<Library, String> {
    // SAFETY: a name that ends. What the library does when it is loaded is its business, as in any program that links it.
    let handle = unsafe { libc::dlopen(SONAME.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    let handle = NonNull::new(handle).ok_or("libfabric.so.1 is not installed (Debian: libfabric1)")?;
    let find = |name: &CStr| {
        // SAFETY: the handle is the library's, the name ends.
        let found = unsafe { libc::dlsym(handle.as_ptr(), name.as_ptr()) };
        NonNull::new(found).ok_or_else(|| format!("libfabric has no {}", name.to_string_lossy()))
    };
    // The types are those of fabric.h, the same ones since version 1.0.
    Ok(Library {
        // SAFETY: the function of that name has that type.
        getinfo: unsafe { transmute::<NonNull<c_void>, GetInfo>(find(c"fi_getinfo")?) },
        // SAFETY: the function of that name has that type.
        freeinfo: unsafe { transmute::<NonNull<c_void>, FreeInfo>(find(c"fi_freeinfo")?) },
        // SAFETY: the function of that name has that type.
        dupinfo: unsafe { transmute::<NonNull<c_void>, DupInfo>(find(c"fi_dupinfo")?) },
        // SAFETY: the function of that name has that type.
        fabric: unsafe { transmute::<NonNull<c_void>, OpenFabric>(find(c"fi_fabric")?) },
        // SAFETY: the function of that name has that type.
        version: unsafe { transmute::<NonNull<c_void>, Version>(find(c"fi_version")?) },
        // SAFETY: the function of that name has that type.
        strerror: unsafe { transmute::<NonNull<c_void>, StrError>(find(c"fi_strerror")?) },
    })
}

/// The version of the installed library, such as `1.17`.
pub(super) fn installed() -> Result<(u32, u32), String> {
    let library = library()?;
    // SAFETY: it has no conditions.
    let version = unsafe { (library.version)() };
    Ok((version >> 16, version & 0xffff))
}

thread_local! {
    static ASKING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is inside a call of ours to libfabric. A provider of ours that is called meanwhile must refuse: otherwise libfabric
/// would lead us back to ourselves.
pub(super) fn is_asking() -> bool {
    ASKING.get()
}

/// What an error number of libfabric's means, as its functions return it: negative.
fn failed(what: &str, code: isize) -> String {
    format!("{what}: {}", meaning(code))
}

fn meaning(code: isize) -> String {
    let Ok(library) = library() else { return format!("error {code}") };
    let code = c_int::try_from(code.saturating_neg()).unwrap_or(c_int::MAX);
    // SAFETY: any number is allowed.
    let text = unsafe { (library.strerror)(code) };
    // SAFETY: a text of libfabric's own that ends and stays.
    unsafe { text_of(text) }.unwrap_or_else(|| format!("error {code}"))
}

/// # Safety
/// Null, or a text that ends.
unsafe fn text_of(at: *const c_char) -> Option<String> {
    // SAFETY: by the caller.
    (!at.is_null()).then(|| unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned())
}

/// What libfabric offers; freed with this.
pub(super) struct Offers {
    first: *mut Info,
    library: &'static Library,
}

/// One of them.
#[derive(Clone, Copy)]
pub(super) struct Offer<'a> {
    info: NonNull<Info>,
    of: PhantomData<&'a Offers>,
}

/// What can carry our messages: reliable datagrams, in order; by the provider of that name, or by any. `Err`: why there is none.
pub(super) fn ask(provider: Option<&str>) -> Result<Offers, String> {
    let library = library()?;
    let hints = hints(library, provider)?;
    let mut offers = Offers { first: ptr::null_mut(), library };
    // SAFETY: it has no conditions.
    let interface = unsafe { (library.version)() }.min(INTERFACE);
    let before = ASKING.replace(true);
    // SAFETY: no node and no service, hints that libfabric allocated, and a place for the answer.
    let code = unsafe { (library.getinfo)(interface, ptr::null(), ptr::null(), 0, hints.first, &raw mut offers.first) };
    ASKING.set(before);
    if code == 0 { Ok(offers) } else { Err(failed("fi_getinfo", code as isize)) }
}

/// What we want, in memory of libfabric's.
fn hints(library: &'static Library, provider: Option<&str>) -> Result<Offers, String> {
    // SAFETY: without an original it allocates a new one with all its parts (fi_allocinfo).
    let hints = Offers { first: unsafe { (library.dupinfo)(ptr::null()) }, library };
    let name = provider.map(CString::new).transpose().map_err(|_| "a provider's name without end")?;
    // SAFETY: allocated above, ours alone.
    let info = unsafe { hints.first.as_mut() }.ok_or("no memory")?;
    info.caps = flags::MSG;
    info.mode = flags::MODE_CONTEXT | flags::MODE_CONTEXT2 | flags::MODE_RX_CQ_DATA;
    // SAFETY: a part allocated with it, or null.
    if let Some(ep) = unsafe { info.ep_attr.as_mut() } {
        ep.kind = flags::EP_RDM;
    }
    // SAFETY: as above.
    if let Some(tx) = unsafe { info.tx_attr.as_mut() } {
        tx.msg_order = flags::ORDER_SAS;
    }
    // SAFETY: as above.
    if let Some(rx) = unsafe { info.rx_attr.as_mut() } {
        rx.msg_order = flags::ORDER_SAS;
    }
    if !info.domain_attr.is_null() {
        // Member by member: older versions have a shorter structure.
        // SAFETY: allocated with it; these members are in every version's.
        unsafe {
            (*info.domain_attr).threading = flags::THREAD_DOMAIN;
            (*info.domain_attr).resource_mgmt = flags::RM_ENABLED;
            (*info.domain_attr).mr_mode =
                flags::MR_LOCAL | flags::MR_VIRT_ADDR | flags::MR_ALLOCATED | flags::MR_PROV_KEY | flags::MR_ENDPOINT;
        }
    }
    // SAFETY: a part allocated with it, or null.
    if let (Some(fabric), Some(name)) = (unsafe { info.fabric_attr.as_mut() }, name) {
        // SAFETY: a text that ends; libfabric frees the copy as it frees its own.
        fabric.prov_name = unsafe { libc::strdup(name.as_ptr()) };
    }
    Ok(hints)
}

impl Offers {
    /// One after the other, in libfabric's order of preference.
    pub(super) fn iter(&self) -> impl Iterator<Item = Offer<'_>> {
        let offer = |info| Offer { info, of: PhantomData };
        // SAFETY: a list of libfabric's that ends with null and lives as long as `self`.
        let next = |offer: &Offer<'_>| NonNull::new(unsafe { (*offer.info.as_ptr()).next });
        core::iter::successors(NonNull::new(self.first).map(offer), move |last| next(last).map(offer))
    }
}

impl Drop for Offers {
    fn drop(&mut self) {
        if !self.first.is_null() {
            // SAFETY: it came from this library and is freed once.
            unsafe { (self.library.freeinfo)(self.first) };
        }
    }
}

impl Offer<'_> {
    /// The provider's name, such as `tcp;ofi_rxm`.
    pub(super) fn provider(self) -> String {
        // SAFETY: valid while the offers live.
        let fabric = unsafe { (*self.info.as_ptr()).fabric_attr };
        if fabric.is_null() {
            return String::new();
        }
        // SAFETY: valid while the offers live; a text that ends, or null.
        unsafe { text_of((*fabric).prov_name) }.unwrap_or_default()
    }

    /// The name of what it would go through, such as `eth0` or `mlx5_0`.
    pub(super) fn domain(self) -> String {
        // SAFETY: valid while the offers live.
        let domain = unsafe { (*self.info.as_ptr()).domain_attr };
        if domain.is_null() {
            return String::new();
        }
        // SAFETY: valid while the offers live; a text that ends, or null.
        unsafe { text_of((*domain).name) }.unwrap_or_default()
    }

    /// Whether it reports a device of its own.
    pub(super) fn has_device(self) -> bool {
        // SAFETY: valid while the offers live.
        unsafe { !(*self.info.as_ptr()).nic.is_null() }
    }

    /// Our address there, where libfabric reports one: a `sockaddr` where that is its form.
    pub(super) fn source(self) -> Option<Vec<u8>> {
        // SAFETY: valid while the offers live.
        let (at, len) = unsafe { ((*self.info.as_ptr()).src_addr, (*self.info.as_ptr()).src_addrlen) };
        if at.is_null() || len > 256 {
            return None;
        }
        // SAFETY: libfabric reports how many bytes there are.
        Some(unsafe { core::slice::from_raw_parts(at.cast::<u8>(), len) }.to_vec())
    }

    fn info(self) -> *mut Info {
        self.info.as_ptr()
    }
}
