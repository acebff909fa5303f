//! The service of the receive FIFO, and of the control packets that are due.
//!
//! Every waiting thread does this work: the daemon, and the threads in calls. One of them at a time
//! holds the receive FIFO.

use std::sync::atomic::Ordering;

use nicforge_driver::{
    Error as DriverError, GoneCause,
    runtime::{Cost, Event, charge},
};
use nicforge_hwi::tree::{CORES, Header, PAYLOAD};

use super::{
    cores::{Core, CoreLink, CoreState, Direction, PendingReset, Request, Slot, spin_lock, try_lock},
    daemon::DaemonControl,
    fifos::{Incoming, ReceiveFifo, SendLock},
    replies::ReplyQueue,
};
use crate::{
    Config, Error,
    compute::CLASS,
    protocol::{ABORT, Control, Kind, ResetHead, Scope},
    statistics::Counters,
    tree::{Generation, TreeChannel},
};

/// Number of packets that one call of [`Inner::service`] takes from the receive FIFO.
const MAX_PACKETS_PER_SERVICE: usize = 16;

/// The state that the threads of an I/O node share.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) channel: TreeChannel,
    pub(super) config: Config,
    pub(super) ownership: Ownership,
    pub(super) cores: Box<[Core]>,
    /// One slot for each [`Direction`].
    pub(super) slots: [Slot; 2],
    pub(super) send: SendLock,
    pub(super) receive: ReceiveFifo,
    pub(super) replies: ReplyQueue,
    /// The condition on which calls sleep in interrupt mode.
    pub(super) event: Event,
    pub(super) daemon: DaemonControl,
    pub(super) counters: Counters,
}

/// Values by which this process recognizes that it still owns the node.
#[derive(Debug)]
pub(super) struct Ownership {
    /// [`nicforge_driver::Device::resets`] when the node was opened.
    resets: u32,
    /// The value by which this process owns the node's lock boxes.
    owner: u32,
}

impl Ownership {
    /// Returns the values of a process that has just opened the node.
    pub(super) fn of(channel: &TreeChannel) -> Self {
        Self { resets: channel.device().resets(), owner: channel.owner() }
    }
}

impl Inner {
    /// Wakes the calls that may wait for the packets that this thread has handled.
    pub(super) fn notify(&self) {
        self.event.notify();
        self.channel.device().wake_waiting_threads();
    }

    /// Returns whether the process of `link` is gone.
    #[inline]
    pub(super) fn is_gone(&self, link: CoreLink) -> bool {
        self.channel.presence(link.name.node, link.name.core) != link.generation
    }

    /// Returns whether this process still owns the node's lock boxes. It does not after the
    /// operator has reset the node.
    #[inline]
    pub(super) fn owns_lock_boxes(&self) -> bool {
        self.channel.receive_lock().is_owned_by(self.ownership.owner)
    }

    /// Returns whether this process has reset its device since it opened the node.
    #[inline]
    pub(super) fn is_reset(&self) -> bool {
        self.channel.device().resets() != self.ownership.resets
    }

    /// Returns the generation of this process's core.
    #[inline]
    pub(super) fn own_generation(&self) -> Generation {
        self.channel.presence(self.channel.info().address, self.channel.info().core)
    }

    /// Checks that neither this process has reset its device nor the operator its node. A reset
    /// frees the node's lock boxes and makes this process a new one to the compute cores.
    #[inline]
    pub(super) fn check_own(&self) -> Result<(), Error> {
        if !self.is_reset() && self.owns_lock_boxes() {
            Ok(())
        } else {
            Err(DriverError::DeviceGone { cause: GoneCause::Reset }.into())
        }
    }

    /// Takes at most [`MAX_PACKETS_PER_SERVICE`] packets from the receive FIFO, unless another
    /// thread does, and sends the packets that are due. Returns whether it did either.
    pub(super) fn service(&self) -> Result<bool, Error> {
        self.check_own()?;
        let mut worked = false;

        // The count is loaded first, because the NIC counts a packet after it has put it into the
        // FIFO.
        let received = u64::from(self.channel.received());
        if !self.receive.is_empty_at(received)
            && !self.receive.has_reader()
            && let Some(incoming) = try_lock(&self.receive.incoming)
        {
            let mut receiver = self.channel.receiver(incoming);
            let drain = receiver.held().drain;
            // The check precedes the read of the FIFO. Once a core is seen down, all packets that
            // it sent are in the FIFO.
            let drain_of_dead_core = drain.filter(|drain| self.is_lost(drain.core));
            let mut is_empty = false;

            for _ in 0..MAX_PACKETS_PER_SERVICE {
                let Some(header) = receiver.peek() else {
                    is_empty = true;
                    break;
                };

                if header.irq() {
                    let mut payload = [0; PAYLOAD];
                    receiver.payload(&mut payload);
                    receiver.advance();
                    self.handle_control(&payload, receiver.held());
                } else {
                    // A call that began to receive meanwhile takes the data itself.
                    if self.receive.has_reader() {
                        break;
                    }
                    receiver.advance();
                    self.count_orphan(receiver.held());
                }

                self.counters.packets_received.add(1);
                worked = true;
            }

            // No more data of a dead core can come.
            if is_empty && let Some(drain) = drain_of_dead_core {
                self.end_drain(receiver.held(), drain.core);
            }

            if is_empty && receiver.held().drain.is_none() {
                self.receive.set_empty_at(receiver.held(), received);
            }
        }

        Ok(self.flush() || worked)
    }

    /// Returns whether no process is linked to `core`, or the linked process is gone.
    fn is_lost(&self, core: u32) -> bool {
        spin_lock(&self.cores[core as usize].state).link.is_none_or(|link| self.is_gone(link))
    }

    /// Counts a data packet that no call receives, and ends the drain after its last one.
    fn count_orphan(&self, incoming: &mut Incoming) {
        self.counters.orphans.add(1);
        if let Some(drain) = &mut incoming.drain {
            drain.packets = drain.packets.saturating_sub(1);
            if drain.packets == 0 {
                let core = drain.core;
                self.end_drain(incoming, core);
            }
        }
    }

    /// Ends the drain of the write of `core`, if that is the current one, and the transfer with it.
    fn end_drain(&self, incoming: &mut Incoming, core: u32) {
        if incoming.drain.take_if(|drain| drain.core == core).is_some() {
            self.end_transfer(core, Direction::Write);
        }
    }

    /// Ends a transfer: frees the slot, and lets a RESET that waits for it be acknowledged.
    pub(super) fn end_transfer(&self, core: u32, direction: Direction) {
        let pending = {
            let mut state = spin_lock(&self.cores[core as usize].state);
            state.running[direction as usize] = false;
            state.pending_reset.is_some()
        };

        self.slots[direction as usize].release(core);
        if pending {
            self.queue_reply(core);
        }

        self.notify();
    }

    /// Handles a control packet: stores a request, or carries out a RESET. Wakes the calls that may
    /// wait for it.
    pub(super) fn handle_control(&self, payload: &[u8; PAYLOAD], incoming: &mut Incoming) {
        charge(Cost::ControlPacket, 1);
        let decoded = Control::decode(payload).ok();
        let Some((rank, control)) = decoded.and_then(|control| Some((self.rank(&control)?, control))) else {
            self.counters.strays.add(1);
            return;
        };

        let accepted = match control.kind {
            Kind::Read => self.store_request(rank, Direction::Read, &control),
            Kind::Write => self.store_request(rank, Direction::Write, &control),
            Kind::Reset => self.handle_reset(rank, &control, incoming),
        };

        if accepted {
            self.notify();
        } else {
            self.counters.strays.add(1);
        }
    }

    /// Returns the rank of the core that a control packet names, if the pset has it.
    fn rank(&self, control: &Control) -> Option<u32> {
        let (info, name) = (self.channel.info(), control.core);

        let fits =
            u32::from(name.rank_in_pset) < info.pset_size && name.core < CORES && name.node < info.nodes;
        fits.then(|| u32::from(name.rank_in_pset) * u32::from(CORES) + u32::from(name.core))
    }

    /// Stores the request of a core until a call takes it. Returns `false` if the core is not
    /// linked, or its process is gone.
    fn store_request(&self, rank: u32, direction: Direction, control: &Control) -> bool {
        let mut state = spin_lock(&self.cores[rank as usize].state);
        let linked = state.link.is_some_and(|link| link.name == control.core && !self.is_gone(link));

        if linked {
            state.requests[direction as usize] = Some(Request { size: control.size, head: control.head });
            self.counters.hand_overs.add(1);
        }
        linked
    }

    /// Handles a RESET of a core: drops its requests, revokes its running transfers, and queues the
    /// acknowledgement. Returns whether the RESET was valid.
    fn handle_reset(&self, rank: u32, control: &Control, incoming: &mut Incoming) -> bool {
        let Some(scope) = Scope::from_size(control.size) else { return false };

        let head = ResetHead::of(control);
        let sender = CoreLink { name: control.core, generation: Generation(head.generation) };
        if !sender.generation.is_up() || self.is_gone(sender) {
            return false;
        }

        let core = &self.cores[rank as usize];
        let mut state = spin_lock(&core.state);
        if scope == Scope::All {
            self.link_process(&mut state, sender);
        } else if state.link != Some(sender) {
            return false;
        }

        for direction in Direction::BOTH.into_iter().filter(|direction| direction.is_in(scope)) {
            state.requests[direction as usize] = None;
            if state.running[direction as usize] {
                core.revoked[direction as usize].store(true, Ordering::Release);
            }
        }

        state.pending_reset = Some(PendingReset { scope, token: head.token.get() });
        // A read that the core withdraws itself needs no abort any more.
        let has_replaced_abort = scope.has_read() && std::mem::take(&mut state.is_abort_due);
        drop(state);

        if has_replaced_abort {
            self.end_transfer(rank, Direction::Read);
        }

        if scope.has_write() {
            // All data of the write arrived before the RESET.
            self.end_drain(incoming, rank);
        }

        self.queue_reply(rank);
        true
    }

    /// Links the process that has sent a RESET of both directions.
    fn link_process(&self, state: &mut CoreState, sender: CoreLink) {
        if state.link.is_some_and(|link| link != sender) {
            self.counters.peers_lost.add(1);
        }

        state.link = Some(sender);
        state.lost = [false; 2];
        self.counters.resets.add(1);
    }

    /// Records that the process of a core is gone.
    pub(super) fn unlink_process(&self, state: &mut CoreState) {
        state.link = None;
        state.requests = [None; 2];
        state.lost = [true; 2];
        state.pending_reset = None;
        self.counters.peers_lost.add(1);
    }

    /// Puts `core` into the reply queue, because control packets to it are due.
    pub(super) fn queue_reply(&self, core: u32) {
        if !self.cores[core as usize].queued.swap(true, Ordering::AcqRel) {
            self.replies.push(core);
        }
    }

    /// Sends the packets that are due, as far as there is room. Returns whether it sent any.
    pub(super) fn flush(&self) -> bool {
        if !self.replies.is_pending() {
            return false;
        }

        let Some(mut replies) = self.replies.try_lock() else { return false };

        let mut sent = false;
        for _ in 0..replies.len() {
            let Some(core) = replies.pop_front() else { break };
            let queued = &self.cores[core as usize].queued;
            // A packet that becomes due from here on queues the core again, at the latest when the
            // queue is unlocked.
            queued.store(false, Ordering::Release);

            if self.send_replies(core) {
                sent = true;
            } else if !queued.swap(true, Ordering::AcqRel) {
                replies.push_back(core);
            }
        }

        self.replies.finish(&replies);
        sent
    }

    /// Sends the packets that are due to `core`: an abort, and the acknowledgement of a RESET.
    /// Returns `false` if one of them must wait.
    fn send_replies(&self, core: u32) -> bool {
        let mut state = spin_lock(&self.cores[core as usize].state);
        let link = state.link.filter(|link| !self.is_gone(*link));

        if state.is_abort_due {
            let sent = match link {
                Some(link) => self.try_send(&Control::new(Kind::Read, link.name, ABORT), link),
                None => true,
            };
            if !sent {
                return false;
            }

            // These are the steps of `end_transfer`, which would queue the core again.
            state.is_abort_due = false;
            state.running[Direction::Read as usize] = false;
            self.slots[Direction::Read as usize].release(core);
            self.notify();
        }

        let (Some(reset), Some(link)) = (state.pending_reset, link) else {
            state.pending_reset = None;
            return true;
        };

        // The acknowledgement of a RESET says that the transfers in its scope have ended.
        let has_running_transfer = Direction::BOTH
            .iter()
            .any(|direction| direction.is_in(reset.scope) && state.running[*direction as usize]);
        if has_running_transfer {
            return false;
        }

        let head = ResetHead {
            token: reset.token.into(),
            core: self.channel.info().core as u8,
            generation: self.own_generation().0,
            reserved: 0.into(),
        };
        let reply = Control::new(Kind::Reset, link.name, reset.scope as u32)
            .with_head(zerocopy::IntoBytes::as_bytes(&head));

        let sent = self.try_send(&reply, link);
        if sent {
            state.pending_reset = None;
        }
        sent
    }

    /// Sends a control packet to a core if there is room. Returns whether it did.
    pub(super) fn try_send(&self, control: &Control, link: CoreLink) -> bool {
        let header = Header::to_core(CLASS, link.name.node, link.name.core, true);
        let sent = self.channel.send_batch(self.send.lock()).try_send(header, &control.encode());
        if sent {
            self.counters.packets_sent.add(1);
        } else {
            self.counters.stalls.add(1);
        }
        sent
    }
}
