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

/// Events whose lanes are loaded into the cache together.
const TOGETHER: usize = 8;

impl Fabric {
    /// Carries out the events due until `now`, and queues the functions they concern for a wake-up.
    #[inline]
    pub fn advance(&mut self, now: Nanos) {
        if self.next_event() <= now {
            self.traffic.advance_until(now);
        }
    }

    /// Has the processor load the state of a node that [`Fabric::take_next_woken`] will name: that
    /// at position `ahead` of those to come. Returns its function.
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

    /// Returns the function that [`Fabric::take_next_woken`] will name after `ahead` others.
    #[inline]
    pub(crate) fn peek_woken(&self, ahead: usize) -> Option<FunctionId> {
        Some(self.traffic.nodes.get(self.traffic.woken.get(ahead)? as usize)?.function)
    }
}

impl Traffic {
    fn advance_until(&mut self, now: Nanos) {
        while let Some(due) = self.schedule.begin(now) {
            while self.carry_out_some(due) {}
        }
    }

    /// Carries out the next events of the present time. Returns false if there are no more.
    ///
    /// The lanes and nodes of a large network are in no cache. Those of several events are loaded
    /// together.
    fn carry_out_some(&mut self, due: Nanos) -> bool {
        let mut events = [Event::NONE; TOGETHER];
        let mut count = 0;
        while count < TOGETHER
            && let Some(event) = self.schedule.pop()
        {
            if let Some(lane) = self.lanes.get(event.lane()) {
                prefetch_lines::<2, _>(lane);
            }
            if !event.is_arrival()
                && let Some(lane) = self.lanes.get(event.lane() + 1)
            {
                // Most packets take one of a port's first two virtual channels.
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
        count == TOGETHER
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

    /// Wakes the sender of a path that waits for the wire to fall idle, or schedules that for later
    /// if the wire was booked again.
    fn report_idle(&mut self, path: usize, due: Nanos) {
        let entry = &mut self.paths[path];
        let idle_at = entry.idle_at();
        if idle_at > due {
            let event = Event::of_lane(entry.first_lane, EventKind::Idle);
            self.schedule.add(due, idle_at, event);
            return;
        }

        entry.idle_scheduled = false;
        let (index, port) = entry.sender();
        let node = &mut self.nodes[index as usize];
        node.freed |= 1 << (port % MAX_PORTS);
        node.wake(index, &mut self.woken);
    }
}
