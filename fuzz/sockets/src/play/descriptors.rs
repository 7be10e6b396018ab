//! Closing and duplicating.

use libc::{c_int, c_long};
use madrigal_fuzz_sockets::op::{Op, Slot};
use madrigal_fuzz_sockets::via::{CloseVia, DupVia};

use crate::context::{Answer, StepContext};
use crate::{c, state};

/// A number no program of ours reaches by itself.
const HIGH: c_int = 300;

/// A step about descriptors.
pub(crate) fn play(context: &StepContext, op: &Op) {
    match *op {
        Op::Close { slot, via } => close(context, slot, via),
        Op::Dup { slot, new, via } => {
            let answer = context.call(|| dup(state::fd(slot), via));
            context.open(new, answer);
        }
        Op::DupOver { slot, over, new } => {
            let to = state::fd(over);
            state::set_fd(over, -1);
            // SAFETY: no memory is passed.
            let answer = context.call(|| unsafe { c::dup2(state::fd(slot), to) });
            context.open(new, answer);
        }
        _ => {}
    }
}

fn close(context: &StepContext, slot: Slot, via: CloseVia) {
    let fd = state::fd(slot);
    state::set_fd(slot, -1);
    // SAFETY: no memory is passed.
    unsafe {
        match via {
            CloseVia::Close => drop(context.call(|| c::close(fd))),
            CloseVia::Syscall => drop(context.call(|| c::syscall(libc::SYS_close, fd as c_long))),
            CloseVia::Range => drop(context.call(|| c::close_range(fd as u32, fd as u32, 0))),
            CloseVia::Closefrom => {
                if fd >= 0 {
                    state::forget_from(fd);
                    c::closefrom(fd);
                }
                context.keep(Answer { ret: 0, errno: 0 });
            }
        }
    }
}

fn dup(fd: c_int, via: DupVia) -> c_int {
    // SAFETY: no memory is passed; what stands at 0, 1 and 2 is of no use to us.
    unsafe {
        match via {
            DupVia::Dup => c::dup(fd),
            DupVia::Dup2 => c::dup2(fd, HIGH),
            DupVia::Dup3 => c::dup3(fd, HIGH + 1, libc::O_CLOEXEC),
            DupVia::Fcntl => c::fcntl(fd, libc::F_DUPFD, HIGH + 10),
            DupVia::FcntlCloexec => c::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0),
            DupVia::Zero => c::dup2(fd, 0),
            DupVia::One => c::dup2(fd, 1),
            DupVia::Two => c::dup2(fd, 2),
            DupVia::High => c::dup2(fd, 1000),
            DupVia::Syscall => c::syscall(libc::SYS_dup, fd as c_long) as c_int,
        }
    }
}
