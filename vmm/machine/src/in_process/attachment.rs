//! [`Backing`] for one attachment of a machine in this process.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use nicforge_core::{
    device::Ended,
    dma::{DmaBacking, DmaMapError},
    ids::{AttachmentId, FunctionId},
    interrupt::{Interrupts, IrqError},
    machine::{Access, AccessError, MachineError},
};
use nicforge_driver::{
    Backing, DmaMemory, DmaPermission, Error, GoneCause, InterruptSource, IrqInfo, MappableArea,
    PrivateMemory, RegionInfo, Relax, WriteMode,
    runtime::{Instant, note_store},
};
use nicforge_shm::{Access as MemoryAccess, SharedMemory};
use nix::errno::Errno;
use vfio_bindings::bindings::vfio;

use super::{Inner, LocalMachine, STALL_LIMIT, interrupt};

/// Maximum number of data bytes that a device takes in one write.
const MAX_WRITE: usize = nicforge_hwi::posted::MAX_DATA;

/// One attachment of a machine in this process.
pub(super) struct LocalAttachment {
    machine: Arc<LocalMachine>,
    function: FunctionId,
    attachment: AttachmentId,
    /// Number of the client that opened it ([`Tenant::id`](super::Tenant)).
    tenant: u64,
    /// Set when the client loses or drops the attachment.
    is_lost: Arc<AtomicBool>,
}

impl LocalAttachment {
    pub(super) fn new(
        machine: Arc<LocalMachine>,
        function: FunctionId,
        attachment: AttachmentId,
        tenant: u64,
        is_lost: Arc<AtomicBool>,
    ) -> Self {
        Self { machine, function, attachment, tenant, is_lost }
    }

    /// Returns whether the client of this backing still has the attachment. An eviction takes it
    /// away, and another client may have it now.
    fn holds_attachment(&self, inner: &Inner) -> bool {
        inner.tenants.get(&(self.function, self.attachment)).is_some_and(|tenant| tenant.id == self.tenant)
    }

    /// Calls `f` under the machine's lock, if this backing still holds the attachment.
    fn with_inner<R>(&self, f: impl FnOnce(&mut Inner) -> Result<R, Error>) -> Result<R, Error> {
        let mut inner = self.machine.lock_now()?;
        if !self.holds_attachment(&inner) {
            self.is_lost.store(true, Ordering::Release);
            return Err(Error::DeviceGone { cause: GoneCause::Evicted });
        }

        let result = f(&mut inner);
        // All DMA messages are answered before the lock is released, so that none can reach the
        // memory of a later tenant.
        inner.answer_dma_messages();
        drop(inner);
        self.machine.sleepers.wake();
        result
    }

    /// Performs a trapped access by calls of `attempt`. An access that stalls is attempted again
    /// after each step of the machine, for at most [`STALL_LIMIT`], and until the client resets its
    /// attachment.
    fn access(
        &self,
        operation: &'static str,
        mut attempt: impl FnMut(&mut Inner) -> Result<Access, Error>,
    ) -> Result<(), Error> {
        let started = Instant::now();
        let mut relax = Relax::new();
        let mut resets_at_start = None;

        loop {
            let outcome = self.with_inner(|inner| {
                let resets = self.tenant_resets(inner);
                if *resets_at_start.get_or_insert(resets) != resets {
                    return Err(Error::Refused {
                        what: "an access that a reset overtook",
                        errno: Errno::ECANCELED as i32,
                    });
                }

                attempt(inner)
            })?;
            if outcome != Access::Stalled {
                return Ok(());
            }

            let waited = started.elapsed();
            if waited >= STALL_LIMIT {
                self.with_inner(|inner| {
                    inner.machine.give_up_access(self.function, self.attachment).map_err(machine_error)
                })?;
                return Err(Error::Timeout { what: operation, waited });
            }

            self.machine.relax(self.function, &mut relax)?;
        }
    }

    /// Returns how often the client has reset its attachment.
    fn tenant_resets(&self, inner: &Inner) -> u64 {
        inner.tenants.get(&(self.function, self.attachment)).map_or(0, |tenant| tenant.resets)
    }

    /// Calls `f` with the attachment's interrupts, under the machine's lock.
    fn interrupts<R>(&self, f: impl FnOnce(&mut Interrupts) -> Result<R, IrqError>) -> Result<R, Error> {
        self.with_inner(|inner| {
            let interrupts =
                inner.machine.interrupts(self.function, self.attachment).map_err(machine_error)?;
            f(interrupts).map_err(irq_error)
        })
    }
}

impl Drop for LocalAttachment {
    fn drop(&mut self) {
        self.is_lost.store(true, Ordering::Release);
        let _ = self.with_inner(|inner| {
            let closed =
                inner.machine.detach(self.function, self.attachment, Ended::Closed).map_err(machine_error);
            inner.tenants.remove(&(self.function, self.attachment));
            closed
        });
    }
}

impl Backing for LocalAttachment {
    fn region_info(&self, region: u32) -> Result<RegionInfo, Error> {
        self.with_inner(|inner| {
            let view = inner.machine.region(self.function, self.attachment, region).map_err(machine_error)?;
            Ok(RegionInfo {
                size: view.size,
                readable: view.readable,
                writable: view.writable,
                mappable: view
                    .areas
                    .iter()
                    .map(|area| MappableArea { offset: area.offset, len: area.length })
                    .collect(),
            })
        })
    }

    fn read(&self, region: u32, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        self.access("a trapped read", |inner| {
            let machine = &mut inner.machine;
            machine.read(self.function, self.attachment, region, offset, out).map_err(access_error)
        })
    }

    /// Performs a write; the mode makes no difference. In process there is no queue between a
    /// client and the machine, so a posted write that stalls waits too, like a processor's store
    /// without credits.
    fn write(&self, region: u32, offset: u64, data: &[u8], _: WriteMode) -> Result<(), Error> {
        note_store();
        self.access("a trapped write", |inner| {
            let machine = &mut inner.machine;
            machine.write(self.function, self.attachment, region, offset, data).map_err(access_error)
        })
    }

    fn map(&self, region: u32) -> Result<Option<SharedMemory>, Error> {
        let view = self.with_inner(|inner| {
            inner.machine.region(self.function, self.attachment, region).map_err(machine_error)
        })?;
        let Some(memory) = view.memory else { return Ok(None) };

        match memory.fd() {
            // A region that is read-only in another process is also read-only here.
            Some(fd) if !view.writable => {
                Ok(Some(SharedMemory::map(fd, 0, memory.len(), MemoryAccess::ReadOnly)?))
            }
            _ => Ok(Some(memory)),
        }
    }

    fn irq_info(&self, index: u32) -> Result<IrqInfo, Error> {
        self.with_inner(|inner| {
            let info = inner.machine.irq_info(self.function, self.attachment, index);
            Ok(info.map_or_else(IrqInfo::default, |info| IrqInfo {
                count: info.count,
                maskable: info.flags & vfio::VFIO_IRQ_INFO_MASKABLE != 0,
                automasked: info.flags & vfio::VFIO_IRQ_INFO_AUTOMASKED != 0,
            }))
        })
    }

    fn interrupt(&self, index: u32, vector: u32) -> Result<Arc<dyn InterruptSource>, Error> {
        let counter = interrupt::Counter::new(self.machine.sleepers.clone());
        self.with_inner(|inner| {
            let machine = &mut inner.machine;
            let sinks = vec![Some(counter.clone() as Arc<_>)];
            machine
                .bind_interrupts(self.function, self.attachment, index, vector, sinks)
                .map_err(machine_error)
        })?;

        let (machine, is_lost) = (self.machine.clone(), self.is_lost.clone());
        Ok(Arc::new(interrupt::Source { counter, machine, function: self.function, is_lost }))
    }

    fn unbind_interrupts(&self, index: u32) -> Result<(), Error> {
        self.interrupts(|interrupts| interrupts.disable(index))
    }

    fn mask(&self, index: u32, start: u32, count: u32) -> Result<(), Error> {
        self.interrupts(|interrupts| interrupts.mask(index, start, count))
    }

    fn unmask(&self, index: u32, start: u32, count: u32) -> Result<(), Error> {
        self.interrupts(|interrupts| interrupts.unmask(index, start, count))
    }

    fn dma_map(&self, iova: u64, memory: DmaMemory, permission: DmaPermission) -> Result<(), Error> {
        let length = memory.len();

        // One DMA message may touch shared and private memory, so the client's map has both kinds.
        let (backing, client_memory): (_, Arc<dyn PrivateMemory>) = match memory {
            DmaMemory::Shared { memory, offset, len } => {
                let window = memory.window(offset, len)?;
                (DmaBacking::Memory(window.clone()), Arc::new(window))
            }
            DmaMemory::Private { memory, .. } => (DmaBacking::Remote, memory),
        };

        self.with_inner(|inner| {
            let machine = &mut inner.machine;
            machine
                .dma_map(self.function, self.attachment, iova, length, permission, backing)
                .map_err(machine_error)?;

            if let Some(tenant) = inner.tenants.get_mut(&(self.function, self.attachment)) {
                tenant.memory.insert(iova, length, client_memory);
            }
            Ok(())
        })
    }

    fn dma_unmap(&self, iova: u64, len: u64) -> Result<(), Error> {
        self.with_inner(|inner| {
            inner.machine.dma_unmap(self.function, self.attachment, iova, len).map_err(machine_error)?;
            if let Some(tenant) = inner.tenants.get_mut(&(self.function, self.attachment)) {
                tenant.memory.remove(iova, len);
            }
            Ok(())
        })
    }

    fn reset(&self) -> Result<(), Error> {
        self.with_inner(|inner| {
            if let Some(tenant) = inner.tenants.get_mut(&(self.function, self.attachment)) {
                tenant.resets += 1;
            }
            inner.machine.reset_attachment(self.function, self.attachment).map_err(machine_error)
        })
    }

    fn relax(&self, relax: &mut Relax) -> Result<(), Error> {
        self.machine.check_owner()?;
        // The attachment mirror shows an eviction, too, but this flag is cheaper to read.
        if self.is_lost.load(Ordering::Relaxed) {
            return Err(Error::DeviceGone { cause: GoneCause::Evicted });
        }
        self.machine.relax(self.function, relax)
    }
}

/// Converts an error of the machine to one of the driver library.
fn machine_error(error: MachineError) -> Error {
    match error {
        MachineError::NotAttached { .. } => Error::DeviceGone { cause: GoneCause::Evicted },
        MachineError::NoSuchAttachment { attachment, .. } => {
            Error::NoSuch { what: "attachment", index: attachment.into(), count: 0 }
        }
        MachineError::Memory(error) => Error::Memory(error),
        MachineError::DmaMap(error) => {
            let errno = match error {
                DmaMapError::Overlap { .. } => Errno::EEXIST,
                DmaMapError::Quota { .. } => Errno::ENOSPC,
                DmaMapError::NotFound { .. } => Errno::ENOENT,
                _ => Errno::EINVAL,
            };
            Error::system("a DMA mapping", errno)
        }
        MachineError::Irq(error) => irq_error(error),
        _ => Error::system("a request to the machine", Errno::EBUSY),
    }
}

/// Converts an error of a request for interrupts to one of the driver library.
fn irq_error(error: IrqError) -> Error {
    match error {
        IrqError::Range { start, available, .. } => {
            Error::NoSuch { what: "interrupt vector", index: start, count: available }
        }
        IrqError::Index { .. } | IrqError::Empty { .. } | IrqError::NotMaskable { .. } => {
            Error::system("a request for interrupts", Errno::EINVAL)
        }
    }
}

/// Converts an error of an access to one of the driver library.
fn access_error(error: AccessError) -> Error {
    match error {
        AccessError::Machine(error) => machine_error(error),
        AccessError::OutOfRange { region, offset, length } => {
            Error::OutOfRange { what: "region", index: region, offset, len: length as u64, size: 0 }
        }
        AccessError::TooWide { length, .. } => Error::BadLength { len: length, most: MAX_WRITE },
        AccessError::ReadOnly { .. } => Error::system("a write to a read-only region", Errno::EINVAL),
    }
}
