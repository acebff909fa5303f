//! nicforge's client, and its driver on top of it, at the server of the `vfio_user` crate with a
//! device of the tests.

mod card;
mod driver;
mod interrupts;
mod memory;
mod negotiation;
mod out_of_step;
mod regions;
mod rig;
