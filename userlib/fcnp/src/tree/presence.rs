//! The presence table: the processes that are up in the machine.

use super::TreeChannel;

/// The generation of a core. It increases whenever a process takes or leaves the core, modulo 256.
/// It is odd while a process is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Generation(pub u8);

impl Generation {
    /// Returns whether a process is attached.
    #[inline]
    pub const fn is_up(self) -> bool {
        self.0 & 1 == 1
    }
}

/// Remembers that a process is up until an entry of the presence table changes. A check without a
/// change costs one load.
#[derive(Debug, Default)]
pub(crate) struct PresenceWatch {
    /// [`TreeChannel::presence_changes`] when the process was last seen up.
    up_at: Option<u32>,
}

impl PresenceWatch {
    /// Returns whether a peer is gone, which `is_gone` determines from the presence table. It calls
    /// `is_gone` only if the table has changed since the last call.
    #[inline]
    pub(crate) fn check_gone(&mut self, channel: &TreeChannel, is_gone: impl FnOnce() -> bool) -> bool {
        // The count is loaded first, because it increases after an entry has changed.
        let changes = channel.presence_changes();
        if self.up_at == Some(changes) {
            return false;
        }

        let gone = is_gone();
        self.up_at = (!gone).then_some(changes);
        gone
    }
}
