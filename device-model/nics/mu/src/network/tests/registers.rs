//! The device control registers.

use nicforge_hwi::{
    mu_packet::channel,
    nd_dcr::{self, ClassRoute, LOCAL, class_link, class_type, link},
};

use super::bed::{Bed, Message, Order, timed};
use crate::{config::Options, network::registers::RegisterError};

/// Writes a register, and returns its value afterwards.
fn write(bed: &mut Bed, node: u32, offset: u64, value: u64) -> Option<u64> {
    bed.order(node, Order::Write { offset, value });
    bed.register(node, offset)
}

#[test]
fn shape_of_the_machine_is_read_only() {
    let options = Options { order: [1, 0, 2, 3, 4], ..Options::default() };
    let mut bed = Bed::torus(&[5, 4, 1, 1, 2], &[true, false], options);
    let node = bed.network.shape().node(&[3, 2, 0, 0, 1]).unwrap();

    let own = 3 << 24 | 2 << 18 | 1;
    let highest = 4 << 24 | 3 << 18 | 1;
    assert_eq!(bed.register(node, nd_dcr::CTRL_COORDS), Some(own << 32 | highest));
    let order = 0b01000_10000_00100_00010_00001;
    assert_eq!(bed.register(node, nd_dcr::CTRL_DET_ORDER), Some(order));
    assert_eq!(bed.register(node, nd_dcr::CTRL_INTERNAL).unwrap() >> nd_dcr::IS_TORUS_SHIFT, 0b10001);

    for offset in [nd_dcr::CTRL_COORDS, nd_dcr::CTRL_DET_ORDER, nd_dcr::NON_FATAL_ERR0] {
        let before = bed.register(node, offset);
        assert_eq!(write(&mut bed, node, offset, 0x1234), before);
        assert_eq!(bed.node(node).register_errors.pop(), Some(RegisterError::NoRegister { offset }));
    }
    for offset in [0, 4, nd_dcr::CTRL_COORDS + 1, nd_dcr::SIZE, u64::MAX - 7, nd_dcr::port(3)] {
        assert_eq!(write(&mut bed, node, offset, 1), None, "{offset:#x}");
        assert_eq!(bed.node(node).register_errors.pop(), Some(RegisterError::NoRegister { offset }));
    }
}

#[test]
fn zones_and_ratio_can_be_set() {
    let mut bed = Bed::torus(&[2], &[], Options::default());

    let value = 0b11000 << 52 | 0b00110 << 47 | 0b00001 << 42 | 0b11111;
    assert_eq!(write(&mut bed, 0, nd_dcr::CTRL_DYNAMIC_ZONE01, value), Some(value));
    let all = 0b11111 << 52 | 0b11111 << 20;
    assert_eq!(bed.register(0, nd_dcr::CTRL_DYNAMIC_ZONE23), Some(all));
    assert_eq!(bed.register(1, nd_dcr::CTRL_DYNAMIC_ZONE01), Some(all));

    let ratio = write(&mut bed, 0, nd_dcr::CTRL_INTERNAL, 7 << nd_dcr::THROUGH_RATIO_SHIFT).unwrap();
    assert_eq!(ratio >> nd_dcr::THROUGH_RATIO_SHIFT & 0xf, 7);
    assert_eq!(bed.register(0, nd_dcr::CTRL_INTERNAL), Some(ratio));
}

#[test]
fn class_routes_read_as_they_were_written() {
    let mut bed = Bed::torus(&[2, 2], &[], Options::default());
    let route = |of_type: u16, links: u16, output| ClassRoute {
        input: of_type << class_type::SHIFT | links | LOCAL,
        output,
    };
    assert_eq!((class_link(1), class_link(0), class_link(9), class_link(8)), (0x800, 0x400, 8, 4));

    for pair in 0..8 {
        let offset = nd_dcr::CTRL_COLL_CLASS + 8 * pair;
        assert_eq!(bed.register(0, offset), Some(0));
        let value = ClassRoute::register([
            route(class_type::SYSTEM, class_link(0) | 2, class_link(3)),
            route(class_type::SUB_COMM, class_link(2), 0),
        ]);
        assert_eq!(write(&mut bed, 0, offset, value), Some(value));

        let offset = nd_dcr::CTRL_GI_CLASS + 8 * pair;
        let value = ClassRoute::register([route(0, class_link(9), class_link(1)), route(0, 0, 0)]);
        assert_eq!(write(&mut bed, 0, offset, value), Some(value));
    }

    // Two outputs, a local output, a link as input and output, and a type that does not exist.
    let offset = nd_dcr::CTRL_COLL_CLASS;
    let before = bed.register(0, offset);
    for wrong in
        [route(0, 0, 0xc00), route(0, 0, LOCAL), route(0, class_link(0), class_link(0)), route(3, 0, 0)]
    {
        for of in [[wrong, ClassRoute::default()], [ClassRoute::default(), wrong]] {
            let value = ClassRoute::register(of);
            assert_eq!(write(&mut bed, 0, offset, value), before);
            assert_eq!(bed.node(0).register_errors.pop(), Some(RegisterError::Value { offset, value }));
        }
    }
}

#[test]
fn counters_count_by_channel_and_can_be_cleared_and_stopped() {
    let mut bed = Bed::torus(&[3], &[], timed());
    let send = |bed: &mut Bed, number, packets| {
        for mark in 0..packets {
            bed.send(0, Message::to(&bed.network, 1, number, mark));
        }
        bed.run();
    };
    let counter = |bed: &mut Bed, node, port, number: u64| {
        bed.register(node, nd_dcr::port(port) + link::UPC + 8 * number).unwrap()
    };

    // Packets of a header and a chunk of payload.
    send(&mut bed, channel::DETERMINISTIC, 5);
    send(&mut bed, channel::SYSTEM, 3);
    assert_eq!([0, 1, 2, 3].map(|number| counter(&mut bed, 0, 0, number)), [10, 6, 0, 0]);
    assert_eq!([4, 5].map(|number| counter(&mut bed, 1, 1, number))[0], 5);
    assert!(counter(&mut bed, 1, 1, 5) > 0);
    assert_eq!(counter(&mut bed, 0, 1, 0), 0);

    let first_of_port_0 = 1 << 63;
    assert_eq!(write(&mut bed, 0, nd_dcr::CTRL_UPC_CLEAR, first_of_port_0), Some(0));
    assert_eq!([0, 1].map(|number| counter(&mut bed, 0, 0, number)), [0, 6]);

    send(&mut bed, channel::DETERMINISTIC, 1);
    assert_eq!(write(&mut bed, 0, nd_dcr::CTRL_UPC_STOP, first_of_port_0), Some(first_of_port_0));
    send(&mut bed, channel::DETERMINISTIC, 4);
    send(&mut bed, channel::SYSTEM, 1);
    assert_eq!([0, 1].map(|number| counter(&mut bed, 0, 0, number)), [2, 8]);

    assert_eq!(write(&mut bed, 0, nd_dcr::CTRL_UPC_STOP, 0), Some(0));
    send(&mut bed, channel::DETERMINISTIC, 2);
    assert_eq!(counter(&mut bed, 0, 0, 0), 6);

    // All channels on the second counter.
    let control = nd_dcr::port(0) + link::UPC_CTRL;
    assert_eq!(write(&mut bed, 0, control, 0x7f << 48), Some(0x7f << 48));
    assert_eq!([0, 1].map(|number| counter(&mut bed, 0, 0, number))[1], 24 + 8);
}

#[test]
fn packets_of_both_dynamic_queues_count_as_those_of_their_channel() {
    let mut bed = Bed::torus(&[3], &[], timed());
    let dynamic_alone = 0x40 << 56 | 0x40 << 24;
    assert_eq!(write(&mut bed, 0, nd_dcr::port(0) + link::UPC_CTRL, dynamic_alone), Some(dynamic_alone));
    assert_eq!(write(&mut bed, 1, nd_dcr::port(1) + link::UPC_CTRL, dynamic_alone), Some(dynamic_alone));

    // Node 1 takes nothing for a while, so that packets fill both queues of the link to it.
    bed.set_deaf(1, u16::MAX);
    for mark in 0..11 {
        bed.send(0, Message::to(&bed.network, 1, channel::DYNAMIC, mark));
    }
    bed.run();
    assert_eq!(bed.register(0, nd_dcr::port(0) + link::SE_TOKENS).map(|tokens| tokens >> 20), Some(0));
    bed.set_deaf(1, 0);
    bed.run();

    // A packet has two chunks. The fifth counter is that of received packets.
    let counter = |number: u64| link::UPC + 8 * number;
    assert_eq!(bed.register(0, nd_dcr::port(0) + counter(0)), Some(22));
    assert_eq!(bed.register(1, nd_dcr::port(1) + counter(4)), Some(11));
}

#[test]
fn tokens_are_those_of_the_far_end() {
    let mut bed = Bed::torus(&[2], &[], Options::default());
    let tokens = bed.register(0, nd_dcr::port(0) + link::SE_TOKENS);
    assert_eq!(tokens, Some(7 << 20 | 0x77777));
    // On links with a bandwidth, the dynamic channel has two queues.
    let tokens = Bed::torus(&[2], &[], timed()).register(0, nd_dcr::port(0) + link::SE_TOKENS);
    assert_eq!(tokens, Some(7 << 20 | 0x77777));
    assert_eq!(bed.register(0, nd_dcr::port(10) + link::SE_TOKENS), Some(0));
    assert_eq!(bed.register(0, nd_dcr::port(0) + link::SE_RETRANS_CNT), Some(0));
}

#[test]
fn reset_returns_registers_to_power_on() {
    let mut bed = Bed::torus(&[2], &[], Options::default());
    let registers = [
        (nd_dcr::CTRL_INTERNAL, 7 << nd_dcr::THROUGH_RATIO_SHIFT),
        (nd_dcr::CTRL_DYNAMIC_ZONE01, 0b11111),
        (nd_dcr::CTRL_COLL_CLASS, ClassRoute::register([ClassRoute { input: LOCAL, output: 0 }; 2])),
        (nd_dcr::CTRL_GI_CLASS, ClassRoute::register([ClassRoute { input: LOCAL, output: 0 }; 2])),
        (nd_dcr::NON_FATAL_ERR_ENABLE, nd_dcr::error::NAN),
        (nd_dcr::CTRL_UPC_STOP, 1 << 63),
        (nd_dcr::port(0) + link::UPC_CTRL, 0),
    ];
    let before = registers.map(|(offset, _)| bed.register(0, offset));
    for mark in 0..3 {
        bed.send(0, Message::to(&bed.network, 1, channel::DETERMINISTIC, mark).with_hint(0, false));
    }
    for (offset, value) in registers {
        assert_ne!(write(&mut bed, 0, offset, value), None);
    }

    bed.order(0, Order::Reset);
    assert_eq!(registers.map(|(offset, _)| bed.register(0, offset)), before);
    assert_eq!(bed.register(0, nd_dcr::port(0) + link::UPC), Some(0));
}
