//! Identity and registers of the card. Write those of your card here.

use nicforge_core::register::{Access, Field, Register};

/// Vendor id. This number belongs to no vendor and is common for experiments. The driver's table
/// has that of your card.
pub const VENDOR: u16 = 0x1234;
/// Device id.
pub const DEVICE: u16 = 0xc0df;
/// Class: an Ethernet controller.
pub const CLASS: u32 = 0x02_00_00;

/// BAR of the registers, and its size in bytes. All registers have 32 bits.
pub const BAR: u8 = 0;
pub const BAR_SIZE: u64 = 0x1000;

/// Write: [`control`].
pub const REG_CONTROL: u64 = 0x00;
/// Read: [`status`].
pub const REG_STATUS: u64 = 0x04;
/// Read: the events since they were cleared, bits of [`event`]. A write clears its bits.
pub const REG_EVENTS: u64 = 0x08;
/// Read and write: the events that assert the interrupt line.
pub const REG_ENABLED: u64 = 0x0c;

/// The declarations of the registers, by which `regs` and traces show accesses.
pub static REGISTERS: &[Register] = &[
    Register::wo32("CONTROL", BAR, REG_CONTROL).fields(&[Field::bit("RESET", 0)]),
    Register::ro32("STATUS", BAR, REG_STATUS).fields(&[Field::bit("LINK_UP", 0)]),
    Register::rw32("EVENTS", BAR, REG_EVENTS).access(Access::WriteOneClears).fields(EVENTS),
    Register::rw32("ENABLED", BAR, REG_ENABLED).fields(EVENTS),
];
/// The fields of the events.
const EVENTS: &[Field] = &[Field::bit("LINK", 0), Field::bit("MISSED", 1)];

/// Bits of [`REG_CONTROL`].
pub mod control {
    /// Return to the state of power-on.
    pub const RESET: u32 = 1 << 0;
}

/// Bits of [`REG_STATUS`].
pub mod status {
    /// The link is up.
    pub const LINK_UP: u32 = 1 << 0;
}

/// Bits of [`REG_EVENTS`] and [`REG_ENABLED`].
pub mod event {
    /// The link has gone up or down.
    pub const LINK: u32 = 1 << 0;
    /// A frame was dropped, because there was no buffer for it.
    pub const MISSED: u32 = 1 << 1;
    /// All events.
    pub const ALL: u32 = LINK | MISSED;
}
