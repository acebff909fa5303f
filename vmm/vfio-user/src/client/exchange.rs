//! Sends requests and receives replies, for many threads over one socket.
//!
//! A thread that waits for a reply reads the socket if no other thread does, and passes other
//! threads' replies to them. The others sleep on a condition variable. No thread holds the lock
//! while it waits.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{Shutdown, setsockopt, shutdown, sockopt::ReceiveTimeout};
use nix::sys::time::{TimeVal, TimeValLike};

use super::{ClientConfig, ClientError, Deadline, GuestMemory, ServerWatch, incoming};
use crate::Errno;
use crate::socket::{Fill, FrameError, Framed, Message, PeerFd, Receiver, Sender};
use crate::wire::{Command, HEADER_SIZE, Header, MessageType};

/// Reads of the socket during a busy wait before the thread yields its processor between two of
/// them.
const LOOKS_BEFORE_YIELD: u32 = 8;
/// Processors from which on the server has one for itself. With fewer, it may need this thread's
/// processor to answer at all.
const PLENTY: usize = 4;
/// Most requests that wait for a reply at a time.
const MAX_WAITING: usize = 1024;

/// Longest single wait, so that a thread checks its state even if no wake-up came.
const MAX_NAP: Duration = Duration::from_millis(100);

/// A reply before it is passed to its thread.
pub(super) struct Reply<'a> {
    pub(super) payload: &'a [u8],
    pub(super) fds: Vec<PeerFd>,
}

struct OwnedReply {
    header: Header,
    payload: Vec<u8>,
    fds: Vec<PeerFd>,
}

struct Waiting {
    id: u16,
    command: Command,
    reply: Option<OwnedReply>,
}

struct State {
    /// Receiver of the first socket; the thread that reads takes it out.
    rx: Option<Receiver>,
    tx: Sender,
    waiting: Vec<Waiting>,
    next_id: u16,
    dead: Option<Arc<FrameError>>,
    /// Threads on the condition variable. Without any, no wake-up is sent: it would cost a system
    /// call.
    served: u64,
    /// Threads on the condition variable; waking none costs a system call too.
    sleepers: usize,
    /// The second socket, once there is one.
    twin: TwinState,
}

/// State of the second socket's thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TwinPhase {
    /// It waits for requests, and has served all that it took off the socket.
    #[default]
    Waiting,
    /// It may have taken a request off the socket that it has not served.
    Serving,
    /// It has ended, and the socket is no longer used.
    Ended,
}

#[derive(Debug, Default)]
struct TwinState {
    phase: TwinPhase,
    /// Requests served since [`Exchange::poll_incoming`] last reported them.
    unreported: u64,
}

pub(super) struct Exchange {
    fd: OwnedFd,
    /// The second socket, if the server offers one.
    twin: OnceLock<OwnedFd>,
    state: Mutex<State>,
    changed: Condvar,
    dead: AtomicBool,
    spin: Duration,
    /// Whether the server may be waiting for this thread's processor.
    shares_processor: bool,
    /// Whether the socket itself ends a wait in `recvmsg` after [`MAX_NAP`].
    ends_waits: bool,
    memory: Option<Arc<dyn GuestMemory>>,
    watch: Option<Arc<dyn ServerWatch>>,
    max_data: u32,
}

impl std::fmt::Debug for Exchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exchange").field("fd", &self.fd).field("dead", &self.is_dead()).finish()
    }
}

/// The event that the thread that reads waits for.
#[derive(Clone, Copy)]
enum Goal {
    Reply {
        id: u16,
        command: Command,
    },
    /// A request of the server was served: the count differs from this one.
    Incoming {
        served: u64,
    },
}

/// Why the thread that reads has stopped.
enum Stop<T> {
    Reply(Result<T, ClientError>),
    Served,
    Deadline,
    Dead(FrameError),
}

impl Exchange {
    pub(super) fn new(framed: Framed, config: &ClientConfig) -> Self {
        let Framed { fd, rx, tx } = framed;
        let nap = TimeVal::milliseconds(MAX_NAP.as_millis() as i64);
        let ends_waits = setsockopt(&fd, ReceiveTimeout, &nap).is_ok();
        let processors = std::thread::available_parallelism().map_or(1, usize::from);

        let state = State {
            rx: Some(rx),
            tx,
            waiting: Vec::new(),
            next_id: 0,
            dead: None,
            served: 0,
            sleepers: 0,
            twin: TwinState::default(),
        };

        Self {
            fd,
            twin: OnceLock::new(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            dead: AtomicBool::new(false),
            spin: config.spin,
            shares_processor: processors < PLENTY,
            ends_waits,
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

    /// Whether the configured watch reports the server lost, even if the socket is still open.
    pub(super) fn is_lost(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.is_lost())
    }

    /// Sends a request made of `fixed` and `data`, waits for its reply, and passes that to `take`.
    /// It returns at the deadline at the latest.
    pub(super) fn call<T>(
        &self,
        command: Command,
        fixed: &[u8],
        data: &[u8],
        fds: &[BorrowedFd<'_>],
        deadline: Deadline,
        take: impl FnOnce(Reply<'_>) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let mut state = self.lock();
        check_dead(&state)?;
        if state.waiting.len() >= MAX_WAITING {
            return Err(ClientError::System { call: "request", errno: Errno::EBUSY });
        }
        let id = fresh_id(&mut state);
        self.send(
            &mut state,
            &Header::request(id, command, fixed.len() + data.len(), false),
            fixed,
            data,
            fds,
        )?;
        state.waiting.push(Waiting { id, command, reply: None });
        let result = self.wait_reply(state, id, command, deadline, take);

        if let Some(twin) = self.twin() {
            self.settle(twin, deadline);
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
        let id = fresh_id(&mut state);
        self.send(
            &mut state,
            &Header::request(id, command, fixed.len() + data.len(), true),
            fixed,
            data,
            &[],
        )?;

        while state.tx.queued() > 0 {
            check_dead(&state)?;
            if deadline.is_over() {
                return Err(ClientError::Timeout { command, timeout: deadline.timeout });
            }
            let served = state.served;
            // The server may wait for this side to read, so this thread reads while it waits to
            // write.
            state = match state.rx.take() {
                Some(rx) => self.lead(state, rx, Goal::Incoming { served }, short(deadline), no_reply).0,
                None => self.push(state, deadline)?,
            };
        }
        Ok(())
    }

    pub(super) fn poll_incoming(&self, deadline: Deadline) -> Result<u64, ClientError> {
        let mut state = self.lock();
        let before = state.served;
        // With a second socket its thread serves requests, and this one sleeps. The first socket
        // reports the end of the server.
        let has_twin = self.twin().is_some() && state.twin.phase != TwinPhase::Ended;
        let look = if has_twin { Deadline::after(Duration::ZERO) } else { deadline };
        loop {
            check_dead(&state)?;
            let led = if let Some(rx) = state.rx.take() {
                state = self.lead(state, rx, Goal::Incoming { served: before }, look, no_reply).0;
                !has_twin
            } else {
                false
            };

            let served = state.served - before + std::mem::take(&mut state.twin.unreported);
            if served != 0 || deadline.is_over() {
                return Ok(served);
            }
            if has_twin && self.is_lost() {
                return Err(self.die(&mut state, FrameError::Died));
            }
            if !led {
                state = self.nap(state, deadline);
            }
        }
    }

    /// Returns the second socket, if there is one.
    pub(super) fn twin(&self) -> Option<BorrowedFd<'_>> {
        self.twin.get().map(AsFd::as_fd)
    }

    /// Stores the second socket, once.
    pub(super) fn begin_twin(&self, socket: OwnedFd) {
        let _ = self.twin.set(socket);
    }

    /// Ends the second socket in both directions, which ends the thread that serves it.
    pub(super) fn shut_twin(&self) {
        if let Some(twin) = self.twin() {
            let _ = shutdown(twin.as_raw_fd(), Shutdown::Both);
        }
    }

    /// Records that no thread serves the second socket any more.
    pub(super) fn end_twin(&self) {
        let mut state = self.lock();
        state.twin.phase = TwinPhase::Ended;
        self.changed.notify_all();
    }

    /// Ends the connection because of an error on the second socket, also for the thread that reads
    /// the first one.
    pub(super) fn give_up(&self, error: FrameError) {
        self.die(&mut self.lock(), error);
        let _ = shutdown(self.fd.as_raw_fd(), Shutdown::Both);
    }

    /// Waits until the server sends something on the second socket, or closes it. The caller must
    /// have served all requests that it took off the socket before.
    pub(super) fn wait_twin_readable(&self, socket: BorrowedFd<'_>) {
        self.set_twin_phase(TwinPhase::Waiting);
        poll_one(socket, PollFlags::POLLIN, PollTimeout::NONE);
        self.set_twin_phase(TwinPhase::Serving);
    }

    /// Waits until the second socket takes more, or has ended.
    pub(super) fn wait_twin_writable(&self, socket: BorrowedFd<'_>) {
        poll_one(socket, PollFlags::POLLOUT, PollTimeout::NONE);
    }

    /// Counts a request that the second socket's thread has served.
    pub(super) fn count_twin(&self) {
        self.lock().twin.unreported += 1;
    }

    fn set_twin_phase(&self, phase: TwinPhase) {
        let mut state = self.lock();
        state.twin.phase = phase;
        if phase == TwinPhase::Waiting && state.sleepers > 0 {
            self.changed.notify_all();
        }
    }

    /// Waits until the requests were served that the server has sent on the second socket so far,
    /// or until the deadline.
    fn settle(&self, twin: BorrowedFd<'_>, deadline: Deadline) {
        let mut state = self.lock();
        loop {
            let has_input = poll_one(twin, PollFlags::POLLIN, PollTimeout::ZERO);
            let is_served = state.twin.phase == TwinPhase::Waiting && !has_input;
            if is_served || state.twin.phase == TwinPhase::Ended || deadline.is_over() {
                return;
            }
            state = self.nap(state, deadline);
        }
    }

    /// Builds the whole answer to a request of the server. The memory is reached without the lock.
    pub(super) fn answer(&self, message: &Message<'_>) -> Vec<u8> {
        incoming::answer(self.memory.as_deref(), self.max_data, message)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic in another thread leaves the state consistent: each change of it is one step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(
        &self,
        state: &mut State,
        header: &Header,
        fixed: &[u8],
        data: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ClientError> {
        let header = header.to_bytes();
        let mut small = [0; 64];
        let length = HEADER_SIZE + fixed.len();
        let sent = if let Some(head) = small.get_mut(..length) {
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
            error => self.die(state, error),
        })
    }

    fn wait_reply<'a, T>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        id: u16,
        command: Command,
        deadline: Deadline,
        take: impl FnOnce(Reply<'_>) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let mut take = Some(take);
        loop {
            let Some(index) = state.waiting.iter().position(|waiting| waiting.id == id) else {
                return Err(ClientError::System { call: "reply", errno: Errno::EIO });
            };

            if let Some(reply) = state.waiting[index].reply.take() {
                state.waiting.swap_remove(index);
                drop(state);
                let OwnedReply { header, payload, fds } = reply;
                return finish(&mut take, header, Reply { payload: &payload, fds });
            }

            if state.dead.is_some() || deadline.is_over() {
                state.waiting.swap_remove(index);
                check_dead(&state)?;
                return Err(ClientError::Timeout { command, timeout: deadline.timeout });
            }

            if let Some(rx) = state.rx.take() {
                let goal = Goal::Reply { id, command };
                let on_reply = |header, reply: Reply<'_>| finish(&mut take, header, reply);
                let (guard, stop) = self.lead(state, rx, goal, deadline, on_reply);
                state = guard;
                if let Stop::Reply(result) = stop {
                    state.waiting.retain(|waiting| waiting.id != id);
                    return result;
                }
            } else if state.tx.queued() > 0 {
                state = self.push(state, deadline)?;
            } else {
                state = self.nap(state, deadline);
            }
        }
    }

    /// Sleeps until the thread that reads wakes this one, for [`MAX_NAP`] at most.
    fn nap<'a>(&'a self, mut state: MutexGuard<'a, State>, deadline: Deadline) -> MutexGuard<'a, State> {
        let time = deadline.remaining().min(MAX_NAP);
        state.sleepers += 1;
        let mut state = self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0;
        state.sleepers -= 1;
        state
    }

    /// Waits until the socket takes more, while another thread reads, and sends what is queued.
    fn push<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        deadline: Deadline,
    ) -> Result<MutexGuard<'a, State>, ClientError> {
        drop(state);
        self.poll_socket(PollFlags::POLLOUT, deadline.remaining().min(MAX_NAP));
        let mut state = self.lock();
        let flushed = state.tx.flush(self.fd.as_fd());
        flushed.map_err(|error| self.die(&mut state, error))?;
        Ok(state)
    }

    /// Reads the socket for all threads until the goal is reached.
    fn lead<'a, T>(
        &'a self,
        state: MutexGuard<'a, State>,
        mut rx: Receiver,
        goal: Goal,
        deadline: Deadline,
        on_reply: impl FnOnce(Header, Reply<'_>) -> Result<T, ClientError>,
    ) -> (MutexGuard<'a, State>, Stop<T>) {
        let queued = state.tx.queued() > 0;
        drop(state);

        let stop = self.read_until(&mut rx, goal, deadline, queued, on_reply);
        let mut state = self.lock();
        state.rx = Some(rx);
        let stop = match stop {
            Stop::Dead(error) => {
                self.die(&mut state, error);
                Stop::Deadline
            }
            stop => stop,
        };

        if state.sleepers > 0 {
            // One of the sleepers must read from now on.
            self.changed.notify_all();
        }
        (state, stop)
    }

    fn read_until<T>(
        &self,
        rx: &mut Receiver,
        goal: Goal,
        deadline: Deadline,
        mut queued: bool,
        on_reply: impl FnOnce(Header, Reply<'_>) -> Result<T, ClientError>,
    ) -> Stop<T> {
        let wants_reply = matches!(goal, Goal::Reply { .. });
        let spin_end = (!self.spin.is_zero()).then(|| Instant::now() + self.spin);
        let mut looks = 0u32;

        if self.shares_processor && wants_reply && spin_end.is_some() {
            // No reply can be there before the server has run.
            looks = LOOKS_BEFORE_YIELD;
            std::thread::yield_now();
        }

        loop {
            let message = match rx.next_message() {
                Ok(Some(message)) => message,
                Ok(None) => {
                    let spins = spin_end.is_some_and(|end| Instant::now() < end);
                    // One call instead of a read, a `poll` and another read. Another thread that
                    // sends meanwhile flushes the queue itself.
                    let wait = self.ends_waits
                        && wants_reply
                        && !spins
                        && !queued
                        && deadline.remaining() >= MAX_NAP;
                    let filled =
                        if wait { rx.wait_and_fill(self.fd.as_fd()) } else { rx.fill(self.fd.as_fd()) };
                    match filled {
                        Ok(Fill::Data { .. }) => {}
                        Ok(Fill::WouldBlock | Fill::Full) => {
                            if deadline.is_over() {
                                return Stop::Deadline;
                            }
                            if spins && !queued {
                                // The server may be waiting for this processor.
                                looks = looks.saturating_add(1);
                                if looks < LOOKS_BEFORE_YIELD {
                                    std::hint::spin_loop();
                                } else {
                                    std::thread::yield_now();
                                }
                                continue;
                            }
                            // Asked only when the socket is empty: messages that the server had
                            // sent still count.
                            if self.is_lost() {
                                return Stop::Dead(FrameError::Died);
                            }
                            let write = if queued { PollFlags::POLLOUT } else { PollFlags::empty() };
                            self.poll_socket(PollFlags::POLLIN | write, deadline.remaining().min(MAX_NAP));
                            match self.after_wait(goal) {
                                Ok(None) => return Stop::Deadline,
                                Ok(Some(more)) => queued = more,
                                Err(error) => return Stop::Dead(error),
                            }
                        }
                        Ok(Fill::End) => return Stop::Dead(FrameError::Closed),
                        Err(error) => return Stop::Dead(error),
                    }
                    continue;
                }
                Err(error) => return Stop::Dead(error),
            };

            let header = message.header;
            if header.message_type() == MessageType::Reply {
                match goal {
                    Goal::Reply { id, command } if header.id == id && header.command == command => {
                        return Stop::Reply(on_reply(
                            header,
                            Reply { payload: message.payload, fds: message.fds },
                        ));
                    }
                    _ => self.deliver(message),
                }
            } else if let Err(error) = self.serve(message, &mut queued) {
                return Stop::Dead(error);
            } else if matches!(goal, Goal::Incoming { .. }) {
                return Stop::Served;
            }

            if deadline.is_over() {
                return Stop::Deadline;
            }
        }
    }

    /// Sends the queue. Returns whether bytes are left, or `None` when the thread that reads should
    /// check its state again.
    fn after_wait(&self, goal: Goal) -> Result<Option<bool>, FrameError> {
        let mut state = self.lock();
        if state.dead.is_some() {
            return Ok(None);
        }
        if state.tx.queued() > 0 {
            state.tx.flush(self.fd.as_fd())?;
        }
        match goal {
            Goal::Incoming { served } if state.served != served => Ok(None),
            _ => Ok(Some(state.tx.queued() > 0)),
        }
    }

    /// Passes a reply to the thread that waits for it. A reply that no thread waits for came too
    /// late, and is dropped.
    fn deliver(&self, message: Message<'_>) {
        let header = message.header;
        let mut state = self.lock();
        let found = state.waiting.iter_mut().find(|waiting| {
            waiting.id == header.id && waiting.command == header.command && waiting.reply.is_none()
        });
        if let Some(waiting) = found {
            let payload = message.payload.to_vec();
            waiting.reply = Some(OwnedReply { header, payload, fds: message.fds });
            self.changed.notify_all();
        }
    }

    /// Serves a request of the server. The memory is reached without the lock.
    fn serve(&self, message: Message<'_>, queued: &mut bool) -> Result<(), FrameError> {
        let answer = self.answer(&message);
        let mut state = self.lock();
        state.served += 1;
        if !message.header.no_reply() {
            if state.tx.queued() > incoming::max_queued(self.max_data) {
                // The server sends more and more requests, and reads no answers.
                return Err(FrameError::Io(std::io::ErrorKind::OutOfMemory.into()));
            }
            state.tx.send(self.fd.as_fd(), &answer, &[], &[])?;
            *queued = state.tx.queued() > 0;
        }
        Ok(())
    }

    fn poll_socket(&self, events: PollFlags, time: Duration) {
        // Rounded up, so that the last millisecond is one wait instead of many empty ones.
        let millis = u16::try_from(time.as_micros().div_ceil(1000)).unwrap_or(u16::MAX);
        // The caller reads the socket next, whatever the poll returns.
        poll_one(self.fd.as_fd(), events, PollTimeout::from(millis));
    }

    fn die(&self, state: &mut State, error: FrameError) -> ClientError {
        self.dead.store(true, Ordering::Release);
        let reason = state.dead.get_or_insert_with(|| Arc::new(error)).clone();
        self.changed.notify_all();
        ClientError::Disconnected { reason }
    }
}

/// Whether one of `events`, an error or a hang-up is reported within the time.
fn poll_one(fd: BorrowedFd<'_>, events: PollFlags, time: PollTimeout) -> bool {
    poll(&mut [PollFd::new(fd, events)], time).is_ok_and(|ready| ready > 0)
}

fn check_dead(state: &State) -> Result<(), ClientError> {
    match &state.dead {
        Some(reason) => Err(ClientError::Disconnected { reason: reason.clone() }),
        None => Ok(()),
    }
}

fn fresh_id(state: &mut State) -> u16 {
    // Fewer requests wait than there are ids.
    loop {
        state.next_id = state.next_id.wrapping_add(1);
        let id = state.next_id;
        if state.waiting.iter().all(|waiting| waiting.id != id) {
            return id;
        }
    }
}

fn finish<T>(
    take: &mut Option<impl FnOnce(Reply<'_>) -> Result<T, ClientError>>,
    header: Header,
    reply: Reply<'_>,
) -> Result<T, ClientError> {
    if let Some(errno) = header.reply_error() {
        return Err(ClientError::Refused { command: header.command, errno });
    }
    match take.take() {
        Some(take) => take(reply),
        None => Err(super::malformed(header.command, "it came twice")),
    }
}

fn no_reply(header: Header, _: Reply<'_>) -> Result<(), ClientError> {
    Err(super::malformed(header.command, "nobody asked"))
}

/// Returns a deadline that is at most a nap away.
fn short(deadline: Deadline) -> Deadline {
    Deadline::after(deadline.remaining().min(MAX_NAP))
}
