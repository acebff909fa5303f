//! A small PCI card that the server of the `vfio_user` crate serves: registers, a partly mappable
//! region, INTx, MSI-X, and a copy engine that reaches client memory by passed descriptors.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, ErrorKind, Write as _},
    os::fd::AsFd,
    panic::resume_unwind,
    sync::{Arc, Mutex},
};

use nicforge_shm::{Access, SharedMemory};
use vfio_bindings::bindings::vfio::*;
use vfio_user::{DmaMapFlags, DmaUnmapFlags, ServerBackend};

/// Region 0: registers of 32 bits, except for the 64-bit addresses. Every byte also keeps the value
/// written.
pub(super) mod reg {
    pub(crate) const SCRATCH: u64 = 0x00;
    /// A write signals the MSI-X vector of the written number.
    pub(crate) const RAISE: u64 = 0x100;
    /// A write asserts INTx; a write of 0 deasserts it.
    pub(crate) const LINE: u64 = 0x104;
    /// Source and target of a copy, 64 bits each.
    pub(crate) const SOURCE: u64 = 0x108;
    pub(crate) const TARGET: u64 = 0x110;
    /// A write copies the written number of bytes, and raises vector 0.
    pub(crate) const COPY: u64 = 0x118;
    /// Whether the last copy succeeded.
    pub(crate) const COPIED: u64 = 0x11c;
    /// A write ends the server.
    pub(crate) const LEAVE: u64 = 0x1f8;
}

/// Bytes of region 0.
pub(super) const REGISTERS: u64 = 0x1000;
/// Bytes of region 1, which is memory.
pub(super) const MEMORY: u64 = 0x4000;
/// The offset of region 1 in its file.
pub(super) const FILE_OFFSET: u64 = 0x1000;
/// The mappable areas of region 1: their offsets in it, and their sizes.
pub(super) const AREAS: [(u64, u64); 2] = [(0x1000, 0x1000), (0x3000, 0x1000)];
/// Bytes of region 2: memory with the mappable flag, but without areas.
pub(super) const UNDIVIDED: u64 = 0x1000;
/// Bytes of region 3: more than fit into one message.
pub(super) const LARGE: u64 = 4 << 20;
/// Bytes of configuration space.
pub(super) const CONFIG: u64 = 0x100;
/// Number of MSI-X vectors.
pub(super) const VECTORS: u32 = 4;
/// The first bytes of configuration space: vendor and device.
pub(super) const IDENTITY: [u8; 4] = [0xfc, 0x1e, 0x99, 0x77];

/// A `DEVICE_SET_IRQS` as the card received it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Irqs {
    pub(super) index: u32,
    pub(super) flags: u32,
    pub(super) start: u32,
    pub(super) count: u32,
    pub(super) fds: usize,
}

/// The card's state that a test can see.
pub(super) struct ObservedState {
    /// The file behind region 1.
    pub(super) memory: SharedMemory,
    pub(super) irqs: Mutex<Vec<Irqs>>,
    /// Flags, address and size of every `DMA_MAP`, and whether it had a descriptor.
    pub(super) maps: Mutex<Vec<(u32, u64, u64, bool)>>,
    /// Flags, address and size of every `DMA_UNMAP`.
    pub(super) unmaps: Mutex<Vec<(u32, u64, u64)>>,
    pub(super) resets: Mutex<u32>,
}

impl ObservedState {
    /// Creates the memory of region 1, and empty records of calls.
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            memory: SharedMemory::create("card", (FILE_OFFSET + MEMORY) as usize).unwrap(),
            irqs: Mutex::default(),
            maps: Mutex::default(),
            unmaps: Mutex::default(),
            resets: Mutex::default(),
        })
    }
}

/// The state of INTx.
#[derive(Default)]
struct Line {
    asserted: bool,
    masked: bool,
}

/// The card, as the `vfio_user` crate's server calls it.
pub(super) struct Card {
    seen: Arc<ObservedState>,
    /// Regions 0, 2, 3 and the configuration space.
    bytes: BTreeMap<u32, Vec<u8>>,
    /// Eventfds by interrupt type and number.
    eventfds: BTreeMap<(u32, u32), File>,
    line: Line,
    /// Ranges by first DMA address.
    ranges: BTreeMap<u64, SharedMemory>,
}

impl Card {
    /// Creates the card, which records in `seen` what its server asks of it.
    pub(super) fn new(seen: Arc<ObservedState>) -> Self {
        let sizes = [(0, REGISTERS), (2, UNDIVIDED), (3, LARGE), (VFIO_PCI_CONFIG_REGION_INDEX, CONFIG)];
        let mut bytes: BTreeMap<_, _> =
            sizes.into_iter().map(|(region, size)| (region, vec![0; size as usize])).collect();
        let config = bytes.get_mut(&VFIO_PCI_CONFIG_REGION_INDEX).unwrap();

        config[..4].copy_from_slice(&IDENTITY);
        // Revision 3, and the class of a network controller.
        config[8..12].copy_from_slice(&[3, 0x00, 0x80, 0x02]);
        Self { seen, bytes, eventfds: BTreeMap::new(), line: Line::default(), ranges: BTreeMap::new() }
    }

    /// Returns a part of a region's bytes.
    fn part(&mut self, region: u32, offset: u64, len: usize) -> io::Result<&mut [u8]> {
        let bytes = self.bytes.get_mut(&region).ok_or(ErrorKind::NotFound)?;
        let start = usize::try_from(offset).map_err(|_| ErrorKind::InvalidInput)?;
        let end = start.checked_add(len).ok_or(ErrorKind::InvalidInput)?;
        Ok(bytes.get_mut(start..end).ok_or(ErrorKind::InvalidInput)?)
    }

    /// Returns the 64 bits of region 0 at an offset.
    fn register(&self, offset: u64) -> u64 {
        let at = offset as usize;
        u64::from_le_bytes(self.bytes[&0][at..at + 8].try_into().unwrap())
    }

    /// Signals an interrupt's eventfd, if there is one.
    fn signal(&mut self, index: u32, number: u32) {
        if let Some(fd) = self.eventfds.get_mut(&(index, number)) {
            fd.write_all(&1_u64.to_ne_bytes()).unwrap();
        }
    }

    /// Signals INTx if it is asserted and not masked. It is masked then.
    fn drive_line(&mut self) {
        if self.line.asserted && !self.line.masked {
            self.line.masked = true;
            self.signal(VFIO_PCI_INTX_IRQ_INDEX, 0);
        }
    }

    /// Returns the memory that is mapped at an address, and the address's offset in it.
    fn range(&self, address: u64) -> Option<(&SharedMemory, u64)> {
        let (start, memory) = self.ranges.range(..=address).next_back()?;
        Some((memory, address - start))
    }

    /// Copies from one DMA address to the other. `None` if they are not mapped.
    fn copy(&self, len: usize) -> Option<()> {
        let mut data = vec![0; len];
        let (source, offset) = self.range(self.register(reg::SOURCE))?;
        source.read(offset, &mut data).ok()?;
        let (target, offset) = self.range(self.register(reg::TARGET))?;
        target.write(offset, &data).ok()
    }

    /// Has the effect of a write of a register, whose value is stored already.
    fn take_effect(&mut self, offset: u64) {
        let value = self.register(offset) as u32;
        match offset {
            reg::RAISE => self.signal(VFIO_PCI_MSIX_IRQ_INDEX, value),
            reg::LINE => {
                self.line.asserted = value != 0;
                self.drive_line();
            }
            reg::COPY => {
                let copied = self.copy(value as usize).is_some();
                let status = u32::from(copied).to_le_bytes();
                self.part(0, reg::COPIED, 4).unwrap().copy_from_slice(&status);
                self.signal(VFIO_PCI_MSIX_IRQ_INDEX, 0);
            }

            // The `vfio_user` crate's loop ends only with its connection. Unwinding drops its
            // stream, without a message on the terminal.
            reg::LEAVE => resume_unwind(Box::new("the card leaves")),
            _ => {}
        }
    }
}

impl ServerBackend for Card {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        if region == 1 {
            return self.seen.memory.read(FILE_OFFSET + offset, data).map_err(io::Error::other);
        }
        data.copy_from_slice(self.part(region, offset, data.len())?);
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        if region == 1 {
            return self.seen.memory.write(FILE_OFFSET + offset, data).map_err(io::Error::other);
        }

        self.part(region, offset, data.len())?.copy_from_slice(data);
        if region == 0 && offset <= reg::LEAVE {
            self.take_effect(offset);
        }

        Ok(())
    }

    fn dma_map(
        &mut self,
        flags: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        fd: Option<File>,
    ) -> io::Result<()> {
        self.seen.maps.lock().unwrap().push((flags.bits(), address, size, fd.is_some()));
        // The `vfio_user` crate can't request the bytes from the client by DMA messages.
        let fd = fd.ok_or(ErrorKind::Unsupported)?;
        let access = if flags.contains(DmaMapFlags::WRITE) { Access::ReadWrite } else { Access::ReadOnly };
        let memory =
            SharedMemory::map(fd.as_fd(), offset, size as usize, access).map_err(io::Error::other)?;

        self.ranges.insert(address, memory);
        Ok(())
    }

    fn dma_unmap(&mut self, flags: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        self.seen.unmaps.lock().unwrap().push((flags.bits(), address, size));
        if flags.bits() & VFIO_DMA_UNMAP_FLAG_ALL != 0 {
            self.ranges.clear();
            return Ok(());
        }
        self.ranges.remove(&address).map(drop).ok_or(ErrorKind::NotFound.into())
    }

    fn reset(&mut self) -> io::Result<()> {
        *self.seen.resets.lock().unwrap() += 1;
        self.bytes.get_mut(&0).unwrap().fill(0);
        self.line = Line::default();
        Ok(())
    }

    fn set_irqs(&mut self, index: u32, flags: u32, start: u32, count: u32, fds: Vec<File>) -> io::Result<()> {
        self.seen.irqs.lock().unwrap().push(Irqs { index, flags, start, count, fds: fds.len() });
        let numbers = start..start + count;
        match flags & VFIO_IRQ_SET_ACTION_TYPE_MASK {
            VFIO_IRQ_SET_ACTION_TRIGGER if count == 0 => self.eventfds.retain(|(of, _), _| *of != index),
            VFIO_IRQ_SET_ACTION_TRIGGER if flags & VFIO_IRQ_SET_DATA_NONE != 0 => {
                numbers.for_each(|number| self.signal(index, number));
            }
            VFIO_IRQ_SET_ACTION_TRIGGER if fds.is_empty() => {
                self.eventfds.retain(|(of, number), _| *of != index || !numbers.contains(number));
            }
            VFIO_IRQ_SET_ACTION_TRIGGER => {
                self.eventfds.extend(numbers.map(|number| (index, number)).zip(fds));
            }
            action => {
                self.line.masked = action == VFIO_IRQ_SET_ACTION_MASK;
                self.drive_line();
            }
        }

        Ok(())
    }
}
