//! Counters of a transport.

/// Counters of a transport. [`crate::ExtollTransport::velo_statistics`] returns VELO's own
/// counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Messages of the matching layer that were sent.
    pub sent: u64,
    /// Messages that the matching layer has taken.
    pub taken: u64,
    /// Messages that the matching layer refused at first.
    pub held: u64,
    /// Dropped messages: from outside the job, from a successor of a rank, or of a form that no
    /// transport sends.
    pub strays: u64,
    /// Sources staged in memory that stays registered.
    pub staged: u64,
    /// Sources with their own memory and registration.
    pub registered: u64,
    /// Gets started.
    pub gets: u64,
    /// Gets that ended with an error.
    pub failed_gets: u64,
    /// Times that notifications were lost because peers' commands filled the queue.
    pub overflows: u64,
    /// Errors of the card that concern no message of this transport.
    pub errors: u64,
}
