//! Tests of links that cut through, and of forwarding.

use nicforge_core::{
    fabric::{FabricError, ForwardedRow, LinkSpec, Packet, PortChannel},
    time::Nanos,
};
use proptest::prelude::*;

use super::*;

/// Returns a link of 100 ns with one channel of 4 packets. A packet may be forwarded after `head`
/// bytes.
fn link(bits_per_second: u64, head: Option<u32>) -> LinkSpec {
    LinkSpec { delay: 100, bits_per_second, cut_through: head, ..LinkSpec::new(1, 4, 1024) }
}

#[test]
fn a_router_sees_the_head_and_a_device_only_the_whole_packet() {
    let (mut fabric, _) = pair(link(BYTE_A_NANOSECOND, Some(32)));
    send(&mut fabric, 0, 0, (512, 7)).unwrap();

    assert_eq!(fabric.next_event(), Nanos(132));
    let mut at_head = ports(&mut fabric, B, 132);
    assert_eq!((at_head.heads(0), at_head.arrived(0)), (1, 0));
    assert_eq!(at_head.peek_head(0, 0).map(|packet| packet.header), Some(7));
    assert_eq!(at_head.tail_due(0, 0), Some(Nanos(612)));
    assert!(at_head.peek(0, 0).is_none() && at_head.take(0, 0).is_none());
    assert_eq!(at_head.take_while(0, 0, 9, |_| true), 0);
    assert_eq!(woken(&mut fabric), [B]);

    assert_eq!(take(&mut fabric, B, 611, 0), None);
    let whole = ports(&mut fabric, B, 612);
    assert_eq!((whole.heads(0), whole.arrived(0), whole.tail_due(0, 0)), (0, 1, None));
    assert!(whole.peek(0, 0).is_some() && whole.peek_head(0, 0).is_some());
    assert_eq!(woken(&mut fabric), [B], "a device waits for the tail");
    assert_eq!(take(&mut fabric, B, 612, 0), Some(7));
    finish(&mut fabric, 612);
    assert_eq!(fabric.ports(A, Nanos(712)).credits(0, 0), 4);
}

/// Sends 512 bytes from A over a link of 1 ns a byte with a head of 32 bytes, and forwards them at
/// `now` over `second`. Returns the times at which the head arrives at C, the tail arrives at C,
/// and A has its credit back.
fn forward_at(second: LinkSpec, now: u64) -> [u64; 3] {
    let mut fabric = row(link(BYTE_A_NANOSECOND, Some(32)), second);
    send(&mut fabric, 0, 0, (512, 7)).unwrap();
    assert!(ports(&mut fabric, B, now).forward(0, 1, 0));
    assert_eq!(ports(&mut fabric, B, now).heads(0), 0);

    let mut times = [None; 3];
    for now in now.. {
        let c = ports(&mut fabric, C, now);
        let arrived = [c.peek_head(0, 0).is_some(), c.peek(0, 0).is_some()];
        let has_credit = fabric.ports(A, Nanos(now)).credits(0, 0) == 4;
        for (time, has_occurred) in times.iter_mut().zip([arrived[0], arrived[1], has_credit]) {
            if has_occurred && time.is_none() {
                *time = Some(now);
            }
        }
        if times.iter().all(Option::is_some) {
            break;
        }
        assert!(now < 10_000, "{times:?}");
    }

    let b = ports(&mut fabric, B, 20_000);
    assert!(b.arrived(0) == 0 && b.peek_head(0, 0).is_none(), "the tail of a packet that has gone");
    assert_eq!(take(&mut fabric, C, 20_000, 0), Some(7));
    assert_eq!(fabric.packets_in_use(), 0);

    times.map(Option::unwrap)
}

#[test]
fn a_transmission_does_not_end_before_the_tail_has_come_in() {
    let rate = BYTE_A_NANOSECOND;

    // The head is at B at 132, and the tail at 612.
    let same = forward_at(link(rate, Some(32)), 132);
    let faster = forward_at(link(2 * rate, Some(32)), 132);
    let slower = forward_at(link(rate / 2, Some(32)), 132);
    let infinite = forward_at(link(0, Some(32)), 132);
    let longer_head = forward_at(link(2 * rate, Some(128)), 132);
    let store_and_forward = forward_at(link(2 * rate, None), 132);
    let late = forward_at(link(rate, Some(32)), 1000);
    let at_once = forward_at(LinkSpec { delay: 0, ..link(0, None) }, 132);

    assert_eq!(same, [132 + 32 + 100, 132 + 512 + 100, 132 + 512 + 100]);
    assert_eq!(faster, [132 + 16 + 100, 612 + 100, 612 + 100]);
    assert_eq!(slower, [132 + 64 + 100, 132 + 1024 + 100, 132 + 1024 + 100]);
    assert_eq!(infinite, [132 + 100, 612 + 100, 612 + 100]);
    assert_eq!(longer_head, [100 + 128 + 100, 612 + 100, 612 + 100], "byte 128 is at B at 228");
    assert_eq!(store_and_forward, [612 + 100, 612 + 100, 612 + 100]);
    assert_eq!(late, [1000 + 32 + 100, 1000 + 512 + 100, 1000 + 512 + 100]);
    assert_eq!(at_once, [612, 612, 612 + 100]);
}

#[test]
fn a_packet_shorter_than_the_head_arrives_as_a_whole() {
    let (mut fabric, _) = pair(link(BYTE_A_NANOSECOND, Some(64)));
    send(&mut fabric, 0, 0, (64, 1)).unwrap();

    assert_eq!(fabric.next_event(), Nanos(164));
    let at_tail = ports(&mut fabric, B, 164);
    assert_eq!((at_tail.heads(0), at_tail.arrived(0)), (0, 1));
}

#[test]
fn packets_of_one_channel_leave_on_another() {
    let specs = [
        LinkSpec::default(),
        LinkSpec { delay: 7, ..LinkSpec::default() },
        LinkSpec { bits_per_second: BYTE_A_NANOSECOND, cut_through: Some(8), ..LinkSpec::default() },
    ];
    let [from, to] = [(0, 0), (1, 1)].map(|(port, channel)| PortChannel { port, channel });
    for spec in specs {
        let mut fabric = row(spec.clone(), spec.clone());
        for number in 0..4 {
            send(&mut fabric, 0, 0, (64, number)).unwrap();
        }

        let mut b = ports(&mut fabric, B, 1000);
        assert!(b.forward_between(from, to), "{spec:?}");
        let route = |_: &Packet| Some((to, |packet: &Packet| packet.header < 3));
        assert_eq!(
            b.forward_row_between(from, 9, route),
            Some(ForwardedRow { moved: 2, has_more: true }),
            "{spec:?}"
        );
        let missing_channel = PortChannel { channel: 2, ..to };
        assert!(!b.forward_between(from, missing_channel), "there is no such channel");

        let numbers = [(); 4].map(|()| take(&mut fabric, C, 2000, 1));
        assert_eq!(numbers, [Some(0), Some(1), Some(2), None], "{spec:?}");
        assert_eq!(take(&mut fabric, C, 2000, 0), None);
        finish(&mut fabric, 2000);
        assert_eq!(fabric.ports(A, Nanos(9000)).credits(0, 0), 3);
        assert_eq!(fabric.ports(B, Nanos(9000)).credits(1, 1), 4);
    }
}

#[test]
fn arrivals_after_a_waiting_packet_wake_the_router_only_once_that_is_forwarded() {
    let mut fabric = row(link(BYTE_A_NANOSECOND, Some(32)), link(BYTE_A_NANOSECOND, Some(32)));
    for number in 0..3 {
        send(&mut fabric, 0, 0, (512, number)).unwrap();
    }

    // Heads arrive at 132, 644 and 1156, tails at 612, 1124 and 1636.
    let first = ports(&mut fabric, B, 132).route_head(0, 0).map(|packet| packet.header);
    let at_first_head = woken(&mut fabric);
    let mut b = ports(&mut fabric, B, 1124);
    let while_it_waits = (b.arrived(0), b.heads(0));
    assert!(b.forward(0, 1, 0));
    let behind = (b.arrived(0), b.heads(0));
    let at_tail = woken(&mut fabric);
    assert!(ports(&mut fabric, B, 1124).forward(0, 1, 0));
    fabric.advance(Nanos(1156));
    let at_next_head = woken(&mut fabric);

    assert_eq!((first, at_first_head, at_tail), (Some(0), vec![B], vec![]));
    assert_eq!((while_it_waits, behind), ((0, 1), (0, 1)));
    assert_eq!(at_next_head, [B]);
}

#[test]
fn a_router_that_awaits_a_tail_is_woken_when_it_arrives() {
    let mut fabric = row(link(BYTE_A_NANOSECOND, Some(32)), link(BYTE_A_NANOSECOND, Some(32)));
    for number in 0..3 {
        send(&mut fabric, 0, 0, (512, number)).unwrap();
    }

    let mut b = ports(&mut fabric, B, 132);
    assert!(b.route_head(0, 0).is_some() && !b.await_tail(0, 0));
    let at_head = woken(&mut fabric);
    let mut b = ports(&mut fabric, B, 611);
    assert!(b.take(0, 0).is_none() && b.tail_due(0, 0) == Some(Nanos(612)));
    fabric.advance(Nanos(612));
    let at_tail = woken(&mut fabric);
    assert_eq!(take(&mut fabric, B, 612, 0), Some(0));

    // The second packet is there as a whole when the router asks for its tail.
    let mut b = ports(&mut fabric, B, 1124);
    assert!(b.peek_head(0, 0).is_some() && b.peek(0, 0).is_none());
    assert!(b.await_tail(0, 0) && b.arrived(0) == 1);
    assert_eq!(take(&mut fabric, B, 1124, 0), Some(1));
    assert_eq!((at_head, at_tail), (vec![B], vec![B]));
}

#[test]
fn a_cut_through_after_no_bytes_is_refused() {
    let refused = Fabric::new().connect((A, 0), (B, 0), link(0, Some(0)));
    assert_eq!(refused, Err(FabricError::CutThrough));
}

/// Links with one virtual channel.
fn links() -> impl Strategy<Value = LinkSpec> {
    let rates = prop_oneof![Just(0), Just(1_000_000_000), Just(6_800_000_000), Just(BYTE_A_NANOSECOND)];
    let heads = prop::option::of(1u32..300);
    (0u64..300, rates, heads, 1u32..5).prop_map(|(delay, bits_per_second, cut_through, credits)| LinkSpec {
        delay,
        bits_per_second,
        cut_through,
        ..LinkSpec::new(1, credits, 256)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// A sends, B forwards and C takes whenever they can, at random times.
    #[test]
    fn forwarded_packets_keep_their_order_and_number(
        first in links(),
        second in links(),
        lengths in prop::collection::vec(1usize..256, 1..40),
        waits in prop::collection::vec(0u64..400, 1..40),
    ) {
        let credits = [first.credits[0], second.credits[0]];
        let mut fabric = row(first, second);
        let (mut now, mut sent, mut received) = (0, 0, 0);
        for iteration in 0.. {
            if sent < lengths.len() && send(&mut fabric, now, 0, (lengths[sent], sent as u64)).is_ok() {
                sent += 1;
            }

            let tail = ports(&mut fabric, B, now).tail_due(0, 0);
            prop_assert!(tail.is_none_or(|tail| tail > Nanos(now)));
            while ports(&mut fabric, B, now).forward(0, 1, 0) {}
            while let Some(number) = take(&mut fabric, C, now, 0) {
                prop_assert_eq!(number, received);
                received += 1;
            }

            if received == lengths.len() as u64 {
                break;
            }
            now += waits[iteration % waits.len()].max(1);
            // The slowest case takes an iteration for each nanosecond of 39 packets of 255 bytes at
            // 8 ns a byte.
            prop_assert!(iteration < 100_000, "sent {}, received {}", sent, received);
        }

        now = finish(&mut fabric, now) + LONGEST_DELAY;
        prop_assert_eq!(ports(&mut fabric, A, now).credits(0, 0), credits[0]);
        prop_assert_eq!(ports(&mut fabric, B, now).credits(1, 0), credits[1]);
        prop_assert_eq!(ports(&mut fabric, B, now).heads(0) | ports(&mut fabric, C, now).heads(0), 0);
        prop_assert_eq!(fabric.packets_in_use(), 0);
    }
}
