//! Coroutines with stacks of their own, which can be suspended from any depth of calls.
//!
//! The module is `unsafe` for one thing: a suspended coroutine is reached through a pointer to its
//! yielder, because the libraries between the program and the simulation do not pass it on.
#![allow(unsafe_code)]

use std::{
    cell::Cell,
    ptr::{self, NonNull},
    rc::Rc,
};

use corosensei::{Coroutine, CoroutineResult, Yielder};

type Suspender = Yielder<(), ()>;

thread_local! {
    /// The yielder of the coroutine that runs on this thread, or null.
    static RUNNING: Cell<*const Suspender> = const { Cell::new(ptr::null()) };
}

/// A coroutine with a stack of its own.
pub(super) struct Fiber {
    coroutine: Coroutine<(), (), ()>,
    /// Its yielder, once it has begun.
    yielder: Rc<Cell<*const Suspender>>,
}

/// Restores [`RUNNING`] when it is dropped, also after a panic.
struct Resumed {
    previous: *const Suspender,
}

impl Drop for Resumed {
    fn drop(&mut self) {
        RUNNING.set(self.previous);
    }
}

impl Drop for Fiber {
    /// Unwinds a suspended coroutine. Its destructors run on its stack. They can suspend neither it
    /// nor the coroutine that drops it.
    fn drop(&mut self) {
        let _resumed = Resumed { previous: RUNNING.replace(ptr::null()) };
        if self.coroutine.started() && !self.coroutine.done() {
            self.coroutine.force_unwind();
        }
    }
}

impl Fiber {
    /// Creates a coroutine that will run `body`.
    pub(super) fn new(body: Box<dyn FnOnce()>) -> Self {
        let yielder = Rc::new(Cell::new(ptr::null()));
        let while_running = yielder.clone();
        let coroutine = Coroutine::new(move |yielder: &Suspender, ()| {
            while_running.set(yielder);
            RUNNING.set(yielder);
            body();
            while_running.set(ptr::null());
        });
        Self { coroutine, yielder }
    }

    /// Runs the coroutine until it is suspended or has ended. Returns whether it has ended. This
    /// call panics if the coroutine panics.
    pub(super) fn resume(&mut self) -> bool {
        if self.coroutine.done() {
            return true;
        }

        let _resumed = Resumed { previous: RUNNING.replace(self.yielder.get()) };
        matches!(self.coroutine.resume(()), CoroutineResult::Return(()))
    }
}

/// Suspends the coroutine that runs on this thread, until it is resumed. Does nothing outside of
/// coroutines.
pub(super) fn suspend() {
    let Some(yielder) = NonNull::new(RUNNING.get().cast_mut()) else { return };
    // SAFETY: `RUNNING` is the yielder of the coroutine that runs, from the beginning to the end of
    // its `Fiber::resume`, and null while any coroutine is unwound. The yielder is an argument of
    // the coroutine's function, which has not returned.
    unsafe { yielder.as_ref() }.suspend(());
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn coroutines_alternate_from_within_nested_calls() {
        let observed = Rc::new(RefCell::new(Vec::new()));
        let body = |name: char| {
            let observed = observed.clone();
            Fiber::new(Box::new(move || {
                for number in 0..2 {
                    observed.borrow_mut().push((name, number));
                    suspend();
                }
            }))
        };

        let (mut first, mut second) = (body('a'), body('b'));
        let ends: Vec<bool> = (0..3).flat_map(|_| [first.resume(), second.resume()]).collect();
        assert_eq!(*observed.borrow(), [('a', 0), ('b', 0), ('a', 1), ('b', 1)]);
        assert_eq!(ends, [false, false, false, false, true, true]);
    }

    #[test]
    fn a_dropped_coroutine_drops_what_it_holds() {
        let held = Rc::new(());
        let copy = held.clone();
        let mut fiber = Fiber::new(Box::new(move || {
            let _copy = copy;
            suspend();
        }));
        fiber.resume();
        drop(fiber);
        assert_eq!(Rc::strong_count(&held), 1);
    }
}
