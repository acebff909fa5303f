//! The input filters, in time that the tests control.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use nicforge_core::{
    ids::{AttachmentId, FunctionId},
    machine::{Access, Machine},
    time::Nanos,
};
use nicforge_hwi::idio16::*;
use nicforge_idio16::Idio16;

const CARD: FunctionId = FunctionId(0);
const USER: AttachmentId = AttachmentId(0);
const PORTS_REGION: u32 = PORTS_BAR as u32;

/// Returns a machine with the card and one client, stepped at time 0.
fn machine() -> Machine {
    let mut machine = Machine::new();
    machine.add_function("gpio0", Box::new(Idio16::default())).unwrap();
    machine.attach(CARD, USER).unwrap();
    machine.step(Nanos(0), 1);
    machine
}

/// Reads a port.
fn read(machine: &mut Machine, port: u64) -> u8 {
    let mut data = [0];
    assert_eq!(machine.read(CARD, USER, PORTS_REGION, port, &mut data).unwrap(), Access::Done);
    data[0]
}

/// Writes a port.
fn write(machine: &mut Machine, port: u64, value: u8) {
    assert_eq!(machine.write(CARD, USER, PORTS_REGION, port, &[value]).unwrap(), Access::Done);
}

/// Returns inputs 0 to 7 after a step at `time`.
fn inputs_at(machine: &mut Machine, time: u64) -> u8 {
    machine.step(Nanos(time), 1);
    read(machine, INPUTS_LOW)
}

#[test]
fn a_filter_holds_a_change_for_its_time() {
    let mut machine = machine();
    read(&mut machine, FILTER_CONTROL);

    write(&mut machine, OUTPUTS_LOW, 0x01);

    assert_eq!(inputs_at(&mut machine, FILTER_NS - 1), 0x00);
    assert_eq!(inputs_at(&mut machine, FILTER_NS), 0x01);
}

#[test]
fn a_shorter_pulse_is_never_seen() {
    let mut machine = machine();
    read(&mut machine, FILTER_CONTROL);
    read(&mut machine, INTERRUPT_CONTROL);

    write(&mut machine, OUTPUTS_LOW, 0x01);
    machine.step(Nanos(FILTER_NS / 2), 1);
    write(&mut machine, OUTPUTS_LOW, 0x00);

    assert_eq!(inputs_at(&mut machine, 2 * FILTER_NS), 0x00);
    assert_eq!(read(&mut machine, INTERRUPT_STATUS), 0);
}

#[test]
fn each_line_has_a_filter_of_its_own() {
    let mut machine = machine();
    read(&mut machine, FILTER_CONTROL);

    write(&mut machine, OUTPUTS_LOW, 0x01);
    machine.step(Nanos(1000), 1);
    write(&mut machine, OUTPUTS_LOW, 0x03);

    assert_eq!(inputs_at(&mut machine, FILTER_NS), 0x01);
    assert_eq!(inputs_at(&mut machine, FILTER_NS + 1000), 0x03);
}

#[test]
fn the_filters_of_the_low_lines_can_be_chosen() {
    let mut machine = machine();
    write(&mut machine, FILTERS_LOW, 0xf0);
    assert_eq!(read(&mut machine, FILTERS_LOW), 0xf0);

    write(&mut machine, OUTPUTS_LOW, 0xff);
    assert_eq!(read(&mut machine, INPUTS_LOW), 0x0f);
    write(&mut machine, OUTPUTS_HIGH, 0xff);
    assert_eq!(read(&mut machine, INPUTS_HIGH), 0xff);

    assert_eq!(inputs_at(&mut machine, FILTER_NS), 0xff);
}

#[test]
fn the_filters_of_all_lines_go_before_those_of_one() {
    let mut machine = machine();
    read(&mut machine, FILTER_CONTROL);

    write(&mut machine, FILTERS_LOW, 0x00);
    assert_eq!(read(&mut machine, FILTERS_LOW), 0xff);
    write(&mut machine, FILTER_CONTROL, 0);

    assert_eq!(read(&mut machine, FILTERS_LOW), 0x00);
}

#[test]
fn a_filter_that_is_switched_off_lets_its_line_through() {
    let mut machine = machine();
    read(&mut machine, FILTER_CONTROL);
    write(&mut machine, OUTPUTS_LOW, 0x01);

    write(&mut machine, FILTER_CONTROL, 0);

    assert_eq!(read(&mut machine, INPUTS_LOW), 0x01);
}
