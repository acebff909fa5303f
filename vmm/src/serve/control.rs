//! Answers to requests about a served machine: its state, registers, and resets of nodes.

mod registers;

use std::{sync::Arc, time::Duration};

use nicforge_engine::{EngineHandle, EngineSnapshot, FunctionSnapshot};
use nicforge_machine::build::{Built, Node, NodeAttachment, NodeFunction};

use super::tracer::Tracer;
use crate::{
    control::{Request, Response},
    host_load,
    stat::{AttachmentSnapshot, ColumnSnapshot, EngineActivity, LongestTurn, MachineSnapshot, NodeSnapshot},
};

/// How long the engine may take to answer. It answers between two steps.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Most nodes that a message lists.
const MAX_LISTED_NODES: usize = 20;

/// Returns the answer to a request that could not be carried out.
fn refused(message: String) -> Response {
    Response::Refused { message, is_usage_error: false }
}

/// Answers a request of the control socket.
pub(super) fn answer(
    built: &Built,
    handle: &EngineHandle,
    tracer: &Arc<Tracer>,
    request: &Request,
) -> Response {
    match request {
        Request::Stat => match snapshot(built, handle) {
            Ok(snapshot) => Response::Stat(snapshot),
            Err(message) => refused(message),
        },
        Request::Trace(request) => tracer.answer(request),
        Request::Registers { attachment } => registers::answer(built, handle, attachment),
        Request::Reset { node } => match built.node(node) {
            Some(node) => reset(node, handle),
            None => {
                let names: Vec<_> =
                    built.nodes.iter().take(MAX_LISTED_NODES).map(|node| node.name.as_str()).collect();
                Response::Refused {
                    message: format!("there is no node {node}; there are {}", names.join(", ")),
                    is_usage_error: true,
                }
            }
        },
    }
}

/// Resets all functions of a node.
fn reset(node: &Node, handle: &EngineHandle) -> Response {
    for function in &node.functions {
        match handle.reset_function(function.id, TIMEOUT) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return refused(error.to_string()),
            Err(error) => return refused(error.to_string()),
        }
    }
    Response::Done
}

/// Returns what the engine has done. The share of other programs is measured where it matters.
fn engine_activity(raw: &EngineSnapshot) -> EngineActivity {
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    let clients = raw.functions.iter().flat_map(|function| &function.attachments);
    let clients = clients.filter_map(|attachment| Some(attachment.client.as_ref()?.pid));

    EngineActivity {
        turns: raw.turns,
        worked: raw.worked,
        yields: raw.yields,
        late_yields: raw.late_yields,
        sleeps: raw.sleeps,
        client_wakes: raw.client_wakes,
        others_percent: match raw.host_is_busy {
            true => host_load::measure_others(&clients.chain([own]).collect()),
            false => None,
        },
    }
}

/// Returns the state of a served machine, or why the engine gave none.
pub(super) fn snapshot(built: &Built, handle: &EngineHandle) -> Result<MachineSnapshot, String> {
    let raw = handle.snapshot(TIMEOUT).map_err(|error| error.to_string())?;

    Ok(MachineSnapshot {
        machine: built.name.clone(),
        uptime_ms: raw.uptime.as_millis() as u64,
        event_loop: raw.event_loop.to_owned(),
        awake: raw.hot_functions,
        longest_turn: longest_turn(built, &raw.longest_turn),
        engine: engine_activity(&raw),
        nodes: built.nodes.iter().map(|node| node_snapshot(node, &raw.functions)).collect(),
        columns: built.columns.iter().map(ColumnSnapshot::from).collect(),
    })
}

/// Returns the state of a node. `functions` holds all functions of the machine, indexed by id.
fn node_snapshot(node: &Node, functions: &[FunctionSnapshot]) -> NodeSnapshot {
    let mut snapshot = NodeSnapshot {
        name: node.name.clone(),
        role: node.role.name().to_owned(),
        rank: node.rank,
        functions: node.functions.iter().filter_map(|function| function.name.clone()).collect(),
        panics: Vec::new(),
        companions: Vec::new(),
        counters: Vec::new(),
        attachments: Vec::new(),
    };

    for function in &node.functions {
        let Some(raw) = functions.get(function.id.0 as usize) else { continue };
        snapshot.panics.extend(raw.panic.as_ref().map(|panic| format!("device {} {panic}", raw.name)));
        let unhealthy = raw.companions.iter().filter(|companion| !companion.is_healthy());
        snapshot
            .companions
            .extend(unhealthy.map(|companion| format!("device {}: companion {companion}", raw.name)));

        let counters = raw.counters.iter();
        snapshot
            .counters
            .extend(counters.map(|counter| (name_in_node(function, counter.name), counter.value)));

        snapshot.attachments.extend(raw.attachments.iter().map(|attachment| AttachmentSnapshot {
            name: name_in_node(function, &attachment.name),
            pid: attachment.client.map(|client| client.pid),
            trapped: attachment.counters.trapped_reads + attachment.counters.trapped_writes,
            posted: attachment.counters.posted_writes,
            stalls: attachment.counters.stalls,
            interrupts: attachment.counters.interrupts,
            errors: attachment.counters.dma_errors + attachment.counters.malformed_records,
            longest_turn_us: microseconds(attachment.server.longest_turn),
        }));
    }
    snapshot
}

/// Returns the name of a function's counter or attachment among those of its node.
fn name_in_node(function: &NodeFunction, name: &str) -> String {
    match &function.name {
        Some(function) => format!("{function}.{name}"),
        None => name.to_owned(),
    }
}

/// Returns the longest turn with the name of its client's attachment.
fn longest_turn(built: &Built, turn: &nicforge_engine::LongestTurn) -> LongestTurn {
    let name = |(function, id)| {
        let node = built.nodes.iter().find(|node| node.has_function(function))?;
        let is_its_own =
            |attachment: &&NodeAttachment| (attachment.function, attachment.id) == (function, id);
        let attachment = node.attachments.iter().find(is_its_own)?;
        Some(format!("{}.{}", node.name, attachment.name))
    };
    LongestTurn { us: microseconds(turn.time), attachment: turn.client.and_then(name), pid: turn.pid }
}

/// Returns a time in whole microseconds.
fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
