//! The flow control protocol against firmware without it. The paper compares both in each figure.

use nicforge_portals::Mode;

use super::{
    COLLECTIVE_NODES, COLLECTIVE_ROUNDS, Failure, MESSAGES, MODES, Model, ROUNDS, Run, micros, rows,
};
use crate::seastar::programs::{Collective, Streams};

/// Bytes of a message. The paper calls such messages small to moderate.
const BYTES: usize = 1024;

/// Measures the time that the protocol takes.
pub(super) fn measure(run: &mut Run<'_>, model: Model) -> Result<(), Failure> {
    let without_protocol = model.without_protocol();
    measure_streams(run, model, without_protocol)?;
    measure_collectives(run, model, without_protocol)?;
    measure_hidden_cost(run, model, without_protocol)
}

/// Measures streams in both directions at once, in which the card is busy all the time (Figure 7).
fn measure_streams(run: &mut Run<'_>, model: Model, without_protocol: Model) -> Result<(), Failure> {
    let time_ns = |model: Model, mode| -> Result<f64, Failure> {
        Ok(model.pair(mode).stream(BYTES, MESSAGES, Streams::BothWays)?.as_nanos())
    };

    run.show("streams with and without the protocol")?;
    let [host, nic] = [Mode::HostBased, Mode::NicBased]
        .map(|mode| -> Result<_, Failure> { Ok((time_ns(model, mode)?, time_ns(without_protocol, mode)?)) });
    let ((host, host_without), (nic, nic_without)) = (host?, nic?);

    run.record(rows::protocol_time_on_card(), (nic - nic_without) - (host - host_without))?;
    run.record(rows::advantage_with_protocol(), 100.0 * (host / nic) / (host_without / nic_without))?;
    run.record(rows::rate_with_protocol(), 100.0 * nic_without / nic)
}

/// Adds a note of the protocol's time in measurements where other work hides it (Figures 4 and 6).
fn measure_hidden_cost(run: &mut Run<'_>, model: Model, without_protocol: Model) -> Result<(), Failure> {
    run.show("the protocol behind other work")?;
    let mut costs = Vec::new();
    for (mode, name) in MODES {
        let one_way_time = |model: Model| -> Result<f64, Failure> {
            Ok(model.pair(mode).ping_pong(BYTES, ROUNDS, 0)?.as_nanos())
        };
        let stream = |model: Model| -> Result<f64, Failure> {
            Ok(model.pair(mode).stream(BYTES, MESSAGES, Streams::OneWay)?.as_nanos())
        };
        let of_latency = one_way_time(model)? - one_way_time(without_protocol)?;
        let in_stream = stream(model)? - stream(without_protocol)?;
        costs.push(format!(
            "{name} {of_latency:.0} ns of the latency and {in_stream:.0} ns in a stream one way"
        ));
    }

    run.note(format!(
        "the protocol's time for 1 KB where other work hides it: {}; the paper calls the first measurable, but \
         minimal, and has the second reduce the advantage of NIC-based mode",
        costs.join(", ")
    ));
    Ok(())
}

/// Measures barriers with the protocol, in percent of those without it (Figures 8 and 9).
fn measure_collectives(run: &mut Run<'_>, model: Model, without_protocol: Model) -> Result<(), Failure> {
    let time = |model: Model, mode, collective| -> Result<f64, Failure> {
        Ok(micros(model.nodes(COLLECTIVE_NODES, mode, "").collective(collective, COLLECTIVE_ROUNDS)?))
    };

    for (mode, name) in MODES {
        run.measure(rows::barrier_with_protocol(name), |_| {
            let barrier = |model| time(model, mode, Collective::Barrier);
            Ok(100.0 * barrier(model)? / barrier(without_protocol)?)
        })?;
    }
    Ok(())
}
