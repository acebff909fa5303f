//! Tests of the model alone, in virtual time.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use ferry::{
    device::Ferry,
    registers::{BAR, REG_CONTROL, REG_ENABLED, REG_EVENTS, REG_STATUS, control, event, status},
};
use nicforge_core::{fabric::LinkSpec, ids::AttachmentId, interrupt::INTX};
use nicforge_test_kit::{Client, InterruptCount, LogLines, PeerPacket, PeerPort, Testbed};

/// The card with its driver's accesses, and the other end of its link.
struct Card {
    bed: Testbed,
    driver: Client,
    line: Arc<InterruptCount>,
    peer: PeerPort,
}

impl Card {
    fn new() -> Self {
        let mut bed = Testbed::new();
        let function = bed.add("host0", Ferry::default());
        let driver = Client::attach(&mut bed, function, AttachmentId(0));
        let line = driver.bind(&mut bed, INTX, 0);
        let peer = bed.peer((function, 0), LinkSpec::default());
        bed.run_until_idle();
        Self { bed, driver, line, peer }
    }

    fn read(&mut self, register: u64) -> u32 {
        self.driver.read32(&mut self.bed, BAR.into(), register)
    }

    fn write(&mut self, register: u64, value: u32) {
        self.driver.write32(&mut self.bed, BAR.into(), register, value);
    }
}

#[test]
fn an_enabled_event_asserts_the_line_until_it_is_cleared() {
    let mut card = Card::new();
    let before = (card.read(REG_STATUS), card.read(REG_EVENTS), card.line.get());

    card.write(REG_ENABLED, event::LINK);
    let enabled = card.line.take();
    card.write(REG_EVENTS, event::LINK);

    assert_eq!(before, (status::LINK_UP, event::LINK, 0));
    assert_eq!((enabled, card.read(REG_EVENTS)), (1, 0));
}

#[test]
fn a_frame_without_a_buffer_is_dropped_and_counted() {
    let mut card = Card::new();
    card.write(REG_EVENTS, event::ALL);
    card.write(REG_ENABLED, event::MISSED);

    card.peer.send(&mut card.bed, 0, &PeerPacket::new(0, &[0; 60]));
    card.bed.run_until_idle();

    assert_eq!((card.read(REG_EVENTS), card.line.get()), (event::MISSED, 1));
}

#[test]
fn a_reset_by_the_driver_forgets_events_and_keeps_the_link() {
    let mut card = Card::new();
    card.write(REG_ENABLED, event::ALL);

    card.write(REG_CONTROL, control::RESET);

    assert_eq!((card.read(REG_EVENTS), card.read(REG_ENABLED)), (0, 0));
    assert_eq!(card.read(REG_STATUS), status::LINK_UP);
}

#[test]
fn a_write_that_the_model_does_not_know_is_in_the_log() {
    let mut card = Card::new();

    let lines = LogLines::of(|| card.write(REG_STATUS, 1));

    assert_eq!(lines.len(), 1);
    assert!(
        lines[0].starts_with("refused node=host0 attachment=user0 register=BAR0+0x4 value=0x1"),
        "{lines:?}"
    );
}
