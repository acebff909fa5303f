//! Detects the death of a server whose socket stays open.
//!
//! The kernel closes the sockets of a killed process at once, except those that its io_uring refers
//! to. These stay open until the ring is taken down, which can take seconds. A device therefore
//! counts as lost when the server's process has exited *and* its heartbeat has stopped.
//!
//! Neither alone proves the loss. A server may have handed the socket to another process, and a
//! loaded machine may delay an engine. A server without nicforge's heartbeat is lost only when its
//! socket ends.

use std::sync::OnceLock;

use nicforge_shm::SharedU64;
use nicforge_vfio_user::{ServerProcess, ServerWatch};

use crate::heartbeat::{BEAT_TIMEOUT, Heartbeat};

/// The process and the heartbeat of one server.
#[derive(Default)]
pub(super) struct ServerMonitor {
    /// The process that serves, if it is known.
    process: OnceLock<ServerProcess>,
    /// The heartbeat of the server's engine, if it has one.
    heartbeat: OnceLock<Heartbeat>,
}

impl ServerMonitor {
    /// Sets the process that serves, if it is known.
    pub(super) fn set_process(&self, process: Option<ServerProcess>) {
        if let Some(process) = process {
            let _ = self.process.set(process);
        }
    }

    /// Sets the word in which the server's engine counts its heartbeat.
    pub(super) fn set_heartbeat(&self, word: SharedU64) {
        let _ = self.heartbeat.set(Heartbeat::new(word));
    }
}

impl ServerWatch for ServerMonitor {
    /// Returns whether the server is lost. Without both signs, it is not.
    fn is_lost(&self) -> bool {
        let (Some(process), Some(heartbeat)) = (self.process.get(), self.heartbeat.get()) else {
            return false;
        };

        heartbeat.time_since_beat() > BEAT_TIMEOUT && process.has_exited()
    }
}
