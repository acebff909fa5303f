//! The operations that a device can use during a call.

use std::collections::VecDeque;

use nicforge_shm::SharedMemory;

use crate::{
    attachment::{Attachment, RemoteRead},
    dma::{DmaError, DmaLease, DmaPiece, MAX_DMA, Term},
    fabric::{Fabric, Ports},
    ids::{AttachmentId, DmaToken, FunctionId},
    interrupt::Raised,
    spec::FunctionSpec,
    time::Nanos,
    trace::{Event, TraceSink},
};

/// Limit for each attachment on DMA reads in flight: those sent as messages, plus those whose
/// result the device has not received. The same limit applies to DMA writes sent as messages and
/// not answered.
pub const MAX_REMOTE: usize = 32;
/// Limit for a machine on DMA reads whose data waits in a buffer for the device.
const MAX_BUFFERS: usize = 64;

/// A DMA operation on memory that only messages reach. The owner of the machine sends it to the
/// client and returns the answer through [`crate::machine::Machine::dma_read_done`] or
/// `dma_write_done`.
#[derive(Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// A read of client memory.
    DmaRead {
        /// Number that the answer must carry.
        id: u64,
        /// Function whose device started the operation.
        function: FunctionId,
        /// Attachment whose memory it reads.
        attachment: AttachmentId,
        /// Start address.
        iova: u64,
        /// Length in bytes, at most [`MAX_DMA`].
        length: usize,
    },
    /// A write to client memory.
    DmaWrite {
        /// Number that the answer must carry.
        id: u64,
        /// Function whose device started the operation.
        function: FunctionId,
        /// Attachment whose memory it writes.
        attachment: AttachmentId,
        /// Start address.
        iova: u64,
        /// Data to write, at most [`MAX_DMA`] bytes.
        data: Vec<u8>,
    },
}

impl Outgoing {
    fn owner(&self) -> (FunctionId, AttachmentId) {
        match self {
            Self::DmaRead { function, attachment, .. } | Self::DmaWrite { function, attachment, .. } => {
                (*function, *attachment)
            }
        }
    }
}

/// A finished DMA read whose result the device has not received.
pub(crate) struct Completion {
    pub(crate) who: AttachmentId,
    pub(crate) token: DmaToken,
    pub(crate) result: Result<FilledBuffer, DmaError>,
}

/// Data in a buffer of the pool.
pub(crate) struct FilledBuffer {
    pub(crate) buffer: Box<[u8]>,
    pub(crate) length: usize,
}

/// State that the functions of a machine share, apart from the fabric.
pub(crate) struct Shared {
    pub(crate) now: Nanos,
    pub(crate) outgoing: VecDeque<Outgoing>,
    pub(crate) next_id: u64,
    pub(crate) trace: Option<Box<dyn TraceSink>>,
    /// Bytes of client memory that DMA has touched in the current step of the machine.
    pub(crate) touched: usize,
    buffers: Vec<Box<[u8]>>,
    buffers_allocated: usize,
}

impl Shared {
    pub(crate) fn new() -> Self {
        Self {
            now: Nanos::ZERO,
            outgoing: VecDeque::new(),
            next_id: 1,
            trace: None,
            touched: 0,
            buffers: Vec::new(),
            buffers_allocated: 0,
        }
    }

    pub(crate) fn trace(&mut self, function: FunctionId, attachment: AttachmentId, event: Event) {
        if let Some(sink) = &mut self.trace {
            sink.event(self.now, function, attachment, event);
        }
    }

    /// Takes a buffer from the pool, or `None` when all [`MAX_BUFFERS`] are in use.
    pub(crate) fn take_buffer(&mut self) -> Option<Box<[u8]>> {
        self.buffers.pop().or_else(|| {
            (self.buffers_allocated < MAX_BUFFERS).then(|| {
                self.buffers_allocated += 1;
                vec![0; MAX_DMA].into_boxed_slice()
            })
        })
    }

    /// Returns a buffer with a copy of `data`. It comes from the pool while the pool lasts, and
    /// from the heap otherwise, because an answer that has arrived must not be refused.
    pub(crate) fn buffer_from(&mut self, data: &[u8]) -> Box<[u8]> {
        if data.len() <= MAX_DMA
            && let Some(mut buffer) = self.take_buffer()
        {
            buffer[..data.len()].copy_from_slice(data);
            return buffer;
        }

        data.into()
    }

    /// Returns a buffer to the pool. Buffers of another size are freed.
    pub(crate) fn return_buffer(&mut self, buffer: Box<[u8]>) {
        if buffer.len() == MAX_DMA && self.buffers.len() < MAX_BUFFERS {
            self.buffers.push(buffer);
        }
    }

    /// Removes and returns the messages of an attachment that the owner has not taken.
    pub(crate) fn take_outgoing(&mut self, function: FunctionId, who: AttachmentId) -> Vec<Outgoing> {
        let (taken, left): (VecDeque<_>, _) = std::mem::take(&mut self.outgoing)
            .into_iter()
            .partition(|message| message.owner() == (function, who));

        self.outgoing = left;
        Vec::from(taken)
    }

    /// Drops the unsent messages and undelivered results of `who`, or of every attachment of the
    /// function.
    pub(crate) fn drop_pending(&mut self, function: &mut FunctionState, who: Option<AttachmentId>) {
        let id = function.id;
        self.outgoing.retain(|message| {
            let (owner, attachment) = message.owner();
            owner != id || who.is_some_and(|who| attachment != who)
        });

        for index in (0..function.completions.len()).rev() {
            if who.is_none_or(|who| function.completions[index].who == who)
                && let Some(completion) = function.completions.remove(index)
                && let Ok(filled) = completion.result
            {
                self.return_buffer(filled.buffer);
            }
        }

        for (index, attachment) in function.attachments.iter_mut().enumerate() {
            if who.is_none_or(|who| usize::from(who.0) == index) {
                attachment.waiting_reads = 0;
            }
        }
    }
}

/// State of one function, apart from its device.
pub(crate) struct FunctionState {
    pub(crate) id: FunctionId,
    pub(crate) name: String,
    pub(crate) spec: FunctionSpec,
    pub(crate) attachments: Vec<Attachment>,
    /// Attachments that have a client, in the order in which a turn drains their rings.
    pub(crate) clients: Vec<AttachmentId>,
    /// True when a record stalled in the last turn and several clients exist. Only turns drain the
    /// rings then, so that the scheduler shares out what the device has.
    pub(crate) contended: bool,
    pub(crate) completions: VecDeque<Completion>,
    pub(crate) wake_at: Nanos,
}

impl FunctionState {
    /// Rebuilds the list of attachments that have a client.
    pub(crate) fn refresh_clients(&mut self) {
        self.clients.clear();
        let attachments = self.attachments.iter().zip(0..);
        self.clients.extend(
            attachments
                .filter(|(attachment, _)| attachment.tenant.is_some())
                .map(|(_, number)| AttachmentId(number)),
        );
    }

    /// Sorts the clients by the number of records carried out recently, fewest first, after a turn
    /// that carried out at most `most` records of each.
    ///
    /// Clients that compete for the same resource of a device thus share it, whatever the resource
    /// and however often some of it becomes free. A client that received none moves towards the
    /// front with each turn. A client that received more than another moves behind it. What one
    /// client does not use, the next one gets.
    #[cold]
    pub(crate) fn reorder_clients(&mut self, most: u32) {
        let Self { attachments, clients, .. } = self;
        for who in &*clients {
            let Some(attachment) = attachments.get_mut(usize::from(who.0)) else { continue };
            let posted = attachment.counters.posted_writes;
            // Records carried out while no client had to wait count as one turn's at most.
            let given = posted.saturating_sub(attachment.posted_at_update).min(most.into());
            attachment.recent_records =
                attachment.recent_records - attachment.recent_records.div_ceil(8) + given;
            attachment.posted_at_update = posted;
        }

        let recent = |who: AttachmentId| {
            attachments.get(usize::from(who.0)).map_or(0, |attachment| attachment.recent_records)
        };

        // The order of equal clients stays. Insertion sort: the list is nearly sorted already.
        for next in 1..clients.len() {
            let mut at = next;
            while at > 0 && recent(clients[at - 1]) > recent(clients[at]) {
                clients.swap(at - 1, at);
                at -= 1;
            }
        }
    }

    /// Queues the result of a DMA read for the device.
    pub(crate) fn queue_result(&mut self, completion: Completion) {
        if let Some(attachment) = self.attachments.get_mut(usize::from(completion.who.0)) {
            attachment.waiting_reads += 1;
        }
        self.completions.push_back(completion);
    }
}

/// Error of a DMA operation that can't start now, because the limit of operations in flight is
/// reached. The device should retry in a later step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// Access of a device to the rest of the machine, for the duration of one call.
pub struct Context<'a> {
    pub(crate) function: &'a mut FunctionState,
    pub(crate) shared: &'a mut Shared,
    pub(crate) fabric: &'a mut Fabric,
}

impl Context<'_> {
    /// Returns the current time. It does not advance during a call.
    pub fn now(&self) -> Nanos {
        self.shared.now
    }

    /// Returns the function's number in the machine.
    pub fn function(&self) -> FunctionId {
        self.function.id
    }

    /// Returns the function's name in the machine.
    pub fn name(&self) -> &str {
        &self.function.name
    }

    /// Returns whether a client has the attachment.
    pub fn is_attached(&self, who: AttachmentId) -> bool {
        self.attachment(who).is_some_and(|attachment| attachment.tenant.is_some())
    }

    /// Returns the memory behind a BAR as `who` sees it, or `None` while no client is attached or
    /// when every access to the BAR traps.
    ///
    /// A device calls this when a client comes ([`crate::device::Device::attached`]) and makes its
    /// windows from the result.
    pub fn memory(&self, who: AttachmentId, bar: u8) -> Option<SharedMemory> {
        self.attachment(who)?.memories.get(usize::from(bar))?.clone()
    }

    /// Returns the function's ports to the fabric.
    pub fn ports(&mut self) -> Ports<'_> {
        self.fabric.ports(self.function.id, self.shared.now)
    }

    /// Requests a call of [`crate::device::Device::step`] at `time` at the latest.
    ///
    /// A function has one timer, and the earliest request counts. When it fires, all later requests
    /// are forgotten.
    pub fn wake_at(&mut self, time: Nanos) {
        self.function.wake_at = self.function.wake_at.min(time);
    }

    /// Raises an MSI-X vector of an attachment. The interrupt does not overtake the attachment's
    /// earlier DMA writes. Without a client it has no effect.
    pub fn interrupt(&mut self, who: AttachmentId, vector: u16) {
        let Some(attachment) = self.function.attachments.get_mut(usize::from(who.0)) else { return };
        if attachment.tenant.is_none() {
            return;
        }

        attachment.counters.interrupts += 1;
        if attachment.interrupts.raise_msix(vector) == Raised::Pending
            && let Some(msix) = &mut attachment.msix
        {
            msix.set_pending(vector);
        }

        self.shared.trace(self.function.id, who, Event::Interrupt { vector });
    }

    /// Sets the level of an attachment's INTx line. A reset deasserts it. Without a client it has
    /// no effect.
    pub fn set_intx(&mut self, who: AttachmentId, asserted: bool) {
        let Some(attachment) = self.function.attachments.get_mut(usize::from(who.0)) else { return };
        if attachment.tenant.is_none() {
            return;
        }

        let rises = asserted && !attachment.intx;
        attachment.counters.interrupts += u64::from(rises);
        let changes = asserted != attachment.intx;
        attachment.intx = asserted;
        attachment.config.set_interrupt_status(asserted);
        attachment.drive_intx();
        if changes {
            self.shared.trace(self.function.id, who, Event::Intx { asserted });
        }
    }

    /// Starts a read of at most [`MAX_DMA`] bytes of client memory at `iova`.
    ///
    /// The data or the error comes to [`crate::device::Device::dma_done`] with `token`, after the
    /// device has returned from this call.
    ///
    /// # Errors
    /// [`Busy`] when [`MAX_REMOTE`] reads of the attachment are in flight, or no buffer is free.
    pub fn dma_read(
        &mut self,
        who: AttachmentId,
        iova: u64,
        length: usize,
        token: DmaToken,
    ) -> Result<(), Busy> {
        let Some(attachment) = self.function.attachments.get_mut(usize::from(who.0)) else {
            if self.function.completions.len() >= MAX_REMOTE {
                return Err(Busy);
            }
            self.function.queue_result(Completion { who, token, result: Err(DmaError::Gone) });
            return Ok(());
        };

        let remote = attachment.tenant.as_ref().map_or(0, |tenant| tenant.remote_reads.len());
        if remote + attachment.waiting_reads >= MAX_REMOTE {
            return Err(Busy);
        }

        let result = match check_dma(attachment, iova, length, false) {
            Ok(DmaPath::Local) => {
                let mut buffer = self.shared.take_buffer().ok_or(Busy)?;
                self.shared.touched += length;
                match attachment.dma.read_local(iova, &mut buffer[..length]) {
                    Ok(()) => {
                        attachment.counters.dma_read_bytes += length as u64;
                        Ok(FilledBuffer { buffer, length })
                    }
                    Err(error) => {
                        self.shared.return_buffer(buffer);
                        Err(error)
                    }
                }
            }
            Ok(DmaPath::Remote) => {
                let Some(tenant) = attachment.tenant.as_mut() else { return Err(Busy) };
                let id = self.shared.next_id;
                self.shared.next_id += 1;
                tenant.remote_reads.push(RemoteRead { id, token, length });
                let function = self.function.id;
                let message = Outgoing::DmaRead { id, function, attachment: who, iova, length };
                self.shared.outgoing.push_back(message);
                self.shared.trace(function, who, Event::DmaRead { iova, length });
                return Ok(());
            }
            Err(error) => Err(error),
        };

        if let Err(error) = &result {
            attachment.count_dma_error(error);
        }

        self.function.queue_result(Completion { who, token, result });
        self.shared.trace(self.function.id, who, Event::DmaRead { iova, length });

        Ok(())
    }

    /// Writes at most [`MAX_DMA`] bytes to client memory at `iova`. The write is posted: an
    /// interrupt raised later does not overtake it.
    ///
    /// # Errors
    /// [`DmaError::Busy`] when the device should retry in a later step. Every other error is final,
    /// and the device should set its error bit.
    pub fn dma_write(&mut self, who: AttachmentId, iova: u64, data: &[u8]) -> Result<(), DmaError> {
        let attachment = self.function.attachments.get_mut(usize::from(who.0)).ok_or(DmaError::Gone)?;
        let result = match check_dma(attachment, iova, data.len(), true) {
            Ok(DmaPath::Local) => {
                self.shared.touched += data.len();
                attachment.dma.write_local(iova, data)
            }
            Ok(DmaPath::Remote) => {
                let tenant = attachment.tenant.as_mut().ok_or(DmaError::Gone)?;
                // A held interrupt is delivered once no write is in flight. New writes would delay
                // it without end.
                if attachment.interrupts.has_held() || tenant.remote_writes.len() >= MAX_REMOTE {
                    return Err(DmaError::Busy);
                }

                let id = self.shared.next_id;
                self.shared.next_id += 1;
                tenant.remote_writes.push(id);
                attachment.interrupts.hold();

                self.shared.outgoing.push_back(Outgoing::DmaWrite {
                    id,
                    function: self.function.id,
                    attachment: who,
                    iova,
                    data: data.to_vec(),
                });

                Ok(())
            }
            Err(error) => Err(error),
        };

        match &result {
            Ok(()) => attachment.counters.dma_written_bytes += data.len() as u64,
            Err(error) => attachment.count_dma_error(error),
        }

        self.shared.trace(self.function.id, who, Event::DmaWrite { iova, length: data.len() });

        result
    }

    /// Leases `length` bytes of client memory at `iova`, for writing or for reading. They may lie
    /// in several adjacent mappings. [`DmaLease`] states what a lease permits.
    ///
    /// # Errors
    /// [`DmaError::Gone`], [`DmaError::NotBusMaster`], and those of [`crate::dma::DmaMap::lease`].
    /// Memory that only messages reach can't be leased.
    pub fn dma_lease(
        &mut self,
        who: AttachmentId,
        iova: u64,
        length: u64,
        write: bool,
    ) -> Result<DmaLease, DmaError> {
        let attachment = self.function.attachments.get_mut(usize::from(who.0)).ok_or(DmaError::Gone)?;
        check_may_start(attachment)?;
        attachment.dma.lease(iova, length, write)
    }

    /// Returns the longest prefix of `length` bytes of client memory at `iova` that is of one kind.
    /// A device uses it to hold a range whose parts may be of several kinds. Unmapping any part of
    /// the prefix ends `term`.
    ///
    /// # Errors
    /// [`DmaError::Gone`], [`DmaError::NotBusMaster`], and those of [`crate::dma::DmaMap::piece`].
    pub fn dma_piece(
        &mut self,
        who: AttachmentId,
        iova: u64,
        length: u64,
        term: &Term,
    ) -> Result<DmaPiece, DmaError> {
        let attachment = self.function.attachments.get_mut(usize::from(who.0)).ok_or(DmaError::Gone)?;
        check_may_start(attachment)?;
        attachment.dma.piece(iova, length, term)
    }

    /// Returns how many mappings a lease or the pieces of `length` bytes of client memory at `iova`
    /// would visit. The call is cheap: a device can refuse a large range before it takes any. See
    /// [`crate::dma::DmaMap::count`].
    ///
    /// # Errors
    /// [`DmaError::Gone`], [`DmaError::NotBusMaster`], and those of [`crate::dma::DmaMap::count`].
    pub fn dma_mappings(&self, who: AttachmentId, iova: u64, length: u64) -> Result<usize, DmaError> {
        let attachment = self.attachment(who).ok_or(DmaError::Gone)?;
        check_may_start(attachment)?;
        attachment.dma.count(iova, length)
    }

    fn attachment(&self, who: AttachmentId) -> Option<&Attachment> {
        self.function.attachments.get(usize::from(who.0))
    }
}

/// The way to a range of client memory: a mapping of this process, or messages.
enum DmaPath {
    Local,
    Remote,
}

/// Checks that the attachment has a client and that its function may start DMA.
fn check_may_start(attachment: &Attachment) -> Result<(), DmaError> {
    if attachment.tenant.is_none() {
        return Err(DmaError::Gone);
    }
    if !attachment.config.bus_master() {
        return Err(DmaError::NotBusMaster);
    }
    Ok(())
}

/// Checks that DMA of `length` bytes at `iova` is allowed, and returns the way to the memory.
fn check_dma(attachment: &Attachment, iova: u64, length: usize, write: bool) -> Result<DmaPath, DmaError> {
    check_may_start(attachment)?;
    if length > MAX_DMA {
        return Err(DmaError::TooLong { length });
    }
    Ok(if attachment.dma.is_local(iova, length, write)? { DmaPath::Local } else { DmaPath::Remote })
}
