//! Which thread runs where.
//!
//! A placement names a processor for each role of a bench, or leaves it to the kernel (`free`). What is compared gets the same
//! one: two threads on one processor hand over by the scheduler, on two by a cache line, and the difference is larger than
//! anything that is measured here.

use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

use crate::failure::{Doing, Failure};

/// The processors this process may use, in ascending order.
///
/// # Errors
/// When the kernel does not tell.
pub fn processors() -> Result<Vec<usize>, Failure> {
    let set = sched_getaffinity(Pid::from_raw(0)).doing(|| "which processors there are".into())?;
    Ok((0..CpuSet::count()).filter(|&processor| set.is_set(processor).unwrap_or(false)).collect())
}

/// Processors for the roles of a bench.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    roles: Vec<(&'static str, Option<usize>)>,
}

impl Placement {
    /// The kernel decides for all.
    pub fn free() -> Self {
        Self { roles: Vec::new() }
    }

    /// `roles` on the processors beside them.
    pub fn pinned(roles: &[(&'static str, usize)]) -> Self {
        Self { roles: roles.iter().map(|&(role, processor)| (role, Some(processor))).collect() }
    }

    /// Where `role` runs; `None`: anywhere.
    pub fn of(&self, role: &str) -> Option<usize> {
        self.roles.iter().find(|(name, _)| *name == role).and_then(|(_, processor)| *processor)
    }

    /// For a row: `engine@0 application@1`, or `free`.
    pub fn text(&self) -> String {
        if self.roles.is_empty() {
            return "free".into();
        }
        let parts: Vec<_> = self
            .roles
            .iter()
            .map(|(role, processor)| match processor {
                Some(processor) => format!("{role}@{processor}"),
                None => format!("{role}@any"),
            })
            .collect();
        parts.join(" ")
    }

    /// Runs `body` with the calling thread where `role` belongs; threads and processes that it starts begin there too. The thread's
    /// own place is restored.
    ///
    /// # Errors
    /// Those of `body`, and when the kernel refuses.
    pub fn within<T>(&self, role: &str, body: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        let Some(processor) = self.of(role) else { return body() };
        let thread = Pid::from_raw(0);
        let before = sched_getaffinity(thread).doing(|| "which processors there are".into())?;
        pin(processor)?;
        let result = body();
        sched_setaffinity(thread, &before).doing(|| "leaving a processor".into())?;
        result
    }
}

/// Keeps the calling thread on `processor`.
///
/// # Errors
/// When this process may not use it.
pub fn pin(processor: usize) -> Result<(), Failure> {
    let mut set = CpuSet::new();
    set.set(processor)
        .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set))
        .doing(|| format!("moving to processor {processor}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placement_says_who_is_where() {
        let placement = Placement::pinned(&[("engine", 0), ("application", 1)]);
        assert_eq!(placement.text(), "engine@0 application@1");
        assert_eq!(placement.of("application"), Some(1));
        assert_eq!(placement.of("nobody"), None);
        assert_eq!(Placement::free().text(), "free");
    }

    #[test]
    fn the_place_before_is_restored() {
        let before = processors().unwrap_or_default();
        let one = Placement::pinned(&[("body", before[0])]);
        let inside = one.within("body", processors).unwrap_or_default();
        assert_eq!(inside, [before[0]]);
        assert_eq!(processors().unwrap_or_default(), before);
    }
}
