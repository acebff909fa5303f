//! Credits on their way back to the sender of a virtual channel.

use std::collections::VecDeque;

use crate::time::Nanos;

/// Credits that return at different times and that need no further memory.
const RETURNS: usize = 3;

/// Credits on their way back, in order of time.
///
/// Most virtual channels have up to three returns in progress, which take no memory of their own.
#[derive(Debug)]
pub struct Returns {
    /// Times of the first credits, in order. Those after the last are [`Nanos::NEVER`].
    times: [Nanos; RETURNS],
    /// The credits of [`Returns::times`], at most [`super::MAX_CREDITS`] each.
    credits: [u16; RETURNS],
    /// Number of [`Returns::times`] in use.
    length: u8,
    /// [`Returns::more`] is not empty.
    has_more: bool,
    /// The credits after those of [`Returns::times`], in order of time.
    more: Option<Box<More>>,
}

// The credits of a return fit into 16 bits.
const _: () = assert!(super::MAX_CREDITS <= u16::MAX as u32);

/// The returns of a virtual channel with many in progress.
#[derive(Debug, Default)]
struct More {
    returns: VecDeque<Return>,
}

/// Credits on their way back.
#[derive(Clone, Copy, Debug)]
struct Return {
    due: Nanos,
    credits: u16,
}

impl Default for Returns {
    fn default() -> Self {
        Self { times: [Nanos::NEVER; RETURNS], credits: [0; RETURNS], length: 0, has_more: false, more: None }
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

    /// Adds credits in front of others, or after those that need no further memory. Packets can
    /// leave in another order than that in which their transmissions end.
    #[inline(never)]
    fn insert(&mut self, mut last: Return) {
        for (due, credits) in self.times.iter_mut().zip(&mut self.credits) {
            if last.due < *due {
                std::mem::swap(&mut last.due, due);
                std::mem::swap(&mut last.credits, credits);
            }
        }
        if last.due == Nanos::NEVER {
            self.length += 1;
            return;
        }

        let more = &mut self.more.get_or_insert_default().returns;
        let mut at = more.len();
        more.push_back(last);
        self.has_more = true;
        while at > 0 && more[at - 1].due > more[at].due {
            more.swap(at - 1, at);
            at -= 1;
        }
    }

    /// Removes the first credits that are back at `now`, and returns their number.
    #[inline]
    pub fn pop(&mut self, now: Nanos) -> Option<u32> {
        let [due, second, third] = self.times;
        if due > now || self.length == 0 {
            return None;
        }

        let [credits, second_credits, third_credits] = self.credits;
        self.times = [second, third, Nanos::NEVER];
        self.credits = [second_credits, third_credits, 0];
        self.length -= 1;
        if self.has_more {
            self.take_other();
        }
        Some(credits.into())
    }

    /// Moves the first of the credits behind those that need no further memory to these.
    #[inline(never)]
    fn take_other(&mut self) {
        let Some(More { returns: more }) = self.more.as_deref_mut() else { return };
        if let Some(next) = more.pop_front() {
            (self.times[RETURNS - 1], self.credits[RETURNS - 1]) = (next.due, next.credits);
            self.length += 1;
        }
        self.has_more = !more.is_empty();
    }

    /// Returns the number of credits that are back at `now`.
    pub fn count(&self, now: Nanos) -> u32 {
        let own = self.times.into_iter().zip(self.credits);
        let others = self.more.iter().flat_map(|more| &more.returns);
        let all = own.chain(others.map(|back| (back.due, back.credits)));
        all.take_while(|(due, _)| *due <= now).map(|(_, credits)| u32::from(credits)).sum()
    }

    /// Returns whether further returns take memory of their own.
    #[inline]
    pub fn is_full(&self) -> bool {
        usize::from(self.length) == RETURNS
    }

    /// Returns the time of the next return, or [`Nanos::NEVER`].
    #[inline]
    pub fn next(&self) -> Nanos {
        self.times[0]
    }
}
