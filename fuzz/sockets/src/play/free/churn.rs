//! A client that connects, asks, checks, closes, and begins again.

use madrigal_fuzz_sockets::op::Op;
use madrigal_fuzz_sockets::rng::Rng;

use super::wire::Wire;
use crate::context::{Answer, StepContext};
use crate::{c, connections, state};

/// Everything one client asks for.
pub(super) fn churn(context: &StepContext, op: &Op) {
    let Op::Churn { to, conns, requests, size, send, recv } = *op else { return };
    let mut rng = Rng::new(state::state().program.seed ^ (u64::from(context.actor) << 32) ^ context.step as u64);
    let mut sum = 0;
    for conn in 0..conns {
        let fd = match connections::dial(to, false) {
            Ok(fd) => fd,
            Err(errno) => {
                context.record.add(crate::context::ending::ERROR + errno as u64);
                break;
            }
        };
        let mut wire = Wire::new(fd, key(context, conn));
        for _ in 0..requests {
            let len = request(&mut rng, size);
            let done = wire.send_all(context, len, send).and_then(|()| wire.recv_all(context, len, recv));
            if let Err(end) = done {
                context.record.add(end);
                break;
            }
            sum += len;
        }
        // SAFETY: no memory is passed.
        unsafe { c::close(fd) };
    }
    context.keep(Answer { ret: sum as i64, errno: 0 });
}

/// The key of a connection.
pub(super) fn key(context: &StepContext, conn: u16) -> u32 {
    1000 + u32::from(context.actor) * 1000 + u32::from(conn)
}

/// The length of a request: mostly small.
pub(super) fn request(rng: &mut Rng, most: u32) -> usize {
    let most = if rng.percent(80) { most.min(200) } else { most };
    rng.within(1, u64::from(most)) as usize
}
