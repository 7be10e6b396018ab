//! A process's TCP sockets, as the kernel lists them: `/proc/PID/fd` and `/proc/PID/net/tcp` (proc_pid_net(5)).

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A TCP socket, as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Socket {
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
    /// In words, such as `established`.
    pub(super) state: &'static str,
    /// Whose it is.
    pub(super) user: u32,
    /// What names it; 0 while no program has it: not accepted yet, or closed.
    pub(super) inode: u64,
}

impl Socket {
    /// Whether it waits for connections.
    pub(super) fn is_listener(&self) -> bool {
        self.state == "listen"
    }

    /// Whether bytes may go both ways.
    pub(super) fn is_open(&self) -> bool {
        self.state == "established"
    }
}

/// The TCP sockets of a network namespace.
#[derive(Default)]
pub(super) struct Namespace {
    by_inode: HashMap<u64, Socket>,
    by_names: HashMap<(SocketAddr, SocketAddr), Socket>,
}

impl Namespace {
    /// That of a process.
    pub(super) fn of(pid: u32) -> Self {
        let mut found = Self::default();
        for file in ["tcp", "tcp6"] {
            let text = std::fs::read_to_string(format!("/proc/{pid}/net/{file}")).unwrap_or_default();
            text.lines().skip(1).filter_map(parse).for_each(|socket| found.add(socket));
        }
        found
    }

    fn add(&mut self, socket: Socket) {
        if socket.inode != 0 {
            self.by_inode.insert(socket.inode, socket.clone());
        }
        self.by_names.insert((socket.local, socket.peer), socket);
    }

    /// The socket with this inode.
    pub(super) fn socket(&self, inode: u64) -> Option<&Socket> {
        self.by_inode.get(&inode)
    }

    /// The other end of a connection.
    pub(super) fn other_end(&self, socket: &Socket) -> Option<&Socket> {
        self.by_names.get(&(socket.peer, socket.local))
    }
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

/// How many UDP sockets a process has.
pub(super) fn count_udp(pid: u32) -> usize {
    let read = |file| std::fs::read_to_string(format!("/proc/{pid}/net/{file}")).unwrap_or_default();
    let inode = |line: &str| line.split_ascii_whitespace().nth(9)?.parse().ok();
    let all: HashSet<u64> =
        ["udp", "udp6"].map(read).iter().flat_map(|text| text.lines().skip(1).filter_map(inode)).collect();
    let held: HashSet<u64> = descriptors(pid).into_iter().map(|(_, inode)| inode).collect();
    held.intersection(&all).count()
}

fn parse(line: &str) -> Option<Socket> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [_, local, peer, state, _, _, _, user, _, inode, ..] = fields[..] else { return None };
    let (local, peer, state) = (address(local)?, address(peer)?, state_name(state));
    Some(Socket { local, peer, state, user: user.parse().ok()?, inode: inode.parse().ok()? })
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
        let sockets = Namespace::of(own);
        let socket = |fd: i32| {
            let (_, inode) = fds.iter().find(|(number, _)| *number == fd).unwrap();
            sockets.socket(*inode).unwrap().clone()
        };
        let seen = socket(client.as_raw_fd());
        assert_eq!((seen.local, seen.peer), (client.local_addr().unwrap(), client.peer_addr().unwrap()));
        assert_eq!((seen.state, seen.user), ("established", rustix::process::geteuid().as_raw()));
        let far = sockets.other_end(&seen).unwrap();
        assert_eq!((far.local, far.inode), (seen.peer, 0), "nobody has accepted it");
        assert!(socket(listener.as_raw_fd()).is_listener());
        Some(())
    }

    #[test]
    fn udp_sockets_are_counted_once_each() {
        let before = count_udp(std::process::id());
        let one = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let _copy = one.try_clone().unwrap();
        assert_eq!(count_udp(std::process::id()), before + 1);
    }

    #[test]
    fn sockets_of_this_process_are_found_with_their_addresses() {
        check("127.0.0.1:0").unwrap();
        let has_ipv6 = std::fs::read_to_string("/proc/net/if_inet6").is_ok_and(|all| all.contains(" lo\n"));
        assert_eq!(check("[::1]:0").is_some(), has_ipv6);
    }
}
