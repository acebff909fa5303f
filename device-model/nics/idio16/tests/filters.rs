//! The input filters, in time that the tests control.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use nicforge_core::{
    ids::{Address, AttachmentId},
    register::show,
    time::Nanos,
};
use nicforge_hwi::idio16::*;
use nicforge_idio16::Idio16;
use nicforge_test_kit::{Client, Testbed};

/// The card with one client, and the time that a test controls.
struct Card {
    bed: Testbed,
    user: Client,
}

impl Card {
    /// Returns a machine with the card and one client, stepped at time 0.
    fn new() -> Self {
        let mut bed = Testbed::new();
        let card = bed.add("gpio0", Idio16::default());
        let user = Client::attach(&mut bed, card, AttachmentId(0));
        bed.step(1);
        Self { bed, user }
    }

    /// Reads a port.
    fn read(&mut self, port: u64) -> u8 {
        self.user.read8(&mut self.bed, PORTS_BAR.into(), port)
    }

    /// Writes a port.
    fn write(&mut self, port: u64, value: u8) {
        self.user.write8(&mut self.bed, PORTS_BAR.into(), port, value);
    }

    /// Steps the card at `time`.
    fn step_at(&mut self, time: u64) {
        self.bed.advance_to(Nanos(time));
        self.bed.step(1);
    }

    /// Returns inputs 0 to 7 after a step at `time`.
    fn inputs_at(&mut self, time: u64) -> u8 {
        self.step_at(time);
        self.read(INPUTS_LOW)
    }
}

#[test]
fn a_filter_holds_a_change_for_its_time() {
    let mut card = Card::new();
    card.read(FILTER_CONTROL);

    card.write(OUTPUTS_LOW, 0x01);

    assert_eq!(card.inputs_at(FILTER_NS - 1), 0x00);
    assert_eq!(card.inputs_at(FILTER_NS), 0x01);
}

#[test]
fn a_shorter_pulse_is_never_seen() {
    let mut card = Card::new();
    card.read(FILTER_CONTROL);
    card.read(INTERRUPT_CONTROL);

    card.write(OUTPUTS_LOW, 0x01);
    card.step_at(FILTER_NS / 2);
    card.write(OUTPUTS_LOW, 0x00);

    assert_eq!(card.inputs_at(2 * FILTER_NS), 0x00);
    assert_eq!(card.read(INTERRUPT_STATUS), 0);
}

#[test]
fn each_line_has_a_filter_of_its_own() {
    let mut card = Card::new();
    card.read(FILTER_CONTROL);

    card.write(OUTPUTS_LOW, 0x01);
    card.step_at(1000);
    card.write(OUTPUTS_LOW, 0x03);

    assert_eq!(card.inputs_at(FILTER_NS), 0x01);
    assert_eq!(card.inputs_at(FILTER_NS + 1000), 0x03);
}

#[test]
fn the_filters_of_the_low_lines_can_be_chosen() {
    let mut card = Card::new();
    card.write(FILTERS_LOW, 0xf0);
    assert_eq!(card.read(FILTERS_LOW), 0xf0);

    card.write(OUTPUTS_LOW, 0xff);
    assert_eq!(card.read(INPUTS_LOW), 0x0f);
    card.write(OUTPUTS_HIGH, 0xff);
    assert_eq!(card.read(INPUTS_HIGH), 0xff);

    assert_eq!(card.inputs_at(FILTER_NS), 0xff);
}

#[test]
fn the_filter_command_for_all_lines_overrides_that_for_one() {
    let mut card = Card::new();
    card.read(FILTER_CONTROL);

    card.write(FILTERS_LOW, 0x00);
    assert_eq!(card.read(FILTERS_LOW), 0xff);
    card.write(FILTER_CONTROL, 0);

    assert_eq!(card.read(FILTERS_LOW), 0x00);
}

#[test]
fn a_filter_that_is_switched_off_lets_its_line_through() {
    let mut card = Card::new();
    card.read(FILTER_CONTROL);
    card.write(OUTPUTS_LOW, 0x01);

    card.write(FILTER_CONTROL, 0);

    assert_eq!(card.read(INPUTS_LOW), 0x01);
}

#[test]
fn declared_ports_show_what_a_driver_reads() {
    let mut card = Card::new();
    card.read(INTERRUPT_CONTROL);
    card.write(OUTPUTS_LOW, 0x81);
    card.write(OUTPUTS_HIGH, 0x02);

    let mut status = [0];
    let at = Address { bar: PORTS_BAR, offset: INTERRUPT_STATUS };
    assert!(card.bed.peek(card.user.function, card.user.attachment, at, &mut status));
    let shown = show(card.bed.registers(card.user.function), at.bar, at.offset, &status).to_string();
    assert_eq!(shown, "INTERRUPT_STATUS 0x07 CHANGED_LOW CHANGED_HIGH PENDING");

    // Ports without a value are left alone: a read of one would enable the filters.
    let compared = card.user.compare_peeks(&mut card.bed);
    assert_eq!(compared.len(), 6);
    assert!(!compared.contains(&"FILTER_CONTROL"));
    assert_eq!(card.read(FILTERS_LOW), 0);
}
