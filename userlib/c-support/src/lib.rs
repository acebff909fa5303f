//! What the C APIs of the libraries have in common.
//!
//! In: calls that C makes, with raw pointers. Out: numbers, negative ones from errno.h, and the text of a thread's last failure. No panic
//! crosses the boundary.
//!
//! - `failure.rs`: [`Failure`], and the guards that every call of a C API runs in;
//! - `handle.rs`: [`Handle`], what is behind the pointer that C has; opening a device as all of them do;
//! - `pointers.rs`: pointers of C as references and slices. All that is unsafe is there.
//!
//! A C API is a crate of its own that is a static and a shared library. It has its own copy of the last failure.
#![deny(unsafe_code)]

mod failure;
mod handle;
mod pointers;

pub use failure::{
    Failure, driver_errno, guarded_count, guarded_number, guarded_size, guarded_status, last_error,
};
pub use handle::{Handle, open_device, timeout};
pub use pointers::{input, non_null, options, output, path, reference, release};
