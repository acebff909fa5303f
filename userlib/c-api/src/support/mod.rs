//! The common part of the protocols' calls.
//!
//! C calls pass raw pointers. They get numbers, of which negative ones are from errno.h, and the
//! text of a thread's last failure. No panic crosses the boundary.
//!
//! - `failure.rs`: [`Failure`], and the guards that enclose every call of a C API;
//! - `handle.rs`: [`Handle`], the object behind a C pointer, and the common way to open a device;
//! - `pointers.rs`: C pointers as references and slices. All unsafe code of this module is there.

mod failure;
mod handle;
mod pointers;

pub(crate) use failure::{
    Failure, driver_errno, guarded_count, guarded_number, guarded_size, guarded_status, inherited, last_error,
};
pub(crate) use handle::{Handle, HasHandle, open_device, timeout};
#[cfg(test)]
pub(crate) use pointers::Opened;
pub(crate) use pointers::{
    check_buffer, input, is_inherited, non_null, opened, options_or_default, output, path, reference,
    release, store_opened, take_opened, with_object,
};
