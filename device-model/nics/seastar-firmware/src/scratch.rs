//! The budget of the 384 KB of scratch memory.
//!
//! All that lives on the SeaStar is charged with the bytes that it takes there. The tables are
//! allocated at boot and at the start of a process; no message allocates.
//!
//! | what | bytes | when |
//! | --- | --- | --- |
//! | image of the firmware | [`IMAGE`] | always |
//! | mailboxes | [`MAILBOX`] for the kernel and for each process | always |
//! | streams | one record for each stream | always |
//! | sequence numbers and flags of pairs | 4 5/8 for each node | boot |
//! | pending messages and send queues | one record each | boot |
//! | Portals objects of a process | [`crate::matching::Limits::bytes`] | start of the process |

use nicforge_hwi::seastar::{COMMAND_BYTES, RESULT_BYTES, SCRATCH, SLOTS};

/// Bytes of the firmware's image (section *Firmware* of the paper).
pub const IMAGE: u32 = 36 << 10;
/// Bytes of a mailbox: slots of commands and results, and the word with the number of commands.
pub const MAILBOX: u32 = SLOTS * (COMMAND_BYTES + RESULT_BYTES) as u32 + 4;

/// The scratch memory is exhausted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSpace;

/// An allocator of byte counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scratch {
    free: u32,
}

impl Scratch {
    /// Makes the budget of a SeaStar with the firmware's image in it.
    #[must_use]
    pub const fn new() -> Self {
        Self { free: SCRATCH - IMAGE }
    }

    /// Takes bytes.
    ///
    /// # Errors
    /// [`NoSpace`] if fewer are free. Nothing is taken then.
    pub const fn take(&mut self, bytes: usize) -> Result<(), NoSpace> {
        if bytes > self.free as usize {
            return Err(NoSpace);
        }
        self.free -= bytes as u32;
        Ok(())
    }

    /// Returns bytes to the budget.
    pub const fn give_back(&mut self, bytes: usize) {
        let limit = SCRATCH - IMAGE;
        let free = self.free as usize + bytes;
        self.free = if free > limit as usize { limit } else { free as u32 };
    }

    /// Returns the number of free bytes.
    #[must_use]
    pub const fn free(&self) -> u32 {
        self.free
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_is_exhausted_at_the_last_byte() {
        let mut scratch = Scratch::new();
        let free = scratch.free() as usize;

        assert_eq!(scratch.take(free + 1), Err(NoSpace));
        assert_eq!(scratch.take(free), Ok(()));
        assert_eq!(scratch.take(1), Err(NoSpace));

        scratch.give_back(10);
        assert_eq!(scratch.take(10), Ok(()));
        assert_eq!(scratch.free(), 0);
    }
}
