//! The bandwidth into one node: from one stream, and from the streams of many nodes at once.
//!
//! All contestants use one torus, in process. Its nodes' memories together are as large as that of
//! the only sender of one stream, so that caches help the copies of all of them alike. Many senders
//! still use the state of as many cards, and of the cards on their ways, with few packets in each
//! turn.

use std::time::{Duration, Instant};

use nicforge::failure::{ErrorContext, Failure};
use nicforge_driver::{Deadline, Relax};
use nicforge_portals::{Mode, Refusal, Target};

use super::nodes::{MATCH_BITS, PORTAL, Process, Receiver, SeaStars, Sender};
use crate::{
    bench::Run,
    contest::{self, Measurement, Results, ratio},
    row::{Backing, Goal, Outcome, Row},
};

/// Bytes of a message.
const BYTES: usize = 64 << 10;
/// The goal, as a share of the bandwidth of one stream.
const MIN_SHARE_OF_ONE: f64 = 0.9;
/// The longest time without a message.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);
/// Number of contestants.
pub(super) const CONTESTANTS: usize = 3;

/// The torus, and the amount of work in it. Node 0 receives.
#[derive(Clone, Copy, Debug)]
struct Shape {
    torus: [u32; 2],
    /// Number of nodes that send. They have the numbers from 1 on.
    nodes: u32,
    /// A node at the mean distance of all nodes from node 0, to the nearest hop.
    typical: u32,
    /// Hops from there to node 0.
    hops: u32,
    /// Messages of a measurement.
    messages: u64,
}

/// The torus of a full run. The typical node is at the coordinates (4, 4).
const FULL: Shape = Shape { torus: [17, 16], nodes: 256, typical: 4 + 17 * 4, hops: 8, messages: 4096 };
/// The torus of a quick run. The typical node is at the coordinates (1, 1).
const QUICK: Shape = Shape { torus: [5, 4], nodes: 16, typical: 1 + 5, hops: 2, messages: 64 };

/// The senders of a contestant.
struct Contestant {
    senders: Vec<Sender>,
    /// Hops of its only stream, or `None` for many.
    hops: Option<u32>,
    /// Messages that each sender's memory has room for.
    slots: u64,
}

/// Measures all contestants in turns.
pub(super) fn measure(run: &Run<'_>, rounds: usize) -> Result<Outcome, Failure> {
    let shape = if run.quick { QUICK } else { FULL };
    let machine = SeaStars::in_process(&shape.torus)?;
    let kernels = (0..=shape.nodes).map(|node| machine.boot(node)).collect::<Result<Vec<_>, _>>()?;
    let slots = u64::from(shape.nodes);

    let sender = |node: u32, process, slots: u64| {
        let kernel = &kernels[node as usize];
        let bytes = slots as usize * BYTES;
        Sender::new(Process::open(&machine, kernel, process, Mode::NicBased, bytes)?)
    };
    // Process 0 of each node sends in the many streams, and process 1 of a node the only stream.
    let one = |node, hops| {
        Ok::<_, Failure>(Contestant { senders: vec![sender(node, 1, slots)?], hops: Some(hops), slots })
    };
    let many = (1..=shape.nodes).map(|node| sender(node, 0, 1)).collect::<Result<Vec<_>, _>>()?;
    let (neighbour, hops_of_neighbour) = (1, 1);
    let contestants = vec![
        one(neighbour, hops_of_neighbour)?,
        one(shape.typical, shape.hops)?,
        Contestant { senders: many, hops: None, slots: 1 },
    ];

    let memory = shape.nodes as usize * BYTES;
    let receiver = Receiver::new(Process::open(&machine, &kernels[0], 0, Mode::NicBased, memory)?)?;
    receiver.open_memory()?;

    let results = contest::run(run, rounds, contestants, |contestant, _| {
        run.step(format!("streams of {} nodes", contestant.senders.len()))?;
        let start = Instant::now();
        contestant.transfer(&receiver, &shape)?;
        Ok(Measurement::of_rate(shape.messages as f64 / start.elapsed().as_secs_f64()))
    })?;
    Ok(outcome(&results, &shape))
}

impl Contestant {
    /// Puts the messages of a measurement, from the senders in turn, with at most one for each slot
    /// of the receiver's memory in flight.
    fn transfer(&self, receiver: &Receiver, shape: &Shape) -> Result<(), Failure> {
        let (senders, window) = (self.senders.len() as u64, u64::from(shape.nodes));
        let (mut sent, mut arrived) = (0, 0);
        let (mut relax, deadline) = (Relax::new(), Deadline::after(STEP_TIMEOUT));

        while arrived < shape.messages {
            while sent < shape.messages && sent - arrived < window && self.put(receiver, sent, window)? {
                sent += 1;
            }

            if sent > arrived {
                receiver.next(BYTES as u64)?;
                arrived += 1;
            } else if deadline.has_passed() {
                return Err(Failure::result(format!("{senders} senders cannot send")));
            } else {
                let device = receiver.process.interface.device();
                device.relax(&mut relax).context(|| "the machine".into())?;
            }
        }
        Ok(())
    }

    /// Puts message `number`, whose sender has its turn. Returns `false` if the sender has too many
    /// in progress. The receiver's memory has room for `window` messages.
    fn put(&self, receiver: &Receiver, number: u64, window: u64) -> Result<bool, Failure> {
        let senders = self.senders.len() as u64;
        let sender = &self.senders[(number % senders) as usize];
        let source_offset = number / senders % self.slots * BYTES as u64;
        let offset = number % window * BYTES as u64;
        let target = Target { offset, ..Target::new(receiver.id(), PORTAL, MATCH_BITS) };

        match sender.put(source_offset, BYTES as u64, &target, number) {
            Err(error) if error.refusal() == Some(Refusal::NoSpace) => Ok(false),
            put => put.map(|()| true).context(|| "a put".into()),
        }
    }
}

/// Returns the rows, and the goal of the many streams beside one over the mean distance.
fn outcome(results: &Results<Contestant>, shape: &Shape) -> Outcome {
    let measurements_over = |hops: Option<u32>| {
        let found = results.iter().find(|(contestant, _)| contestant.hops == hops);
        found.map_or(&[][..], |(_, measurements)| measurements)
    };
    let one = measurements_over(Some(shape.hops));

    let row = |(contestant, measurements): (&Contestant, &[Measurement])| {
        let row = Row { backing: Some(Backing::InProcess), ..Row::new("streams") };
        let row = row
            .with_measurements(measurements)
            .with_bandwidth(BYTES)
            .figure("nodes", contestant.senders.len() as f64)
            .figure("of_one", ratio(measurements, one));
        match contestant.hops {
            Some(hops) => row.figure("hops", hops.into()),
            None => row,
        }
    };

    let description =
        format!("bandwidth into a node from {} nodes, of one at the mean distance, times", shape.nodes);
    Outcome {
        rows: results.iter().map(row).collect(),
        goals: vec![Goal::at_least(description, MIN_SHARE_OF_ONE, ratio(measurements_over(None), one))],
        notes: vec![format!(
            "streams: a torus of {:?} nodes in process, one thread for all of it; at most {} messages in progress; of_one compares with one \
             stream over {} hops, the mean distance; all contestants use the same amount of memory at both sides, and the many also \
             the state of as many cards",
            shape.torus, shape.nodes, shape.hops
        )],
    }
}
