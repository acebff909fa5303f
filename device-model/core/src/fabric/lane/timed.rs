//! A lane's packets that take time, and its credits on their way back.

use std::collections::VecDeque;

use nicforge_shm::prefetch;

use super::{Lane, saturated};
use crate::{
    fabric::{
        CreditUnit, MAX_PORTS, Node, Packet, Path,
        schedule::{Event, EventKind, Place, Schedule},
        track::Flight,
    },
    time::Nanos,
};

impl Lane {
    /// Adds a packet that takes `credits` credits, to a lane of any kind. Returns the time of the
    /// event to schedule for it, if it is the first coming one.
    #[inline]
    pub(in crate::fabric) fn push_timed(
        &mut self,
        now: Nanos,
        flight: Flight,
        credits: u32,
        packet: Packet,
    ) -> Option<Nanos> {
        self.credits -= credits;
        self.last_arrival = flight.tail;
        self.stats.packets += 1;
        self.stats.bytes += packet.wire_bytes();
        self.queue.push(packet);

        let track = self.track.get_or_insert_default();
        if track.is_hushed {
            track.hide_arrived(now);
        }
        track.push_coming(flight);
        if self.capacity.unit() != CreditUnit::Packets {
            track.push_cost(credits);
        }
        let has_event = track.arrival_place != Place::NONE || track.is_hushed;
        (!has_event).then_some(flight.head)
    }

    /// Returns credits whose packets leave the buffer at `end`, after the delay.
    #[inline(always)]
    pub(in crate::fabric) fn return_later(
        &mut self,
        credits: u32,
        lane_index: u32,
        (now, end): (Nanos, Nanos),
        nodes: &mut [Node],
        woken: &mut VecDeque<u32>,
        schedule: &mut Schedule,
    ) {
        let due = end.max(now).after(self.delay);
        match &mut self.track {
            Some(_) if due > now => {
                // Those that are back need no place any more.
                self.count_returns(now);
                if let Some(track) = &mut self.track {
                    track.push_return(due, credits);
                }
                self.watch_credits(lane_index, now, schedule);
            }
            _ => self.return_timed(credits, nodes, woken),
        }
    }

    /// Returns credits to the sender of any lane. Wakes it if it had none, or has as many as it
    /// waits for.
    fn return_timed(&mut self, credits: u32, nodes: &mut [Node], woken: &mut VecDeque<u32>) {
        let had_none = self.credits == 0;
        self.credits += credits;
        self.stall_counted = false;

        let has_enough = self.wake_at > 0 && self.credits >= self.wake_at.into();
        if has_enough {
            self.wake_at = 0;
            self.direct = self.delay == 0 && self.pace.is_simple;
        }
        if had_none || has_enough {
            let node = &mut nodes[self.ends.sender as usize];
            node.freed |= 1 << (self.ends.sender_port % MAX_PORTS);
            node.wake(self.ends.sender, woken);
        }
    }

    /// Lets the sender wake when it has `credits` credits, or a smaller number that it already
    /// waits for.
    pub(in crate::fabric) fn wake_sender_at(
        &mut self,
        credits: u32,
        lane_index: u32,
        now: Nanos,
        schedule: &mut Schedule,
    ) {
        // A sender without credits is woken at the first one in any case.
        if credits > 1 {
            let credits = saturated(credits);
            self.wake_at = if self.wake_at == 0 { credits } else { self.wake_at.min(credits) };
            self.direct = false;
            self.watch_credits(lane_index, now, schedule);
        }
    }

    /// Returns whether the sender waits for credits, so that their return is an event.
    #[inline]
    fn is_watched(&self) -> bool {
        self.credits == 0 || self.wake_at > 0
    }

    /// Schedules the next return of credits if the sender waits for it.
    #[inline(always)]
    pub(in crate::fabric) fn watch_credits(&mut self, lane_index: u32, now: Nanos, schedule: &mut Schedule) {
        if self.is_watched() {
            self.schedule_return(lane_index, now, schedule);
        }
    }

    /// Schedules the next return of credits, unless there is an event for it.
    #[inline(never)]
    fn schedule_return(&mut self, lane_index: u32, now: Nanos, schedule: &mut Schedule) {
        let Some(track) = &mut self.track else { return };
        let due = track.next_return();
        if due < track.credit_event {
            track.credit_event = due;
            schedule.add(now, due, Event::of_lane(lane_index, EventKind::Credit));
        }
    }

    /// Counts the credits that are back at `now`. A sender that waits for some has an event for
    /// that.
    #[inline(always)]
    pub(in crate::fabric) fn count_returns(&mut self, now: Nanos) {
        if let Some(track) = &self.track
            && track.next_return() <= now
        {
            self.count_due_returns(now);
        }
    }

    /// Does the work of [`Lane::count_returns`] if credits are back.
    #[inline]
    fn count_due_returns(&mut self, now: Nanos) {
        if self.is_watched() {
            return;
        }

        let Some(track) = &mut self.track else { return };
        while let Some(credits) = track.pop_return(now) {
            self.credits += credits;
            self.stall_counted = false;
        }
    }

    /// Returns the credits that the sender has at `now`.
    #[inline]
    pub(in crate::fabric) fn credits_at(&self, now: Nanos) -> u32 {
        match &self.track {
            Some(track) if !self.is_watched() => self.credits + track.count_returned(now),
            _ => self.credits,
        }
    }

    /// Returns the credits that are due to the sender, and wakes it if it waits for them.
    pub(in crate::fabric) fn return_due(
        &mut self,
        lane_index: u32,
        due: Nanos,
        (nodes, woken): (&mut [Node], &mut VecDeque<u32>),
        schedule: &mut Schedule,
    ) {
        let Some(track) = &mut self.track else { return };
        if track.credit_event <= due {
            track.credit_event = Nanos::NEVER;
        }

        while let Some(credits) = self.track.as_mut().and_then(|track| track.pop_return(due)) {
            self.return_timed(credits, nodes, woken);
        }
        self.watch_credits(lane_index, due, schedule);
    }

    /// Schedules the event for the first coming packet.
    #[inline]
    pub(in crate::fabric) fn schedule_arrival(
        &mut self,
        lane_index: u32,
        now: Nanos,
        due: Nanos,
        schedule: &mut Schedule,
    ) {
        if let Some(track) = &mut self.track {
            track.arrival_place = schedule.add(now, due, Event::of_lane(lane_index, EventKind::Arrival));
        }
    }

    /// Puts off the scheduling of the event for the first coming packet until the devices have seen
    /// its head: see [`Lane::hush`].
    #[inline]
    pub(in crate::fabric) fn defer_arrival(
        &mut self,
        lane_index: u32,
        now: Nanos,
        due: Nanos,
        schedule: &mut Schedule,
    ) {
        if let Some(track) = &mut self.track {
            track.arrival_place = Place::DEFERRED;
            schedule.defer(now, due, lane_index);
        }
    }

    /// Schedules the event that [`Lane::defer_arrival`] has put off, unless it was cancelled.
    #[inline]
    pub(in crate::fabric) fn schedule_deferred(
        &mut self,
        lane_index: u32,
        now: Nanos,
        schedule: &mut Schedule,
    ) {
        let Some(track) = self.track.as_mut().filter(|track| track.arrival_place == Place::DEFERRED) else {
            return;
        };

        let Flight { head, tail } = track.coming();
        let due = if track.has_head { tail } else { head };
        track.arrival_place = if due < Nanos::NEVER {
            schedule.add(now, due, Event::of_lane(lane_index, EventKind::Arrival))
        } else {
            Place::NONE
        };
    }

    /// Shows the receiver what arrives as soon as it is sent: see [`Lane::arrive`].
    #[cold]
    #[inline(never)]
    pub(in crate::fabric) fn arrive_at_once(
        &mut self,
        now: Nanos,
        nodes: &mut [Node],
        woken: &mut VecDeque<u32>,
    ) -> Option<Nanos> {
        self.arrive(now, nodes, woken)
    }

    /// Shows the receiver the heads and packets that have arrived at `due`, and wakes it. Returns
    /// the time of the next event, if there is one.
    #[inline(always)]
    pub(in crate::fabric) fn arrive(
        &mut self,
        due: Nanos,
        nodes: &mut [Node],
        woken: &mut VecDeque<u32>,
    ) -> Option<Nanos> {
        let track = self.track.as_mut()?;
        if track.is_hushed {
            track.arrival_place = Place::NONE;
            return None;
        }

        let Flight { head, tail } = track.coming();
        if head <= due && due < tail && !track.has_head && tail < Nanos::NEVER {
            // The head of a packet, as at most events.
            track.has_head = true;
            let node = &mut nodes[self.ends.receiver as usize];
            node.heads[self.ends.mask_index()] |= self.ends.port_bit();
            node.wake(self.ends.receiver, woken);
            return Some(tail);
        }

        let former = (self.visible, track.has_head);
        let next = self.count_arrivals(due);
        let track = self.track.as_mut()?;
        if next.is_none() {
            track.arrival_place = Place::NONE;
        }

        if former != (self.visible, track.has_head) {
            self.show_arrivals(nodes);
            nodes[self.ends.receiver as usize].wake(self.ends.receiver, woken);
        }
        next
    }

    /// Has the processor load what an event of this lane concerns.
    #[inline(always)]
    pub(in crate::fabric) fn prefetch_for(&self, event: Event, nodes: &[Node], paths: &[Path]) {
        self.prefetch_track();
        let node = if event.is_arrival() {
            self.queue.prefetch_front();
            self.ends.receiver
        } else {
            if let Some(path) = paths.get(self.path as usize) {
                prefetch(path);
            }
            self.ends.sender
        };
        if let Some(node) = nodes.get(node as usize) {
            prefetch(node);
            prefetch(&node.heads);
        }
    }

    /// Has the processor load the track of the lane.
    #[inline(always)]
    pub(in crate::fabric) fn prefetch_track(&self) {
        if let Some(track) = &self.track {
            prefetch(&**track);
        }
    }

    /// Counts the heads and packets that have arrived at `now`. Returns the time of the next event,
    /// if there is one.
    #[inline]
    fn count_arrivals(&mut self, now: Nanos) -> Option<Nanos> {
        let track = self.track.as_mut()?;
        loop {
            let Flight { head, tail } = track.coming();
            if tail > now || tail == Nanos::NEVER {
                track.has_head = head <= now && tail < Nanos::NEVER;
                let next = if track.has_head { tail } else { head };
                return (next < Nanos::NEVER).then_some(next);
            }

            track.pop_coming();
            track.has_head = false;
            self.visible += 1;
        }
    }

    /// Shows the receiver whether there is a whole packet, and the head of another.
    #[inline]
    fn show_arrivals(&self, nodes: &mut [Node]) {
        let has_head = self.track.as_ref().is_some_and(|track| track.has_head);
        let node = &mut nodes[self.ends.receiver as usize];
        let (index, bit) = (self.ends.mask_index(), self.ends.port_bit());
        let set = |mask: &mut u64, is_set: bool| *mask = *mask & !bit | if is_set { bit } else { 0 };

        set(&mut node.arrived[index], self.visible > 0);
        set(&mut node.heads[index], has_head);
    }

    /// Returns the time at which the tail of the first packet arrives, if only its head has
    /// arrived.
    pub(in crate::fabric) fn tail_due(&self) -> Option<Nanos> {
        let track = self.track.as_ref().filter(|track| self.visible == 0 && track.has_head)?;
        (track.hidden == 0).then_some(track.coming().tail)
    }

    /// Lets no arrival wake the receiver until the first packet leaves, if that has arrived. Until
    /// then, none is shown or an event.
    #[inline]
    pub(in crate::fabric) fn hush(&mut self, schedule: &mut Schedule) {
        let takes_time = self.delay > 0 || !self.pace.is_simple;
        let may_hush = takes_time && self.has_head();
        let Some(track) = self.track.as_mut().filter(|_| may_hush) else { return };
        track.is_hushed = true;
        track.cancel_arrival(schedule);
    }

    /// Shows the receiver what has arrived behind the first packet, which has left, after
    /// [`Lane::hush`].
    #[inline]
    pub(in crate::fabric) fn end_hush(
        &mut self,
        lane_index: u32,
        now: Nanos,
        nodes: &mut [Node],
        schedule: &mut Schedule,
    ) {
        let Some(track) = self.track.as_mut().filter(|track| track.is_hushed) else { return };
        track.is_hushed = false;
        self.visible += u32::from(std::mem::take(&mut track.hidden));

        let next = self.count_arrivals(now);
        self.show_arrivals(nodes);
        if let Some(due) = next {
            self.expect_arrival(lane_index, now, due, schedule);
        }
    }

    /// Schedules the event for the first coming packet, unless there is one.
    #[inline]
    fn expect_arrival(&mut self, lane_index: u32, now: Nanos, due: Nanos, schedule: &mut Schedule) {
        if self.track.as_ref().is_some_and(|track| track.arrival_place == Place::NONE) {
            self.schedule_arrival(lane_index, now, due, schedule);
        }
    }

    /// Takes the first packet for forwarding, if its head has arrived. Returns it with the credits
    /// that it has taken, and the time of its tail if that has not arrived.
    #[inline]
    pub(in crate::fabric) fn pop_head(
        &mut self,
        lane_index: u32,
        now: Nanos,
        nodes: &mut [Node],
        schedule: &mut Schedule,
    ) -> Option<(Packet, u32, Option<Nanos>)> {
        if !self.has_head() {
            return None;
        }

        let packet = self.queue.pop()?;
        let credits = self.credits_of_first(1);
        if self.visible > 0 {
            self.count_taken(1, nodes);
            self.end_hush(lane_index, now, nodes, schedule);
            return Some((packet, credits, None));
        }

        let track = self.track.as_mut()?;
        track.has_head = false;
        if track.hidden > 0 {
            track.hidden -= 1;
            self.end_hush(lane_index, now, nodes, schedule);
            return Some((packet, credits, None));
        }

        let (flight, has_others) = track.pop_coming();
        // The tail concerns no device any more.
        if !has_others {
            track.cancel_arrival(schedule);
        }

        if track.is_hushed {
            self.end_hush(lane_index, now, nodes, schedule);
        } else {
            self.show_arrivals(nodes);
        }
        Some((packet, credits, (flight.tail > now).then_some(flight.tail)))
    }
}
