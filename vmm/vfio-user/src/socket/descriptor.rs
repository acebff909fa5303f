//! Descriptors that a peer passed, and the closer that closes them.
//!
//! The last close of a file may block for as long as its owner likes. A FUSE file waits for its
//! daemon, and a TCP socket with `SO_LINGER` waits for its own peer. The kernel may have to free
//! the pages of a memory file. A server that must not wait sets a [`Closer`]. Every descriptor of
//! its clients then goes there, whichever code drops it.
//!
//! UNSAFETY: `ManuallyDrop::take` moves the descriptor out of a value that is being dropped or
//! consumed.
#![allow(unsafe_code)]

use std::fmt;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Closes descriptors of a peer on a thread where blocking does no harm.
pub trait Closer: fmt::Debug + Send + Sync {
    /// Takes over a descriptor that is no longer needed. This call must not block.
    fn close(&self, fd: OwnedFd);
}

/// A descriptor that a peer passed. Dropping it hands it to the connection's [`Closer`], or closes
/// it when the connection has none.
pub struct PeerFd {
    fd: ManuallyDrop<OwnedFd>,
    closer: Option<Arc<dyn Closer>>,
}

impl PeerFd {
    /// Sets the closer of the descriptor. A listening socket needs one, since closing
    /// it also closes the descriptors that wait in it.
    pub fn set_closer(&mut self, closer: Arc<dyn Closer>) {
        self.closer = Some(closer);
    }

    pub(crate) fn new(fd: OwnedFd, closer: Option<Arc<dyn Closer>>) -> Self {
        Self { fd: ManuallyDrop::new(fd), closer }
    }

    fn take(&mut self) -> OwnedFd {
        // SAFETY: both callers give the value up right after this call, so the field is taken once.
        unsafe { ManuallyDrop::take(&mut self.fd) }
    }
}

impl Drop for PeerFd {
    fn drop(&mut self) {
        let fd = self.take();
        if let Some(closer) = &self.closer {
            closer.close(fd);
        }
    }
}

impl From<OwnedFd> for PeerFd {
    /// Wraps a descriptor that is closed where it is dropped.
    fn from(fd: OwnedFd) -> Self {
        Self::new(fd, None)
    }
}

impl From<PeerFd> for OwnedFd {
    /// Takes the descriptor out. From then on it is closed where the result is dropped.
    fn from(peer: PeerFd) -> Self {
        let mut peer = ManuallyDrop::new(peer);
        // The value is not dropped, but its reference to the closer must be.
        drop(peer.closer.take());
        peer.take()
    }
}

impl AsFd for PeerFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl fmt::Debug for PeerFd {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("PeerFd").field(&*self.fd).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, Read};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::sync::Mutex;

    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

    use super::*;
    use crate::socket::Framed;

    /// A closer that keeps the descriptors open.
    #[derive(Debug, Default)]
    struct KeepingCloser(Mutex<Vec<OwnedFd>>);

    impl Closer for KeepingCloser {
        fn close(&self, fd: OwnedFd) {
            self.0.lock().unwrap().push(fd);
        }
    }

    #[test]
    fn dropped_descriptor_is_passed_open_to_the_closer() {
        let (local_end, mut remote_end) = UnixStream::pair().unwrap();
        let kept = Arc::new(KeepingCloser::default());

        drop(PeerFd::new(local_end.into(), Some(kept.clone())));

        remote_end.set_nonblocking(true).unwrap();
        assert_eq!(remote_end.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        assert_eq!(kept.0.lock().unwrap().len(), 1);
        assert_eq!(Arc::strong_count(&kept), 1);
    }

    #[test]
    fn descriptor_with_a_byte_out_of_band_is_passed_to_the_closer() {
        let (local_end, remote_end) = UnixStream::pair().unwrap();
        let kept = Arc::new(KeepingCloser::default());
        let mut framed = Framed::new(local_end.into(), 4096, 8);
        framed.set_closer(kept.clone());

        let (passed, other_end) = UnixStream::pair().unwrap();
        let rights = [passed.as_raw_fd()];
        let message = [ControlMessage::ScmRights(&rights)];
        sendmsg::<()>(remote_end.as_raw_fd(), &[IoSlice::new(&[0])], &message, MsgFlags::MSG_OOB, None)
            .unwrap();
        drop(passed);
        let _ = framed.fill();
        drop(framed);

        assert_eq!(kept.0.lock().unwrap().len(), 1);
        other_end.set_nonblocking(true).unwrap();
        assert_eq!((&other_end).read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    }

    #[test]
    fn descriptor_that_is_taken_out_is_not_closed_by_the_closer() {
        let (local_end, mut remote_end) = UnixStream::pair().unwrap();
        let kept = Arc::new(KeepingCloser::default());

        let owned = OwnedFd::from(PeerFd::new(local_end.into(), Some(kept.clone())));

        assert_eq!((kept.0.lock().unwrap().len(), Arc::strong_count(&kept)), (0, 1));
        drop(owned);
        assert_eq!(remote_end.read(&mut [0]).unwrap(), 0);
    }
}
