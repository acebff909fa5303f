//! A machine of EXTOLL cards in process, and clients that drive them through mapped memory and
//! trapped accesses.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of tests fails the test")]

pub(crate) mod posting;
pub(crate) mod rma;
pub(crate) mod scattered;

use std::sync::Arc;

use nicforge_core::{
    fabric::{LinkId, LinkSpec},
    ids::{AttachmentId, FunctionId},
    machine::Access,
};
use nicforge_extoll::{Card, CardConfig, Topology, packet};
use nicforge_hwi::{
    extoll::{BAR_DIRECTORY, BAR_VELO, directory, mirror, reg, window},
    extoll_velo::{SLOT, SLOT_DATA, SLOT_HEADER, address, header},
};
use nicforge_shm::SharedMemory;
use nicforge_test_kit::{self as kit, InterruptCount, Testbed};

/// IOVA of each client's receive ring.
pub(crate) const RING_BASE: u64 = 0x10_0000;

/// Returns a link without delay or rate, with room for four packets of each virtual channel.
pub(crate) fn plain_link() -> LinkSpec {
    LinkSpec { credits: vec![4; packet::CHANNELS], ..LinkSpec::default() }
}

/// Returns a link with the times of the R1 prototype: a hop of 300 ns, of which the head takes 26.
pub(crate) fn cut_through_link(credits: u32) -> LinkSpec {
    LinkSpec {
        delay: 274,
        bits_per_second: 4_992_000_000,
        cut_through: Some(16),
        credits: vec![credits; packet::CHANNELS],
        ..LinkSpec::default()
    }
}

/// A machine of EXTOLL cards.
pub(crate) struct Rig {
    pub(crate) machine: Testbed,
    pub(crate) functions: Vec<FunctionId>,
    pub(crate) links: Vec<LinkId>,
    pub(crate) vpids: u16,
}

impl Rig {
    /// Builds a machine with plain links.
    pub(crate) fn new(topology: &Topology, vpids: u16) -> Self {
        Self::with(topology, vpids, &plain_link(), |_| {})
    }

    /// Builds a machine of two cards with four VPIDs each.
    pub(crate) fn pair() -> Self {
        Self::new(&Topology::full_mesh(2).unwrap(), 4)
    }

    /// Builds a machine with these links, after `change` to each card's configuration.
    pub(crate) fn with(
        topology: &Topology,
        vpids: u16,
        link: &LinkSpec,
        change: impl Fn(&mut CardConfig),
    ) -> Self {
        let mut machine = Testbed::new();

        let functions: Vec<_> = (0..topology.nodes())
            .map(|node| {
                let mut config = topology.config(node, vpids);
                change(&mut config);
                machine.add(&format!("node{node}"), Card::new(config).unwrap())
            })
            .collect();

        let links = topology
            .links()
            .iter()
            .map(|cable| {
                let end = |(node, port): (u32, u8)| (functions[node as usize], port);
                machine.connect(end(cable.a), end(cable.b), link.clone())
            })
            .collect();

        let mut rig = Self { machine, functions, links, vpids };
        rig.run();
        rig
    }

    /// Steps the machine and advances the fabric's time until nothing moves any more.
    #[track_caller]
    pub(crate) fn run(&mut self) {
        self.machine.run_until_idle();
    }

    /// Advances time, then runs the machine until it is idle.
    pub(crate) fn advance_and_run(&mut self, nanoseconds: u64) {
        self.machine.advance(nanoseconds);
        self.run();
    }

    /// Steps the machine every `nanoseconds` until `condition` holds, so that the timers of its
    /// devices fire in time.
    #[track_caller]
    pub(crate) fn run_in_steps(&mut self, nanoseconds: u64, mut condition: impl FnMut(&mut Testbed) -> bool) {
        for _ in 0..kit::MAX_STEPS {
            self.machine.rescan();
            let _ = self.machine.step(kit::BUDGET);
            if condition(&mut self.machine) {
                return;
            }
            self.machine.advance(nanoseconds);
        }
        panic!("the condition does not hold at {:?}", self.machine.now());
    }

    /// Attaches a client and runs the machine.
    pub(crate) fn attach(&mut self, node: u32, vpid: u16) -> Client {
        let client = self.attach_at_once(node, vpid);
        self.run();
        client
    }

    /// As [`Rig::attach`], without a step afterwards.
    pub(crate) fn attach_at_once(&mut self, node: u32, vpid: u16) -> Client {
        let function = self.functions[node as usize];
        let attachment = AttachmentId(vpid);
        let id = kit::Client::attach(&mut self.machine, function, attachment);
        let memory = |bar: u8| id.memory(&self.machine, bar.into());
        Client {
            node,
            vpid,
            function,
            attachment,
            windows: memory(1),
            mirror: memory(2),
            directory: memory(BAR_DIRECTORY),
            ring: None,
            taken: 0,
        }
    }

    /// Enables memory accesses and DMA of a function, as software does at its start and after a
    /// reset.
    pub(crate) fn enable_bus_master(&mut self, function: FunctionId, attachment: AttachmentId) {
        kit::Client::new(function, attachment).enable_bus_master(&mut self.machine);
    }

    /// Attaches a card's admin.
    pub(crate) fn admin(&mut self, node: u32) -> Client {
        self.attach(node, self.vpids)
    }

    /// Attaches a client with a receive ring.
    pub(crate) fn receiver(&mut self, node: u32, vpid: u16, slots: u64) -> Client {
        let mut client = self.attach(node, vpid);
        self.enable(&mut client, slots);
        client
    }

    /// Maps memory for a client's receive ring and enables the ring.
    pub(crate) fn enable(&mut self, client: &mut Client, slots: u64) {
        let bytes = (slots * SLOT).next_multiple_of(4096);
        let memory = client.id().map(&mut self.machine, RING_BASE, bytes as usize);

        client.ring = Some((memory, slots));
        client.taken = 0;

        self.write64(client, reg::VELO_RING_BASE, RING_BASE);
        self.write64(client, reg::VELO_RING_SLOTS, slots);
        self.write64(client, reg::VELO_RING_ENABLE, 1);
        self.run();

        assert_eq!(self.read64(client, reg::VELO_RING_ENABLE), 1);
    }

    /// Detaches a client as if it had died.
    pub(crate) fn kill(&mut self, client: &Client) {
        client.id().detach(&mut self.machine);
        self.run();
    }

    /// Reads a register.
    #[track_caller]
    pub(crate) fn read64(&mut self, client: &Client, offset: u64) -> u64 {
        client.id().read64(&mut self.machine, 0, offset)
    }

    /// Writes a register by a trapped access, which is retried for some passes while the card's
    /// budget is used up.
    pub(crate) fn write64(&mut self, client: &Client, offset: u64, value: u64) {
        let data = value.to_le_bytes();
        for _ in 0..4 {
            if client.id().try_write(&mut self.machine, 0, offset, &data).unwrap() == Access::Done {
                return;
            }
            let _ = self.machine.step(64);
        }
        panic!("the write of register {offset:#x} goes on waiting");
    }

    /// Stores to the send aperture by a trapped access.
    pub(crate) fn store(&mut self, client: &Client, offset: u64, data: &[u8]) -> Access {
        client.id().try_write(&mut self.machine, BAR_VELO.into(), offset, data).unwrap()
    }

    /// Sends a message to a node and VPID in one piece. Returns false if it stalls.
    pub(crate) fn send(&mut self, client: &Client, to: (u32, u16), tag: u8, message: &[u8]) -> bool {
        let offset = address::encode(to.0, to.1, tag, message.len() / 8);
        self.store(client, offset, message) == Access::Done
    }

    /// Returns a counter of a node's card.
    pub(crate) fn counter(&mut self, node: u32, name: &str) -> u64 {
        let counters = self.machine.counters(self.functions[node as usize]);
        counters.iter().find(|counter| counter.name == name).unwrap().value
    }

    /// Binds counters to a client's interrupts. They count from now on.
    pub(crate) fn interrupts(&mut self, client: &Client) -> Vec<Arc<InterruptCount>> {
        client.id().bind_msix(&mut self.machine)
    }
}

/// A message out of a receive ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// The sender's node and VPID.
    pub(crate) from: (u32, u16),
    pub(crate) tag: u8,
    pub(crate) bytes: Vec<u8>,
}

/// A client of one attachment, with its mapped memory.
pub(crate) struct Client {
    pub(crate) node: u32,
    pub(crate) vpid: u16,
    pub(crate) function: FunctionId,
    pub(crate) attachment: AttachmentId,
    pub(crate) windows: SharedMemory,
    pub(crate) mirror: SharedMemory,
    pub(crate) directory: SharedMemory,
    /// Memory and number of slots of the receive ring.
    pub(crate) ring: Option<(SharedMemory, u64)>,
    /// Number of messages taken out of the ring.
    pub(crate) taken: u64,
}

impl Client {
    /// Returns the client by function and attachment, for its trapped accesses.
    pub(crate) fn id(&self) -> kit::Client {
        kit::Client::new(self.function, self.attachment)
    }

    /// Takes a message out of the ring, without moving the read pointer.
    pub(crate) fn take(&mut self) -> Option<Message> {
        let (memory, slots) = self.ring.as_ref()?;
        let slot = memory.window(self.taken % slots * SLOT, SLOT).unwrap();
        let header = header::decode(slot.load_u64_acquire(SLOT_HEADER).unwrap())?;

        let mut bytes = vec![0; header.quadwords * 8];
        slot.read(SLOT_DATA, &mut bytes).unwrap();
        slot.store_u64_release(SLOT_HEADER, 0).unwrap();

        self.taken += 1;
        Some(Message { from: (header.node, header.vpid), tag: header.tag, bytes })
    }

    /// Moves the read pointer after the messages taken.
    pub(crate) fn store_read_pointer(&self) {
        self.windows.window(window::VELO_READ_POINTER, 8).unwrap().store_u64_release(0, self.taken).unwrap();
    }

    /// Takes all messages, and moves the read pointer.
    pub(crate) fn take_all(&mut self) -> Vec<Message> {
        let messages: Vec<_> = std::iter::from_fn(|| self.take()).collect();
        self.store_read_pointer();
        messages
    }

    /// Returns a word of the mirror.
    pub(crate) fn mirror_word(&self, offset: u64) -> u64 {
        self.mirror.window(offset, 8).unwrap().load_u64_acquire(0).unwrap()
    }

    /// Returns the code of the last error, and the value that caused it.
    pub(crate) fn last_error(&self) -> (u8, u64) {
        let word = self.mirror_word(mirror::LAST_ERROR);
        (word as u8, word >> 8)
    }

    /// Returns a VPID's generation in the directory.
    pub(crate) fn generation(&self, node: u32, vpid: u16) -> u8 {
        let at = u64::from(node) * directory::STRIDE + u64::from(vpid);
        let mut byte = [0];
        self.directory.read(at, &mut byte).unwrap();
        byte[0]
    }
}
