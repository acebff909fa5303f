//! The packets that a reset drops: each one counts as arrived, so that no card waits for it.
//!
//! A router gives back what it drops as it gives back all packets: to its links.

use nicforge_core::{
    fabric::{Packet, PortChannel, Ports},
    time::Nanos,
};
use nicforge_network::router::{LinkInput, Links};

use crate::{config::Site, group::Arrived};

/// The links of a node whose FIFOs are emptied. They are the fabric's, but a packet that they get
/// back was dropped, and is counted.
pub(crate) struct Dropped<'a, 'p> {
    ports: &'a mut Ports<'p>,
    site: &'a Site,
}

impl<'a, 'p> Dropped<'a, 'p> {
    /// Returns the links of a node.
    pub(crate) fn new(ports: &'a mut Ports<'p>, site: &'a Site) -> Self {
        Self { ports, site }
    }
}

impl Links for Dropped<'_, '_> {
    type Packet = Packet;

    fn recycle(&mut self, packet: Packet) {
        if let Some(dropped) = Arrived::of(&packet)
            && !dropped.is_copy_at(self.site)
        {
            self.site.lives.count_arrival(dropped.sender);
        }
        self.ports.recycle(packet);
    }

    // All else is as with the fabric's links, but nothing moves in rows.

    fn now(&self) -> Nanos {
        self.ports.now()
    }

    fn arrived_inputs(&self, ports: u8, vcs: u8) -> [u64; 2] {
        self.ports.arrived_inputs(ports, vcs)
    }

    fn take_freed(&mut self) -> u64 {
        self.ports.take_freed()
    }

    fn has_freed(&self) -> bool {
        self.ports.has_freed()
    }

    fn route_head(&mut self, input: LinkInput) -> Option<(u64, u32)> {
        Links::route_head(self.ports, input)
    }

    fn await_tail(&mut self, input: LinkInput) -> bool {
        Links::await_tail(self.ports, input)
    }

    fn has_head(&self, port: u8, vc: u8) -> bool {
        self.ports.has_head(port, vc)
    }

    fn tail_due(&self, port: u8, vc: u8) -> Option<Nanos> {
        Links::tail_due(self.ports, port, vc)
    }

    fn credits(&self, port: u8, vc: u8) -> u32 {
        Links::credits(self.ports, port, vc)
    }

    fn update_credits(&mut self, port: u8, vc: u8) -> u32 {
        Links::update_credits(self.ports, port, vc)
    }

    fn request_credits(&mut self, port: u8, vc: u8, credits: u32) {
        Links::request_credits(self.ports, port, vc, credits);
    }

    fn await_wire(&mut self, port: u8) -> Nanos {
        self.ports.await_wire(port)
    }

    fn forward_first(&mut self, from: PortChannel, to: PortChannel) -> Option<bool> {
        self.ports.forward_first(from, to)
    }

    fn send(&mut self, to: PortChannel, packet: Packet) -> Result<(), Packet> {
        Links::send(self.ports, to, packet)
    }

    fn take(&mut self, port: u8, vc: u8) -> Option<Packet> {
        Links::take(self.ports, port, vc)
    }

    fn copy(&mut self, packet: &Packet) -> Option<Packet> {
        self.ports.copy(packet)
    }

    fn copy_head(&mut self, port: u8, vc: u8) -> Option<Packet> {
        Links::copy_head(self.ports, port, vc)
    }
}
