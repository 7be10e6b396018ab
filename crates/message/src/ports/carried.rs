//! Ports whose type names a stack: where they are reached, and by whom.

use madrigal_base::node::NodeAddress;

use super::address::PortAddress;
use super::error::PortError;
use super::hub::Hub;
use super::kinds::{PortType, differ};

impl Hub {
    /// By which others reach the receive ports of a type: by its stack, if it names one.
    pub(super) fn node_for(&self, kind: &PortType) -> Result<NodeAddress, PortError> {
        let own = self.filing.endpoint().address();
        let Some(stack) = kind.stack() else { return Ok(own) };
        let at = self.filing.endpoint().worker().stacked(stack).map_err(PortError::Stack)?;
        Ok(NodeAddress { channel: own.channel, ..at })
    }

    /// Whether a receive port is where a send port of that type can connect to. Its process compares the types; but it is not reached by
    /// another stack.
    pub(super) fn leads(&self, kind: &PortType, to: &PortAddress) -> Result<(), PortError> {
        let (ours, theirs) = (kind.stack(), to.node.stack());
        let of_all = self.filing.endpoint().worker().address().stack();
        if ours == theirs || ours.is_none() && theirs == of_all {
            return Ok(());
        }
        Err(PortError::Refused { to: to.name.clone(), why: differ("stack", ours, theirs) })
    }
}
