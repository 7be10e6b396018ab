//! How an endpoint is opened, bound, enabled and closed.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use madrigal_message::endpoint::Endpoint;

use super::{Ep, EpObject, Shared, atomic, code, messages, name, options, rma};
use crate::abi::endpoint::EpFid;
use crate::abi::errno::{EINVAL, EIO, ENOAV, ENOSYS};
use crate::abi::flags::{
    ALIAS, CLASS_AV, CLASS_CNTR, CLASS_CQ, CLASS_EP, CLASS_EQ, DIRECTED_RECV, ENABLE, GETOPSFLAG, RECV,
    SELECTIVE_COMPLETION, SEND, SETOPSFLAG,
};
use crate::abi::info::Info;
use crate::abi::object::{Alias, DomainFid, Fid, Ops};
use crate::domain::DomainObject;
use crate::guard::guard;
use crate::lookup::{self, AddressServer};
use crate::names::Name;
use crate::object::{class, fid, ops, store};
use crate::slab::Slab;
use crate::state::{Bindings, EpState, Role, State};
use crate::{av, cntr, cq, worker};

static OPS: Ops = Ops { bind, control, ..ops(close) };

/// `fi_endpoint`
pub(crate) unsafe extern "C" fn open(
    domain: *mut DomainFid,
    info: *mut Info,
    ep: *mut *mut EpFid,
    context: *mut c_void,
) -> c_int {
    guard(-EIO, || {
        // SAFETY: a live domain of ours, and a whole description or null.
        let (domain, info) = unsafe { (DomainObject::of(domain), info.as_ref()) };
        let Some(info) = info else { return -EINVAL };
        // SAFETY: its parts are null or whole.
        let (tx, rx) = unsafe { (info.tx_attr.as_ref(), info.rx_attr.as_ref()) };
        let link = match domain
            .open_worker()
            .and_then(|worker| worker.0.endpoint(worker.1).map_err(|error| error.to_string()))
        {
            Ok(link) => link,
            Err(why) => {
                worker::complain(&format!("no endpoint: {why}"));
                return -EIO;
            }
        };
        let mut state = domain.lock();
        let mut it = state_of(link, info.caps, &state);
        // SAFETY: null or an address of that length, by the caller.
        let source = unsafe { crate::info::bytes(info.src_addr.cast(), info.src_addrlen) };
        if let Some(Name::Place(source)) = source.and_then(|source| Name::decode(&source)) {
            it.server = lookup::place(&source, true).and_then(AddressServer::open);
        }
        let shared = Shared { domain: Arc::clone(domain), at: state.eps.insert(it) };
        drop(state);
        let inner = Ep {
            shared: Arc::new(shared),
            tx_flags: AtomicU64::new(tx.map_or(0, |attr| attr.op_flags)),
            rx_flags: AtomicU64::new(rx.map_or(0, |attr| attr.op_flags)),
        };
        // SAFETY: a place for the result, by the caller.
        unsafe { store(ep, EpObject::give(front(context), inner)) }
    })
}

fn front(context: *mut c_void) -> EpFid {
    EpFid {
        fid: fid(CLASS_EP, context, &OPS),
        ops: &options::OPS,
        cm: &name::OPS,
        msg: &messages::PLAIN,
        rma: &rma::OPS,
        tagged: &messages::TAGGED,
        atomic: &atomic::OPS,
        collective: std::ptr::null(),
    }
}

fn state_of(link: Endpoint, caps: u64, state: &State) -> EpState {
    for region in &state.regions {
        // Refused if an earlier endpoint exposed it: the domain ensures that keys differ.
        let _ = link.expose(*region);
    }
    EpState {
        link,
        bindings: Bindings {
            requests: Slab::default(),
            outgoing: 0,
            names: Vec::new(),
            tx_cq: None,
            rx_cq: None,
            cntrs: [None; Role::COUNT],
            why: None,
        },
        done: VecDeque::new(),
        enabled: false,
        server: None,
        av: None,
        version: 0,
        peers: Vec::new(),
        unresolved: Vec::new(),
        tx_selective: false,
        rx_selective: false,
        directed: caps & DIRECTED_RECV != 0,
        min_multi: options::MIN_MULTI_RECV,
        claims: Vec::new(),
    }
}

unsafe extern "C" fn close(ep: *mut Fid) -> c_int {
    guard(-EIO, || {
        // SAFETY: a live endpoint of ours, given up by the caller.
        drop(unsafe { EpObject::take(ep) });
        0
    })
}

unsafe extern "C" fn bind(ep: *mut Fid, other: *mut Fid, flags: u64) -> c_int {
    guard(-EIO, || {
        // SAFETY: live objects of ours; the class gives the type of `other`.
        unsafe {
            let inner = EpObject::of(ep);
            let domain = &inner.shared.domain;
            let found = match class(other) {
                CLASS_EQ => return 0,
                CLASS_AV => av::place(other, domain).map(|at| inner.bind_av(at)),
                CLASS_CQ => cq::place(other, domain).map(|at| inner.bind_cq(at, flags)),
                CLASS_CNTR => cntr::place(other, domain).map(|at| inner.bind_cntr(at, flags)),
                _ => None,
            };
            match found {
                Some(Ok(())) => 0,
                Some(Err(errno)) => -errno,
                None => -EINVAL,
            }
        }
    })
}

impl Ep {
    fn bind_av(&self, at: usize) -> Result<(), i32> {
        let mut state = self.shared.domain.lock();
        let State { avs, eps, .. } = &mut *state;
        let (it, av) = (eps.get_mut(self.shared.at).ok_or(EINVAL)?, avs.get_mut(at).ok_or(EINVAL)?);
        if it.av.is_some() || it.enabled {
            return Err(EINVAL);
        }
        it.av = Some(at);
        av.users += 1;
        Ok(())
    }

    fn bind_cq(&self, at: usize, flags: u64) -> Result<(), i32> {
        let mut state = self.shared.domain.lock();
        let State { queues, eps, .. } = &mut *state;
        let (it, cq) = (eps.get_mut(self.shared.at).ok_or(EINVAL)?, queues.cqs.get_mut(at).ok_or(EINVAL)?);
        let selective = flags & SELECTIVE_COMPLETION != 0;
        let sides = [
            (SEND, &mut it.bindings.tx_cq, &mut it.tx_selective),
            (RECV, &mut it.bindings.rx_cq, &mut it.rx_selective),
        ];
        if flags & (SEND | RECV) == 0 {
            return Err(EINVAL);
        }
        for (flag, bound, is_selective) in sides {
            if flags & flag != 0 {
                if bound.is_some() {
                    return Err(EINVAL);
                }
                (*bound, *is_selective) = (Some(at), selective);
                cq.users += 1;
            }
        }
        Ok(())
    }

    fn bind_cntr(&self, at: usize, flags: u64) -> Result<(), i32> {
        let mut state = self.shared.domain.lock();
        let State { queues, eps, .. } = &mut *state;
        let (it, cntr) = (eps.get_mut(self.shared.at).ok_or(EINVAL)?, queues.cntrs.get_mut(at).ok_or(EINVAL)?);
        for (flag, role) in Role::FLAGS {
            if flags & flag != 0 && it.bindings.cntrs[role as usize].replace(at) != Some(at) {
                cntr.users += 1;
            }
        }
        Ok(())
    }

    fn enable(&self) -> Result<(), i32> {
        let mut state = self.shared.domain.lock();
        let it = state.eps.get_mut(self.shared.at).ok_or(EINVAL)?;
        if it.av.is_none() {
            return Err(ENOAV);
        }
        it.enabled = true;
        Ok(())
    }

    fn flags(&self, of: u64) -> Option<&AtomicU64> {
        match of & (SEND | RECV) {
            SEND => Some(&self.tx_flags),
            RECV => Some(&self.rx_flags),
            _ => None,
        }
    }
}

unsafe extern "C" fn control(ep: *mut Fid, command: c_int, arg: *mut c_void) -> c_int {
    guard(-EIO, || {
        // SAFETY: a live endpoint of ours.
        let inner = unsafe { EpObject::of(ep) };
        match command {
            ENABLE => code(inner.enable()) as c_int,
            GETOPSFLAG | SETOPSFLAG => {
                // SAFETY: the caller passes flags, of which one names the direction, or null.
                let Some(flags) = (unsafe { arg.cast::<u64>().as_mut() }) else { return -EINVAL };
                let Some(kept) = inner.flags(*flags) else { return -EINVAL };
                // Nothing else depends on when these are seen.
                if command == SETOPSFLAG {
                    kept.store(*flags & !(SEND | RECV), Ordering::Relaxed);
                } else {
                    *flags = kept.load(Ordering::Relaxed);
                }
                0
            }
            // SAFETY: the caller passes what this command takes.
            ALIAS => unsafe { alias(ep, inner, arg.cast()) },
            _ => -ENOSYS,
        }
    })
}

/// Another handle of the same endpoint, with flags of its own.
///
/// # Safety
/// `ep` is the live endpoint of `inner`; `arg` null or whole.
unsafe fn alias(ep: *mut Fid, inner: &Ep, arg: *mut Alias) -> c_int {
    // SAFETY: by the caller.
    let (Some(arg), context) = (unsafe { (arg.as_ref(), (*ep).context) }) else { return -EINVAL };
    let copy = Ep {
        shared: Arc::clone(&inner.shared),
        tx_flags: AtomicU64::new(inner.tx_flags.load(Ordering::Relaxed)),
        rx_flags: AtomicU64::new(inner.rx_flags.load(Ordering::Relaxed)),
    };
    let Some(kept) = copy.flags(arg.flags) else { return -EINVAL };
    kept.store(arg.flags & !(SEND | RECV), Ordering::Relaxed);
    let made = EpObject::give(front(context), copy);
    // SAFETY: a place for the result, by the caller.
    unsafe { store(arg.fid, made.cast()) }
}
