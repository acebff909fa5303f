//! Carrying out the events that are due.
//!
//! The lanes and nodes of a large network are in no cache. The data of several events are
//! therefore prefetched together, before the first of them is carried out.

use nicforge_shm::{prefetch, prefetch_lines};

use super::{
    Fabric, MAX_PORTS, Traffic,
    schedule::{Event, EventKind},
};
use crate::{ids::FunctionId, time::Nanos};

/// Number of events whose lanes are loaded into the cache together.
const BATCH: usize = 8;

impl Fabric {
    /// Carries out the events due until `now`, and queues the functions they concern for a wake-up.
    #[inline]
    pub fn advance(&mut self, now: Nanos) {
        if self.next_event() <= now {
            self.traffic.advance_until(now);
        }
    }

    /// Has the processor load the state of the node whose function [`Fabric::take_next_woken`] will
    /// return after `ahead` others. Returns the function.
    #[inline]
    pub(crate) fn prefetch_woken(&self, ahead: usize) -> Option<FunctionId> {
        let index = self.traffic.woken.get(ahead)? as usize;
        let node = self.traffic.nodes.get(index)?;
        prefetch(&node.heads);
        prefetch(&node.arrived);
        if let Some(links) = self.links.get(index) {
            prefetch_lines::<2, _>(links.as_slice());
        }
        Some(node.function)
    }

    /// Returns the function that [`Fabric::take_next_woken`] will return after `ahead` others.
    #[inline]
    pub(crate) fn peek_woken(&self, ahead: usize) -> Option<FunctionId> {
        Some(self.traffic.nodes.get(self.traffic.woken.get(ahead)? as usize)?.function)
    }
}

impl Traffic {
    /// Carries out the events due until `now`, in order of time.
    fn advance_until(&mut self, now: Nanos) {
        while let Some(due) = self.schedule.begin(now) {
            while self.carry_out_batch(due) {}
        }
    }

    /// Carries out the next [`BATCH`] events of the time `due`, or the rest of them. Returns
    /// whether there may be more.
    ///
    /// The state that they use is prefetched in three passes, because the addresses of each pass
    /// are in the state of the pass before it: the lanes, then what a lane refers to, then its
    /// first packet.
    fn carry_out_batch(&mut self, due: Nanos) -> bool {
        let mut events = [Event::NONE; BATCH];
        let mut count = 0;
        while count < BATCH
            && let Some(event) = self.schedule.pop()
        {
            if let Some(lane) = self.lanes.get(event.lane()) {
                prefetch_lines::<2, _>(lane);
            }
            if !event.is_arrival()
                && let Some(lane) = self.lanes.get(event.lane() + 1)
            {
                // The sender will look at its virtual channels, and most packets take one of the
                // first two.
                prefetch_lines::<2, _>(lane);
            }
            events[count] = event;
            count += 1;
        }

        let events = &events[..count];
        for &event in events {
            if let Some(lane) = self.lanes.get(event.lane()) {
                lane.prefetch_for(event, &self.nodes, &self.paths);
            }
            if !event.is_arrival()
                && let Some(lane) = self.lanes.get(event.lane() + 1)
            {
                lane.prefetch_track();
            }
        }
        for &event in events {
            let lane = self.lanes.get(event.lane()).filter(|_| event.is_arrival());
            if let Some(packet) = lane.and_then(|lane| lane.queue.front()) {
                prefetch(&**packet);
            }
        }
        for &event in events {
            self.carry_out(due, event);
        }
        count == BATCH
    }

    /// Carries out one event.
    #[inline(always)]
    fn carry_out(&mut self, due: Nanos, event: Event) {
        let (index, kind) = event.parts();
        if kind == EventKind::Wire {
            return self.show_wire(index as u8, due);
        }

        let Some(lane) = self.lanes.get_mut(index) else { return };
        let (nodes, woken, schedule) = (&mut self.nodes, &mut self.woken, &mut self.schedule);
        match kind {
            EventKind::Credit => lane.return_due(index as u32, due, (nodes, woken), schedule),
            EventKind::Arrival => {
                if let Some(next) = lane.arrive(due, nodes, woken) {
                    lane.schedule_arrival(index as u32, due, next, schedule);
                }
            }
            EventKind::Idle => {
                let path = lane.path;
                self.report_idle(path as usize, due);
            }
            EventKind::Wire => {}
        }
    }

    /// Wakes the sender of a path, which waits for the wire to fall idle. If the wire was booked
    /// again meanwhile, schedules the event for the end of that.
    fn report_idle(&mut self, path: usize, due: Nanos) {
        let entry = &mut self.paths[path];
        let idle_at = entry.idle_at();
        if idle_at > due {
            let event = Event::of_lane(entry.first_lane, EventKind::Idle);
            self.schedule.add(due, idle_at, event);
            return;
        }

        entry.idle_scheduled = false;
        let sender = entry.sender();
        let node = &mut self.nodes[sender.node as usize];
        node.freed |= 1 << (sender.port % MAX_PORTS);
        node.wake(sender.node, &mut self.woken);
    }
}
