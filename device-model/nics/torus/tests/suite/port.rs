//! The trapped port.

use nicforge_hwi::torus::{HEADER, MAX_CHUNKS, QUAD, mirror, reg};
use nicforge_hwi::torus_dcr as dcr;
use zerocopy::IntoBytes;

use crate::common::{Client, Rig, payload};

/// Writes a packet to the port of an injection FIFO in accesses of `width` bytes.
fn write_packet(rig: &mut Rig, client: &Client, offset: u64, packet: &[u8], width: usize) {
    for quad in packet.chunks(QUAD) {
        for (index, part) in quad.chunks(width).enumerate() {
            client.id.write(&mut rig.machine, 0, offset + (index * width) as u64, part);
        }
    }
}

/// Returns the bytes of a packet.
fn packet(rig: &Rig, node: u32, payload: &[u8]) -> Vec<u8> {
    let header = rig.to(node).deterministic().with_payload(payload.len());
    [header.as_bytes(), payload].concat()
}

#[test]
fn packets_go_by_the_port_in_quads_and_in_halves() {
    let mut rig = Rig::torus([2, 1, 1]);
    let clients = rig.all_cores();

    for (width, chunks) in [(16, 1), (8, 1), (16, 8), (8, 3)] {
        let sent = packet(&rig, 1, &payload(width as u32, chunks));
        write_packet(&mut rig, &clients[0], reg::I0 + reg::INJECTION, &sent, width);
        rig.run();

        // Two nodes have two cables; the tail says by which link the packet came.
        let tails: Vec<_> =
            (0..2).map(|fifo| clients[1].mirrored(mirror::RECEPTION_TAIL + 4 * fifo)).collect();
        let heads: Vec<_> =
            (0..2).map(|fifo| clients[1].head(fifo).load(std::sync::atomic::Ordering::Acquire)).collect();
        let fifo = (0..2).find(|&fifo| tails[fifo] != heads[fifo]).unwrap();
        let offset = reg::R0 + 0x400 * fifo as u64;
        let mut received = Vec::new();
        for _ in 0..sent.len() / QUAD {
            match width {
                16 => received.extend(clients[1].id.read::<16>(&mut rig.machine, 0, offset)),
                _ => {
                    received.extend(clients[1].id.read::<8>(&mut rig.machine, 0, offset));
                    received.extend(clients[1].id.read::<8>(&mut rig.machine, 0, offset + 8));
                }
            }
        }
        assert_eq!(received, sent, "{chunks} chunks by {width} bytes");
    }
    assert_eq!(rig.total("errors"), 0);
}

#[test]
fn a_write_to_a_full_fifo_is_dropped_and_counted() {
    let mut rig = Rig::torus([2, 1, 1]);
    let sender = rig.core(0, 0);
    let receiver = rig.core(1, 0);
    let sent = packet(&rig, 1, &payload(3, MAX_CHUNKS));

    // The receiver takes nothing. In the end the FIFO takes no chunk.
    for _ in 0..40 {
        write_packet(&mut rig, &sender, reg::I0, &sent, 16);
        rig.run();
    }
    let status: [u8; 16] = sender.id.read(&mut rig.machine, 0, reg::STATUS);
    assert_eq!(status[7], 32, "chunks in injection FIFO 0");
    let errors = sender.mirrored(mirror::ERRORS);
    assert!(errors > 0);
    let dropped = sender.id.read32(&mut rig.machine, 0, reg::DCR + 4 * u64::from(dcr::RE_BADHDR_FULLFIFO));
    assert_eq!(dropped, errors);
    // The packets that were sent are whole.
    assert_eq!(receiver.receive().unwrap().payload, payload(3, MAX_CHUNKS));
}

#[test]
fn wrong_accesses_to_the_port_count_and_move_nothing() {
    let mut rig = Rig::torus([2, 1, 1]);
    let client = rig.core(0, 0);
    let write = |rig: &mut Rig, offset: u64, bytes: usize| {
        client.id.write(&mut rig.machine, 0, offset, &vec![1; bytes]);
    };

    for (offset, bytes) in [(0, 4), (4, 8), (8, 16), (0, 32), (8, 8)] {
        let before = client.mirrored(mirror::ERRORS);
        write(&mut rig, reg::I0 + offset, bytes);
        rig.run();
        assert_eq!(client.mirrored(mirror::ERRORS), before + 1, "{bytes} bytes at {offset}");
    }
    // A lower half without its upper half, and a read of an empty FIFO.
    write(&mut rig, reg::I0, 8);
    write(&mut rig, reg::IH + 8, 8);
    assert_eq!(client.id.read::<16>(&mut rig.machine, 0, reg::RH), [0xff; 16]);
    rig.run();
    assert_eq!(client.mirrored(mirror::ERRORS), 7);
    assert_eq!(rig.counter(0, "packets_sent"), 0);
    assert_eq!(HEADER, QUAD);
}
