//! The DMA engine with a client that does not answer, in time that the test controls.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use nicforge_core::{
    context::MAX_REMOTE,
    ids::AttachmentId,
    machine::{Next, Outgoing, region::BAR0},
};
use nicforge_hwi::proof::dma_engine::*;
use nicforge_proof::DmaEngine;
use nicforge_test_kit::{Client, Testbed, take_messages};
use zerocopy::IntoBytes;

/// IOVA of the list, in mapped memory.
const LIST: u64 = 0x1_0000;
/// IOVA of the bytes to copy, in mapped memory.
const SOURCE: u64 = 0x2_0000;
/// IOVA of the copies, in memory that is accessed by DMA messages.
const DESTINATION: u64 = 0x8_0000;
/// Number of copies: more than the writes that may be in flight.
const COPIES: usize = MAX_REMOTE + 8;

/// Steps the machine until it has nothing to do at once. Returns the ids of the writes to the
/// client.
fn step_until_idle(bed: &mut Testbed) -> Vec<u64> {
    let mut writes = Vec::new();
    for _ in 0..1000 {
        let next = bed.step(64);
        for message in take_messages(bed) {
            let Outgoing::DmaWrite { id, .. } = message else { panic!("the source is mapped: {message:?}") };
            writes.push(id);
        }
        if next != Next::Now {
            return writes;
        }
    }
    panic!("the machine does not come to rest, though the engine waits for answers");
}

#[test]
fn an_engine_without_replies_to_its_writes_is_idle() {
    let mut bed = Testbed::new();
    let card = bed.add("dma0", DmaEngine::new());
    let user = Client::attach(&mut bed, card, AttachmentId(0));
    let register = |bed: &mut Testbed, offset| user.read32(bed, BAR0, offset);

    let list: Vec<_> = (0..COPIES as u64)
        .map(|number| Descriptor {
            source: SOURCE + 8 * number,
            destination: DESTINATION + 8 * number,
            length: 8,
            reserved: 0,
        })
        .collect();

    user.map(&mut bed, LIST, 4096).write(0, list.as_bytes()).unwrap();
    user.map(&mut bed, SOURCE, 4096).write(0, &[7; 8 * COPIES]).unwrap();
    user.map_remote(&mut bed, DESTINATION, 4096);

    user.write64(&mut bed, BAR0, REG_LIST, LIST);
    user.write32(&mut bed, BAR0, REG_COUNT, COPIES as u32);
    user.write32(&mut bed, BAR0, REG_START, 1);

    let first = step_until_idle(&mut bed);

    assert_eq!((first.len(), register(&mut bed, REG_DONE)), (MAX_REMOTE, MAX_REMOTE as u32));
    // The engine is also idle when its retry is due and there is still no room.
    bed.advance(100_000);
    assert!(step_until_idle(&mut bed).is_empty());

    for id in first {
        bed.dma_write_done(user.function, user.attachment, id, Ok(())).unwrap();
    }
    bed.advance(100_000);
    assert_eq!(step_until_idle(&mut bed).len(), COPIES - MAX_REMOTE);
    let outcome = (register(&mut bed, REG_STATUS), register(&mut bed, REG_DONE));
    assert_eq!(outcome, (0, COPIES as u32));
}
