//! A virtual channel of a link in one direction: its buffer, its credits, and what its receiver has
//! been shown.

use nicforge_core::{fabric::MAX_CREDITS, time::Nanos};

use crate::{router::RoutedPacket, shape::CableEnd};

/// A packet of a network without a machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Parcel {
    /// Route word.
    pub word: u64,
    /// A number for the nodes' use.
    pub tag: u64,
    /// Time at which the head arrives over the present link. After the packet has left its buffer,
    /// the time at which its credits are back at the sender.
    pub(super) head: Nanos,
    /// Time at which the tail arrives.
    pub(super) tail: Nanos,
    /// Bytes, with the framing.
    pub bytes: u32,
    /// Credits that the packet takes on a link.
    pub(super) credits: u32,
}

impl Parcel {
    /// Returns a packet of `bytes` bytes, framing included.
    pub fn new(word: u64, bytes: u32, tag: u64) -> Self {
        Self { word, tag, bytes, ..Self::default() }
    }
}

impl RoutedPacket for Parcel {
    #[inline]
    fn word(&self) -> u64 {
        self.word
    }

    #[inline]
    fn wire_bytes(&self) -> u32 {
        self.bytes
    }
}

/// The part of a lane's first packet that the receiver has been shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Shown {
    /// Nothing, or there is no packet.
    #[default]
    Nothing,
    /// The head.
    Head,
    /// All of it.
    Whole,
}

/// A virtual channel of a link in one direction.
///
/// Its packets are in a ring, in order. The slot of a packet that has left stays in use until the
/// sender has counted the packet's credits: [`Parcel::head`] of such a slot is the time at which
/// the credits are back. The ring grows to the most packets and credit returns that it has held.
///
/// Positions in the ring count up and wrap around at 2^32. The lowest bits of a position are the
/// index of its slot.
///
/// Large networks have more lanes than a cache holds, so a lane takes one cache line only.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Lane {
    /// The ring, whose length is a power of two.
    slots: Box<[Parcel]>,
    /// Position of the first slot whose credits the sender has not counted. The slots from here to
    /// the first packet are in order of the time at which their credits are back.
    oldest: u32,
    /// Position of the first packet.
    first: u32,
    /// Position after the last packet.
    end: u32,
    /// Credits that the sender has left, without those that are back and not counted yet.
    pub(super) credits: u32,
    /// Time at which the receiver is to be shown a part of the first packet, or [`Nanos::NEVER`].
    pub(super) due: Nanos,
    /// Time of the first event for credits, or [`Nanos::NEVER`].
    credit_event: Nanos,
    /// The sender waits for credits while it has fewer than this. It is 1 if the sender has asked
    /// for no number of credits: it is then woken when it had none and gets some.
    wake_at: u16,
    /// Receiving node, and the number of its input.
    pub(super) receiver: u32,
    pub(super) input: u8,
    /// The part of the first packet that the receiver has been shown.
    pub(super) shown: Shown,
    /// There is an event for the first packet. It is not later than [`Lane::due`].
    pub(super) has_event: bool,
    /// Sending port and node.
    pub(super) port: u8,
    pub(super) sender: u32,
}

const _: () = assert!(size_of::<Lane>() == 64);
const _: () = assert!(MAX_CREDITS <= u16::MAX as u32);

impl Lane {
    /// Returns a lane without packets from a port to an input of the node `receiver`, for which the
    /// sender has `credits`.
    pub(super) fn new(from: CableEnd, receiver: u32, input: u8, credits: u32) -> Self {
        Self {
            slots: Box::default(),
            oldest: 0,
            first: 0,
            end: 0,
            wake_at: 1,
            receiver,
            input,
            shown: Shown::Nothing,
            has_event: false,
            port: from.port,
            sender: from.node,
            credits,
            due: Nanos::NEVER,
            credit_event: Nanos::NEVER,
        }
    }

    /// Returns the index of a position's slot.
    #[inline(always)]
    fn slot_index(&self, position: u32) -> usize {
        position as usize & self.slots.len().wrapping_sub(1)
    }

    /// Returns the first packet if its head has been shown.
    #[inline(always)]
    pub(super) fn shown_first(&self) -> Option<&Parcel> {
        if self.shown == Shown::Nothing { None } else { self.slots.get(self.slot_index(self.first)) }
    }

    /// Returns the index of the first packet's slot and the packet, if [`Lane::shown_first`] does.
    #[inline(always)]
    pub(super) fn shown_slot(&self) -> Option<(usize, &Parcel)> {
        let slot = self.slot_index(self.first);
        if self.shown == Shown::Nothing { None } else { self.slots.get(slot).map(|parcel| (slot, parcel)) }
    }

    /// Removes the first packet, which is in the slot with this index ([`Lane::shown_slot`]), and
    /// whose credits are back at `due`. Returns the time at which the head of the next packet
    /// arrives, or [`Nanos::NEVER`] if there is none.
    #[inline(always)]
    pub(super) fn pop(&mut self, slot_index: usize, due: Nanos) -> Nanos {
        self.shown = Shown::Nothing;
        self.due = Nanos::NEVER;
        let first = self.first;
        if let Some(slot) = self.slots.get_mut(slot_index) {
            slot.head = due;
        }
        // A packet that began to leave before this one may give its credits back later.
        if first != self.oldest
            && self.slots.get(self.slot_index(first.wrapping_sub(1))).is_some_and(|last| last.head > due)
        {
            self.sort_returns();
        }

        let next = first.wrapping_add(1);
        self.first = next;
        if next == self.end {
            return Nanos::NEVER;
        }
        self.slots.get(self.slot_index(next)).map_or(Nanos::NEVER, |next| next.head)
    }

    /// Moves the credit return at `first`, which [`Lane::pop`] has just written, before those that
    /// come later. A packet can begin to leave after another one and have left before it.
    #[cold]
    #[inline(never)]
    fn sort_returns(&mut self) {
        let mut position = self.first;
        while position != self.oldest {
            let (here, before) = (self.slot_index(position), self.slot_index(position.wrapping_sub(1)));
            if self.slots[before].head <= self.slots[here].head {
                break;
            }
            // These slots hold no packets any more, but only a time and credits.
            self.slots.swap(before, here);
            position = position.wrapping_sub(1);
        }
    }

    /// Adds a packet that is sent at `now`, and takes its credits from the sender. Returns whether
    /// it is the only packet.
    #[inline(always)]
    pub(super) fn push(&mut self, parcel: Parcel, now: Nanos) -> bool {
        if self.used() == self.slots.len() {
            self.make_room(now);
        }

        self.credits -= parcel.credits;
        let (end, index) = (self.end, self.slot_index(self.end));
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = parcel;
        }
        self.end = end.wrapping_add(1);
        self.first == end
    }

    /// Returns the number of slots that packets and credit returns use.
    #[inline(always)]
    fn used(&self) -> usize {
        self.end.wrapping_sub(self.oldest) as usize
    }

    /// Makes room for another packet: frees the slots of the credits that are back, and doubles the
    /// ring if that frees too few.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self, now: Nanos) {
        // With three quarters of the slots free, the next call is some packets away.
        self.count_returns(now);
        let used = self.used();
        if used < self.slots.len() && used <= self.slots.len() / 4 {
            return;
        }

        let length = (2 * self.slots.len()).max(4);
        let oldest = self.slot_index(self.oldest);

        // The slots of the longer ring begin with the oldest one.
        let mut slots = Vec::with_capacity(length);
        let (wrapped, from_oldest) = self.slots.split_at(oldest);
        slots.extend_from_slice(from_oldest);
        slots.extend_from_slice(wrapped);
        slots.resize(length, Parcel::default());

        self.slots = slots.into_boxed_slice();
        self.first = self.first.wrapping_sub(self.oldest);
        (self.oldest, self.end) = (0, used as u32);
    }

    /// Returns whether the sender waits for credits, so that their return is an event.
    #[inline(always)]
    pub(super) fn sender_waits(&self) -> bool {
        self.credits < self.wake_at.into()
    }

    /// Returns the slot of the first credits that are on their way back, if there are some.
    #[inline(always)]
    fn next_return(&self) -> Option<&Parcel> {
        if self.oldest == self.first { None } else { self.slots.get(self.slot_index(self.oldest)) }
    }

    /// Removes the first credits that are back at `now`, and returns their number.
    #[inline(always)]
    fn take_return(&mut self, now: Nanos) -> Option<u32> {
        let credits = self.next_return().filter(|returned| returned.head <= now)?.credits;
        self.oldest = self.oldest.wrapping_add(1);
        Some(credits)
    }

    /// Counts the credits that are back at `now` as the sender's. It wakes no sender: if one waits
    /// for these credits, their event has done so before.
    #[inline(always)]
    pub(super) fn count_returns(&mut self, now: Nanos) {
        let (mut oldest, mut credits) = (self.oldest, self.credits);
        while oldest != self.first
            && let Some(back) = self.slots.get(self.slot_index(oldest))
            && back.head <= now
        {
            credits += back.credits;
            oldest = oldest.wrapping_add(1);
        }
        (self.oldest, self.credits) = (oldest, credits);
    }

    /// Counts the credits that are back at `now`, and returns those that the sender has.
    #[cold]
    #[inline(never)]
    pub(super) fn credits_after_returns(&mut self, now: Nanos) -> u32 {
        self.count_returns(now);
        self.credits
    }

    /// Returns the credits that the sender has at `now`.
    #[inline]
    pub(super) fn credits_at(&self, now: Nanos) -> u32 {
        let count = self.first.wrapping_sub(self.oldest);
        let returns = (0..count).map(|after| &self.slots[self.slot_index(self.oldest.wrapping_add(after))]);
        let counted = returns.take_while(|returned| returned.head <= now);
        self.credits + counted.map(|returned| returned.credits).sum::<u32>()
    }

    /// Has the sender woken when it has `credits` credits, which it does not have now, or the
    /// smaller number that it already waits for.
    pub(super) fn wake_sender_at(&mut self, credits: u32) {
        // With 1, the sender has asked for no number yet.
        let wake_at = if self.wake_at > 1 { credits.min(self.wake_at.into()) } else { credits };
        self.wake_at = wake_at.clamp(1, MAX_CREDITS) as u16;
    }

    /// Returns the time of the event that the caller must add for the next credits that return, or
    /// `None` if none return or their event has been added.
    pub(super) fn next_credit_event(&mut self) -> Option<Nanos> {
        let due = self.next_return()?.head;
        if due >= self.credit_event {
            return None;
        }
        self.credit_event = due;
        Some(due)
    }

    /// Carries out the credit events until `now`: counts the credits that are back as the sender's.
    /// Returns whether the sender is to be woken, because it had none or has the number that it
    /// waits for.
    pub(super) fn return_credits(&mut self, now: Nanos) -> bool {
        if self.credit_event <= now {
            self.credit_event = Nanos::NEVER;
        }

        let mut wakes = false;
        while let Some(credits) = self.take_return(now) {
            let had_none = self.credits == 0;
            self.credits += credits;
            let has_enough = self.wake_at > 1 && !self.sender_waits();
            if has_enough {
                self.wake_at = 1;
            }
            wakes |= had_none || has_enough;
        }
        wakes
    }
}
