//! Counters of a transport.

/// What a transport has done. VELO's own are in [`crate::ExtollTransport::velo_statistics`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Messages of the matching layer that were sent.
    pub sent: u64,
    /// Messages that the matching layer has taken.
    pub taken: u64,
    /// Messages that it refused at first.
    pub held: u64,
    /// Messages that were dropped: of nobody in the job, of a successor of a rank, or such as no transport sends.
    pub strays: u64,
    /// Sources staged in memory that stays registered.
    pub staged: u64,
    /// Sources that got memory and a registration of their own.
    pub registered: u64,
    /// Gets started.
    pub gets: u64,
    /// Gets that ended with an error.
    pub failed_gets: u64,
    /// Times that notifications were lost because somebody filled the queue.
    pub overflows: u64,
    /// Errors that the card counted and that concern no message of this transport.
    pub errors: u64,
}
