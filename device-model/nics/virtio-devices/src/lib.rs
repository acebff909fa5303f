//! Virtio devices that Linux drives with its own drivers, beside the network device.
//!
//! In: queues in client memory; the host's files and random bytes. Out: filled buffers, interrupts.
//! May touch: core, family, kit, virtio.
//!
//! | module | contents |
//! | --- | --- |
//! | [`blk`] | a disk, whose contents are a file |
//! | [`rng`] | a source of random bytes |
//! | [`console`] | a console: a line to a client of a socket, or to a file |
//! | [`family`] | the kinds of devices for machine files |
//!
//! Work that may wait for the host runs in a companion of the device. The engine never waits.
//!
//! Source of all registers and rules: *Virtual I/O Device (VIRTIO) Version 1.2*, whose sections are
//! named at each item.
#![forbid(unsafe_code)]

pub mod blk;
pub mod console;
pub mod family;
pub mod rng;

pub use self::family::kinds;
