//! Mailboxes: the commands of clients, and the results that they get.
//!
//! A command is copied once, so that a client that changes it meanwhile changes nothing but its own
//! command. A count of commands that the mailbox has no room for is an error, and nothing is taken
//! until it is valid again.

use std::sync::atomic::Ordering;

use nicforge_core::{context::Context, ids::AttachmentId};
use nicforge_hwi::seastar::{
    BAR_MIRROR, BAR_WINDOW, COMMAND_BYTES, CommandResult, KERNEL, RESULT_BYTES, SLOTS, mirror, window,
};
use nicforge_kit::MirrorWord;
use nicforge_shm::{MemoryError, SharedU32, Window};
use zerocopy::IntoBytes;

/// Maximum number of commands of a mailbox that the firmware has not answered.
const MAX_IN_FLIGHT: u32 = 8;

/// The mailbox of a client.
pub(crate) struct Mailbox {
    /// Number of commands that the client has written, modulo 2^32.
    tail: SharedU32,
    /// Slots of commands.
    commands: Window,
    /// Slots of results.
    results: Window,
    /// The words of the mirror with the firmware's state and epoch.
    firmware: MirrorWord<SharedU32>,
    epoch: MirrorWord<SharedU32>,
    /// Number of commands that were passed to the firmware, modulo 2^32.
    taken: u32,
    /// Number of commands that were answered, modulo 2^32.
    answered: u32,
    /// The last invalid value of `tail`, which is reported only once.
    refused: Option<u32>,
}

/// The next thing that a mailbox has for the firmware.
pub(crate) enum Next {
    /// A copy of a command, and its number. It stays the next one until [`Mailbox::advance`] is
    /// called.
    Command { number: u32, bytes: [u8; COMMAND_BYTES] },
    /// No command, or none before an earlier one is answered.
    Nothing,
    /// The count of commands is not valid. Each value is reported once.
    Invalid,
}

/// The values that all mirrors of a node show.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PublishedState {
    pub(crate) node: u32,
    pub(crate) nodes: u32,
    pub(crate) processes: u32,
    /// State of the firmware, one of [`nicforge_hwi::seastar::firmware`].
    pub(crate) firmware: u32,
    /// Number of the firmware's starts.
    pub(crate) epoch: u32,
}

impl Mailbox {
    /// Opens the mailbox of a client, and fills its mirror; returns `None` if there is no client.
    pub(crate) fn open(
        context: &Context<'_>,
        attachment_id: AttachmentId,
        published: PublishedState,
    ) -> Option<Self> {
        let (windows, mirrors) =
            (context.memory(attachment_id, BAR_WINDOW)?, context.memory(attachment_id, BAR_MIRROR)?);
        let open = || -> Result<Self, MemoryError> {
            let word = |offset: u64| mirrors.u32(mirror::BASE + offset);
            let process = attachment_id.0.checked_sub(KERNEL + 1).map_or(mirror::NO_PROCESS, u32::from);
            for (offset, value) in [
                (mirror::NODE, published.node),
                (mirror::NODES, published.nodes),
                (mirror::PROCESS, process),
                (mirror::PROCESSES, published.processes),
            ] {
                word(offset)?.store(value, Ordering::Release);
            }

            let slots = u64::from(SLOTS);
            let mut mailbox = Self {
                tail: windows.u32(window::BASE + window::COMMAND_TAIL)?,
                commands: windows.window(window::BASE + window::COMMANDS, slots * COMMAND_BYTES as u64)?,
                results: mirrors.window(mirror::BASE + mirror::RESULTS, slots * RESULT_BYTES as u64)?,
                firmware: MirrorWord::new(word(mirror::FIRMWARE)?),
                epoch: MirrorWord::new(word(mirror::EPOCH)?),
                taken: 0,
                answered: 0,
                refused: None,
            };
            // After a reset the mirror still has the results of former commands, which a client
            // could take for new ones.
            mailbox.results.zero(0, slots * RESULT_BYTES as u64)?;
            mailbox.firmware.clear();
            mailbox.epoch.clear();
            mailbox.show_firmware(published);
            Ok(mailbox)
        };
        // The offsets are constants inside the BARs that the device's description asks for.
        open().ok()
    }

    /// Shows the state of the firmware and the number of its starts.
    pub(crate) fn show_firmware(&mut self, published: PublishedState) {
        self.epoch.publish(published.epoch);
        self.firmware.publish(published.firmware);
    }

    /// Returns whether the client's number of commands differs from that of the commands taken.
    #[inline]
    pub(crate) fn has_new_commands(&self) -> bool {
        self.tail.load(Ordering::Relaxed) != self.taken
    }

    /// Returns a copy of the next command, unless too many are in flight.
    #[inline]
    pub(crate) fn next(&mut self) -> Next {
        let tail = self.tail.load(Ordering::Acquire);
        if tail == self.taken || self.taken.wrapping_sub(self.answered) >= MAX_IN_FLIGHT {
            return Next::Nothing;
        }
        if tail.wrapping_sub(self.answered) > SLOTS {
            let is_new = self.refused.replace(tail) != Some(tail);
            return if is_new { Next::Invalid } else { Next::Nothing };
        }

        let mut bytes = [0; COMMAND_BYTES];
        let slot = u64::from(self.taken % SLOTS) * COMMAND_BYTES as u64;
        match self.commands.read_array(slot, &mut bytes) {
            Ok(()) => Next::Command { number: self.taken, bytes },
            Err(_) => Next::Nothing,
        }
    }

    /// Counts the command of [`Mailbox::next`] as taken.
    #[inline]
    pub(crate) fn advance(&mut self) {
        self.taken = self.taken.wrapping_add(1);
    }

    /// Writes a result. A number that is not that of a command in flight is ignored.
    pub(crate) fn answer(&mut self, number: u32, mut result: CommandResult) {
        let age = self.taken.wrapping_sub(number);
        let in_flight = self.taken.wrapping_sub(self.answered);
        if age == 0 || age > SLOTS || in_flight == 0 {
            return;
        }

        // The last word of a result has the result's number in its upper half.
        const LAST_WORD: usize = RESULT_BYTES - size_of::<u64>();
        result.number = number.wrapping_add(1);
        let slot = u64::from(number % SLOTS) * RESULT_BYTES as u64;
        let bytes = result.as_bytes();
        let last_word = u64::from(result.number) << 32 | u64::from(result.reserved[1]);

        self.answered = self.answered.wrapping_add(1);
        let _ = self.results.write(slot, &bytes[..LAST_WORD]);
        // The store is a release: a client that sees the number also sees the rest of the result.
        let _ = self.results.store_u64_release(slot + LAST_WORD as u64, last_word);
    }
}
