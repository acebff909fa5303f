//! The DMA engine with a client that does not answer, in time that the test controls.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use nicforge_core::{
    context::MAX_REMOTE,
    dma::{DmaBacking, DmaPermission},
    ids::{AttachmentId, FunctionId},
    machine::{Access, Machine, Next, Outgoing, region},
    time::Nanos,
};
use nicforge_hwi::proof::dma_engine::*;
use nicforge_proof::DmaEngine;
use nicforge_shm::SharedMemory;
use zerocopy::IntoBytes;

const CARD: FunctionId = FunctionId(0);
const USER: AttachmentId = AttachmentId(0);
/// IOVA of the list, which is mapped, as is the source. The destination is reached by messages.
const LIST: u64 = 0x1_0000;
const SOURCE: u64 = 0x2_0000;
const DESTINATION: u64 = 0x8_0000;
/// Number of copies: more than the writes that may be in flight.
const COPIES: usize = MAX_REMOTE + 8;

/// Writes a register by a trapped access.
fn write(machine: &mut Machine, region: u32, offset: u64, data: &[u8]) {
    assert_eq!(machine.write(CARD, USER, region, offset, data).unwrap(), Access::Done);
}

/// Reads a register by a trapped access.
fn register(machine: &mut Machine, offset: u64) -> u32 {
    let mut data = [0; 4];
    assert_eq!(machine.read(CARD, USER, region::BAR0, offset, &mut data).unwrap(), Access::Done);
    u32::from_le_bytes(data)
}

/// Steps the machine until it has nothing to do at once. Returns the ids of the writes to the
/// client.
fn rest(machine: &mut Machine, time: u64) -> Vec<u64> {
    let mut writes = Vec::new();
    for _ in 0..1000 {
        let next = machine.step(Nanos(time), 64);
        while let Some(message) = machine.pop_outgoing() {
            let Outgoing::DmaWrite { id, .. } = message else { panic!("the source is mapped: {message:?}") };
            writes.push(id);
        }
        if next != Next::Now {
            return writes;
        }
    }
    panic!("it goes on without the answers that it waits for");
}

#[test]
fn an_engine_without_answers_to_its_writes_rests() {
    let mut machine = Machine::new();
    machine.add_function("dma0", Box::new(DmaEngine::new())).unwrap();
    machine.attach(CARD, USER).unwrap();
    write(&mut machine, region::CONFIG, 0x04, &0x0006u16.to_le_bytes());

    let list: Vec<_> = (0..COPIES as u64)
        .map(|number| Descriptor {
            source: SOURCE + 8 * number,
            destination: DESTINATION + 8 * number,
            length: 8,
            reserved: 0,
        })
        .collect();

    for (iova, content) in [(LIST, list.as_bytes()), (SOURCE, &[7; 8 * COPIES])] {
        let memory = SharedMemory::create("client", 4096).unwrap();
        memory.write(0, content).unwrap();
        let backing = DmaBacking::Memory(memory.whole());
        machine.dma_map(CARD, USER, iova, 4096, DmaPermission::READ_WRITE, backing).unwrap();
    }
    let remote = DmaBacking::Remote;
    machine.dma_map(CARD, USER, DESTINATION, 4096, DmaPermission::READ_WRITE, remote).unwrap();

    write(&mut machine, region::BAR0, REG_LIST, &LIST.to_le_bytes());
    write(&mut machine, region::BAR0, REG_COUNT, &(COPIES as u32).to_le_bytes());
    write(&mut machine, region::BAR0, REG_START, &1u32.to_le_bytes());

    let first = rest(&mut machine, 0);

    assert_eq!((first.len(), register(&mut machine, REG_DONE)), (MAX_REMOTE, MAX_REMOTE as u32));
    // The engine also rests when its retry is due and there is still no room.
    assert!(rest(&mut machine, 100_000).is_empty());

    for id in first {
        machine.dma_write_done(CARD, USER, id, Ok(())).unwrap();
    }
    assert_eq!(rest(&mut machine, 200_000).len(), COPIES - MAX_REMOTE);
    let outcome = (register(&mut machine, REG_STATUS), register(&mut machine, REG_DONE));
    assert_eq!(outcome, (0, COPIES as u32));
}
