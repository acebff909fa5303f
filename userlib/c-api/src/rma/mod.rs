//! The C API of RMA.
//!
//! Input: C strings and pointers. Output: numbers; negative ones are from errno.h, and
//! [`rma_last_error`] returns their text. No panic crosses the boundary. Buffers and regions are in
//! `memory.rs`, notifications in `notification.rs`. The header is `nicforge/rma.h`.
//!
//! UNSAFETY: a C API takes raw pointers. Each function documents its requirements on them. A handle
//! is a box that C releases once. A port is behind a lock that is only ever tried, so that a second
//! thread receives an error. Buffers and regions hold references to what they belong to, so C may
//! release handles in any order.
#![allow(unsafe_code, non_camel_case_types)]

mod failure;
mod memory;
mod notification;

use std::{
    ffi::{c_char, c_void},
    sync::Arc,
    time::Duration,
};

use nicforge_driver::{Cancel, Deadline, Device, SharedPoster};
use nicforge_rma::{MAX_IMMEDIATE, MAX_LENGTH, Options, Port, Target};

use self::{
    failure::failure,
    notification::{notify_set, store_notification},
};
use crate::support::{
    Failure, Handle, HasHandle, guarded_count, guarded_number, guarded_status, input, last_error, non_null,
    open_device, opened, options_or_default, path, release, store_opened, timeout, with_object,
};

pub use self::memory::{
    RMA_READ, RMA_WRITE, rma_address, rma_allocate, rma_buffer, rma_buffer_memory, rma_buffer_size,
    rma_deregister, rma_region, rma_register, rma_release,
};
pub use self::notification::{
    RMA_COMMAND, RMA_DONE, RMA_GET, RMA_IMMEDIATE_PUT, RMA_LOCAL_ADDRESS, RMA_NO_RECEIVER,
    RMA_NOTIFY_COMPLETER, RMA_NOTIFY_NONE, RMA_NOTIFY_REQUESTER, RMA_NOTIFY_RESPONDER, RMA_PUT,
    RMA_REMOTE_ADDRESS, RMA_TIMED_OUT, RMA_WITHDRAWN, rma_notification,
};

/// Longest immediate put in bytes.
pub const RMA_MAX_IMMEDIATE: usize = 8;
/// Maximum number of bytes that one command moves. Longer transfers take several commands.
pub const RMA_MAX_LENGTH: u64 = 8_388_608;

const _: () = assert!(RMA_MAX_IMMEDIATE == MAX_IMMEDIATE as usize && RMA_MAX_LENGTH == MAX_LENGTH as u64);

/// Options of a port. All zero is the default.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rma_options {
    /// Entries of the notification queue, a power of two, 64 to 65536; 0 for 4096.
    pub entries: u32,
    /// Time that a call polls before it sleeps, in microseconds; 0 for 50.
    pub poll_us: u32,
}

/// The other side of commands, from rma_connect.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct rma_target {
    /// The node.
    pub node: u32,
    /// The VPID on that node.
    pub vpid: u16,
}

/// RMA of a VPID of a card.
pub struct rma_port {
    handle: Handle<Port>,
    /// While this exists, a `nicforge_extoll` with a weak reference to it knows that its RMA port
    /// is open.
    _open_marker: Arc<()>,
}

impl HasHandle for rma_port {
    type Object = Port;

    fn handle(&self) -> &Handle<Port> {
        &self.handle
    }
}

/// Returns the text of the calling thread's last error in any call of libnicforge; an empty text
/// without one. It is valid until the thread's next error.
#[unsafe(no_mangle)]
pub extern "C" fn rma_last_error() -> *const c_char {
    last_error()
}

/// Opens the VPID whose socket is `socket`, or, when that is NULL, the first one in the environment
/// variable NICFORGE_SOCKET. `options` may be NULL. Returns 0 and stores the handle in `*port`, or
/// returns a negative error number.
///
/// # Safety
/// `socket` and `options` are NULL or valid; `port` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rma_open(
    socket: *const c_char,
    options: *const rma_options,
    port: *mut *mut rma_port,
) -> i32 {
    guarded_status(|| {
        // SAFETY: NULL or valid by this function's contract.
        let options = unsafe { options_or_default(options) };
        // SAFETY: NULL or a C string by this function's contract.
        let socket = unsafe { path(socket) };

        let open = || open_device_as(&open_device(socket)?, None, Arc::default(), &options);
        // SAFETY: NULL or valid by this function's contract.
        unsafe { store_opened(port, "port", open) }
    })
}

/// Opens a device that other libraries may use too; they then share its posted-write ring. The port
/// keeps `open_marker` until it is closed, so that a caller with a weak reference to the marker can
/// see that the port is open.
pub(crate) fn open_device_as(
    device: &Device,
    shared: Option<SharedPoster>,
    open_marker: Arc<()>,
    options: &rma_options,
) -> Result<rma_port, Failure> {
    let mut port_options = Options::default();
    if options.entries != 0 {
        port_options.entries = options.entries;
    }
    if options.poll_us != 0 {
        port_options.spin = Duration::from_micros(options.poll_us.into());
    }

    let port = match shared {
        None => Port::open(device, port_options),
        Some(poster) => Port::with_poster(device, poster, port_options),
    };

    let handle = Handle::new(port.map_err(failure)?)?;
    handle.with(|port, cancel| {
        port.set_cancel(Some(cancel.clone()));
        Ok(())
    })?;
    Ok(rma_port { handle, _open_marker: open_marker })
}

/// Closes a port. Calls of other threads must have ended; rma_cancel ends those that wait. Buffers
/// and regions stay until they are released. NULL is allowed.
///
/// # Safety
/// `port` is NULL or a handle that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rma_close(port: *mut rma_port) {
    guarded_status(|| {
        // SAFETY: NULL, or it came from `store_opened`, and is not used any more.
        unsafe { release(port) };
        Ok(())
    });
}

/// Returns the card's node id, or a negative error number.
///
/// # Safety
/// `port` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rma_node(port: *const rma_port) -> i32 {
    // SAFETY: by this function's contract.
    guarded_number(|| unsafe { with_object(port, |port, _| Ok(port.node() as i32)) })
}

/// Returns the VPID, or a negative error number.
///
/// # Safety
/// `port` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rma_vpid(port: *const rma_port) -> i32 {
    // SAFETY: by this function's contract.
    guarded_number(|| unsafe { with_object(port, |port, _| Ok(port.vpid().into())) })
}

/// Determines the target for a VPID. Nothing is exchanged with the VPID; only a command shows
/// whether a process has opened it. Returns 0 and stores the target in `*target`, or returns a
/// negative error number.
///
/// # Safety
/// `port` is a handle; `target` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rma_connect(
    port: *const rma_port,
    node: u32,
    vpid: u16,
    target: *mut rma_target,
) -> i32 {
    guarded_status(|| {
        let out = non_null(target, "target")?;

        // SAFETY: by this function's contract.
        unsafe { with_object(port, |port, _| connect(port, rma_target { node, vpid })) }?;
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { out.write(rma_target { node, vpid }) };
        Ok(())
    })
}

/// Returns the library's type for a target of C.
fn connect(port: &Port, target: rma_target) -> Result<Target, Failure> {
    port.connect(target.node, target.vpid).map_err(failure)
}

/// Posts a put: `length` bytes from this port's address `source` to the target's address
/// `destination`. `notify` is a mask of RMA_NOTIFY_... bits. Returns the number of commands, one
/// for each RMA_MAX_LENGTH, or a negative error number. Each command has its own notifications.
///
/// The call waits while 64 commands are in flight, or the posted-write ring is full. After 5 s
/// without room for a command it returns -ETIMEDOUT, and -ECANCELED when rma_cancel ends it. The
/// commands that it has posted before stay posted.
///
/// # Safety
/// `port` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rma_put(
    port: *const rma_port,
    target: rma_target,
    source: u64,
    destination: u64,
    length: u64,
    notify: u32,
) -> i64 {
    guarded_count(|| {
        let notify = notify_set(notify)?;
        let put = |port: &mut Port, _: &Cancel| {
            let target = connect(port, target)?;
            port.put(target, source, destination, length, notify).map_err(failure)
        };
        // SAFETY: by this function's contract.
        unsafe { with_object(port, put) }
    })
}

/// Posts a get: `length` bytes from the target's address `source` to this port's address
/// `destination`. As rma_put otherwise.
///
/// # Safety
/// `port` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rma_get(
    port: *const rma_port,
    target: rma_target,
    source: u64,
    destination: u64,
    length: u64,
    notify: u32,
) -> i64 {
    guarded_count(|| {
        let notify = notify_set(notify)?;
        let get = |port: &mut Port, _: &Cancel| {
            let target = connect(port, target)?;
            port.get(target, source, destination, length, notify).map_err(failure)
        };
        // SAFETY: by this function's contract.
        unsafe { with_object(port, get) }
    })
}

/// Posts an immediate put: 1 to RMA_MAX_IMMEDIATE bytes, which the command itself carries, to the
/// target's address `destination`. Returns 0, or a negative error number. Waits as rma_put does.
///
/// # Safety
/// `port` is a handle; `data` has `size` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rma_put_immediate(
    port: *const rma_port,
    target: rma_target,
    data: *const c_void,
    size: usize,
    destination: u64,
    notify: u32,
) -> i32 {
    guarded_status(|| {
        let notify = notify_set(notify)?;
        // SAFETY: by this function's contract.
        let data = unsafe { input(data, size) }?;
        let put = |port: &mut Port, _: &Cancel| {
            let target = connect(port, target)?;
            port.put_immediate(target, data, destination, notify).map_err(failure)
        };
        // SAFETY: by this function's contract.
        unsafe { with_object(port, put) }
    })
}

/// Returns the number of commands in flight (posted, and not ended), or a negative error number.
///
/// # Safety
/// `port` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rma_in_flight(port: *const rma_port) -> i64 {
    // SAFETY: by this function's contract.
    guarded_count(|| unsafe { with_object(port, |port, _| Ok(port.in_flight())) })
}

/// Waits until every posted command has ended, successfully or not. Waits for at most `timeout_ms`
/// milliseconds; 0 means no limit. Returns 0, or a negative error number: -ETIMEDOUT, -ECANCELED.
///
/// # Safety
/// `port` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rma_drain(port: *const rma_port, timeout_ms: u64) -> i32 {
    guarded_status(|| {
        let drain = |port: &mut Port, cancel: &Cancel| {
            port.drain(deadline(timeout_ms), Some(cancel)).map_err(failure)
        };
        // SAFETY: by this function's contract.
        unsafe { with_object(port, drain) }
    })
}

/// Looks for a notification, and leaves it in the queue. Returns 1 and stores the notification, 0
/// without one, or a negative error number. -EOVERFLOW reports once that notifications were lost
/// because the queue was full; those in the queue come first. `notification` may be NULL.
///
/// # Safety
/// `port` is a handle; `notification` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rma_probe(port: *const rma_port, notification: *mut rma_notification) -> i32 {
    guarded_number(|| {
        // SAFETY: by this function's contract.
        let found = unsafe { with_object(port, |port, _| port.probe().map_err(failure)) }?;
        if let Some(found) = &found {
            // SAFETY: by this function's contract.
            unsafe { store_notification(found, notification) };
        }
        Ok(found.is_some().into())
    })
}

/// Waits for a notification, and leaves it in the queue. Waits for at most `timeout_ms`
/// milliseconds; 0 means no limit. Returns 0 and stores the notification, or a negative error
/// number: -ETIMEDOUT, -ECANCELED, and as rma_probe. `notification` may be NULL.
///
/// # Safety
/// As rma_probe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rma_wait(
    port: *const rma_port,
    timeout_ms: u64,
    notification: *mut rma_notification,
) -> i32 {
    guarded_status(|| {
        let wait =
            |port: &mut Port, cancel: &Cancel| port.wait(deadline(timeout_ms), Some(cancel)).map_err(failure);
        // SAFETY: by this function's contract.
        let found = unsafe { with_object(port, wait) }?;
        // SAFETY: by this function's contract.
        unsafe { store_notification(&found, notification) };
        Ok(())
    })
}

/// Frees the notification that rma_probe or rma_wait has returned since the last rma_free, if any.
/// A notification that neither has returned stays in the queue. Returns 0, or a negative error
/// number.
///
/// # Safety
/// `port` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rma_free(port: *const rma_port) -> i32 {
    // SAFETY: by this function's contract.
    guarded_status(|| unsafe { with_object(port, |port, _| port.free().map_err(failure)) })
}

/// Waits for a notification and takes it: rma_wait, then rma_free.
///
/// # Safety
/// As rma_probe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rma_next(
    port: *const rma_port,
    timeout_ms: u64,
    notification: *mut rma_notification,
) -> i32 {
    guarded_status(|| {
        let next =
            |port: &mut Port, cancel: &Cancel| port.next(deadline(timeout_ms), Some(cancel)).map_err(failure);
        // SAFETY: by this function's contract.
        let found = unsafe { with_object(port, next) }?;
        // SAFETY: by this function's contract.
        unsafe { store_notification(&found, notification) };
        Ok(())
    })
}

/// Sets or clears cancellation: while `on`, calls that wait end with -ECANCELED. Any thread may
/// call it. Returns 0, or a negative error number.
///
/// # Safety
/// `port` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rma_cancel(port: *const rma_port, on: bool) -> i32 {
    guarded_status(|| {
        // SAFETY: by this function's contract.
        unsafe { opened(port) }?.handle.set_cancelled(on);
        Ok(())
    })
}

/// Returns the deadline for a time limit of C.
fn deadline(timeout_ms: u64) -> Deadline {
    timeout(timeout_ms).map_or(Deadline::never(), Deadline::after)
}

#[cfg(test)]
mod tests;
