//! The send FIFO.

use std::sync::atomic::Ordering;

use nicforge_driver::Doorbell;
use nicforge_hwi::tree::{Header, PAYLOAD, SLOT, SLOT_CONTROL, SLOT_PAYLOAD, mirror, window};
use nicforge_shm::{SharedU32, Window};

use crate::Error;

/// The words and slots of a send FIFO.
#[derive(Debug)]
pub(super) struct SendPort {
    slots: Window,
    tail: SharedU32,
    head: SharedU32,
    depth: u32,
}

impl SendPort {
    pub(super) fn new(windows: &Window, mirrors: &Window, depth: u32) -> Result<Self, Error> {
        Ok(Self {
            slots: windows.window(window::SEND, u64::from(depth) * SLOT)?,
            tail: windows.u32(window::SEND_TAIL)?,
            head: mirrors.u32(mirror::SEND_HEAD)?,
            depth,
        })
    }
}

/// Packets being sent under the send lock. The NIC sees each as soon as it is complete; dropping the batch publishes how
/// many there were and wakes the engine if it sleeps.
#[derive(Debug)]
pub struct SendBatch<'a, G> {
    port: &'a SendPort,
    doorbell: &'a Doorbell,
    /// Number of the next packet.
    tail: u32,
    /// Its slot.
    index: u32,
    /// Slots known to be free.
    free: u32,
    started: u32,
    /// Last, so that the lock is given back after all.
    _held: G,
}

impl<'a, G> SendBatch<'a, G> {
    pub(super) fn begin(port: &'a SendPort, doorbell: &'a Doorbell, held: G) -> Result<Self, Error> {
        let started = port.tail.load(Ordering::Relaxed);
        let head = port.head.load(Ordering::Acquire);
        let mut batch = Self {
            port,
            doorbell,
            tail: started,
            index: started % port.depth,
            free: 0,
            started,
            _held: held,
        };
        // The last owner of the lock died between a slot and the tail word, or worse: what the slots and the NIC say counts.
        if started.wrapping_sub(head) > port.depth {
            batch.move_to(head);
        }
        for _ in 0..port.depth {
            let control = port.slots.load_u64_acquire(u64::from(batch.index) * SLOT + SLOT_CONTROL)?;
            if control as u32 != batch.tail.wrapping_add(1) {
                break;
            }
            batch.move_to(batch.tail.wrapping_add(1));
        }
        batch.refresh();
        Ok(batch)
    }

    fn move_to(&mut self, tail: u32) {
        self.tail = tail;
        self.index = tail % self.port.depth;
    }

    #[inline]
    fn refresh(&mut self) {
        let used = self.tail.wrapping_sub(self.port.head.load(Ordering::Acquire));
        self.free = self.port.depth.saturating_sub(used);
    }

    /// Whether there is room for a packet now.
    #[inline]
    pub fn has_room(&mut self) -> bool {
        if self.free == 0 {
            self.refresh();
        }
        self.free != 0
    }

    /// Puts one packet into the FIFO, if there is room.
    ///
    /// # Errors
    /// [`Error::Memory`].
    #[inline]
    pub fn try_send(&mut self, header: Header, payload: &[u8; PAYLOAD]) -> Result<bool, Error> {
        if !self.has_room() {
            return Ok(false);
        }
        let slot = u64::from(self.index) * SLOT;
        self.port.slots.write_array(slot + SLOT_PAYLOAD, payload)?;
        let next = self.tail.wrapping_add(1);
        let control = (u64::from(header.0) << 32) | u64::from(next);
        self.port.slots.store_u64_release(slot + SLOT_CONTROL, control)?;
        self.tail = next;
        self.index += 1;
        if self.index == self.port.depth || next == 0 {
            self.index = next % self.port.depth;
        }
        self.free -= 1;
        Ok(true)
    }

    /// Sends `data` in packets of 256 bytes, at most `most` of them and as many as there is room for. The last one is
    /// padded with zeros. Gives the number of packets sent.
    ///
    /// # Errors
    /// [`Error::Memory`].
    #[inline]
    pub fn send_data(&mut self, header: Header, data: &[u8], most: usize) -> Result<usize, Error> {
        let (packets, tail) = data.as_chunks::<PAYLOAD>();
        let full = packets.len().min(most);
        let mut sent = 0;
        while sent < full {
            if !self.has_room() {
                return Ok(sent);
            }
            // As far as slots and packet numbers run on without a break.
            let run = self.free.min(self.port.depth - self.index).min(u32::MAX - self.tail) as usize;
            let run = run.min(full - sent);
            if run == 0 {
                // The number of the next packet is 2^32.
                sent += usize::from(self.try_send(header, &packets[sent])?);
                continue;
            }
            self.send_run(header, &packets[sent..sent + run])?;
            sent += run;
        }
        if sent < most && !tail.is_empty() {
            let mut padded = [0; PAYLOAD];
            padded[..tail.len()].copy_from_slice(tail);
            sent += usize::from(self.try_send(header, &padded)?);
        }
        Ok(sent)
    }

    /// Fills slots that lie one after the other and are free. The loop is what a data packet costs.
    #[inline]
    fn send_run(&mut self, header: Header, packets: &[[u8; PAYLOAD]]) -> Result<(), Error> {
        let slots = &self.port.slots;
        let mut slot = u64::from(self.index) * SLOT;
        let mut control = (u64::from(header.0) << 32) | u64::from(self.tail);
        for packet in packets {
            control += 1;
            slots.write_array(slot + SLOT_PAYLOAD, packet)?;
            slots.store_u64_release(slot + SLOT_CONTROL, control)?;
            slot += SLOT;
        }
        self.free -= packets.len() as u32;
        self.move_to(self.tail.wrapping_add(packets.len() as u32));
        Ok(())
    }
}

impl<G> Drop for SendBatch<'_, G> {
    #[inline]
    fn drop(&mut self) {
        if self.tail != self.started {
            self.port.tail.store(self.tail, Ordering::Release);
            // A lost device shows at the next turn of a waiting loop.
            let _ = self.doorbell.after_store();
        }
    }
}
