//! Drivers of messages that are opened when somebody asks for their stack. Each has a node id of its own: who has the address that
//! belongs to it reaches this process by that stack, and by nothing else.

use std::sync::{MutexGuard, PoisonError};

use madrigal_base::node::NodeAddress;

use super::stacks::{MakeStack, Stacks};
use super::state::new_id;
use super::{PortSlot, Worker};

impl Worker {
    /// Makes the drivers of stacks that somebody asks for. Without it there are none.
    pub fn set_stacks(&self, make: MakeStack) {
        self.stacks().make = Some(make);
    }

    /// By which others reach this process over links with that stack, and not otherwise; the same each time, until the worker is dropped.
    /// The first call opens a driver: a listening socket, and an engine. Does not block.
    pub fn stacked(&self, stack: &str) -> Result<NodeAddress, String> {
        let mut stacks = self.stacks();
        if let Some(address) = stacks.open.get(stack) {
            return Ok(address.clone());
        }
        let make = stacks.make.as_ref().ok_or_else(|| format!("`{stack}`: messages of this program have no stacks"))?;
        let driver = make(stack)?;
        driver.usable(&self.place)?;
        let id = new_id().ok_or("no random number")?;
        let port = driver.open(id, &self.place)?;
        let mut address = NodeAddress::bare(id);
        port.publish(&mut address);
        self.core().add(PortSlot::new(&*driver, port), id);
        stacks.open.insert(stack.to_owned(), address.clone());
        Ok(address)
    }

    fn stacks(&self) -> MutexGuard<'_, Stacks> {
        self.stacks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
