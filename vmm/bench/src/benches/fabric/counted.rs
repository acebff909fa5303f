//! The function whose instructions are counted. callgrind finds it by its name.

use nicforge::failure::Failure;
use nicforge_core::machine::Machine;

use super::run_until;

/// The path of this module, which is a part of the function's name.
pub(super) const MODULE: &str = module_path!();

/// Runs the measured part of the virtual time.
#[inline(never)]
pub(super) fn run_window(machine: &mut Machine, until: u64) -> Result<(), Failure> {
    run_until(machine, until)
}
