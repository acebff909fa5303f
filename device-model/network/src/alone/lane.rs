//! A virtual channel of a link in one direction: its buffer, its credits, and what its receiver has
//! been shown.

use nicforge_core::{fabric::MAX_CREDITS, time::Nanos};

use crate::router::RoutedPacket;

/// A packet of a network alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Parcel {
    /// Route word.
    pub word: u64,
    /// A number for the nodes' use.
    pub tag: u64,
    /// Time at which the head arrives over the present link.
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

/// A lane.
///
/// Its packets are in a ring, in order. The places of packets that have left stay in the ring until
/// the sender has counted their credits: [`Parcel::head`] of such a place is the time at which the
/// credits are back. The memory grows to the most packets and returns that it has held.
///
/// Positions in the ring count on and wrap. Each is at the place of its lowest bits.
///
/// Large networks have more lanes than a cache holds. One has one cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Lane {
    /// The ring, whose length is a power of two.
    slots: Box<[Parcel]>,
    /// Position of the first place whose credits the sender has not counted. Those up to the first
    /// packet are in order of the time at which the credits are back.
    oldest: u32,
    /// Position of the first packet.
    first: u32,
    /// Position after the last packet.
    end: u32,
    /// Credits that the sender has left, without those that are back and that it has not looked at.
    pub(super) credits: u32,
    /// Time at which the receiver is to be shown a part of the first packet, or [`Nanos::NEVER`].
    pub(super) due: Nanos,
    /// Time of the first event for credits, or [`Nanos::NEVER`].
    credit_event: Nanos,
    /// The sender waits for credits while it has fewer than this. Their return is an event then.
    wake_at: u16,
    /// Receiving node, and the number of its input.
    pub(super) receiver: u32,
    pub(super) input: u8,
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
    pub(super) fn new((sender, port): (u32, u8), (receiver, input): (u32, u8), credits: u32) -> Self {
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
            port,
            sender,
            credits,
            due: Nanos::NEVER,
            credit_event: Nanos::NEVER,
        }
    }

    /// Returns the place of a position.
    #[inline(always)]
    fn place(&self, position: u32) -> usize {
        position as usize & self.slots.len().wrapping_sub(1)
    }

    /// Returns the first packet if its head has been shown.
    #[inline(always)]
    pub(super) fn shown_first(&self) -> Option<&Parcel> {
        if self.shown == Shown::Nothing { None } else { self.slots.get(self.place(self.first)) }
    }

    /// Returns the first packet as [`Lane::shown_first`] does, and its place.
    #[inline(always)]
    pub(super) fn shown_place(&self) -> Option<(usize, &Parcel)> {
        let place = self.place(self.first);
        if self.shown == Shown::Nothing { None } else { self.slots.get(place).map(|parcel| (place, parcel)) }
    }

    /// Removes the first packet, which is at a place ([`Lane::shown_place`]), and whose credits are
    /// back at `due`. Returns the time at which the head of the next one arrives, or
    /// [`Nanos::NEVER`] if there is none.
    #[inline(always)]
    pub(super) fn pop(&mut self, place: usize, due: Nanos) -> Nanos {
        self.shown = Shown::Nothing;
        self.due = Nanos::NEVER;
        let first = self.first;
        if let Some(slot) = self.slots.get_mut(place) {
            slot.head = due;
        }
        if first != self.oldest
            && self.slots.get(self.place(first.wrapping_sub(1))).is_some_and(|last| last.head > due)
        {
            self.sort_returns();
        }

        let next = first.wrapping_add(1);
        self.first = next;
        if next == self.end {
            return Nanos::NEVER;
        }
        self.slots.get(self.place(next)).map_or(Nanos::NEVER, |next| next.head)
    }

    /// Moves the return at the first place, which is the latest one, to its place in order of time.
    /// Packets can leave in another order than that in which their transmissions end.
    #[cold]
    #[inline(never)]
    fn sort_returns(&mut self) {
        let mut at = self.first;
        while at != self.oldest {
            let (here, before) = (self.place(at), self.place(at.wrapping_sub(1)));
            if self.slots[before].head <= self.slots[here].head {
                break;
            }
            // Only the time and the credits of these places count.
            self.slots.swap(before, here);
            at = at.wrapping_sub(1);
        }
    }

    /// Adds a packet at `now`, which takes its credits. Returns whether it is the only one.
    #[inline(always)]
    pub(super) fn push(&mut self, parcel: Parcel, now: Nanos) -> bool {
        if self.used() == self.slots.len() {
            self.make_room(now);
        }

        self.credits -= parcel.credits;
        let (end, place) = (self.end, self.place(self.end));
        if let Some(slot) = self.slots.get_mut(place) {
            *slot = parcel;
        }
        self.end = end.wrapping_add(1);
        self.first == end
    }

    /// Returns the number of places that packets and returns use.
    #[inline(always)]
    fn used(&self) -> usize {
        self.end.wrapping_sub(self.oldest) as usize
    }

    /// Has a place for another packet.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self, now: Nanos) {
        // Those that are back need no place any more. If few are left, there is room for a while.
        self.count_returns(now);
        let used = self.used();
        if used < self.slots.len() && used <= self.slots.len() / 4 {
            return;
        }

        let places = (2 * self.slots.len()).max(4);
        let oldest = self.place(self.oldest);

        let mut slots = Vec::with_capacity(places);
        let (end, begin) = self.slots.split_at(oldest);
        slots.extend_from_slice(begin);
        slots.extend_from_slice(end);
        slots.resize(places, Parcel::default());

        self.slots = slots.into_boxed_slice();
        self.first = self.first.wrapping_sub(self.oldest);
        (self.oldest, self.end) = (0, used as u32);
    }

    /// Returns whether the sender waits for credits, so that their return is an event.
    #[inline(always)]
    pub(super) fn is_watched(&self) -> bool {
        self.credits < self.wake_at.into()
    }

    /// Returns the place of the first credits that are on their way back, if there are some.
    #[inline(always)]
    fn next_return(&self) -> Option<&Parcel> {
        if self.oldest == self.first { None } else { self.slots.get(self.place(self.oldest)) }
    }

    /// Removes the first credits that are back at `now`, and returns their number.
    #[inline(always)]
    fn take_return(&mut self, now: Nanos) -> Option<u32> {
        let credits = self.next_return().filter(|back| back.head <= now)?.credits;
        self.oldest = self.oldest.wrapping_add(1);
        Some(credits)
    }

    /// Counts the credits that are back at `now`. A sender that waits for some has an event for
    /// that, which has come before.
    #[inline(always)]
    pub(super) fn count_returns(&mut self, now: Nanos) {
        let (mut oldest, mut credits) = (self.oldest, self.credits);
        while oldest != self.first
            && let Some(back) = self.slots.get(self.place(oldest))
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
        let returns = (0..count).map(|after| &self.slots[self.place(self.oldest.wrapping_add(after))]);
        let back = returns.take_while(|back| back.head <= now);
        self.credits + back.map(|back| back.credits).sum::<u32>()
    }

    /// Lets the sender wake when it has `credits` credits, which it does not have now, or a smaller
    /// number that it already waits for.
    pub(super) fn wake_sender_at(&mut self, credits: u32) {
        // A sender without credits is woken at the first one in any case.
        let wake_at = if self.wake_at > 1 { credits.min(self.wake_at.into()) } else { credits };
        self.wake_at = wake_at.clamp(1, MAX_CREDITS) as u16;
    }

    /// Returns the time of an event to add for the next return: none if there is an event for it.
    pub(super) fn next_credit_event(&mut self) -> Option<Nanos> {
        let due = self.next_return()?.head;
        if due >= self.credit_event {
            return None;
        }
        self.credit_event = due;
        Some(due)
    }

    /// Returns the credits that are due to the sender. Returns whether it is to be woken.
    pub(super) fn return_due(&mut self, due: Nanos) -> bool {
        if self.credit_event <= due {
            self.credit_event = Nanos::NEVER;
        }

        let mut wakes = false;
        while let Some(credits) = self.take_return(due) {
            let had_none = self.credits == 0;
            self.credits += credits;
            let has_enough = self.wake_at > 1 && !self.is_watched();
            if has_enough {
                self.wake_at = 1;
            }
            wakes |= had_none || has_enough;
        }
        wakes
    }
}
