//! One side of a measurement over any path.

use std::thread;

use nicforge::failure::{ErrorContext, Failure};
use nix::time::{ClockId, clock_gettime};

use super::{
    content,
    task::{Direction, FlowTimes, Kind, Side, Span, Task},
};

/// One side's end of a path.
pub(in crate::benches) trait Endpoint: Sync {
    /// Returns the end for the thread that sends.
    fn sender(&self) -> Result<Box<dyn Sender + '_>, Failure>;
    /// Returns the end for the thread that receives.
    fn receiver(&self) -> Result<Box<dyn Receiver + '_>, Failure>;
}

/// Sends messages.
pub(in crate::benches) trait Sender {
    /// Sends a message from or to compute core `core`. Blocks until it is sent.
    fn send(&mut self, core: u32, message: &[u8]) -> Result<(), Failure>;
}

/// Receives messages.
pub(in crate::benches) trait Receiver {
    /// Receives a message at or from compute core `core`. The message fills `message`. Blocks until
    /// it has come.
    fn receive(&mut self, core: u32, message: &mut [u8]) -> Result<(), Failure>;
}

/// The work of one thread: it sends or receives, for these compute cores in turn.
#[derive(Clone, Debug)]
struct Flow {
    sends: bool,
    cores: std::ops::Range<u32>,
}

/// Returns the flows of a side. The I/O node has one thread for each direction, which serves the
/// compute cores in turn. A compute core has its own thread for each direction.
fn flows(side: Side, task: &Task) -> Vec<Flow> {
    let mut flows = Vec::new();
    for (direction, sender) in [(Direction::IoToCompute, Side::Io), (Direction::ComputeToIo, Side::Compute)] {
        if !task.direction.includes(direction) {
            continue;
        }
        let sends = side == sender;
        match side {
            Side::Compute => {
                flows.extend((0..task.compute_cores).map(|core| Flow { sends, cores: core..core + 1 }))
            }
            _ => flows.push(Flow { sends, cores: 0..task.compute_cores }),
        }
    }

    flows
}

/// Runs this side's part of a task, with a thread for each of its flows. Returns the times that
/// this side has measured.
pub(in crate::benches) fn run(
    endpoint: &dyn Endpoint,
    side: Side,
    task: &Task,
) -> Result<FlowTimes, Failure> {
    match task.kind {
        Kind::PingPong => ping_pong(endpoint, side, task),
        Kind::Stream => thread::scope(|scope| {
            let flows = flows(side, task);
            let threads: Vec<_> =
                flows.into_iter().map(|flow| scope.spawn(move || stream(endpoint, &flow, task))).collect();
            // All threads are joined, so that none outlives the endpoint.
            let results: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            results.into_iter().try_fold(FlowTimes::default(), |all, result| {
                let one =
                    result.unwrap_or_else(|_| Err(Failure::environment("a thread of the bench failed")))?;
                Ok(all.and(one))
            })
        }),
    }
}

/// Sends or receives the messages of one flow. A receiver returns the time from the first message,
/// which is not counted, to the last one.
fn stream(endpoint: &dyn Endpoint, flow: &Flow, task: &Task) -> Result<FlowTimes, Failure> {
    let mut message = content::message(task.bytes);
    // Message 0 is not measured.
    if flow.sends {
        let mut sender = endpoint.sender()?;
        for number in 0..=u64::from(task.count) {
            for core in flow.cores.clone() {
                content::stamp(&mut message, number);
                sender.send(core, &message)?;
            }
        }
        return Ok(FlowTimes::default());
    }

    let mut receiver = endpoint.receiver()?;
    message.fill(0);
    for core in flow.cores.clone() {
        receiver.receive(core, &mut message)?;
        content::check_number(&message, 0)?;
        content::check_pattern(&message)?;
    }

    let start = now()?;
    for number in 1..=u64::from(task.count) {
        for core in flow.cores.clone() {
            receiver.receive(core, &mut message)?;
            content::check_number(&message, number)?;
        }
    }

    let end = now()?;
    Ok(FlowTimes { spans: vec![Span { start, end }], round_trips: Vec::new() })
}

/// Sends and receives messages in alternation. The side that sends first returns the times of the
/// round trips.
fn ping_pong(endpoint: &dyn Endpoint, side: Side, task: &Task) -> Result<FlowTimes, Failure> {
    let sends_first = (side == Side::Io) == task.direction.includes(Direction::IoToCompute);
    let mut sender = endpoint.sender()?;
    let mut receiver = endpoint.receiver()?;
    let mut message = content::message(task.bytes);
    let mut round_trips = Vec::with_capacity(task.count as usize + 1);

    for number in 0..=u64::from(task.count) {
        if sends_first {
            content::stamp(&mut message, number);
            let start = now()?;
            sender.send(0, &message)?;
            receiver.receive(0, &mut message)?;
            round_trips.push(now()? - start);
            content::check_number(&message, number)?;
        } else {
            receiver.receive(0, &mut message)?;
            sender.send(0, &message)?;
        }
    }

    if sends_first {
        // The peer may not have been ready for the first round trip.
        round_trips.remove(0);
    }

    Ok(FlowTimes { spans: Vec::new(), round_trips })
}

/// Reads the monotonic clock, which all processes share, in nanoseconds.
fn now() -> Result<u64, Failure> {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).context(|| "the clock".into())?;
    Ok(time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

#[cfg(test)]
mod tests {
    use super::{super::task::Path, *};

    /// Returns the number of a side's flows.
    fn count(side: Side, direction: Direction, compute_cores: u32) -> usize {
        let kind = Kind::Stream;
        flows(side, &Task { path: Path::FcnpPoll, direction, kind, bytes: 16, count: 1, compute_cores }).len()
    }

    #[test]
    fn the_io_node_has_one_thread_for_each_direction_and_each_core_has_its_own() {
        assert_eq!(count(Side::Io, Direction::Both, 2), 2);
        assert_eq!(count(Side::Compute, Direction::Both, 2), 4);
        assert_eq!(count(Side::Io, Direction::IoToCompute, 2), 1);
        assert_eq!(count(Side::Compute, Direction::ComputeToIo, 1), 1);
    }
}
