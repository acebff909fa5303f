//! The attachment's mirror page, which only the engine writes.

use std::sync::atomic::Ordering;

use nicforge_hwi::attachment::mirror;
use nicforge_shm::{SharedU32, Window};

use crate::{GoneCause, heartbeat::Heartbeat};

/// The words of the attachment mirror.
pub(super) struct Mirror {
    /// The whole page.
    pub(super) page: Window,
    /// Generation of the attachment.
    pub(super) generation: SharedU32,
    /// Heartbeat of the engine.
    pub(super) heartbeat: Heartbeat,
    /// Flags such as [`mirror::FLAG_DEAD`].
    pub(super) flags: SharedU32,
}

impl Mirror {
    /// Returns the cause for which the device is lost, if the page shows one: a guarded mapping of
    /// the page has lost its memory, or the DEAD flag is set. The mappings of Linux VFIO and of the
    /// kernel shim are guarded. Those of vfio-user are not: a server that truncates the page kills
    /// this process by SIGBUS.
    pub(super) fn loss(&self) -> Option<GoneCause> {
        if self.page.faulted() {
            Some(GoneCause::HungUp)
        } else if self.flags.load(Ordering::Acquire) & mirror::FLAG_DEAD != 0 {
            Some(GoneCause::Evicted)
        } else {
            None
        }
    }
}
