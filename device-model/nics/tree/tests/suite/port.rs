//! The trapped port and the device control registers.

use crate::common::{Client, Payload, Rig, irq_to, payload, to};
use nicforge_core::register::show;
use nicforge_hwi::{
    tree::{Header, PAYLOAD, mirror},
    tree_dcr::{
        ARB_HD00, ARB_RCFG, ARB_RSTAT, ARB_XSTAT, ChannelExceptions, GLOB_NADDR, GLOB_VCFG1, INJ_CSHD1,
        INJ_CSPY1, INJ_PIXEN, INJ_PIXF, REC_PRXF, checksum, dcr, exceptions, pix, port, prx, rcfg, status,
        vcfg,
    },
};

/// Sends a packet through the port and runs the machine.
fn push(rig: &mut Rig, client: &Client, header: Header, data: &Payload) {
    rig.write32(client, port::HI, header.0);
    for quad in data.chunks(16) {
        rig.write(client, port::DI, quad);
    }
    rig.run();
}

/// Receives a packet through the port.
fn pop(rig: &mut Rig, client: &Client) -> (Header, Payload) {
    let header = Header(rig.read32(client, port::HR));
    let mut data = [0; PAYLOAD];
    for quad in data.chunks_mut(16) {
        quad.copy_from_slice(&rig.read::<16>(client, port::DR));
    }
    (header, data)
}

/// Reads and clears the receive and injection exceptions, without the watermarks.
fn errors(rig: &mut Rig, client: &Client) -> (u32, u32) {
    let flags = (rig.read32(client, dcr(REC_PRXF)), rig.read32(client, dcr(INJ_PIXF)));
    (flags.0 & !(prx::WM0 | prx::WM1), flags.1 & !(pix::WM0 | pix::WM1))
}

#[test]
fn a_packet_pushed_into_the_port_is_popped_from_the_port() {
    let mut rig = Rig::psets(&[2]);
    let (io, compute) = (rig.core(0), rig.core(1));

    push(&mut rig, &io, irq_to(1), &payload(3));
    let word = rig.read32(&compute, port::SX);
    let received = pop(&mut rig, &compute);

    assert_eq!(word, status::word(0, 0, 16, true, 1));
    assert_eq!(received, (irq_to(1), payload(3)));
    assert_eq!(rig.read32(&compute, port::SX), 0);
    assert_eq!(errors(&mut rig, &compute), (0, 0));
}

#[test]
fn port_and_slots_share_the_same_queues() {
    let mut rig = Rig::psets(&[2]);
    let (io, compute) = (rig.core(0), rig.core(1));

    rig.send_all(&io, &[(to(1), payload(1))]);
    push(&mut rig, &io, to(1), &payload(2));
    rig.send_all(&io, &[(to(1), payload(3))]);

    assert_eq!(compute.receive().unwrap().1, payload(1));
    assert_eq!(pop(&mut rig, &compute).1, payload(2));
    assert_eq!(compute.receive().unwrap().1, payload(3));
    rig.run();
    assert_eq!(compute.mirror(mirror::STATUS), 0);
}

#[test]
fn packets_of_port_and_slots_leave_a_blocked_fifo_in_fifo_order() {
    let mut rig = Rig::psets(&[1]);
    let (io, compute) = (rig.core(0), rig.core(1));
    // The packets fill receive FIFO and link.
    let fill: Vec<_> = (0..12).map(|number| (to(1), payload(number))).collect();
    rig.send_all(&io, &fill);

    for number in (20..26).step_by(2) {
        assert!(io.try_send(to(1), &payload(number)));
        push(&mut rig, &io, to(1), &payload(number + 1));
    }

    assert_eq!(status::send_headers(rig.read32(&io, port::SX)), 6);
    for number in (0..12).chain(20..26) {
        assert_eq!(compute.receive().unwrap().1, payload(number));
        rig.run();
    }
}

#[test]
fn a_quad_may_be_written_and_read_in_two_halves() {
    let mut rig = Rig::psets(&[2]);
    let (io, compute) = (rig.core(0), rig.core(1));
    rig.write32(&io, port::HI, to(1).0);
    for quad in payload(9).chunks(16) {
        rig.write(&io, port::DI, &quad[..8]);
        rig.write(&io, port::DI + 8, &quad[8..]);
    }
    rig.run();

    rig.read32(&compute, port::HR);
    let mut data = [0; PAYLOAD];
    for quad in data.chunks_mut(16) {
        quad[..8].copy_from_slice(&rig.read::<8>(&compute, port::DR));
        quad[8..].copy_from_slice(&rig.read::<8>(&compute, port::DR + 8));
    }

    assert_eq!(data, payload(9));
    assert_eq!(errors(&mut rig, &io), (0, 0));
    assert_eq!(errors(&mut rig, &compute), (0, 0));
}

#[test]
fn halves_of_two_cores_do_not_mix() {
    let mut rig = Rig::psets(&[2]);
    let (first, second) = (rig.attach(1, 0), rig.attach(1, 1));
    rig.write(&first, port::DI, &[1; 8]);

    rig.write(&second, port::DI + 8, &[2; 8]);

    assert_eq!(errors(&mut rig, &first), (0, pix::ALIGN0));
    assert_eq!(status::send_quads(rig.read32(&first, port::SX)), 0);
}

#[test]
fn an_upper_half_without_a_lower_and_two_lower_halves_are_alignment_errors() {
    let mut rig = Rig::psets(&[2]);
    let core = rig.core(1);

    rig.write(&core, port::DI + 8, &[2; 8]);
    assert_eq!(errors(&mut rig, &core).1, pix::ALIGN0);

    rig.write(&core, port::DI, &[1; 8]);
    rig.write(&core, port::DI, &[1; 8]);
    assert_eq!(errors(&mut rig, &core).1, pix::ALIGN0);

    rig.read::<8>(&core, port::DR + 8);
    assert_eq!(errors(&mut rig, &core).0, prx::ALIGN0);
}

#[test]
fn bad_widths_and_alignments_set_the_bit_of_the_cores_processor_port() {
    let mut rig = Rig::psets(&[2]);
    let (first, third) = (rig.attach(1, 0), rig.attach(1, 2));

    rig.write32(&first, port::DI, 1);
    assert_eq!(errors(&mut rig, &first), (0, pix::ALIGN0));
    rig.write(&third, port::HI, &[0; 8]);

    assert_eq!(errors(&mut rig, &first), (0, pix::ALIGN1));
    assert_eq!(rig.read::<4>(&first, port::DR), [0xff; 4]);
    assert_eq!(errors(&mut rig, &first), (prx::ALIGN0, 0));

    assert_eq!(rig.read::<8>(&third, port::SX), [0xff; 8]);
    assert_eq!(errors(&mut rig, &first), (prx::ALIGN1, 0));

    assert_eq!(rig.read::<2>(&third, dcr(GLOB_NADDR)), [0xff; 2]);
    assert_eq!(errors(&mut rig, &first), (prx::ALIGN1, 0));
}

#[test]
fn invalid_addresses_and_wrong_directions_are_address_errors() {
    let mut rig = Rig::psets(&[2]);
    let (first, fourth) = (rig.attach(1, 0), rig.attach(1, 3));

    rig.write(&first, port::DR, &[0; 16]);
    assert_eq!(errors(&mut rig, &first), (0, pix::ADDR0));

    rig.read::<16>(&fourth, port::DI);
    assert_eq!(errors(&mut rig, &first), (prx::ADDR1, 0));

    rig.read32(&first, 0x800);
    assert_eq!(errors(&mut rig, &first), (prx::ADDR0, 0));

    rig.write32(&fourth, 0x2800, 0);
    assert_eq!(errors(&mut rig, &first), (0, pix::ADDR1));
}

#[test]
fn reading_an_empty_fifo_is_an_under_run() {
    let mut rig = Rig::psets(&[2]);
    let (core, admin) = (rig.core(1), rig.admin(1));

    assert_eq!(rig.read::<16>(&core, port::DR), [0xff; 16]);
    rig.read32(&core, port::HR);
    assert_eq!(errors(&mut rig, &core).0, prx::PFU1 | prx::HFU1);
    rig.read32(&admin, port::HR);

    assert_eq!(errors(&mut rig, &core).0, 0);
    assert_eq!(errors(&mut rig, &admin).0, prx::HFU0);
}

#[test]
fn a_write_to_a_full_fifo_is_an_overflow_and_is_lost() {
    let mut rig = Rig::psets(&[1]);
    let (io, admin) = (rig.core(0), rig.admin(0));
    // Packets stay in the send FIFO while injection is disabled.
    rig.write32(&admin, dcr(INJ_PIXEN), pix::ALL);
    for number in 0..8 {
        push(&mut rig, &io, to(1), &payload(number));
    }
    assert_eq!(errors(&mut rig, &io).1, 0);
    assert_eq!(rig.read32(&io, port::SX), status::word(128, 8, 0, false, 0));

    push(&mut rig, &io, to(1), &payload(8));

    assert_eq!(errors(&mut rig, &io).1, pix::PFO1 | pix::HFO1);
    rig.write32(&admin, dcr(INJ_PIXEN), pix::ALL | pix::ENABLE);
    let compute = rig.core(1);
    for number in 0..8 {
        assert_eq!(pop(&mut rig, &compute).1, payload(number));
    }
    assert_eq!(rig.read32(&compute, port::SX), 0);
}

#[test]
fn headers_and_payloads_are_popped_on_their_own() {
    let mut rig = Rig::psets(&[1]);
    let (io, compute) = (rig.core(0), rig.core(1));
    rig.send_all(&io, &[(to(1), payload(1)), (irq_to(1), payload(2))]);

    assert_eq!(Header(rig.read32(&compute, port::HR)), to(1));
    assert_eq!(Header(rig.read32(&compute, port::HR)), irq_to(1));
    rig.read::<16>(&compute, port::DR);

    assert_eq!(rig.read32(&compute, port::SX), status::word(0, 0, 31, true, 0));
    assert_eq!(compute.mirror(mirror::RECV_TAIL), 2);
    for _ in 0..31 {
        rig.read::<16>(&compute, port::DR);
    }
    assert_eq!(rig.read32(&compute, port::SX), 0);
    assert_eq!(errors(&mut rig, &compute), (0, 0));
}

#[test]
fn an_attachment_reaches_its_own_channel_only_and_sees_the_others_status() {
    let mut rig = Rig::psets(&[1]);
    let (io, compute) = (rig.core(0), rig.core(1));
    let admin = rig.admin(1);

    push(&mut rig, &io, to(1), &payload(1));

    assert_eq!(rig.read32(&admin, port::SX), 0);
    assert_eq!(rig.read32(&admin, port::SO), status::word(0, 0, 16, false, 1));
    assert_eq!(compute.unread_packets(), 1);
}

#[test]
fn the_error_word_of_the_mirror_equals_the_registers() {
    let mut rig = Rig::psets(&[1]);
    let core = rig.attach(1, 2);
    rig.write32(&core, port::DI, 1);
    rig.read32(&core, port::HR);

    let ChannelExceptions { receive, inject } = exceptions(core.mirror(mirror::ERROR));

    assert_eq!(receive & prx::HFU1, prx::HFU1);
    assert_eq!(inject & pix::ALIGN1, pix::ALIGN1);
    errors(&mut rig, &core);
    rig.run();
    let ChannelExceptions { receive, inject } = exceptions(core.mirror(mirror::ERROR));
    assert_eq!((receive, inject & !pix::WM1), (0, 0));
}

#[test]
fn writes_of_control_registers_by_a_core_are_ignored_and_reported() {
    let mut rig = Rig::psets(&[1]);
    let (core, admin) = (rig.core(1), rig.admin(1));

    rig.write32(&core, dcr(GLOB_VCFG1), 0x707);

    assert_eq!(errors(&mut rig, &core).1, pix::ADDR0);
    assert_eq!(rig.read32(&admin, dcr(GLOB_VCFG1)), 0);
    rig.write32(&admin, dcr(GLOB_VCFG1), u32::MAX);
    assert_eq!(rig.read32(&core, dcr(GLOB_VCFG1)), vcfg::WRITABLE);
    assert_eq!(rig.read32(&core, dcr(GLOB_NADDR)), 1);
}

#[test]
fn checksums_include_the_bytes_that_the_headers_mode_selects() {
    let mut rig = Rig::psets(&[1]);
    let (io, admin) = (rig.core(0), rig.admin(0));
    let _compute = rig.core(1);
    rig.write32(&admin, dcr(GLOB_VCFG1), 20 << vcfg::CSUMX_SHIFT);
    let ones = [1; PAYLOAD];
    let words = |count: u32| count * 0x0101;
    let mut expected = (0u32, 0u32);

    for (mode, included) in [
        (checksum::NONE, None),
        (checksum::SOME, Some(120)),
        (checksum::CFG, Some(108)),
        (checksum::ALL, Some(128)),
    ] {
        let header = Header(to(1).0 | mode);

        rig.send_all(&io, &[(header, ones)]);

        if let Some(included) = included {
            expected = (expected.0.wrapping_add(header.0), expected.1 + words(included));
        }

        assert_eq!((rig.read32(&io, dcr(INJ_CSHD1)), rig.read32(&io, dcr(INJ_CSPY1))), expected);
    }
    rig.write32(&admin, dcr(INJ_CSHD1), 0);
    assert_eq!(rig.read32(&io, dcr(INJ_CSHD1)), 0);
}

#[test]
fn a_soft_reset_empties_the_fifos_and_clears_errors() {
    let mut rig = Rig::psets(&[1]);
    let (io, admin) = (rig.core(0), rig.admin(0));
    rig.write32(&admin, dcr(INJ_PIXEN), pix::ALL);
    push(&mut rig, &io, to(1), &payload(1));
    rig.send_all(&io, &[(to(1), payload(2))]);
    rig.write32(&io, port::DI, 1);

    rig.write32(&admin, dcr(ARB_RCFG), rcfg::RST);
    rig.write32(&admin, dcr(INJ_PIXEN), pix::ALL | pix::ENABLE);
    rig.run();

    assert_eq!(rig.read32(&io, port::SX), 0);
    assert_eq!(errors(&mut rig, &io), (0, 0));
    assert_eq!(rig.read32(&admin, dcr(ARB_RCFG)), 0);
    let compute = rig.core(1);
    assert_eq!(compute.receive(), None);
    assert_eq!(io.mirror(mirror::SEND_DEPTH), 8);
    rig.send_all(&io, &[(to(1), payload(3))]);
    assert_eq!(compute.receive().unwrap().1, payload(3));
}

#[test]
fn a_disabled_source_port_and_manual_mode_hold_packets_that_registers_report() {
    // The first bit is that of port 0, virtual channel 1.
    for configuration in [rcfg::SRC00 >> 1, rcfg::MAN] {
        let mut rig = Rig::psets(&[1]);
        let (io, compute, admin) = (rig.core(0), rig.core(1), rig.admin(1));
        rig.write32(&admin, dcr(ARB_RCFG), configuration);

        rig.send_all(&io, &[(to(1), payload(1))]);

        assert_eq!(compute.receive(), None);
        assert_eq!(rig.read32(&admin, dcr(ARB_HD00 + 1)), to(1).0);
        assert_eq!(rig.read32(&admin, dcr(ARB_RSTAT)) >> 24, 0b0010);

        rig.write32(&admin, dcr(ARB_RCFG), 0);
        rig.run();
        assert_eq!(compute.receive().unwrap().1, payload(1));
    }
}

#[test]
fn a_disabled_target_port_holds_injected_packets() {
    let mut rig = Rig::psets(&[1]);
    let (io, compute, admin) = (rig.core(0), rig.core(1), rig.admin(1));
    // The bit is that of port 0, virtual channel 1.
    rig.write32(&admin, dcr(ARB_RCFG), rcfg::TGT00 >> 1);

    rig.send_all(&compute, &[(to(0), payload(1))]);

    assert_eq!(io.receive(), None);
    rig.write32(&admin, dcr(ARB_RCFG), 0);
    rig.run();
    assert_eq!(io.receive().unwrap().1, payload(1));
}

#[test]
fn a_blocked_source_shows_in_the_extended_status() {
    let mut rig = Rig::psets(&[1]);
    let (io, _compute, admin) = (rig.core(0), rig.core(1), rig.admin(1));
    let packets: Vec<_> = (0..30).map(|number| (to(1), payload(number))).collect();

    rig.send_all(&io, &packets);

    assert_eq!(rig.read32(&admin, dcr(ARB_XSTAT)), 0b0010 << 24);
    assert_eq!(rig.counter(1, "vc1_stalls"), 1);
}

#[test]
fn declared_registers_show_what_software_reads() {
    let mut rig = Rig::psets(&[1]);
    let (io, compute, admin) = (rig.core(0), rig.core(1), rig.admin(1));
    rig.write32(&admin, dcr(ARB_RCFG), rcfg::TGT00 >> 1);
    rig.send_all(&io, &[(to(1), payload(1)), (to(1), payload(2))]);
    // A header and a quad are popped, and a read at no register sets an error bit.
    rig.read32(&compute, port::HR);
    rig.read::<16>(&compute, port::DR);
    rig.read32(&compute, dcr(0x7f));

    for client in [&compute, &admin] {
        let compared = client.id().compare_peeks(&mut rig.machine);
        for name in ["SX", "SO", "CLASS_RDR", "ARB_RCFG", "REC_PRXF", "INJ_PIXF", "GI_STATE", "INT_STATUS"] {
            assert!(compared.contains(&name), "{name} is not in {compared:?}");
        }
    }

    let registers = rig.machine.registers(compute.function);
    let value = rig.read32(&admin, dcr(ARB_RCFG)).to_le_bytes();
    assert_eq!(show(registers, 0, dcr(ARB_RCFG), &value).to_string(), "ARB_RCFG 0x10000000 TGT01");
}
