//! The machine of the EXTOLL benchmarks: two cards.

use nicforge::{failure::Failure, serve::Served};
use nicforge_driver::DeviceAddress;
use nicforge_family::Plan;
use nicforge_velo::Address;

use crate::{
    bench::Run,
    machine::{describe, serve, served_at},
    placement::Placement,
};

/// Describes two cards with a link without delay, for the benchmark `bench`.
pub(super) fn two_cards(bench: &str) -> Result<Plan, Failure> {
    describe(bench, "[[extoll]]\nmesh = 2\nvpids = 16\n")
}

/// Serves two cards, with the engine on its processor.
pub(super) fn serve_two_cards(run: &Run<'_>, bench: &str, placement: &Placement) -> Result<Served, Failure> {
    serve(run, &two_cards(bench)?, placement)
}

/// Returns the address of a VPID's device.
pub(super) fn vpid_at(server: &Served, address: Address) -> Result<DeviceAddress, Failure> {
    served_at(server, &format!("ex{}", address.node), address.vpid.into())
}
