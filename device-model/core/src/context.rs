//! What a device can do while it is called.

use std::collections::VecDeque;

use nicforge_shm::SharedMemory;

use crate::{
    attachment::{Attachment, RemoteRead},
    device::{AttachmentId, DmaToken, FunctionId},
    dma::{DmaError, DmaLease, DmaPiece, MAX_DMA, Term},
    fabric::{Fabric, Ports},
    interrupt::Raised,
    spec::FunctionSpec,
    time::Nanos,
    trace::{Event, TraceSink},
};

/// The most DMA reads of an attachment that are under way, by message or waiting to be handed to
/// the device, and the most DMA writes by message that wait for an answer.
pub const MAX_REMOTE: usize = 32;
/// The most DMA reads of a machine that have data waiting to be handed to a device.
const MAX_BUFFERS: usize = 64;

/// A DMA operation on memory that is reached by messages only: who holds the machine sends it to
/// the client and brings the answer back with [`crate::machine::Machine::dma_read_done`] or
/// `dma_write_done`.
#[derive(Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// Read client memory.
    DmaRead {
        /// Names the answer.
        id: u64,
        /// Whose memory.
        function: FunctionId,
        /// Whose memory.
        attachment: AttachmentId,
        /// Where.
        iova: u64,
        /// Bytes, at most [`MAX_DMA`].
        length: usize,
    },
    /// Write client memory.
    DmaWrite {
        /// Names the answer.
        id: u64,
        /// Whose memory.
        function: FunctionId,
        /// Whose memory.
        attachment: AttachmentId,
        /// Where.
        iova: u64,
        /// What, at most [`MAX_DMA`] bytes.
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

/// A DMA read that is over and waits to be handed to its device.
pub(crate) struct Completion {
    pub(crate) who: AttachmentId,
    pub(crate) token: DmaToken,
    pub(crate) result: Result<Filled, DmaError>,
}

/// Data in a pool buffer.
pub(crate) struct Filled {
    pub(crate) buffer: Box<[u8]>,
    pub(crate) length: usize,
}

/// What the functions of a machine share, apart from the fabric.
pub(crate) struct Shared {
    pub(crate) now: Nanos,
    pub(crate) outgoing: VecDeque<Outgoing>,
    pub(crate) next_id: u64,
    pub(crate) trace: Option<Box<dyn TraceSink>>,
    buffers: Vec<Box<[u8]>>,
    buffers_made: usize,
}

impl Shared {
    pub(crate) fn new() -> Self {
        Self {
            now: Nanos::ZERO,
            outgoing: VecDeque::new(),
            next_id: 1,
            trace: None,
            buffers: Vec::new(),
            buffers_made: 0,
        }
    }

    pub(crate) fn trace(&mut self, function: FunctionId, attachment: AttachmentId, event: Event) {
        if let Some(sink) = &mut self.trace {
            sink.event(self.now, function, attachment, event);
        }
    }

    pub(crate) fn buffer(&mut self) -> Option<Box<[u8]>> {
        self.buffers.pop().or_else(|| {
            (self.buffers_made < MAX_BUFFERS).then(|| {
                self.buffers_made += 1;
                vec![0; MAX_DMA].into_boxed_slice()
            })
        })
    }

    /// A buffer with a copy of `data`, from the pool while it lasts: an answer that has come must
    /// not be refused.
    pub(crate) fn buffer_with(&mut self, data: &[u8]) -> Box<[u8]> {
        if data.len() <= MAX_DMA
            && let Some(mut buffer) = self.buffer()
        {
            buffer[..data.len()].copy_from_slice(data);
            return buffer;
        }
        data.into()
    }

    pub(crate) fn give_back(&mut self, buffer: Box<[u8]>) {
        if buffer.len() == MAX_DMA && self.buffers.len() < MAX_BUFFERS {
            self.buffers.push(buffer);
        }
    }

    /// The messages of an attachment that nobody has taken yet.
    pub(crate) fn take_outgoing(&mut self, function: FunctionId, who: AttachmentId) -> Vec<Outgoing> {
        let (taken, left): (VecDeque<_>, _) = std::mem::take(&mut self.outgoing)
            .into_iter()
            .partition(|message| message.owner() == (function, who));
        self.outgoing = left;
        Vec::from(taken)
    }

    /// Forget what `who`, or every attachment of the function, has not sent or not been handed yet.
    pub(crate) fn forget(&mut self, function: &mut FunctionState, who: Option<AttachmentId>) {
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
                self.give_back(filled.buffer);
            }
        }

        for (index, attachment) in function.attachments.iter_mut().enumerate() {
            if who.is_none_or(|who| usize::from(who.0) == index) {
                attachment.waiting_reads = 0;
            }
        }
    }
}

/// A function's part of the machine, apart from its device.
pub(crate) struct FunctionState {
    pub(crate) id: FunctionId,
    pub(crate) name: String,
    pub(crate) spec: FunctionSpec,
    pub(crate) attachments: Vec<Attachment>,
    /// Those that have a client, in the order in which a turn carries out what they have posted.
    pub(crate) clients: Vec<AttachmentId>,
    /// In the last turn a record stalled, and there are several clients: who gets what there is of
    /// it next, the turns say.
    pub(crate) contended: bool,
    pub(crate) completions: VecDeque<Completion>,
    pub(crate) wake_at: Nanos,
}

impl FunctionState {
    /// Find out anew which attachments have a client.
    pub(crate) fn count_clients(&mut self) {
        self.clients.clear();
        let attachments = self.attachments.iter().zip(0..);
        self.clients.extend(
            attachments
                .filter(|(attachment, _)| attachment.tenant.is_some())
                .map(|(_, number)| AttachmentId(number)),
        );
    }

    /// Puts those to whom the most was given of late last, after a turn that gave each at most
    /// `most` records.
    ///
    /// Clients that want the same thing of a device so take turns, whatever it is and however often
    /// there is some of it: who got none comes nearer to the front with each turn, and who got more
    /// than another goes behind it. Nobody has to be there for it: what one does not take the next
    /// one gets.
    #[cold]
    pub(crate) fn reorder_clients(&mut self, most: u32) {
        let Self { attachments, clients, .. } = self;
        for who in &*clients {
            let Some(attachment) = attachments.get_mut(usize::from(who.0)) else { continue };
            let posted = attachment.counters.posted_writes;
            // What a client was given while nobody waited counts as one turn's at most.
            let given = posted.saturating_sub(attachment.looked_at).min(most.into());
            attachment.recent = attachment.recent - attachment.recent.div_ceil(8) + given;
            attachment.looked_at = posted;
        }

        let recent =
            |who: AttachmentId| attachments.get(usize::from(who.0)).map_or(0, |attachment| attachment.recent);

        // Those that are equal stay as they are, and nearly all are in order.
        for next in 1..clients.len() {
            let mut at = next;
            while at > 0 && recent(clients[at - 1]) > recent(clients[at]) {
                clients.swap(at - 1, at);
                at -= 1;
            }
        }
    }

    /// Have the result of a DMA read handed to the device.
    pub(crate) fn complete(&mut self, completion: Completion) {
        if let Some(attachment) = self.attachments.get_mut(usize::from(completion.who.0)) {
            attachment.waiting_reads += 1;
        }
        self.completions.push_back(completion);
    }
}

/// Why a DMA operation could not be started now: the bound on operations under way is reached. Try
/// again in a later step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy;

/// A device's access to its surroundings, for the length of one call.
pub struct Context<'a> {
    pub(crate) function: &'a mut FunctionState,
    pub(crate) shared: &'a mut Shared,
    pub(crate) fabric: &'a mut Fabric,
}

impl Context<'_> {
    /// The time. It does not advance during a call.
    pub fn now(&self) -> Nanos {
        self.shared.now
    }

    /// The function's number in the machine.
    pub fn function(&self) -> FunctionId {
        self.function.id
    }

    /// The function's name in the machine.
    pub fn name(&self) -> &str {
        &self.function.name
    }

    /// Whether a client has the attachment.
    pub fn is_attached(&self, who: AttachmentId) -> bool {
        self.attachment(who).is_some_and(|attachment| attachment.tenant.is_some())
    }

    /// The memory behind a BAR as `who` sees it; `None` while nobody is attached or when the BAR is
    /// all trapped. A device fetches it when a client comes ([`crate::device::Device::attached`])
    /// and makes its windows from it.
    pub fn memory(&self, who: AttachmentId, bar: u8) -> Option<SharedMemory> {
        self.attachment(who)?.memories.get(usize::from(bar))?.clone()
    }

    /// The function's ports to the fabric.
    pub fn ports(&mut self) -> Ports<'_> {
        self.fabric.ports(self.function.id, self.shared.now)
    }

    /// Call [`crate::device::Device::step`] at this time at the latest. A function has one timer:
    /// the earliest wish counts, and when it has come the others are forgotten.
    pub fn wake_at(&mut self, time: Nanos) {
        self.function.wake_at = self.function.wake_at.min(time);
    }

    /// Raise an MSI-X vector of an attachment. It does not overtake the attachment's DMA writes.
    /// Nothing happens while no client has the attachment.
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

    /// Drive an attachment's INTx line: a level, which a reset takes back. Nothing happens while no
    /// client has the attachment.
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

    /// Start reading client memory: at most [`MAX_DMA`] bytes at `iova`. The data, or the error,
    /// comes to [`crate::device::Device::dma_done`] with `token`, after this call of the device has
    /// returned.
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
            self.function.complete(Completion { who, token, result: Err(DmaError::Gone) });
            return Ok(());
        };

        let remote = attachment.tenant.as_ref().map_or(0, |tenant| tenant.remote_reads.len());
        if remote + attachment.waiting_reads >= MAX_REMOTE {
            return Err(Busy);
        }

        let result = match check(attachment, iova, length, false) {
            Ok(Reach::Local) => {
                let mut buffer = self.shared.buffer().ok_or(Busy)?;
                match attachment.dma.read_local(iova, &mut buffer[..length]) {
                    Ok(()) => {
                        attachment.counters.dma_read_bytes += length as u64;
                        Ok(Filled { buffer, length })
                    }
                    Err(error) => {
                        self.shared.give_back(buffer);
                        Err(error)
                    }
                }
            }
            Ok(Reach::Remote) => {
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
            attachment.note(error);
        }

        self.function.complete(Completion { who, token, result });
        self.shared.trace(self.function.id, who, Event::DmaRead { iova, length });

        Ok(())
    }

    /// Write client memory: at most [`MAX_DMA`] bytes at `iova`. Posted: an interrupt raised
    /// afterwards comes behind it. [`DmaError::Busy`] means "try again in a later step", every
    /// other error is final; the device sets its error bit.
    pub fn dma_write(&mut self, who: AttachmentId, iova: u64, data: &[u8]) -> Result<(), DmaError> {
        let attachment = self.function.attachments.get_mut(usize::from(who.0)).ok_or(DmaError::Gone)?;
        let result = match check(attachment, iova, data.len(), true) {
            Ok(Reach::Local) => attachment.dma.write_local(iova, data),
            Ok(Reach::Remote) => {
                let tenant = attachment.tenant.as_mut().ok_or(DmaError::Gone)?;
                // An interrupt waits until no write is under way; with more and more writes it
                // would wait for ever.
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
            Err(error) => attachment.note(error),
        }

        self.shared.trace(self.function.id, who, Event::DmaWrite { iova, length: data.len() });

        result
    }

    /// A lease of client memory: `length` bytes at `iova`, in mappings side by side, to be written
    /// or read. See [`DmaLease`].
    ///
    /// # Errors
    /// [`DmaError::Gone`], [`DmaError::NotBusMaster`], and as [`crate::dma::DmaMap::lease`]: memory
    /// that is reached by messages has none.
    pub fn dma_lease(
        &mut self,
        who: AttachmentId,
        iova: u64,
        length: u64,
        write: bool,
    ) -> Result<DmaLease, DmaError> {
        let attachment = self.function.attachments.get_mut(usize::from(who.0)).ok_or(DmaError::Gone)?;
        may_start(attachment)?;
        attachment.dma.lease(iova, length, write)
    }

    /// As much of `length` bytes of client memory at `iova` as is of one kind: what a device needs
    /// to hold on to a range that may be of several. `term` ends when something of it is unmapped.
    ///
    /// # Errors
    /// [`DmaError::Gone`], [`DmaError::NotBusMaster`], and as [`crate::dma::DmaMap::piece`].
    pub fn dma_piece(
        &mut self,
        who: AttachmentId,
        iova: u64,
        length: u64,
        term: &Term,
    ) -> Result<DmaPiece, DmaError> {
        let attachment = self.function.attachments.get_mut(usize::from(who.0)).ok_or(DmaError::Gone)?;
        may_start(attachment)?;
        attachment.dma.piece(iova, length, term)
    }

    /// How many mappings a lease or the pieces of `length` bytes of client memory at `iova` would
    /// look at: cheap, so that a device can refuse before it takes any. See
    /// [`crate::dma::DmaMap::count`].
    ///
    /// # Errors
    /// [`DmaError::Gone`], [`DmaError::NotBusMaster`], and as [`crate::dma::DmaMap::count`].
    pub fn dma_mappings(&self, who: AttachmentId, iova: u64, length: u64) -> Result<usize, DmaError> {
        let attachment = self.attachment(who).ok_or(DmaError::Gone)?;
        may_start(attachment)?;
        attachment.dma.count(iova, length)
    }

    fn attachment(&self, who: AttachmentId) -> Option<&Attachment> {
        self.function.attachments.get(usize::from(who.0))
    }
}

/// How memory is reached.
enum Reach {
    Local,
    Remote,
}

/// Whether there is a client whose function may start DMA.
fn may_start(attachment: &Attachment) -> Result<(), DmaError> {
    if attachment.tenant.is_none() {
        return Err(DmaError::Gone);
    }
    if !attachment.config.bus_master() {
        return Err(DmaError::NotBusMaster);
    }
    Ok(())
}

fn check(attachment: &Attachment, iova: u64, length: usize, write: bool) -> Result<Reach, DmaError> {
    may_start(attachment)?;
    if length > MAX_DMA {
        return Err(DmaError::TooLong { length });
    }
    Ok(if attachment.dma.is_local(iova, length, write)? { Reach::Local } else { Reach::Remote })
}
