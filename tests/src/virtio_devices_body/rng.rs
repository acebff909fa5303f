//! The source of random bytes.

use std::collections::HashSet;

use nicforge_test_body::body;
use nicforge_virtio::registers::feature;
use nicforge_virtio_devices::rng::{BLOCK, REQUESTS};

use super::{
    MACHINE,
    driver::{ALL, Piece, Virtio},
    hostile::NOWHERE,
};
use crate::{
    backing::{Rig, test_deadline},
    virtio_body::driver::{DriverQueue, NEXT, WRITE},
};

/// Returns the random bytes that a buffer of `length` bytes gets.
fn draw(rng: &mut Virtio, length: usize) -> Vec<u8> {
    let head = rng.submit(REQUESTS, &[Piece::In(length)]);
    let (used, written) = rng.wait_used(REQUESTS);
    assert_eq!(used, head);
    let bytes = rng.piece(REQUESTS, head, 0, written as usize);
    rng.free(REQUESTS, head);
    bytes
}

/// Buffers of all lengths get bytes, which differ from buffer to buffer.
#[body]
pub fn buffers_get_random_bytes(rig: &dyn Rig) {
    for features in [ALL, feature::VERSION_1] {
        let mut rng = Virtio::start(rig.open("rng0", "user0"), features);
        let mut blocks = HashSet::new();
        let mut total = 0;
        for length in [2048, 16, 1, 700, 2048, 64, 2048] {
            let bytes = draw(&mut rng, length);
            assert!((1..=length.min(BLOCK)).contains(&bytes.len()));
            total += bytes.len();
            blocks.extend(bytes.chunks_exact(16).map(<[u8]>::to_vec));
        }
        // Equal pieces of 16 random bytes do not occur, and neither does a piece of zeros.
        assert!(blocks.len() >= (total - 7 * 16) / 16 && !blocks.contains(&vec![0; 16]));
    }
    assert!(rig.counter("rng0", "buffers") >= 14);
}

/// The bytes of one buffer may lie in several pieces, and buffers wait until there are bytes.
#[body]
pub fn many_buffers_of_several_pieces_come_back(rig: &dyn Rig) {
    let mut rng = Virtio::open(rig, "rng0");
    let interrupt = rng.device.interrupt(1).unwrap();
    rng.queues[REQUESTS].ask_for_interrupt(Some(0));
    let heads: Vec<_> =
        (0..16).map(|_| rng.submit(REQUESTS, &[Piece::In(1), Piece::In(700), Piece::In(3)])).collect();

    interrupt.wait(test_deadline(), None).unwrap();
    for head in heads {
        let (used, written) = rng.wait_used(REQUESTS);
        assert_eq!(used, head);
        assert!((1..=704).contains(&written));
    }
}

/// A reset while buffers wait forgets them, and the next driver gets bytes.
#[body]
pub fn a_reset_in_mid_request_starts_anew(rig: &dyn Rig) {
    let mut rng = Virtio::open(rig, "rng0");
    for _ in 0..10 {
        for _ in 0..20 {
            rng.offer(REQUESTS, &[Piece::In(2048)]);
        }
        rng.notify(REQUESTS);
        rng = rng.restart(ALL);
        assert!(!draw(&mut rng, 100).is_empty());
    }

    rig.reset("rng0");
    let mut rng = rng.restart(ALL);
    assert!(!draw(&mut rng, 100).is_empty());
}

/// No driver gets bytes that an earlier one has seen, also when a buffer was filled in part.
#[body]
pub fn bytes_of_a_failed_buffer_are_not_given_out_again(rig: &dyn Rig) {
    let mut rng = Virtio::open(rig, "rng0");
    for _ in 0..3 {
        // The last byte of the buffer has no memory.
        let queue = &mut rng.queues[REQUESTS];
        let length = BLOCK as u32 - 1;
        queue.offer_chain(&[(queue.first_buffer(), length, WRITE | NEXT, 1), (NOWHERE, 1, WRITE, 0)]);
        rng.notify(REQUESTS);
        rng.wait_for_failure();

        let mut earlier_bytes = vec![0; BLOCK - 1];
        let queue = &rng.queues[REQUESTS];
        queue.memory.read(DriverQueue::slot(0), &mut earlier_bytes).unwrap();
        rng = rng.restart(ALL);
        let bytes = draw(&mut rng, BLOCK);
        for piece in bytes.chunks_exact(16) {
            assert!(piece != [0; 16] && !earlier_bytes.chunks_exact(16).any(|earlier| earlier == piece));
        }
    }
}
