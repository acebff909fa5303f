//! A virtual channel of a link in one direction: its buffer, its credits, and what its receiver has
//! been shown.

use nicforge_core::{fabric::returns::Returns, time::Nanos};

use crate::router::Carried;

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

impl Carried for Parcel {
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
    /// The head, and the receiver waits for the tail.
    HeadAndTail,
    /// All of it.
    Whole,
}

/// The packets of a lane, in order. The memory grows to the most packets that it has held.
#[derive(Debug, Default)]
struct Buffer {
    /// A ring, whose length is a power of two.
    slots: Box<[Parcel]>,
    first: u32,
    length: u32,
}

impl Buffer {
    #[inline]
    fn front(&self) -> Option<&Parcel> {
        if self.length == 0 { None } else { self.slots.get(self.first as usize) }
    }

    #[inline(always)]
    fn push(&mut self, parcel: Parcel) {
        if self.length as usize == self.slots.len() {
            self.grow();
        }
        let mask = self.slots.len().wrapping_sub(1);
        if let Some(slot) = self.slots.get_mut((self.first + self.length) as usize & mask) {
            *slot = parcel;
            self.length += 1;
        }
    }

    /// Removes the first packet, if there is one.
    #[inline]
    fn skip(&mut self) {
        self.first = (self.first + 1) & (self.slots.len() as u32).wrapping_sub(1);
        self.length = self.length.saturating_sub(1);
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let mut slots: Vec<_> = self.slots.to_vec();
        slots.rotate_left(self.first as usize);
        slots.resize((2 * slots.len()).max(2), Parcel::default());
        (self.slots, self.first) = (slots.into_boxed_slice(), 0);
    }
}

/// A lane.
///
/// The fields of the receiving end come first, and those of the sending end behind them, each on a
/// cache line. Large networks have more lanes than a cache holds.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Lane {
    buffer: Buffer,
    /// Receiving node, and the bit of its input.
    pub(super) receiver: u32,
    pub(super) input: u8,
    pub(super) shown: Shown,
    /// There is an event for the first packet. It is not later than the packet's next time.
    pub(super) has_event: bool,
    /// Sending node and port.
    pub(super) port: u8,
    pub(super) sender: u32,
    /// Credits that the sender has left, without those that are back and that it has not looked at.
    pub(super) credits: u32,
    /// Number of credits at which the sender is woken, or 0.
    wake_at: u32,
    /// Arrival time of the last packet's tail.
    pub(super) last_arrival: Nanos,
    returns: Returns,
    /// Time of the first event for credits, or [`Nanos::NEVER`].
    credit_event: Nanos,
    /// Packets sent.
    pub(super) packets: u64,
}

const _: () = assert!(size_of::<Lane>() == 128);

impl Lane {
    pub(super) fn new((sender, port): (u32, u8), (receiver, input): (u32, u8), credits: u32) -> Self {
        Self {
            buffer: Buffer::default(),
            receiver,
            input,
            shown: Shown::Nothing,
            has_event: false,
            port,
            sender,
            credits,
            wake_at: 0,
            last_arrival: Nanos::ZERO,
            returns: Returns::default(),
            credit_event: Nanos::NEVER,
            packets: 0,
        }
    }

    /// Returns the first packet.
    #[inline]
    pub(super) fn first(&self) -> Option<&Parcel> {
        self.buffer.front()
    }

    /// Returns the first packet if its head has been shown.
    #[inline]
    pub(super) fn shown_first(&self) -> Option<&Parcel> {
        if self.shown == Shown::Nothing { None } else { self.buffer.front() }
    }

    /// Removes the first packet. Returns the time at which the head of the next one arrives.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Nanos> {
        self.shown = Shown::Nothing;
        self.buffer.skip();
        self.first().map(|next| next.head)
    }

    /// Adds a packet, which takes its credits.
    #[inline(always)]
    pub(super) fn push(&mut self, parcel: Parcel) {
        self.credits -= parcel.credits;
        self.last_arrival = parcel.tail;
        self.packets += 1;
        self.buffer.push(parcel);
    }

    /// Returns whether the sender waits for credits, so that their return is an event.
    #[inline]
    fn is_watched(&self) -> bool {
        self.credits == 0 || self.wake_at > 0
    }

    /// Counts the credits that are back at `now`. A sender that waits for some has an event for
    /// that.
    #[inline(always)]
    pub(super) fn count_returns(&mut self, now: Nanos) {
        while self.returns.next() <= now && !self.is_watched() {
            self.credits += self.returns.pop(now).unwrap_or(0);
        }
    }

    /// Returns the credits that the sender has at `now`.
    #[inline]
    pub(super) fn credits_at(&self, now: Nanos) -> u32 {
        let is_counted = self.returns.next() > now || self.is_watched();
        if is_counted { self.credits } else { self.credits + self.returns.count(now) }
    }

    /// Adds credits that are back at `due`.
    #[inline(always)]
    pub(super) fn return_later(&mut self, credits: u32, now: Nanos, due: Nanos) {
        // Those that are back need no place any more.
        if self.returns.is_full() {
            self.count_returns(now);
        }
        self.returns.push(due, credits);
    }

    /// Lets the sender wake when it has `credits` credits, or a smaller number that it already
    /// waits for.
    pub(super) fn wake_sender_at(&mut self, credits: u32) {
        // A sender without credits is woken at the first one in any case.
        if credits > 1 {
            self.wake_at = if self.wake_at == 0 { credits } else { self.wake_at.min(credits) };
        }
    }

    /// Returns the time of an event to add for credits, if the sender waits for some.
    #[inline(always)]
    pub(super) fn next_credit_event(&mut self) -> Option<Nanos> {
        if self.is_watched() { self.earlier_credit_event() } else { None }
    }

    /// Returns the time of the next return, unless there is an event for it.
    #[inline(never)]
    fn earlier_credit_event(&mut self) -> Option<Nanos> {
        if self.returns.next() >= self.credit_event {
            return None;
        }
        self.credit_event = self.returns.next();
        Some(self.credit_event)
    }

    /// Returns the credits that are due to the sender. Returns whether it is to be woken.
    pub(super) fn return_due(&mut self, due: Nanos) -> bool {
        if self.credit_event <= due {
            self.credit_event = Nanos::NEVER;
        }

        let mut wakes = false;
        while let Some(credits) = self.returns.pop(due) {
            let had_none = self.credits == 0;
            self.credits += credits;
            let has_enough = self.wake_at > 0 && self.credits >= self.wake_at;
            if has_enough {
                self.wake_at = 0;
            }
            wakes |= had_none || has_enough;
        }
        wakes
    }
}
