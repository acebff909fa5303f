//! A bare router: the smallest device that a hop needs. It has the routing in dimension order, two
//! virtual channels as datelines, and an injection queue that is never empty.
//!
//! Beside the shared router, it shows what the links and the schedule cost, and what the rules of
//! the shared one cost.

use nicforge_core::{
    context::Context,
    device::{Device, Progress, Reset, Write},
    fabric::{PortChannel, Ports},
    ids::{Address, AttachmentId},
    spec::FunctionSpec,
    time::Nanos,
};

use super::{CHANNELS, DIMENSIONS, IDENTITY, PACKET, PORTS, Position, Random};

/// Number of the input that stands for the injection queue, after the channels of the ports.
const INJECTION: u32 = (PORTS * CHANNELS) as u32;

/// A node: a router with an injection queue.
pub(super) struct BareRouter {
    at: Position,
    lengths: Position,
    /// Ports with a packet in front whose way is known, for each virtual channel.
    routed: [u64; CHANNELS],
    /// Ports with a packet in front that is for this node, for each virtual channel.
    local: [u64; CHANNELS],
    /// Bit mask of the inputs that wait for each port.
    waiting: [u32; PORTS],
    /// Bit mask of the ports that inputs wait for.
    wanted: u32,
    /// Bit mask of the ports whose wires are busy, and the time until which each of them is.
    busy: u32,
    busy_until: [Nanos; PORTS],
    /// The first of these times.
    next_idle: Nanos,
    /// Bit mask of the ports whose wires wake the node when they fall idle.
    requested: u32,
    /// The channel out for the packet in front of each input.
    channel_out: [u8; INJECTION as usize + 1],
    /// The input that went last through each port.
    last: [u32; PORTS],
    /// Header of the packet to inject.
    injected: u64,
    random: Random,
}

impl BareRouter {
    pub(super) fn new(at: Position, lengths: Position, random: Random) -> Self {
        let mut router = Self {
            at,
            lengths,
            routed: [0; CHANNELS],
            local: [0; CHANNELS],
            waiting: [0; PORTS],
            wanted: 0,
            busy: 0,
            busy_until: [Nanos::NEVER; PORTS],
            next_idle: Nanos::NEVER,
            requested: 0,
            channel_out: [0; INJECTION as usize + 1],
            last: [0; PORTS],
            injected: 0,
            random,
        };
        router.choose_destination();
        router
    }

    /// Chooses the destination of the next packet, which is another node.
    fn choose_destination(&mut self) {
        loop {
            let random = self.random.next().to_le_bytes();
            let mut target = self.at;
            for ((at, length), random) in target.iter_mut().zip(self.lengths).zip(random) {
                *at = random % length;
            }
            if target != self.at {
                self.injected = header(self.at, target);
                let Some((port, channel)) = self.output(self.injected) else { continue };
                self.wait_for_port(INJECTION, port, channel);
                return;
            }
        }
    }

    /// Returns the port and the virtual channel towards a packet's destination, or `None` if this
    /// node is the destination.
    fn output(&self, header: u64) -> Option<(usize, u8)> {
        let bytes = header.to_le_bytes();
        for dimension in 0..DIMENSIONS {
            let (from, to) = (bytes[dimension], bytes[dimension + DIMENSIONS]);
            let (at, length) = (self.at[dimension], self.lengths[dimension]);
            if at == to {
                continue;
            }

            let is_up = is_up(from, to, length);
            let next = neighbour(at, length, is_up);
            let has_wrapped = if is_up { next < from } else { next > from };
            return Some((2 * dimension + usize::from(!is_up), u8::from(has_wrapped)));
        }
        None
    }

    /// Finds the way of the packet in front of an input.
    fn route(&mut self, ports: &mut Ports<'_>, port: u8, channel: usize) {
        let Some(packet) = ports.route_head(port, channel) else { return };
        let header = packet.header;
        self.routed[channel] |= 1 << port;
        match self.output(header) {
            None => {
                self.local[channel] |= 1 << port;
                ports.await_tail(port, channel);
            }
            Some((out, channel_out)) => {
                self.wait_for_port(u32::from(port) * CHANNELS as u32 + channel as u32, out, channel_out);
            }
        }
    }

    /// Queues an input at a port.
    fn wait_for_port(&mut self, input: u32, port: usize, channel: u8) {
        self.waiting[port] |= 1 << input;
        self.wanted |= 1 << port;
        self.channel_out[input as usize] = channel;
    }

    /// Ends the wait of an input for a port.
    fn end_wait(&mut self, input: u32, port: usize) {
        self.waiting[port] &= !(1 << input);
        if self.waiting[port] == 0 {
            self.wanted &= !(1 << port);
        }
    }

    /// Records that the wire of a port is busy.
    fn set_busy(&mut self, ports: &Ports<'_>, port: usize) {
        let until = ports.wire_idle_at(port as u8);
        self.busy |= 1 << port;
        self.busy_until[port] = until;
        self.next_idle = self.next_idle.min(until);
    }

    /// Records which wires have fallen idle.
    fn release_wires(&mut self, now: Nanos) {
        self.next_idle = Nanos::NEVER;
        for (port, until) in self.busy_until.iter_mut().enumerate() {
            if *until <= now {
                *until = Nanos::NEVER;
                self.busy &= !(1 << port);
                self.requested &= !(1 << port);
            }
            self.next_idle = self.next_idle.min(*until);
        }
    }

    /// Asks for a wake-up at the times at which wanted wires fall idle.
    fn request_wires(&mut self, ports: &mut Ports<'_>) {
        let mut unasked = self.wanted & self.busy & !self.requested;
        self.requested |= unasked;
        while unasked != 0 {
            ports.request_wire(unasked.trailing_zeros() as u8);
            unasked &= unasked - 1;
        }
    }

    /// Sends the packet of one of the inputs that wait for a port, in turns. The wire is idle.
    fn send_one(&mut self, ports: &mut Ports<'_>, port: usize) {
        let waiting = self.waiting[port];
        let behind = waiting & (u32::MAX << self.last[port] << 1);
        for mut inputs in [behind, waiting & !behind] {
            while inputs != 0 {
                let input = inputs.trailing_zeros();
                inputs &= inputs - 1;
                let to = PortChannel { port: port as u8, channel: self.channel_out[input as usize].into() };
                if ports.ready(to.port, to.channel) && self.send(ports, input, to) {
                    self.last[port] = input;
                    self.set_busy(ports, port);
                    return;
                }
            }
        }
    }

    /// Sends the packet of an input, and finds the way of the next one.
    fn send(&mut self, ports: &mut Ports<'_>, input: u32, to: PortChannel) -> bool {
        if input == INJECTION {
            let Ok(mut packet) = ports.new_packet(PACKET) else { return false };
            packet.header = self.injected;
            self.end_wait(INJECTION, to.port.into());
            self.choose_destination();
            return match ports.send(to.port, to.channel, packet) {
                Ok(()) => true,
                Err(unsent) => {
                    ports.recycle(unsent.packet);
                    false
                }
            };
        }

        let from = PortChannel { port: (input / CHANNELS as u32) as u8, channel: input as usize % CHANNELS };
        if !ports.forward_between(from, to) {
            return false;
        }
        self.end_wait(input, to.port.into());
        self.routed[from.channel] &= !(1 << from.port);
        self.route(ports, from.port, from.channel);
        true
    }

    /// Takes the packets for this node that have arrived.
    fn deliver(&mut self, ports: &mut Ports<'_>, channel: usize) {
        let mut local = self.local[channel] & ports.arrived(channel);
        while local != 0 {
            let port = local.trailing_zeros() as u8;
            local &= local - 1;
            if let Some(packet) = ports.take(port, channel) {
                ports.recycle(packet);
                self.local[channel] &= !(1 << port);
                self.routed[channel] &= !(1 << port);
                self.route(ports, port, channel);
            }
        }
    }
}

impl Device for BareRouter {
    fn spec(&self) -> FunctionSpec {
        FunctionSpec::hub(IDENTITY)
    }

    fn read(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &mut [u8]) {}

    fn write(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &[u8]) -> Write {
        Write::Accepted
    }

    fn reset(&mut self, _: &mut Context<'_>, _: Reset) {}

    fn step(&mut self, context: &mut Context<'_>, _: u32) -> Progress {
        let mut ports = context.ports();
        for channel in 0..CHANNELS {
            let mut fresh = (ports.heads(channel) | ports.arrived(channel)) & !self.routed[channel];
            while fresh != 0 {
                self.route(&mut ports, fresh.trailing_zeros() as u8, channel);
                fresh &= fresh - 1;
            }
            self.deliver(&mut ports, channel);
        }

        if ports.now() >= self.next_idle {
            self.release_wires(ports.now());
        }
        let mut expected = self.wanted & !self.busy;
        while expected != 0 {
            let port = expected.trailing_zeros() as usize % PORTS;
            expected &= expected - 1;
            self.send_one(&mut ports, port);
        }
        self.request_wires(&mut ports);

        // A wire that falls idle, a credit and an arrival wake the node.
        Progress::Idle
    }
}

/// Returns a packet's header: the positions of its source and of its destination.
fn header(from: Position, to: Position) -> u64 {
    let mut bytes = [0; 8];
    bytes[..DIMENSIONS].copy_from_slice(&from);
    bytes[DIMENSIONS..2 * DIMENSIONS].copy_from_slice(&to);
    u64::from_le_bytes(bytes)
}

/// Returns the next position along a ring, up or down.
fn neighbour(at: u8, length: u8, is_up: bool) -> u8 {
    match (at, is_up) {
        (at, true) if at + 1 == length => 0,
        (at, true) => at + 1,
        (0, false) => length - 1,
        (at, false) => at - 1,
    }
}

/// Returns whether the shortest way from `from` to `to` along a ring leads up.
fn is_up(from: u8, to: u8, length: u8) -> bool {
    let ahead = if to > from { to - from } else { to + length - from };
    ahead <= length / 2
}
