//! Configuration of a transport.

use crate::Error;

/// Run-time parameters. [`Config::window`] should be the same on all ranks; the others concern only
/// their own rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// VELO credits of a peer: messages in flight or unread; 64 by default. Fewer when the receive
    /// ring can't be long enough.
    pub window: u32,
    /// Bytes of a get, 4,096 to 8 MiB, a multiple of 4,096; 65,536 by default.
    pub get_bytes: usize,
    /// Gets in flight at a time, 1 to 32; 8 by default. They take this number times
    /// [`Config::get_bytes`] of memory. Gets from one rank have half of them at most.
    pub gets: usize,
    /// Bytes of the memory for sources that stays registered: a power of two of 8,192 or more; 8
    /// MiB by default. Unused pages take no memory. A kernel may have no such piece of memory;
    /// without an IOMMU it has 4 MiB at most. The size is then halved until it fits, down to 64
    /// KiB.
    pub staging: usize,
    /// Bytes that longer sources may take beside it, all together; 1 GiB by default. A single
    /// source may be longer.
    pub longest_staging: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { window: 64, get_bytes: 65_536, gets: 8, staging: 8 << 20, longest_staging: 1 << 30 }
    }
}

/// Greatest number of gets in flight: half of the commands that a card accepts.
pub(crate) const MAX_GETS: usize = nicforge_rma::MAX_COMMANDS / 2;

/// Bytes of a page, the unit of registration.
const PAGE: usize = 4096;
/// Greatest size of the staging memory in bytes, which no machine reaches.
const MAX_STAGING: usize = 1 << 40;

impl Config {
    /// Checks the ranges of the parameters.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let refuse = |what, value, rule| Err(Error::BadConfig { what, value, rule });
        if self.window == 0 {
            return refuse("window", 0, "at least 1");
        }

        let longest = nicforge_rma::MAX_LENGTH as usize;
        if !(PAGE..=longest).contains(&self.get_bytes) || !self.get_bytes.is_multiple_of(PAGE) {
            return refuse("get_bytes", self.get_bytes, "a multiple of 4096, up to 8 MiB");
        }

        if !(1..=MAX_GETS).contains(&self.gets) {
            return refuse("gets", self.gets, "1 to 32");
        }

        if !self.staging.is_power_of_two() || !(2 * PAGE..=MAX_STAGING).contains(&self.staging) {
            return refuse("staging", self.staging, "a power of two, 8192 or more");
        }

        Ok(())
    }
}
