//! Tests of the fabric through its public interface.

mod rows;
mod sizes;
mod wires;

use proptest::prelude::*;

use self::{rows::row, sizes::links_of};
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
    assert_eq!(fabric.ports(A, Nanos(3247)).credits(0, 0), 2, "the credit is on its way back");
    assert_eq!(fabric.ports(A, Nanos(3248)).credits(0, 0), 3);
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
    fabric.set_port_count(B, 2);
    let missing = fabric.connect((A, 1), (B, 2), LinkSpec::default());
    assert_eq!(missing, Err(FabricError::NoPort { function: B, port: 2, ports: 2 }));
    assert_eq!(missing.unwrap_err().to_string(), "function 1 has no port 2: it has 2, from 0 to 1");
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
                        run.recycle_front();
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

        // Only credits that the sender waits for are events.
        now += delay;
        fabric.advance(Nanos(now));
        prop_assert_eq!(fabric.next_event(), Nanos::NEVER);

        let ports = fabric.ports(A, Nanos(now));

        prop_assert_eq!([ports.credits(0, 0), ports.credits(0, 1)], [credits[0], credits[1]]);
        prop_assert_eq!(fabric.packets_in_use(), 0);
    }
}
