//! Accesses, rings, interrupts and time.
#![allow(clippy::unwrap_used, reason = "tests")]

use nicforge_core::{
    fabric::LinkSpec,
    ids::AttachmentId,
    machine::{Access, region},
    time::Nanos,
};
use nicforge_shm::PushError;
use nicforge_test_kit::{Client, Testbed};

use crate::echo::*;

/// Returns a machine with the device and one client.
fn attached() -> (Testbed, Client) {
    let mut bed = Testbed::new();
    let card = bed.add("echo0", Echo::default());
    let client = Client::attach(&mut bed, card, AttachmentId(0));
    (bed, client)
}

#[test]
fn registers_are_accessed_in_all_widths() {
    let (mut bed, client) = attached();

    client.write64(&mut bed, 0, REG_SCRATCH, 0x8877_6655_4433_2211);
    client.write8(&mut bed, 0, REG_SCRATCH + 1, 0xaa);
    client.write16(&mut bed, 0, REG_SCRATCH + 2, 0xbbbb);
    client.write32(&mut bed, 0, REG_SCRATCH + 4, 0xcccc_cccc);

    assert_eq!(client.read8(&mut bed, 0, REG_SCRATCH), 0x11);
    assert_eq!(client.read16(&mut bed, 0, REG_SCRATCH), 0xaa11);
    assert_eq!(client.read32(&mut bed, 0, REG_SCRATCH), 0xbbbb_aa11);
    assert_eq!(client.read64(&mut bed, 0, REG_SCRATCH), 0xcccc_cccc_bbbb_aa11);
}

#[test]
fn an_attached_client_is_bus_master_until_it_detaches() {
    let (mut bed, client) = attached();

    let command = client.read16(&mut bed, region::CONFIG, 0x04);
    client.detach(&mut bed);

    assert_eq!(command & 6, 6);
    assert!(client.try_write(&mut bed, 0, 0, &[0]).is_err());
}

#[test]
fn posted_writes_take_effect_in_the_next_step() {
    let (mut bed, client) = attached();
    let mut ring = client.ring(&bed);

    ring.push64(0, REG_SCRATCH as u32, 7);
    ring.push32(0, REG_SCRATCH as u32 + 4, 8);
    bed.run_until_idle();

    assert_eq!(client.read64(&mut bed, 0, REG_SCRATCH), 8 << 32 | 7);
}

#[test]
fn a_full_ring_has_room_after_a_reset_and_a_restart() {
    let (mut bed, client) = attached();
    let mut ring = client.ring(&bed);
    for _ in 0..64 {
        ring.push32(0, REG_SCRATCH as u32, 1);
    }
    assert_eq!(ring.push(0, 0, &[1]), Err(PushError::Full));

    bed.reset_attachment(client.function, client.attachment).unwrap();
    ring.restart();
    ring.push32(0, REG_SCRATCH as u32, 2);
    bed.run_until_idle();

    assert_eq!(client.read32(&mut bed, 0, REG_SCRATCH), 2);
}

#[test]
fn a_timer_fires_at_its_time_and_not_before() {
    let (mut bed, client) = attached();
    let interrupts = client.bind_msix(&mut bed);
    client.write64(&mut bed, 0, REG_TIMER, 1_000_000);

    bed.run_until_idle();
    let at_once = interrupts[DUE].get();
    bed.run_until(|_| interrupts[DUE].get() > 0);

    assert_eq!((at_once, bed.now()), (0, Nanos(1_000_000)));
}

#[test]
fn an_advance_of_the_clock_fires_a_timer_in_the_next_step() {
    let (mut bed, client) = attached();
    let interrupts = client.bind_msix(&mut bed);
    client.write64(&mut bed, 0, REG_TIMER, 1_000);
    bed.settle();

    bed.advance(999);
    bed.settle();
    let before = interrupts[DUE].take();
    bed.advance(1);
    bed.settle();

    assert_eq!((before, interrupts[DUE].take(), interrupts[DUE].get()), (0, 1, 0));
}

#[test]
#[should_panic(expected = "nothing more will happen")]
fn a_wait_for_an_event_that_never_comes_fails() {
    let (mut bed, _) = attached();

    bed.run_until(|_| false);
}

#[test]
fn try_write_returns_a_stall_to_the_test() {
    let (mut bed, client) = attached();
    let _peer = bed.peer((client.function, 0), LinkSpec { credits: vec![1], ..LinkSpec::default() });

    client.write64(&mut bed, 0, REG_SEND, 1);
    let second = client.try_write(&mut bed, 0, REG_SEND, &2u64.to_le_bytes()).unwrap();

    assert_eq!(second, Access::Stalled);
}
