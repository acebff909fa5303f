//! Files that attackers pass to the server.

use std::{
    ffi::CStr,
    fs::File,
    io::{self, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use nix::{
    fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl},
    sys::{
        memfd::{MFdFlags, memfd_create},
        socket::{setsockopt, sockopt},
    },
};

/// Name of the memory files, which only the system shows.
const NAME: &CStr = c"attack";

/// Returns a memory file of `size` bytes without allocated pages, which cannot grow: a server maps
/// no others that are not large.
///
/// # Errors
/// The system's error.
pub fn sparse(size: u64) -> io::Result<File> {
    let file = File::from(memfd_create(NAME, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?);
    file.set_len(size)?;
    fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_GROW))?;
    Ok(file)
}

/// Returns a memory file of `size` bytes with all pages allocated.
///
/// # Errors
/// The system's error.
pub fn populated(size: u64) -> io::Result<File> {
    let file = sparse(size)?;
    populate(&file, size)?;
    Ok(file)
}

/// Allocates the pages of a file's first `size` bytes.
///
/// # Errors
/// The system's error.
pub fn populate(file: impl AsFd, size: u64) -> io::Result<()> {
    Ok(fallocate(file, FallocateFlags::empty(), 0, size as libc::off_t)?)
}

/// Removes pages from a file.
///
/// # Errors
/// The system's error.
pub fn punch(file: impl AsFd, offset: u64, size: u64) -> io::Result<()> {
    let how = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    Ok(fallocate(file, how, offset as libc::off_t, size as libc::off_t)?)
}

/// Returns a socket whose last close waits for `linger`: it has data that its peer, the second
/// value, never reads.
///
/// # Errors
/// The system's error.
pub fn socket_with_linger(linger: Duration) -> io::Result<(OwnedFd, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    setsockopt(&listener, sockopt::RcvBuf, &4096)?;
    let mut local_end = TcpStream::connect(listener.local_addr()?)?;
    let (remote_end, _) = listener.accept()?;

    local_end.set_nonblocking(true)?;
    let zeros = vec![0; 64 << 10];
    while local_end.write(&zeros).is_ok() {}
    local_end.set_nonblocking(false)?;

    let seconds = libc::c_int::try_from(linger.as_secs()).unwrap_or(libc::c_int::MAX);
    setsockopt(&local_end, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: seconds })?;
    Ok((local_end.into(), remote_end))
}
