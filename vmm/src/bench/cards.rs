//! The machine of the EXTOLL benchmarks: two cards.

use nicforge_machine::description::Description;

use super::{Run, placement::Placement};
use crate::{cli::ServeOptions, failure::Failure, serve::Served};

/// Describes two cards with a link without delay, for the benchmark `bench`.
///
/// # Errors
/// Returns an error when such a machine is impossible.
pub fn two_cards(bench: &str) -> Result<Description, Failure> {
    let text = format!("name = \"bench-{bench}-{}\"\n[[extoll]]\nmesh = 2\nvpids = 16\n", std::process::id());
    Description::parse(&text, "the bench's machine").map_err(|error| Failure::usage(error.to_string()))
}

/// Serves two cards, with the engine on its processor.
///
/// # Errors
/// Returns an error when the machine cannot be served.
pub fn serve_two_cards(run: &Run<'_>, bench: &str, placement: &Placement) -> Result<Served, Failure> {
    let options = ServeOptions::new(None, run.event_loop);
    placement.within("engine", || Served::start_description(&two_cards(bench)?, &options))
}
