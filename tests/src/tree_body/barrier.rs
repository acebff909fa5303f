//! The global interrupt network: barriers, notifications, levels.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use nicforge_hwi::{
    tree::mirror,
    tree_dcr::{gi, pix},
};
use nicforge_test_body::body;

use super::{Core, MACHINE, NODES, run_until_idle};
use crate::backing::Rig;

/// Returns the offset of a channel's register in the unit.
fn gi_register(register: u64, channel: u64) -> u64 {
    gi::BASE + register + 16 * channel
}

/// Arms a channel for a barrier (`true`) or a notification.
fn arm(core: &Core, channel: u64, barrier: bool) {
    core.write(gi_register(gi::ARM_TYPE, channel), barrier.into());
}

/// Enters a barrier, or sends a notification.
fn fire(core: &Core, channel: u64) {
    core.write(gi_register(gi::STICKY, channel), 1);
}

/// Clears the interrupt of a barrier or notification.
fn disarm(core: &Core, channel: u64) {
    core.write(gi_register(gi::STICKY, channel), 0);
}

/// Returns whether the mirror shows `flag` for a channel.
fn shows(core: &Core, flag: u32, channel: u64) -> bool {
    core.word(mirror::GLOBAL_INT) & (flag >> channel) != 0
}

/// Returns whether the barrier of a channel is complete, or its notification has come.
fn is_interrupt_set(core: &Core, channel: u64) -> bool {
    shows(core, gi::STICKY_INT, channel)
}

/// A barrier completes on all nodes at once when the last compute node has entered, and again the
/// next time.
#[body(not_through(guests) = FRESH_MACHINE)]
pub fn a_barrier_completes_with_the_last_node(rig: &dyn Rig) {
    let nodes = Core::of_all(rig);
    let nodes = &nodes[1..];
    nodes.iter().for_each(|node| arm(node, 0, true));

    for round in 0..10 {
        for (entered, node) in nodes.iter().enumerate() {
            run_until_idle(rig);
            assert!(
                !nodes.iter().any(|node| is_interrupt_set(node, 0)),
                "round {round}: complete after {entered} nodes"
            );
            fire(node, 0);
            assert!(entered == nodes.len() - 1 || shows(node, gi::STICKY_ACTIVE, 0));
        }

        for node in nodes {
            node.wait_until(|| is_interrupt_set(node, 0));
            assert!(!shows(node, gi::STICKY_ACTIVE, 0));
            assert_eq!(node.read(gi::BASE), node.word(mirror::GLOBAL_INT));
        }

        nodes.iter().for_each(|node| disarm(node, 0));
    }
}

/// All nodes pass many barriers by posted writes, each in its own thread. No node leaves a barrier
/// before all have entered it.
#[body]
pub fn no_node_leaves_a_barrier_before_all_have_entered_it(rig: &dyn Rig) {
    let rounds = rig.repetitions(1000);
    let nodes = Core::of_all(rig);
    for node in &nodes {
        node.write(gi_register(gi::PARTICIPATE, 1), 1);
        arm(node, 1, true);
    }

    let entered = AtomicU32::new(0);
    thread::scope(|scope| {
        for node in &nodes {
            let entered = &entered;
            let post = |value: u32| {
                node.registers.posted_write(gi_register(gi::STICKY, 1), &value.to_le_bytes()).unwrap();
            };

            scope.spawn(move || {
                for round in 1..=rounds {
                    entered.fetch_add(1, Ordering::Relaxed);
                    post(1);
                    node.wait_until(|| is_interrupt_set(node, 1));
                    let all = entered.load(Ordering::Relaxed);
                    assert!(all >= round * NODES, "round {round}: {all} have entered");
                    post(0);
                    node.wait_until(|| !is_interrupt_set(node, 1));
                }
            });
        }
    });

    assert_eq!(entered.into_inner(), rounds * NODES);
}

/// A node that enters the next barrier early waits for those that have not left the last one.
#[body]
pub fn an_early_node_waits_for_slower_nodes(rig: &dyn Rig) {
    let nodes = Core::of_all(rig);
    let [first, others @ ..] = &nodes[1..] else { panic!("there are no compute nodes") };
    nodes.iter().for_each(|node| arm(node, 0, true));
    nodes[1..].iter().for_each(|node| fire(node, 0));
    nodes[1..].iter().for_each(|node| node.wait_until(|| is_interrupt_set(node, 0)));

    disarm(first, 0);
    fire(first, 0);
    run_until_idle(rig);

    assert!(!is_interrupt_set(first, 0) && others.iter().all(|node| is_interrupt_set(node, 0)));

    others.iter().for_each(|node| disarm(node, 0));
    others.iter().for_each(|node| fire(node, 0));

    nodes[1..].iter().for_each(|node| node.wait_until(|| is_interrupt_set(node, 0)));
}

/// An I/O node holds up a barrier only when it participates.
#[body(not_through(guests) = FRESH_MACHINE)]
pub fn an_io_node_takes_part_in_barriers_when_enabled(rig: &dyn Rig) {
    let nodes = Core::of_all(rig);
    nodes.iter().for_each(|node| arm(node, 0, true));
    nodes[0].write(gi_register(gi::PARTICIPATE, 0), 1);
    nodes[1..].iter().for_each(|node| fire(node, 0));
    run_until_idle(rig);

    assert!(!nodes.iter().any(|node| is_interrupt_set(node, 0)));

    fire(&nodes[0], 0);
    nodes.iter().for_each(|node| node.wait_until(|| is_interrupt_set(node, 0)));
}

/// A node whose last core died in a barrier holds it up until the node's next core enters.
#[body(not_through(guests) = EVICTION_IS_FINAL)]
pub fn a_dead_node_has_not_entered(rig: &dyn Rig) {
    let nodes = Core::of_all(rig);
    nodes[1..].iter().for_each(|node| arm(node, 0, true));
    fire(&nodes[4], 0);
    run_until_idle(rig);
    rig.evict("cn3", "core0");
    nodes[1..4].iter().for_each(|node| fire(node, 0));
    run_until_idle(rig);

    assert!(!nodes[1..4].iter().any(|node| is_interrupt_set(node, 0)));

    let next = Core::open(rig, "cn3", "core1");
    arm(&next, 0, true);
    fire(&next, 0);

    nodes[1..4].iter().for_each(|node| node.wait_until(|| is_interrupt_set(node, 0)));
}

/// A notification reaches every node that is armed for it.
#[body]
pub fn a_notification_interrupts_the_armed_cores(rig: &dyn Rig) {
    let nodes = Core::of_all(rig);
    nodes[1..4].iter().for_each(|node| arm(node, 1, false));

    fire(&nodes[2], 1);
    nodes[1..4].iter().for_each(|node| node.wait_until(|| is_interrupt_set(node, 1)));
    run_until_idle(rig);

    assert!(!is_interrupt_set(&nodes[0], 1) && !is_interrupt_set(&nodes[4], 1));
}

/// A direct channel shows the OR of all nodes' levels.
#[body]
pub fn a_direct_channel_shows_the_or_of_all_levels(rig: &dyn Rig) {
    let nodes = Core::of_all(rig);
    let drive = |node: &Core, level: u32| node.write(gi_register(gi::STATE, 0), level);
    let wait_for_all =
        |high: bool| nodes.iter().for_each(|node| node.wait_until(|| shows(node, gi::RECV_STATE, 0) == high));

    drive(&nodes[1], 1);
    wait_for_all(true);
    drive(&nodes[4], 1);
    drive(&nodes[1], 0);
    run_until_idle(rig);
    wait_for_all(true);

    assert!(shows(&nodes[4], gi::SEND_STATE, 0) && !shows(&nodes[1], gi::SEND_STATE, 0));

    drive(&nodes[4], 0);
    wait_for_all(false);
}

/// Cores cannot use the privileged channels, the admin can.
#[body(not_through(guests) = OPERATORS_ADMIN)]
pub fn a_core_cannot_use_the_systems_channels(rig: &dyn Rig) {
    let [core] = Core::of(rig, ["cn0"]);
    let admin = Core::open(rig, "cn0", "admin");

    for channel in gi::PRIVILEGED..gi::CHANNELS {
        core.write(gi_register(gi::STATE, channel), 1);
        assert_eq!(core.errors(), (0, pix::ADDR0));
        run_until_idle(rig);
        assert!(!shows(&core, gi::SEND_STATE, channel));

        admin.write(gi_register(gi::STATE, channel), 1);
        admin.wait_until(|| shows(&admin, gi::RECV_STATE, channel));
        assert_eq!(admin.errors(), (0, 0));
    }
}
