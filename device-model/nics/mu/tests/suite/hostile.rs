//! Random descriptors and registers: no panic, no foreign memory, and others go on.

use nicforge_hwi::mu::{atomic, reg};
use nicforge_hwi::mu_packet::{Descriptor, kind};
use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

use crate::common::{COUNTERS, DATA, MEMORY, MEMORY_BYTES, PAYLOAD, Rig, User, Way};

/// Returns a descriptor whose fields are random, but often possible.
fn descriptors() -> impl Strategy<Value = Descriptor> {
    let address = prop_oneof![
        (MEMORY..MEMORY + MEMORY_BYTES as u64),
        (0..8_u64).prop_map(|operation| atomic::INDICATOR | PAYLOAD | operation),
        any::<u64>(),
    ];
    let length = prop_oneof![0..2000_u64, Just(8), Just(64), Just(128), any::<u64>()];
    let map = prop_oneof![
        Just(0xffc0_u64),
        Just(0x30),
        Just(0xffff),
        (0..16).prop_map(|bit| 1_u64 << bit),
        any::<u64>()
    ];
    let parts = (address, length, map, any::<[u8; 32]>(), 0..3_u32, any::<u32>());

    (parts, 0..4_u8, 0..8_u8, 0..3_u8, any::<bool>()).prop_map(
        |((address, length, map, header, flags, prefetch), packet_type, channel, to, is_plain)| {
            let mut descriptor = Descriptor {
                pa_payload: address,
                message_length: length,
                torus_fifo_map: map,
                interrupt: flags,
                prefetch_only: if prefetch % 8 == 0 { prefetch } else { 0 },
                packet_header: FromBytes::read_from_bytes(&header).unwrap(),
            };
            let header = &mut descriptor.packet_header;
            header.data_packet_type = if flags == 2 { kind::COLLECTIVE } else { kind::POINT_TO_POINT };
            header.set_packet_type(packet_type);
            header.set_channel(channel);
            header.destination = nicforge_hwi::mu_packet::Destination::new([to, 0, 0, 0, 0]);
            if is_plain {
                (header.byte1, header.byte2) = (0, 0);
                header.set_channel(1);
                header.set_payload_bytes(512);
            }
            descriptor
        },
    )
}

/// Returns all of a client's memory.
fn all(user: &User) -> Vec<u8> {
    user.read(MEMORY, MEMORY_BYTES)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn random_descriptors_touch_no_memory_that_nobody_offered(
        messages in proptest::collection::vec((0..6_usize, descriptors()), 1..40),
    ) {
        let (mut rig, mut users) = Rig::pair();
        // A client that has set up nothing, and one whose reception FIFOs alone are enabled.
        let bare = User::attach_bare(&mut rig.bed, rig.functions[1], 1);
        let bare_local = User::attach_bare(&mut rig.bed, rig.functions[0], 1);
        let before = [all(&bare), all(&bare_local)];

        for (fifo, message) in &messages {
            users[0].inject(&mut rig.bed, *fifo, message);
            rig.settle();
            users[0].set(&mut rig.bed, reg::DISABLE, 1 << fifo);
            users[0].set(&mut rig.bed, reg::INJECTION + *fifo as u64 * reg::FIFO + reg::HEAD,
                users[0].get_tail(*fifo));
            users[0].set(&mut rig.bed, reg::ENABLE, 1 << fifo);
        }
        rig.settle();
        prop_assert!(before[0] == all(&bare) && before[1] == all(&bare_local));

        // Another client's messages arrive. The network may hold packets for full FIFOs, so those
        // are emptied first.
        for fifo in 0..4 {
            for node in [0, 1] {
                users[node].take(&mut rig.bed, fifo);
            }
        }
        rig.settle();
        let mut others = [0, 1].map(|node| rig.user(node, 2));
        others[1].write64(COUNTERS, 5000);
        others[0].inject(&mut rig.bed, 0, &Way { from: 0, to: 1 }.put(2, 0, 0, PAYLOAD, 5000));
        rig.until(|_| others[1].read64(COUNTERS) == 0);
        prop_assert_eq!(others[1].read(DATA + 5000, 100), [0; 100]);
    }

    #[test]
    fn random_register_writes_do_no_harm(
        writes in proptest::collection::vec((0..0x700_u64 / 8, prop_oneof![
            any::<u64>(), 0..256_u64, MEMORY..MEMORY + MEMORY_BYTES as u64,
            (MEMORY / 64..(MEMORY + MEMORY_BYTES as u64) / 64).prop_map(|line| line * 64),
        ]), 1..200),
    ) {
        let mut rig = Rig::new(&[2], nicforge_mu::Options::default());
        let mut others = [0, 1].map(|node| rig.user(node, 2));
        let mut wild = rig.user(0, 1);
        // Random bytes are descriptors, too.
        let noise: Vec<_> = (0..MEMORY_BYTES / 8).flat_map(|word| (word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect();
        wild.write(MEMORY, noise.as_bytes());
        for (register, value) in writes {
            wild.post(&mut rig.bed, register * 8, value);
            rig.step();
        }
        rig.settle();

        others[1].write64(COUNTERS, 5000);
        others[0].inject(&mut rig.bed, 0, &Way { from: 0, to: 1 }.put(2, 0, 0, PAYLOAD, 5000));
        rig.until(|_| others[1].read64(COUNTERS) == 0);
    }
}
