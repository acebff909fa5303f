//! A message that is sent, and the packetizer.

use std::ops::Range;

use nicforge_hwi::torus::QUAD;

use super::{
    Buffer, Config, MatchInformation,
    carving::Carving,
    connection::ConnectionIndex,
    wire::{ANNOUNCEMENT, Details, INFORMATION, Kind, MessageId, Protocol},
};

/// The protocol of a message, by its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// The whole message is in one packet.
    Single,
    /// It has several packets.
    Several(Protocol),
}

impl Plan {
    /// Returns the plan for a message of a length.
    pub(super) fn of(config: &Config, length: usize) -> Self {
        if length <= config.single {
            Plan::Single
        } else if length <= config.eager {
            Plan::Several(Protocol::Eager)
        } else if length <= config.mid_size {
            Plan::Several(Protocol::MidSize)
        } else {
            Plan::Several(Protocol::Rendezvous)
        }
    }
}

/// The state of a message that is sent. `quads` is the number of the body's quads that were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Its next packet needs a credit. `packets` of them were sent.
    Unsolicited { packets: u32, quads: u32 },
    /// The receiver must acknowledge it.
    Waiting { quads: u32 },
    /// The receiver has acknowledged it. Its ends may have to be sent first.
    Solicited { ends_due: bool, quads: u32 },
    /// All packets were sent.
    Sent,
}

/// A message that is sent.
#[derive(Debug)]
pub(super) struct OutgoingMessage {
    pub(super) connection: ConnectionIndex,
    /// Its id, once its first packet was sent.
    pub(super) id: Option<MessageId>,
    pub(super) information: MatchInformation,
    pub(super) buffer: Buffer,
    pub(super) plan: Plan,
    pub(super) stage: Stage,
    pub(super) carving: Carving,
    /// The next message of the connection, or [`NONE`].
    pub(super) next: u32,
}

impl OutgoingMessage {
    /// Returns the kind of the next packet, if one can be sent.
    #[inline]
    pub(super) fn next_kind(&self) -> Option<Kind> {
        match (self.stage, self.plan) {
            (Stage::Waiting { .. } | Stage::Sent, _) => None,
            (Stage::Solicited { ends_due: true, .. }, _) => Some(Kind::Ends),
            (Stage::Solicited { .. }, _) => Some(Kind::Data),
            (_, Plan::Single) => Some(Kind::Single),
            (_, Plan::Several(Protocol::Rendezvous)) => Some(Kind::Request),
            (Stage::Unsolicited { packets: 0, .. }, _) => Some(Kind::Lead),
            (_, Plan::Several(Protocol::Eager)) => Some(Kind::Eager),
            (_, Plan::Several(Protocol::MidSize)) => Some(Kind::Repeat),
        }
    }

    /// Returns the number of quads of the body that were sent.
    #[inline]
    pub(super) fn quads(&self) -> u32 {
        match self.stage {
            Stage::Unsolicited { quads, .. } | Stage::Waiting { quads } | Stage::Solicited { quads, .. } => {
                quads
            }
            Stage::Sent => 0,
        }
    }

    /// Returns the description of the message in its packets, beside the match information.
    pub(super) fn details(&self) -> Details {
        let protocol = match self.plan {
            Plan::Single => Protocol::Eager,
            Plan::Several(protocol) => protocol,
        };
        Details::new(self.buffer.len(), self.carving.head(), protocol)
    }

    /// Returns a copy of the message's ends, padded with zeros.
    pub(super) fn ends(&self) -> [u8; 2 * QUAD] {
        let mut ends = [0; 2 * QUAD];
        let head = self.buffer.pieces(self.carving.head_range());
        let bytes = head.chain(self.buffer.pieces(self.carving.tail_range())).flatten();
        ends.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        ends
    }

    /// Returns the part of the message that a packet has after its prefix.
    #[inline]
    pub(super) fn part(&self, kind: Kind) -> Range<usize> {
        match kind {
            Kind::Single => 0..self.buffer.len(),
            Kind::Lead => self.carving.part(0, self.carving.lead_prefix()),
            Kind::Repeat => self.carving.part(self.quads(), ANNOUNCEMENT),
            Kind::Eager | Kind::Data => self.carving.part(self.quads(), 0),
            _ => 0..0,
        }
    }

    /// Records that a packet with a part of the body was sent. The mid-size protocol waits after
    /// `repeated` packets.
    #[inline]
    pub(super) fn advance(&mut self, kind: Kind, part: &Range<usize>, repeated: u8) {
        let has_all = |quads: u32| quads as usize * QUAD >= self.carving.body();
        self.stage = match (kind, self.stage) {
            (Kind::Request, _) => Stage::Waiting { quads: 0 },
            (Kind::Ends, _) if has_all(0) => Stage::Sent,
            (Kind::Ends, _) => Stage::Solicited { ends_due: false, quads: 0 },
            (Kind::Single, _) => Stage::Sent,
            (_, stage) => {
                let quads = self.carving.quads_until(part);
                match stage {
                    _ if has_all(quads) => Stage::Sent,
                    Stage::Unsolicited { packets, .. } => {
                        let packets = packets + 1;
                        let must_wait =
                            self.plan == Plan::Several(Protocol::MidSize) && packets >= repeated.into();
                        if must_wait {
                            Stage::Waiting { quads }
                        } else {
                            Stage::Unsolicited { packets, quads }
                        }
                    }
                    _ => Stage::Solicited { ends_due: false, quads },
                }
            }
        };
    }
}

const _: () = assert!(INFORMATION == QUAD, "the parts of a packet are quads");
