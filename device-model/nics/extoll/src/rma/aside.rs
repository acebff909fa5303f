//! Side queues: packets that wait for one client's memory leave the queues that all clients share.
//!
//! A packet whose data move by messages, and whose client has not answered yet, goes to a queue of
//! that client's, one for each class of traffic. All later RMA packets of the class for the client
//! follow it, so that order is kept. The side queue of one client delays no other client.
//!
//! A side queue is bounded by [`DEPTH`]. When it is full, packets for the client wait at the front
//! of shared queues, and that time is charged to a [`Budget`] of the client's and to one of the
//! card's. When one of them is spent, the oldest packet of the side queue ends as withdrawn and
//! makes room.
//!
//! A packet in a side queue keeps no other client's stage busy: staged data are copied to the side
//! queue's own memory, at most [`COPIES`] packets of them.

use std::{collections::VecDeque, sync::Arc};

use nicforge_core::{
    context::Context,
    device::AttachmentId,
    dma::{DmaLease, Term},
    time::Nanos,
};
use nicforge_shm::SharedMemory;

use super::{
    cost,
    part::{MTU, Part},
    transfer::{RETRY, Waiting},
};
use crate::{
    card::Card,
    switch::Arrival,
    wire::{Class, Wire},
};

/// Packets in a side queue at most.
const DEPTH: usize = 256;
/// Packets with copied data among them at most: a bit each.
const COPIES: usize = 4;
/// Longest time between two looks at a side queue, in nanoseconds.
const LONGEST_RETRY: u64 = 1_000_000;
/// Classes that have side queues, in the order in which they are looked at.
pub(crate) const CLASSES: [Class; 2] = [Class::Response, Class::Request];

/// The outcome of a look at a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handled {
    /// It is over.
    Done,
    /// The network has no room for its answer.
    NoRoom,
    /// The client's memory is reached by messages, which it has not answered.
    Slow,
}

/// A packet that was taken out of a shared queue.
struct Entry {
    wire: Wire,
    part: Part,
    memory: Option<Arc<DmaLease>>,
    /// The slot of the side queue's memory that its data were copied to.
    copy: Option<usize>,
    waiting: Waiting,
}

/// Packets of a class that wait for a client.
#[derive(Default)]
pub(crate) struct Aside {
    entries: VecDeque<Entry>,
    /// When the first one is looked at again.
    next_look: Nanos,
    /// The last look found that the client has not answered.
    slow: bool,
    /// Memory for copies, made when it is first needed, and its slots in use.
    memory: Option<SharedMemory>,
    used: [bool; COPIES],
}

impl Aside {
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn has_room(&self, part: &Part) -> bool {
        self.entries.len() < DEPTH && (!part.staged || self.used.contains(&false))
    }

    /// Puts a packet behind the others. The caller has asked [`Aside::has_room`].
    fn push(&mut self, wire: Wire, mut part: Part, memory: Option<Arc<DmaLease>>, waiting: Waiting) {
        let (mut memory, mut copy) = (memory, None);
        if part.staged {
            // Without a copy the packet has no data, and its command ends as withdrawn.
            copy = memory.take().and_then(|stage| self.copy(&stage, &part));
            memory = copy.and_then(|slot| self.lease(slot));
            part.place = 0;
        }

        self.entries.push_back(Entry { wire, part, memory, copy, waiting });
    }

    /// Copies a packet's data to a free slot.
    fn copy(&mut self, stage: &DmaLease, part: &Part) -> Option<usize> {
        let slot = self.used.iter().position(|used| !used)?;
        if self.memory.is_none() {
            self.memory = SharedMemory::create("rma-aside", COPIES * MTU as usize).ok();
        }

        let length = u64::from(part.length.min(MTU));
        stage.copy_to(part.place, &*self.lease(slot)?, 0, length).ok()?;
        self.used[slot] = true;
        Some(slot)
    }

    fn lease(&self, slot: usize) -> Option<Arc<DmaLease>> {
        let mtu = u64::from(MTU);
        let window = self.memory.as_ref()?.window(slot as u64 * mtu, mtu).ok()?;
        Some(Arc::new(DmaLease::new(window, Term::default())))
    }

    fn pop(&mut self) {
        let Some(entry) = self.entries.pop_front() else { return };
        if let Some(used) = entry.copy.and_then(|slot| self.used.get_mut(slot)) {
            *used = false;
        }
        (self.next_look, self.slow) = (Nanos::ZERO, false);
    }

    /// A message was answered: the first packet may go on.
    pub(crate) fn look_now(&mut self) {
        self.next_look = Nanos::ZERO;
    }
}

/// The side queue of a class, as an index. Packets of the third class never wait.
#[inline]
fn index(class: Class) -> usize {
    usize::from(class == Class::Request)
}

impl Card {
    fn aside(&mut self, owner: AttachmentId, class: Class) -> Option<&mut Aside> {
        Some(&mut self.rma.client(owner)?.aside[index(class)])
    }

    /// Returns whether a packet has to follow others to a side queue.
    #[inline]
    pub(crate) fn follows_others(&self, wire: Wire) -> bool {
        let class = wire.kind.class();
        !self.rma.with_aside.is_empty()
            && class != Class::Completion
            && self.rma.has_aside(AttachmentId(wire.target_vpid), index(class))
    }

    /// Moves the packet at the front of a shared queue to a side queue. Returns the cost, or `None`
    /// when the packet has to stay where it is for now.
    #[cold]
    pub(crate) fn step_aside(
        &mut self,
        context: &mut Context<'_>,
        arrival: Arrival,
        part: Part,
        waiting: Waiting,
    ) -> Option<u32> {
        let (owner, class) = (AttachmentId(arrival.wire.target_vpid), arrival.wire.kind.class());
        if !self.make_room(context, owner, class, &part) {
            return None;
        }

        let packet = {
            let mut ports = context.ports();
            let mut packet = self.switch.take(&mut ports, arrival)?;
            let memory = packet.memory.take();
            ports.recycle(packet);
            memory
        };
        let look = waiting.retry(context.now());
        let aside = self.aside(owner, class)?;
        if aside.is_empty() {
            (aside.next_look, aside.slow) = (look, true);
        }
        aside.push(arrival.wire, part, packet, waiting);
        self.rma.with_aside.add(owner.0);
        context.wake_at(look);
        // The look at this packet, or at the one that made room, may have copied as much.
        Some(cost(part.length))
    }

    /// Whether a side queue has room for a packet, if necessary by ending its oldest one.
    fn make_room(
        &mut self,
        context: &mut Context<'_>,
        owner: AttachmentId,
        class: Class,
        part: &Part,
    ) -> bool {
        let now = context.now();
        let Some(client) = self.rma.client(owner) else { return false };
        let aside = &client.aside[index(class)];
        if aside.has_room(part) {
            return true;
        }
        if !aside.slow {
            // The network has no room for an answer.
            return false;
        }

        let of_client = client.budget.hold(now);
        let of_card = self.rma.budget.hold(now);
        if of_client && of_card {
            context.wake_at(now.after(RETRY));
            return false;
        }

        self.rma.hurried += 1;
        self.look_aside(context, owner, class, true);
        self.aside(owner, class).is_some_and(|aside| aside.has_room(part))
    }

    /// Handles packets of side queues, a client after the other, for about `budget` packets' worth
    /// of work. Returns how much it was.
    #[inline]
    pub(crate) fn handle_aside(&mut self, context: &mut Context<'_>, budget: u32) -> u32 {
        if self.rma.with_aside.is_empty() { 0 } else { self.handle_all_aside(context, budget) }
    }

    #[cold]
    fn handle_all_aside(&mut self, context: &mut Context<'_>, budget: u32) -> u32 {
        let mut left = self.rma.with_aside;
        let mut spent = 0;
        while spent < budget {
            let Some(number) = left.next(self.rma.aside_turn) else { break };
            left.remove(number);
            self.rma.aside_turn = number + 1;

            let owner = AttachmentId(number);
            for class in CLASSES {
                while spent < budget
                    && let Some(cost) = self.look_aside(context, owner, class, false)
                {
                    spent += cost;
                }
            }

            let over = |client: &mut super::Client| client.aside.iter().all(Aside::is_empty);
            if self.rma.client(owner).is_none_or(over) {
                self.rma.with_aside.remove(number);
            }
        }
        spent
    }

    /// Looks at the first packet of a side queue. Returns the cost when it is over, and `None` when
    /// it waits. A hurried look ends a packet that would wait.
    fn look_aside(
        &mut self,
        context: &mut Context<'_>,
        owner: AttachmentId,
        class: Class,
        hurried: bool,
    ) -> Option<u32> {
        let now = context.now();
        let aside = self.aside(owner, class)?;
        let first = aside.entries.front()?;
        if now < aside.next_look && !hurried {
            context.wake_at(aside.next_look);
            return None;
        }

        let (wire, part, memory) = (first.wire, first.part, first.memory.clone());
        let mut waiting = first.waiting;
        waiting.hurried = hurried;
        let handled = self.rma_handle(context, wire, part, memory, &mut waiting);
        waiting.hurried = false;
        let look = if handled == Handled::Slow { waiting.retry(now) } else { Nanos::ZERO };

        let aside = self.aside(owner, class)?;
        if handled != Handled::Done {
            (aside.next_look, aside.slow) = (look, handled == Handled::Slow);
            aside.entries.front_mut()?.waiting = waiting;
            context.wake_at(if look > now { look } else { now.after(LONGEST_RETRY) });
            return None;
        }

        aside.pop();
        self.rma.client(owner)?.budget.release(now);
        self.rma.budget.release(now);
        Some(cost(part.length))
    }
}

impl Waiting {
    /// When to look again: soon at first, and less often the longer the client has not answered.
    fn retry(&self, now: Nanos) -> Nanos {
        let waited = self.waited(now);
        now.after((waited / 8).clamp(RETRY, LONGEST_RETRY))
    }
}
