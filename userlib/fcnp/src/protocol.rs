//! The packets of FCNP: requests, acknowledgements, and the split of a message into packets.
//!
//! A packet with the irq bit in its header is a *control* packet and carries a [`Control`] in its
//! payload. A packet without it is 256 bytes of user data and nothing else. That bit is the
//! protocol's only cost in a data packet (FCNP paper, section IV).
//!
//! The machine is big-endian, and its two ends are compiled from one C struct. Here both ends may
//! be any software that maps the device, so the fields are defined as little-endian.
//!
//! # Points that the paper leaves open
//! - *The split* (see [`Split`]): "up to 240 bytes [...] such that the remaining amount of data is
//!   a multiple of 256 bytes". This has no solution for a size whose remainder by 256 is 241 to
//!   255. In that case 240 bytes go with the control packet, and the last data packet is padded. It
//!   is also padded when the I/O node agrees to less than a write request asks for: the request
//!   with its head has left before that is known.
//! - *Withdrawal*: the `size` of a RESET request is a [`Scope`]. The paper's only value is 0, which
//!   means everything.
//! - *RESET handshake*: the first bytes of `msgHead` carry a token that the reply returns. It
//!   distinguishes the reply from one to an earlier handshake. They also carry the generation of
//!   each side's core (see [`nicforge_hwi::tree::mirror::PRESENCE`]), so that each side knows
//!   exactly which process is its peer.
//! - *Abort*: a READ acknowledgement of size [`ABORT`] within the data of a read ends the data. The
//!   call on the I/O node was cancelled or ran out of time. A second READ acknowledgement cannot
//!   occur there otherwise.

use nicforge_hwi::tree::PAYLOAD;
use thiserror::Error;
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32},
};

/// Number of bytes of user data that a control packet has room for.
pub const HEAD: usize = 240;
/// The longest message in bytes. A longer buffer is used up to this size, and the call returns the
/// size used.
pub const MAX_MESSAGE: u32 = 0xffff_ff00;
/// Size in a READ acknowledgement that ends a read early.
pub const ABORT: u32 = u32::MAX;

/// The operation that a request asks for, or that an acknowledgement answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Kind {
    /// The compute core reads: data move from the I/O node to the core.
    Read = 0,
    /// The compute core writes: data move from the core to the I/O node.
    Write = 1,
    /// Earlier requests and transfers are void.
    Reset = 2,
}

/// `struct RequestReplyPacket` (FCNP paper, figure 5): the payload of a control packet.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RequestReplyPacket {
    /// The packet's [`Kind`].
    pub kind: U32,
    /// Address of the compute node.
    pub node: U32,
    /// Core of that node, 0 to 3.
    pub core: U16,
    /// Rank of that node in its pset.
    pub rank_in_pset: U16,
    /// Bytes requested or agreed on; a [`Scope`] in a RESET.
    pub size: U32,
    /// The first bytes of the message ([`Split::head`] of them).
    pub msg_head: [u8; HEAD],
}

const _: () = assert!(size_of::<RequestReplyPacket>() == PAYLOAD);

/// The identification of a compute core in packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CoreName {
    /// Address of the core's node.
    pub node: u32,
    /// Core of that node, 0 to 3.
    pub core: u16,
    /// Rank of the node in its pset.
    pub rank_in_pset: u16,
}

/// A control packet, decoded and owned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// The operation.
    pub kind: Kind,
    /// The compute core that sent the request.
    pub core: CoreName,
    /// Bytes requested or agreed on; a [`Scope`] in a RESET.
    pub size: u32,
    /// The first bytes of the message.
    pub head: [u8; HEAD],
}

/// The error of a control packet with an unknown type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a control packet has type {kind}; 0 to 2 are known")]
pub struct UnknownKind {
    /// The type found.
    pub kind: u32,
}

impl Control {
    /// Creates a control packet without a head.
    pub fn new(kind: Kind, core: CoreName, size: u32) -> Self {
        Self { kind, core, size, head: [0; HEAD] }
    }

    /// Adds the first bytes of a message, at most [`HEAD`] of them.
    pub fn with_head(mut self, head: &[u8]) -> Self {
        let len = head.len().min(HEAD);
        self.head[..len].copy_from_slice(&head[..len]);
        self
    }

    /// Decodes a payload.
    ///
    /// # Errors
    /// Returns [`UnknownKind`]. Every value of the other fields has a meaning. The caller must
    /// check that it fits the machine.
    pub fn decode(payload: &[u8; PAYLOAD]) -> Result<Self, UnknownKind> {
        let packet: RequestReplyPacket = zerocopy::transmute!(*payload);

        let kind = match packet.kind.get() {
            0 => Kind::Read,
            1 => Kind::Write,
            2 => Kind::Reset,
            kind => return Err(UnknownKind { kind }),
        };

        let core = CoreName {
            node: packet.node.get(),
            core: packet.core.get(),
            rank_in_pset: packet.rank_in_pset.get(),
        };

        Ok(Self { kind, core, size: packet.size.get(), head: packet.msg_head })
    }

    /// Encodes the packet as a payload.
    pub fn encode(&self) -> [u8; PAYLOAD] {
        let packet = RequestReplyPacket {
            kind: (self.kind as u32).into(),
            node: self.core.node.into(),
            core: self.core.core.into(),
            rank_in_pset: self.core.rank_in_pset.into(),
            size: self.size.into(),
            msg_head: self.head,
        };
        zerocopy::transmute!(packet)
    }
}

/// The range of a RESET, in the `size` of its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Scope {
    /// Both directions, and the identities of both processes. It is sent when a core is opened.
    All = 0,
    /// The outstanding or running read of the core is withdrawn.
    Read = 1,
    /// The outstanding or running write of the core is withdrawn.
    Write = 2,
}

impl Scope {
    /// Decodes the `size` of a RESET.
    pub const fn from_size(size: u32) -> Option<Self> {
        match size {
            0 => Some(Self::All),
            1 => Some(Self::Read),
            2 => Some(Self::Write),
            _ => None,
        }
    }

    /// Returns whether the range includes reads.
    pub const fn has_read(self) -> bool {
        !matches!(self, Self::Write)
    }

    /// Returns whether the range includes writes.
    pub const fn has_write(self) -> bool {
        !matches!(self, Self::Read)
    }
}

/// The first bytes of `msgHead` in a RESET and in its acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ResetHead {
    /// A value that the compute core chooses and the acknowledgement returns.
    pub token: U32,
    /// Number of the sender's attachment on its node.
    pub core: u8,
    /// Generation of that attachment.
    pub generation: u8,
    /// Always 0.
    pub reserved: U16,
}

impl ResetHead {
    /// Decodes the head of a control packet.
    pub fn of(control: &Control) -> Self {
        let mut bytes = [0; size_of::<Self>()];
        bytes.copy_from_slice(&control.head[..size_of::<Self>()]);
        zerocopy::transmute!(bytes)
    }
}

/// The split of a message into packets.
///
/// The first `head` bytes travel in the request (write) or in the acknowledgement (read). The rest
/// travels in `packets` data packets of 256 bytes. The last of these is padded with zeros unless it
/// is full.
///
/// Both sides compute the split from the size requested and the size agreed on. For a read, the
/// size agreed on is both of these sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// Number of the message's bytes in the control packet.
    pub head: usize,
    /// Number of data packets.
    pub packets: usize,
}

impl Split {
    /// Returns how many bytes of a message of `size` bytes its control packet carries: the
    /// remainder by 256, at most [`HEAD`].
    pub const fn head_of(size: u32) -> usize {
        let remainder = size as usize % PAYLOAD;
        if remainder < HEAD { remainder } else { HEAD }
    }

    /// Returns the split of a message of which `agreed` bytes are sent. Its control packet has
    /// carried the head of `requested` bytes. An `agreed` above `requested` counts as `requested`.
    pub const fn new(requested: u32, agreed: u32) -> Self {
        let agreed = if agreed < requested { agreed as usize } else { requested as usize };
        let head = Self::head_of(requested);
        let head = if head < agreed { head } else { agreed };
        Self { head, packets: (agreed - head).div_ceil(PAYLOAD) }
    }
}

/// Returns the size of a buffer as a request states it.
pub(crate) fn request_size(len: usize) -> u32 {
    u32::try_from(len).map_or(MAX_MESSAGE, |len| len.min(MAX_MESSAGE))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CORE: CoreName = CoreName { node: 0x0102_0304, core: 3, rank_in_pset: 0x0506 };

    #[test]
    fn control_packet_has_the_papers_layout_in_little_endian() {
        let payload = Control::new(Kind::Reset, CORE, 0x0708_090a).with_head(&[0xaa; HEAD]).encode();
        assert_eq!(payload[..16], [2, 0, 0, 0, 4, 3, 2, 1, 3, 0, 6, 5, 0x0a, 9, 8, 7]);
        assert_eq!(payload[16..], [0xaa; HEAD]);
    }

    #[test]
    fn control_packet_of_unknown_type_is_refused_with_the_type() {
        let mut payload = [0; PAYLOAD];
        payload[0] = 3;
        assert_eq!(Control::decode(&payload), Err(UnknownKind { kind: 3 }));
    }

    #[test]
    fn head_longer_than_its_field_is_truncated() {
        assert_eq!(Control::new(Kind::Read, CORE, 0).with_head(&[1; 300]).head, [1; HEAD]);
    }

    #[test]
    fn split_of_known_sizes() {
        let split = |size| Split::new(size, size);
        assert_eq!(split(0), Split { head: 0, packets: 0 });
        assert_eq!(split(240), Split { head: 240, packets: 0 });
        assert_eq!(split(241), Split { head: 240, packets: 1 });
        assert_eq!(split(255), Split { head: 240, packets: 1 });
        assert_eq!(split(256), Split { head: 0, packets: 1 });
        assert_eq!(split(65_536 + 16), Split { head: 16, packets: 256 });
        assert_eq!(split(MAX_MESSAGE), Split { head: 0, packets: MAX_MESSAGE as usize / 256 });
    }

    #[test]
    fn buffer_beyond_the_longest_message_is_requested_up_to_it() {
        assert_eq!(request_size(usize::MAX), MAX_MESSAGE);
        assert_eq!(request_size(u32::MAX as usize), MAX_MESSAGE);
        assert_eq!(request_size(17), 17);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn decode_returns_the_encoded_packet(
            kind in prop_oneof![Just(Kind::Read), Just(Kind::Write), Just(Kind::Reset)],
            node: u32, core: u16, rank_in_pset: u16, size: u32, head in prop::collection::vec(any::<u8>(), HEAD),
        ) {
            let control = Control::new(kind, CoreName { node, core, rank_in_pset }, size).with_head(&head);
            prop_assert_eq!(Control::decode(&control.encode()), Ok(control));
        }

        #[test]
        fn split_covers_the_message_and_pads_less_than_a_packet(requested in 0..=MAX_MESSAGE, part in 0u64..=1000) {
            let agreed = (u64::from(requested) * part / 1000) as u32;
            let split = Split::new(requested, agreed);
            let available = split.head + split.packets * PAYLOAD;
            prop_assert!(split.head <= HEAD.min(requested as usize));
            prop_assert!(available >= agreed as usize && available - (agreed as usize) < PAYLOAD);
        }

        #[test]
        fn split_pads_nothing_when_all_is_agreed_and_a_head_can_take_the_remainder(size in 0..=MAX_MESSAGE) {
            let split = Split::new(size, size);
            let exact = split.head + split.packets * PAYLOAD == size as usize;
            prop_assert_eq!(exact, size as usize % PAYLOAD <= HEAD);
        }
    }
}
