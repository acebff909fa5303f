//! The errors of building a fabric, and the reasons why it refuses packets.

use std::fmt::{self, Display, Formatter};

use thiserror::Error;

use super::{LinkId, MAX_CHANNELS, MAX_CREDITS, MAX_FUNCTIONS, MAX_PACKET, MAX_PORTS, Packet};
use crate::ids::FunctionId;

/// Reason why a fabric can't be built as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FabricError {
    /// The port has a link. A port holds one.
    #[error("port {port} of function {} has a link already", function.0)]
    PortTaken {
        /// Number of the function.
        function: FunctionId,
        /// Number of the port.
        port: u8,
    },
    /// The port number is not below [`MAX_PORTS`].
    #[error("port {port} of function {} is not below {MAX_PORTS}", function.0)]
    PortOutOfRange {
        /// Number of the function.
        function: FunctionId,
        /// Number of the port.
        port: u8,
    },
    /// The device has fewer ports: see [`crate::device::Device::ports`].
    #[error("function {} has no port {port}: {}", function.0, PortCount(*ports))]
    NoPort {
        /// Number of the function.
        function: FunctionId,
        /// Number of the port.
        port: u8,
        /// Number of ports that the device has.
        ports: u8,
    },
    /// The function's number is not below [`MAX_FUNCTIONS`].
    #[error("function {} is not below {MAX_FUNCTIONS}", function.0)]
    FunctionOutOfRange {
        /// Number of the function.
        function: FunctionId,
    },
    /// The number of virtual channels is not 1 to [`MAX_CHANNELS`].
    #[error("{count} virtual channels: a link has 1 to {MAX_CHANNELS}")]
    Channels {
        /// Number of channels requested.
        count: usize,
    },
    /// The number of credits of a virtual channel is not 1 to [`MAX_CREDITS`].
    #[error("{credits} credits: a virtual channel has 1 to {MAX_CREDITS}")]
    Credits {
        /// Number of credits requested.
        credits: u32,
    },
    /// The longest packet does not have 1 to [`MAX_PACKET`] bytes.
    #[error("packets of up to {bytes} bytes: the longest packet of a link has 1 to {MAX_PACKET}")]
    PacketSize {
        /// Number of bytes requested.
        bytes: usize,
    },
    /// [`super::LinkSpec::cut_through`] is 0 bytes.
    #[error("cut-through after 0 bytes: a packet's head has at least 1 byte")]
    CutThrough,
    /// The credit unit does not have 1 to [`MAX_PACKET`] bytes.
    #[error("credits of {bytes} bytes: a credit stands for 1 to {MAX_PACKET}")]
    CreditUnit {
        /// Number of bytes requested.
        bytes: u32,
    },
    /// The credits of a virtual channel are too few for the link's longest packet.
    #[error("{credits} credits are too few for a packet of {longest} bytes: that takes {needed}")]
    FewCredits {
        /// Number of credits requested.
        credits: u32,
        /// The longest packet in bytes.
        longest: usize,
        /// Number of credits that it takes.
        needed: u32,
    },
    /// The link does not exist.
    #[error("there is no link {}", link.0)]
    NoLink {
        /// Number of the link.
        link: LinkId,
    },
    /// The virtual channel does not exist.
    #[error("link {} has no virtual channel {channel}", link.0)]
    NoChannel {
        /// Number of the link.
        link: LinkId,
        /// Number of the virtual channel.
        channel: usize,
    },
}

/// The number of a device's ports, as messages name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortCount(pub u8);

impl Display for PortCount {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("it has no ports"),
            1 => f.write_str("it has one, port 0"),
            count => write!(f, "it has {count}, from 0 to {}", count - 1),
        }
    }
}

/// Reason why the fabric does not take a packet, or has no buffer for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The port has no link.
    #[error("the port has no link: connect one, or send through another port")]
    NoLink,
    /// The port's link has no virtual channel of this number.
    #[error("the link has no such virtual channel: give it more channels, or send on another")]
    NoChannel,
    /// The link is down. The device is called when it comes up
    /// ([`crate::device::Device::link_changed`]).
    #[error("the link is down: send when it is up again")]
    LinkDown,
    /// The virtual channel has no credit, or too few for this packet. The function is woken when
    /// enough have returned.
    #[error("the virtual channel has no credit: send when one has returned")]
    NoCredit,
    /// The packet is longer than the link permits ([`super::LinkSpec::max_packet`]), a buffer
    /// longer than any link of the fabric does, or a packet with its framing is longer than the
    /// buffers of a virtual channel whose credits count bytes.
    #[error("the packet is too long: split it into packets of at most {longest} bytes")]
    TooLong {
        /// The longest permitted packet in bytes.
        longest: u32,
    },
    /// As many packets exist as the pool's bound permits. Their owners must recycle some.
    #[error("the pool has no free packet: try again when others have arrived, or raise its bound")]
    PoolEmpty,
}

/// A packet that a port did not take. It belongs to the caller again.
#[derive(Debug, Error)]
#[error("a packet of {} bytes was not sent: {reason}", packet.len())]
pub struct Unsent {
    /// The packet.
    pub packet: Packet,
    /// Reason for the refusal.
    pub reason: Refusal,
}
