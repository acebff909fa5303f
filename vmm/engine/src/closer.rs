//! Closing of descriptors, sockets and memory of clients, on threads that may block.
//!
//! The last close of a descriptor, a socket or a mapping can take as long as a client likes. A FUSE
//! file waits for its daemon, and a TCP socket with `SO_LINGER` waits for its peer. The kernel may
//! have to free gibibytes of pages of a memory file. Closing a client's socket also closes the
//! descriptors that wait in it unread. So the engine's thread closes nothing of a client. It puts
//! each item into the client's [`CloseQueue`], and a thread of the pool processes the queue in
//! order.
//!
//! A queue that blocks holds one thread and no other queue. The pool starts a thread whenever a
//! queue waits for one, so the limit on the items of an attachment bounds the threads: see
//! [`Backlog`]. The threads are never joined, because a thread that blocks in the kernel may never
//! return.

use std::{
    collections::VecDeque,
    os::fd::{AsRawFd, OwnedFd},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use nicforge_shm::SharedMemory;
use nicforge_vfio_user::Closer;
use nix::sys::socket::{Shutdown, shutdown};

use crate::{refusal::Refusal, stop::Waker};

/// How long a thread of the pool waits for work before it ends.
const IDLE_TIME: Duration = Duration::from_secs(10);

/// An item that a thread of the pool closes.
#[derive(Debug)]
enum Job {
    /// A descriptor that a client passed.
    Descriptor(OwnedFd),
    /// A client's connection. It is shut down first: another process may hold the socket open.
    Socket(OwnedFd),
    /// Client memory that no DMA range uses any more.
    Memory(SharedMemory),
    /// A refused connection, whose first message may take time to arrive.
    Refusal(Refusal),
}

impl Job {
    /// Closes the item; a refused connection is answered first. This may block.
    fn carry_out(self) {
        match self {
            Self::Descriptor(fd) => drop(fd),
            Self::Socket(fd) => {
                // This fails when the peer has gone already, and then there is nothing to shut
                // down. The drop of `fd` closes the socket.
                let _ = shutdown(fd.as_raw_fd(), Shutdown::Both);
            }
            Self::Memory(memory) => unmap(&memory),
            Self::Refusal(refusal) => refusal.answer(),
        }
    }
}

/// Unmaps client memory. Devices and packets may still hold it, by leases that have ended. They
/// would keep the file with all its pages for as long as a receiver likes, and the engine's thread
/// would unmap it in the end. So zero pages take the file's place.
fn unmap(memory: &SharedMemory) {
    if memory.has_other_handles()
        && let Err(error) = memory.replace_by_zeros()
    {
        tracing::warn!(%error, "memory of a client stays mapped until no packet refers to it");
    }
}

/// Counts the items in the queues of one attachment, over all its clients, and the mappings of
/// client memory in progress.
///
/// The engine neither serves nor accepts clients of an attachment whose backlog is too long. So a
/// client whose closes block takes a bounded number of descriptors and threads.
#[derive(Debug)]
pub(crate) struct Backlog {
    items: AtomicUsize,
    /// Whether the engine must be woken when an item is closed, because it found the backlog full.
    is_awaited: AtomicBool,
    waker: Waker,
}

impl Backlog {
    pub(crate) fn new(waker: Waker) -> Arc<Self> {
        Arc::new(Self { items: AtomicUsize::new(0), is_awaited: AtomicBool::new(false), waker })
    }

    /// Returns whether fewer than `limit` items wait. If not, the engine is woken when the next
    /// item is closed, and must ask again.
    pub(crate) fn admits(&self, limit: usize) -> bool {
        if self.items.load(Ordering::Acquire) < limit {
            return true;
        }
        // The flag is set before the second check, so an item that is closed in between wakes the
        // engine.
        self.is_awaited.store(true, Ordering::SeqCst);
        self.items.load(Ordering::SeqCst) < limit
    }

    /// Returns the number of items that wait or are being closed.
    pub(crate) fn len(&self) -> usize {
        self.items.load(Ordering::Acquire)
    }

    fn add(&self) {
        self.items.fetch_add(1, Ordering::AcqRel);
    }

    /// Subtracts an item from the count, and wakes the engine if it waits for that.
    fn remove(&self) {
        self.items.fetch_sub(1, Ordering::SeqCst);
        if self.is_awaited.swap(false, Ordering::SeqCst) {
            self.waker.wake();
        }
    }
}

/// An item in progress outside a [`CloseQueue`], which counts in a backlog until it is dropped.
#[derive(Debug)]
pub(crate) struct BacklogItem(Arc<Backlog>);

impl Drop for BacklogItem {
    fn drop(&mut self) {
        self.0.remove();
    }
}

/// The items to be closed for one client, in order.
#[derive(Debug)]
pub(crate) struct CloseQueue {
    state: Mutex<QueueState>,
    backlog: Arc<Backlog>,
    pool: Arc<Pool>,
}

/// The items of a [`CloseQueue`], the oldest first.
#[derive(Debug, Default)]
struct QueueState {
    jobs: VecDeque<Job>,
    /// Whether the queue is in the pool: it waits for a thread, or a thread processes it.
    is_scheduled: bool,
}

impl CloseQueue {
    /// Shuts a connection down and closes it.
    pub(crate) fn close_socket(self: &Arc<Self>, fd: OwnedFd) {
        self.push(Job::Socket(fd));
    }

    /// Unmaps client memory that no DMA range uses any more. All leases of it must have ended.
    pub(crate) fn drop_memory(self: &Arc<Self>, memory: Vec<SharedMemory>) {
        for memory in memory {
            self.push(Job::Memory(memory));
        }
    }

    /// Counts a mapping in progress in the backlog, until the returned value is dropped. The
    /// mapping can outlast the client, so it must hold back the next clients as an unclosed item
    /// does.
    pub(crate) fn add_mapping_in_progress(&self) -> BacklogItem {
        self.backlog.add();
        BacklogItem(Arc::clone(&self.backlog))
    }

    /// Answers a connection that is refused, and closes it.
    pub(crate) fn refuse(self: &Arc<Self>, refusal: Refusal) {
        self.push(Job::Refusal(refusal));
    }

    /// Adds an item, and schedules the queue unless it is scheduled already.
    fn push(self: &Arc<Self>, job: Job) {
        self.backlog.add();
        let mut state = self.lock();
        state.jobs.push_back(job);
        let was_scheduled = std::mem::replace(&mut state.is_scheduled, true);
        drop(state);

        if !was_scheduled {
            self.pool.schedule(Arc::clone(self));
        }
    }

    /// Closes the items of the queue until it is empty. Items that are added meanwhile are closed
    /// too.
    fn close_all(&self) {
        loop {
            let mut state = self.lock();
            let Some(job) = state.jobs.pop_front() else {
                state.is_scheduled = false;
                return;
            };
            drop(state);

            job.carry_out();
            self.backlog.remove();
        }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A [`CloseQueue`] as the closer of a connection's descriptors.
#[derive(Debug)]
pub(crate) struct DescriptorCloser(pub(crate) Arc<CloseQueue>);

impl Closer for DescriptorCloser {
    fn close(&self, fd: OwnedFd) {
        self.0.push(Job::Descriptor(fd));
    }
}

/// The engine's handle of the pool of closing threads. Dropping it ends the idle ones.
#[derive(Debug)]
pub(crate) struct Closers(Arc<Pool>);

/// Threads that process close queues. They are started when queues wait, and end after
/// [`IDLE_TIME`].
#[derive(Debug, Default)]
struct Pool {
    state: Mutex<PoolState>,
    /// Notified when a queue waits, and when the pool ends.
    work: Condvar,
}

/// The queues that no thread processes yet.
#[derive(Debug, Default)]
struct PoolState {
    waiting: VecDeque<Arc<CloseQueue>>,
    /// Number of threads that wait for a queue.
    idle: usize,
    /// Whether the engine has dropped its [`Closers`].
    has_ended: bool,
}

impl Closers {
    pub(crate) fn new() -> Self {
        Self(Arc::default())
    }

    /// Makes a queue whose items count in an attachment's backlog.
    pub(crate) fn new_queue(&self, backlog: &Arc<Backlog>) -> Arc<CloseQueue> {
        let (backlog, pool) = (Arc::clone(backlog), Arc::clone(&self.0));
        Arc::new(CloseQueue { state: Mutex::default(), backlog, pool })
    }

    /// Starts a thread if more queues wait than threads are idle, which happens when a thread could
    /// not be started before. The engine calls this at each check of all memory.
    pub(crate) fn start_missing_thread(&self) {
        let state = self.0.lock();
        let is_thread_missing = state.waiting.len() > state.idle;
        drop(state);

        if is_thread_missing {
            self.0.start_thread();
        }
    }
}

impl Drop for Closers {
    fn drop(&mut self) {
        self.0.lock().has_ended = true;
        self.0.work.notify_all();
    }
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a close queue for a thread of the pool, and starts a thread if none is idle.
    fn schedule(self: &Arc<Self>, queue: Arc<CloseQueue>) {
        let mut state = self.lock();
        state.waiting.push_back(queue);
        // A notified thread counts as idle until it runs, and the queue that it will take counts as
        // waiting. So the two numbers can be compared.
        let is_thread_missing = state.waiting.len() > state.idle;
        drop(state);

        if is_thread_missing {
            self.start_thread();
        } else {
            self.work.notify_one();
        }
    }

    /// Starts a thread of the pool.
    fn start_thread(self: &Arc<Self>) {
        let pool = Arc::clone(self);
        let started = std::thread::Builder::new()
            .name("nicforge-close".to_owned())
            .spawn(move || pool.process_queues());
        if let Err(error) = started {
            // The queue waits until a thread is free or can be started; the backlog bounds it.
            tracing::warn!(%error, "a thread that closes clients' descriptors could not be started");
        }
    }

    /// Processes close queues until the pool ends, or until none has come for [`IDLE_TIME`]. It is
    /// the body of the threads.
    fn process_queues(&self) {
        let mut state = self.lock();
        loop {
            if let Some(queue) = state.waiting.pop_front() {
                drop(state);
                queue.close_all();
                state = self.lock();
                continue;
            }
            if state.has_ended {
                return;
            }

            state.idle += 1;
            let (locked_again, wait_result) =
                self.work.wait_timeout(state, IDLE_TIME).unwrap_or_else(PoisonError::into_inner);
            state = locked_again;
            state.idle -= 1;
            if wait_result.timed_out() && state.waiting.is_empty() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Read, os::unix::net::UnixStream, time::Instant};

    use nix::unistd::{pipe, write};

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    fn backlog() -> Arc<Backlog> {
        Backlog::new(Waker::new().unwrap())
    }

    /// Returns a refused connection that sends nothing: it holds its thread for as long as a
    /// refusal takes.
    fn silent_connection() -> (Refusal, UnixStream) {
        let (local_end, remote_end) = UnixStream::pair().unwrap();
        (Refusal::new(local_end.into(), nicforge_vfio_user::Errno::EBUSY), remote_end)
    }

    fn wait_until(condition: impl Fn() -> bool) {
        let deadline = Instant::now() + LONG;
        while !condition() {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
    }

    #[test]
    fn blocked_queue_delays_no_other_queue() {
        let closers = Closers::new();
        let (blocked, other) = (closers.new_queue(&backlog()), closers.new_queue(&backlog()));
        let (refusal, _refused_client) = silent_connection();
        blocked.refuse(refusal);
        let (reader, writer) = pipe().unwrap();
        write(&writer, &[1]).unwrap();
        DescriptorCloser(Arc::clone(&other)).close(writer);

        let mut received = Vec::new();
        std::fs::File::from(reader).read_to_end(&mut received).unwrap();

        assert_eq!(received, [1]);
        assert!(!blocked.backlog.admits(1));
    }

    #[test]
    fn closed_socket_is_shut_down_and_closed_items_leave_the_backlog() {
        let closers = Closers::new();
        let backlog = backlog();
        let queue = closers.new_queue(&backlog);
        let (local_end, mut remote_end) = UnixStream::pair().unwrap();
        let held = local_end.try_clone().unwrap();
        queue.close_socket(local_end.into());
        queue.drop_memory(vec![SharedMemory::create("test", 4096).unwrap()]);

        // The connection ends although another descriptor of it is open.
        assert_eq!(remote_end.read(&mut [0]).unwrap(), 0);
        wait_until(|| backlog.admits(1));
        drop(held);
    }

    #[test]
    fn engine_that_waits_for_pending_closes_is_woken() {
        let closers = Closers::new();
        let waker = Waker::new().unwrap();
        let backlog = Backlog::new(waker.clone());
        let queue = closers.new_queue(&backlog);
        let (refusal, remote_end) = silent_connection();
        queue.refuse(refusal);
        assert!(!backlog.admits(1));
        drop(remote_end);

        let mut fds = [nix::poll::PollFd::new(waker.fd(), nix::poll::PollFlags::POLLIN)];
        assert_eq!(nix::poll::poll(&mut fds, 20_000_u16), Ok(1));
        assert!(backlog.admits(1));
    }
}
