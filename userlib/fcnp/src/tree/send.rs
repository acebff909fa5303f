//! The send FIFO.

use std::sync::atomic::Ordering;

use nicforge_driver::{
    Doorbell,
    runtime::{Cost, burst, charge, note_store},
};
use nicforge_hwi::tree::{Header, PAYLOAD, mirror, window};
use nicforge_shm::{SharedU32, Window};

use super::PacketSlots;
use crate::Error;

/// The words and slots of a send FIFO.
#[derive(Debug)]
pub(super) struct SendPort {
    slots: PacketSlots,
    tail: SharedU32,
    head: SharedU32,
}

impl SendPort {
    /// Opens a send FIFO of `depth` slots.
    pub(super) fn new(windows: &Window, mirrors: &Window, depth: u32) -> Result<Self, Error> {
        Ok(Self {
            slots: PacketSlots::new(windows, window::SEND, depth)?,
            tail: windows.u32(window::SEND_TAIL)?,
            head: mirrors.u32(mirror::SEND_HEAD)?,
        })
    }
}

/// Sends packets under the send lock. The NIC sees each packet as soon as its slot is complete. The
/// drop of the batch publishes the new tail and wakes the engine if it sleeps.
#[derive(Debug)]
pub struct SendBatch<'a, G> {
    port: &'a SendPort,
    doorbell: &'a Doorbell,
    /// Number of the next packet.
    tail: u32,
    /// Number of slots known to be free.
    free: u32,
    /// The tail at the beginning.
    started: u32,
    /// The last field, so that the lock is freed after the tail is stored.
    _held: G,
}

impl<'a, G> SendBatch<'a, G> {
    /// Begins a batch after the filled slots. `guard` is the send lock.
    #[inline]
    pub(super) fn begin(port: &'a SendPort, doorbell: &'a Doorbell, guard: G) -> Self {
        let started = port.tail.load(Ordering::Relaxed);
        let head = port.head.load(Ordering::Acquire);
        let depth = port.slots.count();

        let mut tail = started;
        let mut used = tail.wrapping_sub(head);

        // The previous owner of the lock died after it had filled slots, and before it stored the
        // tail word. The slots and the NIC's head are right.
        if used > depth || port.slots.holds(tail).is_some() {
            tail = first_empty_slot(port, if used > depth { head } else { tail });
            used = tail.wrapping_sub(head);
        }

        Self { port, doorbell, tail, free: depth.saturating_sub(used), started, _held: guard }
    }

    /// Returns whether there is room for a packet now. It loads the NIC's head when no free slot is
    /// known.
    #[inline]
    pub fn find_room(&mut self) -> bool {
        if self.free == 0 {
            let used = self.tail.wrapping_sub(self.port.head.load(Ordering::Acquire));
            self.free = self.port.slots.count().saturating_sub(used);
        }
        self.free != 0
    }

    /// Puts one packet into the FIFO if there is room. Returns whether it did.
    #[inline]
    pub fn try_send(&mut self, header: Header, payload: &[u8; PAYLOAD]) -> bool {
        if !self.find_room() {
            return false;
        }

        self.port.slots.put(self.tail, header.0, payload);
        note_store();
        // Virtual time passes after the store, because the NIC transmits the packet while the core
        // stores it.
        charge(Cost::SendPacket, 1);
        self.tail = self.tail.wrapping_add(1);
        self.free -= 1;
        true
    }

    /// Sends `data` in packets of 256 bytes: at most `maximum`, and as many as there is room for.
    /// The last one is padded with zeros. Returns the number of packets sent.
    #[inline]
    pub fn send_data(&mut self, header: Header, data: &[u8], maximum: usize) -> usize {
        let (packets, rest) = data.as_chunks::<PAYLOAD>();
        let full = packets.len().min(maximum);
        let mut sent = 0;

        while sent < full && self.find_room() {
            let end = full.min(sent + burst(self.free as usize));
            let run = packets.get(sent..end).unwrap_or_default();
            let put = self.port.slots.put_run(self.tail, header.0, run);
            self.tail = self.tail.wrapping_add(put as u32);
            self.free -= put as u32;
            sent += put;
            note_store();
            charge(Cost::SendPacket, put);
        }

        if sent == full && sent < maximum && !rest.is_empty() {
            return sent + usize::from(self.send_padded(header, rest));
        }
        sent
    }

    /// Sends the last part of a message.
    fn send_padded(&mut self, header: Header, rest: &[u8]) -> bool {
        let mut padded = [0; PAYLOAD];
        padded.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
        self.try_send(header, &padded)
    }
}

/// Returns the first number from `tail` on whose slot does not hold its packet.
#[cold]
fn first_empty_slot(port: &SendPort, mut tail: u32) -> u32 {
    for _ in 0..port.slots.count() {
        if port.slots.holds(tail).is_none() {
            break;
        }
        tail = tail.wrapping_add(1);
    }
    tail
}

impl<G> Drop for SendBatch<'_, G> {
    #[inline]
    fn drop(&mut self) {
        if self.tail != self.started {
            self.port.tail.store(self.tail, Ordering::Release);
            // A lost device is detected in the next turn of a waiting loop.
            let _ = self.doorbell.after_store();
        }
    }
}
