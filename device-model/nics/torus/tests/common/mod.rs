//! A torus in process, and clients that drive its nodes through mapped memory and trapped accesses.
#![allow(dead_code, reason = "each file of the suite uses its part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of tests fails the test")]

use std::sync::atomic::Ordering;

use nicforge_core::ids::{AttachmentId, FunctionId};
use nicforge_hwi::torus::{
    BAR_MIRROR, BAR_SHARED, BAR_WINDOW, CHUNK, FIFO, FIFO_CHUNKS, HEADER, INJECTION_FIFOS, KERNEL,
    PRIORITY_INJECTION, PacketHeader, RECEPTION_FIFOS, mirror, presence, reg, window,
};
use nicforge_shm::SharedMemory;
use nicforge_test_kit::{self as kit, Testbed};
use nicforge_torus::{Network, Options, TorusNic};
use zerocopy::IntoBytes;

/// A torus.
pub(crate) struct Rig {
    pub(crate) machine: Testbed,
    pub(crate) network: Network,
    pub(crate) functions: Vec<FunctionId>,
}

impl Rig {
    /// Builds a torus whose dimensions of more than one node are all closed.
    pub(crate) fn torus(lengths: [u32; 3]) -> Self {
        Self::with(lengths, [true; 3], Options::default())
    }

    /// Builds a torus.
    pub(crate) fn with(lengths: [u32; 3], wraps: [bool; 3], options: Options) -> Self {
        Self::of(Network::new(lengths, wraps, options).unwrap())
    }

    /// Builds a machine with all nodes of a network.
    pub(crate) fn of(network: Network) -> Self {
        let mut machine = Testbed::new();

        let functions: Vec<_> = (0..network.nodes())
            .map(|node| machine.add(&format!("n{node}"), TorusNic::new(&network, node).unwrap()))
            .collect();
        for cable in network.cables() {
            let ends = [cable.a, cable.b].map(|end| (functions[end.node as usize], end.port));
            machine.connect(ends[0], ends[1], network.options().link.clone());
        }

        let mut rig = Self { machine, network, functions };
        rig.run();
        rig
    }

    /// Steps the machine and advances time until nothing moves any more.
    #[track_caller]
    pub(crate) fn run(&mut self) {
        self.machine.run_until_idle();
    }

    /// Attaches a client to a core.
    #[track_caller]
    pub(crate) fn core(&mut self, node: u32, core: u16) -> Client {
        let id = self.attach(node, core);
        let memory = |bar: u8| id.memory(&self.machine, bar.into());
        let client = Client {
            node,
            core,
            id,
            window: memory(BAR_WINDOW),
            mirror: memory(BAR_MIRROR),
            shared: memory(BAR_SHARED),
            tails: [0; INJECTION_FIFOS],
        };
        self.run();
        client
    }

    /// Attaches a client to core 0 of each node.
    pub(crate) fn all_cores(&mut self) -> Vec<Client> {
        (0..self.network.nodes()).map(|node| self.core(node, 0)).collect()
    }

    /// Attaches the kernel of a node.
    pub(crate) fn kernel(&mut self, node: u32) -> kit::Client {
        self.attach(node, KERNEL)
    }

    fn attach(&mut self, node: u32, attachment: u16) -> kit::Client {
        kit::Client::attach(&mut self.machine, self.functions[node as usize], AttachmentId(attachment))
    }

    /// Returns the coordinates of a node, as a header has them.
    pub(crate) fn place(&self, node: u32) -> [u8; 3] {
        let coordinates = self.network.shape().coordinates(node).unwrap();
        std::array::from_fn(|dimension| coordinates[dimension] as u8)
    }

    /// Returns the header of a dynamic packet to core 0 of a node.
    pub(crate) fn to(&self, node: u32) -> PacketHeader {
        PacketHeader::to(self.place(node), 0)
    }

    /// Sends a packet by the first FIFO of its priority, and runs the machine. Fails the test if
    /// there is no room.
    #[track_caller]
    pub(crate) fn send(&mut self, client: &mut Client, header: PacketHeader, payload: &[u8]) {
        let is_priority = header.channel() == nicforge_hwi::torus::Channel::BubblePriority;
        let fifo = if is_priority { PRIORITY_INJECTION } else { 0 };
        assert!(self.try_send(client, fifo, header, payload), "injection FIFO {fifo} is full");
        self.run();
    }

    /// Puts a packet into an injection FIFO and moves its tail, without a step. Returns false if
    /// there is no room.
    pub(crate) fn try_send(
        &mut self,
        client: &mut Client,
        fifo: usize,
        header: PacketHeader,
        payload: &[u8],
    ) -> bool {
        let is_put = client.put(fifo, header, payload);
        if is_put {
            let offset = reg::INJECTION_TAIL + 4 * fifo as u64;
            client.id.write32(&mut self.machine, 0, offset, client.tails[fifo]);
        }
        is_put
    }

    /// Returns the life of a core, by a trapped read of `client`.
    pub(crate) fn life(&mut self, client: &Client, node: u32, core: u16) -> u16 {
        let word = client.id.read32(&mut self.machine, 0, reg::PRESENCE + 4 * u64::from(node));
        presence::life(word, core)
    }

    /// Returns a counter of a node.
    pub(crate) fn counter(&mut self, node: u32, name: &str) -> u64 {
        let counters = self.machine.counters(self.functions[node as usize]);
        counters.iter().find(|counter| counter.name == name).unwrap().value
    }

    /// Returns the sum of a counter over all nodes.
    pub(crate) fn total(&mut self, name: &str) -> u64 {
        (0..self.network.nodes()).map(|node| self.counter(node, name)).sum()
    }
}

/// A client of a core, with its mapped memory.
pub(crate) struct Client {
    pub(crate) node: u32,
    pub(crate) core: u16,
    pub(crate) id: kit::Client,
    pub(crate) window: SharedMemory,
    pub(crate) mirror: SharedMemory,
    pub(crate) shared: SharedMemory,
    /// Chunks that were put into each injection FIFO.
    pub(crate) tails: [u32; INJECTION_FIFOS],
}

/// A packet that was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    /// The reception FIFO.
    pub(crate) fifo: usize,
    pub(crate) header: PacketHeader,
    pub(crate) payload: Vec<u8>,
}

impl Client {
    /// Returns a word of the mirror.
    pub(crate) fn mirrored(&self, offset: u64) -> u32 {
        self.mirror.u32(offset).unwrap().load(Ordering::Acquire)
    }

    /// Puts a packet into the memory of an injection FIFO. Returns false if there is no room.
    pub(crate) fn put(&mut self, fifo: usize, header: PacketHeader, payload: &[u8]) -> bool {
        let header = header.with_payload(payload.len());
        let head = self.mirrored(mirror::INJECTION_HEAD + 4 * fifo as u64);
        if self.tails[fifo].wrapping_sub(head) + header.chunks() > FIFO_CHUNKS {
            return false;
        }

        let mut packet = header.as_bytes().to_vec();
        packet.extend_from_slice(payload);
        packet.resize(header.chunks() as usize * CHUNK, 0);
        for chunk in packet.chunks(CHUNK) {
            let place = u64::from(self.tails[fifo] % FIFO_CHUNKS) * CHUNK as u64;
            self.window.write(window::INJECTION + FIFO * fifo as u64 + place, chunk).unwrap();
            self.tails[fifo] = self.tails[fifo].wrapping_add(1);
        }
        true
    }

    /// Returns the word with the head of a reception FIFO.
    pub(crate) fn head(&self, fifo: usize) -> nicforge_shm::SharedU32 {
        self.window.u32(window::RECEPTION_HEAD + window::HEAD_STRIDE * fifo as u64).unwrap()
    }

    /// Takes the next packet of a reception FIFO.
    pub(crate) fn receive_from(&self, fifo: usize) -> Option<Received> {
        let head = self.head(fifo).load(Ordering::Acquire);
        let tail = self.mirrored(mirror::RECEPTION_TAIL + 4 * fifo as u64);
        if head == tail {
            return None;
        }

        let read = |chunk: u32| {
            let mut bytes = [0; CHUNK];
            let place = u64::from(chunk % FIFO_CHUNKS) * CHUNK as u64;
            self.mirror.read(mirror::RECEPTION + FIFO * fifo as u64 + place, &mut bytes).unwrap();
            bytes
        };
        let first = read(head);
        let header: PacketHeader = zerocopy::transmute!(*first.first_chunk::<HEADER>().unwrap());
        let chunks = head..head.wrapping_add(header.chunks());
        let bytes: Vec<u8> = chunks.flat_map(read).collect();

        self.head(fifo).store(head.wrapping_add(header.chunks()), Ordering::Release);
        Some(Received { fifo, header, payload: bytes[HEADER..].to_vec() })
    }

    /// Takes the next packet of any reception FIFO.
    pub(crate) fn receive(&self) -> Option<Received> {
        (0..RECEPTION_FIFOS).find_map(|fifo| self.receive_from(fifo))
    }

    /// Takes all packets that are there.
    pub(crate) fn receive_all(&self) -> Vec<Received> {
        std::iter::from_fn(|| self.receive()).collect()
    }
}

/// Returns a payload that differs for each seed. Its length makes a whole number of chunks.
pub(crate) fn payload(seed: u32, chunks: usize) -> Vec<u8> {
    let byte = |index: usize| (seed.wrapping_mul(31).wrapping_add(index as u32) >> (index % 3)) as u8;
    (0..chunks * CHUNK - HEADER).map(byte).collect()
}
