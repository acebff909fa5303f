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
use nicforge_shm::OwnerProcess;

use super::{Failure, HasHandle, inherited};

/// Returns the pointer to a result, which must not be NULL. `name` is its name in the error's text.
///
/// # Errors
/// Returns `EFAULT` for NULL.
pub(crate) fn non_null<T>(pointer: *mut T, name: &str) -> Result<NonNull<T>, Failure> {
    NonNull::new(pointer).ok_or_else(|| Failure::new(libc::EFAULT, format!("{name} is NULL")))
}

/// Returns the structure behind a pointer.
///
/// # Errors
/// Returns `EFAULT` for NULL.
///
/// # Safety
/// `pointer` is NULL, or valid for as long as the result is used.
pub(crate) unsafe fn reference<'a, T>(pointer: *const T) -> Result<&'a T, Failure> {
    // SAFETY: `pointer` is NULL or valid by this function's contract.
    unsafe { pointer.as_ref() }.ok_or_else(|| Failure::new(libc::EFAULT, "the handle is NULL"))
}

/// What a handle of C points to. The object comes first, so that a pointer to it is one to this.
#[repr(C)]
pub(crate) struct Opened<H> {
    object: H,
    /// The process that has opened the handle. No other one uses it.
    owner: OwnerProcess,
}

impl<H> Opened<H> {
    /// Wraps an object that the calling process has opened.
    pub(crate) fn new(object: H) -> Self {
        Self { object, owner: OwnerProcess::current() }
    }
}

/// Returns the object behind a handle. All calls with a handle get it here, or by [`with_object`].
///
/// # Errors
/// Returns `EFAULT` for NULL, and `EPERM` for a handle that a parent of this process has opened.
///
/// # Safety
/// `handle` is NULL, or came from [`store_opened`] and is valid for as long as the result is used.
#[inline]
pub(crate) unsafe fn opened<'a, H>(handle: *const H) -> Result<&'a H, Failure> {
    // SAFETY: `handle` is NULL or valid by this function's contract.
    let Opened { object, owner } = unsafe { reference(handle.cast::<Opened<H>>()) }?;
    if owner.is_current() { Ok(object) } else { Err(inherited()) }
}

/// Returns whether this process has inherited a handle, by `fork`. NULL is allowed.
///
/// # Safety
/// `handle` is NULL, or came from [`store_opened`] and is valid.
pub(crate) unsafe fn is_inherited<H>(handle: *const H) -> bool {
    // SAFETY: `handle` is NULL or valid by this function's contract.
    unsafe { handle.cast::<Opened<H>>().as_ref() }.is_some_and(|opened| !opened.owner.is_current())
}

/// Calls `call` with the object behind a handle of C and its cancellation token.
///
/// # Errors
/// Returns the errors of [`opened`], and those of [`super::Handle::with`].
///
/// # Safety
/// `handle` is NULL, or came from [`store_opened`] and is valid during the call.
pub(crate) unsafe fn with_object<H: HasHandle, R>(
    handle: *const H,
    call: impl FnOnce(&mut H::Object, &Cancel) -> Result<R, Failure>,
) -> Result<R, Failure> {
    // SAFETY: `handle` is NULL or valid by this function's contract.
    unsafe { opened(handle) }?.handle().with(call)
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
    let opened = Box::into_raw(Box::new(Opened::new(open()?)));

    // SAFETY: `handle` is not NULL, and valid by this function's contract.
    unsafe { handle.write(opened.cast()) };
    Ok(())
}

/// Takes the object behind a handle. Returns `None` for NULL, and for a handle that a parent of
/// this process has opened: its object stays as it was at the fork, because a thread that only the
/// parent has may have been changing it.
///
/// # Safety
/// `handle` is NULL, or came from [`store_opened`] and is not used any more.
pub(crate) unsafe fn take_opened<H>(handle: *mut H) -> Option<H> {
    // SAFETY: `handle` is NULL or valid by this function's contract.
    if handle.is_null() || unsafe { is_inherited(handle) } {
        return None;
    }

    // SAFETY: `handle` came from `store_opened`, and is not used any more by this function's
    // contract.
    let opened = unsafe { Box::from_raw(handle.cast::<Opened<H>>()) };
    Some(opened.object)
}

/// Drops the object behind a handle, as [`take_opened`] takes it.
///
/// # Safety
/// `handle` is NULL, or came from [`store_opened`] and is not used any more.
pub(crate) unsafe fn release<H>(handle: *mut H) {
    // SAFETY: by this function's contract.
    drop(unsafe { take_opened(handle) });
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
