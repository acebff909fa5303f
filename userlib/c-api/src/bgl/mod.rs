//! The C API of the message layer of Blue Gene/L, with the names of the paper.
//!
//! Input: pointers, and functions of the program. Output: numbers; negative ones are from errno.h,
//! and [`bgl_last_error`] returns their text. No panic crosses the boundary. The header is
//! `nicforge/bgl.h`.
//!
//! The message layer owns the memory of messages that are in progress. So data that are posted are
//! copied, and received data are copied to the program's memory before its `recvdone`.
//!
//! UNSAFETY: a C API takes raw pointers. Each function documents its requirements on them. A handle
//! is a box that C releases once. The layer of a handle is behind a lock that is only ever tried,
//! so that a second thread and a callback receive an error.
#![allow(unsafe_code, non_camel_case_types)]

mod counters;
mod failure;
mod program;
#[cfg(test)]
mod tests;

use std::ffi::{c_char, c_void};

use nicforge_bgl::{
    Error,
    message::{Buffer, Config, MAX_MESSAGE, MatchInformation, MessageLayer, ReceiveHandle},
    packet::{Rank, Torus},
};
use nicforge_driver::{Cancel, Deadline, Device};

pub use self::counters::bgl_counters;
pub use self::program::{
    BGL_DISCARD, BGL_INFORMATION, BGL_LATER, BGL_RECEIVE, bgl_arrival, bgl_callbacks, bgl_disposition,
    bgl_received, bgl_sent,
};
use self::{
    failure::failure,
    program::{Program, copied},
};
use crate::support::{
    Failure, Handle, HasHandle, guarded_number, guarded_status, input, is_inherited, last_error, non_null,
    open_device, opened, options_or_default, path, release, store_opened, timeout, with_object,
};

/// Length of the longest message in bytes.
pub const BGL_MAX_MESSAGE: usize = 268_435_456;
const _: () = assert!(BGL_MAX_MESSAGE == MAX_MESSAGE);

/// Options of a layer. All zero is the default.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct bgl_options {
    /// Length in bytes of the longest message with the eager protocol, at least 224; 0 for 1024.
    pub eager: u32,
    /// Length in bytes of the longest message with the mid-size protocol, at least `eager`; 0 for
    /// 16384, or `eager` if that is more.
    pub mid_size: u32,
}

/// The message layer of an opened core.
pub struct bgl_layer(Handle<Inner>);

impl HasHandle for bgl_layer {
    type Object = Inner;

    fn handle(&self) -> &Handle<Inner> {
        &self.0
    }
}

/// The Rust side of a [`bgl_layer`].
pub(crate) struct Inner {
    layer: MessageLayer<Torus>,
    program: Program,
}

impl Inner {
    /// Returns the rank with a number of C.
    fn rank(&self, number: u32) -> Result<Rank, Failure> {
        let ranks = self.layer.place().ranks();
        match u16::try_from(number) {
            Ok(rank) if rank < ranks => Ok(Rank(rank)),
            _ => Err(Failure::new(
                libc::EADDRNOTAVAIL,
                format!("there is no rank {number}: the machine has ranks below {ranks}"),
            )),
        }
    }
}

/// Returns the text of the calling thread's last error in any call of libnicforge; an empty text
/// without one. It is valid until the thread's next error.
#[unsafe(no_mangle)]
pub extern "C" fn bgl_last_error() -> *const c_char {
    last_error()
}

/// Opens the message layer of the core at `socket` (a socket's path, vfio:BDF or shim:PATH), or,
/// when that is NULL, of the first one in the environment variable NICFORGE_SOCKET: the paper's
/// Init. It contacts no peer. `options` may be NULL. `*callbacks` is copied. Returns 0 and stores
/// the handle in `*layer`, or returns a negative error number:
/// - -EFAULT: `callbacks`, one of its functions or `layer` is NULL;
/// - -EINVAL: the options contradict each other;
/// - -ENXIO: the device is not a core of a torus;
/// - others as the device gives them, for example -ENOENT without a socket.
///
/// # Safety
/// `socket` and `options` are NULL or valid; `callbacks` and `layer` are valid. The functions of
/// `*callbacks` do what bgl_callbacks says, and can be called until bgl_close.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bgl_open(
    socket: *const c_char,
    options: *const bgl_options,
    callbacks: *const bgl_callbacks,
    layer: *mut *mut bgl_layer,
) -> i32 {
    guarded_status(|| {
        let callbacks = non_null(callbacks.cast_mut(), "callbacks")?;
        // SAFETY: not NULL, and valid by this function's contract.
        let program = Program::new(unsafe { callbacks.as_ref() })?;
        // SAFETY: NULL or valid by this function's contract.
        let options = unsafe { options_or_default(options) };
        // SAFETY: NULL or a C string by this function's contract.
        let socket = unsafe { path(socket) };

        let open = || open_device_as(open_device(socket)?, &options, program);
        // SAFETY: NULL or valid by this function's contract.
        unsafe { store_opened(layer, "layer", open) }
    })
}

/// Opens the message layer of a core.
fn open_device_as(device: Device, options: &bgl_options, program: Program) -> Result<bgl_layer, Failure> {
    let mut config = Config::default();
    if options.eager != 0 {
        config.eager = options.eager as usize;
        config.mid_size = config.mid_size.max(config.eager);
    }
    if options.mid_size != 0 {
        config.mid_size = options.mid_size as usize;
    }

    let torus = Torus::open(device).map_err(failure)?;
    let layer = MessageLayer::init(torus, config).map_err(failure)?;
    Ok(bgl_layer(Handle::new(Inner { layer, program })?))
}

/// Closes a layer. Messages that are in progress end without a callback. Packets of others may be
/// lost, unless bgl_has_sent_all has returned 1 after the last bgl_postsend. Returns 0, or -EBUSY
/// during a call for this layer, for example in a callback: the layer then remains open. NULL is
/// allowed.
///
/// # Safety
/// `layer` is NULL or a handle. After 0 it is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bgl_close(layer: *mut bgl_layer) -> i32 {
    guarded_status(|| {
        // SAFETY: NULL or a handle by this function's contract.
        if unsafe { is_inherited(layer) } {
            return Ok(());
        }

        // SAFETY: as above.
        if let Some(layer) = unsafe { layer.as_ref() }
            && let Err(busy) = layer.handle().with(|_, _| Ok(()))
            && busy.errno() == libc::EBUSY
        {
            return Err(busy);
        }

        // SAFETY: NULL, or it came from `store_opened`, and is not used any more.
        unsafe { release(layer) };
        Ok(())
    })
}

/// Returns this rank, which is twice the number of its node plus the core, or a negative error
/// number.
///
/// # Safety
/// `layer` is NULL or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bgl_rank(layer: *const bgl_layer) -> i32 {
    let rank = |inner: &mut Inner, _: &Cancel| Ok(inner.layer.place().rank.0.into());
    // SAFETY: by this function's contract.
    guarded_number(|| unsafe { with_object(layer, rank) })
}

/// Returns the number of ranks of the machine, two for each node, or a negative error number.
///
/// # Safety
/// `layer` is NULL or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bgl_ranks(layer: *const bgl_layer) -> i32 {
    let ranks = |inner: &mut Inner, _: &Cancel| Ok(inner.layer.place().ranks().into());
    // SAFETY: by this function's contract.
    guarded_number(|| unsafe { with_object(layer, ranks) })
}

/// Returns 1 if a rank's core has a process, 0 if it has none, or a negative error number:
/// -EADDRNOTAVAIL if there is no such rank. The call makes a slow access to the card.
///
/// # Safety
/// `layer` is NULL or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bgl_is_up(layer: *const bgl_layer, rank: u32) -> i32 {
    let is_up = |inner: &mut Inner, _: &Cancel| {
        let rank = inner.rank(rank)?;
        inner.layer.is_up(rank).map(i32::from).map_err(failure)
    };
    // SAFETY: by this function's contract.
    guarded_number(|| unsafe { with_object(layer, is_up) })
}

/// Waits until a rank's core has a process, for at most `timeout_ms` milliseconds; 0 means no
/// limit. The layer does not advance meanwhile, so the call belongs before the first message.
/// Returns 0, or a negative error number:
/// - -ETIMEDOUT: the time limit has passed;
/// - -EINTR: bgl_interrupt has ended the wait;
/// - -EADDRNOTAVAIL: there is no such rank.
///
/// # Safety
/// `layer` is NULL or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bgl_wait_for_peer(layer: *const bgl_layer, rank: u32, timeout_ms: u64) -> i32 {
    let wait = |inner: &mut Inner, cancel: &Cancel| {
        let rank = inner.rank(rank)?;
        let torus = inner.layer.device();
        torus.wait_for_peer(rank, deadline(timeout_ms), Some(cancel)).map(|()| 0).map_err(failure)
    };
    // SAFETY: by this function's contract.
    guarded_number(|| unsafe { with_object(layer, wait) })
}

/// Posts a message of `length` bytes to rank `destination`, with BGL_INFORMATION bytes of match
/// information. Its first packets are sent at once if there is room. The data are copied, so their
/// memory is free when the call returns. `data` may be NULL if `length` is 0. Calls no callback.
///
/// On success it returns 0, and senddone is called with `cookie` later. On failure nothing was
/// posted, and it returns a negative error number:
/// - -EADDRNOTAVAIL: there is no such rank;
/// - -ECONNREFUSED: the rank has no process now;
/// - -EMSGSIZE: the message is longer than BGL_MAX_MESSAGE;
/// - -ENOMEM: there is no memory for the copy;
/// - -EFAULT: a pointer is NULL;
/// - -EBUSY: a call for this layer is in progress.
///
/// # Safety
/// `layer` is NULL or a handle; `information` has BGL_INFORMATION readable bytes, and `data` has
/// `length`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bgl_postsend(
    layer: *const bgl_layer,
    destination: u32,
    information: *const u8,
    data: *const c_void,
    length: usize,
    cookie: u64,
) -> i32 {
    guarded_number(|| {
        let information = non_null(information.cast_mut(), "information")?.cast::<MatchInformation>();
        // SAFETY: not NULL, and it has so many bytes by this function's contract.
        let information = unsafe { information.read() };
        // SAFETY: by this function's contract.
        let data = unsafe { input(data, length) }?;

        let post = |inner: &mut Inner, _: &Cancel| {
            let destination = inner.rank(destination)?;
            if length > MAX_MESSAGE {
                return Err(failure(Error::MessageTooLong { len: length, most: MAX_MESSAGE }));
            }

            let buffer = Buffer::from(copied(data)?);
            let posted = inner.layer.postsend(destination, information, buffer);
            let handle = posted.map_err(|rejected| failure(rejected.error))?;
            inner.program.note_posted(handle, cookie);
            Ok(0)
        };
        // SAFETY: by this function's contract.
        unsafe { with_object(layer, post) }
    })
}

/// Takes the packets that have arrived, and sends what can be sent. It does a bounded amount of
/// work, and calls the callbacks of what has happened. A program calls it often, also while it only
/// sends: acknowledgements and credits move there. Returns the number of packets that were taken or
/// sent, or a negative error number: -ENODEV if the device is gone.
///
/// # Safety
/// `layer` is NULL or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bgl_advance(layer: *const bgl_layer) -> i32 {
    let advance = |inner: &mut Inner, _: &Cancel| {
        let moved = inner.layer.advance(&mut inner.program).map_err(failure)?;
        Ok(i32::try_from(moved).unwrap_or(i32::MAX))
    };
    // SAFETY: by this function's contract.
    guarded_number(|| unsafe { with_object(layer, advance) })
}

/// Advances until a callback was called in this call, for at most `timeout_ms` milliseconds; 0
/// means no limit. Now and then it checks for peers that are gone, as bgl_check_peers. Returns the
/// number of callbacks that were called, at least 1, or a negative error number:
/// - -ETIMEDOUT: the time limit has passed;
/// - -EINTR: bgl_interrupt has ended the wait;
/// - as bgl_advance.
///
/// An error of this call ends no message.
///
/// # Safety
/// `layer` is NULL or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bgl_wait(layer: *const bgl_layer, timeout_ms: u64) -> i32 {
    let wait = |inner: &mut Inner, cancel: &Cancel| {
        let before = inner.program.calls();
        let was_called = |program: &Program| program.calls() != before;
        let Inner { layer, program } = inner;
        layer.wait_until(program, deadline(timeout_ms), Some(cancel), was_called).map_err(failure)?;
        Ok(i32::try_from(program.calls() - before).unwrap_or(i32::MAX))
    };
    // SAFETY: by this function's contract.
    guarded_number(|| unsafe { with_object(layer, wait) })
}

/// Sets or clears interruption. While `on`, present and later calls of bgl_wait and
/// bgl_wait_for_peer for this layer end with -EINTR. Any thread and any callback may call it.
/// Returns 0, or -EFAULT if `layer` is NULL.
///
/// # Safety
/// `layer` is NULL or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bgl_interrupt(layer: *const bgl_layer, on: bool) -> i32 {
    guarded_status(|| {
        // SAFETY: by this function's contract.
        unsafe { opened(layer) }?.handle().set_cancelled(on);
        Ok(())
    })
}

/// Decides about a message for which recvnew has decided BGL_LATER. What has arrived of it is
/// received at once, so recvdone may be called before this call returns. BGL_LATER leaves the
/// message postponed. Returns 0, or a negative error number:
/// - -EBADF: no such message is postponed: its number is wrong, it was decided about, or it has
///   failed;
/// - -EINVAL: the decision has an unknown action, or a capacity that no memory has;
/// - -EFAULT: a pointer is NULL;
/// - -ENOMEM: there is no memory for the message.
///
/// After an error a postponed message remains postponed.
///
/// # Safety
/// `layer` is NULL or a handle. `disposition` is valid, and its memory does what bgl_disposition
/// says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bgl_decide(
    layer: *const bgl_layer,
    message: u64,
    disposition: *const bgl_disposition,
) -> i32 {
    guarded_number(|| {
        let disposition = non_null(disposition.cast_mut(), "disposition")?;
        // SAFETY: not NULL, and valid by this function's contract.
        let disposition = unsafe { disposition.read() };

        let decide = |inner: &mut Inner, _: &Cancel| {
            let handle = ReceiveHandle::from_bits(message);
            let length = inner.program.postponed_length(handle)?;
            let decided = inner.program.decide(handle, length, &disposition)?;
            inner.layer.decide(handle, decided, &mut inner.program).map(|()| 0).map_err(failure)
        };
        // SAFETY: by this function's contract.
        unsafe { with_object(layer, decide) }
    })
}

/// Ends the connections with processes that are gone. Messages in progress with them end with
/// -ECONNRESET, after all that these processes had sent was received. The call makes a slow access
/// to the card. Returns the number of connections that were ended, or a negative error number.
///
/// # Safety
/// `layer` is NULL or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bgl_check_peers(layer: *const bgl_layer) -> i32 {
    let check = |inner: &mut Inner, _: &Cancel| {
        let ended = inner.layer.check_peers(&mut inner.program).map_err(failure)?;
        Ok(i32::try_from(ended).unwrap_or(i32::MAX))
    };
    // SAFETY: by this function's contract.
    guarded_number(|| unsafe { with_object(layer, check) })
}

/// Returns 1 if all posted messages have ended, nothing is due to any peer, and the torus has all
/// packets; else 0, or a negative error number. A program calls bgl_advance until it returns 1
/// before it closes the layer.
///
/// # Safety
/// `layer` is NULL or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bgl_has_sent_all(layer: *const bgl_layer) -> i32 {
    let has_sent_all = |inner: &mut Inner, _: &Cancel| Ok(inner.layer.has_sent_all().into());
    // SAFETY: by this function's contract.
    guarded_number(|| unsafe { with_object(layer, has_sent_all) })
}

/// Begins to drain the connections, for a checkpoint: messages that have begun are completed, and
/// no others begin until bgl_end_drain. Messages may still be posted. Returns 0, or a negative
/// error number.
///
/// All ranks take part in a checkpoint:
/// - Each rank calls this function, and then bgl_advance until bgl_is_drained returns 1. It decides
///   about the messages that it has postponed, because their senders wait for them.
/// - Each rank enters a barrier by other means than this layer, and advances until it leaves it.
///   Then no packet is on its way that any rank needs, and the rank takes its checkpoint.
/// - Each rank calls bgl_end_drain after another barrier.
///
/// # Safety
/// `layer` is NULL or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bgl_begin_drain(layer: *const bgl_layer) -> i32 {
    let begin = |inner: &mut Inner, _: &Cancel| {
        inner.layer.begin_drain();
        Ok(0)
    };
    // SAFETY: by this function's contract.
    guarded_number(|| unsafe { with_object(layer, begin) })
}

/// Returns 1 if all messages that had begun are complete at their receivers, else 0, or a negative
/// error number.
///
/// # Safety
/// `layer` is NULL or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bgl_is_drained(layer: *const bgl_layer) -> i32 {
    let is_drained = |inner: &mut Inner, _: &Cancel| Ok(inner.layer.is_drained().into());
    // SAFETY: by this function's contract.
    guarded_number(|| unsafe { with_object(layer, is_drained) })
}

/// Lets messages begin again after bgl_begin_drain. Returns 0, or a negative error number.
///
/// # Safety
/// `layer` is NULL or a handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bgl_end_drain(layer: *const bgl_layer) -> i32 {
    let end = |inner: &mut Inner, _: &Cancel| {
        inner.layer.end_drain();
        Ok(0)
    };
    // SAFETY: by this function's contract.
    guarded_number(|| unsafe { with_object(layer, end) })
}

/// Stores the counters of a layer in `*counters`. Returns 0, or a negative error number.
///
/// # Safety
/// `layer` is NULL or a handle; `counters` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bgl_statistics(layer: *const bgl_layer, counters: *mut bgl_counters) -> i32 {
    guarded_number(|| {
        let out = non_null(counters, "counters")?;
        // SAFETY: by this function's contract.
        let now = unsafe { with_object(layer, |inner, _| Ok(inner.layer.statistics())) }?;
        // SAFETY: not NULL, and valid by this function's contract.
        unsafe { out.write(now.into()) };
        Ok(0)
    })
}

/// Returns the deadline for a time limit of C.
fn deadline(timeout_ms: u64) -> Deadline {
    timeout(timeout_ms).map_or(Deadline::never(), Deadline::after)
}
