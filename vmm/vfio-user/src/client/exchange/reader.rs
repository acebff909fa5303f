//! Reading of the socket by one thread for all.

use std::os::fd::AsFd;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use nicforge_shm::pace;
use nix::poll::{PollFlags, PollTimeout};

use super::{Exchange, MAX_WAIT, OwnedReply, Reply, State, poll_one};
use crate::client::{ClientError, Deadline, incoming};
use crate::socket::{FrameError, Message, ReadOutcome, Receiver};
use crate::wire::{Command, Header, MessageType};

/// Reads of the socket during a busy wait before the thread yields its processor between two of
/// them.
const READS_BEFORE_YIELD: u32 = 8;

/// The event that the thread that reads waits for.
#[derive(Clone, Copy)]
pub(super) enum AwaitedEvent {
    /// The reply to this request.
    Reply { id: u16, command: Command },
    /// A request of the server: the count of requests served differs from `served`.
    Incoming { served: u64 },
}

/// Why the thread that reads has stopped.
pub(super) enum StopReason<T> {
    /// The awaited reply came; the result is the caller's.
    Reply(Result<T, ClientError>),
    /// A request of the server was served.
    Served,
    /// The deadline has passed, or the caller must check the shared state.
    Deadline,
    /// The connection has ended.
    Dead(FrameError),
}

impl AwaitedEvent {
    fn is_reply(self) -> bool {
        matches!(self, Self::Reply { .. })
    }
}

/// Why no further message can be read now.
enum NoInput {
    /// The deadline has passed, or the thread must check the shared state.
    Deadline,
    /// The connection has ended.
    Dead(FrameError),
}

/// The next step of the reading thread after a wait.
enum AfterWait {
    /// It reads again. `has_queued` tells whether bytes wait to be sent.
    Continue { has_queued: bool },
    /// It stops: the connection has ended, or another thread has served the awaited request.
    Stop,
}

/// A wait for input.
struct InputWait {
    awaited: AwaitedEvent,
    deadline: Deadline,
    /// End of the busy wait, if there is one.
    spin_end: Option<Instant>,
    /// Number of reads that found the socket empty.
    empty_reads: u32,
    /// Whether bytes wait to be sent.
    has_queued: bool,
}

impl InputWait {
    /// Spins once. The server may be waiting for this processor, so it yields later on.
    fn spin(&mut self) {
        self.empty_reads = self.empty_reads.saturating_add(1);
        if self.empty_reads < READS_BEFORE_YIELD {
            std::hint::spin_loop();
        } else {
            pace::yield_now();
        }
    }
}

impl Exchange {
    /// Reads the socket for all threads until the awaited event, the deadline or the end of the
    /// connection. The lock is released meanwhile. Replies of other threads are stored
    /// for them, and one of the sleeping threads becomes the next reader.
    pub(super) fn read_for_all<'a, T>(
        &'a self,
        state: MutexGuard<'a, State>,
        mut rx: Receiver,
        awaited: AwaitedEvent,
        deadline: Deadline,
        on_reply: impl FnOnce(Header, Reply<'_>) -> Result<T, ClientError>,
    ) -> (MutexGuard<'a, State>, StopReason<T>) {
        let has_queued = state.tx.queued() > 0;
        drop(state);

        let stop = self.read_until(&mut rx, awaited, deadline, has_queued, on_reply);
        let mut state = self.lock();
        state.rx = Some(rx);
        let stop = match stop {
            StopReason::Dead(error) => {
                self.end_connection(&mut state, error);
                StopReason::Deadline
            }
            stop => stop,
        };

        if state.sleepers > 0 {
            // One of the sleepers must read from now on.
            self.changed.notify_all();
        }
        (state, stop)
    }

    /// Reads and serves messages until the awaited event, without the lock. `has_queued` tells
    /// whether bytes wait to be sent.
    fn read_until<T>(
        &self,
        rx: &mut Receiver,
        awaited: AwaitedEvent,
        deadline: Deadline,
        has_queued: bool,
        on_reply: impl FnOnce(Header, Reply<'_>) -> Result<T, ClientError>,
    ) -> StopReason<T> {
        // On a busy host a yield would cost more than a read that blocks.
        let spins = !self.spin.is_zero() && !pace::is_busy();
        let spin_end = spins.then(|| Instant::now() + self.spin);
        let mut wait = InputWait { awaited, deadline, spin_end, empty_reads: 0, has_queued };
        if self.shares_processor && awaited.is_reply() && spin_end.is_some() {
            // No reply can be there before the server has run. So the thread yields at once, and
            // again after each read that finds none.
            wait.empty_reads = READS_BEFORE_YIELD;
            pace::yield_now();
        }

        loop {
            let message = match rx.next_message() {
                Ok(Some(message)) => message,
                Ok(None) => match self.receive(rx, &mut wait) {
                    Ok(()) => continue,
                    Err(NoInput::Deadline) => return StopReason::Deadline,
                    Err(NoInput::Dead(error)) => return StopReason::Dead(error),
                },
                Err(error) => return StopReason::Dead(error),
            };

            let header = message.header;
            if header.message_type() == MessageType::Reply {
                match awaited {
                    AwaitedEvent::Reply { id, command } if header.id == id && header.command == command => {
                        let reply = Reply { payload: message.payload, fds: message.fds };
                        return StopReason::Reply(on_reply(header, reply));
                    }
                    _ => self.deliver(message),
                }
            } else if let Err(error) = self.serve(message, &mut wait.has_queued) {
                return StopReason::Dead(error);
            } else if !awaited.is_reply() {
                return StopReason::Served;
            }

            if deadline.is_over() {
                return StopReason::Deadline;
            }
        }
    }

    /// Reads the socket once. When the socket is empty, it spins, or waits for at most
    /// [`MAX_WAIT`].
    fn receive(&self, rx: &mut Receiver, wait: &mut InputWait) -> Result<(), NoInput> {
        let is_spinning = wait.spin_end.is_some_and(|end| Instant::now() < end) && !pace::is_busy();
        // A read that blocks is one system call instead of a read, a `poll` and another read.
        // Another thread that sends meanwhile flushes the queue itself. The rest of a message that
        // may not wait is sent after this read.
        let blocks_in_read = self.has_receive_timeout
            && wait.awaited.is_reply()
            && !is_spinning
            && !wait.has_queued
            && wait.deadline.remaining() >= MAX_WAIT;

        let filled =
            if blocks_in_read { rx.wait_and_fill(self.fd.as_fd()) } else { rx.fill(self.fd.as_fd()) };
        match filled.map_err(NoInput::Dead)? {
            ReadOutcome::Data { .. } => return Ok(()),
            ReadOutcome::WouldBlock | ReadOutcome::Full => {}
            ReadOutcome::End => return Err(NoInput::Dead(FrameError::Closed)),
        }

        if wait.deadline.is_over() {
            return Err(NoInput::Deadline);
        }
        if is_spinning && !wait.has_queued {
            wait.spin();
            return Ok(());
        }
        self.sleep(wait)
    }

    /// Waits until the socket has input, or takes more where bytes wait to be sent.
    fn sleep(&self, wait: &mut InputWait) -> Result<(), NoInput> {
        // A lost server ends the connection only when the socket is empty, because messages that
        // the server had sent before are still served.
        if self.is_lost() {
            return Err(NoInput::Dead(FrameError::Died));
        }

        let output = if wait.has_queued { PollFlags::POLLOUT } else { PollFlags::empty() };
        self.poll_socket(PollFlags::POLLIN | output, wait.deadline.remaining().min(MAX_WAIT));
        match self.flush_after_wait(wait.awaited).map_err(NoInput::Dead)? {
            AfterWait::Continue { has_queued } => wait.has_queued = has_queued,
            AfterWait::Stop => return Err(NoInput::Deadline),
        }
        Ok(())
    }

    /// Sends the queue after a wait. Returns whether the thread that reads may continue.
    fn flush_after_wait(&self, awaited: AwaitedEvent) -> Result<AfterWait, FrameError> {
        let mut state = self.lock();
        if state.dead.is_some() {
            return Ok(AfterWait::Stop);
        }
        if state.tx.queued() > 0 {
            state.tx.flush(self.fd.as_fd())?;
        }
        match awaited {
            AwaitedEvent::Incoming { served } if state.served != served => Ok(AfterWait::Stop),
            _ => Ok(AfterWait::Continue { has_queued: state.tx.queued() > 0 }),
        }
    }

    /// Passes a reply to the thread that waits for it. A reply that no thread waits for came too
    /// late, and is dropped.
    fn deliver(&self, message: Message<'_>) {
        let header = message.header;
        let mut state = self.lock();
        let found = state.pending.iter_mut().find(|request| {
            request.id == header.id && request.command == header.command && request.reply.is_none()
        });
        if let Some(request) = found {
            let payload = message.payload.to_vec();
            request.reply = Some(OwnedReply { header, payload, fds: message.fds });
            self.changed.notify_all();
        }
    }

    /// Serves a request of the server, and stores in `has_queued` whether bytes wait to be sent.
    /// The memory is reached without the lock.
    fn serve(&self, message: Message<'_>, has_queued: &mut bool) -> Result<(), FrameError> {
        let answer = self.answer(&message);
        let mut state = self.lock();
        state.served += 1;
        if !message.header.no_reply() {
            if state.tx.queued() > incoming::max_queued(self.max_data) {
                // The server sends requests without end and reads no answers.
                return Err(FrameError::Io(std::io::ErrorKind::OutOfMemory.into()));
            }
            state.tx.send(self.fd.as_fd(), &answer, &[], &[])?;
            *has_queued = state.tx.queued() > 0;
        }
        Ok(())
    }

    /// Waits until the socket is ready for one of `events`, for `time` at most.
    pub(super) fn poll_socket(&self, events: PollFlags, time: Duration) {
        // Rounded up, so that the last millisecond is one wait instead of many empty ones.
        let millis = u16::try_from(time.as_micros().div_ceil(1000)).unwrap_or(u16::MAX);
        // The caller reads the socket next, whatever the poll returns.
        poll_one(self.fd.as_fd(), events, PollTimeout::from(millis));
    }
}
