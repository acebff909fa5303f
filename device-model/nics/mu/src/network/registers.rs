//! The device control registers of the network.

use nicforge_core::fabric::Ports;
use nicforge_hwi::{
    mu_packet::{CHUNK, CLASSES, DIMENSIONS, PORTS, channel},
    nd_dcr::{self, error, link},
};
use nicforge_network::{
    collective::{ClassRoute, CollectiveCounters},
    router::Source,
};
use thiserror::Error;

use super::{COLLECTIVE, NetworkUnit, SECOND_QUEUE, SUB_COMM, collective, has_second_queue};
use crate::link_check::End;

/// Nanoseconds of a network cycle, the unit of waiting times.
const CYCLE_NS: u64 = 2;
/// Bytes of a register.
const REGISTER: u64 = 8;
/// Number of registers of class routes: each has those of two classes.
const CLASS_REGISTERS: u64 = CLASSES as u64 / 2;
/// Bits of a port in the registers that clear and stop counters: one for each counter of the
/// sender, and one for those of the receiver.
const COUNTER_BITS: u32 = 5;
/// Number of a port's performance counters at the sender: sent chunks of payload. They come first.
const SENDER_COUNTERS: usize = 4;
/// The receiver's counter of packets. That of their waiting times follows.
const RECEIVED_PACKETS: usize = SENDER_COUNTERS;
/// Bits of a coordinate in the register of coordinates.
const COORDINATE_BITS: u32 = 6;

/// Reasons why a write to a register is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum RegisterError {
    /// There is no register, or it cannot be written.
    #[error("there is no register to write at {offset:#x}")]
    NoRegister {
        /// Offset from [`nd_dcr::BASE`].
        offset: u64,
    },
    /// The value has no meaning.
    #[error("register {offset:#x} does not take {value:#x}")]
    Value {
        /// Offset from [`nd_dcr::BASE`].
        offset: u64,
        /// The value.
        value: u64,
    },
}

/// A performance counter.
#[derive(Clone, Copy, Debug)]
enum PerformanceCounter {
    /// It counts. `from` is the raw count at which it was 0.
    Counts { from: u64 },
    /// It stands still at a value.
    Stands { at: u64 },
}

/// State of registers that no other part holds.
#[derive(Debug)]
pub(super) struct Registers {
    /// Exceptions: bits of [`error`].
    pub(super) errors: u64,
    /// [`nd_dcr::NON_FATAL_ERR_ENABLE`].
    pub(super) enabled: u64,
    /// The collective unit's counters at the last [`Registers::note_exceptions`].
    last_counters: CollectiveCounters,
    /// [`link::UPC_CTRL`] of each port.
    control: [u64; PORTS as usize],
    /// The counters of each port.
    counters: [[PerformanceCounter; link::COUNTERS]; PORTS as usize],
}

impl Registers {
    /// Returns the state of power-on.
    pub(super) fn new() -> Self {
        Self {
            errors: 0,
            enabled: 0,
            last_counters: CollectiveCounters::default(),
            control: [link::UPC_CTRL_RESET; PORTS as usize],
            counters: [[PerformanceCounter::Counts { from: 0 }; link::COUNTERS]; PORTS as usize],
        }
    }

    /// Records the exceptions of this node's collective logic: those whose counters have risen.
    pub(super) fn note_exceptions(&mut self, now: CollectiveCounters) {
        let before = std::mem::replace(&mut self.last_counters, now);
        for (has_risen, bit) in [
            (now.not_a_number > before.not_a_number, error::NAN),
            (now.overflow > before.overflow, error::OVERFLOW),
            (now.mismatched > before.mismatched, error::MISMATCH),
        ] {
            self.errors |= if has_risen { bit } else { 0 };
        }
    }
}

/// A device control register of the network.
#[derive(Clone, Copy)]
enum Register {
    /// Rings, and the ratio of packets from links to injected ones.
    Internal,
    /// Clears exceptions.
    Clear,
    Coordinates,
    /// Order of the dimensions.
    Order,
    /// Zones `2 n` and `2 n + 1`.
    Zones(usize),
    /// Classes `2 n` and `2 n + 1`.
    BarrierClasses(u8),
    /// Classes `2 n` and `2 n + 1`.
    CollectiveClasses(u8),
    /// Exceptions that interrupt the kernel.
    ErrorEnable,
    Errors,
    CounterClear,
    CounterStop,
    /// The virtual channels that a port's counters count.
    Control(u8),
    Retransmissions(u8),
    /// A counter of a port.
    Counter(u8, usize),
    /// Credits of a port.
    Tokens(u8),
    /// The CRC of the packets of users or, if true, of the system at an end of the port's link.
    Crc(u8, End, bool),
}

impl Register {
    /// Returns the register at an offset from [`nd_dcr::BASE`].
    fn at(offset: u64) -> Option<Self> {
        if !offset.is_multiple_of(REGISTER) {
            return None;
        }
        if offset >= nd_dcr::port(0) {
            return Self::of_port(offset);
        }

        let number = |first: u64| (offset.wrapping_sub(first) / REGISTER) as u8;
        let end_of = |first: u64| first + CLASS_REGISTERS * REGISTER;
        Some(match offset {
            nd_dcr::CTRL_INTERNAL => Self::Internal,
            nd_dcr::CTRL_CLEAR0 => Self::Clear,
            nd_dcr::CTRL_COORDS => Self::Coordinates,
            nd_dcr::CTRL_DET_ORDER => Self::Order,
            nd_dcr::CTRL_DYNAMIC_ZONE01 => Self::Zones(0),
            nd_dcr::CTRL_DYNAMIC_ZONE23 => Self::Zones(1),
            nd_dcr::NON_FATAL_ERR_ENABLE => Self::ErrorEnable,
            nd_dcr::NON_FATAL_ERR0 => Self::Errors,
            nd_dcr::CTRL_UPC_CLEAR => Self::CounterClear,
            nd_dcr::CTRL_UPC_STOP => Self::CounterStop,
            _ if (nd_dcr::CTRL_GI_CLASS..end_of(nd_dcr::CTRL_GI_CLASS)).contains(&offset) => {
                Self::BarrierClasses(number(nd_dcr::CTRL_GI_CLASS))
            }
            _ if (nd_dcr::CTRL_COLL_CLASS..end_of(nd_dcr::CTRL_COLL_CLASS)).contains(&offset) => {
                Self::CollectiveClasses(number(nd_dcr::CTRL_COLL_CLASS))
            }
            _ => return None,
        })
    }

    /// Returns the register at an offset behind the first register of port 0.
    fn of_port(offset: u64) -> Option<Self> {
        let port_bytes = nd_dcr::port(1) - nd_dcr::port(0);
        let from_port0 = offset - nd_dcr::port(0);
        let port = u8::try_from(from_port0 / port_bytes).ok().filter(|&port| port < PORTS)?;
        let within = from_port0 % port_bytes;
        let counter = within.wrapping_sub(link::UPC) / REGISTER;
        Some(match within {
            link::UPC_CTRL => Self::Control(port),
            link::SE_RETRANS_CNT => Self::Retransmissions(port),
            link::SE_TOKENS => Self::Tokens(port),
            link::RE_LINK_CRC_USR => Self::Crc(port, End::Receiver, false),
            link::RE_LINK_CRC_SYS => Self::Crc(port, End::Receiver, true),
            link::SE_LINK_CRC_USR => Self::Crc(port, End::Sender, false),
            link::SE_LINK_CRC_SYS => Self::Crc(port, End::Sender, true),
            _ if counter < link::COUNTERS as u64 => Self::Counter(port, counter as usize),
            _ => return None,
        })
    }
}

impl NetworkUnit {
    /// Returns the value of the register at an offset from [`nd_dcr::BASE`]; `None` if there is
    /// none.
    pub(crate) fn read_register(&self, ports: &Ports<'_>, offset: u64) -> Option<u64> {
        Some(match Register::at(offset)? {
            Register::Internal => {
                self.rings() << nd_dcr::IS_TORUS_SHIFT
                    | u64::from(self.router.through_ratio() - 1) << nd_dcr::THROUGH_RATIO_SHIFT
            }
            Register::Clear | Register::CounterClear => 0,
            Register::Coordinates => self.coordinates(),
            Register::Order => self.order(),
            Register::Zones(pair) => self.zones(pair),
            Register::BarrierClasses(pair) => {
                class_pair(pair, |class| self.collective.barrier_route(class), nd_dcr::LINKS)
            }
            Register::CollectiveClasses(pair) => {
                class_pair(pair, |class| self.collective.route(class), u16::MAX)
            }

            Register::ErrorEnable => self.registers.enabled,
            Register::Errors => self.registers.errors,
            Register::CounterStop => self.stopped(),
            Register::Control(port) => self.registers.control[usize::from(port)],
            Register::Retransmissions(port) => {
                (0..super::CHANNELS).map(|vc| ports.sent(port, vc).retransmissions).sum()
            }
            Register::Counter(port, counter) => self.counter(ports, port, counter),
            Register::Tokens(port) => tokens(ports, port, has_second_queue(&self.site.options)),
            Register::Crc(port, end, is_system) => {
                self.site.checks.crc(self.site.node, port, end, is_system).into()
            }
        })
    }

    /// Writes the register at an offset from [`nd_dcr::BASE`].
    ///
    /// # Errors
    /// [`RegisterError`]; the register then keeps its value.
    pub(crate) fn write_register(
        &mut self,
        ports: &Ports<'_>,
        offset: u64,
        value: u64,
    ) -> Result<(), RegisterError> {
        let no_register = RegisterError::NoRegister { offset };
        let wrong = RegisterError::Value { offset, value };

        match Register::at(offset).ok_or(no_register)? {
            Register::Internal => {
                let ratio = (value >> nd_dcr::THROUGH_RATIO_SHIFT) as u8 & 0xf;
                self.router.set_through_ratio(ratio + 1);
            }
            Register::Clear => self.registers.errors &= !value,
            Register::Zones(pair) => self.set_zones(pair, value),
            Register::BarrierClasses(pair) => {
                let routes = class_routes(value).ok_or(wrong)?;
                for (class, route) in (2 * pair..).zip(routes) {
                    // Barriers have a channel of their own, and no FIFO.
                    let route = ClassRoute { channel: 0, fifo: 0, ..route };
                    // The route of the register's other class is left alone if it does not change:
                    // a barrier of it can be in progress.
                    if route != self.collective.barrier_route(class) {
                        self.collective.set_barrier_route(class, route).or(Err(wrong))?;
                    }
                }
            }
            Register::CollectiveClasses(pair) => {
                let routes = class_routes(value).ok_or(wrong)?;
                for (class, route) in (2 * pair..).zip(routes) {
                    self.collective.set_route(class, route).or(Err(wrong))?;
                }
            }

            Register::ErrorEnable => self.registers.enabled = value & error::ALL,
            Register::CounterClear => self.clear_counters(ports, value),
            Register::CounterStop => self.stop_counters(ports, value),
            Register::Control(port) => self.registers.control[usize::from(port)] = value,
            Register::Coordinates
            | Register::Order
            | Register::Errors
            | Register::Retransmissions(_)
            | Register::Counter(..)
            | Register::Tokens(_)
            | Register::Crc(..) => return Err(no_register),
        }
        Ok(())
    }

    /// Returns the dimensions that are rings, with A in the highest of five bits.
    fn rings(&self) -> u64 {
        let dimensions = self.site.cables.torus.dimensions().iter();
        dimensions.fold(0, |set, dimension| set << 1 | u64::from(dimension.wraps))
    }

    /// Returns the register of coordinates: those of the node in the upper word, and the highest
    /// ones of the torus in the lower word.
    fn coordinates(&self) -> u64 {
        let torus = &self.site.cables.torus;
        let pack = |values: &mut dyn Iterator<Item = u32>| {
            values.fold(0, |word, value| word << COORDINATE_BITS | u64::from(value))
        };
        // An I/O node has none.
        let own = torus.coordinates(self.site.node).map_or(0, |own| pack(&mut own.iter().copied()));
        own << 32 | pack(&mut torus.dimensions().iter().map(|dimension| dimension.length - 1))
    }

    /// Returns the register of the order of dimensions: for each one a set with a single dimension.
    fn order(&self) -> u64 {
        let order = self.site.options.order.iter();
        order.fold(0, |word, dimension| word << DIMENSIONS | u64::from(nd_dcr::reversed_set(1 << dimension)))
    }

    /// Returns the register of a pair of zones: 0 and 1, or 2 and 3.
    fn zones(&self, pair: usize) -> u64 {
        let zones = &self.router.policy().zones()[2 * pair..2 * pair + 2];
        let sets = zones.iter().zip([false, true]).flat_map(|(zone, is_odd)| {
            (0..).zip(zone).map(move |(set, &dimensions)| {
                u64::from(nd_dcr::reversed_set(dimensions)) << nd_dcr::zone_shift(is_odd, set)
            })
        });
        sets.fold(0, |word, set| word | set)
    }

    /// Sets a pair of zones to the value of their register.
    fn set_zones(&mut self, pair: usize, value: u64) {
        let zones = &mut self.router.policy_mut().zones_mut()[2 * pair..2 * pair + 2];
        for (zone, is_odd) in zones.iter_mut().zip([false, true]) {
            for (set, dimensions) in (0..).zip(zone) {
                let bits = (value >> nd_dcr::zone_shift(is_odd, set)) as u8 & 0x1f;
                *dimensions = nd_dcr::reversed_set(bits);
            }
        }
    }

    /// Returns the count of a performance counter since power-on.
    fn raw_counter(&self, ports: &Ports<'_>, port: u8, counter: usize) -> u64 {
        // The control register has a byte of channels for each counter, from the highest byte on.
        // The counters of the receiver share one.
        let shift = 56 - 8 * counter.min(RECEIVED_PACKETS);
        let enabled = (self.registers.control[usize::from(port)] >> shift) as u8;
        let vcs = physical_vcs(enabled);
        match counter {
            ..SENDER_COUNTERS => {
                let sent = vcs.map(|vc| ports.sent(port, vc.into()));
                let framing = u64::from(self.framing);
                sent.map(|sent| sent.bytes.saturating_sub(sent.packets * framing) / CHUNK as u64).sum()
            }
            RECEIVED_PACKETS => {
                vcs.map(|vc| self.router.input_counters(Source::Link { port, vc }).packets).sum()
            }
            _ => {
                let waited = vcs.map(|vc| self.router.input_counters(Source::Link { port, vc }).waited);
                waited.sum::<u64>() / CYCLE_NS
            }
        }
    }

    /// Returns the value of a performance counter.
    fn counter(&self, ports: &Ports<'_>, port: u8, counter: usize) -> u64 {
        match self.registers.counters[usize::from(port)][counter] {
            PerformanceCounter::Counts { from } => {
                self.raw_counter(ports, port, counter).saturating_sub(from)
            }
            PerformanceCounter::Stands { at } => at,
        }
    }

    /// Sets performance counters to 0. `bits` has a bit for each, as [`counter_bit`] returns it.
    pub(super) fn clear_counters(&mut self, ports: &Ports<'_>, bits: u64) {
        for (port, counter) in counters_of(bits) {
            let raw = self.raw_counter(ports, port, counter);
            let slot = &mut self.registers.counters[usize::from(port)][counter];
            *slot = match slot {
                PerformanceCounter::Counts { .. } => PerformanceCounter::Counts { from: raw },
                PerformanceCounter::Stands { .. } => PerformanceCounter::Stands { at: 0 },
            };
        }
    }

    /// Stops the performance counters of `bits`, and lets the others count.
    fn stop_counters(&mut self, ports: &Ports<'_>, bits: u64) {
        for (port, counter) in counters_of(u64::MAX) {
            let raw = self.raw_counter(ports, port, counter);
            let value = self.counter(ports, port, counter);
            let stops = counters_of(bits).any(|stopped| stopped == (port, counter));
            self.registers.counters[usize::from(port)][counter] = if stops {
                PerformanceCounter::Stands { at: value }
            } else {
                PerformanceCounter::Counts { from: raw.saturating_sub(value) }
            };
        }
    }

    /// Returns the bits of counters that stand still.
    fn stopped(&self) -> u64 {
        let stands = |&(port, counter): &(u8, usize)| {
            let counter = self.registers.counters[usize::from(port)][counter];
            matches!(counter, PerformanceCounter::Stands { .. })
        };
        counters_of(u64::MAX)
            .filter(stands)
            .fold(0, |bits, (port, counter)| bits | counter_bit(port, counter))
    }
}

/// Returns the bit of a counter in the registers that clear and stop counters. The counters of a
/// receiver share one.
fn counter_bit(port: u8, counter: usize) -> u64 {
    1 << (63 - COUNTER_BITS * u32::from(port) - counter.min(RECEIVED_PACKETS) as u32)
}

/// Returns the counters of some bits: their ports, and their numbers there.
fn counters_of(bits: u64) -> impl Iterator<Item = (u8, usize)> {
    let all = (0..PORTS).flat_map(|port| (0..link::COUNTERS).map(move |counter| (port, counter)));
    all.filter(move |&(port, counter)| bits & counter_bit(port, counter) != 0)
}

/// Returns the virtual channels of links that carry the packets of a set of header channels. In the
/// set, channel 0 has bit 6, and channel 6 bit 0. Collective packets of all nodes and of the system
/// share a channel of the links.
fn physical_vcs(enabled: u8) -> impl Iterator<Item = u8> {
    let vc_of = |number: u8| match number {
        channel::USER_COMM_WORLD | channel::SYSTEM_COLLECTIVE => COLLECTIVE,
        channel::USER_SUB_COMM => SUB_COMM,
        other => other,
    };
    let numbers = (channel::DYNAMIC..=channel::SYSTEM_COLLECTIVE)
        .filter(move |number| enabled >> (6 - number) & 1 == 1);
    let of_numbers = numbers.fold(0_u8, |set, number| set | 1 << vc_of(number));
    let set = of_numbers | (of_numbers >> channel::DYNAMIC & 1) << SECOND_QUEUE;
    (0..u8::BITS as u8).filter(move |vc| set >> vc & 1 == 1)
}

/// Returns the register of a port's credits: 10 bits for the dynamic channel, and then 4 bits for
/// each of the others, down to the lowest. `has_second_queue` says whether the dynamic channel has
/// two queues.
fn tokens(ports: &Ports<'_>, port: u8, has_second_queue: bool) -> u64 {
    let credits = |vc: u8| ports.credits(port, vc.into());
    let fixed = [channel::DETERMINISTIC, channel::HIGH_PRIORITY, channel::SYSTEM, COLLECTIVE, SUB_COMM];
    let of_second = if has_second_queue { credits(SECOND_QUEUE) } else { 0 };
    let of_dynamic = (credits(channel::DYNAMIC) + of_second).min(0x3ff);
    fixed.iter().fold(of_dynamic.into(), |word, &vc| word << 4 | u64::from(credits(vc).min(0xf)))
}

/// Returns the register of the routes of classes `2 pair` and `2 pair + 1`. Of their input masks,
/// it shows `bits`.
fn class_pair(pair: u8, route: impl Fn(u8) -> ClassRoute, bits: u16) -> u64 {
    nd_dcr::ClassRoute::register([2 * pair, 2 * pair + 1].map(|class| {
        let register = collective::class_register(&route(class));
        nd_dcr::ClassRoute { input: register.input & bits, ..register }
    }))
}

/// Returns the routes of the two classes in a register, if both have a meaning.
fn class_routes(value: u64) -> Option<[ClassRoute; 2]> {
    let [even, odd] = nd_dcr::ClassRoute::of_register(value).map(collective::class_route);
    Some([even?, odd?])
}
