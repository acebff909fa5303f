//! A network of packets in memory, and programs that use it.
//!
//! Packets are delayed and re-ordered at random, all memory of the network is bounded, and a
//! packet for another life of its receiver is dropped. The same seed gives the same run.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests, each of which uses a part"
)]

use std::{
    cell::RefCell,
    collections::{BTreeMap, VecDeque},
    rc::Rc,
};

use nicforge_bgl::{
    Error,
    message::{
        Arrival, Buffer, Callbacks, Config, Disposition, INFORMATION, MessageLayer, ReceiveHandle, Received,
        Region, Sent, wire::SoftwareHeader,
    },
    packet::{PacketDevice, PayloadReader, Place, Rank, Shape, Verdict},
};
use nicforge_hwi::torus::{CHUNK, FIFO, FIFO_CHUNKS, HEADER, MAX_PAYLOAD, PacketHeader};
use nicforge_shm::{SharedMemory, Window};
use zerocopy::IntoBytes;

/// Packets that a rank can have in its injection FIFOs.
const INJECTION: usize = 8;
/// Packets that can be on their way to a rank.
const FLIGHT: usize = 24;
/// Packets that can wait for a rank.
const RECEPTION: usize = 12;

/// A generator of pseudo-random numbers (xorshift).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns a number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % bound.max(1)
    }
}

#[derive(Clone, Debug)]
pub struct Packet {
    pub header: PacketHeader,
    pub payload: Vec<u8>,
}

#[derive(Debug, Default)]
struct Station {
    life: u16,
    injection: VecDeque<Packet>,
    /// Packets on their way to this rank, in no order.
    flight: Vec<Packet>,
    reception: VecDeque<Packet>,
    /// A second reception FIFO, which is read first and has what tests put there.
    other_reception: VecDeque<Packet>,
}

#[derive(Debug)]
struct Core {
    shape: Shape,
    stations: Vec<Station>,
    changes: u32,
    dropped: usize,
    random: Random,
}

impl Core {
    fn rank_of(&self, header: PacketHeader) -> usize {
        let node = self.shape.node(header.destination()).unwrap();
        usize::from(Rank::new(node as u16, header.group() as u16).0)
    }

    /// Moves a random number of packets.
    fn step(&mut self) {
        for station in 0..self.stations.len() {
            for _ in 0..self.random.below(4) {
                let Some(packet) = self.stations[station].injection.front() else { break };
                let to = self.rank_of(packet.header);
                if self.stations[to].flight.len() == FLIGHT {
                    break;
                }
                let packet = self.stations[station].injection.pop_front().unwrap();
                self.stations[to].flight.push(packet);
            }

            for _ in 0..self.random.below(5) {
                let in_flight = self.stations[station].flight.len();
                if in_flight == 0 || self.stations[station].reception.len() == RECEPTION {
                    break;
                }
                let choice = self.random.below(in_flight);
                let packet = self.stations[station].flight.swap_remove(choice);
                let life = packet.header.life();
                if life != 0 && life != self.stations[station].life {
                    self.dropped += 1;
                    continue;
                }
                self.stations[station].reception.push_back(packet);
            }
        }
    }
}

/// A network of ranks.
#[derive(Clone, Debug)]
pub struct Network(Rc<RefCell<Core>>);

impl Network {
    /// Makes a network of a line of nodes.
    pub fn new(nodes: u8, seed: u64) -> Self {
        let shape = Shape { last: [nodes - 1, 0, 0], wraps: [true, false, false] };
        let stations =
            (0..usize::from(nodes) * 2).map(|_| Station { life: 1, ..Station::default() }).collect();
        Self(Rc::new(RefCell::new(Core {
            shape,
            stations,
            changes: 0,
            dropped: 0,
            random: Random::new(seed),
        })))
    }

    /// Returns the port of a rank's present life.
    pub fn port(&self, rank: Rank) -> Port {
        let core = self.0.borrow();
        let place = Place {
            rank,
            life: core.stations[usize::from(rank.0)].life,
            coordinates: core.shape.coordinates(rank.node().into()).unwrap(),
            shape: core.shape,
        };
        let memory = SharedMemory::create("ring", FIFO as usize).unwrap();
        Port { core: self.0.clone(), place, ring: memory.window(0, FIFO).unwrap(), chunk: 0 }
    }

    pub fn step(&self) {
        self.0.borrow_mut().step();
    }

    /// Ends the process of a rank: its FIFOs are emptied. Starts a new one if `restart`.
    pub fn end_process(&self, rank: Rank, restart: bool) {
        let mut core = self.0.borrow_mut();
        core.changes += 1;
        let station = &mut core.stations[usize::from(rank.0)];
        station.life += if restart { 2 } else { 1 };
        station.injection.clear();
        station.reception.clear();
        station.other_reception.clear();
    }

    /// Starts a process on a rank that has none.
    pub fn start_process(&self, rank: Rank) {
        let mut core = self.0.borrow_mut();
        core.changes += 1;
        core.stations[usize::from(rank.0)].life += 1;
    }

    /// Returns the number of packets that were dropped because they were for another life.
    pub fn dropped(&self) -> usize {
        self.0.borrow().dropped
    }

    /// Returns whether no packet is anywhere.
    pub fn is_empty(&self) -> bool {
        let core = self.0.borrow();
        core.stations.iter().all(|station| {
            station.injection.is_empty()
                && station.flight.is_empty()
                && station.reception.is_empty()
                && station.other_reception.is_empty()
        })
    }

    /// Puts a packet into the reception FIFO of a rank.
    pub fn deliver(&self, rank: Rank, header: PacketHeader, payload: &[u8]) {
        let mut core = self.0.borrow_mut();
        let header = header.with_payload(payload.len());
        let mut payload = payload.to_vec();
        payload.resize(header.chunks() as usize * CHUNK - HEADER, 0);
        core.stations[usize::from(rank.0)].reception.push_back(Packet { header, payload });
    }

    /// Puts a packet of a process into the other reception FIFO of a rank.
    pub fn deliver_to_other(&self, rank: Rank, packet: Packet) {
        let mut core = self.0.borrow_mut();
        core.stations[usize::from(rank.0)].other_reception.push_back(packet);
    }

    /// Takes all packets that are on their way to a rank or wait for it.
    pub fn take_packets_for(&self, rank: Rank) -> Vec<Packet> {
        let mut core = self.0.borrow_mut();
        let mut taken: Vec<Packet> = Vec::new();
        for station in 0..core.stations.len() {
            while let Some(packet) = core.stations[station].injection.pop_front() {
                let to = core.rank_of(packet.header);
                core.stations[to].flight.push(packet);
            }
        }
        let station = &mut core.stations[usize::from(rank.0)];
        taken.append(&mut station.flight);
        taken.extend(station.reception.drain(..));
        taken
    }
}

/// A rank's access to the network.
#[derive(Debug)]
pub struct Port {
    core: Rc<RefCell<Core>>,
    place: Place,
    /// Memory from which packets are read.
    ring: Window,
    /// Where the next packet is put into the ring.
    chunk: u32,
}

impl PacketDevice for Port {
    fn place(&self) -> &Place {
        &self.place
    }

    fn life(&self, rank: Rank) -> Result<u16, Error> {
        Ok(self.core.borrow().stations[usize::from(rank.0)].life)
    }

    fn life_changes(&self) -> Result<u32, Error> {
        Ok(self.core.borrow().changes)
    }

    fn send<'a>(
        &mut self,
        header: PacketHeader,
        payload: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> Result<bool, Error> {
        let mut core = self.core.borrow_mut();
        let station = &mut core.stations[usize::from(self.place.rank.0)];
        if station.life != self.place.life || station.injection.len() == INJECTION {
            return Ok(false);
        }

        let len = payload.clone().map(<[u8]>::len).sum();
        assert!(len <= MAX_PAYLOAD, "{len} bytes of payload");
        let header = header.with_payload(len);
        let mut bytes = Vec::with_capacity(MAX_PAYLOAD);
        payload.for_each(|piece| bytes.extend_from_slice(piece));
        bytes.resize(header.chunks() as usize * CHUNK - HEADER, 0);
        station.injection.push_back(Packet { header, payload: bytes });
        Ok(true)
    }

    fn publish(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn has_sent_all(&self) -> bool {
        self.core.borrow().stations[usize::from(self.place.rank.0)].injection.is_empty()
    }

    fn receive(
        &mut self,
        mut handler: impl FnMut(PacketHeader, PayloadReader<'_>) -> Verdict,
    ) -> Result<usize, Error> {
        let mut core = self.core.borrow_mut();
        let station = &mut core.stations[usize::from(self.place.rank.0)];
        if station.life != self.place.life {
            return Ok(0);
        }

        let mut taken = 0;
        for fifo in [&mut station.other_reception, &mut station.reception] {
            while let Some(packet) = fifo.front() {
                // The packet goes around the end of the ring now and then.
                for (chunk, bytes) in (self.chunk..).zip(packet_bytes(packet).chunks(CHUNK)) {
                    self.ring.write(u64::from(chunk % FIFO_CHUNKS) * CHUNK as u64, bytes).unwrap();
                }
                let reader = PayloadReader::new(&self.ring, self.chunk, packet.header.chunks());
                if handler(packet.header, reader) == Verdict::Left {
                    break;
                }
                self.chunk = self.chunk.wrapping_add(packet.header.chunks());
                taken += 1;
                fifo.pop_front();
            }
        }
        Ok(taken)
    }
}

/// Returns the software header of a packet of the message layer.
pub fn software_header(packet: &Packet) -> SoftwareHeader {
    SoftwareHeader::decode(packet.header.software).unwrap()
}

fn packet_bytes(packet: &Packet) -> Vec<u8> {
    [packet.header.as_bytes(), &packet.payload].concat()
}

/// Returns the byte of a message at an index.
pub fn pattern(number: u32, index: usize) -> u8 {
    (number.wrapping_mul(31) as usize + index * 7 + index / 251) as u8
}

/// Returns the match information of a message with a number.
pub fn information(number: u32) -> [u8; INFORMATION] {
    let mut information = [0xa5; INFORMATION];
    information[..4].copy_from_slice(&number.to_le_bytes());
    information
}

pub fn number_of(information: &[u8; INFORMATION]) -> u32 {
    u32::from_le_bytes(information[..4].try_into().unwrap())
}

/// Where a message lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// In one piece, at this offset.
    At(usize),
    /// In pieces of up to this length, in reverse order, with gaps.
    Scattered(usize),
}

/// Returns a buffer of `len` bytes.
pub fn buffer(layout: Layout, len: usize) -> Buffer {
    match layout {
        Layout::At(start) => Buffer::region(vec![0; start + len], Region { start, len }).unwrap(),
        Layout::Scattered(piece) => {
            let pieces = len.div_ceil(piece);
            let regions = (0..pieces).map(|number| Region {
                start: (pieces - 1 - number) * (piece + 3) + 1,
                len: piece.min(len - number * piece),
            });
            Buffer::scattered(vec![0; pieces * (piece + 3) + 1], regions.collect::<Vec<_>>()).unwrap()
        }
    }
}

/// Returns a buffer with the pattern of a message.
pub fn filled(layout: Layout, number: u32, len: usize) -> Buffer {
    let bytes: Vec<u8> = (0..len).map(|index| pattern(number, index)).collect();
    match layout {
        Layout::At(start) => {
            let mut memory = vec![0; start];
            memory.extend_from_slice(&bytes);
            Buffer::region(memory, Region { start, len }).unwrap()
        }
        Layout::Scattered(piece) => {
            let pieces = len.div_ceil(piece);
            let mut memory = vec![0xee; pieces * (piece + 3) + 1];
            let mut regions = Vec::new();
            for (number, part) in bytes.chunks(piece).enumerate() {
                let start = (pieces - 1 - number) * (piece + 3) + 1;
                memory[start..start + part.len()].copy_from_slice(part);
                regions.push(Region { start, len: part.len() });
            }
            Buffer::scattered(memory, regions).unwrap()
        }
    }
}

/// Returns the bytes of a message in a buffer of [`buffer`] for `len` bytes.
pub fn contents(layout: Layout, buffer: Buffer, len: usize) -> Vec<u8> {
    let memory = buffer.into_memory();
    match layout {
        Layout::At(start) => memory[start..start + len].to_vec(),
        Layout::Scattered(piece) => {
            let pieces = len.div_ceil(piece);
            (0..len)
                .map(|index| {
                    let number = index / piece;
                    memory[(pieces - 1 - number) * (piece + 3) + 1 + index % piece]
                })
                .collect()
        }
    }
}

/// A program's decision about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Receive(Layout),
    /// Receives so many bytes only.
    Truncate(usize),
    Discard,
    /// Receives it after so many turns.
    Later(usize),
    /// Never decides.
    Never,
}

/// A message that has ended at the receiver.
#[derive(Debug)]
pub struct Finished {
    pub number: u32,
    pub source: Rank,
    pub length: usize,
    pub stored: usize,
    /// Bytes of the message, if it had a buffer.
    pub bytes: Option<Vec<u8>>,
    pub result: Result<(), Error>,
}

/// A program: it follows a policy for each message, by the message's number.
#[derive(Debug, Default)]
pub struct Program {
    pub policies: BTreeMap<u32, Policy>,
    pub default: Option<Policy>,
    /// Numbers of messages, in the order of their presentation.
    pub presented: Vec<(Rank, u32)>,
    pub finished: Vec<Finished>,
    pub sent: Vec<(Rank, Result<(), Error>)>,
    /// Messages to decide about, and in how many turns.
    pub postponed: Vec<(usize, ReceiveHandle, usize)>,
    /// Layouts of the buffers in use.
    layouts: BTreeMap<u32, (Layout, usize)>,
}

impl Program {
    pub fn with(default: Policy) -> Self {
        Self { default: Some(default), ..Self::default() }
    }

    fn receive(&mut self, number: u32, layout: Layout, len: usize) -> Disposition {
        self.layouts.insert(number, (layout, len));
        Disposition::Receive(buffer(layout, len))
    }

    pub fn numbers(&self) -> Vec<u32> {
        self.finished.iter().map(|finished| finished.number).collect()
    }

    pub fn errors(&self) -> usize {
        self.finished.iter().filter(|finished| finished.result.is_err()).count()
            + self.sent.iter().filter(|(_, result)| result.is_err()).count()
    }
}

impl Callbacks for Program {
    fn recvnew(&mut self, arrival: &Arrival) -> Disposition {
        let number = number_of(&arrival.information);
        self.presented.push((arrival.source, number));
        let policy = self.policies.get(&number).copied().or(self.default);
        match policy.unwrap_or(Policy::Receive(Layout::At(0))) {
            Policy::Receive(layout) => self.receive(number, layout, arrival.length),
            Policy::Truncate(len) => self.receive(number, Layout::At(1), len),
            Policy::Discard => Disposition::Discard,
            Policy::Later(turns) => {
                self.postponed.push((turns, arrival.handle, arrival.length));
                Disposition::Later
            }
            Policy::Never => Disposition::Later,
        }
    }

    fn recvdone(&mut self, received: Received) {
        let number = number_of(&received.information);
        let layout = self.layouts.remove(&number);
        let bytes = received.buffer.map(|buffer| {
            let (layout, len) = layout.unwrap_or((Layout::At(0), received.length));
            contents(layout, buffer, len)
        });
        self.finished.push(Finished {
            number,
            source: received.source,
            length: received.length,
            stored: received.stored,
            bytes,
            result: received.result,
        });
    }

    fn senddone(&mut self, sent: Sent) {
        self.sent.push((sent.destination, sent.result));
    }
}

/// A network with a message layer and a program on each rank.
pub struct World {
    pub network: Network,
    pub layers: Vec<MessageLayer<Port>>,
    pub programs: Vec<Program>,
    random: Random,
    config: Config,
}

impl World {
    /// Makes a world with a program on core 0 of each node. Program `n` has rank `2 * n`.
    pub fn new(nodes: u8, seed: u64, config: Config) -> Self {
        let network = Network::new(nodes, seed);
        let layer = |node| MessageLayer::init(network.port(Rank::new(node, 0)), config).unwrap();
        let layers = (0..u16::from(nodes)).map(layer).collect();
        let programs = (0..nodes).map(|_| Program::default()).collect();
        Self { network, layers, programs, random: Random::new(seed ^ 0x55), config }
    }

    pub fn rank(node: usize) -> Rank {
        Rank::new(node as u16, 0)
    }

    pub fn post(&mut self, from: usize, to: usize, number: u32, buffer: Buffer) {
        self.layers[from].postsend(Self::rank(to), information(number), buffer).unwrap();
    }

    /// Lets the network and a random selection of the ranks move on.
    pub fn turn(&mut self) {
        self.network.step();
        for node in 0..self.layers.len() {
            if self.random.below(3) != 0 {
                self.advance(node);
            }
        }
    }

    pub fn advance(&mut self, node: usize) {
        let (layer, program) = (&mut self.layers[node], &mut self.programs[node]);
        layer.advance(program).unwrap();

        for (turns, handle, length) in std::mem::take(&mut program.postponed) {
            if turns == 0 {
                // The message may have failed meanwhile.
                let buffer = buffer(Layout::At(0), length);
                let _ = layer.decide(handle, Disposition::Receive(buffer), program);
            } else {
                program.postponed.push((turns - 1, handle, length));
            }
        }
    }

    pub fn turns(&mut self, turns: usize) {
        for _ in 0..turns {
            self.turn();
        }
    }

    /// Moves on until a condition holds.
    ///
    /// # Panics
    /// If that takes more than `limit` turns.
    pub fn run_until(&mut self, limit: usize, condition: impl Fn(&Self) -> bool) {
        for _ in 0..limit {
            if condition(self) {
                return;
            }
            self.turn();
        }
        panic!(
            "not after {limit} turns: {:?}",
            self.layers.iter().map(MessageLayer::statistics).collect::<Vec<_>>()
        );
    }

    /// Moves on until nothing is left to do for anyone.
    pub fn settle(&mut self, limit: usize) {
        self.run_until(limit, |world| {
            world.network.is_empty()
                && world.layers.iter().all(|layer| {
                    layer.has_sent_all()
                        && layer.sends_in_progress() == 0
                        && layer.receives_in_progress() == 0
                })
        });
    }

    /// Ends the process of a node and starts another one with a new program.
    pub fn restart(&mut self, node: usize) {
        self.network.end_process(Self::rank(node), true);
        self.layers[node] = MessageLayer::init(self.network.port(Self::rank(node)), self.config).unwrap();
        self.programs[node] = Program::default();
    }

    pub fn check_peers(&mut self, node: usize) -> usize {
        self.layers[node].check_peers(&mut self.programs[node]).unwrap()
    }
}
