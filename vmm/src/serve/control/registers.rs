//! Answers to requests about the registers of an attachment.

use nicforge_core::{
    ids::{Address, AttachmentId, FunctionId},
    machine::RingState,
    register::{Field, Register},
};
use nicforge_engine::{EngineHandle, HandleError};
use nicforge_machine::build::{Built, NodeAttachment};

use super::{MAX_LISTED_NODES, TIMEOUT, refused};
use crate::{
    control::Response,
    regs::{FieldSnapshot, RegisterSnapshot, RegistersSnapshot, RingSnapshot, ValueSnapshot},
};

/// Number of registers that the engine reads in one of its turns.
const TURN: usize = 256;
/// Most registers of an array whose values are read.
const MAX_OF_ARRAY: u32 = 4096;

/// Answers a request for the registers of `name`, which is `NODE.ATTACHMENT`.
pub(super) fn answer(built: &Built, handle: &EngineHandle, name: &str) -> Response {
    let Some(attachment) = find(built, name) else {
        return Response::Refused { message: no_attachment(built, name), is_usage_error: true };
    };

    match snapshot(handle, attachment.function, attachment.id, name) {
        Ok(snapshot) => Response::Registers(snapshot),
        Err(error) => refused(error.to_string()),
    }
}

/// Returns all attachments of a machine with their names.
fn attachments(built: &Built) -> impl Iterator<Item = (String, &NodeAttachment)> {
    let of_nodes = built.nodes.iter().flat_map(|node| node.attachments.iter().map(move |own| (node, own)));
    of_nodes.map(|(node, attachment)| (format!("{}.{}", node.name, attachment.name), attachment))
}

/// Returns the attachment of a name.
fn find<'a>(built: &'a Built, name: &str) -> Option<&'a NodeAttachment> {
    attachments(built).find(|(other, _)| other == name).map(|(_, attachment)| attachment)
}

/// Returns the message about a name that no attachment has. It names those of the node, if there is
/// such a node, or the first ones of the machine.
fn no_attachment(built: &Built, name: &str) -> String {
    let is_of_node =
        |node: &str| name == node || name.strip_prefix(node).is_some_and(|rest| rest.starts_with('.'));
    let node = built.nodes.iter().find(|node| is_of_node(&node.name));
    let all = attachments(built).map(|(other, _)| other);
    let existing: Vec<_> = match node {
        Some(node) => all.filter(|other| other.starts_with(&format!("{}.", node.name))).collect(),
        None => all.collect(),
    };

    let listed = existing[..existing.len().min(MAX_LISTED_NODES)].join(", ");
    match existing.len() {
        0 => format!(
            "there is no attachment {name}, and {} has none",
            node.map_or("the machine", |node| &node.name)
        ),
        count if count > MAX_LISTED_NODES => {
            format!(
                "there is no attachment {name}; there are {listed}, and {} others",
                count - MAX_LISTED_NODES
            )
        }
        _ => format!("there is no attachment {name}; there are {listed}"),
    }
}

/// Returns the registers of an attachment. The engine reads them in several turns, so that a large
/// card holds up no client.
fn snapshot(
    handle: &EngineHandle,
    function: FunctionId,
    id: AttachmentId,
    name: &str,
) -> Result<RegistersSnapshot, HandleError> {
    let (declared, has_client, rings, counters) = handle.call(TIMEOUT, move |control| {
        let machine = control.machine();
        let counters = machine.counters(function);
        (
            machine.registers(function),
            machine.is_attached(function, id),
            machine.rings(function, id),
            counters,
        )
    })?;

    let indices_of = |register| (0..count_values(register)).map(move |index| (register, index));
    let wanted: Vec<_> = declared.iter().flat_map(indices_of).collect();
    let mut values = Vec::with_capacity(wanted.len());
    for turn in wanted.chunks(TURN) {
        let turn = turn.to_vec();
        values.extend(handle.call(TIMEOUT, move |control| {
            let mut value = |(register, index): (&Register, u32)| {
                let at = Address { bar: register.bar, offset: register.offset_of(index) };
                let mut bytes = [0; size_of::<u64>()];
                let data = bytes.get_mut(..register.width.into())?;
                control.machine().peek(function, id, at, data).then(|| u64::from_le_bytes(bytes))
            };
            turn.into_iter().map(&mut value).collect::<Vec<_>>()
        })?);
    }

    let mut values = values.into_iter();
    let registers = declared.iter().map(|register| register_snapshot(register, &mut values)).collect();
    Ok(RegistersSnapshot {
        attachment: name.to_owned(),
        has_client,
        registers,
        rings: rings.into_iter().map(ring_snapshot).collect(),
        counters: counters.into_iter().map(|counter| (counter.name.to_owned(), counter.value)).collect(),
    })
}

/// Returns the number of values of a register that are read: at most that of an array.
fn count_values(register: &Register) -> u32 {
    if register.access.has_value() { register.count.min(MAX_OF_ARRAY) } else { 0 }
}

/// Returns a register with its values, which it takes from those of all registers.
fn register_snapshot(
    register: &Register,
    values: &mut impl Iterator<Item = Option<u64>>,
) -> RegisterSnapshot {
    let shown = |value: Option<u64>| ValueSnapshot {
        value,
        fields: value.map(|value| register.fields_of(value).to_string()).unwrap_or_default(),
    };
    let field =
        |field: &Field| FieldSnapshot { name: field.name.to_owned(), high: field.high, low: field.low };

    RegisterSnapshot {
        name: register.name.to_owned(),
        about: register.about.to_owned(),
        bar: register.bar,
        offset: register.offset,
        width: register.width,
        access: register.access.name().to_owned(),
        count: register.count,
        stride: register.stride,
        fields: register.fields.iter().map(field).collect(),
        values: values.take(count_values(register) as usize).map(shown).collect(),
    }
}

/// Returns the state of a ring.
fn ring_snapshot(ring: RingState) -> RingSnapshot {
    let RingState { cells, head, tail, is_stalled } = ring;
    RingSnapshot { cells, head, tail, fill: tail.wrapping_sub(head), stalled: is_stalled }
}
