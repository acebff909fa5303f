//! The state of a node's incarnation: all that is allocated at boot.

use nicforge_hwi::seastar::{
    Event as EventRecord, KERNEL, KERNEL_MESSAGES, KernelEvent, MAX_PROCESSES, failure, kernel_event,
    message, process_messages, vector,
};
use zerocopy::IntoBytes;

use super::{
    Firmware, STEPS, Settings,
    kernel::KernelQueue,
    outbox::{Ended, Outbox, Work},
    pairs::{Bits, Pairs},
    pending::Owner,
    process::{NicBased, Process, client_of},
};
use crate::{
    chip::{Chip, Client, Halted, Incarnation},
    costs,
    matching::{Event, OperationHandle},
    protocol::Outcome,
    scratch::{NoSpace, Scratch},
};

/// Replies and Portals acknowledgements that can be in flight or promised.
const ANSWERS: u16 = 64;
/// Words of bits that a poll looks at for nodes whose life has ended.
const WORDS: usize = 32;

/// The state of a node's incarnation.
pub(super) struct Node {
    pub(super) incarnation: Incarnation,
    /// Number of this node, and of all.
    pub(super) number: u32,
    pub(super) nodes: u32,
    /// Number of processes that the node can have.
    pub(super) limit: u16,
    pub(super) kernel: KernelQueue,
    pub(super) processes: [Option<Process>; MAX_PROCESSES as usize],
    /// Generation with which each process begins when it is started again.
    pub(super) generations: [u16; MAX_PROCESSES as usize],
    pub(super) pairs: Pairs,
    pub(super) outbox: Outbox,
    downs: Downs,
    /// Bytes of scratch memory that were taken at boot.
    bytes: usize,
}

/// Ends of other nodes' incarnations that have to be shown to processes and to the kernel.
struct Downs {
    /// Processes in NIC-based mode may have gets that have lost their reply.
    has_lost_gets: bool,
    /// Nodes of which the kernel must be told, and their number.
    nodes: Bits,
    count: u32,
    /// The word at which the search continues.
    word: usize,
    /// The kernel must be told of a node, and its queue is full.
    is_blocked: bool,
}

/// Consequence of the end of a node's incarnation.
enum Lost {
    /// This get of a process has no reply any more.
    Get(u16, OperationHandle),
    /// The kernel must be told: it may have such gets for processes in host-based mode.
    Kernel(u32),
}

impl Node {
    /// Allocates the state of an incarnation.
    pub(super) fn new(
        settings: Settings,
        (number, nodes): (u32, u32),
        kernel: KernelQueue,
        generation: u16,
        scratch: &mut Scratch,
    ) -> Result<Self, NoSpace> {
        let mut rest = *scratch;
        let pairs = Pairs::new(nodes, &mut rest)?;
        let nodes_down = Bits::new(nodes);
        let downs = Downs { has_lost_gets: false, nodes: nodes_down, count: 0, word: 0, is_blocked: false };
        rest.take((nodes as usize).div_ceil(8))?;
        let share = process_messages(settings.processes) * settings.processes;
        let outbox = Outbox::new(KERNEL_MESSAGES + ANSWERS + share, settings, generation, &mut rest)?;

        let bytes = (scratch.free() - rest.free()) as usize;
        *scratch = rest;
        Ok(Self {
            incarnation: Incarnation(0),
            number,
            nodes,
            limit: settings.processes,
            kernel,
            processes: [const { None }; MAX_PROCESSES as usize],
            generations: [1; MAX_PROCESSES as usize],
            pairs,
            outbox,
            downs,
            bytes,
        })
    }

    /// Returns all bytes of the incarnation to the scratch memory.
    pub(super) fn give_back(&self, scratch: &mut Scratch) {
        let processes: usize = self.processes.iter().flatten().map(Process::bytes).sum();
        scratch.give_back(self.bytes + processes);
    }

    /// Returns whether the kernel can send a message to a node, and be told of its end.
    pub(super) fn has_room_for_kernel(&self, node: u32) -> bool {
        self.outbox.quotas.kernel < KERNEL_MESSAGES
            && self.kernel.has_room_to_send()
            && self.outbox.has_room(node)
    }

    /// Returns whether space for an answer to a node can be reserved.
    pub(super) fn has_room_for_answer(&self, node: u32) -> bool {
        let quotas = self.outbox.quotas;
        quotas.answers + quotas.reserved < ANSWERS && self.outbox.has_room(node)
    }

    /// Returns a process in NIC-based mode.
    pub(super) fn nic_based(&mut self, process: u16) -> Option<&mut NicBased> {
        match self.processes.get_mut(usize::from(process))? {
            Some(Process::NicBased(process)) => Some(process),
            _ => None,
        }
    }

    /// Records that an incarnation of another node has ended.
    pub(super) fn node_down(&mut self, node: u32) {
        self.outbox.fail_all(node);
        self.pairs.forget(node);
        self.fail_gets(node);
    }

    /// Lets all gets fail that wait for a reply of a node.
    fn fail_gets(&mut self, node: u32) {
        for process in self.processes.iter_mut().flatten() {
            if let Process::NicBased(process) = process {
                self.downs.has_lost_gets |= process.portals.lose_gets(node);
            }
        }
        if node < self.nodes && !self.downs.nodes.get(node) {
            self.downs.nodes.set(node, true);
            self.downs.count += 1;
        }
    }

    pub(super) fn has_work(&self, now: u64) -> bool {
        let has_downs = self.downs.count > 0 && !self.downs.is_blocked;
        has_downs || self.downs.has_lost_gets || self.outbox.has_work(now)
    }

    /// Records that the kernel's queue may have room again.
    pub(super) fn note_taken(&mut self) {
        self.downs.is_blocked = false;
    }

    /// Returns the next consequence of the end of a node's incarnation.
    #[inline]
    fn next_lost(&mut self) -> Option<Lost> {
        if self.downs.has_lost_gets {
            self.find_lost_get()
        } else if self.downs.count > 0 {
            self.find_lost()
        } else {
            None
        }
    }

    /// Looks for the next get that has lost its reply.
    #[cold]
    fn find_lost_get(&mut self) -> Option<Lost> {
        let lost = (0..self.limit).find_map(|process| {
            let operation = self.nic_based(process)?.portals.lost_get()?;
            Some(Lost::Get(process, operation))
        });
        self.downs.has_lost_gets = lost.is_some();
        lost
    }

    /// Looks for the next node of which the kernel must be told.
    #[cold]
    fn find_lost(&mut self) -> Option<Lost> {
        let Some(node) = self.downs.nodes.find(self.downs.word, WORDS) else {
            self.downs.word = (self.downs.word + WORDS) % self.downs.nodes.words();
            return None;
        };

        let matches = self.processes.iter().flatten().any(|process| matches!(process, Process::HostBased));
        self.downs.is_blocked = matches && !self.kernel.has_room(1);
        if self.downs.is_blocked {
            return None;
        }
        self.downs.nodes.set(node, false);
        self.downs.count -= 1;
        matches.then_some(Lost::Kernel(node))
    }

    /// Ends an operation of a process and writes its events.
    pub(super) fn end_operation<C: Chip>(
        &mut self,
        chip: &mut C,
        process: u16,
        operation: OperationHandle,
        reason: u16,
    ) -> Result<(), Halted> {
        let Some(nic_based) = self.nic_based(process) else { return Ok(()) };
        let events = nic_based.portals.end(operation, reason);
        write_events(chip, process, &events)
    }

    /// Writes an event of the kernel, and raises an interrupt.
    pub(super) fn tell_kernel<C: Chip>(
        &mut self,
        chip: &mut C,
        event: KernelEvent,
        was_reserved: bool,
    ) -> Result<(), Halted> {
        let (address, number) = self.kernel.advance(was_reserved);
        let event = KernelEvent { number, ..event };

        chip.charge(costs::EVENT + costs::INTERRUPT);
        chip.write_host(Client(KERNEL), address, event.as_bytes())?;
        chip.interrupt(Client(KERNEL), vector::EVENT)
    }

    /// Passes the end of a message on to its owner.
    fn ended<C: Chip>(&mut self, chip: &mut C, ended: Ended) -> Result<(), Halted> {
        let reason = match ended.outcome {
            Outcome::Failed => failure::NODE,
            Outcome::Taken if ended.has_fault => failure::MEMORY,
            Outcome::Taken => 0,
        };

        match ended.owner {
            Owner::Gone | Owner::Acknowledgement { .. } => Ok(()),
            Owner::Kernel { token } => {
                let event = KernelEvent {
                    token,
                    failure: reason,
                    kind: kernel_event::SENT,
                    ..KernelEvent::default()
                };
                self.tell_kernel(chip, event, true)
            }
            // A get ends with its reply, unless it has failed before.
            Owner::Operation { .. } if ended.kind == message::GET && reason == 0 => Ok(()),
            Owner::Operation { process, operation } => self.end_operation(chip, process, operation, reason),
        }
    }
}

impl Process {
    /// Returns the bytes of scratch memory that a process takes.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::HostBased => 0,
            Self::NicBased(process) => process.bytes(),
        }
    }
}

/// Writes events of a process, the number of each one last.
pub(super) fn write_events<C: Chip>(chip: &mut C, process: u16, events: &[Event]) -> Result<(), Halted> {
    for event in events {
        let record: &EventRecord = &event.record;
        chip.charge(costs::EVENT);
        chip.write_host(client_of(process), event.address, record.as_bytes())?;
    }
    Ok(())
}

impl Firmware {
    /// Carries out a part of the work that earlier events have deferred.
    pub(super) fn work<C: Chip>(&mut self, chip: &mut C) -> Result<(), Halted> {
        let Some(node) = &mut self.node else { return Ok(()) };
        for _ in 0..STEPS {
            match node.outbox.step(self.in_engine, chip.now()) {
                None => break,
                Some(Work::Nothing) => {}
                Some(Work::Transmit(slot, target)) => {
                    let incarnation = chip.incarnation(target).unwrap_or(Incarnation(0));
                    let Some(message) = node.outbox.transmission(slot, incarnation) else { continue };
                    self.in_engine += 1;
                    self.statistics.transmissions += 1;
                    chip.charge(costs::TRANSMIT);
                    chip.transmit(&message)?;
                }
                Some(Work::Ended(ended)) => {
                    self.statistics.failed += u64::from(ended.outcome == Outcome::Failed);
                    chip.charge(costs::COMPLETE);
                    node.ended(chip, ended)?;
                }
            }
        }

        if let Some(silent) = node.outbox.look(chip.now()) {
            self.statistics.timeouts += 1;
            node.pairs.resynchronize(silent);
            node.fail_gets(silent);
        }
        match node.next_lost() {
            Some(Lost::Get(process, operation)) => {
                node.end_operation(chip, process, operation, failure::NODE)
            }
            Some(Lost::Kernel(token)) => {
                let event = KernelEvent { token, kind: kernel_event::NODE_DOWN, ..KernelEvent::default() };
                node.tell_kernel(chip, event, false)
            }
            None => Ok(()),
        }
    }

    /// Ends a process. Its messages stay in their send queues without data, because each keeps a
    /// sequence number.
    pub(super) fn stop<C: Chip>(&mut self, chip: &mut C, process: u16) -> bool {
        let Some(node) = &mut self.node else { return false };
        let Some(ended) = node.processes.get_mut(usize::from(process)).and_then(Option::take) else {
            return false;
        };
        self.scratch.give_back(ended.bytes());
        if let (Process::NicBased(ended), Some(generation)) =
            (&ended, node.generations.get_mut(usize::from(process)))
        {
            *generation = ended.portals.next_generation();
        }

        let pendings = node.outbox.detach(process);
        let detached = self.streams.detach(Some(process));
        node.kernel.release(detached.kernel_events);
        node.outbox.quotas.reserved = node.outbox.quotas.reserved.saturating_sub(detached.acknowledgements);
        chip.charge(costs::SCAN * (pendings as u32 + u32::from(nicforge_hwi::seastar::STREAMS)));
        true
    }
}

#[cfg(test)]
mod tests {
    use nicforge_hwi::seastar::MAX_NODES;

    use super::*;
    use crate::{firmware::streams::Streams, scratch::MAILBOX};

    #[test]
    fn largest_network_fits_into_the_scratch_memory() {
        let settings = Settings { processes: MAX_PROCESSES, ..Settings::default() };
        let mut scratch = Scratch::new();
        scratch.take(usize::from(MAX_PROCESSES + 1) * MAILBOX as usize + Streams::BYTES).unwrap();
        let before = scratch.free();

        let queue = KernelQueue::new(0, 64).unwrap();
        let node = Node::new(settings, (0, MAX_NODES), queue, 1, &mut scratch).unwrap();
        assert!(before - scratch.free() >= 4 * MAX_NODES);

        node.give_back(&mut scratch);
        assert_eq!(scratch.free(), before);
    }
}
