//! The control stream of both directions.

use super::wire::Frame;
use super::{Broken, Receiver, Sender};

/// Takes bytes of a control stream that carries both directions; how many. What is left is for when more came.
pub fn receive_control(now: u64, bytes: &[u8], sender: &mut Sender, receiver: &mut Receiver) -> Result<usize, Broken> {
    let mut taken = 0;
    while let Some((frame, len)) = Frame::read(&bytes[taken..])? {
        let own = &bytes[taken..taken + len];
        if frame.is_senders() {
            receiver.receive_control(now, own)?
        } else {
            sender.receive_control(now, own)?
        };
        taken += len;
    }
    Ok(taken)
}
