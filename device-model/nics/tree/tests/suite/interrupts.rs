//! Interrupts of the attachments, and the global interrupt network.

use crate::common::{Client, Rig, irq_to, payload, to};
use nicforge_hwi::{
    tree::{mirror, vector},
    tree_dcr::{
        GLOB_VCFG1, INJ_PIXEN, REC_PRXF, REG_INT_ENABLE, REG_INT_STATUS, dcr, gi, pix, port, prx, vcfg,
    },
};

const RECV_IRQ: usize = vector::RECV_IRQ as usize;
const WATERMARK: usize = vector::WATERMARK as usize;
const ERROR: usize = vector::ERROR as usize;
const GLOBAL_INT: usize = vector::GLOBAL_INT as usize;

#[test]
fn an_irq_packet_raises_only_an_enabled_interrupt_and_a_data_packet_none() {
    let mut rig = Rig::psets(&[2]);
    let (io, first, second) = (rig.core(0), rig.attach(1, 0), rig.attach(1, 1));
    let (at_first, at_second) = (rig.interrupts(&first), rig.interrupts(&second));
    rig.write32(&first, REG_INT_ENABLE, 1 << vector::RECV_IRQ);

    rig.send_all(&io, &[(to(1), payload(1))]);
    assert_eq!(at_first[RECV_IRQ].take(), 0);
    rig.send_all(&io, &[(irq_to(1), payload(2))]);

    assert_eq!(at_first[RECV_IRQ].take(), 1);
    assert_eq!(at_second[RECV_IRQ].take(), 0);
}

#[test]
fn enabling_the_vector_interrupts_for_a_queued_irq_packet_even_if_it_is_not_the_first() {
    let mut rig = Rig::psets(&[2]);
    let (io, compute) = (rig.core(0), rig.core(1));
    let counts = rig.interrupts(&compute);
    rig.send_all(&io, &[(to(1), payload(1)), (to(1), payload(2)), (irq_to(1), payload(3))]);

    rig.write32(&compute, REG_INT_ENABLE, 1 << vector::RECV_IRQ);

    assert_eq!(counts[RECV_IRQ].take(), 1);
    assert_eq!(rig.read32(&compute, REG_INT_STATUS) & 1, 1);
}

#[test]
fn enabling_after_the_irq_packet_was_read_does_not_interrupt() {
    let mut rig = Rig::psets(&[2]);
    let (io, compute) = (rig.core(0), rig.core(1));
    let counts = rig.interrupts(&compute);
    rig.send_all(&io, &[(irq_to(1), payload(3))]);
    compute.receive().unwrap();

    // The client has stored the read pointer, but the NIC has not been stepped since.
    rig.write32(&compute, REG_INT_ENABLE, 1 << vector::RECV_IRQ);

    assert_eq!(counts[RECV_IRQ].take(), 0);
    rig.send_all(&io, &[(irq_to(1), payload(4))]);
    assert_eq!(counts[RECV_IRQ].take(), 1);
}

#[test]
fn a_posted_write_enables_interrupts() {
    let mut rig = Rig::psets(&[2]);
    let (io, compute) = (rig.core(0), rig.core(1));
    let counts = rig.interrupts(&compute);
    let mut ring = compute.id().ring(&rig.machine);

    rig.send_all(&io, &[(irq_to(1), payload(1))]);

    ring.push32(0, REG_INT_ENABLE as u32, 1);
    rig.run();

    assert_eq!(counts[RECV_IRQ].take(), 1);
}

#[test]
fn a_disabled_vector_stays_silent() {
    let mut rig = Rig::psets(&[2]);
    let (io, compute) = (rig.core(0), rig.core(1));
    let counts = rig.interrupts(&compute);
    rig.write32(&compute, REG_INT_ENABLE, 1 << vector::RECV_IRQ);
    rig.write32(&compute, REG_INT_ENABLE, 0);

    rig.send_all(&io, &[(irq_to(1), payload(4))]);

    assert_eq!(counts[RECV_IRQ].take(), 0);
}

#[test]
fn the_receive_watermark_interrupts_when_it_is_passed() {
    let mut rig = Rig::psets(&[2]);
    let (io, compute, admin) = (rig.core(0), rig.core(1), rig.admin(1));
    let counts = rig.interrupts(&compute);
    rig.write32(&admin, dcr(GLOB_VCFG1), 4 << vcfg::RWM_SHIFT);
    rig.write32(&compute, REG_INT_ENABLE, 1 << vector::WATERMARK);
    let packets: Vec<_> = (0..4).map(|number| (to(1), payload(number))).collect();

    rig.send_all(&io, &packets);
    assert_eq!(counts[WATERMARK].take(), 0);

    rig.send_all(&io, &[(to(1), payload(4)), (to(1), payload(5))]);

    assert_eq!(counts[WATERMARK].take(), 1);
    assert_eq!(rig.read32(&compute, dcr(REC_PRXF)) & (prx::WM0 | prx::WM1), prx::WM1);
}

#[test]
fn the_send_watermark_interrupts_when_the_send_fifo_has_drained() {
    let mut rig = Rig::psets(&[2]);
    let (io, compute, admin) = (rig.core(0), rig.core(1), rig.admin(1));
    let enable = rig.read32(&admin, dcr(INJ_PIXEN)) | pix::WM1;
    rig.write32(&admin, dcr(INJ_PIXEN), enable);
    rig.write32(&admin, dcr(GLOB_VCFG1), 7 << vcfg::RWM_SHIFT | 4 << vcfg::IWM_SHIFT);

    let packets: Vec<_> = (0..100).map(|number| (to(0), payload(number))).collect();
    rig.send_all(&compute, &packets);

    let counts = rig.interrupts(&compute);
    rig.write32(&compute, REG_INT_ENABLE, 1 << vector::WATERMARK);

    for _ in 0..3 {
        io.receive().unwrap();
        rig.run();
    }
    assert_eq!(counts[WATERMARK].take(), 0);

    io.receive().unwrap();
    rig.run();

    assert_eq!(counts[WATERMARK].take(), 1);
}

#[test]
fn an_error_interrupts_once_until_it_was_read() {
    let mut rig = Rig::psets(&[2]);
    let compute = rig.core(1);
    let counts = rig.interrupts(&compute);
    rig.write32(&compute, REG_INT_ENABLE, 1 << vector::ERROR);

    rig.read32(&compute, port::HR);
    rig.read32(&compute, port::HR);
    assert_eq!(counts[ERROR].take(), 1);
    rig.read32(&compute, dcr(REC_PRXF));
    rig.read32(&compute, port::HR);

    assert_eq!(counts[ERROR].take(), 1);
}

/// Returns the offset of a global interrupt channel's register in BAR 0.
fn gi_register(register: u64, channel: u64) -> u64 {
    gi::BASE + register + 16 * channel
}

/// Arms a node for a barrier (`and`) or a notification.
fn arm(rig: &mut Rig, client: &Client, channel: u64, and: bool) {
    rig.write32(client, gi_register(gi::ARM_TYPE, channel), and.into());
}

/// Enters the barrier, or sends the notification.
fn fire(rig: &mut Rig, client: &Client, channel: u64) {
    rig.write32(client, gi_register(gi::STICKY, channel), 1);
}

/// Returns whether the interrupt of a global interrupt channel is set at the client's node.
fn is_set(client: &Client, channel: u64) -> bool {
    client.mirror(mirror::GLOBAL_INT) & (gi::STICKY_INT >> channel) != 0
}

#[test]
fn a_barrier_completes_when_the_last_compute_node_enters_and_can_be_repeated() {
    let mut rig = Rig::psets(&[3]);
    let nodes: Vec<_> = (1..4).map(|node| rig.core(node)).collect();
    let counts: Vec<_> = nodes.iter().map(|node| rig.interrupts(node)).collect();
    for node in &nodes {
        arm(&mut rig, node, 0, true);
        rig.write32(node, REG_INT_ENABLE, 1 << vector::GLOBAL_INT);
    }

    for round in 0..5 {
        for (entered, node) in nodes.iter().enumerate() {
            assert!(nodes.iter().all(|node| !is_set(node, 0)), "round {round}: complete after {entered}");
            fire(&mut rig, node, 0);
            rig.run();
        }
        for (node, counts) in nodes.iter().zip(&counts) {
            assert!(is_set(node, 0));
            assert_eq!(counts[GLOBAL_INT].take(), 1);
            rig.write32(node, gi_register(gi::STICKY, 0), 0);
        }
    }
}

#[test]
fn a_node_that_enters_the_next_barrier_early_does_not_complete_it_for_slower_nodes() {
    let mut rig = Rig::psets(&[2]);
    let (fast, slow) = (rig.core(1), rig.core(2));
    for node in [&fast, &slow] {
        arm(&mut rig, node, 0, true);
    }
    fire(&mut rig, &fast, 0);
    fire(&mut rig, &slow, 0);
    rig.run();
    rig.write32(&fast, gi_register(gi::STICKY, 0), 0);

    fire(&mut rig, &fast, 0);
    rig.run();

    assert!(!is_set(&fast, 0));
    assert!(is_set(&slow, 0));
}

#[test]
fn a_notification_reaches_every_node_that_is_armed() {
    let mut rig = Rig::psets(&[3]);
    let nodes: Vec<_> = (1..4).map(|node| rig.core(node)).collect();
    for node in &nodes[..2] {
        arm(&mut rig, node, 1, false);
    }

    fire(&mut rig, &nodes[0], 1);
    rig.run();

    assert!(is_set(&nodes[0], 1) && is_set(&nodes[1], 1));
    assert!(!is_set(&nodes[2], 1));
}

#[test]
fn an_io_node_takes_part_only_after_it_joins() {
    let mut rig = Rig::psets(&[1]);
    let (io, compute) = (rig.core(0), rig.core(1));
    for node in [&io, &compute] {
        arm(&mut rig, node, 0, true);
    }
    rig.write32(&io, gi_register(gi::PARTICIPATE, 0), 1);

    fire(&mut rig, &compute, 0);
    rig.run();
    assert!(!is_set(&compute, 0));
    fire(&mut rig, &io, 0);
    rig.run();

    assert!(is_set(&compute, 0) && is_set(&io, 0));
}

#[test]
fn a_direct_channel_shows_the_or_of_all_levels() {
    let mut rig = Rig::psets(&[2]);
    let (first, second) = (rig.core(1), rig.core(2));

    rig.write32(&first, gi_register(gi::STATE, 1), 1);
    rig.run();

    assert_eq!(second.mirror(mirror::GLOBAL_INT) & (gi::RECV_STATE >> 1), gi::RECV_STATE >> 1);
    assert_eq!(second.mirror(mirror::GLOBAL_INT) & (gi::SEND_STATE >> 1), 0);
    rig.write32(&first, gi_register(gi::STATE, 1), 0);
    rig.run();
    assert_eq!(second.mirror(mirror::GLOBAL_INT) & (gi::RECV_STATE >> 1), 0);
}

#[test]
fn cores_cannot_use_the_systems_channels() {
    let mut rig = Rig::psets(&[2]);
    let (core, admin) = (rig.core(1), rig.admin(1));

    arm(&mut rig, &core, 2, true);
    assert_eq!(rig.read32(&core, gi::BASE) & (gi::MODE >> 2), 0);
    arm(&mut rig, &admin, 2, true);

    assert_eq!(rig.read32(&core, gi::BASE) & (gi::MODE >> 2), gi::MODE >> 2);
}

#[test]
fn a_core_that_leaves_changes_no_channel_of_the_system() {
    let mut rig = Rig::psets(&[2]);
    let admins = [rig.admin(1), rig.admin(2)];
    for admin in &admins {
        arm(&mut rig, admin, 2, true);
    }
    fire(&mut rig, &admins[0], 2);

    let core = rig.attach(1, 0);
    rig.kill(&core);
    fire(&mut rig, &admins[1], 2);
    rig.run();

    assert!(admins.iter().all(|admin| is_set(admin, 2)));
}

#[test]
fn the_last_client_that_leaves_resets_its_own_channels_only() {
    let mut rig = Rig::psets(&[2]);
    let (core, admin) = (rig.core(1), rig.admin(1));
    arm(&mut rig, &core, 0, true);
    arm(&mut rig, &admin, 2, true);
    rig.run();

    rig.kill(&admin);
    rig.run();

    let modes = core.mirror(mirror::GLOBAL_INT) & (gi::MODE | gi::MODE >> 2);
    assert_eq!(modes, gi::MODE);
}
