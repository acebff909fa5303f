//! Parts of a NIC that do one piece of work after another, each of which takes cycles of a clock.
//!
//! A DMA engine or a unit that takes messages is such a [`Server`]. It begins its next piece of
//! work when it is idle, and the NIC keeps the work until then.

use nicforge_core::time::Nanos;

/// Fractional bits of a time in 2^-32 ns.
const FRACTION: u32 = 32;
/// A nanosecond in 2^-32 ns.
const NANOSECOND: u128 = 1 << FRACTION;

/// A clock. The cycles of the default take no time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clock {
    /// Time of a cycle in 2^-32 ns.
    cycle: u64,
}

impl Clock {
    /// Returns a clock of `mhz` megahertz. The cycles of a clock of 0 take no time.
    pub fn of_mhz(mhz: u32) -> Self {
        let cycle = (1000u64 << FRACTION).checked_div(mhz.into());
        Self { cycle: cycle.unwrap_or(0) }
    }

    /// Returns whether cycles take no time.
    #[inline]
    pub fn is_instant(self) -> bool {
        self.cycle == 0
    }

    /// Returns the time of some cycles in nanoseconds, rounded up.
    pub fn nanoseconds(self, cycles: u32) -> u64 {
        rounded_up(self.time_of(cycles)).0
    }

    /// Returns the time of some cycles in 2^-32 ns.
    fn time_of(self, cycles: u32) -> u128 {
        u128::from(self.cycle) * u128::from(cycles)
    }
}

/// A part that does one piece of work after another. It is idle at first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Server {
    /// End of the last piece of work in 2^-32 ns.
    busy_until: u128,
}

impl Server {
    /// Returns the time from which the server is idle, which can be in the past.
    #[inline]
    pub fn idle_at(&self) -> Nanos {
        rounded_up(self.busy_until)
    }

    /// Adds a piece of work of some cycles at `now`.
    ///
    /// It starts at the end of the last piece, or at `now` if that is later. `now` is in whole
    /// nanoseconds, and is up to one later than the exact end of the last piece for work that
    /// waited for it. Such work starts at the exact end, so that fractions of a nanosecond add up.
    #[inline]
    pub fn work(&mut self, now: Nanos, clock: Clock, cycles: u32) {
        if clock.is_instant() {
            return;
        }

        let now = u128::from(now.0) << FRACTION;
        let start = if self.busy_until + NANOSECOND > now { self.busy_until } else { now };
        self.busy_until = start + clock.time_of(cycles);
    }
}

/// Returns a time of 2^-32 ns in nanoseconds, rounded up.
#[inline]
fn rounded_up(time: u128) -> Nanos {
    Nanos(u64::try_from((time + (NANOSECOND - 1)) >> FRACTION).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_of_a_clock_of_0_hertz_take_no_time() {
        let mut server = Server::default();
        server.work(Nanos(7), Clock::of_mhz(0), 1000);

        assert!(Clock::of_mhz(0).is_instant() && Clock::default().is_instant());
        assert_eq!(server.idle_at(), Nanos::ZERO);
    }

    #[test]
    fn work_that_waits_adds_up_to_the_cycles_of_the_clock() {
        let (clock, mut server) = (Clock::of_mhz(156), Server::default());
        let mut now = Nanos(1000);

        for _ in 0..156_000 {
            server.work(now, clock, 16);
            now = server.idle_at();
        }

        // 156,000 times 16 cycles of 156 MHz are 16 ms.
        assert!(now.0.abs_diff(1000 + 16_000_000) <= 1, "{now:?}");
    }

    #[test]
    fn an_idle_server_begins_at_once() {
        let (clock, mut server) = (Clock::of_mhz(1000), Server::default());

        server.work(Nanos(10), clock, 5);
        assert_eq!(server.idle_at(), Nanos(15));
        server.work(Nanos(100), clock, 5);
        assert_eq!(server.idle_at(), Nanos(105));
        server.work(Nanos(101), clock, 5);
        assert_eq!(server.idle_at(), Nanos(110));
    }

    #[test]
    fn cycles_are_rounded_up_to_nanoseconds() {
        assert_eq!([156, 117, 0].map(|mhz| Clock::of_mhz(mhz).nanoseconds(16)), [103, 137, 0]);
    }
}
