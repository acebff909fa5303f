//! Our client, and our driver on top of it, at the crate's server with a device of the test's own.

mod card;
mod driver;
mod interrupts;
mod memory;
mod negotiation;
mod out_of_step;
mod regions;
mod rig;
