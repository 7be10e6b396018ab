//! A rule: which ways are preferred and forbidden, and what links are made of.

use madrigal_adapters::stack::Stack;
use madrigal_base::network::Ports;
use madrigal_proto::mux::Class;
use madrigal_selector::route;

/// A rule about ways.
#[derive(Clone, PartialEq, Debug)]
pub struct Rule {
    /// The ports that it applies to; if empty, all.
    pub ports: Ports,
    /// The indices of the hosts that it applies to; if empty, all.
    pub hosts: Vec<usize>,
    /// The ways that it prefers and forbids.
    pub rule: route::Rule,
    /// The most connections of links with those hosts.
    pub connections: Option<u8>,
    /// The congestion control of their connections, by its name in the kernel.
    pub congestion: Option<String>,
    /// The priority of the streams of connections.
    pub class: Option<Class>,
    /// The most bytes a second that the streams of connections carry together, each way.
    pub cap: Option<u64>,
    /// What links with those hosts are made of.
    pub stack: Option<Stack>,
}

impl Rule {
    /// Whether it prefers or forbids ways.
    pub(super) fn ranks_ways(&self) -> bool {
        !(self.rule.prefer.is_empty() && self.rule.forbid.is_empty())
    }
}
