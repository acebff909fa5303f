//! The sender's side of a pair of nodes.
//!
//! The messages in flight to a node stand in a send queue, in the order of their sequence numbers.
//! They leave it at its head. The *cursor* is the first message that must be transmitted, again or
//! for the first time; all after it must be transmitted, too.
//!
//! ```text
//!   head                       cursor              tail
//!    |  transmitted, waiting     |  to be transmitted |
//!    v  for an acknowledgement   v                    v
//! ```
//!
//! Each transmission is answered once, in order. So when a negative acknowledgement arrives for
//! the latest transmission of a message, all that was transmitted after it is refused as well: the
//! cursor moves back to the message. A negative acknowledgement for an earlier transmission says
//! nothing new.

use super::Sequence;

/// Place of a message in the caller's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot(pub u16);

/// The state of a message as the sender knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Verdict {
    /// It is not acknowledged.
    Waiting,
    /// The receiver has taken it.
    Taken,
    /// The receiver will not accept the message, or it is unknown whether it has accepted it.
    Failed,
}

/// The flow control's state of a message in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flight<const MODULUS: u32> {
    sequence: Sequence<MODULUS>,
    /// The message after it in the send queue.
    next: Option<Slot>,
    verdict: Verdict,
    /// Number of transmissions without an answer.
    unanswered: u8,
    /// The transmit DMA engine has it.
    in_engine: bool,
    /// It needs a stream at the receiver.
    is_long: bool,
    /// It needs no acknowledgement: it counts as taken when it has been transmitted.
    is_implicit: bool,
    /// It resynchronises the receiver, which then takes it whatever number it expects.
    resynchronizes: bool,
}

impl<const MODULUS: u32> Flight<MODULUS> {
    /// Makes a message that has not joined a send queue. A *long* one needs a stream at the
    /// receiver.
    #[must_use]
    #[inline]
    pub const fn new(sequence: Sequence<MODULUS>, is_long: bool) -> Self {
        Self {
            sequence,
            next: None,
            verdict: Verdict::Waiting,
            unanswered: 0,
            in_engine: false,
            is_long,
            is_implicit: false,
            resynchronizes: false,
        }
    }

    /// Returns the sequence number.
    #[must_use]
    #[inline]
    pub const fn sequence(&self) -> Sequence<MODULUS> {
        self.sequence
    }

    /// Gives the message another sequence number.
    pub(crate) const fn set_sequence(&mut self, sequence: Sequence<MODULUS>) {
        self.sequence = sequence;
    }

    /// Returns whether the transmit DMA engine has the message.
    #[must_use]
    #[inline]
    pub const fn is_in_engine(&self) -> bool {
        self.in_engine
    }

    /// Returns whether the header must say that no acknowledgement is wanted.
    #[must_use]
    #[inline]
    pub const fn is_implicit(&self) -> bool {
        self.is_implicit
    }

    /// Returns whether the header must resynchronise the receiver.
    #[must_use]
    #[inline]
    pub const fn resynchronizes(&self) -> bool {
        self.resynchronizes
    }

    /// Returns whether the message may change its place: the receiver has answered all of its
    /// transmissions, and has taken none.
    fn is_movable(&self) -> bool {
        let is_idle = self.verdict == Verdict::Waiting && self.unanswered == 0 && !self.in_engine;
        is_idle && !self.is_implicit && !self.resynchronizes
    }

    /// Returns whether the receiver is known to have taken the message.
    #[must_use]
    #[inline]
    pub fn is_taken(&self) -> bool {
        self.verdict == Verdict::Taken
    }
}

/// The messages in flight to a node, in the caller's memory.
pub trait Flights<const MODULUS: u32> {
    /// Returns a message.
    fn flight(&self, slot: Slot) -> Option<&Flight<MODULUS>>;

    /// Returns a message.
    fn flight_mut(&mut self, slot: Slot) -> Option<&mut Flight<MODULUS>>;

    /// Returns the message with a sequence number.
    fn find(&self, sequence: Sequence<MODULUS>) -> Option<Slot>;

    /// Gives a message another sequence number.
    fn renumber(&mut self, slot: Slot, sequence: Sequence<MODULUS>) {
        if let Some(flight) = self.flight_mut(slot) {
            flight.sequence = sequence;
        }
    }
}

/// An acknowledgement of flow control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Response {
    /// The message was taken.
    Ack,
    /// The message must be sent again.
    Nack,
    /// The message and all before it fail.
    PrebootAck,
    /// The message was taken, and all before it fail.
    FirstPostbootAck,
}

/// Effect of a response on the send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reaction {
    /// Nothing: no message in flight has the number, or the response is for an earlier
    /// transmission.
    Ignored,
    /// Messages may have ended: see [`Sender::pop_ended`].
    Ended,
    /// Messages must be transmitted again: see [`Sender::next_to_transmit`].
    Repeat,
}

/// How a message has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The receiver has taken it.
    Taken,
    /// It has failed: the node is off, or its incarnation has ended.
    Failed,
}

/// The send queue of messages in flight to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sender {
    /// The first message of the send queue.
    head: Option<Slot>,
    /// The last message of the send queue.
    tail: Option<Slot>,
    /// The first message that must be transmitted, or `None` if all are.
    cursor: Option<Slot>,
    /// All messages in front of this one fail, unless they were taken.
    fail_before: Option<Slot>,
    /// Number of messages in the send queue.
    count: u16,
    /// Number of messages that need an acknowledgement and have none yet.
    unacknowledged: u16,
}

impl Sender {
    /// Returns the number of messages in the send queue.
    #[must_use]
    #[inline]
    pub const fn count(&self) -> u16 {
        self.count
    }

    /// Returns whether a message is the first of the send queue.
    #[must_use]
    #[inline]
    pub fn is_first(&self, slot: Slot) -> bool {
        self.head == Some(slot)
    }

    /// Returns whether the first message was transmitted and waits for an answer. A message that
    /// the transmit DMA engine does not have yet, or still has, and one that fails wait for none.
    #[must_use]
    pub fn waits_for_answer<const MODULUS: u32>(&self, flights: &impl Flights<MODULUS>) -> bool {
        let Some(head) = self.head else { return false };
        let head_fails = self.fail_before.is_some_and(|limit| limit != head);
        let is_waiting = |flight: &Flight<MODULUS>| flight.verdict == Verdict::Waiting && !flight.in_engine;
        !head_fails && self.cursor != Some(head) && flights.flight(head).is_some_and(is_waiting)
    }

    /// Puts a message at the end of the send queue.
    ///
    /// With `implicit`, a short message needs no acknowledgement, if all messages in front of it
    /// were taken or need none either: if one in front were refused, the receiver would refuse this
    /// one, too, and an implicit message is never repeated.
    pub fn push<const MODULUS: u32>(
        &mut self,
        flights: &mut impl Flights<MODULUS>,
        slot: Slot,
        implicit: bool,
        resynchronizes: bool,
    ) {
        let Some(flight) = flights.flight_mut(slot) else { return };
        flight.is_implicit = implicit && !flight.is_long && self.unacknowledged == 0;
        flight.resynchronizes = resynchronizes;
        self.unacknowledged += u16::from(!flight.is_implicit);
        self.count += 1;

        match self.tail.replace(slot).and_then(|tail| flights.flight_mut(tail)) {
            Some(tail) => tail.next = Some(slot),
            None => self.head = Some(slot),
        }
        if self.cursor.is_none() {
            self.cursor = Some(slot);
        }
    }

    /// Returns the message to transmit next, or `None` if all are transmitted, or if the transmit
    /// DMA engine still has the one to repeat: a message is sent whole before it is repeated.
    pub fn next_to_transmit<const MODULUS: u32>(&mut self, flights: &impl Flights<MODULUS>) -> Option<Slot> {
        loop {
            let slot = self.cursor?;
            let flight = flights.flight(slot)?;
            // A message that has ended is not repeated.
            if flight.verdict == Verdict::Waiting {
                return (!flight.in_engine).then_some(slot);
            }
            self.cursor = flight.next;
        }
    }

    /// Records that a message that [`Self::next_to_transmit`] has returned is passed to the
    /// transmit DMA engine.
    pub fn begin_transmission<const MODULUS: u32>(
        &mut self,
        flights: &mut impl Flights<MODULUS>,
        slot: Slot,
    ) {
        let Some(flight) = flights.flight_mut(slot) else { return };
        flight.in_engine = true;
        flight.unanswered = flight.unanswered.saturating_add(u8::from(!flight.is_implicit));
        self.cursor = flight.next;
    }

    /// Records that the transmit DMA engine has sent all of a message.
    pub fn transmitted<const MODULUS: u32>(&mut self, flights: &mut impl Flights<MODULUS>, slot: Slot) {
        let Some(flight) = flights.flight_mut(slot) else { return };
        flight.in_engine = false;
        if flight.is_implicit && flight.verdict == Verdict::Waiting {
            flight.verdict = Verdict::Taken;
        }
    }

    /// Handles a response to the message with a sequence number.
    pub fn respond<const MODULUS: u32>(
        &mut self,
        flights: &mut impl Flights<MODULUS>,
        response: Response,
        sequence: Sequence<MODULUS>,
    ) -> Reaction {
        let Some(slot) = flights.find(sequence) else { return Reaction::Ignored };
        // It will be transmitted again anyhow, or it fails anyhow.
        let will_repeat = self.is_at_or_behind(flights, slot, self.cursor);
        let fails = self.fail_before.is_some() && !self.is_at_or_behind(flights, slot, self.fail_before);
        let Some(flight) = flights.flight_mut(slot) else { return Reaction::Ignored };

        if fails || flight.verdict != Verdict::Waiting {
            return Reaction::Ignored;
        }
        flight.unanswered = flight.unanswered.saturating_sub(1);

        match response {
            Response::Nack => {
                // A later transmission has not been answered, or one is still to come.
                if will_repeat || flight.unanswered != 0 {
                    return Reaction::Ignored;
                }
                self.cursor = Some(slot);
                Reaction::Repeat
            }
            Response::Ack => {
                self.set_verdict(flight, Verdict::Taken);
                Reaction::Ended
            }
            Response::FirstPostbootAck | Response::PrebootAck => {
                let taken = response == Response::FirstPostbootAck;
                self.set_verdict(flight, if taken { Verdict::Taken } else { Verdict::Failed });

                // All messages in front of this one fail, so that none of them is repeated.
                if will_repeat {
                    self.cursor = flight.next;
                }
                self.fail_before = Some(slot);
                Reaction::Ended
            }
        }
    }

    /// Lets messages that must be transmitted again overtake others: those for which `overtakes`
    /// holds go first. The order within both kinds stays. Numbers belong to places: each message
    /// gets the number of its new place, which the receiver expects there. Returns whether a
    /// message has overtaken another.
    ///
    /// It does nothing unless the receiver has refused all of the messages whenever they were
    /// transmitted.
    pub fn let_overtake<const MODULUS: u32, F: Flights<MODULUS>>(
        &mut self,
        flights: &mut F,
        overtakes: impl Fn(&F, Slot) -> bool,
    ) -> bool {
        self.reorder(flights, overtakes).is_some()
    }

    /// Does the work of [`Self::let_overtake`]. Returns `None` if nothing has changed.
    fn reorder<const MODULUS: u32, F: Flights<MODULUS>>(
        &mut self,
        flights: &mut F,
        overtakes: impl Fn(&F, Slot) -> bool,
    ) -> Option<()> {
        let first = self.cursor.filter(|_| self.fail_before.is_none())?;
        let mut sequence = flights.flight(first)?.sequence;
        let (mut next, mut others_are_in_front, mut is_due) = (Some(first), false, false);
        while let Some(slot) = next {
            let flight = flights.flight(slot).filter(|flight| flight.is_movable())?;
            next = flight.next;
            let goes_first = overtakes(flights, slot);
            is_due |= goes_first && others_are_in_front;
            others_are_in_front |= !goes_first;
        }
        if !is_due {
            return None;
        }

        let mut before = self.head.filter(|head| *head != first);
        while let Some(slot) = before
            && flights.flight(slot)?.next != Some(first)
        {
            before = flights.flight(slot)?.next;
        }

        // The first and the last message of each kind.
        let mut kinds: [Option<(Slot, Slot)>; 2] = [None; 2];
        next = Some(first);
        while let Some(slot) = next {
            let [overtaking, overtaken] = &mut kinds;
            let kind = if overtakes(flights, slot) { overtaking } else { overtaken };
            next = flights.flight_mut(slot)?.next.take();
            if let Some((_, last)) = kind {
                flights.flight_mut(*last)?.next = Some(slot);
                *last = slot;
            } else {
                *kind = Some((slot, slot));
            }
        }

        let [Some((new_first, last_overtaking)), Some((overtaken, last))] = kinds else { return None };
        flights.flight_mut(last_overtaking)?.next = Some(overtaken);
        match before {
            Some(before) => flights.flight_mut(before)?.next = Some(new_first),
            None => self.head = Some(new_first),
        }
        (self.cursor, self.tail) = (Some(new_first), Some(last));

        next = Some(new_first);
        while let Some(slot) = next {
            flights.renumber(slot, sequence);
            sequence = sequence.next();
            next = flights.flight(slot)?.next;
        }
        Some(())
    }

    /// Fails all messages in the send queue, unless they were taken: the incarnation of the target
    /// has ended, or it has not answered for a long time.
    pub fn fail_all<const MODULUS: u32>(&mut self, flights: &mut impl Flights<MODULUS>) {
        let Some(tail) = self.tail else { return };
        if let Some(flight) = flights.flight_mut(tail).filter(|flight| flight.verdict == Verdict::Waiting) {
            self.set_verdict(flight, Verdict::Failed);
        }
        self.cursor = None;
        self.fail_before = Some(tail);
    }

    /// Returns whether all messages are transmitted and the one at the head waits for its answer.
    /// Neither [`Self::pop_ended`] nor [`Self::next_to_transmit`] returns a message then.
    #[inline]
    #[must_use]
    pub fn only_waits<const MODULUS: u32>(&self, flights: &impl Flights<MODULUS>) -> bool {
        let head = self.head.and_then(|head| flights.flight(head));
        self.cursor.is_none()
            && self.fail_before.is_none()
            && head.is_some_and(|head| head.verdict == Verdict::Waiting)
    }

    /// Takes the message at the head out of the send queue, if it has ended and the transmit DMA
    /// engine does not have it. A caller calls this until it returns `None`.
    pub fn pop_ended<const MODULUS: u32>(
        &mut self,
        flights: &mut impl Flights<MODULUS>,
    ) -> Option<(Slot, Outcome)> {
        let slot = self.head?;
        let flight = flights.flight(slot)?;
        let fails = self.fail_before.is_some_and(|limit| limit != slot);
        let outcome = match flight.verdict {
            Verdict::Taken => Outcome::Taken,
            Verdict::Failed => Outcome::Failed,
            Verdict::Waiting if fails => Outcome::Failed,
            Verdict::Waiting => return None,
        };
        if flight.in_engine {
            return None;
        }

        // It was never acknowledged: one behind it has made it fail.
        if flight.verdict == Verdict::Waiting {
            self.unacknowledged -= u16::from(!flight.is_implicit);
        }
        self.fail_before = self.fail_before.filter(|limit| *limit != slot);
        self.head = flight.next;
        self.tail = self.tail.filter(|_| flight.next.is_some());
        self.count -= 1;
        Some((slot, outcome))
    }

    /// Records what has become of a message that was waiting.
    fn set_verdict<const MODULUS: u32>(&mut self, flight: &mut Flight<MODULUS>, verdict: Verdict) {
        flight.verdict = verdict;
        self.unacknowledged -= u16::from(!flight.is_implicit);
    }

    /// Returns whether a message is `other`, or follows it in the queue. Returns false if `other`
    /// is `None`.
    fn is_at_or_behind<const MODULUS: u32>(
        &self,
        flights: &impl Flights<MODULUS>,
        slot: Slot,
        other: Option<Slot>,
    ) -> bool {
        let distance_from_head = |slot: Option<Slot>| {
            let head = flights.flight(self.head?)?;
            Some(head.sequence.distance(flights.flight(slot?)?.sequence))
        };
        match (distance_from_head(Some(slot)), distance_from_head(other)) {
            (Some(slot), Some(other)) => slot >= other,
            _ => false,
        }
    }
}
