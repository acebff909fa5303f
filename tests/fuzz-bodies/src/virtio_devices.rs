//! An arbitrary driver of a virtio device that has a companion: registers, rings, descriptors and
//! memory of any kind. The machine comes to rest, the disk's file stays as it is, and after a reset
//! the device returns a buffer.

use std::{fs::File, io::Write};

use nicforge_core::{
    device::{Device, Ended},
    dma::{DmaBacking, DmaPermission},
    ids::{AttachmentId, FunctionId},
    machine::{Machine, Next, region},
    time::Nanos,
};
use nicforge_shm::SharedMemory;
use nicforge_virtio::registers::*;
use nicforge_virtio_devices::{
    blk::{
        VirtioBlk,
        image::{Access, CLUSTER, Image},
    },
    console::{HOLD, VirtioConsole, line::Line},
    rng::VirtioRng,
};
use tempfile::NamedTempFile;

use crate::input::Input;

/// Maximum number of actions in one input.
const MAX: usize = 300;
/// Steps after which a machine that is still busy never comes to rest.
const MANY_STEPS: usize = 10_000;
/// Granularity of DMA mappings.
const PAGE: u64 = 4096;
/// The only device of the machine.
const DEVICE_UNDER_TEST: FunctionId = FunctionId(0);
/// The device's only attachment.
const USER: AttachmentId = AttachmentId(0);
/// Entries of the queues of a driver that keeps the rules.
const ENTRIES: u16 = 8;
/// Pages of a driver's memory. Its first address is that of the second page.
const PAGES: u64 = 8;
const BASE: u64 = PAGE;
/// Bytes of the disk's file, whose last cluster is a short one.
const DISK: usize = 5 * CLUSTER as usize + 1024;

/// Places of a queue's parts in a driver's memory: one queue in each half.
const HALF: u64 = PAGES / 2 * PAGE;
const AVAILABLE: u64 = 0x400;
const USED: u64 = 0x800;
const TABLES: u64 = 0xc00;
const BUFFERS: u64 = 0x1000;

/// Value of the PCI command register that lets the device use memory and DMA.
const MEMORY_AND_DMA: u16 = 6;

/// Flags of a descriptor (virtio specification, 2.7.5).
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// The kinds of devices.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rng,
    Disk,
    Console,
}

/// A machine of one device.
struct World {
    kind: Kind,
    machine: Machine,
    now: Nanos,
    memory: SharedMemory,
    file: NamedTempFile,
}

/// Runs the test body on one fuzz input. The module's documentation describes the steps.
pub fn body(data: &[u8]) {
    let mut input = Input::new(data);
    let kind = input.pick(&[Kind::Disk, Kind::Disk, Kind::Rng, Kind::Console]);
    let mut world = World::new(kind);
    world.start(feature::VERSION_1);

    for _ in 0..MAX {
        if input.is_empty() {
            break;
        }
        world.act(&mut input);
    }
    world.recover();
}

impl World {
    /// Creates a machine of one device of a kind, with an attached driver.
    fn new(kind: Kind) -> Self {
        let mut file = NamedTempFile::new().unwrap();
        file.write_all(&[0x5a; DISK]).unwrap();
        let device: Box<dyn Device> = match kind {
            Kind::Rng => Box::new(VirtioRng::device()),
            Kind::Disk => {
                let access = Access::CopyOnWrite { limit: 3 * CLUSTER };
                Box::new(VirtioBlk::device(Image::open(file.path(), access).unwrap(), "fuzz"))
            }
            Kind::Console => {
                let line = Line::append_to(file.path().with_extension("log").as_path()).unwrap();
                Box::new(VirtioConsole::device(line))
            }
        };

        let mut machine = Machine::new();
        machine.add_function("device0", device).unwrap();
        let memory = SharedMemory::create("fuzz-virtio-devices", (PAGES * PAGE) as usize).unwrap();
        let mut world = Self { kind, machine, now: Nanos::ZERO, memory, file };
        world.attach();
        world
    }

    /// Attaches a client, and maps its memory.
    fn attach(&mut self) {
        self.machine.attach(DEVICE_UNDER_TEST, USER).unwrap();
        self.map_all();
    }

    /// Maps the driver's whole memory page by page, and lets the device reach it.
    fn map_all(&mut self) {
        self.machine.dma_unmap_all(DEVICE_UNDER_TEST, USER).unwrap();
        for page in 0..PAGES {
            self.map(page, 1, DmaPermission::READ_WRITE, true);
        }
        self.write(region::CONFIG, 4, &MEMORY_AND_DMA.to_le_bytes());
    }

    /// Maps pages, to memory or so that only messages reach them.
    fn map(&mut self, page: u64, pages: u64, permission: DmaPermission, is_memory: bool) {
        let (iova, length) = (BASE + page * PAGE, pages * PAGE);
        let backing = match self.memory.window(page * PAGE, length) {
            Ok(window) if is_memory => DmaBacking::Memory(window),
            _ => DmaBacking::Remote,
        };
        let _ = self.machine.dma_map(DEVICE_UNDER_TEST, USER, iova, length, permission, backing);
    }

    /// Writes a register, which may refuse the write or stall it.
    fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        let _ = self.machine.write(DEVICE_UNDER_TEST, USER, region, offset, data);
    }

    /// Performs one action of the driver, or lets the machine step.
    fn act(&mut self, input: &mut Input<'_>) {
        match input.below(16) {
            0 | 1 => self.registers(input),
            2 => self.start(input.pick(&[feature::VERSION_1, feature::COMMON])),
            3..=6 => self.descriptor(input),
            7 | 8 => self.available(input),
            9 => self.header(input),
            10 => self.write(0, NOTIFY + 4 * u64::from(input.below(3)), &[0, 0]),
            11 => self.remap(input),
            12 => self.reset(input),
            _ => {
                self.now = self.now.after(input.pick(&[0, 1_000, HOLD]));
                self.machine.step(self.now, input.pick(&[1, 4, 64]));
            }
        }
    }

    /// Reads or writes a register, through the BAR or configuration space.
    fn registers(&mut self, input: &mut Input<'_>) {
        let (region, offset) = match input.below(8) {
            0..=3 => (0, u64::from(input.below(common::SIZE as u32))),
            4 => (0, input.pick(&[ISR, DEVICE, NOTIFY, u64::from(MSIX_TABLE)]) + u64::from(input.below(16))),
            5 | 6 => (region::CONFIG, u64::from(input.below(0x100))),
            _ => (0, input.number() % BAR_SIZE),
        };
        let mut data = vec![0; input.pick(&[1, 2, 4, 8, 4, 2, 64, 3])];

        if input.flag() {
            let _ = self.machine.read(DEVICE_UNDER_TEST, USER, region, offset, &mut data);
        } else {
            let bytes = input.bytes(data.len().min(8));
            data[..bytes.len()].copy_from_slice(bytes);
            self.write(region, offset, &data);
        }
    }

    /// Writes a descriptor with these four fields at an offset of the driver's memory.
    fn put_descriptor(&self, at: u64, (iova, length, flags, next): (u64, u32, u16, u16)) {
        let mut bytes = iova.to_le_bytes().to_vec();
        bytes.extend(length.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        self.memory.write(at, &bytes).unwrap();
    }

    /// Writes a descriptor of a queue's table or of an indirect one.
    fn descriptor(&mut self, input: &mut Input<'_>) {
        let table = queue_offset(input) + if input.below(4) > 0 { 0 } else { TABLES };
        let at = table + 16 * u64::from(input.below(ENTRIES.into()));
        let iova = match input.below(8) {
            0..=4 => BASE + queue_offset(input) + BUFFERS + u64::from(input.below(PAGE as u32)),
            5 | 6 => BASE + queue_offset(input) + TABLES,
            _ => input.number(),
        };
        let length = match input.below(4) {
            0 | 1 => input.pick(&[1, 16, 512, 1024, 2048, 17]),
            2 => 16 * input.below(20),
            _ => input.number32(),
        };
        let flags = input.pick(&[0, NEXT, WRITE, NEXT | WRITE, NEXT, INDIRECT, 5, 7, u16::MAX]);
        let next = if input.below(8) > 0 { input.below(u32::from(ENTRIES) + 1) as u16 } else { input.u16() };
        self.put_descriptor(at, (iova, length, flags, next));
    }

    /// Changes the available ring of a queue.
    fn available(&mut self, input: &mut Input<'_>) {
        let ring = queue_offset(input) + AVAILABLE;
        let head = if input.below(8) > 0 { input.below(ENTRIES.into()) as u16 } else { input.u16() };
        let entry = u64::from(input.below(u32::from(ENTRIES) + 1));
        self.memory.write(ring + 4 + 2 * entry, &head.to_le_bytes()).unwrap();

        let index = self.memory.whole().load_u16_relaxed(ring + 2).unwrap();
        let advance = if input.below(8) > 0 { input.below(3) as u16 } else { input.u16() };
        self.memory.write(ring + 2, &index.wrapping_add(advance).to_le_bytes()).unwrap();
    }

    /// Writes the header of a disk's request to a page of buffers.
    fn header(&mut self, input: &mut Input<'_>) {
        let kind = input.pick(&[0_u32, 1, 1, 4, 8, 11, u32::MAX]);
        let sector = if input.below(4) > 0 { u64::from(input.below(45)) } else { input.number() };
        let header = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
        let at = queue_offset(input) + BUFFERS + u64::from(input.below(PAGE as u32 - 16));
        self.memory.write(at, &header).unwrap();
    }

    /// Maps pages of the driver's memory with other permissions or another backing, or unmaps them.
    fn remap(&mut self, input: &mut Input<'_>) {
        let (page, pages) = (u64::from(input.below(PAGES as u32)), u64::from(1 + input.below(3)));
        let (iova, length) = (BASE + page * PAGE, pages * PAGE);
        let _ = self.machine.dma_unmap(DEVICE_UNDER_TEST, USER, iova, length);

        let permission = input.pick(&[DmaPermission::READ, DmaPermission::WRITE, DmaPermission::READ_WRITE]);
        if input.below(4) > 0 {
            self.map(page, pages, permission, input.below(4) > 0);
        }
    }

    /// Resets the device in one of its ways, replaces its client, or changes the command register.
    fn reset(&mut self, input: &mut Input<'_>) {
        match input.below(8) {
            0 => self.machine.reset_attachment(DEVICE_UNDER_TEST, USER).unwrap(),
            1 => self.machine.reset_function(DEVICE_UNDER_TEST).unwrap(),
            2 => {
                self.machine.detach(DEVICE_UNDER_TEST, USER, Ended::Closed).unwrap();
                self.attach();
            }
            3 => {
                let command = input.pick(&[MEMORY_AND_DMA, MEMORY_AND_DMA, 2, 0]);
                self.write(region::CONFIG, 4, &command.to_le_bytes());
            }
            _ => self.write(0, common::STATUS, &[0]),
        }
    }

    /// Sets the device up by the rules, with the descriptors of one buffer in each queue's table.
    /// No buffer is made available.
    fn start(&mut self, features: u64) {
        self.write(0, common::STATUS, &[0]);
        self.memory.zero(0, PAGES * PAGE).unwrap();
        for (half, value) in [(0_u32, features as u32), (1, (features >> 32) as u32)] {
            self.write(0, common::DRIVER_FEATURE_SELECT, &half.to_le_bytes());
            self.write(0, common::DRIVER_FEATURE, &value.to_le_bytes());
        }
        self.write(0, common::STATUS, &[status::FEATURES_OK]);

        for queue in 0..2_u16 {
            let base = BASE + u64::from(queue) * HALF;
            self.write(0, common::QUEUE_SELECT, &queue.to_le_bytes());
            self.write(0, common::QUEUE_SIZE, &ENTRIES.to_le_bytes());
            self.write(0, common::QUEUE_DESCRIPTORS, &base.to_le_bytes());
            self.write(0, common::QUEUE_DRIVER, &(base + AVAILABLE).to_le_bytes());
            self.write(0, common::QUEUE_DEVICE, &(base + USED).to_le_bytes());
            self.write(0, common::QUEUE_ENABLE, &1_u16.to_le_bytes());
        }

        self.memory.write(BUFFERS, &[1]).unwrap();
        for (entry, descriptor) in self.request().into_iter().enumerate() {
            self.put_descriptor(16 * entry as u64, descriptor);
            self.put_descriptor(HALF + 16 * entry as u64, descriptor);
        }
        self.write(0, common::STATUS, &[status::DRIVER_OK]);
    }

    /// Returns the descriptors of a buffer by the rules: for the disk, a write of one sector. See
    /// [`World::put_descriptor`] for their fields.
    fn request(&self) -> Vec<(u64, u32, u16, u16)> {
        let buffer = BASE + BUFFERS;
        match self.kind {
            Kind::Rng => vec![(buffer, 64, WRITE, 0)],
            Kind::Disk => vec![(buffer, 16, NEXT, 1), (buffer, 512, NEXT, 2), (buffer + 600, 1, WRITE, 0)],
            Kind::Console => vec![(buffer, 64, 0, 0)],
        }
    }

    /// Checks that the machine becomes idle, that the file is unchanged, and that a buffer is
    /// returned after a reset.
    fn recover(&mut self) {
        // The driver may have put the function to sleep.
        self.machine.reset_attachment(DEVICE_UNDER_TEST, USER).unwrap();
        self.machine.reset_function(DEVICE_UNDER_TEST).unwrap();
        self.map_all();
        self.start(feature::VERSION_1);

        let queue = u64::from(self.kind == Kind::Console);
        self.memory.write(queue * HALF + AVAILABLE + 2, &1_u16.to_le_bytes()).unwrap();
        self.write(0, NOTIFY + 4 * queue, &[0, 0]);
        let rests = (0..MANY_STEPS).any(|_| self.machine.step(self.now, 64) != Next::Now);
        assert!(rests, "the machine does not come to rest");
        let used = self.memory.whole().load_u16_relaxed(queue * HALF + USED + 2).unwrap();
        assert_eq!(used, 1, "the device returns the buffer");

        if self.kind == Kind::Disk {
            let mut content = Vec::new();
            std::io::Read::read_to_end(&mut File::open(self.file.path()).unwrap(), &mut content).unwrap();
            assert!(content == [0x5a; DISK], "the disk's file stays as it is");
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.file.path().with_extension("log"));
    }
}

/// Returns the offset of one of the two queues in its driver's memory.
fn queue_offset(input: &mut Input<'_>) -> u64 {
    if input.flag() { HALF } else { 0 }
}
