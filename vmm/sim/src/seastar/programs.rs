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
/// Maximum number of messages of a stream in flight.
const MAX_IN_FLIGHT: u32 = 32;
/// Events of receives, and of sends, that a queue has room for.
const QUEUE_EVENTS: u32 = 1024;
/// Match bits of messages and receives, unless several messages must be told apart.
const MATCH_BITS: u64 = 1;
/// Bytes of a receive whose posting is measured.
const POSTED_BYTES: usize = 8;

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
    /// Allocates memory of `bytes` bytes and the queues of events, and binds the descriptor of
    /// sends.
    fn new(node: &'a Node, bytes: usize) -> Result<Self, NodeError> {
        let interface = &node.interface;
        let memory = interface.allocate(bytes.max(1) as u64)?;
        let (receive_events, send_events) =
            (interface.allocate_queue(QUEUE_EVENTS)?, interface.allocate_queue(QUEUE_EVENTS)?);
        let send_descriptor = interface.bind_descriptor(&Descriptor {
            options: Options::START_DISABLE,
            queue: Some(&send_events),
            ..Descriptor::over(&memory)
        })?;
        Ok(Self { interface, memory, receive_events, send_descriptor, send_events })
    }

    /// Returns the descriptor of a receive of `bytes` bytes, which is unlinked after one message.
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
        // The update makes the descriptor active.
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

    /// Waits for the next event of a receive or a send, and returns its kind. A failed operation is
    /// an error.
    fn wait_any(&self) -> Result<EventKind, NodeError> {
        let deadline = Deadline::after(TIMEOUT);
        let (_, event) = Interface::poll(&[&self.receive_events, &self.send_events], deadline, None)?;
        match event.failure {
            None => Ok(event.kind),
            Some(_) => Err(NodeError::Event(format!("{event:?}"))),
        }
    }
}

/// Waits for the next event of a kind. Events of other kinds, such as those of unlinked
/// descriptors, are ignored.
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

/// The streams of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streams {
    /// One stream, from the first node to the second.
    OneWay,
    /// Two streams at once, one in each direction.
    BothWays,
}

/// The way in which a process posts a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posting {
    /// By `PtlPost`.
    OneCall,
    /// By the three calls that were there before `PtlPost`.
    ThreeCalls,
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
    /// The node that this one sends a message to, if any.
    to: Option<u32>,
    /// Whether this node receives a message.
    receives: bool,
    /// Length of the messages.
    bytes: usize,
}

impl Collective {
    /// All of them, with their names.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Barrier, "barrier"),
        (Self::Allreduce, "allreduce"),
        (Self::Reduce, "reduce"),
        (Self::Allgather, "allgather"),
    ];

    /// Returns the bytes of memory that a node needs for the operation's messages.
    fn memory_bytes(self, nodes: u32) -> usize {
        match self {
            Self::Barrier => 0,
            Self::Allreduce | Self::Reduce => ELEMENT_BYTES,
            Self::Allgather => ELEMENT_BYTES * nodes as usize,
        }
    }

    /// Returns the steps of a node among `nodes`, in their order.
    fn steps(self, node: u32, nodes: u32) -> Vec<Exchange> {
        let distances = (0..nodes.ilog2()).map(|order| 1 << order);
        let exchange = |to, bytes| Exchange { to: Some(to), receives: true, bytes };

        match self {
            Self::Barrier => distances.map(|distance| exchange((node + distance) % nodes, 0)).collect(),
            Self::Allreduce => distances.map(|distance| exchange(node ^ distance, ELEMENT_BYTES)).collect(),
            Self::Allgather => distances
                .map(|distance| exchange(node ^ distance, ELEMENT_BYTES * distance as usize))
                .collect(),
            // A node receives from the nodes above it in the tree, until it sends to the one below.
            Self::Reduce => {
                let mut steps = Vec::new();
                for distance in distances {
                    if node & distance != 0 {
                        steps.push(Exchange {
                            to: Some(node - distance),
                            receives: false,
                            bytes: ELEMENT_BYTES,
                        });
                        break;
                    }
                    steps.push(Exchange { to: None, receives: true, bytes: ELEMENT_BYTES });
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
                endpoint.post(bytes, MATCH_BITS)?;
            }
            // At this time, every node has posted its receives.
            node.stay_until(POSTING_END)?;

            if node.number > 1 {
                return Ok(None);
            }
            let (is_first, other) = (node.number == 0, 1 - node.number);
            let mut began = Instant::now();
            for round in 0..=rounds {
                // Round 0 warms up, and is not counted.
                if round == 1 {
                    began = Instant::now();
                }
                if is_first {
                    endpoint.send(other, bytes, MATCH_BITS)?;
                    endpoint.wait_received()?;
                } else {
                    endpoint.wait_received()?;
                    endpoint.send(other, bytes, MATCH_BITS)?;
                }
            }
            Ok(is_first.then(|| began.elapsed() / (2 * rounds)))
        })?;
        Ok(first_result(&times).into())
    }

    /// Returns the mean time of a message in a stream of `messages` messages from the first node to
    /// the second, or in streams in both directions at once. A receiver posts 64 receives before,
    /// and further ones as messages come.
    ///
    /// # Errors
    /// [`SeaStarsError`].
    pub fn stream(&self, bytes: usize, messages: u32, streams: Streams) -> Result<Picos, SeaStarsError> {
        let times = self.run(move |node| {
            let endpoint = Endpoint::new(node, bytes)?;
            let both_ways = streams == Streams::BothWays;
            let (sends, receives) = (node.number == 0 || both_ways, node.number == 1 || both_ways);
            if receives {
                for _ in 0..INITIAL_RECEIVES.min(messages) {
                    endpoint.post(bytes, MATCH_BITS)?;
                }
            }
            node.stay_until(POSTING_END)?;

            let began = Instant::now();
            let other = 1 - node.number.min(1);
            let (mut sent, mut ended_sends, mut received) = (0, 0, 0);
            loop {
                while sends && sent < messages && sent - ended_sends < MAX_IN_FLIGHT {
                    endpoint.send(other, bytes, MATCH_BITS)?;
                    sent += 1;
                }
                if (!sends || ended_sends == messages) && (!receives || received == messages) {
                    break;
                }

                match endpoint.wait_any()? {
                    EventKind::SendEnd => ended_sends += 1,
                    EventKind::PutEnd => {
                        received += 1;
                        // The next message without a receive gets one.
                        if received + INITIAL_RECEIVES <= messages {
                            endpoint.post(bytes, MATCH_BITS)?;
                        }
                    }
                    _ => {}
                }
            }
            Ok(receives.then(|| began.elapsed() / messages))
        })?;
        Ok(first_result(&times).into())
    }

    /// Returns the mean time in which a process posts a receive, of `count` receives.
    ///
    /// # Errors
    /// [`SeaStarsError`].
    pub fn post_time(&self, posting: Posting, count: u32) -> Result<Picos, SeaStarsError> {
        let times = self.run(move |node| {
            let endpoint = Endpoint::new(node, POSTED_BYTES)?;
            let began = Instant::now();
            for _ in 0..count {
                match posting {
                    Posting::OneCall => endpoint.post(POSTED_BYTES, MATCH_BITS)?,
                    Posting::ThreeCalls => endpoint.post_by_three_calls(POSTED_BYTES, MATCH_BITS)?,
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
            let endpoint = Endpoint::new(node, collective.memory_bytes(nodes))?;
            let steps = collective.steps(node.number, nodes);
            // The match bits of a step. There are fewer than 256 steps.
            let match_bits = |round: u32, step: usize| u64::from(round) << 8 | step as u64;

            // Faster nodes may be rounds ahead, so all receives are posted first.
            for round in 0..=rounds {
                for (step, exchange) in steps.iter().enumerate() {
                    if exchange.receives {
                        endpoint.post(exchange.bytes, match_bits(round, step))?;
                    }
                }
            }
            node.stay_until(POSTING_END)?;

            let mut began = Instant::now();
            for round in 0..=rounds {
                // Round 0 warms up, and is not counted.
                if round == 1 {
                    began = Instant::now();
                }
                for (step, exchange) in steps.iter().enumerate() {
                    if let Some(to) = exchange.to {
                        endpoint.send(to, exchange.bytes, match_bits(round, step))?;
                    }
                    if exchange.receives {
                        endpoint.wait_received()?;
                    }
                }
            }
            Ok(Some(began.elapsed() / rounds))
        })?;
        Ok(first_result(&times).into())
    }
}
