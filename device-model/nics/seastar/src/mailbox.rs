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
    tail: SharedU32,
    commands: Window,
    results: Window,
    firmware: MirrorWord<SharedU32>,
    epoch: MirrorWord<SharedU32>,
    /// Commands that were copied, and those that were answered.
    taken: u32,
    answered: u32,
    /// The last count that was refused, which is counted once.
    refused: Option<u32>,
}

/// The next thing that a mailbox has for the firmware.
pub(crate) enum Next {
    /// A command with its number. It is taken when [`Mailbox::advance`] is called.
    Command(u32, [u8; COMMAND_BYTES]),
    /// Nothing.
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
    /// State and incarnation of the firmware.
    pub(crate) firmware: u32,
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
            // A reset leaves what former results the mirror has: a client could take them for new.
            mailbox.results.zero(0, slots * RESULT_BYTES as u64)?;
            mailbox.firmware.clear();
            mailbox.epoch.clear();
            mailbox.show_firmware(published);
            Ok(mailbox)
        };
        // The offsets are constants inside the BARs that the device's description asks for.
        open().ok()
    }

    /// Shows the state and the incarnation of the firmware.
    pub(crate) fn show_firmware(&mut self, published: PublishedState) {
        self.epoch.publish(published.epoch);
        self.firmware.publish(published.firmware);
    }

    /// Returns whether the client has written a count that is not the one of the commands taken.
    #[inline]
    pub(crate) fn has_new_commands(&self) -> bool {
        self.tail.load(Ordering::Relaxed) != self.taken
    }

    /// Returns the next command, copied.
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
            Ok(()) => Next::Command(self.taken, bytes),
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
        let behind = self.taken.wrapping_sub(number);
        let in_flight = self.taken.wrapping_sub(self.answered);
        if behind == 0 || behind > SLOTS || in_flight == 0 {
            return;
        }

        const NUMBER: usize = RESULT_BYTES - size_of::<u64>();
        result.number = number.wrapping_add(1);
        let slot = u64::from(number % SLOTS) * RESULT_BYTES as u64;
        let bytes = result.as_bytes();
        let last = u64::from(result.number) << 32 | u64::from(result.reserved[1]);

        self.answered = self.answered.wrapping_add(1);
        let _ = self.results.write(slot, &bytes[..NUMBER]);
        // Release: a client that sees the number sees the result.
        let _ = self.results.store_u64_release(slot + NUMBER as u64, last);
    }
}
