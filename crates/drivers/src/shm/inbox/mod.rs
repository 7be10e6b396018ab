//! Messages between processes of one user on one host.
//!
//! * `layout`, `pair`: what lies where in shared memory;
//! * `writer`, `reader`, `bulk`, `bytes`: how frames pass in one direction;
//! * `notice`: which process is notified, and how it is woken;
//! * `name`, `meet`, `greet`: how two processes become linked;
//! * `link`, `port`: one link, and all of a process;
//! * `copy`: from memory to memory by one system call.
//!
//! Every linked pair has rings of its own, so that no peer can hold up or spoil what others send. A process polls the rings of few peers
//! that sent lately, and one word in which all others leave a notice.

mod bulk;
mod bytes;
mod copy;
#[cfg(all(test, feature = "shuttle"))]
mod explored;
mod greet;
#[cfg(all(test, not(feature = "shuttle"), not(miri)))]
mod hostile;
mod layout;
mod link;
mod meet;
mod name;
mod notice;
mod pair;
mod port;
mod reader;
mod writer;

use madrigal_base::error::Os;
use madrigal_base::ids::Reach;
use madrigal_base::node::NodeId;
use madrigal_progress::driver::{Facts, Place};
use madrigal_progress::message::{MessageDriver, Port};
use madrigal_sys::Errno;
use madrigal_sys::fd::Fd;
use rustix::event::epoll::{self, EventData, EventFlags};

/// The driver of messages.
pub(crate) struct ShmMessages;

impl MessageDriver for ShmMessages {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn facts(&self) -> Facts {
        Facts { reach: Reach::Host, one_user: true, takes: "the id of a node" }
    }

    fn usable(&self, _place: &Place) -> Result<(), String> {
        let made = madrigal_sys::mem::sealed_memfd(c"madrigal-probe", 4096);
        made.map(drop).map_err(|errno| format!("no shared memory can be made: {}", sentence(errno)))
    }

    fn open(&self, me: NodeId, _place: &Place) -> Result<Box<dyn Port>, String> {
        let listener = name::listen(me).map_err(|errno| match errno {
            Errno::ADDRINUSE => format!("another process is node {me}"),
            errno => format!("nobody can be listened to: {}", sentence(errno)),
        })?;
        let page = pair::PageMap::create().map_err(|errno| format!("no shared memory: {}", sentence(errno)))?;
        let made = || -> Result<Fd, Errno> {
            let epoll = Fd::from(epoll::create(epoll::CreateFlags::CLOEXEC)?);
            epoll::add(&epoll, &listener, EventData::new_u64(meet::LISTENER), EventFlags::IN)?;
            Ok(epoll)
        };
        let epoll = made().map_err(|errno| sentence(errno).to_string())?;
        Ok(Box::new(port::Inbox::new(me, listener, epoll, page)))
    }
}

fn sentence(errno: Errno) -> Os {
    Os(errno.raw_os_error())
}
