//! Who is up in the machine.

use super::TreeChannel;

/// The generation of a core: counts up whenever a process takes or leaves it, modulo 256, and is odd while one is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Generation(pub u8);

impl Generation {
    /// Whether a process is there.
    #[inline]
    pub const fn is_up(self) -> bool {
        self.0 & 1 == 1
    }
}

/// Whether somebody is gone, asked again only when an entry of the presence table has changed: one load a look.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// [`TreeChannel::presence_changes`] when he was there.
    there: Option<u32>,
}

impl Watch {
    /// Whether `gone` holds, by the table as it is now.
    #[inline]
    pub(crate) fn is_gone(&mut self, channel: &TreeChannel, gone: impl FnOnce() -> bool) -> bool {
        // Loaded first: an entry that changes behind it counts the changes up afterwards.
        let changes = channel.presence_changes();
        if self.there == Some(changes) {
            return false;
        }
        let gone = gone();
        self.there = (!gone).then_some(changes);
        gone
    }
}
