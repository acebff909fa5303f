//! What an endpoint may be told.

use crate::{Error, wire};

/// Run-time parameters. Ranks that talk to each other should have the same; what happens otherwise is said at each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The longest message, in bytes, that is sent eagerly; 2,048 by default, as in the paper. It concerns the sender alone, as
    /// long as such a message costs at most half of the receiver's window.
    pub eager_threshold: usize,
    /// Bytes of each peer that may wait here without a matching receive, 65,536 by default; a message counts as
    /// [`wire::cost`] says. The memory for unexpected data of all peers is bounded by this times their number. A
    /// peer with a larger window of its own is held back by the transport, which may hold others back with it.
    pub window: usize,
    /// Messages, gets and other steps that one call of [`crate::Endpoint::progress`] does of each kind; 64 by default.
    pub budget: usize,
    /// Gets that one rendezvous transfer has under way at a time; 4 by default.
    pub gets_in_flight: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { eager_threshold: 2048, window: 65_536, budget: 64, gets_in_flight: 4 }
    }
}

impl Config {
    /// Whether an endpoint can work with it.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let largest = u32::MAX as usize / 4;
        let bad = |what, value: usize, least| Err(Error::BadConfig { what, value, least, most: largest });
        if self.eager_threshold > largest {
            return bad("eager_threshold", self.eager_threshold, 0);
        }
        // Less than half of the window is not granted again at any time. The rest must do for the longest message.
        let least = 2 * wire::cost(self.eager_threshold as u64) as usize * wire::UNIT;
        if !(least..=largest).contains(&self.window) {
            return bad("window", self.window, least);
        }
        if self.budget == 0 {
            return bad("budget", self.budget, 1);
        }
        if self.gets_in_flight == 0 {
            return bad("gets_in_flight", 0, 1);
        }
        Ok(())
    }

    /// The window in units of [`wire::UNIT`].
    pub(crate) fn window_units(&self) -> u64 {
        (self.window / wire::UNIT) as u64
    }
}
