//! Description of a router.

use nicforge_core::fabric::LinkSpec;
use thiserror::Error;

/// The largest number of inputs of a router: virtual channels of all ports, and injection FIFOs.
pub const MAX_INPUTS: usize = u64::BITS as usize;
/// The largest number of ports of a router.
pub const MAX_PORTS: u8 = 64;
/// The largest number of injection FIFOs, and of reception FIFOs.
pub const MAX_FIFOS: usize = 64;
/// Number of priorities.
pub const PRIORITIES: usize = 4;

/// Capacity of a FIFO between a router and its device. Both bounds hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FifoSpec {
    /// Bytes, framing included.
    pub bytes: u32,
    /// Packets.
    pub packets: u16,
    /// Priority of the packets of an injection FIFO, from 0, the highest. Reception FIFOs have
    /// none.
    pub priority: u8,
}

/// Description of a router. All its links must be of one kind.
#[derive(Clone, Debug)]
pub struct RouterSpec {
    /// Number of ports that the router serves, from port 0.
    pub ports: u8,
    /// Kind of the links at these ports.
    pub link: LinkSpec,
    /// Largest framing of a packet in bytes.
    pub framing: u32,
    /// Virtual channels that the router serves, from 0, with the priority of each from 0, the
    /// highest. The device serves the others itself.
    pub priorities: Vec<u8>,
    /// Virtual channels whose rings have the bubble rule, one bit for each.
    pub bubble_vcs: u16,
    /// Number of packets from links that an output sends between two injected packets of the same
    /// priority, while both are waiting. At least 1.
    pub through_ratio: u8,
    /// Injection FIFOs.
    pub injection: Vec<FifoSpec>,
    /// Reception FIFOs.
    pub reception: Vec<FifoSpec>,
}

/// Reasons why a router is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RouterError {
    /// Too few or too many ports.
    #[error("a router with {ports} ports: choose 1 to {MAX_PORTS}")]
    Ports {
        /// Number of ports.
        ports: u8,
    },
    /// The router serves no virtual channel, or more than the link has.
    #[error("a router of {served} virtual channels on links of {channels}: choose 1 to {channels}")]
    Channels {
        /// Number of virtual channels that the router serves.
        served: usize,
        /// Number of virtual channels of a link.
        channels: usize,
    },
    /// Too many inputs.
    #[error("{inputs} virtual channels and injection FIFOs: a router has at most {MAX_INPUTS}")]
    Inputs {
        /// Number of inputs.
        inputs: usize,
    },
    /// Too many injection or reception FIFOs.
    #[error("{fifos} injection or reception FIFOs: a router has at most {MAX_FIFOS} of each")]
    Fifos {
        /// Number of FIFOs.
        fifos: usize,
    },
    /// A priority that does not exist.
    #[error("priority {priority}: choose 0, the highest, to {}", PRIORITIES - 1)]
    Priority {
        /// The priority.
        priority: u8,
    },
    /// The through-to-injection ratio is 0.
    #[error("a through-to-injection ratio of 0: choose at least 1")]
    Ratio,
    /// A FIFO is too small for the longest packet.
    #[error("a FIFO of {bytes} bytes and {packets} packets: it must hold one packet of {longest} bytes")]
    SmallFifo {
        /// Bytes of the FIFO.
        bytes: u32,
        /// Packets of the FIFO.
        packets: u16,
        /// Bytes of the longest packet with its framing.
        longest: u32,
    },
    /// The buffers of a virtual channel are too small for the longest packets.
    #[error(
        "virtual channel {vc} has {credits} credits: give it {needed}, for {packets} packets of the longest kind"
    )]
    SmallBuffer {
        /// The virtual channel.
        vc: usize,
        /// Its credits.
        credits: u32,
        /// Packets of the longest kind that it must hold: 1, or 2 with the bubble rule.
        packets: u32,
        /// The credits that these need.
        needed: u32,
    },
}

impl RouterSpec {
    /// Returns the bytes of the longest packet, with its framing.
    pub(super) fn longest_bytes(&self) -> u32 {
        (self.link.max_packet as u32).saturating_add(self.framing)
    }

    /// Returns the credits that the longest packet takes.
    pub(super) fn longest_credits(&self) -> u32 {
        self.link.credit_unit.needed(self.longest_bytes().into())
    }

    /// Checks the values.
    pub(super) fn check(&self) -> Result<(), RouterError> {
        if self.ports == 0 || self.ports > MAX_PORTS {
            return Err(RouterError::Ports { ports: self.ports });
        }

        let (served, channels) = (self.priorities.len(), self.link.credits.len());
        if served == 0 || served > channels {
            return Err(RouterError::Channels { served, channels });
        }

        let fifos = self.injection.len().max(self.reception.len());
        if fifos > MAX_FIFOS {
            return Err(RouterError::Fifos { fifos });
        }
        let inputs = usize::from(self.ports) * served + self.injection.len();
        if inputs > MAX_INPUTS {
            return Err(RouterError::Inputs { inputs });
        }

        if self.through_ratio == 0 {
            return Err(RouterError::Ratio);
        }
        let of_fifos = self.injection.iter().map(|fifo| fifo.priority);
        let mut priorities = self.priorities.iter().copied().chain(of_fifos);
        if let Some(priority) = priorities.find(|&priority| usize::from(priority) >= PRIORITIES) {
            return Err(RouterError::Priority { priority });
        }

        self.check_sizes()
    }

    /// Checks that the longest packet fits into FIFOs and buffers.
    fn check_sizes(&self) -> Result<(), RouterError> {
        let longest = self.longest_bytes();
        for &FifoSpec { bytes, packets, .. } in self.injection.iter().chain(&self.reception) {
            if bytes < longest || packets == 0 {
                return Err(RouterError::SmallFifo { bytes, packets, longest });
            }
        }

        for (vc, &credits) in self.link.credits.iter().take(self.priorities.len()).enumerate() {
            let packets = if self.bubble_vcs >> vc & 1 == 1 { 2 } else { 1 };
            let needed = self.longest_credits().saturating_mul(packets);
            if credits < needed {
                return Err(RouterError::SmallBuffer { vc, credits, packets, needed });
            }
        }
        Ok(())
    }
}
