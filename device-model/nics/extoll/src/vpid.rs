//! What one attachment has: a VPID, or the admin.

use std::sync::atomic::Ordering;

use nicforge_core::{context::Context, device::AttachmentId, time::Nanos};
use nicforge_hwi::extoll::{mirror, window};
use nicforge_shm::{SharedU64, Window};

use crate::{
    atu::Registers,
    rma,
    velo::{
        assembly::Assembly,
        ring::{Place, Ring},
    },
};

/// The windows of a client.
pub(crate) struct Windows {
    /// The card's page of the mirror.
    pub(crate) mirror: Window,
    pub(crate) velo_read_pointer: SharedU64,
    pub(crate) rma_read_pointer: SharedU64,
}

impl Windows {
    /// A client's windows; `None` when there is no client.
    pub(crate) fn open(context: &Context<'_>, who: AttachmentId) -> Option<Self> {
        let (windows, mirrors) = (context.memory(who, 1)?, context.memory(who, 2)?);
        // The places are constants inside BARs that the description asked for.
        Some(Self {
            mirror: mirrors.window(mirror::NODE, mirror::SIZE).ok()?,
            velo_read_pointer: windows.u64(window::VELO_READ_POINTER).ok()?,
            rma_read_pointer: windows.u64(window::RMA_READ_POINTER).ok()?,
        })
    }

    /// Shows a number.
    pub(crate) fn show(&self, offset: u64, value: u64) {
        // Offsets of the hardware interface, all inside the page.
        let _ = self.mirror.store_u64_release(offset - mirror::NODE, value);
    }
}

/// What an attachment counts, as its mirror shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) sent: u64,
    pub(crate) stalls: u64,
    pub(crate) received: u64,
    pub(crate) errors: u64,
    pub(crate) last_error: u64,
    pub(crate) undelivered: u64,
    /// Sends that the watchdog has ended.
    pub(crate) given_up: u64,
}

impl Counts {
    /// Sends that the card is done with.
    pub(crate) fn taken(&self) -> u64 {
        self.sent + self.undelivered + self.given_up
    }
}

/// A change of the receive ring that the other cards are being told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Announcement {
    /// The next node to be told.
    pub(crate) next: u32,
}

/// A send that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stall {
    /// Nanoseconds of it that count for the watchdog.
    pub(crate) waited: u64,
    /// When it was last looked at.
    pub(crate) last: Nanos,
    /// Packets that had left on its way by then.
    pub(crate) departed: u64,
}

/// An attachment's state.
#[derive(Default)]
pub(crate) struct Vpid {
    pub(crate) windows: Option<Windows>,
    pub(crate) place: Place,
    pub(crate) ring: Option<Ring>,
    /// Of the receive ring: odd while it is enabled. Goes on through tenants and resets.
    pub(crate) generation: u8,
    pub(crate) announcement: Option<Announcement>,
    /// As [`mirror::STARTS`].
    pub(crate) starts: u64,
    pub(crate) assembly: Assembly,
    /// The send in front has to wait, and whether it was counted as one that waits for credit.
    pub(crate) stalled: Option<Stall>,
    pub(crate) stalled_for_credit: bool,
    pub(crate) interrupts_enabled: u64,
    pub(crate) counts: Counts,
    pub(crate) atu: Registers,
    /// What of them the client has been shown.
    pub(crate) shown: Counts,
    pub(crate) shown_rma: rma::Counts,
}

impl Vpid {
    /// The send in front has gone, or was given up.
    #[inline]
    pub(crate) fn end_stall(&mut self) {
        (self.stalled, self.stalled_for_credit) = (None, false);
    }

    /// Shows all numbers.
    pub(crate) fn show_counts(&mut self, rma: rma::Counts) {
        // What the page held before is another client's.
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

    /// Shows the numbers that have changed: each line that is written is one that its reader has to fetch again.
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
            // Last: who sees it count up finds the others as they were then.
            windows.show(mirror::ERRORS, now.errors);
        }
        self.shown = now;
        self.shown_rma = rma;
    }

    /// The owner's read pointer of its notification queue.
    #[inline]
    pub(crate) fn rma_read_pointer(&self) -> Option<u64> {
        Some(self.windows.as_ref()?.rma_read_pointer.load(Ordering::Acquire))
    }

    /// The owner's read pointer, when it moved.
    #[inline]
    pub(crate) fn read_pointer(&self) -> Option<u64> {
        Some(self.windows.as_ref()?.velo_read_pointer.load(Ordering::Acquire))
    }
}
