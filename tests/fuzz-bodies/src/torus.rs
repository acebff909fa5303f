//! A torus of Blue Gene/L against hostile software with a core of two nodes.
//!
//! The software writes arbitrary packets into its injection FIFOs and arbitrary tails, heads and
//! registers; it resets its attachments, and ends at any point.
//!
//! Checked: packets that two other cores send each other meanwhile arrive all, unchanged and in
//! order, when the software has gone. Its cores then work for other clients, and see nothing that
//! was meant for it.

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use nicforge_driver::{Deadline, Device, OpenOptions};
use nicforge_hwi::torus::{
    BAR_MIRROR, BAR_WINDOW, CHUNK, Channel, FIFO, FIFO_CHUNKS, HEADER, INJECTION_FIFOS, MAX_CHUNKS,
    MAX_PACKET, PacketHeader, RECEPTION_FIFOS, mirror, presence, reg, window,
};
use nicforge_machine::in_process::LocalMachine;
use nicforge_shm::{SharedU32, Window};
use zerocopy::IntoBytes;

use crate::{input::Input, world};

/// Maximum number of actions in one input.
const MAX: usize = 200;
/// Time limit of operations that must succeed.
const LIMIT: Duration = Duration::from_secs(60);
/// The machine. Node 3 is at (1, 1, 0).
const MACHINE: &str = "name = \"torus\"\n[[bgl]]\ntorus = [2, 2, 1]\n";
/// The node with the senders.
const SENDER: u32 = 0;
/// The node with the receivers.
const RECEIVER: u32 = 3;
/// The number that is in the well-behaved clients' packets, and in no hostile one.
const MARK: u64 = 0x7e57_0000_c0de_0000;

/// A client of a core.
struct Client {
    device: Device,
    window: Window,
    mirror: Window,
    /// Chunks that were put into each injection FIFO.
    tails: [u32; INJECTION_FIFOS],
}

impl Client {
    /// Opens a core of a node.
    fn open(machine: &Arc<LocalMachine>, node: u32, core: u16) -> Self {
        let backing = machine.open_named(&format!("bgl{node}.torus"), &format!("core{core}")).unwrap();
        let device = Device::open(backing, OpenOptions::default()).unwrap();
        let memory = |bar, size| device.bar(bar).unwrap().window(0, size).unwrap();
        let (window, mirror) = (memory(BAR_WINDOW, window::SIZE), memory(BAR_MIRROR, mirror::SIZE));
        Self { device, window, mirror, tails: [0; INJECTION_FIFOS] }
    }

    /// Returns a word of the mirror.
    fn mirrored(&self, offset: u64) -> u32 {
        self.mirror.u32(offset).unwrap().load(Ordering::Acquire)
    }

    /// Returns the head of a reception FIFO.
    fn head(&self, fifo: usize) -> SharedU32 {
        self.window.u32(window::RECEPTION_HEAD + window::HEAD_STRIDE * fifo as u64).unwrap()
    }

    /// Writes a register.
    fn set(&self, register: u64, value: u32) {
        self.device.bar(0).unwrap().write32(register, value).unwrap();
    }

    /// Returns whether an injection FIFO has room for this many chunks.
    fn has_room(&self, fifo: usize, chunks: usize) -> bool {
        let head = self.mirrored(mirror::INJECTION_HEAD + 4 * fifo as u64);
        self.tails[fifo].wrapping_sub(head) as usize + chunks <= FIFO_CHUNKS as usize
    }

    /// Puts a packet into the memory of an injection FIFO, and moves its tail.
    fn post(&mut self, fifo: usize, packet: &[u8]) {
        for chunk in packet.chunks(CHUNK) {
            let place = u64::from(self.tails[fifo] % FIFO_CHUNKS) * CHUNK as u64;
            self.window.write(window::INJECTION + FIFO * fifo as u64 + place, chunk).unwrap();
            self.tails[fifo] = self.tails[fifo].wrapping_add(1);
        }
        self.set(reg::INJECTION_TAIL + 4 * fifo as u64, self.tails[fifo]);
    }

    /// Takes the packets that are in the reception FIFOs. A client that has moved a head into the
    /// middle of a packet finds nonsense there, which ends at the tail.
    fn take_all(&self) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        for fifo in 0..RECEPTION_FIFOS {
            let tail = self.mirrored(mirror::RECEPTION_TAIL + 4 * fifo as u64);
            let mut head = self.head(fifo).load(Ordering::Acquire);
            if tail.wrapping_sub(head) > FIFO_CHUNKS {
                // The client has overwritten its head.
                head = tail;
            }
            while head != tail {
                let mut packet = [0; MAX_PACKET];
                for (number, chunk) in packet.chunks_mut(CHUNK).enumerate() {
                    let place = u64::from(head.wrapping_add(number as u32) % FIFO_CHUNKS) * CHUNK as u64;
                    self.mirror.read(mirror::RECEPTION + FIFO * fifo as u64 + place, chunk).unwrap();
                }
                let header: PacketHeader = zerocopy::transmute!(*packet.first_chunk::<HEADER>().unwrap());
                packets.push(packet[..header.chunks() as usize * CHUNK].to_vec());
                let left = tail.wrapping_sub(head);
                head = if header.chunks() <= left { head.wrapping_add(header.chunks()) } else { tail };
            }
            self.head(fifo).store(head, Ordering::Release);
        }
        self.set(reg::HEADS_MOVED, 0);
        packets
    }
}

/// Packets from one core to another.
struct Traffic {
    sender: Client,
    receiver: Client,
    /// The receiver's core.
    core: u16,
    /// Packets sent so far.
    number: u64,
    /// Packets that have not been received, oldest first.
    expected: VecDeque<Vec<u8>>,
}

impl Traffic {
    /// Opens a core of the senders' node, and another of the receivers'.
    fn new(machine: &Arc<LocalMachine>, from: u16, core: u16) -> Self {
        let (sender, receiver) = (Client::open(machine, SENDER, from), Client::open(machine, RECEIVER, core));
        Self { sender, receiver, core, number: 0, expected: VecDeque::new() }
    }

    /// Returns the life of the receiver.
    fn life(&self) -> u16 {
        let word = self.sender.device.bar(0).unwrap().read32(reg::PRESENCE + 4 * u64::from(RECEIVER));
        presence::life(word.unwrap(), self.core)
    }

    /// Sends a packet without a wait, if its FIFO has room. All go the same way.
    fn post(&mut self) {
        let number = self.number + 1;
        let chunks = number as usize % MAX_CHUNKS + 1;
        if !self.sender.has_room(0, chunks) {
            return;
        }

        let header = PacketHeader::to([1, 1, 0], self.core).deterministic().for_life(self.life());
        let mut sent = header.with_payload(chunks * CHUNK - HEADER).as_bytes().to_vec();
        sent.extend((MARK + number).to_le_bytes());
        sent.resize(chunks * CHUNK, number as u8);
        self.sender.post(0, &sent);
        self.number = number;
        self.expected.push_back(sent);
    }

    /// Takes what has arrived. Those that the hostile software has sent here are dropped.
    fn take(&mut self) {
        let is_marked = |packet: &Vec<u8>| packet[HEADER + 4..HEADER + 8] == MARK.to_le_bytes()[4..];
        for packet in self.receiver.take_all().into_iter().filter(is_marked) {
            let number = self.number - self.expected.len() as u64 + 1;
            assert_eq!(Some(packet), self.expected.pop_front(), "packet {number} came as it was sent");
        }
    }

    /// Waits until all packets have arrived.
    fn finish(&mut self) {
        let (deadline, device) = (Deadline::after(LIMIT), self.receiver.device.clone());
        let mut relax = device.new_relax();
        loop {
            self.take();
            if self.expected.is_empty() {
                return;
            }
            let missing = self.expected.len();
            assert!(!deadline.has_passed(), "{missing} of {} packets do not arrive", self.number);
            device.relax(&mut relax).unwrap();
        }
    }

    /// Sends a packet, and waits until it has arrived.
    fn transfer(&mut self) {
        self.post();
        assert!(!self.expected.is_empty(), "the FIFO of a sender whose packets have arrived is empty");
        self.finish();
    }
}

/// Hostile software: a core of either node.
struct Hostile([Client; 2]);

impl Hostile {
    /// Opens the cores that the well-behaved clients do not have.
    fn start(machine: &Arc<LocalMachine>) -> Self {
        Self([Client::open(machine, SENDER, 0), Client::open(machine, RECEIVER, 1)])
    }

    /// Performs one action at either node.
    fn act(&mut self, input: &mut Input<'_>) {
        let client = &mut self.0[input.below(2) as usize];
        match input.below(16) {
            0 => {
                let register = u64::from(input.below((reg::SIZE / 4) as u32)) * 4;
                client.set(register, input.number32());
            }
            1 => {
                let fifo = input.below(INJECTION_FIFOS as u32) as usize;
                client.tails[fifo] = input.number32();
                client.set(reg::INJECTION_TAIL + 4 * fifo as u64, client.tails[fifo]);
            }
            2 => client
                .head(input.below(RECEPTION_FIFOS as u32) as usize)
                .store(input.number32(), Ordering::Release),
            3 => {
                let _ = client.take_all();
            }
            4 if input.below(8) == 0 => {
                client.device.reset().unwrap();
                client.tails = [0; INJECTION_FIFOS];
            }
            5 => {
                let mut data = vec![0; input.pick(&[4, 8, 16, 1, 64])];
                let _ = client.device.backing().read(0, input.number() % reg::SIZE, &mut data);
            }
            6 => {
                let data = vec![input.u8(); input.pick(&[8, 16, 4, 32])];
                let port = reg::I0 + u64::from(input.below(0x4000 / 8)) * 8;
                let _ = client.device.bar(0).unwrap().posted_write(port, &data);
            }
            _ => {
                let fifo = input.below(INJECTION_FIFOS as u32) as usize;
                client.post(fifo, &packet(input, fifo));
            }
        }
    }
}

/// Returns a packet that is often valid in an injection FIFO. Its length need not be the header's.
fn packet(input: &mut Input<'_>, fifo: usize) -> Vec<u8> {
    let place = [input.below(2) as u8, input.below(2) as u8, 0];
    let mut header = PacketHeader::to(place, input.below(2) as u16);
    header = match input.below(8) {
        0 => header.deposit(),
        1 => header.deterministic(),
        2 => header.with_channel(Channel::Dynamic1),
        _ if fifo == INJECTION_FIFOS - 1 => header.high_priority(),
        _ => header,
    };
    header = header.with_payload(input.below(256) as usize).with_hints(input.pick(&[0, 0, 0x20, 0x18, 0x3f]));
    if input.below(8) == 0 {
        header.hardware0 = input.u32().into();
        header.hardware1 = input.number32().into();
    }

    let chunks = if input.below(8) == 0 { input.below(9) } else { header.chunks() };
    let mut bytes = header.as_bytes().to_vec();
    bytes.resize((chunks as usize * CHUNK).max(CHUNK), input.u8());
    bytes
}

/// Runs the test body on one fuzz input. The module's documentation describes the steps.
pub fn body(data: &[u8]) {
    let mut input = Input::new(data);
    let machine = world::local(MACHINE);
    let mut traffic = Traffic::new(&machine, 1, 0);
    let mut hostile = Hostile::start(&machine);
    traffic.transfer();

    for _ in 0..MAX {
        if input.is_empty() {
            break;
        }
        match input.below(64) {
            0 => {
                drop(hostile);
                hostile = Hostile::start(&machine);
            }
            1..=8 => traffic.post(),
            9..=10 => traffic.take(),
            _ => hostile.act(&mut input),
        }
        machine.settle(input.below(8));
    }

    // Packets that the hostile software has not taken may be in front of others, as on the machine.
    // They are gone with it.
    drop(hostile);
    traffic.finish();
    (0..5).for_each(|_| traffic.transfer());
    let mut next = Traffic::new(&machine, 0, 1);
    assert!(next.receiver.take_all().is_empty() && next.sender.take_all().is_empty());
    (0..3).for_each(|_| next.transfer());
}
