//! Counters of an endpoint.

/// Counters of an endpoint since it was opened. They wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Sends that completed without an error.
    pub sent: u64,
    /// Receives that completed without an error.
    pub received: u64,
    /// Bytes of user data in those receives.
    pub bytes_received: u64,
    /// Eager messages of other ranks that have arrived.
    pub eager: u64,
    /// Rendezvous requests of other ranks that have arrived.
    pub rendezvous: u64,
    /// Messages that found a posted receive on arrival.
    pub expected: u64,
    /// Unexpected messages: those that found no posted receive on arrival.
    pub unexpected: u64,
    /// Times that a message stayed in the transport because its sender's window was full.
    pub refused: u64,
    /// Times that a send had to wait for its receiver's window.
    pub window_waits: u64,
    /// Window grants sent to peers.
    pub grants: u64,
    /// Times that a peer's window grew because a receive or a probe waited.
    pub grown: u64,
    /// Requests that failed because their peer died or violated the protocol.
    pub failed: u64,
    /// Dropped messages: from a peer that is gone, from an invalid rank, or from this rank.
    pub strays: u64,
    /// Times that a matching table changed the key of its hash because its chains were unevenly
    /// filled.
    pub rekeyed: u64,
}
