//! The protocol of a link's control socket: one request and one reply, both JSON. The socket has mode 0600 in a directory of mode 0700:
//! only its user can send requests.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use serde::{Deserialize, Serialize};

use crate::wan::direction::Counts;

/// A request to a link.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Request {
    /// How it is.
    Status,
    /// To change settings, given as `KEY=VALUE`.
    Set(Vec<String>),
    /// To carry nothing (`true`), or to carry again.
    Cut(bool),
}

/// The reply of a link: its status after the request, or why the request failed.
pub type Reply = Result<LinkStatus, String>;

/// How a link is.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq)]
pub struct LinkStatus {
    /// The settings as `KEY=VALUE`.
    pub settings: Vec<String>,
    /// Whether it is cut.
    pub cut: bool,
    /// What became of packets, from the first end to the second and back.
    pub counts: [Counts; 2],
}

/// The longest message.
pub(crate) const LONGEST: usize = 16 << 10;

const SOCKET: SocketFlags = SocketFlags::CLOEXEC;

/// The address of `name` in `directory`, however long the directory's path is.
fn address(directory: &OwnedFd, name: &str) -> Result<SocketAddrUnix, Errno> {
    use std::os::fd::AsRawFd as _;
    SocketAddrUnix::new(format!("/proc/self/fd/{}/{name}", directory.as_raw_fd()))
}

fn open(directory: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Listens at `name` in `directory`.
pub(crate) fn listen(directory: &Path, name: &str) -> Result<OwnedFd, Errno> {
    let directory = open(directory)?;
    let flags = SOCKET | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let bound = rustix::net::bind(&socket, &address(&directory, name)?);
    rustix::process::umask(before);
    bound?;
    rustix::net::listen(&socket, 16)?;
    Ok(socket)
}

/// Asks the link that listens at `name` in `directory`.
pub(crate) fn ask(directory: &Path, name: &str, request: &Request) -> Result<Reply, Errno> {
    let directory = open(directory)?;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SOCKET, None)?;
    for timeout in [sockopt::Timeout::Send, sockopt::Timeout::Recv] {
        sockopt::set_socket_timeout(&socket, timeout, Some(std::time::Duration::from_secs(10)))?;
    }
    rustix::net::connect(&socket, &address(&directory, name)?)?;
    let text = serde_json::to_vec(request).map_err(|_| Errno::INVAL)?;
    rustix::net::send(&socket, &text, SendFlags::NOSIGNAL)?;
    let mut answer = vec![0; LONGEST];
    let (len, _) = rustix::net::recv(&socket, &mut answer, RecvFlags::empty())?;
    serde_json::from_slice(answer.get(..len).unwrap_or_default()).map_err(|_| Errno::BADMSG)
}
