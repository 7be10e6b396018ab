//! The stacks of a worker: what makes their drivers, and the addresses of those that are open.

use std::collections::BTreeMap;
use std::sync::Arc;

use madrigal_base::node::NodeAddress;
use madrigal_progress::message::MessageDriver;

/// Makes the driver of messages with that stack, such as `adoc/tcp`, which is its name then; or says why there is none.
pub type MakeStack = Arc<dyn Fn(&str) -> Result<Box<dyn MessageDriver>, String> + Send + Sync>;

/// See the module.
#[derive(Default)]
pub(super) struct Stacks {
    pub(super) make: Option<MakeStack>,
    /// By their names.
    pub(super) open: BTreeMap<String, NodeAddress>,
}
