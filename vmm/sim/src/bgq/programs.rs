//! The programs of the paper's benchmarks (section V).

use std::time::Duration;

use nicforge_driver::{Deadline, DmaBuffer, runtime::Instant};
use nicforge_spi::{
    Box5, Collective, CollectiveChannel, Counter, Descriptor, DirectPut, Hint, InjectionAttributes,
    Operation, Payload, PointToPoint, Subgroup, direct_put, fifo_map,
};

use super::{BlueGene, BlueGeneError, NodeError, mean_since};
use crate::world::Picos;

/// Time after which a message counts as lost.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Alignment of the source and the target in a subgroup's memory.
const PAGE_BYTES: u64 = 4096;
/// Offset of the source in a subgroup's memory. The counters lie in front of it.
const SOURCE_OFFSET: u64 = PAGE_BYTES;
/// Bytes of a message of a ping-pong.
const PING_PONG_BYTES: u64 = 8;
/// Descriptors that an injection FIFO holds.
const DESCRIPTORS: u32 = 64;
/// Entry of the base address table that all programs use.
const ENTRY: u8 = 0;
/// The class route of collective operations.
const CLASS: u8 = 0;
const CHANNEL: CollectiveChannel = CollectiveChannel::CommWorld;
/// Operation of collectives, and the bytes of its operands.
const SUM: Operation = Operation::FloatingAdd;
const WORD_BYTES: u16 = 8;
/// Links that a subgroup uses, half of those of a node. Each has an injection FIFO.
const LINKS_OF_SUBGROUP: usize = 5;

/// A subgroup's memory: counters, a source and a target.
struct Area {
    memory: DmaBuffer,
    /// Bytes of the longest message.
    bytes: u64,
}

impl Area {
    /// Allocates memory for messages of `bytes` bytes, and opens the first `fifos` injection FIFOs.
    fn new(subgroup: &mut Subgroup, bytes: u64, fifos: u8) -> Result<Self, NodeError> {
        let source_and_target = 2 * bytes.next_multiple_of(PAGE_BYTES);
        let memory = subgroup.memory((SOURCE_OFFSET + source_and_target) as usize)?;
        subgroup.set_base_address(ENTRY, memory.iova())?;
        for fifo in 0..fifos {
            subgroup.open_injection(fifo, DESCRIPTORS, InjectionAttributes::default())?;
        }
        Ok(Self { memory, bytes })
    }

    /// Returns counter `number` of the area. A counter has 8 bytes.
    fn counter(&self, number: usize) -> Result<Counter, NodeError> {
        Ok(Counter::new(&self.memory, 8 * number as u64)?)
    }

    /// Returns the first bytes of the source.
    fn source(&self, bytes: u64) -> Payload {
        Payload::memory(self.memory.iova() + SOURCE_OFFSET, bytes)
    }

    /// Returns the target of direct puts, and the counter of their bytes, at the offsets that they
    /// have in the memory of each node. `base` is the entry of the base address table.
    fn target(&self, base: u16, counter: &Counter) -> Result<DirectPut, NodeError> {
        Ok(DirectPut {
            payload_base: base,
            offset: SOURCE_OFFSET + self.bytes.next_multiple_of(PAGE_BYTES),
            counter_base: base,
            counter_offset: counter.offset(self.memory.iova())?,
            ..DirectPut::default()
        })
    }
}

/// Returns the deadline of a message that a program begins to wait for now. Then it counts as lost.
pub(super) fn message_deadline() -> Deadline {
    Deadline::after(TIMEOUT)
}

/// Waits until the unit has sent the messages in the first `fifos` injection FIFOs of a subgroup.
/// The FIFOs end with the subgroup, so a message that is unsent then would be lost.
pub(super) fn end_sends(subgroup: &mut Subgroup, fifos: u8) -> Result<(), NodeError> {
    for fifo in 0..fifos {
        let last = subgroup.injection().injected(fifo)?;
        subgroup.injection().wait_done(fifo, last, message_deadline(), None)?;
    }
    Ok(())
}

/// Returns the first time, or zero if there is none.
fn first(times: &[Picos]) -> Picos {
    times.first().copied().unwrap_or(Picos::ZERO)
}

impl BlueGene<'_> {
    /// Returns half the time of a round trip of 8 bytes between node 0 and each of `others`, one
    /// after another, by direct puts in dimension order (Table 1).
    ///
    /// # Errors
    /// [`BlueGeneError`].
    pub fn ping_pong(&self, others: &[u32], rounds: u32) -> Result<Vec<Picos>, BlueGeneError> {
        let peers = others.to_vec();
        let times = self.run([0].into_iter().chain(others.iter().copied()), move |node| {
            let subgroup = &mut node.subgroup;
            let area = Area::new(subgroup, PING_PONG_BYTES, 1)?;
            let end = PingPong { counter: area.counter(0)?, area };
            end.counter.set(PING_PONG_BYTES);
            node.wait_for_begin();

            let subgroup = &mut node.subgroup;
            let mut times = Vec::new();
            if subgroup.position().rank() == 0 {
                for &peer in &peers {
                    times.push(end.ping(subgroup, peer, rounds)?);
                }
            } else {
                end.pong(subgroup, rounds)?;
            }
            end_sends(subgroup, 1)?;
            Ok(times)
        })?;
        Ok(times.into_iter().next().unwrap_or_default())
    }

    /// Returns the time in which a single node with loop cables sends and receives a message on
    /// each of its ten links (Table 2). All messages have the same source and the same target,
    /// since the contents of memory take no time.
    ///
    /// # Errors
    /// [`BlueGeneError`].
    pub fn loops(&self, bytes: u64, rounds: u32) -> Result<Picos, BlueGeneError> {
        let times = self.run([0], move |node| {
            let mut ends = Vec::new();
            for (half, subgroup) in node.all_subgroups().enumerate() {
                ends.push(LoopEnds::new(subgroup, half, bytes)?);
            }
            node.wait_for_begin();

            let began = Instant::now();
            for _ in 0..rounds {
                for (subgroup, ends) in node.all_subgroups().zip(&ends) {
                    ends.send(subgroup)?;
                }
                for (subgroup, ends) in node.all_subgroups().zip(&ends) {
                    ends.wait(subgroup)?;
                }
            }
            Ok(mean_since(began, rounds))
        })?;
        Ok(first(&times))
    }

    /// Returns, for each of `sizes` in bytes, the mean time of an allreduce of floating-point sums
    /// on all nodes, whose result arrives as direct puts (Tables 3 and 4). The root is in the
    /// middle of the nodes.
    ///
    /// # Errors
    /// [`BlueGeneError`].
    pub fn allreduce(&self, sizes: &[u64], rounds: u32) -> Result<Vec<Picos>, BlueGeneError> {
        let sizes_to_sum = sizes.to_vec();
        let times = self.run(0..self.nodes(), move |node| {
            let subgroup = &mut node.subgroup;
            let longest = sizes_to_sum.iter().copied().max().unwrap_or(WORD_BYTES.into());
            let area = Area::new(subgroup, longest, 1)?;
            let counter = area.counter(0)?;
            let target = area.target(subgroup.base_address_id(ENTRY), &counter)?;
            let collective = Collective { channel: CHANNEL, ..Collective::allreduce(CLASS, SUM, WORD_BYTES) };

            let position = subgroup.position();
            let contributes = true;
            let route = Box5::whole(position.shape).route(position.own, contributes)?;
            node.kernel.set_collective_route(CLASS, route, CHANNEL)?;
            node.wait_for_begin();

            let subgroup = &mut node.subgroup;
            let mut times = Vec::new();
            for &bytes in &sizes_to_sum {
                let put = direct_put(area.source(bytes), collective, &target)?;
                let began = Instant::now();
                for _ in 0..rounds {
                    counter.set(bytes);
                    subgroup.inject(0, &put, message_deadline(), None)?;
                    subgroup.wait_counter(&counter, message_deadline(), None)?;
                }
                times.push(mean_since(began, rounds));
            }
            Ok(times)
        })?;

        // The nodes that are farthest from the root determine the time.
        let longest_time = |size: usize| times.iter().filter_map(|times| times.get(size)).max().copied();
        Ok((0..sizes.len()).filter_map(longest_time).collect())
    }
}

/// A node's end of a ping-pong.
struct PingPong {
    area: Area,
    /// Counter of the bytes that are still to arrive.
    counter: Counter,
}

impl PingPong {
    /// Sends a message to a node and waits for its answer, `rounds` times. Returns the mean time of
    /// one way.
    fn ping(&self, subgroup: &mut Subgroup, other: u32, rounds: u32) -> Result<Picos, NodeError> {
        let put = self.put(subgroup, other)?;
        let began = Instant::now();
        for _ in 0..rounds {
            subgroup.inject(0, &put, message_deadline(), None)?;
            subgroup.wait_counter(&self.counter, message_deadline(), None)?;
            self.counter.set(PING_PONG_BYTES);
        }
        Ok(mean_since(began, 2 * rounds))
    }

    /// Waits for a message of node 0 and answers it, `rounds` times.
    fn pong(&self, subgroup: &mut Subgroup, rounds: u32) -> Result<(), NodeError> {
        let put = self.put(subgroup, 0)?;
        for _ in 0..rounds {
            subgroup.wait_counter(&self.counter, message_deadline(), None)?;
            self.counter.set(PING_PONG_BYTES);
            subgroup.inject(0, &put, message_deadline(), None)?;
        }
        Ok(())
    }

    /// Returns the descriptor of a message to a node: a direct put in dimension order.
    fn put(&self, subgroup: &Subgroup, to: u32) -> Result<Descriptor, NodeError> {
        let position = subgroup.position();
        let route = position.ordered(position.coordinates(to).unwrap_or(position.own));
        let target = self.area.target(subgroup.base_address_id(ENTRY), &self.counter)?;
        Ok(direct_put(self.area.source(PING_PONG_BYTES), route, &target)?)
    }
}

/// The messages of a subgroup to its own node, one over each of [`LINKS_OF_SUBGROUP`] links.
struct LoopEnds {
    area: Area,
    /// The message of each link, in the order of the injection FIFOs.
    messages: Vec<LoopMessage>,
}

/// A message over one link, and the counter that shows its arrival.
struct LoopMessage {
    put: Descriptor,
    counter: Counter,
}

impl LoopEnds {
    /// Prepares the messages over the first half of the node's links if `half` is 0, or over the
    /// second half if it is 1.
    fn new(subgroup: &mut Subgroup, half: usize, bytes: u64) -> Result<Self, NodeError> {
        let area = Area::new(subgroup, bytes, LINKS_OF_SUBGROUP as u8)?;
        let own = subgroup.position().destination();
        let base = subgroup.base_address_id(ENTRY);

        let mut messages = Vec::new();
        for number in 0..LINKS_OF_SUBGROUP {
            // The links are numbered by dimension: even ones lead down, odd ones up.
            let link = half * LINKS_OF_SUBGROUP + number;
            let mut route = PointToPoint::ordered(own);
            route.fifo_map = fifo_map::AM >> link;
            route.hints[link / 2] = if link.is_multiple_of(2) { Hint::Minus } else { Hint::Plus };

            let counter = area.counter(number)?;
            let put = direct_put(area.source(bytes), route, &area.target(base, &counter)?)?;
            messages.push(LoopMessage { put, counter });
        }
        Ok(Self { area, messages })
    }

    /// Sends the messages of all links.
    fn send(&self, subgroup: &mut Subgroup) -> Result<(), NodeError> {
        for (fifo, message) in self.messages.iter().enumerate() {
            message.counter.set(self.area.bytes);
            subgroup.inject(fifo as u8, &message.put, message_deadline(), None)?;
        }
        Ok(())
    }

    /// Waits until the messages of all links have arrived.
    fn wait(&self, subgroup: &Subgroup) -> Result<(), NodeError> {
        for message in &self.messages {
            subgroup.wait_counter(&message.counter, message_deadline(), None)?;
        }
        Ok(())
    }
}
