//! A driver of any virtio device, for tests: it negotiates, and sends buffers of several pieces.

use nicforge_driver::{Bar, Device, Error};
use nicforge_virtio::registers::*;

use crate::{
    backing::{Rig, test_deadline},
    virtio_body::driver::{DriverQueue, NEXT, SLOT, WRITE, add_status, enable, negotiate, reset},
};

/// Features of a driver that takes all that is common.
pub(super) const ALL: u64 = feature::COMMON;

/// A piece of a buffer, of at most [`SLOT`] bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Piece<'a> {
    /// Bytes for the device.
    Out(&'a [u8]),
    /// Room for bytes of the device.
    In(usize),
}

/// A device with its driver.
pub(super) struct Virtio {
    pub(super) device: Device,
    pub(super) bar: Bar,
    pub(super) queues: Vec<DriverQueue>,
}

impl Virtio {
    /// Opens a device and sets it up with all that is common.
    pub(super) fn open(rig: &dyn Rig, name: &str) -> Self {
        Self::start(rig.open(name, "user0"), ALL)
    }

    /// Sets up a device that is open.
    pub(super) fn start(device: Device, features: u64) -> Self {
        let bar = device.bar(BAR).unwrap();
        negotiate(&device, &bar, features);
        let count = usize::from(bar.read16(common::QUEUES).unwrap());
        let event_index = features & feature::EVENT_INDEX != 0;
        let queues: Vec<_> = (0..count).map(|index| DriverQueue::new(&device, index, event_index)).collect();

        bar.write16(common::CONFIG_VECTOR, 0).unwrap();
        for queue in &queues {
            enable(&bar, queue);
        }
        add_status(&bar, status::DRIVER_OK);
        Self { device, bar, queues }
    }

    /// Resets the device by its status, and sets it up again.
    pub(super) fn restart(self, features: u64) -> Self {
        let Self { device, bar, queues } = self;
        reset(&device, &bar);
        drop((bar, queues));
        Self::start(device, features)
    }

    /// Notifies the device of a queue.
    pub(super) fn notify(&self, queue: usize) {
        let register = NOTIFY + u64::from(NOTIFY_STRIDE) * queue as u64;
        self.bar.write16(register, queue as u16).unwrap();
    }

    /// Offers a buffer, and returns the head of its chain.
    pub(super) fn submit(&mut self, queue: usize, pieces: &[Piece<'_>]) -> u16 {
        let head = self.offer(queue, pieces);
        self.notify(queue);
        head
    }

    /// As [`Virtio::submit`], without a notification.
    pub(super) fn offer(&mut self, queue: usize, pieces: &[Piece<'_>]) -> u16 {
        let queue = &mut self.queues[queue];
        let chain = queue.free.split_off(queue.free.len() - pieces.len());
        for (number, (&entry, piece)) in chain.iter().zip(pieces).enumerate() {
            let slot = DriverQueue::slot(entry);
            let (length, direction) = match piece {
                Piece::Out(bytes) => {
                    queue.memory.write(slot, bytes).unwrap();
                    (bytes.len(), 0)
                }
                Piece::In(length) => {
                    queue.memory.write(slot, &vec![0xee; *length]).unwrap();
                    (*length, WRITE)
                }
            };

            assert!(length as u64 <= SLOT);
            let next = chain.get(number + 1).copied();
            let flags = direction | if next.is_some() { NEXT } else { 0 };
            queue.put(entry, queue.memory.iova() + slot, length as u32, flags, next.unwrap_or(0));
        }

        let head = chain[0];
        queue.chains.insert(head, chain);
        queue.offer(head);
        head
    }

    /// Waits for the next buffer that comes back. Returns its head, and the bytes written.
    pub(super) fn wait_used(&mut self, queue: usize) -> (u16, u32) {
        let Self { device, bar, queues } = self;
        device
            .wait_for(test_deadline(), None, "a buffer", || {
                // A stepped companion is polled when the function is.
                bar.read8(common::STATUS).unwrap();
                Ok::<_, Error>(queues[queue].take_used())
            })
            .expect("the device returns the buffer")
    }

    /// Returns the bytes of a piece of a buffer that has come back, by the piece's number.
    pub(super) fn piece(&self, queue: usize, head: u16, number: usize, length: usize) -> Vec<u8> {
        let queue = &self.queues[queue];
        let mut bytes = vec![0; length];
        queue.memory.read(DriverQueue::slot(queue.chains[&head][number]), &mut bytes).unwrap();
        bytes
    }

    /// Takes back the descriptors of a buffer.
    pub(super) fn free(&mut self, queue: usize, head: u16) {
        let queue = &mut self.queues[queue];
        let chain = queue.chains.remove(&head).expect("the device returns what it was offered");
        queue.free.extend(chain);
    }

    /// Returns the device status.
    pub(super) fn status(&self) -> u8 {
        self.bar.read8(common::STATUS).unwrap()
    }

    /// Waits until the device reports that it needs a reset.
    pub(super) fn wait_for_failure(&self) {
        let failed = || self.status() & status::NEEDS_RESET != 0;
        self.device.wait_until(test_deadline(), None, failed).expect("the device reports the error");
    }
}
