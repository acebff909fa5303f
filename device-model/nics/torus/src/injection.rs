//! An injection FIFO: chunks in mapped memory that software fills and the card takes.

use std::collections::VecDeque;

use nicforge_core::fabric::{Packet, Ports};
use nicforge_hwi::torus::{CHUNK, FIFO_CHUNKS, INJECTION_FIFOS, PRIORITY_INJECTION, PacketHeader, TRAILER};
use nicforge_network::router::Router;

use crate::{
    config::Site,
    group::count_dropped,
    policy::{NodePolicy, RouteWord},
    ring::Ring,
    route::{RouteError, route_word},
};

/// Maximum number of packets of former clients that wait at a FIFO: as many as its memory holds.
const MAX_LEFTOVERS: usize = FIFO_CHUNKS as usize;

/// The outcome of [`InjectionFifo::inject`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Injected {
    /// Packets that have left the FIFO for the router.
    pub(crate) packets: u32,
    /// Packets with a wrong header, which were dropped.
    pub(crate) wrong: u32,
    /// The fabric's packets are all in use.
    pub(crate) is_starved: bool,
}

impl Injected {
    /// Adds the outcome of another FIFO.
    pub(crate) fn add(&mut self, other: Self) {
        self.packets += other.packets;
        self.wrong += other.wrong;
        self.is_starved |= other.is_starved;
    }
}

/// An injection FIFO of a group.
///
/// `tail` counts the chunks that software has put into the memory, and `head` those that the card
/// has taken. There are at most [`FIFO_CHUNKS`] between them.
#[derive(Debug)]
pub(crate) struct InjectionFifo {
    /// Number of the FIFO at the router.
    router_fifo: u8,
    is_priority: bool,
    head: u32,
    tail: u32,
    /// Packets that a former client had put into its memory. They leave first.
    leftovers: VecDeque<Packet>,
    /// The hardware's words of the last header, and its route.
    last_route: Option<([u32; 2], RouteWord)>,
    /// Sum of the 16-bit words of the packets that count in it.
    checksum: u32,
}

impl InjectionFifo {
    /// Returns an empty FIFO. `number` is that in its group.
    pub(crate) fn new(number: usize, router_fifo: u8) -> Self {
        Self {
            router_fifo,
            is_priority: number == PRIORITY_INJECTION,
            head: 0,
            tail: 0,
            leftovers: VecDeque::new(),
            last_route: None,
            checksum: 0,
        }
    }

    /// Starts again with empty memory.
    pub(crate) fn restart(&mut self) {
        (self.head, self.tail) = (0, 0);
    }

    /// Returns to the state of power-on.
    pub(crate) fn clear(&mut self, site: &Site, ports: &mut Ports<'_>) {
        self.restart();
        self.checksum = 0;
        for packet in self.leftovers.drain(..) {
            count_dropped(site, &packet);
            ports.recycle(packet);
        }
    }

    /// Returns the number of chunks that the card has taken.
    pub(crate) fn head(&self) -> u32 {
        self.head
    }

    /// Returns the number of chunks in the FIFO.
    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Returns whether the FIFO has something to send.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        self.tail != self.head || !self.leftovers.is_empty()
    }

    /// Returns the checksum.
    pub(crate) fn checksum(&self) -> u32 {
        self.checksum
    }

    /// Moves the tail where software says. Returns whether that is possible: not before the last
    /// one, and not further than the memory goes.
    pub(crate) fn set_tail(&mut self, tail: u32) -> bool {
        let count = tail.wrapping_sub(self.head);
        let is_possible = count <= FIFO_CHUNKS && count >= self.count();
        if is_possible {
            self.tail = tail;
        }
        is_possible
    }

    /// Returns the chunk that the port fills next; `None` if the FIFO is full.
    pub(crate) fn free_chunk(&self) -> Option<u32> {
        (self.count() < FIFO_CHUNKS).then_some(self.tail)
    }

    /// Returns the header of the first packet in memory, if that packet is complete.
    #[inline]
    fn first(&self, ring: &Ring) -> Option<PacketHeader> {
        if self.count() == 0 {
            return None;
        }
        let header = ring.header(self.head);
        (header.chunks() <= self.count()).then_some(header)
    }

    /// Moves at most `limit` packets to the router. `ring` is the memory of the present client.
    #[inline]
    pub(crate) fn inject(
        &mut self,
        ring: Option<&Ring>,
        site: &Site,
        router: &mut Router<NodePolicy>,
        ports: &mut Ports<'_>,
        limit: u32,
    ) -> Injected {
        let mut injected = Injected::default();
        while injected.packets + injected.wrong < limit {
            if let Some(packet) = self.leftovers.pop_front() {
                if let Err(refused) = router.inject(self.router_fifo, packet, ports.now()) {
                    self.leftovers.push_front(refused.packet);
                    break;
                }
                injected.packets += 1;
                continue;
            }

            let Some((ring, header)) = ring.and_then(|ring| Some((ring, self.first(ring)?))) else { break };
            let bytes = header.chunks() as usize * CHUNK + TRAILER;
            if !router.injection_room(self.router_fifo, ports.now()).fits(bytes as u32) {
                break;
            }
            match self.take_first(ring, site, ports, header) {
                Taken::Packet(packet) => {
                    // The room was just found, so the router takes the packet.
                    if let Err(refused) = router.inject(self.router_fifo, packet, ports.now()) {
                        ports.recycle(refused.packet);
                    }
                    injected.packets += 1;
                }
                Taken::Wrong => injected.wrong += 1,
                Taken::Starved => {
                    injected.is_starved = true;
                    break;
                }
            }
        }
        injected
    }

    /// Takes the first packet out of the memory. `header` was read there, and is the only copy that
    /// counts.
    #[inline]
    fn take_first(&mut self, ring: &Ring, site: &Site, ports: &mut Ports<'_>, header: PacketHeader) -> Taken {
        let Ok(word) = self.route(site, &header) else {
            self.head = self.head.wrapping_add(header.chunks());
            return Taken::Wrong;
        };
        let length = header.chunks() as usize * CHUNK;
        let Ok(mut packet) = ports.new_packet(length + TRAILER) else { return Taken::Starved };

        // Software may change the memory at any time. The header is the one that was checked.
        let (content, trailer) = packet.bytes_mut().split_at_mut(length);
        ring.read(self.head, content);
        put_header(content, &header);
        if let Some(skip) = header.checksum_skip() {
            self.checksum = self.checksum.wrapping_add(sum_of_shorts(content, skip));
        }
        let core = self.router_fifo / INJECTION_FIFOS as u8;
        trailer.copy_from_slice(&site.lives.count_sent(site.node, core.into()).to_trailer());
        packet.header = word.0.0;
        self.head = self.head.wrapping_add(header.chunks());
        Taken::Packet(packet)
    }

    /// Returns the route word of a packet. The packets of a message have the same.
    #[inline]
    fn route(&mut self, site: &Site, header: &PacketHeader) -> Result<RouteWord, RouteError> {
        let words = [header.hardware0.get(), header.hardware1.get()];
        if let Some((last, route)) = self.last_route
            && last == words
        {
            return Ok(route);
        }
        let route = route_word(&site.torus, site.node, header, self.is_priority)?;
        self.last_route = Some((words, route));
        Ok(route)
    }

    /// Keeps the packets that are left in the memory of a client that ends. Returns the number of
    /// packets that were dropped, because too many wait already, or because they are wrong.
    pub(crate) fn keep_leftovers(&mut self, ring: &Ring, site: &Site, ports: &mut Ports<'_>) -> u32 {
        let mut dropped = 0;
        while let Some(header) = self.first(ring) {
            if self.leftovers.len() >= MAX_LEFTOVERS {
                self.head = self.head.wrapping_add(header.chunks());
                dropped += 1;
                continue;
            }
            match self.take_first(ring, site, ports, header) {
                Taken::Packet(packet) => self.leftovers.push_back(packet),
                Taken::Wrong => dropped += 1,
                Taken::Starved => {
                    self.head = self.head.wrapping_add(header.chunks());
                    dropped += 1;
                }
            }
        }
        self.restart();
        dropped
    }

    /// Drops the packets that are left in the memory of a client that ends. Returns their number.
    pub(crate) fn drop_packets(&mut self, ring: &Ring) -> u32 {
        let mut dropped = 0;
        while let Some(header) = self.first(ring) {
            self.head = self.head.wrapping_add(header.chunks());
            dropped += 1;
        }
        self.restart();
        dropped
    }
}

/// The outcome of [`InjectionFifo::take_first`].
#[derive(Debug)]
enum Taken {
    /// The packet has left the memory.
    Packet(Packet),
    /// Its header is wrong. It has left the memory.
    Wrong,
    /// The fabric's packets are all in use. It stays.
    Starved,
}

/// Writes the header at the start of a packet.
#[inline]
fn put_header(packet: &mut [u8], header: &PacketHeader) {
    let bytes: [u8; size_of::<PacketHeader>()] = zerocopy::transmute!(*header);
    if let Some(start) = packet.first_chunk_mut() {
        *start = bytes;
    }
}

/// Returns the sum of the 16-bit words of a packet without the first `skip`.
fn sum_of_shorts(bytes: &[u8], skip: u8) -> u32 {
    let shorts = bytes.as_chunks::<2>().0.iter().skip(skip.into());
    shorts.fold(0, |sum: u32, short| sum.wrapping_add(u16::from_le_bytes(*short).into()))
}
