//! Tests of credits that count bytes, and of the wake-up at a number of credits.

use nicforge_core::{
    fabric::{CreditUnit, Direction, FabricError, LinkSpec, MAX_PACKET},
    time::Nanos,
};

use super::*;

/// Returns a link with one channel of 20 credits of 32 bytes.
fn link(delay: u64) -> LinkSpec {
    LinkSpec { delay, credit_unit: CreditUnit::Bytes(32), ..LinkSpec::new(1, 20, 544) }
}

#[test]
fn a_packet_takes_the_credits_of_its_bytes() {
    for (bytes, framing, credits) in [(0, 0, 1), (1, 0, 1), (32, 0, 1), (33, 0, 2), (30, 3, 2), (544, 0, 17)]
    {
        let (mut fabric, _) = pair(link(0));
        let mut ports = fabric.ports(A, Nanos(0));
        let mut packet = ports.new_packet(bytes).unwrap();
        packet.framing = framing;

        assert_eq!(ports.credits_for(0, 0, &packet), credits);
        ports.send(0, 0, packet).unwrap();

        assert_eq!((ports.credits(0, 0), ports.credit_limit(0, 0)), (20 - credits, 20), "{bytes} bytes");
        assert_eq!(take(&mut fabric, B, 0, 0), Some(0));
        assert_eq!(fabric.ports(A, Nanos(0)).credits(0, 0), 20);
    }
}

#[test]
fn a_refused_packet_wakes_its_sender_when_it_has_room() {
    let (mut fabric, link) = pair(link(10));
    for number in 0..5 {
        send(&mut fabric, 0, 0, (100, number)).unwrap();
    }
    assert_eq!(send(&mut fabric, 0, 0, (300, 5)), Err(Refusal::NoCredit));

    // The packet needs 10 credits, and each of those that are taken returns 4.
    for number in 0..3 {
        assert_eq!(take(&mut fabric, B, 10 + number, 0), Some(number));
    }
    woken(&mut fabric);
    let mut wakes = vec![];
    for now in 13..30 {
        fabric.advance(Nanos(now));
        wakes.extend(woken(&mut fabric).iter().map(|&function| (function, now)));
    }

    assert_eq!(wakes, [(A, 20), (A, 22)], "at the first credits, and when there are enough");
    send(&mut fabric, 30, 0, (300, 5)).unwrap();
    assert_eq!(fabric.link_stats(link, Direction::Forward, 0).unwrap().stalls, 1);
}

#[test]
fn credits_of_bytes_return_together_after_a_run() {
    for delay in [0, 10] {
        let (mut fabric, _) = pair(link(delay));
        for number in 0..4 {
            send(&mut fabric, 0, 0, (70, number)).unwrap();
        }
        assert!(fabric.ports(A, Nanos(0)).run(0, 0).is_none(), "packets go one by one");

        assert_eq!(ports(&mut fabric, B, delay).take_while(0, 0, 3, |_| true), 3);
        assert_eq!(ports(&mut fabric, A, 2 * delay).credits(0, 0), 20 - 3);
    }
}

#[test]
fn a_packet_longer_than_the_channel_is_refused() {
    let spec = LinkSpec { credit_unit: CreditUnit::Bytes(32), ..LinkSpec::new(1, 2, 64) };
    let (mut fabric, _) = pair(spec);
    let mut ports = fabric.ports(A, Nanos(0));
    let mut packet = ports.new_packet(64).unwrap();
    packet.framing = 1;

    let unsent = ports.send(0, 0, packet).unwrap_err();

    assert_eq!(unsent.reason, Refusal::TooLong { longest: 64 });
    ports.recycle(unsent.packet);
}

#[test]
fn units_that_no_packet_fits_are_refused() {
    let connect = |unit, credits| {
        let spec = LinkSpec { credit_unit: CreditUnit::Bytes(unit), ..LinkSpec::new(1, credits, 544) };
        Fabric::new().connect((A, 0), (B, 0), spec).map(drop)
    };

    assert_eq!(connect(32, 17), Ok(()));
    assert_eq!(connect(32, 16), Err(FabricError::FewCredits { credits: 16, longest: 544, needed: 17 }));
    for bytes in [0, MAX_PACKET as u32 + 1] {
        assert_eq!(connect(bytes, 4096), Err(FabricError::CreditUnit { bytes }));
    }
}

#[test]
fn a_sender_that_needs_two_credits_is_woken_at_the_second() {
    for delay in [0, 10] {
        let (mut fabric, _) = pair(LinkSpec { delay, ..LinkSpec::new(1, 3, 64) });
        for number in 0..3 {
            send(&mut fabric, 0, 0, (8, number)).unwrap();
        }
        assert!(!fabric.ports(A, Nanos(0)).request_credits(0, 0, 2));
        assert!(!fabric.ports(A, Nanos(0)).request_credits(0, 0, 9), "it never has so many");

        let mut wakes = vec![];
        for (now, number) in [(100, 0), (200, 1), (300, 2)] {
            assert_eq!(take(&mut fabric, B, now, 0), Some(number));
            fabric.advance(Nanos(now + delay));
            wakes.push(woken(&mut fabric).contains(&A));
        }

        assert_eq!(wakes, [true, true, false], "delay {delay}: from none to one, and at two");
        assert!(fabric.ports(A, Nanos(400)).request_credits(0, 0, 2));
    }
}

#[test]
fn a_credit_returns_when_the_packet_has_left_the_router() {
    let first = LinkSpec { delay: 10, ..LinkSpec::new(1, 1, 512) };
    let second = LinkSpec { delay: 0, bits_per_second: BYTE_A_NANOSECOND, ..LinkSpec::new(1, 4, 512) };
    let mut fabric = row(first, second);
    send(&mut fabric, 0, 0, (500, 0)).unwrap();

    assert!(ports(&mut fabric, B, 10).forward(0, 1, 0));

    assert_eq!(ports(&mut fabric, A, 519).credits(0, 0), 0);
    assert_eq!(ports(&mut fabric, A, 520).credits(0, 0), 1, "500 ns on the wire, and the delay back");
}
