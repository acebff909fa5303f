//! The common part of virtio devices on PCI: registers, negotiation, queues in client memory,
//! interrupts, and the answer to queues that break the rules.
//!
//! In: accesses to the registers, queues in client memory. Out: buffers for the device, interrupts.
//! May touch: core. The queues are those of the crate `virtio-queue`.
//!
//! | module | contents |
//! | --- | --- |
//! | [`registers`] | the registers and bits that drivers of all types need |
//! | [`queue`] | a virtqueue, with every descriptor checked |
//! | `transport` | virtio on PCI: negotiation, status, interrupts |
//! | [`function`] | the registers and queues of one device together |
//! | [`device`] | a device that serves its queues when there is work |
//!
//! A device of few needs is a [`Backend`] in a [`VirtioDevice`]. One with links or timers of its
//! own is a [`nicforge_core::device::Device`] that keeps a [`Function`].
//!
//! Source of all registers and rules: *Virtual I/O Device (VIRTIO) Version 1.2*, whose sections are
//! named at each item.
#![forbid(unsafe_code)]

pub mod device;
pub mod function;
pub mod queue;
pub mod registers;
mod transport;

pub use self::{
    device::{Backend, VirtioDevice},
    function::{Action, Function},
    queue::{Buffer, Direction, Pieces, QueueError, SplitQueue},
    transport::{Event, Model, USER},
};
