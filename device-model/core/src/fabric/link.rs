//! Links: their properties and statistics.

use super::{DEFAULT_MAX_PACKET, FabricError, MAX_PACKET};

/// Largest number of virtual channels of a link.
pub const MAX_CHANNELS: usize = 16;
/// Largest number of credits of a virtual channel.
pub const MAX_CREDITS: u32 = 4096;

/// Number of a link in its fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// Direction of a link, named after the ends given to [`super::Fabric::connect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the first end to the second.
    Forward,
    /// From the second end to the first.
    Backward,
}

/// Properties of a link, the same in both directions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkSpec {
    /// Time from the end of a transmission to the packet's arrival, in nanoseconds. A credit takes
    /// the same time back.
    pub delay: u64,
    /// Bandwidth of all virtual channels together, in bits per second. 0 means infinite.
    pub bits_per_second: u64,
    /// Credits of each virtual channel, 1 to [`MAX_CREDITS`]: the buffers at its receiving end, in
    /// units of [`LinkSpec::credit_unit`].
    pub credits: Vec<u32>,
    /// Buffer that a credit stands for.
    pub credit_unit: CreditUnit,
    /// The longest packet in bytes without framing, 1 to [`super::MAX_PACKET`]. A longer one is
    /// refused.
    pub max_packet: usize,
    /// Cut-through: the bytes of a packet, with its framing, after which a router may forward it. A
    /// device can take a packet only as a whole. `None` means store and forward: routers wait for
    /// the whole packet, too.
    pub cut_through: Option<u32>,
}

/// The amount of buffer that a credit stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CreditUnit {
    /// A packet of any length.
    #[default]
    Packets,
    /// This many bytes, 1 to [`super::MAX_PACKET`]. A packet takes as many credits as its content
    /// and framing need, and at least one.
    Bytes(u32),
}

impl CreditUnit {
    /// Returns the number of credits that a packet takes whose content and framing have `bytes`
    /// bytes.
    pub fn needed(self, bytes: u64) -> u32 {
        match self {
            Self::Packets => 1,
            Self::Bytes(unit) => {
                let credits = bytes.div_ceil(u64::from(unit.max(1)));
                u32::try_from(credits.max(1)).unwrap_or(u32::MAX)
            }
        }
    }
}

impl LinkSpec {
    /// Returns a link without delay and of infinite bandwidth. It has `channels` virtual channels
    /// with `credits` packets of buffer each. Its packets have up to `max_packet` bytes.
    pub fn new(channels: usize, credits: u32, max_packet: usize) -> Self {
        Self { credits: vec![credits; channels], max_packet, ..Self::default() }
    }

    /// Checks the values.
    ///
    /// # Errors
    /// [`FabricError::Channels`], [`FabricError::Credits`], [`FabricError::PacketSize`],
    /// [`FabricError::CutThrough`], [`FabricError::CreditUnit`] and [`FabricError::FewCredits`].
    pub fn check(&self) -> Result<(), FabricError> {
        if self.credits.is_empty() || self.credits.len() > MAX_CHANNELS {
            return Err(FabricError::Channels { count: self.credits.len() });
        }
        if let Some(&credits) = self.credits.iter().find(|&&credits| credits == 0 || credits > MAX_CREDITS) {
            return Err(FabricError::Credits { credits });
        }

        check_packet_size(self.max_packet)?;
        if self.cut_through == Some(0) {
            return Err(FabricError::CutThrough);
        }

        let CreditUnit::Bytes(bytes) = self.credit_unit else { return Ok(()) };
        if bytes == 0 || bytes as usize > MAX_PACKET {
            return Err(FabricError::CreditUnit { bytes });
        }

        let needed = self.credit_unit.needed(self.max_packet as u64);
        match self.credits.iter().find(|&&credits| credits < needed) {
            Some(&credits) => Err(FabricError::FewCredits { credits, longest: self.max_packet, needed }),
            None => Ok(()),
        }
    }
}

/// Checks the length of a link's longest packet, in bytes.
pub(super) fn check_packet_size(bytes: usize) -> Result<(), FabricError> {
    if (1..=MAX_PACKET).contains(&bytes) { Ok(()) } else { Err(FabricError::PacketSize { bytes }) }
}

impl Default for LinkSpec {
    /// Returns two virtual channels of 4 packets of at most [`DEFAULT_MAX_PACKET`] bytes, without
    /// delay, of infinite bandwidth.
    fn default() -> Self {
        Self {
            delay: 0,
            bits_per_second: 0,
            credits: vec![4, 4],
            credit_unit: CreditUnit::Packets,
            max_packet: DEFAULT_MAX_PACKET,
            cut_through: None,
        }
    }
}

/// Statistics of a virtual channel in one direction of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneStats {
    /// Packets sent.
    pub packets: u64,
    /// Bytes of these packets on the wire, without retransmissions.
    pub bytes: u64,
    /// Stalls: times that a sender found no credit. The next stall counts only after a credit has
    /// returned.
    pub stalls: u64,
    /// Transmissions repeated because of a checksum error: of the corrupt packet, and of the
    /// packets that were sent after it until the receiver's request arrived.
    pub retransmissions: u64,
}
