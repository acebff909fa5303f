//! A learning Ethernet switch: a device of the fabric with ports and no client.
//!
//! - It learns from each frame behind which port its sender is, and forgets after
//!   [`SwitchConfig::age`].
//! - A frame to a known address leaves by that port, and all others leave by every port except the
//!   one they came from.
//! - A frame that an output can't take is dropped and counted. A slow receiver thus holds up no
//!   other.
//!
//! The switch forwards between any two of its ports. Links must not form a loop, because a
//! broadcast would go round for ever: it has no spanning tree.

mod table;

use nicforge_core::{
    context::Context,
    device::{Counter, Device, Progress, Reset, Write},
    fabric::{MAX_PORTS, Packet, Ports, Refusal, Unsent},
    ids::{Address, AttachmentId},
    spec::{FunctionSpec, Identity},
    time::Nanos,
    warning::Warning,
};
use nicforge_hwi::pci::VENDOR_ID;
use nicforge_kit::{CountWatch, in_turn};
use thiserror::Error;

use crate::{CHANNEL, ETHERNET_HEADER, MacAddress, registers::CLASS_ETHERNET};

use self::table::AddressTable;

/// Default time after which the switch forgets an address, in nanoseconds (IEEE 802.1Q, 8.8.3).
pub const DEFAULT_AGE: u64 = 300_000_000_000;
/// Default number of addresses that the switch can know.
pub const DEFAULT_ADDRESSES: usize = 1024;
/// Largest number of addresses that a switch can know.
pub const MAX_ADDRESSES: usize = 65_536;

/// Parameters of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchConfig {
    /// Number of addresses that it can know, 1 to [`MAX_ADDRESSES`].
    pub addresses: usize,
    /// Time without a frame after which it forgets an address, in nanoseconds.
    pub age: u64,
}

impl Default for SwitchConfig {
    fn default() -> Self {
        Self { addresses: DEFAULT_ADDRESSES, age: DEFAULT_AGE }
    }
}

/// Reason why a switch can't have its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SwitchConfigError {
    /// The number of addresses is out of range.
    #[error("a table of {addresses} addresses: 1 to {MAX_ADDRESSES} are possible")]
    Addresses {
        /// Number of addresses.
        addresses: usize,
    },
}

/// The switch; the module's documentation describes it.
pub struct Switch {
    table: AddressTable,
    /// The port that is served first.
    next: u8,
    statistics: Statistics,
    watches: Watches,
}

/// The counts of frames that were dropped, of which each rise is logged.
#[derive(Clone, Copy, Debug, Default)]
struct Watches {
    invalid: CountWatch,
    full: CountWatch,
}

/// Statistics of a switch.
#[derive(Clone, Copy, Debug, Default)]
struct Statistics {
    /// Frames that left by one port.
    forwarded: u64,
    /// Frames that were copied to several ports, or to none, because their address was that of a
    /// group or unknown.
    flooded: u64,
    /// Copies made for that.
    copies: u64,
    /// Frames whose address was behind the port they came from.
    filtered: u64,
    /// Frames that are shorter than a header.
    short: u64,
    /// Frames or copies that an output had no room for.
    full: u64,
    /// Frames or copies that are longer than their output permits.
    too_long: u64,
    /// Copies for which the fabric had no packet.
    no_packet: u64,
}

impl Switch {
    /// Builds a switch that knows no address.
    ///
    /// # Errors
    /// [`SwitchConfigError`].
    pub fn new(config: SwitchConfig) -> Result<Self, SwitchConfigError> {
        if config.addresses == 0 || config.addresses > MAX_ADDRESSES {
            return Err(SwitchConfigError::Addresses { addresses: config.addresses });
        }

        Ok(Self {
            table: AddressTable::new(config.addresses, config.age),
            next: 0,
            statistics: Statistics::default(),
            watches: Watches::default(),
        })
    }

    /// Forwards a frame that came by port `from`. Returns the number of packets that were handled:
    /// the frame and its copies.
    fn forward(&mut self, ports: &mut Ports<'_>, now: Nanos, from: u8, frame: Packet) -> u32 {
        let Some(FrameAddresses { destination, source }) = addresses(frame.bytes()) else {
            self.statistics.short += 1;
            ports.recycle(frame);
            return 1;
        };

        if source.is_valid_source() {
            self.table.learn(source, from, now);
        }

        let known = if destination.is_group() { None } else { self.table.find(destination, now) };
        // A frame to an address behind a link that is down is flooded, as one to an unknown
        // address.
        match known.filter(|&port| ports.is_up(port)) {
            Some(port) if port == from => {
                self.statistics.filtered += 1;
                ports.recycle(frame);
                1
            }
            Some(port) => {
                self.statistics.forwarded += 1;
                self.send(ports, port, frame);
                1
            }
            None => self.flood(ports, from, frame),
        }
    }

    /// Sends a frame by every port except `from`: a copy by each but the last. Returns the number
    /// of packets that were handled: the frame and its copies.
    fn flood(&mut self, ports: &mut Ports<'_>, from: u8, frame: Packet) -> u32 {
        self.statistics.flooded += 1;
        let mut outputs = up_ports(ports) & !(1 << from);
        let mut packets = 1;

        while outputs != 0 {
            let port = outputs.trailing_zeros() as u8;
            outputs &= outputs - 1;
            // The last output gets the frame itself.
            if outputs == 0 {
                self.send(ports, port, frame);
                return packets;
            }

            // A full output needs no copy.
            if !ports.ready(port, CHANNEL) {
                self.statistics.full += 1;
                continue;
            }
            let Ok(copy) = ports.copy_packet(&frame) else {
                self.statistics.no_packet += 1;
                continue;
            };

            self.statistics.copies += 1;
            packets += 1;
            self.send(ports, port, copy);
        }

        ports.recycle(frame);

        packets
    }

    /// Logs the frames that were dropped in a step.
    fn log_counts(&mut self, context: &mut Context<'_>) {
        let Statistics { short, full, too_long, no_packet, .. } = self.statistics;
        self.watches.invalid.check(context, None, short + too_long, || {
            Warning::dropped(&"a frame has a header, and a length that its output takes")
        });
        self.watches
            .full
            .check(context, None, full + no_packet, || Warning::dropped(&"a frame finds room at its output"));
    }

    /// Sends a frame, or drops it if the output is full or takes no frame of this length.
    fn send(&mut self, ports: &mut Ports<'_>, port: u8, frame: Packet) {
        if let Err(Unsent { packet, reason }) = ports.send(port, CHANNEL, frame) {
            match reason {
                Refusal::TooLong { .. } => self.statistics.too_long += 1,
                _ => self.statistics.full += 1,
            }
            ports.recycle(packet);
        }
    }
}

/// Returns a bit mask of the ports with a link that takes packets.
fn up_ports(ports: &Ports<'_>) -> u64 {
    let mut up = 0;
    let mut remaining = ports.plugged();
    while remaining != 0 {
        let port = remaining.trailing_zeros() as u8;
        remaining &= remaining - 1;
        up |= u64::from(ports.is_up(port)) << port;
    }

    up
}

/// The addresses in the header of a frame.
struct FrameAddresses {
    destination: MacAddress,
    source: MacAddress,
}

/// Returns the addresses of a frame, unless it is shorter than a header.
fn addresses(frame: &[u8]) -> Option<FrameAddresses> {
    let header = frame.first_chunk::<ETHERNET_HEADER>()?;
    let (destination, rest) = header.split_first_chunk::<6>()?;
    let source = MacAddress(*rest.first_chunk::<6>()?);
    Some(FrameAddresses { destination: MacAddress(*destination), source })
}

impl Device for Switch {
    fn spec(&self) -> FunctionSpec {
        // Without attachments no client sees the identity.
        let identity = Identity {
            vendor: VENDOR_ID,
            device: 0,
            subsystem_vendor: VENDOR_ID,
            subsystem: 0,
            class: CLASS_ETHERNET,
            revision: 0,
        };

        FunctionSpec::hub(identity)
    }

    fn read(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &mut [u8]) {}

    fn write(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &[u8]) -> Write {
        Write::Accepted
    }

    /// Forgets all addresses. Frames on their way stay.
    fn reset(&mut self, _: &mut Context<'_>, _: Reset) {
        self.table.clear();
    }

    fn step(&mut self, context: &mut Context<'_>, budget: u32) -> Progress {
        let now = context.now();
        let mut ports = context.ports();
        let mut waiting = ports.arrived(CHANNEL);
        if waiting == 0 {
            return Progress::Idle;
        }

        // Each port has an equal part of the budget. The first port without a turn in this step
        // goes first in the next one. A step exceeds its budget by the copies of one frame at most.
        let share = (budget / waiting.count_ones()).max(1);
        let mut remaining = budget.max(1);
        while remaining > 0
            && let Some(port) = in_turn(waiting, self.next)
        {
            waiting &= !(1 << port);
            let mut work = 0;
            while work < share.min(remaining)
                && let Some(frame) = ports.take(port, CHANNEL)
            {
                work += self.forward(&mut ports, now, port, frame);
            }

            remaining = remaining.saturating_sub(work);
            self.next = (port + 1) % MAX_PORTS;
        }

        self.log_counts(context);
        Progress::Busy
    }

    fn counters(&self) -> Vec<Counter> {
        let statistics = &self.statistics;
        [
            ("forwarded", statistics.forwarded),
            ("flooded", statistics.flooded),
            ("copies", statistics.copies),
            ("filtered", statistics.filtered),
            ("short", statistics.short),
            ("full", statistics.full),
            ("too_long", statistics.too_long),
            ("no_packet", statistics.no_packet),
            ("addresses", self.table.len() as u64),
            ("moved", self.table.moved()),
            ("evicted", self.table.evicted()),
        ]
        .map(|(name, value)| Counter { name, value })
        .to_vec()
    }
}
