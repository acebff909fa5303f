//! Counters of a layer for C.

use nicforge_bgl::message::Statistics;

/// Counters of a layer, since it was opened.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct bgl_counters {
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
    /// Times that the card had no room for a packet.
    pub stalls: u64,
    /// Connections that ended because the peer's process was gone.
    pub peers_lost: u64,
}

impl From<Statistics> for bgl_counters {
    fn from(now: Statistics) -> Self {
        Self {
            messages_sent: now.messages_sent,
            messages_received: now.messages_received,
            packets_sent: now.packets_sent,
            packets_received: now.packets_received,
            packets_stored: now.packets_stored,
            credits_sent: now.credits_sent,
            acknowledgements_sent: now.acknowledgements_sent,
            malformed: now.malformed,
            stale: now.stale,
            stalls: now.stalls,
            peers_lost: now.peers_lost,
        }
    }
}
