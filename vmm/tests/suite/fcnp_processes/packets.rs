//! Packets of the system channel, sent and received directly in the slots. FCNP uses the user
//! channel and cannot delay them.

use std::{path::Path, sync::atomic::Ordering, time::Instant};

use nicforge_driver::{Device, Doorbell};
use nicforge_hwi::tree::{
    BAR_MIRROR, BAR_WINDOW, Header, PAYLOAD, SLOT, SLOT_CONTROL, SLOT_PAYLOAD, mirror, window,
};
use nicforge_shm::Window;

use super::program::{LIMIT, device};

/// A node's admin attachment.
pub(crate) struct Admin {
    window: Window,
    mirror: Window,
    doorbell: Doorbell,
    sent: u32,
    received: u32,
    _device: Device,
}

impl Admin {
    /// Opens the admin attachment of a node.
    pub(crate) fn open(socket: &Path) -> Self {
        let device = device(socket);
        Self {
            window: device.bar(BAR_WINDOW).unwrap().window(0, window::SIZE).unwrap(),
            mirror: device.bar(BAR_MIRROR).unwrap().window(0, mirror::SIZE).unwrap(),
            doorbell: device.doorbell(),
            sent: 0,
            received: 0,
            _device: device,
        }
    }

    fn mirror_word(&self, offset: u64) -> u32 {
        self.mirror.u32(offset).unwrap().load(Ordering::Acquire)
    }

    /// Sends a packet. Returns false when the send FIFO is full.
    fn try_send(&mut self, target: u32) -> bool {
        let depth = self.mirror_word(mirror::SEND_DEPTH);
        if self.sent.wrapping_sub(self.mirror_word(mirror::SEND_HEAD)) >= depth {
            return false;
        }

        let slot = window::SEND + u64::from(self.sent % depth) * SLOT;
        let header = Header::point_to_point(0, target, false);
        self.window.write(slot + SLOT_PAYLOAD, &payload(self.sent)).unwrap();
        self.sent += 1;
        let control = u64::from(self.sent) | u64::from(header.0) << 32;
        self.window.store_u64_release(slot + SLOT_CONTROL, control).unwrap();
        self.window.store_u32_release(window::SEND_TAIL, self.sent).unwrap();
        self.doorbell.after_store().unwrap();

        true
    }

    /// Takes the next packet and checks its contents. Returns false when there is none.
    fn try_receive(&mut self) -> bool {
        let slot = mirror::RECV + u64::from(self.received % self.mirror_word(mirror::RECV_DEPTH)) * SLOT;
        let control = self.mirror.load_u64_acquire(slot + SLOT_CONTROL).unwrap();
        if control as u32 != self.received + 1 {
            return false;
        }

        let mut found = [0; PAYLOAD];
        self.mirror.read(slot + SLOT_PAYLOAD, &mut found).unwrap();

        assert!(found == payload(self.received), "packet {} is missing or changed", self.received);
        self.received += 1;
        self.window.store_u32_release(window::RECV_HEAD, self.received).unwrap();
        self.doorbell.after_store().unwrap();

        true
    }
}

/// Returns the contents of a packet.
fn payload(number: u32) -> [u8; PAYLOAD] {
    std::array::from_fn(|index| (number.wrapping_mul(167) >> (index % 24)) as u8 ^ index as u8)
}

/// Sends `count` packets in each direction between two nodes with these addresses, and checks that
/// all arrive in order.
pub(crate) fn exchange_packets(admins: [&mut Admin; 2], addresses: [u32; 2], count: u32) {
    let [first, second] = admins;
    let (ends, started) = ([first.sent + count, second.sent + count], Instant::now());

    while first.received < ends[1] || second.received < ends[0] {
        let mut moved = first.sent < ends[0] && first.try_send(addresses[1]);
        moved |= second.sent < ends[1] && second.try_send(addresses[0]);
        moved |= first.try_receive() | second.try_receive();
        if !moved {
            assert!(started.elapsed() < LIMIT, "the system channel stands still");
            std::thread::yield_now();
        }
    }
}
