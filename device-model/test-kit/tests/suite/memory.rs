//! Memory for DMA: mapped, and accessed by DMA messages.
#![allow(clippy::unwrap_used, reason = "tests")]

use nicforge_core::ids::AttachmentId;
use nicforge_test_kit::{Client, ClientMemory, Testbed, message_id, take_messages};

use crate::echo::*;

const MAPPED: u64 = 0x1_0000;
/// It begins where the mapped range ends.
const REMOTE: u64 = 0x1_1000;

/// Returns a machine with the device, and a client with memory of both kinds.
fn with_memory() -> (Testbed, Client, ClientMemory) {
    let mut bed = Testbed::new();
    let card = bed.add("echo0", Echo::default());
    let client = Client::attach(&mut bed, card, AttachmentId(0));
    let mut memory = ClientMemory::new(client);
    memory.map(&mut bed, MAPPED, 4096);
    memory.map_remote(&mut bed, REMOTE, 4096);
    (bed, client, memory)
}

#[test]
fn mapped_memory_needs_no_answers() {
    let (mut bed, client, memory) = with_memory();
    let interrupts = client.bind_msix(&mut bed);
    memory.write(MAPPED + 8, &1u64.to_le_bytes());

    client.write64(&mut bed, 0, REG_REVERSE, MAPPED + 8);
    bed.run_until_idle();

    assert_eq!((memory.read64(MAPPED + 8), interrupts[DONE].get()), (1 << 56, 1));
    assert_eq!(memory.answer(&mut bed), 0);
}

#[test]
fn messages_reach_memory_that_is_not_mapped() {
    let (mut bed, client, memory) = with_memory();
    let interrupts = client.bind_msix(&mut bed);
    memory.write(REMOTE, &[1, 2, 3, 4, 5, 6, 7, 8]);

    client.write64(&mut bed, 0, REG_REVERSE, REMOTE);
    bed.run_until(|bed| {
        memory.answer(bed);
        interrupts[DONE].get() > 0
    });

    assert_eq!(memory.read(REMOTE, 8), [8, 7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(memory.read32(REMOTE), 0x0506_0708);
}

#[test]
fn one_dma_access_may_cross_from_mapped_memory_to_memory_behind_messages() {
    let (mut bed, client, memory) = with_memory();
    let interrupts = client.bind_msix(&mut bed);
    memory.write(REMOTE - 4, &[1, 2, 3, 4, 5, 6, 7, 8]);

    client.write64(&mut bed, 0, REG_REVERSE, REMOTE - 4);
    bed.run_until(|bed| {
        memory.answer(bed);
        interrupts[DONE].get() > 0
    });

    assert_eq!(memory.read(REMOTE - 4, 8), [8, 7, 6, 5, 4, 3, 2, 1]);
}

#[test]
fn a_message_for_unmapped_memory_is_refused() {
    let (mut bed, client, mut memory) = with_memory();
    let interrupts = client.bind_msix(&mut bed);
    client.write64(&mut bed, 0, REG_REVERSE, REMOTE);

    memory.unmap(&mut bed, REMOTE);
    bed.run_until(|bed| {
        memory.answer(bed);
        interrupts[FAILED].get() > 0
    });

    assert_eq!(interrupts[DONE].get(), 0);
}

#[test]
fn a_test_can_answer_taken_messages_later() {
    let (mut bed, client, memory) = with_memory();
    client.write64(&mut bed, 0, REG_REVERSE, REMOTE);

    let messages = take_messages(&mut bed);
    bed.run_until_idle();
    memory.answer_message(&mut bed, &messages[0]);
    bed.step(64);

    let later = take_messages(&mut bed);
    assert_eq!((messages.len(), later.len()), (1, 1));
    assert_ne!(message_id(&messages[0]), message_id(&later[0]));
}
