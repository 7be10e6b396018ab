//! A thread that waits for its steps.

use core::ffi::c_void;
use core::sync::atomic::Ordering;

use madrigal_fuzz_sockets::op::{ActorId, Op};
use madrigal_fuzz_sockets::raw;
use madrigal_fuzz_sockets::share::{EXIT, FREE, TOP_UP};

use crate::context::{StepContext, ending};
use crate::state::state;
use crate::{
    c, connections, descriptors, files, free, loops, options, passing, processes, receive, sets, signals, stdio,
    transmit, waits,
};

/// How often a thread that waits for a step checks whether the sequencer still lives.
const WATCH_NS: u64 = 3_000_000_000;

/// Waits for steps until the command to end. `step`, if not 0, is a step (plus one) that is done by this actor's begin.
pub(crate) fn live(actor: ActorId, step: u32) {
    let region = &state().region;
    let cell = &region.cells[actor as usize];
    let mut last = step;
    if step != 0 {
        cell.done.store(step, Ordering::SeqCst);
    }
    cell.process.store(raw::process(), Ordering::SeqCst);
    cell.thread.store(raw::thread(), Ordering::SeqCst);
    region.ring();
    loop {
        let command = cell.go.load(Ordering::SeqCst);
        if command == last {
            raw::futex_wait(&cell.go, last, WATCH_NS);
            raw::die_without((region.run.load(Ordering::Relaxed) >> 32) as i32);
            continue;
        }
        last = command;
        match command {
            EXIT => break,
            FREE => run_freely(actor),
            TOP_UP => top_up(actor),
            step => play(&StepContext::new(actor, step as usize - 1)),
        }
        cell.done.store(command, Ordering::SeqCst);
        region.ring();
    }
}

/// A thread begins.
pub(crate) extern "C-unwind" fn thread(actor: *mut c_void) -> *mut c_void {
    live(actor.addr() as ActorId, 0);
    core::ptr::null_mut()
}

/// A forked child goes on as another actor, and never comes back.
pub(crate) fn child(actor: ActorId) -> ! {
    live(actor, 0);
    // SAFETY: no memory is passed.
    unsafe { c::exit(0) }
}

/// Makes a step.
pub(crate) fn play(context: &StepContext) {
    let (begin, blocked) = (raw::now(), raw::blocked_signals());
    dispatch(context, &state().program.steps[context.step].op);
    context.record.took_ns.store(raw::now() - begin, Ordering::Relaxed);
    if raw::blocked_signals() != blocked {
        // If no process waits for one of them, nothing else would show it.
        context.record.add(ending::BLOCKED);
    }
}

/// Goes through the actor's own steps.
fn run_freely(actor: ActorId) {
    let state = state();
    for (step, what) in state.program.steps.iter().enumerate() {
        if what.actor == actor
            && !what.op.is_sequencers()
            && state.region.cells[actor as usize].at.load(Ordering::SeqCst) <= step as u32
        {
            state.region.cells[actor as usize].at.store(step as u32 + 1, Ordering::SeqCst);
            play(&StepContext::new(actor, step));
        }
    }
}

/// Adds what is there by now to what the last step gave.
fn top_up(actor: ActorId) {
    let state = state();
    let done = state.region.cells[actor as usize].done.load(Ordering::SeqCst) as usize;
    let context = StepContext::new(actor, done - 1);
    match &state.program.steps[done - 1].op {
        Op::Recv(data) => receive::top_up(&context, data),
        Op::Poll { entries, via, .. } => waits::top_up(&context, entries, *via),
        Op::EpollWait { set, max, via, .. } => sets::top_up(&context, *set, *max, *via),
        _ => {}
    }
}

/// Finds the actor of a step.
pub(crate) fn dispatch(context: &StepContext, op: &Op) {
    match op {
        Op::Send(data) => transmit::send(context, data),
        Op::Recv(data) => receive::receive(context, data),
        Op::Exchange { .. }
        | Op::SendAll { .. }
        | Op::RecvAll { .. }
        | Op::RecvToEnd { .. }
        | Op::Drain { .. }
        | Op::Timed { .. } => loops::play(context, op),
        Op::Poll { entries, via, time } => waits::poll(context, entries, *via, *time),
        Op::EpollCreate { .. } | Op::EpollCtl { .. } | Op::EpollWait { .. } => sets::play(context, op),
        Op::Listen { .. }
        | Op::Connect { .. }
        | Op::Refused { .. }
        | Op::Accept { .. }
        | Op::Shutdown { .. }
        | Op::Names { .. } => {
            connections::play(context, op);
        }
        Op::SetOption { .. }
        | Op::GetOption { .. }
        | Op::Ioctl { .. }
        | Op::AtMark { .. }
        | Op::NonBlocking { .. }
        | Op::Flags { .. }
        | Op::Own { .. } => options::play(context, op),
        Op::Close { .. } | Op::Dup { .. } | Op::DupOver { .. } => descriptors::play(context, op),
        Op::Thread { .. }
        | Op::Fork { .. }
        | Op::Child { .. }
        | Op::Exec { .. }
        | Op::Spawn { .. }
        | Op::WaitChild { .. }
        | Op::Exit { .. }
        | Op::Cancel { .. } => processes::play(context, op),
        Op::Handle(handler) => signals::handle(*handler),
        Op::Signals => signals::tell(context),
        Op::UnixPair { .. }
        | Op::UnixListen { .. }
        | Op::UnixConnect { .. }
        | Op::UnixAccept { .. }
        | Op::Pass { .. }
        | Op::Take { .. } => passing::play(context, op),
        Op::Fdopen { .. } | Op::FileWrite { .. } | Op::FileRead { .. } | Op::FileClose { .. } => {
            stdio::play(context, op)
        }
        Op::OddFiles { slot } => files::odd(context, *slot),
        _ if op.is_sequencers() => {}
        _ => free::play(context, op),
    }
}
