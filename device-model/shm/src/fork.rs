//! What a child of `fork` gets of this process's devices: nothing.
//!
//! A child inherits descriptors and shared mappings. It could end the parent's connections by them,
//! write to the parent's registers, and keep a device busy that the parent has closed. So what
//! belongs to a device is registered here, and a handler of `fork` in the child (`pthread_atfork`)
//!
//! - replaces registered mappings by private zero pages, so that loads find zeros, and stores
//!   change nothing of the parent's. The kernel does not copy these mappings (`MADV_DONTFORK`), and
//!   without pages the child's next mapping could take their addresses;
//! - replaces registered descriptors by a socket whose peer is closed, so that the numbers stay
//!   taken until their owners close them;
//! - counts the fork in a word. [`OwnerProcess`] compares it, by one load.
//!
//! A page with `MADV_WIPEONFORK` would tell of a fork, too, but replace nothing. `clone` and
//! `_Fork` call no handlers: after these, only `MADV_DONTFORK` has an effect.
//!
//! UNSAFETY: registers a handler that makes system calls. The handler is async-signal-safe: it uses
//! atomic loads and stores and system calls, and takes no lock and allocates nothing.
#![allow(unsafe_code)]

use std::ops::Deref;
use std::os::fd::AsFd;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::errno::Errno;

use crate::error::MemoryError;
use crate::sigbus::replace_by_zeros;
use crate::table::{self, Entry, Kind, Registration};

/// Number of forks from the first process that has registered the handler to this one, plus 1.
static PROCESS: AtomicU32 = AtomicU32::new(1);

/// The process that has opened something.
///
/// A child of `fork` has a copy of this value, and is another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerProcess(u32);

impl OwnerProcess {
    /// Returns the calling process.
    pub fn current() -> Self {
        register_handler();
        Self(PROCESS.load(Ordering::Relaxed))
    }

    /// Returns whether it is the calling process. It is one load and a comparison.
    #[inline]
    pub fn is_current(self) -> bool {
        PROCESS.load(Ordering::Relaxed) == self.0
    }
}

/// The process that has initialised a static object, if one has.
#[derive(Debug)]
pub struct OwnerCell(AtomicU32);

impl OwnerCell {
    /// Returns a cell for an object that no process has initialised.
    #[allow(clippy::new_without_default, reason = "it is for statics")]
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Stores the calling process.
    pub fn set_current(&self) {
        self.0.store(OwnerProcess::current().0, Ordering::Relaxed);
    }

    /// Stores that no process has initialised the object.
    pub fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Returns whether a process has initialised the object of which the calling one is a child.
    #[inline]
    pub fn is_inherited(&self) -> bool {
        let owner = self.0.load(Ordering::Relaxed);
        owner != 0 && owner != PROCESS.load(Ordering::Relaxed)
    }
}

/// An open file that children of `fork` do not keep open. In a child, its descriptor is that of a
/// socket whose peer is closed.
#[derive(Debug)]
pub struct Uninherited<F> {
    // The registration ends before the file is closed, because fields are dropped in this order.
    _registration: Registration,
    file: F,
}

impl<F: AsFd> Uninherited<F> {
    /// Keeps `file` from children of `fork`. It must keep its descriptor.
    ///
    /// # Errors
    /// [`MemoryError::Guard`] if the table of ranges is full.
    pub fn new(file: F) -> Result<Self, MemoryError> {
        let _registration = Registration::new(Entry::of_file(file.as_fd()))?;
        Ok(Self { _registration, file })
    }
}

impl<F> Deref for Uninherited<F> {
    type Target = F;

    fn deref(&self) -> &F {
        &self.file
    }
}

/// Registers the handler, once in the life of a process and its children.
fn register_handler() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // The call fails only without memory for the handler. A fork is then not noticed.
        // SAFETY: the handler is async-signal-safe.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// Takes the parent's devices away from a new child.
extern "C" fn in_child() {
    let errno = Errno::last_raw();
    PROCESS.fetch_add(1, Ordering::Relaxed);

    // The one thread of the child runs here. A slot that is being written belongs to a thread of
    // the parent that has not got its mapping yet, or that no longer uses it.
    let mut closed_socket = None;
    for entry in table::slots().filter_map(table::Slot::entry) {
        match entry.kind {
            Kind::Guarded => {}
            Kind::UninheritedRange => {
                // SAFETY: the range belonged to a mapping at the fork, and nothing else has been
                // mapped there since. The child's copy of the mapping owns it.
                let _ = unsafe { replace_by_zeros(&entry) };
            }
            Kind::UninheritedFile => {
                let socket = closed_socket.get_or_insert_with(open_closed_socket);
                if let Some(socket) = socket {
                    // SAFETY: the descriptor is the child's copy of a registered one. Its owner
                    // finds another open file there.
                    let _ = unsafe { libc::dup3(*socket, entry.start as i32, libc::O_CLOEXEC) };
                }
            }
        }
    }

    if let Some(Some(socket)) = closed_socket {
        // SAFETY: the descriptor was opened above, and is used nowhere else.
        let _ = unsafe { libc::close(socket) };
    }
    Errno::set_raw(errno);
}

/// Opens a socket whose peer is closed. Returns `None` if the process has no descriptors left.
fn open_closed_socket() -> Option<i32> {
    let mut ends = [-1; 2];
    let flags = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: `ends` has room for both descriptors.
    if unsafe { libc::socketpair(libc::AF_UNIX, flags, 0, ends.as_mut_ptr()) } != 0 {
        return None;
    }

    // SAFETY: the descriptor was opened above, and is used nowhere else.
    let _ = unsafe { libc::close(ends[1]) };
    Some(ends[0])
}
