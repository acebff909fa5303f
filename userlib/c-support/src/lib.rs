//! The common part of the libraries' C APIs.
//!
//! C calls pass raw pointers. They get numbers, of which negative ones are from errno.h, and the
//! text of a thread's last failure. No panic crosses the boundary.
//!
//! - `failure.rs`: [`Failure`], and the guards that enclose every call of a C API;
//! - `handle.rs`: [`Handle`], the object behind a C pointer, and the common way to open a device;
//! - `pointers.rs`: C pointers as references and slices. All unsafe code is there.
//!
//! Each C API is a crate of its own, built as a static and a shared library. It has its own copy of
//! the last failure.
#![deny(unsafe_code)]

mod failure;
mod handle;
mod pointers;

pub use failure::{
    Failure, driver_errno, guarded_count, guarded_number, guarded_size, guarded_status, last_error,
};
pub use handle::{Handle, open_device, timeout};
pub use pointers::{input, non_null, options, output, path, reference, release};
