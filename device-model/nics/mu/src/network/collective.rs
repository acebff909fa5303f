//! Collective packets: the check of their headers, and class routes.

use nicforge_hwi::{
    mu_packet::{
        CLASSES, HEADER, IO_PORT, MAX_PACKET, PORTS, PacketHeader, channel, collective_type, fifo_map, kind,
        operation,
    },
    nd_dcr::{self, CLASS_LINK_IO, LOCAL, class_link, class_type},
};
use nicforge_network::{
    collective::{
        ByteOrder, ClassRoute, CollectiveSpec, CollectiveUnit, CollectiveWord, Flags, Kind, Number, Operand,
        Operation,
    },
    router::FifoSpec,
};

use super::{
    COLLECTIVE, SUB_COMM, SYMBOLS, fifo_packets,
    route::{Route, RouteError, check_map},
};
use crate::config::{Cables, NetworkError, Options, Site};

/// Number of the injection FIFO of the system, and of the collective unit's reception FIFO.
pub(super) const SYSTEM_FIFO: u8 = fifo_map::COLLECTIVE_SYSTEM.trailing_zeros() as u8;
/// Number of the injection FIFO of users, and of the collective unit's reception FIFO.
pub(super) const USER_FIFO: u8 = fifo_map::COLLECTIVE_USER.trailing_zeros() as u8;
/// Index of the virtual channel [`COLLECTIVE`] in the list of the collective unit.
const COLLECTIVE_INDEX: u8 = 0;
/// Index of the virtual channel [`SUB_COMM`] in that list.
const SUB_COMM_INDEX: u8 = 1;

/// Cycles that the collective logic adds to a packet's way: first up, and then down (section II.C).
const DELAYS: [u32; 2] = [9, 3];
/// Bytes of a barrier symbol on links with a bandwidth: a network header.
const SYMBOL_BYTES: u32 = 12;
/// Bytes of the longest word of an operation. A header can state more, `4 << n`.
const MAX_WORD: usize = 512;

/// Returns the collective unit of a node.
pub(super) fn unit(site: &Site) -> Result<CollectiveUnit, NetworkError> {
    let options: &Options = &site.options;
    let framing = options.framing();
    let packets = fifo_packets(options);
    let bytes = (MAX_PACKET as u32 + framing) * u32::from(packets);
    let fifos = vec![FifoSpec { bytes, packets, priority: 0 }; 2];

    Ok(CollectiveUnit::new(CollectiveSpec {
        node: site.node,
        ports: PORTS,
        link: options.link.clone(),
        framing,
        vcs: vec![COLLECTIVE, SUB_COMM],
        barrier_vc: SYMBOLS,
        barrier_framing: if options.is_timed() { SYMBOL_BYTES } else { 0 },
        delays: DELAYS.map(|cycles| options.network_clock.nanoseconds(cycles)),
        recovery: options.network_clock.nanoseconds(options.times.collective_recovery),
        prefix: HEADER,
        injection: fifos.clone(),
        reception: fifos,
    })?)
}

/// Checks the header of a collective packet, and returns its route.
pub(super) fn route(
    unit: &CollectiveUnit,
    cables: &Cables,
    header: &PacketHeader,
    map: u64,
    is_system: bool,
) -> Result<Route, RouteError> {
    let number = header.channel();
    let (channel, fifo) = match number {
        channel::USER_COMM_WORLD => (COLLECTIVE_INDEX, USER_FIFO),
        channel::USER_SUB_COMM => (SUB_COMM_INDEX, USER_FIFO),
        channel::SYSTEM_COLLECTIVE if is_system => (COLLECTIVE_INDEX, SYSTEM_FIFO),
        channel::SYSTEM_COLLECTIVE => return Err(RouteError::Permission { channel: number }),
        _ => return Err(RouteError::Channel { channel: number, kind: kind::COLLECTIVE }),
    };

    let class = header.class();
    let route = unit.route(class);
    if !route.is_member || (route.channel, route.fifo) != (channel, fifo) {
        return Err(RouteError::ClassRoute { class, channel: number });
    }

    let word = collective_word(cables, header, class)?;
    Ok(Route { word: word.bits(), fifos: check_map(map, 1 << fifo)?, target: None })
}

/// Checks the fields of a header that describe its operation, and returns the packet's route word.
fn collective_word(cables: &Cables, header: &PacketHeader, class: u8) -> Result<CollectiveWord, RouteError> {
    let refused = RouteError::Operation {
        operation: header.operation(),
        bytes: header.word_bytes(),
        collective_type: header.collective_type(),
    };

    let kind = match header.collective_type() {
        collective_type::BROADCAST => Kind::Broadcast,
        collective_type::ALLREDUCE => Kind::Allreduce,
        collective_type::REDUCE => Kind::Reduce,
        _ => return Err(refused),
    };
    let (number, operation) = match operation_of(header.operation()) {
        Some(operation) => operation,
        // A broadcast combines nothing, so its operation has no meaning.
        None if kind == Kind::Broadcast => (Number::Unsigned, Operation::Or),
        None => return Err(refused),
    };

    let bytes = header.word_bytes();
    if bytes > MAX_WORD || number == Number::Float && bytes != 8 {
        return Err(refused);
    }
    let target = match kind {
        Kind::Reduce => {
            let coordinates = header.destination.coordinates();
            let node = cables.torus.node(&coordinates.map(u32::from));
            node.ok_or(RouteError::Destination { coordinates })?
        }
        Kind::Broadcast | Kind::Allreduce => 0,
    };

    let operand = Operand { number, bytes: bytes as u16, order: ByteOrder::Little };
    Ok(CollectiveWord { class, kind, operation, operand, target, flags: Flags::default(), is_down: false })
}

/// Returns the type of numbers and the operation that a header's code stands for; `None` if there
/// is none.
fn operation_of(code: u8) -> Option<(Number, Operation)> {
    Some(match code {
        operation::AND => (Number::Unsigned, Operation::And),
        operation::OR => (Number::Unsigned, Operation::Or),
        operation::XOR => (Number::Unsigned, Operation::Xor),
        operation::UNSIGNED_ADD => (Number::Unsigned, Operation::Add),
        operation::UNSIGNED_MIN => (Number::Unsigned, Operation::Min),
        operation::UNSIGNED_MAX => (Number::Unsigned, Operation::Max),
        operation::SIGNED_ADD => (Number::Signed, Operation::Add),
        operation::SIGNED_MIN => (Number::Signed, Operation::Min),
        operation::SIGNED_MAX => (Number::Signed, Operation::Max),
        operation::FLOATING_ADD => (Number::Float, Operation::Add),
        operation::FLOATING_MIN => (Number::Float, Operation::Min),
        operation::FLOATING_MAX => (Number::Float, Operation::Max),
        _ => return None,
    })
}

/// Returns the bit of a port in the link masks of class route registers.
fn link_bit(port: u8) -> u16 {
    if port == IO_PORT { CLASS_LINK_IO } else { class_link(port) }
}

/// Returns the class route that a register states; `None` if its type does not exist, it has more
/// than one output, its local bit is an output, or a link is both input and output.
pub(super) fn class_route(register: nd_dcr::ClassRoute) -> Option<ClassRoute> {
    let ports_of = |mask: u16| (0..PORTS).filter(move |&port| mask & link_bit(port) != 0);
    let outputs = register.output;
    if outputs & (LOCAL | register.input) != 0 || ports_of(outputs).count() > 1 {
        return None;
    }

    let (channel, fifo) = match register.input >> class_type::SHIFT {
        class_type::USER => (COLLECTIVE_INDEX, USER_FIFO),
        class_type::SYSTEM => (COLLECTIVE_INDEX, SYSTEM_FIFO),
        class_type::SUB_COMM => (SUB_COMM_INDEX, USER_FIFO),
        _ => return None,
    };
    Some(ClassRoute {
        inputs: ports_of(register.input).fold(0, |set, port| set | 1 << port),
        output: ports_of(register.output).next(),
        is_member: register.input & LOCAL != 0,
        channel,
        fifo,
    })
}

/// Returns the register that states a class route.
pub(super) fn class_register(route: &ClassRoute) -> nd_dcr::ClassRoute {
    let links = (0..PORTS).filter(|port| route.inputs >> port & 1 == 1);
    let class_type = match (route.channel, route.fifo) {
        (SUB_COMM_INDEX, _) => class_type::SUB_COMM,
        // A class without a route has zeros, and not the type of the system.
        (_, SYSTEM_FIFO) if *route != ClassRoute::default() => class_type::SYSTEM,
        _ => class_type::USER,
    };

    let local = if route.is_member { LOCAL } else { 0 };
    nd_dcr::ClassRoute {
        input: links.fold(local, |mask, port| mask | link_bit(port)) | class_type << class_type::SHIFT,
        output: route.output.map_or(0, link_bit),
    }
}

const _: () = assert!(CLASSES == nicforge_network::collective::CLASSES);
const _: () = assert!(SYSTEM_FIFO < USER_FIFO);
