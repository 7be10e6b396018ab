//! What the kernel tells of a process's TCP sockets: `/proc/PID/fd` and `/proc/PID/net/tcp` (proc_pid_net(5)).

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A TCP socket, as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Socket {
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
    /// In words, such as `established`.
    pub(super) state: &'static str,
}

impl Socket {
    /// Whether it waits for connections.
    pub(super) fn is_listener(&self) -> bool {
        self.state == "listen"
    }
}

/// The TCP sockets of the network namespace of `pid`, by inode.
pub(super) fn in_namespace_of(pid: u32) -> HashMap<u64, Socket> {
    let mut sockets = HashMap::new();
    for file in ["tcp", "tcp6"] {
        let text = std::fs::read_to_string(format!("/proc/{pid}/net/{file}")).unwrap_or_default();
        sockets.extend(text.lines().skip(1).filter_map(parse));
    }
    sockets
}

/// Descriptors of `pid` that are sockets, with their inodes; lowest first.
pub(super) fn descriptors(pid: u32) -> Vec<(i32, u64)> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let socket = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        let target = std::fs::read_link(entry.path()).ok()?;
        let inode = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()?;
        Some((entry.file_name().to_str()?.parse().ok()?, inode))
    };
    let mut found: Vec<_> = entries.filter_map(socket).collect();
    found.sort_unstable();
    found
}

fn parse(line: &str) -> Option<(u64, Socket)> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [_, local, peer, state, _, _, _, _, _, inode, ..] = fields[..] else { return None };
    Some((inode.parse().ok()?, Socket { local: address(local)?, peer: address(peer)?, state: state_name(state) }))
}

/// An address as hexadecimal words in the machine's byte order, and a port.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |i: usize| u32::from_str_radix(ip.get(i * 8..i * 8 + 8)?, 16).ok().map(u32::to_ne_bytes);
    let ip: IpAddr = if ip.len() == 8 {
        Ipv4Addr::from(word(0)?).into()
    } else {
        let words = [word(0)?, word(1)?, word(2)?, word(3)?];
        let bytes: [u8; 16] = words.concat().try_into().ok()?;
        Ipv6Addr::from(bytes).to_canonical()
    };
    Some(SocketAddr::new(ip, port))
}

/// Names of the kernel's numbers (linux/tcp_states.h).
fn state_name(number: &str) -> &'static str {
    const NAMES: [&str; 12] = [
        "established",
        "syn-sent",
        "syn-recv",
        "fin-wait-1",
        "fin-wait-2",
        "time-wait",
        "close",
        "close-wait",
        "last-ack",
        "listen",
        "closing",
        "new-syn-recv",
    ];
    let index = usize::from_str_radix(number, 16).ok().and_then(|n| n.checked_sub(1));
    index.and_then(|i| NAMES.get(i)).copied().unwrap_or("unknown")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd as _;

    fn check(bind: &str) -> Option<()> {
        let listener = TcpListener::bind(bind).ok()?;
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let own = std::process::id();
        let fds = descriptors(own);
        let sockets = in_namespace_of(own);
        let socket = |fd: i32| {
            let (_, inode) = fds.iter().find(|(number, _)| *number == fd).unwrap();
            sockets[inode].clone()
        };
        let seen = socket(client.as_raw_fd());
        assert_eq!((seen.local, seen.peer), (client.local_addr().unwrap(), client.peer_addr().unwrap()));
        assert_eq!(seen.state, "established");
        assert!(socket(listener.as_raw_fd()).is_listener());
        Some(())
    }

    #[test]
    fn sockets_of_this_process_are_found_with_their_addresses() {
        check("127.0.0.1:0").unwrap();
        if check("[::1]:0").is_none() {
            eprintln!("skipped: no IPv6 here");
        }
    }
}
