//! A driver of the virtio network device, for tests: it negotiates, keeps the queues, and can break
//! every rule.

use std::{
    collections::HashMap,
    sync::atomic::{Ordering, fence},
};

use nicforge_driver::{Bar, Deadline, Device, DmaBuffer, Error, HugePages};
use nicforge_virtio_net::registers::*;
use zerocopy::{FromBytes, IntoBytes};

use crate::backing::{Rig, test_deadline};

/// Entries of a queue.
pub(crate) const ENTRIES: u16 = 64;
/// Bytes of each entry's buffer.
pub(crate) const SLOT: u64 = 2048;
/// Features of a driver that takes all that the device offers.
pub(crate) const ALL: u64 = feature::OFFERED;
/// The features that a driver must accept.
pub(crate) const LEAST: u64 = feature::VERSION_1;

/// Offset of the descriptor table in a queue's memory.
pub(crate) const DESCRIPTORS: u64 = 0x0000;
/// Offset of the available ring.
pub(crate) const AVAILABLE: u64 = 0x1000;
/// Offset of the used ring.
pub(crate) const USED: u64 = 0x2000;
/// Offset of the entries' indirect tables.
pub(crate) const TABLES: u64 = 0x3000;
/// Offset of the entries' buffers.
const SLOTS: u64 = 0x1_0000;
/// Bytes of each entry's indirect table.
const TABLE: u64 = 512;
/// Bytes of a queue's memory.
const MEMORY: usize = SLOTS as usize + ENTRIES as usize * SLOT as usize;

/// Flag of a descriptor (2.7.5): another one follows.
pub(crate) const NEXT: u16 = 1;
/// Flag of a descriptor: the device writes its memory.
pub(crate) const WRITE: u16 = 2;
/// Flag of a descriptor: its memory is an indirect table.
pub(crate) const INDIRECT: u16 = 4;

/// How the pieces of a frame lie in descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One descriptor for each piece, in the queue's table.
    Direct,
    /// One descriptor that names a table of its own.
    Indirect,
}

/// One queue, as its driver keeps it.
pub(crate) struct DriverQueue {
    index: usize,
    pub(crate) memory: DmaBuffer,
    event_index: bool,
    /// Number of buffers offered.
    pub(crate) offered: u16,
    /// Number of buffers that came back.
    pub(crate) returned: u16,
    /// Descriptors that are in no chain.
    pub(crate) free: Vec<u16>,
    /// The descriptors of each chain, by its head.
    pub(crate) chains: HashMap<u16, Vec<u16>>,
}

impl DriverQueue {
    /// Returns a queue with memory of its own. [`enable`] makes it known to the device.
    pub(crate) fn new(device: &Device, index: usize, event_index: bool) -> Self {
        Self {
            index,
            memory: device.dma_buffer(MEMORY, HugePages::Never).unwrap(),
            event_index,
            offered: 0,
            returned: 0,
            free: (0..ENTRIES).rev().collect(),
            chains: HashMap::new(),
        }
    }

    /// Returns the offset of an entry's buffer.
    pub(crate) fn slot(entry: u16) -> u64 {
        SLOTS + u64::from(entry) * SLOT
    }

    /// Loads a 16-bit word of the queue's memory.
    pub(crate) fn load16(&self, offset: u64) -> u16 {
        self.memory.window().load_u16_relaxed(offset).unwrap()
    }

    /// Stores a 16-bit word of the queue's memory.
    pub(crate) fn store16(&self, offset: u64, value: u16) {
        self.memory.window().store_u16_relaxed(offset, value).unwrap();
    }

    /// Writes a descriptor at an offset of the queue's memory.
    pub(crate) fn put_descriptor(&self, at: u64, iova: u64, length: u32, flags: u16, next: u16) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&iova.to_le_bytes());
        bytes[8..12].copy_from_slice(&length.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..].copy_from_slice(&next.to_le_bytes());
        self.memory.write(at, &bytes).unwrap();
    }

    /// Writes a descriptor of the queue's table.
    pub(crate) fn put(&self, index: u16, iova: u64, length: u32, flags: u16, next: u16) {
        self.put_descriptor(DESCRIPTORS + 16 * u64::from(index), iova, length, flags, next);
    }

    /// Makes a chain available. Returns whether the device wants to be notified of it.
    pub(crate) fn offer(&mut self, head: u16) -> bool {
        self.store16(AVAILABLE + 4 + 2 * u64::from(self.offered % ENTRIES), head);
        fence(Ordering::Release);
        self.offered = self.offered.wrapping_add(1);
        self.store16(AVAILABLE + 2, self.offered);
        fence(Ordering::SeqCst);

        if self.event_index {
            let event = self.load16(USED + 4 + 8 * u64::from(ENTRIES));
            event == self.offered.wrapping_sub(1)
        } else {
            self.load16(USED) & 1 == 0
        }
    }

    /// Writes a chain of descriptors from entry 0 on, and makes it available. Each descriptor is an
    /// address, a length, flags and the next entry.
    pub(crate) fn offer_chain(&mut self, descriptors: &[(u64, u32, u16, u16)]) {
        for (index, &(iova, length, flags, next)) in descriptors.iter().enumerate() {
            self.put(index as u16, iova, length, flags, next);
        }
        self.offer(0);
    }

    /// Returns the address of the buffer of entry 0.
    pub(crate) fn first_buffer(&self) -> u64 {
        self.memory.iova() + Self::slot(0)
    }

    /// Takes the next buffer that came back: the head of its chain, and the bytes written.
    pub(crate) fn take_used(&mut self) -> Option<(u16, u32)> {
        if self.load16(USED + 2) == self.returned {
            return None;
        }
        fence(Ordering::Acquire);

        let mut element = [0; 8];
        self.memory.read(USED + 4 + 8 * u64::from(self.returned % ENTRIES), &mut element).unwrap();
        self.returned = self.returned.wrapping_add(1);
        let [a, b, c, d, e, f, g, h] = element;
        let head = u32::from_le_bytes([a, b, c, d]);

        Some((head.try_into().unwrap(), u32::from_le_bytes([e, f, g, h])))
    }

    /// Asks for an interrupt when the buffer with this number has come back, or for none.
    pub(crate) fn ask_for_interrupt(&self, number: Option<u16>) {
        if self.event_index {
            // An index that was passed lately is passed again after 65,536 buffers only.
            let event = number.unwrap_or(self.returned.wrapping_sub(1));
            self.store16(AVAILABLE + 4 + 2 * u64::from(ENTRIES), event);
        } else {
            self.store16(AVAILABLE, u16::from(number.is_none()));
        }
        fence(Ordering::SeqCst);
    }

    /// Takes back the descriptors of buffers that the device has returned.
    fn reclaim(&mut self) {
        while let Some((head, _)) = self.take_used() {
            let chain = self.chains.remove(&head).expect("the device returns what it was offered");
            self.free.extend(chain);
        }
    }
}

/// A device with its driver.
pub(crate) struct Nic {
    pub(crate) device: Device,
    pub(crate) bar: Bar,
    pub(crate) features: u64,
    pub(crate) receive: DriverQueue,
    pub(crate) transmit: DriverQueue,
}

impl Nic {
    /// Opens a device, negotiates `features`, and offers a buffer in each entry of the receive
    /// queue.
    pub(crate) fn open(rig: &dyn Rig, name: &str, features: u64) -> Self {
        Self::start(rig.open(name, "user0"), features)
    }

    /// Sets up a device that is open: see [`Nic::open`].
    pub(crate) fn start(device: Device, features: u64) -> Self {
        let bar = device.bar(BAR).unwrap();
        negotiate(&device, &bar, features);
        let event_index = features & feature::EVENT_INDEX != 0;
        let receive = DriverQueue::new(&device, RECEIVE, event_index);
        let transmit = DriverQueue::new(&device, TRANSMIT, event_index);

        let mut nic = Self { device, bar, features, receive, transmit };
        nic.bar.write16(common::CONFIG_VECTOR, 0).unwrap();
        for queue in [&nic.receive, &nic.transmit] {
            enable(&nic.bar, queue);
        }
        nic.set_status(status::DRIVER_OK);
        nic.fill();
        nic
    }

    /// Adds bits to the device status, and returns the new one.
    pub(crate) fn set_status(&self, bits: u8) -> u8 {
        add_status(&self.bar, bits)
    }

    /// Returns the device status.
    pub(crate) fn status(&self) -> u8 {
        self.bar.read8(common::STATUS).unwrap()
    }

    /// Offers a buffer in each free entry of the receive queue.
    pub(crate) fn fill(&mut self) {
        let mut notify = false;
        while let Some(entry) = self.receive.free.pop() {
            let iova = self.receive.memory.iova() + DriverQueue::slot(entry);
            self.receive.put(entry, iova, SLOT as u32, WRITE, 0);
            self.receive.chains.insert(entry, vec![entry]);
            notify |= self.receive.offer(entry);
        }
        if notify {
            self.notify(RECEIVE);
        }
    }

    /// Notifies the device of a queue.
    pub(crate) fn notify(&self, queue: usize) {
        let register = NOTIFY + u64::from(NOTIFY_STRIDE) * queue as u64;
        self.bar.write16(register, queue as u16).unwrap();
    }

    /// Sends a frame in one piece.
    pub(crate) fn send(&mut self, frame: &[u8]) {
        self.send_as(FrameHeader::default(), frame, &[], Shape::Direct);
    }

    /// Sends header and frame, cut at these offsets of both together. Waits for free descriptors.
    pub(crate) fn send_as(&mut self, header: FrameHeader, frame: &[u8], cuts: &[usize], shape: Shape) {
        let content = [header.as_bytes(), frame].concat();
        assert!(content.len() as u64 <= SLOT);

        let descriptors = if shape == Shape::Indirect { 1 } else { cuts.len() + 1 };
        let (device, queue) = (&self.device, &mut self.transmit);
        device
            .wait_until(test_deadline(), None, || {
                queue.reclaim();
                queue.free.len() >= descriptors
            })
            .expect("the device takes frames");

        let chain = queue.free.split_off(queue.free.len() - descriptors);
        let head = chain[0];
        let slot = DriverQueue::slot(head);
        queue.memory.write(slot, &content).unwrap();

        let table = TABLES + u64::from(head) * TABLE;
        let ends: Vec<_> = cuts.iter().copied().chain([content.len()]).collect();
        let mut start = 0;
        for (number, &end) in ends.iter().enumerate() {
            let iova = queue.memory.iova() + slot + start as u64;
            let length = (end - start) as u32;
            let flags = if number + 1 < ends.len() { NEXT } else { 0 };
            match shape {
                Shape::Direct => {
                    let next = chain.get(number + 1).copied().unwrap_or(0);
                    queue.put(chain[number], iova, length, flags, next);
                }
                Shape::Indirect => {
                    queue.put_descriptor(table + 16 * number as u64, iova, length, flags, number as u16 + 1);
                }
            }
            start = end;
        }
        if shape == Shape::Indirect {
            queue.put(head, queue.memory.iova() + table, 16 * ends.len() as u32, INDIRECT, 0);
        }

        queue.chains.insert(head, chain);
        if queue.offer(head) {
            self.notify(TRANSMIT);
        }
    }

    /// Waits until the device has returned every frame to send.
    pub(crate) fn finish_sending(&mut self) {
        let (device, queue) = (&self.device, &mut self.transmit);
        device
            .wait_until(test_deadline(), None, || {
                queue.reclaim();
                queue.chains.is_empty()
            })
            .expect("the device takes frames");
    }

    /// Waits for a frame, and offers its buffer again.
    pub(crate) fn receive(&mut self) -> (FrameHeader, Vec<u8>) {
        let received = self.receive_until(test_deadline()).expect("a frame arrives");
        self.fill();
        received
    }

    /// Waits for a frame until a deadline. Its buffer stays out of the queue until [`Nic::fill`].
    pub(crate) fn receive_until(&mut self, deadline: Deadline) -> Result<(FrameHeader, Vec<u8>), Error> {
        let (device, queue) = (&self.device, &mut self.receive);
        let (head, written) =
            device.wait_for(deadline, None, "a frame", || Ok::<_, Error>(queue.take_used()))?;

        let mut content = vec![0; written as usize];
        queue.memory.read(DriverQueue::slot(head), &mut content).unwrap();
        let chain = queue.chains.remove(&head).expect("the device returns what it was offered");
        queue.free.extend(chain);
        let frame = content.split_off(FRAME_HEADER);

        Ok((FrameHeader::read_from_bytes(&content).unwrap(), frame))
    }

    /// Takes the frames that are still in progress.
    pub(crate) fn drain(&mut self, rig: &dyn Rig) {
        loop {
            rig.settle();
            if self.receive_until(Deadline::now()).is_err() {
                return;
            }
            self.fill();
        }
    }

    /// Resets the device by its status, and sets it up again.
    pub(crate) fn restart(self, features: u64) -> Self {
        let Self { device, bar, receive, transmit, .. } = self;
        reset(&device, &bar);
        drop((bar, receive, transmit));
        Self::start(device, features)
    }

    /// Waits until the device reports that it needs a reset.
    pub(crate) fn wait_for_failure(&self) {
        let failed = || self.status() & status::NEEDS_RESET != 0;
        self.device.wait_until(test_deadline(), None, failed).expect("the device reports the error");
    }
}

/// Resets a device by its status, and waits until it has done so.
pub(crate) fn reset(device: &Device, bar: &Bar) {
    bar.write8(common::STATUS, 0).unwrap();
    device.wait_until(test_deadline(), None, || bar.read8(common::STATUS).unwrap() == 0).unwrap();
}

/// Adds bits to the device status, and returns the new one.
pub(crate) fn add_status(bar: &Bar, bits: u8) -> u8 {
    let status = bar.read8(common::STATUS).unwrap();
    bar.write8(common::STATUS, status | bits).unwrap();
    bar.read8(common::STATUS).unwrap()
}

/// Resets a device and offers it these features. The device takes them.
pub(crate) fn negotiate(device: &Device, bar: &Bar, features: u64) {
    reset(device, bar);
    add_status(bar, status::ACKNOWLEDGE | status::DRIVER);
    accept(bar, features);
    assert_ne!(add_status(bar, status::FEATURES_OK) & status::FEATURES_OK, 0);
}

/// Writes the features that the driver accepts.
pub(crate) fn accept(bar: &Bar, features: u64) {
    for (half, value) in [(0, features as u32), (1, (features >> 32) as u32)] {
        bar.write32(common::DRIVER_FEATURE_SELECT, half).unwrap();
        bar.write32(common::DRIVER_FEATURE, value).unwrap();
    }
}

/// Sets the registers of a queue and enables it. Its vector is its number plus 1.
pub(crate) fn enable(bar: &Bar, queue: &DriverQueue) {
    bar.write16(common::QUEUE_SELECT, queue.index as u16).unwrap();
    bar.write16(common::QUEUE_SIZE, ENTRIES).unwrap();
    bar.write16(common::QUEUE_VECTOR, queue.index as u16 + 1).unwrap();

    let rings = [
        (common::QUEUE_DESCRIPTORS, DESCRIPTORS),
        (common::QUEUE_DRIVER, AVAILABLE),
        (common::QUEUE_DEVICE, USED),
    ];
    for (register, offset) in rings {
        let iova = queue.memory.iova() + offset;
        bar.write32(register, iova as u32).unwrap();
        bar.write32(register + 4, (iova >> 32) as u32).unwrap();
    }
    bar.write16(common::QUEUE_ENABLE, 1).unwrap();
}
