//! Cores that attach, detach and die; resets; and their effects on peers.

use nicforge_driver::GoneCause;
use nicforge_hwi::tree::{CORES, SLOT, SLOT_CONTROL, mirror, window};
use nicforge_test_body::body;

use super::{
    CREDITS, Core, MACHINE, NODES, Packet, counter, irq_to, numbered, payload, run_until_idle, to, transfer,
};
use crate::backing::Rig;

/// A core that attaches, detaches and attaches again increments its generation at every node, on
/// the users' channel (`core0`) and on the system's (`admin`).
#[body(not_through(guests) = OPERATORS_ADMIN)]
pub fn a_core_counts_its_generation_up_at_every_node(rig: &dyn Rig) {
    let users = Core::everywhere(rig, "core0");
    let admins = Core::everywhere(rig, "admin");
    let wait_for_generation = |generation: u8| {
        for observer in users.iter().chain(&admins) {
            observer.wait_until(|| observer.presence(3, 2) == generation);
            // The generations of all other cores are unchanged.
            assert!(
                (0..NODES).all(|node| observer.presence(node, 0) == 1 && observer.presence(node, 3) == 0)
            );
        }
    };

    let core = Core::open(rig, "cn2", "core2");
    wait_for_generation(1);
    drop(core);
    wait_for_generation(2);

    let _core = Core::open(rig, "cn2", "core2");
    wait_for_generation(3);
}

/// Each core that attaches or detaches is counted as one presence change.
#[body(not_through(guests) = QEMU_HOLDS_ATTACHMENTS)]
pub fn presence_changes_are_counted(rig: &dyn Rig) {
    let [io] = Core::of(rig, ["io0"]);
    let before = io.word(mirror::PRESENCE_CHANGES);

    let cores: Vec<_> = (0..CORES).map(|core| Core::open(rig, "cn1", &format!("core{core}"))).collect();
    io.wait_until(|| io.word(mirror::PRESENCE_CHANGES) == before + 4);
    drop(cores);

    io.wait_until(|| io.word(mirror::PRESENCE_CHANGES) == before + 8);
    assert_eq!(io.word(mirror::PRESENCE + 4 * 2), 0x0202_0202);
}

/// A node whose first core attaches late has the presence and generation of all other cores.
#[body(not_through(guests) = QEMU_HOLDS_ATTACHMENTS)]
pub fn a_node_that_attaches_late_knows_which_nodes_are_present(rig: &dyn Rig) {
    let [io, cn1] = Core::of(rig, ["io0", "cn1"]);
    drop(cn1);
    io.wait_until(|| io.presence(2, 0) == 2);

    let _cn1 = Core::of(rig, ["cn1"]);
    let [late] = Core::of(rig, ["cn3"]);

    late.wait_until(|| late.presence(4, 0) == 1);
    assert_eq!((late.presence(0, 0), late.presence(2, 0), late.presence(1, 0)), (1, 3, 0));
}

/// The report of a death comes after all packets that the dead core had sent, however late they
/// are read.
#[body(not_through(guests) = EVICTION_IS_FINAL)]
pub fn a_presence_change_arrives_after_the_packets_sent_before_it(rig: &dyn Rig) {
    let [io, node] = Core::of(rig, ["io0", "cn2"]);
    let sent = node.send_until_full(rig, to(0), 0);

    assert_eq!(sent, 8 + 2 * CREDITS + 8);

    rig.evict("cn2", "core0");
    drop(node);
    run_until_idle(rig);

    let mut received = 0;
    io.wait_until(|| {
        // The presence is read before the FIFO.
        let dead = io.presence(3, 0) == 2;
        while let Some((_, bytes)) = io.try_receive() {
            assert!(!dead || received + 8 >= sent, "the presence change came before packet {received}");
            assert_eq!(bytes, payload(received));
            received += 1;
        }
        dead
    });

    assert_eq!(received, sent);
}

/// The next client's packets come after the report of its presence, which comes after the previous
/// client's packets, however slowly they are read.
#[body(not_through(guests) = EVICTION_IS_FINAL)]
pub fn the_next_clients_packets_arrive_after_its_presence_change(rig: &dyn Rig) {
    let [io, node] = Core::of(rig, ["io0", "cn2"]);
    let sent = node.send_until_full(rig, to(0), 0);
    rig.evict("cn2", "core0");
    drop(node);

    let next = Core::open(rig, "cn2", "core0");
    (0..8).for_each(|number| assert!(next.try_send(to(0), &payload(1000 + number))));
    run_until_idle(rig);

    for number in 0..sent {
        assert_eq!(io.receive().1, payload(number));
        run_until_idle(rig);
    }

    for number in 1000..1008 {
        assert_eq!(io.receive().1, payload(number));
        assert_eq!(io.presence(3, 0), 3);
    }
}

/// A node whose last core detached accepts packets and drops them, and no sender is blocked.
#[body(not_through(guests) = EVICTION_IS_FINAL)]
pub fn a_node_without_cores_takes_packets_and_drops_them(rig: &dyn Rig) {
    let [io, node, cn3] = Core::of(rig, ["io0", "cn2", "cn3"]);
    io.send_until_full(rig, to(3), 0);
    rig.evict("cn2", "core0");
    drop(node);

    for packet in 0..200 {
        io.send(to(3), &payload(packet));
        cn3.send(to(3), &payload(packet));
    }

    transfer(&io, &cn3, &numbered(4, 0, 20));
    run_until_idle(rig);

    assert!(counter(rig, "cn2", "vc1_discarded") >= 400);
}

/// Until a node has its first core, packets for it wait.
#[body(not_through(guests) = QEMU_HOLDS_ATTACHMENTS)]
pub fn packets_wait_for_the_first_core_of_a_node(rig: &dyn Rig) {
    let [io] = Core::of(rig, ["io0"]);
    let sent = io.send_until_full(rig, to(3), 0);

    assert_eq!(sent, 8 + 2 * CREDITS);

    let [node] = Core::of(rig, ["cn2"]);
    node.receive_numbers(0, sent);
}

/// The next client of a node has windows of its own: neither the content of the previous client's
/// windows nor its later stores reach them.
#[body(not_through(guests) = OPERATORS_ADMIN)]
pub fn the_next_client_has_windows_of_its_own(rig: &dyn Rig) {
    let [io, node] = Core::of(rig, ["io0", "cn0"]);
    // An attachment on the system channel does not keep the user channel's state alive.
    let _admin = Core::open(rig, "cn0", "admin");
    io.send(irq_to(1), &payload(1));
    node.wait_until(|| node.unread_packets() == 1);
    node.store(window::SRAM, 0x1234);

    assert!(node.lock(window::LOCK_SEND));

    let (old_window, old_mirror) = (node.window.clone(), node.mirror.clone());
    rig.evict("cn0", "core0");
    drop(node);

    let node = Core::open(rig, "cn0", "core0");
    run_until_idle(rig);
    old_window.store_u32_release(window::RECV_HEAD, 77).unwrap();
    old_window.store_u32_release(window::LOCK, 4).unwrap();
    for (number, slot) in [(1, window::SEND), (2, window::SEND + SLOT)] {
        old_window.store_u64_release(slot + SLOT_CONTROL, number | u64::from(to(0).0) << 32).unwrap();
    }
    run_until_idle(rig);

    assert_eq!((node.window_word(window::SRAM), node.locked_by(0), node.locked_by(1)), (0, 0, 0));
    assert_eq!(
        (node.unread_packets(), node.word(mirror::RECV_IRQ), node.word(mirror::ERROR) & 0xffff),
        (0, 0, 0)
    );
    assert!(io.try_receive().is_none());
    assert_eq!(io.presence(1, 0), 3);

    transfer(&io, &node, &numbered(1, 10, 20));
    transfer(&node, &io, &numbered(0, 30, 20));

    assert_eq!(old_mirror.load_u32_acquire(mirror::RECV_TAIL).unwrap(), 1);
}

/// A core that detaches while another one of its node stays leaves FIFOs and memory, which are the
/// node's.
#[body(not_through(guests) = QEMU_HOLDS_ATTACHMENTS)]
pub fn the_cores_that_stay_keep_the_nodes_fifos(rig: &dyn Rig) {
    let [io, first] = Core::of(rig, ["io0", "cn0"]);
    let second = Core::open(rig, "cn0", "core3");
    first.store(window::SRAM + 8, 99);
    io.send(to(1), &payload(0));
    io.send(to(1), &payload(1));
    first.receive_numbers(0, 1);

    drop(first);
    io.wait_until(|| io.presence(1, 0) == 2);

    second.receive_numbers(1, 1);
    assert_eq!(second.window_word(window::SRAM + 8), 99);

    transfer(&io, &second, &numbered(1, 2, 20));
    transfer(&second, &io, &numbered(0, 30, 20));
}

/// The lock boxes of a killed core are freed, and no others.
#[body(not_through(guests) = EVICTION_IS_FINAL)]
pub fn a_killed_cores_lock_boxes_are_freed(rig: &dyn Rig) {
    let [first] = Core::of(rig, ["cn0"]);
    let second = Core::open(rig, "cn0", "core1");

    for number in [1, 5, 62] {
        assert!(first.lock(number));
    }

    for number in [0, 2, 63] {
        assert!(second.lock(number));
        assert!(!first.lock(number));
    }

    rig.evict("cn0", "core0");
    second.wait_until(|| second.locked_by(1) == 0);

    assert_eq!([1, 5, 62].map(|number| second.locked_by(number)), [0; 3]);
    assert_eq!([0, 2, 63].map(|number| second.locked_by(number)), [second.owner(); 3]);
    assert!(second.lock(5));
}

/// Packets for a dead reader are discarded until the lock box of the receive FIFO is taken again.
/// An irq-marked packet and later ones stay.
#[body(not_through(guests) = EVICTION_IS_FINAL)]
pub fn data_for_a_dead_reader_is_discarded_until_the_next_one_attaches(rig: &dyn Rig) {
    let [io, reader] = Core::of(rig, ["io0", "cn0"]);
    let next = Core::open(rig, "cn0", "core1");

    assert!(reader.lock(window::LOCK_RECV));

    transfer(&io, &reader, &numbered(1, 0, 3));
    (3..5).for_each(|number| io.send(to(1), &payload(number)));
    reader.wait_until(|| reader.unread_packets() == 2);

    rig.evict("cn0", "core0");
    next.wait_until(|| next.presence(1, 0) == 2);

    for number in 0..100 {
        io.send(to(1), &payload(number));
    }

    io.send(irq_to(1), &payload(200));
    (201..206).for_each(|number| io.send(to(1), &payload(number)));
    next.wait_until(|| next.unread_packets() == 6);

    assert_eq!(counter(rig, "cn0", "vc1_discarded"), 102);
    assert!(next.lock(window::LOCK_RECV));
    assert_eq!(next.receive(), (irq_to(1), payload(200)));

    next.receive_numbers(201, 5);
    transfer(&io, &next, &numbered(1, 300, 20));
}

/// A core that dies without holding the lock box of the receive FIFO costs no packet.
#[body(not_through(guests) = EVICTION_IS_FINAL)]
pub fn a_dead_core_without_the_receive_lock_costs_no_packet(rig: &dyn Rig) {
    let [io, dead] = Core::of(rig, ["io0", "cn0"]);
    let next = Core::open(rig, "cn0", "core1");

    assert!(dead.lock(window::LOCK_SEND));

    (0..5).for_each(|number| io.send(to(1), &payload(number)));
    next.wait_until(|| next.unread_packets() == 5);

    rig.evict("cn0", "core0");
    next.wait_until(|| next.locked_by(window::LOCK_SEND) == 0);

    next.receive_numbers(0, 5);
    transfer(&io, &next, &numbered(1, 5, 20));
}

/// A core that resets itself frees its lock boxes and shows a new generation. The node's FIFOs and
/// other cores keep their state.
#[body]
pub fn a_core_that_resets_itself_spares_its_node(rig: &dyn Rig) {
    let [io, first] = Core::of(rig, ["io0", "cn0"]);
    let second = Core::open(rig, "cn0", "core1");

    // Presence reports travel like packets.
    io.wait_until(|| [0, 1].iter().all(|&core| io.presence(1, core) & 1 == 1));
    let generations = [0, 1].map(|core| io.presence(1, core));

    assert!(first.lock(7) && second.lock(8));

    io.send(to(1), &payload(5));
    first.wait_until(|| first.unread_packets() == 1);
    first.enable(&[0]);

    first.device.reset().unwrap();
    io.wait_until(|| io.presence(1, 0) == generations[0] + 2);

    assert_eq!(io.presence(1, 1), generations[1]);
    assert_eq!((second.locked_by(7), second.locked_by(8)), (0, second.owner()));
    assert_eq!(first.read(nicforge_hwi::tree_dcr::REG_INT_ENABLE), 0);

    second.receive_numbers(5, 1);
    transfer(&first, &io, &numbered(0, 0, 20));
}

/// An operator's reset of a node clears its blocked packets, and its clients and peers are
/// notified. The node works again afterwards.
#[body]
pub fn an_operators_reset_clears_a_blocked_node(rig: &dyn Rig) {
    let [io, node, cn3] = Core::of(rig, ["io0", "cn0", "cn3"]);
    let generation = io.presence(1, 0);
    let sent = io.send_until_full(rig, to(1), 0);

    assert!(!io.has_room());

    rig.reset("cn0");
    run_until_idle(rig);

    assert_eq!(node.device.gone_cause(), Some(GoneCause::Reset));
    assert_eq!(io.device.gone_cause(), None);
    assert!(io.has_room());
    assert_eq!(io.presence(1, 0), generation + 2);

    node.device.reset().unwrap();
    run_until_idle(rig);

    assert_eq!(io.presence(1, 0), generation + 4);
    assert_eq!((node.address(), node.word(mirror::NODES)), (1, NODES));

    // The packets that were in flight have arrived in the empty FIFO.
    let rest: Vec<Packet> = std::iter::from_fn(|| {
        let packet = node.try_receive();
        run_until_idle(rig);
        packet
    })
    .collect();

    assert!(rest.len() <= sent as usize - 8, "{} of {sent} packets came", rest.len());

    transfer(&io, &node, &numbered(1, 100, 20));
    transfer(&node, &cn3, &numbered(4, 200, 20));
    transfer(&cn3, &io, &numbered(0, 300, 20));
}

/// A node that its operator resets repeatedly while others send through it may lose packets, but
/// does not reorder them. Packets sent afterwards arrive.
#[body]
pub fn a_reset_node_may_lose_packets_but_not_reorder_them(rig: &dyn Rig) {
    let [io, cn2] = Core::of(rig, ["io0", "cn2"]);
    let mut next = 0;

    for round in 0..20 {
        for number in 0..20 {
            cn2.send(to(0), &payload(20 * round + number));
            if number == round {
                rig.reset("cn0");
            }
            while let Some((_, bytes)) = io.try_receive() {
                let number = (next..=20 * round + number).find(|&number| payload(number) == bytes);
                next = number.expect("a packet came changed, twice, or too late") + 1;
            }
        }
    }

    run_until_idle(rig);
    while io.try_receive().is_some() {
        run_until_idle(rig);
    }

    transfer(&cn2, &io, &numbered(0, 1000, 50));
    transfer(&io, &cn2, &numbered(3, 2000, 50));
}
