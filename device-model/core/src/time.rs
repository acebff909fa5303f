//! The machine's time.

use std::ops::Add;

/// Nanoseconds since the machine was built. The owner of the machine supplies it; it never
/// decreases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The time at which the machine was built.
    pub const ZERO: Self = Self(0);
    /// A time later than every other.
    pub const NEVER: Self = Self(u64::MAX);

    /// Returns this time plus `nanoseconds`, at most [`Nanos::NEVER`].
    pub const fn after(self, nanoseconds: u64) -> Self {
        Self(self.0.saturating_add(nanoseconds))
    }
}

impl Add<u64> for Nanos {
    type Output = Self;
    fn add(self, nanoseconds: u64) -> Self {
        self.after(nanoseconds)
    }
}
