//! Packets that go in rows and runs, and polling.

use super::*;

/// Returns A, B and C connected in a row by links of `spec`. B has A at port 0 and C at port 1.
pub(super) fn row(spec: &LinkSpec) -> (Fabric, LinkId) {
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
    let moved = forwarded.map_or(0, |row| row.moved);
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

    assert_eq!(
        fabric.ports(B, Nanos(0)).forward_row(0, 0, 8, way),
        Some(ForwardedRow { moved: 4, has_more: false })
    );

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
        run.recycle_front();
    }

    assert!(run.front().is_none(), "the limit");

    run.recycle_front();
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

        assert_eq!(
            fabric.ports(B, late).forward_row(0, 0, 8, alike),
            Some(ForwardedRow { moved: 2, has_more: true }),
            "{spec:?}"
        );
        assert_eq!(fabric.ports(B, late).forward_row(0, 0, 8, |_| None::<(u8, fn(&Packet) -> bool)>), None);
        fabric.set_link_up(onward, false).unwrap();
        assert_eq!(
            fabric.ports(B, late).forward_row(0, 0, 8, alike),
            Some(ForwardedRow { moved: 0, has_more: true }),
            "the link is down"
        );
        fabric.set_link_up(onward, true).unwrap();
        assert_eq!(
            fabric.ports(B, late).forward_row(0, 0, 8, alike),
            Some(ForwardedRow { moved: 1, has_more: false }),
            "{spec:?}"
        );
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
