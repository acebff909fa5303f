//! Assembly of messages that a processor has split.

use nicforge_core::time::Nanos;
use nicforge_hwi::extoll_velo::MAX_MESSAGE;

use super::address::SendAddress;

/// The bits of an offset that are the same for all stores of a message. The other bits are the
/// position in the message.
const MESSAGE_MASK: u64 = !(MAX_MESSAGE as u64 - 1);

/// Returns whether an offset is the start of a message.
#[inline]
pub(crate) fn is_start(offset: u64) -> bool {
    offset & !MESSAGE_MASK == 0
}

/// The kind of a write to the send aperture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Burst {
    /// A complete message.
    Whole,
    /// The last piece of a message whose other pieces are in [`Assembly`].
    Last,
    /// A piece that is kept until more pieces arrive.
    Kept,
    /// No piece of any message.
    Bad,
}

/// The outcome of adding a write to an [`Assembly`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Added {
    pub(crate) burst: Burst,
    /// Whether the write has torn an earlier message, which can no longer become complete.
    pub(crate) has_torn: bool,
}

/// The pieces of a split message that have arrived.
#[derive(Clone, Debug)]
pub(crate) struct Assembly {
    bytes: [u8; MAX_MESSAGE],
    /// The offset of the message's first byte.
    message: u64,
    /// Number of bytes that have arrived; 0 if there is no message.
    length: usize,
    /// Arrival time of the first piece.
    since: Nanos,
}

impl Default for Assembly {
    fn default() -> Self {
        Self { bytes: [0; MAX_MESSAGE], message: 0, length: 0, since: Nanos::ZERO }
    }
}

impl Assembly {
    /// Classifies a write of `data` at an offset in the send aperture, and keeps it if it is a
    /// piece of a message.
    ///
    /// A last piece is stored, so that [`Assembly::message`] returns the message. It does not count
    /// in the length until [`Assembly::clear`], because a send that stalls repeats this write.
    #[inline]
    pub(crate) fn add(&mut self, offset: u64, data: &[u8], now: Nanos) -> Added {
        let message_length = SendAddress::decode(offset).bytes();
        let position = (offset & !MESSAGE_MASK) as usize;

        if position == 0 && data.len() == message_length {
            return Added { burst: Burst::Whole, has_torn: std::mem::take(&mut self.length) > 0 };
        }

        self.add_piece(offset, position, message_length, data, now)
    }

    /// As [`Assembly::add`], for a write that is not a complete message.
    #[cold]
    fn add_piece(
        &mut self,
        offset: u64,
        position: usize,
        message_length: usize,
        data: &[u8],
        now: Nanos,
    ) -> Added {
        let message = offset & MESSAGE_MASK;

        let valid = position.is_multiple_of(8)
            && !data.is_empty()
            && data.len().is_multiple_of(8)
            && position + data.len() <= message_length;
        if !valid {
            return Added { burst: Burst::Bad, has_torn: false };
        }

        let continues = self.length > 0 && self.message == message && self.length == position;
        let has_torn = self.length > 0 && !continues;

        if !continues {
            self.length = 0;
            if position != 0 {
                return Added { burst: Burst::Bad, has_torn };
            }
            self.message = message;
            self.since = now;
        }

        self.bytes[position..position + data.len()].copy_from_slice(data);

        if position + data.len() == message_length {
            return Added { burst: Burst::Last, has_torn };
        }

        self.length = position + data.len();
        Added { burst: Burst::Kept, has_torn }
    }

    /// Returns the message of `length` bytes whose last piece has arrived.
    pub(crate) fn message(&self, length: usize) -> [u8; MAX_MESSAGE] {
        let mut message = [0; MAX_MESSAGE];
        let length = length.min(MAX_MESSAGE);
        message[..length].copy_from_slice(&self.bytes[..length]);
        message
    }

    /// Drops the message, after it was sent or given up.
    pub(crate) fn clear(&mut self) {
        self.length = 0;
    }

    /// Returns whether there is no incomplete message.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the time at which the incomplete message began.
    pub(crate) fn waiting_since(&self) -> Option<Nanos> {
        (self.length > 0).then_some(self.since)
    }
}

#[cfg(test)]
mod tests {
    use nicforge_hwi::extoll_velo::address;

    use super::*;

    fn offset_of(quadwords: usize, position: u64) -> u64 {
        address::encode(3, 4, 5, quadwords) + position
    }

    /// Returns the outcome of a write that has torn no earlier message.
    fn untorn(burst: Burst) -> Added {
        Added { burst, has_torn: false }
    }

    /// Returns the outcome of a write that has torn an earlier message.
    fn torn(burst: Burst) -> Added {
        Added { burst, has_torn: true }
    }

    #[test]
    fn a_burst_in_one_piece_is_whole() {
        let mut assembly = Assembly::default();
        for quadwords in 1..=8 {
            let found = assembly.add(offset_of(quadwords, 0), &vec![1; quadwords * 8], Nanos::ZERO);
            assert_eq!(found, untorn(Burst::Whole));
        }
    }

    #[test]
    fn pieces_in_order_make_a_message_and_a_last_one_may_come_again() {
        let mut assembly = Assembly::default();

        assert_eq!(assembly.add(offset_of(3, 0), &[1; 8], Nanos::ZERO), untorn(Burst::Kept));
        assert_eq!(assembly.add(offset_of(3, 8), &[2; 8], Nanos::ZERO), untorn(Burst::Kept));

        for _ in 0..3 {
            assert_eq!(assembly.add(offset_of(3, 16), &[3; 8], Nanos::ZERO), untorn(Burst::Last));
            assert_eq!(assembly.message(24)[..24], [[1; 8], [2; 8], [3; 8]].concat());
        }

        assembly.clear();
        assert_eq!(assembly.waiting_since(), None);
    }

    #[test]
    fn another_message_tears_one_that_is_not_complete() {
        let mut assembly = Assembly::default();
        assert_eq!(assembly.add(offset_of(3, 0), &[1; 8], Nanos::ZERO), untorn(Burst::Kept));

        assert_eq!(assembly.add(offset_of(1, 0), &[2; 8], Nanos::ZERO), torn(Burst::Whole));
        assert_eq!(assembly.add(offset_of(3, 8), &[1; 8], Nanos::ZERO), untorn(Burst::Bad));

        assert_eq!(assembly.add(offset_of(3, 0), &[1; 16], Nanos::ZERO), untorn(Burst::Kept));
        assert_eq!(assembly.add(offset_of(2, 0), &[4; 8], Nanos::ZERO), torn(Burst::Kept));
    }

    #[test]
    fn a_write_of_invalid_position_or_length_is_refused_and_changes_nothing() {
        let mut assembly = Assembly::default();
        let _ = assembly.add(offset_of(4, 0), &[1; 8], Nanos::ZERO);

        for (position, length) in [(1, 8), (8, 7), (8, 0), (8, 32), (56, 16), (16, 24)] {
            assert_eq!(
                assembly.add(offset_of(4, position), &vec![9; length], Nanos::ZERO),
                untorn(Burst::Bad)
            );
        }

        assert_eq!(assembly.add(offset_of(4, 8), &[2; 24], Nanos::ZERO), untorn(Burst::Last));
    }
}
