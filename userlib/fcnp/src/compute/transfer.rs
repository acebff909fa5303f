//! The steps of a read and of a write on a compute core.

use nicforge_hwi::tree::PAYLOAD;

use super::{
    ComputeCore, FailedTransfer, IoNodeLink, Sent,
    node::{Interruption, LockedReceiver, Polled},
};
use crate::{
    Error,
    protocol::{Control, Kind, Split, request_size},
    statistics::Tally,
    tree::PresenceWatch,
    wait::{Waiter, until_next_check},
};

/// Number of packets that are sent in a row under the send lock (FCNP paper, section IV).
pub(crate) const BATCH: usize = 8;

impl ComputeCore {
    /// Performs a write: request with head, acknowledgement, data.
    pub(super) fn perform_write(
        &self,
        data: &[u8],
        link: IoNodeLink,
        waiter: &mut Waiter<'_>,
    ) -> Result<usize, FailedTransfer> {
        let is_peer_gone = || self.is_gone(link);
        let requested = request_size(data.len());

        let request =
            Control::new(Kind::Write, self.name(), requested).with_head(&data[..Split::head_of(requested)]);
        self.send_control(&request, is_peer_gone, waiter)
            .map_err(|error| FailedTransfer { error, sent: Sent::Nothing })?;

        self.finish_write(data, requested, link, waiter)
            .map_err(|error| FailedTransfer { error, sent: Sent::Request })
    }

    /// Waits for the acknowledgement of a requested write, and sends the data that it asks for.
    /// Returns the number of bytes agreed on.
    fn finish_write(
        &self,
        data: &[u8],
        requested: u32,
        link: IoNodeLink,
        waiter: &mut Waiter<'_>,
    ) -> Result<usize, Error> {
        let is_peer_gone = || self.is_gone(link);
        let (answer, receiver) =
            self.await_acknowledgement(Kind::Write, is_peer_gone, waiter, "the acknowledgement of a write")?;
        drop(receiver);

        let agreed = self.agreed_size(&answer, requested)?;
        let split = Split::new(requested, agreed);
        let body = &data[split.head..agreed as usize];
        let header = self.data_header();

        let (mut watch, mut packets) =
            (PresenceWatch::default(), Tally::of(&self.node.counters.packets_sent));
        let mut sent_bytes = 0;

        while sent_bytes < body.len() {
            let guard = self.node.channel.send_lock().lock(self.node.channel.owner(), waiter)?;
            let sent = self.node.channel.send_batch(guard).send_data(header, &body[sent_bytes..], BATCH);
            sent_bytes = body.len().min(sent_bytes + sent * PAYLOAD);
            packets.add(sent);

            if self.check_gone(&mut watch, link) {
                return Err(Error::PeerGone { peer: self.peer() });
            }

            if sent == 0 {
                self.node.counters.stalls.add(1);
                waiter.pause("room in the send FIFO")?;
            } else if sent_bytes < body.len() {
                waiter.count_packets(sent, "the data to leave")?;
            }
        }

        self.node.counters.messages_sent.add(1);
        self.node.counters.bytes_sent.add(agreed.into());
        Ok(agreed as usize)
    }

    /// Performs a read: request, acknowledgement with head, data.
    pub(super) fn perform_read(
        &self,
        buffer: &mut [u8],
        link: IoNodeLink,
        waiter: &mut Waiter<'_>,
    ) -> Result<usize, FailedTransfer> {
        let requested = request_size(buffer.len());
        let request = Control::new(Kind::Read, self.name(), requested);

        // The core enters itself before the acknowledgement can arrive.
        let _reading = self.node.enter_readers();
        self.send_control(&request, || self.is_gone(link), waiter)
            .map_err(|error| FailedTransfer { error, sent: Sent::Nothing })?;

        self.finish_read(buffer, requested, link, waiter)
            .map_err(|error| FailedTransfer { error, sent: Sent::Request })
    }

    /// Waits for the acknowledgement of a requested read, and receives the data that follow it.
    /// Returns the number of bytes agreed on.
    fn finish_read(
        &self,
        buffer: &mut [u8],
        requested: u32,
        link: IoNodeLink,
        waiter: &mut Waiter<'_>,
    ) -> Result<usize, Error> {
        let is_peer_gone = || self.is_gone(link);
        let (answer, receiver) =
            self.await_acknowledgement(Kind::Read, is_peer_gone, waiter, "the acknowledgement of a read")?;

        let agreed = self.agreed_size(&answer, requested)?;
        let split = Split::new(agreed, agreed);
        let (head, body) = buffer[..agreed as usize].split_at_mut(split.head);
        head.copy_from_slice(&answer.head[..split.head]);

        if split.packets != 0 {
            // Without the lock, another thread has handed the stream over to this core.
            let mut receiver = match receiver {
                Some(receiver) => receiver,
                None => self.lock_own_stream(waiter)?,
            };
            let received = self.receive_stream(&mut receiver, body, link, waiter);
            // After an error, the data that may still arrive are orphans.
            self.node.end_stream(&receiver);
            received?;
        }

        self.node.counters.messages_received.add(1);
        self.node.counters.bytes_received.add(agreed.into());
        Ok(agreed as usize)
    }

    /// Waits for the receive lock, to receive this core's own stream. The lock's holder is about to
    /// free it.
    fn lock_own_stream(&self, waiter: &mut Waiter<'_>) -> Result<LockedReceiver<'_>, Error> {
        loop {
            if let Some(receiver) = self.node.try_receiver() {
                return Ok(receiver);
            }

            waiter.pause("the right to receive")?;
        }
    }

    /// Receives data packets until `body` is full.
    fn receive_stream(
        &self,
        receiver: &mut LockedReceiver<'_>,
        body: &mut [u8],
        link: IoNodeLink,
        waiter: &mut Waiter<'_>,
    ) -> Result<(), Error> {
        let (mut watch, mut packets) =
            (PresenceWatch::default(), Tally::of(&self.node.counters.packets_received));
        let mut received_bytes = 0;

        while received_bytes < body.len() {
            // The check precedes the read of the FIFO. Once the I/O node is seen down, all packets
            // that it sent are in the FIFO.
            let peer_gone = self.check_gone(&mut watch, link);
            if peer_gone && self.was_reset_since(link) {
                return Err(Error::PeerGone { peer: self.peer() });
            }

            let taken = receiver.take_data(until_next_check(body, received_bytes));
            received_bytes = body.len().min(received_bytes + taken.packets * PAYLOAD);
            packets.add(taken.packets);

            if taken.control {
                match self.node.handle_interruption(receiver)? {
                    Interruption::None => waiter.progress(),
                    Interruption::Aborted => return Err(Error::Aborted { peer: self.peer() }),
                    Interruption::Replaced => return Err(Error::PeerGone { peer: self.peer() }),
                }
            } else if taken.packets != 0 {
                if received_bytes < body.len() {
                    waiter.count_packets(taken.packets, "data")?;
                }
            } else if peer_gone {
                return Err(Error::PeerGone { peer: self.peer() });
            } else {
                receiver.publish();
                waiter.pause("data")?;
            }
        }
        Ok(())
    }

    /// Returns the number of bytes to which the I/O node agreed. The I/O node may not agree to more
    /// bytes than were `requested`.
    fn agreed_size(&self, answer: &Control, requested: u32) -> Result<u32, Error> {
        if answer.size > requested {
            return Err(Error::BadPeer {
                peer: self.peer(),
                what: "it agreed to more bytes than were requested",
                value: answer.size.into(),
            });
        }
        Ok(answer.size)
    }

    /// Sends a control packet to the I/O node, and waits for room in the send FIFO. Fails when
    /// `is_peer_gone` holds while there is no room.
    pub(super) fn send_control(
        &self,
        control: &Control,
        is_peer_gone: impl Fn() -> bool,
        waiter: &mut Waiter<'_>,
    ) -> Result<(), Error> {
        let payload = control.encode();

        loop {
            let guard = self.node.channel.send_lock().lock(self.node.channel.owner(), waiter)?;
            if self.node.channel.send_batch(guard).try_send(self.control_header(), &payload) {
                self.node.counters.packets_sent.add(1);
                return Ok(());
            }

            self.node.counters.stalls.add(1);
            if is_peer_gone() {
                return Err(Error::PeerGone { peer: self.peer() });
            }

            waiter.pause("room in the send FIFO")?;
        }
    }

    /// Waits for this core's acknowledgement of kind `awaited`. Polls the receive FIFO while the
    /// receive lock is free, and checks the mailbox otherwise. Returns the acknowledgement, and the
    /// receive lock if this thread holds it. `operation` names the awaited event in an error.
    pub(super) fn await_acknowledgement(
        &self,
        awaited: Kind,
        is_peer_gone: impl Fn() -> bool,
        waiter: &mut Waiter<'_>,
        operation: &'static str,
    ) -> Result<(Control, Option<LockedReceiver<'_>>), Error> {
        let mut received = self.node.channel.received();

        loop {
            if let Some(control) = self.node.take_delivered(awaited)? {
                return Ok((control, None));
            }

            let now = self.node.channel.received();
            if now != received {
                // Another core's stream advances, and this core's transfer may be next. A long
                // sleep would delay it.
                received = now;
                waiter.progress();
            }

            if let Some(mut receiver) = self.node.try_receiver_for(awaited) {
                // The last lock owner may have delivered the packet between the check above and the
                // lock.
                if let Some(control) = self.node.take_delivered(awaited)? {
                    return Ok((control, Some(receiver)));
                }

                loop {
                    // The check precedes the read of the FIFO, which then has all packets of a peer
                    // that is gone.
                    let peer_gone = is_peer_gone();
                    match self.node.poll(&mut receiver, awaited)? {
                        Polled::Awaited(control) => return Ok((control, Some(receiver))),
                        Polled::Other => waiter.progress(),
                        Polled::StreamHandedOver => break,
                        Polled::Empty if peer_gone => return Err(Error::PeerGone { peer: self.peer() }),
                        Polled::Empty => {
                            receiver.publish();
                            waiter.pause(operation)?;
                        }
                    }
                }
            }
            waiter.pause(operation)?;
        }
    }
}
