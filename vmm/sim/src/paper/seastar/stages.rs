//! The stages of a message's way (Figure 10).
//!
//! The time of a stage is that by which the latency falls when the stage takes no time. So what
//! overlaps with another stage counts for neither.

use nicforge_portals::Mode;

use super::{Failure, MODES, Model, ROUNDS, Run, micros, rows};

/// Bytes of the message whose stages are measured. Its header packet has room for them.
const BYTES: usize = 8;

/// A part of the way of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Links and routers.
    Router,
    /// Stores to the card's memory and loads of it, its bytes, and polls of memory by the host.
    HostInterface,
    /// The work of the library above Portals for a message: that of MPI in the paper.
    Library,
    /// Interrupts.
    Interrupts,
    /// System calls and matching on the host.
    Kernel,
    /// The embedded processor: its polling loop, and the work for the message.
    Firmware,
}

impl Stage {
    /// All stages, with their names.
    const ALL: [(Self, &'static str); 6] = [
        (Self::Router, "router and links"),
        (Self::HostInterface, "host interface"),
        (Self::Library, "library"),
        (Self::Interrupts, "interrupts"),
        (Self::Kernel, "kernel"),
        (Self::Firmware, "embedded processor"),
    ];
}

/// The one-way time of a message in a mode, and the times of its stages, in microseconds.
struct StageTimes {
    total: f64,
    /// The times of [`Stage::ALL`].
    stages: [f64; Stage::ALL.len()],
}

impl StageTimes {
    /// Measures a one-way message with all stages, and without each of them.
    fn measure(model: Model, mode: Mode) -> Result<Self, Failure> {
        let one_way_time = |model: Model| -> Result<f64, Failure> {
            Ok(micros(model.pair(mode).ping_pong(BYTES, ROUNDS, 0)?))
        };
        let total = one_way_time(model)?;

        let mut stages = [0.0; Stage::ALL.len()];
        for (time, (stage, _)) in stages.iter_mut().zip(Stage::ALL) {
            *time = total - one_way_time(Model { left_out: Some(stage), ..model })?;
        }
        Ok(Self { total, stages })
    }

    /// Returns the sum of the times of these stages.
    fn time(&self, stages: &[Stage]) -> f64 {
        let all = Stage::ALL.iter().zip(self.stages);
        all.filter(|((stage, _), _)| stages.contains(stage)).map(|(_, time)| time).sum()
    }

    /// Returns the sentence that names all times.
    fn sentence(&self, mode: &str) -> String {
        let stages: Vec<String> =
            Stage::ALL.iter().zip(self.stages).map(|((_, name), time)| format!("{name} {time:.2}")).collect();
        format!("stages of {BYTES} bytes one way, {mode}, in us: {} of {:.2}", stages.join(", "), self.total)
    }
}

/// Measures the stages in both modes.
pub(super) fn measure(run: &mut Run<'_>, model: Model) -> Result<(), Failure> {
    run.show("stages of a message")?;
    let [host, nic] = MODES.map(|(mode, _)| StageTimes::measure(model, mode));
    let (host, nic) = (host?, nic?);

    let on_host = [Stage::Interrupts, Stage::Kernel];
    run.record(rows::stages_on_host(), host.time(&on_host) - nic.time(&on_host))?;
    run.record(rows::stages_on_card(), nic.time(&[Stage::Firmware]) - host.time(&[Stage::Firmware]))?;
    run.record(
        rows::router_of_host_interface(),
        100.0 * nic.time(&[Stage::Router]) / nic.time(&[Stage::HostInterface]),
    )?;

    for ((_, name), times) in MODES.iter().zip([&host, &nic]) {
        run.note(times.sentence(name));
    }
    Ok(())
}
