//! Carries a client's requests out on the machine.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use nicforge_core::{
    dma::{DmaBacking, DmaPermission},
    interrupt::{INDICES, INTX, InterruptSink},
    machine::{Access, AccessError, Machine, region},
};
use nicforge_vfio_user::{
    DEVICE_FLAGS_PCI, DEVICE_FLAGS_RESET, DMA_FLAG_READ, DMA_FLAG_WRITE, DeviceInfo, DmaMap, DmaUnmap, Errno,
    Handler, IrqAction, IrqData, IrqInfo, Outcome, PeerFd, REGION_FLAG_MMAP, REGION_FLAG_READ,
    REGION_FLAG_WRITE, RegionInfo, SetIrqs, SparseArea, Token,
};

use crate::{
    closer::CloseQueue,
    errno,
    helper::{Helper, MapRequest},
    memory::Backing,
    session::{PendingMap, READ_PIECE, Session, Stalled, StalledKind},
    sink::{self, EventFdSink, Signals},
    stats::ServerCounters,
};

/// The machine as one client sees it, during one call of its connection.
pub(crate) struct Glue<'a> {
    pub(crate) machine: &'a mut Machine,
    pub(crate) session: &'a mut Session,
    pub(crate) helper: &'a Helper,
    pub(crate) closing: &'a Arc<CloseQueue>,
    pub(crate) signals: &'a Arc<Signals>,
    pub(crate) counters: &'a mut ServerCounters,
    /// Identifies the client to the helper, with `generation`.
    pub(crate) port: usize,
    pub(crate) generation: u32,
    pub(crate) stall_limit: Duration,
}

impl Glue<'_> {
    fn access(
        &mut self,
        outcome: Result<Access, AccessError>,
        region: u32,
        offset: u64,
        kind: impl FnOnce() -> StalledKind,
    ) -> Outcome {
        match outcome {
            Ok(Access::Done | Access::BusMasteringLost) => Outcome::Done,
            Ok(Access::Stalled) => {
                self.counters.stalled += 1;
                self.wait(region, offset, kind(), true)
            }
            Err(error) => {
                tracing::debug!(%error, "an access was refused");
                Outcome::Failed(errno::of_access(&error))
            }
        }
    }

    /// Defers an access, which is offered to the device once in each turn.
    fn wait(&mut self, region: u32, offset: u64, kind: StalledKind, refused: bool) -> Outcome {
        let token = self.session.token();
        let until = Instant::now() + self.stall_limit;
        self.session.stalled = Some(Stalled { token, region, offset, kind, done: 0, refused, until });
        Outcome::Deferred(token)
    }

    /// Reads more than one piece, in as many turns as there are pieces.
    fn long_read(&mut self, index: u32, offset: u64, length: usize) -> Outcome {
        // A refused access has no effect, so the whole range is checked first.
        match self.machine.region(self.session.function, self.session.who, index) {
            Ok(view) if offset.checked_add(length as u64).is_some_and(|end| end <= view.size) => {
                self.wait(index, offset, StalledKind::Read(length), false)
            }
            Ok(_) => Outcome::Failed(Errno::EINVAL),
            Err(error) => Outcome::Failed(errno::of_machine(&error)),
        }
    }

    fn bind(&mut self, index: u32, start: u32, fds: Vec<Option<PeerFd>>) -> Result<(), Errno> {
        let mut sinks = Vec::with_capacity(fds.len());
        for fd in fds {
            sinks.push(fd.map(|fd| EventFdSink::bind(fd, &self.session.eventfds, self.signals)).transpose()?);
        }

        let sinks = sinks.into_iter().map(|sink| sink.map(|sink| sink as Arc<dyn InterruptSink>)).collect();
        let (function, who) = (self.session.function, self.session.who);

        self.machine
            .bind_interrupts(function, who, index, start, sinks)
            .map_err(|error| errno::of_machine(&error))
    }

    /// Counts a client whose memory cannot be mapped. It logs the first, second, fourth and so on
    /// of this attachment, so that a client that reconnects again and again does not fill the log.
    fn report_unmappable(&mut self) {
        self.counters.unmappable += 1;
        if !self.counters.unmappable.is_power_of_two() {
            return;
        }

        let (function, who) = (self.session.function, self.session.who);
        let name = self.machine.spec(function).and_then(|spec| spec.attachments.get(usize::from(who.0)));

        tracing::warn!(
            function = self.machine.name(function).unwrap_or_default(),
            attachment = name.map(|attachment| attachment.name.as_str()).unwrap_or_default(),
            clients = self.counters.unmappable,
            "a client's DMA file is not mapped (on neither tmpfs nor hugetlbfs, of pages of 1 GiB, or beyond \
             the limit of mapped bytes): its memory is reached by messages, which is slow",
        );
    }

    /// Sets the eventfd that unmasks INTx, the only interrupt that can be masked.
    fn bind_unmask(&mut self, index: u32, fds: Vec<Option<PeerFd>>) -> Result<(), Errno> {
        if index != INTX {
            return Err(Errno::EINVAL);
        }

        let fd = fds.into_iter().next().flatten();
        fd.as_ref().map_or(Ok(()), sink::check)?;
        self.session.new_unmask = Some(fd);
        Ok(())
    }
}

impl Handler for Glue<'_> {
    fn device_info(&mut self) -> DeviceInfo {
        DeviceInfo {
            flags: DEVICE_FLAGS_PCI | DEVICE_FLAGS_RESET,
            num_regions: region::COUNT,
            num_irqs: INDICES,
        }
    }

    fn region_info(&mut self, index: u32) -> Result<RegionInfo, Errno> {
        if index >= region::COUNT {
            return Err(Errno::EINVAL);
        }

        let view = self
            .machine
            .region(self.session.function, self.session.who, index)
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
        let info =
            self.machine.irq_info(self.session.function, self.session.who, index).ok_or(Errno::EINVAL)?;
        Ok(IrqInfo { flags: info.flags, count: info.count })
    }

    fn region_read(&mut self, index: u32, offset: u64, data: &mut [u8]) -> Outcome {
        if data.len() > READ_PIECE {
            return self.long_read(index, offset, data.len());
        }
        let outcome = self.machine.read(self.session.function, self.session.who, index, offset, data);
        self.access(outcome, index, offset, || StalledKind::Read(data.len()))
    }

    fn region_write(&mut self, index: u32, offset: u64, data: &[u8]) -> Outcome {
        let outcome = self.machine.write(self.session.function, self.session.who, index, offset, data);
        if matches!(outcome, Ok(Access::BusMasteringLost)) {
            self.session.cancel_dma(self.machine);
        }
        self.access(outcome, index, offset, || StalledKind::Write(data.to_vec()))
    }

    fn dma_map(&mut self, map: DmaMap, fd: Option<PeerFd>) -> Outcome {
        self.closing.drop_memory(self.session.memory.sweep());

        match self.session.memory.prepare(&map, fd) {
            Ok(Backing::Remote) => place(self.machine, self.session, &map, None, DmaBacking::Remote).into(),
            Ok(Backing::Unmappable { first }) => {
                if first {
                    self.report_unmappable();
                }
                place(self.machine, self.session, &map, None, DmaBacking::Remote).into()
            }
            Ok(Backing::Ready(file, window)) => {
                place(self.machine, self.session, &map, Some(file), DmaBacking::Memory(window)).into()
            }
            Ok(Backing::Wanted(wanted)) => {
                let token = self.session.token();
                self.session.pending_map = Some(PendingMap { token, map, place: wanted.place() });
                let request = MapRequest {
                    port: self.port,
                    generation: self.generation,
                    fd: wanted.fd,
                    length: wanted.length,
                    access: wanted.access,
                };

                if self.helper.map(request) {
                    Outcome::Deferred(token)
                } else {
                    self.session.pending_map = None;
                    Outcome::Failed(Errno::ENOMEM)
                }
            }
            Err(errno) => Outcome::Failed(errno),
        }
    }

    fn dma_unmap(&mut self, unmap: DmaUnmap) -> Outcome {
        let (function, who) = (self.session.function, self.session.who);
        let result = match unmap {
            DmaUnmap::All => self.machine.dma_unmap_all(function, who),
            DmaUnmap::Range { address, size } => self.machine.dma_unmap(function, who, address, size),
        };
        if let Err(error) = result {
            return Outcome::Failed(errno::of_machine(&error));
        }

        self.session.withdraw(self.machine, &unmap);
        self.session.memory.remove(&unmap);
        self.closing.drop_memory(self.session.memory.sweep());
        Outcome::Done
    }

    fn set_irqs(&mut self, irqs: SetIrqs) -> Result<(), Errno> {
        let SetIrqs { index, start, count, action, data } = irqs;
        let data = match (action, data) {
            (IrqAction::Trigger, IrqData::EventFd(fds)) => return self.bind(index, start, fds),
            (IrqAction::Unmask, IrqData::EventFd(fds)) => return self.bind_unmask(index, fds),
            (_, data) => data,
        };

        if action == IrqAction::Disable && index == INTX {
            self.session.new_unmask = Some(None);
        }

        let interrupts = self
            .machine
            .interrupts(self.session.function, self.session.who)
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
        let result = self.machine.reset_attachment(self.session.function, self.session.who);
        self.session.cancel_dma(self.machine);
        result.map_err(|error| errno::of_machine(&error)).into()
    }

    fn reset_pending(&mut self, token: Token) -> Option<Errno> {
        // A read that is carried out in pieces ends by itself.
        let waits = |stalled: &mut Stalled| stalled.token == token && stalled.refused;
        self.session.stalled.take_if(waits).map(|_| Errno::ECANCELED)
    }

    fn dma_read_done(&mut self, token: Token, result: Result<&[u8], Errno>) {
        self.session.answered(token);
        let (function, who) = (self.session.function, self.session.who);
        if let Err(error) = self.machine.dma_read_done(function, who, token, result.map_err(errno::refused)) {
            tracing::debug!(%error, "a DMA answer that nobody waits for");
        }
    }

    fn dma_write_done(&mut self, token: Token, result: Result<(), Errno>) {
        self.session.answered(token);
        let (function, who) = (self.session.function, self.session.who);
        if let Err(error) = self.machine.dma_write_done(function, who, token, result.map_err(errno::refused))
        {
            tracing::debug!(%error, "a DMA answer that nobody waits for");
        }
    }
}

/// Maps a range for the device.
pub(crate) fn place(
    machine: &mut Machine,
    session: &mut Session,
    map: &DmaMap,
    file: Option<u64>,
    backing: DmaBacking,
) -> Result<(), Errno> {
    let permission =
        DmaPermission { read: map.flags & DMA_FLAG_READ != 0, write: map.flags & DMA_FLAG_WRITE != 0 };

    machine
        .dma_map(session.function, session.who, map.address, map.size, permission, backing)
        .map_err(|error| errno::of_machine(&error))?;

    session.memory.insert(map, file);
    Ok(())
}
