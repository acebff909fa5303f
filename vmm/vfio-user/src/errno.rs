//! Error numbers as they travel in a reply header.

use std::fmt;

/// A positive UNIX error number, as the *Error* field of a reply carries it.
///
/// The value is always in 1..=4095; a number from a peer outside this range becomes `EIO`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(i32);

impl Errno {
    /// Operation not permitted.
    pub const EPERM: Self = Self(libc::EPERM);
    /// No such entry: an unmap of a range that is not mapped.
    pub const ENOENT: Self = Self(libc::ENOENT);
    /// Input/output error; also an error reply without a number.
    pub const EIO: Self = Self(libc::EIO);
    /// Bad file descriptor: a required one did not arrive.
    pub const EBADF: Self = Self(libc::EBADF);
    /// Try again.
    pub const EAGAIN: Self = Self(libc::EAGAIN);
    /// Out of memory or of a quota on it.
    pub const ENOMEM: Self = Self(libc::ENOMEM);
    /// Permission denied.
    pub const EACCES: Self = Self(libc::EACCES);
    /// Bad address: not in the DMA map.
    pub const EFAULT: Self = Self(libc::EFAULT);
    /// Busy.
    pub const EBUSY: Self = Self(libc::EBUSY);
    /// The range is already mapped.
    pub const EEXIST: Self = Self(libc::EEXIST);
    /// No such device: the device behind the connection has gone.
    pub const ENODEV: Self = Self(libc::ENODEV);
    /// Invalid argument.
    pub const EINVAL: Self = Self(libc::EINVAL);
    /// Too many open files: descriptors of a message were lost on the way in.
    pub const EMFILE: Self = Self(libc::EMFILE);
    /// No space: a quota is used up.
    pub const ENOSPC: Self = Self(libc::ENOSPC);
    /// The command is not known.
    pub const ENOSYS: Self = Self(libc::ENOSYS);
    /// Result or argument too large.
    pub const E2BIG: Self = Self(libc::E2BIG);
    /// Known, but not supported.
    pub const ENOTSUP: Self = Self(libc::EOPNOTSUPP);
    /// The other side has gone.
    pub const ENOTCONN: Self = Self(libc::ENOTCONN);
    /// Timed out.
    pub const ETIMEDOUT: Self = Self(libc::ETIMEDOUT);
    /// Cancelled, for instance by a reset.
    pub const ECANCELED: Self = Self(libc::ECANCELED);
    /// The peer's message breaks the protocol.
    pub const EPROTO: Self = Self(libc::EPROTO);

    /// Converts a host error number; a number outside 1..=4095 becomes `EIO`.
    pub const fn from_raw(raw: i32) -> Self {
        if raw >= 1 && raw <= 4095 { Self(raw) } else { Self::EIO }
    }

    /// Converts the *Error* field of a reply. Zero ("unspecified" in the specification) and numbers
    /// above 4095 become `EIO`.
    pub const fn from_wire(raw: u32) -> Self {
        if raw <= 4095 { Self::from_raw(raw as i32) } else { Self::EIO }
    }

    /// Returns the error number, 1..=4095.
    pub const fn raw(self) -> i32 {
        self.0
    }
}

impl From<nix::errno::Errno> for Errno {
    fn from(errno: nix::errno::Errno) -> Self {
        Self::from_raw(errno as i32)
    }
}

impl From<std::io::Error> for Errno {
    /// Returns the operating system's number where there is one, `EIO` otherwise.
    fn from(error: std::io::Error) -> Self {
        Self::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errno = nix::errno::Errno::from_raw(self.0);
        write!(f, "{} (errno {})", errno.desc(), self.0)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Errno({} = {:?})", self.0, nix::errno::Errno::from_raw(self.0))
    }
}

impl std::error::Error for Errno {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_wire_of_zero_and_of_too_large_numbers_is_eio() {
        assert_eq!(Errno::from_wire(0), Errno::EIO);
        assert_eq!(Errno::from_wire(4096), Errno::EIO);
        assert_eq!(Errno::from_wire(u32::MAX), Errno::EIO);
        assert_eq!(Errno::from_wire(libc::EEXIST as u32), Errno::EEXIST);
    }

    #[test]
    fn display_names_the_number() {
        assert!(Errno::EINVAL.to_string().contains("22"));
    }
}
