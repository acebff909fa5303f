//! Time of the software, in picoseconds.

use std::{
    ops::{Add, AddAssign, Mul},
    time::Duration,
};

use nicforge_core::time::Nanos;

/// Picoseconds: a time since the start of a simulation, or a length of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Picos(pub u64);

impl Picos {
    /// The start of a simulation.
    pub const ZERO: Self = Self(0);
    /// A time later than every other.
    pub const NEVER: Self = Self(u64::MAX);

    /// Returns a number of nanoseconds.
    pub const fn nanos(nanoseconds: u64) -> Self {
        Self(nanoseconds.saturating_mul(1_000))
    }

    /// Returns a number of nanoseconds with a fraction, rounded to a picosecond.
    pub fn of_nanos(nanoseconds: f64) -> Self {
        Self((nanoseconds * 1e3).round() as u64)
    }

    /// Returns the length of time in nanoseconds.
    pub fn as_nanos(self) -> f64 {
        self.0 as f64 / 1e3
    }

    /// Returns the length of time in seconds.
    pub fn as_seconds(self) -> f64 {
        self.0 as f64 / 1e12
    }

    /// Returns the machine's time at which an event of this time takes effect.
    pub(super) const fn round_up(self) -> Nanos {
        Nanos(self.0.div_ceil(1_000))
    }

    /// Returns the time from `earlier`, or zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl From<Nanos> for Picos {
    fn from(time: Nanos) -> Self {
        Self::nanos(time.0)
    }
}

impl From<Duration> for Picos {
    fn from(time: Duration) -> Self {
        Self(u64::try_from(time.as_nanos().saturating_mul(1_000)).unwrap_or(u64::MAX))
    }
}

impl From<Picos> for Duration {
    fn from(time: Picos) -> Self {
        Self::from_nanos(time.0 / 1_000)
    }
}

impl Add for Picos {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Picos {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Mul<u64> for Picos {
    type Output = Self;

    fn mul(self, times: u64) -> Self {
        Self(self.0.saturating_mul(times))
    }
}

impl std::iter::Sum for Picos {
    fn sum<I: Iterator<Item = Self>>(times: I) -> Self {
        times.fold(Self::ZERO, Add::add)
    }
}
