//! The descriptor of a completion queue, for programs that sleep in poll(2) or epoll_wait(2) of their own (`FI_WAIT_FD`).
//!
//! ```text
//!   fi_trywait: nothing is there, ports ring, Bell::set -> poll(fd) -> fi_cq_read: Worker::woken, and the peers are polled
//! ```
//! It is an epoll set of the ports' descriptors, a timer for the time at which a port must be polled in any case, and a counter for
//! completions that another thread files meanwhile, and for `fi_cq_signal`.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Once;

use madrigal_message::worker::Worker;
use madrigal_sys::fd::Fd;
use rustix::event::epoll::{CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

/// The descriptor, and its event sources.
pub(crate) struct Bell {
    set: Fd,
    timer: Fd,
    counter: Fd,
    ports: Once,
}

impl Bell {
    /// Makes it; nothing rings it yet.
    pub(crate) fn new() -> Result<Self, Errno> {
        let set = Fd::from(epoll::create(CreateFlags::CLOEXEC)?);
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = Fd::from(rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?);
        let counter = Fd::from(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        for fd in [&timer, &counter] {
            epoll::add(&set, fd, EventData::new_u64(0), EventFlags::IN)?;
        }
        Ok(Self { set, timer, counter, ports: Once::new() })
    }

    /// What to poll for input.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.set.as_raw_fd()
    }

    /// Gets ready for a sleep until `end` at most (nanoseconds of the monotonic clock); false: there is something to do first.
    pub(crate) fn set(&self, worker: &Worker, end: u64) -> bool {
        let Some(deadline) = worker.arm() else { return false };
        let deadline = deadline.min(end);
        self.ports.call_once(|| {
            for fd in worker.descriptors() {
                // SAFETY: a descriptor of the worker, which keeps it open.
                let fd = unsafe { BorrowedFd::borrow_raw(fd) };
                // Without it, sleeps end by the timer.
                let _ = epoll::add(&self.set, fd, EventData::new_u64(0), EventFlags::IN);
            }
        });
        // All zero: never.
        let at = if deadline == u64::MAX { 0 } else { deadline.max(1) };
        let value = Timespec { tv_sec: (at / 1_000_000_000) as i64, tv_nsec: (at % 1_000_000_000) as i64 };
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = Itimerspec { it_interval: never, it_value: value };
        rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &spec).is_ok()
    }

    /// Makes the descriptor ready.
    #[cold]
    pub(crate) fn ring(&self) {
        // It is ready already if it cannot count further.
        let _ = rustix::io::write(&self.counter, &1u64.to_ne_bytes());
    }

    /// Ends the readiness.
    pub(crate) fn quiet(&self) {
        let _ = rustix::io::read(&self.counter, &mut [0; 8]);
    }
}
