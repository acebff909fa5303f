//! Configuration of an endpoint.

use crate::{Error, wire};

/// Run-time parameters. Ranks that communicate should use the same values; each field documents the
/// effect of different ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Length in bytes of the longest message that is sent eagerly; 2,048 by default, as in the
    /// paper. Only the sender's value counts, as long as such a message costs at most half of the
    /// receiver's window.
    pub eager_threshold: usize,
    /// Bytes that unexpected messages of each peer may take; 65,536 by default. [`wire::cost`]
    /// defines the cost of a message. This value times the number of peers, and [`Config::pool`],
    /// bound the memory for unexpected data. A peer whose own window is larger may send more than
    /// this rank takes. Its transport holds some of the excess, and may count the peer as lost when
    /// there is more ([`crate::Loss::Overrun`]).
    pub window: usize,
    /// Bytes by which the windows of all peers together may grow; 64 MiB by default, with which a
    /// peer can have 131,072 unexpected messages of 8 bytes. A window grows while a receive or a
    /// probe waits, because the message that it waits for may stand behind others that exceed the
    /// window. A peer may have as much of the pool as it leaves free. Without room in the pool,
    /// the receives and sends that wait for the window fail with [`Error::WindowFull`].
    pub pool: usize,
    /// Messages, gets and other steps of each kind in one call of [`crate::Endpoint::progress`]; 64
    /// by default.
    pub budget: usize,
    /// Gets that one rendezvous transfer has in flight at a time; 4 by default.
    pub gets_in_flight: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { eager_threshold: 2048, window: 65_536, pool: 64 << 20, budget: 64, gets_in_flight: 4 }
    }
}

/// Largest value of the parameters in bytes. Lengths of eager messages must fit in 32 bits.
const LARGEST: usize = u32::MAX as usize / 4;

impl Config {
    /// Checks that an endpoint can work with these values.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let refuse = |what, value: usize, minimum| {
            Err(Error::BadConfig { what, value, least: minimum, most: LARGEST })
        };

        if self.eager_threshold > LARGEST {
            return refuse("eager_threshold", self.eager_threshold, 0);
        }

        // Less than half of the window is consumed without a new grant. The rest must hold the
        // longest eager message.
        let minimum = 2 * wire::cost(self.eager_threshold as u64) as usize * wire::UNIT;
        if !(minimum..=LARGEST).contains(&self.window) {
            return refuse("window", self.window, minimum);
        }

        if self.pool > LARGEST {
            return refuse("pool", self.pool, 0);
        }

        if self.budget == 0 {
            return refuse("budget", self.budget, 1);
        }

        if self.gets_in_flight == 0 {
            return refuse("gets_in_flight", 0, 1);
        }

        Ok(())
    }

    /// Returns the window in units of [`wire::UNIT`].
    pub(crate) fn window_units(&self) -> u64 {
        (self.window / wire::UNIT) as u64
    }

    /// Returns the pool in units of [`wire::UNIT`].
    pub(crate) fn pool_units(&self) -> u64 {
        (self.pool / wire::UNIT) as u64
    }
}
