//! A made-up paper about a link. Its latency is that of the software and of a hop; its bandwidth
//! lacks the share of the protocol's bytes.

use nicforge::failure::Failure;
use nicforge_sim::paper::{
    experiment::{Experiment, Mechanism, Run},
    figure::{Axis, Figure, Scale, Series},
    judgement::Tolerance,
    row::Expected,
};

/// The mechanism behind the bandwidth.
const PROTOCOL_BYTES: Mechanism =
    Mechanism { name: "protocol-bytes", without: "a packet is as long as its payload" };
/// The mechanism behind the latency.
const SOFTWARE_COST: Mechanism = Mechanism { name: "software-cost", without: "software takes no time" };

/// The paper whose rows all hold, unless a mechanism is taken away.
pub(crate) const LINK: Experiment = Experiment {
    name: "link",
    title: "A made-up link",
    citation: "N. Author, A Made-up Link, 2026",
    mechanisms: &[PROTOCOL_BYTES, SOFTWARE_COST],
    rows: rows_of_link,
    run: measure_link,
};

/// A paper with a row that no result can put out.
pub(crate) const CANNOT_FAIL: Experiment = Experiment {
    name: "cannot-fail",
    mechanisms: &[],
    rows: || vec![row_with_a_wide_tolerance()],
    run: measure_nothing,
    ..LINK
};

/// A paper that measures a row which it does not name.
pub(crate) const UNNAMED: Experiment = Experiment { name: "unnamed", rows: Vec::new, ..LINK };

fn rows_of_link() -> Vec<Expected> {
    vec![latency(), bandwidth(), share()]
}

fn latency() -> Expected {
    Expected::calibrates("latency", "us", 2.0)
        .within(Tolerance::Microseconds(0.1))
        .null_model(SOFTWARE_COST.name, 0.5)
        .quick()
}

fn bandwidth() -> Expected {
    Expected::predicted("bandwidth", "Gb/s", 6.7)
        .within(Tolerance::Percent(0.5))
        .null_model(PROTOCOL_BYTES.name, 6.8)
}

fn share() -> Expected {
    Expected::derived("share", "%", 98.5)
}

fn row_with_a_wide_tolerance() -> Expected {
    Expected::predicted("wide", "us", 2.0).within(Tolerance::Percent(40.0)).null_model("nothing", 1.0)
}

/// The experiment of a made-up paper: it computes a latency, a bandwidth and a share of it.
fn measure_link(run: &mut Run<'_>) -> Result<(), Failure> {
    run.measure(latency(), |run| Ok(0.5 + if run.has(&SOFTWARE_COST) { 1.5 } else { 0.0 }))?;
    let simulated =
        run.measure(bandwidth(), |run| Ok(6.8 * if run.has(&PROTOCOL_BYTES) { 256.0 / 260.0 } else { 1.0 }))?;

    if let Some(simulated) = simulated {
        run.record(share(), 100.0 * simulated / 6.8)?;
        run.figure(Figure {
            name: "bandwidth",
            title: "Bandwidth".into(),
            x: Axis::new("size (bytes)", Scale::Log2),
            y: Axis::new("bandwidth (Gb/s)", Scale::Linear),
            series: vec![Series::new(
                "one way",
                [(512.0, 3.3), (4096.0, 6.7)],
                [(512.0, 3.3), (4096.0, simulated)],
            )],
        });
    }

    run.note(format!("The seed is {}.", run.seed()));
    Ok(())
}

fn measure_nothing(_: &mut Run<'_>) -> Result<(), Failure> {
    Ok(())
}
