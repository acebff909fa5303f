//! Tests of corrupt transmissions and of their repetition.

use nicforge_core::{
    fabric::{CreditUnit, Direction, Fault, FaultHook, LinkSpec, Packet},
    time::Nanos,
};
use proptest::prelude::*;

use super::*;

/// Returns a hook that corrupts the transmissions of these numbers.
fn corrupt(numbers: &'static [u64]) -> Option<FaultHook> {
    Some(Box::new(
        move |_: &mut Packet, number| {
            if numbers.contains(&number) { Fault::Corrupt } else { Fault::None }
        },
    ))
}

/// Returns a link of 50 ns with two channels, over which heads of 16 bytes are forwarded.
fn link() -> LinkSpec {
    let timed = LinkSpec { delay: 50, bits_per_second: BYTE_A_NANOSECOND, ..LinkSpec::new(2, 8, 512) };
    LinkSpec { cut_through: Some(16), ..timed }
}

#[test]
fn a_corrupt_transmission_shows_nothing_and_occupies_the_wire() {
    let (mut fabric, id) = pair(link());
    fabric.set_fault(id, Direction::Forward, corrupt(&[0])).unwrap();

    send(&mut fabric, 0, 0, (200, 1)).unwrap();

    // 200 ns for the corrupt transmission, 100 ns until the request for the repetition is back.
    assert_eq!(fabric.next_event(), Nanos(300 + 16 + 50), "the head of the repetition");
    fabric.advance(Nanos(365));
    assert_eq!(woken(&mut fabric), []);
    assert_eq!(take(&mut fabric, B, 549, 0), None);
    assert_eq!(take(&mut fabric, B, 550, 0), Some(1));
}

#[test]
fn packets_behind_a_corrupt_one_are_repeated_too() {
    let (mut fabric, id) = pair(link());
    fabric.set_fault(id, Direction::Forward, corrupt(&[1])).unwrap();
    for (channel, number) in [(0, 0), (0, 1), (1, 2), (0, 3), (0, 4)] {
        send(&mut fabric, 0, channel, (60, number)).unwrap();
    }

    // Packet 1 ends at 120. Packets 2 and 3 start before the request is back at 220, and 4 does
    // not.
    let retransmissions =
        [0, 1].map(|channel| fabric.link_stats(id, Direction::Forward, channel).unwrap().retransmissions);
    assert_eq!(retransmissions, [2, 1]);

    for (number, end) in [(0, 60), (1, 280), (2, 340), (3, 400), (4, 460)] {
        let channel = usize::from(number == 2);
        assert_eq!(take(&mut fabric, B, end + 49, channel), None);
        assert_eq!(take(&mut fabric, B, end + 50, channel), Some(number));
    }
}

#[test]
fn packets_sent_after_the_request_are_not_repeated() {
    let (mut fabric, id) = pair(link());
    fabric.set_fault(id, Direction::Forward, corrupt(&[0])).unwrap();
    send(&mut fabric, 0, 0, (60, 0)).unwrap();
    send(&mut fabric, 160, 0, (60, 1)).unwrap();

    assert_eq!(fabric.link_stats(id, Direction::Forward, 0).unwrap().retransmissions, 1);
}

/// An action of A (send), of B (forward), of C (take), or of time.
#[derive(Clone, Copy, Debug)]
enum Action {
    Send { channel: usize, bytes: usize },
    Forward,
    Take,
    Wait(u64),
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        4 => (0usize..2, 1usize..256).prop_map(|(channel, bytes)| Action::Send { channel, bytes }),
        3 => Just(Action::Forward),
        3 => Just(Action::Take),
        2 => (1u64..500).prop_map(Action::Wait),
    ];
    prop::collection::vec(action, 1..300)
}

/// Links with two virtual channels of nine packets of the longest kind.
fn links() -> impl Strategy<Value = LinkSpec> {
    let rates = prop_oneof![Just(0), Just(1_000_000_000), Just(BYTE_A_NANOSECOND)];
    let units = prop_oneof![Just(CreditUnit::Packets), Just(CreditUnit::Bytes(32))];
    let cut_throughs = prop::option::of(1u32..64);
    (0u64..300, rates, units, cut_throughs).prop_map(|(delay, bits_per_second, credit_unit, cut_through)| {
        LinkSpec { delay, bits_per_second, credit_unit, cut_through, ..LinkSpec::new(2, 9, 256) }
    })
}

/// Returns a hook that repeats a sequence of faults: of the values 0 to 7, two corrupt a packet,
/// one delays it, and five do nothing.
fn hook_of(faults: Vec<u8>) -> Option<FaultHook> {
    Some(Box::new(move |_: &mut Packet, number| match faults[number as usize % faults.len()] {
        0 | 1 => Fault::Corrupt,
        2 => Fault::Delay(number % 700),
        _ => Fault::None,
    }))
}

/// The packets of a run: numbers sent, and numbers received in order, of each channel.
#[derive(Default)]
struct Traffic {
    sent: [u64; 2],
    received: [u64; 2],
}

impl Traffic {
    /// Forwards as many packets at B as possible.
    fn forward(fabric: &mut Fabric, now: u64) {
        for channel in 0..2 {
            while ports(fabric, B, now).forward(0, 1, channel) {}
        }
    }

    /// Receives all packets that have arrived at C. Returns whether their numbers are the next
    /// ones.
    fn receive_all(&mut self, fabric: &mut Fabric, now: u64) -> bool {
        (0..2).all(|channel| {
            std::iter::from_fn(|| take(fabric, C, now, channel)).all(|number| {
                self.received[channel] += 1;
                number + 1 == self.received[channel]
            })
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn nothing_is_lost_doubled_or_reordered_under_random_errors(
        specs in [links(), links()],
        faults in prop::collection::vec(prop::collection::vec(0u8..8, 1..20), 2),
        actions in actions(),
    ) {
        let [first, second] = specs;
        let mut fabric = row(first, second);
        for (link, faults) in (0..).zip(faults) {
            fabric.set_fault(LinkId(link), Direction::Forward, hook_of(faults)).unwrap();
        }

        let (mut now, mut traffic) = (0, Traffic::default());
        for action in actions {
            match action {
                Action::Send { channel, bytes } => {
                    let number = traffic.sent[channel];
                    let is_sent = send(&mut fabric, now, channel, (bytes, number)).is_ok();
                    traffic.sent[channel] += u64::from(is_sent);
                }
                Action::Forward => Traffic::forward(&mut fabric, now),
                Action::Take => prop_assert!(traffic.receive_all(&mut fabric, now)),
                Action::Wait(time) => now += time,
            }
        }

        // Every packet arrives in the end, and every credit returns.
        while traffic.received != traffic.sent {
            prop_assert!(fabric.next_event() != Nanos::NEVER || ports(&mut fabric, B, now).arrived(0) != 0
                || ports(&mut fabric, B, now).arrived(1) != 0 || ports(&mut fabric, C, now).arrivals() != &[0; 16],
                "packets are lost");
            Traffic::forward(&mut fabric, now);
            prop_assert!(traffic.receive_all(&mut fabric, now));
            if fabric.next_event() != Nanos::NEVER {
                now = now.max(fabric.next_event().0);
            }
        }

        now = finish(&mut fabric, now) + LONGEST_DELAY;
        for channel in 0..2 {
            prop_assert_eq!(ports(&mut fabric, A, now).credits(0, channel), 9);
            prop_assert_eq!(ports(&mut fabric, B, now).credits(1, channel), 9);
        }
        prop_assert_eq!(fabric.packets_in_use(), 0);
    }
}
