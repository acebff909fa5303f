//! Credits of connections, and the control messages that grant and return them.
//!
//! A control message is one quadword with the tag [`CONTROL_TAG`]:
//!
//! | bits | field |
//! | --- | --- |
//! | 7..0 | kind |
//! | 15..8 | generation |
//! | 23..16 | connect: generation of the intended receiver, since its successor may receive it |
//! | 63..32 | number |
//!
//! | kind | generation | number |
//! | --- | --- | --- |
//! | 1 connect | the sender's own | credits that the sender would like to be granted |
//! | 2 credit | the addressee's, as the sender knows it | additional credits; 0 refuses a connect |
//! | 3 close | the sender's own | 0: the sender sends no more, so its grant is free |
//!
//! At most two credit messages for each peer are in flight in the posted-write ring. Credits return
//! in halves of a grant, so a peer that reads its ring never needs more. The card's watchdog drops
//! the messages for a peer that does not read.
//!
//! The outstanding grants to all VPIDs of a node are less than half of that node's share of the
//! receive ring. The receiving card returns slot credits to a sending card in batches of half a
//! share. So a sender that keeps to its grant never waits for slots in its card.

use nicforge_driver::Mark;

/// Tag of control messages. Applications can't use it on ports with flow control.
pub const CONTROL_TAG: u8 = 15;

const CONNECT: u8 = 1;
const CREDIT: u8 = 2;
const CLOSE: u8 = 3;

/// Slots reserved for the control messages of each VPID of a node: a connect, a close, and two
/// credit returns.
const CONTROL_SLOTS: u32 = 4;

/// Number of refusals that a tenant receives in a row. A later connect is answered only when
/// credits are free. Otherwise a peer that connects repeatedly and reads nothing would fill its
/// ring with answers, and block everything that this port has posted behind them.
pub(crate) const MAX_REFUSALS: u8 = 4;

/// Number of unresponsive tenants of an address, after which the port answers no tenant of it. A
/// tenant is unresponsive when the watchdog has dropped a credit message for it.
pub(crate) const MAX_UNRESPONSIVE: u8 = 3;

/// A control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// The sender asks for credits.
    Connect { own: u8, target: u8, window: u32 },
    /// The sender grants or returns credits.
    Credit { addressee: u8, messages: u32 },
    /// The sender closes its direction of the connection.
    Close { own: u8 },
}

impl Control {
    /// Returns the message's quadword.
    pub(crate) fn encode(self) -> [u8; 8] {
        let (what, generation, target, number) = match self {
            Self::Connect { own, target, window } => (CONNECT, own, target, window),
            Self::Credit { addressee, messages } => (CREDIT, addressee, 0, messages),
            Self::Close { own } => (CLOSE, own, 0, 0),
        };

        let word = u64::from(what) | u64::from(generation) << 8 | u64::from(target) << 16;
        (word | u64::from(number) << 32).to_le_bytes()
    }

    /// Decodes a quadword; returns `None` for a kind that no port sends.
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

/// State of the connections with one address, one in each direction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Peer {
    /// Generation of the tenant that this port sends to; 0 for none.
    pub(crate) receiver: u8,
    /// Messages that this port may send to it.
    pub(crate) credits: u32,
    /// Whether its last credit message was a refusal.
    pub(crate) refused: bool,
    /// Generation of the tenant that sends to this port; 0 for none.
    pub(crate) sender: u8,
    /// Credits that this port has granted to it.
    pub(crate) granted: u32,
    /// Spent credits that are due to return to it.
    pub(crate) unreturned: u32,
    /// Whether the peer is in the queue of pending control messages.
    pub(crate) queued: bool,
    /// Generation of the tenant that a pending close is for; 0 for none.
    pub(crate) closing: u8,
    /// Kept messages of tenants whose grant has ended. They use up part of the node's budget.
    pub(crate) kept_without_grant: u32,
    /// Credits that its connect asked for.
    pub(crate) requested: u32,
    /// Whether a refusal is pending.
    pub(crate) refusal_pending: bool,
    /// Number of refusals of this tenant in a row.
    pub(crate) refusals: u8,
    /// Generation of the tenant that `refusals` counts.
    pub(crate) refused_tenant: u8,
    /// Whether it has asked again after its last refusal, and waits for free credits.
    pub(crate) awaits_grant: bool,
    /// Marks behind the last two credit messages for it, the older one first.
    pub(crate) credit_marks: [Option<Mark>; 2],
    /// Generation of the tenant that does not read its credit messages, and receives no more of
    /// them; 0 for none.
    pub(crate) unresponsive: u8,
    /// Number of such tenants that this address has had.
    pub(crate) unresponsive_tenants: u8,
    /// Whether [`crate::Port::admit`] excludes it, so that it is granted nothing.
    pub(crate) excluded: bool,
}

/// Returns the credits that may be outstanding to all VPIDs of one node together.
pub(crate) fn budget(slots: u32, nodes: u32, vpids: u32) -> u32 {
    let share = slots / nodes.max(1);
    let half = share / 2;
    half.saturating_sub((CONTROL_SLOTS * vpids).min(half / 2)).max(1)
}

/// Returns a number of slots that suits a network.
pub(crate) fn suitable_slots(nodes: u32, vpids: u32) -> u32 {
    let least = nodes.saturating_mul(vpids).saturating_mul(2 * (CONTROL_SLOTS + 4));
    least.clamp(512, 1 << 16).next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_messages_survive_encoding() {
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
    fn grants_are_less_than_half_of_a_share() {
        for (slots, nodes, vpids) in [(512, 2, 4), (65_536, 512, 64), (64, 64, 256), (512, 1, 1)] {
            let share = slots / nodes;
            assert!(budget(slots, nodes, vpids) <= (share / 2).max(1));
        }
        assert_eq!(suitable_slots(2, 4), 512);
        assert_eq!(suitable_slots(2048, 256), 65_536);
    }
}
