//! The trapped port, its errors, and the control registers.

use nicforge_hwi::{
    tree::{CORES, Header, mirror, opcode, vector},
    tree_dcr::{
        ARB_RCFG, CLASS_RDR0, ChannelExceptions, GLOB_NADDR, GLOB_VCFG1, INJ_CSPY1, INJ_PIXEN, REC_PRXEN,
        REG_INT_STATUS, REGISTERS, dcr, error_word, exceptions, pix, port, prx, rcfg, rdr, status, vcfg,
    },
};
use nicforge_test_body::body;

use super::{
    CREDITS, Core, MACHINE, Packet, Payload, irq_to, numbered, payload, run_until_idle, to, transfer,
};
use crate::backing::{Rig, test_deadline};

/// Quads of a payload.
const QUADS: usize = 16;

/// Pushes one quad.
fn push_quad(core: &Core, quad: &[u8]) {
    core.registers.write_burst16(port::DI, quad.try_into().unwrap()).unwrap();
}

/// Pushes one header.
fn push_header(core: &Core, header: Header) {
    core.write(port::HI, header.0);
}

/// Pushes a packet, header first.
fn push(core: &Core, header: Header, payload: &Payload) {
    push_header(core, header);
    payload.chunks(16).for_each(|quad| push_quad(core, quad));
}

/// Pops a packet that is known to be there.
fn pop(core: &Core) -> Packet {
    let header = Header(core.read(port::HR));
    let quads: Vec<u8> = (0..QUADS).flat_map(|_| core.read_bytes::<16>(port::DR)).collect();
    (header, quads.try_into().unwrap())
}

/// Waits until `count` packets are in the receive FIFO.
fn wait_for_packets(core: &Core, count: u32) {
    core.wait_until(|| status::headers(core.read(port::SX)) == count);
}

/// A packet pushed in quads is popped in quads.
#[body(not_through(vfio) = VFIO_SPLITS_QUADS)]
pub fn a_pushed_packet_is_popped(rig: &dyn Rig) {
    let [from, target] = Core::of(rig, ["cn2", "cn1"]);

    push(&from, irq_to(2), &payload(3));
    wait_for_packets(&target, 1);

    assert_eq!(pop(&target), (irq_to(2), payload(3)));
    assert_eq!(target.read(port::SX), 0);
    assert_eq!((from.errors(), target.errors()), ((0, 0), (0, 0)));
}

/// A quad may be pushed and popped in two halves, the lower one first.
#[body]
pub fn two_halves_make_a_quad(rig: &dyn Rig) {
    let [from, target] = Core::of(rig, ["cn0", "io0"]);

    push_header(&from, to(0));
    for (index, half) in payload(4).chunks(8).enumerate() {
        from.write_bytes(port::DI + 8 * (index as u64 % 2), half);
    }

    wait_for_packets(&target, 1);
    let header = Header(target.read(port::HR));
    let halves: Vec<u8> =
        (0..2 * QUADS as u64).flat_map(|index| target.read_bytes::<8>(port::DR + 8 * (index % 2))).collect();

    assert_eq!((header, &halves[..]), (to(0), &payload(4)[..]));
    assert_eq!((from.errors(), target.errors()), ((0, 0), (0, 0)));
}

/// Interleaved halves of two cores of a node make one quad for each core.
#[body]
pub fn halves_of_two_cores_are_separate(rig: &dyn Rig) {
    let [first, target] = Core::of(rig, ["cn0", "io0"]);
    let second = Core::open(rig, "cn0", "core1");
    let quads: [Vec<u8>; 2] = [payload(1)[..16].to_vec(), payload(2)[..16].to_vec()];

    for half in 0..2 {
        for (core, quad) in [&first, &second].iter().zip(&quads) {
            core.write_bytes(port::DI + 8 * half as u64, &quad[8 * half..8 * half + 8]);
        }
    }

    (2..QUADS).for_each(|_| push_quad(&first, &[0; 16]));
    push_header(&second, to(0));

    let (_, received) = target.receive();
    assert_eq!(received[..32], quads.concat());
    assert_eq!(first.errors(), (0, 0));
}

/// Halves in the wrong order are alignment errors.
#[body]
pub fn halves_in_the_wrong_order_are_alignment_errors(rig: &dyn Rig) {
    let [core] = Core::of(rig, ["cn0"]);

    core.write_bytes(port::DI + 8, &[0; 8]);
    assert_eq!(core.errors(), (0, pix::ALIGN0));

    core.write_bytes(port::DI, &[0; 8]);
    core.write_bytes(port::DI, &[1; 8]);
    assert_eq!(core.errors(), (0, pix::ALIGN0));

    core.read_bytes::<8>(port::DR + 8);
    assert_eq!(core.errors(), (prx::ALIGN0, 0));
}

/// If a core reads only the lower half of a quad, the upper half is lost. This sets the alignment
/// bit of the core's processor port.
#[body]
pub fn an_upper_half_that_is_not_read_is_lost_with_an_alignment_error(rig: &dyn Rig) {
    let [io, first] = Core::of(rig, ["io0", "cn0"]);
    let third = Core::open(rig, "cn0", "core2");
    io.send(to(1), &payload(6));
    wait_for_packets(&first, 1);

    for (core, error, quad) in [(&first, prx::ALIGN0, 0), (&third, prx::ALIGN1, 2)] {
        let halves = [core.read_bytes::<8>(port::DR), core.read_bytes::<8>(port::DR)];
        let lower = [16 * quad, 16 * quad + 16].map(|start| payload(6)[start..start + 8].to_vec());
        assert_eq!(halves.map(Vec::from), lower);
        assert_eq!(core.errors(), (error, 0));
        // The second quad can be completed.
        assert_eq!(core.read_bytes::<8>(port::DR + 8), payload(6)[16 * quad + 24..16 * quad + 32]);
        assert_eq!(core.errors(), (0, 0));
    }
}

/// The header may be pushed before, between, or after the quads.
#[body]
pub fn the_header_may_be_written_before_between_or_after_the_quads(rig: &dyn Rig) {
    let [from, target] = Core::of(rig, ["cn0", "io0"]);
    for quads_before in [0, 1, 7, QUADS] {
        for (index, quad) in payload(quads_before as u32).chunks(16).enumerate() {
            if index == quads_before {
                push_header(&from, irq_to(0));
            }
            push_quad(&from, quad);
        }

        if quads_before == QUADS {
            push_header(&from, irq_to(0));
        }

        assert_eq!(
            target.receive(),
            (irq_to(0), payload(quads_before as u32)),
            "header after {quads_before} quads"
        );
    }
}

/// Headers and quads of several packets may be pushed and popped independently.
#[body(not_through(vfio) = VFIO_SPLITS_QUADS)]
pub fn headers_and_quads_are_queues_of_their_own(rig: &dyn Rig) {
    let [from, target] = Core::of(rig, ["cn0", "io0"]);

    (0..3).for_each(|class| push_header(&from, Header::point_to_point(class, 0, false)));
    (0..3).flat_map(payload).collect::<Vec<_>>().chunks(16).for_each(|quad| push_quad(&from, quad));
    wait_for_packets(&target, 3);

    (0..3).for_each(|class| assert_eq!(Header(target.read(port::HR)).class(), class));
    assert_eq!((status::headers(target.read(port::SX)), status::quads(target.read(port::SX))), (0, 48));

    for number in 0..3 {
        let quads: Vec<u8> = (0..QUADS).flat_map(|_| target.read_bytes::<16>(port::DR)).collect();
        assert_eq!(quads, payload(number));
    }

    assert_eq!(target.read(port::SX), 0);
}

/// A packet that lacks a quad waits, is visible in the status, and leaves when it is complete.
#[body]
pub fn a_partial_packet_waits_for_its_last_quad(rig: &dyn Rig) {
    let [from, target] = Core::of(rig, ["cn0", "io0"]);
    push_header(&from, to(0));
    payload(5).chunks(16).take(QUADS - 1).for_each(|quad| push_quad(&from, quad));
    run_until_idle(rig);

    assert!(target.try_receive().is_none());
    assert_eq!(from.read(port::SX), status::word(15, 1, 0, false, 0));
    assert_eq!(from.word(mirror::STATUS), from.read(port::SX));

    push_quad(&from, &payload(5)[240..]);
    assert_eq!(target.receive(), (to(0), payload(5)));
    assert_eq!(from.read(port::SX), 0);
}

/// Accesses of a wrong width or alignment read all ones, write nothing, and set the bit of the
/// core's processor port.
#[body(not_through(guests) = SPLIT_ACCESSES)]
pub fn bad_widths_and_alignments_set_the_bit_of_the_processor_port(rig: &dyn Rig) {
    let cores: Vec<_> = (0..CORES).map(|core| Core::open(rig, "cn0", &format!("core{core}"))).collect();
    let read_bits = [prx::ALIGN0, prx::ALIGN0, prx::ALIGN1, prx::ALIGN1];
    let write_bits = [pix::ALIGN0, pix::ALIGN0, pix::ALIGN1, pix::ALIGN1];

    for ((core, read_bit), write_bit) in cores.iter().zip(read_bits).zip(write_bits) {
        for (offset, width) in
            [(port::DI, 4), (port::DI + 4, 4), (port::HI, 8), (port::HI + 1, 1), (port::DI + 8, 2)]
        {
            core.write_bytes(offset, &vec![0; width]);
            assert_eq!(core.errors(), (0, write_bit), "write of {width} bytes at {offset:#x}");
        }

        for offset in [port::DR, port::DR + 8, port::HR + 2, port::SX + 1] {
            assert_eq!(core.read_bytes::<2>(offset), [0xff; 2]);
            assert_eq!(core.errors(), (read_bit, 0), "read at {offset:#x}");
        }

        assert_eq!(core.read_bytes::<8>(dcr(GLOB_NADDR)), [0xff; 8]);
        assert_eq!(core.errors(), (read_bit, 0));
        assert_eq!(core.read(port::SX), 0);
    }
}

/// Accesses to an address without a register, or in the wrong direction, are address errors.
#[body]
pub fn addresses_without_a_register_are_address_errors(rig: &dyn Rig) {
    let [core] = Core::of(rig, ["cn0"]);
    for offset in [port::DR, port::SX, port::SIZE, dcr(0x7f), REG_INT_STATUS, REGISTERS - 4] {
        core.write_bytes(offset, &[0; 4]);
        assert_eq!(core.errors(), (0, pix::ADDR0), "write at {offset:#x}");
    }

    for offset in [port::HI, port::SIZE, dcr(0x7f), REGISTERS - 4] {
        assert_eq!(core.read_bytes::<4>(offset), [0xff; 4]);
        assert_eq!(core.errors(), (prx::ADDR0, 0), "read at {offset:#x}");
    }
}

/// Reads of an empty FIFO are underruns: they return all ones, and set the error bit and the error
/// interrupt.
#[body(not_through(guests) = SPLIT_ACCESSES)]
pub fn reading_an_empty_fifo_is_an_underrun(rig: &dyn Rig) {
    let [core] = Core::of(rig, ["cn0"]);
    let interrupt = core.device.interrupt(vector::ERROR.into()).unwrap();
    core.enable(&[vector::ERROR]);

    assert_eq!(core.read_bytes::<16>(port::DR), [0xff; 16]);
    assert_eq!(interrupt.wait(test_deadline(), None).unwrap(), 1);
    assert_eq!(core.errors(), (prx::PFU1, 0));
    assert_eq!(core.read(port::HR), u32::MAX);
    assert_eq!(interrupt.wait(test_deadline(), None).unwrap(), 1);
    assert_eq!(core.errors(), (prx::HFU1, 0));
    assert_eq!(core.errors(), (0, 0));
}

/// A write to a full FIFO is dropped, and sets the overflow bit and the error interrupt. Packets in
/// the FIFO are intact.
#[body]
pub fn a_write_to_a_full_fifo_is_dropped_and_reported_as_overflow(rig: &dyn Rig) {
    let [io, node] = Core::of(rig, ["io0", "cn0"]);
    let interrupt = node.device.interrupt(vector::ERROR.into()).unwrap();
    node.enable(&[vector::ERROR]);

    let sent = node.send_until_full(rig, to(0), 0);
    push_quad(&node, &[0xee; 16]);
    assert_eq!(interrupt.wait(test_deadline(), None).unwrap(), 1);
    assert_eq!(node.errors(), (0, pix::PFO1));

    push_header(&node, irq_to(0));
    assert_eq!(interrupt.wait(test_deadline(), None).unwrap(), 1);
    assert_eq!(node.errors(), (0, pix::HFO1));

    io.receive_numbers(0, sent);
    push(&node, irq_to(0), &payload(777));

    assert_eq!(io.receive(), (irq_to(0), payload(777)));
    assert_eq!(node.errors(), (0, 0));
}

/// Packets of port and slots leave in the order in which they were written, also from a FIFO that
/// was blocked.
#[body]
pub fn port_and_slots_send_into_one_queue(rig: &dyn Rig) {
    let [io, node] = Core::of(rig, ["io0", "cn0"]);

    // More packets than the link and the other FIFO hold.
    for number in 0..8 + CREDITS + 7 {
        if number % 3 == 0 {
            push(&node, to(0), &payload(number));
        } else {
            assert!(node.try_send(to(0), &payload(number)));
        }
        run_until_idle(rig);
    }

    assert_eq!(status::send_headers(node.read(port::SX)), 7);

    io.receive_numbers(0, 8 + CREDITS + 7);
}

/// Port and slots take packets from one queue.
#[body(not_through(vfio) = VFIO_SPLITS_QUADS)]
pub fn port_and_slots_receive_from_one_queue(rig: &dyn Rig) {
    let [io, node] = Core::of(rig, ["io0", "cn0"]);
    for number in 0..40 {
        node.send(to(0), &payload(number));
        if number % 4 == 3 {
            wait_for_packets(&io, 4);
            assert_eq!(io.receive().1, payload(number - 3));
            assert_eq!(pop(&io).1, payload(number - 2));
            assert_eq!(pop(&io).1, payload(number - 1));
            assert_eq!(io.receive().1, payload(number));
        }
    }

    assert_eq!(io.errors(), (0, 0));
}

/// The status word, the other channel's view of it, the mirror and the slots agree at every fill
/// level.
#[body(not_through(guests) = OPERATORS_ADMIN)]
pub fn status_word_and_mirror_agree(rig: &dyn Rig) {
    let [io, node] = Core::of(rig, ["io0", "cn0"]);
    let (io_admin, node_admin) = (Core::open(rig, "io0", "admin"), Core::open(rig, "cn0", "admin"));
    let check_level = |packets: u32| {
        run_until_idle(rig);
        let (received, sent) = (packets.min(8), packets.saturating_sub(8 + CREDITS));

        for (core, admin) in [(&io, &io_admin), (&node, &node_admin)] {
            assert_eq!(core.read(port::SX), core.word(mirror::STATUS), "{packets} packets");
            assert_eq!(core.read(port::SX), admin.read(port::SO), "{packets} packets");
            assert_eq!((admin.read(port::SX), core.read(port::SO)), (0, 0));
        }

        let irq = received > 2;
        assert_eq!(io.read(port::SX), status::word(0, 0, 16 * received, irq, received), "{packets} packets");
        assert_eq!(node.read(port::SX), status::word(16 * sent, sent, 0, false, 0), "{packets} packets");
        assert_eq!(io.unread_packets(), received);
    };

    let maximum = 8 + CREDITS + 8;
    for packets in 0..maximum {
        check_level(packets);
        assert!(node.try_send(if packets == 2 { irq_to(0) } else { to(0) }, &payload(packets)));
    }

    check_level(maximum);
}

/// For every reader, the status leaves out quads that the port has popped, also those of a partly
/// read packet.
#[body(not_through(guests) = OPERATORS_ADMIN)]
pub fn the_status_does_not_count_packets_popped_by_the_port(rig: &dyn Rig) {
    let [io, node] = Core::of(rig, ["io0", "cn0"]);
    let admin = Core::open(rig, "cn0", "admin");
    io.send(to(1), &payload(0));
    io.send(to(1), &payload(1));
    wait_for_packets(&node, 2);

    let shows = |quads: u32, headers: u32| {
        let word = status::word(0, 0, quads, false, headers);
        assert_eq!([node.read(port::SX), admin.read(port::SO), node.word(mirror::STATUS)], [word; 3]);
    };

    node.read(port::HR);
    shows(32, 1);

    for _ in 0..3 {
        node.read_bytes::<16>(port::DR);
    }

    shows(29, 1);
    node.receive_numbers(0, 1);
    run_until_idle(rig);
    shows(16, 1);

    assert_eq!(pop(&node), (to(1), payload(1)));

    shows(0, 0);
}

/// The mirror's error word shows the exception registers, and reading these clears it. Another
/// channel's errors stay.
#[body(not_through(guests) = OPERATORS_ADMIN)]
pub fn the_error_word_shows_the_exception_registers(rig: &dyn Rig) {
    let [core] = Core::of(rig, ["cn0"]);
    let admin = Core::open(rig, "cn0", "admin");
    core.read(port::HR);
    core.write_bytes(port::HI, &[0; 8]);
    admin.read(port::HR);

    // An empty send FIFO is at its watermark.
    let word = error_word(prx::HFU1, pix::ALIGN0 | pix::WM1);

    assert_eq!(core.word(mirror::ERROR), word);
    assert_eq!(exceptions(word), ChannelExceptions { receive: prx::HFU1, inject: pix::ALIGN0 | pix::WM1 });
    assert_eq!(core.errors(), (prx::HFU1, pix::ALIGN0));

    assert_eq!(core.word(mirror::ERROR), error_word(0, pix::WM1));
    assert_eq!(admin.errors(), (prx::HFU0, 0));
}

/// A core can read the control registers. Its writes are ignored and set an error bit, and the
/// admin's have effect.
#[body(not_through(guests) = OPERATORS_ADMIN)]
pub fn a_core_cannot_write_control_registers(rig: &dyn Rig) {
    let [core] = Core::of(rig, ["cn0"]);
    let admin = Core::open(rig, "cn0", "admin");
    let registers = [CLASS_RDR0, ARB_RCFG, GLOB_VCFG1, REC_PRXEN, INJ_PIXEN, INJ_CSPY1];

    for number in registers {
        let before = core.read(dcr(number));
        core.write(dcr(number), before ^ 2);
        assert_eq!(core.errors(), (0, pix::ADDR0), "register {number:#x}");
        assert_eq!(core.read(dcr(number)), before, "register {number:#x}");

        admin.write(dcr(number), before ^ 2);
        assert_eq!(admin.read(dcr(number)), before ^ 2, "register {number:#x}");
        admin.write(dcr(number), before);
    }

    assert_eq!(core.read(dcr(GLOB_NADDR)), 1);
    assert_eq!((core.errors(), admin.errors()), ((0, 0), (0, 0)));
}

/// Manual mode stops the router, and waiting packets continue afterwards.
#[body(not_through(guests) = OPERATORS_ADMIN)]
pub fn a_node_in_manual_mode_forwards_nothing(rig: &dyn Rig) {
    let [io, node] = Core::of(rig, ["io0", "cn0"]);
    let admin = Core::open(rig, "cn0", "admin");
    admin.write(dcr(ARB_RCFG), rcfg::MAN);

    for number in 0..8 {
        assert!(node.try_send(to(0), &payload(number)));
    }

    run_until_idle(rig);
    assert!(io.try_receive().is_none());

    admin.write(dcr(ARB_RCFG), 0);
    io.receive_numbers(0, 8);
}

/// The soft reset empties FIFOs and port and clears errors. Routes and watermarks stay, and packets
/// pass as before.
#[body(not_through(guests) = OPERATORS_ADMIN)]
pub fn a_soft_reset_empties_the_node(rig: &dyn Rig) {
    let [io, node] = Core::of(rig, ["io0", "cn0"]);
    let admin = Core::open(rig, "cn0", "admin");

    // Received and sent packets, an error, and registers that are kept.
    io.send(to(1), &payload(1));
    node.send_until_full(rig, to(0), 0);

    let kept_registers = [
        (CLASS_RDR0 + 7, u32::from(rdr::SRCL) << 16 | u32::from(rdr::TGTL)),
        (GLOB_VCFG1, 3 << vcfg::RWM_SHIFT),
    ];

    kept_registers.iter().for_each(|&(number, value)| admin.write(dcr(number), value));
    push_header(&node, to(0));
    let presence = io.presence(1, 0);

    assert_eq!(node.unread_packets(), 1);
    assert_ne!(node.word(mirror::ERROR) & error_word(0, pix::HFO1), 0);

    admin.write(dcr(ARB_RCFG), rcfg::RST);
    run_until_idle(rig);

    assert_eq!(admin.read(dcr(ARB_RCFG)), 0);
    assert_eq!((node.read(port::SX), node.unread_packets(), node.errors()), (0, 0, (0, 0)));

    kept_registers.iter().for_each(|&(number, value)| assert_eq!(admin.read(dcr(number)), value));
    // Packets in flight beyond the node arrive, and after them the presence report.
    io.receive_numbers(0, 8 + CREDITS);
    run_until_idle(rig);

    assert!(io.try_receive().is_none());
    assert_eq!(io.presence(1, 0), presence + 2);

    transfer(&node, &io, &numbered(0, 50, 20));
    transfer(&io, &node, &numbered(1, 80, 20));
    let class = Header::collective(0, opcode::NONE, 1, 0, false);
    node.send(class, &payload(5));

    assert_eq!((io.receive(), node.receive()), ((class, payload(5)), (class, payload(5))));
}
