//! Refusal of a connection: a thread that may block answers its first message with an error.
//!
//! Even sending 16 bytes can take long, because the kernel walks all watches that the peer has
//! registered on its socket.

use std::{
    os::fd::{AsFd, AsRawFd, OwnedFd},
    time::{Duration, Instant},
};

use nicforge_vfio_user::{
    Errno,
    wire::{Command, HEADER_SIZE, Header},
};
use nix::{
    errno::Errno as SystemErrno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{MsgFlags, recv, send},
};

/// Time that a refused client may take to send its first message.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of bytes that are read of that message, beside its header.
const MAX_BODY: usize = 4096;

/// A connection that is refused.
#[derive(Debug)]
pub(crate) struct Refusal {
    fd: OwnedFd,
    errno: Errno,
}

impl Refusal {
    pub(crate) fn new(fd: OwnedFd, errno: Errno) -> Self {
        Self { fd, errno }
    }

    /// Waits for the first header, for a bounded time. A `VERSION` is answered with the error; any
    /// other message is not answered. Then the connection is closed.
    pub(crate) fn answer(self) {
        let Some(header) = self.receive_header() else { return };
        if header.command != Command::Version {
            return;
        }

        // A close with unread bytes resets the connection, and some clients would then not read the
        // answer. So the body of the message is read too.
        let mut body = [0; MAX_BODY];
        let _ = recv(self.fd.as_raw_fd(), &mut body, MsgFlags::MSG_DONTWAIT);
        let reply = Header::error_reply(header.id, header.command, self.errno).to_bytes();
        // The send buffer is empty and has room for the 16 bytes. If the client is gone, the send
        // fails, and no answer is needed.
        let _ = send(self.fd.as_raw_fd(), &reply, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL);
    }

    /// Receives the header of the client's first message, within [`TIMEOUT`].
    fn receive_header(&self) -> Option<Header> {
        let deadline = Instant::now() + TIMEOUT;
        let mut header = [0; HEADER_SIZE];
        let mut received = 0;
        while received < HEADER_SIZE {
            match recv(self.fd.as_raw_fd(), &mut header[received..], MsgFlags::MSG_DONTWAIT) {
                Ok(0) => return None,
                Ok(count) => received += count,
                Err(SystemErrno::EINTR) => {}
                Err(SystemErrno::EAGAIN) => self.wait_readable(deadline)?,
                Err(_) => return None,
            }
        }
        Header::parse(&header)
    }

    /// Waits for input; returns `None` when the time is over.
    fn wait_readable(&self, deadline: Instant) -> Option<()> {
        let remaining = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(remaining).unwrap_or(PollTimeout::ZERO);
        let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, timeout) {
            Ok(ready) if ready > 0 => Some(()),
            Err(SystemErrno::EINTR) => Some(()),
            _ => None,
        }
    }
}
