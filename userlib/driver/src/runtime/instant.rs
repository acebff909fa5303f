//! Points in time.

#[cfg(not(feature = "virtual-time"))]
pub use std::time::Instant;

#[cfg(feature = "virtual-time")]
pub use with_virtual_time::Instant;

#[cfg(feature = "virtual-time")]
mod with_virtual_time {
    use std::{ops::Add, sync::OnceLock, time::Duration};

    use super::super::simulation;

    /// A point on the clock of the thread that asks: the monotonic clock, or virtual time. Points
    /// of different clocks must not be compared.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub struct Instant(Duration);

    impl Instant {
        /// Returns the current time.
        pub fn now() -> Self {
            static START: OnceLock<std::time::Instant> = OnceLock::new();
            let time = simulation::with(|simulation| simulation.now());
            Self(time.unwrap_or_else(|| START.get_or_init(std::time::Instant::now).elapsed()))
        }

        /// Returns the time since this point.
        pub fn elapsed(&self) -> Duration {
            Self::now().saturating_duration_since(*self)
        }

        /// Returns the time from `earlier` to this point, or zero if `earlier` is later.
        pub fn saturating_duration_since(&self, earlier: Self) -> Duration {
            self.0.saturating_sub(earlier.0)
        }
    }

    impl Add<Duration> for Instant {
        type Output = Self;

        fn add(self, time: Duration) -> Self {
            Self(self.0.saturating_add(time))
        }
    }
}
