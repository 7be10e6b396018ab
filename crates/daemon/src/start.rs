//! Opens the listeners for other daemons, and has the errors of a start.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::control::runtime::RuntimeError;
use crate::grid::{Grid, Host, Site};
use crate::socket;

/// Why a daemon was not started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The grid has no such host.
    #[error("the grid has no host `{host}`; there are {known}: say which is this one with --host NAME")]
    Host {
        /// The name.
        host: String,
        /// The names that it has.
        known: String,
    },
    /// Unauthenticated peers could reach its port, and it has no certificate.
    #[error(
        "links of {host} have to be enciphered, and it cannot show who it is: {lack}; or write trusted = true below [site.{site}] if no \
         unauthenticated peer can reach its network"
    )]
    Untrusted {
        /// This host.
        host: String,
        /// Its site.
        site: String,
        /// Why it has no certificate.
        lack: String,
    },
    /// It cannot listen.
    #[error("cannot listen at {at}: {errno}")]
    Listen {
        /// Where.
        at: SocketAddr,
        /// The error of the system.
        errno: Errno,
    },
    /// It cannot open the control socket.
    #[error("cannot listen for clients: {errno}")]
    Local {
        /// The error of the system.
        errno: Errno,
    },
    /// The runtime directory cannot be used.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// A system call failed.
    #[error("cannot start: {errno}")]
    System {
        /// The error of the system.
        errno: Errno,
    },
}

/// The index of a host in the grid.
pub(crate) fn own_index(grid: &Grid, host: &str) -> Result<usize, StartError> {
    let unknown = || StartError::Host { host: host.to_owned(), known: grid.names() };
    Ok(grid.host(host).ok_or_else(unknown)?.0)
}

/// Listens for other daemons at [`places`].
pub(crate) fn listen(grid: &Grid, own_index: usize, lack: Option<&String>) -> Result<Vec<OwnedFd>, StartError> {
    places(grid, own_index, lack)?.into_iter().map(listen_at).collect()
}

/// Where a host listens for other daemons: at all addresses; at loopback addresses where it has no others; nowhere, where it has none. `lack`
/// is why the host has no certificate, if it has none.
pub(crate) fn places(grid: &Grid, own_index: usize, lack: Option<&String>) -> Result<Vec<SocketAddr>, StartError> {
    let Some(host) = grid.hosts.get(own_index) else { return Ok(Vec::new()) };
    let site = grid.sites.get(host.site);
    let mut others =
        grid.hosts.iter().enumerate().filter(|(at, other)| *at != own_index && !other.is_gone()).peekable();
    let is_alone = others.peek().is_none();
    if let Some(lack) = lack.filter(|_| !is_alone && !others.any(|(_, other)| grid.is_trusted_between(host, other))) {
        return Err(untrusted(host, site, lack));
    }
    let local: Vec<SocketAddr> = host.addresses.iter().copied().filter(|at| at.ip().is_loopback()).collect();
    Ok(match (host.addresses.is_empty(), local.len() == host.addresses.len()) {
        (true, _) => Vec::new(),
        (_, true) => local,
        _ => match lack.filter(|_| !grid.trusted && !site.is_some_and(|site| site.trusted)) {
            Some(lack) => return Err(untrusted(host, site, lack)),
            None => everywhere(host),
        },
    })
}

/// Listens at one place.
pub(crate) fn listen_at(at: SocketAddr) -> Result<OwnedFd, StartError> {
    let error = |errno| StartError::Listen { at, errno };
    match socket::listen(at) {
        // Without IPv6, IPv4 alone.
        Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) if at.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) => {
            socket::listen(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), at.port())).map_err(error)
        }
        other => other.map_err(error),
    }
}

fn untrusted(host: &Host, site: Option<&Site>, lack: &str) -> StartError {
    let site = site.map(|site| site.name.clone()).unwrap_or_default();
    StartError::Untrusted { host: host.name.clone(), site, lack: lack.to_owned() }
}

fn everywhere(host: &Host) -> Vec<SocketAddr> {
    vec![SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), host.port)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::description::in_old_places;

    #[test]
    fn a_host_whose_others_were_removed_needs_no_certificate() {
        let read = |text: &str| Grid::read("grid.toml", text).unwrap();
        let two = read("[site.a]\nhosts = { a1 = [], a2 = '10.1.0.3' }\ntrusted = true\n");
        let alone = read("[site.a]\nhosts.a1 = []\n");
        let left = in_old_places(&two, alone.clone()).unwrap();
        assert_eq!((alone.hosts.len(), left.hosts.len()), (1, 2));
        let lack = "there is no certificate".to_owned();
        for grid in [alone, left] {
            assert!(places(&grid, 0, Some(&lack)).is_ok_and(|places| places.is_empty()));
        }
        let apart = read("[site.a]\nhosts = { a1 = [], a2 = '10.1.0.3' }\n");
        assert!(matches!(places(&apart, 0, Some(&lack)), Err(StartError::Untrusted { .. })));
    }
}
