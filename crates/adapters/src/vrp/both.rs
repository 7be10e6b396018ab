//! The control stream of both directions.

use super::wire;
use super::{Broken, Receiver, Sender};

/// Takes bytes of a control stream that carries both directions; how many. What is left is for when more came.
pub fn receive_control(now: u64, bytes: &[u8], sender: &mut Sender, receiver: &mut Receiver) -> Result<usize, Broken> {
    wire::each(bytes, |frame| if frame.is_senders() { receiver.handle(now, frame) } else { sender.handle(now, frame) })
}
