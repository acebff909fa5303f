//! Test bodies of the tree NIC, one module for each subject.
//!
//! Each body gets a machine of its own ([`machine`], [`psets`]) behind some door. It drives the
//! machine only through the driver library: mapped slots, trapped port and registers, interrupts.
//! To show that an event does *not* happen, a body calls `run_until_idle`, after which the machine
//! is at rest.

pub mod barrier;
pub mod collective;
pub mod hostile;
pub mod interrupts;
pub mod lifecycle;
pub mod port;
pub mod slots;

use nicforge_core::machine::Machine;
use nicforge_driver::{Bar, Device, Doorbell, Error, WriteMode};
use nicforge_hwi::{
    tree::{BAR_MIRROR, BAR_WINDOW, Header, PAYLOAD, SLOT, SLOT_CONTROL, SLOT_PAYLOAD, mirror, window},
    tree_dcr::{INJ_PIXF, REC_PRXF, REG_INT_ENABLE, dcr, pix, prx},
};
use nicforge_machine::{build::build, description::parse};
use nicforge_nics::families;
use nicforge_shm::Window;

use crate::{
    backing::{Rig, test_deadline},
    bodies::{GuestDoor, Guests, TestMachine, reasons},
};

/// The machine of most bodies of the tree: a pset of four compute nodes, with FIFOs of 8 packets.
pub static MACHINE: TestMachine = TestMachine {
    name: "tree",
    make: || machine(4, 8),
    guests: Guests::Booted {
        // The admin attachments are the operator's.
        attachments: &[(&["io0", "cn0", "cn1", "cn2", "cn3"], &["core0", "core1", "core2", "core3"])],
        doors: &[GuestDoor::Vfio, GuestDoor::Shim],
    },
};

/// The same machine, with FIFOs of one packet.
pub static DEPTH_1: TestMachine = TestMachine {
    name: "tree_depth_1",
    make: || machine(4, 1),
    guests: Guests::None(reasons::ONE_DEPTH_IN_GUESTS),
};

/// The same machine, with FIFOs of 256 packets.
pub static DEPTH_256: TestMachine = TestMachine {
    name: "tree_depth_256",
    make: || machine(4, 256),
    guests: Guests::None(reasons::ONE_DEPTH_IN_GUESTS),
};

/// Two psets on one tree.
pub static TWO_PSETS: TestMachine = TestMachine {
    name: "tree_two_psets",
    make: || psets(&[2, 3]),
    guests: Guests::None("its one body is not worth the boot of a guest"),
};

/// Nodes of the usual machine: `io0` (address 0), and `cn0` to `cn3` (1 to 4). `cn0` and `cn1` are
/// below `io0`, `cn2` and `cn3` below `cn0`.
pub const NODES: u32 = 5;
/// Packets that a virtual channel of a link holds.
pub const CREDITS: u32 = 8;

/// More packets than all FIFOs and links between two nodes hold.
const ENOUGH: u32 = 4096;

/// The payload of a packet.
pub type Payload = [u8; PAYLOAD];
/// A packet: header and payload.
pub type Packet = (Header, Payload);

/// Returns a pset of an I/O node `io0` and compute nodes `cn0`, `cn1` and so on, with FIFOs of
/// `depth` packets.
pub fn machine(compute_nodes: u32, depth: u32) -> Machine {
    described(&format!("[[pset]]\ncompute_nodes = {compute_nodes}\nfifo_depth = {depth}\n"))
}

/// Returns psets of these sizes on one tree.
pub fn psets(compute_nodes: &[u32]) -> Machine {
    described(
        &compute_nodes.iter().map(|count| format!("[[pset]]\ncompute_nodes = {count}\n")).collect::<String>(),
    )
}

/// Builds the machine of a description that lacks its name.
pub fn described(text: &str) -> Machine {
    let plan = parse(&format!("name = \"tree\"\n{text}"), "tree.toml", &families()).unwrap();
    build(&plan).unwrap().0
}

/// Returns the name of the node with this address in a machine of one pset.
fn name(address: u32) -> String {
    address.checked_sub(1).map_or("io0".to_owned(), |rank| format!("cn{rank}"))
}

/// As [`Rig::settle`].
fn run_until_idle(rig: &dyn Rig) {
    rig.settle();
}

/// As [`Rig::counter`].
fn counter(rig: &dyn Rig, node: &str, name: &str) -> u64 {
    rig.counter(node, name)
}

/// Returns a payload that differs from those of other numbers.
pub fn payload(number: u32) -> Payload {
    std::array::from_fn(|index| {
        (number.wrapping_mul(167).rotate_right(index as u32 % 32) ^ index as u32) as u8
    })
}

/// Returns the header of a data packet for node `target`.
fn to(target: u32) -> Header {
    Header::point_to_point(0, target, false)
}

/// Returns the header of an irq-marked packet for node `target`.
fn irq_to(target: u32) -> Header {
    Header::point_to_point(0, target, true)
}

/// A client's view of one attachment of a node: a core, or the admin.
pub struct Core {
    device: Device,
    registers: Bar,
    window: Window,
    mirror: Window,
    doorbell: Doorbell,
}

impl Core {
    /// Opens an attachment.
    fn open(rig: &dyn Rig, node: &str, attachment: &str) -> Self {
        let device = rig.open(node, attachment);
        Self {
            registers: device.bar(0).unwrap(),
            window: device.bar(BAR_WINDOW).unwrap().window(0, window::SIZE).unwrap(),
            mirror: device.bar(BAR_MIRROR).unwrap().window(0, mirror::SIZE).unwrap(),
            doorbell: device.doorbell(),
            device,
        }
    }

    /// Opens core 0 of every node of a machine of one pset, by address.
    fn of_all(rig: &dyn Rig) -> Vec<Self> {
        Self::everywhere(rig, "core0")
    }

    /// Opens an attachment of every node of a machine of one pset, by address.
    fn everywhere(rig: &dyn Rig, attachment: &str) -> Vec<Self> {
        let first = Self::open(rig, "io0", attachment);
        let nodes = first.word(mirror::NODES);
        let all = std::iter::once(first);
        let all = all.chain((1..nodes).map(|address| Self::open(rig, &name(address), attachment))).collect();
        run_until_idle(rig);
        all
    }

    /// Opens core 0 of these nodes.
    fn of<const N: usize>(rig: &dyn Rig, nodes: [&str; N]) -> [Self; N] {
        let cores = nodes.map(|node| Self::open(rig, node, "core0"));
        run_until_idle(rig);
        cores
    }

    /// Returns the node's address.
    fn address(&self) -> u32 {
        self.word(mirror::NODE_ADDRESS)
    }

    /// Reads a word of the channel mirror.
    fn word(&self, offset: u64) -> u32 {
        self.mirror.load_u32_acquire(offset).unwrap()
    }

    /// Reads a word of the windows.
    fn window_word(&self, offset: u64) -> u32 {
        self.window.load_u32_acquire(offset).unwrap()
    }

    /// Stores a word of the windows.
    fn store(&self, offset: u64, value: u32) {
        self.window.store_u32_release(offset, value).unwrap();
        self.doorbell.after_store().unwrap();
    }

    /// Returns the generation of a core as this client sees it.
    fn presence(&self, node: u32, core: usize) -> u8 {
        self.word(mirror::PRESENCE + 4 * u64::from(node)).to_le_bytes()[core]
    }

    /// Waits until `condition` holds. The wait drives the machine if this thread has to.
    fn wait_until(&self, condition: impl FnMut() -> bool) {
        self.device.wait_until(test_deadline(), None, condition).expect("the condition comes true");
    }

    // Slots.

    /// Returns whether a send slot is free.
    fn has_room(&self) -> bool {
        self.window_word(window::SEND_TAIL).wrapping_sub(self.word(mirror::SEND_HEAD))
            < self.word(mirror::SEND_DEPTH)
    }

    /// Puts a packet into a send slot. Returns false if none is free.
    fn try_send(&self, header: Header, payload: &Payload) -> bool {
        if !self.has_room() {
            return false;
        }

        let tail = self.window_word(window::SEND_TAIL);
        self.fill_slot(tail, header, payload);
        self.store(window::SEND_TAIL, tail.wrapping_add(1));

        true
    }

    /// Writes packet `number` into its send slot.
    fn fill_slot(&self, number: u32, header: Header, payload: &Payload) {
        let slot = window::SEND + u64::from(number % self.word(mirror::SEND_DEPTH)) * SLOT;
        self.window.write(slot + SLOT_PAYLOAD, payload).unwrap();
        let control = u64::from(number.wrapping_add(1)) | (u64::from(header.0) << 32);
        self.window.store_u64_release(slot + SLOT_CONTROL, control).unwrap();
    }

    /// Puts a packet into a send slot, after a wait for a free one.
    fn send(&self, header: Header, payload: &Payload) {
        self.wait_until(|| self.try_send(header, payload));
    }

    /// Sends until all buffers on the way to a receiver that reads nothing are full. Payloads are
    /// numbered from `first` on. Returns the number of packets.
    fn send_until_full(&self, rig: &dyn Rig, header: Header, first: u32) -> u32 {
        let mut sent = 0;
        while self.has_room() {
            while self.try_send(header, &payload(first + sent)) {
                sent += 1;
            }
            assert!(sent < ENOUGH, "the receiver takes these packets");
            run_until_idle(rig);
        }

        sent
    }

    /// Returns the packet at position `ahead` in the receive FIFO, without taking it.
    fn peek(&self, ahead: u32) -> Option<Packet> {
        let number = self.window_word(window::RECV_HEAD).wrapping_add(ahead);
        let slot = mirror::RECV + u64::from(number % self.word(mirror::RECV_DEPTH)) * SLOT;
        let control = self.mirror.load_u64_acquire(slot + SLOT_CONTROL).unwrap();
        if control as u32 != number.wrapping_add(1) {
            return None;
        }

        let mut payload = [0; PAYLOAD];
        self.mirror.read(slot + SLOT_PAYLOAD, &mut payload).unwrap();
        Some((Header((control >> 32) as u32), payload))
    }

    /// Takes the first packet out of the receive slots.
    fn try_receive(&self) -> Option<Packet> {
        let packet = self.peek(0)?;
        self.store(window::RECV_HEAD, self.window_word(window::RECV_HEAD).wrapping_add(1));
        Some(packet)
    }

    /// Waits for a packet, and takes it.
    fn receive(&self) -> Packet {
        let packet =
            self.device.wait_for(test_deadline(), None, "a packet", || Ok::<_, Error>(self.try_receive()));
        packet.expect("a packet arrives")
    }

    /// Takes `count` packets, which must carry the numbers from `first` on.
    fn receive_numbers(&self, first: u32, count: u32) {
        for number in first..first + count {
            let (_, received) = self.receive();
            assert!(received == payload(number), "packet {number} is missing or changed");
        }
    }

    /// Returns the number of packets in the receive FIFO, by the slots.
    fn unread_packets(&self) -> u32 {
        (0..self.word(mirror::RECV_DEPTH)).take_while(|&ahead| self.peek(ahead).is_some()).count() as u32
    }

    /// Takes the lock box `number` if it is free. Returns whether it was.
    fn lock(&self, number: u64) -> bool {
        let word = self.window.u32(window::LOCK + number * window::LOCK_STRIDE).unwrap();
        word.compare_exchange(
            0,
            self.owner(),
            std::sync::atomic::Ordering::AcqRel,
            std::sync::atomic::Ordering::Relaxed,
        )
        .is_ok()
    }

    /// Returns the owner's word of lock box `number`.
    fn locked_by(&self, number: u64) -> u32 {
        self.window_word(window::LOCK + number * window::LOCK_STRIDE)
    }

    /// Returns the word that this attachment writes into lock boxes: its number plus 1, and any
    /// value in the upper half, which is free for its use.
    fn owner(&self) -> u32 {
        (self.device.attachment() + 1) | (7 << 16)
    }

    // Registers.

    /// Reads a register.
    fn read(&self, offset: u64) -> u32 {
        self.registers.read32(offset).unwrap()
    }

    /// Writes a register.
    fn write(&self, offset: u64, value: u32) {
        self.registers.write32(offset, value).unwrap();
    }

    /// Makes a trapped read of any width and alignment.
    fn read_bytes<const N: usize>(&self, offset: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.device.backing().read(0, offset, &mut bytes).unwrap();
        bytes
    }

    /// Makes a trapped write of any width and alignment.
    fn write_bytes(&self, offset: u64, bytes: &[u8]) {
        self.device.backing().write(0, offset, bytes, WriteMode::Confirmed).unwrap();
    }

    /// Enables these interrupts, and disables all others.
    fn enable(&self, vectors: &[u16]) {
        self.write(REG_INT_ENABLE, vectors.iter().fold(0, |bits, vector| bits | 1 << vector));
    }

    /// Reads and clears {receive exceptions, injection exceptions}, without watermarks.
    fn errors(&self) -> (u32, u32) {
        (self.read(dcr(REC_PRXF)) & !(prx::WM0 | prx::WM1), self.read(dcr(INJ_PIXF)) & !(pix::WM0 | pix::WM1))
    }
}

/// Sends packets from one node to another, which receives exactly these in order.
fn transfer(from: &Core, to: &Core, packets: &[Packet]) {
    let (mut sent, mut received) = (0, 0);
    to.wait_until(|| {
        while packets.get(sent).is_some_and(|(header, payload)| from.try_send(*header, payload)) {
            sent += 1;
        }
        while let Some(packet) = to.try_receive() {
            assert!(Some(&packet) == packets.get(received), "packet {received} is missing or changed");
            received += 1;
        }
        received == packets.len()
    });
}

/// Returns data packets for node `target` with the numbers from `first` on.
fn numbered(target: u32, first: u32, count: u32) -> Vec<Packet> {
    (first..first + count).map(|number| (to(target), payload(number))).collect()
}
