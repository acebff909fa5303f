//! Counters.

use crate::bits::Protocol;

/// Counters of an endpoint since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Messages that were sent from a slot.
    pub short: u64,
    /// Messages that were sent from their buffer, with memory for them at the receiver.
    pub medium: u64,
    /// Messages that were sent from their buffer, and exposed for a get.
    pub long: u64,
    /// Messages that arrived before their receive.
    pub unexpected: u64,
    /// Unexpected short and medium messages whose data found no place.
    pub overflowed: u64,
    /// Messages that were taken out of their senders' windows, because a receive waited.
    pub kept: u64,
    /// Messages whose data were fetched by a get.
    pub fetched: u64,
    /// Messages whose data the sender sent again on request.
    pub repeated: u64,
    /// Messages that were ignored, because their process is no rank, or not the one it claims, or
    /// because they exceed the window of their rank.
    pub refused: u64,
}

impl Statistics {
    /// Counts a message that was sent, from a slot or from its buffer.
    pub(crate) fn count_sent(&mut self, has_slot: bool, protocol: Protocol) {
        let counter = match protocol {
            _ if has_slot => &mut self.short,
            Protocol::Eager => &mut self.medium,
            Protocol::Long => &mut self.long,
        };
        *counter += 1;
    }
}
