//! The control messages that grant and return credits.
//!
//! A control message is one quadword with the tag [`CONTROL_TAG`]:
//!
//! | bits | field |
//! | --- | --- |
//! | 7..0 | kind |
//! | 15..8 | generation |
//! | 23..16 | connect: generation of the intended receiver, since its successor may receive it |
//! | 31..24 | connect and credit: connection |
//! | 63..32 | number |
//!
//! | kind | generation | number |
//! | --- | --- | --- |
//! | 1 connect | the sender's own | credits that the sender would like to be granted |
//! | 2 credit | the addressee's, as the sender knows it | additional credits; 0 refuses a connect |
//! | 3 close | the sender's own | 0: the sender sends no more, so its grant is free |

//!
//! A sender numbers its connections to an address, modulo 256. A credit message repeats the number
//! of the connect that it answers, and a sender ignores the credits of its earlier connections.

use crate::tenant::Tenant;

/// Tag of control messages. Applications can't use it on ports with flow control.
pub const CONTROL_TAG: u8 = 15;

// Lowest bits of the fields.
const GENERATION_SHIFT: u32 = 8;
const TARGET_SHIFT: u32 = 16;
const CONNECTION_SHIFT: u32 = 24;
const NUMBER_SHIFT: u32 = 32;

// Kinds.
const CONNECT: u8 = 1;
const CREDIT: u8 = 2;
const CLOSE: u8 = 3;

/// A control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// The sender asks for credits.
    Connect { own: Tenant, target: Tenant, connection: u8, window: u32 },
    /// The sender grants or returns credits.
    Credit { addressee: Tenant, connection: u8, messages: u32 },
    /// The sender closes its direction of the connection.
    Close { own: Tenant },
}

impl Control {
    /// Returns the message's quadword.
    pub(crate) fn encode(self) -> [u8; 8] {
        let (kind, tenant, target_generation, connection, number) = match self {
            Self::Connect { own, target, connection, window } => {
                (CONNECT, own, target.generation(), connection, window)
            }
            Self::Credit { addressee, connection, messages } => (CREDIT, addressee, 0, connection, messages),
            Self::Close { own } => (CLOSE, own, 0, 0, 0),
        };

        let word = u64::from(kind)
            | u64::from(tenant.generation()) << GENERATION_SHIFT
            | u64::from(target_generation) << TARGET_SHIFT
            | u64::from(connection) << CONNECTION_SHIFT
            | u64::from(number) << NUMBER_SHIFT;
        word.to_le_bytes()
    }

    /// Decodes a quadword. Returns `None` for a kind that no port sends, and for a generation that
    /// no tenant has.
    pub(crate) fn decode(word: u64) -> Option<Self> {
        let tenant = Tenant::of_generation((word >> GENERATION_SHIFT) as u8)?;
        let connection = (word >> CONNECTION_SHIFT) as u8;
        let number = (word >> NUMBER_SHIFT) as u32;

        match word as u8 {
            CONNECT => {
                let target = Tenant::of_generation((word >> TARGET_SHIFT) as u8)?;
                Some(Self::Connect { own: tenant, target, connection, window: number })
            }
            CREDIT => Some(Self::Credit { addressee: tenant, connection, messages: number }),
            CLOSE => Some(Self::Close { own: tenant }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(generation: u8) -> Tenant {
        Tenant::of_generation(generation).unwrap()
    }

    #[test]
    fn control_messages_survive_encoding() {
        let messages = [
            Control::Connect { own: tenant(3), target: tenant(9), connection: 255, window: 64 },
            Control::Credit { addressee: tenant(255), connection: 1, messages: u32::MAX },
            Control::Close { own: tenant(1) },
        ];

        for message in messages {
            assert_eq!(Control::decode(u64::from_le_bytes(message.encode())), Some(message));
        }
    }

    #[test]
    fn messages_that_no_port_sends_are_not_decoded() {
        assert_eq!(Control::decode(0), None);
        assert_eq!(Control::decode(u64::MAX), None);

        let close_of_no_tenant = u64::from(CLOSE) | 2 << 8;
        assert_eq!(Control::decode(close_of_no_tenant), None);
    }
}
