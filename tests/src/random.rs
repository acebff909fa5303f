//! Random cases of bodies.

use proptest::test_runner::{Config, TestRunner};

use crate::backing::Rig;

/// Returns a runner of `cases` random cases, or fewer where [`Rig::repetitions`] says so. It does
/// not shrink a case that fails, because the cases share a machine.
pub fn runner(rig: &dyn Rig, cases: u32) -> TestRunner {
    let config = Config::with_cases(rig.repetitions(cases));
    TestRunner::new(Config { failure_persistence: None, max_shrink_iters: 0, ..config })
}
