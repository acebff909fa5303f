//! The C API of matching: sends and receives with tags between the ranks of a parallel program,
//! over the EXTOLL card, the Message Unit of Blue Gene/Q or the torus of Blue Gene/L.
//!
//! Input: pointers. Output: numbers; negative ones are from errno.h, and [`matching_last_error`]
//! returns their text. No panic crosses the boundary. The header is `nicforge/matching.h`.
//!
//! UNSAFETY: a C API takes raw pointers. Each function documents its requirements on them. A handle
//! is a box that C releases once. The endpoint of a handle is behind a lock that is only ever
//! tried, so that a second thread receives an error.
#![allow(unsafe_code, non_camel_case_types)]

mod failure;
mod rank;
#[cfg(test)]
mod tests;

use std::{
    ffi::{c_char, c_void},
    ptr::NonNull,
    time::Duration,
};

use nicforge_driver::{Cancel, Deadline};
use nicforge_matching::{Buffer, Completion, Config, Envelope, Error, Request, Selector};
use nicforge_mpi_programs::{
    Error as ProgramError,
    collective::{self, Barrier},
};

use self::{
    failure::{failure, of_program, of_request, of_transport},
    rank::Rank,
};
use crate::support::{
    Failure, Handle, HasHandle, guarded_number, guarded_status, last_error, non_null, opened,
    options_or_default, release, store_opened, timeout, with_object,
};

/// In place of a source, for receives: any rank.
pub const MATCHING_ANY_SOURCE: i32 = -1;
/// In place of `ignore`, for receives: any tag.
pub const MATCHING_ANY_TAG: u64 = 0xffff_ffff_ffff_ffff;
const _: () = assert!(MATCHING_ANY_TAG == u64::MAX);
/// The context of the messages of matching_barrier. Sends and receives of it fail with -EINVAL.
pub const MATCHING_BARRIER_CONTEXT: u32 = 0x3fff;
const _: () = assert!(MATCHING_BARRIER_CONTEXT == collective::CONTEXT);

/// Number of the longest eager messages for which a window has room, as the default window has.
const EAGER_MESSAGES_IN_WINDOW: usize = 32;

/// Longest time for which a wait for the barrier is not interrupted.
const BARRIER_SLICE: Duration = Duration::from_millis(100);

/// Options of an endpoint. All zero is the default.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct matching_options {
    /// Length in bytes of the longest message that is sent eagerly; 0 for 2048.
    pub eager_threshold: u32,
    /// Bytes that messages without a receive may take, for each other rank; 0 for 65536, or 32
    /// times eager_threshold if that is more. A message takes 128 bytes and those of its data,
    /// rounded up to 128. All ranks need the same value.
    pub window: u32,
    /// Time limit of each call in milliseconds; 0 for no limit.
    pub timeout_ms: u64,
    /// Bytes by which the windows of all ranks together grow while a receive waits for a message
    /// that stands behind others; 0 for 64 MiB. One rank has half of them at most. Without room
    /// there, all that wait get -ENOBUFS.
    pub window_pool: u64,
}

/// Description of a message that was received or sent.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct matching_status {
    /// The other side's rank.
    pub rank: u32,
    /// The context.
    pub context: u32,
    /// The tag.
    pub tag: u64,
    /// Bytes sent, or bytes in the buffer.
    pub size: u64,
}

/// An opened rank.
pub struct matching_endpoint(Handle<Inner>);

impl HasHandle for matching_endpoint {
    type Object = Inner;

    fn handle(&self) -> &Handle<Inner> {
        &self.0
    }
}

/// The Rust side of a [`matching_endpoint`].
pub(crate) struct Inner {
    rank: Rank,
    timeout: Option<Duration>,
    barrier: Barrier<Request>,
}

impl Inner {
    /// Returns the deadline of a call that begins now.
    fn deadline(&self) -> Deadline {
        self.timeout.map_or(Deadline::never(), Deadline::after)
    }

    /// Waits for a request whose buffer is free again when the call returns. On an error or a
    /// time-out the request is cancelled, if that is still possible.
    fn wait_or_cancel(&mut self, request: Request, cancel: &Cancel) -> Result<Completion, Failure> {
        let deadline = self.deadline();
        let error = match self.rank.wait(request, deadline, Some(cancel)) {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };

        // The request may have been completed after the wait had seen the deadline or the error.
        if let Some(done) = self.rank.test(request).map_err(failure)? {
            return Ok(done);
        }

        if self.rank.cancel(request).map_err(failure)? {
            // The test releases the cancelled request.
            self.rank.test(request).map_err(failure)?;
            return Err(failure(error));
        }

        Err(match error {
            Error::Timeout { .. } | Error::Interrupted { .. } => Failure::new(
                libc::EINPROGRESS,
                "the message is on its way and its buffer in use, until matching_close",
            ),
            other => failure(other),
        })
    }

    /// Waits until all ranks have entered the barrier. The barrier itself has no cancellation, so
    /// the wait is divided into short ones, and `cancel` is checked before each.
    fn wait_for_barrier(&mut self, cancel: &Cancel) -> Result<(), Failure> {
        let deadline = self.deadline();

        loop {
            if cancel.is_cancelled() {
                return Err(failure(Error::Interrupted { what: "the barrier" }));
            }

            let slice = deadline.at_most(BARRIER_SLICE);
            match self.rank.wait_for_barrier(&mut self.barrier, slice) {
                Ok(()) => return Ok(()),
                Err(ProgramError::Endpoint(Error::Timeout { .. })) if !deadline.has_passed() => {}
                Err(error) => return Err(of_program(error)),
            }
        }
    }
}

/// Returns the text of the calling thread's last error in any call of libnicforge; an empty text
/// without one. It is valid until the thread's next error.
#[unsafe(no_mangle)]
pub extern "C" fn matching_last_error() -> *const c_char {
    last_error()
}

/// Opens the rank of this program, which `nicforge run` has started, and waits until all ranks have
/// come. The program's device decides whether messages go over the EXTOLL card, the Message Unit of
/// Blue Gene/Q or the torus of Blue Gene/L. `options` may be NULL. Returns 0 and stores the handle
/// in `*endpoint`, or returns a negative error number.
///
/// # Safety
/// `options` is NULL or valid; `endpoint` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn matching_open(
    options: *const matching_options,
    endpoint: *mut *mut matching_endpoint,
) -> i32 {
    guarded_status(|| {
        // SAFETY: NULL or valid by this function's contract.
        let options = unsafe { options_or_default(options) };
        // SAFETY: NULL or valid by this function's contract.
        unsafe { store_opened(endpoint, "endpoint", || open(&options)) }
    })
}

/// Opens the rank of this program.
fn open(options: &matching_options) -> Result<matching_endpoint, Failure> {
    let timeout = timeout(options.timeout_ms);
    let deadline = timeout.map_or(Deadline::never(), Deadline::after);

    let rank = Rank::from_environment(config_of(options), deadline)?;
    let handle = Handle::new(Inner { rank, timeout, barrier: Barrier::default() })
        .map_err(|error| of_transport(error.into()))?;
    Ok(matching_endpoint(handle))
}

/// Returns the configuration that these options ask for.
fn config_of(options: &matching_options) -> Config {
    let mut config = Config::default();
    if options.eager_threshold != 0 {
        config.eager_threshold = options.eager_threshold as usize;
        config.window = config.window.max(options.eager_threshold as usize * EAGER_MESSAGES_IN_WINDOW);
    }
    if options.window != 0 {
        config.window = options.window as usize;
    }
    if options.window_pool != 0 {
        config.pool = usize::try_from(options.window_pool).unwrap_or(usize::MAX);
    }
    config
}

/// Closes an endpoint: its requests end, and it is gone for the other ranks. NULL is allowed.
///
/// # Safety
/// `endpoint` is NULL or a handle that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn matching_close(endpoint: *mut matching_endpoint) {
    guarded_status(|| {
        // SAFETY: NULL or a handle of `matching_open` that is not used any more, by this function's
        // contract.
        unsafe { release(endpoint) };
        Ok(())
    });
}

/// Returns this rank, from 0, or a negative error number.
///
/// # Safety
/// `endpoint` is NULL or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn matching_rank(endpoint: *const matching_endpoint) -> i32 {
    // SAFETY: by this function's contract.
    guarded_number(|| unsafe { with_object(endpoint, |inner, _| Ok(inner.rank.number() as i32)) })
}

/// Returns the number of ranks, or a negative error number.
///
/// # Safety
/// `endpoint` is NULL or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn matching_size(endpoint: *const matching_endpoint) -> i32 {
    // SAFETY: by this function's contract.
    guarded_number(|| unsafe { with_object(endpoint, |inner, _| Ok(inner.rank.size() as i32)) })
}

/// Starts a send of `size` bytes to rank `to`. Returns 0 and stores a number for the request in
/// `*request`, or returns a negative error number. MATCHING_BARRIER_CONTEXT gives -EINVAL.
///
/// # Safety
/// `endpoint` is NULL or a handle. `data` has `size` readable bytes, which are not written until
/// the request is complete or the endpoint closed. `request` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn matching_isend(
    endpoint: *const matching_endpoint,
    to: u32,
    context: u32,
    tag: u64,
    data: *const c_void,
    size: usize,
    request: *mut u64,
) -> i32 {
    guarded_number(|| {
        let out = non_null(request, "request")?;
        check_context(context)?;
        // SAFETY: by this function's contract.
        let buffer = unsafe { borrowed_buffer(data.cast_mut(), size) }?;
        let send = |inner: &mut Inner, _: &Cancel| {
            let to = Envelope::new(to, context, tag);
            inner.rank.isend(to, buffer).map_err(failure)
        };
        // SAFETY: by this function's contract.
        let request = unsafe { with_object(endpoint, send) }?;
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { out.write(request.to_bits()) };
        Ok(0)
    })
}

/// Starts a receive of up to `size` bytes from rank `from` or MATCHING_ANY_SOURCE. Bits of the tag
/// that are set in `ignore` are not compared; MATCHING_ANY_TAG sets all of them. Returns 0 and
/// stores a number for the request in `*request`, or returns a negative error number.
/// MATCHING_BARRIER_CONTEXT gives -EINVAL.
///
/// # Safety
/// `endpoint` is NULL or a handle. `data` has `size` writable bytes, which nothing else accesses
/// until the request is complete or the endpoint closed. `request` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn matching_irecv(
    endpoint: *const matching_endpoint,
    from: i32,
    context: u32,
    tag: u64,
    ignore: u64,
    data: *mut c_void,
    size: usize,
    request: *mut u64,
) -> i32 {
    guarded_number(|| {
        let out = non_null(request, "request")?;
        let selector = selector(from, context, tag, ignore)?;

        // SAFETY: by this function's contract.
        let buffer = unsafe { borrowed_buffer(data, size) }?;
        // SAFETY: by this function's contract.
        let started =
            unsafe { with_object(endpoint, |inner, _| inner.rank.irecv(selector, buffer).map_err(failure)) }?;
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { out.write(started.to_bits()) };
        Ok(0)
    })
}

/// Waits until a request is complete. Returns 0, or a negative error number.
///
/// After these errors the request is still outstanding and its buffer in use. The caller can wait
/// for it again:
/// - -ETIMEDOUT: the time limit has passed;
/// - -EINTR: matching_interrupt has ended the wait;
/// - -EBUSY: another thread is in a call for this endpoint;
/// - -EIO: the endpoint as a whole has failed; buffers stay in use until matching_close.
///
/// After these errors the request is over and its buffer free:
/// - -EMSGSIZE: the message was longer than the buffer, which holds the beginning of the message;
/// - -ECANCELED: matching_cancel has cancelled the request;
/// - -ECONNRESET: the other rank is gone;
/// - -EPROTO: the other rank has violated the protocol;
/// - -EREMOTEIO: the data of a rendezvous message could not be fetched;
/// - -ENOBUFS: the window is full, and its pool too (the options window and window_pool): the
///   message that a receive waits for stands behind too many others. Or too many messages of this
///   rank to itself wait.
///
/// These errors leave every request as it is:
/// - -EFAULT: `endpoint` is NULL;
/// - -EBADF: `request` is no outstanding request of this endpoint.
///
/// `status` may be NULL; it is written when the request is over.
///
/// # Safety
/// `endpoint` is NULL or a handle; `status` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn matching_wait(
    endpoint: *const matching_endpoint,
    request: u64,
    status: *mut matching_status,
) -> i32 {
    guarded_number(|| {
        let wait = |inner: &mut Inner, cancel: &Cancel| {
            let deadline = inner.deadline();
            inner.rank.wait(Request::from_bits(request), deadline, Some(cancel)).map_err(failure)
        };
        // SAFETY: by this function's contract.
        let done = unsafe { with_object(endpoint, wait) }?;
        // SAFETY: by this function's contract.
        unsafe { store_status(done, status) }
    })
}

/// As matching_wait, without waiting: makes some progress, and returns 1 when the request is
/// complete, else 0. Errors are those of matching_wait, except -ETIMEDOUT and -EINTR.
///
/// # Safety
/// As matching_wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn matching_test(
    endpoint: *const matching_endpoint,
    request: u64,
    status: *mut matching_status,
) -> i32 {
    guarded_number(|| {
        let test = |inner: &mut Inner, _: &Cancel| {
            inner.rank.progress().map_err(failure)?;
            inner.rank.test(Request::from_bits(request)).map_err(failure)
        };
        // SAFETY: by this function's contract.
        match unsafe { with_object(endpoint, test) }? {
            None => Ok(0),
            // SAFETY: by this function's contract.
            Some(done) => unsafe { store_status(done, status) }.map(|_| 1),
        }
    })
}

/// Cancels a receive that has not matched, or a send of which nothing has left. Returns 1 when it
/// has cancelled the request, which then completes with -ECANCELED; else 0, or a negative error
/// number.
///
/// # Safety
/// `endpoint` is NULL or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn matching_cancel(endpoint: *const matching_endpoint, request: u64) -> i32 {
    let cancel = |inner: &mut Inner, _: &Cancel| {
        inner.rank.cancel(Request::from_bits(request)).map(i32::from).map_err(failure)
    };
    // SAFETY: by this function's contract.
    guarded_number(|| unsafe { with_object(endpoint, cancel) })
}

/// Sends, and waits until the data can be written again. Returns 0, or a negative error number:
/// - -ETIMEDOUT, -EINTR: nothing was sent;
/// - -EINPROGRESS: the time limit has passed or the wait was interrupted, but a part has left; the
///   data stays in use until matching_close;
/// - -EBUSY: nothing was started;
/// - -EADDRNOTAVAIL: there is no rank `to`; nothing was sent;
/// - -EINVAL: `context` is MATCHING_BARRIER_CONTEXT, or no memory has `size` bytes;
/// - -EFAULT: `endpoint` is NULL, or `data` is NULL and `size` is not 0;
/// - all others as for matching_wait.
///
/// # Safety
/// As matching_isend.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn matching_send(
    endpoint: *const matching_endpoint,
    to: u32,
    context: u32,
    tag: u64,
    data: *const c_void,
    size: usize,
) -> i32 {
    guarded_number(|| {
        check_context(context)?;
        // SAFETY: by this function's contract.
        let buffer = unsafe { borrowed_buffer(data.cast_mut(), size) }?;
        let send = |inner: &mut Inner, cancel: &Cancel| {
            let to = Envelope::new(to, context, tag);
            let request = inner.rank.isend(to, buffer).map_err(failure)?;
            inner.wait_or_cancel(request, cancel)
        };
        // SAFETY: by this function's contract.
        let done = unsafe { with_object(endpoint, send) }?;
        done.result.map(|()| 0).map_err(of_request)
    })
}

/// Receives a message, and waits for it. Returns 0, or a negative error number:
/// - -EADDRNOTAVAIL: there is no rank `from`;
/// - -EINVAL: `from` is negative but not MATCHING_ANY_SOURCE, `context` is
///   MATCHING_BARRIER_CONTEXT, or no memory has `size` bytes;
/// - all others as for matching_wait and matching_send.
///
/// `status` may be NULL.
///
/// # Safety
/// As matching_irecv; `status` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn matching_recv(
    endpoint: *const matching_endpoint,
    from: i32,
    context: u32,
    tag: u64,
    ignore: u64,
    data: *mut c_void,
    size: usize,
    status: *mut matching_status,
) -> i32 {
    guarded_number(|| {
        let selector = selector(from, context, tag, ignore)?;
        // SAFETY: by this function's contract.
        let buffer = unsafe { borrowed_buffer(data, size) }?;
        let receive = |inner: &mut Inner, cancel: &Cancel| {
            let request = inner.rank.irecv(selector, buffer).map_err(failure)?;
            inner.wait_or_cancel(request, cancel)
        };
        // SAFETY: by this function's contract.
        let done = unsafe { with_object(endpoint, receive) }?;
        // SAFETY: by this function's contract.
        unsafe { store_status(done, status) }
    })
}

/// Sets or clears interruption. While `on`, present and later waits for this endpoint end with
/// -EINTR, those of matching_barrier within a tenth of a second. Any thread may call it. Returns 0,
/// or a negative error number.
///
/// # Safety
/// `endpoint` is NULL or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn matching_interrupt(endpoint: *const matching_endpoint, on: bool) -> i32 {
    guarded_status(|| {
        // SAFETY: by this function's contract.
        unsafe { opened(endpoint) }?.handle().set_cancelled(on);
        Ok(())
    })
}

/// Makes progress. A program that makes no other call for long should call it. Returns 0, or a
/// negative error number.
///
/// # Safety
/// `endpoint` is NULL or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn matching_progress(endpoint: *const matching_endpoint) -> i32 {
    let progress = |inner: &mut Inner, _: &Cancel| inner.rank.progress().map(|_| 0).map_err(failure);
    // SAFETY: by this function's contract.
    guarded_number(|| unsafe { with_object(endpoint, progress) })
}

/// Waits until all ranks have called it, for example before they close. After a time-out
/// (-ETIMEDOUT) or an interruption (-EINTR), the next call continues the same barrier. After any
/// other error, every later call fails. Returns 0, or a negative error number.
///
/// # Safety
/// `endpoint` is NULL or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn matching_barrier(endpoint: *const matching_endpoint) -> i32 {
    let barrier = |inner: &mut Inner, cancel: &Cancel| inner.wait_for_barrier(cancel).map(|()| 0);
    // SAFETY: by this function's contract.
    guarded_number(|| unsafe { with_object(endpoint, barrier) })
}

/// Refuses the context of the barrier's messages.
fn check_context(context: u32) -> Result<(), Failure> {
    if context == MATCHING_BARRIER_CONTEXT {
        return Err(Failure::new(libc::EINVAL, "messages of this context belong to matching_barrier"));
    }
    Ok(())
}

/// Returns the selector for the arguments of a receive.
fn selector(from: i32, context: u32, tag: u64, ignore: u64) -> Result<Selector, Failure> {
    check_context(context)?;
    let source = match from {
        MATCHING_ANY_SOURCE => None,
        from => Some(u32::try_from(from).map_err(|_| Failure::new(libc::EINVAL, "there is no such rank"))?),
    };
    Ok(Selector { source, context, tag, ignore })
}

/// Returns the buffer for memory that C lends.
///
/// # Safety
/// `data` has `size` bytes, which are lent as [`Buffer::from_raw_parts`] says.
unsafe fn borrowed_buffer(data: *mut c_void, size: usize) -> Result<Buffer, Failure> {
    if data.is_null() && size > 0 {
        return Err(Failure::new(libc::EFAULT, "the data are NULL"));
    }

    if size > isize::MAX as usize {
        return Err(Failure::new(libc::EINVAL, "no memory has so many bytes"));
    }

    // SAFETY: by this function's contract.
    Ok(unsafe { Buffer::from_raw_parts(data.cast(), size) })
}

/// Stores the status of a completed request, and returns its result.
///
/// # Safety
/// `status` is NULL or valid.
unsafe fn store_status(done: Completion, status: *mut matching_status) -> Result<i32, Failure> {
    if let Some(status) = NonNull::new(status) {
        let Envelope { peer, context, tag } = done.envelope;
        let stored = matching_status { rank: peer, context, tag, size: done.length as u64 };
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { status.write(stored) };
    }
    done.result.map(|()| 0).map_err(of_request)
}
