//! The second socket, on which a server sends its requests once both sides have agreed on it.
//!
//! A thread of its own serves it, so a request is answered even when no call waits. The kernel does
//! not order messages between two sockets. So a call returns only after the requests that the
//! server sent before its reply were served ([`Exchange::wait_until_served`]). When a call returns
//! the value of a register that announces data of the device, the data are in memory already.
//!
//! A server that closes this socket sends no more requests, and the connection continues. A
//! malformed stream ends the connection, as on the first socket.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use nix::sys::socket::{SockType, UnixAddr, getsockname, getsockopt, sockopt};

use super::exchange::Exchange;
use super::{ClientError, malformed};
use crate::socket::{FrameError, Framed, ReadOutcome, Receiver, Sender};
use crate::wire::{Command, MessageType, TwinSocket};

/// Stack of the thread, in bytes. The thread copies between buffers, and calls the client's
/// [`GuestMemory`](super::GuestMemory).
const STACK_SIZE: usize = 512 * 1024;

/// The thread that serves the second socket. Dropping this value ends it.
#[derive(Debug)]
pub(super) struct SecondSocket {
    exchange: Arc<Exchange>,
    thread: Option<JoinHandle<()>>,
}

impl SecondSocket {
    /// Takes the socket that the reply to `VERSION` offers among its descriptors, and starts to
    /// serve it. Messages on it have at most `limit` bytes.
    pub(super) fn start(
        exchange: &Arc<Exchange>,
        offer: &TwinSocket,
        fds: Vec<OwnedFd>,
        limit: usize,
    ) -> Result<Self, ClientError> {
        let index = offer.fd_index.and_then(|index| usize::try_from(index).ok());
        let socket =
            index.and_then(|index| fds.into_iter().nth(index)).filter(|fd| is_unix_stream(fd.as_fd()));
        let Some(socket) = socket else {
            let description = "its twin socket is no connected UNIX socket among its descriptors";
            return Err(malformed(Command::Version, description));
        };

        let Framed { fd, rx, tx } = Framed::new(socket, limit, 0);
        exchange.set_second_socket(fd);
        let exchange_of_thread = exchange.clone();
        let thread = std::thread::Builder::new()
            .name("vfio-user-twin".to_owned())
            .stack_size(STACK_SIZE)
            .spawn(move || run(&exchange_of_thread, rx, tx))
            .map_err(|error| ClientError::System { call: "clone", errno: error.into() })?;
        Ok(Self { exchange: exchange.clone(), thread: Some(thread) })
    }
}

impl SecondSocket {
    /// Leaves the socket and the thread alone, in a child of `fork`: the socket is the parent's,
    /// too, and only the parent has the thread.
    pub(super) fn forget(self) {
        std::mem::forget(self);
    }
}

impl Drop for SecondSocket {
    fn drop(&mut self) {
        self.exchange.shut_down_second_socket();
        // The join ensures that the client's `GuestMemory` is not called after the client is gone.
        // If a call of it drops the client, this is the thread itself, which cannot join itself.
        let is_this_thread = |thread: &JoinHandle<()>| thread.thread().id() == std::thread::current().id();
        if let Some(thread) = self.thread.take().filter(|thread| !is_this_thread(thread)) {
            // The panic hook has already reported a panic in the thread.
            let _ = thread.join();
        }
    }
}

/// Returns whether the descriptor is a stream socket of the UNIX domain that does not listen.
fn is_unix_stream(fd: BorrowedFd<'_>) -> bool {
    let is_unix = getsockname::<UnixAddr>(std::os::fd::AsRawFd::as_raw_fd(&fd)).is_ok();
    let is_listening = getsockopt(&fd, sockopt::AcceptConn).unwrap_or(true);
    is_unix && !is_listening && getsockopt(&fd, sockopt::SockType) == Ok(SockType::Stream)
}

/// Marks the second socket as ended when it is dropped, also by a panic in the client's
/// [`GuestMemory`](super::GuestMemory). Calls that wait for the second socket then return.
struct EndGuard<'a>(&'a Exchange);

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        self.0.mark_second_socket_ended();
    }
}

/// Serves the second socket to its end. It is the body of the thread.
fn run(exchange: &Exchange, rx: Receiver, tx: Sender) {
    let guard = EndGuard(exchange);
    let result = serve(exchange, rx, tx);
    drop(guard);
    match result {
        Ok(()) | Err(FrameError::Closed) => {}
        Err(error) => exchange.end_by_second_socket(error),
    }
}

/// Serves requests until the server closes the socket.
fn serve(exchange: &Exchange, mut rx: Receiver, mut tx: Sender) -> Result<(), FrameError> {
    let Some(socket) = exchange.second_socket() else { return Ok(()) };
    loop {
        exchange.wait_second_socket_readable(socket);
        loop {
            match rx.fill(socket)? {
                ReadOutcome::Data { .. } => {}
                ReadOutcome::WouldBlock | ReadOutcome::Full => break,
                ReadOutcome::End => return Ok(()),
            }

            while let Some(message) = rx.next_message()? {
                // This side sends no requests on this socket, so a reply is dropped.
                if message.header.message_type() != MessageType::Command {
                    continue;
                }

                let answer = exchange.answer(&message);
                exchange.count_second_socket_request();
                if !message.header.no_reply() {
                    tx.send(socket, &answer, &[], &[])?;
                }

                // No further request is served before the socket has taken the whole answer.
                while tx.queued() > 0 {
                    exchange.wait_second_socket_writable(socket);
                    tx.flush(socket)?;
                }
            }
        }
    }
}
