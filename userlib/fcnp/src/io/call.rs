//! A call of the application. It waits for the core's request and the pset's slot, and then
//! transfers.

use std::{sync::atomic::Ordering, time::Duration};

use nicforge_driver::{Cancel, Deadline, Error as DriverError, runtime::Instant};
use nicforge_hwi::tree::{Header, PAYLOAD};

use super::{
    cores::{CoreLink, Direction, Request, spin_lock},
    fifos::Drain,
    service::Inner,
};
use crate::{
    Error, Mode, Peer, Poller,
    compute::{BATCH, CLASS},
    protocol::{Control, Kind, Split, request_size},
    statistics::Tally,
    tree::PresenceWatch,
    wait::{Waiter, until_next_check},
};

/// How long a sleeping call goes without a check of its cancellation token.
const CANCEL_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// One call on the I/O node.
pub(super) struct Call<'a> {
    inner: &'a Inner,
    core: u32,
    direction: Direction,
    waiter: Waiter<'a>,
    /// The process for which the call waits, once it is known.
    link: Option<CoreLink>,
    /// The call is in the queue for the pset's slot.
    queued: bool,
    /// The time at which the call began to find nothing to do; `None` after progress.
    idle_since: Option<Instant>,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.leave_slot_queue();
        if self.inner.config.poller == Poller::Calls {
            self.inner.daemon.remove_caller();
        }
        self.inner.cores[self.core as usize].busy[self.direction as usize].store(false, Ordering::Release);
    }
}

impl<'a> Call<'a> {
    /// Begins a call for a core, or returns [`Error::Busy`] if a call for the same core and
    /// direction runs.
    pub(super) fn begin(
        inner: &'a Inner,
        core: u32,
        direction: Direction,
        deadline: Deadline,
        cancel: Option<&'a Cancel>,
    ) -> Result<Self, Error> {
        let cores = inner.cores.len() as u32;
        let Some(entry) = inner.cores.get(core as usize) else {
            return Err(Error::NoSuchCore { core, cores });
        };

        if entry.busy[direction as usize].swap(true, Ordering::AcqRel) {
            // The directions are named from the core's side, the calls from the I/O node's.
            let what = match direction {
                Direction::Read => "a write",
                Direction::Write => "a read",
            };
            return Err(Error::Busy { what });
        }

        if inner.config.poller == Poller::Calls {
            inner.daemon.add_caller();
        }
        let waiter = Waiter::new(&inner.channel, deadline, cancel);

        Ok(Self { inner, core, direction, waiter, link: None, queued: false, idle_since: None })
    }

    /// Receives the data of the core's write.
    pub(super) fn receive(mut self, buffer: &mut [u8]) -> Result<usize, Error> {
        let (request, link) = self.start()?;
        let agreed = request.size.min(request_size(buffer.len()));
        let split = Split::new(request.size, agreed);
        let (head, body) = buffer[..agreed as usize].split_at_mut(split.head);
        head.copy_from_slice(&request.head[..split.head]);

        let receives_data = split.packets != 0;
        let answer = Control::new(Kind::Write, link.name, agreed);
        self.acknowledge(&answer, request, link, receives_data)?;
        let received = if receives_data { self.receive_data(body, link) } else { Ok(()) };

        match received {
            Err(error) if error.is_timeout_or_cancel() => return Err(error),
            received => {
                self.inner.end_transfer(self.core, self.direction);
                received?;
            }
        }

        self.inner.counters.messages_received.add(1);
        self.inner.counters.bytes_received.add(agreed.into());
        Ok(agreed as usize)
    }

    /// Sends the data of the core's read.
    pub(super) fn send(mut self, data: &[u8]) -> Result<usize, Error> {
        let (request, link) = self.start()?;
        let agreed = request.size.min(request_size(data.len()));
        let split = Split::new(agreed, agreed);
        let (head, body) = data[..agreed as usize].split_at(split.head);
        let receives_data = false;
        let answer = Control::new(Kind::Read, link.name, agreed).with_head(head);
        self.acknowledge(&answer, request, link, receives_data)?;

        match self.send_data(body, link) {
            Err(error) if error.is_timeout_or_cancel() => {
                // The core receives an abort. The slot is free as soon as that message has left.
                spin_lock(&self.inner.cores[self.core as usize].state).is_abort_due = true;
                self.inner.queue_reply(self.core);
                // The next thread that services the FIFO sends a packet that cannot leave now.
                self.inner.service()?;
                return Err(error);
            }
            sent => {
                self.inner.end_transfer(self.core, self.direction);
                sent?;
            }
        }

        self.inner.counters.messages_sent.add(1);
        self.inner.counters.bytes_sent.add(agreed.into());
        Ok(agreed as usize)
    }

    /// Waits for the core's request and for the pset's slot. When it returns, the transfer counts
    /// as running: a RESET of the core is acknowledged only after its end.
    fn start(&mut self) -> Result<(Request, CoreLink), Error> {
        // A call that has already ended must not take a request.
        self.waiter.check("a request of the core")?;

        let inner = self.inner;
        let slot = &inner.slots[self.direction as usize];

        loop {
            let event_count = inner.event.count();
            self.check_peer()?;

            if !self.has_request() {
                // The request may have been withdrawn, and other calls are queued after this one.
                self.leave_slot_queue();
                self.wait_once(event_count, "a request of the core")?;
                continue;
            }

            if slot.try_take(self.core) {
                self.queued = false;
                match self.take_request() {
                    Some(started) => return Ok(started),
                    None => {
                        slot.release(self.core);
                        inner.notify();
                    }
                }
                continue;
            }

            self.queued = true;
            self.wait_once(event_count, "another transfer of the pset to end")?;
        }
    }

    /// Leaves the queue for the pset's slot.
    fn leave_slot_queue(&mut self) {
        if std::mem::take(&mut self.queued) {
            self.inner.slots[self.direction as usize].leave(self.core);
            self.inner.notify();
        }
    }

    /// Returns whether the core has an outstanding request of this direction.
    fn has_request(&self) -> bool {
        spin_lock(&self.inner.cores[self.core as usize].state).requests[self.direction as usize].is_some()
    }

    /// Takes the core's request and marks the transfer as running. Returns `None` if the request
    /// was withdrawn meanwhile.
    fn take_request(&mut self) -> Option<(Request, CoreLink)> {
        let core = &self.inner.cores[self.core as usize];
        let mut state = spin_lock(&core.state);
        let link = state.link?;
        let request = state.requests[self.direction as usize].take()?;

        state.running[self.direction as usize] = true;
        core.revoked[self.direction as usize].store(false, Ordering::Release);
        self.link = Some(link);
        Some((request, link))
    }

    /// Checks that the core's process is the one for which this call began to wait, and that this
    /// direction has no lost process to report.
    fn check_peer(&mut self) -> Result<(), Error> {
        let mut state = spin_lock(&self.inner.cores[self.core as usize].state);
        if state.link.is_some_and(|link| self.inner.is_gone(link)) {
            self.inner.unlink_process(&mut state);
        }

        let lost = std::mem::take(&mut state.lost[self.direction as usize]);

        if self.link.is_none() && !lost {
            self.link = state.link;
        } else if lost || self.link != state.link {
            return Err(Error::PeerGone { peer: Peer::Core { rank: self.core } });
        }
        Ok(())
    }

    /// Sends the acknowledgement. If it cannot leave, the request becomes available again.
    fn acknowledge(
        &mut self,
        answer: &Control,
        request: Request,
        link: CoreLink,
        receives_data: bool,
    ) -> Result<(), Error> {
        let sent = self.try_acknowledge(answer, link, receives_data);

        if sent.is_err() {
            let core = &self.inner.cores[self.core as usize];
            let mut state = spin_lock(&core.state);
            if state.link == Some(link) && !core.is_revoked(self.direction) {
                state.requests[self.direction as usize] = Some(request);
            }
            drop(state);
            self.inner.end_transfer(self.core, self.direction);
        }
        sent
    }

    /// Sends the acknowledgement of the transfer when there is room. With `receives_data`, only
    /// this call takes data packets from then on.
    fn try_acknowledge(
        &mut self,
        answer: &Control,
        link: CoreLink,
        receives_data: bool,
    ) -> Result<(), Error> {
        loop {
            self.check_transfer(link)?;

            if receives_data {
                // The flag is set before the core can send data, so that no other thread takes
                // them.
                self.inner.receive.set_has_reader(true);
            }

            if self.inner.try_send(answer, link) {
                self.inner.daemon.count_acknowledged();
                return Ok(());
            }
            if receives_data {
                self.stop_reading();
            }

            self.inner.service()?;
            self.waiter.pause("room in the send FIFO")?;
        }
    }

    /// Checks that the transfer may continue.
    #[inline]
    fn check_transfer(&self, link: CoreLink) -> Result<(), Error> {
        let peer = Peer::Core { rank: self.core };
        self.inner.check_own()?;

        if self.inner.cores[self.core as usize].is_revoked(self.direction) {
            return Err(Error::Aborted { peer });
        }
        if self.inner.is_gone(link) { Err(self.lost(link)) } else { Ok(()) }
    }

    /// Returns the error of a core whose process is gone, and marks it as reported in this
    /// direction.
    #[cold]
    fn lost(&self, link: CoreLink) -> Error {
        let mut state = spin_lock(&self.inner.cores[self.core as usize].state);
        if state.link == Some(link) {
            self.inner.unlink_process(&mut state);
        }
        state.lost[self.direction as usize] = false;
        Error::PeerGone { peer: Peer::Core { rank: self.core } }
    }

    /// Sends the data of a transfer, in batches. It ends early when the core ends the transfer.
    fn send_data(&mut self, data: &[u8], link: CoreLink) -> Result<(), Error> {
        let inner = self.inner;
        let header = Header::to_core(CLASS, link.name.node, link.name.core, false);
        let (mut watch, mut packets) = (PresenceWatch::default(), Tally::of(&inner.counters.packets_sent));

        // The lock is kept from batch to batch unless another thread wants it. Taking it again
        // would wait for the stores of the last batch.
        let mut send_lock = None;
        let mut sent_bytes = 0;

        while sent_bytes < data.len() {
            let guard = send_lock.get_or_insert_with(|| inner.send.lock());
            let sent = inner.channel.send_batch(&*guard).send_data(header, &data[sent_bytes..], BATCH);
            sent_bytes = data.len().min(sent_bytes + sent * PAYLOAD);
            packets.add(sent);

            let (must_check, has_waiter) = (self.needs_check(&mut watch, link), inner.send.has_waiter());
            if must_check || sent == 0 || has_waiter {
                send_lock = None;
            }
            if has_waiter {
                inner.send.let_waiter_take();
            }

            if must_check {
                self.check_transfer(link)?;
            }

            if sent == 0 {
                inner.counters.stalls.add(1);
                inner.service()?;
                self.waiter.pause("room in the send FIFO")?;
            } else if sent_bytes < data.len() {
                self.waiter.count_packets(sent, "the data to leave")?;
            }
        }
        Ok(())
    }

    /// Returns whether [`Call::check_transfer`] may fail. It takes no lock.
    #[inline]
    fn needs_check(&self, watch: &mut PresenceWatch, link: CoreLink) -> bool {
        self.inner.cores[self.core as usize].is_revoked(self.direction) || self.has_either_ended(watch, link)
    }

    /// Returns whether this process or that of `link` is gone or was replaced.
    #[inline]
    fn has_either_ended(&self, watch: &mut PresenceWatch, link: CoreLink) -> bool {
        self.inner.is_reset()
            || watch
                .check_gone(&self.inner.channel, || !self.inner.owns_lock_boxes() || self.inner.is_gone(link))
    }

    /// Receives data packets until `body` is full, and frees the receive FIFO. If the call is
    /// interrupted, the rest is discarded as it arrives, and the slot is freed after that.
    fn receive_data(&mut self, body: &mut [u8], link: CoreLink) -> Result<(), Error> {
        // The lock's holder sees the flag `reading`, and frees the lock.
        let mut receiver = self.inner.channel.receiver(spin_lock(&self.inner.receive.incoming));

        // The previous holder of the lock may have received the core's RESET after the last check.
        // The core sends no data then. From here on only this call receives control packets.
        if self.inner.cores[self.core as usize].is_revoked(self.direction) {
            drop(receiver);
            self.stop_reading();
            return Err(Error::Aborted { peer: Peer::Core { rank: self.core } });
        }

        let (mut watch, mut packets) =
            (PresenceWatch::default(), Tally::of(&self.inner.counters.packets_received));
        let mut received_bytes = 0;
        let mut packets_after_end = 0;

        let result = loop {
            if received_bytes == body.len() {
                break Ok(());
            }

            // The check precedes the read of the FIFO. Once the core is seen down, all packets that
            // it sent are in the FIFO.
            let has_ended = self.has_either_ended(&mut watch, link);
            if has_ended && let Err(error) = self.inner.check_own() {
                break Err(error);
            }

            let taken = receiver.take_data(until_next_check(body, received_bytes));
            received_bytes = body.len().min(received_bytes + taken.packets * PAYLOAD);
            packets.add(taken.packets);

            if taken.control {
                let mut payload = [0; PAYLOAD];
                receiver.payload(&mut payload);
                receiver.advance();
                self.inner.counters.packets_received.add(1);
                self.inner.handle_control(&payload, receiver.held());
                if self.inner.cores[self.core as usize].is_revoked(self.direction) {
                    break Err(Error::Aborted { peer: Peer::Core { rank: self.core } });
                }

                // Control packets of other cores must not hold this call for ever.
                packets_after_end += u32::from(has_ended);
                if packets_after_end > self.inner.channel.info().recv_depth {
                    break Err(self.lost(link));
                }

                self.waiter.progress();
                // No other thread services the FIFO during this call, so replies to other cores
                // leave here.
                self.inner.flush();
            } else if taken.packets != 0 {
                if received_bytes < body.len()
                    && let Err(error) = self.waiter.count_packets(taken.packets, "data of the core")
                {
                    break Err(error);
                }
            } else if has_ended {
                break Err(self.lost(link));
            } else {
                receiver.publish();
                self.inner.flush();
                if let Err(error) = self.waiter.pause("data of the core") {
                    break Err(error);
                }
            }
        };

        if result.as_ref().is_err_and(Error::is_timeout_or_cancel) {
            let remaining = (body.len() - received_bytes).div_ceil(PAYLOAD);
            let drain = Drain { core: self.core, packets: remaining };
            self.inner.receive.begin_drain(receiver.held(), drain);
        }

        // The flag is cleared last. Until then no other thread takes the FIFO's lock.
        drop(receiver);
        self.stop_reading();
        result
    }

    /// Makes one iteration of a loop that waits for a packet. It sleeps if only the daemon polls,
    /// or in interrupt mode once the loop has polled for
    /// [`Config::poll_phase`](crate::Config::poll_phase). `event_count` is the event's count before
    /// the loop checked its condition.
    fn wait_once(&mut self, event_count: u32, operation: &'static str) -> Result<(), Error> {
        if self.inner.config.poller == Poller::Daemon {
            self.inner.check_own()?;
            self.waiter.check(operation)?;
            if let Some(error) = self.inner.daemon.failure() {
                return Err(error.clone());
            }
            return self.sleep(event_count);
        }

        if self.inner.service()? {
            self.idle_since = None;
            self.waiter.progress();
            return self.waiter.check(operation);
        }

        self.inner.counters.polls.add(1);
        if self.inner.config.mode == Mode::Interrupt {
            let since = *self.idle_since.get_or_insert_with(Instant::now);
            if since.elapsed() > self.inner.config.poll_phase {
                self.waiter.check(operation)?;
                // The daemon polls the FIFO from here on.
                if self.inner.daemon.remove_caller() {
                    self.inner.daemon.wake();
                }
                let slept = self.sleep(event_count);
                self.inner.daemon.add_caller();
                return slept;
            }
        }
        self.waiter.pause(operation)
    }

    /// Permits other threads to take data packets again, and wakes the daemon if only it polls.
    fn stop_reading(&self) {
        self.inner.receive.set_has_reader(false);
        if self.inner.config.poller == Poller::Daemon {
            self.inner.daemon.wake();
        }
    }

    /// Sleeps until a thread has handled a packet since `event_count` was read, or until the next
    /// check of the deadline or the cancellation token is due.
    fn sleep(&self, event_count: u32) -> Result<(), Error> {
        let remaining = self.waiter.remaining();
        let longest = remaining.map_or(CANCEL_CHECK_INTERVAL, |time| time.min(CANCEL_CHECK_INTERVAL));
        self.inner.event.sleep(event_count, longest);

        // With `Poller::Calls`, a call that sleeps does not look at the daemon's failure. So it
        // notices only here that the device is lost.
        match self.inner.channel.device().gone_cause() {
            Some(cause) => Err(DriverError::DeviceGone { cause }.into()),
            None => Ok(()),
        }
    }
}
