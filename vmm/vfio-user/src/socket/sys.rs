//! UNSAFETY: `recvmsg` and `sendmsg` with descriptors. `nix` drops the descriptors of a truncated
//! control message without closing them, and allocates for each message that carries some. A
//! hostile peer could exploit both. So the two calls are made here, and everything around them is
//! safe code.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Maximum number of descriptors that Linux passes in one message (`SCM_MAX_FD`).
pub(crate) const SCM_MAX_FD: usize = 253;

/// Size of `struct cmsghdr`: `size_t cmsg_len`, `int cmsg_level`, `int cmsg_type`.
const CMSG_HEADER: usize = size_of::<libc::cmsghdr>();
/// Where its fields are.
const CMSG_LEN: Range<usize> = 0..8;
const CMSG_LEVEL: Range<usize> = 8..12;
const CMSG_TYPE: Range<usize> = 12..16;
const FD_SIZE: usize = size_of::<libc::c_int>();
/// `CMSG_SPACE` of `SCM_MAX_FD` descriptors, in eight-byte words: header, descriptors, padding.
const CONTROL_WORDS: usize = (CMSG_HEADER + SCM_MAX_FD * FD_SIZE).div_ceil(8);

/// Room for the control messages of one call, aligned as `cmsghdr` wants it.
pub(crate) type Control = [u64; CONTROL_WORDS];

pub(crate) const EMPTY_CONTROL: Control = [0; CONTROL_WORDS];

/// Result of one `recvmsg`.
pub(crate) struct Received {
    /// Bytes put into the buffer; zero at the end of the stream.
    pub(crate) len: usize,
    /// Whether descriptors were lost, for example because this process may have no more of them.
    pub(crate) fds_lost: bool,
}

/// Reads the available bytes; with `may_block` it waits for the first. Descriptors are appended to
/// `fds`, close-on-exec.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    control: &mut Control,
    fds: &mut Vec<OwnedFd>,
    may_block: bool,
) -> io::Result<Received> {
    let mut iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: `msghdr` is plain old data, for which zero is a value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut iov;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of::<Control>() as _;

    let flags = libc::MSG_CMSG_CLOEXEC | if may_block { 0 } else { libc::MSG_DONTWAIT };
    // SAFETY: `header` points at one iovec over `buffer` and at `control`, with their true lengths;
    // all of them outlive the call, and nothing else refers to them meanwhile.
    let result = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };

    let len = usize::try_from(result).map_err(|_| io::Error::last_os_error())?;
    let control_len = (header.msg_controllen as usize).min(size_of::<Control>());
    let bytes = zerocopy::IntoBytes::as_bytes(control.as_slice());
    take_descriptors(&bytes[..control_len], fds);

    Ok(Received { len, fds_lost: header.msg_flags & libc::MSG_CTRUNC != 0 })
}

/// Walks the control messages that the kernel wrote and takes ownership of the descriptors in them.
fn take_descriptors(mut control: &[u8], fds: &mut Vec<OwnedFd>) {
    while let Some((header, _)) = control.split_at_checked(CMSG_HEADER) {
        let length = read_word(header, CMSG_LEN) as usize;
        let level = read_int(header, CMSG_LEVEL);
        let kind = read_int(header, CMSG_TYPE);
        let Some(data) = control.get(CMSG_HEADER..length) else { return };
        if level == libc::SOL_SOCKET && kind == libc::SCM_RIGHTS {
            for raw in data.chunks_exact(FD_SIZE).map(|chunk| read_int(chunk, 0..FD_SIZE)) {
                // SAFETY: the kernel has just installed this descriptor for us, and each one is
                // listed once.
                fds.push(unsafe { OwnedFd::from_raw_fd(raw) });
            }
        }
        control = control.get(length.next_multiple_of(8)..).unwrap_or_default();
    }
}

/// Reads a `size_t` from the eight bytes `at`.
fn read_word(bytes: &[u8], at: Range<usize>) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at]);
    u64::from_ne_bytes(word)
}

/// Reads an `int` from the four bytes `at`.
fn read_int(bytes: &[u8], at: Range<usize>) -> i32 {
    let mut int = [0; 4];
    int.copy_from_slice(&bytes[at]);
    i32::from_ne_bytes(int)
}

/// Sends `head` and `body` as one piece, without waiting and without `SIGPIPE`, and returns the
/// number of bytes sent. If any byte went out, the descriptors went with it.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    head: &[u8],
    body: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    if fds.len() > SCM_MAX_FD {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut iov = [
        libc::iovec { iov_base: head.as_ptr().cast_mut().cast(), iov_len: head.len() },
        libc::iovec { iov_base: body.as_ptr().cast_mut().cast(), iov_len: body.len() },
    ];

    // SAFETY: `msghdr` is plain old data, for which zero is a value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = iov.as_mut_ptr();
    header.msg_iovlen = if body.is_empty() { 1 } else { 2 };

    let mut control = EMPTY_CONTROL;
    if !fds.is_empty() {
        let length = CMSG_HEADER + fds.len() * FD_SIZE;
        let bytes = zerocopy::IntoBytes::as_mut_bytes(control.as_mut_slice());
        bytes[CMSG_LEN].copy_from_slice(&(length as u64).to_ne_bytes());
        bytes[CMSG_LEVEL].copy_from_slice(&libc::SOL_SOCKET.to_ne_bytes());
        bytes[CMSG_TYPE].copy_from_slice(&libc::SCM_RIGHTS.to_ne_bytes());
        for (slot, fd) in bytes[CMSG_HEADER..].chunks_exact_mut(FD_SIZE).zip(fds) {
            slot.copy_from_slice(&fd.as_raw_fd().to_ne_bytes());
        }
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = length.next_multiple_of(8) as _;
    }

    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: `header` points at iovecs over `head` and `body` and at `control`, with their true
    // lengths; the kernel only reads them, and all of them outlive the call.
    let result = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, flags) };
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
