//! A device in memory. Its engine is stepped by `relax`, as in a machine in this process.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

pub mod server;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use nicforge_driver::{
    Backing, Cancel, Deadline, Device, DmaMemory, DmaPermission, Error, GoneCause, IRQ_INTX, IRQ_MSIX,
    InterruptSource, IrqInfo, MappableArea, OpenOptions, Pause, REGION_CONFIG, RegionInfo, Relax, WriteMode,
};
use nicforge_hwi::{
    attachment::{control, mirror},
    pci::{AttachmentCapability, CAP_ID_VENDOR, CAP_KIND_ATTACHMENT, CAP_VERSION},
};
use nicforge_shm::{Consumer, Peek, SharedCells, SharedMemory};
use zerocopy::IntoBytes;

pub const RING_CELLS: u32 = 64;
pub const RING_BYTES: u64 = RING_CELLS as u64 * 64;
pub const RINGS: u8 = 2;
/// BAR 0 is trapped: registers up to this offset, then the control page.
pub const CONTROL_PAGE: u64 = 0x1000;
pub const BAR0_SIZE: u64 = 0x4000;
/// BAR 1 contains two rings, then a window. BAR 2 contains the mirror, then a page of the device.
pub const BAR1_SIZE: u64 = 0x8000;
pub const WINDOW: u64 = 0x4000;
pub const BAR2_SIZE: u64 = 0x2000;
pub const VECTORS: u32 = 4;
pub const ATTACHMENT: u32 = 3;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    Read { region: u32, offset: u64, len: usize },
    Write { region: u32, offset: u64, data: Vec<u8>, mode: WriteMode },
    Record { ring: u8, bar: u8, offset: u32, data: Vec<u8> },
}

pub struct State {
    pub config: Vec<u8>,
    pub registers: Vec<u8>,
    pub log: Vec<Access>,
    pub rings: Vec<Consumer<SharedCells>>,
    pub stalled: bool,
    pub generation: u32,
    pub selected: u32,
    pub gone: Option<GoneCause>,
    /// The vector that fires when the next `relax` ends the device.
    pub last: Option<Arc<Counter>>,
    /// Another client resets the device right after the next read of its generation.
    pub reset_after_generation: bool,
    pub beats: bool,
    pub refuse_dma: bool,
    /// The error of each mapping for DMA.
    pub dma_error: Option<Error>,
    pub dma: BTreeMap<u64, (DmaMemory, DmaPermission)>,
    pub bound: BTreeMap<(u32, u32), Arc<Counter>>,
    pub unmasked: Vec<(u32, u32, u32)>,
    pub resets: u32,
    /// Length of BAR 1's mappable area.
    pub area: u64,
}

pub struct Fake {
    me: Weak<Fake>,
    pub bar1: SharedMemory,
    pub bar2: SharedMemory,
    pub reader2: SharedMemory,
    pub with_rings: bool,
    state: Mutex<State>,
}

pub struct Counter {
    fake: Weak<Fake>,
    count: AtomicU64,
    waiting: AtomicBool,
}

impl Counter {
    pub fn fire(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    pub fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::SeqCst)
    }
}

impl InterruptSource for Counter {
    fn take(&self) -> u64 {
        self.count.swap(0, Ordering::SeqCst)
    }

    fn wait(&self, deadline: Deadline, cancel: Option<&Cancel>) -> Result<u64, Error> {
        let fake = self.fake.upgrade().unwrap();

        self.waiting.store(true, Ordering::SeqCst);
        nicforge_driver::wait_source(&*fake, self, deadline, cancel)
    }
}

pub fn capability() -> AttachmentCapability {
    AttachmentCapability {
        cap_id: CAP_ID_VENDOR,
        next: 0,
        len: size_of::<AttachmentCapability>() as u8,
        kind: CAP_KIND_ATTACHMENT,
        version: CAP_VERSION,
        control_bar: 0,
        mirror_bar: 2,
        ring_bar: 1,
        control_offset: CONTROL_PAGE as u32,
        mirror_offset: 0,
        ring_offset: 0,
        ring_cells: RING_CELLS,
        ring_count: RINGS,
        max_data_log2: 9,
        memory_bars: 0b110,
        mirrored_bars: 0b100,
    }
}

/// Returns a configuration space with a power management capability at 0x40 and `capability` at
/// 0x50.
pub fn config(capability: Option<AttachmentCapability>) -> Vec<u8> {
    let mut config = vec![0; 4096];
    config[0..4].copy_from_slice(&[0xfc, 0x1e, 0x01, 0x00]);
    config[6] = 0x10;
    config[8..12].copy_from_slice(&[7, 0x00, 0x80, 0x02]);
    config[0x2c..0x30].copy_from_slice(&[0xfc, 0x1e, 0x42, 0x00]);
    config[0x34] = 0x40;
    config[0x40] = 0x01;

    if let Some(capability) = capability {
        config[0x41] = 0x50;
        config[0x50..0x50 + size_of_val(&capability)].copy_from_slice(capability.as_bytes());
    }
    config
}

impl Fake {
    pub fn new() -> Arc<Self> {
        Self::with_config(config(Some(capability())), true)
    }

    pub fn with_config(config: Vec<u8>, with_rings: bool) -> Arc<Self> {
        let bar1 = SharedMemory::create("bar1", BAR1_SIZE as usize).unwrap();
        let bar2 = SharedMemory::create_write_protected("bar2", BAR2_SIZE as usize).unwrap();
        let reader2 =
            SharedMemory::map(bar2.fd().unwrap(), 0, BAR2_SIZE as usize, nicforge_shm::Access::ReadOnly)
                .unwrap();

        let rings = (0..u64::from(RINGS))
            .map(|ring| {
                Consumer::new(SharedCells::new(bar1.window(ring * RING_BYTES, RING_BYTES).unwrap()).unwrap())
            })
            .collect();

        let state = State {
            config,
            registers: vec![0; CONTROL_PAGE as usize],
            log: Vec::new(),
            rings,
            stalled: false,
            generation: 1,
            selected: 0,
            gone: None,
            last: None,
            reset_after_generation: false,
            beats: true,
            refuse_dma: false,
            dma_error: None,
            dma: BTreeMap::new(),
            bound: BTreeMap::new(),
            unmasked: Vec::new(),
            resets: 0,
            area: WINDOW + 0x1000,
        };

        let word = |offset, value| bar2.whole().store_u32_release(offset, value).unwrap();
        word(mirror::MAGIC, mirror::MAGIC_VALUE);
        word(mirror::GENERATION, 1);

        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            bar1,
            bar2,
            reader2,
            with_rings,
            state: Mutex::new(state),
        })
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn open(self: &Arc<Self>) -> Device {
        Device::from_backing(self.clone()).unwrap()
    }

    pub fn open_with(self: &Arc<Self>, options: OpenOptions) -> Device {
        Device::open(self.clone(), options).unwrap()
    }

    pub fn set_mirror(&self, offset: u64, value: u32) {
        self.bar2.whole().store_u32_release(offset, value).unwrap();
    }

    pub fn clear_log(&self) {
        self.state().log.clear();
    }

    pub fn log(&self) -> Vec<Access> {
        self.state().log.clone()
    }

    /// Performs an engine's step: counts the heartbeat and consumes the rings.
    pub fn step(&self) {
        let mut state = self.state();
        let state = &mut *state;

        if state.beats {
            let beat = self.bar2.u64(mirror::HEARTBEAT).unwrap();
            beat.fetch_add(1, Ordering::Relaxed);
        }

        if state.stalled || !self.with_rings {
            return;
        }

        for (index, ring) in state.rings.iter_mut().enumerate() {
            loop {
                match ring.peek() {
                    Peek::Empty => break,
                    Peek::Record(record) => state.log.push(Access::Record {
                        ring: index as u8,
                        bar: record.bar,
                        offset: record.offset,
                        data: record.data.to_vec(),
                    }),
                    Peek::Malformed { header } => panic!("malformed record {header:#x}"),
                }
                ring.pop();
            }

            let head = mirror::RING_HEAD + index as u64 * mirror::RING_HEAD_STRIDE;
            self.bar2.whole().store_u32_release(head, ring.consumed()).unwrap();
        }
    }

    fn alive(&self) -> Result<(), Error> {
        match self.state().gone {
            Some(cause) => Err(Error::DeviceGone { cause }),
            None => Ok(()),
        }
    }

    /// Resets the attachment, as a new tenant or a reset by this client does.
    pub fn reset_attachment(&self) {
        let mut state = self.state();
        state.generation += 1;
        self.set_mirror(mirror::GENERATION, state.generation);
        self.set_mirror(mirror::FLAGS, 0);

        for (index, ring) in state.rings.iter_mut().enumerate() {
            ring.reset();
            let head = mirror::RING_HEAD + index as u64 * mirror::RING_HEAD_STRIDE;
            self.bar2.whole().store_u32_release(head, ring.consumed()).unwrap();
        }

        state.bound.clear();
        state.stalled = false;
        state.config[4] = 0;
    }
}

impl Backing for Fake {
    fn region_info(&self, region: u32) -> Result<RegionInfo, Error> {
        let info = |size, writable, mappable| RegionInfo { size, readable: true, writable, mappable };
        Ok(match region {
            0 => info(BAR0_SIZE, true, vec![]),
            1 => info(BAR1_SIZE, true, vec![MappableArea { offset: 0, len: self.state().area }]),
            2 => info(BAR2_SIZE, false, vec![MappableArea { offset: 0, len: BAR2_SIZE }]),
            REGION_CONFIG => info(4096, true, vec![]),
            _ => RegionInfo::default(),
        })
    }

    fn read(&self, region: u32, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        self.alive()?;
        self.step();
        let mut state = self.state();

        state.log.push(Access::Read { region, offset, len: out.len() });
        let at = offset as usize;

        match (region, offset.wrapping_sub(CONTROL_PAGE)) {
            (REGION_CONFIG, _) => out.copy_from_slice(&state.config[at..at + out.len()]),
            (0, control::RING_STATE) => {
                let (cell, phase) = state.rings[state.selected as usize].state();
                out.copy_from_slice(&(cell | u32::from(phase) << 31).to_le_bytes());
            }
            (0, control::GENERATION) => {
                out.copy_from_slice(&state.generation.to_le_bytes());
                if std::mem::take(&mut state.reset_after_generation) {
                    drop(state);
                    self.reset_attachment();
                }
            }
            (0, control::ATTACHMENT) => out.copy_from_slice(&ATTACHMENT.to_le_bytes()),
            (0, _) if offset < CONTROL_PAGE => out.copy_from_slice(&state.registers[at..at + out.len()]),
            _ => out.fill(0xff),
        }
        Ok(())
    }

    fn write(&self, region: u32, offset: u64, data: &[u8], mode: WriteMode) -> Result<(), Error> {
        self.alive()?;
        let mut state = self.state();

        state.log.push(Access::Write { region, offset, data: data.to_vec(), mode });
        let at = offset as usize;

        match (region, offset.wrapping_sub(CONTROL_PAGE)) {
            (REGION_CONFIG, _) => state.config[at..at + data.len()].copy_from_slice(data),
            (0, control::RING_SELECT) => state.selected = u32::from(data[0]),
            (0, _) if offset < CONTROL_PAGE => state.registers[at..at + data.len()].copy_from_slice(data),
            _ => (),
        }
        Ok(())
    }

    fn map(&self, region: u32) -> Result<Option<SharedMemory>, Error> {
        Ok(match region {
            1 => Some(self.bar1.clone()),
            2 => Some(self.reader2.clone()),
            _ => None,
        })
    }

    fn irq_info(&self, index: u32) -> Result<IrqInfo, Error> {
        Ok(match index {
            IRQ_INTX => IrqInfo { count: 1, maskable: true, automasked: true },
            IRQ_MSIX => IrqInfo { count: VECTORS, maskable: false, automasked: false },
            _ => IrqInfo::default(),
        })
    }

    fn interrupt(&self, index: u32, vector: u32) -> Result<Arc<dyn InterruptSource>, Error> {
        let counter = Arc::new(Counter {
            fake: self.me.clone(),
            count: AtomicU64::new(0),
            waiting: AtomicBool::new(false),
        });

        self.state().bound.insert((index, vector), counter.clone());
        Ok(counter)
    }

    fn unbind_interrupts(&self, index: u32) -> Result<(), Error> {
        self.state().bound.retain(|(bound, _), _| *bound != index);
        Ok(())
    }

    fn mask(&self, _index: u32, _start: u32, _count: u32) -> Result<(), Error> {
        Ok(())
    }

    fn unmask(&self, index: u32, start: u32, count: u32) -> Result<(), Error> {
        self.state().unmasked.push((index, start, count));
        Ok(())
    }

    fn dma_map(&self, iova: u64, memory: DmaMemory, permission: DmaPermission) -> Result<(), Error> {
        self.alive()?;
        if self.state().refuse_dma {
            return Err(Error::system("mapping memory for DMA", nix::errno::Errno::ENOSPC));
        }
        if let Some(error) = self.state().dma_error.clone() {
            return Err(error);
        }
        self.state().dma.insert(iova, (memory, permission));
        Ok(())
    }

    fn dma_unmap(&self, iova: u64, _len: u64) -> Result<(), Error> {
        self.alive()?;
        let none = Error::system("unmapping", nix::errno::Errno::ENOENT);
        self.state().dma.remove(&iova).map(drop).ok_or(none)
    }

    fn reset(&self) -> Result<(), Error> {
        self.alive()?;
        self.state().resets += 1;
        self.reset_attachment();
        Ok(())
    }

    fn relax(&self, relax: &mut Relax) -> Result<(), Error> {
        let last = self.state().last.take();
        if let Some(counter) = last {
            counter.fire();
            self.state().gone = Some(GoneCause::HungUp);
        }

        self.alive()?;
        self.step();
        match relax.next_pause() {
            Pause::Spin => (),
            pause => pause.take(),
        }
        Ok(())
    }
}
