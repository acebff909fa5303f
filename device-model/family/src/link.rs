//! The values that machine files give for links.

use nicforge_core::fabric::{LinkSpec, MAX_PACKET};
use serde::Deserialize;
use toml::Spanned;

use crate::{SectionError, check_range, refuse_value};

/// The longest delay of a link in nanoseconds.
const MAX_DELAY: u64 = 1_000_000_000;
/// Maximum number of packets of buffer that a machine file can give a virtual channel.
const MAX_CREDITS: u32 = 1024;
/// The highest bandwidth in Gb/s. The number of bits fits a `u64`.
const MAX_RATE: f64 = 10_000.0;
/// The lowest bandwidth in Gb/s: one bit a second.
const MIN_RATE: f64 = 1e-9;

/// The values of a machine file for links: the subtable `[FAMILY.link]` of a family's section.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSection {
    /// Propagation delay in nanoseconds, 0 to one second.
    #[serde(default)]
    pub delay_ns: Option<Spanned<u64>>,
    /// Bandwidth in Gb/s: 1e-9 to 10,000, or 0 for no limit.
    #[serde(default)]
    pub gbit_s: Option<Spanned<f64>>,
    /// Packets of buffer at the receiving end of each virtual channel, 1 to 1024.
    #[serde(default)]
    pub credits: Option<Spanned<u32>>,
    /// Cut-through: bytes of a packet after which a router may forward it, 1 to 65536. Without it,
    /// routers wait for the whole packet.
    #[serde(default)]
    pub cut_through_bytes: Option<Spanned<u32>>,
}

impl LinkSection {
    /// Returns a link with the values of the file, and with those of `default` where the file has
    /// none.
    ///
    /// # Errors
    /// The first value that is out of its range.
    pub fn with_defaults(&self, default: LinkSpec) -> Result<LinkSpec, SectionError> {
        let mut link = default;

        if let Some(delay) = &self.delay_ns {
            link.delay = check_range("delay_ns", delay, 0, MAX_DELAY)?;
        }
        if let Some(credits) = &self.credits {
            let credits = check_range("credits", credits, 1, MAX_CREDITS)?;
            link.credits.fill(credits);
        }

        if let Some(bytes) = &self.cut_through_bytes {
            let bytes = check_range("cut_through_bytes", bytes, 1, MAX_PACKET as u32)?;
            link.cut_through = Some(bytes);
        }

        if let Some(rate) = &self.gbit_s {
            let gbit_s = *rate.as_ref();
            if gbit_s != 0.0 && !(MIN_RATE..=MAX_RATE).contains(&gbit_s) {
                return Err(refuse_value("gbit_s", rate, "0 (no limit), or 1e-9 to 10000"));
            }
            link.bits_per_second = (gbit_s * 1e9).round() as u64;
        }

        Ok(link)
    }
}
