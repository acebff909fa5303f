//! The choice among injection FIFOs.
//!
//! In: active FIFOs. Out: those that send their next packets, by `inject`. May touch: the lists of
//! active FIFOs.
//!
//! An engine takes the packet of a pseudo-randomly chosen FIFO of the highest priority that has one
//! for it. A FIFO whose packet finds no room stays active and delays no other one. It is parked, so
//! that a step costs the same however many FIFOs wait for the same engines.
//!
//! A step serves each priority at least once, however much those above it have to send.

use nicforge_core::context::Context;
use nicforge_hwi::mu_dcr::counter;
use nicforge_kit::retry;

use super::{
    Unit,
    active::Priority,
    inject::{Served, subgroup_and_index},
    rows::{RowEnd, SentRow},
    subgroup::{Injection, InjectionFifo},
};
use crate::network::NetworkUnit;

impl Unit {
    /// Sends packets of active FIFOs, about `budget` at most. Returns their number.
    pub(crate) fn inject(
        &mut self,
        network: &mut NetworkUnit,
        context: &mut Context<'_>,
        budget: u32,
    ) -> u32 {
        let mut moved = 0;
        for priority in Priority::ALL {
            if self.active.has_none(priority) {
                continue;
            }

            // The list has three parts: first the candidates, which this call may serve; then ready
            // FIFOs that turned out to be blocked in this call; at the end the parked ones.
            let mut candidates = self.active.count_ready(priority);
            let mut is_served = false;

            while moved < budget || !is_served {
                let mut parked = self.parked_with_room(network, context, priority);
                if candidates + parked == 0 {
                    break;
                }

                // A FIFO without competitors needs no choice, and sends several packets at once.
                let is_alone = candidates + parked == 1;
                if is_alone {
                    let limit = budget.saturating_sub(moved).max(1);
                    let row = self.serve_row(network, context, priority, limit, &mut candidates);
                    if row > 0 {
                        (moved, is_served) = (moved + row, true);
                        continue;
                    }
                    // Nothing was sent, so the FIFO is still where it was.
                    parked = 1 - candidates;
                }

                // The blocked FIFOs between candidates and parked ones are left out of the choice.
                let pick = self.random.below(candidates + parked);
                let ready = self.active.count_ready(priority);
                let index = if pick < candidates { pick } else { ready + pick - candidates };
                let served = self.serve_at(network, context, priority, index, &mut candidates);
                match served {
                    Served::Moved(cost) => {
                        moved += cost;
                        is_served = true;
                        if is_alone && moved < budget {
                            self.remove_if_empty(priority, &mut candidates);
                        }
                    }
                    Served::Blocked | Served::Full(_) | Served::Inactive => {}
                    Served::Starved => {
                        retry::when_starved(context);
                        return moved;
                    }
                }
            }
        }
        moved
    }

    /// Returns the number of parked FIFOs of a priority, if the network has room for their packets.
    #[inline]
    fn parked_with_room(
        &mut self,
        network: &NetworkUnit,
        context: &mut Context<'_>,
        priority: Priority,
    ) -> usize {
        let parked = self.active.count_parked(priority);
        if parked == 0 {
            return 0;
        }
        let awaited = self.active.awaited_fifos(priority);
        if self.open_engines(network, context, awaited) == 0 { 0 } else { parked }
    }

    /// Sends messages of the only FIFO of a priority that can proceed, at most `limit`. Returns
    /// their number. `candidates` is 1 if the FIFO is the first of the priority's list, or 0 if it
    /// is the first parked one. If something was sent, the FIFO moves to the part of the list to
    /// which it belongs then, at once if the row shows which one that is, else at the next visit.
    fn serve_row(
        &mut self,
        network: &mut NetworkUnit,
        context: &mut Context<'_>,
        priority: Priority,
        limit: u32,
        candidates: &mut usize,
    ) -> u32 {
        // Parked FIFOs follow the ready ones in the list.
        let index = if *candidates == 1 { 0 } else { self.active.count_ready(priority) };
        let Some(fifo) = self.active.get(priority, index) else { return 0 };
        let SentRow { messages, end } = self.send_row(network, context, fifo, limit);
        if messages == 0 {
            return 0;
        }

        if *candidates == 0 {
            self.make_candidate(priority, index, candidates);
        }
        match end {
            RowEnd::Empty => self.place_candidate(Served::Inactive, fifo, priority, 0, candidates),
            RowEnd::Full(map) => {
                self.counters[counter::SEND_WAITS] += 1;
                self.place_candidate(Served::Full(map), fifo, priority, 0, candidates);
            }
            RowEnd::Unknown => {}
        }
        messages
    }

    /// Serves the FIFO at an index of a list, and moves it to the part of the list to which it
    /// belongs then: candidates, FIFOs that are blocked in this call, or parked ones.
    fn serve_at(
        &mut self,
        network: &mut NetworkUnit,
        context: &mut Context<'_>,
        priority: Priority,
        index: usize,
        candidates: &mut usize,
    ) -> Served {
        // The caller has counted the FIFOs of the list, so the index exists.
        let Some(fifo) = self.active.get(priority, index) else { return Served::Starved };
        let is_parked = index >= self.active.count_ready(priority);
        let served = self.serve(network, context, fifo);

        if is_parked {
            self.place_parked(served, fifo, priority, index, candidates);
        } else {
            self.place_candidate(served, fifo, priority, index, candidates);
        }
        served
    }

    /// Removes the only candidate of a priority if it has no more descriptors, so that no further
    /// visit has to find that out.
    fn remove_if_empty(&mut self, priority: Priority, candidates: &mut usize) {
        let Some(fifo) = self.active.get(priority, 0).filter(|_| *candidates == 1) else { return };
        let (subgroup_id, index) = subgroup_and_index(fifo);
        let Some(subgroup) = self.subgroups.get(subgroup_id) else { return };
        let InjectionFifo { state, ring, .. } = &subgroup.injection[index];
        if matches!(state, Injection::Waiting) && ring.is_empty() {
            self.place_candidate(Served::Inactive, fifo, priority, 0, candidates);
        }
    }

    /// Moves a candidate that was served, unless it stays a candidate.
    fn place_candidate(
        &mut self,
        served: Served,
        fifo: u16,
        priority: Priority,
        index: usize,
        candidates: &mut usize,
    ) {
        if matches!(served, Served::Moved(_) | Served::Starved) {
            return;
        }

        // It changes places with the last candidate, which makes it the first blocked FIFO.
        *candidates -= 1;
        self.active.swap(priority, index, *candidates);
        match served {
            Served::Inactive => self.active.remove(fifo),
            Served::Full(map) => {
                // It stays a blocked FIFO if the parked ones wait for other network FIFOs.
                let last = self.active.count_ready(priority) - 1;
                self.active.swap(priority, *candidates, last);
                self.active.park_last(priority, map);
            }
            Served::Moved(_) | Served::Blocked | Served::Starved => {}
        }
    }

    /// Moves a parked FIFO that was served. It stays parked if it has sent a packet and its message
    /// has more, which wait for the same network FIFOs.
    fn place_parked(
        &mut self,
        served: Served,
        fifo: u16,
        priority: Priority,
        index: usize,
        candidates: &mut usize,
    ) {
        match served {
            Served::Moved(_) if !self.is_sending(fifo) => self.make_candidate(priority, index, candidates),
            Served::Inactive => self.active.remove(fifo),
            // Its message no longer waits for the network FIFOs of the parked ones. It becomes a
            // blocked FIFO, which is not served again in this call.
            Served::Blocked | Served::Full(_) => self.active.unpark(priority, index),
            Served::Moved(_) | Served::Starved => {}
        }
    }

    /// Makes the parked FIFO at an index of a list the last candidate.
    fn make_candidate(&mut self, priority: Priority, index: usize, candidates: &mut usize) {
        self.active.unpark(priority, index);
        let last = self.active.count_ready(priority) - 1;
        self.active.swap(priority, *candidates, last);
        *candidates += 1;
    }

    /// Returns whether a FIFO has begun to send a message and has more packets of it.
    fn is_sending(&self, fifo: u16) -> bool {
        let (subgroup_id, index) = subgroup_and_index(fifo);
        let subgroup = self.subgroups.get(subgroup_id);
        subgroup.is_some_and(|subgroup| matches!(subgroup.injection[index].state, Injection::Sending(_)))
    }
}
