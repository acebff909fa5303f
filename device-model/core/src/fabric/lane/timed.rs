//! A lane's packets that take time, and its credits on their way back.
//!
//! Each packet has a time for its head, after which a router may forward it, and one for its tail,
//! after which a device may take it ([`Flight`]). A packet is *coming* until its tail has arrived.
//! To *show* the receiver a head or a packet is to set the port's bit in the masks of the receiving
//! node ([`Node::heads`], [`Node::arrived`]). [`Lane::visible`] counts the packets shown.

use nicforge_shm::prefetch;

use super::{Departure, Lane, PoppedHead, saturated};
use crate::{
    fabric::{
        CreditUnit, MAX_PORTS, Node, Packet, Path,
        packet::Flight,
        schedule::{Event, EventKind, Place, Schedule},
        track::{Track, View},
        wake::WakeQueue,
    },
    time::Nanos,
};

impl Lane {
    /// Adds a packet that takes `credits` credits, to a lane of any kind. Returns the time of the
    /// event to schedule for it, if it needs one: if it is the first coming packet.
    #[inline]
    pub(in crate::fabric) fn push_timed(
        &mut self,
        flight: Flight,
        credits: u32,
        mut packet: Packet,
    ) -> Option<Nanos> {
        self.credits -= credits;
        self.last_arrival = flight.tail;
        self.stats.packets += 1;
        self.stats.bytes += packet.wire_bytes();
        packet.flight = flight;
        self.queue.push(packet);

        let track = self.track.get_or_insert_default();
        // With one head shown at a time, the next one is scheduled when the shown packet has left.
        let waits_for_departure = track.view != View::All && (track.has_head || self.visible > 0);
        if self.capacity.unit() != CreditUnit::Packets {
            track.push_cost(credits);
        }
        let needs_event = track.arrival_place == Place::NONE && !waits_for_departure;
        needs_event.then_some(flight.head)
    }

    /// Returns the credits of packets that leave the buffer, after the delay.
    #[inline(always)]
    pub(in crate::fabric) fn return_later(
        &mut self,
        credits: u32,
        lane_index: u32,
        Departure { now, end }: Departure,
        nodes: &mut [Node],
        woken: &mut WakeQueue,
        schedule: &mut Schedule,
    ) {
        let due = end.max(now).after(self.delay);
        match &mut self.track {
            Some(_) if due > now => {
                // Credits that are back leave the track first, which makes room there.
                self.add_returned_credits(now);
                if let Some(track) = &mut self.track {
                    track.returns.push(due, credits);
                }
                self.watch_credits(lane_index, now, schedule);
            }
            _ => self.return_at_once(credits, nodes, woken),
        }
    }

    /// Returns credits to the sender at once, on a lane of any kind. Wakes the sender if it had
    /// none, or has as many as it waits for.
    fn return_at_once(&mut self, credits: u32, nodes: &mut [Node], woken: &mut WakeQueue) {
        let had_none = self.credits == 0;
        self.credits += credits;
        self.stall_counted = false;

        let has_enough = self.awaited_credits > 0 && self.credits >= self.awaited_credits.into();
        if has_enough {
            self.awaited_credits = 0;
            self.returns_at_once = self.delay == 0 && self.pace.is_simple;
        }
        if had_none || has_enough {
            let node = &mut nodes[self.ends.sender as usize];
            node.freed |= 1 << (self.ends.sender_port % MAX_PORTS);
            node.wake(self.ends.sender, woken);
        }
    }

    /// Has the sender woken when it has `credits` credits, or a smaller number that it already
    /// waits for.
    pub(in crate::fabric) fn await_credits(
        &mut self,
        credits: u32,
        lane_index: u32,
        now: Nanos,
        schedule: &mut Schedule,
    ) {
        // A sender without credits is woken at the first one in any case.
        if credits > 1 {
            let (credits, earlier) = (saturated(credits), self.awaited_credits);
            self.awaited_credits = if earlier == 0 { credits } else { earlier.min(credits) };
            self.returns_at_once = false;
            self.watch_credits(lane_index, now, schedule);
        }
    }

    /// Returns whether the sender waits for credits, so that their return is an event.
    #[inline]
    fn awaits_credits(&self) -> bool {
        self.credits == 0 || self.awaited_credits > 0
    }

    /// Schedules the next return of credits if the sender waits for it.
    #[inline(always)]
    pub(in crate::fabric) fn watch_credits(&mut self, lane_index: u32, now: Nanos, schedule: &mut Schedule) {
        if self.awaits_credits() {
            self.schedule_return(lane_index, now, schedule);
        }
    }

    /// Schedules the next return of credits, unless there is an event for it or an earlier one.
    #[inline(never)]
    fn schedule_return(&mut self, lane_index: u32, now: Nanos, schedule: &mut Schedule) {
        let Some(track) = &mut self.track else { return };
        let due = track.returns.next();
        if due < track.credit_event {
            track.credit_event = due;
            schedule.add(now, due, Event::of_lane(lane_index, EventKind::Credit));
        }
    }

    /// Adds the credits that are back at `now` to those of the sender. For a sender that waits for
    /// credits, an event does that.
    #[inline(always)]
    pub(in crate::fabric) fn add_returned_credits(&mut self, now: Nanos) {
        if let Some(track) = &self.track
            && track.returns.next() <= now
        {
            self.add_due_credits(now);
        }
    }

    /// Does the work of [`Lane::add_returned_credits`] if credits are back.
    #[inline]
    fn add_due_credits(&mut self, now: Nanos) {
        if self.awaits_credits() {
            return;
        }

        let Some(track) = &mut self.track else { return };
        while let Some(credits) = track.returns.pop(now) {
            self.credits += credits;
            self.stall_counted = false;
        }
    }

    /// Returns the credits that the sender has at `now`.
    #[inline]
    pub(in crate::fabric) fn credits_at(&self, now: Nanos) -> u32 {
        match &self.track {
            Some(track) if !self.awaits_credits() => self.credits + track.returns.count(now),
            _ => self.credits,
        }
    }

    /// Carries out the event [`EventKind::Credit`]: returns the credits that are back at `due`, and
    /// wakes the sender if it waits for them.
    pub(in crate::fabric) fn return_due(
        &mut self,
        lane_index: u32,
        due: Nanos,
        (nodes, woken): (&mut [Node], &mut WakeQueue),
        schedule: &mut Schedule,
    ) {
        let Some(track) = &mut self.track else { return };
        if track.credit_event <= due {
            track.credit_event = Nanos::NEVER;
        }

        while let Some(credits) = self.track.as_mut().and_then(|track| track.returns.pop(due)) {
            self.return_at_once(credits, nodes, woken);
        }
        self.watch_credits(lane_index, due, schedule);
    }

    /// Schedules the event at `due` for the first coming packet.
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

    /// Shows the receiver what arrives as soon as it is sent: see [`Lane::arrive`].
    #[cold]
    #[inline(never)]
    pub(in crate::fabric) fn arrive_at_once(
        &mut self,
        now: Nanos,
        nodes: &mut [Node],
        woken: &mut WakeQueue,
    ) -> Option<Nanos> {
        self.arrive(now, nodes, woken)
    }

    /// Carries out the event [`EventKind::Arrival`]: shows the receiver the heads and packets that
    /// have arrived at `due`, and wakes it. Returns the time of the next event, if there is one.
    #[inline(always)]
    pub(in crate::fabric) fn arrive(
        &mut self,
        due: Nanos,
        nodes: &mut [Node],
        woken: &mut WakeQueue,
    ) -> Option<Nanos> {
        let Flight { head, tail } = self.coming();
        let track = self.track.as_mut()?;
        if track.view != View::All {
            return self.arrive_head(due, nodes, woken);
        }

        if head <= due && due < tail && !track.has_head && tail < Nanos::NEVER {
            // A single head has arrived, as at most events.
            track.has_head = true;
            let node = &mut nodes[self.ends.receiver as usize];
            node.heads[self.ends.mask_index()] |= self.ends.port_bit();
            node.wake(self.ends.receiver, woken);
            return Some(tail);
        }

        let shown_before = (self.visible, track.has_head);
        let next = self.update_arrivals(due);
        let track = self.track.as_mut()?;
        if next.is_none() {
            track.arrival_place = Place::NONE;
        }

        if shown_before != (self.visible, track.has_head) {
            self.show_arrivals(nodes);
            nodes[self.ends.receiver as usize].wake(self.ends.receiver, woken);
        }
        next
    }

    /// Has the processor load the state that an event of this lane uses.
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

    /// Makes the packets visible that have arrived at `now`, and records whether the head of the
    /// next one has arrived. Returns the time of the next event, if there is one.
    #[inline]
    fn update_arrivals(&mut self, now: Nanos) -> Option<Nanos> {
        loop {
            let Flight { head, tail } = self.coming();
            if tail > now || tail == Nanos::NEVER {
                let track = self.track.as_mut()?;
                track.has_head = head <= now && tail < Nanos::NEVER;
                let next = if track.has_head { tail } else { head };
                return (next < Nanos::NEVER).then_some(next);
            }
            self.visible += 1;
        }
    }

    /// Returns the times of the first coming packet: the first that is not visible as a whole. They
    /// are [`Flight::NONE`] if there is none.
    #[inline(always)]
    fn coming(&self) -> Flight {
        if self.visible >= self.queue.len() {
            return Flight::NONE;
        }
        self.queue.get(self.visible as usize).map_or(Flight::NONE, |packet| packet.flight)
    }

    /// Sets or clears the receiver's bits for a whole packet and for the head of another.
    #[inline]
    fn show_arrivals(&self, nodes: &mut [Node]) {
        let has_head = self.track.as_ref().is_some_and(|track| track.has_head);
        let node = &mut nodes[self.ends.receiver as usize];
        let (index, bit) = (self.ends.mask_index(), self.ends.port_bit());
        let set = |mask: &mut u64, is_set: bool| *mask = *mask & !bit | if is_set { bit } else { 0 };

        set(&mut node.arrived[index], self.visible > 0);
        set(&mut node.heads[index], has_head);
    }

    /// Returns the time at which the tail of the first packet arrives, if it arrives after `now`
    /// and the head has been shown.
    pub(in crate::fabric) fn tail_due(&self, now: Nanos) -> Option<Nanos> {
        self.track.as_ref().filter(|track| self.visible == 0 && track.has_head)?;
        let tail = self.coming().tail;
        (tail > now).then_some(tail)
    }

    /// Shows the receiver heads alone from now on, one at a time: see
    /// [`crate::fabric::Ports::route_head`]. The first packet's head is shown already. On a lane
    /// without a delay whose packets arrive as a whole and take one credit each, it has no effect.
    #[cold]
    #[inline(never)]
    pub(in crate::fabric) fn show_heads(&mut self, schedule: &mut Schedule) {
        let takes_time = self.delay > 0 || !self.pace.is_simple;
        if let Some(track) = self.track.as_mut().filter(|_| takes_time) {
            track.view = View::Head;
            track.cancel_arrival(schedule);
        }
    }

    /// Shows the receiver all that arrives again, and all that has arrived at `now`.
    pub(in crate::fabric) fn show_all(
        &mut self,
        lane_index: u32,
        now: Nanos,
        nodes: &mut [Node],
        schedule: &mut Schedule,
    ) {
        let Some(track) = self.track.as_mut().filter(|track| track.view != View::All) else { return };
        track.view = View::All;
        track.cancel_arrival(schedule);
        // An event that is too far away stays.
        let is_unscheduled = track.arrival_place == Place::NONE;

        let next = self.update_arrivals(now);
        self.show_arrivals(nodes);
        if let Some(due) = next.filter(|_| is_unscheduled) {
            self.schedule_arrival(lane_index, now, due, schedule);
        }
    }

    /// Returns whether the lane has a track and shows all heads and tails, so that
    /// [`Lane::show_heads`] may have an effect.
    #[inline]
    pub(in crate::fabric) fn shows_tails(&self) -> bool {
        self.track.as_ref().is_some_and(|track| track.view == View::All)
    }

    /// Does the work of [`Lane::arrive`] on a lane that shows heads alone: shows the receiver the
    /// next head, or the tail that it waits for, if that has arrived at `due`. Returns the time of
    /// the next event, if there is one.
    #[inline(always)]
    fn arrive_head(&mut self, due: Nanos, nodes: &mut [Node], woken: &mut WakeQueue) -> Option<Nanos> {
        let Flight { head, tail } = self.coming();
        let track = self.track.as_mut()?;
        track.arrival_place = Place::NONE;

        if track.view == View::HeadAndTail {
            if tail > due {
                return Some(tail);
            }
            self.show_tail(nodes);
        } else {
            // An event that could not be cancelled may come too early, or be of a former packet.
            if track.has_head || self.visible > 0 {
                return None;
            }
            if head > due {
                return (head < Nanos::NEVER).then_some(head);
            }
            track.has_head = true;
            nodes[self.ends.receiver as usize].heads[self.ends.mask_index()] |= self.ends.port_bit();
        }

        nodes[self.ends.receiver as usize].wake(self.ends.receiver, woken);
        None
    }

    /// Shows the receiver as a whole the packet whose head it has been shown.
    #[inline]
    fn show_tail(&mut self, nodes: &mut [Node]) {
        let Some(track) = &mut self.track else { return };
        (track.has_head, track.view) = (false, View::Head);
        self.visible += 1;
        self.show_arrivals(nodes);
    }

    /// Asks for the tail of the packet whose head is shown: the packet is shown as a whole when its
    /// tail arrives. Lanes that do not show heads alone do so in any case.
    #[inline]
    pub(in crate::fabric) fn await_tail(
        &mut self,
        lane_index: u32,
        now: Nanos,
        nodes: &mut [Node],
        schedule: &mut Schedule,
    ) {
        let (is_whole, Flight { tail, .. }) = (self.visible > 0, self.coming());
        let may_wait = |track: &&mut Box<Track>| !is_whole && track.view != View::All && track.has_head;
        let Some(track) = self.track.as_mut().filter(may_wait) else { return };

        if tail <= now {
            return self.show_tail(nodes);
        }
        track.view = View::HeadAndTail;
        if track.arrival_place == Place::NONE {
            self.schedule_arrival(lane_index, now, tail, schedule);
        }
    }

    /// Shows the receiver the head of the packet after the one that has left, on a lane that shows
    /// heads. Schedules its arrival if that is still to come.
    #[inline(always)]
    pub(in crate::fabric) fn show_next_head(
        &mut self,
        lane_index: u32,
        now: Nanos,
        nodes: &mut [Node],
        schedule: &mut Schedule,
    ) {
        let (has_whole, Flight { head, .. }) = (self.visible > 0, self.coming());
        let Some(track) = self.track.as_mut().filter(|track| track.view != View::All && !has_whole) else {
            return;
        };

        let has_head = head <= now;
        track.has_head = has_head;
        let is_unscheduled = head < Nanos::NEVER && track.arrival_place == Place::NONE;

        let node = &mut nodes[self.ends.receiver as usize];
        let heads = &mut node.heads[self.ends.mask_index()];
        let bit = self.ends.port_bit();
        *heads = *heads & !bit | if has_head { bit } else { 0 };
        if !has_head && is_unscheduled {
            self.schedule_arrival(lane_index, now, head, schedule);
        }
    }

    /// Takes the first packet for forwarding, if its head has been shown. The caller returns its
    /// credits.
    #[inline]
    pub(in crate::fabric) fn pop_head(
        &mut self,
        lane_index: u32,
        now: Nanos,
        nodes: &mut [Node],
        schedule: &mut Schedule,
    ) -> Option<PoppedHead> {
        if !self.has_head() {
            return None;
        }

        let packet = self.queue.pop()?;
        let credits = self.take_costs(1);
        let is_whole = self.visible > 0;
        if is_whole {
            self.remove_visible(1, nodes);
        }

        let (tail, is_last) = (packet.flight.tail, self.queue.len() == 0);
        let tail_due = (!is_whole && tail > now).then_some(tail);
        let popped = PoppedHead { packet, credits, tail_due };
        let Some(track) = &mut self.track else { return Some(popped) };
        if !is_whole {
            track.has_head = false;
            // No device waits for the tail any more, so it need not be an event.
            if track.view == View::HeadAndTail || is_last {
                track.cancel_arrival(schedule);
            }
        }

        if track.view == View::All {
            self.show_arrivals(nodes);
        } else {
            track.view = View::Head;
            self.show_next_head(lane_index, now, nodes, schedule);
        }
        Some(popped)
    }
}
