//! Configuration of a transport.

use std::time::Duration;

use crate::Error;

/// Run-time parameters. They concern only their own rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Packets that each other rank may send ahead of this rank's reads, 1 to 4,096; 64 by default.
    /// Fewer when the reception FIFO can't be long enough.
    pub window: u32,
    /// Bytes of a get, 4,096 to 8 MiB, a multiple of 4,096; 65,536 by default.
    pub get_bytes: usize,
    /// Gets in flight at a time, 1 to 32; 8 by default. They take this number times
    /// [`Config::get_bytes`] of memory. Gets from one rank have half of them at most.
    pub gets: usize,
    /// Time after which a get that waits for its data no longer counts as in flight, so that
    /// another one can start; 100 ms by default. It keeps its memory. Gets from one rank still have
    /// no more than half of [`Config::gets`].
    pub get_delay: Duration,
    /// Bytes of the memory for sources that stays allocated: a power of two of 8,192 or more; 8
    /// MiB by default. Unused pages take no memory. Where the kernel has no such piece of memory,
    /// the size is halved until it fits, down to 64 KiB.
    pub staging: usize,
    /// Bytes that longer sources may take beside it, all together; 1 GiB by default. A single
    /// source may be longer.
    pub longest_staging: usize,
    /// Time after which a rank whose unit does not answer is gone, at least 100 ms; 10 s by
    /// default. The unit answers without the rank's process. So it may be short, but not as short
    /// as the time for which a device's engine may wait for a processor.
    pub patience: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            window: 64,
            get_bytes: 65_536,
            gets: 8,
            get_delay: Duration::from_millis(100),
            staging: 8 << 20,
            longest_staging: 1 << 30,
            patience: Duration::from_secs(10),
        }
    }
}

/// Greatest number of gets of a rank in flight.
pub(crate) const MAX_GETS: usize = 32;

impl Config {
    /// Checks the ranges of the parameters.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let bad = |what, value, rule| Err(Error::BadConfig { what, value, rule });
        if !(1..=4096).contains(&self.window) {
            return bad("window", self.window as usize, "1 to 4096");
        }

        if !(4096..=8 << 20).contains(&self.get_bytes) || !self.get_bytes.is_multiple_of(4096) {
            return bad("get_bytes", self.get_bytes, "a multiple of 4096, up to 8 MiB");
        }

        if !(1..=MAX_GETS).contains(&self.gets) {
            return bad("gets", self.gets, "1 to 32");
        }

        if !self.staging.is_power_of_two() || !(8192..=1 << 30).contains(&self.staging) {
            return bad("staging", self.staging, "a power of two, 8192 to 1 GiB");
        }

        if self.patience < Duration::from_millis(100) {
            return bad("patience in ms", self.patience.as_millis() as usize, "at least 100");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, reason = "tests")]

    use super::*;

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        let good = Config::default();
        assert_eq!(good.check(), Ok(()));

        let refused = |config: Config| match config.check() {
            Err(Error::BadConfig { what, .. }) => what,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(Config { window: 0, ..good }), "window");
        assert_eq!(refused(Config { get_bytes: 5000, ..good }), "get_bytes");
        assert_eq!(refused(Config { gets: 33, ..good }), "gets");
        assert_eq!(refused(Config { staging: 10_000, ..good }), "staging");
        assert_eq!(refused(Config { patience: Duration::ZERO, ..good }), "patience in ms");
    }
}
