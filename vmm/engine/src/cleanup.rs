//! Closing of sockets and memory that ended clients leave behind.

use std::sync::Arc;

use nicforge_shm::SharedMemory;

use crate::{
    client::Client,
    closer::{CloseQueue, Closers},
    memory::{EndedMapping, HeldCharge, HeldUsage},
};

/// The threads that close what belongs to clients, and the memory that waits for a device first.
pub(crate) struct Cleanup {
    closers: Closers,
    /// Memory of ended clients that devices still hold.
    held_memory: Vec<HeldMemory>,
}

/// Memory of an ended client that a device still holds.
struct HeldMemory {
    memory: SharedMemory,
    /// The queue that closes it.
    queue: Arc<CloseQueue>,
    /// Counts it against the quotas of the attachment's next clients.
    _charge: HeldCharge,
}

impl Cleanup {
    pub(crate) fn new() -> Self {
        Self { closers: Closers::new(), held_memory: Vec::new() }
    }

    pub(crate) fn closers(&self) -> &Closers {
        &self.closers
    }

    /// Whether devices hold memory of ended clients.
    pub(crate) fn has_held_memory(&self) -> bool {
        !self.held_memory.is_empty()
    }

    /// Closes the socket of an ended client and unmaps its memory, on other threads. Memory that a
    /// device holds is kept until the device releases it, and counts in `usage` until then.
    /// Otherwise the release would unmap it, on the engine's thread.
    pub(crate) fn clean_up(&mut self, client: Client, usage: &Arc<HeldUsage>) {
        let Client { connection, mut state, close_queue, .. } = client;
        close_queue.close_socket(connection.into_socket());

        let (held, released): (Vec<_>, Vec<_>) =
            state.memory.take_all().into_iter().partition(|ended| ended.memory.has_other_handles());
        close_queue.drop_memory(released.into_iter().map(|ended| ended.memory).collect());
        self.held_memory.extend(held.into_iter().map(|EndedMapping { memory, charge }| HeldMemory {
            memory,
            queue: Arc::clone(&close_queue),
            _charge: HeldCharge::new(usage, charge),
        }));
    }

    /// Unmaps memory of ended clients that devices have released, and starts a closing thread if
    /// queues wait for one.
    pub(crate) fn sweep(&mut self) {
        self.closers.start_missing_thread();

        let released = self.held_memory.extract_if(.., |held| !held.memory.has_other_handles());
        for HeldMemory { memory, queue, .. } in released {
            queue.drop_memory(vec![memory]);
        }
    }
}
