//! Clients that sleep while packets pass their node or come to it.

use std::sync::atomic::Ordering;

use nicforge_core::{companion::CompanionMode, machine::Next};
use nicforge_hwi::{
    attachment::mirror::SLEEPING,
    seastar::{BAR_MIRROR, COMMAND_BYTES},
};
use nicforge_seastar::Options;
use nicforge_seastar_firmware::chip::Event;
use nicforge_test_kit::BUDGET;

use crate::common::{Message, Rig};

/// Delay of a message, in nanoseconds. All functions are cold by then.
const DELAY: u64 = 10_000_000;
/// Number of the message.
const NAME: u32 = 7;

/// Has node 0 send a message to node 2 later, and steps until all functions are cold. Node 1 lies
/// between the two.
fn network_with_a_message_to_come() -> Rig {
    let mut rig = Rig::new(CompanionMode::Stepped, &[5], Options::default());
    rig.scripts[0].on_event(|chip, event| {
        if matches!(event, Event::Timer) {
            Message::put(NAME, 2, 0, 0).transmit(chip);
        }
    });
    rig.act(0, |chip| {
        let time = chip.now() + DELAY;
        chip.set_timer(time).unwrap();
    });

    let start = rig.now();
    while !matches!(rig.bed.step(BUDGET), Next::At(_)) {
        assert!(rig.now().0 < start.0 + DELAY / 2, "the network does not go cold");
        rig.bed.advance_to(rig.now().after(1_000));
    }
    rig
}

/// Steps until node 2 has the message.
fn await_message(rig: &mut Rig) {
    let limit = rig.now().after(2 * DELAY);
    while rig.scripts[2].count(is_header) == 0 {
        assert!(rig.now() < limit, "no message");
        rig.step();
    }
}

fn is_header(event: &Event) -> bool {
    matches!(event, Event::Header { .. })
}

fn is_command(event: &Event) -> bool {
    matches!(event, Event::Command { .. })
}

fn sleeps(rig: &Rig, node: usize) -> bool {
    let mirror = rig.kernels[node].client.memory(&rig.bed, BAR_MIRROR.into());
    mirror.u32(SLEEPING).unwrap().load(Ordering::Acquire) != 0
}

#[test]
fn command_precedes_a_packet_sent_after_it_even_if_the_wake_is_late() {
    let mut rig = network_with_a_message_to_come();
    let before = rig.scripts[2].lock().events.len();

    // The client's wake does not arrive before the packet.
    rig.kernels[2].post(&[0; COMMAND_BYTES]);
    await_message(&mut rig);

    let state = rig.scripts[2].lock();
    let later = state.events[before..].iter().map(|(_, event)| event);
    let order: Vec<_> = later.filter(|event| is_command(event) || is_header(event)).collect();
    assert!(matches!(order[..], [Event::Command { .. }, Event::Header { .. }]), "{order:?}");
}

#[test]
fn packets_that_pass_a_node_leave_its_clients_asleep() {
    let mut rig = network_with_a_message_to_come();
    let before = rig.scripts[1].count(is_command);
    rig.kernels[1].post(&[0; COMMAND_BYTES]);

    await_message(&mut rig);
    assert!(rig.counter(1, "forwarded") > 0);
    assert!(sleeps(&rig, 1) && !sleeps(&rig, 2));
    assert_eq!(rig.scripts[1].count(is_command), before);

    rig.bed.wake(rig.functions[1]);
    rig.until(|rig| rig.scripts[1].count(is_command) > before);
}
