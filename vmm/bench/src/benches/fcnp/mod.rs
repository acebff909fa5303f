//! `nicforge bench fcnp`: FCNP compared with raw packets on the same device, and with direct and
//! relayed sockets.
//!
//! The applications of one I/O node and one compute node are a process each. Between them is the
//! engine (this process). For relayed sockets a relay process replaces the engine. All contestants
//! run with the same placement on processors: the one with the fastest raw packets.
//!
//! - `mod.rs`: the contestants, and the order of their measurements;
//! - `rows.rs`: rows and goals;
//! - `task.rs`: one measurement; `flow.rs`: one side of it over any path; `content.rs`: the
//!   contents of messages;
//! - `tree.rs`, `sockets.rs`, `relay.rs`: the paths;
//! - `machine.rs`: the machines; `children.rs`, `child.rs`: the processes, seen from the parent and
//!   from the child.

mod child;
mod children;
mod content;
pub(super) mod flow;
mod machine;
mod relay;
mod rows;
pub(super) mod sockets;
pub(super) mod task;
pub(super) mod tree;

use std::time::{Duration, Instant};

use nicforge::failure::Failure;

use self::{
    children::Children,
    machine::{InProcessMachine, Machine},
    rows::{Contestant, Results},
    task::{Direction, FlowTimes, Kind, Path, Task},
};
use crate::{
    bench::{Bench, Run},
    contest::{self, Measurement},
    placement::{Placement, processors},
    row::{Backing, Outcome},
    samples::{Samples, median},
};

/// The bench.
pub const BENCH: Bench =
    Bench::new("fcnp", "FCNP beside packets without a protocol, and beside sockets, direct and relayed", run)
        .with_child(child::main);

/// Packets in the FIFOs: the real machine's depth, and a large one.
const DEPTHS: [u32; 2] = [8, 256];
/// Sizes of messages.
const SIZES: [usize; 9] = [16, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
/// Sizes of messages for a quick run.
const QUICK_SIZES: [usize; 3] = [16, 1 << 10, 64 << 10];
/// The message size for measurements with two outstanding requests.
const TWO_OUTSTANDING_BYTES: usize = 64 << 10;
/// The message size for measurements of latency.
const LATENCY_BYTES: usize = 16;

/// The duration of all round trips of a measurement, as a multiple of a stream's.
const ROUND_TRIPS_DURATION: f64 = 8.0;
/// The greatest number of messages in a measurement.
const MAX_MESSAGES: u32 = 1_000_000;

/// The message sizes of all measurements, and how often and how long each is measured.
struct Sweep {
    sizes: &'static [usize],
    rounds: usize,
    /// Approximate duration of a measurement in seconds.
    seconds: f64,
    /// The greatest number of messages in a probe, which determines how many messages are
    /// measured, and of its bytes.
    probe_messages: u32,
    probe_bytes: usize,
    /// The greatest number of round trips of a measurement.
    round_trips: u32,
    /// Number of rounds for the choice of the placement.
    placement_rounds: usize,
    /// How long all comparisons may take.
    limit: Duration,
}

impl Sweep {
    /// Returns the measurements of a quick or full run.
    fn of(run: &Run<'_>) -> Self {
        if run.quick {
            Self {
                sizes: &QUICK_SIZES,
                rounds: 1,
                seconds: 0.01,
                probe_messages: 8,
                probe_bytes: TWO_OUTSTANDING_BYTES,
                round_trips: 200,
                placement_rounds: 1,
                limit: Duration::from_secs(12),
            }
        } else {
            Self {
                sizes: &SIZES,
                rounds: 5,
                seconds: 0.04,
                probe_messages: 64,
                probe_bytes: 4 * TWO_OUTSTANDING_BYTES,
                round_trips: 2000,
                placement_rounds: 3,
                limit: Duration::from_secs(210),
            }
        }
    }

    /// Returns the number of rounds for the next comparison, when the first `share` of all
    /// comparisons has taken `elapsed`. It is smaller when other programs have delayed the
    /// measurements.
    fn rounds_now(&self, share: f64, elapsed: Duration) -> usize {
        // The delay, as a share of the time limit.
        let late = elapsed.as_secs_f64() / self.limit.as_secs_f64() - share;
        match late {
            ..0.05 => self.rounds,
            ..0.1 => self.rounds.min(3),
            _ => 1,
        }
    }

    /// Returns the number of messages of a probe.
    fn probe(&self, bytes: usize) -> u32 {
        ((self.probe_bytes / bytes) as u32).clamp(1, self.probe_messages)
    }

    /// Returns the number of messages for one measurement, when `probe` messages took `seconds`.
    /// Returns `None` if the probe has taken so long that it is the measurement of a quick run.
    fn messages(&self, probe: u32, seconds: f64) -> Option<u32> {
        let is_measurement = self.rounds == 1 && seconds >= self.seconds;
        let count = (f64::from(probe) * self.seconds / seconds) as u32;
        (!is_measurement).then(|| count.clamp(2, MAX_MESSAGES))
    }

    /// Returns the number of round trips of one measurement, when `probe` messages took `seconds`:
    /// fewer than on a machine at rest if each takes long.
    fn round_trips(&self, probe: u32, seconds: f64) -> u32 {
        let of_message = seconds / f64::from(probe);
        ((ROUND_TRIPS_DURATION * self.seconds / of_message) as u32).clamp(2, self.round_trips)
    }
}

/// The contestants that are measured in turns.
struct Comparison {
    direction: Direction,
    bytes: usize,
    contestants: Vec<Contestant>,
}

impl Comparison {
    /// Returns a comparison of those `contestants` that are measured with messages of this size.
    fn of(contestants: &[Contestant], direction: Direction, bytes: usize) -> Self {
        let is_measured =
            |contestant: &Contestant| contestant.compute_cores == 1 || bytes == TWO_OUTSTANDING_BYTES;
        Self { direction, bytes, contestants: contestants.iter().copied().filter(is_measured).collect() }
    }

    /// Returns the text for the progress bar.
    fn text(&self, contestant: &Contestant) -> String {
        format!("{}, {} bytes, {}", contestant.path.name(), self.bytes, self.direction.name())
    }
}

/// The result of a probe.
struct Probe {
    /// Messages per second.
    rate: f64,
    /// The number of messages of a measurement; `None` if the probe is the measurement.
    messages: Option<u32>,
    /// The number of round trips of a measurement.
    round_trips: u32,
}

/// The machines, processes and placement of the measurements.
struct Setting<'a> {
    run: &'a Run<'a>,
    children: Children,
    /// The served machines, one for each depth of the FIFOs.
    served: Vec<Machine>,
    /// The machines in this process, one for each depth of the FIFOs.
    in_process: Vec<InProcessMachine>,
    placement: Placement,
}

/// Runs the benchmark.
fn run(run: &Run<'_>) -> Result<Outcome, Failure> {
    let sweep = Sweep::of(run);
    let contestants = contestants();
    let comparisons: Vec<Comparison> = sweep
        .sizes
        .iter()
        .flat_map(|&bytes| Direction::ALL.map(|direction| Comparison::of(&contestants, direction, bytes)))
        .collect();

    let measurements: usize = comparisons.iter().map(|comparison| comparison.contestants.len()).sum();
    let candidates = placements()?;
    run.steps((measurements * (sweep.rounds + 1) + candidates.len() * sweep.placement_rounds) as u64);

    let mut setting = Setting {
        run,
        children: Children::start(run)?,
        served: Vec::new(),
        in_process: DEPTHS.into_iter().map(InProcessMachine::new).collect::<Result<_, _>>()?,
        placement: Placement::free(),
    };

    let tried = setting.choose_placement(&candidates, &sweep)?;
    let mut results = Results::new(setting.placement.text());
    let start = Instant::now();
    for (index, comparison) in comparisons.iter().enumerate() {
        let share = index as f64 / comparisons.len() as f64;
        let rounds = sweep.rounds_now(share, start.elapsed());
        setting.measure_interleaved(comparison, rounds, &sweep, &mut results)?;
    }

    setting.stop_serving()?;
    Ok(results.outcome(&tried))
}

/// Returns all contestants.
fn contestants() -> Vec<Contestant> {
    let mut all = Vec::new();
    for path in Path::ALL {
        if !path.has_device() {
            all.push(Contestant { path, backing: None, depth: None, compute_cores: 1 });
            continue;
        }

        for depth in DEPTHS.map(Some) {
            let compute_cores: &[u32] = if path == Path::Raw { &[1] } else { &[1, 2] };
            for &compute_cores in compute_cores {
                all.push(Contestant { path, backing: Some(Backing::VfioUser), depth, compute_cores });
            }
            if path != Path::FcnpIrq {
                all.push(Contestant { path, backing: Some(Backing::InProcess), depth, compute_cores: 1 });
            }
        }
    }

    all
}

/// Returns the placements to try. The processors of the host are assumed to be equal, so symmetric
/// placements are left out.
fn placements() -> Result<Vec<Placement>, Failure> {
    let pinned = |engine, io, compute| {
        Placement::pinned(&[("engine", engine), ("relay", engine), ("io", io), ("compute", compute)])
    };
    Ok(match *processors()?.as_slice() {
        [a, b, c, ..] => vec![Placement::free(), pinned(a, b, c)],
        [a, b] => vec![Placement::free(), pinned(a, b, b), pinned(a, a, b), pinned(a, b, a)],
        _ => vec![Placement::free()],
    })
}

impl Setting<'_> {
    /// Serves the machines, with the engines on the processor of `placement`.
    fn serve(&mut self, placement: &Placement) -> Result<(), Failure> {
        self.stop_serving()?;
        for depth in DEPTHS {
            self.served.push(Machine::serve(self.run, depth, placement)?);
        }
        self.placement = placement.clone();
        Ok(())
    }

    /// Ends the engines of all served machines.
    fn stop_serving(&mut self) -> Result<(), Failure> {
        self.served.drain(..).try_for_each(Machine::stop)
    }

    /// Chooses the placement with the fastest raw packets, and serves the machines with it. Returns
    /// each placement that was tried, with its median bandwidth in Gb/s.
    fn choose_placement(
        &mut self,
        candidates: &[Placement],
        sweep: &Sweep,
    ) -> Result<Vec<(String, f64)>, Failure> {
        let run = self.run;
        let tried = contest::run(run, sweep.placement_rounds, candidates.to_vec(), |placement, _| {
            run.step(format!("placement: {}", placement.text()))?;
            self.serve(placement)?;
            self.raw_bandwidth(sweep)
        })?;

        let medians: Vec<_> =
            tried.iter().map(|(placement, bandwidths)| (placement, median(bandwidths))).collect();
        if let Some((best, _)) = medians.iter().max_by(|(_, one), (_, other)| one.total_cmp(other)) {
            self.serve(best)?;
        }

        Ok(medians.into_iter().map(|(placement, gbit_s)| (placement.text(), gbit_s)).collect())
    }

    /// Returns the bandwidth of raw packets in Gb/s, as the geometric mean over directions and
    /// depths.
    fn raw_bandwidth(&mut self, sweep: &Sweep) -> Result<f64, Failure> {
        let mut bandwidths = Vec::new();
        for depth in DEPTHS {
            let raw = rows::served_contestant(Path::Raw, depth, 1);
            for direction in [Direction::IoToCompute, Direction::ComputeToIo] {
                let probe = self.probe(&raw, direction, TWO_OUTSTANDING_BYTES, sweep)?;
                let task = raw.task(direction, TWO_OUTSTANDING_BYTES, Kind::Stream, 1);
                let rate = match probe.messages {
                    Some(count) => self.stream_rate(&raw, direction, TWO_OUTSTANDING_BYTES, count)?,
                    None => probe.rate,
                };
                bandwidths.push(task.bandwidth(rate) / 1e9);
            }
        }

        let logarithms: f64 = bandwidths.iter().map(|gbit_s| gbit_s.ln()).sum();
        Ok((logarithms / bandwidths.len() as f64).exp())
    }

    /// Sends the messages of a probe, which determine how many are measured.
    fn probe(
        &mut self,
        contestant: &Contestant,
        direction: Direction,
        bytes: usize,
        sweep: &Sweep,
    ) -> Result<Probe, Failure> {
        let count = sweep.probe(bytes);
        let task = contestant.task(direction, bytes, Kind::Stream, count);
        let measured = self.measure(contestant, &task)?;
        let seconds = measured.seconds();
        Ok(Probe {
            rate: task.rate(&measured),
            messages: sweep.messages(count, seconds),
            round_trips: sweep.round_trips(count, seconds),
        })
    }

    /// Returns the rate of a stream of about `count` messages, in messages per second.
    fn stream_rate(
        &mut self,
        contestant: &Contestant,
        direction: Direction,
        bytes: usize,
        count: u32,
    ) -> Result<f64, Failure> {
        let task = contestant.task(direction, bytes, Kind::Stream, count);
        Ok(task.rate(&self.measure(contestant, &task)?))
    }

    /// Measures the contestants of a comparison in turns, and adds their measurements to `results`.
    /// A probe of each contestant determines how many messages are measured.
    fn measure_interleaved(
        &mut self,
        comparison: &Comparison,
        rounds: usize,
        sweep: &Sweep,
        results: &mut Results,
    ) -> Result<(), Failure> {
        let &Comparison { direction, bytes, ref contestants } = comparison;
        let mut probed = Vec::with_capacity(contestants.len());
        for contestant in contestants {
            self.run.step(comparison.text(contestant))?;
            probed.push((*contestant, self.probe(contestant, direction, bytes, sweep)?));
        }

        let run = self.run;
        let measured = contest::run(run, rounds, probed, |(contestant, probe), _| {
            run.step(comparison.text(contestant))?;
            let rate = match probe.messages {
                Some(count) => self.stream_rate(contestant, direction, bytes, count)?,
                None => probe.rate,
            };
            let mut samples = Samples::default();
            if bytes == LATENCY_BYTES && direction != Direction::Both && contestant.compute_cores == 1 {
                let task = contestant.task(direction, bytes, Kind::PingPong, probe.round_trips);
                samples = self.measure(contestant, &task)?.latencies();
            }
            Ok(Measurement { rate: Some(rate), samples })
        })?;

        for ((contestant, _), measurements) in measured.into_entries() {
            results.add(contestant, direction, bytes, measurements);
        }

        Ok(())
    }

    /// Measures a contestant once, on the machine that it needs.
    fn measure(&mut self, contestant: &Contestant, task: &Task) -> Result<FlowTimes, Failure> {
        if contestant.backing == Some(Backing::InProcess) {
            let mut machines = self.in_process.iter();
            let machine = machines.find(|machine| Some(machine.fifo_depth) == contestant.depth);
            let machine = machine.ok_or_else(|| Failure::environment("no such machine"))?;
            return machine.measure(self.run, task, &self.placement);
        }
        let machine = self.served.iter().find(|machine| Some(machine.fifo_depth) == contestant.depth);
        self.children.measure(self.run, task, machine, &self.placement)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the extent of a quick run.
    fn quick() -> Sweep {
        Sweep {
            sizes: &QUICK_SIZES,
            rounds: 1,
            seconds: 0.01,
            probe_messages: 8,
            probe_bytes: 1 << 16,
            round_trips: 200,
            placement_rounds: 1,
            limit: Duration::from_secs(1),
        }
    }

    #[test]
    fn slow_probe_of_a_quick_run_is_its_measurement() {
        let quick = quick();
        assert_eq!([16, 1 << 14, 1 << 16, 1 << 20].map(|bytes| quick.probe(bytes)), [8, 4, 1, 1]);
        assert_eq!([0.001, 0.02].map(|seconds| quick.messages(8, seconds)), [Some(80), None]);

        let full = Sweep { rounds: 5, ..quick };
        assert_eq!(full.messages(8, 0.02), Some(4));
    }

    #[test]
    fn slow_round_trips_are_fewer() {
        // A message takes 1 us, 1 ms and a second.
        assert_eq!([8e-6, 8e-3, 8.0].map(|seconds| quick().round_trips(8, seconds)), [200, 80, 2]);
    }
}
