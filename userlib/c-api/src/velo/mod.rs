//! The C API of VELO.
//!
//! Input: C strings and pointers. Output: numbers; negative ones are from errno.h, and
//! [`velo_last_error`] returns their text. No panic crosses the boundary. The header is
//! `nicforge/velo.h`.
//!
//! UNSAFETY: a C API takes raw pointers. Each function documents its requirements on them. A handle
//! is a box that C releases once. The port of a handle is behind a lock that is only ever tried, so
//! that a second thread receives an error.
#![allow(unsafe_code, non_camel_case_types)]

mod failure;

use std::{
    ffi::{c_char, c_void},
    ptr::NonNull,
    sync::Arc,
    time::Duration,
};

use nicforge_driver::{Cancel, Deadline, Device, SharedPoster};
use nicforge_velo::{Address, Config, Error, Filter, MAX_MESSAGE, Message, PeerLink, Port, Waiting};

use self::failure::failure;
use crate::support::{
    Failure, Handle, HasHandle, guarded_number, guarded_status, input, last_error, non_null, open_device,
    opened, options_or_default, path, release, store_opened, timeout, with_object,
};

/// Length of the longest message in bytes, and minimum size of a buffer that receives one.
pub const VELO_MAX_MESSAGE: usize = 64;
/// In place of a tag, for the functions that receive: any tag.
pub const VELO_ANY_TAG: i32 = -1;

const _: () = assert!(VELO_MAX_MESSAGE == MAX_MESSAGE);

/// Highest tag that a receive can ask for. A send can use those up to 14.
const MAX_FILTER_TAG: u8 = 15;

/// Options of a port. All zero is the default.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct velo_options {
    /// Disables the credits of connections. The card then blocks a sender whose receiver does not
    /// read. Both ends must agree.
    pub no_flow_control: bool,
    /// A call that waits polls for a while, then sleeps until an interrupt. Otherwise it only
    /// polls.
    pub use_interrupts: bool,
    /// Slots of the receive ring, a power of two; 0 for a size that suits the network.
    pub slots: u32,
    /// Messages of a connection that may be unread; 0 for 64.
    pub window: u32,
    /// Time limit of each call in milliseconds; 0 for no limit.
    pub timeout_ms: u64,
}

/// Description of a received message.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct velo_message {
    /// The node that sent it.
    pub node: u32,
    /// The sender's VPID on that node.
    pub vpid: u16,
    /// The tag.
    pub tag: u8,
    /// Length in bytes, 8 to 64.
    pub size: u8,
}

/// An opened VPID of a card.
pub struct velo_port(Handle<Inner>);

impl HasHandle for velo_port {
    type Object = Inner;

    fn handle(&self) -> &Handle<Inner> {
        &self.0
    }
}

/// The Rust side of a [`velo_port`].
pub(crate) struct Inner {
    port: Port,
    /// Links of the connections; a connection's number in C is its index here.
    links: Vec<PeerLink>,
    timeout: Option<Duration>,
    /// While this exists, a `nicforge_extoll` with a weak reference to it knows that its VELO port
    /// is open.
    _open_marker: Arc<()>,
}

impl Inner {
    /// Returns the deadline of a call that begins now.
    fn deadline(&self) -> Deadline {
        self.timeout.map_or(Deadline::never(), Deadline::after)
    }

    /// Returns the link of a connection's number.
    fn link(&self, number: i32) -> Result<PeerLink, Failure> {
        let link = usize::try_from(number).ok().and_then(|number| self.links.get(number));
        link.copied().ok_or_else(|| Failure::new(libc::EBADF, "there is no such connection"))
    }
}

/// Returns the text of the calling thread's last error in any call of libnicforge; an empty text
/// without one. It is valid until the thread's next error.
#[unsafe(no_mangle)]
pub extern "C" fn velo_last_error() -> *const c_char {
    last_error()
}

/// Opens the VPID at `socket` (a socket's path, vfio:BDF or shim:PATH), or, when that is NULL, the
/// first one in the environment variable NICFORGE_SOCKET. `options` may be NULL. Returns 0 and
/// stores the handle in `*port`, or returns a negative error number.
///
/// # Safety
/// `socket` and `options` are NULL or valid; `port` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn velo_open(
    socket: *const c_char,
    options: *const velo_options,
    port: *mut *mut velo_port,
) -> i32 {
    guarded_status(|| {
        // SAFETY: NULL or valid by this function's contract.
        let options = unsafe { options_or_default(options) };
        // SAFETY: NULL or a C string by this function's contract.
        let socket = unsafe { path(socket) };

        let open = || open_device_as(open_device(socket)?, None, Arc::default(), &options);
        // SAFETY: NULL or valid by this function's contract.
        unsafe { store_opened(port, "port", open) }
    })
}

/// Opens a device that other libraries may use too; they then share its posted-write ring. The port
/// keeps `open_marker` until it is closed, so that a caller with a weak reference to the marker can
/// see that the port is open.
pub(crate) fn open_device_as(
    device: Device,
    shared: Option<SharedPoster>,
    open_marker: Arc<()>,
    options: &velo_options,
) -> Result<velo_port, Failure> {
    let default = Config::default();
    let config = Config {
        slots: (options.slots != 0).then_some(options.slots),
        flow_control: !options.no_flow_control,
        window: if options.window == 0 { default.window } else { options.window },
        waiting: if options.use_interrupts { Waiting::Interrupt } else { Waiting::Polling },
        ..default
    };

    let port = match shared {
        None => Port::open(device, config),
        Some(poster) => Port::open_sharing(device, poster, config),
    };

    let port = port.map_err(failure)?;
    let inner =
        Inner { port, links: Vec::new(), timeout: timeout(options.timeout_ms), _open_marker: open_marker };
    Ok(velo_port(Handle::new(inner)?))
}

/// Closes a port. Calls of other threads must have ended; `velo_cancel` ends those that wait. NULL
/// is allowed.
///
/// # Safety
/// `port` is NULL or a handle that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn velo_close(port: *mut velo_port) {
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
pub unsafe extern "C" fn velo_node(port: *const velo_port) -> i32 {
    // SAFETY: by this function's contract.
    guarded_number(|| unsafe { with_object(port, |inner, _| Ok(inner.port.address().node as i32)) })
}

/// Returns the VPID, or a negative error number.
///
/// # Safety
/// `port` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn velo_vpid(port: *const velo_port) -> i32 {
    // SAFETY: by this function's contract.
    guarded_number(|| unsafe { with_object(port, |inner, _| Ok(inner.port.address().vpid.into())) })
}

/// Connects to a VPID of a node, and waits until a process receives messages there. Returns the
/// number of the connection, or a negative error number.
///
/// # Safety
/// `port` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn velo_connect(port: *const velo_port, node: u32, vpid: u16) -> i32 {
    guarded_number(|| {
        let connect = |inner: &mut Inner, cancel: &Cancel| {
            let deadline = inner.deadline();
            let link = inner.port.connect(Address { node, vpid }, deadline, Some(cancel)).map_err(failure)?;

            // A second connect to the same VPID has the number of the first one.
            let existing = inner.links.iter().position(|other| *other == link);
            let number = existing.unwrap_or(inner.links.len());

            if existing.is_none() {
                inner.links.push(link);
            }

            Ok(i32::try_from(number).unwrap_or(i32::MAX))
        };
        // SAFETY: by this function's contract.
        unsafe { with_object(port, connect) }
    })
}

/// Closes the sending direction of a connection. Returns 0, or a negative error number.
///
/// # Safety
/// `port` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn velo_disconnect(port: *const velo_port, connection: i32) -> i32 {
    guarded_number(|| {
        let disconnect = |inner: &mut Inner, _: &Cancel| {
            let link = inner.link(connection)?;
            inner.port.disconnect(link).map_err(failure)?;
            Ok(0)
        };
        // SAFETY: by this function's contract.
        unsafe { with_object(port, disconnect) }
    })
}

/// Sends `size` bytes with a tag of 0 to 14. `size` is a multiple of 8, 8 to 64. Waits while the
/// connection has no credit. Returns 0, or a negative error number:
/// - -ECONNRESET: the receiver is gone;
/// - -ENOBUFS: the library can't keep more received messages, and the credit may arrive after them.
///   The caller must receive some.
///
/// # Safety
/// `port` is a handle; `data` has `size` readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn velo_send(
    port: *const velo_port,
    connection: i32,
    tag: u8,
    data: *const c_void,
    size: usize,
) -> i32 {
    guarded_number(|| {
        // SAFETY: by this function's contract.
        let data = unsafe { bytes_to_send(data, size) }?;
        let send = |inner: &mut Inner, cancel: &Cancel| {
            let (link, deadline) = (inner.link(connection)?, inner.deadline());
            inner.port.send(link, tag, data, deadline, Some(cancel)).map_err(failure)?;
            Ok(0)
        };
        // SAFETY: by this function's contract.
        unsafe { with_object(port, send) }
    })
}

/// As velo_send, without waiting. Returns -EAGAIN when the message can't be sent now.
///
/// # Safety
/// As velo_send.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn velo_send_nb(
    port: *const velo_port,
    connection: i32,
    tag: u8,
    data: *const c_void,
    size: usize,
) -> i32 {
    guarded_number(|| {
        // SAFETY: by this function's contract.
        let data = unsafe { bytes_to_send(data, size) }?;
        let send = |inner: &mut Inner, _: &Cancel| {
            let link = inner.link(connection)?;
            inner.port.send_nb(link, tag, data).map_err(failure)?;
            Ok(0)
        };
        // SAFETY: by this function's contract.
        unsafe { with_object(port, send) }
    })
}

/// Waits for the next message with a tag, or with any tag for VELO_ANY_TAG. Other messages that
/// arrive meanwhile are kept. Returns the message's size, or a negative error number. `message` may
/// be NULL.
///
/// # Safety
/// `port` is a handle; `data` has VELO_MAX_MESSAGE writable bytes; `message` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn velo_recv(
    port: *const velo_port,
    tag: i32,
    data: *mut c_void,
    message: *mut velo_message,
) -> i32 {
    guarded_number(|| {
        let filter = filter(tag)?;
        let out = non_null(data, "data")?;

        let receive = |inner: &mut Inner, cancel: &Cancel| {
            let deadline = inner.deadline();
            inner.port.recv(filter, deadline, Some(cancel)).map_err(failure)
        };
        // SAFETY: by this function's contract.
        let received = unsafe { with_object(port, receive) }?;
        // SAFETY: by this function's contract.
        Ok(unsafe { store_message(&received, out, message) })
    })
}

/// As velo_recv, without waiting. Returns 0 when no such message has arrived.
///
/// # Safety
/// As velo_recv.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn velo_poll(
    port: *const velo_port,
    tag: i32,
    data: *mut c_void,
    message: *mut velo_message,
) -> i32 {
    guarded_number(|| {
        let filter = filter(tag)?;
        let out = non_null(data, "data")?;

        // SAFETY: by this function's contract.
        let received = unsafe { with_object(port, |inner, _| inner.port.poll_for(filter).map_err(failure)) }?;
        Ok(match received {
            // SAFETY: by this function's contract.
            Some(received) => unsafe { store_message(&received, out, message) },
            None => 0,
        })
    })
}

/// Handles connects and credit returns of peers. A program that makes no other call for long should
/// call it. Returns 0, or a negative error number.
///
/// # Safety
/// `port` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn velo_progress(port: *const velo_port) -> i32 {
    let progress = |inner: &mut Inner, _: &Cancel| {
        inner.port.progress().map_err(failure)?;
        Ok(0)
    };
    // SAFETY: by this function's contract.
    guarded_number(|| unsafe { with_object(port, progress) })
}

/// Sets or clears cancellation: while `on`, calls that wait end with -ECANCELED. Any thread may
/// call it. Returns 0, or a negative error number.
///
/// # Safety
/// `port` is a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn velo_cancel(port: *const velo_port, on: bool) -> i32 {
    guarded_number(|| {
        // SAFETY: by this function's contract.
        unsafe { opened(port) }?.0.set_cancelled(on);
        Ok(0)
    })
}

/// Returns the filter for a tag of C.
fn filter(tag: i32) -> Result<Filter, Failure> {
    match u8::try_from(tag) {
        _ if tag == VELO_ANY_TAG => Ok(Filter::ANY),
        Ok(tag) if tag <= MAX_FILTER_TAG => Ok(Filter::tag(tag)),
        // The error has room for a tag of 8 bits only.
        _ => Err(failure(Error::BadTag { tag: u8::MAX, most: MAX_FILTER_TAG })),
    }
}

/// Copies a message to the buffers of a C caller, and returns its size.
///
/// # Safety
/// `out` has [`VELO_MAX_MESSAGE`] writable bytes; `message` is NULL or valid.
unsafe fn store_message(received: &Message, out: NonNull<c_void>, message: *mut velo_message) -> i32 {
    let bytes = received.bytes();
    // SAFETY: there is room for the longest message by this function's contract.
    unsafe { out.cast::<u8>().copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };

    if let Some(message) = NonNull::new(message) {
        let (from, size) = (received.from, bytes.len() as u8);
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { message.write(velo_message { node: from.node, vpid: from.vpid, tag: received.tag, size }) };
    }

    bytes.len() as i32
}

/// Returns the bytes of a message that C sends.
///
/// # Safety
/// `data` has `size` readable bytes, which no thread writes while the result is used.
unsafe fn bytes_to_send<'a>(data: *const c_void, size: usize) -> Result<&'a [u8], Failure> {
    if size > MAX_MESSAGE {
        return Err(failure(Error::BadLength { length: size }));
    }

    non_null(data.cast_mut(), "data")?;
    // SAFETY: by this function's contract.
    unsafe { input(data, size) }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    #[test]
    fn null_gives_efault() {
        let calls = [
            // SAFETY: NULL is refused before it is used.
            unsafe { velo_open(std::ptr::null(), std::ptr::null(), std::ptr::null_mut()) },
            // SAFETY: as above.
            unsafe { velo_progress(std::ptr::null()) },
            // SAFETY: as above.
            unsafe { velo_send(std::ptr::null(), 0, 0, std::ptr::null(), 8) },
            // SAFETY: as above.
            unsafe { velo_recv(std::ptr::null(), VELO_ANY_TAG, std::ptr::null_mut(), std::ptr::null_mut()) },
        ];
        assert_eq!(calls, [-libc::EFAULT; 4]);
        // SAFETY: NULL is allowed.
        unsafe { velo_close(std::ptr::null_mut()) };
    }

    #[test]
    fn opening_a_missing_socket_returns_an_error_and_no_handle() {
        let mut port = std::ptr::null_mut();
        // SAFETY: a C string, no options, a valid pointer.
        let result = unsafe { velo_open(c"/nonexistent/socket".as_ptr(), std::ptr::null(), &mut port) };
        // SAFETY: valid until this thread's next error.
        let text = unsafe { CStr::from_ptr(velo_last_error()) };
        assert!(result < 0 && port.is_null() && !text.is_empty());
    }
}
