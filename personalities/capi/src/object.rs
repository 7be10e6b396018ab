//! The objects behind handles, and the one table of all handles of the process.

use std::sync::Arc;

use crate::circuit::{Circuit, Packing, Unpacking};
use crate::codes::{MDG_ECLOSED, MDG_EFULL, MDG_EHANDLE, MDG_ETYPE};
use crate::failure::Failure;
use crate::link::VLinkHandle;
use crate::listeners::Listeners;
use crate::lossy;
use crate::mailboxes::{Buffer, Mailbox};
use crate::op::Op;
use crate::pool::Pool;
use crate::ports::{Incoming, ReceivePort, SendPort, Written};
use crate::runtime::Runtime;
use crate::sources::{Timer, Watch};
use crate::table::{Full, Inside, Lane, Reserved, Table, kind_of};

/// What a handle stands for.
pub(crate) enum Object {
    Runtime(Arc<Runtime>),
    Link(Box<VLinkHandle>),
    Listeners(Arc<Listeners>),
    Op(Box<Op>),
    Watch(Arc<Runtime>, Watch),
    Timer(Arc<Runtime>, Timer),
    Circuit(Arc<Circuit>),
    Packing(Box<Packing>),
    Unpacking(Box<Unpacking>),
    SendPort(Box<SendPort>),
    ReceivePort(Box<ReceivePort>),
    Written(Box<Written>),
    Incoming(Box<Incoming>),
    LossyAcceptor(Box<lossy::Acceptor>),
    LossyLink(Box<lossy::Link>),
    Mailbox(Box<Mailbox>),
    Buffer(Box<Buffer>),
    Pool(Box<Pool>),
}

static TABLE: Table<Object> = Table::new();

impl Object {
    /// Takes an operation back, unless another thread waits for it: that wait ends by itself, since its object has ended.
    pub(crate) fn take_back(&self) {
        if let Self::Op(op) = self
            && let Ok(mut asked) = op.ask()
        {
            let _ = asked.cancel();
        }
    }

    /// The runtime it was opened from; itself, of a runtime; none, of a buffer.
    pub(crate) fn runtime(&self) -> Option<&Arc<Runtime>> {
        Some(match self {
            Self::Runtime(runtime) | Self::Watch(runtime, _) | Self::Timer(runtime, _) => runtime,
            Self::Link(link) => &link.runtime,
            Self::Listeners(listeners) => &listeners.runtime,
            Self::Op(op) => &op.runtime,
            Self::Circuit(circuit) => &circuit.runtime,
            Self::Packing(packing) => &packing.circuit.runtime,
            Self::Unpacking(unpacking) => &unpacking.circuit.runtime,
            Self::SendPort(port) => &port.runtime,
            Self::ReceivePort(port) => &port.runtime,
            Self::Written(message) => &message.runtime,
            Self::Incoming(message) => &message.runtime,
            Self::LossyAcceptor(acceptor) => &acceptor.runtime,
            Self::LossyLink(link) => &link.runtime,
            Self::Mailbox(mailbox) => &mailbox.runtime,
            Self::Pool(pool) => &pool.runtime,
            Self::Buffer(_) => return None,
        })
    }
}

/// A kind of object.
pub(crate) trait Kind {
    /// The number in its handles, and what it is called.
    const NUMBER: u8;
    const NAME: &'static str;

    fn of(object: &Object) -> Option<&Self>;
}

macro_rules! kinds {
    ($($number:literal $name:literal $kind:ty: $pattern:pat => $found:expr;)*) => {
        $(impl Kind for $kind {
            const NUMBER: u8 = $number;
            const NAME: &'static str = $name;

            #[inline]
            fn of(object: &Object) -> Option<&Self> {
                match object {
                    $pattern => Some($found),
                    _ => None,
                }
            }
        })*

        /// What the objects of a handle's kind are called.
        pub(crate) fn kind_name(kind: u8) -> &'static str {
            match kind {
                $($number => $name,)*
                _ => "nothing",
            }
        }
    };
}

kinds! {
    1 "a runtime" Arc<Runtime>: Object::Runtime(runtime) => runtime;
    2 "a link" VLinkHandle: Object::Link(link) => link;
    3 "an acceptor" Arc<Listeners>: Object::Listeners(listeners) => listeners;
    4 "an operation" Op: Object::Op(op) => op;
    5 "a watched descriptor" Watch: Object::Watch(_, watch) => watch;
    6 "a timer" Timer: Object::Timer(_, timer) => timer;
    7 "a Circuit" Arc<Circuit>: Object::Circuit(circuit) => circuit;
    8 "a message that is packed" Packing: Object::Packing(packing) => packing;
    9 "a message that is unpacked" Unpacking: Object::Unpacking(unpacking) => unpacking;
    10 "a send port" SendPort: Object::SendPort(port) => port;
    11 "a receive port" ReceivePort: Object::ReceivePort(port) => port;
    12 "a message that is written" Written: Object::Written(message) => message;
    13 "a message that came" Incoming: Object::Incoming(message) => message;
    14 "an acceptor of links of messages" lossy::Acceptor: Object::LossyAcceptor(acceptor) => acceptor;
    15 "a link of messages" lossy::Link: Object::LossyLink(link) => link;
    16 "a mailbox" Mailbox: Object::Mailbox(mailbox) => mailbox;
    17 "a buffer" Buffer: Object::Buffer(buffer) => buffer;
    18 "a pool" Pool: Object::Pool(pool) => pool;
}

/// Room for a handle, reserved before its object is made: so no object is lost because there is no room.
pub(crate) struct Room(Reserved<'static, Object>);

impl Room {
    pub(crate) fn take() -> Result<Self, Failure> {
        TABLE.reserve().map(Self).map_err(|Full| Failure::new(MDG_EFULL, "1,048,576 handles are open"))
    }

    /// Puts an object of that kind there: its handle.
    pub(crate) fn fill<K: Kind>(self, object: Object) -> Result<u64, Failure> {
        let runtime = object.runtime().cloned();
        let handle = self.0.fill(K::NUMBER, object);
        // A thread that closes the runtime sets the flag before it lists the handles that were opened from it.
        if runtime.is_some_and(|runtime| runtime.is_shut()) {
            withdraw(handle);
            return Err(Failure::new(MDG_ECLOSED, "the runtime is closed"));
        }
        Ok(handle)
    }
}

/// Takes a handle away that was not returned to the program; an operation's memory is free when this returns.
#[cold]
fn withdraw(handle: u64) {
    let Ok(object) = any(handle) else { return };
    object.take_back();
    TABLE.take(handle);
}

/// The object of a handle, by the way of `lane`.
#[inline]
pub(crate) fn with<K: Kind, R>(
    handle: u64,
    lane: Lane,
    run: impl FnOnce(&K) -> Result<R, Failure>,
) -> Result<R, Failure> {
    let Some(object) = TABLE.enter(handle, lane) else { return Err(missing(handle)) };
    match K::of(&object) {
        Some(object) => run(object),
        None => Err(other_kind(handle, K::NAME)),
    }
}

/// The same for a call that may end the object: `run` gets a function that takes the handle away, or fails if another thread did so first.
#[inline]
pub(crate) fn ending<K: Kind, R>(
    handle: u64,
    run: impl FnOnce(&K, &dyn Fn() -> Result<(), Failure>) -> Result<R, Failure>,
) -> Result<R, Failure> {
    let Some(inside) = TABLE.enter(handle, Lane::Main) else { return Err(missing(handle)) };
    let take = || if inside.take() { Ok(()) } else { Err(missing(handle)) };
    match K::of(&inside) {
        Some(object) => run(object, &take),
        None => Err(other_kind(handle, K::NAME)),
    }
}

/// The object of a handle, of whatever kind.
pub(crate) fn any(handle: u64) -> Result<Inside<'static, Object>, Failure> {
    TABLE.enter(handle, Lane::Main).ok_or_else(|| missing(handle))
}

/// Takes a handle away; an error if another thread did so first.
pub(crate) fn take(handle: u64) -> Result<(), Failure> {
    if TABLE.take(handle) { Ok(()) } else { Err(missing(handle)) }
}

/// Every handle there is.
pub(crate) fn all() -> Vec<u64> {
    TABLE.handles()
}

#[cold]
fn missing(handle: u64) -> Failure {
    let what = kind_name(kind_of(handle));
    Failure::new(
        MDG_EHANDLE,
        format!("no such handle: {handle:#x} would be {what} that was closed before, or never was"),
    )
}

#[cold]
fn other_kind(handle: u64, wanted: &str) -> Failure {
    let what = kind_name(kind_of(handle));
    Failure::new(MDG_ETYPE, format!("handle {handle:#x} is {what}, and {wanted} was wanted"))
}
