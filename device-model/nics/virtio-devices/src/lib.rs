//! Virtio devices that Linux drives with its own drivers, beside the network device.
//!
//! In: queues in client memory; the host's random bytes. Out: filled buffers, interrupts. May
//! touch: core, family, kit, virtio.
//!
//! | module | contents |
//! | --- | --- |
//! | [`rng`] | a source of random bytes |
//! | [`family`] | the kinds of devices for machine files |
//!
//! What may wait for the host runs in a companion of the device, so that the engine never waits.
//!
//! Source of all registers and rules: *Virtual I/O Device (VIRTIO) Version 1.2*, whose sections are
//! named at each item.
#![forbid(unsafe_code)]

pub mod family;
pub mod rng;

pub use self::family::kinds;
