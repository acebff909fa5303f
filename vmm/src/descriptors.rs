//! The limit on open files. It is raised for this process, and restored for the programs that it
//! starts.

#![allow(unsafe_code, reason = "what a child does between fork and exec can only be said by an unsafe call")]

use std::{io, os::unix::process::CommandExt, process::Command, sync::OnceLock};

use nix::{
    errno::Errno,
    libc::rlim_t,
    sys::resource::{Resource, getrlimit, setrlimit},
};

/// The greatest limit that this process sets. It bounds the table that the kernel allocates for
/// open descriptors.
const MAX_LIMIT: rlim_t = 1 << 20;

/// The soft and the hard limit before [`raise`] changed them.
static ORIGINAL_LIMITS: OnceLock<(rlim_t, rlim_t)> = OnceLock::new();

/// Raises the soft limit to the hard limit, or to 2^20 if the hard limit is higher. Each attachment
/// has a socket. With a client it also has a connection, windows, interrupts and registered memory.
pub fn raise() {
    if let Err(errno) = raise_to(MAX_LIMIT) {
        tracing::warn!(%errno, "the limit on open files could not be raised");
    }
}

/// Raises the soft limit to the hard limit or to `maximum`, whichever is lower.
fn raise_to(maximum: rlim_t) -> Result<(), Errno> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let wanted = hard.min(maximum);
    if soft >= wanted {
        return Ok(());
    }

    // A second machine in this process finds the limit already raised. The first value is the one
    // to restore.
    ORIGINAL_LIMITS.get_or_init(|| (soft, hard));
    setrlimit(Resource::RLIMIT_NOFILE, wanted, hard)
}

/// Makes a program start with the limit that this process was started with. Some programs close
/// every number up to the limit, and `select` cannot handle numbers above 1023.
pub fn restore_in(command: &mut Command) {
    let Some(&(soft, hard)) = ORIGINAL_LIMITS.get() else { return };
    let restore = move || setrlimit(Resource::RLIMIT_NOFILE, soft, hard).map_err(io::Error::from);

    // SAFETY: between fork and exec only async-signal-safe calls are made: `setrlimit`, with
    // numbers that the closure owns. Neither it nor the conversion of its error number allocates.
    unsafe { command.pre_exec(restore) };
}
