//! Whether the server behind a socket has died, where the socket does not say so.
//!
//! The kernel closes the sockets of a killed process at once, except those that an io_uring of it refers to: these stay open
//! until the ring is taken down, which can take seconds. So a device is lost as well when the server's process has exited
//! *and* its heartbeat rests. Neither alone proves it: a server may have handed the socket to another process, and a loaded
//! machine may hold an engine up. A server without nicforge's heartbeat is therefore only given up with its socket.

use std::sync::OnceLock;

use nicforge_shm::SharedU64;
use nicforge_vfio_user::{ServerProcess, ServerWatch};

use crate::heartbeat::{Heartbeat, RESTS};

/// What is known of one server.
#[derive(Default)]
pub(super) struct Watch {
    process: OnceLock<ServerProcess>,
    heartbeat: OnceLock<Heartbeat>,
}

impl Watch {
    /// The process that serves, if it is known.
    pub(super) fn set_process(&self, process: Option<ServerProcess>) {
        if let Some(process) = process {
            let _ = self.process.set(process);
        }
    }

    /// The heartbeat of its engine.
    pub(super) fn set_heartbeat(&self, word: SharedU64) {
        let _ = self.heartbeat.set(Heartbeat::new(word));
    }
}

impl ServerWatch for Watch {
    fn is_lost(&self) -> bool {
        let (Some(process), Some(heartbeat)) = (self.process.get(), self.heartbeat.get()) else {
            return false;
        };
        heartbeat.rests_for() > RESTS && process.has_exited()
    }
}
