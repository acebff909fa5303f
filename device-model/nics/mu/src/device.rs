//! The device: attachments, resets, one step.

use nicforge_core::{
    context::Context,
    device::{Counter, Device, Ended, Progress, Reset, Write},
    fabric::Ports,
    ids::{Address, AttachmentId},
    posted::Posted,
    register::Register,
    spec::{AttachmentSpec, FunctionSpec, Identity, NicSizes},
    time::Nanos,
};
use nicforge_hwi::{
    mu::{BAR_REGISTERS, MIRROR, REGISTER_MAP, REGISTERS, RING_CELLS, vector},
    mu_dcr::counter,
    mu_packet::{DIMENSIONS, Destination, PORTS},
    pci,
};
use nicforge_network::router::Bypass;

use crate::{
    config::{Network, NetworkError},
    network::{Arriving, NetworkUnit},
    unit::{self, Unit},
};

/// PCI class code: network controller, other, without a programming interface.
const NETWORK_CONTROLLER: u32 = 0x02_80_00;

/// A node of Blue Gene/Q: its Message Unit and its part of the network. The crate's documentation
/// describes it.
pub struct MessageUnit {
    unit: Unit,
    network: NetworkUnit,
    /// Number of application subgroups.
    subgroups: u16,
}

impl MessageUnit {
    /// Builds the unit of a node in the state of power-on.
    ///
    /// # Errors
    /// [`NetworkError::NoNode`].
    pub fn new(network: &Network, node: u32) -> Result<Self, NetworkError> {
        let site = network.node(node)?;
        let torus = network.shape();
        let last = torus.dimensions().iter().map(|dimension| dimension.length - 1);
        // An I/O node has no coordinates. It shows those of node 0, and its number tells them
        // apart.
        let here = torus.coordinates(node);
        let identity = unit::Identity {
            node,
            nodes: network.nodes(),
            coordinates: here.map_or(0, |here| pack(here.iter().copied())),
            last_coordinates: pack(last),
            shape: *torus,
            tenants: site.tenants.clone(),
            max_reference: site.options.max_reference(),
        };

        Ok(Self {
            unit: Unit::new(identity, site.options.clock, site.options.times),
            network: NetworkUnit::new(&site)?,
            subgroups: site.options.subgroups,
        })
    }

    /// Sends, routes and receives packets in rounds, until about `budget` packets have moved or no
    /// more can. Returns whether the next step has something to do.
    fn move_packets(&mut self, context: &mut Context<'_>, budget: u32) -> bool {
        let mut total = 0;
        loop {
            let left = budget.saturating_sub(total);
            let limits = Limits { routed: budget, received: left };
            let sent = if self.unit.has_descriptors() {
                self.unit.inject(&mut self.network, context, left)
            } else {
                0
            };
            let Round { routed, received, has_more, is_settled } = self.route_and_receive(context, limits);

            let moved = sent + routed + received;
            total += moved;
            let has_more = has_more || self.unit.take_contended();
            if total >= budget {
                return moved > 0 || has_more;
            }
            // Another round would find nothing: either the injection FIFOs have no more room than
            // before, and the reception FIFOs no more packets, or the network is empty, and no
            // descriptor waits.
            if routed + received == 0 || is_settled && !has_more && !self.unit.has_descriptors() {
                return has_more;
            }
        }
    }

    /// Moves packets through the network, and then receives those for this node.
    #[inline]
    fn route_and_receive(&mut self, context: &mut Context<'_>, limits: Limits) -> Round {
        let mut ports = context.ports();
        let arriving = Arriving::at(&ports);
        if self.network.is_idle(&ports, arriving) {
            return self.receive(context, limits.received, Round::default());
        }

        if let Some(bypass) = self.network.bypass(&ports, arriving) {
            let round = self.bypass_and_route(context, bypass, limits);
            return self.receive(context, limits.received, round);
        }
        let outcome = self.network.step(&mut ports, arriving, limits.routed);
        context.wake_at(outcome.wake);
        let round = Round { routed: outcome.moved, has_more: outcome.has_more, ..Round::default() };
        self.receive(context, limits.received, round)
    }

    /// Receives the packets of `bypass` from their link, past the network reception FIFO, and moves
    /// the other packets through the network.
    #[inline]
    fn bypass_and_route(&mut self, context: &mut Context<'_>, mut bypass: Bypass, limits: Limits) -> Round {
        let limit = limits.received.min(limits.routed);
        let passed = self.unit.deposit_bypassing(&mut self.network, context, &mut bypass, limit);
        let has_more = passed >= limits.routed;
        let mut round = Round { routed: passed, received: passed, has_more, is_settled: false };

        let mut ports = context.ports();
        let arriving = Arriving::at(&ports);
        round.is_settled = self.network.is_idle(&ports, arriving) && !self.network.has_received();
        if !round.has_more && !round.is_settled {
            let outcome = self.network.step(&mut ports, arriving, limits.routed - passed);
            context.wake_at(outcome.wake);
            round.routed += outcome.moved;
            round.has_more = outcome.has_more;
        }

        if passed > 0 {
            self.network.end_bypass(&bypass);
        }
        round
    }

    /// Receives packets of the network reception FIFOs until the round has received about `limit`
    /// packets. Returns the round with these packets added.
    #[inline]
    fn receive(&mut self, context: &mut Context<'_>, limit: u32, round: Round) -> Round {
        if !self.network.has_received() || round.received > 0 && round.received >= limit {
            return round;
        }
        let received = self.unit.receive(&mut self.network, context, limit - round.received);
        Round { received: round.received + received, ..round }
    }
}

/// The number of packets that a round of a step may move, about.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Packets that the network moves: in each round the whole budget of the step.
    routed: u32,
    /// Packets that the unit receives from the network: what is left of the budget.
    received: u32,
}

/// The packets that a round of a step has moved.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    /// Packets that the network has moved.
    routed: u32,
    /// Packets that the unit has received from the network.
    received: u32,
    /// The network has more packets to move.
    has_more: bool,
    /// The network was found to have no packet left. False also if that was not examined.
    is_settled: bool,
}

/// Packs coordinates A to E into a word, as in a packet's [`Destination`].
fn pack(coordinates: impl Iterator<Item = u32>) -> u32 {
    let mut bytes = [0; DIMENSIONS];
    for (byte, coordinate) in bytes.iter_mut().zip(coordinates) {
        *byte = coordinate as u8;
    }
    Destination::new(bytes).0.get()
}

impl Device for MessageUnit {
    fn spec(&self) -> FunctionSpec {
        let identity = Identity {
            vendor: pci::VENDOR_ID,
            device: pci::DEVICE_MU,
            subsystem_vendor: pci::VENDOR_ID,
            subsystem: pci::DEVICE_MU,
            class: NETWORK_CONTROLLER,
            revision: 1,
        };

        let users = (0..self.subgroups).map(|subgroup| format!("s{subgroup}"));
        let attachments = std::iter::once("kernel".to_owned())
            .chain(users)
            .map(|name| AttachmentSpec { name, group: 0 })
            .collect();
        FunctionSpec::nic(
            identity,
            attachments,
            NicSizes {
                register_bytes: REGISTERS,
                vectors: vector::COUNT,
                ring_cells: RING_CELLS,
                mirror_bytes: MIRROR,
                ..NicSizes::default()
            },
        )
    }

    fn registers(&self) -> &'static [Register] {
        REGISTER_MAP
    }

    fn ports(&self) -> u8 {
        PORTS
    }

    fn attached(&mut self, context: &mut Context<'_>, attachment_id: AttachmentId) {
        self.unit.begin_tenancy(&self.network, context, attachment_id);
        context.wake_at(Nanos::ZERO);
    }

    fn detached(&mut self, context: &mut Context<'_>, attachment_id: AttachmentId, _: Ended) {
        self.unit.end_tenancy(attachment_id);
        context.wake_at(Nanos::ZERO);
    }

    fn leases_ended(&mut self, _: &mut Context<'_>, attachment_id: AttachmentId) {
        self.unit.release_views(attachment_id);
    }

    fn reset(&mut self, context: &mut Context<'_>, reach: Reset) {
        match reach {
            // An attachment is also reset after its client has left. Then no tenancy begins.
            Reset::Attachment(attachment_id) if !self.unit.is_present(attachment_id) => {}
            Reset::Attachment(attachment_id) => {
                self.unit.begin_tenancy(&self.network, context, attachment_id);
            }
            Reset::Function => {
                self.network.reset(&mut context.ports());
                self.unit.reset_shared();
                for attachment_id in self.unit.attachments() {
                    self.unit.begin_tenancy(&self.network, context, attachment_id);
                }
            }
        }
        context.wake_at(Nanos::ZERO);
    }

    fn read(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &mut [u8]) {
        if at.bar == BAR_REGISTERS {
            self.unit.read(&self.network, context, from, at.offset, data);
        }
    }

    fn peek(&self, ports: &Ports<'_>, from: AttachmentId, at: Address, data: &mut [u8]) -> bool {
        at.bar == BAR_REGISTERS && self.unit.peek(&self.network, ports, from, at.offset, data)
    }

    fn write(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &[u8]) -> Write {
        if at.bar == BAR_REGISTERS {
            self.unit.write(&mut self.network, context, from, at.offset, data);
        }
        Write::Accepted
    }

    fn drain(&mut self, context: &mut Context<'_>, from: AttachmentId, posted: &mut Posted<'_>) -> Write {
        while let Some((at, data)) = posted.next(context) {
            let length = data.len();
            if self.write(context, from, at, data) == Write::Stalled {
                return Write::Stalled;
            }
            posted.done(context);

            // Software that injects descriptors one by one writes the tail of one FIFO many times
            // in a row. The unit carries out these writes in one call.
            if at.bar == BAR_REGISTERS {
                self.unit.repeat_tail_writes(from, at.offset, length, posted);
            }
        }
        Write::Accepted
    }

    fn step(&mut self, context: &mut Context<'_>, budget: u32) -> Progress {
        let has_more = self.move_packets(context, budget);
        self.unit.poll_barriers(&self.network);
        self.unit.poll_lines(&self.network);
        self.unit.poll_network(&self.network);
        self.network.log_counts(context);
        self.unit.publish_changes(context);
        if has_more { Progress::Busy } else { Progress::Idle }
    }

    fn counters(&self) -> Vec<Counter> {
        let list = [
            ("descriptors", counter::DESCRIPTORS),
            ("packets_sent", counter::PACKETS_SENT),
            ("bytes_sent", counter::BYTES_SENT),
            ("send_waits", counter::SEND_WAITS),
            ("fifo_packets", counter::FIFO_PACKETS),
            ("put_packets", counter::PUT_PACKETS),
            ("get_packets", counter::GET_PACKETS),
            ("bytes_received", counter::BYTES_RECEIVED),
            ("receive_waits", counter::RECEIVE_WAITS),
            ("dropped", counter::DROPPED),
            ("faults", counter::FAULTS),
            ("atomics", counter::ATOMICS),
            ("refused", counter::REFUSED),
            ("prefetched", counter::PREFETCHED),
        ];
        let of_unit = list.into_iter().map(|(name, counter)| (name, self.unit.counter(counter)));
        let of_tenants = [("unclaimed", self.unit.count_unclaimed()), ("stale", self.unit.count_stale())];
        let all = of_unit.chain(of_tenants).chain(self.network.counters());
        all.map(|(name, value)| Counter { name, value }).collect()
    }
}
