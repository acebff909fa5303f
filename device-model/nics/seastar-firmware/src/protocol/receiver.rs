//! The receiver's side of a pair of nodes.

use super::Sequence;

/// How a header is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// The message was taken.
    Ack,
    /// The message was dropped, or comes after one that was. It must be sent again.
    Nack,
    /// The node has not booted: this message and all before it fail.
    PrebootAck,
    /// The message was taken as the first one since the node booted. All before it fail.
    FirstPostbootAck,
}

/// Decision about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Judgement {
    /// Whether the message is taken. If not, its data are discarded.
    pub taken: bool,
    /// The answer.
    pub answer: Answer,
    /// The pair leaves the abnormal state with this message, or enters it.
    pub changes_state: bool,
}

/// State of another node as a sender to this one.
///
/// Sequence numbers are checked only in the *abnormal state*: between a drop and the repetition of
/// the dropped message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Receiver<const MODULUS: u32> {
    /// In the abnormal state: the number of the dropped message.
    pub expected: Option<Sequence<MODULUS>>,
    /// A message of the sender was taken since this node has booted.
    pub seen: bool,
}

impl<const MODULUS: u32> Receiver<MODULUS> {
    /// Returns whether [`Self::judge_header`] would take a message.
    #[must_use]
    #[inline]
    pub fn takes(&self, sequence: Sequence<MODULUS>, resynchronizes: bool) -> bool {
        let is_expected = |expected| sequence == expected || sequence == Sequence::INITIAL || resynchronizes;
        self.expected.is_none_or(is_expected)
    }

    /// Judges a message whose header has arrived, and whose data can be received.
    ///
    /// `resynchronizes` is the flag in its header: the sender has given up all messages before it,
    /// so that it is taken whatever number is expected.
    #[inline]
    pub fn judge_header(&mut self, sequence: Sequence<MODULUS>, resynchronizes: bool) -> Judgement {
        if !self.takes(sequence, resynchronizes) {
            return Judgement { taken: false, answer: Answer::Nack, changes_state: false };
        }
        let changes_state = self.expected.take().is_some();

        let answer = if self.seen { Answer::Ack } else { Answer::FirstPostbootAck };
        self.seen = true;
        Judgement { taken: true, answer, changes_state }
    }

    /// Judges a message that the hardware has dropped, because all streams are in use.
    #[inline]
    pub fn judge_dropped(&mut self, sequence: Sequence<MODULUS>, resynchronizes: bool) -> Judgement {
        // In the abnormal state, the first dropped message is the one to expect.
        let changes_state = self.expected.is_none();
        if changes_state || sequence == Sequence::INITIAL || resynchronizes {
            self.expected = Some(sequence);
        }
        Judgement { taken: false, answer: Answer::Nack, changes_state }
    }

    /// Forgets the sender: its incarnation has ended. Returns whether the pair was in the abnormal
    /// state.
    #[inline]
    pub fn forget(&mut self) -> bool {
        self.expected.take().is_some()
    }
}

/// The state of a node's receiver that all senders share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Pressure {
    /// Number of senders in the abnormal state. While it is 0, no sequence number is checked.
    abnormal: u32,
    /// Number of negative acknowledgements minus that of positive ones, kept between 0 and
    /// [`Pressure::MAX_PLACE`]: an estimate of how many senders wait.
    place: u16,
}

impl Pressure {
    /// Largest place in line that a negative acknowledgement names.
    pub const MAX_PLACE: u16 = 1023;

    /// Returns whether a sender is in the abnormal state.
    #[must_use]
    #[inline]
    pub fn is_abnormal(self) -> bool {
        self.abnormal != 0
    }

    /// Counts a judgement. Returns the place in line that a negative acknowledgement carries: the
    /// sender waits for longer, the larger it is.
    #[inline]
    pub fn record(&mut self, judgement: Judgement) -> u16 {
        if judgement.taken {
            self.place = self.place.saturating_sub(1);
            self.abnormal = self.abnormal.saturating_sub(u32::from(judgement.changes_state));
        } else if judgement.answer == Answer::Nack {
            self.place = Self::MAX_PLACE.min(self.place + 1);
            self.abnormal += u32::from(judgement.changes_state);
        }
        self.place
    }

    /// Counts a sender in the abnormal state that was forgotten.
    #[inline]
    pub fn forget(&mut self) {
        self.abnormal = self.abnormal.saturating_sub(1);
    }
}
