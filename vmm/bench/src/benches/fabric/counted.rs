//! The function whose instructions are counted. callgrind finds it by its name.

use super::traffic::Traffic;
use nicforge::failure::Failure;

/// The path of this module, which is a part of the function's name.
pub(super) const MODULE: &str = module_path!();

/// Runs the measured part of the virtual time.
#[inline(never)]
pub(super) fn run_window(traffic: &mut Traffic, until: u64) -> Result<(), Failure> {
    traffic.run_until(until)
}
