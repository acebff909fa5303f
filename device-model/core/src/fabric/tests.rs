//! Tests of the fabric through its public interface.

use proptest::prelude::*;

use super::*;

const A: FunctionId = FunctionId(0);
const B: FunctionId = FunctionId(1);
const C: FunctionId = FunctionId(2);

fn pair(spec: LinkSpec) -> (Fabric, LinkId) {
    let mut fabric = Fabric::new();
    let link = fabric.connect((A, 0), (B, 0), spec).unwrap();
    while fabric.pop_woken().is_some() {}
    (fabric, link)
}

fn send(fabric: &mut Fabric, now: u64, channel: usize, number: u64) -> bool {
    let mut ports = fabric.ports(A, Nanos(now));
    let Ok(mut packet) = ports.new_packet(256) else { return false };
    packet.header = number;
    match ports.send(0, channel, packet) {
        Ok(()) => true,
        Err(unsent) => {
            ports.recycle(unsent.packet);
            false
        }
    }
}

fn receive(fabric: &mut Fabric, now: u64, channel: usize) -> Option<u64> {
    fabric.advance(Nanos(now));
    let mut ports = fabric.ports(B, Nanos(now));
    let packet = ports.take(0, channel)?;
    let header = packet.header;
    ports.recycle(packet);
    Some(header)
}

#[test]
fn a_packet_over_a_link_without_delay_is_there_at_once() {
    let (mut fabric, _) = pair(LinkSpec::default());

    assert!(send(&mut fabric, 5, 0, 42));

    assert_eq!(fabric.pop_woken(), Some(B));
    assert_eq!(fabric.pop_woken(), None);
    assert_eq!(fabric.next_event(), Nanos::NEVER);
    assert_eq!(receive(&mut fabric, 5, 0), Some(42));
    assert_eq!(receive(&mut fabric, 5, 0), None);
}

/// Returns A, B and C connected in a row by links of `spec`. B has A at port 0 and C at port 1.
fn row(spec: &LinkSpec) -> (Fabric, LinkId) {
    let mut fabric = Fabric::new();
    fabric.connect((A, 0), (B, 0), spec.clone()).unwrap();
    let onward = fabric.connect((B, 1), (C, 0), spec.clone()).unwrap();
    while fabric.pop_woken().is_some() {}
    (fabric, onward)
}

/// Sends packets 1 to 4 from A, and lets B forward them. Returns the number that B moved, and the
/// headers that C received.
fn pass_on(fabric: &mut Fabric, limit: u32, goes: impl Fn(&Packet) -> bool) -> (u32, Vec<u64>) {
    let late = Nanos(1 << 20);
    for number in 1..=4 {
        assert!(send(fabric, 0, 0, number));
    }

    fabric.advance(late);
    let forwarded = fabric.ports(B, late).forward_row(0, 0, limit, |_| Some((1, &goes)));
    let moved = forwarded.map_or(0, |(moved, _)| moved);
    let later = Nanos(2 << 20);
    fabric.advance(later);
    let mut ports = fabric.ports(C, later);
    let headers = std::iter::from_fn(|| {
        let packet = ports.take(0, 0)?;
        let header = packet.header;
        ports.recycle(packet);
        Some(header)
    });

    (moved, headers.collect())
}

#[test]
fn packets_are_passed_on_in_order_as_far_as_the_limit_the_condition_and_the_credits_allow() {
    let links = [
        LinkSpec::default(),
        LinkSpec { delay: 7, ..LinkSpec::default() },
        LinkSpec { bits_per_second: 1_000_000_000, ..LinkSpec::default() },
    ];
    for spec in links {
        assert_eq!(pass_on(&mut row(&spec).0, 9, |_| true), (4, vec![1, 2, 3, 4]), "{spec:?}");
        assert_eq!(pass_on(&mut row(&spec).0, 3, |_| true), (3, vec![1, 2, 3]), "{spec:?}");
        assert_eq!(pass_on(&mut row(&spec).0, 9, |packet| packet.header < 3), (2, vec![1, 2]), "{spec:?}");
        assert_eq!(pass_on(&mut row(&spec).0, 0, |_| true), (0, vec![]), "{spec:?}");
        let (mut fabric, onward) = row(&spec);
        // B has sent two packets of its own, so that two credits are left.
        for number in [8, 9] {
            let mut ports = fabric.ports(B, Nanos(0));
            let mut packet = ports.new_packet(256).unwrap();
            packet.header = number;
            assert!(ports.send(1, 0, packet).is_ok());
        }
        assert_eq!(pass_on(&mut fabric, 9, |_| true), (2, vec![8, 9, 1, 2]), "{spec:?}");
        let stats = fabric.link_stats(onward, Direction::Forward, 0).unwrap();
        assert_eq!((stats.packets, stats.bytes, stats.stalls), (4, 4 * 256, 1), "{spec:?}");
    }
}

#[test]
fn a_burst_that_is_passed_on_gives_its_credits_back_and_wakes_both_neighbours_once() {
    let (mut fabric, _) = row(&LinkSpec::default());
    for number in 0..4 {
        assert!(send(&mut fabric, 0, 0, number));
    }

    assert!(!send(&mut fabric, 0, 0, 4), "no credit is left");

    while fabric.pop_woken().is_some() {}

    let way = |first: &Packet| (first.header == 0).then_some((1, |_: &Packet| true));

    assert_eq!(fabric.ports(B, Nanos(0)).forward_row(0, 0, 8, way), Some((4, false)));

    assert_eq!((fabric.pop_woken(), fabric.pop_woken()), (Some(A), Some(C)));
    assert_eq!(fabric.pop_woken(), None);
    assert_eq!(fabric.ports(A, Nanos(0)).credits(0, 0), 4);
    assert_eq!(fabric.ports(B, Nanos(0)).arrived(0), 0);
    assert_eq!(fabric.ports(B, Nanos(0)).credits(1, 0), 0);
}

#[test]
fn a_row_of_packets_arrives_together_and_gives_its_credits_back_together() {
    let (mut fabric, link) = pair(LinkSpec { credits: vec![3], ..LinkSpec::default() });
    let mut ports = fabric.ports(A, Nanos(1));
    let mut run = ports.run(0, 0).unwrap();
    let sent = [1u64, 2, 3, 4].map(|number| run.send(&number.to_le_bytes(), |packet| packet.header = number));
    drop(run);

    assert_eq!(sent, [Ok(()), Ok(()), Ok(()), Err(Refusal::NoCredit)]);
    assert_eq!(fabric.link_stats(link, Direction::Forward, 0).unwrap().stalls, 1);
    assert_eq!((fabric.pop_woken(), fabric.pop_woken()), (Some(B), None));

    let mut ports = fabric.ports(B, Nanos(1));
    let mut run = ports.take_run(0, 0, 2).unwrap();
    for number in [1, 2] {
        assert_eq!(run.front().unwrap().bytes(), u64::to_le_bytes(number));
        run.pass();
    }

    assert!(run.front().is_none(), "the limit");

    run.pass();
    assert_eq!(run.taken(), 2);

    drop(run);
    assert_eq!((fabric.pop_woken(), fabric.packets_in_use()), (Some(A), 1));
    assert_eq!(fabric.ports(A, Nanos(1)).credits(0, 0), 2);
    assert_eq!(receive(&mut fabric, 1, 0), Some(3));
}

#[test]
fn forwarding_in_a_row_ends_at_a_packet_that_goes_elsewhere() {
    for spec in [LinkSpec::default(), LinkSpec { bits_per_second: 1_000_000_000, ..LinkSpec::default() }] {
        let (mut fabric, onward) = row(&spec);
        for number in [1, 1, 2] {
            assert!(send(&mut fabric, 0, 0, number));
        }
        let late = Nanos(1 << 20);
        fabric.advance(late);
        let alike = |first: &Packet| {
            let header = first.header;
            Some((1, move |packet: &Packet| packet.header == header))
        };

        assert_eq!(fabric.ports(B, late).forward_row(0, 0, 8, alike), Some((2, true)), "{spec:?}");
        assert_eq!(fabric.ports(B, late).forward_row(0, 0, 8, |_| None::<(u8, fn(&Packet) -> bool)>), None);
        fabric.set_link_up(onward, false).unwrap();
        assert_eq!(fabric.ports(B, late).forward_row(0, 0, 8, alike), Some((0, true)), "the link is down");
        fabric.set_link_up(onward, true).unwrap();
        assert_eq!(fabric.ports(B, late).forward_row(0, 0, 8, alike), Some((1, false)), "{spec:?}");
        assert_eq!(fabric.ports(B, late).forward_row(0, 0, 8, alike), None, "nothing is left");
    }
}

#[test]
fn packets_that_are_taken_in_a_row_end_with_the_one_that_is_refused() {
    for delay in [0, 7] {
        let (mut fabric, _) = pair(LinkSpec { delay, ..LinkSpec::default() });
        for number in 1..=4 {
            assert!(send(&mut fabric, 0, 0, number));
        }
        while fabric.pop_woken().is_some() {}
        fabric.advance(Nanos(10));
        let mut seen = Vec::new();
        let mut ports = fabric.ports(B, Nanos(10));
        let taken = ports.take_while(0, 0, 9, |packet| {
            seen.push(packet.header);
            packet.header < 3
        });

        assert_eq!((taken, &seen[..]), (2, &[1, 2, 3][..]));
        assert_eq!(ports.peek(0, 0).map(|packet| packet.header), Some(3));
        assert_eq!(ports.take_while(0, 0, 1, |_| true), 1);
        assert_eq!(ports.take_while(1, 0, 1, |_| true), 0, "there is no such port");
        assert_eq!(fabric.packets_in_use(), 1);
        fabric.advance(Nanos(17));
        assert_eq!(fabric.ports(A, Nanos(17)).credits(0, 0), 3);
        assert!(std::iter::from_fn(|| fabric.pop_woken()).any(|function| function == A));
    }
}

#[test]
fn a_polled_function_is_woken_again_only_after_polling_ends() {
    let (mut fabric, _) = pair(LinkSpec::default());
    let named = |fabric: &mut Fabric| {
        let mut named = Vec::new();
        fabric.take_woken(|function, _| named.push(function));
        named
    };

    assert!(send(&mut fabric, 0, 0, 1));
    assert_eq!(named(&mut fabric), [B]);
    assert!(send(&mut fabric, 0, 0, 1));
    assert_eq!(named(&mut fabric), []);

    fabric.end_polling(B);
    assert!(send(&mut fabric, 0, 0, 2));

    // The function is still queued, and stays so.
    fabric.end_polling(B);
    assert!(send(&mut fabric, 0, 0, 3));

    assert_eq!(named(&mut fabric), [B]);
}

#[test]
fn packets_do_not_go_in_a_row_where_they_take_time_or_a_hook_looks_at_them() {
    let (mut slow, _) = pair(LinkSpec { delay: 1, ..LinkSpec::default() });

    assert!(slow.ports(A, Nanos(1)).run(0, 0).is_none());

    let (mut hooked, link) = pair(LinkSpec::default());
    hooked.set_fault(link, Direction::Forward, Some(Box::new(|_, _| Fault::None))).unwrap();
    assert!(hooked.ports(A, Nanos(1)).run(0, 0).is_none());

    hooked.set_fault(link, Direction::Forward, None).unwrap();
    assert!(hooked.ports(A, Nanos(1)).run(0, 0).is_some());

    hooked.set_link_up(link, false).unwrap();
    assert!(hooked.ports(A, Nanos(1)).run(0, 0).is_none());
}

#[test]
fn ports_with_a_link_are_plugged() {
    let (mut fabric, _) = row(&LinkSpec::default());
    assert_eq!(fabric.ports(B, Nanos(0)).plugged(), 0b11);
    assert_eq!(fabric.ports(C, Nanos(0)).plugged(), 0b1);
    assert_eq!(fabric.ports(FunctionId(9), Nanos(0)).plugged(), 0);
}

#[test]
fn a_packet_is_visible_after_serialisation_and_delay() {
    // 256 bytes at 1 Gb/s: 2048 ns.
    let (mut fabric, _) = pair(LinkSpec {
        delay: 100,
        bits_per_second: 1_000_000_000,
        credits: vec![4],
        ..LinkSpec::default()
    });

    assert!(send(&mut fabric, 1000, 0, 1));
    assert!(send(&mut fabric, 1000, 0, 2));

    assert_eq!(fabric.next_event(), Nanos(1000 + 2048 + 100));
    assert_eq!(receive(&mut fabric, 3147, 0), None);
    assert_eq!(receive(&mut fabric, 3148, 0), Some(1));
    assert_eq!(fabric.next_event(), Nanos(3148 + 100), "the credit is on its way back");
    assert_eq!(receive(&mut fabric, 5195, 0), None);
    assert_eq!(receive(&mut fabric, 5196, 0), Some(2));
}

#[test]
fn framing_counts_for_the_bandwidth_and_fractions_of_a_nanosecond_add_up() {
    // 260 bytes at 6.8 Gb/s: 305.88 ns.
    let (mut fabric, _) = pair(LinkSpec {
        delay: 0,
        bits_per_second: 6_800_000_000,
        credits: vec![1000],
        ..LinkSpec::default()
    });
    for _ in 0..1000 {
        let mut ports = fabric.ports(A, Nanos(0));
        let mut packet = ports.new_packet(256).unwrap();
        packet.framing = 4;
        assert!(ports.send(0, 0, packet).is_ok());
    }

    fabric.advance(Nanos(305_882));
    let before = (0..1000).filter(|_| receive(&mut fabric, 305_882, 0).is_some()).count();

    assert_eq!(before, 999);
    assert!(receive(&mut fabric, 305_883, 0).is_some());
}

#[test]
fn credits_bound_packets_in_flight_and_return_after_the_delay() {
    let (mut fabric, link) =
        pair(LinkSpec { delay: 10, bits_per_second: 0, credits: vec![2, 1], ..LinkSpec::default() });

    assert!(send(&mut fabric, 0, 0, 1) && send(&mut fabric, 0, 0, 2));

    assert!(!send(&mut fabric, 0, 0, 3));
    assert!(send(&mut fabric, 0, 1, 4), "the other channel has its own credits");

    assert_eq!(receive(&mut fabric, 10, 0), Some(1));
    assert!(!send(&mut fabric, 19, 0, 3));

    while fabric.pop_woken().is_some() {}
    fabric.advance(Nanos(20));
    assert_eq!(fabric.pop_woken(), Some(A));
    assert!(send(&mut fabric, 20, 0, 3));
    assert_eq!(fabric.link_stats(link, Direction::Forward, 0).unwrap().stalls, 1);
    assert_eq!(fabric.link_stats(link, Direction::Forward, 0).unwrap().packets, 3);
}

#[test]
fn a_function_is_woken_once_until_it_is_popped() {
    let (mut fabric, _) = pair(LinkSpec::default());
    for number in 0..3 {
        send(&mut fabric, 0, 0, number);
    }

    assert_eq!(fabric.pop_woken(), Some(B));
    assert_eq!(fabric.pop_woken(), None);

    send(&mut fabric, 0, 0, 3);
    assert_eq!(fabric.pop_woken(), Some(B));
}

#[test]
fn both_ends_of_a_new_link_are_woken() {
    let mut fabric = Fabric::new();

    fabric.connect((A, 0), (B, 0), LinkSpec::default()).unwrap();

    assert_eq!([fabric.pop_woken(), fabric.pop_woken(), fabric.pop_woken()], [Some(A), Some(B), None]);
}

#[test]
fn a_link_that_is_down_takes_nothing_and_delivers_what_it_has() {
    let (mut fabric, link) =
        pair(LinkSpec { delay: 10, bits_per_second: 0, credits: vec![4], ..LinkSpec::default() });
    send(&mut fabric, 0, 0, 1);
    fabric.set_link_up(link, false).unwrap();

    assert!(!send(&mut fabric, 0, 0, 2));
    assert_eq!(fabric.ports(A, Nanos(0)).credits(0, 0), 0);
    assert_eq!(receive(&mut fabric, 10, 0), Some(1));

    while fabric.pop_woken().is_some() {}
    fabric.set_link_up(link, true).unwrap();
    assert_eq!(fabric.pop_woken(), Some(A));
    assert!(send(&mut fabric, 11, 0, 2));
}

#[test]
fn a_corrupt_packet_costs_another_transmission_and_a_round_trip() {
    let (mut fabric, link) = pair(LinkSpec {
        delay: 100,
        bits_per_second: 1_000_000_000,
        credits: vec![4],
        ..LinkSpec::default()
    });
    let hook = Box::new(|_: &mut Packet, number| if number == 0 { Fault::Corrupt } else { Fault::None });
    fabric.set_fault(link, Direction::Forward, Some(hook)).unwrap();

    send(&mut fabric, 0, 0, 1);

    let arrival = 2048 + 200 + 2048 + 100;

    assert_eq!(receive(&mut fabric, arrival - 1, 0), None);
    assert_eq!(receive(&mut fabric, arrival, 0), Some(1));
    assert_eq!(fabric.link_stats(link, Direction::Forward, 0).unwrap().retransmissions, 1);
}

#[test]
fn a_hook_that_always_corrupts_slows_the_link_down_only() {
    let (mut fabric, link) = pair(LinkSpec::default());
    fabric.set_fault(link, Direction::Forward, Some(Box::new(|_, _| Fault::Corrupt))).unwrap();

    assert!(send(&mut fabric, 0, 0, 1));

    assert_eq!(receive(&mut fabric, 0, 0), Some(1));

    let retries = fabric.link_stats(link, Direction::Forward, 0).unwrap().retransmissions;
    assert_eq!(retries, u64::from(MAX_RETRIES));
}

#[test]
fn a_delayed_packet_is_not_overtaken_in_its_channel() {
    let (mut fabric, link) =
        pair(LinkSpec { delay: 1, bits_per_second: 0, credits: vec![4, 4], ..LinkSpec::default() });
    let hook = Box::new(|_: &mut Packet, number| if number == 0 { Fault::Delay(500) } else { Fault::None });
    fabric.set_fault(link, Direction::Forward, Some(hook)).unwrap();
    for (channel, number) in [(0, 1), (0, 2), (1, 3)] {
        send(&mut fabric, 0, channel, number);
    }

    assert_eq!(receive(&mut fabric, 500, 0), None);
    assert_eq!(receive(&mut fabric, 500, 1), Some(3));
    assert_eq!(receive(&mut fabric, 501, 0), Some(1));
    assert_eq!(receive(&mut fabric, 501, 0), Some(2));
}

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
fn packets_of_a_former_size_make_room_when_they_come_back() {
    let mut fabric = Fabric::new();
    fabric.set_pool_bound(1);
    let old = fabric.ports(A, Nanos(0)).new_packet(4).unwrap();
    fabric.add_packet_size(64).unwrap();
    let mut ports = fabric.ports(A, Nanos(0));

    assert_eq!(ports.new_packet(64).err(), Some(Refusal::PoolEmpty));

    ports.recycle(old);

    assert_eq!(ports.new_packet(64).map(|packet| packet.len()), Ok(64));
    assert_eq!(fabric.packets_in_use(), 1);
}

/// Connects ports of A and B by links with these longest packets.
fn links_of(sizes: &[usize]) -> Fabric {
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

        assert_eq!(forwarded, Some((1, true)), "delay {delay}");
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

#[test]
fn changes_of_links_are_named_once_even_for_a_polled_function() {
    let named = |fabric: &mut Fabric| {
        let mut named = Vec::new();
        fabric.take_woken(|function, changed| named.push((function, changed)));
        named
    };
    let mut fabric = links_of(&[64, 64]);
    assert_eq!(named(&mut fabric), [(A, 0b11), (B, 0b11)]);

    // The functions are polled from here on, and no packet names them.
    assert!(fabric.ports(A, Nanos(0)).run(1, 0).unwrap().send(&[1], |_| {}).is_ok());
    assert_eq!(named(&mut fabric), []);
    fabric.set_link_up(LinkId(1), false).unwrap();
    fabric.set_link_up(LinkId(1), true).unwrap();
    fabric.set_link_up(LinkId(0), false).unwrap();
    assert_eq!(named(&mut fabric), [(A, 0b11), (B, 0b11)]);
    fabric.set_link_up(LinkId(0), false).unwrap();
    assert_eq!(named(&mut fabric), [], "it was down");
}

#[test]
fn invalid_links_are_refused() {
    let (mut fabric, _) = pair(LinkSpec::default());
    let with = |credits: Vec<u32>| LinkSpec { credits, ..LinkSpec::default() };

    let taken = fabric.connect((A, 0), (B, 1), LinkSpec::default());
    let itself = fabric.connect((A, 1), (A, 1), LinkSpec::default());
    let port = fabric.connect((A, 64), (B, 1), LinkSpec::default());
    let function = fabric.connect((FunctionId(1 << 16), 0), (B, 1), LinkSpec::default());

    assert_eq!(taken, Err(FabricError::PortTaken { function: A, port: 0 }));
    assert_eq!(itself, Err(FabricError::PortTaken { function: A, port: 1 }));
    assert_eq!(port, Err(FabricError::PortOutOfRange { function: A, port: 64 }));
    assert_eq!(function, Err(FabricError::FunctionOutOfRange { function: FunctionId(1 << 16) }));
    for bytes in [0, MAX_PACKET + 1] {
        let size = fabric.connect((A, 1), (B, 1), LinkSpec { max_packet: bytes, ..LinkSpec::default() });
        assert_eq!(size, Err(FabricError::PacketSize { bytes }));
        assert_eq!(fabric.add_packet_size(bytes), Err(FabricError::PacketSize { bytes }));
    }
    assert_eq!(fabric.connect((A, 1), (B, 1), with(vec![])), Err(FabricError::Channels { count: 0 }));
    assert_eq!(fabric.connect((A, 1), (B, 1), with(vec![1; 17])), Err(FabricError::Channels { count: 17 }));
    assert_eq!(fabric.connect((A, 1), (B, 1), with(vec![1, 0])), Err(FabricError::Credits { credits: 0 }));
    assert_eq!(
        fabric.link_stats(LinkId(1), Direction::Forward, 0),
        Err(FabricError::NoLink { link: LinkId(1) })
    );
    assert_eq!(fabric.links(), 1);
    assert_eq!(fabric.link_ends(LinkId(0)), Ok([(A, 0), (B, 0)]));
}

#[test]
fn ports_that_do_not_exist_take_and_give_nothing() {
    let (mut fabric, _) = pair(LinkSpec::default());
    let mut ports = fabric.ports(FunctionId(9), Nanos(0));
    let packet = ports.new_packet(1).unwrap();

    assert_eq!(ports.count(), 0);
    assert!(ports.send(0, 0, packet).is_err());
    assert!(ports.peek(0, 0).is_none());

    let mut ports = fabric.ports(A, Nanos(0));
    assert_eq!((ports.count(), ports.connected(0), ports.connected(1)), (1, true, false));
    assert_eq!(ports.credits(0, 2), 0);
    assert!(ports.take(0, 2).is_none());
}

fn members(count: u32) -> Fabric {
    let mut fabric = Fabric::new();
    for function in 0..count {
        fabric.ports(FunctionId(function), Nanos(0)).join_wire(0, true);
    }
    while fabric.pop_woken().is_some() {}
    fabric
}

#[test]
fn the_and_of_a_wire_rises_when_the_last_member_fires_and_falls_for_all() {
    let mut fabric = members(3);
    for function in 0..3 {
        assert_eq!(fabric.ports(A, Nanos(0)).wire(0).and_rises, 0);
        fabric.ports(FunctionId(function), Nanos(0)).fire_wire(0, Combine::And);
    }

    let state = fabric.ports(A, Nanos(0)).wire(0);

    assert_eq!(state, WireState { and: false, or: false, and_rises: 1, or_rises: 1 });
    assert_eq!((0..4).filter_map(|_| fabric.pop_woken()).count(), 3);
}

#[test]
fn members_see_a_wire_after_its_delay() {
    let mut fabric = members(2);
    fabric.set_wire_delay(1300);
    fabric.ports(A, Nanos(0)).drive_wire(0, true);
    fabric.ports(B, Nanos(100)).drive_wire(0, true);

    fabric.advance(Nanos(1299));

    assert_eq!(fabric.ports(A, Nanos(1299)).wire(0), WireState::default());

    fabric.advance(Nanos(1300));
    assert!(fabric.ports(A, Nanos(1300)).wire(0).or);
    assert!(!fabric.ports(A, Nanos(1300)).wire(0).and);

    fabric.advance(Nanos(1400));

    assert!(fabric.ports(A, Nanos(1400)).wire(0).and);
    assert_eq!(fabric.next_event(), Nanos::NEVER);
}

#[test]
fn a_barrier_does_not_wait_for_a_former_member() {
    let mut fabric = members(2);
    fabric.ports(A, Nanos(0)).fire_wire(0, Combine::And);

    fabric.ports(B, Nanos(0)).join_wire(0, false);

    assert_eq!(fabric.ports(A, Nanos(0)).wire(0).and_rises, 1);

    fabric.ports(B, Nanos(0)).drive_wire(0, true);
    assert!(!fabric.ports(A, Nanos(0)).wire(0).or);
}

/// A step of the property test.
#[derive(Clone, Copy, Debug)]
enum Action {
    Send(usize),
    Receive(usize),
    /// Packets to send in one run, if the lane permits a run.
    SendRun(usize, u32),
    /// Packets to take in one run, at most. The run looks at one more.
    ReceiveRun(usize, u32),
    Wait(u64),
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        4 => (0usize..2).prop_map(Action::Send),
        4 => (0usize..2).prop_map(Action::Receive),
        2 => (0usize..2, 1u32..8).prop_map(|(channel, most)| Action::SendRun(channel, most)),
        2 => (0usize..2, 1u32..8).prop_map(|(channel, most)| Action::ReceiveRun(channel, most)),
        1 => (0u64..2000).prop_map(Action::Wait),
    ];

    prop::collection::vec(action, 1..400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn packets_keep_their_order_and_number_under_random_operations(
        actions in actions(),
        delay in prop_oneof![Just(0u64), 1u64..500],
        rate in prop_oneof![Just(0u64), Just(1_000_000_000u64), Just(6_800_000_000)],
        credits in prop::collection::vec(1u32..9, 2),
        faults in prop::option::of(prop::collection::vec(0u8..6, 1..20)),
    ) {
        let (mut fabric, link) = pair(LinkSpec { delay, bits_per_second: rate, credits: credits.clone(), ..LinkSpec::default() });
        if let Some(faults) = faults {
            let hook = Box::new(move |_: &mut Packet, number: u64| match faults[number as usize % faults.len()] {
                0 => Fault::Corrupt,
                1 => Fault::Delay(number % 700),
                _ => Fault::None,
            });
            fabric.set_fault(link, Direction::Forward, Some(hook)).unwrap();
        }

        let (mut now, mut sent, mut received) = (0, [0u64; 2], [0u64; 2]);
        for action in actions {
            match action {
                Action::Send(channel) => sent[channel] += u64::from(send(&mut fabric, now, channel, sent[channel])),
                Action::Receive(channel) => {
                    if let Some(number) = receive(&mut fabric, now, channel) {
                        prop_assert_eq!(number, received[channel]);
                        received[channel] += 1;
                    }
                }
                Action::SendRun(channel, most) => {
                    let mut ports = fabric.ports(A, Nanos(now));
                    let credits = ports.credits(0, channel);
                    if let Some(mut run) = ports.run(0, channel) {
                        let first = sent[channel];
                        for _ in 0..most {
                            let number = sent[channel];
                            let went = run.send(&number.to_le_bytes(), |packet| packet.header = number);
                            sent[channel] += u64::from(went.is_ok());
                        }
                        prop_assert_eq!(sent[channel] - first, u64::from(most.min(credits)));
                    }
                }
                Action::ReceiveRun(channel, most) => {
                    fabric.advance(Nanos(now));
                    let mut ports = fabric.ports(B, Nanos(now));
                    let mut run = ports.take_run(0, channel, u32::MAX).unwrap();
                    while let Some(packet) = run.front() {
                        prop_assert_eq!(packet.header, received[channel]);
                        if run.taken() == most {
                            break;
                        }
                        run.pass();
                        received[channel] += 1;
                    }
                }
                Action::Wait(time) => {
                    now += time;
                    fabric.advance(Nanos(now));
                }
            }
            for channel in 0..2 {
                prop_assert!(sent[channel] - received[channel] <= u64::from(credits[channel]));
            }
        }

        // At the end every packet arrives, and every credit returns.
        while fabric.next_event() != Nanos::NEVER {
            now = fabric.next_event().0;
            fabric.advance(Nanos(now));
        }

        for (channel, received) in received.iter_mut().enumerate() {
            while let Some(number) = receive(&mut fabric, now, channel) {
                prop_assert_eq!(number, *received);
                *received += 1;
            }
        }

        prop_assert_eq!(sent, received);

        while fabric.next_event() != Nanos::NEVER {
            now = fabric.next_event().0;
            fabric.advance(Nanos(now));
        }

        let ports = fabric.ports(A, Nanos(now));

        prop_assert_eq!([ports.credits(0, 0), ports.credits(0, 1)], [credits[0], credits[1]]);
        prop_assert_eq!(fabric.packets_in_use(), 0);
    }
}
