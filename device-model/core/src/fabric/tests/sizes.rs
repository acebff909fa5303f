//! The pool's bound, sizes of packets, refusals and copies.

use super::*;

#[test]
fn the_pool_makes_no_more_packets_than_its_bound_and_reuses_them() {
    let (mut fabric, _) = pair(LinkSpec::default());
    fabric.set_pool_bound(2);
    let mut ports = fabric.ports(A, Nanos(0));
    let packets: Vec<_> = (0..3).map(|_| ports.new_packet(10)).collect();

    assert_eq!(packets.iter().flatten().count(), 2);
    assert_eq!(packets[2].as_ref().err(), Some(&Refusal::PoolEmpty));

    for packet in packets.into_iter().flatten() {
        ports.recycle(packet);
    }

    assert_eq!(ports.new_packet(20).map(|packet| packet.len()), Ok(20));
    let too_long = ports.new_packet(DEFAULT_MAX_PACKET + 1).err();
    assert_eq!(too_long, Some(Refusal::TooLong { longest: DEFAULT_MAX_PACKET as u32 }));
    assert_eq!(fabric.packets_in_use(), 1);
}

#[test]
fn a_packet_of_the_replaced_initial_size_counts_until_it_is_recycled() {
    let mut fabric = Fabric::new();
    fabric.set_pool_bound(1);
    let initial = fabric.ports(A, Nanos(0)).new_packet(4).unwrap();
    // The first size that is added replaces the initial one of the pool.
    fabric.add_packet_size(64).unwrap();
    let mut ports = fabric.ports(A, Nanos(0));

    assert_eq!(ports.new_packet(64).err(), Some(Refusal::PoolEmpty));

    ports.recycle(initial);

    assert_eq!(ports.new_packet(64).map(|packet| packet.len()), Ok(64));
    assert_eq!(fabric.packets_in_use(), 1);
}

/// Connects ports of A and B by links with these longest packets.
pub(super) fn links_of(sizes: &[usize]) -> Fabric {
    let mut fabric = Fabric::new();
    for (port, &max_packet) in (0..).zip(sizes) {
        fabric.connect((A, port), (B, port), LinkSpec { max_packet, ..LinkSpec::default() }).unwrap();
    }
    fabric
}

/// Sends a packet of `length` bytes from A, alone and in a run. Returns the two results.
fn send_both_ways(fabric: &mut Fabric, port: u8, length: usize) -> [Result<(), Refusal>; 2] {
    let mut ports = fabric.ports(A, Nanos(0));
    let packet = ports.new_packet(length).unwrap();
    let alone = ports.send(port, 0, packet).map_err(|unsent| {
        assert_eq!(unsent.packet.len(), length);
        ports.recycle(unsent.packet);
        unsent.reason
    });
    let in_run = ports.run(port, 0).unwrap().send(&vec![7; length], |_| {});

    [alone, in_run]
}

#[test]
fn each_link_takes_packets_up_to_its_own_size() {
    // The order of the links must not matter.
    for sizes in [[64, 256, 1518, 9000], [9000, 1518, 256, 64], [1518, 64, 9000, 256]] {
        let mut fabric = links_of(&sizes);
        assert_eq!(fabric.max_packet(), 9000);

        for (port, longest) in (0..).zip(sizes) {
            assert_eq!(fabric.ports(A, Nanos(0)).max_packet(port), longest);
            assert_eq!(send_both_ways(&mut fabric, port, longest), [Ok(()), Ok(())]);
            if longest < 9000 {
                let refused = Err(Refusal::TooLong { longest: longest as u32 });
                assert_eq!(send_both_ways(&mut fabric, port, longest + 1), [refused, refused]);
            }

            let mut ports = fabric.ports(B, Nanos(0));
            assert_eq!(ports.take_while(port, 0, 9, |packet| packet.bytes().len() == longest), 2);
        }

        assert_eq!(fabric.packets_in_use(), 0);
    }
}

#[test]
fn sizes_of_packets_share_the_bound_of_the_pool() {
    let mut fabric = links_of(&[64, 1518, 9000]);
    fabric.set_pool_bound(3);
    let mut ports = fabric.ports(A, Nanos(0));
    for length in [64, 1518, 9000, 64] {
        let packets: Vec<_> = (0..3).map(|_| ports.new_packet(length).unwrap()).collect();
        assert_eq!(ports.new_packet(1).err(), Some(Refusal::PoolEmpty));
        assert_eq!(ports.new_packet(9000).err(), Some(Refusal::PoolEmpty));
        packets.into_iter().for_each(|packet| ports.recycle(packet));
    }
    assert_eq!(fabric.packets_in_use(), 0);
}

#[test]
fn packets_that_are_too_long_for_the_next_link_are_not_forwarded() {
    for delay in [0, 7] {
        let mut fabric = Fabric::new();
        let spec = LinkSpec { delay, ..LinkSpec::default() };
        fabric.connect((A, 0), (B, 0), spec.clone()).unwrap();
        fabric.connect((B, 1), (C, 0), LinkSpec { max_packet: 256, ..spec }).unwrap();
        for length in [256, 257, 256] {
            let mut ports = fabric.ports(A, Nanos(0));
            let packet = ports.new_packet(length).unwrap();
            ports.send(0, 0, packet).unwrap();
        }
        fabric.advance(Nanos(7));
        let forwarded = fabric.ports(B, Nanos(7)).forward_row(0, 0, 9, |_| Some((1, |_: &Packet| true)));

        assert_eq!(forwarded, Some(ForwardedRow { moved: 1, has_more: true }), "delay {delay}");
        assert_eq!(fabric.ports(B, Nanos(7)).take(0, 0).map(|packet| packet.len()), Some(257));
        assert!(fabric.ports(B, Nanos(7)).forward(0, 1, 0));
    }
}

#[test]
fn refused_packets_come_back_with_the_reason() {
    let (mut fabric, link) = pair(LinkSpec { credits: vec![1], ..LinkSpec::default() });
    let reason = |fabric: &mut Fabric, port, channel| {
        let mut ports = fabric.ports(A, Nanos(0));
        let packet = ports.new_packet(8).unwrap();
        ports.send(port, channel, packet).map_err(|unsent| {
            ports.recycle(unsent.packet);
            unsent.reason
        })
    };

    assert_eq!(reason(&mut fabric, 1, 0), Err(Refusal::NoLink));
    assert_eq!(reason(&mut fabric, 0, 1), Err(Refusal::NoChannel));
    assert_eq!(reason(&mut fabric, 0, 0), Ok(()));
    assert_eq!(reason(&mut fabric, 0, 0), Err(Refusal::NoCredit));
    fabric.set_link_up(link, false).unwrap();
    assert_eq!(reason(&mut fabric, 0, 0), Err(Refusal::LinkDown));
    assert_eq!(reason(&mut fabric, 0, 1), Err(Refusal::NoChannel));
    assert_eq!(fabric.packets_in_use(), 1);
}

#[test]
fn a_copy_has_the_bytes_and_the_headers_of_its_original() {
    let (mut fabric, _) = pair(LinkSpec::default());
    fabric.set_pool_bound(2);
    let mut ports = fabric.ports(A, Nanos(0));
    let mut original = ports.new_packet(5).unwrap();
    original.bytes_mut().copy_from_slice(b"frame");
    (original.header, original.framing) = (7, 18);

    let copy = ports.copy_packet(&original).unwrap();

    assert_eq!((copy.bytes(), copy.header, copy.framing), (&b"frame"[..], 7, 18));
    assert_eq!(ports.copy_packet(&original).err(), Some(Refusal::PoolEmpty));
    ports.recycle(original);
    assert_eq!(ports.copy_packet(&copy).map(|again| again.header), Ok(7));
}
