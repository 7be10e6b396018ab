//! Signals: counted, and some answered with a call on a socket.

use core::cell::Cell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::{mem, ptr};

use libc::c_int;
use madrigal_fuzz_sockets::op::Handler;
use madrigal_fuzz_sockets::pattern::{self, HANDLER};

use crate::context::{Answer, StepContext, stream_of};
use crate::{c, state};

static COUNTS: [AtomicU32; 65] = [const { AtomicU32::new(0) }; 65];
std::thread_local! {
    /// Those that a call itself, or the sequencer, can have caused, for each thread: a call of another thread may return `EPIPE` only.
    static OWN: Cell<u32> = const { Cell::new(0) };
}
/// What the handler does: 0 nothing, 1 sends, 2 receives; above that slot and length.
static ACTION: AtomicU64 = AtomicU64::new(0);
/// What its last call gave, errno in the upper half.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Installs the handlers every program has.
pub(crate) fn begin() {
    for signal in [libc::SIGUSR1, libc::SIGPIPE, libc::SIGURG, libc::SIGIO] {
        on(signal, libc::SA_RESTART);
    }
    on(libc::SIGUSR2, 0);
    on(libc::SIGALRM, 0);
}

/// A forked child counts from 0: the scheduler decides whether another thread has handled a signal just before a fork.
pub(crate) fn begin_child() {
    COUNTS.iter().for_each(|count| count.store(0, Ordering::SeqCst));
}

fn on(signal: c_int, flags: c_int) {
    // SAFETY: an action of our own; the handler is safe at any moment.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = flags;
        libc::sigaction(signal, &raw const action, ptr::null_mut());
    }
}

extern "C" fn handler(signal: c_int) {
    COUNTS[signal as usize].fetch_add(1, Ordering::SeqCst);
    if matches!(signal, libc::SIGPIPE | libc::SIGUSR1 | libc::SIGUSR2) {
        OWN.set(OWN.get() + 1);
    }
    if signal == libc::SIGUSR1 {
        let saved = c::errno();
        act();
        c::set_errno(saved);
    }
    if matches!(signal, libc::SIGUSR1 | libc::SIGUSR2) {
        state::state().region.handled.fetch_add(1, Ordering::SeqCst);
    }
}

/// Signals of this thread that a call itself, or the sequencer, can have caused.
pub(crate) fn count() -> u32 {
    OWN.get()
}

/// Sets what the handler of SIGUSR1 does.
pub(crate) fn handle(handler: Handler) {
    let action = match handler {
        Handler::Count => 0,
        Handler::Send(slot, len) => 1 | u64::from(slot) << 8 | u64::from(len) << 16,
        Handler::Receive(slot, len) => 2 | u64::from(slot) << 8 | u64::from(len) << 16,
    };
    ACTION.store(action, Ordering::SeqCst);
}

/// The handler's call. What it sends is in a lane of its own; what it receives makes positions unknown to the call it interrupts.
fn act() {
    let action = ACTION.load(Ordering::SeqCst);
    let (slot, len) = ((action >> 8) as u8, ((action >> 16) as usize).min(1024));
    let mut bytes = [0u8; 1024];
    let bytes = &mut bytes[..len];
    let program = &state::state().program;
    let answer = match action as u8 {
        1 => {
            let number = program.out(slot);
            let Some(stream) = stream_of(number) else { return };
            pattern::fill(u32::from(number), HANDLER, stream.sent[HANDLER].load(Ordering::SeqCst), bytes);
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: memory of our own.
            let sent = unsafe { c::send(state::fd(slot), bytes.as_ptr().cast(), len, flags) };
            stream.sent[HANDLER].fetch_add(sent.max(0) as u64, Ordering::SeqCst);
            sent
        }
        2 => {
            let Some(stream) = stream_of(program.incoming(slot)) else { return };
            stream.blind.store(1, Ordering::SeqCst);
            // SAFETY: memory of our own.
            unsafe { c::recv(state::fd(slot), bytes.as_mut_ptr().cast(), len, libc::MSG_DONTWAIT) }
        }
        _ => return,
    };
    let errno = if answer < 0 { c::errno() } else { 0 };
    LAST.store((errno as u64) << 32 | (answer + 1) as u64, Ordering::SeqCst);
}

/// Signals so far. Of those that the kernel may join into one only whether there were any.
pub(crate) fn tell(context: &StepContext) {
    let count = |signal: c_int| u64::from(COUNTS[signal as usize].load(Ordering::SeqCst));
    for signal in [libc::SIGUSR1, libc::SIGUSR2, libc::SIGPIPE] {
        context.record.add(count(signal));
    }
    for signal in [libc::SIGURG, libc::SIGIO] {
        context.record.add(count(signal).min(1));
    }
    context.record.add(LAST.load(Ordering::SeqCst));
    context.keep(Answer { ret: 0, errno: 0 });
}
