//! The all-to-all of section V.C.
//!
//! The paper names the number of messages and the routing. The rest is that of the same authors'
//! program for it, `spi/examples/mu/msg_alltoall.c` of the public sources: a random permutation of
//! the destinations at each node, 64 injection FIFOs in eight subgroups that it uses in turn, and
//! direct puts of 2 KB. A message of more bytes is sent in rounds, each with a part of all
//! messages. The time begins before a barrier of all nodes.

use std::sync::Arc;

use nicforge_driver::{DmaBuffer, DmaPermission, Error as DriverError, runtime::Instant};
use nicforge_spi::{
    Box5, Counter, DirectPut, InjectionAttributes, Payload, RandomOrder, Subgroup, direct_put,
};

use super::{
    BlueGene, BlueGeneError, Node, NodeError, mean_since,
    programs::{end_sends, message_deadline},
};
use crate::world::Picos;

/// Subgroups of a node.
pub const SUBGROUPS: u16 = 8;
/// Injection FIFOs of a subgroup. The node has 64: `NUM_INJ_FIFOS`.
const FIFOS_OF_SUBGROUP: u8 = 8;
/// Bytes of an injection FIFO: `INJ_MEMORY_FIFO_SIZE`.
const FIFO_BYTES: u64 = 64 << 10;
/// Bytes of a direct put: `window_size`.
const ROUND_BYTES: u64 = 2048;
/// Packets from links between two injected ones: the most that the register has. With fewer, the
/// network fills with packets.
pub(crate) const THROUGH_RATIO: u8 = 16;
/// Entry of the base address table of the first subgroup.
const ENTRY: u8 = 0;
/// The class route of the barrier.
const BARRIER_CLASS: u8 = 0;
/// Alignment of the parts of a node's memory.
const PAGE_BYTES: u64 = 4096;
/// Offset of the source in a node's memory. The counter lies in front of it.
const SOURCE_OFFSET: u64 = PAGE_BYTES;

impl BlueGene<'_> {
    /// Returns the time of an all-to-all of messages of `bytes` bytes, by dynamic direct puts in a
    /// random order of each node. It begins before a barrier, and ends when the last node has
    /// received all and its sends are done.
    ///
    /// All messages of a node have the same source and the same target, so that the memory of many
    /// nodes fits into that of this computer.
    ///
    /// # Errors
    /// [`BlueGeneError`].
    pub fn all_to_all(&self, bytes: u64) -> Result<Picos, BlueGeneError> {
        let seed = self.seed;
        let times = self.run(0..self.nodes(), move |node| {
            let memory = NodeMemory::new(node, bytes)?;
            let order = RandomOrder::new(&node.subgroup.position(), seed);
            memory.counter.set(order.ranks().len() as u64 * bytes);
            node.set_through_ratio(THROUGH_RATIO)?;
            let position = node.subgroup.position();
            let route = Box5::whole(position.shape).route(position.own, true)?;
            node.kernel.set_barrier_route(BARRIER_CLASS, route)?;
            let mut barrier = node.subgroup.barrier(BARRIER_CLASS)?;
            node.wait_for_begin();

            let began = Instant::now();
            node.subgroup.enter(&mut barrier)?;
            node.subgroup.wait_barrier(&mut barrier, message_deadline(), None)?;
            for round in (0..bytes).step_by(ROUND_BYTES as usize) {
                memory.send(node, &order, ROUND_BYTES.min(bytes - round))?;
            }
            node.subgroup.wait_counter(&memory.counter, message_deadline(), None)?;
            for subgroup in node.all_subgroups() {
                end_sends(subgroup, FIFOS_OF_SUBGROUP)?;
            }
            Ok(mean_since(began, 1))
        })?;
        Ok(times.into_iter().max().unwrap_or(Picos::ZERO))
    }
}

/// The memory of a node: counter, source, target, and injection FIFOs. All of it is one file, since
/// many nodes have more buffers than a process has files.
struct NodeMemory {
    /// The memory as it is mapped for DMA of each subgroup.
    buffers: Vec<Arc<DmaBuffer>>,
    /// Counter of the bytes that are still to arrive.
    counter: Counter,
    target: DirectPut,
}

impl NodeMemory {
    /// Allocates memory for messages of `bytes` bytes, and opens the injection FIFOs.
    fn new(node: &mut Node, bytes: u64) -> Result<Self, NodeError> {
        let target_offset = SOURCE_OFFSET + bytes.next_multiple_of(PAGE_BYTES);
        let fifos_offset = target_offset + bytes.next_multiple_of(PAGE_BYTES);
        let bytes_of_subgroup = u64::from(FIFOS_OF_SUBGROUP) * FIFO_BYTES;
        let length = fifos_offset + node.all_subgroups().count() as u64 * bytes_of_subgroup;

        let memory = Arc::new(node.subgroup.memory(length as usize)?);
        let mut buffers = vec![memory.clone()];
        let file = memory.memory().ok_or(DriverError::Unsupported { what: "memory of several subgroups" })?;
        for other_subgroup in &node.others {
            let buffer = other_subgroup.device().map_dma(file, 0, memory.len(), DmaPermission::READ_WRITE)?;
            buffers.push(Arc::new(buffer));
        }

        let offsets = (fifos_offset..).step_by(bytes_of_subgroup as usize);
        for ((subgroup, buffer), offset) in node.all_subgroups().zip(&buffers).zip(offsets) {
            open_fifos(subgroup, buffer, offset)?;
        }

        node.subgroup.set_base_address(ENTRY, memory.iova())?;
        let counter = Counter::new(&memory, 0)?;
        let base = node.subgroup.base_address_id(ENTRY);
        let target = DirectPut {
            payload_base: base,
            offset: target_offset,
            counter_base: base,
            counter_offset: counter.offset(memory.iova())?,
            ..DirectPut::default()
        };
        Ok(Self { counter, target, buffers })
    }

    /// Sends a message of `bytes` bytes to each node of an order, through the injection FIFOs of
    /// all subgroups in turn.
    fn send(&self, node: &mut Node, order: &RandomOrder, bytes: u64) -> Result<(), NodeError> {
        let position = node.subgroup.position();
        let mut subgroups: Vec<_> = node.all_subgroups().zip(&self.buffers).collect();
        let fifos_of_subgroup = usize::from(FIFOS_OF_SUBGROUP);
        let fifos_of_node = subgroups.len() * fifos_of_subgroup;

        for (message, &rank) in order.ranks().iter().enumerate() {
            let to = position.coordinates(rank).unwrap_or(position.own);
            let fifo_of_node = message % fifos_of_node;
            let (subgroup, buffer) = &mut subgroups[fifo_of_node / fifos_of_subgroup];
            let fifo = fifo_of_node % fifos_of_subgroup;

            let source = Payload::memory(buffer.iova() + SOURCE_OFFSET, bytes);
            let put = direct_put(source, position.dynamic(to), &self.target)?;
            subgroup.inject(fifo as u8, &put, message_deadline(), None)?;
        }
        Ok(())
    }
}

/// Opens the injection FIFOs of a subgroup, with memory from `first_offset` on.
fn open_fifos(subgroup: &mut Subgroup, buffer: &Arc<DmaBuffer>, first_offset: u64) -> Result<(), NodeError> {
    for (fifo, offset) in (0..FIFOS_OF_SUBGROUP).zip((first_offset..).step_by(FIFO_BYTES as usize)) {
        subgroup.init_injection(fifo, buffer.clone(), offset, FIFO_BYTES, InjectionAttributes::default())?;
    }
    Ok(subgroup.set_injection_enabled(u8::MAX, true)?)
}
