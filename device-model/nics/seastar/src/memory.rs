//! Client memory, as the DMA engines reach it: the tenants of the attachments, and lists of pieces.
//!
//! Mapped memory is copied within a call. Memory that only messages reach is read split-phase by a
//! [`Reader`], and written by posted messages. A client that does not answer these in time is cut
//! off: its memory counts as unreadable, and the engines continue.
//!
//! *Invariant:* an engine accesses an attachment only if its program knew the present tenant when
//! it made the call. A message of an earlier tenant thus never reaches the memory of a later one.

use nicforge_core::{
    context::Context,
    dma::DmaError,
    ids::{AttachmentId, DmaToken},
};
use nicforge_hwi::seastar::{KERNEL, MAX_PIECES, PIECES, Piece};
use nicforge_kit::retry;
use nicforge_seastar_firmware::chip::Pieces;
use zerocopy::{FromZeros, IntoBytes};

use crate::{
    config::MAX_CLIENTS,
    wait_budgets::{CHARGE_PERIOD, Wait, WaitBudgets},
};

/// How long an engine waits for the answer to a read by message, in nanoseconds.
const READ_LIMIT: u64 = 1_000_000_000;
/// How long an engine waits for room for a write by message, in nanoseconds.
pub(crate) const WRITE_LIMIT: u64 = 100_000_000;
/// Bytes of the word by which an event is handed over.
pub(crate) const HAND_OVER: usize = 4;
/// Number of pieces of a command list that are read at once.
const LIST_PART: usize = 8;

/// The tenants of a node's attachments.
#[derive(Debug, Default)]
pub(crate) struct Tenants {
    by_attachment: [Tenant; MAX_CLIENTS],
    /// Number of the latest tenant of any attachment.
    last: u32,
    /// Tenants have come or gone that the firmware may not know.
    has_changed: bool,
    /// The budgets of waits for writes.
    budgets: WaitBudgets,
    /// Writes that ended early because a budget was spent.
    over_budget: u64,
}

/// The present tenant of an attachment.
#[derive(Clone, Copy, Debug, Default)]
struct Tenant {
    /// Number of the tenant, 0 for none.
    number: u32,
    /// It has not answered writes by message in time: no write waits for it any more.
    is_unresponsive: bool,
}

/// The client whose memory a call of the program names. An access is refused if the client's tenant
/// has attached after the call: if its number exceeds `latest_tenant`.
#[derive(Clone, Copy)]
pub(crate) struct MemoryOwner {
    pub(crate) attachment_id: AttachmentId,
    /// The highest tenant number that the program had seen at the call.
    pub(crate) latest_tenant: u32,
}

impl Tenants {
    /// Records a new tenant of an attachment, and returns its number.
    pub(crate) fn begin(&mut self, attachment_id: AttachmentId) -> u32 {
        self.last += 1;
        self.has_changed = true;
        if let Some(tenant) = self.by_attachment.get_mut(usize::from(attachment_id.0)) {
            *tenant = Tenant { number: self.last, is_unresponsive: false };
        }
        self.last
    }

    /// Records that an attachment has no tenant.
    pub(crate) fn end(&mut self, attachment_id: AttachmentId) {
        self.has_changed = true;
        if let Some(tenant) = self.by_attachment.get_mut(usize::from(attachment_id.0)) {
            *tenant = Tenant::default();
        }
    }

    /// Records whether there may be tenants that the firmware does not know.
    pub(crate) fn set_changed(&mut self, has_changed: bool) {
        self.has_changed = has_changed;
    }

    /// Returns whether there may be tenants that the firmware does not know.
    #[inline]
    pub(crate) fn has_changed(&self) -> bool {
        self.has_changed
    }

    /// Returns the number of an attachment's tenant, 0 if it has none.
    #[inline]
    pub(crate) fn number(&self, attachment_id: AttachmentId) -> u32 {
        self.by_attachment.get(usize::from(attachment_id.0)).map_or(0, |tenant| tenant.number)
    }

    /// Returns whether an attachment has a tenant that the program knew: see [`MemoryOwner`].
    #[inline]
    pub(crate) fn is_known(&self, attachment_id: AttachmentId, latest_tenant: u32) -> bool {
        (1..=latest_tenant).contains(&self.number(attachment_id))
    }

    /// Returns whether the node has another process, which waits for this client would delay.
    fn has_other_process(&self, attachment_id: AttachmentId) -> bool {
        let processes = self.by_attachment.iter().enumerate().skip(usize::from(KERNEL) + 1);
        let mut others = processes.filter(|(process, _)| *process != usize::from(attachment_id.0));
        others.any(|(_, tenant)| tenant.number != 0)
    }

    /// Returns the number of writes that ended early because a budget was spent.
    pub(crate) fn over_budget(&self) -> u64 {
        self.over_budget
    }

    /// Writes to the memory of a tenant that the program knows. `wait` belongs to the caller: it is
    /// set from the time at which the write begins to wait until it ends.
    pub(crate) fn write(
        &mut self,
        context: &mut Context<'_>,
        MemoryOwner { attachment_id, latest_tenant }: MemoryOwner,
        address: u64,
        data: &[u8],
        wait: &mut Option<Wait>,
    ) -> Access {
        if !self.is_known(attachment_id, latest_tenant) {
            *wait = None;
            return Access::Fault;
        }
        let written = match context.copy_to(attachment_id, address, data) {
            Err(DmaError::Remote { .. }) => context.dma_write(attachment_id, address, data),
            other => other,
        };
        match written {
            Err(DmaError::Busy) => self.wait_for_write(context, attachment_id, wait),
            result => {
                self.end_wait(context, attachment_id, wait);
                if result.is_ok() { Access::Done } else { Access::Fault }
            }
        }
    }

    /// Checks whether a tenant that the program knows has answered all writes by message. After
    /// [`Access::Wait`], the caller must repeat the call. `wait` is as for [`Self::write`].
    pub(crate) fn await_answers(
        &mut self,
        context: &mut Context<'_>,
        MemoryOwner { attachment_id, latest_tenant }: MemoryOwner,
        wait: &mut Option<Wait>,
    ) -> Access {
        let is_known = self.is_known(attachment_id, latest_tenant);
        if is_known && context.has_writes_in_flight(attachment_id) {
            return self.wait_for_write(context, attachment_id, wait);
        }
        self.end_wait(context, attachment_id, wait);
        if is_known { Access::Done } else { Access::Fault }
    }

    /// Lets a write wait until its client has answered earlier ones. Ends it with [`Access::Fault`]
    /// after the time-out, or when the budget of waits is spent.
    #[cold]
    fn wait_for_write(
        &mut self,
        context: &mut Context<'_>,
        attachment_id: AttachmentId,
        wait: &mut Option<Wait>,
    ) -> Access {
        let is_charged = self.has_other_process(attachment_id);
        let index = usize::from(attachment_id.0);
        let Some(tenant) = self.by_attachment.get_mut(index) else { return Access::Fault };
        let now = context.now();
        let current = wait.get_or_insert(Wait::new(now));

        tenant.is_unresponsive |= now >= current.since.after(WRITE_LIMIT);
        let is_over_budget = is_charged && !self.budgets.charge(attachment_id, current, now);
        current.note_unanswered(context.count_writes_in_flight(attachment_id), now);
        self.over_budget += u64::from(is_over_budget);
        if tenant.is_unresponsive || is_over_budget {
            *wait = None;
            return Access::Fault;
        }

        context.wake_at(now.after(retry::MEMORY_BUSY));
        Access::Wait
    }

    /// Ends the wait of a write, if there was one, and charges the rest of it.
    #[inline]
    fn end_wait(&mut self, context: &Context<'_>, attachment_id: AttachmentId, wait: &mut Option<Wait>) {
        if let Some(mut wait) = wait.take()
            && self.has_other_process(attachment_id)
        {
            self.budgets.charge(attachment_id, &mut wait, context.now());
        }
    }
}

/// Result of an access to client memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Access {
    /// It is done.
    Done,
    /// It is not done yet. The device is stepped when it can continue.
    Wait,
    /// The memory cannot be accessed.
    Fault,
}

/// Reads client memory for one engine, one read at a time.
#[derive(Debug)]
pub(crate) struct Reader {
    /// Number of the engine, 0 or 1, which its tokens carry.
    engine: u64,
    /// Number of reads by message that have begun.
    serial: u64,
    /// The read by message that is in progress.
    pending: Option<PendingRead>,
    /// Data of the last read by message.
    buffer: Vec<u8>,
    /// The budgets of waits for reads.
    budgets: WaitBudgets,
    /// Reads that ended early because a budget was spent.
    over_budget: u64,
}

/// Number of engines of a node that read.
const ENGINES: u64 = 2;

/// A read by message.
#[derive(Debug)]
struct PendingRead {
    attachment_id: AttachmentId,
    address: u64,
    wait: Wait,
    state: ReadState,
}

/// Progress of a read by message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadState {
    /// The message is not sent yet, for want of room.
    Unsent,
    /// The message is sent, and has no answer.
    Sent,
    /// The data are in [`Reader::buffer`].
    Answered,
    /// The client has refused the read.
    Failed,
}

impl Reader {
    /// Returns a reader of an engine, 0 or 1.
    pub(crate) fn new(engine: u64) -> Self {
        Self {
            engine,
            serial: 0,
            pending: None,
            buffer: Vec::new(),
            budgets: WaitBudgets::default(),
            over_budget: 0,
        }
    }

    /// Returns the number of reads that ended early because a budget was spent.
    pub(crate) fn over_budget(&self) -> u64 {
        self.over_budget
    }

    /// Returns the token of the latest read: no other read of the node has had it.
    fn token(&self) -> DmaToken {
        DmaToken(self.serial * ENGINES + self.engine)
    }

    /// Reads memory of a known tenant. After [`Access::Wait`], the caller must repeat the call, or
    /// [`Reader::cancel`] it.
    pub(crate) fn read(
        &mut self,
        context: &mut Context<'_>,
        tenants: &Tenants,
        MemoryOwner { attachment_id, latest_tenant }: MemoryOwner,
        address: u64,
        out: &mut [u8],
    ) -> Access {
        if !tenants.is_known(attachment_id, latest_tenant) {
            self.cancel(context);
            return Access::Fault;
        }

        if self.pending.is_none() {
            match context.copy_from(attachment_id, address, out) {
                Ok(()) => return Access::Done,
                Err(DmaError::Remote { .. }) => {}
                Err(_) => return Access::Fault,
            }
        }
        let is_charged = tenants.has_other_process(attachment_id);
        self.read_by_message(context, attachment_id, address, out, is_charged)
    }

    /// Begins or continues a read by message. `is_charged` says whether the wait for it is charged.
    #[cold]
    fn read_by_message(
        &mut self,
        context: &mut Context<'_>,
        attachment_id: AttachmentId,
        address: u64,
        out: &mut [u8],
        is_charged: bool,
    ) -> Access {
        let now = context.now();
        let is_same = |read: &PendingRead| (read.attachment_id, read.address) == (attachment_id, address);
        if !self.pending.as_ref().is_some_and(is_same) {
            self.cancel(context);
            self.serial += 1;
            let (wait, state) = (Wait::new(now), ReadState::Unsent);
            self.pending = Some(PendingRead { attachment_id, address, wait, state });
        }

        let token = self.token();
        let Some(read) = &mut self.pending else { return Access::Fault };
        let is_over_budget = is_charged && !self.budgets.charge(attachment_id, &mut read.wait, now);
        if read.state == ReadState::Unsent
            && !is_over_budget
            && context.dma_read(attachment_id, address, out.len(), token).is_ok()
        {
            read.state = ReadState::Sent;
        }

        let limit = read.wait.since.after(READ_LIMIT);
        match read.state {
            ReadState::Answered if self.buffer.len() == out.len() => {
                out.copy_from_slice(&self.buffer);
                self.pending = None;
                Access::Done
            }
            ReadState::Unsent | ReadState::Sent if now < limit && !is_over_budget => {
                let next_look = match read.state {
                    ReadState::Sent if is_charged => limit.min(now.after(CHARGE_PERIOD)),
                    ReadState::Sent => limit,
                    _ => now.after(retry::MEMORY_BUSY),
                };
                context.wake_at(next_look);
                Access::Wait
            }
            // It has failed, is late, or must not wait any longer.
            _ => {
                self.over_budget += u64::from(is_over_budget);
                self.cancel(context);
                Access::Fault
            }
        }
    }

    /// Stores the answer to a read by message, if the read is this reader's.
    pub(crate) fn store_answer(&mut self, token: DmaToken, result: Result<&[u8], DmaError>) {
        if token != self.token() {
            return;
        }
        let Some(read) = &mut self.pending else { return };

        read.state = match result {
            Ok(data) => {
                self.buffer.clear();
                self.buffer.extend_from_slice(data);
                ReadState::Answered
            }
            Err(_) => ReadState::Failed,
        };
    }

    /// Cancels the read in progress, if there is one.
    pub(crate) fn cancel(&mut self, context: &mut Context<'_>) {
        if let Some(read) = self.pending.take() {
            let token = self.token();
            context.forget_read(read.attachment_id, token);
        }
    }
}

/// A position in the pieces of a message, which moves on as data are moved.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    /// The rest of the piece in which the cursor is.
    current: Piece,
    /// Pieces that were read from the list or are in the call: the first `known` ones.
    part: [Piece; LIST_PART],
    known: u8,
    /// Index in `part` of the piece after the current one.
    next: u8,
    /// Address of the rest of a list in the kernel's memory.
    address: u64,
    /// Number of pieces in that rest.
    left: u16,
    /// The highest tenant number that the program had seen at the call.
    latest_tenant: u32,
}

/// The memory at a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Run {
    /// This piece of memory, of at least one byte.
    Piece(Piece),
    /// The list is being read. The caller must look again later.
    Wait,
    /// The pieces end here, or the list cannot be read.
    End,
}

impl Cursor {
    /// Returns the start of the pieces of a call. `latest_tenant` is as in [`MemoryOwner`].
    pub(crate) fn new(pieces: &Pieces, latest_tenant: u32) -> Self {
        let mut cursor = Self {
            current: Piece::default(),
            part: [Piece::default(); LIST_PART],
            known: 0,
            next: 0,
            address: 0,
            left: 0,
            latest_tenant,
        };

        match *pieces {
            Pieces::None => {}
            Pieces::One(piece) => cursor.current = piece,
            Pieces::Few { count, pieces } => {
                cursor.part[..PIECES].copy_from_slice(&pieces);
                cursor.known = count.min(PIECES as u8);
            }
            Pieces::List { address, count } => {
                cursor.address = address;
                cursor.left = count.min(MAX_PIECES as u16);
            }
        }
        cursor
    }

    /// Returns the highest tenant number that the program had seen at the call.
    #[inline]
    pub(crate) fn latest_tenant(&self) -> u32 {
        self.latest_tenant
    }

    /// Returns the memory from the cursor to the end of its piece.
    #[inline]
    pub(crate) fn run(&mut self, context: &mut Context<'_>, tenants: &Tenants, reader: &mut Reader) -> Run {
        if self.current.length > 0 {
            return Run::Piece(self.current);
        }
        self.next_piece(context, tenants, reader)
    }

    /// Moves to the next piece that is not empty. The number of pieces bounds the work.
    fn next_piece(&mut self, context: &mut Context<'_>, tenants: &Tenants, reader: &mut Reader) -> Run {
        while self.current.length == 0 {
            if self.next < self.known {
                self.current = self.part[usize::from(self.next)];
                self.next += 1;
                continue;
            }
            if self.left == 0 {
                return Run::End;
            }

            // All known pieces are used up: the next part of the list is read.
            let count = usize::from(self.left).min(LIST_PART);
            self.part.zero();
            let kernel =
                MemoryOwner { attachment_id: AttachmentId(KERNEL), latest_tenant: self.latest_tenant };
            let bytes = self.part[..count].as_mut_bytes();
            let length = bytes.len() as u64;
            match reader.read(context, tenants, kernel, self.address, bytes) {
                Access::Done => {}
                Access::Wait => return Run::Wait,
                Access::Fault => {
                    self.left = 0;
                    return Run::End;
                }
            }

            self.address = self.address.wrapping_add(length);
            self.left -= count as u16;
            (self.known, self.next) = (count as u8, 0);
        }
        Run::Piece(self.current)
    }

    /// Moves the cursor by a number of bytes of the current piece.
    #[inline]
    pub(crate) fn advance(&mut self, bytes: usize) {
        let bytes = (bytes as u32).min(self.current.length);
        self.current.length -= bytes;
        self.current.address = self.current.address.wrapping_add(bytes.into());
    }
}
