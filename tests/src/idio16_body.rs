//! Test bodies of the PCI-IDIO-16, a function with I/O ports and INTx only. It has none of the
//! core's rings, mirrors and MSI-X.
//!
//! Each body gets a machine of its own ([`machine`]) behind some door.

use std::time::Duration;

use nicforge_core::machine::Machine;
use nicforge_driver::{Bar, Deadline, Device, Error, IRQ_INTX};
use nicforge_hwi::idio16::*;
use nicforge_idio16::Idio16;
use nicforge_test_body::body;

use crate::{
    backing::{Rig, test_deadline},
    bodies::{Guests, TestMachine},
};

/// The machine of all bodies of the card.
pub static MACHINE: TestMachine = TestMachine {
    name: "idio16",
    make: machine,
    guests: Guests::None("in a guest, Linux drives the card with its own driver"),
};

/// Long enough that only a blocked operation exceeds it, and short enough to wait for.
const SHORT: Duration = Duration::from_millis(20);

/// Returns a machine with one card, `gpio0`.
pub fn machine() -> Machine {
    let mut machine = Machine::new();
    machine.add_function("gpio0", Box::new(Idio16::default())).unwrap();
    machine
}

/// Opens the card. Returns it and its ports.
fn open(rig: &dyn Rig) -> (Device, Bar) {
    let device = rig.open("gpio0", "user0");
    let ports = device.bar(PORTS_BAR).unwrap();
    (device, ports)
}

/// Reads the ports that have no side effects when read.
fn levels(ports: &Bar) -> [u8; 6] {
    [OUTPUTS_LOW, OUTPUTS_HIGH, INPUTS_LOW, INPUTS_HIGH, INTERRUPT_STATUS, FILTERS_LOW]
        .map(|port| ports.read8(port).unwrap())
}

/// The driver library identifies the IDIO-16 as a plain PCI function.
#[body]
pub fn the_card_is_identified_as_a_plain_pci_function(rig: &dyn Rig) {
    let (device, ports) = open(rig);

    let identity = device.identity();
    assert_eq!((identity.vendor, identity.device), (VENDOR_ACCES, DEVICE_PCI_IDIO_16));
    assert!(!device.has_attachment());
    assert_eq!((ports.size(), ports.info().mappable.len()), (PORTS, 0));
    assert!(matches!(device.bar(0), Err(Error::NoSuch { .. })));
    assert!(device.interrupt(0).is_err());
}

/// Every single line, and all of them at once, is seen at the inputs.
#[body]
pub fn inputs_follow_the_outputs(rig: &dyn Rig) {
    let (_device, ports) = open(rig);

    for lines in (0..LINES).map(|line| 1 << line).chain([0xa55a, 0xffff, 0]) {
        let [low, high] = u16::to_le_bytes(lines);
        ports.write8(OUTPUTS_LOW, low).unwrap();
        ports.write8(OUTPUTS_HIGH, high).unwrap();

        assert_eq!(levels(&ports), [low, high, low, high, 0, 0]);
    }
}

// ANCHOR: interrupt
/// The interrupt is a level: it stays until the change is cleared. The status tells in which half
/// the change was.
#[body]
pub fn a_change_interrupts_until_it_is_cleared(rig: &dyn Rig) {
    let (device, ports) = open(rig);
    let line = device.intx().unwrap();
    ports.read8(INTERRUPT_CONTROL).unwrap();

    for (port, bit) in [(OUTPUTS_LOW, STATUS_CHANGED_LOW), (OUTPUTS_HIGH, STATUS_CHANGED_HIGH)] {
        for value in [0x10, 0] {
            ports.write8(port, value).unwrap();

            assert_eq!(line.wait(test_deadline(), None).unwrap(), 1);
            assert_eq!(ports.read8(INTERRUPT_STATUS).unwrap(), STATUS_PENDING | bit);

            line.unmask().unwrap();
            assert_eq!(line.wait(test_deadline(), None).unwrap(), 1, "it was not cleared yet");

            ports.write8(INPUTS_LOW, 0).unwrap();
            assert_eq!(ports.read8(INTERRUPT_STATUS).unwrap(), 0);

            line.unmask().unwrap();
            assert_eq!(line.take(), 0);
        }
    }
}
// ANCHOR_END: interrupt

/// A masked line keeps its interrupt until it is unmasked.
#[body]
pub fn a_masked_change_interrupts_when_it_is_unmasked(rig: &dyn Rig) {
    let (device, ports) = open(rig);
    let line = device.intx().unwrap();
    ports.read8(INTERRUPT_CONTROL).unwrap();
    device.backing().mask(IRQ_INTX, 0, 1).unwrap();

    ports.write8(OUTPUTS_LOW, 1).unwrap();
    assert!(matches!(line.wait(Deadline::after(SHORT), None), Err(Error::Timeout { .. })));

    device.backing().unmask(IRQ_INTX, 0, 1).unwrap();
    assert_eq!(line.wait(test_deadline(), None).unwrap(), 1);
}

/// A change that comes while interrupts are disabled is not recorded. One that was recorded stays
/// when they are disabled, but interrupts no more.
#[body]
pub fn a_card_without_interrupt_enable_raises_no_interrupt(rig: &dyn Rig) {
    let (device, ports) = open(rig);
    let line = device.intx().unwrap();

    ports.write8(OUTPUTS_LOW, 1).unwrap();
    assert_eq!(ports.read8(INTERRUPT_STATUS).unwrap(), 0);

    ports.read8(INTERRUPT_CONTROL).unwrap();
    ports.write8(OUTPUTS_LOW, 1).unwrap();
    assert_eq!(ports.read8(INTERRUPT_STATUS).unwrap(), 0, "the same level is no change");

    ports.write8(OUTPUTS_LOW, 0).unwrap();
    ports.write8(INTERRUPT_CONTROL, 0).unwrap();

    assert_eq!(ports.read8(INTERRUPT_STATUS).unwrap(), STATUS_CHANGED_LOW);
    assert_eq!(line.wait(test_deadline(), None).unwrap(), 1);

    line.unmask().unwrap();
    assert!(matches!(line.wait(Deadline::after(SHORT), None), Err(Error::Timeout { .. })));
}

/// Wide accesses equal a sequence of byte accesses, with all their effects.
#[body]
pub fn wide_accesses_equal_accesses_to_their_bytes(rig: &dyn Rig) {
    let (device, ports) = open(rig);
    let line = device.intx().unwrap();

    // Ports 0 to 3: outputs, inputs, then two that enable interrupts and filters when read and have
    // no value.
    ports.write8(OUTPUTS_LOW, 0x42).unwrap();

    assert_eq!(ports.read32(OUTPUTS_LOW).unwrap(), 0xffff_4242);
    assert_eq!(ports.read8(FILTERS_LOW).unwrap(), 0xff);

    // The write clears the status, disables both, and sets the outputs first.
    ports.write32(OUTPUTS_LOW, 0).unwrap();
    assert_eq!(levels(&ports), [0; 6]);

    // These two ports enable interrupts and filters when read, and disable them when written.
    ports.read16(INTERRUPT_CONTROL).unwrap();
    ports.write16(INTERRUPT_CONTROL, 0).unwrap();

    // All eight ports: outputs, the filters of inputs 0 to 3, and no enabling of the interrupt.
    ports.write64(OUTPUTS_LOW, 0x0f_00_00_81_00_00_00_10).unwrap();

    assert_eq!(levels(&ports), [0x10, 0x81, 0x10, 0x81, 0, 0x0f]);
    assert_eq!(line.take(), 0);
}

/// A filtered input follows later by itself, and interrupts then.
#[body]
pub fn a_filtered_change_interrupts_later(rig: &dyn Rig) {
    let (device, ports) = open(rig);
    let line = device.intx().unwrap();
    ports.read8(FILTER_CONTROL).unwrap();
    ports.read8(INTERRUPT_CONTROL).unwrap();

    ports.write8(OUTPUTS_HIGH, 0x80).unwrap();
    line.wait(test_deadline(), None).unwrap();

    assert_eq!(ports.read8(INPUTS_HIGH).unwrap(), 0x80);
    assert_eq!(ports.read8(INTERRUPT_STATUS).unwrap(), STATUS_PENDING | STATUS_CHANGED_HIGH);
}

/// A reset by the client switches all outputs off and clears a pending interrupt.
#[body]
pub fn a_reset_clears_the_outputs_and_disables_interrupts(rig: &dyn Rig) {
    let (device, ports) = open(rig);
    let line = device.intx().unwrap();
    ports.read8(INTERRUPT_CONTROL).unwrap();
    ports.write8(OUTPUTS_LOW, 0xff).unwrap();
    line.wait(test_deadline(), None).unwrap();

    device.reset().unwrap();
    assert_eq!(levels(&ports), [0; 6]);

    let line = device.intx().unwrap();
    ports.write8(OUTPUTS_LOW, 0xff).unwrap();

    assert!(matches!(line.wait(Deadline::after(SHORT), None), Err(Error::Timeout { .. })));
}

/// The next client finds the card in its power-on state.
#[body]
pub fn the_next_client_finds_the_power_on_state(rig: &dyn Rig) {
    let (device, ports) = open(rig);
    ports.read8(INTERRUPT_CONTROL).unwrap();
    ports.write8(OUTPUTS_LOW, 0xff).unwrap();
    ports.read8(FILTER_CONTROL).unwrap();
    drop((device, ports));

    let (_device, ports) = open(rig);
    assert_eq!(levels(&ports), [0; 6]);
}

/// The card has one client at a time.
#[body]
pub fn a_second_client_is_refused(rig: &dyn Rig) {
    let (_device, _ports) = open(rig);

    assert!(rig.try_open("gpio0", "user0").is_err());
}
