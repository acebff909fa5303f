//! Conversions of C pointers to Rust types.
//!
//! UNSAFETY: a C API takes raw pointers. NULL and impossible sizes are refused here. Everything
//! else is the contract of the C call to which the pointer was passed. Each function states the
//! part that it relies on.
#![allow(unsafe_code, reason = "pointers of C become references")]

use std::{
    ffi::{CStr, OsStr, OsString, c_char, c_void},
    os::unix::ffi::OsStrExt,
    ptr::NonNull,
};

use nicforge_driver::Cancel;

use super::{Failure, HasHandle};

/// Returns the pointer to a result, which must not be NULL. `name` is its name in the error's text.
///
/// # Errors
/// Returns `EFAULT` for NULL.
pub(crate) fn non_null<T>(pointer: *mut T, name: &str) -> Result<NonNull<T>, Failure> {
    NonNull::new(pointer).ok_or_else(|| Failure::new(libc::EFAULT, format!("{name} is NULL")))
}

/// Returns the object behind a handle.
///
/// # Errors
/// Returns `EFAULT` for NULL.
///
/// # Safety
/// `handle` is NULL, or valid for as long as the result is used.
pub(crate) unsafe fn reference<'a, T>(handle: *const T) -> Result<&'a T, Failure> {
    // SAFETY: `handle` is NULL or valid by this function's contract.
    unsafe { handle.as_ref() }.ok_or_else(|| Failure::new(libc::EFAULT, "the handle is NULL"))
}

/// Calls `call` with the object behind a handle of C and its cancellation token.
///
/// # Errors
/// Returns `EFAULT` for NULL, and the errors of [`super::Handle::with`].
///
/// # Safety
/// `handle` is NULL, or valid during the call.
pub(crate) unsafe fn with_object<H: HasHandle, R>(
    handle: *const H,
    call: impl FnOnce(&mut H::Object, &Cancel) -> Result<R, Failure>,
) -> Result<R, Failure> {
    // SAFETY: `handle` is NULL or valid by this function's contract.
    unsafe { reference(handle) }?.handle().with(call)
}

/// Calls `open`, and stores the object's handle in `*handle`, to be released by [`release`]. `name`
/// is the name of `handle` in the error's text.
///
/// # Errors
/// Returns `EFAULT` for NULL without a call of `open`, and the errors of `open`.
///
/// # Safety
/// `handle` is NULL or valid.
pub(crate) unsafe fn store_opened<H>(
    handle: *mut *mut H,
    name: &str,
    open: impl FnOnce() -> Result<H, Failure>,
) -> Result<(), Failure> {
    let handle = non_null(handle, name)?;
    let opened = Box::into_raw(Box::new(open()?));

    // SAFETY: `handle` is not NULL, and valid by this function's contract.
    unsafe { handle.write(opened) };
    Ok(())
}

/// Drops the object behind a handle. NULL is allowed.
///
/// # Safety
/// `handle` is NULL, or came from [`Box::into_raw`] and is not used any more.
pub(crate) unsafe fn release<T>(handle: *mut T) {
    if !handle.is_null() {
        // SAFETY: `handle` came from `Box::into_raw` and is not used any more by this function's
        // contract.
        drop(unsafe { Box::from_raw(handle) });
    }
}

/// Returns the options, or their default for NULL.
///
/// # Safety
/// `options` is NULL or valid.
pub(crate) unsafe fn options_or_default<T: Copy + Default>(options: *const T) -> T {
    // SAFETY: `options` is NULL or valid by this function's contract.
    unsafe { options.as_ref() }.copied().unwrap_or_default()
}

/// Returns a path, or `None` for NULL.
///
/// # Safety
/// `path` is NULL or a C string.
pub(crate) unsafe fn path(path: *const c_char) -> Option<OsString> {
    (!path.is_null()).then(|| {
        // SAFETY: `path` is not NULL, and a C string by this function's contract.
        let path = unsafe { CStr::from_ptr(path) };
        OsStr::from_bytes(path.to_bytes()).to_owned()
    })
}

/// Refuses NULL for a buffer with bytes, and a size that no buffer has.
///
/// # Errors
/// Returns `EFAULT` for NULL, and `EINVAL` for an impossible size.
pub(crate) fn check_buffer(pointer: *const c_void, size: usize) -> Result<(), Failure> {
    if pointer.is_null() && size != 0 {
        return Err(Failure::new(libc::EFAULT, "the buffer is NULL"));
    }
    if isize::try_from(size).is_err() {
        return Err(Failure::new(libc::EINVAL, "the buffer is larger than memory can be"));
    }
    Ok(())
}

/// Returns the bytes of an input buffer. NULL is allowed for size 0.
///
/// # Errors
/// Returns `EFAULT` for NULL, and `EINVAL` for an impossible size.
///
/// # Safety
/// `pointer` has `size` readable bytes, which no thread writes as long as the result is used.
pub(crate) unsafe fn input<'a>(pointer: *const c_void, size: usize) -> Result<&'a [u8], Failure> {
    check_buffer(pointer, size)?;

    if size == 0 {
        return Ok(&[]);
    }

    // SAFETY: `pointer` is not NULL, has a possible size, and is readable by this function's
    // contract.
    Ok(unsafe { std::slice::from_raw_parts(pointer.cast(), size) })
}

/// Returns the bytes of an output buffer. NULL is allowed for size 0.
///
/// # Errors
/// Returns `EFAULT` for NULL, and `EINVAL` for an impossible size.
///
/// # Safety
/// `pointer` has `size` writable bytes, which no other code uses as long as the result is used.
pub(crate) unsafe fn output<'a>(pointer: *mut c_void, size: usize) -> Result<&'a mut [u8], Failure> {
    check_buffer(pointer, size)?;

    if size == 0 {
        return Ok(&mut []);
    }

    // SAFETY: `pointer` is not NULL, has a possible size, and is writable by this function's
    // contract.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer.cast(), size) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the error number of a result, 0 for success.
    fn errno<T>(result: Result<T, Failure>) -> i32 {
        result.map_or_else(|failure| failure.errno(), |_| 0)
    }

    #[test]
    fn null_and_impossible_sizes_are_refused() {
        let mut byte = 0u8;
        let (null, valid) = (std::ptr::null_mut::<c_void>(), std::ptr::from_mut(&mut byte).cast());

        assert_eq!(errno(non_null(null, "port")), libc::EFAULT);
        // SAFETY: the call refuses NULL.
        assert_eq!(errno(unsafe { reference::<u8>(null.cast()) }), libc::EFAULT);
        // SAFETY: the call refuses NULL.
        assert_eq!(errno(unsafe { input(null, 1) }), libc::EFAULT);
        // SAFETY: the call refuses such a size.
        assert_eq!(errno(unsafe { output(valid, usize::MAX) }), libc::EINVAL);
        // SAFETY: NULL is allowed for size 0.
        assert_eq!(errno(unsafe { output(null, 0) }), 0);
        // SAFETY: NULL is allowed.
        assert_eq!(unsafe { path(std::ptr::null()) }, None);
        // SAFETY: NULL is allowed.
        unsafe { release::<u8>(null.cast()) };
    }

    #[test]
    fn buffers_and_paths_are_converted() {
        let mut bytes = *b"abc";
        // SAFETY: the array has three bytes, and no other code uses them.
        unsafe { output(bytes.as_mut_ptr().cast(), 3) }.unwrap()[0] = b'x';
        // SAFETY: the array has three bytes.
        assert_eq!(unsafe { input(bytes.as_ptr().cast(), 3) }.unwrap(), b"xbc");
        // SAFETY: the argument is a C string.
        assert_eq!(unsafe { path(c"/run/x".as_ptr()) }.unwrap(), "/run/x");
    }
}
