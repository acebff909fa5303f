//! The thread that maps and unmaps client memory, so that the engine need not wait for the kernel to do it. While eventfds are
//! bound it also watches the engine's writes to them.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use nicforge_shm::{Access, MemoryError, SharedMemory};

use crate::{
    error::EngineError,
    sink::{Signals, Watch},
    stop::Waker,
};

/// How often the engine's writes to eventfds are looked at.
const LOOK: Duration = Duration::from_millis(200);

/// What the thread does. A client has one mapping under way at a time, and what is dropped was mapped before, so that the
/// queue is bounded by the clients' quotas.
enum Job {
    Map {
        port: usize,
        generation: u32,
        fd: OwnedFd,
        offset: u64,
        length: usize,
        access: Access,
    },
    Drop(Vec<SharedMemory>),
    /// Eventfds were bound: there is something to watch.
    Watch,
}

/// A mapping that is done, or failed.
pub(crate) struct Mapped {
    pub(crate) port: usize,
    pub(crate) generation: u32,
    pub(crate) result: Result<SharedMemory, MemoryError>,
}

pub(crate) struct Helper {
    jobs: Option<mpsc::Sender<Job>>,
    done: mpsc::Receiver<Mapped>,
    thread: Option<JoinHandle<()>>,
}

impl Helper {
    /// Start the thread. It wakes the engine when something is done.
    pub(crate) fn start(waker: Waker, signals: Arc<Signals>) -> Result<Self, EngineError> {
        let (jobs, inbox) = mpsc::channel();
        let (outbox, done) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("nicforge-map".to_owned())
            .spawn(move || work(&inbox, &outbox, &waker, Watch::new(signals)))
            .map_err(|reason| EngineError::Helper { reason })?;
        Ok(Self { jobs: Some(jobs), done, thread: Some(thread) })
    }

    /// Map a part of a client's file, guarded against truncation.
    pub(crate) fn map(
        &self,
        port: usize,
        generation: u32,
        fd: OwnedFd,
        offset: u64,
        length: usize,
        access: Access,
    ) -> bool {
        self.send(Job::Map { port, generation, fd, offset, length, access })
    }

    /// Unmap, as far as these are the last handles to it.
    pub(crate) fn drop_memory(&self, memory: Vec<SharedMemory>) {
        if !memory.is_empty() {
            // A thread that is gone leaves the work to this one: the job comes back with the error and is dropped.
            self.send(Job::Drop(memory));
        }
    }

    /// Eventfds were bound.
    pub(crate) fn watch_signals(&self) {
        self.send(Job::Watch);
    }

    pub(crate) fn take_done(&self) -> Option<Mapped> {
        self.done.try_recv().ok()
    }

    fn send(&self, job: Job) -> bool {
        self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok())
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // It ends with the queue; a panic there has been reported by the panic hook already.
            let _ = thread.join();
        }
    }
}

fn work(inbox: &mpsc::Receiver<Job>, outbox: &mpsc::Sender<Mapped>, waker: &Waker, mut watch: Watch) {
    let mut watching = false;
    loop {
        let job = if watching {
            inbox.recv_timeout(LOOK)
        } else {
            inbox.recv().map_err(|_| RecvTimeoutError::Disconnected)
        };
        match job {
            Ok(Job::Drop(memory)) => drop(memory),
            Ok(Job::Map { port, generation, fd, offset, length, access }) => {
                let result = SharedMemory::map_guarded(fd.as_fd(), offset, length, access);
                drop(fd);
                if outbox.send(Mapped { port, generation, result }).is_err() {
                    return;
                }
                waker.wake();
            }
            Ok(Job::Watch) => watching = true,
            Err(RecvTimeoutError::Timeout) => watching = watch.is_needed(),
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if watching {
            watch.look(Instant::now());
        }
    }
}
