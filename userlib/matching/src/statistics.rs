//! Counters of an endpoint.

/// What an endpoint has done since it was opened. Counters wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Sends that completed without an error.
    pub sent: u64,
    /// Receives that completed without an error.
    pub received: u64,
    /// Bytes of user data in those receives.
    pub bytes_received: u64,
    /// Messages of other ranks that arrived eagerly.
    pub eager: u64,
    /// Messages of other ranks that arrived as a request to fetch them.
    pub rendezvous: u64,
    /// Messages that found a posted receive when they arrived.
    pub expected: u64,
    /// Messages that found none.
    pub unexpected: u64,
    /// Times a message was left to the transport because its sender's window was full.
    pub refused: u64,
    /// Times a send had to wait for its receiver's window.
    pub window_waits: u64,
    /// Windows granted again.
    pub grants: u64,
    /// Requests that failed because their peer died or broke the protocol.
    pub failed: u64,
    /// Messages that were dropped: of a peer that is gone, of nobody, or an answer to a request that is no more.
    pub strays: u64,
    /// Times the hash of a matching table was keyed anew because its bins were unevenly filled.
    pub rekeyed: u64,
}
