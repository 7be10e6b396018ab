//! What a thread's polls remember.

use core::cell::Cell;

use madrigal_progress::wait::Waiter;
use madrigal_sys::time;

/// Ring answers after which the kernel is asked all the same, and after how long.
const KERNEL_ANSWERS: u32 = 64;
const KERNEL_LATE_NS: u64 = 50_000;

/// What a thread's polls remember.
pub(super) struct Memory {
    pub(super) waiter: Waiter,
    answers: Cell<u32>,
    kernel_at: Cell<u64>,
}

impl Memory {
    /// Whether the kernel has to be asked, though rings alone could answer.
    pub(super) fn kernel_due(&self) -> bool {
        self.answers.set(self.answers.get() + 1);
        self.answers.get() > KERNEL_ANSWERS || time::now_ns() > self.kernel_at.get() + KERNEL_LATE_NS
    }

    pub(super) fn kernel_asked(&self) {
        self.answers.set(0);
        self.kernel_at.set(time::now_ns());
    }
}

std::thread_local! {
    pub(super) static MEMORY: Memory =
        const { Memory { waiter: Waiter::new(), answers: Cell::new(0), kernel_at: Cell::new(0) } };
}
