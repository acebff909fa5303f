//! State of one client in the engine, beside its connection.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use nicforge_core::{
    context::MAX_REMOTE,
    ids::{AttachmentId, FunctionId},
    machine::{Access, Machine, Outgoing},
};
use nicforge_vfio_user::{DmaMap, DmaUnmap, Errno, PeerFd, ServerConnection, Token};

use crate::{
    attachment::ServedAttachment,
    config::EngineConfig,
    errno,
    memory::{ClientMemory, MappingSource},
    sink::EventFdOwner,
    stats::ServerCounters,
    waiting::WaitingPage,
};

/// Maximum number of DMA messages that wait to be sent. A machine has at most half as many in
/// flight for an attachment, except after a reset, which lets it start new ones at once.
const MAX_UNSENT: usize = 4 * MAX_REMOTE;

/// Maximum number of bytes of a region that are read in one piece. Registers are read in accesses
/// of 8 bytes, and a client may ask for a mebibyte, so other clients are served between two pieces.
pub(crate) const READ_PIECE: usize = 4096;

/// An access whose answer is deferred: the device could not take it yet, or it is a long read that
/// is carried out in pieces.
pub(crate) struct DeferredAccess {
    /// The connection's token of the request.
    pub(crate) token: Token,
    pub(crate) region: u32,
    pub(crate) offset: u64,
    pub(crate) kind: AccessKind,
    /// Bytes that were read so far.
    pub(crate) done: usize,
    pub(crate) waits_for: WaitsFor,
    /// A reset by the client waits for the access, which is cancelled when the device stalls it.
    pub(crate) reset_waits: bool,
    /// The time after which a stalled access is answered with `EAGAIN`.
    pub(crate) deadline: Instant,
}

/// The event that a deferred access waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitsFor {
    /// The device, which stalled the access when it was tried last.
    Device,
    /// Its next turn. A long read does not hold up the other clients.
    NextRound,
}

/// The direction of a deferred access, and its data.
pub(crate) enum AccessKind {
    /// A read of this many bytes.
    Read(usize),
    Write(Vec<u8>),
}

/// A range that waits for its file to be mapped.
pub(crate) struct PendingMap {
    pub(crate) token: Token,
    pub(crate) map: DmaMap,
    pub(crate) source: MappingSource,
}

/// A DMA message that the client has not answered.
#[derive(Clone, Copy, Debug)]
struct Outstanding {
    id: MessageId,
    deadline: Instant,
}

/// A DMA message that could not be sent yet.
struct Unsent {
    message: Outgoing,
    deadline: Instant,
}

/// The machine's number of a DMA message, and the direction of the message.
#[derive(Clone, Copy, Debug)]
struct MessageId {
    number: u64,
    is_write: bool,
}

impl MessageId {
    /// Returns the number and the direction of a DMA message.
    fn of(message: &Outgoing) -> Self {
        match message {
            Outgoing::DmaRead { id, .. } => Self { number: *id, is_write: false },
            Outgoing::DmaWrite { id, .. } => Self { number: *id, is_write: true },
        }
    }
}

/// The accesses, mappings and DMA messages of a client that are in progress, and its memory.
pub(crate) struct ClientState {
    pub(crate) function: FunctionId,
    pub(crate) attachment: AttachmentId,
    pub(crate) memory: ClientMemory,
    pub(crate) deferred: Option<DeferredAccess>,
    pub(crate) pending_map: Option<PendingMap>,
    /// A new eventfd by which the client unmasks INTx, or `Some(None)` to end the old one.
    pub(crate) new_unmask: Option<Option<PeerFd>>,
    /// Whether the connection must drop the DMA messages it has sent, because they were cancelled.
    pub(crate) was_cancelled: bool,
    /// The client as the owner of eventfds; records whether they are still written.
    pub(crate) eventfd_owner: Arc<EventFdOwner>,
    /// The page in which the client says that it waits.
    pub(crate) waiting: WaitingPage,
    /// DMA messages that were sent and not answered, the oldest first.
    outstanding: VecDeque<Outstanding>,
    /// DMA messages that were not sent yet, the oldest first.
    unsent: VecDeque<Unsent>,
    /// The token of the last deferred request.
    last_token: Token,
    /// The data of a deferred read.
    read_data: Vec<u8>,
    /// The time that the client may take to answer a DMA message.
    dma_limit: Duration,
}

impl ClientState {
    /// Returns the state of a new client of an attachment. `is_foreign` tells whether the client
    /// belongs to another user ([`crate::socket::Peer`]).
    pub(crate) fn new(attachment: &ServedAttachment, config: &EngineConfig, is_foreign: bool) -> Self {
        Self {
            function: attachment.function,
            attachment: attachment.id,
            memory: ClientMemory::new(config.quotas, is_foreign),
            deferred: None,
            pending_map: None,
            new_unmask: None,
            was_cancelled: false,
            eventfd_owner: Arc::new(EventFdOwner::new(config.quotas.long_call)),
            waiting: WaitingPage::default(),
            outstanding: VecDeque::new(),
            unsent: VecDeque::new(),
            last_token: 0,
            read_data: Vec::new(),
            dma_limit: config.dma_limit,
        }
    }

    /// Returns a token for a request that is deferred.
    pub(crate) fn next_token(&mut self) -> Token {
        self.last_token += 1;
        self.last_token
    }

    /// Returns whether the deferred access goes on in the next round, whatever the device does.
    pub(crate) fn waits_for_next_round(&self) -> bool {
        self.deferred.as_ref().is_some_and(|deferred| deferred.waits_for == WaitsFor::NextRound)
    }

    /// Offers the deferred access to the device again, or reads the next piece of a long read.
    /// Returns whether the access has ended, so that its answer waits in the connection to be sent.
    pub(crate) fn retry_access(
        &mut self,
        machine: &mut Machine,
        connection: &mut ServerConnection,
        now: Instant,
        counters: &mut ServerCounters,
    ) -> bool {
        let Some(deferred) = &mut self.deferred else { return false };
        let (region, offset) = (deferred.region, deferred.offset);

        let outcome = match &deferred.kind {
            AccessKind::Read(length) => {
                let (from, to) = (deferred.done, (deferred.done + READ_PIECE).min(*length));
                self.read_data.resize(*length, 0);
                let piece = &mut self.read_data[from..to];
                let outcome =
                    machine.read(self.function, self.attachment, region, offset + from as u64, piece);
                if matches!(outcome, Ok(Access::Done)) && to < *length {
                    (deferred.done, deferred.waits_for) = (to, WaitsFor::NextRound);
                    return false;
                }
                outcome
            }
            AccessKind::Write(data) => machine.write(self.function, self.attachment, region, offset, data),
        };

        let result = match outcome {
            Ok(Access::Done | Access::BusMasteringLost) => Ok(()),
            Ok(Access::Stalled) if deferred.reset_waits => {
                counters.stalled += 1;
                give_up_access(machine, self.function, self.attachment);
                Err(Errno::ECANCELED)
            }
            Ok(Access::Stalled) if now < deferred.deadline => {
                // A stall is counted once, however often the access is tried.
                counters.stalled += u64::from(deferred.waits_for != WaitsFor::Device);
                deferred.waits_for = WaitsFor::Device;
                return false;
            }
            Ok(Access::Stalled) => {
                counters.stall_timeouts += 1;
                give_up_access(machine, self.function, self.attachment);
                Err(Errno::EAGAIN)
            }
            Err(error) => Err(errno::of_access(&error)),
        };

        let completed = match &deferred.kind {
            AccessKind::Read(_) => {
                connection.complete_read(deferred.token, result.map(|()| self.read_data.as_slice()))
            }
            AccessKind::Write(_) => connection.complete(deferred.token, result),
        };

        if let Err(error) = completed {
            tracing::warn!(%error, "completed an access that the connection had no request for");
        }

        self.deferred = None;
        true
    }

    /// Cancels the access that was deferred with this token if the device stalls it, because a
    /// reset waits for it. Any other access goes on, until the device stalls it. Returns whether
    /// the access was cancelled.
    pub(crate) fn end_access_for_reset(&mut self, machine: &mut Machine, token: Token) -> bool {
        let Some(access) = self.deferred.as_mut().filter(|access| access.token == token) else {
            return false;
        };
        if access.waits_for != WaitsFor::Device {
            access.reset_waits = true;
            return false;
        }
        self.deferred = None;

        // The next access waits for the records in front of itself, not for those of this one.
        give_up_access(machine, self.function, self.attachment);
        true
    }

    /// Queues a DMA message for the client, to be sent by [`ClientState::send_dma_messages`]. Its
    /// time limit starts now, because a message that waits for the socket waits for the client too.
    pub(crate) fn queue_dma_message(&mut self, machine: &mut Machine, message: Outgoing, now: Instant) {
        if self.unsent.len() < MAX_UNSENT {
            self.unsent.push_back(Unsent { message, deadline: now + self.dma_limit });
        } else {
            self.fail(machine, MessageId::of(&message), Errno::EBUSY);
        }
    }

    /// Sends the unsent DMA messages, as far as the connection takes them and until `turn_end`.
    /// Returns whether the end of the turn left messages that the connection might have taken.
    pub(crate) fn send_dma_messages(
        &mut self,
        machine: &mut Machine,
        connection: &mut ServerConnection,
        counters: &mut ServerCounters,
        turn_end: Instant,
    ) -> bool {
        use nicforge_vfio_user::DmaError;
        while let Some(&Unsent { ref message, deadline }) = self.unsent.front() {
            if Instant::now() >= turn_end {
                return true;
            }
            let sent = match message {
                // The device's writes must become visible in the order in which the device made
                // them.
                Outgoing::DmaWrite { .. } if connection.has_unsent_writes() => break,
                Outgoing::DmaRead { id, iova, length, .. } => connection.dma_read(*iova, *length, *id),
                Outgoing::DmaWrite { id, iova, data, .. } => connection.dma_write(*iova, data, *id),
            };
            let id = MessageId::of(message);

            match sent {
                Ok(()) => {
                    counters.dma_messages += 1;
                    self.outstanding.push_back(Outstanding { id, deadline });
                }
                Err(DmaError::Busy { .. }) => break,
                Err(error) => {
                    tracing::debug!(%error, "a DMA message could not be sent");
                    self.fail(machine, id, Errno::EIO);
                }
            }

            self.unsent.pop_front();
        }
        false
    }

    /// Returns the earliest deadline of a DMA message. Messages are sent in the order of arrival,
    /// so those that were sent have the earlier deadlines.
    pub(crate) fn first_deadline(&self) -> Option<Instant> {
        let sent = self.outstanding.front().map(|first| first.deadline);
        sent.or_else(|| self.unsent.front().map(|first| first.deadline))
    }

    /// Removes a DMA message that was answered.
    pub(crate) fn remove_answered(&mut self, number: u64) {
        self.outstanding.retain(|outstanding| outstanding.id.number != number);
    }

    /// Fails the DMA messages whose deadline has passed, sent or not. Returns the deadline of the
    /// next one, if there is one.
    pub(crate) fn expire_dma_messages(
        &mut self,
        machine: &mut Machine,
        connection: &mut ServerConnection,
        now: Instant,
        counters: &mut ServerCounters,
    ) -> Option<Instant> {
        while let Some(&first) = self.outstanding.front().filter(|first| first.deadline <= now) {
            self.outstanding.pop_front();
            connection.forget_dma(first.id.number);
            counters.dma_timeouts += 1;
            self.fail(machine, first.id, Errno::ETIMEDOUT);
        }
        while let Some(first) = self.unsent.front().filter(|first| first.deadline <= now) {
            let id = MessageId::of(&first.message);
            self.unsent.pop_front();
            counters.dma_timeouts += 1;
            self.fail(machine, id, Errno::ETIMEDOUT);
        }
        self.first_deadline()
    }

    /// Moves the messages that the machine still holds for the client to `unsent`, so that a caller
    /// that fails messages fails those too.
    fn collect_unsent(&mut self, machine: &mut Machine) {
        let now = Instant::now();
        for message in machine.take_outgoing(self.function, self.attachment) {
            self.queue_dma_message(machine, message, now);
        }
    }

    /// Fails the unsent DMA messages that touch memory which the client has unmapped. Messages that
    /// were sent stay: they precede the answer to the unmap on the socket, so the client must still
    /// answer them.
    pub(crate) fn fail_unsent_in(&mut self, machine: &mut Machine, unmap: &DmaUnmap) {
        self.collect_unsent(machine);

        for Unsent { message, deadline } in std::mem::take(&mut self.unsent) {
            let (iova, length) = match &message {
                Outgoing::DmaRead { iova, length, .. } => (*iova, *length),
                Outgoing::DmaWrite { iova, data, .. } => (*iova, data.len()),
            };

            if unmap.touches(iova, length) {
                self.fail(machine, MessageId::of(&message), Errno::EFAULT);
            } else {
                self.unsent.push_back(Unsent { message, deadline });
            }
        }
    }

    /// Fails all DMA messages during a call of the connection: the attachment was reset, or may not
    /// start DMA any more. The caller of the connection drops the messages that were sent.
    pub(crate) fn cancel_dma(&mut self, machine: &mut Machine) {
        self.fail_all_messages(machine);
        self.was_cancelled = true;
    }

    /// Fails all DMA messages between two turns of the client, because its function was reset. The
    /// connection forgets those that were sent at once, because the device may start others before
    /// the client's next turn.
    pub(crate) fn cancel_dma_of(&mut self, machine: &mut Machine, connection: &mut ServerConnection) {
        for outstanding in &self.outstanding {
            connection.forget_dma(outstanding.id.number);
        }
        self.fail_all_messages(machine);
    }

    /// Fails all DMA messages, sent or not. The machine ignores answers that it no longer waits
    /// for.
    fn fail_all_messages(&mut self, machine: &mut Machine) {
        self.collect_unsent(machine);
        while let Some(Outstanding { id, .. }) = self.outstanding.pop_front() {
            self.fail(machine, id, Errno::ECANCELED);
        }
        while let Some(Unsent { message, .. }) = self.unsent.pop_front() {
            self.fail(machine, MessageId::of(&message), Errno::ECANCELED);
        }
    }

    /// Fails the deferred access, if there is one, with `ECANCELED`. An operator's reset of the
    /// function calls it.
    pub(crate) fn cancel_access(&mut self, connection: &mut ServerConnection) {
        let Some(deferred) = self.deferred.take() else { return };
        let completed = match deferred.kind {
            AccessKind::Read(_) => connection.complete_read(deferred.token, Err(Errno::ECANCELED)),
            AccessKind::Write(_) => connection.complete(deferred.token, Err(Errno::ECANCELED)),
        };
        if let Err(error) = completed {
            tracing::warn!(%error, "completed an access that the connection had no request for");
        }
    }

    /// Reports to the device that a DMA message has failed.
    fn fail(&self, machine: &mut Machine, id: MessageId, errno: Errno) {
        let error = errno::refused(errno);
        let reported = if id.is_write {
            machine.dma_write_done(self.function, self.attachment, id.number, Err(error))
        } else {
            machine.dma_read_done(self.function, self.attachment, id.number, Err(error))
        };
        if let Err(error) = reported {
            tracing::debug!(%error, "the device had not requested a DMA message that failed");
        }
    }
}

/// Tells the machine that a stalled access is not offered to it again.
fn give_up_access(machine: &mut Machine, function: FunctionId, attachment: AttachmentId) {
    if let Err(error) = machine.give_up_access(function, attachment) {
        tracing::debug!(%error, "an access ended whose client is gone");
    }
}
