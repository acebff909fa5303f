//! The hardware interface of the nicforge devices, shared by both sides of a BAR.
//!
//! The crate defines register offsets, bit fields, descriptors and packet headers, as constants and
//! `#[repr(C)]` types. A device model, the user library that drives it, and (through a C header)
//! the kernel shim all use them, so that they can't differ. The crate depends on nothing else of
//! the project, allocates nothing and does no I/O.
//!
//! All multi-byte fields are little-endian unless a type says otherwise.
#![no_std]

pub mod attachment;
pub mod extoll;
pub mod extoll_atu;
pub mod extoll_rma;
pub mod extoll_velo;
pub mod idio16;
pub mod mu;
pub mod mu_dcr;
pub mod mu_packet;
pub mod nd_dcr;
pub mod pci;
pub mod posted;
pub mod proof;
pub mod register;
pub mod seastar;
pub mod shim;
pub mod torus;
pub mod torus_dcr;
pub mod torus_packet;
pub mod tree;
pub mod tree_dcr;
