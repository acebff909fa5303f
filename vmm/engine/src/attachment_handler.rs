//! Carries the requests of an attachment's client out on the machine.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use nicforge_core::{
    dma::{DmaBacking, DmaPermission},
    interrupt::{INDICES, INTX, InterruptSink},
    machine::{Access, AccessError, Machine, region},
};
use nicforge_hwi::attachment;
use nicforge_vfio_user::{
    DEVICE_FLAGS_PCI, DEVICE_FLAGS_RESET, DMA_FLAG_READ, DMA_FLAG_WRITE, DeviceInfo, DmaMap, DmaUnmap, Errno,
    Handler, IrqAction, IrqData, IrqInfo, Outcome, PeerFd, REGION_FLAG_MMAP, REGION_FLAG_READ,
    REGION_FLAG_WRITE, RegionInfo, SetIrqs, SparseArea, Token,
};

use crate::{
    client_state::{AccessKind, ClientState, DeferredAccess, PendingMap, READ_PIECE, WaitsFor},
    closer::CloseQueue,
    errno,
    mapper::{MapRequest, Mapper},
    memory::{Backing, FileId, Unmappable},
    sink::{self, EventFdSink, EventFds},
    stats::ServerCounters,
    waiting,
    watched::ClientKey,
};

/// The machine as one client sees it, during one call of its connection.
pub(crate) struct AttachmentHandler<'a> {
    pub(crate) machine: &'a mut Machine,
    pub(crate) client: &'a mut ClientState,
    pub(crate) mapper: &'a Mapper,
    pub(crate) close_queue: &'a Arc<CloseQueue>,
    pub(crate) eventfds: &'a Arc<EventFds>,
    pub(crate) counters: &'a mut ServerCounters,
    pub(crate) key: ClientKey,
    pub(crate) stall_limit: Duration,
}

impl AttachmentHandler<'_> {
    /// Turns the machine's answer to an access into the outcome of the client's request. An access
    /// that stalls is deferred.
    fn finish_access(
        &mut self,
        outcome: Result<Access, AccessError>,
        region: u32,
        offset: u64,
        kind: impl FnOnce() -> AccessKind,
    ) -> Outcome {
        match outcome {
            Ok(Access::Done | Access::BusMasteringLost) => Outcome::Done,
            Ok(Access::Stalled) => {
                self.counters.stalled += 1;
                self.defer_access(region, offset, kind(), WaitsFor::Device)
            }
            Err(error) => {
                tracing::debug!(%error, "an access was refused");
                Outcome::Failed(errno::of_access(&error))
            }
        }
    }

    /// Defers an access, which the engine offers to the device again in each round, for at most the
    /// stall limit.
    fn defer_access(&mut self, region: u32, offset: u64, kind: AccessKind, waits_for: WaitsFor) -> Outcome {
        let token = self.client.next_token();
        let deadline = Instant::now() + self.stall_limit;
        self.client.deferred = Some(DeferredAccess {
            token,
            region,
            offset,
            kind,
            done: 0,
            waits_for,
            reset_waits: false,
            deadline,
        });
        Outcome::Deferred(token)
    }

    /// Defers a read of more than [`READ_PIECE`] bytes, of which one piece is read in each round.
    fn defer_long_read(&mut self, index: u32, offset: u64, length: usize) -> Outcome {
        // A read that fails must have no effect, so its whole range is checked before the first
        // piece is read.
        match self.machine.region(self.client.function, self.client.attachment, index) {
            Ok(view) if offset.checked_add(length as u64).is_some_and(|end| end <= view.size) => {
                self.defer_access(index, offset, AccessKind::Read(length), WaitsFor::NextRound)
            }
            Ok(_) => Outcome::Failed(Errno::EINVAL),
            Err(error) => Outcome::Failed(errno::of_machine(&error)),
        }
    }

    /// Binds eventfds to the interrupts from `start` on.
    fn bind_eventfds(&mut self, index: u32, start: u32, fds: Vec<Option<PeerFd>>) -> Result<(), Errno> {
        let mut sinks = Vec::with_capacity(fds.len());
        for fd in fds {
            sinks.push(
                fd.map(|fd| EventFdSink::bind(fd, &self.client.eventfd_owner, self.eventfds)).transpose()?,
            );
        }

        let sinks = sinks.into_iter().map(|sink| sink.map(|sink| sink as Arc<dyn InterruptSink>)).collect();
        let (function, attachment) = (self.client.function, self.client.attachment);

        self.machine
            .bind_interrupts(function, attachment, index, start, sinks)
            .map_err(|error| errno::of_machine(&error))
    }

    /// Binds or unbinds the eventfd that wakes the client when it waits for the device.
    fn set_waiting_irq(&mut self, action: IrqAction, data: IrqData) -> Result<(), Errno> {
        let fds = match (action, data) {
            (IrqAction::Trigger, IrqData::EventFd(fds)) => fds,
            (IrqAction::Disable, _) => Vec::new(),
            _ => return Err(Errno::EINVAL),
        };

        let owner = (self.client.function, self.client.attachment);
        let eventfd_owner = &self.client.eventfd_owner;
        self.client.waiting.bind(self.machine, owner, fds, eventfd_owner, self.eventfds)
    }

    /// Counts a client whose memory cannot be mapped. Of these clients of an attachment the first,
    /// second, fourth, eighth and so on are logged, so that a client that reconnects repeatedly
    /// does not fill the log.
    fn count_unmappable_client(&mut self, reason: Unmappable) {
        self.counters.unmappable += 1;
        if !self.counters.unmappable.is_power_of_two() {
            return;
        }

        let (function, attachment) = (self.client.function, self.client.attachment);
        let attachment_spec =
            self.machine.spec(function).and_then(|spec| spec.attachments.get(usize::from(attachment.0)));

        tracing::warn!(
            function = self.machine.name(function).unwrap_or_default(),
            attachment = attachment_spec.map(|spec| spec.name.as_str()).unwrap_or_default(),
            clients = self.counters.unmappable,
            %reason,
            "a client's DMA file is not mapped: its memory is accessed by DMA messages, which is slow, and \
             which some clients do not answer",
        );
    }

    /// Sets the eventfd by which the client unmasks INTx, the only interrupt that can be masked.
    /// A list without a descriptor removes it.
    fn bind_unmask_eventfd(&mut self, index: u32, fds: Vec<Option<PeerFd>>) -> Result<(), Errno> {
        if index != INTX {
            return Err(Errno::EINVAL);
        }

        let fd = fds.into_iter().next().flatten();
        fd.as_ref().map_or(Ok(()), sink::check_eventfd)?;
        self.client.new_unmask = Some(fd);
        Ok(())
    }
}

impl Handler for AttachmentHandler<'_> {
    fn device_info(&mut self) -> DeviceInfo {
        // The waiting page and its interrupt follow those of PCI.
        let is_woken = waiting::is_offered(self.machine, self.client.function);
        DeviceInfo {
            flags: DEVICE_FLAGS_PCI | DEVICE_FLAGS_RESET,
            num_regions: region::COUNT + u32::from(is_woken),
            num_irqs: INDICES + u32::from(is_woken),
        }
    }

    fn region_info(&mut self, index: u32) -> Result<RegionInfo, Errno> {
        if index == attachment::waiting::REGION && waiting::is_offered(self.machine, self.client.function) {
            return self.client.waiting.region_info();
        }
        if index >= region::COUNT {
            return Err(Errno::EINVAL);
        }

        let view = self
            .machine
            .region(self.client.function, self.client.attachment, index)
            .map_err(|error| errno::of_machine(&error))?;

        let mut info = RegionInfo { size: view.size, ..RegionInfo::default() };
        for (flag, set) in [(REGION_FLAG_READ, view.readable), (REGION_FLAG_WRITE, view.writable)] {
            if set {
                info.flags |= flag;
            }
        }

        if let Some(fd) = view.memory.as_ref().and_then(|memory| memory.fd()) {
            info.flags |= REGION_FLAG_MMAP;
            info.areas =
                view.areas.iter().map(|area| SparseArea { offset: area.offset, size: area.length }).collect();
            info.fd = Some(fd.try_clone_to_owned()?);
        }
        Ok(info)
    }

    fn irq_info(&mut self, index: u32) -> Result<IrqInfo, Errno> {
        if index == attachment::waiting::IRQ && waiting::is_offered(self.machine, self.client.function) {
            return Ok(waiting::irq_info());
        }
        let info = self
            .machine
            .irq_info(self.client.function, self.client.attachment, index)
            .ok_or(Errno::EINVAL)?;
        Ok(IrqInfo { flags: info.flags, count: info.count })
    }

    fn region_read(&mut self, index: u32, offset: u64, data: &mut [u8]) -> Outcome {
        if data.len() > READ_PIECE {
            return self.defer_long_read(index, offset, data.len());
        }
        let outcome = self.machine.read(self.client.function, self.client.attachment, index, offset, data);
        self.finish_access(outcome, index, offset, || AccessKind::Read(data.len()))
    }

    fn region_write(&mut self, index: u32, offset: u64, data: &[u8]) -> Outcome {
        let outcome = self.machine.write(self.client.function, self.client.attachment, index, offset, data);
        if matches!(outcome, Ok(Access::BusMasteringLost)) {
            self.client.cancel_dma(self.machine);
        }
        self.finish_access(outcome, index, offset, || AccessKind::Write(data.to_vec()))
    }

    fn dma_map(&mut self, map: DmaMap, fd: Option<PeerFd>) -> Outcome {
        self.close_queue.drop_memory(self.client.memory.sweep());

        match self.client.memory.prepare(&map, fd) {
            Ok(Backing::Remote) => {
                map_range(self.machine, self.client, &map, None, DmaBacking::Remote).into()
            }
            Ok(Backing::Unmappable { reason, is_first }) => {
                if is_first {
                    self.count_unmappable_client(reason);
                }
                map_range(self.machine, self.client, &map, None, DmaBacking::Remote).into()
            }
            Ok(Backing::Ready(file, window)) => {
                map_range(self.machine, self.client, &map, Some(file), DmaBacking::Memory(window)).into()
            }
            Ok(Backing::NotMapped(file, source)) => {
                let token = self.client.next_token();
                self.client.pending_map = Some(PendingMap { token, map, source });
                let request = MapRequest {
                    client: self.key,
                    file,
                    backlog: self.close_queue.add_mapping_in_progress(),
                };

                if self.mapper.map(request) {
                    Outcome::Deferred(token)
                } else {
                    self.client.pending_map = None;
                    Outcome::Failed(Errno::ENOMEM)
                }
            }
            Err(errno) => Outcome::Failed(errno),
        }
    }

    fn dma_unmap(&mut self, unmap: DmaUnmap) -> Outcome {
        let (function, attachment) = (self.client.function, self.client.attachment);
        let result = match unmap {
            DmaUnmap::All => self.machine.dma_unmap_all(function, attachment),
            DmaUnmap::Range { address, size } => self.machine.dma_unmap(function, attachment, address, size),
        };
        if let Err(error) = result {
            return Outcome::Failed(errno::of_machine(&error));
        }

        self.client.fail_unsent_in(self.machine, &unmap);
        self.client.memory.remove(&unmap);
        self.close_queue.drop_memory(self.client.memory.sweep());
        Outcome::Done
    }

    fn set_irqs(&mut self, irqs: SetIrqs) -> Result<(), Errno> {
        let SetIrqs { index, start, count, action, data } = irqs;
        if index == attachment::waiting::IRQ {
            return self.set_waiting_irq(action, data);
        }
        let data = match (action, data) {
            (IrqAction::Trigger, IrqData::EventFd(fds)) => return self.bind_eventfds(index, start, fds),
            (IrqAction::Unmask, IrqData::EventFd(fds)) => return self.bind_unmask_eventfd(index, fds),
            (_, data) => data,
        };

        if action == IrqAction::Disable && index == INTX {
            self.client.new_unmask = Some(None);
        }

        let interrupts = self
            .machine
            .interrupts(self.client.function, self.client.attachment)
            .map_err(|error| errno::of_machine(&error))?;
        match (action, data) {
            (IrqAction::Disable, _) => interrupts.disable(index),
            (IrqAction::Trigger, IrqData::None) => interrupts.trigger(index, start, count),
            (IrqAction::Trigger, IrqData::Bool(each)) => interrupts.trigger(index, start, each.as_slice()),
            (IrqAction::Mask, IrqData::None) => interrupts.mask(index, start, count),
            (IrqAction::Mask, IrqData::Bool(each)) => interrupts.mask(index, start, each.as_slice()),
            (IrqAction::Unmask, IrqData::None) => interrupts.unmask(index, start, count),
            (IrqAction::Unmask, IrqData::Bool(each)) => interrupts.unmask(index, start, each.as_slice()),
            // An eventfd that reports masking is not supported; VFIO's own drivers do not offer it
            // either.
            (_, IrqData::EventFd(_)) => return Err(Errno::ENOTSUP),
        }
        .map_err(|_| Errno::EINVAL)
    }

    fn reset(&mut self) -> Outcome {
        let result = self.machine.reset_attachment(self.client.function, self.client.attachment);
        self.client.cancel_dma(self.machine);
        result.map_err(|error| errno::of_machine(&error)).into()
    }

    fn reset_pending(&mut self, token: Token) -> Option<Errno> {
        // The reset waits for a read in pieces, which ends by itself unless the device stalls a
        // piece. An access that the device stalls might never end, so it is cancelled.
        let is_cancelled = self.client.end_access_for_reset(self.machine, token);
        is_cancelled.then_some(Errno::ECANCELED)
    }

    fn dma_read_done(&mut self, token: Token, result: Result<&[u8], Errno>) {
        self.client.remove_answered(token);
        let (function, attachment) = (self.client.function, self.client.attachment);
        if let Err(error) =
            self.machine.dma_read_done(function, attachment, token, result.map_err(errno::refused))
        {
            tracing::debug!(%error, "a DMA answer came that the device does not wait for");
        }
    }

    fn dma_write_done(&mut self, token: Token, result: Result<(), Errno>) {
        self.client.remove_answered(token);
        let (function, attachment) = (self.client.function, self.client.attachment);
        if let Err(error) =
            self.machine.dma_write_done(function, attachment, token, result.map_err(errno::refused))
        {
            tracing::debug!(%error, "a DMA answer came that the device does not wait for");
        }
    }
}

/// Adds a range to the DMA map of the attachment, and records which file of the client it uses.
pub(crate) fn map_range(
    machine: &mut Machine,
    client: &mut ClientState,
    map: &DmaMap,
    file: Option<FileId>,
    backing: DmaBacking,
) -> Result<(), Errno> {
    let permission =
        DmaPermission { read: map.flags & DMA_FLAG_READ != 0, write: map.flags & DMA_FLAG_WRITE != 0 };

    machine
        .dma_map(client.function, client.attachment, map.address, map.size, permission, backing)
        .map_err(|error| errno::of_machine(&error))?;

    client.memory.insert(map, file);
    Ok(())
}
