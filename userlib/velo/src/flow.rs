//! The credits of connections: what is promised, what is owed, and the messages about it.
//!
//! A control message is one quadword with the tag [`CONTROL_TAG`]: bits 7..0 what it is, 15..8 a generation, 63..32 a number. A connect has the generation
//! of whom it is for in bits 23..16: it may come to a successor.
//!
//! | what | generation | number |
//! | --- | --- | --- |
//! | 1 connect | the sender's own | messages that it would like to have promised |
//! | 2 credit | the addressee's, as the sender knows it | messages that it may send on top; 0 as the answer to a connect: none are left |
//! | 3 close | the sender's own | 0: it sends no more, its promise is free |
//!
//! At most two messages about credit wait for a peer on the way to the card: a promise is renewed by halves, so that one that reads never needs more. For
//! one that does not, the watchdog ends them.
//!
//! What a port promises to the VPIDs of a node together is less than half of the node's share of the ring: the card returns the slots of what
//! was taken in batches of half a share, so that a promise which is kept never makes a card wait.

use nicforge_driver::Mark;

/// The tag of control messages; not for applications on ports with flow control.
pub const CONTROL_TAG: u8 = 15;

const CONNECT: u8 = 1;
const CREDIT: u8 = 2;
const CLOSE: u8 = 3;

/// Slots kept for the control messages of each VPID of a node: a connect, a close, and credits that are given back by halves of a window.
const CONTROL_SLOTS: u32 = 4;

/// How often a tenant is told that there is no room for it. A port that asks once more is told when there is: who does not read would else make the
/// card wait with what is behind.
pub(crate) const REFUSALS: u8 = 4;

/// How many tenants of an address may let an answer wait in the card until the watchdog ends that, before nobody who has it is answered.
pub(crate) const STRIKES: u8 = 3;

/// A control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// Somebody wants to send.
    Connect { own: u8, target: u8, window: u32 },
    /// We may send more.
    Credit { addressee: u8, messages: u32 },
    /// Somebody sends no more.
    Close { own: u8 },
}

impl Control {
    pub(crate) fn encode(self) -> [u8; 8] {
        let (what, generation, target, number) = match self {
            Self::Connect { own, target, window } => (CONNECT, own, target, window),
            Self::Credit { addressee, messages } => (CREDIT, addressee, 0, messages),
            Self::Close { own } => (CLOSE, own, 0, 0),
        };
        let word = u64::from(what) | u64::from(generation) << 8 | u64::from(target) << 16;
        (word | u64::from(number) << 32).to_le_bytes()
    }

    /// `None` of what no port sends.
    pub(crate) fn decode(word: u64) -> Option<Self> {
        let (what, generation, number) = (word as u8, (word >> 8) as u8, (word >> 32) as u32);
        match what {
            CONNECT => Some(Self::Connect { own: generation, target: (word >> 16) as u8, window: number }),
            CREDIT => Some(Self::Credit { addressee: generation, messages: number }),
            CLOSE => Some(Self::Close { own: generation }),
            _ => None,
        }
    }
}

/// The other end of connections, one each way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Peer {
    /// The tenant that we send to; 0: none.
    pub(crate) to: u8,
    /// Messages that we may send to it.
    pub(crate) credits: u32,
    /// It has promised us nothing, and says so.
    pub(crate) refused: bool,
    /// The tenant that sends to us; 0: none.
    pub(crate) of: u8,
    /// Messages that it was promised.
    pub(crate) promised: u32,
    /// Messages of it that were taken, and that it has not been told of.
    pub(crate) owed: u32,
    /// It stands in the queue of those that are to be told.
    pub(crate) due: bool,
    /// The tenant that is to be told that we send no more; 0: none.
    pub(crate) closing: u8,
    /// Messages of tenants whose promise has ended that are kept and not taken. They take a part of what can be promised.
    pub(crate) lingering: u32,
    /// What it asked for.
    pub(crate) asked: u32,
    /// It is to be told that there is no room.
    pub(crate) refuse: bool,
    /// How often this tenant was refused in a row.
    pub(crate) refusals: u8,
    pub(crate) refused_tenant: u8,
    /// It asked once more, and is told when there is room.
    pub(crate) waits: bool,
    /// Behind the last two messages that told it of credit, the older one first.
    pub(crate) told: [Option<Mark>; 2],
    /// The tenant that does not read what it is told, and is told nothing any more; 0: none.
    pub(crate) deaf: u8,
    /// How many tenants of it were so.
    pub(crate) strikes: u8,
    /// It is promised nothing: [`crate::Port::admit`].
    pub(crate) stranger: bool,
}

/// What may be promised to the VPIDs of one node together.
pub(crate) fn budget(slots: u32, nodes: u32, vpids: u32) -> u32 {
    let share = slots / nodes.max(1);
    let half = share / 2;
    half.saturating_sub((CONTROL_SLOTS * vpids).min(half / 2)).max(1)
}

/// Slots that suit a network.
pub(crate) fn suitable_slots(nodes: u32, vpids: u32) -> u32 {
    let least = nodes.saturating_mul(vpids).saturating_mul(2 * (CONTROL_SLOTS + 4));
    least.clamp(512, 1 << 16).next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_messages_come_back_as_they_were() {
        let messages = [
            Control::Connect { own: 3, target: 9, window: 64 },
            Control::Credit { addressee: 255, messages: u32::MAX },
            Control::Close { own: 1 },
        ];
        for message in messages {
            assert_eq!(Control::decode(u64::from_le_bytes(message.encode())), Some(message));
        }
        assert_eq!(Control::decode(0), None);
        assert_eq!(Control::decode(u64::MAX), None);
    }

    #[test]
    fn promises_are_less_than_half_of_a_share() {
        for (slots, nodes, vpids) in [(512, 2, 4), (65_536, 512, 64), (64, 64, 256), (512, 1, 1)] {
            let share = slots / nodes;
            assert!(budget(slots, nodes, vpids) <= (share / 2).max(1));
        }
        assert_eq!(suitable_slots(2, 4), 512);
        assert_eq!(suitable_slots(2048, 256), 65_536);
    }
}
