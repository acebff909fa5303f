//! A function of a served machine: the client of a vfio-user server.

use std::{
    fs::File,
    os::fd::BorrowedFd,
    path::Path,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use nicforge_vfio_user::{
    Client, ClientConfig, DMA_FLAG_READ, DMA_FLAG_WRITE, DmaMap, DmaUnmap, Errno, GuestMemory, IrqAction,
    IrqPayload, PCI_CONFIG_REGION, PCI_INTX_IRQ, PCI_MSIX_IRQ, PCI_ROM_REGION, REGION_FLAG_WRITE, RegionInfo,
};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::{
    function::{Area, Bar, BarKind, Function, FunctionError},
    memory::Ram,
};

/// Offset of the first BAR's register in the configuration space.
const FIRST_BAR: u16 = 0x10;
/// The low bits of a BAR's register that say its kind, the one of I/O ports, and their value for
/// memory with 64-bit addresses.
const BAR_KIND_MASK: u8 = 7;
const BAR_IO: u8 = 1;
const BAR_MEMORY_64: u8 = 4;

/// Whether a write gets no reply. Here each one gets it, so that a refusal is an error.
const POSTED: bool = false;

/// A function of a served machine. It is the function's only client.
pub struct RemoteFunction {
    client: Client,
    bars: Vec<Bar>,
    /// Whether the function has MSI-X. Servers refuse requests about vectors of other functions.
    has_vectors: bool,
    /// Answers the server's DMA messages.
    message_memory: Arc<MessageMemory>,
}

impl RemoteFunction {
    /// Connects to the socket of an attachment. `timeout` bounds each call.
    ///
    /// # Errors
    /// [`FunctionError`]
    pub fn connect(socket: impl AsRef<Path>, timeout: Duration) -> Result<Self, FunctionError> {
        let message_memory = Arc::new(MessageMemory::default());
        let config =
            ClientConfig { timeout, memory: Some(message_memory.clone()), ..ClientConfig::default() };
        let client = Client::connect_with(socket, config)?;
        let bars = read_bars(&client)?;
        let has_vectors = client.irq_info(PCI_MSIX_IRQ)?.count > 0;
        Ok(Self { client, bars, has_vectors, message_memory })
    }
}

impl Function for RemoteFunction {
    fn bars(&self) -> Vec<Bar> {
        self.bars.clone()
    }

    fn config_read(&self, offset: u16, data: &mut [u8]) -> Result<(), FunctionError> {
        Ok(self.client.region_read(PCI_CONFIG_REGION, offset.into(), data)?)
    }

    fn config_write(&self, offset: u16, data: &[u8]) -> Result<(), FunctionError> {
        Ok(self.client.region_write(PCI_CONFIG_REGION, offset.into(), data, POSTED)?)
    }

    fn bar_read(&self, bar: u8, offset: u64, data: &mut [u8]) -> Result<(), FunctionError> {
        Ok(self.client.region_read(bar.into(), offset, data)?)
    }

    fn bar_write(&self, bar: u8, offset: u64, data: &[u8]) -> Result<(), FunctionError> {
        Ok(self.client.region_write(bar.into(), offset, data, POSTED)?)
    }

    fn bind_vector(&self, vector: u16, event: BorrowedFd<'_>) -> Result<(), FunctionError> {
        let events = [Some(event)];
        let payload = IrqPayload::EventFd(&events);
        Ok(self.client.set_irqs(PCI_MSIX_IRQ, vector.into(), IrqAction::Trigger, payload)?)
    }

    fn release_vectors(&self) -> Result<(), FunctionError> {
        if !self.has_vectors {
            return Ok(());
        }
        Ok(self.client.irq_disable(PCI_MSIX_IRQ)?)
    }

    fn bind_line(&self, raised: BorrowedFd<'_>, serviced: BorrowedFd<'_>) -> Result<(), FunctionError> {
        let (raised, serviced) = ([Some(raised)], [Some(serviced)]);
        let bind = |action, event| self.client.set_irqs(PCI_INTX_IRQ, 0, action, IrqPayload::EventFd(event));
        bind(IrqAction::Trigger, &raised)?;
        Ok(bind(IrqAction::Unmask, &serviced)?)
    }

    fn map_ram(&self, ram: &Ram) -> Result<(), FunctionError> {
        // The server maps the ranges below. It reaches by DMA messages what its limits do not let
        // it map. RAM of an earlier call is unmapped first.
        if self.message_memory.replace(ram).is_some() {
            self.client.dma_unmap(DmaUnmap::All)?;
        }

        for range in ram.ranges() {
            let map = DmaMap {
                flags: DMA_FLAG_READ | DMA_FLAG_WRITE,
                offset: range.file_offset,
                address: range.address,
                size: range.size,
            };
            self.client.dma_map(map, Some(ram.file()))?;
        }
        Ok(())
    }

    fn reset(&self) -> Result<(), FunctionError> {
        Ok(self.client.reset()?)
    }
}

/// RAM that the server reaches by DMA messages, once there is any.
#[derive(Default)]
struct MessageMemory(RwLock<Option<Ram>>);

impl MessageMemory {
    /// Sets the RAM, and returns the earlier one.
    fn replace(&self, ram: &Ram) -> Option<Ram> {
        self.0.write().unwrap_or_else(PoisonError::into_inner).replace(ram.clone())
    }

    /// Calls `access` with the RAM. Any failure is `EFAULT` for the server.
    fn with<E>(&self, access: impl FnOnce(&GuestMemoryMmap) -> Result<(), E>) -> Result<(), Errno> {
        let ram = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let ram = ram.as_ref().ok_or(Errno::EFAULT)?;
        access(ram.memory()).map_err(|_| Errno::EFAULT)
    }
}

impl GuestMemory for MessageMemory {
    fn read(&self, address: u64, data: &mut [u8]) -> Result<(), Errno> {
        self.with(|memory| memory.read_slice(data, GuestAddress(address)))
    }

    fn write(&self, address: u64, data: &[u8]) -> Result<(), Errno> {
        self.with(|memory| memory.write_slice(data, GuestAddress(address)))
    }
}

/// Reads the BARs' sizes from the regions, and their kinds from the configuration space.
fn read_bars(client: &Client) -> Result<Vec<Bar>, FunctionError> {
    let mut bars: Vec<Bar> = Vec::new();
    for index in 0..PCI_ROM_REGION {
        let info = client.region_info(index)?;
        if info.size == 0 {
            continue;
        }

        let mut register = [0; 4];
        client.region_read(PCI_CONFIG_REGION, u64::from(FIRST_BAR) + 4 * u64::from(index), &mut register)?;
        let kind = match register[0] & BAR_KIND_MASK {
            kind if kind & BAR_IO != 0 => BarKind::Io,
            BAR_MEMORY_64 => BarKind::Memory64,
            _ => BarKind::Memory32,
        };
        let size = info.size;
        bars.push(Bar { index: index as u8, kind, size, areas: areas(info) });
    }
    Ok(bars)
}

/// Returns the parts of a region that can be mapped: none if the region has no file.
fn areas(mut info: RegionInfo) -> Vec<Area> {
    let mappable = info.mappable();
    let Some(file) = info.fd.take().map(|fd| Arc::new(File::from(fd))) else { return Vec::new() };
    let writable = info.flags & REGION_FLAG_WRITE != 0;

    let area = |offset: u64, size: u64| {
        let file_offset = info.offset.checked_add(offset)?;
        Some(Area { offset, size, file: file.clone(), file_offset, writable })
    };
    mappable.iter().filter_map(|found| area(found.offset, found.size)).collect()
}
