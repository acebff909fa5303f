//! The thread that maps client memory, so that the engine does not wait for the kernel.
//!
//! It closes nothing of a client: the descriptor of a mapping goes to the client's
//! [`crate::closer::CloseQueue`], and so does a mapping that is no longer needed.

use std::{os::fd::AsFd, sync::mpsc, thread::JoinHandle};

use nicforge_shm::{Access, MemoryError, SharedMemory};
use nicforge_vfio_user::PeerFd;

use crate::{error::EngineError, stop::Waker};

/// A part of a client's file that is to be mapped. A client has one mapping in progress at a time,
/// which bounds the requests of connected clients in the queue.
pub(crate) struct MapRequest {
    pub(crate) port: usize,
    pub(crate) generation: u32,
    pub(crate) fd: PeerFd,
    pub(crate) length: usize,
    pub(crate) access: Access,
}

/// A mapping that was made or failed.
pub(crate) struct Mapped {
    pub(crate) port: usize,
    pub(crate) generation: u32,
    pub(crate) result: Result<SharedMemory, MemoryError>,
}

pub(crate) struct Helper {
    requests: Option<mpsc::Sender<MapRequest>>,
    done: mpsc::Receiver<Mapped>,
    thread: Option<JoinHandle<()>>,
}

impl Helper {
    /// Starts the thread, which wakes the engine after each mapping.
    pub(crate) fn start(waker: Waker) -> Result<Self, EngineError> {
        let (requests, inbox) = mpsc::channel();
        let (outbox, done) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("nicforge-map".to_owned())
            .spawn(move || work(&inbox, &outbox, &waker))
            .map_err(|reason| EngineError::Thread { what: "that maps client memory", reason })?;
        Ok(Self { requests: Some(requests), done, thread: Some(thread) })
    }

    /// Asks for a client's file to be mapped, guarded against truncation;
    /// [`Helper::take_done`] returns the result. Returns false when the thread has ended.
    pub(crate) fn map(&self, request: MapRequest) -> bool {
        self.requests.as_ref().is_some_and(|requests| requests.send(request).is_ok())
    }

    pub(crate) fn take_done(&self) -> Option<Mapped> {
        self.done.try_recv().ok()
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // The thread ends with the queue; the panic hook has already reported a panic in it.
            let _ = thread.join();
        }
    }
}

fn work(inbox: &mpsc::Receiver<MapRequest>, outbox: &mpsc::Sender<Mapped>, waker: &Waker) {
    while let Ok(MapRequest { port, generation, fd, length, access }) = inbox.recv() {
        let result = SharedMemory::map_guarded(fd.as_fd(), 0, length, access);
        drop(fd);
        if outbox.send(Mapped { port, generation, result }).is_err() {
            return;
        }
        waker.wake();
    }
}
