//! The programs of the paper's benchmarks, on Portals as its MPI library uses it: a receive is one
//! `PtlPost`, and a send is one `PtlPutRegion` of a descriptor that covers the process's memory.

use std::time::Duration;

use nicforge_driver::{Deadline, runtime::Instant};
use nicforge_portals::{
    Ack, Criteria, Descriptor, EventKind, EventQueue, Interface, MemoryDescriptor, Options, Position,
    ProcessId, Region, Target, Threshold, Unlink,
};

use super::{Node, NodeError, SeaStars, SeaStarsError};
use crate::world::Picos;

/// The portal of all messages.
const PORTAL: u8 = 4;
/// Match bits of receives that no message matches.
const UNMATCHED_BITS: u64 = u64::MAX;
/// Time since the beginning at which all nodes have posted their receives.
const POSTING_END: Duration = Duration::from_millis(20);
/// Time after which a message counts as lost.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Receives that a streaming benchmark posts at the beginning (the benchmark of Ohio State
/// University).
const INITIAL_RECEIVES: u32 = 64;
/// Bytes of a node's data in a collective operation (Figure 9).
const ELEMENT_BYTES: usize = 16;
/// Messages of a stream in flight.
const MAX_IN_FLIGHT: u32 = 32;

/// A process's memory, its queue of receives, and its descriptor for sends.
struct Endpoint<'a> {
    interface: &'a Interface,
    memory: Region,
    receive_events: EventQueue,
    /// Descriptor of all sends, which covers the memory.
    send_descriptor: MemoryDescriptor,
    /// Events of the sends.
    send_events: EventQueue,
}

impl<'a> Endpoint<'a> {
    fn new(node: &'a Node, bytes: usize) -> Result<Self, NodeError> {
        let interface = &node.interface;
        let memory = interface.allocate(bytes.max(1) as u64)?;
        let (receive_events, send_events) =
            (interface.allocate_queue(1024)?, interface.allocate_queue(1024)?);
        let send_descriptor = interface.bind_descriptor(&Descriptor {
            options: Options::START_DISABLE,
            queue: Some(&send_events),
            ..Descriptor::over(&memory)
        })?;
        Ok(Self { interface, memory, receive_events, send_descriptor, send_events })
    }

    /// Returns the descriptor of a receive.
    fn receive(&self, bytes: usize) -> Descriptor<'_> {
        Descriptor {
            length: bytes as u64,
            threshold: Threshold::Operations(1),
            options: Options::PUT | Options::START_DISABLE,
            unlink: Unlink::Automatic,
            queue: Some(&self.receive_events),
            ..Descriptor::over(&self.memory)
        }
    }

    /// Posts a receive by one call.
    fn post(&self, bytes: usize, match_bits: u64) -> Result<(), NodeError> {
        let criteria = Criteria::bits(match_bits);
        self.interface.post(
            Position::Tail(PORTAL),
            criteria,
            Unlink::Automatic,
            &self.receive(bytes),
            None,
        )?;
        Ok(())
    }

    /// Posts a receive by the three calls that were there before `PtlPost` (Figure 3).
    fn post_by_three_calls(&self, bytes: usize, match_bits: u64) -> Result<(), NodeError> {
        let criteria = Criteria::bits(match_bits);
        let entry = self.interface.attach_entry(Position::Tail(PORTAL), criteria, Unlink::Automatic)?;
        let inactive =
            Descriptor { threshold: Threshold::Operations(0), unlink: Unlink::Retain, ..self.receive(bytes) };
        let mut descriptor = self.interface.attach_descriptor(entry, &inactive)?;
        self.interface.update_descriptor(&mut descriptor, &self.receive(bytes), None)?;
        Ok(())
    }

    /// Sends the first `bytes` bytes of the memory to a node.
    fn send(&self, node: u32, bytes: usize, match_bits: u64) -> Result<(), NodeError> {
        let target = Target::new(ProcessId { node, process: 0 }, PORTAL, match_bits);
        self.interface.put_region(&self.send_descriptor, 0, bytes as u64, Ack::No, &target, 0)?;
        Ok(())
    }

    /// Waits for the end of the next receive.
    fn wait_received(&self) -> Result<(), NodeError> {
        wait_for(&self.receive_events, EventKind::PutEnd)
    }

    /// Waits for the next event of a receive or a send, and returns its kind.
    fn wait_any(&self) -> Result<EventKind, NodeError> {
        let deadline = Deadline::after(TIMEOUT);
        let (_, event) = Interface::poll(&[&self.receive_events, &self.send_events], deadline, None)?;
        match event.failure {
            None => Ok(event.kind),
            Some(_) => Err(NodeError::Event(format!("{event:?}"))),
        }
    }
}

/// Waits for the next event of a kind. Events of unlinked descriptors are passed over.
fn wait_for(queue: &EventQueue, kind: EventKind) -> Result<(), NodeError> {
    loop {
        let event = queue.wait(Deadline::after(TIMEOUT), None)?;
        if event.failure.is_some() {
            return Err(NodeError::Event(format!("{event:?}")));
        }
        if event.kind == kind {
            return Ok(());
        }
    }
}

/// A collective operation. The number of nodes is a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// Dissemination of messages without data.
    Barrier,
    /// Recursive doubling with 16 bytes.
    Allreduce,
    /// A binomial tree to the first node, with 16 bytes.
    Reduce,
    /// Recursive doubling, with 16 bytes of each node.
    Allgather,
}

/// A step of a collective operation on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Exchange {
    /// The node that gets a message, if any.
    to: Option<u32>,
    /// Whether a message comes.
    is_received: bool,
    bytes: usize,
}

impl Collective {
    /// All of them, with the words for them.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Barrier, "barrier"),
        (Self::Allreduce, "allreduce"),
        (Self::Reduce, "reduce"),
        (Self::Allgather, "allgather"),
    ];

    /// Returns the bytes of the longest message.
    fn longest(self, nodes: u32) -> usize {
        match self {
            Self::Barrier => 0,
            Self::Allreduce | Self::Reduce => ELEMENT_BYTES,
            Self::Allgather => ELEMENT_BYTES * nodes as usize,
        }
    }

    /// Returns the steps of a node.
    fn steps(self, node: u32, nodes: u32) -> Vec<Exchange> {
        let distances = (0..nodes.ilog2()).map(|order| 1 << order);
        let exchange = |to, bytes| Exchange { to: Some(to), is_received: true, bytes };
        match self {
            Self::Barrier => distances.map(|distance| exchange((node + distance) % nodes, 0)).collect(),
            Self::Allreduce => distances.map(|distance| exchange(node ^ distance, ELEMENT_BYTES)).collect(),
            Self::Allgather => distances
                .map(|distance| exchange(node ^ distance, ELEMENT_BYTES * distance as usize))
                .collect(),
            Self::Reduce => {
                let mut steps = Vec::new();
                for distance in distances {
                    if node & distance != 0 {
                        steps.push(Exchange {
                            to: Some(node - distance),
                            is_received: false,
                            bytes: ELEMENT_BYTES,
                        });
                        break;
                    }
                    steps.push(Exchange { to: None, is_received: true, bytes: ELEMENT_BYTES });
                }
                steps
            }
        }
    }
}

/// Returns the result of the first node that measured one.
fn first_result<R: Default + Copy>(results: &[Option<R>]) -> R {
    results.iter().flatten().next().copied().unwrap_or_default()
}

impl SeaStars {
    /// Returns half the mean time of `rounds` round trips of `bytes` bytes between the first two
    /// nodes. The card compares each message with `queued` receives that it does not match before
    /// the one that it matches. All receives are posted before the first send.
    ///
    /// # Errors
    /// [`SeaStarsError`].
    pub fn ping_pong(&self, bytes: usize, rounds: u32, queued: u32) -> Result<Picos, SeaStarsError> {
        let times = self.run(move |node| {
            let endpoint = Endpoint::new(node, bytes)?;
            for _ in 0..queued {
                endpoint.post(bytes, UNMATCHED_BITS)?;
            }
            for _ in 0..=rounds {
                endpoint.post(bytes, 1)?;
            }
            // At this time, every node has posted its receives.
            node.stay_until(POSTING_END)?;

            let (is_first, other) = (node.number == 0, 1 - node.number.min(1));
            if node.number > 1 {
                return Ok(None);
            }
            let mut began = Instant::now();
            for round in 0..=rounds {
                // Round 0 warms up, and is not counted.
                if round == 1 {
                    began = Instant::now();
                }
                if is_first {
                    endpoint.send(other, bytes, 1)?;
                    endpoint.wait_received()?;
                } else {
                    endpoint.wait_received()?;
                    endpoint.send(other, bytes, 1)?;
                }
            }
            Ok(is_first.then(|| began.elapsed() / (2 * rounds)))
        })?;
        Ok(first_result(&times).into())
    }

    /// Returns the mean time of a message in a stream from the first node to the second, or in
    /// streams in both directions at once. The receiver posts 64 receives before, and further ones
    /// as messages come.
    ///
    /// # Errors
    /// [`SeaStarsError`].
    pub fn stream(&self, bytes: usize, messages: u32, both_ways: bool) -> Result<Picos, SeaStarsError> {
        let times = self.run(move |node| {
            let endpoint = Endpoint::new(node, bytes)?;
            let (sends, receives) = (node.number == 0 || both_ways, node.number == 1 || both_ways);
            if receives {
                for _ in 0..INITIAL_RECEIVES.min(messages) {
                    endpoint.post(bytes, 1)?;
                }
            }
            node.stay_until(POSTING_END)?;

            let began = Instant::now();
            let other = 1 - node.number.min(1);
            let (mut sent, mut ended, mut received) = (0, 0, 0);
            loop {
                while sends && sent < messages && sent - ended < MAX_IN_FLIGHT {
                    endpoint.send(other, bytes, 1)?;
                    sent += 1;
                }
                if (!sends || ended == messages) && (!receives || received == messages) {
                    break;
                }

                match endpoint.wait_any()? {
                    EventKind::SendEnd => ended += 1,
                    EventKind::PutEnd => {
                        received += 1;
                        if received + INITIAL_RECEIVES <= messages {
                            endpoint.post(bytes, 1)?;
                        }
                    }
                    _ => {}
                }
            }
            Ok(receives.then(|| began.elapsed() / messages))
        })?;
        Ok(first_result(&times).into())
    }

    /// Returns the time in which a process posts a receive, by `PtlPost` or by three calls.
    ///
    /// # Errors
    /// [`SeaStarsError`].
    pub fn post_time(&self, by_three_calls: bool, count: u32) -> Result<Picos, SeaStarsError> {
        let times = self.run(move |node| {
            let endpoint = Endpoint::new(node, 8)?;
            let began = Instant::now();
            for _ in 0..count {
                if by_three_calls {
                    endpoint.post_by_three_calls(8, 1)?;
                } else {
                    endpoint.post(8, 1)?;
                }
            }
            Ok(Some(began.elapsed() / count))
        })?;
        Ok(first_result(&times).into())
    }

    /// Returns the mean time of a collective operation on all nodes, whose number is a power of
    /// two.
    ///
    /// # Errors
    /// [`SeaStarsError`].
    pub fn collective(&self, collective: Collective, rounds: u32) -> Result<Picos, SeaStarsError> {
        let times = self.run(move |node| {
            let nodes = node.nodes;
            let bytes = collective.longest(nodes);
            let endpoint = Endpoint::new(node, bytes)?;
            let steps = collective.steps(node.number, nodes);
            let tag = |round: u32, step: usize| u64::from(round) << 8 | step as u64;

            // Faster nodes may be rounds ahead, so all receives are posted first.
            for round in 0..=rounds {
                for (step, exchange) in steps.iter().enumerate() {
                    if exchange.is_received {
                        endpoint.post(exchange.bytes, tag(round, step))?;
                    }
                }
            }
            node.stay_until(POSTING_END)?;

            let mut began = Instant::now();
            for round in 0..=rounds {
                if round == 1 {
                    began = Instant::now();
                }
                for (step, exchange) in steps.iter().enumerate() {
                    if let Some(to) = exchange.to {
                        endpoint.send(to, exchange.bytes, tag(round, step))?;
                    }
                    if exchange.is_received {
                        endpoint.wait_received()?;
                    }
                }
            }
            Ok(Some(began.elapsed() / rounds))
        })?;
        Ok(first_result(&times).into())
    }
}
