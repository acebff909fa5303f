//! Nodes whose clients a test plays.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of tests fails the test")]

use std::sync::{Arc, atomic::Ordering};

use nicforge_core::{
    fabric::LinkId,
    ids::{AttachmentId, FunctionId},
    machine::Next,
};
use nicforge_hwi::{
    mu::{
        BAR_MIRROR, DESCRIPTOR, DEVICE_CONTROL, FIRST_SUBGROUP, KERNEL, MIRROR_BASE, PAGE, RECEPTION_FIFOS,
        USER_SUBGROUPS, atomic, reg,
    },
    mu_packet::{
        CHUNK, Descriptor, Destination, HEADER, MAX_PAYLOAD, PacketHeader, channel, fifo_map, kind,
        packet_type,
    },
};
use nicforge_mu::{MessageUnit, Network, Options};
use nicforge_network::shape::CableEnd;
use nicforge_shm::SharedMemory;
use nicforge_test_kit::{BUDGET, Client, InterruptCount, PostedRing, Testbed};
use zerocopy::{FromBytes, IntoBytes};

/// Address of each client's memory, and its length.
pub(crate) const MEMORY: u64 = 0x10_0000;
pub(crate) const MEMORY_BYTES: usize = 8 << 20;
/// Injection FIFOs: 64 slots each.
const INJECTION: u64 = MEMORY;
const INJECTION_BYTES: u64 = 64 * DESCRIPTOR;
/// Reception FIFOs.
const RECEPTION: u64 = MEMORY + 0x1_0000;
pub(crate) const RECEPTION_BYTES: u64 = 0x1_0000;
/// Reception counters, which entry 1 of the base address table has.
pub(crate) const COUNTERS: u64 = MEMORY + 0x8_0000;
/// Data, which entry 0 of the base address table has.
pub(crate) const DATA: u64 = MEMORY + 0x10_0000;
/// Payload that is sent.
pub(crate) const PAYLOAD: u64 = MEMORY + 0x40_0000;

/// Steps after which a wait fails the test.
const MAX_STEPS: u32 = 100_000;
/// Maximum number of nanoseconds that the clock advances in a step without an event.
const TICK: u64 = 1_000;

/// Returns bytes that differ from those of other seeds and lengths.
pub(crate) fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 7 + (index >> 8) * 13 + seed * 31 + 1) as u8).collect()
}

/// Returns a descriptor of a message to a node of a line, without type.
fn message(to: [u8; 5], is_local: bool, payload: u64, length: u64) -> Descriptor {
    let mut header = PacketHeader {
        data_packet_type: kind::POINT_TO_POINT,
        destination: Destination::new(to),
        ..PacketHeader::default()
    };
    header.set_channel(channel::DETERMINISTIC);
    header.set_payload_bytes(MAX_PAYLOAD);

    Descriptor {
        pa_payload: payload,
        message_length: length,
        torus_fifo_map: if is_local { fifo_map::LOCAL0 | fifo_map::LOCAL1 } else { fifo_map::TORUS },
        packet_header: header,
        ..Descriptor::default()
    }
}

/// A node as the target of messages: its number, and that of the sender.
#[derive(Clone, Copy)]
pub(crate) struct Way {
    pub(crate) from: u8,
    pub(crate) to: u8,
}

impl Way {
    fn message(self, payload: u64, length: usize) -> Descriptor {
        message([self.to, 0, 0, 0, 0], self.from == self.to, payload, length as u64)
    }

    /// Returns a message for a reception FIFO.
    pub(crate) fn fifo(self, fifo: u16, payload: u64, length: usize) -> Descriptor {
        let mut descriptor = self.message(payload, length);
        descriptor.packet_header.set_packet_type(packet_type::FIFO);
        descriptor.packet_header.unit.set_reception_fifo(fifo);
        descriptor
    }

    /// Returns a put to a subgroup's data at an offset, whose counter has this number.
    pub(crate) fn put(
        self,
        subgroup: u16,
        offset: u64,
        counter: u64,
        payload: u64,
        length: usize,
    ) -> Descriptor {
        let mut descriptor = self.message(payload, length);
        let header = &mut descriptor.packet_header;
        header.set_packet_type(packet_type::PUT);
        header.unit.set_payload_base_address(subgroup * 8);
        header.unit.set_put_offset(offset);
        header.unit.set_counter_base_address(subgroup * 8 + 1);
        header.unit.set_counter_offset(counter * 8);
        descriptor
    }

    /// Returns a message of descriptors for an injection FIFO.
    pub(crate) fn get(self, fifo: u16, payload: u64, length: usize) -> Descriptor {
        let mut descriptor = self.message(payload, length);
        descriptor.packet_header.set_packet_type(packet_type::GET);
        descriptor.packet_header.unit.set_get_fifo(fifo);
        descriptor
    }
}

/// A client of a subgroup, with memory, FIFOs and base addresses.
pub(crate) struct User {
    pub(crate) client: Client,
    /// Number of the subgroup.
    pub(crate) subgroup: u16,
    pub(crate) memory: SharedMemory,
    pub(crate) interrupts: Vec<Arc<InterruptCount>>,
    mirror: SharedMemory,
    ring: PostedRing,
    tails: [u64; 8],
    heads: [u64; 4],
}

impl User {
    /// Attaches to a subgroup, and sets up everything: injection FIFOs 0 to 5, FIFO 6 for remote
    /// gets, all reception FIFOs, and the base addresses of data and counters.
    pub(crate) fn attach(bed: &mut Testbed, function: FunctionId, subgroup: u16) -> Self {
        let mut user = Self::attach_bare(bed, function, subgroup);
        user.set_up(bed);
        user
    }

    /// Attaches to a subgroup.
    pub(crate) fn attach_bare(bed: &mut Testbed, function: FunctionId, subgroup: u16) -> Self {
        let attachment = if subgroup < USER_SUBGROUPS { FIRST_SUBGROUP + subgroup } else { KERNEL };
        let client = Client::attach(bed, function, AttachmentId(attachment));
        let memory = client.map(bed, MEMORY, MEMORY_BYTES);
        let interrupts = client.bind_msix(bed);
        let mirror = client.memory(bed, BAR_MIRROR.into());
        let ring = client.ring(bed);
        Self { client, subgroup, memory, interrupts, mirror, ring, tails: [0; 8], heads: [0; 4] }
    }

    /// Sets up FIFOs and base addresses.
    pub(crate) fn set_up(&mut self, bed: &mut Testbed) {
        for fifo in 0..7 {
            self.set_injection(bed, fifo, INJECTION + fifo * INJECTION_BYTES, INJECTION_BYTES);
        }
        self.set(bed, reg::REMOTE_GET, 1 << 6);
        self.set(bed, reg::ENABLE, 0x7f);

        for fifo in 0..RECEPTION_FIFOS.into() {
            self.set_reception(bed, fifo, RECEPTION + fifo * RECEPTION_BYTES, RECEPTION_BYTES);
        }
        self.set(bed, reg::RECEPTION_ENABLE, 0xf);
        self.set(bed, reg::BASE_ADDRESS, DATA);
        self.set(bed, reg::BASE_ADDRESS + 8, atomic::INDICATOR | atomic::store::ADD | COUNTERS);
        // The mirror shows the pointers at the end of a step.
        bed.settle();
    }

    /// Sets the place and size of an injection FIFO, which is empty then.
    pub(crate) fn set_injection(&mut self, bed: &mut Testbed, fifo: u64, start: u64, bytes: u64) {
        let base = reg::INJECTION + fifo * reg::FIFO;
        for (register, value) in
            [(reg::START, start), (reg::SIZE_1, bytes - 1), (reg::HEAD, start), (reg::TAIL, start)]
        {
            self.set(bed, base + register, value);
        }
        self.tails[fifo as usize] = start;
    }

    pub(crate) fn set_reception(&mut self, bed: &mut Testbed, fifo: u64, start: u64, bytes: u64) {
        let base = reg::RECEPTION + fifo * reg::FIFO;
        for (register, value) in
            [(reg::START, start), (reg::SIZE_1, bytes - 1), (reg::HEAD, start), (reg::TAIL, start)]
        {
            self.set(bed, base + register, value);
        }
        self.heads[fifo as usize] = start;
    }

    fn page(&self) -> u64 {
        u64::from(self.subgroup.saturating_sub(USER_SUBGROUPS)) * PAGE
    }

    /// Writes a register of the subgroup.
    pub(crate) fn set(&self, bed: &mut Testbed, offset: u64, value: u64) {
        self.client.write64(bed, 0, self.page() + offset, value);
    }

    /// Reads a register of the subgroup.
    pub(crate) fn get(&self, bed: &mut Testbed, offset: u64) -> u64 {
        self.client.read64(bed, 0, self.page() + offset)
    }

    /// Writes a device control register.
    pub(crate) fn set_control(&self, bed: &mut Testbed, offset: u64, value: u64) {
        self.client.write64(bed, 0, DEVICE_CONTROL + offset, value);
    }

    /// Reads a device control register.
    pub(crate) fn control(&self, bed: &mut Testbed, offset: u64) -> u64 {
        self.client.read64(bed, 0, DEVICE_CONTROL + offset)
    }

    /// Returns a word of the subgroup's mirror page.
    pub(crate) fn shown(&self, offset: u64) -> u64 {
        self.mirror.u64(MIRROR_BASE + self.page() + offset).unwrap().load(Ordering::Acquire)
    }

    /// Returns a word of an injection FIFO in the mirror.
    pub(crate) fn shown_injection(&self, fifo: u64, register: u64) -> u64 {
        self.shown(reg::INJECTION + fifo * reg::FIFO + register)
    }

    /// Returns a word of a reception FIFO in the mirror.
    pub(crate) fn shown_reception(&self, fifo: u64, register: u64) -> u64 {
        self.shown(reg::RECEPTION + fifo * reg::FIFO + register)
    }

    /// Posts a write of a register of the subgroup.
    pub(crate) fn post(&mut self, bed: &mut Testbed, offset: u64, value: u64) {
        self.ring.push64(0, (self.page() + offset) as u32, value);
        bed.rescan();
    }

    /// Puts a write of any length into the ring, which the device sees with the next post.
    pub(crate) fn post_bytes(&mut self, offset: u64, data: &[u8]) {
        self.ring.push(0, (self.page() + offset) as u32, data).unwrap();
    }

    /// Puts a descriptor into an injection FIFO, which must have room.
    pub(crate) fn inject(&mut self, bed: &mut Testbed, fifo: usize, descriptor: &Descriptor) {
        let (start, tail) = (INJECTION + fifo as u64 * INJECTION_BYTES, self.tails[fifo]);
        self.write(tail, descriptor.as_bytes());
        let next = tail + DESCRIPTOR;
        self.tails[fifo] = if next == start + INJECTION_BYTES { start } else { next };
        self.post(bed, reg::INJECTION + fifo as u64 * reg::FIFO + reg::TAIL, self.tails[fifo]);
    }

    /// Returns the tail that was posted last.
    pub(crate) fn get_tail(&self, fifo: usize) -> u64 {
        self.tails[fifo]
    }

    /// Starts again with an empty ring of posted writes, after a reset.
    pub(crate) fn restart_ring(&mut self) {
        self.ring.restart();
    }

    /// Takes the packets of a reception FIFO that has the usual place, and frees their memory.
    pub(crate) fn take(&mut self, bed: &mut Testbed, fifo: usize) -> Vec<(PacketHeader, Vec<u8>)> {
        let (packets, head) = self.packets(fifo);
        self.heads[fifo] = head;
        self.post(bed, reg::RECEPTION + fifo as u64 * reg::FIFO + reg::HEAD, head);
        packets
    }

    /// Returns the packets of a reception FIFO, and the head after them.
    pub(crate) fn packets(&self, fifo: usize) -> (Vec<(PacketHeader, Vec<u8>)>, u64) {
        let base = reg::RECEPTION + fifo as u64 * reg::FIFO;
        let start = RECEPTION + fifo as u64 * RECEPTION_BYTES;
        let (mut head, tail) = (self.heads[fifo], self.shown(base + reg::TAIL));

        let mut packets = Vec::new();
        while head != tail {
            assert!(packets.len() as u64 <= RECEPTION_BYTES / CHUNK as u64, "the tail is not reached");
            let read = |at: u64, length: usize| {
                let chunks =
                    (0..length / CHUNK).map(|chunk| (at - start + (chunk * CHUNK) as u64) % RECEPTION_BYTES);
                chunks.flat_map(|offset| self.read(start + offset, CHUNK)).collect::<Vec<_>>()
            };
            let header = PacketHeader::read_from_bytes(&read(head, HEADER)).unwrap();
            let payload = read(head + HEADER as u64, header.payload_bytes());
            head = start + (head - start + (HEADER + payload.len()) as u64) % RECEPTION_BYTES;
            packets.push((header, payload));
        }
        (packets, head)
    }

    pub(crate) fn write(&self, address: u64, bytes: &[u8]) {
        self.memory.write(address - MEMORY, bytes).unwrap();
    }

    pub(crate) fn read(&self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.read(address - MEMORY, &mut bytes).unwrap();
        bytes
    }

    pub(crate) fn write64(&self, address: u64, value: u64) {
        self.write(address, &value.to_le_bytes());
    }

    pub(crate) fn read64(&self, address: u64) -> u64 {
        u64::from_le_bytes(self.read(address, 8).try_into().unwrap())
    }

    /// Returns the number of descriptors done, as the mirror shows it.
    pub(crate) fn done(&self, fifo: u64) -> u64 {
        self.shown_injection(fifo, reg::DESCRIPTOR_COUNT)
    }

    /// Returns the fault of an injection FIFO, as the mirror shows it.
    pub(crate) fn fault(&self, fifo: u64) -> u64 {
        self.shown_injection(fifo, reg::FAULT)
    }
}

/// A network.
pub(crate) struct Rig {
    pub(crate) bed: Testbed,
    pub(crate) functions: Vec<FunctionId>,
    pub(crate) links: Vec<LinkId>,
    pub(crate) network: Network,
}

impl Rig {
    /// Returns a network without clients.
    pub(crate) fn new(lengths: &[u32], options: Options) -> Self {
        let network = Network::torus(lengths, &[], options).unwrap();
        let mut bed = Testbed::new();
        let functions: Vec<_> = (0..network.nodes())
            .map(|node| bed.add(&format!("bgq{node}"), MessageUnit::new(&network, node).unwrap()))
            .collect();

        let mut links = Vec::new();
        for cable in network.cables() {
            let end = |end: CableEnd| (functions[end.node as usize], end.port);
            links.push(bed.connect(end(cable.a), end(cable.b), network.options().link.clone()));
        }
        Self { bed, functions, links, network }
    }

    /// Returns two nodes, each with a client of subgroup 0.
    pub(crate) fn pair() -> (Self, [User; 2]) {
        let mut rig = Self::new(&[2], Options::default());
        let users = [0, 1].map(|node| rig.user(node, 0));
        (rig, users)
    }

    /// Attaches a client to a subgroup of a node, and sets it up.
    pub(crate) fn user(&mut self, node: usize, subgroup: u16) -> User {
        User::attach(&mut self.bed, self.functions[node], subgroup)
    }

    /// Attaches a client to the system's subgroup, and sets it up.
    pub(crate) fn kernel(&mut self, node: usize) -> User {
        self.user(node, USER_SUBGROUPS)
    }

    /// Steps the machine until a condition holds.
    #[track_caller]
    pub(crate) fn until(&mut self, mut condition: impl FnMut(&mut Self) -> bool) {
        self.bed.rescan();
        for _ in 0..MAX_STEPS {
            if condition(self) {
                return;
            }
            self.step();
        }
        panic!("the condition does not hold in {MAX_STEPS} steps");
    }

    /// Steps once, and advances the clock to the next event.
    pub(crate) fn step(&mut self) -> Next {
        let (now, next) = (self.bed.now(), self.bed.step(BUDGET));
        let event = self.bed.fabric().next_event().min(now.after(TICK));
        match next {
            Next::Now => {}
            Next::Poll => self.bed.advance_to(event),
            Next::At(time) => self.bed.advance_to(time.min(event)),
        }
        next
    }

    /// Steps until nothing has happened for a while.
    #[track_caller]
    pub(crate) fn settle(&mut self) {
        self.bed.rescan();
        let mut quiet = 0;
        for _ in 0..MAX_STEPS {
            if quiet == 20 {
                return;
            }
            quiet = if self.step() == Next::Now { 0 } else { quiet + 1 };
        }
        panic!("the machine is still busy after {MAX_STEPS} steps");
    }

    pub(crate) fn counter(&mut self, node: usize, name: &str) -> u64 {
        let counters = self.bed.counters(self.functions[node]);
        counters.iter().find(|counter| counter.name == name).unwrap().value
    }
}
