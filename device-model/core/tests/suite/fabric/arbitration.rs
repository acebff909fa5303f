//! Tests of senders that wait for an idle wire, and of the order of events.

use nicforge_core::{
    fabric::{Direction, Fault, LinkSpec},
    time::Nanos,
};

use super::*;

/// Returns a link without delay, with two virtual channels.
fn link(bits_per_second: u64) -> LinkSpec {
    LinkSpec { bits_per_second, ..LinkSpec::new(2, 1000, 512) }
}

#[test]
fn a_sender_that_asks_is_woken_when_the_wire_falls_idle() {
    let (mut fabric, _) = pair(link(BYTE_A_NANOSECOND));
    assert!(ports(&mut fabric, A, 5).request_wire(0));
    send(&mut fabric, 5, 0, (100, 0)).unwrap();

    let mut a = ports(&mut fabric, A, 6);
    assert!(!a.request_wire(0) && !a.request_wire(0));
    assert_eq!(a.wire_idle_at(0), Nanos(105));

    fabric.advance(Nanos(104));
    assert_eq!(woken(&mut fabric), []);
    fabric.advance(Nanos(105));
    assert_eq!(woken(&mut fabric), [B, A]);
    assert!(ports(&mut fabric, A, 105).request_wire(0));
}

#[test]
fn ports_are_freed_by_their_wire_and_by_their_credits() {
    let spec = LinkSpec { delay: 20, ..LinkSpec::new(1, 2, 512) };
    let (mut fabric, link) = pair(LinkSpec { bits_per_second: BYTE_A_NANOSECOND, ..spec });
    // Returns the ports that were freed since the last call, one bit for each.
    let freed = |fabric: &mut Fabric, now: u64| {
        fabric.advance(Nanos(now));
        ports(fabric, A, now).take_freed()
    };
    freed(&mut fabric, 0);

    send(&mut fabric, 0, 0, (100, 0)).unwrap();
    assert_eq!(ports(&mut fabric, A, 0).await_wire(0), Nanos(100));
    let by_wire = [99, 100, 100].map(|now| freed(&mut fabric, now));

    send(&mut fabric, 100, 0, (100, 1)).unwrap();
    assert!(!ports(&mut fabric, A, 100).request_credits(0, 0, 2));
    assert_eq!(take(&mut fabric, B, 220, 0), Some(0));
    let by_first_credit = [239, 240, 240].map(|now| freed(&mut fabric, now));
    assert_eq!(take(&mut fabric, B, 240, 0), Some(1));
    let by_second_credit = [259, 260, 260].map(|now| freed(&mut fabric, now));

    fabric.set_link_up(link, false).unwrap();
    let by_link = freed(&mut fabric, 300);

    assert_eq!((by_wire, by_first_credit), ([0, 1, 0], [0, 1, 0]));
    assert_eq!((by_second_credit, by_link), ([0, 1, 0], 1));
}

#[test]
fn a_sender_chooses_among_its_channels_when_the_wire_falls_idle() {
    let (mut fabric, _) = pair(link(BYTE_A_NANOSECOND));
    send(&mut fabric, 0, 0, (100, 1)).unwrap();
    assert!(!ports(&mut fabric, A, 10).request_wire(0), "a packet of channel 0 waits");

    // A packet of channel 1 comes while the wire is busy, and is sent first.
    fabric.advance(Nanos(100));
    assert!(ports(&mut fabric, A, 100).request_wire(0));
    send(&mut fabric, 100, 1, (100, 2)).unwrap();

    assert_eq!(take(&mut fabric, B, 200, 1), Some(2));
}

#[test]
fn a_wire_that_is_booked_again_wakes_its_sender_later() {
    let (mut fabric, _) = pair(link(BYTE_A_NANOSECOND));
    send(&mut fabric, 0, 0, (100, 0)).unwrap();
    assert!(!ports(&mut fabric, A, 0).request_wire(0));
    send(&mut fabric, 50, 0, (100, 1)).unwrap();

    fabric.advance(Nanos(199));
    assert_eq!(woken(&mut fabric), [B]);
    fabric.advance(Nanos(200));
    assert_eq!(woken(&mut fabric), [B, A]);
}

#[test]
fn fractions_of_a_nanosecond_add_up_for_a_sender_that_waits() {
    // 260 bytes at 6.8 Gb/s: 305.88 ns.
    let (mut fabric, _) = pair(link(6_800_000_000));
    let mut now = 0;
    for number in 0..1000 {
        while !ports(&mut fabric, A, now).request_wire(0) {
            now = fabric.next_event().0;
        }
        send(&mut fabric, now, 0, (260, number)).unwrap();
    }

    // The last packet arrives a fraction of a nanosecond after 305,882.
    fabric.advance(Nanos(305_882));
    let mut arrived = ports(&mut fabric, B, 305_882);
    assert_eq!(arrived.take_while(0, 0, 2000, |_| true), 999);
    assert_eq!(take(&mut fabric, B, 305_883, 0), Some(999));
}

#[test]
fn a_wire_of_infinite_bandwidth_is_always_idle() {
    let (mut fabric, _) = pair(link(0));
    for number in 0..3 {
        assert!(ports(&mut fabric, A, 0).request_wire(0));
        send(&mut fabric, 0, 0, (100, number)).unwrap();
    }

    let mut a = ports(&mut fabric, A, 0);
    assert_eq!((a.wire_idle_at(0), a.wire_idle_at(1)), (Nanos(0), Nanos::NEVER));
    assert!(!a.request_wire(1), "there is no link");
}

#[test]
fn a_wire_is_idle_after_the_repetition_of_a_corrupt_packet() {
    let (mut fabric, id) = pair(LinkSpec { delay: 10, ..link(BYTE_A_NANOSECOND) });
    let hook = Box::new(|_: &mut _, number| if number == 0 { Fault::Corrupt } else { Fault::None });
    fabric.set_fault(id, Direction::Forward, Some(hook)).unwrap();
    send(&mut fabric, 0, 0, (100, 0)).unwrap();

    assert_eq!(ports(&mut fabric, A, 0).wire_idle_at(0), Nanos(100 + 20 + 100));
}

#[test]
fn events_of_one_time_are_in_the_order_of_their_lanes() {
    for ports_in_order in [[0, 1], [1, 0]] {
        let mut fabric = Fabric::new();
        let spec = LinkSpec { delay: 10, ..LinkSpec::default() };
        fabric.connect((A, 0), (B, 0), spec.clone()).unwrap();
        fabric.connect((A, 1), (C, 0), spec).unwrap();
        woken(&mut fabric);

        for port in ports_in_order {
            let mut a = fabric.ports(A, Nanos(0));
            let packet = a.new_packet(8).unwrap();
            a.send(port, 0, packet).unwrap();
        }
        fabric.advance(Nanos(10));

        assert_eq!(woken(&mut fabric), [B, C], "sent to ports {ports_in_order:?}");
    }
}
