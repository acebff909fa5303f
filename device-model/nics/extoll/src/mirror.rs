//! The card's page of a client's mirror.

use nicforge_core::ids::AttachmentId;
use nicforge_hwi::extoll::mirror;
use nicforge_kit::MirrorWord;
use nicforge_shm::{MemoryError, SharedMemory, SharedU64, Window};

use crate::{attachment::ErrorWords, config::CardConfig, rma, velo};

/// A word of the mirror that changes, with the value that it holds.
type Word = MirrorWord<SharedU64>;

/// The card's page of a client's mirror.
///
/// The words of VELO and RMA change with the counters. Those of the errors change together.
pub(crate) struct Mirror {
    page: Window,
    velo_sent: Word,
    velo_received: Word,
    velo_stalls: Word,
    rma_commands: Word,
    rma_completed: Word,
    rma_notifications: Word,
    rma_overflows: Word,
    errors: ErrorMirror,
}

/// The words of the mirror that change with an error.
struct ErrorMirror {
    last: Word,
    undelivered: Word,
    count: Word,
}

impl Mirror {
    /// Opens the page in a client's mirror, which has the size that the card's description asks
    /// for.
    ///
    /// # Errors
    /// The memory is smaller.
    pub(crate) fn open(memory: &SharedMemory) -> Result<Self, MemoryError> {
        let word = |offset| Ok::<_, MemoryError>(MirrorWord::new(memory.u64(offset)?));

        Ok(Self {
            page: memory.window(mirror::NODE, mirror::SIZE)?,
            velo_sent: word(mirror::VELO_SENT)?,
            velo_received: word(mirror::VELO_RECEIVED)?,
            velo_stalls: word(mirror::VELO_STALLS)?,
            rma_commands: word(mirror::RMA_COMMANDS)?,
            rma_completed: word(mirror::RMA_COMPLETED)?,
            rma_notifications: word(mirror::RMA_NOTIFICATIONS)?,
            rma_overflows: word(mirror::RMA_OVERFLOWS)?,
            errors: ErrorMirror {
                last: word(mirror::LAST_ERROR)?,
                undelivered: word(mirror::VELO_UNDELIVERED)?,
                count: word(mirror::ERRORS)?,
            },
        })
    }

    /// Writes a client's node, VPID and number of starts to the page, and sets all counters in it
    /// to 0, because the page may hold values from before the reset.
    pub(crate) fn show_identity(&mut self, config: &CardConfig, attachment: AttachmentId, starts: u64) {
        self.store(mirror::NODE, u64::from(config.node) | u64::from(attachment.0) << 32);
        self.store(mirror::NODES, u64::from(config.nodes) | u64::from(config.vpids) << 32);
        self.store(mirror::STARTS, starts);

        let Self {
            page: _,
            velo_sent,
            velo_received,
            velo_stalls,
            rma_commands,
            rma_completed,
            rma_notifications,
            rma_overflows,
            errors: ErrorMirror { last, undelivered, count },
        } = self;

        let of_velo = [velo_sent, velo_received, velo_stalls, undelivered];
        let of_rma = [rma_commands, rma_completed, rma_notifications, rma_overflows];
        for word in of_velo.into_iter().chain(of_rma).chain([last, count]) {
            word.clear();
        }
    }

    /// Writes the counters that have changed to the page.
    pub(crate) fn show_changes(&mut self, velo: &velo::Counts, rma: &rma::Counts, errors: &ErrorWords) {
        self.velo_sent.publish(velo.sent);
        self.velo_received.publish(velo.received);
        self.velo_stalls.publish(velo.stalls);
        self.rma_commands.publish(rma.commands);
        self.rma_completed.publish(rma.completed);
        self.rma_notifications.publish(rma.notifications);
        self.rma_overflows.publish(rma.overflows);

        let words = &mut self.errors;
        if errors.count != words.count.mirrored() || velo.undelivered != words.undelivered.mirrored() {
            words.last.publish(errors.last);
            words.undelivered.publish(velo.undelivered);
            // The error count comes last: a reader that sees it grow also sees the values that
            // belong to it.
            words.count.publish(errors.count);
        }
    }

    /// Stores a word that does not change until the attachment's next start.
    fn store(&self, offset: u64, value: u64) {
        // The hardware interface's offsets all lie inside the page.
        let _ = self.page.store_u64_release(offset - mirror::NODE, value);
    }
}
