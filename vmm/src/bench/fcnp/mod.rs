//! `nicforge bench fcnp`: FCNP beside packets without a protocol on the same device, and beside sockets, direct ones and such that a
//! process in the middle relays.
//!
//! One I/O node and one compute node, each an application process; between them the engine (this process) or, for the
//! relayed sockets, a process that takes its place. All run on the processors of one placement, which is the one among the possible
//! ones that raw packets are fastest with.
//!
//! - `mod.rs`: the contestants, and the order in which they are measured;
//! - `rows.rs`: rows and goals;
//! - `task.rs`: one measurement; `flow.rs`: one side of it, whatever it goes through; `content.rs`: what the messages say;
//! - `tree.rs`, `sockets.rs`, `relay.rs`: the paths;
//! - `machine.rs`: the machines; `children.rs`, `child.rs`: the processes, from outside and from inside.

mod child;
mod children;
mod content;
mod flow;
mod machine;
mod relay;
mod rows;
mod sockets;
mod task;
mod tree;

use self::{
    children::Children,
    machine::{Local, Machine},
    rows::{Contestant, Figure, Results},
    task::{Direction, Kind, Measured, Path, Task},
};
use super::{
    Run,
    placement::{Placement, processors},
    row::{Backing, Outcome},
    samples::in_turns,
};
use crate::failure::Failure;

/// Packets in the FIFOs: the machine's, and deep ones.
const DEPTHS: [u32; 2] = [8, 256];
/// Sizes of messages.
const SIZES: [usize; 9] = [16, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
/// The same for a quick run.
const QUICK_SIZES: [usize; 3] = [16, 64 << 10, 1 << 20];
/// The size that two outstanding requests are measured at.
const TWO_AT: usize = 64 << 10;
/// The size that latency is measured at.
const LATENCY_AT: usize = 16;

/// How much is measured.
struct Extent {
    sizes: &'static [usize],
    rounds: usize,
    /// Seconds of a measurement, about.
    seconds: f64,
    /// Round trips of a measurement.
    round_trips: u32,
}

impl Extent {
    fn of(run: &Run<'_>) -> Self {
        if run.quick {
            Self { sizes: &QUICK_SIZES, rounds: 1, seconds: 0.01, round_trips: 200 }
        } else {
            Self { sizes: &SIZES, rounds: 5, seconds: 0.05, round_trips: 2000 }
        }
    }
}

/// The body of a child process.
pub(super) fn part(part: &str) -> Result<u8, Failure> {
    child::main(part)
}

/// What measurements are made with.
struct Bench<'a> {
    run: &'a Run<'a>,
    children: Children,
    served: Vec<Machine>,
    local: Vec<Local>,
    placement: Placement,
}

pub(super) fn run(run: &Run<'_>) -> Result<Outcome, Failure> {
    let extent = Extent::of(run);
    let contestants = contestants();
    let all = |direction, bytes| {
        let groups = contestants.iter().filter(move |contestant| contestant.is_for(direction, bytes));
        groups.copied().collect::<Vec<_>>()
    };
    let groups: Vec<(Direction, usize, Vec<Contestant>)> = extent
        .sizes
        .iter()
        .flat_map(|&bytes| Direction::ALL.map(|direction| (direction, bytes, all(direction, bytes))))
        .collect();
    let measurements: usize = groups.iter().map(|(.., contestants)| contestants.len()).sum();
    let candidates = placements()?;
    run.steps((measurements * (extent.rounds + 1) + candidates.len()) as u64);

    let mut bench = Bench {
        run,
        children: Children::start(run)?,
        served: Vec::new(),
        local: DEPTHS.into_iter().map(Local::new).collect::<Result<_, _>>()?,
        placement: Placement::free(),
    };
    let tried = bench.choose_placement(&candidates)?;
    let mut results = Results::new(bench.placement.text());
    for (direction, bytes, contestants) in &groups {
        bench.measure_group(*direction, *bytes, contestants, &extent, &mut results)?;
    }
    bench.stop_serving()?;
    Ok(results.outcome(&tried))
}

/// Who is compared.
fn contestants() -> Vec<Contestant> {
    let mut all = Vec::new();
    for path in Path::ALL {
        if !path.has_device() {
            all.push(Contestant { path, backing: None, depth: None, lanes: 1 });
            continue;
        }
        for depth in DEPTHS.map(Some) {
            let lanes: &[u32] = if path == Path::Raw { &[1] } else { &[1, 2] };
            for &lanes in lanes {
                all.push(Contestant { path, backing: Some(Backing::VfioUser), depth, lanes });
            }
            if path != Path::FcnpIrq {
                all.push(Contestant { path, backing: Some(Backing::InProcess), depth, lanes: 1 });
            }
        }
    }
    all
}

/// Placements that may be the best, by symmetry: the processors of a machine are taken to be equal.
fn placements() -> Result<Vec<Placement>, Failure> {
    let roles = |engine, io, compute| {
        Placement::pinned(&[("engine", engine), ("relay", engine), ("io", io), ("compute", compute)])
    };
    Ok(match *processors()?.as_slice() {
        [a, b, c, ..] => vec![Placement::free(), roles(a, b, c)],
        [a, b] => vec![Placement::free(), roles(a, b, b), roles(a, a, b), roles(a, b, a)],
        _ => vec![Placement::free()],
    })
}

impl Bench<'_> {
    /// Serves the machines with the engines where `placement` has them.
    fn serve(&mut self, placement: &Placement) -> Result<(), Failure> {
        self.stop_serving()?;
        for depth in DEPTHS {
            self.served.push(Machine::serve(self.run, depth, placement)?);
        }
        self.placement = placement.clone();
        Ok(())
    }

    fn stop_serving(&mut self) -> Result<(), Failure> {
        self.served.drain(..).try_for_each(Machine::stop)
    }

    /// Takes the placement that raw packets are fastest with, and says how fast they are with each.
    fn choose_placement(&mut self, candidates: &[Placement]) -> Result<Vec<(String, f64)>, Failure> {
        let mut tried = Vec::with_capacity(candidates.len());
        for placement in candidates {
            self.run.step(format!("placement: {}", placement.text()))?;
            self.serve(placement)?;
            let mut product = 1.0;
            for depth in DEPTHS {
                let contestant = Contestant {
                    path: Path::Raw,
                    backing: Some(Backing::VfioUser),
                    depth: Some(depth),
                    lanes: 1,
                };
                let count = if self.run.quick { 16 } else { 200 };
                for direction in [Direction::IoToCompute, Direction::ComputeToIo] {
                    let task = contestant.task(direction, TWO_AT, Kind::Stream, count);
                    product *= task.bandwidth(&self.measure(&contestant, &task)?) / 1e9;
                }
            }
            tried.push((placement.text(), product.powf(0.25)));
        }
        let best = (0..tried.len()).max_by(|&a, &b| tried[a].1.total_cmp(&tried[b].1)).unwrap_or(0);
        if let Some(placement) = candidates.get(best) {
            self.serve(placement)?;
        }
        Ok(tried)
    }

    /// Measures those that are compared, in turns.
    fn measure_group(
        &mut self,
        direction: Direction,
        bytes: usize,
        contestants: &[Contestant],
        extent: &Extent,
        results: &mut Results,
    ) -> Result<(), Failure> {
        let mut counts = Vec::with_capacity(contestants.len());
        for contestant in contestants {
            self.run.step(format!("{}, {} bytes, {}", contestant.path.name(), bytes, direction.name()))?;
            // As many as take about the time that a measurement is to take.
            let probe = ((256 << 10) / bytes).clamp(2, 64) as u32;
            let task = contestant.task(direction, bytes, Kind::Stream, probe);
            let seconds = self.measure(contestant, &task)?.seconds();
            let wanted = f64::from(probe) * extent.seconds / seconds;
            counts.push((wanted as u32).clamp(2, 1_000_000));
        }
        let rounds = in_turns(extent.rounds, contestants.len(), |index, _| {
            let contestant = &contestants[index];
            self.run.step(format!("{}, {} bytes, {}", contestant.path.name(), bytes, direction.name()))?;
            let task = contestant.task(direction, bytes, Kind::Stream, counts[index]);
            let gbit_s = task.bandwidth(&self.measure(contestant, &task)?) / 1e9;
            let mut round_trips = Vec::new();
            if bytes == LATENCY_AT && direction != Direction::Both && contestant.lanes == 1 {
                let task = contestant.task(direction, bytes, Kind::PingPong, extent.round_trips);
                round_trips = self.measure(contestant, &task)?.round_trips;
            }
            Ok::<_, Failure>(Figure { gbit_s, round_trips })
        })?;
        for (contestant, figures) in contestants.iter().zip(rounds) {
            results.add(*contestant, direction, bytes, figures);
        }
        Ok(())
    }

    fn measure(&mut self, contestant: &Contestant, task: &Task) -> Result<Measured, Failure> {
        if contestant.backing == Some(Backing::InProcess) {
            let local = self.local.iter().find(|local| Some(local.fifo_depth) == contestant.depth);
            let local = local.ok_or_else(|| Failure::environment("no such machine"))?;
            return local.measure(self.run, task, &self.placement);
        }
        let machine = self.served.iter().find(|machine| Some(machine.fifo_depth) == contestant.depth);
        self.children.measure(self.run, task, machine, &self.placement)
    }
}
