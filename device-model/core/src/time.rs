//! Time as the machine sees it.

use std::ops::Add;

/// Nanoseconds since the machine was built. Who drives the machine supplies it; it never goes
/// backwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The start of time.
    pub const ZERO: Self = Self(0);
    /// Later than anything.
    pub const NEVER: Self = Self(u64::MAX);

    /// This time and `nanoseconds` more, at most [`Nanos::NEVER`].
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
