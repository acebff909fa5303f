//! Register accesses: any client of any device reads and writes arbitrary offsets, maps and unmaps
//! memory, and binds and masks interrupts. It may answer DMA messages, detach and reattach. The
//! operator resets functions in between.

use std::sync::Arc;

use nicforge_core::{
    device::Ended,
    dma::{DmaBacking, DmaPermission},
    ids::{AttachmentId, FunctionId},
    interrupt::Sink,
    machine::region,
};
use nicforge_hwi::{
    proof::{addressed_send, dma_engine},
    tree_dcr,
};
use nicforge_shm::SharedMemory;

use crate::{
    input::Input,
    world::{Answer, ClientId, Count, ENGINE, FIFO, FUNCTIONS, PORTS, SEND, World},
};

/// Maximum number of actions in one input.
const MAX: usize = 300;
/// Granularity of DMA mappings.
const PAGE: u64 = 4096;
/// The client of the DMA engine, which starts scatter lists.
const ENGINE_CLIENT: ClientId = (ENGINE, AttachmentId(0));
/// The client that sends messages by the address of a write.
const SENDER: ClientId = (SEND, AttachmentId(0));
/// The client that receives those messages.
const RECEIVER: ClientId = (SEND, AttachmentId(1));

/// Runs the test body on one fuzz input. The module's documentation describes the steps.
pub fn body(data: &[u8]) {
    let mut input = Input::new(data);
    let mut world = World::new(input.pick(&[8, 1, 2, 256]));
    let memory = SharedMemory::create("fuzz-dma", 16 * PAGE as usize).unwrap();

    // One client of each kind is attached from the start and set up as its driver does.
    let (tree_client, fifo_client) = ((FunctionId(1), AttachmentId(0)), (FIFO, AttachmentId(0)));
    for client_id in [tree_client, fifo_client, ENGINE_CLIENT, SENDER, RECEIVER] {
        world.attach(client_id);
        world.bind(client_id);
        world.enable_bus_master(client_id);
    }

    world.attach((PORTS, AttachmentId(0)));
    let backing = DmaBacking::Memory(memory.whole());
    let length = memory.len() as u64;
    let (function, attachment) = ENGINE_CLIENT;
    world.machine.dma_map(function, attachment, 0, length, DmaPermission::READ_WRITE, backing).unwrap();

    for _ in 0..MAX {
        if input.is_empty() {
            break;
        }
        act(&mut world, &memory, &mut input);
    }

    world.recover();
}

/// Returns the id of a client, usually of an attached one.
fn client_id(input: &mut Input<'_>) -> ClientId {
    match input.below(8) {
        0..=5 => {
            let function = input.pick(&[FunctionId(1), FIFO, ENGINE, SEND, PORTS]);
            (function, AttachmentId(u16::from(input.flag())))
        }
        6 => (FunctionId(input.below(FUNCTIONS)), AttachmentId(input.below(5) as u16)),
        _ => (FunctionId(input.number32()), AttachmentId(input.u16())),
    }
}

/// Returns a region and an offset, usually valid ones.
fn target(input: &mut Input<'_>, client_id: ClientId) -> (u32, u64) {
    match input.below(10) {
        0..=2 => (0, u64::from(input.below(0x70))),
        3 => (0, tree_dcr::DCR_BASE + 4 * u64::from(input.below(0x80))),
        4 => (0, tree_dcr::gi::BASE + u64::from(input.below(0x110))),
        5 => (0, tree_dcr::REG_INT_ENABLE + u64::from(input.below(16))),
        // The control page, the MSI-X table and the pending bits are after the device's own
        // registers.
        6 => {
            let registers = if client_id.0.0 < ENGINE.0 - 1 { tree_dcr::REGISTERS } else { 0x1000 };
            (0, registers + 0x1000 * u64::from(input.below(3)) + u64::from(input.below(0x60)))
        }
        7 => (region::CONFIG, u64::from(input.below(0x140))),
        8 if client_id.0 == SEND => {
            let target = if input.below(4) > 0 { 1 } else { u64::from(input.below(4)) };
            let tag = u64::from(input.below(64));
            let offset = target << addressed_send::SEND_TARGET_SHIFT | tag << addressed_send::SEND_TAG_SHIFT;
            (addressed_send::SEND_BAR.into(), offset)
        }
        8 => (input.below(10), u64::from(input.below(0x2_0010))),
        _ => (input.number32(), input.number()),
    }
}

/// Returns the number of bytes of an access.
fn width(input: &mut Input<'_>) -> usize {
    match input.below(8) {
        0..=3 => 4,
        4 => 8,
        5 => 16,
        6 => input.pick(&[0, 1, 2, 3, 64, 512, 513]),
        _ => input.below(700) as usize,
    }
}

/// Performs one action of any client or of the operator, or lets the machine step.
fn act(world: &mut World, memory: &SharedMemory, input: &mut Input<'_>) {
    let client_id = client_id(input);
    match input.below(20) {
        0 => {
            let _ = world.machine.attach(client_id.0, client_id.1);
        }
        1 if world.is_attached(client_id) => {
            world.detach(client_id, if input.flag() { Ended::Closed } else { Ended::Evicted });
        }
        2 => {
            if world.machine.reset_attachment(client_id.0, client_id.1).is_ok() {
                world.forget_messages(client_id);
            }
        }
        3 if input.below(4) == 0 => {
            let _ = world.machine.reset_function(client_id.0);
        }
        3 => {
            let _ = world.machine.mark_dead(client_id.0, client_id.1);
        }
        4..=7 => {
            let (region, offset) = target(input, client_id);
            let mut data = vec![0; width(input)];
            let _ = world.read(client_id, region, offset, &mut data);
        }
        8..=11 => {
            let (region, offset) = target(input, client_id);
            let length = width(input);
            let mut data = vec![0; length];
            let bytes = input.bytes(length.min(16));
            data[..bytes.len()].copy_from_slice(bytes);
            let _ = world.write(client_id, region, offset, &data);
        }
        12 => map(world, memory, client_id, input),
        13 => {
            let (iova, length) = range(input);
            let _ = world.machine.dma_unmap(client_id.0, client_id.1, iova, length);
            if input.below(8) == 0 {
                let _ = world.machine.dma_unmap_all(client_id.0, client_id.1);
            }
        }
        14 => start_scatter_list(world, memory, client_id, input),
        15 => interrupts(world, client_id, input),
        16 => {
            let answer = match input.below(4) {
                0 | 1 => Answer::Good,
                2 => input.pick(&[Answer::Cut(1), Answer::Cut(usize::MAX), Answer::Wrong]),
                _ => Answer::Refused,
            };
            world.answer(answer);
        }
        17 => world.machine.rescan(),
        _ => {
            world.step(input.pick(&[0, 1000, 60_000, 1_000_000]), input.pick(&[1, 4, 64]));
        }
    }

    world.check_bounds();
}

/// Returns the IOVA and the length of a range, mostly of whole pages.
fn range(input: &mut Input<'_>) -> (u64, u64) {
    if input.below(4) > 0 {
        (u64::from(input.below(8)) * PAGE, u64::from(input.below(4)) * PAGE)
    } else {
        (input.number(), input.number())
    }
}

/// Maps a range of a client, to pages of `memory` or so that only messages reach it.
fn map(world: &mut World, memory: &SharedMemory, client_id: ClientId, input: &mut Input<'_>) {
    let (iova, length) = range(input);
    let permission = match input.below(4) {
        0 => DmaPermission::READ,
        1 => DmaPermission::WRITE,
        _ => DmaPermission::READ_WRITE,
    };

    // The window has exactly the mapping's length, as all that the engine passes to the machine:
    // the engine refuses a mapping that exceeds the client's file.
    let window = memory.window(u64::from(input.below(8)) * PAGE, length);
    let backing = match window {
        Ok(window) if input.flag() => DmaBacking::Memory(window),
        _ => DmaBacking::Remote,
    };
    let _ = world.machine.dma_map(client_id.0, client_id.1, iova, length, permission, backing);
}

/// Writes a scatter list for the DMA engine, and starts it.
fn start_scatter_list(world: &mut World, memory: &SharedMemory, client_id: ClientId, input: &mut Input<'_>) {
    let client_id = if input.below(8) > 0 { ENGINE_CLIENT } else { client_id };
    for index in 0..u64::from(input.below(5)) {
        let mut number = |limit: u32| match input.below(8) {
            0..=6 => u64::from(input.below(limit)),
            _ => input.number(),
        };
        let words = [number(0x1_0000), number(0x1_0000), number(0x4000)];
        for (word, value) in (0..).zip(words) {
            memory.write(index * 24 + word * 8, &value.to_le_bytes()).unwrap();
        }
    }

    let list = input.pick(&[0, 0, 0, PAGE, 8, 4]);
    let count = input.pick(&[1, 2, 5, 1, 2, 0, 256, 257]);
    let _ = world.write(client_id, 0, dma_engine::REG_LIST, &u64::to_le_bytes(list));
    let _ = world.write(client_id, 0, dma_engine::REG_COUNT, &u32::to_le_bytes(count));
    let _ = world.write(client_id, 0, dma_engine::REG_START, &1_u32.to_le_bytes());
}

/// Binds, masks, unmasks, triggers or disables interrupts of a client.
fn interrupts(world: &mut World, client_id: ClientId, input: &mut Input<'_>) {
    let (index, start) = (input.below(6), input.pick(&[0, 0, 1, 4, u32::MAX]));
    let count = input.below(6);
    if input.flag() {
        let sinks: Vec<Sink> =
            (0..count).map(|_| input.flag().then(|| Arc::new(Count::default()) as Arc<_>)).collect();
        let _ = world.machine.bind_interrupts(client_id.0, client_id.1, index, start, sinks);
        return;
    }

    let Ok(interrupts) = world.machine.interrupts(client_id.0, client_id.1) else { return };
    let flags = [input.flag(), input.flag(), input.flag()];
    let outcome = match input.below(7) {
        0 => interrupts.mask(index, start, count),
        1 => interrupts.unmask(index, start, count),
        2 => interrupts.trigger(index, start, count),
        3 => interrupts.mask(index, start, &flags[..]),
        4 => interrupts.trigger(index, start, &flags[..]),
        5 => interrupts.disable(index),
        _ => interrupts.disable_range(index, start, count),
    };

    let _ = outcome;
}
