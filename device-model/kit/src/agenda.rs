//! Several timers of one device.
//!
//! A function has one timer, [`Context::wake_at`]. A device with several times in mind keeps an
//! [`Agenda`], and calls [`Agenda::request_step`] at the end of each call in which it set or
//! took a time.
//! The agenda has a fixed number of timers. They are named by numbers from 0, for which a device
//! has constants. A device without an agenda pays nothing for it.
//!
//! ```
//! # use nicforge_core::{context::Context, time::Nanos};
//! # use nicforge_kit::Agenda;
//! const RETRY: usize = 0;
//! const WATCHDOG: usize = 1;
//!
//! fn step(agenda: &mut Agenda<2>, context: &mut Context<'_>) {
//!     while let Some(timer) = agenda.take_due(context.now()) {
//!         match timer {
//!             RETRY => { /* tries again */ }
//!             _ => agenda.set(WATCHDOG, context.now() + 1_000_000),
//!         }
//!     }
//!     agenda.request_step(context);
//! }
//! ```

use nicforge_core::{context::Context, time::Nanos};

/// `N` timers, each set to a time or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agenda<const N: usize> {
    /// The times, [`Nanos::NEVER`] for a timer that is not set.
    due: [Nanos; N],
}

impl<const N: usize> Default for Agenda<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Agenda<N> {
    /// Returns an agenda whose timers are not set.
    pub const fn new() -> Self {
        Self { due: [Nanos::NEVER; N] }
    }

    /// Sets a timer, in place of its earlier time. A timer that does not exist is ignored, and
    /// [`Nanos::NEVER`] cancels.
    pub fn set(&mut self, timer: usize, time: Nanos) {
        if let Some(due) = self.due.get_mut(timer) {
            *due = time;
        }
    }

    /// Sets a timer unless it is set to an earlier time.
    pub fn set_earlier(&mut self, timer: usize, time: Nanos) {
        if let Some(due) = self.due.get_mut(timer) {
            *due = time.min(*due);
        }
    }

    /// Cancels a timer.
    pub fn cancel(&mut self, timer: usize) {
        self.set(timer, Nanos::NEVER);
    }

    /// Cancels all timers, as a reset does.
    pub fn clear(&mut self) {
        *self = Self::new();
    }

    /// Returns the time of a timer, or `None` if it is not set.
    pub fn time_of(&self, timer: usize) -> Option<Nanos> {
        self.due.get(timer).copied().filter(|&time| time < Nanos::NEVER)
    }

    /// Returns the earliest time, or [`Nanos::NEVER`] if no timer is set.
    pub fn next(&self) -> Nanos {
        self.due.iter().copied().min().unwrap_or(Nanos::NEVER)
    }

    /// Takes the timer with the earliest time, if that is not after `now`, and cancels it. Of
    /// several with the same time it takes the one with the lowest number.
    ///
    /// A device should call it until it returns `None`. A timer that is set to a time until `now`
    /// in between is taken in the same loop, so a periodic timer should be set to a time after
    /// `now`.
    pub fn take_due(&mut self, now: Nanos) -> Option<usize> {
        let time = self.next();
        if time > now || time == Nanos::NEVER {
            return None;
        }

        let timer = self.due.iter().position(|&due| due == time)?;
        self.cancel(timer);

        Some(timer)
    }

    /// Asks the machine for a step of the device at the time of the earliest timer.
    ///
    /// A request can't be withdrawn: after a timer was cancelled, the machine still steps the
    /// device at that timer's time, and [`Agenda::take_due`] may then return `None`. Each step
    /// consumes its request, so a device with timers left must call this method again.
    pub fn request_step(&self, context: &mut Context<'_>) {
        let earliest = self.next();
        if earliest < Nanos::NEVER {
            context.wake_at(earliest);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TIMERS: usize = 4;

    #[derive(Clone, Debug)]
    /// An action on an agenda: a timer's number, and nanoseconds after the current time.
    enum Action {
        Set(usize, u64),
        SetEarlier(usize, u64),
        Cancel(usize),
        Pass(u64),
    }

    /// Generates an action.
    fn action() -> impl Strategy<Value = Action> {
        // The number `TIMERS` names no timer, so actions on it must change nothing.
        let timer = 0..=TIMERS;
        prop_oneof![
            (timer.clone(), 0..100_u64).prop_map(|(timer, after)| Action::Set(timer, after)),
            (timer.clone(), 0..100_u64).prop_map(|(timer, after)| Action::SetEarlier(timer, after)),
            timer.prop_map(Action::Cancel),
            (0..60_u64).prop_map(Action::Pass),
        ]
    }

    proptest! {
        /// The reference is a list of {time, timer}, which is searched.
        #[test]
        fn timers_are_taken_once_in_the_order_of_their_times(
            actions in proptest::collection::vec(action(), 1..200),
        ) {
            let mut agenda = Agenda::<TIMERS>::new();
            let mut expected: Vec<(u64, usize)> = Vec::new();
            let mut now = 0;

            for action in actions {
                match action {
                    Action::Set(timer, after) => {
                        agenda.set(timer, Nanos(now + after));
                        expected.retain(|(_, other)| *other != timer);
                        expected.extend((timer < TIMERS).then_some((now + after, timer)));
                    }
                    Action::SetEarlier(timer, after) => {
                        agenda.set_earlier(timer, Nanos(now + after));
                        if !expected.iter().any(|(time, other)| *other == timer && *time <= now + after) {
                            expected.retain(|(_, other)| *other != timer);
                            expected.extend((timer < TIMERS).then_some((now + after, timer)));
                        }
                    }
                    Action::Cancel(timer) => {
                        agenda.cancel(timer);
                        expected.retain(|(_, other)| *other != timer);
                    }
                    Action::Pass(time) => {
                        now += time;
                        let taken: Vec<_> = std::iter::from_fn(|| agenda.take_due(Nanos(now))).collect();
                        expected.sort_unstable();
                        let count = expected.iter().take_while(|(time, _)| *time <= now).count();
                        let due: Vec<_> = expected.drain(..count).map(|(_, timer)| timer).collect();
                        prop_assert_eq!(taken, due);
                    }
                }

                let next = expected.iter().map(|(time, _)| *time).min();
                prop_assert_eq!(agenda.next(), next.map_or(Nanos::NEVER, Nanos));
                for timer in 0..=TIMERS {
                    let time = expected.iter().find(|(_, other)| *other == timer).map(|(time, _)| Nanos(*time));
                    prop_assert_eq!(agenda.time_of(timer), time);
                }
            }
        }
    }

    #[test]
    fn timer_at_never_is_not_taken_at_the_end_of_time() {
        let mut agenda = Agenda::<1>::new();

        assert_eq!(agenda.take_due(Nanos::NEVER), None);
        agenda.set(0, Nanos(5));
        agenda.clear();
        assert_eq!((agenda.take_due(Nanos(9)), agenda.next()), (None, Nanos::NEVER));
    }
}
