//! Counters of a transport.

/// Counters of a transport.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Messages of the matching layer that were sent.
    pub sent: u64,
    /// Messages that the matching layer has taken.
    pub taken: u64,
    /// Messages that stayed with the message layer at first, because this rank kept
    /// [`crate::Config::window`] of their sender.
    pub held: u64,
    /// Sends refused because [`crate::Config::sends`] messages to the rank were not sent yet.
    pub without_room: u64,
    /// Dropped messages: from outside the job, for a predecessor, or of a form that no transport
    /// sends.
    pub strays: u64,
    /// Gets started.
    pub gets: u64,
    /// Gets that ended with an error.
    pub failed_gets: u64,
    /// Gets of other ranks that were answered with data.
    pub served_gets: u64,
    /// Gets of other ranks for memory that is not registered, or longer than
    /// [`crate::Config::answer_bytes`].
    pub refused_gets: u64,
}
