//! Identity, registers and descriptors of the card.

use nicforge_core::register::Register;

/// Vendor id. This number belongs to no vendor and is common for experiments.
pub const VENDOR: u16 = 0x1234;
/// Device id.
pub const DEVICE: u16 = 0xc0de;

/// The longest frame in bytes.
pub const MAX_FRAME: usize = 1500;

/// BAR 0, 64 bits, write: the doorbell of sending. The value is the address of a descriptor.
pub const REG_SEND: u64 = 0x00;
/// BAR 0, 64 bits, write: the doorbell of receiving. The value is the address of a descriptor. The
/// card keeps the descriptor for the next frame that arrives.
pub const REG_RECEIVE: u64 = 0x08;
/// BAR 0, 64 bits, read: the number of frames sent.
pub const REG_SENT: u64 = 0x10;
/// BAR 0, 64 bits, read: the number of frames received.
pub const REG_RECEIVED: u64 = 0x18;

// ANCHOR: declarations
/// The declarations of the registers, by which `regs` and traces show accesses.
pub static REGISTERS: &[Register] = &[
    Register::wo64("SEND", 0, REG_SEND).about("doorbell: address of a descriptor"),
    Register::wo64("RECEIVE", 0, REG_RECEIVE).about("doorbell: address of a descriptor"),
    Register::ro64("SENT", 0, REG_SENT).about("frames sent"),
    Register::ro64("RECEIVED", 0, REG_RECEIVED).about("frames received"),
];
// ANCHOR_END: declarations

/// Vector of the interrupt after a descriptor of sending has its result.
pub const VECTOR_SENT: u16 = 0;
/// Vector of the interrupt after a descriptor of receiving has its result.
pub const VECTOR_RECEIVED: u16 = 1;
/// Number of vectors.
pub const VECTORS: u16 = 2;

/// A descriptor in client memory, 16 bytes, aligned to 16. Its fields are little-endian.
///
/// The card writes the last 8 bytes, [`Descriptor::length`] and [`Descriptor::status`], as one word
/// when the work is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Address of the frame's bytes.
    pub address: u64,
    /// Bytes at `address`: the frame to send, or the room for one to receive. The card replaces the
    /// room by the length of the frame that it has received.
    pub length: u32,
    /// The result: one of [`status`].
    pub status: u32,
}

/// Values of [`Descriptor::status`].
pub mod status {
    /// The card has not finished. Software stores this value.
    pub const PENDING: u32 = 0;
    /// The frame was sent or received.
    pub const DONE: u32 = 1;
    /// The frame is longer than [`super::MAX_FRAME`], or than the room for it.
    pub const BAD_LENGTH: u32 = 2;
    /// The memory at [`super::Descriptor::address`] can't be reached.
    pub const BAD_ADDRESS: u32 = 3;
}

impl Descriptor {
    /// Size in bytes.
    pub const SIZE: usize = 16;
    /// Offset of the word with length and status.
    pub const RESULT: u64 = 8;

    /// Returns the descriptor in these bytes.
    pub fn from_bytes(bytes: &[u8; Self::SIZE]) -> Self {
        let value = u128::from_le_bytes(*bytes);
        Self { address: value as u64, length: (value >> 64) as u32, status: (value >> 96) as u32 }
    }

    /// Returns the bytes of the descriptor.
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let result = u128::from(Self::result(self.length, self.status));
        (u128::from(self.address) | result << 64).to_le_bytes()
    }

    /// Returns the word with length and status.
    pub const fn result(length: u32, status: u32) -> u64 {
        length as u64 | (status as u64) << 32
    }
}
