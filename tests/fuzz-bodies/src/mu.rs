//! A Message Unit of Blue Gene/Q against hostile software with one of its subgroups.
//!
//! The software writes arbitrary descriptors into injection FIFOs with arbitrary pointers, and
//! arbitrary registers; it resets its attachment, and ends at any point. A part of it is a second
//! subgroup at the other node, which takes what comes.
//!
//! Checked: messages between two other subgroups arrive all and unchanged. Memory that its owner
//! has not offered does not change. With the software gone, its subgroup works for another client.

use std::{sync::Arc, time::Duration};

use nicforge_driver::{Deadline, Device, DmaBuffer, HugePages, OpenOptions};
use nicforge_hwi::{
    mu::{BAR_MIRROR, BAR_REGISTERS, DESCRIPTOR, MIRROR_BASE, NO_BASE_ADDRESS, PAGE, atomic, reg},
    mu_packet::{Descriptor, Destination, PacketHeader, channel, fifo_map, kind, packet_type},
};
use nicforge_machine::in_process::LocalMachine;
use nicforge_shm::Window;
use zerocopy::IntoBytes;

use crate::{input::Input, world};

/// Maximum number of actions in one input.
const MAX: usize = 200;
/// Steps after which all packets of software that is gone have arrived.
const MANY_STEPS: u32 = 1000;
/// Time limit of operations that must succeed.
const LIMIT: Duration = Duration::from_secs(60);
/// Bytes of a client's memory.
const MEMORY: usize = 1 << 16;
/// Offsets of the areas in it.
const INJECTION: u64 = 0;
const RECEPTION: u64 = 0x4000;
const COUNTER: u64 = 0x8000;
const SOURCE: u64 = 0xa000;
const SINK: u64 = 0xc000;
/// Descriptors in the injection FIFO.
const SLOTS: u64 = 16;
/// Bytes of the reception FIFO.
const RECEPTION_BYTES: u64 = 0x1000;
/// Bytes of the longest message between the well-behaved clients.
const LONGEST: u64 = 0x1800;
/// The value of bytes that no message may change.
const UNTOUCHED: u8 = 0xc5;

/// A client of a subgroup.
struct Client {
    device: Device,
    mirror: Window,
    memory: DmaBuffer,
    /// Descriptors posted since the client set itself up.
    posted: u64,
}

impl Client {
    /// Opens a subgroup of a node, with memory that the unit may reach.
    fn open(machine: &Arc<LocalMachine>, node: u32, subgroup: u16) -> Self {
        let backing = machine.open_named(&format!("bgq{node}"), &format!("s{subgroup}")).unwrap();
        let device = Device::open(backing, OpenOptions::default()).unwrap();
        let mirror = device.bar(BAR_MIRROR).unwrap().window(MIRROR_BASE, PAGE).unwrap();
        let memory = device.dma_buffer(MEMORY, HugePages::Never).unwrap();
        memory.write(0, &[UNTOUCHED; MEMORY]).unwrap();
        Self { device, mirror, memory, posted: 0 }
    }

    /// Writes a register.
    fn set(&self, register: u64, value: u64) {
        self.device.bar(BAR_REGISTERS).unwrap().write64(register, value).unwrap();
    }

    /// Returns the address of a byte of the client's memory, for the unit.
    fn address(&self, offset: u64) -> u64 {
        self.memory.iova() + offset
    }

    /// Returns a register as the mirror shows it.
    fn mirror_word(&self, register: u64) -> u64 {
        self.mirror.u64(register).unwrap().load(std::sync::atomic::Ordering::Acquire)
    }

    /// Sets up injection FIFO 0 and reception FIFO 0. The first base address entry names the sink,
    /// and the second one the counter, to which messages add.
    fn set_up(&mut self) {
        self.set_fifo(reg::INJECTION, INJECTION, SLOTS * DESCRIPTOR);
        self.set(reg::ENABLE, 1);
        self.set_fifo(reg::RECEPTION, RECEPTION, RECEPTION_BYTES);
        self.set(reg::RECEPTION_ENABLE, 1);
        self.set(reg::BASE_ADDRESS, self.address(SINK));
        self.set(reg::BASE_ADDRESS + 8, self.address(COUNTER) | atomic::INDICATOR | atomic::store::ADD);
    }

    /// Sets up an empty FIFO. Its registers begin at `first`, and its memory at offset `start`.
    fn set_fifo(&self, first: u64, start: u64, bytes: u64) {
        let start = self.address(start);
        for (register, value) in
            [(reg::START, start), (reg::SIZE_1, bytes - 1), (reg::HEAD, start), (reg::TAIL, start)]
        {
            self.set(first + register, value);
        }
    }

    /// Posts a descriptor to injection FIFO 0.
    fn post(&mut self, descriptor: &[u8]) {
        let slot = self.posted % SLOTS * DESCRIPTOR;
        self.memory.write(INJECTION + slot, descriptor).unwrap();
        self.posted += 1;
        self.set(reg::INJECTION + reg::TAIL, self.address(INJECTION + self.posted % SLOTS * DESCRIPTOR));
    }

    /// Returns the counter that messages change.
    fn counter(&self) -> u64 {
        let mut word = [0; 8];
        self.memory.read(COUNTER, &mut word).unwrap();
        u64::from_le_bytes(word)
    }
}

/// Returns a put from an address to a subgroup's sink at node `to`, over the torus.
fn put(to: u8, subgroup: u16, from: u64, length: u64) -> Descriptor {
    let mut header = PacketHeader {
        data_packet_type: kind::POINT_TO_POINT,
        destination: Destination::new([to, 0, 0, 0, 0]),
        ..PacketHeader::default()
    };
    header.set_channel(channel::DETERMINISTIC);
    header.set_packet_type(packet_type::PUT);
    header.set_payload_bytes(512);
    header.unit.set_payload_base_address(subgroup * 8);
    header.unit.set_counter_base_address(subgroup * 8 + 1);
    Descriptor {
        pa_payload: from,
        message_length: length,
        torus_fifo_map: fifo_map::TORUS,
        packet_header: header,
        ..Descriptor::default()
    }
}

/// Messages from a subgroup of node 0 to the same one of node 1.
struct Traffic {
    ends: [Client; 2],
    /// Messages sent so far.
    number: u64,
}

impl Traffic {
    /// Opens the subgroup of both nodes, and sets it up.
    fn new(machine: &Arc<LocalMachine>, subgroup: u16) -> Self {
        let mut ends = [0, 1].map(|node| Client::open(machine, node, subgroup));
        ends.iter_mut().for_each(Client::set_up);
        Self { ends, number: 0 }
    }

    /// Sends a message, and waits until it has arrived.
    fn transfer(&mut self, subgroup: u16) {
        let [local, remote] = &mut self.ends;
        self.number += 1;
        let length = self.number * 613 % LONGEST + 1;
        local.memory.write(SOURCE, &vec![self.number as u8; length as usize]).unwrap();
        remote.memory.write(SINK, &[UNTOUCHED; LONGEST as usize + 64]).unwrap();
        remote.memory.write(COUNTER, &length.to_le_bytes()).unwrap();
        let message = put(1, subgroup, local.address(SOURCE), length);
        local.post(message.as_bytes());

        let (deadline, device) = (Deadline::after(LIMIT), remote.device.clone());
        let mut relax = device.new_relax();
        while remote.counter() != 0
            || local.mirror_word(reg::INJECTION + reg::DESCRIPTOR_COUNT) != self.number
        {
            assert!(!deadline.has_passed(), "message {} of {length} bytes does not arrive", self.number);
            device.relax(&mut relax).unwrap();
        }

        let mut bytes = vec![0; LONGEST as usize + 64];
        remote.memory.read(SINK, &mut bytes).unwrap();
        let (data, rest) = bytes.split_at(length as usize);
        assert!(data.iter().all(|byte| *byte == self.number as u8), "the message came as it was sent");
        assert!(rest.iter().all(|byte| *byte == UNTOUCHED), "nothing came behind it");
    }
}

/// Returns a descriptor that is often valid.
fn descriptor(input: &mut Input<'_>, own: &Client) -> Vec<u8> {
    if input.below(8) == 0 {
        return input.array::<{ DESCRIPTOR as usize }>().to_vec();
    }

    let to = input.below(2) as u8;
    let subgroup = input.pick(&[1, 1, 2, 0, 64, 67, 127]);
    let address = match input.below(8) {
        0 => input.number(),
        1 => own.address(SOURCE) | atomic::INDICATOR | u64::from(input.below(8)),
        _ => own.address(u64::from(input.below(MEMORY as u32))),
    };
    let length = input.pick(&[8, 64, 100, 512, 513, 4096, 0, 1 << 20]);
    let mut descriptor = put(to, subgroup, address, length);
    if input.below(16) == 0 {
        descriptor.message_length = input.number();
    }

    let header = &mut descriptor.packet_header;
    match input.below(4) {
        0 => header.set_packet_type(packet_type::FIFO),
        1 => header.set_packet_type(packet_type::GET),
        _ => header.unit.set_put_offset(input.number()),
    }
    match header.packet_type() {
        packet_type::FIFO => header.unit.set_reception_fifo(subgroup * 4 + input.below(4) as u16),
        packet_type::GET => header.unit.set_get_fifo(subgroup * 8 + input.below(8) as u16),
        _ => {}
    }
    descriptor.torus_fifo_map = match input.below(4) {
        0 => fifo_map::LOCAL0 | fifo_map::LOCAL1,
        1 => 1 << input.below(17),
        _ => fifo_map::TORUS,
    };

    let mut bytes = descriptor.as_bytes().to_vec();
    // One descriptor in four has up to three arbitrary bytes.
    for _ in 0..input.below(4) / 3 * input.below(4) {
        let at = input.below(DESCRIPTOR as u32) as usize;
        bytes[at] = input.u8();
    }
    bytes
}

/// Hostile software: a subgroup at either node.
struct Hostile([Client; 2]);

impl Hostile {
    /// Opens subgroup 1 of both nodes, and sets it up.
    fn start(machine: &Arc<LocalMachine>) -> Self {
        let mut clients = [0, 1].map(|node| Client::open(machine, node, 1));
        clients.iter_mut().for_each(Client::set_up);
        Self(clients)
    }

    /// Performs one action at either node.
    fn act(&mut self, input: &mut Input<'_>) {
        let client = &mut self.0[input.below(2) as usize];
        match input.below(16) {
            0 => {
                let register = u64::from(input.below(0x700 / 8)) * 8;
                let value =
                    if input.flag() { input.number() } else { client.address(input.number() % 0x1_0000) };
                client.set(register, value);
            }
            1 => client.set(reg::RECEPTION + reg::HEAD, client.mirror_word(reg::RECEPTION + reg::TAIL)),
            2 => {
                client.set(reg::DISABLE, 0xff);
                client.set_up();
                client.posted = 0;
            }
            3 => client.set(reg::REMOTE_GET, u64::from(input.u8())),
            4 if input.below(8) == 0 => {
                client.device.reset().unwrap();
                client.set_up();
                client.posted = 0;
            }
            5 => client.set(reg::BARRIER_CONTROL + 8 * u64::from(input.below(16)), 1),
            6 => {
                let mut data = vec![0; input.pick(&[4, 8, 1, 16, 64])];
                let _ = client.device.backing().read(input.below(4), input.number(), &mut data);
            }
            _ => {
                let bytes = descriptor(input, client);
                client.post(&bytes);
            }
        }
    }
}

/// Runs the test body on one fuzz input. The module's documentation describes the steps.
pub fn body(data: &[u8]) {
    let mut input = Input::new(data);
    let machine = world::local("name = \"mu\"\n[[bgq]]\ntorus = [2]\nsubgroups = 3\n");
    let mut traffic = Traffic::new(&machine, 0);
    // Two clients have set up nothing, so that no message may reach their memory.
    let bare = [0, 1].map(|node| Client::open(&machine, node, 2));
    bare.iter().for_each(|client| client.set(reg::BASE_ADDRESS, NO_BASE_ADDRESS));
    let mut hostile = Hostile::start(&machine);

    for _ in 0..MAX {
        if input.is_empty() {
            break;
        }
        match input.below(32) {
            0 if input.below(4) == 0 => {
                drop(hostile);
                hostile = Hostile::start(&machine);
            }
            _ => hostile.act(&mut input),
        }
        machine.settle(input.below(8));
    }

    // A packet that waits for the hostile software's own FIFOs may be in front of others, as on
    // Blue Gene/Q. It is gone with the software.
    drop(hostile);
    // Puts of the hostile software to offered memory may be on their way. They must not meet the
    // messages, whose counters and data they change.
    machine.settle(MANY_STEPS);
    (0..5).for_each(|_| traffic.transfer(0));
    drop(traffic);
    let mut next = Traffic::new(&machine, 1);
    (0..3).for_each(|_| next.transfer(1));

    for client in &bare {
        let mut bytes = vec![0; MEMORY];
        client.memory.read(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == UNTOUCHED), "memory that was not offered was written");
    }
}
