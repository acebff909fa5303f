//! Sends requests and receives replies, for many threads over one socket.
//!
//! A thread that waits for a reply reads the socket if no other thread does, and passes other
//! threads' replies to them. The others sleep on a condition variable. No thread holds the lock
//! while it waits.

mod reader;
mod second_socket;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{Shutdown, setsockopt, shutdown, sockopt::ReceiveTimeout};
use nix::sys::time::{TimeVal, TimeValLike};

use self::reader::{AwaitedEvent, StopReason};
use self::second_socket::{SecondSocketPhase, SecondSocketState};
use super::{ClientConfig, ClientError, Deadline, GuestMemory, ServerWatch, incoming};
use crate::Errno;
use crate::socket::{FrameError, Framed, Message, PeerFd, Receiver, Sender};
use crate::wire::{Command, HEADER_SIZE, Header};

/// Number of processors from which on the server is assumed to have one for itself. With fewer, it
/// may need this thread's processor to answer at all.
const MIN_UNSHARED_PROCESSORS: usize = 4;
/// Maximum number of requests that wait for a reply at a time.
const MAX_PENDING_REQUESTS: usize = 1024;
/// Number of bytes that wait for the socket beyond which no request is made. A request is one
/// message of about 1 MiB at most.
const MAX_QUEUED_BYTES: usize = 4 << 20;

/// Longest single wait. A thread checks the shared state at least that often, even without a
/// wake-up.
const MAX_WAIT: Duration = Duration::from_millis(100);

/// A reply before it is passed to its thread.
pub(super) struct Reply<'a> {
    pub(super) payload: &'a [u8],
    pub(super) fds: Vec<PeerFd>,
}

/// A reply that waits for its thread.
struct OwnedReply {
    header: Header,
    payload: Vec<u8>,
    fds: Vec<PeerFd>,
}

/// A request whose reply its thread has not taken.
struct PendingRequest {
    id: u16,
    command: Command,
    reply: Option<OwnedReply>,
}

/// State that the threads share.
struct State {
    /// Receiver of the first socket. The thread that reads takes it out, so `None` means that a
    /// thread reads.
    rx: Option<Receiver>,
    tx: Sender,
    pending: Vec<PendingRequest>,
    /// The message id that was used last.
    last_id: u16,
    /// Why the connection has ended; `None` while it lasts.
    dead: Option<Arc<FrameError>>,
    /// Number of requests of the server that were served on the first socket.
    served: u64,
    /// Number of threads that wait on [`Exchange::changed`]. Without any, the system call that
    /// wakes them is saved.
    sleepers: usize,
    /// The second socket, once there is one.
    second_socket: SecondSocketState,
}

/// The connection to the server, for all threads.
pub(super) struct Exchange {
    fd: OwnedFd,
    /// The second socket, if the server offers one.
    second_socket: OnceLock<OwnedFd>,
    state: Mutex<State>,
    /// Notified when the state has changed for threads that wait.
    changed: Condvar,
    /// Whether `State::dead` is set, for readers without the lock.
    dead: AtomicBool,
    /// Time for which a thread polls the socket before it sleeps.
    spin: Duration,
    /// Whether the server may be waiting for this thread's processor.
    shares_processor: bool,
    /// Whether the socket itself ends a wait in `recvmsg` after [`MAX_WAIT`].
    has_receive_timeout: bool,
    memory: Option<Arc<dyn GuestMemory>>,
    watch: Option<Arc<dyn ServerWatch>>,
    /// Maximum number of bytes of data in a message of the server.
    max_data: u32,
}

impl std::fmt::Debug for Exchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exchange").field("fd", &self.fd).field("dead", &self.is_dead()).finish()
    }
}

impl Exchange {
    pub(super) fn new(framed: Framed, config: &ClientConfig) -> Self {
        let Framed { fd, rx, tx } = framed;
        let max_wait = TimeVal::milliseconds(MAX_WAIT.as_millis() as i64);
        let has_receive_timeout = setsockopt(&fd, ReceiveTimeout, &max_wait).is_ok();
        let processors = std::thread::available_parallelism().map_or(1, usize::from);

        let state = State {
            rx: Some(rx),
            tx,
            pending: Vec::new(),
            last_id: 0,
            dead: None,
            served: 0,
            sleepers: 0,
            second_socket: SecondSocketState::default(),
        };

        Self {
            fd,
            second_socket: OnceLock::new(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            dead: AtomicBool::new(false),
            spin: config.spin,
            shares_processor: processors < MIN_UNSHARED_PROCESSORS,
            has_receive_timeout,
            memory: config.memory.clone(),
            watch: config.watch.clone(),
            max_data: config.max_data_xfer_size,
        }
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Returns whether the configured [`ServerWatch`] reports the server lost, even if the socket
    /// is still open.
    pub(super) fn is_lost(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.is_lost())
    }

    /// Sends a request made of `fixed` and `data`, waits for its reply, and passes that to
    /// `on_reply`. It returns at the deadline at the latest.
    pub(super) fn call<T>(
        &self,
        command: Command,
        fixed: &[u8],
        data: &[u8],
        fds: &[BorrowedFd<'_>],
        deadline: Deadline,
        on_reply: impl FnOnce(Reply<'_>) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let mut state = self.lock();
        check_dead(&state)?;
        check_room(&state)?;

        let id = fresh_id(&mut state);
        let header = Header::request(id, command, fixed.len() + data.len(), false);
        self.send(&mut state, &header, fixed, data, fds)?;

        state.pending.push(PendingRequest { id, command, reply: None });
        let result = self.wait_reply(state, id, command, deadline, on_reply);

        if let Some(second_socket) = self.second_socket() {
            self.wait_until_served(second_socket, deadline);
        }
        result
    }

    /// Sends a request that wants no reply, and returns when the socket has taken all of it, or at
    /// the deadline.
    pub(super) fn post(
        &self,
        command: Command,
        fixed: &[u8],
        data: &[u8],
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        let mut state = self.lock();
        check_dead(&state)?;
        check_room(&state)?;
        let id = fresh_id(&mut state);
        let header = Header::request(id, command, fixed.len() + data.len(), true);
        self.send(&mut state, &header, fixed, data, &[])?;

        while state.tx.queued() > 0 {
            check_dead(&state)?;
            if deadline.is_over() {
                return Err(ClientError::Timeout { command, timeout: deadline.timeout });
            }

            let served = state.served;
            // The server may wait for this side to read, so this thread reads while it waits to
            // write.
            state = match state.rx.take() {
                Some(rx) => {
                    let (awaited, deadline) = (AwaitedEvent::Incoming { served }, at_most_max_wait(deadline));
                    self.read_for_all(state, rx, awaited, deadline, refuse_reply).0
                }
                None => self.flush_when_writable(state, deadline)?,
            };
        }
        Ok(())
    }

    /// Sends a request that wants no reply, without waiting. It sends nothing while earlier
    /// messages still wait for the socket. Returns whether the message was sent or queued.
    pub(super) fn try_post(&self, command: Command, fixed: &[u8], data: &[u8]) -> Result<bool, ClientError> {
        let mut state = self.lock();
        check_dead(&state)?;
        if state.tx.queued() > 0 {
            let flushed = state.tx.flush(self.fd.as_fd());
            flushed.map_err(|error| self.end_connection(&mut state, error))?;
        }
        if state.tx.queued() > 0 {
            return Ok(false);
        }

        let id = fresh_id(&mut state);
        let header = Header::request(id, command, fixed.len() + data.len(), true);
        self.send(&mut state, &header, fixed, data, &[])?;
        Ok(true)
    }

    /// Serves requests of the server until one was served or the deadline has passed. Returns the
    /// number of requests served meanwhile, with those that the second socket's thread has served
    /// since the last call.
    pub(super) fn poll_incoming(&self, deadline: Deadline) -> Result<u64, ClientError> {
        let mut state = self.lock();
        let before = state.served;

        // With a second socket its thread serves requests, and this one sleeps. It reads the first
        // socket only to notice the end of the server, so without a wait.
        let has_second_socket =
            self.second_socket().is_some() && state.second_socket.phase != SecondSocketPhase::Ended;
        let read_deadline = if has_second_socket { Deadline::after(Duration::ZERO) } else { deadline };

        loop {
            check_dead(&state)?;
            let mut has_waited = false;
            if let Some(rx) = state.rx.take() {
                let awaited = AwaitedEvent::Incoming { served: before };
                state = self.read_for_all(state, rx, awaited, read_deadline, refuse_reply).0;
                has_waited = !has_second_socket;
            }

            let served = state.served - before + std::mem::take(&mut state.second_socket.unreported);
            if served != 0 || deadline.is_over() {
                return Ok(served);
            }
            if has_second_socket && self.is_lost() {
                return Err(self.end_connection(&mut state, FrameError::Died));
            }

            if !has_waited {
                state = self.wait_for_change(state, deadline);
            }
        }
    }

    /// Ends the connection because of an error on the second socket, also for the thread that reads
    /// the first one.
    pub(super) fn end_by_second_socket(&self, error: FrameError) {
        self.end_connection(&mut self.lock(), error);
        self.shut_down();
    }

    /// Ends the connection for all processes that have the socket open.
    pub(super) fn shut_down(&self) {
        // An error means that the server has ended it.
        let _ = shutdown(self.fd.as_raw_fd(), Shutdown::Both);
    }

    /// Builds the whole answer to a request of the server. The memory is reached without the lock.
    pub(super) fn answer(&self, message: &Message<'_>) -> Vec<u8> {
        incoming::answer(self.memory.as_deref(), self.max_data, message)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic in another thread leaves the state consistent: each change of it is one step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message, or queues the part of it that the socket does not take now.
    fn send(
        &self,
        state: &mut State,
        header: &Header,
        fixed: &[u8],
        data: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ClientError> {
        let header = header.to_bytes();
        // Header and fixed part are copied together, so that the data go out without a copy. Only
        // the fixed part of a `VERSION` is longer.
        let mut head_buffer = [0; 64];
        let head_len = HEADER_SIZE + fixed.len();

        let sent = if let Some(head) = head_buffer.get_mut(..head_len) {
            head[..HEADER_SIZE].copy_from_slice(&header);
            head[HEADER_SIZE..].copy_from_slice(fixed);
            state.tx.send(self.fd.as_fd(), head, data, fds)
        } else if data.is_empty() {
            state.tx.send(self.fd.as_fd(), &header, fixed, fds)
        } else {
            state.tx.send(self.fd.as_fd(), &header, &[fixed, data].concat(), fds)
        };

        sent.map_err(|error| match error {
            // A lack of descriptors or memory in this process does not end the connection.
            FrameError::Io(error) => ClientError::System { call: "sendmsg", errno: error.into() },
            error => self.end_connection(state, error),
        })
    }

    /// Sleeps until another thread reports a change of the state, for [`MAX_WAIT`] and until the
    /// deadline at most.
    fn wait_for_change<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        deadline: Deadline,
    ) -> MutexGuard<'a, State> {
        let time = deadline.remaining().min(MAX_WAIT);
        state.sleepers += 1;
        let mut state = self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0;
        state.sleepers -= 1;
        state
    }

    /// Waits until the socket takes more, while another thread reads, and sends what is queued.
    fn flush_when_writable<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        deadline: Deadline,
    ) -> Result<MutexGuard<'a, State>, ClientError> {
        drop(state);
        self.poll_socket(PollFlags::POLLOUT, deadline.remaining().min(MAX_WAIT));
        let mut state = self.lock();
        let flushed = state.tx.flush(self.fd.as_fd());
        flushed.map_err(|error| self.end_connection(&mut state, error))?;
        Ok(state)
    }

    /// Waits for the reply to request `id`, and passes it to `on_reply`. It returns at the deadline
    /// at the latest.
    ///
    /// The caller has added the request to the pending ones. This function removes it from them,
    /// whatever the result is.
    fn wait_reply<'a, T>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        id: u16,
        command: Command,
        deadline: Deadline,
        on_reply: impl FnOnce(Reply<'_>) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        // The reply arrives once, read either by this thread or by another one.
        let mut on_reply = Some(on_reply);

        loop {
            let Some(index) = state.pending.iter().position(|request| request.id == id) else {
                return Err(ClientError::System { call: "reply", errno: Errno::EIO });
            };

            // Another thread has read the reply.
            if let Some(reply) = state.pending[index].reply.take() {
                state.pending.swap_remove(index);
                drop(state);
                let OwnedReply { header, payload, fds } = reply;
                return pass_reply(&mut on_reply, header, Reply { payload: &payload, fds });
            }

            if let Err(error) = check_dead(&state) {
                state.pending.swap_remove(index);
                return Err(error);
            }
            if deadline.is_over() {
                state.pending.swap_remove(index);
                return Err(ClientError::Timeout { command, timeout: deadline.timeout });
            }

            // This thread reads if no other thread does.
            if let Some(rx) = state.rx.take() {
                let awaited = AwaitedEvent::Reply { id, command };
                let on_own_reply = |header, reply: Reply<'_>| pass_reply(&mut on_reply, header, reply);
                let (guard, stop) = self.read_for_all(state, rx, awaited, deadline, on_own_reply);
                state = guard;

                if let StopReason::Reply(result) = stop {
                    state.pending.retain(|request| request.id != id);
                    return result;
                }
            } else if state.tx.queued() > 0 {
                state = self.flush_when_writable(state, deadline)?;
            } else {
                state = self.wait_for_change(state, deadline);
            }
        }
    }

    /// Records the end of the connection, unless it has ended already, and wakes all threads.
    /// Returns the error for the calls.
    fn end_connection(&self, state: &mut State, error: FrameError) -> ClientError {
        self.dead.store(true, Ordering::Release);
        let reason = state.dead.get_or_insert_with(|| Arc::new(error)).clone();
        self.changed.notify_all();
        ClientError::Disconnected { reason }
    }
}

/// Waits for one of `events`, an error or a hang-up of a descriptor. Returns whether one is
/// reported within the time.
fn poll_one(fd: BorrowedFd<'_>, events: PollFlags, time: PollTimeout) -> bool {
    poll(&mut [PollFd::new(fd, events)], time).is_ok_and(|ready| ready > 0)
}

/// Returns an error if too many requests wait for their replies, or too many bytes wait to be sent.
fn check_room(state: &State) -> Result<(), ClientError> {
    if state.pending.len() >= MAX_PENDING_REQUESTS || state.tx.queued() > MAX_QUEUED_BYTES {
        return Err(ClientError::System { call: "request", errno: Errno::EBUSY });
    }
    Ok(())
}

/// Returns an error if the connection has ended.
fn check_dead(state: &State) -> Result<(), ClientError> {
    match &state.dead {
        Some(reason) => Err(ClientError::Disconnected { reason: reason.clone() }),
        None => Ok(()),
    }
}

/// Returns a message id that no waiting request has.
fn fresh_id(state: &mut State) -> u16 {
    // Fewer requests wait than there are ids, so the loop finds a free one.
    loop {
        state.last_id = state.last_id.wrapping_add(1);
        let id = state.last_id;
        if state.pending.iter().all(|request| request.id != id) {
            return id;
        }
    }
}

/// Passes a reply to the function in `on_reply`, and leaves `None` there. If the reply reports an
/// error, it returns that error.
fn pass_reply<T>(
    on_reply: &mut Option<impl FnOnce(Reply<'_>) -> Result<T, ClientError>>,
    header: Header,
    reply: Reply<'_>,
) -> Result<T, ClientError> {
    if let Some(errno) = header.reply_error() {
        return Err(ClientError::Refused { command: header.command, errno });
    }

    match on_reply.take() {
        Some(on_reply) => on_reply(reply),
        None => Err(super::malformed(header.command, "it came twice")),
    }
}

/// Refuses a reply. It stands for the function that takes the awaited reply, where a thread reads
/// the socket and awaits none.
fn refuse_reply(header: Header, _: Reply<'_>) -> Result<(), ClientError> {
    Err(super::malformed(header.command, "no thread waits for one"))
}

/// Returns the earlier of `deadline` and the end of [`MAX_WAIT`] from now.
fn at_most_max_wait(deadline: Deadline) -> Deadline {
    Deadline::after(deadline.remaining().min(MAX_WAIT))
}
