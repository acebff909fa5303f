//! The placement of threads on processors.
//!
//! A placement names a processor for each role of a benchmark, or leaves the choice to the kernel
//! (`free`). All contestants get the same placement. Two threads on one processor exchange data
//! through the scheduler, and two threads on two processors through a cache line. The difference is
//! larger than any difference measured here.

use nicforge::failure::{ErrorContext, Failure};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

/// Returns the processors that this process may use, in ascending order.
///
/// # Errors
/// Returns an error when the kernel call fails.
pub fn processors() -> Result<Vec<usize>, Failure> {
    let set = sched_getaffinity(Pid::from_raw(0)).context(|| "which processors there are".into())?;
    Ok((0..CpuSet::count()).filter(|&processor| set.is_set(processor).unwrap_or(false)).collect())
}

/// The processors for the roles of a benchmark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    roles: Vec<(&'static str, Option<usize>)>,
}

impl Placement {
    /// Returns the placement in which the kernel places all roles.
    pub fn free() -> Self {
        Self { roles: Vec::new() }
    }

    /// Returns the placement with each of `roles` on its processor.
    pub fn pinned(roles: &[(&'static str, usize)]) -> Self {
        Self { roles: roles.iter().map(|&(role, processor)| (role, Some(processor))).collect() }
    }

    /// Returns the placement with a processor for the engine alone, if there are at least two.
    ///
    /// # Errors
    /// Returns an error when the kernel call fails.
    pub fn engine_alone() -> Result<Self, Failure> {
        Ok(match processors()?.as_slice() {
            [first, second, ..] => Self::pinned(&[("engine", *first), ("application", *second)]),
            _ => Self::free(),
        })
    }

    /// Whether the kernel places all roles.
    pub fn is_free(&self) -> bool {
        self.roles.is_empty()
    }

    /// Returns the processor of `role`, or `None` if it may run anywhere.
    pub fn processor_of(&self, role: &str) -> Option<usize> {
        self.roles.iter().find(|(name, _)| *name == role).and_then(|(_, processor)| *processor)
    }

    /// Returns the text for a row: `engine@0 application@1`, or `free`.
    pub fn text(&self) -> String {
        if self.is_free() {
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

    /// Runs `body` with the calling thread on the processor of `role`. Threads and processes that
    /// it starts begin there, too. The thread's earlier affinity is restored afterwards.
    ///
    /// # Errors
    /// Returns the errors of `body`, and an error when a kernel call fails.
    pub fn within<T>(&self, role: &str, body: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        let Some(processor) = self.processor_of(role) else { return body() };
        let thread = Pid::from_raw(0);
        let before = sched_getaffinity(thread).context(|| "which processors there are".into())?;
        pin(processor)?;
        let result = body();
        sched_setaffinity(thread, &before).context(|| "leaving a processor".into())?;
        result
    }
}

/// Pins the calling thread to `processor`.
///
/// # Errors
/// Returns an error when this process may not use the processor.
pub fn pin(processor: usize) -> Result<(), Failure> {
    let mut set = CpuSet::new();
    set.set(processor)
        .and_then(|()| sched_setaffinity(Pid::from_raw(0), &set))
        .context(|| format!("moving to processor {processor}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_placement_names_each_role_and_its_processor() {
        let placement = Placement::pinned(&[("engine", 0), ("application", 1)]);
        assert_eq!(placement.text(), "engine@0 application@1");
        assert_eq!(placement.processor_of("application"), Some(1));
        assert_eq!(placement.processor_of("client"), None);
        assert_eq!(Placement::free().text(), "free");
    }

    #[test]
    fn affinity_is_restored_after_the_body() {
        let before = processors().unwrap_or_default();
        let placement = Placement::pinned(&[("body", before[0])]);
        let inside = placement.within("body", processors).unwrap_or_default();
        assert_eq!(inside, [before[0]]);
        assert_eq!(processors().unwrap_or_default(), before);
    }
}
