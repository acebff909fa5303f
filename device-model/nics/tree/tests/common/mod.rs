//! A machine of tree NICs in process, and clients that drive them through mapped memory and trapped
//! accesses.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of tests fails the test")]

use std::sync::{Arc, atomic::Ordering};

use nicforge_core::{
    fabric::{LinkId, LinkSpec},
    ids::{AttachmentId, FunctionId},
};
use nicforge_hwi::tree::{
    ATTACHMENT_ADMIN, BAR_MIRROR, BAR_WINDOW, Header, PAYLOAD, SLOT, SLOT_CONTROL, SLOT_PAYLOAD, mirror,
    window,
};
use nicforge_shm::SharedMemory;
use nicforge_test_kit::{self as kit, InterruptCount, Testbed};
use nicforge_tree::{Topology, TreeConfig, TreeNic};

/// The payload of a packet.
pub(crate) type Payload = [u8; PAYLOAD];

/// Offset of the receive FIFO's lock box in the window.
pub(crate) const LOCK_RECV: u64 = window::LOCK + window::LOCK_RECV * window::LOCK_STRIDE;

/// A machine of tree NICs.
pub(crate) struct Rig {
    pub(crate) machine: Testbed,
    pub(crate) functions: Vec<FunctionId>,
    pub(crate) links: Vec<LinkId>,
}

impl Rig {
    /// Builds a machine of psets with default links.
    pub(crate) fn psets(compute_nodes: &[u32]) -> Self {
        Self::with(compute_nodes, LinkSpec::default(), |_| {})
    }

    /// Builds a machine of psets with these links, after `change` to each node's configuration.
    pub(crate) fn with(compute_nodes: &[u32], link: LinkSpec, change: impl Fn(&mut TreeConfig)) -> Self {
        let topology = Topology::psets(compute_nodes).unwrap();
        let mut machine = Testbed::new();

        let functions: Vec<_> = (0..topology.nodes.len() as u32)
            .map(|address| {
                let mut config = topology.config(address).unwrap();
                change(&mut config);
                let device = TreeNic::new(config).unwrap();
                machine.add(&format!("node{address}"), device)
            })
            .collect();

        let links = topology
            .links
            .iter()
            .map(|tie| {
                let end = |(node, port): (u32, u8)| (functions[node as usize], port);
                machine.connect(end(tie.a), end(tie.b), link.clone())
            })
            .collect();

        let mut rig = Self { machine, functions, links };
        rig.run();
        rig
    }

    /// Steps the machine and advances time until nothing moves any more.
    #[track_caller]
    pub(crate) fn run(&mut self) {
        self.machine.run_until_idle();
    }

    /// Attaches a client and runs the machine.
    pub(crate) fn attach(&mut self, node: u32, attachment: u16) -> Client {
        let client = self.attach_at_once(node, attachment);
        self.run();
        client
    }

    /// As [`Rig::attach`], without a step afterwards.
    pub(crate) fn attach_at_once(&mut self, node: u32, attachment: u16) -> Client {
        let function = self.functions[node as usize];
        let attachment = AttachmentId(attachment);
        self.machine.attach(function, attachment).unwrap();
        let id = kit::Client::new(function, attachment);
        let memory = |bar: u8| id.memory(&self.machine, bar.into());
        Client { node, function, attachment, window: memory(BAR_WINDOW), mirror: memory(BAR_MIRROR) }
    }

    /// Attaches core 0 of a node.
    pub(crate) fn core(&mut self, node: u32) -> Client {
        self.attach(node, 0)
    }

    /// Attaches the admin of a node.
    pub(crate) fn admin(&mut self, node: u32) -> Client {
        self.attach(node, ATTACHMENT_ADMIN)
    }

    /// Detaches the client as if it had died, without a step afterwards.
    pub(crate) fn kill(&mut self, client: &Client) {
        client.id().detach(&mut self.machine);
    }

    /// Reads bytes of BAR 0 by a trapped access.
    #[track_caller]
    pub(crate) fn read<const N: usize>(&mut self, client: &Client, offset: u64) -> [u8; N] {
        client.id().read(&mut self.machine, 0, offset)
    }

    /// Reads a register of BAR 0.
    #[track_caller]
    pub(crate) fn read32(&mut self, client: &Client, offset: u64) -> u32 {
        client.id().read32(&mut self.machine, 0, offset)
    }

    /// Writes bytes of BAR 0 by a trapped access.
    #[track_caller]
    pub(crate) fn write(&mut self, client: &Client, offset: u64, data: &[u8]) {
        client.id().write(&mut self.machine, 0, offset, data);
    }

    /// Writes a register of BAR 0.
    #[track_caller]
    pub(crate) fn write32(&mut self, client: &Client, offset: u64, value: u32) {
        client.id().write32(&mut self.machine, 0, offset, value);
    }

    /// Returns a counter of a node's NIC.
    pub(crate) fn counter(&mut self, node: u32, name: &str) -> u64 {
        let counters = self.machine.counters(self.functions[node as usize]);
        counters.iter().find(|counter| counter.name == name).unwrap().value
    }

    /// Binds counters to a client's interrupts. They count from now on.
    pub(crate) fn interrupts(&mut self, client: &Client) -> Vec<Arc<InterruptCount>> {
        client.id().bind_msix(&mut self.machine)
    }

    /// Sends `packets` in order until one does not fit even after the machine has run. Nothing is
    /// received meanwhile. Returns the number sent.
    pub(crate) fn send_all(&mut self, client: &Client, packets: &[(Header, Payload)]) -> usize {
        for (sent, (header, payload)) in packets.iter().enumerate() {
            if !client.try_send(*header, payload) {
                self.run();
                if !client.try_send(*header, payload) {
                    return sent;
                }
            }
        }

        self.run();
        packets.len()
    }
}

/// A client of one attachment, with its mapped memory.
pub(crate) struct Client {
    pub(crate) node: u32,
    pub(crate) function: FunctionId,
    pub(crate) attachment: AttachmentId,
    pub(crate) window: SharedMemory,
    pub(crate) mirror: SharedMemory,
}

impl Client {
    /// Returns the client by function and attachment, for its trapped accesses.
    pub(crate) fn id(&self) -> kit::Client {
        kit::Client::new(self.function, self.attachment)
    }

    /// Returns a second handle to the same client.
    pub(crate) fn twin(&self) -> Self {
        let (window, mirror) = (self.window.clone(), self.mirror.clone());
        Self { node: self.node, function: self.function, attachment: self.attachment, window, mirror }
    }

    /// Returns a word of the channel's mirror.
    pub(crate) fn mirror(&self, offset: u64) -> u32 {
        self.mirror.u32(offset).unwrap().load(Ordering::Acquire)
    }

    /// Returns a word of the channel's window.
    pub(crate) fn window(&self, offset: u64) -> u32 {
        self.window.u32(offset).unwrap().load(Ordering::Acquire)
    }

    /// Stores a word of the channel's window.
    pub(crate) fn set_window(&self, offset: u64, value: u32) {
        self.window.u32(offset).unwrap().store(value, Ordering::Release);
    }

    /// Takes the receive FIFO's lock for this core, without looking at its earlier owner.
    pub(crate) fn take_receive_lock(&self) {
        self.set_window(LOCK_RECV, u32::from(self.attachment.0) + 1);
    }

    /// Frees the receive FIFO's lock.
    pub(crate) fn free_receive_lock(&self) {
        self.set_window(LOCK_RECV, 0);
    }

    /// Returns a core's generation as this client sees it.
    pub(crate) fn presence(&self, node: u32, core: usize) -> u8 {
        self.mirror(mirror::PRESENCE + 4 * u64::from(node)).to_le_bytes()[core]
    }

    /// Puts a packet into a send slot. Returns false if no slot is free.
    pub(crate) fn try_send(&self, header: Header, payload: &Payload) -> bool {
        let depth = self.mirror(mirror::SEND_DEPTH);
        let tail = self.window(window::SEND_TAIL);
        if tail.wrapping_sub(self.mirror(mirror::SEND_HEAD)) >= depth {
            return false;
        }

        let slot = window::SEND + u64::from(tail % depth) * SLOT;
        self.window.write(slot + SLOT_PAYLOAD, payload).unwrap();
        let control = u64::from(tail.wrapping_add(1)) | (u64::from(header.0) << 32);
        self.window.u64(slot + SLOT_CONTROL).unwrap().store(control, Ordering::Release);
        self.set_window(window::SEND_TAIL, tail.wrapping_add(1));
        true
    }

    /// Takes the first packet out of the receive slots.
    pub(crate) fn receive(&self) -> Option<(Header, Payload)> {
        let packet = self.peek(0)?;
        self.set_window(window::RECV_HEAD, self.window(window::RECV_HEAD).wrapping_add(1));
        Some(packet)
    }

    /// Returns the packet `ahead` of the first in the receive slots, without taking it.
    pub(crate) fn peek(&self, ahead: u32) -> Option<(Header, Payload)> {
        let depth = self.mirror(mirror::RECV_DEPTH);
        let number = self.window(window::RECV_HEAD).wrapping_add(ahead);
        let slot = mirror::RECV + u64::from(number % depth) * SLOT;
        let control = self.mirror.u64(slot + SLOT_CONTROL).unwrap().load(Ordering::Acquire);

        if control as u32 != number.wrapping_add(1) {
            return None;
        }

        let mut payload = [0; PAYLOAD];
        self.mirror.read(slot + SLOT_PAYLOAD, &mut payload).unwrap();
        Some((Header((control >> 32) as u32), payload))
    }

    /// Returns the number of packets in the receive slots, without taking them.
    pub(crate) fn unread_packets(&self) -> usize {
        (0..self.mirror(mirror::RECV_DEPTH)).take_while(|&ahead| self.peek(ahead).is_some()).count()
    }
}

/// Returns a payload that differs for each seed.
pub(crate) fn payload(seed: u32) -> Payload {
    std::array::from_fn(|index| (seed.wrapping_mul(31).wrapping_add(index as u32) >> (index % 3)) as u8)
}

/// Returns the header of a packet to a node.
pub(crate) fn to(target: u32) -> Header {
    Header::point_to_point(0, target, false)
}

/// Returns the header of a packet to a node, with the irq bit.
pub(crate) fn irq_to(target: u32) -> Header {
    Header::point_to_point(0, target, true)
}
