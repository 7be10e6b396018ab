//! What a worker exports of itself and its nodes, for `madrigal why`: a record each, counters kept in place, and a text that is written
//! anew when something changes.

use core::fmt::Write as _;

use madrigal_base::node::NodeAddress;
use madrigal_report::ranks::Ranks;

use super::long::COPY_FROM;
use super::state::{Node, NodeState, Record, State};
use super::{Core, Reached};

impl State {
    /// Makes the table, and exports our own record. Where there can be none, no other process can read it.
    pub(super) fn publish_own(&mut self, own: &NodeAddress, drivers: &[&str], refused: &[(String, String)]) {
        let mut text = format!("node {}\n", own.id);
        drivers.iter().for_each(|driver| line(&mut text, "driver", driver));
        addresses(&mut text, own);
        rejected(&mut text, refused);
        self.ranks = Ranks::create().ok();
        if let Some(rank) = self.ranks.as_mut().and_then(Ranks::add) {
            rank.set_text(&text);
        }
    }
}

impl Core {
    /// Exports the status of the nodes whose record is stale.
    #[cold]
    pub(super) fn export_status(&mut self) {
        let mut stale = core::mem::take(&mut self.state.stale);
        stale.sort_unstable();
        stale.dedup();
        for node in stale {
            let Some(node) = self.state.nodes.get(node as usize) else { continue };
            if let Record::Listed(rank) = node.record {
                rank.set_text(&self.text(node));
            }
        }
    }

    fn text(&self, node: &Node) -> String {
        let Reached { node: id, path, rejected: tried, why, .. } = self.describe(node);
        let mut text = format!("node {id}\n");
        if let Some((driver, how)) = &path {
            line(&mut text, "path", driver);
            line(&mut text, "how", how);
            line(&mut text, "long", &self.long(node, how));
        } else if let Some(why) = why {
            line(&mut text, "down", &why.to_string());
        } else if matches!(node.state, NodeState::Linking { .. }) {
            line(&mut text, "linking", self.name(node));
        }
        if let Some(address) = &node.address {
            addresses(&mut text, address);
        }
        rejected(&mut text, &tried);
        text
    }

    fn name(&self, node: &Node) -> &'static str {
        match node.state {
            NodeState::Up { port, .. } | NodeState::Linking { port, .. } => {
                self.ports.get(port).map_or("", |slot| slot.name)
            }
            NodeState::None | NodeState::Down => "",
        }
    }

    /// How long messages go, and why so.
    fn long(&self, node: &Node, how: &str) -> String {
        let NodeState::Up { port, .. } = node.state else { return String::new() };
        let near = self.state.near.get(port).copied().unwrap_or_default();
        let eager = self.ports.get(port).map_or(0, |slot| slot.eager);
        let rest = if !near {
            "in parts, each received where it belongs".to_owned()
        } else if !node.copies {
            "in parts through shared memory, for single copies were refused".to_owned()
        } else if how.contains("single copy") {
            format!(
                "in parts through shared memory; by single copy from {COPY_FROM} bytes on, or while tasks outnumber processors"
            )
        } else {
            "in parts through shared memory".to_owned()
        };
        format!("from {eager} bytes on {rest}")
    }
}

fn addresses(text: &mut String, of: &NodeAddress) {
    for address in &of.addresses {
        line(text, "address", &std::net::SocketAddr::new(*address, of.port).to_string());
    }
}

fn rejected(text: &mut String, list: &[(String, String)]) {
    for (what, why) in list {
        line(text, "rejected", &format!("{what}\t{}", plain(why)));
    }
}

/// One line; nothing in a value ends it.
fn line(text: &mut String, key: &str, value: &str) {
    let value: String = value.chars().map(|c| if c == '\n' || c == '\r' { ' ' } else { c }).collect();
    let _ = writeln!(text, "{key} {value}");
}

fn plain(why: &str) -> String {
    why.replace('\t', " ")
}
