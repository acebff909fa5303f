//! Counters of an endpoint.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of an endpoint, since it was opened.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Statistics {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Counter,)*
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> Statistics {
                Statistics { $($name: self.$name.0.load(Ordering::Relaxed),)* }
            }
        }
    };
}

/// A counter to which several threads add.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds to the counter.
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }
}

/// Adds to a counter on behalf of one transfer, in few large steps, because an atomic addition
/// makes the processor wait for its earlier stores.
pub(crate) struct Tally<'a> {
    counter: &'a Counter,
    pending: u64,
}

impl<'a> Tally<'a> {
    /// The sum from which on it is added to the counter.
    const STEP: u64 = 64;

    /// Returns a tally of 0 for a counter.
    pub(crate) fn of(counter: &'a Counter) -> Self {
        Self { counter, pending: 0 }
    }

    /// Adds to the tally, and passes it on to the counter when it is large enough.
    #[inline]
    pub(crate) fn add(&mut self, n: usize) {
        self.pending += n as u64;
        if self.pending >= Self::STEP {
            self.counter.add(std::mem::take(&mut self.pending));
        }
    }
}

impl Drop for Tally<'_> {
    fn drop(&mut self) {
        self.counter.add(self.pending);
    }
}

counters! {
    /// Messages sent completely.
    messages_sent,
    /// Messages received completely.
    messages_received,
    /// Bytes of user data in the messages sent.
    bytes_sent,
    /// Bytes of user data in the messages received.
    bytes_received,
    /// Packets put into the send FIFO: control and data.
    packets_sent,
    /// Packets taken out of the receive FIFO: control and data.
    packets_received,
    /// Compute node: acknowledgements handed to another core or thread. I/O node: requests stored
    /// for a thread that called later or sleeps.
    hand_overs,
    /// Number of times that an interrupt woke the daemon.
    interrupts,
    /// Number of times that a waiting thread found the receive FIFO empty.
    polls,
    /// Data packets without a reader, which were discarded.
    orphans,
    /// Control packets that were discarded: malformed, late, or from a peer that has not sent a
    /// RESET.
    strays,
    /// Number of times that the send FIFO was full.
    stalls,
    /// Completed RESET handshakes.
    resets,
    /// Peers that were seen to die.
    peers_lost,
}
