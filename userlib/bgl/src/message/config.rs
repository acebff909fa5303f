//! The options of a message layer.

use std::time::Duration;

use nicforge_hwi::torus::MAX_PACKET;

use super::{MAX_SINGLE, WINDOW};
use crate::Error;

/// The options of a message layer. They are of the sender: ranks may have different ones.
///
/// A message has the first protocol whose limit it does not exceed, in the order of the fields. A
/// longer message has the rendezvous protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Maximum length in bytes of a message in one packet, at most [`MAX_SINGLE`]. The default is
    /// that limit.
    pub single: usize,
    /// Maximum length in bytes of a message with the eager protocol. The default is 1024.
    pub eager: usize,
    /// Maximum length in bytes of a message with the mid-size protocol. The default is 16,384.
    pub mid_size: usize,
    /// The time in which an acknowledgement is expected. Packets of the mid-size protocol repeat
    /// the match information for so long. The default is 10 us.
    pub round_trip: Duration,
    /// Bits that a link of the torus moves per second. The default is 1.4 * 10^9.
    pub link_rate: u64,
    /// Whether the first packet of a message with the eager protocol or the mid-size protocol has
    /// high priority, so that it arrives before the others more often (paper, section 5.8). The
    /// default is `false`.
    pub lead_has_priority: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            single: MAX_SINGLE,
            eager: 1024,
            mid_size: 16_384,
            round_trip: Duration::from_micros(10),
            link_rate: 1_400_000_000,
            lead_has_priority: false,
        }
    }
}

impl Config {
    /// Returns the number of packets that a sender can send in a round trip, 1 to [`WINDOW`]: so
    /// many packets of the mid-size protocol carry the match information if no acknowledgement
    /// comes.
    pub fn repeated_packets(&self) -> u8 {
        let nanoseconds_per_packet =
            (MAX_PACKET as u128 * 8 * 1_000_000_000) / u128::from(self.link_rate.max(1));
        let packets = self.round_trip.as_nanos().div_ceil(nanoseconds_per_packet.max(1));
        packets.clamp(1, WINDOW.into()) as u8
    }

    /// Checks the options.
    pub(super) fn check(&self) -> Result<(), Error> {
        let limits = [
            ("single", self.single, MAX_SINGLE, "a packet has no room for so much"),
            ("single", self.single, self.eager, "the limit of the eager protocol must not be below it"),
            ("eager", self.eager, self.mid_size, "the limit of the mid-size protocol must not be below it"),
        ];
        for (option, value, most, problem) in limits {
            if value > most {
                return Err(Error::BadConfig { option, value, problem });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_determines_the_number_of_repeated_packets() {
        let packets = |round_trip, link_rate| {
            let round_trip = Duration::from_nanos(round_trip);
            Config { round_trip, link_rate, ..Config::default() }.repeated_packets()
        };
        assert_eq!(Config::default().repeated_packets(), 7);
        assert_eq!([packets(0, 1), packets(u64::MAX, 0), packets(u64::MAX, u64::MAX)], [1, WINDOW, WINDOW]);
    }

    #[test]
    fn limits_that_are_not_in_order_are_refused() {
        let config = Config::default();
        assert_eq!(config.check(), Ok(()));
        for wrong in [
            Config { single: 225, ..config },
            Config { eager: 100, ..config },
            Config { mid_size: 1000, ..config },
        ] {
            assert!(matches!(wrong.check(), Err(Error::BadConfig { .. })));
        }
    }
}
