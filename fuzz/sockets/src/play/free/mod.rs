//! Steps of programs that run freely: loops that check by themselves that every byte is where it belongs.

mod churn;
mod crowd;
mod duplex;
mod events;
mod relay;
mod server;
mod watch;
mod wire;

use core::sync::atomic::Ordering;
use core::{mem, ptr};

use madrigal_fuzz_sockets::op::{ActorId, Op};
use madrigal_fuzz_sockets::raw;
use madrigal_fuzz_sockets::share::FREE;

use crate::context::{Answer, StepContext};
use crate::{c, processes, state};

/// Makes one of them.
pub(crate) fn play(context: &StepContext, op: &Op) {
    match *op {
        Op::Sleep { us } => raw::sleep_us(u64::from(us)),
        Op::Join { actor } => join(actor),
        Op::Server { from, conns, serve, send, recv } => server::serve(context, from, conns, serve, (send, recv)),
        Op::Churn { .. } => churn::churn(context, op),
        Op::Storm { via, times, gap_us } => {
            for _ in 0..times {
                let status = processes::child(via);
                context.keep(Answer { ret: i64::from(status), errno: 0 });
                raw::sleep_us(u64::from(gap_us));
            }
        }
        Op::Events { from, conns, wait } => events::serve(context, from, conns, wait),
        Op::Crowd { .. } => crowd::run(context, op),
        Op::Duplex { slot, len, wait, echo } => duplex::run(context, slot, len as usize, wait, echo),
        Op::Relay { from, to, via } => relay::relay(context, from, to, via),
        Op::FileEcho { slot } => relay::file_echo(context, slot),
        Op::Share { slot, chunk, sharers } => relay::share(context, slot, chunk as usize, sharers),
        Op::Timer { us } => timer(us),
        _ => {}
    }
}

fn join(actor: ActorId) {
    while state::state().region.cells[actor as usize].done.load(Ordering::SeqCst) != FREE {
        raw::sleep_us(200);
    }
}

extern "C" fn tick(_: i32) {}

fn timer(us: u32) {
    let time = libc::timeval { tv_sec: 0, tv_usec: i64::from(us) };
    let timer = libc::itimerval { it_interval: time, it_value: time };
    // SAFETY: an action and a time of our own; the handler does nothing.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = tick as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGALRM, &raw const action, ptr::null_mut());
        c::setitimer(libc::ITIMER_REAL, &raw const timer, ptr::null_mut());
    }
}
