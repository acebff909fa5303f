//! Ring records: a client stores arbitrary data into its posted-write ring while the machine steps.
//! Its neighbour on the same function, and all other clients, continue.

use std::sync::atomic::Ordering;

use nicforge_core::{
    device::Ended,
    ids::{AttachmentId, FunctionId},
};
use nicforge_hwi::{
    attachment::{control, mirror::RING_HEAD},
    posted,
    proof::addressed_send,
    tree_dcr,
};
use nicforge_shm::SharedMemory;

use crate::{
    input::Input,
    world::{BAR_RING, ClientId, ENGINE, FIFO, Poster, RING_CELLS, SEND, World, outcome_is_done},
};

/// Maximum number of actions in one input.
const MAX: usize = 400;
/// The NIC of a compute node on the tree.
const TREE_NIC: FunctionId = FunctionId(2);

/// Runs the test body on one fuzz input. The module's documentation describes the steps.
pub fn body(data: &[u8]) {
    let mut input = Input::new(data);
    let mut world = World::new(8);
    let function = input.pick(&[FIFO, ENGINE, SEND, TREE_NIC]);
    let hostile = (function, AttachmentId(0));

    world.attach(hostile);
    world.bind(hostile);
    world.enable_bus_master(hostile);

    if function == SEND && input.flag() {
        // The receiver's mailbox is full, so the next send to it stalls.
        for _ in 0..addressed_send::SLOTS {
            let written = world.write(hostile, addressed_send::SEND_BAR.into(), 0, &[1]);
            assert!(outcome_is_done(&written));
        }
    }

    let neighbour = (FIFO, AttachmentId(3));
    world.attach(neighbour);
    let mut poster = Poster::new(&world, neighbour);
    let mut value = 0;

    for _ in 0..MAX {
        if input.is_empty() {
            break;
        }
        act(&mut world, hostile, &mut input);
        if input.below(8) == 0 {
            value ^= 1;
            poster.post_and_read_back(&mut world, value);
        }
    }

    poster.post_and_read_back(&mut world, value ^ 1);
    world.detach(hostile, if input.flag() { Ended::Closed } else { Ended::Evicted });
    poster.post_and_read_back(&mut world, value);
    world.detach(neighbour, Ended::Closed);
    world.recover();
}

/// Performs one action of the hostile client, or lets the machine step.
fn act(world: &mut World, hostile: ClientId, input: &mut Input<'_>) {
    let ring = world.memory(hostile, BAR_RING).unwrap();
    match input.below(8) {
        0..=2 => write_cells(&ring, head(world, hostile), hostile, input),
        3 => {
            // Any bytes anywhere in the BAR, which is longer than the ring.
            let offset = u64::from(input.below(ring.len() as u32));
            let bytes = input.bytes(24);
            let available = (ring.len() as u64 - offset).min(bytes.len() as u64);
            ring.write(offset, &bytes[..available as usize]).unwrap();
        }
        4 => {
            let registers = control_page(hostile);
            let (offset, value) =
                (input.pick(&[control::RING_RESET, control::RING_SELECT, control::WAKE]), input.below(3));
            let written = world.write(hostile, 0, registers + offset, &value.to_le_bytes());
            assert!(outcome_is_done(&written), "the control page never waits");
        }
        5 => {
            let mut data = [0; 4];
            let _ = world.read(hostile, 0, 0, &mut data);
        }
        6 if input.below(4) == 0 => world.machine.reset_attachment(hostile.0, hostile.1).unwrap(),
        _ => {
            world.step(input.pick(&[0, 1000, 100_000]), input.pick(&[1, 3, 64]));
        }
    }

    check_ring_state(world, hostile);
}

/// Returns the offset of a client's control page in BAR 0. The tree NIC has other registers before
/// it than the proof devices have.
fn control_page(client_id: ClientId) -> u64 {
    if client_id.0 == TREE_NIC { tree_dcr::REGISTERS } else { 0x1000 }
}

/// Returns the number of cells that the machine has consumed, by the mirror.
fn head(world: &World, hostile: ClientId) -> u32 {
    world.memory(hostile, 2).unwrap().u32(RING_HEAD).unwrap().load(Ordering::Acquire)
}

/// Checks that the control page and the mirror agree about the ring, after a step has published its
/// state.
fn check_ring_state(world: &mut World, hostile: ClientId) {
    let registers = control_page(hostile);
    let head = head(world, hostile);
    let mut state = [0; 4];

    assert!(outcome_is_done(&world.write(hostile, 0, registers + control::RING_SELECT, &[0; 4])));
    assert!(outcome_is_done(&world.read(hostile, 0, registers + control::RING_STATE, &mut state)));

    let phase = u32::from((head / RING_CELLS).is_multiple_of(2));
    assert_eq!(u32::from_le_bytes(state), (head % RING_CELLS) | (phase << 31));
}

/// Writes one or more cells, which may form a record that the consumer finds next.
fn write_cells(ring: &SharedMemory, head: u32, hostile: ClientId, input: &mut Input<'_>) {
    let length = match input.below(4) {
        0..=1 => input.pick(&[4, 8, 16]),
        2 => input.below(posted::MAX_DATA as u32 + 2) as usize,
        _ => input.below(posted::LENGTH_MASK as u32 + 1) as usize,
    };

    let (bar, offset) = match input.below(4) {
        0 => (0, input.below(0x80)),
        1 if hostile.0 == SEND => {
            // A send to its own mailbox or to attachment 3. It takes no messages, so the ninth one
            // to itself stalls.
            let (target, tag) = (input.pick(&[0, 0, 0, 3]), input.below(64));
            let offset = target << addressed_send::SEND_TARGET_SHIFT | tag << addressed_send::SEND_TAG_SHIFT;
            (addressed_send::SEND_BAR, offset)
        }
        1 => (0, 0x1000 + 4 * input.below(0x800)),
        2 => (input.below(8) as u8, input.below(0x8000)),
        _ => (input.u8(), input.number32()),
    };

    // The phase is arbitrary, and sometimes a reserved bit is set.
    let header = posted::header(bar, offset, length) | u64::from(input.u8() & 0x81) << 56;
    let (cell, header) = if input.below(4) > 0 {
        // The cell that the consumer reads next, if it has consumed all earlier ones.
        let phase = if (head / RING_CELLS).is_multiple_of(2) { posted::PHASE } else { 0 };
        (u64::from(head % RING_CELLS), header & !posted::PHASE | phase)
    } else {
        (u64::from(input.below(RING_CELLS)), header)
    };

    let count = u64::from(input.below(4));
    for index in 0..=count {
        let start = (cell + index) % u64::from(RING_CELLS) * posted::CELL as u64;
        ring.write(start + 8, &input.array::<8>()).unwrap();
        // Following cells may have the record's phase, as they should, or be records of their own.
        let header_of_cell =
            if index == 0 { header } else { header & posted::PHASE | u64::from(input.u8()) << 30 };
        ring.u64(start).unwrap().store(header_of_cell, Ordering::Release);
    }
}
