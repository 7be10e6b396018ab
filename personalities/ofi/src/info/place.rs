//! Addresses named by node and service, as `fi_getinfo` and `fi_av_insertsvc` take them.
//!
//! They name a host and a port; the node there is found by a query ([`crate::lookup`]). Programs that exchange the results of `fi_getname`
//! do not need this.

use std::ffi::{CStr, CString, c_char};
use std::net::{Ipv4Addr, SocketAddrV4};

use super::offered::Wanted;
use crate::abi::errno::{EINVAL, ENODATA};
use crate::abi::flags::{GETINFO_SOURCE, NUMERICHOST, SOCKADDR_IN};
use crate::names;

/// A string of the caller's; `None` where there is none.
///
/// # Safety
/// Null, or a string that ends and lives as long as is said.
pub(crate) unsafe fn text<'a>(at: *const c_char) -> Option<&'a CStr> {
    // SAFETY: by the caller.
    (!at.is_null()).then(|| unsafe { CStr::from_ptr(at) })
}

/// Adds source and target to the request.
pub(super) fn find(wanted: &mut Wanted, names: (Option<&CStr>, Option<&CStr>), flags: u64) -> Result<(), i32> {
    let (node, service) = names;
    if node.is_some() || service.is_some() {
        let found = resolve(node, service, flags & NUMERICHOST != 0)?;
        wanted.addr_format = SOCKADDR_IN;
        if flags & GETINFO_SOURCE != 0 {
            wanted.source = Some(sockaddr(found));
        } else if node.is_some() {
            wanted.target = Some(sockaddr(found));
        } else if wanted.target.is_none() {
            return Err(ENODATA);
        }
    }
    let short = |address: &Option<Vec<u8>>| address.as_ref().is_some_and(|bytes| bytes.len() == names::SHORT);
    if short(&wanted.source) || short(&wanted.target) {
        wanted.addr_format = SOCKADDR_IN;
    }
    let len = if wanted.addr_format == SOCKADDR_IN { names::SHORT } else { names::LONG };
    wanted.source.get_or_insert_with(|| {
        let mut unset = sockaddr(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));
        unset.resize(len, 0);
        unset
    });
    Ok(())
}

/// The host and port of a node and a service.
pub(crate) fn resolve(node: Option<&CStr>, service: Option<&CStr>, digits: bool) -> Result<SocketAddrV4, i32> {
    let port = match service.map(CStr::to_str) {
        None => 0,
        Some(Ok(text)) => text.parse().map_err(|_| EINVAL)?,
        Some(Err(_)) => return Err(EINVAL),
    };
    let Some(node) = node else { return Ok(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port)) };
    let text = node.to_str().map_err(|_| ENODATA)?;
    match text.parse::<Ipv4Addr>() {
        Ok(address) => Ok(SocketAddrV4::new(address, port)),
        Err(_) if digits => Err(ENODATA),
        Err(_) => Ok(SocketAddrV4::new(lookup(node)?, port)),
    }
}

/// Resolves a name to its first IPv4 address by the C library.
fn lookup(node: &CStr) -> Result<Ipv4Addr, i32> {
    let name = CString::from(node);
    // SAFETY: all bytes zero is a valid addrinfo.
    let mut hints: libc::addrinfo = unsafe { std::mem::zeroed() };
    hints.ai_family = libc::AF_INET;
    hints.ai_socktype = libc::SOCK_STREAM;
    let mut list = std::ptr::null_mut();
    // SAFETY: a string that ends, hints as wanted, and a place for the answer.
    let failed = unsafe { libc::getaddrinfo(name.as_ptr(), std::ptr::null(), &raw const hints, &raw mut list) };
    if failed != 0 || list.is_null() {
        return Err(ENODATA);
    }
    // SAFETY: the list is not empty, and only AF_INET was asked for, so its addresses are sockaddr_in.
    let address = unsafe { (*(*list).ai_addr.cast::<libc::sockaddr_in>()).sin_addr.s_addr };
    // SAFETY: it came from getaddrinfo and is freed once.
    unsafe { libc::freeaddrinfo(list) };
    Ok(Ipv4Addr::from(u32::from_be(address)))
}

/// The bytes of a `sockaddr_in`.
pub(crate) fn sockaddr(at: SocketAddrV4) -> Vec<u8> {
    let mut bytes = vec![0; names::SHORT];
    bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
    bytes[2..4].copy_from_slice(&at.port().to_be_bytes());
    bytes[4..8].copy_from_slice(&at.ip().octets());
    bytes
}
