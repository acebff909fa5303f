//! The state of one attachment: a VPID, or the admin.

use std::sync::atomic::Ordering;

use nicforge_core::{context::Context, ids::AttachmentId, time::Nanos};
use nicforge_hwi::extoll::{mirror, window};
use nicforge_shm::{SharedU64, Window};

use crate::{
    atu::AtuRegisters,
    rma,
    velo::{
        assembly::Assembly,
        ring::{Ring, RingRegisters},
    },
};

/// The mapped windows of a client.
pub(crate) struct Windows {
    /// The card's page of the mirror.
    pub(crate) mirror: Window,
    pub(crate) velo_read_pointer: SharedU64,
    pub(crate) rma_read_pointer: SharedU64,
}

impl Windows {
    /// Opens a client's windows; returns `None` if there is no client.
    pub(crate) fn open(context: &Context<'_>, who: AttachmentId) -> Option<Self> {
        let (windows, mirrors) = (context.memory(who, 1)?, context.memory(who, 2)?);

        // The offsets are constants inside the BARs that the card's description asks for.
        Some(Self {
            mirror: mirrors.window(mirror::NODE, mirror::SIZE).ok()?,
            velo_read_pointer: windows.u64(window::VELO_READ_POINTER).ok()?,
            rma_read_pointer: windows.u64(window::RMA_READ_POINTER).ok()?,
        })
    }

    /// Stores a value in the mirror.
    pub(crate) fn show(&self, offset: u64, value: u64) {
        // The hardware interface's offsets all lie inside the page.
        let _ = self.mirror.store_u64_release(offset - mirror::NODE, value);
    }
}

/// The counters of an attachment that its mirror shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) sent: u64,
    pub(crate) stalls: u64,
    pub(crate) received: u64,
    pub(crate) errors: u64,
    pub(crate) last_error: u64,
    pub(crate) undelivered: u64,
    /// Number of sends that the watchdog has ended.
    pub(crate) given_up: u64,
}

impl Counts {
    /// Returns the number of sends that the card has finished with.
    pub(crate) fn taken(&self) -> u64 {
        self.sent + self.undelivered + self.given_up
    }
}

/// A change of the receive ring that has yet to be announced to some nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Announcement {
    /// Number of nodes that have the announcement already.
    pub(crate) next: u32,
}

/// A send that has to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stall {
    /// Nanoseconds that count for the watchdog.
    pub(crate) waited: u64,
    /// Time of the last attempt.
    pub(crate) last: Nanos,
    /// Packets that had left on the send's way by then.
    pub(crate) departed: u64,
}

/// An attachment's state.
#[derive(Default)]
pub(crate) struct Vpid {
    pub(crate) windows: Option<Windows>,
    /// The receive ring's registers.
    pub(crate) ring_registers: RingRegisters,
    pub(crate) ring: Option<Ring>,
    /// Generation of the receive ring, odd while the ring is enabled. It outlives tenants and
    /// resets.
    pub(crate) generation: u8,
    pub(crate) announcement: Option<Announcement>,
    /// Number of starts, as in [`mirror::STARTS`].
    pub(crate) starts: u64,
    pub(crate) assembly: Assembly,
    /// The send that has to wait, if any.
    pub(crate) stalled: Option<Stall>,
    /// Whether that send was counted as one that waits for credit.
    pub(crate) stalled_for_credit: bool,
    pub(crate) interrupts_enabled: u64,
    pub(crate) counts: Counts,
    pub(crate) atu: AtuRegisters,
    /// The counters as the client's mirror shows them.
    pub(crate) shown: Counts,
    pub(crate) shown_rma: rma::Counts,
}

impl Vpid {
    /// Ends a stall, when the send has left or was given up.
    #[inline]
    pub(crate) fn end_stall(&mut self) {
        (self.stalled, self.stalled_for_credit) = (None, false);
    }

    /// Shows all counters. The page may hold values of an earlier client before.
    pub(crate) fn show_counts(&mut self, rma: rma::Counts) {
        let velo = [mirror::VELO_SENT, mirror::VELO_STALLS, mirror::VELO_RECEIVED, mirror::VELO_UNDELIVERED];
        let of_rma =
            [mirror::RMA_COMMANDS, mirror::RMA_COMPLETED, mirror::RMA_NOTIFICATIONS, mirror::RMA_OVERFLOWS];

        if let Some(windows) = &self.windows {
            for offset in velo.into_iter().chain(of_rma).chain([mirror::LAST_ERROR, mirror::ERRORS]) {
                windows.show(offset, 0);
            }
        }

        self.shown = Counts::default();
        self.shown_rma = rma::Counts::default();
        self.show_changes(rma);
    }

    /// Shows the counters that have changed. A counter that has not changed is not written, because
    /// a write makes the reader fetch its cache line again.
    pub(crate) fn show_changes(&mut self, rma: rma::Counts) {
        let Some(windows) = &self.windows else { return };
        let (now, shown, shown_rma) = (self.counts, self.shown, self.shown_rma);

        let numbers = [
            (mirror::VELO_SENT, now.sent, shown.sent),
            (mirror::VELO_RECEIVED, now.received, shown.received),
            (mirror::VELO_STALLS, now.stalls, shown.stalls),
            (mirror::RMA_COMMANDS, rma.commands, shown_rma.commands),
            (mirror::RMA_COMPLETED, rma.completed, shown_rma.completed),
            (mirror::RMA_NOTIFICATIONS, rma.notifications, shown_rma.notifications),
            (mirror::RMA_OVERFLOWS, rma.overflows, shown_rma.overflows),
        ];
        for (offset, number, before) in numbers {
            if number != before {
                windows.show(offset, number);
            }
        }

        if now.errors != shown.errors || now.undelivered != shown.undelivered {
            windows.show(mirror::LAST_ERROR, now.last_error);
            windows.show(mirror::VELO_UNDELIVERED, now.undelivered);
            // The error count comes last: a reader that sees it grow sees the matching other
            // values.
            windows.show(mirror::ERRORS, now.errors);
        }

        self.shown = now;
        self.shown_rma = rma;
    }

    /// Returns the owner's read pointer of its notification queue.
    #[inline]
    pub(crate) fn rma_read_pointer(&self) -> Option<u64> {
        Some(self.windows.as_ref()?.rma_read_pointer.load(Ordering::Acquire))
    }

    /// Returns the owner's read pointer of its receive ring.
    #[inline]
    pub(crate) fn read_pointer(&self) -> Option<u64> {
        Some(self.windows.as_ref()?.velo_read_pointer.load(Ordering::Acquire))
    }
}
