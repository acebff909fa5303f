//! The thread that maps client memory, so that the engine does not wait for the kernel.
//!
//! It closes nothing of a client: the descriptor of a mapping goes to the client's
//! [`crate::closer::CloseQueue`], and so does a mapping that is no longer needed.
//!
//! A client has one mapping in progress at a time. It counts in the backlog of the attachment until
//! the engine has taken its result, also when the client has gone. So clients that connect, map and
//! go cannot make the queue grow: the attachment takes no new one while its backlog is too long.

use std::{os::fd::AsFd, sync::mpsc, thread::JoinHandle};

use nicforge_shm::{MemoryError, SharedMemory};

use crate::{closer::BacklogItem, error::EngineError, memory::FileToMap, stop::Waker, watched::ClientKey};

/// A request to map a client's file.
pub(crate) struct MapRequest {
    pub(crate) client: ClientKey,
    pub(crate) file: FileToMap,
    /// Counts the mapping in the attachment's backlog while it is in progress.
    pub(crate) backlog: BacklogItem,
}

/// A mapping that was made or failed.
pub(crate) struct Mapped {
    pub(crate) client: ClientKey,
    pub(crate) result: Result<SharedMemory, MemoryError>,
    /// Dropped by the engine once it has taken the result.
    pub(crate) backlog: BacklogItem,
}

/// The engine's end of the thread. Dropping it ends the thread.
pub(crate) struct Mapper {
    requests: Option<mpsc::Sender<MapRequest>>,
    done: mpsc::Receiver<Mapped>,
    thread: Option<JoinHandle<()>>,
}

impl Mapper {
    /// Starts the thread, which wakes the engine after each mapping.
    pub(crate) fn start(waker: Waker) -> Result<Self, EngineError> {
        let (requests, inbox) = mpsc::channel();
        let (outbox, done) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("nicforge-map".to_owned())
            .spawn(move || map_requested(&inbox, &outbox, &waker))
            .map_err(|reason| EngineError::Thread { what: "that maps client memory", reason })?;
        Ok(Self { requests: Some(requests), done, thread: Some(thread) })
    }

    /// Asks the thread to map a client's file, guarded against truncation. [`Mapper::take_done`]
    /// returns the result later. Returns false when the thread has ended.
    pub(crate) fn map(&self, request: MapRequest) -> bool {
        self.requests.as_ref().is_some_and(|requests| requests.send(request).is_ok())
    }

    /// Returns the result of a mapping that has ended, if there is one.
    pub(crate) fn take_done(&self) -> Option<Mapped> {
        self.done.try_recv().ok()
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // The thread ends because its queue of requests has. A panic of the thread needs no
            // report here, because the panic hook has made one.
            let _ = thread.join();
        }
    }
}

/// Maps the requested files until the engine drops its end of a queue. It is the body of the
/// thread.
fn map_requested(inbox: &mpsc::Receiver<MapRequest>, outbox: &mpsc::Sender<Mapped>, waker: &Waker) {
    while let Ok(MapRequest { client, file, backlog }) = inbox.recv() {
        let result = SharedMemory::map_guarded(file.fd.as_fd(), 0, file.length, file.access);
        drop(file);
        if outbox.send(Mapped { client, result, backlog }).is_err() {
            return;
        }
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::Arc,
        time::{Duration, Instant},
    };

    use nicforge_shm::Access;

    use super::*;
    use crate::closer::{Backlog, Closers};

    #[test]
    fn mapping_counts_in_the_backlog_until_its_result_is_taken() {
        let (waker, closers) = (Waker::new().unwrap(), Closers::new());
        let backlog = Backlog::new(waker.clone());
        let queue = closers.new_queue(&backlog);
        let memory = SharedMemory::create("test", 0x1000).unwrap();
        let fd = memory.fd().unwrap().try_clone_to_owned().unwrap();
        let mapper = Mapper::start(waker).unwrap();

        let file = FileToMap { fd: fd.into(), length: 0x1000, access: Access::ReadOnly };
        let client = ClientKey { index: 0, generation: 1 };
        assert!(mapper.map(MapRequest { client, file, backlog: queue.add_mapping_in_progress() }));
        drop(queue);

        let deadline = Instant::now() + Duration::from_secs(20);
        let mapped = loop {
            // The mapping counts while it waits, while it is made, and until its result is dropped.
            assert_eq!(backlog.len(), 1);
            if let Some(mapped) = mapper.take_done() {
                break mapped;
            }
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        };
        assert_eq!((mapped.client, mapped.result.is_ok(), backlog.len()), (client, true, 1));
        drop(mapped);
        assert_eq!((backlog.len(), Arc::strong_count(&backlog)), (0, 1));
    }
}
