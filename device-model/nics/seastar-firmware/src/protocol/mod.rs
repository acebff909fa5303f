//! Flow control between a pair of nodes, as pure state machines: the firmware and a model checker
//! drive the same code.
//!
//! In: messages to send, ends of transmissions, arriving headers, acknowledgements. Out: which
//! message to transmit next, which messages have ended, how to answer a header. It sends nothing,
//! and knows no clock.
//!
//! | type | one for | state |
//! | --- | --- | --- |
//! | [`Sender`] | each node with messages in flight to it | its send queue of [`Flight`]s |
//! | [`Receiver`] | each node of the network | two bytes and two bits |
//! | [`Pressure`] | the node | what it has dropped, and how many senders wait |
//!
//! The source is Brightwell et al., IEEE Micro 2006, section *Flow control protocol*. Deviations:
//!
//! - A negative acknowledgement moves the sender's cursor back in the send queue. So all later
//!   messages are repeated after the dropped one, and no new message comes between.
//! - A receiver that expects the initial number refuses other numbers. The paper accepts them,
//!   which breaks the order if the initial message itself was dropped.
//! - A short message is implicit only if none before it needs an acknowledgement. The paper asks
//!   only that no long one does; but a short get can be refused, too.
//! - After a time-out, the next message carries a flag that resynchronises the receiver.
//! - The caller separates incarnations: it calls [`Sender::fail_all`] and [`Receiver::forget`] when
//!   an incarnation of the other node ends. The paper's numbers alone don't exclude that a late
//!   acknowledgement completes a new message.

mod receiver;
mod sender;

pub use receiver::{Answer, Judgement, Pressure, Receiver};
pub use sender::{Flight, Flights, Outcome, Reaction, Response, Sender, Slot};

/// Modulus of the sequence numbers on the wire.
pub const WIRE_MODULUS: u32 = 1 << 16;

/// The sequence number of a message of a pair of nodes: 0 for the first one after the sender's
/// boot, then 1 to `MODULUS` - 1 again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sequence<const MODULUS: u32>(u16);

impl<const MODULUS: u32> Sequence<MODULUS> {
    /// The reserved initial number.
    pub const INITIAL: Self = Self(0);

    /// Returns the number with this value, or `None` if the value is not below the modulus.
    #[must_use]
    #[inline]
    pub const fn new(value: u16) -> Option<Self> {
        if (value as u32) < MODULUS { Some(Self(value)) } else { None }
    }

    /// Returns the value.
    #[must_use]
    #[inline]
    pub const fn value(self) -> u16 {
        self.0
    }

    /// Returns the number after this one. The initial number does not occur again.
    #[must_use]
    #[inline]
    pub const fn next(self) -> Self {
        if self.0 as u32 + 1 == MODULUS { Self(1) } else { Self(self.0 + 1) }
    }

    /// Returns how many numbers `later` is after this one. The initial number stands where the
    /// largest number stands in later rounds: in front of 1.
    #[must_use]
    #[inline]
    const fn distance(self, later: Self) -> u32 {
        let round = MODULUS - 1;
        (later.position() + round - self.position()) % round
    }

    /// Returns the position in a round of `MODULUS` - 1 numbers: 0 for 1, 1 for 2, and so on. The
    /// initial number has the last position.
    #[inline]
    const fn position(self) -> u32 {
        (self.0 as u32 + MODULUS - 2) % (MODULUS - 1)
    }
}

#[cfg(test)]
mod tests;
