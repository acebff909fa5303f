//! The callbacks of a C program, and what they are given.
//!
//! UNSAFETY: as in the module above. The functions and the memory of a program are used as the
//! contract of `bgl_open` and the comments on [`bgl_callbacks`] say.

use std::{collections::HashMap, ffi::c_void, ptr::null_mut};

use nicforge_bgl::{
    Error,
    message::{
        Arrival, Buffer, Callbacks, Disposition, MatchInformation, ReceiveHandle, Received, SendHandle, Sent,
    },
};

use super::failure::failure;
use crate::support::{Failure, check_buffer};

/// Number of bytes of the match information.
pub const BGL_INFORMATION: usize = 16;
const _: () = assert!(BGL_INFORMATION == size_of::<MatchInformation>());

/// Action of a decision: the message is discarded.
pub const BGL_DISCARD: u32 = 0;
/// Action of a decision: the message is received into memory of the program.
pub const BGL_RECEIVE: u32 = 1;
/// Action of a decision: the program decides later, by bgl_decide.
pub const BGL_LATER: u32 = 2;

/// A message that has begun to arrive.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bgl_arrival {
    /// Number that identifies the message until its recvdone. It is not 0.
    pub message: u64,
    /// Length of the message in bytes.
    pub length: usize,
    /// The sender's rank.
    pub source: u32,
    /// The sender's match information.
    pub information: [u8; BGL_INFORMATION],
}

/// A program's decision about a message.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bgl_disposition {
    /// For BGL_RECEIVE: the memory that the message is copied to, just before recvdone. It must be
    /// valid until recvdone or bgl_close. NULL is allowed if `capacity` is 0.
    pub memory: *mut c_void,
    /// For BGL_RECEIVE: bytes of the memory. The rest of a longer message is discarded.
    pub capacity: usize,
    /// BGL_DISCARD, BGL_RECEIVE or BGL_LATER.
    pub action: u32,
}

/// The end of a message that was presented by recvnew.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bgl_received {
    /// The number of its bgl_arrival, which is not valid any more.
    pub message: u64,
    /// Length of the message in bytes.
    pub length: usize,
    /// Bytes of the message that are in the memory: fewer than `length` if the memory was shorter.
    /// 0 if the message was discarded or has failed.
    pub stored: usize,
    /// The memory of the decision, or NULL if there is none.
    pub memory: *mut c_void,
    /// The sender's rank.
    pub source: u32,
    /// 0, or a negative error number:
    /// - -ECONNRESET: the sender's process has ended.
    ///
    /// After these errors the message was discarded, because recvnew's decision was impossible:
    /// - -EINVAL: it had an unknown action, or a capacity that no memory has;
    /// - -EFAULT: its memory was NULL, and its capacity was not 0;
    /// - -ENOMEM: the library has no memory for the message.
    pub error: i32,
    /// The sender's match information.
    pub information: [u8; BGL_INFORMATION],
}

/// The end of a message that was posted.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bgl_sent {
    /// The cookie of bgl_postsend.
    pub cookie: u64,
    /// The receiver's rank.
    pub destination: u32,
    /// 0, or -ECONNRESET if the receiver's process has ended. 0 means that the card has all
    /// packets, not that they have arrived.
    pub error: i32,
}

/// The callbacks of a program: the paper's three. None of the functions may be NULL.
///
/// bgl_advance, bgl_wait, bgl_check_peers and bgl_decide call them in the calling thread. A
/// callback must return: it must neither jump out nor throw an exception. What it is given is valid
/// until it returns. A call for the layer from a callback returns -EBUSY, except bgl_interrupt. A
/// program that answers a message notes the answer, and posts it after the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bgl_callbacks {
    /// The first argument of each callback. The library does not access it.
    pub user: *mut c_void,
    /// A message has begun to arrive. The callback stores its decision in `*disposition`, whose
    /// action is BGL_DISCARD at first. Messages of a sender are presented in the order in which
    /// they were posted.
    pub recvnew: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            arrival: *const bgl_arrival,
            disposition: *mut bgl_disposition,
        ),
    >,
    /// A message has ended that was presented by recvnew: it was received or discarded, or it has
    /// failed.
    pub recvdone: Option<unsafe extern "C" fn(user: *mut c_void, received: *const bgl_received)>,
    /// A message has ended that was posted.
    pub senddone: Option<unsafe extern "C" fn(user: *mut c_void, sent: *const bgl_sent)>,
}

/// The functions of [`bgl_callbacks`].
#[derive(Clone, Copy, Debug)]
struct Functions {
    recvnew: unsafe extern "C" fn(*mut c_void, *const bgl_arrival, *mut bgl_disposition),
    recvdone: unsafe extern "C" fn(*mut c_void, *const bgl_received),
    senddone: unsafe extern "C" fn(*mut c_void, *const bgl_sent),
}

/// A message that was presented and not discarded.
#[derive(Clone, Copy, Debug)]
enum Presented {
    /// The program decides later. `length` is the length of the message.
    Postponed { length: usize },
    /// The message goes to this memory of the program.
    Wanted { memory: *mut c_void },
    /// The program's decision was impossible, for the reason of this positive number of errno.h.
    Refused { errno: i32 },
}

/// The C program, as the message layer sees it.
#[derive(Debug)]
pub(super) struct Program {
    user: *mut c_void,
    functions: Functions,
    /// Cookies of the messages that were posted and have not ended.
    cookies: HashMap<SendHandle, u64>,
    /// Messages that were presented and have not ended, except those that the program discards.
    presented: HashMap<ReceiveHandle, Presented>,
    /// Number of callbacks that were called.
    calls: u64,
}

impl Program {
    /// Returns the program with these callbacks. Refuses NULL in place of a function.
    pub(super) fn new(callbacks: &bgl_callbacks) -> Result<Self, Failure> {
        let null = |name: &str| Failure::new(libc::EFAULT, format!("the callback {name} is NULL"));
        let functions = Functions {
            recvnew: callbacks.recvnew.ok_or_else(|| null("recvnew"))?,
            recvdone: callbacks.recvdone.ok_or_else(|| null("recvdone"))?,
            senddone: callbacks.senddone.ok_or_else(|| null("senddone"))?,
        };

        let (cookies, presented) = (HashMap::new(), HashMap::new());
        Ok(Self { user: callbacks.user, functions, cookies, presented, calls: 0 })
    }

    /// Returns the number of callbacks that were called.
    pub(super) fn calls(&self) -> u64 {
        self.calls
    }

    /// Stores the cookie of a message that was posted.
    pub(super) fn note_posted(&mut self, handle: SendHandle, cookie: u64) {
        self.cookies.insert(handle, cookie);
    }

    /// Returns the length of a message that the program has postponed.
    pub(super) fn postponed_length(&self, handle: ReceiveHandle) -> Result<usize, Failure> {
        match self.presented.get(&handle) {
            Some(Presented::Postponed { length }) => Ok(*length),
            _ => Err(failure(Error::NoSuchMessage)),
        }
    }

    /// Notes a decision about a message of `length` bytes, and returns it for the message layer.
    /// After an error nothing has changed.
    pub(super) fn decide(
        &mut self,
        handle: ReceiveHandle,
        length: usize,
        decision: &bgl_disposition,
    ) -> Result<Disposition, Failure> {
        let bgl_disposition { memory, capacity, action } = *decision;

        match action {
            BGL_DISCARD => {
                self.presented.remove(&handle);
                Ok(Disposition::Discard)
            }
            BGL_RECEIVE => {
                check_buffer(memory, capacity)?;
                let buffer = zeroed(capacity.min(length))?;
                self.presented.insert(handle, Presented::Wanted { memory });
                Ok(Disposition::Receive(Buffer::from(buffer)))
            }
            BGL_LATER => {
                self.presented.insert(handle, Presented::Postponed { length });
                Ok(Disposition::Later)
            }
            _ => Err(Failure::new(libc::EINVAL, format!("there is no action {action}: use BGL_..."))),
        }
    }
}

impl Callbacks for Program {
    fn recvnew(&mut self, arrival: &Arrival) -> Disposition {
        self.calls += 1;
        let described = bgl_arrival {
            message: arrival.handle.to_bits(),
            length: arrival.length,
            source: arrival.source.0.into(),
            information: arrival.information,
        };

        let mut decision = bgl_disposition { memory: null_mut(), capacity: 0, action: BGL_DISCARD };
        // SAFETY: the function is the program's, and the arguments are valid until it returns.
        unsafe { (self.functions.recvnew)(self.user, &raw const described, &raw mut decision) };

        self.decide(arrival.handle, arrival.length, &decision).unwrap_or_else(|failure| {
            // The program learns of its error by recvdone.
            self.presented.insert(arrival.handle, Presented::Refused { errno: failure.errno() });
            Disposition::Discard
        })
    }

    fn recvdone(&mut self, received: Received) {
        self.calls += 1;
        let (memory, refused) = match self.presented.remove(&received.handle) {
            Some(Presented::Wanted { memory }) => (memory, 0),
            Some(Presented::Refused { errno }) => (null_mut(), -errno),
            Some(Presented::Postponed { .. }) | None => (null_mut(), 0),
        };

        let mut stored = 0;
        if let Some(buffer) = &received.buffer
            && let Some(bytes) = buffer.memory().get(..received.stored)
            && !bytes.is_empty()
        {
            stored = bytes.len();
            // SAFETY: the program's decision has lent at least so many bytes until the end of the
            // following call, and `decide` has refused NULL.
            unsafe { memory.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), stored) };
        }

        let described = bgl_received {
            message: received.handle.to_bits(),
            length: received.length,
            stored,
            memory,
            source: received.source.0.into(),
            error: received.result.err().map_or(refused, |error| -failure(error).errno()),
            information: received.information,
        };
        // SAFETY: the function is the program's, and the arguments are valid until it returns.
        unsafe { (self.functions.recvdone)(self.user, &raw const described) };
    }

    fn senddone(&mut self, sent: Sent) {
        self.calls += 1;
        let described = bgl_sent {
            cookie: self.cookies.remove(&sent.handle).unwrap_or_default(),
            destination: sent.destination.0.into(),
            error: sent.result.err().map_or(0, |error| -failure(error).errno()),
        };
        // SAFETY: the function is the program's, and the arguments are valid until it returns.
        unsafe { (self.functions.senddone)(self.user, &raw const described) };
    }
}

/// Returns memory for a message, with zeros.
fn zeroed(length: usize) -> Result<Vec<u8>, Failure> {
    let mut memory = reserved(length)?;
    memory.resize(length, 0);
    Ok(memory)
}

/// Returns a copy of a message.
pub(super) fn copied(bytes: &[u8]) -> Result<Vec<u8>, Failure> {
    let mut memory = reserved(bytes.len())?;
    memory.extend_from_slice(bytes);
    Ok(memory)
}

/// Returns an empty vector with room for `length` bytes.
fn reserved(length: usize) -> Result<Vec<u8>, Failure> {
    let mut memory = Vec::new();
    let out_of_memory = |_| Failure::new(libc::ENOMEM, format!("there is no memory for {length} bytes"));
    memory.try_reserve_exact(length).map_err(out_of_memory)?;
    Ok(memory)
}
