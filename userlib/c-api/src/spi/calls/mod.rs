//! The functions of the SPI.
//!
//! UNSAFETY: a C API takes raw pointers. NULL is refused. Each function documents its other
//! requirements. A subgroup's pointer, which the public structures carry, is valid until
//! nicforge_spi_close.
#![allow(unsafe_code, reason = "C passes raw pointers")]

mod barriers;
mod classes;
mod fifos;
mod global;
mod injection;
mod interrupts;
mod kernel;
mod messages;
mod reception;

use nicforge_spi::Resource;

pub use self::barriers::*;
use self::classes::class;
pub use self::classes::*;
pub use self::fifos::*;
pub use self::global::*;
pub use self::injection::*;
pub use self::interrupts::*;
pub use self::kernel::*;
pub use self::messages::*;
pub use self::reception::*;

use super::{
    failure::invalid,
    library,
    subgroup::{Inner, nicforge_spi_subgroup},
};
use crate::support::{Failure, HasHandle, non_null, reference};

/// Returns the list of `count` numbers of a subgroup's resources that C passes.
///
/// # Safety
/// `numbers` is NULL, or has `count` valid numbers as long as the result is used.
unsafe fn numbers<'a>(resource: Resource, numbers: *const u32, count: u32) -> Result<&'a [u32], Failure> {
    if count > resource.count().into() {
        return Err(invalid(format!("{count} {resource}s: a subgroup has {}", resource.count())));
    }
    if count == 0 {
        return Ok(&[]);
    }

    let numbers = non_null(numbers.cast_mut(), "the list of numbers")?;
    // SAFETY: not NULL, and `count` numbers by this function's contract.
    Ok(unsafe { std::slice::from_raw_parts(numbers.as_ptr(), count as usize) })
}

/// Calls `call` with a subgroup whose pointer a public structure carries.
///
/// # Errors
/// Returns `EFAULT` for NULL, `EPERM` if a parent of this process has opened the subgroup, and the
/// errors of `call`.
///
/// # Safety
/// `owner` is NULL or valid.
unsafe fn with_owner<R>(
    owner: *const nicforge_spi_subgroup,
    call: impl FnOnce(&mut Inner) -> Result<R, Failure>,
) -> Result<R, Failure> {
    library::check_owner()?;
    // SAFETY: NULL or valid by this function's contract.
    unsafe { reference(owner) }?.handle().with(|inner, _| call(inner))
}

/// Returns the number of a FIFO, entry or line for the library. A number that is too high becomes
/// one that the library refuses.
fn library_number(number: u32) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}
