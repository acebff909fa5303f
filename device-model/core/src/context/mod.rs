//! The operations that a device can use during a call.

mod copy;
mod forget;
mod function;
mod shared;

use std::cell::Cell;

use nicforge_shm::SharedMemory;

pub use self::shared::Outgoing;
pub(crate) use self::{
    function::FunctionState,
    shared::{Completion, FilledBuffer, Shared},
};
use crate::{
    attachment::{Attachment, RemoteRead},
    companion::{Companion, CompanionError, CompanionSpec, DeviceEnd},
    dma::{DmaAccess, DmaError, DmaLease, DmaPiece, GuestMemoryView, MAX_DMA, Term},
    fabric::{Fabric, Ports},
    ids::{AttachmentId, DmaToken, FunctionId},
    interrupt::Raised,
    time::Nanos,
    trace::Event,
    warning::Warning,
};

/// Limit for each attachment on DMA reads in flight: those sent as messages, plus those whose
/// result the device has not received. The same limit applies to DMA writes sent as messages and
/// not answered.
pub const MAX_REMOTE: usize = 32;

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
    pub fn is_attached(&self, attachment_id: AttachmentId) -> bool {
        self.attachment(attachment_id).is_some_and(|attachment| attachment.tenant.is_some())
    }

    /// Returns the memory behind a BAR as `attachment_id` sees it, or `None` while no client is
    /// attached or when every access to the BAR traps.
    ///
    /// A device calls this when a client comes ([`crate::device::Device::attached`]) and makes its
    /// windows from the result.
    pub fn memory(&self, attachment_id: AttachmentId, bar: u8) -> Option<SharedMemory> {
        self.attachment(attachment_id)?.memory(bar).cloned()
    }

    /// Returns the function's ports to the fabric.
    pub fn ports(&mut self) -> Ports<'_> {
        self.fabric.ports(self.function.id, self.shared.now)
    }

    /// Logs and traces that the device has set an error bit, dropped a packet, or refused an
    /// access. `from` is the attachment that caused it or suffers it, or `None` if that is not
    /// known.
    ///
    /// The number of lines is limited: see [`crate::warning`].
    #[cold]
    pub fn warn(&mut self, from: impl Into<Option<AttachmentId>>, warning: Warning<'_>) {
        let from = from.into();
        if let Some(sink) = &mut self.shared.trace {
            sink.event(self.shared.now, self.function.id, from, &Event::Warning(warning));
        }
        self.function.warn(self.shared.now, from, warning);
    }

    /// Counts warnings that the device has not passed to [`Context::warn`], because they were too
    /// many for the log.
    pub fn suppress_warnings(&mut self, count: u64) {
        self.function.warnings.suppress(count);
    }

    /// Requests a call of [`crate::device::Device::step`] at `time` at the latest.
    ///
    /// A function has one timer, and the earliest request counts. When it fires, all later requests
    /// are forgotten.
    pub fn wake_at(&mut self, time: Nanos) {
        self.function.wake_at = self.function.wake_at.min(time);
    }

    /// Returns whether the attachment's client gets interrupts by MSI-X vectors, and not by the
    /// INTx line: it has enabled MSI-X in configuration space, or has bound vectors and no line.
    ///
    /// A device with registers that depend on this asks before it interrupts.
    pub fn uses_msix(&self, attachment_id: AttachmentId) -> bool {
        self.attachment(attachment_id).is_some_and(Attachment::uses_msix)
    }

    /// Adds an event of the device's own to the trace, if there is one: a descriptor that it has
    /// fetched, a packet that it drops. `attachment_id` is `None` for what concerns the whole
    /// function. `name` is of lower-case words joined by spaces.
    #[inline]
    pub fn trace(
        &mut self,
        attachment_id: Option<AttachmentId>,
        name: &'static str,
        values: &[(&'static str, u64)],
    ) {
        if let Some(sink) = &mut self.shared.trace {
            sink.event(self.shared.now, self.function.id, attachment_id, &Event::Device { name, values });
        }
    }

    /// Passes the packets that the device has put on tapped links to the trace, if there is one.
    #[inline]
    pub(crate) fn trace_packets(&mut self) {
        if let Some(sink) = &mut self.shared.trace {
            let (now, function) = (self.shared.now, self.function.id);
            self.fabric.take_tapped(|crossing| sink.event(now, function, None, &Event::Packet(crossing)));
        }
    }

    /// Raises an MSI-X vector of an attachment. The interrupt does not overtake the attachment's
    /// earlier DMA writes. Without a client it has no effect.
    pub fn interrupt(&mut self, attachment_id: AttachmentId, vector: u16) {
        let Some(attachment) = self.function.attachments.get_mut(usize::from(attachment_id.0)) else {
            return;
        };
        if attachment.tenant.is_none() {
            return;
        }

        self.function.has_touched_clients = true;
        attachment.counters.interrupts += 1;
        let raised = attachment.interrupts.raise_msix(vector);
        if raised == Raised::Pending
            && let Some(msix) = &mut attachment.msix
        {
            msix.set_pending(vector);
        }

        self.shared.trace(self.function.id, attachment_id, Event::Interrupt { vector, raised });
    }

    /// Sets the level of an attachment's INTx line. A reset deasserts it. Without a client it has
    /// no effect. A function whose description has no INTx pin has no line either: the call has no
    /// effect, and asserting the line is logged.
    pub fn set_intx(&mut self, attachment_id: AttachmentId, asserted: bool) {
        if !self.function.spec.intx {
            if asserted {
                let rule = &"a device that calls set_intx has an INTx pin: set `intx` in its FunctionSpec";
                self.warn(attachment_id, Warning::refused(rule));
            }
            return;
        }
        let Some(attachment) = self.function.attachments.get_mut(usize::from(attachment_id.0)) else {
            return;
        };
        if attachment.tenant.is_none() {
            return;
        }

        let rises = asserted && !attachment.intx;
        attachment.counters.interrupts += u64::from(rises);
        let has_changed = asserted != attachment.intx;
        attachment.intx = asserted;
        attachment.config.set_interrupt_status(asserted);
        attachment.drive_intx();
        if has_changed {
            self.shared.trace(self.function.id, attachment_id, Event::Intx { asserted });
        }
    }

    /// Starts a read of at most [`MAX_DMA`] bytes of client memory at `iova`.
    ///
    /// [`crate::device::Device::dma_done`] receives the data or the error with `token`, after the
    /// call of the device in which the read starts. [`Context::forget_reads`] prevents the call of
    /// `dma_done`. Where the memory is mapped, [`Context::copy_from`] returns the data at once.
    ///
    /// The data are those of mapped memory at the time of this call, and those of other memory at
    /// the time of the client's reply. A doorbell that comes before the delivery may announce data
    /// that the read has missed: a device must note it, and read once more.
    ///
    /// # Errors
    /// [`DmaError::Busy`] when [`MAX_REMOTE`] reads of the attachment are in flight, or no buffer
    /// is free. The device should retry in a later step. `dma_done` receives all other errors.
    pub fn dma_read(
        &mut self,
        attachment_id: AttachmentId,
        iova: u64,
        length: usize,
        token: DmaToken,
    ) -> Result<(), DmaError> {
        let Some(attachment) = self.function.attachments.get_mut(usize::from(attachment_id.0)) else {
            if self.function.completions.len() >= MAX_REMOTE {
                return Err(DmaError::Busy);
            }
            self.function.queue_result(Completion { attachment_id, token, result: Err(DmaError::Gone) });
            return Ok(());
        };

        let sent_reads = attachment.tenant.as_ref().map_or(0, |tenant| tenant.remote_reads.len());
        if sent_reads + attachment.waiting_reads >= MAX_REMOTE {
            return Err(DmaError::Busy);
        }

        let result = match check_dma(attachment, iova, length, DmaAccess::Read) {
            Ok(DmaPath::Local) => {
                let mut buffer = self.shared.take_buffer().ok_or(DmaError::Busy)?;
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
                let Some(tenant) = attachment.tenant.as_mut() else { return Err(DmaError::Busy) };
                let id = self.shared.next_id;
                self.shared.next_id += 1;
                tenant.remote_reads.push(RemoteRead { id, token: Some(token), length });
                let function = self.function.id;
                let message = Outgoing::DmaRead { id, function, attachment: attachment_id, iova, length };
                self.shared.outgoing.push_back(message);
                let event = Event::DmaRead { iova, length, outcome: Ok(&[]) };
                self.shared.trace(function, attachment_id, event);
                return Ok(());
            }
            Err(error) => Err(error),
        };

        if let Err(error) = &result {
            self.function.record_dma_error(self.shared.now, attachment_id, error);
        }

        let outcome = result.as_ref().map(|filled| &filled.buffer[..filled.length]).map_err(|&error| error);
        self.shared.trace(self.function.id, attachment_id, Event::DmaRead { iova, length, outcome });
        self.function.queue_result(Completion { attachment_id, token, result });

        Ok(())
    }

    /// Writes at most [`MAX_DMA`] bytes to client memory at `iova`. The write is posted: an
    /// interrupt raised later does not overtake it, and neither does a later write.
    ///
    /// A client that sees a byte of a write with an acquire load also sees the attachment's earlier
    /// writes. An aligned word of 1, 2, 4 or 8 bytes is stored in one piece where the memory is
    /// mapped. A device therefore writes data first, and the word that hands them over in a write
    /// of its own.
    ///
    /// # Errors
    /// [`DmaError::Busy`] when the device should retry in a later step. A write to mapped memory is
    /// also busy while an earlier write by message has no reply. Every other error is final, and
    /// the device should set its error bit.
    pub fn dma_write(&mut self, attachment_id: AttachmentId, iova: u64, data: &[u8]) -> Result<(), DmaError> {
        self.function.has_touched_clients = true;
        let attachment =
            self.function.attachments.get_mut(usize::from(attachment_id.0)).ok_or(DmaError::Gone)?;
        let result = match check_dma(attachment, iova, data.len(), DmaAccess::Write) {
            Ok(DmaPath::Local) if has_writes_in_flight(attachment) => return Err(DmaError::Busy),
            Ok(DmaPath::Local) => {
                self.shared.touched += data.len();
                attachment.dma.write_local(iova, data)
            }
            Ok(DmaPath::Remote) => {
                let tenant = attachment.tenant.as_mut().ok_or(DmaError::Gone)?;
                // A held interrupt is delivered once no write is in flight. New writes would
                // delay it without end.
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
                    attachment: attachment_id,
                    iova,
                    data: data.to_vec(),
                });

                Ok(())
            }
            Err(error) => Err(error),
        };

        match &result {
            Ok(()) => attachment.counters.dma_written_bytes += data.len() as u64,
            Err(error) => self.function.record_dma_error(self.shared.now, attachment_id, error),
        }

        self.shared.trace(self.function.id, attachment_id, Event::DmaWrite { iova, data, outcome: result });

        result
    }

    /// Returns whether writes by message to a client have no reply yet. A write through a lease
    /// overtakes them, so a device must not hand over by one what it has written by message.
    #[must_use]
    pub fn has_writes_in_flight(&self, attachment_id: AttachmentId) -> bool {
        self.attachment(attachment_id).is_some_and(has_writes_in_flight)
    }

    /// Returns whether the function's clients sleep in this step, so that the machine drains none
    /// of their rings. It is always false unless [`Device::lets_clients_sleep`] returns true.
    ///
    /// A client that stores to its mapped memory wakes the function by a trapped write, which may
    /// come much later than a packet that another client has sent after the store. Before the
    /// device handles a packet, a timer or another event that concerns its own node, it must
    /// therefore look at the mapped memory of its clients. It need not do so to pass packets on.
    ///
    /// [`Device::lets_clients_sleep`]: crate::device::Device::lets_clients_sleep
    #[inline]
    #[must_use]
    pub fn clients_sleep(&self) -> bool {
        self.function.clients_sleep
    }

    /// Records that the device has only passed packets on to other functions in this step. If the
    /// function's clients sleep, they sleep on: the step has changed nothing that they look at.
    #[inline]
    pub fn note_transit(&mut self) {
        self.function.is_transit = true;
    }

    /// Records that the device has changed something that its clients look at, by other means than
    /// this context: a mirror, or memory that it has leased. A client that waits is then woken. A
    /// step that returns [`Progress::Busy`](crate::progress::Progress::Busy) needs no such record.
    #[inline]
    pub fn note_change(&mut self) {
        self.function.has_touched_clients = true;
    }

    /// Returns the number of writes by message to a client that have no reply yet.
    #[must_use]
    pub fn count_writes_in_flight(&self, attachment_id: AttachmentId) -> usize {
        let tenant = self.attachment(attachment_id).and_then(|attachment| attachment.tenant.as_ref());
        tenant.map_or(0, |tenant| tenant.remote_writes.len())
    }

    /// Leases `length` bytes of client memory at `iova`, for reading or for writing. They may lie
    /// in several adjacent mappings. [`DmaLease`] states what a lease permits.
    ///
    /// # Errors
    /// [`DmaError::Gone`], [`DmaError::NotBusMaster`], and those of [`crate::dma::DmaMap::lease`].
    /// Memory without a mapped file, which only DMA messages to the client reach, can't be leased.
    pub fn dma_lease(
        &mut self,
        attachment_id: AttachmentId,
        iova: u64,
        length: u64,
        access: DmaAccess,
    ) -> Result<DmaLease, DmaError> {
        let attachment =
            self.function.attachments.get_mut(usize::from(attachment_id.0)).ok_or(DmaError::Gone)?;
        check_may_dma(attachment)?;
        attachment.dma.lease(iova, length, access)
    }

    /// Returns the longest prefix of `length` bytes of client memory at `iova` that is of one kind:
    /// either mapped with one permission, or reached by messages only. A device uses it to hold a
    /// range whose parts may be of several kinds. Unmapping any part of the prefix ends `term`.
    ///
    /// # Errors
    /// [`DmaError::Gone`], [`DmaError::NotBusMaster`], and those of [`crate::dma::DmaMap::piece`].
    pub fn dma_piece(
        &mut self,
        attachment_id: AttachmentId,
        iova: u64,
        length: u64,
        term: &Term,
    ) -> Result<DmaPiece, DmaError> {
        let attachment =
            self.function.attachments.get_mut(usize::from(attachment_id.0)).ok_or(DmaError::Gone)?;
        check_may_dma(attachment)?;
        attachment.dma.piece(iova, length, term)
    }

    /// Returns how many mappings a lease or the pieces of `length` bytes of client memory at `iova`
    /// would visit. The call is cheap: a device can refuse a large range before it takes any. See
    /// [`crate::dma::DmaMap::count_mappings`].
    ///
    /// # Errors
    /// [`DmaError::Gone`], [`DmaError::NotBusMaster`], and those of
    /// [`crate::dma::DmaMap::count_mappings`].
    pub fn count_dma_mappings(
        &self,
        attachment_id: AttachmentId,
        iova: u64,
        length: u64,
    ) -> Result<usize, DmaError> {
        let attachment = self.attachment(attachment_id).ok_or(DmaError::Gone)?;
        check_may_dma(attachment)?;
        attachment.dma.count_mappings(iova, length)
    }

    /// Returns the memory of a client for synchronous access within this call, as crates on
    /// `vm-memory` take it. Data of several calls needs a lease or a buffer of the device.
    ///
    /// Memory that only messages reach is refused at the access ([`DmaError::Remote`]).
    ///
    /// # Errors
    /// [`DmaError::Gone`], [`DmaError::NotBusMaster`].
    pub fn guest_memory(&mut self, attachment_id: AttachmentId) -> Result<GuestMemoryView<'_>, DmaError> {
        Ok(self.guest_memory_and_ports(attachment_id)?.0)
    }

    /// Returns the memory of a client as [`Context::guest_memory`] does, and the function's ports,
    /// for a device that moves packets between the two.
    ///
    /// # Errors
    /// Those of [`Context::guest_memory`].
    pub fn guest_memory_and_ports(
        &mut self,
        attachment_id: AttachmentId,
    ) -> Result<(GuestMemoryView<'_>, Ports<'_>), DmaError> {
        let (function, now) = (self.function.id, self.shared.now);
        let attachment =
            self.function.attachments.get_mut(usize::from(attachment_id.0)).ok_or(DmaError::Gone)?;
        check_may_dma(attachment)?;

        let write_in_flight = has_writes_in_flight(attachment);
        let counters = &mut attachment.counters;
        let memory = GuestMemoryView::new(
            &attachment.dma,
            Cell::from_mut(&mut self.shared.touched),
            Cell::from_mut(&mut counters.dma_read_bytes),
            Cell::from_mut(&mut counters.dma_written_bytes),
            write_in_flight,
        );

        Ok((memory, self.fabric.ports(function, now)))
    }

    /// Counts an error of [`GuestMemoryView`], sets the status bits that belong to it, and logs it.
    /// All other DMA operations do so themselves.
    pub fn count_dma_error(&mut self, attachment_id: AttachmentId, error: &DmaError) {
        self.function.record_dma_error(self.shared.now, attachment_id, error);
    }

    /// Begins a new incarnation of a companion, and returns the device's end of its FIFOs. The
    /// earlier incarnation of the same name ends.
    ///
    /// A device starts a companion when it first needs it, and again when it is reset.
    ///
    /// # Errors
    /// [`CompanionError`]. The earlier incarnation has ended in every case.
    pub fn start_companion<C: Companion>(
        &mut self,
        spec: CompanionSpec,
        body: C,
    ) -> Result<DeviceEnd<C::Command, C::Event>, CompanionError> {
        self.shared.companions.start(self.function.id, spec, body)
    }

    /// Returns the state of an attachment, or `None` if the function has no such attachment.
    fn attachment(&self, attachment_id: AttachmentId) -> Option<&Attachment> {
        self.function.attachments.get(usize::from(attachment_id.0))
    }
}

/// The path to a range of client memory.
enum DmaPath {
    /// All of the range is mapped into this process.
    Local,
    /// A part of the range has no mapped file, so messages ask the client for the data.
    Remote,
}

/// Checks that the attachment has a client and that its function may start DMA.
fn check_may_dma(attachment: &Attachment) -> Result<(), DmaError> {
    if attachment.tenant.is_none() {
        return Err(DmaError::Gone);
    }
    if !attachment.config.bus_master() {
        return Err(DmaError::NotBusMaster);
    }
    Ok(())
}

/// Returns whether the client has not replied to all writes by message. A write to mapped memory
/// would overtake them.
fn has_writes_in_flight(attachment: &Attachment) -> bool {
    attachment.tenant.as_ref().is_some_and(|tenant| !tenant.remote_writes.is_empty())
}

/// Checks that DMA of `length` bytes at `iova` is allowed, and returns the path to the memory.
fn check_dma(
    attachment: &Attachment,
    iova: u64,
    length: usize,
    access: DmaAccess,
) -> Result<DmaPath, DmaError> {
    check_may_dma(attachment)?;
    if length > MAX_DMA {
        return Err(DmaError::TooLong { length });
    }
    Ok(if attachment.dma.is_local(iova, length, access)? { DmaPath::Local } else { DmaPath::Remote })
}
