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
    config::EngineConfig,
    errno,
    memory::{ClientMemory, MappingSource},
    sink::Owner,
    stats::ServerCounters,
};

/// Maximum number of DMA messages that wait to be sent. A machine has at most half as many in
/// flight for an attachment, except after a reset, which lets it start new ones at once.
const MAX_UNSENT: usize = 4 * MAX_REMOTE;

/// Maximum number of bytes of a region that are read in one piece. Registers are read in accesses
/// of 8 bytes, and a client may ask for a mebibyte, so other clients are served between two pieces.
pub(crate) const READ_PIECE: usize = 4096;

/// An access that the device could not take yet, or a read that is carried out in pieces.
pub(crate) struct StalledAccess {
    pub(crate) token: Token,
    pub(crate) region: u32,
    pub(crate) offset: u64,
    pub(crate) kind: AccessKind,
    /// Bytes that were read so far.
    pub(crate) done: usize,
    /// Whether the device has refused it, so that it waits for the device.
    pub(crate) refused: bool,
    pub(crate) until: Instant,
}

/// The direction of a stalled access, and its data.
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
    id: u64,
    write: bool,
    until: Instant,
}

/// A DMA message that could not be sent yet.
struct Unsent {
    message: Outgoing,
    until: Instant,
}

/// The accesses, mappings and DMA messages of a client that are in progress, and its memory.
pub(crate) struct ClientState {
    pub(crate) function: FunctionId,
    pub(crate) attachment: AttachmentId,
    pub(crate) memory: ClientMemory,
    pub(crate) stalled: Option<StalledAccess>,
    pub(crate) pending_map: Option<PendingMap>,
    /// A new eventfd by which the client unmasks INTx, or `Some(None)` to end the old one.
    pub(crate) new_unmask: Option<Option<PeerFd>>,
    /// Whether the connection must drop the DMA messages it has sent, because they were cancelled.
    pub(crate) was_cancelled: bool,
    /// The client as the owner of eventfds; records whether they are still written.
    pub(crate) eventfd_owner: Arc<Owner>,
    outstanding: VecDeque<Outstanding>,
    unsent: VecDeque<Unsent>,
    next_token: Token,
    buffer: Vec<u8>,
    dma_limit: Duration,
}

impl ClientState {
    pub(crate) fn new(function: FunctionId, attachment: AttachmentId, config: &EngineConfig) -> Self {
        Self {
            function,
            attachment,
            memory: ClientMemory::new(config.quotas),
            stalled: None,
            pending_map: None,
            new_unmask: None,
            was_cancelled: false,
            eventfd_owner: Arc::new(Owner::new(config.quotas.long_call)),
            outstanding: VecDeque::new(),
            unsent: VecDeque::new(),
            next_token: 0,
            buffer: Vec::new(),
            dma_limit: config.dma_limit,
        }
    }

    /// Returns a token for a request that is deferred.
    pub(crate) fn next_token(&mut self) -> Token {
        self.next_token += 1;
        self.next_token
    }

    /// Offers the waiting access to the device again, or reads the next piece of a long read.
    /// Returns whether the access has ended, so that its answer waits in the connection to be sent.
    pub(crate) fn retry(
        &mut self,
        machine: &mut Machine,
        connection: &mut ServerConnection,
        now: Instant,
        counters: &mut ServerCounters,
    ) -> bool {
        let Some(stalled) = &mut self.stalled else { return false };
        let (region, offset) = (stalled.region, stalled.offset);

        let outcome = match &stalled.kind {
            AccessKind::Read(length) => {
                let (from, to) = (stalled.done, (stalled.done + READ_PIECE).min(*length));
                self.buffer.resize(*length, 0);
                let piece = &mut self.buffer[from..to];
                let outcome =
                    machine.read(self.function, self.attachment, region, offset + from as u64, piece);
                if matches!(outcome, Ok(Access::Done)) && to < *length {
                    (stalled.done, stalled.refused) = (to, false);
                    return false;
                }
                outcome
            }
            AccessKind::Write(data) => machine.write(self.function, self.attachment, region, offset, data),
        };

        let result = match outcome {
            Ok(Access::Done | Access::BusMasteringLost) => Ok(()),
            Ok(Access::Stalled) if now < stalled.until => {
                counters.stalled += u64::from(!stalled.refused);
                stalled.refused = true;
                return false;
            }
            Ok(Access::Stalled) => {
                counters.stall_timeouts += 1;
                if let Err(error) = machine.give_up_access(self.function, self.attachment) {
                    tracing::debug!(%error, "an access ended whose client is gone");
                }
                Err(Errno::EAGAIN)
            }
            Err(error) => Err(errno::of_access(&error)),
        };

        let completed = match &stalled.kind {
            AccessKind::Read(_) => {
                connection.complete_read(stalled.token, result.map(|()| self.buffer.as_slice()))
            }
            AccessKind::Write(_) => connection.complete(stalled.token, result),
        };

        if let Err(error) = completed {
            tracing::warn!(%error, "completed an access that the connection had no request for");
        }

        self.stalled = None;
        true
    }

    /// Takes a DMA message for the client, to be sent by [`ClientState::send`]. Its time limit
    /// starts now, because a message that waits for the socket waits for the client too.
    pub(crate) fn queue(&mut self, machine: &mut Machine, message: Outgoing, now: Instant) {
        if self.unsent.len() < MAX_UNSENT {
            self.unsent.push_back(Unsent { message, until: now + self.dma_limit });
        } else {
            let (id, write) = identify(&message);
            self.fail(machine, id, write, Errno::EBUSY);
        }
    }

    /// Sends the waiting messages, as far as the connection takes them and until `turn_end`.
    /// Returns whether the end of the turn left messages that the connection might have taken.
    pub(crate) fn send(
        &mut self,
        machine: &mut Machine,
        connection: &mut ServerConnection,
        counters: &mut ServerCounters,
        turn_end: Instant,
    ) -> bool {
        use nicforge_vfio_user::DmaError;
        while let Some(&Unsent { ref message, until }) = self.unsent.front() {
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
            let (id, write) = identify(message);

            match sent {
                Ok(()) => {
                    counters.dma_messages += 1;
                    self.outstanding.push_back(Outstanding { id, write, until });
                }
                Err(DmaError::Busy { .. }) => break,
                Err(error) => {
                    tracing::debug!(%error, "a DMA message could not be sent");
                    self.fail(machine, id, write, Errno::EIO);
                }
            }

            self.unsent.pop_front();
        }
        false
    }

    /// Returns when the first DMA message is due. Messages are sent in the order of arrival, so
    /// those that were sent are due first.
    pub(crate) fn first_deadline(&self) -> Option<Instant> {
        let sent = self.outstanding.front().map(|first| first.until);
        sent.or_else(|| self.unsent.front().map(|first| first.until))
    }

    /// Removes a DMA message that was answered.
    pub(crate) fn remove_answered(&mut self, id: u64) {
        self.outstanding.retain(|outstanding| outstanding.id != id);
    }

    /// Fails the DMA messages whose time is over, sent or not. Returns when the next one is due, if
    /// there is one.
    pub(crate) fn expire(
        &mut self,
        machine: &mut Machine,
        connection: &mut ServerConnection,
        now: Instant,
        counters: &mut ServerCounters,
    ) -> Option<Instant> {
        while let Some(&first) = self.outstanding.front().filter(|first| first.until <= now) {
            self.outstanding.pop_front();
            connection.forget_dma(first.id);
            counters.dma_timeouts += 1;
            self.fail(machine, first.id, first.write, Errno::ETIMEDOUT);
        }
        while let Some(first) = self.unsent.front().filter(|first| first.until <= now) {
            let (id, write) = identify(&first.message);
            self.unsent.pop_front();
            counters.dma_timeouts += 1;
            self.fail(machine, id, write, Errno::ETIMEDOUT);
        }
        self.first_deadline()
    }

    /// Moves the messages that the machine still holds for the client to `unsent`, so that a caller
    /// that fails messages fails those too.
    fn collect_unsent(&mut self, machine: &mut Machine) {
        let now = Instant::now();
        for message in machine.take_outgoing(self.function, self.attachment) {
            self.queue(machine, message, now);
        }
    }

    /// Fails the unsent DMA messages that touch memory which the client has unmapped. Messages that
    /// were sent stay: they precede the answer to the unmap on the socket, so the client must still
    /// answer them.
    pub(crate) fn withdraw(&mut self, machine: &mut Machine, unmap: &DmaUnmap) {
        self.collect_unsent(machine);

        for Unsent { message, until } in std::mem::take(&mut self.unsent) {
            let (iova, length) = match &message {
                Outgoing::DmaRead { iova, length, .. } => (*iova, *length),
                Outgoing::DmaWrite { iova, data, .. } => (*iova, data.len()),
            };

            if unmap.touches(iova, length) {
                let (id, write) = identify(&message);
                self.fail(machine, id, write, Errno::EFAULT);
            } else {
                self.unsent.push_back(Unsent { message, until });
            }
        }
    }

    /// Fails all DMA messages: the attachment was reset, or may not start DMA any more. The
    /// machine ignores answers that it no longer waits for.
    pub(crate) fn cancel_dma(&mut self, machine: &mut Machine) {
        self.collect_unsent(machine);
        while let Some(Outstanding { id, write, .. }) = self.outstanding.pop_front() {
            self.fail(machine, id, write, Errno::ECANCELED);
        }
        while let Some(Unsent { message, .. }) = self.unsent.pop_front() {
            let (id, write) = identify(&message);
            self.fail(machine, id, write, Errno::ECANCELED);
        }
        self.was_cancelled = true;
    }

    /// Fails the stalled access, if there is one, with `ECANCELED`. An operator's reset of the
    /// function calls it.
    pub(crate) fn cancel_access(&mut self, connection: &mut ServerConnection) {
        let Some(stalled) = self.stalled.take() else { return };
        let completed = match stalled.kind {
            AccessKind::Read(_) => connection.complete_read(stalled.token, Err(Errno::ECANCELED)),
            AccessKind::Write(_) => connection.complete(stalled.token, Err(Errno::ECANCELED)),
        };
        if let Err(error) = completed {
            tracing::warn!(%error, "completed an access that the connection had no request for");
        }
    }

    /// Reports to the device that a DMA message has failed.
    fn fail(&self, machine: &mut Machine, id: u64, write: bool, errno: Errno) {
        let error = errno::refused(errno);
        let reported = if write {
            machine.dma_write_done(self.function, self.attachment, id, Err(error))
        } else {
            machine.dma_read_done(self.function, self.attachment, id, Err(error))
        };
        if let Err(error) = reported {
            tracing::debug!(%error, "the device had not requested a DMA message that failed");
        }
    }
}

/// Returns the number of a DMA message, and whether it is a write.
fn identify(message: &Outgoing) -> (u64, bool) {
    match message {
        Outgoing::DmaRead { id, .. } => (*id, false),
        Outgoing::DmaWrite { id, .. } => (*id, true),
    }
}
