//! What is known of an object, as JSON: its path, the paths that were rejected, and why.

use madrigal::Choice;
use serde_json::{Value, json};

use crate::circuit::Circuit;
use crate::link::VLinkHandle;
use crate::object::Object;
use crate::runtime::Runtime;

/// What is known of an object.
pub(crate) fn why(object: &Object) -> String {
    let described = match object {
        Object::Runtime(runtime) => of_runtime(runtime),
        Object::Link(link) => of_link(link),
        Object::Listeners(listeners) => json!({"kind": "acceptor", "address": listeners.address}),
        Object::Op(_) => json!({"kind": "operation"}),
        Object::Watch(_, watch) => json!({"kind": "watch", "descriptor": watch.fd()}),
        Object::Timer(..) => json!({"kind": "timer"}),
        Object::Circuit(circuit) => of_circuit(circuit),
        Object::Packing(_) | Object::Unpacking(_) | Object::Written(_) | Object::Incoming(_) => {
            json!({"kind": "message"})
        }
        Object::LossyAcceptor(acceptor) => json!({"kind": "lossy acceptor", "address": acceptor.address}),
        Object::LossyLink(link) => {
            json!({"kind": "lossy link", "driver": "vrp/udp", "peer": link.api.peer().to_string()})
        }
        Object::Mailbox(mailbox) => mailbox.why(),
        Object::Buffer(buffer) => buffer.why(),
        Object::Pool(pool) => pool.described(),
        Object::SendPort(port) => json!({"kind": "send port", "connected": port.connected()}),
        Object::ReceivePort(port) => {
            json!({"kind": "receive port", "address": port.api.address().to_string(), "connected": port.api.connected()})
        }
    };
    described.to_string()
}

fn of_runtime(runtime: &Runtime) -> Value {
    let drivers = runtime.api.drivers();
    let drivers: Vec<_> = drivers
        .into_iter()
        .map(|driver| json!({"driver": driver.driver, "usable": driver.usable.is_ok(), "why": driver.usable.err()}))
        .collect();
    let warnings: Vec<_> = runtime.api.warnings().iter().map(ToString::to_string).collect();
    json!({"kind": "runtime", "drivers": drivers, "warnings": warnings})
}

fn of_circuit(circuit: &Circuit) -> Value {
    let nodes = circuit.nodes().into_iter().map(|node| {
        let reached = node.reached;
        let path = reached.as_ref().and_then(|reached| reached.path.clone());
        let rejected = reached.iter().flat_map(|reached| &reached.rejected);
        let rejected: Vec<_> = rejected.map(|(driver, why)| json!({"driver": driver, "why": why})).collect();
        json!({
            "node": node.address.id.to_string(),
            "driver": path.as_ref().map(|(driver, _)| *driver),
            "path": path.as_ref().map(|(_, path)| path),
            "lost": reached.as_ref().and_then(|reached| reached.why.as_ref()).map(ToString::to_string),
            "sent": reached.as_ref().map_or(0, |reached| reached.sent),
            "received": reached.as_ref().map_or(0, |reached| reached.received),
            "rejected": rejected,
        })
    });
    json!({"kind": "circuit", "tags": circuit.has_tags, "nodes": nodes.collect::<Vec<_>>()})
}

fn of_link(link: &VLinkHandle) -> Value {
    let api = &link.api;
    let rejected = |choice: &Choice| -> Vec<_> {
        let described =
            |rejected: &madrigal::Rejected| json!({"driver": rejected.driver, "why": rejected.reason.to_string()});
        choice.rejected.iter().map(described).collect()
    };
    json!({
        "kind": "link",
        "id": api.id().to_string(),
        "driver": api.peer().scheme(),
        "adapter": api.adapter(),
        "local": api.local().to_string(),
        "peer": api.peer().to_string(),
        "rejected": link.choice.as_ref().map(rejected),
    })
}
