//! Counters of a transport.

/// Counters of a transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Messages of the matching layer that were sent.
    pub sent: u64,
    /// Messages that the matching layer has taken.
    pub taken: u64,
    /// Messages that the matching layer refused at first.
    pub held: u64,
    /// Sends refused because the receiver had granted no more packets.
    pub without_credit: u64,
    /// Dropped packets: from outside the job, of a predecessor or a successor of a rank, or of a
    /// form that no transport sends.
    pub strays: u64,
    /// Rows put to other ranks.
    pub rows: u64,
    /// Questions to other ranks' units.
    pub questions: u64,
    /// Sources staged in memory that stays allocated.
    pub staged: u64,
    /// Sources with their own memory.
    pub own_areas: u64,
    /// Gets started.
    pub gets: u64,
    /// Gets sent once more, because the other rank's unit had lost them.
    pub repeated_gets: u64,
    /// Gets that ended with an error.
    pub failed_gets: u64,
    /// Times that a wrong descriptor of a remote get stopped this rank's FIFO for them.
    pub restarts: u64,
}
