//! Credits on their way back to the sender of a virtual channel.

use std::collections::VecDeque;

use crate::time::Nanos;

/// Number of returns that a [`Returns`] holds without further memory.
const INLINE: usize = 3;

/// Credits on their way back, in order of time.
///
/// Most virtual channels have up to three returns in progress, which take no memory of their own.
#[derive(Debug)]
pub struct Returns {
    /// Times of the first credits, in order. Those after the last are [`Nanos::NEVER`].
    times: [Nanos; INLINE],
    /// The credits of [`Returns::times`], at most [`super::MAX_CREDITS`] each.
    credits: [u16; INLINE],
    /// Number of [`Returns::times`] in use.
    length: u8,
    /// [`Returns::later`] is not empty.
    has_later: bool,
    /// The returns after those of [`Returns::times`], in order of time.
    later: Option<Box<LaterReturns>>,
}

// The credits of a return fit into 16 bits.
const _: () = assert!(super::MAX_CREDITS <= u16::MAX as u32);

/// The later returns of a virtual channel with many in progress.
#[derive(Debug, Default)]
struct LaterReturns {
    returns: VecDeque<Return>,
}

/// Some credits that are back at the same time.
#[derive(Clone, Copy, Debug)]
struct Return {
    /// Time at which they are back.
    due: Nanos,
    /// Number of credits.
    credits: u16,
}

impl Default for Returns {
    fn default() -> Self {
        Self { times: [Nanos::NEVER; INLINE], credits: [0; INLINE], length: 0, has_later: false, later: None }
    }
}

impl Returns {
    /// Adds credits, at most [`super::MAX_CREDITS`], that are back at `due`, before
    /// [`Nanos::NEVER`].
    #[inline]
    pub fn push(&mut self, due: Nanos, credits: u32) {
        let length = usize::from(self.length);
        let is_last = length == 0 || self.times.get(length - 1).is_some_and(|last| *last <= due);
        if is_last
            && let (Some(time), Some(slot)) = (self.times.get_mut(length), self.credits.get_mut(length))
        {
            (*time, *slot) = (due, credits as u16);
            self.length += 1;
            return;
        }
        self.insert(Return { due, credits: credits as u16 });
    }

    /// Adds credits that are not the last ones in time, or for which there is no room in
    /// [`Returns::times`]. Packets can leave in another order than that in which their
    /// transmissions end.
    #[inline(never)]
    fn insert(&mut self, added: Return) {
        // The new return moves those after it back by one. `carried` is what has no room so far: at
        // the end a free entry, or the last return.
        let mut carried = added;
        for (due, credits) in self.times.iter_mut().zip(&mut self.credits) {
            if carried.due < *due {
                std::mem::swap(&mut carried.due, due);
                std::mem::swap(&mut carried.credits, credits);
            }
        }
        if carried.due == Nanos::NEVER {
            self.length += 1;
            return;
        }

        let later = &mut self.later.get_or_insert_default().returns;
        let mut at = later.len();
        later.push_back(carried);
        self.has_later = true;
        while at > 0 && later[at - 1].due > later[at].due {
            later.swap(at - 1, at);
            at -= 1;
        }
    }

    /// Removes the first credits that are back at `now`, and returns their number.
    #[inline]
    pub fn pop(&mut self, now: Nanos) -> Option<u32> {
        let [first, second, third] = self.times;
        if first > now || self.length == 0 {
            return None;
        }

        let [first_credits, second_credits, third_credits] = self.credits;
        self.times = [second, third, Nanos::NEVER];
        self.credits = [second_credits, third_credits, 0];
        self.length -= 1;
        if self.has_later {
            self.move_later_forward();
        }
        Some(first_credits.into())
    }

    /// Moves the first of the later returns to the free last entry of [`Returns::times`].
    #[inline(never)]
    fn move_later_forward(&mut self) {
        let Some(LaterReturns { returns: later }) = self.later.as_deref_mut() else { return };
        if let Some(next) = later.pop_front() {
            (self.times[INLINE - 1], self.credits[INLINE - 1]) = (next.due, next.credits);
            self.length += 1;
        }
        self.has_later = !later.is_empty();
    }

    /// Returns the number of credits that are back at `now`.
    pub fn count(&self, now: Nanos) -> u32 {
        let first = self.times.into_iter().zip(self.credits);
        let later = self.later.iter().flat_map(|later| &later.returns);
        let all = first.chain(later.map(|later| (later.due, later.credits)));
        all.take_while(|(due, _)| *due <= now).map(|(_, credits)| u32::from(credits)).sum()
    }

    /// Returns whether a further return would take memory of its own.
    #[inline]
    pub fn is_full(&self) -> bool {
        usize::from(self.length) == INLINE
    }

    /// Returns the time of the next return, or [`Nanos::NEVER`].
    #[inline]
    pub fn next(&self) -> Nanos {
        self.times[0]
    }
}
