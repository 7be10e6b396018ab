//! The names by which nodes listen: abstract ones of unix(7), which end with their process, however it ends. No directory guards them, so
//! both sides query the kernel for the owner of the other end. Every process may list them, so they do not contain the node's id.

use madrigal_base::node::NodeId;
use madrigal_proto::talk::pseudonym;
use madrigal_sys::Errno;
use madrigal_sys::fd::Fd;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Connections the kernel keeps waiting for us (listen(2) lowers it to the system's limit).
const BACKLOG: i32 = 4096;

/// Listens as a node. `EADDRINUSE`: another process does.
pub(super) fn listen(node: NodeId) -> Result<Fd, Errno> {
    let socket = socket()?;
    rustix::net::bind(&socket, &address(node)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Connects to a node. `ECONNREFUSED`: no process listens under its name. `EAGAIN`: its queue is full.
pub(super) fn connect(node: NodeId) -> Result<Fd, Errno> {
    let socket = socket()?;
    rustix::net::connect(&socket, &address(node)?)?;
    Ok(socket)
}

fn address(node: NodeId) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(format!("madrigal-node-{:016x}", pseudonym(node)).as_bytes())
}

fn socket() -> Result<Fd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map(Fd::from)
}

#[cfg(all(test, not(feature = "shuttle"), not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_free_once_nobody_listens() {
        let node = NodeId::new(madrigal_sys::process::random() | 1).unwrap();
        assert_eq!(connect(node).map(drop), Err(Errno::CONNREFUSED));
        let listener = listen(node).unwrap();
        assert_eq!(listen(node).map(drop), Err(Errno::ADDRINUSE));
        drop(connect(node).unwrap());
        drop(listener);
        assert_eq!(connect(node).map(drop), Err(Errno::CONNREFUSED));
        drop(listen(node).unwrap());
    }

    #[test]
    fn a_name_does_not_tell_the_node() {
        let node = NodeId::new(0x0123_4567_89ab).unwrap();
        let text = String::from_utf8(address(node).unwrap().abstract_name().unwrap().to_vec()).unwrap();
        assert!(text.starts_with("madrigal-node-") && !text.contains(&node.to_string()), "{text}");
    }
}
