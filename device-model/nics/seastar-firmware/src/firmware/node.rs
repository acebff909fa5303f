//! The state of a node's incarnation: all that is allocated at boot.

use nicforge_hwi::seastar::{
    Event as EventRecord, KERNEL, KERNEL_MESSAGES, KernelEvent, MAX_PROCESSES, failure, kernel_event,
    message, process_messages, vector,
};
use zerocopy::IntoBytes;

use super::{
    Firmware, NO_FAILURE, STEPS_PER_POLL, Settings,
    kernel::{KernelQueue, KernelSlot, SlotSource},
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

/// Maximum number of replies and Portals acknowledgements that are in flight or have space
/// reserved.
const MAX_ANSWERS: u16 = 64;
/// Words of [`DownNodes::unreported`] that a poll searches.
const WORDS_PER_POLL: usize = 32;

/// A node's position in its network.
#[derive(Clone, Copy)]
pub(super) struct NetworkPosition {
    /// Number of the node.
    pub(super) node: u32,
    /// Number of nodes of the network.
    pub(super) nodes: u32,
}

/// The state of a node's incarnation.
pub(super) struct Node {
    pub(super) incarnation: Incarnation,
    /// Number of this node.
    pub(super) number: u32,
    /// Number of nodes of the network.
    pub(super) nodes: u32,
    /// Number of processes that the node can have.
    pub(super) max_processes: u16,
    /// The kernel's event queue.
    pub(super) kernel: KernelQueue,
    pub(super) processes: [Option<Process>; MAX_PROCESSES as usize],
    /// Generation with which each process begins when it is started again.
    pub(super) generations: [u16; MAX_PROCESSES as usize],
    pub(super) pairs: Pairs,
    pub(super) outbox: Outbox,
    down_nodes: DownNodes,
    /// Bytes of scratch memory that were taken at boot.
    bytes: usize,
}

/// Other nodes whose incarnation has ended or that are silent, as long as processes or the kernel
/// do not know it.
struct DownNodes {
    /// Processes in NIC-based mode may have gets to which no reply comes.
    has_lost_gets: bool,
    /// Nodes whose end has not been reported to the kernel.
    unreported: Bits,
    /// Number of bits set in `unreported`.
    unreported_count: u32,
    /// The word of `unreported` at which the search continues.
    next_word: usize,
    /// A report has to wait, because the kernel's event queue is full.
    is_blocked: bool,
}

/// The next step of a poll because the incarnation of another node has ended, or it is silent.
enum DownAction {
    /// End a get of a process, because no reply comes to it.
    EndGet { process: u16, operation: OperationHandle },
    /// Report the node to the kernel, which may have such gets for processes in host-based mode.
    ReportToKernel { node: u32 },
}

impl Node {
    /// Allocates the state of an incarnation.
    pub(super) fn new(
        settings: Settings,
        NetworkPosition { node: number, nodes }: NetworkPosition,
        kernel: KernelQueue,
        generation: u16,
        scratch: &mut Scratch,
    ) -> Result<Self, NoSpace> {
        let mut rest = *scratch;
        let pairs = Pairs::new(nodes, &mut rest)?;
        let down_nodes = DownNodes {
            has_lost_gets: false,
            unreported: Bits::new(nodes),
            unreported_count: 0,
            next_word: 0,
            is_blocked: false,
        };
        rest.take((nodes as usize).div_ceil(8))?;
        let all_processes = process_messages(settings.processes) * settings.processes;
        let outbox =
            Outbox::new(KERNEL_MESSAGES + MAX_ANSWERS + all_processes, settings, generation, &mut rest)?;

        let bytes = (scratch.free() - rest.free()) as usize;
        *scratch = rest;
        Ok(Self {
            incarnation: Incarnation(0),
            number,
            nodes,
            max_processes: settings.processes,
            kernel,
            processes: [const { None }; MAX_PROCESSES as usize],
            generations: [1; MAX_PROCESSES as usize],
            pairs,
            outbox,
            down_nodes,
            bytes,
        })
    }

    /// Returns all bytes of the incarnation to the scratch memory.
    pub(super) fn give_back(&self, scratch: &mut Scratch) {
        let processes: usize = self.processes.iter().flatten().map(Process::bytes).sum();
        scratch.give_back(self.bytes + processes);
    }

    /// Returns whether there is space for a message of the kernel to a node, and for the event that
    /// will report its end.
    pub(super) fn has_room_for_kernel(&self, node: u32) -> bool {
        self.outbox.quotas.kernel < KERNEL_MESSAGES
            && self.kernel.has_room_to_send()
            && self.outbox.has_room(node)
    }

    /// Returns whether space for an answer to a node can be reserved.
    pub(super) fn has_room_for_answer(&self, node: u32) -> bool {
        let quotas = self.outbox.quotas;
        quotas.answers + quotas.reserved < MAX_ANSWERS && self.outbox.has_room(node)
    }

    /// Returns a process in NIC-based mode.
    pub(super) fn nic_based(&mut self, process: u16) -> Option<&mut NicBased> {
        match self.processes.get_mut(usize::from(process))? {
            Some(Process::NicBased(process)) => Some(process),
            _ => None,
        }
    }

    /// Records that an incarnation of another node has ended.
    pub(super) fn record_node_down(&mut self, node: u32) {
        self.outbox.fail_all(node);
        self.pairs.forget(node);
        self.lose_gets(node);
    }

    /// Marks the gets that wait for a reply from a node as lost, and notes the node for a report to
    /// the kernel. Later polls end the gets and make the report.
    fn lose_gets(&mut self, node: u32) {
        for process in self.processes.iter_mut().flatten() {
            if let Process::NicBased(process) = process {
                self.down_nodes.has_lost_gets |= process.portals.lose_gets(node);
            }
        }
        if node < self.nodes && !self.down_nodes.unreported.get(node) {
            self.down_nodes.unreported.set(node, true);
            self.down_nodes.unreported_count += 1;
        }
    }

    /// Returns whether a poll at time `now` has deferred work of the node.
    pub(super) fn has_work(&self, in_engine: u16, now: u64) -> bool {
        let has_reports = self.down_nodes.unreported_count > 0 && !self.down_nodes.is_blocked;
        has_reports || self.down_nodes.has_lost_gets || self.outbox.has_work(in_engine, now)
    }

    /// Lets a report to the kernel that found its queue full be tried again: the kernel has taken
    /// events.
    pub(super) fn retry_kernel_reports(&mut self) {
        self.down_nodes.is_blocked = false;
    }

    /// Returns what to do next because incarnations of other nodes have ended. The caller does it.
    #[inline]
    fn next_down_action(&mut self) -> Option<DownAction> {
        if self.down_nodes.has_lost_gets {
            self.find_lost_get()
        } else if self.down_nodes.unreported_count > 0 {
            self.find_unreported()
        } else {
            None
        }
    }

    /// Looks for the next get to which no reply comes.
    #[cold]
    fn find_lost_get(&mut self) -> Option<DownAction> {
        let lost = (0..self.max_processes).find_map(|process| {
            let operation = self.nic_based(process)?.portals.lost_get()?;
            Some(DownAction::EndGet { process, operation })
        });
        self.down_nodes.has_lost_gets = lost.is_some();
        lost
    }

    /// Looks for the next node whose end must be reported to the kernel.
    #[cold]
    fn find_unreported(&mut self) -> Option<DownAction> {
        let down = &mut self.down_nodes;
        let Some(node) = down.unreported.find(down.next_word, WORDS_PER_POLL) else {
            down.next_word = (down.next_word + WORDS_PER_POLL) % down.unreported.words();
            return None;
        };

        // Only a kernel with processes in host-based mode has gets of its own, and needs a report.
        let has_host_based =
            self.processes.iter().flatten().any(|process| matches!(process, Process::HostBased));
        down.is_blocked = has_host_based && !self.kernel.has_room(1);
        if down.is_blocked {
            return None;
        }
        down.unreported.set(node, false);
        down.unreported_count -= 1;
        has_host_based.then_some(DownAction::ReportToKernel { node })
    }

    /// Ends an operation of a process and writes its events. `failure_code` is [`NO_FAILURE`] or
    /// one of [`failure`].
    pub(super) fn end_operation<C: Chip>(
        &mut self,
        chip: &mut C,
        process: u16,
        operation: OperationHandle,
        failure_code: u16,
    ) -> Result<(), Halted> {
        let Some(nic_based) = self.nic_based(process) else { return Ok(()) };
        let events = nic_based.portals.end(operation, failure_code);
        write_events(chip, process, &events)
    }

    /// Writes an event to the kernel's queue, and raises an interrupt. The event's number is filled
    /// in here.
    pub(super) fn post_kernel_event<C: Chip>(
        &mut self,
        chip: &mut C,
        event: KernelEvent,
        source: SlotSource,
    ) -> Result<(), Halted> {
        let KernelSlot { address, number } = self.kernel.take_slot(source);
        let event = KernelEvent { number, ..event };

        chip.charge(costs::EVENT + costs::INTERRUPT);
        chip.write_host(Client(KERNEL), address, event.as_bytes())?;
        chip.interrupt(Client(KERNEL), vector::EVENT)
    }

    /// Reports the end of a message to its owner.
    fn report_end<C: Chip>(&mut self, chip: &mut C, ended: Ended) -> Result<(), Halted> {
        let failure_code = match ended.outcome {
            Outcome::Failed => failure::NODE,
            Outcome::Taken if ended.has_fault => failure::MEMORY,
            Outcome::Taken => NO_FAILURE,
        };

        match ended.owner {
            Owner::Gone | Owner::Acknowledgement { .. } => Ok(()),
            Owner::Kernel { token } => {
                let event = KernelEvent {
                    token,
                    failure: failure_code,
                    kind: kernel_event::SENT,
                    ..KernelEvent::default()
                };
                self.post_kernel_event(chip, event, SlotSource::Reserved)
            }
            // A get that was accepted ends later, with its reply.
            Owner::Operation { .. } if ended.kind == message::GET && failure_code == NO_FAILURE => Ok(()),
            Owner::Operation { process, operation } => {
                self.end_operation(chip, process, operation, failure_code)
            }
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

/// Writes events to a process's queues. [`Chip::write_host`] writes the last word of each record,
/// its number, behind the rest, so that the process never sees half an event.
pub(super) fn write_events<C: Chip>(chip: &mut C, process: u16, events: &[Event]) -> Result<(), Halted> {
    for event in events {
        let record: &EventRecord = &event.record;
        chip.charge(costs::EVENT);
        chip.write_host(client_of(process), event.address, record.as_bytes())?;
    }
    Ok(())
}

impl Firmware {
    /// Does a bounded part of the work that events have deferred: transmits messages, reports the
    /// ends of messages, and handles nodes that are silent or down.
    pub(super) fn do_deferred_work<C: Chip>(&mut self, chip: &mut C) -> Result<(), Halted> {
        let Some(node) = &mut self.node else { return Ok(()) };
        for step in 0..STEPS_PER_POLL {
            match node.outbox.step(self.in_engine, chip.now(), step + 1 == STEPS_PER_POLL) {
                None => break,
                Some(Work::Nothing) => {}
                Some(Work::Transmit { slot, target }) => {
                    let incarnation = chip.incarnation(target).unwrap_or(Incarnation(0));
                    // The message is not moved out of the option, which would copy it.
                    let transmission = node.outbox.make_transmission(slot, incarnation);
                    let Some(message) = &transmission else { continue };
                    self.in_engine += 1;
                    self.statistics.transmissions += 1;
                    chip.charge(costs::TRANSMIT);
                    chip.transmit(message)?;
                }
                Some(Work::Ended(ended)) => {
                    self.statistics.failed += u64::from(ended.outcome == Outcome::Failed);
                    chip.charge(costs::COMPLETE);
                    node.report_end(chip, ended)?;
                }
            }
        }

        // A node that answers nothing for the time-out is taken to be off.
        if let Some(silent) = node.outbox.find_silent_node(chip.now()) {
            self.statistics.timeouts += 1;
            node.pairs.resynchronize(silent);
            node.lose_gets(silent);
        }

        match node.next_down_action() {
            Some(DownAction::EndGet { process, operation }) => {
                node.end_operation(chip, process, operation, failure::NODE)
            }
            Some(DownAction::ReportToKernel { node: down }) => {
                // The event has the node's number in the field of the token.
                let event =
                    KernelEvent { token: down, kind: kernel_event::NODE_DOWN, ..KernelEvent::default() };
                node.post_kernel_event(chip, event, SlotSource::Free)
            }
            None => Ok(()),
        }
    }

    /// Ends a process. Returns false if there is none of this number.
    ///
    /// The messages that it was sending stay in their send queues without data, because each has
    /// used up a sequence number.
    pub(super) fn stop_process<C: Chip>(&mut self, chip: &mut C, process: u16) -> bool {
        let Some(node) = &mut self.node else { return false };
        let Some(ended) = node.processes.get_mut(usize::from(process)).and_then(Option::take) else {
            return false;
        };
        self.scratch.give_back(ended.bytes());

        // Handles of the ended process stay invalid in the next one of its number.
        if let (Process::NicBased(ended), Some(generation)) =
            (&ended, node.generations.get_mut(usize::from(process)))
        {
            *generation = ended.portals.next_generation();
        }

        let scanned_messages = node.outbox.detach(process);
        let detached = self.streams.detach(Some(process));
        node.kernel.release(detached.kernel_events);
        node.outbox.quotas.reserved = node.outbox.quotas.reserved.saturating_sub(detached.acknowledgements);
        chip.charge(costs::SCAN * (scanned_messages as u32 + u32::from(nicforge_hwi::seastar::STREAMS)));
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
        let node = Node::new(settings, NetworkPosition { node: 0, nodes: MAX_NODES }, queue, 1, &mut scratch)
            .unwrap();
        assert!(before - scratch.free() >= 4 * MAX_NODES);

        node.give_back(&mut scratch);
        assert_eq!(scratch.free(), before);
    }
}
