use nicforge_hwi::{
    mu::{ADDRESS_BITS, atomic},
    mu_packet::{channel, collective_type, fifo_map, kind, operation, routing},
};

use super::*;

const NODE: [u8; 5] = [3, 1, 4, 1, 1];

fn to_node() -> PointToPoint {
    PointToPoint::dynamic(Destination::new(NODE))
}

fn ordered() -> PointToPoint {
    PointToPoint::ordered(Destination::new(NODE))
}

fn bytes(length: u64) -> Payload {
    Payload::memory(0x1001, length)
}

#[test]
fn memory_fifo_has_its_fields_where_the_unit_reads_them() {
    let target = MemoryFifo {
        fifo: 271,
        dispatch: 9,
        software: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13],
        put_offset: MAX_PUT_OFFSET,
        interrupt: true,
    };
    let built = memory_fifo(bytes(1000), to_node(), &target).unwrap();
    let header = built.packet_header;

    assert_eq!((built.pa_payload, built.message_length), (0x1001, 1000));
    assert_eq!((built.prefetch_only, built.interrupt), (0, 1));
    assert_eq!(built.torus_fifo_map, fifo_map::TORUS);
    assert_eq!(header.data_packet_type, kind::POINT_TO_POINT);
    assert_eq!(header.channel(), channel::DYNAMIC);
    assert_eq!(header.byte2, routing::DYNAMIC);
    assert_eq!(header.packet_type(), packet_type::FIFO);
    assert_eq!(header.payload_bytes(), MAX_PAYLOAD);
    assert_eq!(header.destination.coordinates(), NODE);
    assert_eq!(header.unit.reception_fifo(), 271);
    assert_eq!(header.unit.put_offset(), MAX_PUT_OFFSET);
    assert_eq!(header.unit.software_bytes(), [9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]);
}

#[test]
fn direct_put_has_its_fields_where_the_unit_reads_them() {
    let target = DirectPut {
        payload_base: 543,
        offset: 77,
        counter_base: 8,
        counter_offset: 1 << 36 | 10,
        paced: true,
    };
    let built = direct_put(bytes(1), ordered(), &target).unwrap();
    let unit = built.packet_header.unit;

    assert_eq!(built.packet_header.packet_type(), packet_type::PUT);
    assert_eq!(built.packet_header.channel(), channel::DETERMINISTIC);
    assert_eq!((unit.payload_base_address(), unit.put_offset()), (543, 77));
    assert_eq!((unit.counter_base_address(), unit.counter_offset()), (8, 1 << 36 | 10));
    assert!(unit.is_paced());
    assert!(!direct_put(bytes(1), ordered(), &DirectPut::default()).unwrap().packet_header.unit.is_paced());
}

#[test]
fn remote_get_names_its_fifo() {
    let built = remote_get(bytes(128), ordered(), &RemoteGet { fifo: 543 }).unwrap();
    assert_eq!(built.packet_header.packet_type(), packet_type::GET);
    assert_eq!(built.packet_header.unit.get_fifo(), 543);
}

#[test]
fn lengths_are_checked_by_kind() {
    let put = |length| direct_put(bytes(length), ordered(), &DirectPut::default());
    let get = |length| remote_get(bytes(length), ordered(), &RemoteGet::default());
    let fifo = |length| memory_fifo(bytes(length), ordered(), &MemoryFifo::default());

    assert!(fifo(0).is_ok() && put(1).is_ok() && get(64).is_ok());
    for refused in [put(0), get(0), get(63), get(65)] {
        assert!(matches!(refused, Err(DescriptorError::Length { .. })), "{refused:?}");
    }
}

#[test]
fn a_payload_ends_with_the_units_addresses() {
    let end = 1_u64 << ADDRESS_BITS;
    let put =
        |address, length| direct_put(Payload::memory(address, length), ordered(), &DirectPut::default());
    assert!(put(end - 1, 1).is_ok());
    assert_eq!(put(end - 1, 2), Err(DescriptorError::Address { address: end - 1, length: 2 }));
    assert!(put(1, u64::MAX).is_err());
}

#[test]
fn an_atomic_payload_has_8_bytes_at_an_atomic_address() {
    let payload = Payload::Load { address: 0x2008, operation: Load::Increment };
    let built = direct_put(payload, ordered(), &DirectPut::default()).unwrap();
    assert_eq!(built.message_length, 8);
    assert_eq!(built.pa_payload, 0x2008 | atomic::INDICATOR | atomic::load::INCREMENT);

    let odd = Payload::Load { address: 0x2004, operation: Load::Load };
    assert_eq!(
        direct_put(odd, ordered(), &DirectPut::default()),
        Err(DescriptorError::AtomicAlignment { address: 0x2004 })
    );
    assert!(remote_get(payload, ordered(), &RemoteGet::default()).is_err());
}

#[test]
fn numbers_of_fifos_and_base_addresses_are_bounded() {
    let fifo = MemoryFifo { fifo: 272, ..MemoryFifo::default() };
    assert_eq!(
        memory_fifo(bytes(1), ordered(), &fifo),
        Err(DescriptorError::Fifo { kind: "reception", fifo: 272, last: 271 })
    );
    let get = RemoteGet { fifo: 544 };
    assert!(matches!(remote_get(bytes(64), ordered(), &get), Err(DescriptorError::Fifo { last: 543, .. })));

    for target in [
        DirectPut { payload_base: 544, ..DirectPut::default() },
        DirectPut { counter_base: 544, ..DirectPut::default() },
    ] {
        let refused = direct_put(bytes(1), ordered(), &target);
        assert_eq!(refused, Err(DescriptorError::BaseAddress { entry: 544, last: 543 }));
    }

    let too_far = DirectPut { offset: 1 << 37, ..DirectPut::default() };
    assert_eq!(
        direct_put(bytes(1), ordered(), &too_far),
        Err(DescriptorError::PutOffset { offset: 1 << 37 })
    );
}

#[test]
fn a_fifo_map_belongs_to_its_channel() {
    let build = |route: PointToPoint| memory_fifo(bytes(1), route, &MemoryFifo::default());
    let none = PointToPoint { fifo_map: 0, ..to_node() };
    let system = PointToPoint { fifo_map: fifo_map::SYSTEM, ..to_node() };
    let user = PointToPoint { fifo_map: fifo_map::TORUS, ..PointToPoint::system(Destination::new(NODE)) };

    for route in [none, system, user] {
        assert!(matches!(build(route), Err(DescriptorError::FifoMap { .. })));
    }
    let high = build(PointToPoint::high_priority(Destination::new(NODE))).unwrap();
    assert_eq!(high.packet_header.channel(), channel::HIGH_PRIORITY);
    assert_eq!(high.torus_fifo_map, fifo_map::PRIORITY);
}

#[test]
fn hints_zone_and_deposit_are_in_the_header() {
    let route = PointToPoint {
        routing: Routing::Dynamic { zone: 2 },
        hints: [Hint::Minus, Hint::None, Hint::None, Hint::Plus, Hint::Minus],
        deposit: true,
        ..to_node()
    };
    let header = memory_fifo(bytes(1), route, &MemoryFifo::default()).unwrap().packet_header;

    assert_eq!(header.byte1, 0x81);
    assert_eq!(header.byte2, 0x80 | routing::DYNAMIC | routing::DEPOSIT);
    assert_eq!(header.zone(), 2);

    let zone = PointToPoint { routing: Routing::Dynamic { zone: 4 }, ..to_node() };
    assert_eq!(memory_fifo(bytes(1), zone, &MemoryFifo::default()), Err(DescriptorError::Zone { zone: 4 }));
}

#[test]
fn a_collective_has_operation_word_and_class_route() {
    let route = Collective::allreduce(15, Operation::FloatingAdd, 8);
    let built = direct_put(bytes(16), route, &DirectPut::default()).unwrap();
    let header = built.packet_header;

    assert_eq!(header.data_packet_type, kind::COLLECTIVE);
    assert_eq!((header.operation(), header.word_bytes()), (operation::FLOATING_ADD, 8));
    assert_eq!((header.class(), header.collective_type()), (15, collective_type::ALLREDUCE));
    assert_eq!(header.channel(), channel::USER_SUB_COMM);
    assert_eq!(built.torus_fifo_map, fifo_map::COLLECTIVE_USER);
}

#[test]
fn a_reduction_to_a_node_names_it() {
    let route = Collective::reduce(0, Operation::SignedMin, 4, Destination::new(NODE));
    let header = memory_fifo(bytes(4), route, &MemoryFifo::default()).unwrap().packet_header;
    assert_eq!(header.destination.coordinates(), NODE);
    assert_eq!((header.collective_type(), header.word_bytes()), (collective_type::REDUCE, 4));
}

#[test]
fn impossible_collectives_are_refused() {
    let build = |route: Collective, length| direct_put(bytes(length), route, &DirectPut::default());

    assert_eq!(build(Collective::broadcast(16), 8), Err(DescriptorError::Class { class: 16 }));
    for word in [0, 2, 3, 12, 1024] {
        let route = Collective::allreduce(0, Operation::And, word);
        assert_eq!(build(route, 4096), Err(DescriptorError::Word { bytes: word }));
    }
    let floats = Collective::allreduce(0, Operation::FloatingMax, 4);
    assert_eq!(build(floats, 8), Err(DescriptorError::Word { bytes: 4 }));
    let parts = Collective::allreduce(0, Operation::UnsignedAdd, 8);
    assert!(matches!(build(parts, 12), Err(DescriptorError::Length { length: 12, .. })));
    assert!(build(Collective::broadcast(0), 13).is_ok());
}

#[test]
fn a_prefetch_and_a_local_copy_stay_in_the_node() {
    let own_node = Destination::new(NODE);
    let fetched = prefetch(own_node, 0x4000, 4096).unwrap();
    assert_eq!((fetched.prefetch_only, fetched.message_length), (1, 4096));

    let copied = local_copy(own_node, bytes(100), &DirectPut::default()).unwrap();
    assert_eq!(copied.torus_fifo_map, fifo_map::LOCAL0);
    assert_eq!(PointToPoint::local(own_node, true).fifo_map, fifo_map::LOCAL1);
}

#[test]
fn the_ordered_ways_to_neighbours_use_different_fifos() {
    let map = |last| PointToPoint::ordered(Destination::new([0, 0, 0, 0, last])).fifo_map;
    assert_eq!((map(0), map(1)), (fifo_map::EP, fifo_map::EP << 1));
}

#[test]
fn a_destination_beyond_the_coordinates_is_refused() {
    let to = Destination(zerocopy::little_endian::U32::new(1 << 30));
    let refused = memory_fifo(bytes(1), PointToPoint::dynamic(to), &MemoryFifo::default());
    assert!(matches!(refused, Err(DescriptorError::Coordinates { .. })));
}
