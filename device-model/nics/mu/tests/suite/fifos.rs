//! FIFOs in memory: full ones, wrap-around, thresholds, priorities.

use nicforge_hwi::{
    mu::{DESCRIPTOR, interrupt, reg, vector},
    mu_dcr::{ICSRAM_RGET_FIFO_FULL, IME_ENABLE, IMU_THOLD, RMFIFO, RMU_THOLD, errors},
    mu_packet::fifo_map,
};
use zerocopy::IntoBytes;

use nicforge_mu::Options;

use crate::common::{COUNTERS, DATA, PAYLOAD, RECEPTION_BYTES, Rig, Way, pattern};

const WAY: Way = Way { from: 0, to: 1 };

#[test]
fn packets_wait_for_a_full_reception_fifo_and_none_is_lost() {
    let (mut rig, mut users) = Rig::pair();
    // Three times as much as the FIFO holds, by one network FIFO, so that packets stay in order.
    let length = 3 * RECEPTION_BYTES as usize;
    let data = pattern(3, length);
    users[0].write(PAYLOAD, &data);
    let mut message = WAY.fifo(3, PAYLOAD, length);
    message.torus_fifo_map = 0x8000;
    users[0].inject(&mut rig.bed, 2, &message);

    rig.settle();
    assert!(users[1].shown_reception(3, reg::FREE_SPACE) <= 544);
    assert_eq!(users[0].done(2), 0, "the message is stuck in the network");
    assert!(rig.counter(1, "receive_waits") > 0);

    let mut received = Vec::new();
    while received.len() < length {
        for (_, payload) in users[1].take(&mut rig.bed, 3) {
            received.extend(payload);
        }
        rig.settle();
    }
    assert!(received == data);
    assert_eq!(users[0].done(2), 1);
}

#[test]
fn a_full_fifo_delays_no_message_that_comes_by_another_link() {
    let (mut rig, mut users) = Rig::pair();
    let mut flood = WAY.fifo(3, PAYLOAD, 3 * RECEPTION_BYTES as usize);
    flood.torus_fifo_map = 0x8000;
    // The hints lead the flood down, and the put up.
    flood.packet_header.set_hint(0, true);
    users[0].inject(&mut rig.bed, 0, &flood);
    rig.settle();

    users[1].write64(COUNTERS, 5000);
    let mut put = WAY.put(0, 0, 0, PAYLOAD, 5000);
    put.torus_fifo_map = 0x4000;
    put.packet_header.set_hint(0, false);
    users[0].inject(&mut rig.bed, 1, &put);
    rig.until(|_| users[1].read64(COUNTERS) == 0);
}

#[test]
fn a_message_takes_the_other_network_fifo_of_its_map_when_one_is_blocked() {
    const LENGTH: usize = 5000;

    let (mut rig, mut users) = Rig::pair();
    let mut flood = WAY.fifo(3, PAYLOAD, 3 * RECEPTION_BYTES as usize);
    flood.torus_fifo_map = fifo_map::AM;
    flood.packet_header.set_hint(0, true);
    users[0].inject(&mut rig.bed, 0, &flood);
    rig.settle();

    // The link that leads up is free, so that the network FIFO alone holds the first message up.
    let data = pattern(2, LENGTH);
    users[0].write(PAYLOAD, &data);
    users[1].write64(COUNTERS, 2 * LENGTH as u64);
    for (fifo, map) in [(1, fifo_map::AM), (2, fifo_map::AM | fifo_map::AM >> 1)] {
        let mut put = WAY.put(0, 0x1_0000 * (fifo as u64 - 1), 0, PAYLOAD, LENGTH);
        put.torus_fifo_map = map;
        put.packet_header.set_hint(0, false);
        users[0].inject(&mut rig.bed, fifo, &put);
    }
    rig.until(|_| users[1].read64(COUNTERS) == LENGTH as u64);
    rig.settle();
    assert_eq!([users[0].done(1), users[0].done(2)], [0, 1]);
    assert!(users[1].read(DATA + 0x1_0000, LENGTH) == data);
    assert!(users[1].read(DATA, LENGTH).iter().all(|&byte| byte == 0));
}

#[test]
fn fifos_that_wait_for_one_engine_delay_no_others_and_all_go_on() {
    const WAITING: usize = 5;
    let (mut rig, mut users) = Rig::pair();
    let length = RECEPTION_BYTES as usize;
    for fifo in 0..WAITING {
        let mut flood = WAY.fifo(3, PAYLOAD, length);
        flood.torus_fifo_map = 0x8000;
        flood.packet_header.set_hint(0, true);
        users[0].inject(&mut rig.bed, fifo, &flood);
    }
    rig.settle();
    assert!((0..WAITING).all(|fifo| users[0].done(fifo as u64) == 0));

    users[1].write64(COUNTERS, 5000);
    let mut put = WAY.put(0, 0, 0, PAYLOAD, 5000);
    put.torus_fifo_map = 0x4000;
    put.packet_header.set_hint(0, false);
    users[0].inject(&mut rig.bed, WAITING, &put);
    rig.until(|_| users[1].read64(COUNTERS) == 0);

    let mut received = 0;
    for _ in 0..1000 {
        if received == WAITING * length {
            break;
        }
        received += users[1].take(&mut rig.bed, 3).iter().map(|(_, payload)| payload.len()).sum::<usize>();
        rig.settle();
    }
    assert_eq!(received, WAITING * length);
    assert!((0..=WAITING).all(|fifo| users[0].done(fifo as u64) == 1));
}

#[test]
fn a_machine_with_a_full_fifo_is_idle() {
    let (mut rig, mut users) = Rig::pair();
    users[0].inject(&mut rig.bed, 0, &WAY.fifo(3, PAYLOAD, 3 * RECEPTION_BYTES as usize));

    // This fails if the machine stays busy.
    rig.settle();
    rig.settle();
    assert_eq!(users[0].done(0), 0);
}

#[test]
fn smallest_fifos_work_and_one_that_is_smaller_does_not() {
    let (mut rig, mut users) = Rig::pair();
    users[1].set(&mut rig.bed, reg::RECEPTION_ENABLE, 0);
    let base = DATA + 0x1000;
    for (bytes, enabled) in [(544, 0), (576, 1)] {
        users[1].set_reception(&mut rig.bed, 0, base, bytes);
        users[1].set(&mut rig.bed, reg::RECEPTION_ENABLE, 1);
        assert_eq!(users[1].get(&mut rig.bed, reg::RECEPTION_ENABLE), enabled, "{bytes}");
    }

    let data = pattern(1, 512);
    users[0].write(PAYLOAD, &data);
    for round in 0..20_u64 {
        users[0].inject(&mut rig.bed, 0, &WAY.fifo(0, PAYLOAD, 512));
        let tail = base + (round + 1) * 544 % 576;
        rig.until(|_| users[1].shown_reception(0, reg::TAIL) == tail);
        let stored: Vec<_> = (0..16)
            .flat_map(|chunk| users[1].read(base + (round * 544 + 32 + chunk * 32) % 576, 32))
            .collect();
        assert!(stored == data, "round {round}");
        users[1].set(&mut rig.bed, reg::RECEPTION + reg::HEAD, tail);
    }
}

#[test]
fn reception_threshold_interrupts_when_free_space_falls_below_it() {
    let (mut rig, mut users) = Rig::pair();
    users[1].set(&mut rig.bed, reg::RECEPTION_THRESHOLD, RECEPTION_BYTES - 3 * 32);
    users[1].set(&mut rig.bed, reg::INTERRUPT_ENABLE, interrupt::RECEPTION_THRESHOLD << 1);
    let count = users[1].interrupts[usize::from(vector::RECEPTION_THRESHOLD)].clone();

    for (packets, interrupts) in [(1, 0), (2, 0), (3, 0), (4, 1), (5, 1)] {
        users[0].inject(&mut rig.bed, 0, &WAY.fifo(1, PAYLOAD, 0));
        rig.until(|_| users[1].packets(1).0.len() == packets);
        rig.settle();
        assert_eq!(count.get(), interrupts, "{packets} packets");
    }
    assert_eq!(users[1].shown(reg::INTERRUPT_STATUS), interrupt::RECEPTION_THRESHOLD << 1);
    users[1].set(&mut rig.bed, reg::CLEAR_INTERRUPT, interrupt::ALL);
    assert_eq!(users[1].get(&mut rig.bed, reg::INTERRUPT_STATUS), 0);

    // Crossing it again interrupts again.
    users[1].take(&mut rig.bed, 1);
    rig.settle();
    for _ in 0..4 {
        users[0].inject(&mut rig.bed, 0, &WAY.fifo(1, PAYLOAD, 0));
    }
    rig.until(|_| count.get() == 2);
}

#[test]
fn injection_threshold_interrupts_when_free_space_rises_above_it() {
    let (mut rig, mut users) = Rig::pair();
    users[0].set(&mut rig.bed, reg::INJECTION_THRESHOLD, 62 * 64);
    users[0].set(&mut rig.bed, reg::INTERRUPT_ENABLE, interrupt::INJECTION_THRESHOLD << 3);
    let count = users[0].interrupts[usize::from(vector::INJECTION_THRESHOLD)].clone();

    // Free space falls to 60 slots, and rises to 64.
    users[0].set(&mut rig.bed, reg::DISABLE, 1 << 3);
    for _ in 0..4 {
        users[0].inject(&mut rig.bed, 3, &WAY.fifo(1, PAYLOAD, 0));
    }
    rig.settle();
    assert_eq!((count.get(), users[0].done(3)), (0, 0));

    users[0].set(&mut rig.bed, reg::ENABLE, 1 << 3);
    rig.until(|_| users[0].done(3) == 4);
    assert_eq!(count.get(), 1);
}

#[test]
fn the_kernel_sets_thresholds_of_all_subgroups() {
    let (mut rig, users) = Rig::pair();
    let kernel = rig.kernel(0);
    kernel.set_control(&mut rig.bed, IMU_THOLD, 10);
    kernel.set_control(&mut rig.bed, RMU_THOLD, 20);

    assert_eq!(users[0].get(&mut rig.bed, reg::INJECTION_THRESHOLD), 640);
    assert_eq!(users[0].get(&mut rig.bed, reg::RECEPTION_THRESHOLD), 640);
    let next = rig.user(0, 1);
    assert_eq!(next.get(&mut rig.bed, reg::INJECTION_THRESHOLD), 640);
    assert_eq!(users[1].get(&mut rig.bed, reg::INJECTION_THRESHOLD), 0);
}

#[test]
fn a_packet_that_asks_for_it_interrupts_its_receiver() {
    let (mut rig, mut users) = Rig::pair();
    users[1].set(&mut rig.bed, reg::INTERRUPT_ENABLE, interrupt::PACKET << 2);
    let count = users[1].interrupts[usize::from(vector::PACKET)].clone();

    for (fifo, asks, interrupts) in [(2, 0, 0), (2, 1, 1), (1, 1, 1), (2, 1, 2)] {
        let mut message = WAY.fifo(fifo, PAYLOAD, 600);
        message.interrupt = asks;
        let before = users[1].packets(fifo.into()).0.len();
        users[0].inject(&mut rig.bed, 0, &message);
        rig.until(|_| users[1].packets(fifo.into()).0.len() == before + 2);
        assert_eq!(count.get(), interrupts, "the interrupt comes once the mirror shows the packet");
    }
    let status = interrupt::PACKET << 2 | interrupt::PACKET << 1;
    assert_eq!(users[1].shown(reg::INTERRUPT_STATUS), status);
}

#[test]
fn full_fifos_notify_the_kernel() {
    let (mut rig, mut users) = Rig::pair();
    let kernel = rig.kernel(1);
    users[0].inject(&mut rig.bed, 0, &WAY.fifo(3, PAYLOAD, 3 * RECEPTION_BYTES as usize));
    rig.settle();

    assert_eq!(kernel.control(&mut rig.bed, RMFIFO), 3);
    assert_eq!(kernel.control(&mut rig.bed, errors::FIFO), 1 << 63);
}

#[test]
fn gets_wait_for_room_in_their_injection_fifo() {
    let (mut rig, mut users) = Rig::pair();
    let kernel = rig.kernel(1);
    // The FIFO for gets of node 1 holds ten descriptors. A first message keeps it busy, because
    // its packets are not taken.
    users[1].set(&mut rig.bed, reg::DISABLE, 1 << 6);
    users[1].set_injection(&mut rig.bed, 6, DATA, 11 * 64);
    users[1].set(&mut rig.bed, reg::ENABLE, 1 << 6);

    let count = 40;
    users[0].write64(COUNTERS, count * 8);
    let block = Way { from: 1, to: 0 }.fifo(0, PAYLOAD, 3 * RECEPTION_BYTES as usize);
    users[0].write(PAYLOAD, block.as_bytes());
    for index in 0..count {
        users[1].write64(PAYLOAD + 0x8_0000 + index * 8, index);
        let put = Way { from: 1, to: 0 }.put(0, index * 8, 0, PAYLOAD + 0x8_0000 + index * 8, 8);
        users[0].write(PAYLOAD + 64 * (index + 1), put.as_bytes());
    }
    let mut get = WAY.get(48 / 8, PAYLOAD, 64 * (count as usize + 1));
    get.torus_fifo_map = 0x8000;
    get.packet_header.unit.set_get_fifo(6);
    users[0].inject(&mut rig.bed, 0, &get);

    rig.settle();
    assert_eq!(kernel.control(&mut rig.bed, ICSRAM_RGET_FIFO_FULL), 6);
    assert_eq!(users[0].read64(COUNTERS), count * 8);

    for _ in 0..40 {
        users[0].take(&mut rig.bed, 0);
        rig.settle();
    }
    assert_eq!(users[0].read64(COUNTERS), 0);
    for index in 0..count {
        assert_eq!(users[0].read64(DATA + index * 8), index);
    }
}

#[test]
fn a_fifo_of_high_priority_goes_first() {
    let (mut rig, mut users) = Rig::pair();
    users[0].set(&mut rig.bed, reg::HIGH_PRIORITY, 1 << 5);
    users[0].set(&mut rig.bed, reg::DISABLE, 0x7f);
    for fifo in 0..6 {
        for index in 0..8 {
            let mut message = WAY.fifo(0, PAYLOAD, 0);
            message.torus_fifo_map = 0x8000;
            message.packet_header.unit.unused = [fifo as u8, index];
            users[0].inject(&mut rig.bed, fifo, &message);
        }
    }
    users[0].set(&mut rig.bed, reg::ENABLE, 0x3f);
    rig.until(|_| users[1].packets(0).0.len() == 48);

    let order: Vec<_> = users[1].packets(0).0.iter().map(|(header, _)| header.unit.unused).collect();
    assert!(order[..8].iter().all(|[fifo, _]| *fifo == 5), "{order:?}");
    for fifo in 0..6 {
        let own: Vec<_> = order.iter().filter(|sent| sent[0] == fifo).map(|sent| sent[1]).collect();
        assert_eq!(own, [0, 1, 2, 3, 4, 5, 6, 7], "a FIFO's messages are sent in order");
    }
    // The others take turns: none has all of its packets in front.
    let changes = order[8..].windows(2).filter(|pair| pair[0][0] != pair[1][0]).count();
    assert!(changes > 10, "{order:?}");
}

#[test]
fn prefetches_of_high_priority_delay_nobody_elses_messages() {
    let mut rig = Rig::new(&[2], Options::default());
    let (mut greedy, mut other) = (rig.user(0, 0), rig.user(0, 1));
    let receiver = rig.user(1, 0);
    greedy.set(&mut rig.bed, reg::HIGH_PRIORITY, 1);

    const BYTES: usize = 4 << 20;
    for _ in 0..60 {
        let mut prefetch = WAY.fifo(0, PAYLOAD, BYTES);
        prefetch.prefetch_only = 1;
        greedy.inject(&mut rig.bed, 0, &prefetch);
    }
    other.inject(&mut rig.bed, 0, &WAY.fifo(0, PAYLOAD, 64));

    rig.until(|_| receiver.packets(0).0.len() == 1);
    assert!(rig.counter(0, "prefetched") < BYTES as u64, "the message came behind the prefetches");
}

#[test]
fn a_get_that_can_never_fit_is_dropped() {
    let (mut rig, mut users) = Rig::pair();
    users[1].set(&mut rig.bed, reg::DISABLE, 1 << 6);
    let base = reg::INJECTION + 6 * reg::FIFO;
    users[1].set(&mut rig.bed, base + reg::SIZE_1, 2 * 64 - 1);
    users[1].set(&mut rig.bed, reg::ENABLE, 1 << 6);

    let block = Way { from: 1, to: 0 }.fifo(0, PAYLOAD, 8);
    for slot in 0..2 {
        users[0].write(PAYLOAD + 64 * slot, block.as_bytes());
    }
    users[0].inject(&mut rig.bed, 0, &WAY.get(6, PAYLOAD, 2 * 64));
    rig.until(|_| users[1].shown(reg::DROPPED) == 1);

    // One descriptor has room, and what comes after the get is not delayed.
    users[0].inject(&mut rig.bed, 0, &WAY.get(6, PAYLOAD, 64));
    rig.until(|_| users[0].packets(0).0.len() == 1);
}

#[test]
fn a_get_goes_on_when_software_takes_a_tail_back() {
    let (mut rig, mut users) = Rig::pair();
    // The unit fetches nothing while its engines are stopped, so the FIFO stays full.
    let kernel = rig.kernel(1);
    kernel.set_control(&mut rig.bed, IME_ENABLE, 0);
    let register = reg::INJECTION + 6 * reg::FIFO;
    let start = users[1].get(&mut rig.bed, register + reg::START);
    let block = Way { from: 1, to: 0 }.fifo(0, PAYLOAD, 8);
    for slot in 0..64 {
        users[1].write(start + 64 * slot, block.as_bytes());
    }
    users[1].post(&mut rig.bed, register + reg::TAIL, start + 63 * 64);
    rig.settle();

    users[0].write(PAYLOAD, block.as_bytes());
    users[0].inject(&mut rig.bed, 0, &WAY.get(6, PAYLOAD, 64));
    rig.settle();
    assert!(rig.counter(1, "receive_waits") > 0);
    assert_eq!(rig.counter(1, "get_packets"), 0);

    users[1].post(&mut rig.bed, register + reg::TAIL, start + 64);
    rig.until(|rig| rig.counter(1, "get_packets") == 1);
}

#[test]
fn a_disabled_fifo_keeps_its_descriptors() {
    let (mut rig, mut users) = Rig::pair();
    users[0].set(&mut rig.bed, reg::DISABLE, 1);
    users[0].inject(&mut rig.bed, 0, &WAY.fifo(0, PAYLOAD, 8));
    rig.settle();
    assert_eq!((users[0].done(0), users[0].shown(reg::IS_ENABLED)), (0, 0x7e));

    users[0].set(&mut rig.bed, reg::ENABLE, 1);
    rig.until(|_| users[0].done(0) == 1);
    assert_eq!(users[0].shown(reg::IS_ENABLED), 0x7f);
}

#[test]
fn packets_that_wait_for_a_fifo_are_dropped_when_it_is_disabled() {
    let (mut rig, mut users) = Rig::pair();
    users[0].inject(&mut rig.bed, 0, &WAY.fifo(3, PAYLOAD, 3 * RECEPTION_BYTES as usize));
    rig.settle();
    assert_eq!(users[0].done(0), 0);

    users[1].set(&mut rig.bed, reg::RECEPTION_ENABLE, 0b0111);
    rig.until(|_| users[0].done(0) == 1);
    rig.settle();
    assert!(users[1].shown(reg::DROPPED) > 0);
}

#[test]
fn gets_that_wait_are_dropped_when_their_fifo_stops_or_is_taken_back() {
    for register in [(reg::REMOTE_GET, 0), (reg::DISABLE, 1 << 6)] {
        let (mut rig, mut users) = Rig::pair();
        let block = Way { from: 1, to: 0 }.fifo(0, PAYLOAD, 3 * RECEPTION_BYTES as usize);
        for slot in 0..80 {
            users[0].write(PAYLOAD + 64 * slot, block.as_bytes());
        }
        users[0].inject(&mut rig.bed, 0, &WAY.get(6, PAYLOAD, 64 * 80));
        rig.settle();
        assert!(rig.counter(1, "receive_waits") > 0);
        assert_eq!(users[1].shown(reg::DROPPED), 0);

        users[1].set(&mut rig.bed, register.0, register.1);
        rig.settle();
        assert!(users[1].shown(reg::DROPPED) > 0, "{register:?}");
    }
}

#[test]
fn descriptors_are_fetched_while_no_engine_is_idle() {
    let mut rig = Rig::new(&[2], Options::default());
    let (kernel, mut sender, receiver) = (rig.kernel(0), rig.user(0, 0), rig.user(1, 0));
    kernel.set_control(&mut rig.bed, IME_ENABLE, 0);
    sender.write(PAYLOAD, &pattern(1, 64));
    sender.write(PAYLOAD + 64, &pattern(2, 64));

    // Each FIFO has two descriptors. The unit holds the first ones, and not yet the second ones.
    for fifo in 0..3 {
        for _ in 0..2 {
            sender.inject(&mut rig.bed, fifo, &WAY.fifo(0, PAYLOAD, 64));
        }
    }
    rig.settle();
    for fifo in 0..3 {
        let start = sender.get(&mut rig.bed, reg::INJECTION + fifo * reg::FIFO + reg::START);
        let other = WAY.fifo(0, PAYLOAD + 64, 64);
        for slot in 0..2 {
            sender.write(start + slot * DESCRIPTOR, other.as_bytes());
        }
    }

    kernel.set_control(&mut rig.bed, IME_ENABLE, u16::MAX.into());
    rig.until(|_| receiver.packets(0).0.len() == 6);
    let packets = receiver.packets(0).0;
    let first = packets.iter().filter(|(_, payload)| *payload == pattern(1, 64)).count();
    let second = packets.iter().filter(|(_, payload)| *payload == pattern(2, 64)).count();
    assert_eq!((first, second), (3, 3));
}
