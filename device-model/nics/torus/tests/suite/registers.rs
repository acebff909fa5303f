//! Device control registers.

use nicforge_hwi::{
    torus::{CHANNELS, MAX_PACKET, mirror, reg},
    torus_dcr as dcr,
};
use nicforge_torus::Options;

use crate::common::{Rig, payload};

fn control(rig: &mut Rig, client: nicforge_test_kit::Client, number: u32) -> u32 {
    client.read32(&mut rig.machine, 0, reg::DCR + 4 * u64::from(number))
}

#[test]
fn a_node_knows_its_place_and_its_neighbours() {
    let mut rig = Rig::with([4, 3, 2], [true, false, true], Options::default());
    // Node 15 is at (3, 0, 1).
    let client = rig.core(15, 1);
    let read = |rig: &mut Rig, number| control(rig, client.id, number);

    assert_eq!(read(&mut rig, dcr::CTRL_NODES), 0x0302_0100);
    assert_eq!(read(&mut rig, dcr::CTRL_COORDS_NODE), 0x0300_0100);
    assert_eq!(read(&mut rig, dcr::CTRL_COORDS_PLUS), 0x0001_0000);
    assert_eq!(read(&mut rig, dcr::CTRL_COORDS_MINUS), 0x0200_0000);
    assert_eq!(read(&mut rig, 0x2f), u32::MAX, "no register");

    let words = [
        (mirror::NODE, 15),
        (mirror::COORDINATES, 0x0300_0100),
        (mirror::LAST, 0x0302_0100),
        (mirror::WRAPS, 0b101),
        (mirror::GROUP, 1),
        (mirror::LIFE, 1),
    ];
    for (offset, value) in words {
        assert_eq!(client.mirrored(offset), value, "at {offset:#x}");
    }
}

#[test]
fn tokens_show_the_room_behind_a_link() {
    let mut rig = Rig::torus([4, 1, 1]);
    let mut sender = rig.core(0, 0);
    let _receiver = rig.core(1, 0);
    assert_eq!(control(&mut rig, sender.id, dcr::STAT_SEND_TOK), 0x0404_0404);

    // The receiver takes nothing, so that packets stay in the buffer of the deterministic channel.
    let header = rig.to(1).deterministic();
    while rig.try_send(&mut sender, 0, header, &payload(1, 8)) {
        rig.run();
    }
    // A packet that enters the ring needs room for two.
    assert_eq!(control(&mut rig, sender.id, dcr::STAT_SEND_TOK), 0x0404_0104);
    assert_eq!((CHANNELS, MAX_PACKET), (4, 256));
}

#[test]
fn checksums_add_what_was_injected() {
    let mut rig = Rig::torus([2, 1, 1]);
    let mut clients = rig.all_cores();
    let to = rig.to(1);

    // Eight shorts of header are left out; a packet of one chunk has eight more.
    let bytes = [1_u16, 2, 3, 4, 5, 6, 7, 0xffff].map(u16::to_le_bytes).concat();
    rig.send(&mut clients[0], to.with_checksum(Some(8)), &bytes);
    rig.send(&mut clients[0], to.with_checksum(None), &bytes);
    assert_eq!(control(&mut rig, clients[0].id, dcr::STAT_CKSUM_INJ), 28 + 0xffff);
    rig.send(&mut clients[0], to.with_checksum(Some(127)), &bytes);
    assert_eq!(control(&mut rig, clients[0].id, dcr::STAT_CKSUM_INJ), 28 + 0xffff);
    assert_eq!(control(&mut rig, clients[0].id, dcr::STAT_CKSUM_INJ + 7), 0);
}

#[test]
fn error_counters_are_cleared_by_a_write_of_the_kernel() {
    let mut rig = Rig::torus([2, 1, 1]);
    let mut client = rig.core(0, 0);
    let kernel = rig.kernel(0);
    let nowhere = nicforge_hwi::torus::PacketHeader::to([0, 1, 0], 0);
    rig.send(&mut client, nowhere, &payload(1, 2));

    let number = dcr::RE_BADHDR_FULLFIFO;
    assert_eq!(control(&mut rig, kernel, number), 1);
    client.id.write32(&mut rig.machine, 0, reg::DCR + 4 * u64::from(number), 0);
    assert_eq!(control(&mut rig, kernel, number), 1);
    kernel.write32(&mut rig.machine, 0, reg::DCR + 4 * u64::from(number), 0);
    assert_eq!(control(&mut rig, kernel, number), 0);
    assert_eq!(rig.counter(0, "errors"), 1);
}

#[test]
fn hints_turn_beyond_half_of_a_ring_and_never_on_a_mesh() {
    let cases = [
        ([4, 3, 2], [true, false, true], 0x0203_0100),
        ([5, 4, 1], [false, true, false], 0x0502_0100),
        // A register has eight bits for a dimension.
        ([256, 1, 1], [false; 3], 0xff01_0100),
    ];
    for (lengths, wraps, cutoffs) in cases {
        let mut rig = Rig::with(lengths, wraps, Options::default());
        let client = rig.core(0, 0);
        for number in [dcr::CTRL_HINT_PLUS, dcr::CTRL_HINT_MINUS] {
            assert_eq!(control(&mut rig, client.id, number), cutoffs, "{lengths:?} {wraps:?}");
        }
    }
}

#[test]
fn a_reset_of_the_function_clears_error_counters() {
    let mut rig = Rig::torus([2, 1, 1]);
    let mut client = rig.core(0, 0);
    let kernel = rig.kernel(0);
    let nowhere = nicforge_hwi::torus::PacketHeader::to([0, 1, 0], 0);
    rig.send(&mut client, nowhere, &payload(1, 2));
    assert_eq!(control(&mut rig, kernel, dcr::RE_BADHDR_FULLFIFO), 1);

    rig.machine.reset_function(rig.functions[0]).unwrap();
    rig.run();
    assert_eq!(control(&mut rig, kernel, dcr::RE_BADHDR_FULLFIFO), 0);
    assert_eq!(rig.counter(0, "errors"), 1);
    // The register counts on from there.
    client.id.write32(&mut rig.machine, 0, reg::INJECTION_TAIL, 33);
    rig.run();
    assert_eq!(control(&mut rig, kernel, dcr::RE_BADHDR_FULLFIFO), 1);
}

#[test]
fn declared_registers_show_what_software_reads() {
    let mut rig = Rig::torus([4, 2, 1]);
    let mut sender = rig.core(0, 0);
    let receiver = rig.core(1, 1);
    let kernel = rig.kernel(1);
    let header = rig.to(1);
    assert!(rig.try_send(&mut sender, 0, header, &payload(1, 8)));
    rig.run();

    for client in [sender.id, receiver.id] {
        let compared = client.compare_peeks(&mut rig.machine);
        for name in ["STATUS", "OTHER_STATUS_HIGH", "INJECTION_TAIL", "INTERRUPT_STATUS", "PRESENCE"] {
            assert!(compared.contains(&name), "{name} is not in {compared:?}");
        }
    }
    let compared = kernel.compare_peeks(&mut rig.machine);
    for name in ["CTRL_COORDS_NODE", "CTRL_WM", "STAT_SEND_TOK", "STAT_CKSUM_INJ", "RE_SEND_RETRY"] {
        assert!(compared.contains(&name), "{name} is not in {compared:?}");
    }
}
