//! An endpoint of a provider's, with the buffers that messages are sent from and received into.

use core::ffi::{c_int, c_void};
use core::ptr::{self, NonNull};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::os::fd::{BorrowedFd, RawFd};

use madrigal_ofi_abi::Addr;
use madrigal_ofi_abi::errno::{EAGAIN, EAVAIL};
use madrigal_ofi_abi::flags;
use madrigal_ofi_abi::object::{AvFid, DomainFid, FabricFid, Fid, MrFid};
use madrigal_ofi_abi::queue::{AvAttr, CqAttr, CqErrEntry, CqFid, CqMsgEntry};

use super::{Offer, failed, library, meaning, text_of};

/// Bytes of a message at most: a layer for messages over TCP (`ofi_rxm`) sends so many without a rendezvous.
pub(in super::super) const DATA: usize = SLOT - 64;
const SLOT: usize = 16 << 10;
/// Bytes of an address at most; a provider may read so many, whatever we were given.
const ADDRESS: usize = 256;
/// Completions read at once.
const BATCH: usize = 16;

/// A buffer: room for libfabric, as `FI_CONTEXT2` requires, then a message.
#[repr(C, align(64))]
struct Slot {
    context: [u64; 8],
    data: [u8; DATA],
}

/// How posting ended.
#[derive(Debug)]
pub(in super::super) enum Posted {
    /// The buffer is libfabric's until an [`Event`] gives it back.
    Done,
    /// Not now: read the events, and try again.
    Later,
    /// Never.
    Failed(String),
}

/// What became of a posted buffer, which is ours again.
#[derive(Debug)]
pub(in super::super) enum Event {
    /// So many bytes were sent or received.
    Done { slot: usize, len: usize },
    /// Why not.
    Failed { slot: usize, why: String },
    /// Something failed that belongs to no buffer.
    Other(String),
}

/// The objects, closed in the order libfabric wants.
struct Objects {
    fabric: *mut FabricFid,
    domain: *mut Fid,
    av: *mut Fid,
    cq: *mut Fid,
    ep: *mut madrigal_ofi_abi::endpoint::EpFid,
    mr: *mut MrFid,
}

/// An endpoint.
pub(in super::super) struct Wire {
    objects: Objects,
    slots: NonNull<Slot>,
    /// By slot: whether it is libfabric's.
    posted: Vec<bool>,
    desc: *mut c_void,
    wait: Option<RawFd>,
    name: Vec<u8>,
    entries: [CqMsgEntry; BATCH],
    /// The entries that were not handled yet.
    left: core::ops::Range<usize>,
}

// SAFETY: the objects of a domain opened with FI_THREAD_DOMAIN may be used by any thread, one at a time. All their uses take `&mut self` or
// only read what never changes.
unsafe impl Send for Wire {}

/// # Safety
/// A live object of libfabric's, or null.
unsafe fn close(fid: *mut Fid) -> c_int {
    if fid.is_null() {
        return 0;
    }
    // SAFETY: by the caller; every object has this table.
    unsafe { ((*(*fid).ops).close)(fid) }
}

impl Objects {
    /// Closes the endpoint and what it uses. False: it refused, so that buffers may still be used.
    fn close_endpoint(&mut self) -> bool {
        // SAFETY: null or open; it is forgotten here.
        let closed = unsafe { close(core::mem::replace(&mut self.ep, ptr::null_mut()).cast()) };
        // SAFETY: as above.
        unsafe { close(core::mem::replace(&mut self.mr, ptr::null_mut()).cast()) };
        closed == 0
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        self.close_endpoint();
        for fid in [self.cq, self.av, self.domain, self.fabric.cast()] {
            // SAFETY: null or open; nothing open uses it any more, and no code uses it after this.
            unsafe { close(fid) };
        }
    }
}

impl Wire {
    /// Opens an endpoint as that offer has it, with that many buffers.
    pub(in super::super) fn open(offer: Offer<'_>, slots: usize) -> Result<Self, String> {
        let mut objects = Objects::open_domain(offer)?;
        let wait = objects.open_queues(offer, slots)?;
        let layout = layout(slots).ok_or("too many buffers")?;
        // SAFETY: the size is not 0.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(memory) = NonNull::new(memory.cast::<Slot>()) else { handle_alloc_error(layout) };
        let mut wire = Self {
            objects,
            slots: memory,
            posted: vec![false; slots],
            desc: ptr::null_mut(),
            wait,
            name: Vec::new(),
            entries: [CqMsgEntry::default(); BATCH],
            left: 0..0,
        };
        wire.open_endpoint(offer)?;
        Ok(wire)
    }

    fn open_endpoint(&mut self, offer: Offer<'_>) -> Result<(), String> {
        let domain = self.objects.domain.cast::<DomainFid>();
        let info = offer.info();
        // SAFETY: the offer lives, and libfabric always sets a domain in it.
        let mode = unsafe { (*(*info).domain_attr).mr_mode };
        // SAFETY: an open domain and the offer it was opened with.
        let code = unsafe { ((*(*domain).ops).endpoint)(domain, info, &raw mut self.objects.ep, ptr::null_mut()) };
        check("fi_endpoint", code)?;
        let ep = self.objects.ep.cast::<Fid>();
        for (fid, flags) in [(self.objects.av, 0), (self.objects.cq, flags::SEND | flags::RECV)] {
            // SAFETY: open objects of one domain.
            let code = unsafe { ((*(*ep).ops).bind)(ep, fid, flags) };
            check("fi_ep_bind", code)?;
        }
        // SAFETY: an endpoint to which everything is bound.
        let code = unsafe { ((*(*ep).ops).control)(ep, flags::ENABLE, ptr::null_mut()) };
        check("fi_enable", code)?;
        if mode & flags::MR_LOCAL != 0 {
            self.register(mode)?;
        }
        let (mut name, mut len) = ([0u8; ADDRESS], ADDRESS);
        // SAFETY: an enabled endpoint, and as much room as `len` states.
        let code = unsafe { ((*(*self.objects.ep).cm).getname)(ep, name.as_mut_ptr().cast(), &raw mut len) };
        check("fi_getname", code)?;
        self.name = name.get(..len).unwrap_or_default().to_vec();
        Ok(())
    }

    /// Registers the buffers, for providers that cannot use memory without it.
    fn register(&mut self, mode: c_int) -> Result<(), String> {
        let domain = self.objects.domain.cast::<DomainFid>();
        let (at, len) = (self.slots.as_ptr().cast::<c_void>(), self.posted.len() * size_of::<Slot>());
        let access = flags::SEND | flags::RECV;
        let mr = &raw mut self.objects.mr;
        // SAFETY: an open domain, memory that is ours until its registration is closed, and a place for the answer.
        let code = unsafe { ((*(*domain).mr).reg)(domain.cast(), at, len, access, 0, KEY, 0, mr, ptr::null_mut()) };
        check("fi_mr_reg", code)?;
        let fid = self.objects.mr.cast::<Fid>();
        if mode & flags::MR_ENDPOINT != 0 {
            // SAFETY: an open registration and an open endpoint of one domain.
            let code = unsafe { ((*(*fid).ops).bind)(fid, self.objects.ep.cast(), 0) };
            check("fi_mr_bind", code)?;
            // SAFETY: a registration that is bound.
            let code = unsafe { ((*(*fid).ops).control)(fid, flags::ENABLE, ptr::null_mut()) };
            check("fi_mr_enable", code)?;
        }
        // SAFETY: an open registration.
        self.desc = unsafe { (*self.objects.mr).mem_desc };
        Ok(())
    }

    /// Our own address.
    pub(in super::super) fn name(&self) -> &[u8] {
        &self.name
    }

    /// An address for people.
    pub(in super::super) fn text(&self, address: &[u8]) -> String {
        let av = self.objects.av.cast::<AvFid>();
        let whole = padded(address);
        let (mut text, mut len) = ([0u8; ADDRESS], ADDRESS - 1);
        // SAFETY: an open address vector, more bytes than any address has, and as much room as `len` states, whose last byte stays 0.
        unsafe { ((*(*av).ops).straddr)(av, whole.0.as_ptr().cast(), text.as_mut_ptr().cast(), &raw mut len) };
        // SAFETY: bytes that end with 0.
        unsafe { text_of(text.as_ptr().cast()) }.unwrap_or_default()
    }

    /// The peer at that address. `Err`: it is none.
    pub(in super::super) fn insert(&mut self, address: &[u8]) -> Result<Addr, String> {
        let av = self.objects.av.cast::<AvFid>();
        let whole = padded(address);
        let mut at: Addr = madrigal_ofi_abi::ADDR_UNSPEC;
        // SAFETY: an open address vector, more bytes than any address has, and a place for the answer.
        let code = unsafe { ((*(*av).ops).insert)(av, whole.0.as_ptr().cast(), 1, &raw mut at, 0, ptr::null_mut()) };
        match code {
            1 if at != madrigal_ofi_abi::ADDR_UNSPEC => Ok(at),
            code => Err(failed("fi_av_insert", (code as isize).min(0))),
        }
    }

    /// The first `len` bytes of a buffer that is ours.
    pub(in super::super) fn bytes(&self, slot: usize, len: usize) -> &[u8] {
        if self.posted.get(slot) != Some(&false) {
            return &[];
        }
        // SAFETY: inside the memory, and not libfabric's.
        let data = unsafe { &(*self.slots.as_ptr().add(slot)).data };
        data.get(..len).unwrap_or_default()
    }

    /// A buffer that is ours.
    pub(in super::super) fn bytes_mut(&mut self, slot: usize) -> &mut [u8] {
        if self.posted.get(slot) != Some(&false) {
            return &mut [];
        }
        // SAFETY: inside the memory; libfabric does not use it, and no other code does while `self` is borrowed.
        unsafe { &mut (*self.slots.as_ptr().add(slot)).data }
    }

    /// Sends the first `len` bytes of a buffer.
    pub(in super::super) fn send(&mut self, slot: usize, len: usize, to: Addr) -> Posted {
        let Some((context, data)) = self.lend(slot) else { return Posted::Failed("no such buffer".to_owned()) };
        let ep = self.objects.ep;
        // SAFETY: an enabled endpoint; the buffer is as long, and left alone until it is given back.
        let code = unsafe { ((*(*ep).msg).send)(ep, data, len.min(DATA), self.desc, to, context) };
        self.outcome(slot, code, "fi_send")
    }

    /// Receives into a buffer.
    pub(in super::super) fn receive(&mut self, slot: usize) -> Posted {
        let Some((context, data)) = self.lend(slot) else { return Posted::Failed("no such buffer".to_owned()) };
        let (ep, anybody) = (self.objects.ep, madrigal_ofi_abi::ADDR_UNSPEC);
        // SAFETY: an enabled endpoint; the buffer is as long, and left alone until it is given back.
        let code = unsafe { ((*(*ep).msg).recv)(ep, data, DATA, self.desc, anybody, context) };
        self.outcome(slot, code, "fi_recv")
    }

    /// Where a buffer lies that is ours: libfabric's part and the data.
    fn lend(&self, slot: usize) -> Option<(*mut c_void, *mut c_void)> {
        let free = self.posted.get(slot).is_some_and(|posted| !posted);
        // SAFETY: inside the memory.
        let at = free.then(|| unsafe { self.slots.as_ptr().add(slot) })?;
        // SAFETY: inside the memory; no reference is made.
        Some(unsafe { ((&raw mut (*at).context).cast(), (&raw mut (*at).data).cast()) })
    }

    fn outcome(&mut self, slot: usize, code: isize, what: &str) -> Posted {
        match code {
            0 => {
                if let Some(posted) = self.posted.get_mut(slot) {
                    *posted = true;
                }
                Posted::Done
            }
            code if code == -(EAGAIN as isize) => Posted::Later,
            code => Posted::Failed(failed(what, code)),
        }
    }

    /// What happened next; `None`: nothing. Makes progress.
    #[inline]
    pub(in super::super) fn event(&mut self) -> Option<Event> {
        if self.left.is_empty() {
            let cq = self.objects.cq.cast::<CqFid>();
            // SAFETY: an open queue of that format, and room for as many entries.
            let code = unsafe { ((*(*cq).ops).read)(cq, self.entries.as_mut_ptr().cast(), BATCH) };
            match usize::try_from(code) {
                Ok(count) => self.left = 0..count.min(BATCH),
                Err(_) if code == -(EAGAIN as isize) => return None,
                Err(_) if code == -(EAVAIL as isize) => return self.failure(),
                Err(_) => return Some(Event::Other(failed("fi_cq_read", code))),
            }
        }
        let entry = *self.entries.get(self.left.next()?)?;
        match self.give_back(entry.op_context) {
            Some(slot) => Some(Event::Done { slot, len: entry.len.min(DATA) }),
            None => Some(Event::Other("a completion of nothing".to_owned())),
        }
    }

    #[cold]
    fn failure(&mut self) -> Option<Event> {
        /// Later versions may write more than we know of.
        #[repr(C)]
        struct Roomy {
            entry: CqErrEntry,
            more: [u64; 16],
        }
        // SAFETY: numbers and null pointers.
        let mut read: Roomy = unsafe { core::mem::zeroed() };
        let cq = self.objects.cq.cast::<CqFid>();
        // SAFETY: an open queue, and room for the entry of any version; no room for further data is offered.
        let code = unsafe { ((*(*cq).ops).readerr)(cq, &raw mut read.entry, 0) };
        if code == -(EAGAIN as isize) {
            return None;
        }
        let why = meaning(-(read.entry.err as isize));
        match self.give_back(read.entry.entry.op_context) {
            Some(slot) => Some(Event::Failed { slot, why }),
            None => Some(Event::Other(why)),
        }
    }

    /// The buffer of that context is ours again.
    fn give_back(&mut self, context: usize) -> Option<usize> {
        let offset = context.checked_sub(self.slots.as_ptr().addr())?;
        let slot = offset / size_of::<Slot>();
        let posted = self.posted.get_mut(slot).filter(|_| offset.is_multiple_of(size_of::<Slot>()))?;
        core::mem::replace(posted, false).then_some(slot)
    }

    /// Whether events that were read still wait, or libfabric must be polled before a thread sleeps on the descriptor.
    pub(in super::super) fn must_poll(&mut self) -> bool {
        if !self.left.is_empty() {
            return true;
        }
        if self.wait.is_none() {
            return false;
        }
        let (fabric, mut fids) = (self.objects.fabric, [self.objects.cq]);
        // SAFETY: an open fabric, and one of its queues.
        let code = unsafe { ((*(*fabric).ops).trywait)(fabric, fids.as_mut_ptr(), 1) };
        code != 0
    }

    /// Readable when something happened, if [`Wire::must_poll`] returned false before; `None`: the provider has none.
    pub(in super::super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the queue's, which stays open as long as `self` lives.
        self.wait.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // If the endpoint does not close, its buffers are leaked.
        if self.objects.close_endpoint()
            && let Some(layout) = layout(self.posted.len())
        {
            // SAFETY: allocated by that layout; no endpoint and no registration uses it any more.
            unsafe { dealloc(self.slots.as_ptr().cast(), layout) };
        }
    }
}

impl Objects {
    fn open_domain(offer: Offer<'_>) -> Result<Self, String> {
        let null = ptr::null_mut();
        let mut objects = Self {
            fabric: ptr::null_mut(),
            domain: ptr::null_mut(),
            av: ptr::null_mut(),
            cq: ptr::null_mut(),
            ep: ptr::null_mut(),
            mr: ptr::null_mut(),
        };
        let info = offer.info();
        // SAFETY: the offer lives, and libfabric always sets a fabric in it.
        let code = unsafe { (library()?.fabric)((*info).fabric_attr, &raw mut objects.fabric, null) };
        check("fi_fabric", code)?;
        let fabric = objects.fabric;
        // SAFETY: an open fabric, and an offer of it.
        let code = unsafe { ((*(*fabric).ops).domain)(fabric, info, &raw mut objects.domain, null) };
        check("fi_domain", code)?;
        Ok(objects)
    }

    /// Opens the address vector and the completion queue; its descriptor, where it has one.
    fn open_queues(&mut self, offer: Offer<'_>, slots: usize) -> Result<Option<RawFd>, String> {
        let domain = self.domain.cast::<DomainFid>();
        // SAFETY: the offer lives, and libfabric always sets a domain in it.
        let kind = unsafe { (*(*offer.info()).domain_attr).av_type };
        let kind = if kind == flags::AV_UNSPEC { flags::AV_TABLE } else { kind };
        let mut attr = AvAttr {
            kind,
            rx_ctx_bits: 0,
            count: 0,
            ep_per_node: 0,
            name: ptr::null(),
            map_addr: ptr::null_mut(),
            flags: 0,
        };
        // SAFETY: an open domain, and a place for the answer.
        let code = unsafe { ((*(*domain).ops).av_open)(domain, &raw mut attr, &raw mut self.av, ptr::null_mut()) };
        check("fi_av_open", code)?;
        for wait_obj in [flags::WAIT_FD, flags::WAIT_NONE] {
            let mut attr = CqAttr {
                size: slots * 2,
                flags: 0,
                format: flags::CQ_FORMAT_MSG,
                wait_obj,
                signaling_vector: 0,
                wait_cond: 0,
                wait_set: ptr::null_mut(),
            };
            // SAFETY: an open domain, and a place for the answer.
            let code = unsafe { ((*(*domain).ops).cq_open)(domain, &raw mut attr, &raw mut self.cq, ptr::null_mut()) };
            if code == 0 {
                return Ok(if wait_obj == flags::WAIT_FD { self.descriptor() } else { None });
            }
            self.cq = ptr::null_mut();
            if wait_obj == flags::WAIT_NONE {
                check("fi_cq_open", code)?;
            }
        }
        Ok(None)
    }

    fn descriptor(&self) -> Option<RawFd> {
        let mut fd: c_int = -1;
        // SAFETY: an open queue that was created with a descriptor, and a place for it.
        let code = unsafe { ((*(*self.cq).ops).control)(self.cq, flags::GETWAIT, (&raw mut fd).cast()) };
        (code == 0 && fd >= 0).then_some(fd)
    }
}

/// A key that no peer uses: the buffers are never the target of remote access.
const KEY: u64 = 0x6d61_6472;

fn check(what: &str, code: c_int) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(failed(what, code as isize)) }
}

fn layout(slots: usize) -> Option<Layout> {
    Layout::array::<Slot>(slots).ok().filter(|layout| layout.size() > 0)
}

/// An address, aligned as any may have to be, with zeros behind it.
#[repr(C, align(16))]
struct Padded([u8; ADDRESS]);

fn padded(address: &[u8]) -> Padded {
    let mut whole = Padded([0; ADDRESS]);
    whole.0.iter_mut().zip(address.iter().take(ADDRESS - 1)).for_each(|(to, from)| *to = *from);
    whole
}
