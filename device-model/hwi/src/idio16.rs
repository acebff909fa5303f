//! Registers of the ACCES PCI-IDIO-16, the PCI card of the 104-IDIO-16 family. It has 16 isolated
//! outputs and 16 isolated inputs, and raises an interrupt when an input changes.
//!
//! The registers are eight byte-wide I/O ports in BAR 2. Many ports have different functions for
//! reads and writes.
//!
//! Sources: ACCES I/O Products, *PCI-IDIO-16 User Manual*, chapter 4 (addresses, filters); Linux
//! 6.1's driver `gpio-pci-idio-16` (the bits of [`INTERRUPT_STATUS`]).

use crate::register::{Access, Field, Register};

/// Vendor id of ACCES I/O Products.
pub const VENDOR_ACCES: u16 = 0x494f;
/// Device id of the PCI-IDIO-16.
pub const DEVICE_PCI_IDIO_16: u16 = 0x0dc8;

/// The BAR of all registers: I/O ports.
pub const PORTS_BAR: u8 = 2;
/// Number of ports.
pub const PORTS: u64 = 8;
/// Number of lines in each direction. Line `n` is bit `n % 8` of the low (`n < 8`) or high port.
pub const LINES: usize = 16;

/// Read-write: outputs 0 to 7; 1 switches the output on.
pub const OUTPUTS_LOW: u64 = 0;
/// Read: inputs 0 to 7 after their filters; 1 is energized. Write, any value: clears
/// [`INTERRUPT_STATUS`].
pub const INPUTS_LOW: u64 = 1;
/// Read: enables the interrupt. Write, any value: disables it.
pub const INTERRUPT_CONTROL: u64 = 2;
/// Read: activates the filters of all inputs. Write, any value: deactivates them.
pub const FILTER_CONTROL: u64 = 3;
/// Read-write: outputs 8 to 15.
pub const OUTPUTS_HIGH: u64 = 4;
/// Read: inputs 8 to 15.
pub const INPUTS_HIGH: u64 = 5;
/// Read: interrupt status, [`STATUS_CHANGED_LOW`] and so on.
pub const INTERRUPT_STATUS: u64 = 6;
/// Read-write: one bit for each of inputs 0 to 7, set if its filter is active. It can't be written
/// while the filters of all inputs are active.
pub const FILTERS_LOW: u64 = 7;

/// An input of 0 to 7 changed.
pub const STATUS_CHANGED_LOW: u8 = 1 << 0;
/// An input of 8 to 15 changed.
pub const STATUS_CHANGED_HIGH: u8 = 1 << 1;
/// An interrupt of the card is pending.
pub const STATUS_PENDING: u8 = 1 << 2;

/// Time for which an input must keep a new level to pass its filter, in nanoseconds.
pub const FILTER_NS: u64 = 5_000_000;

/// The declarations of the registers.
pub static REGISTER_MAP: &[Register] = &[
    Register::rw8("OUTPUTS_LOW", PORTS_BAR, OUTPUTS_LOW).about("outputs 0 to 7"),
    Register::rw8("INPUTS_LOW", PORTS_BAR, INPUTS_LOW).about("inputs 0 to 7; a write clears the changes"),
    Register::rw8("INTERRUPT_CONTROL", PORTS_BAR, INTERRUPT_CONTROL)
        .access(Access::Strobe)
        .about("a read enables the interrupt, a write disables it"),
    Register::rw8("FILTER_CONTROL", PORTS_BAR, FILTER_CONTROL)
        .access(Access::Strobe)
        .about("a read activates all filters, a write deactivates them"),
    Register::rw8("OUTPUTS_HIGH", PORTS_BAR, OUTPUTS_HIGH).about("outputs 8 to 15"),
    Register::ro8("INPUTS_HIGH", PORTS_BAR, INPUTS_HIGH).about("inputs 8 to 15"),
    Register::ro8("INTERRUPT_STATUS", PORTS_BAR, INTERRUPT_STATUS).fields(&[
        Field::mask("CHANGED_LOW", STATUS_CHANGED_LOW as u64),
        Field::mask("CHANGED_HIGH", STATUS_CHANGED_HIGH as u64),
        Field::mask("PENDING", STATUS_PENDING as u64),
    ]),
    Register::rw8("FILTERS_LOW", PORTS_BAR, FILTERS_LOW).about("active filters of inputs 0 to 7"),
];
