//! Counters of a message layer.

/// Counters of a message layer, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Messages whose packets have all been sent.
    pub messages_sent: u64,
    /// Messages that were received or discarded completely.
    pub messages_received: u64,
    /// Packets that were sent, of all kinds.
    pub packets_sent: u64,
    /// Packets that were received, with those that were dropped.
    pub packets_received: u64,
    /// Packets that were stored until their message could be received.
    pub packets_stored: u64,
    /// Packets that carried nothing but credit.
    pub credits_sent: u64,
    /// Acknowledgements that were sent.
    pub acknowledgements_sent: u64,
    /// Packets that violate the protocol. They were dropped.
    pub malformed: u64,
    /// Packets from processes that had ended. They were dropped.
    pub stale: u64,
    /// Times that the packet device had no room.
    pub stalls: u64,
    /// Connections that ended because the peer's process was gone.
    pub peers_lost: u64,
}
