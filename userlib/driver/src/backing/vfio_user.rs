//! A device behind a vfio-user socket, of nicforge's server or any other.
//!
//! The backing assumes nothing about the server beyond the protocol. It maps the areas that the
//! server describes as mappable, and traps all other accesses. Threads may share it: one of them at
//! a time reads the socket for all.

use std::{
    collections::BTreeMap,
    ops,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::{
        Arc, OnceLock, PoisonError, RwLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use nicforge_hwi::attachment::waiting;
use nicforge_shm::{Access, OwnerProcess, SharedMemory, SharedU64, Uninherited};
use nicforge_vfio_user as wire;
use nicforge_vfio_user::{
    Client, ClientConfig, ClientError, DmaUnmap, Errno, GuestMemory, IrqAction, IrqPayload,
};

use super::{
    Backing, ClientWake, DmaMemory, DmaPermission, InterruptSource, IrqInfo, MappableArea, PrivateMemory,
    REGION_CONFIG, RegionInfo, WriteMode,
    event_source::{EventSource, eventfd},
    server_monitor::ServerMonitor,
};
use crate::{Deadline, Error, GoneCause, OpenOptions};

/// The number of regions of a PCI function.
const REGIONS: usize = 9;
/// Maximum number of DMA messages that are served before the caller's own wait continues.
const MESSAGES_AT_ONCE: u32 = 4096;

/// A range that the server may access by DMA messages.
struct Range {
    len: u64,
    memory: Arc<dyn PrivateMemory>,
    /// The accesses that are allowed.
    permission: DmaPermission,
    /// The server can reach the range by messages only.
    is_private: bool,
}

/// The memory that the server may access. A server may also use messages for memory that it could
/// map, and one message may cover both kinds.
#[derive(Default)]
struct ClientMemory {
    /// The ranges, by first DMA address.
    ranges: RwLock<BTreeMap<u64, Range>>,
    /// The number of ranges that are private.
    private_count: AtomicUsize,
}

/// The part of an access that lies in one range.
struct Part<'a> {
    range: &'a Range,
    /// Offset of the part in the range.
    offset: u64,
    /// End of the part in the message's data.
    end: usize,
}

impl ClientMemory {
    /// Changes the ranges, and counts the private ones again.
    fn change(&self, change: impl FnOnce(&mut BTreeMap<u64, Range>)) {
        let mut ranges = self.ranges.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut ranges);
        self.private_count.store(ranges.values().filter(|range| range.is_private).count(), Ordering::Release);
    }

    /// Inserts a range if no other one overlaps it. Returns whether it has.
    fn insert(&self, iova: u64, range: Range) -> bool {
        let end = iova.saturating_add(range.len);
        let mut is_free = false;

        self.change(|ranges| {
            let before = ranges.range(..end).next_back();
            is_free = before.is_none_or(|(start, other)| start.saturating_add(other.len) <= iova);
            if is_free {
                ranges.insert(iova, range);
            }
        });

        is_free
    }

    /// Removes the ranges that start in `[iova, iova + len)`.
    fn remove(&self, iova: u64, len: u64) {
        let end = iova.saturating_add(len);
        self.change(|ranges| ranges.retain(|&start, _| start < iova || start >= end));
    }

    /// Returns whether a message may arrive at any time.
    fn has_private(&self) -> bool {
        self.private_count.load(Ordering::Acquire) != 0
    }

    /// Checks access to all of `[address, address + len)`, then calls `copy` for each part in one
    /// range. `copy` takes the memory, the offset in it, and the part's place in the message's
    /// data.
    fn access(
        &self,
        address: u64,
        len: usize,
        is_allowed: impl Fn(&DmaPermission) -> bool,
        mut copy: impl FnMut(&dyn PrivateMemory, u64, ops::Range<usize>) -> Result<(), Error>,
    ) -> Result<(), Errno> {
        let ranges = self.ranges.read().unwrap_or_else(PoisonError::into_inner);

        // Returns the part that begins at byte `done` of the message's data.
        let part_at = |done: usize| {
            let at = address.checked_add(done as u64).ok_or(Errno::EFAULT)?;
            let (start, range) = ranges.range(..=at).next_back().ok_or(Errno::EFAULT)?;
            let offset = at - start;

            match range.len.saturating_sub(offset).min((len - done) as u64) {
                0 => Err(Errno::EFAULT),
                _ if !is_allowed(&range.permission) => Err(Errno::EACCES),
                length => Ok(Part { range, offset, end: done + length as usize }),
            }
        };

        // The whole range is checked first, so that a refused access copies nothing.
        let mut done = 0;
        while done < len {
            done = part_at(done)?.end;
        }

        done = 0;
        while done < len {
            let Part { range, offset, end } = part_at(done)?;
            copy(&*range.memory, offset, done..end).map_err(|_| Errno::EFAULT)?;
            done = end;
        }

        Ok(())
    }
}

impl GuestMemory for ClientMemory {
    fn read(&self, address: u64, data: &mut [u8]) -> Result<(), Errno> {
        let len = data.len();
        self.access(
            address,
            len,
            |permission| permission.read,
            |memory, offset, part| memory.read(offset, &mut data[part]),
        )
    }

    fn write(&self, address: u64, data: &[u8]) -> Result<(), Errno> {
        self.access(
            address,
            data.len(),
            |permission| permission.write,
            |memory, offset, part| memory.write(offset, &data[part]),
        )
    }
}

/// A region, as the server describes it.
struct RemoteRegion {
    info: RegionInfo,
    /// The file that has the region's memory, if it has any.
    fd: Option<OwnedFd>,
    /// Offset of the region in the file.
    file_offset: u64,
}

/// The state that all clones of a [`VfioUser`] share.
struct VfioUserConnection {
    /// A child of `fork` does not keep the connection open, and thus not the attachment.
    client: Uninherited<Client>,
    owner: OwnerProcess,
    /// The memory that the server may access.
    memory: Arc<ClientMemory>,
    monitor: Arc<ServerMonitor>,
    regions: [OnceLock<RemoteRegion>; REGIONS],
    /// The device can be reset.
    can_reset: bool,
    /// The server has more regions and interrupts than PCI, which may be nicforge's wake-up.
    offers_wake: bool,
    wake: OnceLock<ClientWake>,
}

/// A connection to a vfio-user server. Clones share the connection, which is closed with the last
/// of them.
#[derive(Clone)]
pub struct VfioUser(Arc<VfioUserConnection>);

/// Returns this crate's error for one of the vfio-user client. `operation` names the operation.
fn from_client_error(operation: &'static str, error: ClientError) -> Error {
    match error {
        ClientError::Disconnected { .. } => Error::DeviceGone { cause: GoneCause::HungUp },
        // This is the answer of a nicforge server that has detached this client.
        ClientError::Refused { errno: Errno::ENODEV, .. } => Error::DeviceGone { cause: GoneCause::Evicted },
        ClientError::Refused { errno, .. } | ClientError::System { errno, .. } => {
            Error::Refused { what: operation, errno: errno.raw() }
        }
        ClientError::Timeout { timeout, .. } => Error::Timeout { what: operation, waited: timeout },
        ClientError::Argument(operation) => Error::Unsupported { what: operation },
        error @ (ClientError::Connect { .. } | ClientError::Malformed { .. }) => {
            Error::Connection { reason: error.to_string() }
        }
    }
}

impl VfioUser {
    /// Connects to the socket at `path`, within the timeout of the options.
    ///
    /// # Errors
    /// Returns [`Error::Connection`] when no vfio-user server listens on the socket, and
    /// [`Error::Refused`] (`EBUSY`) when another client holds the attachment. [`Error::DeviceGone`]
    /// means that the server has hung up. [`Error::Timeout`] is also possible.
    pub fn connect(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self, Error> {
        Self::negotiate(options, |config| Client::connect_with(path, config))
    }

    /// Opens the connection on a connected stream socket.
    ///
    /// # Errors
    /// Returns the errors of [`VfioUser::connect`].
    pub fn from_socket(socket: OwnedFd, options: &OpenOptions) -> Result<Self, Error> {
        Self::negotiate(options, |config| Client::from_socket(socket, config))
    }

    /// Connects by `connect`, and checks that the server has a PCI function.
    fn negotiate(
        options: &OpenOptions,
        connect: impl FnOnce(ClientConfig) -> Result<Client, ClientError>,
    ) -> Result<Self, Error> {
        let operation = "opening the connection";
        let deadline = Deadline::after(options.timeout);

        let memory = Arc::new(ClientMemory::default());
        let monitor = Arc::new(ServerMonitor::default());
        let config = ClientConfig {
            timeout: options.timeout,
            spin: options.socket_spin,
            memory: Some(memory.clone()),
            watch: Some(monitor.clone()),
            ..ClientConfig::default()
        };

        let client = connect(config).map_err(|error| from_client_error(operation, error))?;
        monitor.set_process(client.server_process());

        client.limit_calls(deadline.remaining());
        let info = client.device_info().map_err(|error| from_client_error(operation, error))?;
        client.limit_calls(None);
        if info.num_regions <= REGION_CONFIG {
            return Err(Error::Protocol {
                what: "a PCI function has more regions",
                value: info.num_regions.into(),
            });
        }

        let can_reset = info.flags & wire::DEVICE_FLAGS_RESET != 0;
        Ok(Self(Arc::new(VfioUserConnection {
            client: Uninherited::new(client)?,
            owner: OwnerProcess::current(),
            memory,
            monitor,
            regions: Default::default(),
            can_reset,
            offers_wake: info.num_regions > waiting::REGION && info.num_irqs > waiting::IRQ,
            wake: OnceLock::new(),
        })))
    }

    /// Returns the server's process id, as it was when the server began to listen.
    ///
    /// # Errors
    /// Returns [`Error::Refused`] when the system call fails.
    pub fn server_pid(&self) -> Result<i32, Error> {
        self.0.client.server_pid().map_err(|error| from_client_error("asking who the server is", error))
    }

    /// Returns a region. The first call asks the server for its description.
    fn region(&self, region: u32) -> Result<&RemoteRegion, Error> {
        let none = Error::NoSuch { what: "region", index: region, count: REGIONS as u32 };
        let slot = self.0.regions.get(region as usize).ok_or(none)?;
        if let Some(known) = slot.get() {
            return Ok(known);
        }

        let found = self.checked("asking for a region", self.0.client.region_info(region))?;
        let mappable =
            found.mappable().into_iter().map(|area| MappableArea { offset: area.offset, len: area.size });

        let info = RegionInfo {
            size: found.size,
            readable: found.flags & wire::REGION_FLAG_READ != 0,
            writable: found.flags & wire::REGION_FLAG_WRITE != 0,
            mappable: mappable.filter(|area| area.len != 0).collect(),
        };

        Ok(slot.get_or_init(|| RemoteRegion { info, fd: found.fd, file_offset: found.offset }))
    }

    /// Maps the waiting page and binds the interrupt of [`waiting`], if the server has them and the
    /// kernel has the barrier.
    fn open_client_wake(&self) -> Result<Option<ClientWake>, Error> {
        if !self.0.offers_wake {
            return Ok(None);
        }

        let operation = "asking for the waiting page";
        let found = self.checked(operation, self.0.client.region_info(waiting::REGION))?;
        let Some(fd) = found.fd.filter(|_| found.size == waiting::SIZE) else { return Ok(None) };
        let page = SharedMemory::map(fd.as_fd(), found.offset, waiting::SIZE as usize, Access::ReadWrite)?;
        if page.u32(waiting::MAGIC)?.load(Ordering::Acquire) != waiting::MAGIC_VALUE {
            return Ok(None);
        }

        let event = eventfd()?;
        let Some(wake) = ClientWake::new(page.u32(waiting::WAITING)?, event) else { return Ok(None) };
        let payload = [Some(wake.event_fd())];
        self.set_irqs(
            "binding the wake-up",
            waiting::IRQ,
            0,
            IrqAction::Trigger,
            IrqPayload::EventFd(&payload),
        )?;
        Ok(Some(wake))
    }

    /// Checks that an access lies in its region.
    fn check_range(&self, region: u32, offset: u64, len: usize) -> Result<(), Error> {
        let size = self.region(region)?.info.size;
        let len = len as u64;

        if offset > size || len > size - offset {
            return Err(Error::OutOfRange { what: "region", index: region, offset, len, size });
        }
        Ok(())
    }

    /// Makes a request for interrupts of an index. `operation` names it in an error.
    fn set_irqs(
        &self,
        operation: &'static str,
        index: u32,
        start: u32,
        action: IrqAction,
        payload: IrqPayload<'_>,
    ) -> Result<(), Error> {
        self.checked(operation, self.0.client.set_irqs(index, start, action, payload))
    }

    /// Converts the result of a request, and serves DMA messages. The request may have read
    /// messages from the socket that came behind its reply. A thread that blocks on the socket is
    /// not woken for these, so that they are served here.
    fn checked<T>(&self, operation: &'static str, result: Result<T, ClientError>) -> Result<T, Error> {
        let value = result.map_err(|error| from_client_error(operation, error))?;
        if self.0.memory.has_private() {
            self.serve()?;
        }
        Ok(value)
    }

    /// Serves the DMA messages that have arrived, at most [`MESSAGES_AT_ONCE`]. A server that keeps
    /// sending does not hold the caller.
    fn serve(&self) -> Result<(), Error> {
        for _ in 0..MESSAGES_AT_ONCE {
            let served = self.0.client.poll_incoming(Duration::ZERO);
            if served.map_err(|error| from_client_error("serving DMA messages", error))? == 0 {
                break;
            }
        }
        Ok(())
    }
}

impl Backing for VfioUser {
    fn region_info(&self, region: u32) -> Result<RegionInfo, Error> {
        Ok(self.region(region)?.info.clone())
    }

    fn read(&self, region: u32, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        self.check_range(region, offset, out.len())?;
        self.checked("a trapped read", self.0.client.region_read(region, offset, out))
    }

    fn write(&self, region: u32, offset: u64, data: &[u8], mode: WriteMode) -> Result<(), Error> {
        self.check_range(region, offset, data.len())?;
        let posted = mode == WriteMode::Posted;
        self.checked("a trapped write", self.0.client.region_write(region, offset, data, posted))
    }

    fn try_write(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.check_range(region, offset, data.len())?;
        // Earlier messages that still wait will wake the server, too, so a write may be dropped.
        let sent = self.0.client.try_region_write(region, offset, data);
        self.checked("a trapped write", sent.map(drop))
    }

    fn map(&self, region: u32) -> Result<Option<SharedMemory>, Error> {
        let known = self.region(region)?;

        // The file may end with the last area, and the rest of the region is trapped anyway. The
        // client has checked that the areas lie in the region.
        let end = known.info.mappable.iter().map(|area| area.offset.saturating_add(area.len)).max();
        let (Some(fd), Some(end)) = (&known.fd, end) else { return Ok(None) };
        let len = usize::try_from(end).map_err(|_| Error::AddressSpace { len: end })?;

        let access = if known.info.writable { Access::ReadWrite } else { Access::ReadOnly };
        Ok(Some(SharedMemory::map(fd.as_fd(), known.file_offset, len, access)?))
    }

    fn irq_info(&self, index: u32) -> Result<IrqInfo, Error> {
        let found = self.checked("asking for interrupts", self.0.client.irq_info(index))?;
        Ok(IrqInfo {
            count: if found.flags & wire::IRQ_FLAG_EVENTFD == 0 { 0 } else { found.count },
            maskable: found.flags & wire::IRQ_FLAG_MASKABLE != 0,
            automasked: found.flags & wire::IRQ_FLAG_AUTOMASKED != 0,
        })
    }

    fn interrupt(&self, index: u32, vector: u32) -> Result<Arc<dyn InterruptSource>, Error> {
        let event = Arc::new(eventfd()?);
        let payload = [Some(event.as_fd())];
        self.set_irqs(
            "binding an interrupt",
            index,
            vector,
            IrqAction::Trigger,
            IrqPayload::EventFd(&payload),
        )?;

        Ok(Arc::new(EventSource { event, backing: self.clone() }))
    }

    fn unbind_interrupts(&self, index: u32) -> Result<(), Error> {
        self.checked("unbinding interrupts", self.0.client.irq_disable(index))
    }

    fn mask(&self, index: u32, start: u32, count: u32) -> Result<(), Error> {
        self.set_irqs("masking an interrupt", index, start, IrqAction::Mask, IrqPayload::None(count))
    }

    fn unmask(&self, index: u32, start: u32, count: u32) -> Result<(), Error> {
        self.set_irqs("unmasking an interrupt", index, start, IrqAction::Unmask, IrqPayload::None(count))
    }

    fn dma_map(&self, iova: u64, memory: DmaMemory, permission: DmaPermission) -> Result<(), Error> {
        let flag_if = |allowed, flag| if allowed { flag } else { 0 };
        let flags =
            flag_if(permission.read, wire::DMA_FLAG_READ) | flag_if(permission.write, wire::DMA_FLAG_WRITE);
        let len = memory.len();

        // The server gets the file of shared memory. This process answers messages for either kind.
        let (offset, shared, memory): (_, _, Arc<dyn PrivateMemory>) = match memory {
            DmaMemory::Shared { memory, offset, len } => {
                let window = memory.window(offset, len)?;
                (offset, Some(memory), Arc::new(window))
            }
            DmaMemory::Private { memory, .. } => (0, None, memory),
        };

        let fd = match &shared {
            Some(shared) => {
                let no_file = Error::Unsupported { what: "DMA to memory whose file is not known" };
                Some(shared.fd().ok_or(no_file)?)
            }
            None => None,
        };

        let map = wire::DmaMap { flags, offset, address: iova, size: len };
        // The range is recorded first, because the server may ask for its bytes as soon as it has
        // answered.
        let operation = "mapping memory for DMA";
        if !self.0.memory.insert(iova, Range { len, memory, permission, is_private: fd.is_none() }) {
            return Err(Error::Refused { what: operation, errno: Errno::EEXIST.raw() });
        }

        let mapped = self.0.client.dma_map(map, fd);
        if mapped.is_err() {
            self.0.memory.remove(iova, len);
        }
        self.checked(operation, mapped)
    }

    fn dma_unmap(&self, iova: u64, len: u64) -> Result<(), Error> {
        let range = DmaUnmap::Range { address: iova, size: len };
        let result = self.checked("unmapping memory", self.0.client.dma_unmap(range));
        self.0.memory.remove(iova, len);
        result
    }

    fn reset(&self) -> Result<(), Error> {
        if !self.0.can_reset {
            return Err(Error::Unsupported { what: "resetting this device" });
        }
        self.checked("resetting the device", self.0.client.reset())
    }

    fn prepare_client_wake(&self) -> Result<(), Error> {
        if let Some(wake) = self.open_client_wake()? {
            // The library calls this once.
            let _ = self.0.wake.set(wake);
        }
        Ok(())
    }

    fn client_wake(&self) -> Option<&ClientWake> {
        self.0.wake.get()
    }

    fn set_heartbeat(&self, heartbeat: SharedU64) {
        self.0.monitor.set_heartbeat(heartbeat);
    }

    fn limit_calls(&self, deadline: Option<Deadline>) {
        self.0.client.limit_calls(deadline.and_then(|deadline| deadline.remaining()));
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.client.socket_fd())
    }

    fn expects_events(&self) -> bool {
        self.0.memory.has_private()
    }

    fn handle_events(&self) -> Result<(), Error> {
        // A thread that only the parent of this process has may hold the client's lock.
        if !self.0.owner.is_current() {
            return Err(Error::ForeignProcess);
        }

        self.serve()?;
        if self.0.client.is_alive() { Ok(()) } else { Err(Error::DeviceGone { cause: GoneCause::HungUp }) }
    }
}
