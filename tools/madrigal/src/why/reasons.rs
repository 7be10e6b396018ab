//! Why a connection stays with TCP, where the process itself cannot know: by an inspection of its other end.

use std::rc::Rc;

use madrigal_report::Reason;
use serde::Serialize;

use super::host::{self, End, Host, Process};
use super::sockets::Socket;
use crate::{out, program};

/// Why a connection, or one direction of it, is not in shared memory.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub(super) struct Because {
    pub(super) name: &'static str,
    pub(super) text: String,
}

impl Because {
    /// A reason in its own words.
    pub(super) fn new(reason: Reason) -> Self {
        Self { name: reason.name(), text: reason.text().to_owned() }
    }
}

/// The process at the other end.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub(super) struct Peer {
    pub(super) pid: u32,
    pub(super) program: String,
    user: Option<u32>,
    wrapped: Option<bool>,
    /// Why it stays with TCP, by its own account.
    reason: Option<&'static str>,
}

/// Where the other end is.
enum Place {
    /// On this host, in this process.
    Process(Rc<Process>, u64),
    /// On this host, and this is why no more is known or needed.
    Known(Reason),
    /// It is closed, or was just made.
    Unclear,
}

/// Why an end stays with TCP, if it does; and the process at the other end.
pub(super) fn explain(host: &Host, process: &Process, end: &End) -> (Option<Because>, Option<Peer>) {
    let own = own_reason(host, end);
    let Some(socket) = &end.socket else { return (own.map(Because::new), None) };
    let (place, apart) = place(host, process, socket);
    let peer = match &place {
        Place::Process(peer, inode) => Some(describe(host, peer, *inode)),
        _ => None,
    };
    let better = || match &place {
        _ if apart => Some(Because::new(Reason::OtherNamespace)),
        Place::Known(reason) => Some(Because::new(*reason)),
        Place::Process(peer, inode) => of_peer(host, process, own, (peer, *inode)),
        Place::Unclear => None,
    };
    let known = own.filter(|reason| !may_be_better(*reason));
    let because = known.map(Because::new).or_else(|| own.and_then(|_| better())).or(own.map(Because::new));
    (because, peer)
}

/// Whether the other end may give a better reason than the process's own.
fn may_be_better(reason: Reason) -> bool {
    use Reason::{Forked, NoAnswer, NoListener, NotUsed, Shared, Unearned};
    matches!(reason, Unearned | NoListener | NoAnswer | Shared | Forked | NotUsed)
}

/// An end's reason, without an inspection of the other end.
fn own_reason(host: &Host, end: &End) -> Option<Reason> {
    let shared = || end.socket.as_ref().is_some_and(|socket| host.holders(socket.inode).len() > 1);
    match end.reason? {
        Reason::Unearned | Reason::Forked | Reason::NotUsed | Reason::NoAnswer | Reason::Uncounted if shared() => {
            Some(Reason::Shared)
        }
        reason => Some(reason),
    }
}

/// Where the other end of a socket is, and whether in another namespace.
fn place(host: &Host, process: &Process, socket: &Socket) -> (Place, bool) {
    if !socket.is_open() {
        return (Place::Unclear, false);
    }
    let near = host.around(process.pid).and_then(|sockets| sockets.other_end(socket));
    let Some(other) = near.or_else(|| host.other_end_anywhere(socket)) else {
        return (Place::Known(Reason::OtherHost), false);
    };
    let place = match host.holders(other.inode) {
        _ if other.inode == 0 && other.is_open() => Place::Known(Reason::NotAccepted),
        _ if other.inode == 0 => Place::Unclear,
        [] if process.user.is_some_and(|user| user != other.user) => Place::Known(Reason::OtherUser),
        [] => Place::Known(Reason::PeerUnseen),
        holders => {
            let all = holders.iter().map(|(pid, _)| host.process(*pid));
            let wrapped_first = all.min_by_key(|holder| holder.wrapped != Some(true));
            wrapped_first.map_or(Place::Unclear, |holder| Place::Process(holder, other.inode))
        }
    };
    (place, near.is_none())
}

fn describe(host: &Host, peer: &Process, inode: u64) -> Peer {
    let end = peer.end(inode);
    let reason = end.and_then(|end| own_reason(host, end)).map(Reason::name);
    Peer { pid: peer.pid, program: peer.program.clone(), user: peer.user, wrapped: peer.wrapped, reason }
}

/// The reason that the process at the other end causes.
fn of_peer(host: &Host, process: &Process, own: Option<Reason>, (peer, inode): (&Process, u64)) -> Option<Because> {
    let plain = |reason| Some(Because::new(reason));
    match peer.wrapped {
        None => return plain(if differ(process, peer) { Reason::OtherUser } else { Reason::PeerUnseen }),
        _ if differ(process, peer) => return plain(Reason::OtherUser),
        Some(false) if program::cannot_be_wrapped(&host::exe(peer.pid)) => return plain(Reason::PeerUnfit),
        Some(false) => return plain(Reason::PeerPlain),
        Some(true) => {}
    }
    let theirs = peer.end(inode).and_then(|end| own_reason(host, end));
    if let Some(reason) =
        theirs.filter(|reason| *reason == Reason::Shared || !may_be_better(*reason) && *reason != Reason::PeerLeft)
    {
        let program = out::escaped(&peer.program);
        let text = format!(
            "{}: process {} ({program}): {}: {}",
            Reason::PeerStays.text(),
            peer.pid,
            reason.name(),
            reason.text()
        );
        return Some(Because { name: Reason::PeerStays.name(), text });
    }
    let tables = (host::table(process.pid), host::table(peer.pid));
    let searched = [own, theirs].contains(&Some(Reason::NoListener));
    let apart = searched && tables.0.is_some() && tables.1.is_some() && tables.0 != tables.1;
    apart.then(|| Because::new(Reason::OtherDirectory))
}

fn differ(process: &Process, peer: &Process) -> bool {
    process.user.zip(peer.user).is_some_and(|(user, other)| user != other)
}
