//! Interrupts: the conditions that raise them, their receivers, and the conditions that do not
//! raise them.

use std::thread;

use nicforge_driver::{Deadline, Error};
use nicforge_hwi::{
    tree::{mirror, vector, window},
    tree_dcr::{
        GLOB_VCFG0, GLOB_VCFG1, INJ_PIXEN, REC_PRXEN, REC_PRXF, REG_INT_ENABLE, REG_INT_STATUS, dcr, gi, pix,
        port, prx, vcfg,
    },
};
use nicforge_test_body::body;

use super::{Core, MACHINE, irq_to, payload, run_until_idle, to};
use crate::backing::{Rig, test_deadline};

/// An irq-marked packet interrupts each core that enabled the vector before, once for each packet.
/// A data packet interrupts none.
#[body]
pub fn an_irq_packet_interrupts_a_core_with_the_vector_enabled(rig: &dyn Rig) {
    let [io, node] = Core::of(rig, ["io0", "cn2"]);
    let interrupt = node.device.interrupt(vector::RECV_IRQ.into()).unwrap();
    node.enable(&[vector::RECV_IRQ]);

    io.send(to(3), &payload(0));
    run_until_idle(rig);
    assert_eq!(interrupt.take(), 0);

    io.send(irq_to(3), &payload(1));
    assert_eq!(interrupt.wait(test_deadline(), None).unwrap(), 1);

    node.receive_numbers(0, 2);
    run_until_idle(rig);

    assert_eq!(interrupt.take(), 0);
}

/// Enabling the vector raises an interrupt if an irq-marked packet is already queued, even after
/// data packets.
#[body]
pub fn enabling_the_vector_interrupts_for_a_queued_irq_packet(rig: &dyn Rig) {
    let [io, node] = Core::of(rig, ["io0", "cn2"]);
    let interrupt = node.device.interrupt(vector::RECV_IRQ.into()).unwrap();
    io.send(to(3), &payload(0));
    io.send(to(3), &payload(1));
    io.send(irq_to(3), &payload(2));
    node.wait_until(|| node.word(mirror::RECV_TAIL) == 3);
    run_until_idle(rig);

    assert_eq!(interrupt.take(), 0);

    node.enable(&[vector::RECV_IRQ]);
    assert_eq!(interrupt.wait(test_deadline(), None).unwrap(), 1);

    node.receive_numbers(0, 3);
}

/// A packet that was read before its interrupt was handled leaves one spurious interrupt and no
/// second one.
#[body]
pub fn a_packet_read_before_its_interrupt_leaves_no_second_one(rig: &dyn Rig) {
    let [io, node] = Core::of(rig, ["io0", "cn2"]);
    let interrupt = node.device.interrupt(vector::RECV_IRQ.into()).unwrap();
    node.enable(&[vector::RECV_IRQ]);
    io.send(irq_to(3), &payload(0));
    node.receive_numbers(0, 1);

    // The interrupt fired, and no packet is left.
    assert_eq!(interrupt.wait(test_deadline(), None).unwrap(), 1);
    assert!(node.try_receive().is_none());

    node.enable(&[vector::RECV_IRQ]);
    run_until_idle(rig);
    assert_eq!(interrupt.take(), 0);

    io.send(irq_to(3), &payload(1));
    assert_eq!(interrupt.wait(test_deadline(), None).unwrap(), 1);
}

/// A second irq-marked packet after another one interrupts too. While one of them stays in the
/// queue, enabling interrupts again.
#[body]
pub fn a_second_irq_packet_interrupts_again(rig: &dyn Rig) {
    let [io, node] = Core::of(rig, ["io0", "cn2"]);
    let interrupt = node.device.interrupt(vector::RECV_IRQ.into()).unwrap();
    node.enable(&[vector::RECV_IRQ]);
    io.send(irq_to(3), &payload(0));

    assert_eq!(interrupt.wait(test_deadline(), None).unwrap(), 1);

    io.send(to(3), &payload(1));
    io.send(irq_to(3), &payload(2));
    assert_eq!(interrupt.wait(test_deadline(), None).unwrap(), 1);

    node.receive_numbers(0, 1);
    node.enable(&[vector::RECV_IRQ]);
    assert_eq!(interrupt.wait(test_deadline(), None).unwrap(), 1);

    node.receive_numbers(1, 2);
    node.enable(&[vector::RECV_IRQ]);
    run_until_idle(rig);

    assert_eq!(interrupt.take(), 0);
}

/// A disabled vector never fires, and its condition can still be read.
#[body]
pub fn a_disabled_vector_stays_silent(rig: &dyn Rig) {
    let [io, node] = Core::of(rig, ["io0", "cn2"]);
    let interrupts: Vec<_> =
        (0..vector::COUNT).map(|number| node.device.interrupt(number.into()).unwrap()).collect();
    node.enable(&[vector::RECV_IRQ]);
    node.enable(&[]);

    io.send(irq_to(3), &payload(0));
    node.read(port::HI);
    node.wait_until(|| node.word(mirror::RECV_TAIL) == 1);
    run_until_idle(rig);

    let fired: Vec<_> = interrupts.iter().map(|interrupt| interrupt.take()).collect();
    assert_eq!(fired, [0; vector::COUNT as usize]);

    let conditions = node.read(REG_INT_STATUS);
    assert_eq!(
        conditions & (1 << vector::RECV_IRQ | 1 << vector::ERROR),
        1 << vector::RECV_IRQ | 1 << vector::ERROR
    );
}

/// Each core of a node has its own enable register. Cores that enabled a vector get it, the others
/// do not.
#[body]
pub fn each_core_enables_its_own_interrupts(rig: &dyn Rig) {
    let [io, first] = Core::of(rig, ["io0", "cn0"]);
    let second = Core::open(rig, "cn0", "core1");
    let third = Core::open(rig, "cn0", "core3");
    let [one, two, three] =
        [&first, &second, &third].map(|core| core.device.interrupt(vector::RECV_IRQ.into()).unwrap());

    first.enable(&[vector::RECV_IRQ]);
    second.enable(&[vector::ERROR]);
    third.enable(&[vector::RECV_IRQ, vector::ERROR]);

    io.send(irq_to(1), &payload(0));
    assert_eq!(one.wait(test_deadline(), None).unwrap(), 1);
    assert_eq!(three.wait(test_deadline(), None).unwrap(), 1);

    run_until_idle(rig);
    assert_eq!(two.take(), 0);
    assert_eq!(second.read(REG_INT_ENABLE), 1 << vector::ERROR);
}

/// A posted write of the enable register has the effect of a trapped one, in order with the read
/// pointer stored before it.
#[body]
pub fn a_posted_enable_rereads_the_read_pointer(rig: &dyn Rig) {
    let [io, node] = Core::of(rig, ["io0", "cn2"]);
    let interrupt = node.device.interrupt(vector::RECV_IRQ.into()).unwrap();
    let enable = || node.registers.posted_write(REG_INT_ENABLE, &1_u32.to_le_bytes()).unwrap();

    for number in 0..50 {
        io.send(irq_to(3), &payload(number));
        node.wait_until(|| node.word(mirror::RECV_IRQ) == 1);
        enable();
        node.wait_until(|| interrupt.take() == 1);
        node.registers.posted_write(REG_INT_ENABLE, &0_u32.to_le_bytes()).unwrap();
        node.receive_numbers(number, 1);
        enable();
        run_until_idle(rig);

        assert_eq!(interrupt.take(), 0, "packet {number} was read already");

        node.enable(&[]);
    }
}

/// A packet wakes a thread that sleeps in the dummy read. Without a packet the deadline ends the
/// sleep.
#[body]
pub fn a_sleeping_reader_is_woken(rig: &dyn Rig) {
    let [io, node] = Core::of(rig, ["io0", "cn3"]);
    let interrupt = node.device.interrupt(vector::RECV_IRQ.into()).unwrap();
    node.enable(&[vector::RECV_IRQ]);

    let timed_out = interrupt.wait(Deadline::after(std::time::Duration::from_millis(2)), None);
    assert!(matches!(timed_out, Err(Error::Timeout { .. })));

    thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            for number in 0..20 {
                interrupt.wait(test_deadline(), None).unwrap();
                node.receive_numbers(number, 1);
            }
        });

        for number in 0..20 {
            io.send(irq_to(4), &payload(number));
            io.wait_until(|| node.window_word(window::RECV_HEAD) == number + 1);
        }

        sleeper.join().unwrap();
    });
}

/// An error interrupts when its bit is set, not again while it stays set, and again after it was
/// read.
#[body]
pub fn an_error_interrupts_once_until_it_was_read(rig: &dyn Rig) {
    let [node] = Core::of(rig, ["cn2"]);
    let interrupt = node.device.interrupt(vector::ERROR.into()).unwrap();
    node.enable(&[vector::ERROR]);

    node.read(port::HR);
    assert_eq!(interrupt.wait(test_deadline(), None).unwrap(), 1);

    node.read(port::HR);
    run_until_idle(rig);

    assert_eq!(interrupt.take(), 0);
    assert_eq!(node.errors(), (prx::HFU1, 0));

    node.read(port::HR);
    assert_eq!(interrupt.wait(test_deadline(), None).unwrap(), 1);
}

/// An exception that the admin has disabled sets its bit and raises no interrupt.
#[body(not_through(guests) = OPERATORS_ADMIN)]
pub fn a_disabled_exception_raises_nothing(rig: &dyn Rig) {
    let [node] = Core::of(rig, ["cn2"]);
    let admin = Core::open(rig, "cn2", "admin");
    let interrupt = node.device.interrupt(vector::ERROR.into()).unwrap();

    node.enable(&[vector::ERROR]);
    admin.write(dcr(REC_PRXEN), prx::ALL & !prx::HFU1);

    node.read(port::HR);
    run_until_idle(rig);

    assert_eq!(interrupt.take(), 0);
    assert_eq!(node.errors(), (prx::HFU1, 0));

    node.read_bytes::<16>(port::DR);
    assert_eq!(interrupt.wait(test_deadline(), None).unwrap(), 1);
}

/// A watermark that the admin has disabled raises no interrupt, though its bit is set.
#[body(not_through(guests) = OPERATORS_ADMIN)]
pub fn a_disabled_watermark_raises_nothing(rig: &dyn Rig) {
    let [io, node] = Core::of(rig, ["io0", "cn2"]);
    let admin = Core::open(rig, "cn2", "admin");
    let interrupt = node.device.interrupt(vector::WATERMARK.into()).unwrap();

    admin.write(dcr(REC_PRXEN), prx::ALL & !prx::WM1);
    node.enable(&[vector::WATERMARK]);

    io.send(to(3), &payload(0));
    node.wait_until(|| node.read(dcr(REC_PRXF)) & prx::WM1 != 0);
    run_until_idle(rig);

    assert_eq!((interrupt.take(), node.read(REG_INT_STATUS) & 1 << vector::WATERMARK), (0, 0));
}

/// The receive watermark interrupts once each time it is passed.
#[body(not_through(guests) = OPERATORS_ADMIN)]
pub fn the_receive_watermark_interrupts_when_it_is_passed(rig: &dyn Rig) {
    let [io, node] = Core::of(rig, ["io0", "cn2"]);
    let admin = Core::open(rig, "cn2", "admin");
    let interrupt = node.device.interrupt(vector::WATERMARK.into()).unwrap();

    // The watermark is passed with more than 4 of 8 packets.
    admin.write(dcr(GLOB_VCFG1), 4 << vcfg::RWM_SHIFT);
    node.enable(&[vector::WATERMARK]);
    run_until_idle(rig);
    interrupt.take();

    for round in 0..2 {
        for number in 0..4 {
            io.send(to(3), &payload(number));
        }

        run_until_idle(rig);
        assert_eq!(
            (interrupt.take(), node.read(REG_INT_STATUS) & 1 << vector::WATERMARK),
            (0, 0),
            "round {round}"
        );

        io.send(to(3), &payload(4));
        assert_eq!(interrupt.wait(test_deadline(), None).unwrap(), 1, "round {round}");

        io.send(to(3), &payload(5));
        run_until_idle(rig);
        assert_eq!(interrupt.take(), 0, "round {round}");

        node.receive_numbers(0, 6);
        run_until_idle(rig);
    }
}

/// The send watermark interrupts when a full FIFO has drained to it.
#[body(not_through(guests) = OPERATORS_ADMIN)]
pub fn the_send_watermark_interrupts_when_the_fifo_has_drained(rig: &dyn Rig) {
    let [io, node] = Core::of(rig, ["io0", "cn2"]);
    let admin = Core::open(rig, "cn2", "admin");
    let interrupt = node.device.interrupt(vector::WATERMARK.into()).unwrap();

    // The watermark is reached with 2 of 8 packets or fewer; the receive watermark is disabled.
    admin.write(dcr(GLOB_VCFG1), 2 << vcfg::IWM_SHIFT);
    admin.write(dcr(REC_PRXEN), 0);
    admin.write(dcr(INJ_PIXEN), pix::WM1 | pix::ENABLE);

    let sent = node.send_until_full(rig, to(0), 0);
    node.enable(&[vector::WATERMARK]);
    run_until_idle(rig);
    interrupt.take();

    io.receive_numbers(0, 5);
    run_until_idle(rig);
    assert_eq!(interrupt.take(), 0);

    io.receive_numbers(5, 1);
    assert_eq!(interrupt.wait(test_deadline(), None).unwrap(), 1);

    io.receive_numbers(6, sent - 6);
}

/// A channel's watermarks and errors interrupt only clients of that channel.
#[body(not_through(guests) = OPERATORS_ADMIN)]
pub fn a_channel_interrupts_its_own_clients_only(rig: &dyn Rig) {
    let [core, io] = Core::of(rig, ["cn2", "io0"]);
    let (admin, io_admin) = (Core::open(rig, "cn2", "admin"), Core::open(rig, "io0", "admin"));
    let all = [vector::RECV_IRQ, vector::WATERMARK, vector::ERROR];
    let of_core = all.map(|number| core.device.interrupt(number.into()).unwrap());
    let of_admin = all.map(|number| admin.device.interrupt(number.into()).unwrap());

    admin.write(dcr(GLOB_VCFG0), 0);
    core.enable(&all);
    admin.enable(&all);

    io_admin.send(irq_to(3), &payload(0));
    admin.read(port::HI);

    for interrupt in &of_admin {
        assert_eq!(interrupt.wait(test_deadline(), None).unwrap(), 1);
    }

    run_until_idle(rig);
    assert!(of_core.iter().all(|interrupt| interrupt.take() == 0));

    io.send(irq_to(3), &payload(1));
    core.read(port::HI);

    for interrupt in &of_core {
        assert_eq!(interrupt.wait(test_deadline(), None).unwrap(), 1);
    }

    run_until_idle(rig);
    assert!(of_admin.iter().all(|interrupt| interrupt.take() == 0));
}

/// A change of the presence table interrupts the cores that enabled the vector. A change before the
/// vector was enabled interrupts once when it is enabled.
#[body(not_through(guests) = QEMU_HOLDS_ATTACHMENTS)]
pub fn a_presence_change_interrupts(rig: &dyn Rig) {
    let [node] = Core::of(rig, ["cn2"]);
    let interrupt = node.device.interrupt(vector::PRESENCE.into()).unwrap();
    node.enable(&[vector::PRESENCE]);
    run_until_idle(rig);
    interrupt.take();

    let other = Core::open(rig, "cn1", "core2");
    assert_eq!(interrupt.wait(test_deadline(), None).unwrap(), 1);
    assert_eq!(node.presence(2, 2), 1);

    node.enable(&[]);
    let before = node.word(mirror::PRESENCE_CHANGES);
    drop(other);
    node.wait_until(|| node.word(mirror::PRESENCE_CHANGES) == before + 1);
    run_until_idle(rig);

    assert_eq!(interrupt.take(), 0);

    node.enable(&[vector::PRESENCE]);
    assert_eq!(interrupt.wait(test_deadline(), None).unwrap(), 1);

    node.enable(&[vector::PRESENCE]);
    run_until_idle(rig);

    assert_eq!(interrupt.take(), 0);
}

/// A global interrupt interrupts the cores that enabled the vector when it fires, and those that
/// enable it while it holds.
#[body]
pub fn a_global_interrupt_interrupts(rig: &dyn Rig) {
    let [node, other] = Core::of(rig, ["cn2", "cn0"]);
    let interrupt = node.device.interrupt(vector::GLOBAL_INT.into()).unwrap();

    for core in [&node, &other] {
        core.write(gi::BASE + gi::ARM_TYPE, 0);
    }

    node.enable(&[vector::GLOBAL_INT]);
    other.write(gi::BASE + gi::STICKY, 1);
    assert_eq!(interrupt.wait(test_deadline(), None).unwrap(), 1);

    node.enable(&[vector::GLOBAL_INT]);
    assert_eq!(interrupt.wait(test_deadline(), None).unwrap(), 1);

    node.write(gi::BASE + gi::STICKY, 0);
    node.enable(&[vector::GLOBAL_INT]);
    run_until_idle(rig);

    assert_eq!(interrupt.take(), 0);
}
