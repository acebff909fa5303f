//! Whole-system tests: test bodies that run identically through every door to a device.
//!
//! A body gets a [`backing::Rig`], which opens attachments of a machine. The body does not depend
//! on whether the machine is in this process, behind sockets or outside a guest. Each body
//! registers itself in [`bodies`], and the test program `bodies` runs it once for each machine and
//! door of the host. In the program `suite`, `interop` has the `vfio_user` crate at the other end
//! of the socket, and `conformance` compares the book's tables with the sources.
//!
//! This crate may depend on every other one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "all of this crate is tests")]

pub mod backing;
pub mod bgl_body;
pub mod bodies;
pub mod exchange;
pub mod extoll_body;
pub mod fcnp_body;
pub mod guest;
pub mod guest_program;
pub mod guest_rig;
pub mod idio16_body;
pub mod matching_body;
pub mod mu_body;
pub mod own_devices;
pub mod own_vm;
pub mod pattern;
pub mod portals_body;
pub mod portals_mpi_body;
pub mod proof_body;
pub mod random;
pub mod rma_body;
pub mod spi_body;
pub mod tree_body;
pub mod velo_body;
pub mod virtio_body;
pub mod virtio_devices_body;
