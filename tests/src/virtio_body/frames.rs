//! Frames of all sizes and in all forms of buffers.

use nicforge_driver::Deadline;
use nicforge_test_body::body;
use nicforge_virtio_net::registers::{FRAME_HEADER, FrameHeader};
use proptest::{prelude::*, test_runner::TestRunner};

use super::{
    CREDITS, DIRECT, LONGEST, MACHINE, PATIENT, SHORTEST,
    driver::{ALL, ENTRIES, LEAST, Nic, Shape},
    frame, mac,
};
use crate::backing::{Rig, test_deadline};

/// Frames on their way at a time. The switch and the receiver have room for as many.
const BATCH: usize = CREDITS as usize / 2;

/// A frame of every size arrives, once, in order and unchanged.
#[body(on(MACHINE, DIRECT))]
pub fn frames_of_every_size_arrive_once_in_order_and_unchanged(rig: &dyn Rig) {
    for features in [ALL, LEAST] {
        let (mut sender, mut receiver) = (Nic::open(rig, "en0", features), Nic::open(rig, "en1", features));

        let sizes: Vec<_> = (SHORTEST..=LONGEST).collect();
        for batch in sizes.chunks(BATCH) {
            let frames = batch.iter().map(|&size| frame(mac(1), mac(0), size, size)).collect::<Vec<_>>();
            frames.iter().for_each(|frame| sender.send(frame));

            for sent in &frames {
                let (header, received) = receiver.receive();
                assert_eq!(received, *sent);
                assert_eq!(header, FrameHeader { buffers: [1, 0], ..FrameHeader::default() });
            }
        }

        sender.finish_sending();
        assert!(receiver.receive_until(Deadline::now()).is_err(), "each frame arrives once");
    }
}

/// A frame arrives unchanged however its buffer is cut, and so does what follows it.
#[body]
pub fn a_frame_in_pieces_arrives_as_one(rig: &dyn Rig) {
    let (sender, receiver) = (Nic::open(rig, "en0", ALL), Nic::open(rig, "en1", ALL));
    let nics = std::cell::RefCell::new((sender, receiver));

    let frames = prop::collection::vec(
        (SHORTEST..=LONGEST, prop::collection::btree_set(1..SHORTEST + FRAME_HEADER, 0..12), any::<bool>()),
        1..BATCH,
    );
    let mut runner =
        TestRunner::new(ProptestConfig { cases: 30, failure_persistence: None, ..Default::default() });

    let outcome = runner.run(&frames, |frames| {
        let (sender, receiver) = &mut *nics.borrow_mut();
        for (seed, (size, cuts, indirect)) in frames.iter().enumerate() {
            let cuts: Vec<_> = cuts.iter().copied().collect();
            let shape = if *indirect { Shape::Indirect } else { Shape::Direct };
            sender.send_as(FrameHeader::default(), &frame(mac(1), mac(0), *size, seed), &cuts, shape);
        }

        for (seed, (size, ..)) in frames.iter().enumerate() {
            let (_, received) = receiver.receive();
            prop_assert_eq!(received, frame(mac(1), mac(0), *size, seed));
        }

        Ok(())
    });

    outcome.unwrap();
}

/// A frame that is too short or too long is dropped and counted. The next one arrives.
#[body]
pub fn frames_too_short_or_too_long_are_dropped(rig: &dyn Rig) {
    let (mut sender, mut receiver) = (Nic::open(rig, "en0", ALL), Nic::open(rig, "en1", ALL));
    let longest = frame(mac(1), mac(0), LONGEST + 1, 0);

    for length in [0, 1, SHORTEST - 1, LONGEST + 1] {
        sender.send(&longest[..length]);
    }
    let good = frame(mac(1), mac(0), 100, 1);
    sender.send(&good);

    assert_eq!(receiver.receive().1, good);
    sender.finish_sending();
    assert_eq!(rig.counter("en0", "bad_length"), 4);
    assert_eq!(rig.counter("en0", "sent"), 1);
}

/// A frame that asks for segmentation is dropped: the device does not offer it.
#[body]
pub fn a_frame_for_segmentation_is_dropped(rig: &dyn Rig) {
    let (mut sender, mut receiver) = (Nic::open(rig, "en0", ALL), Nic::open(rig, "en1", ALL));
    let good = frame(mac(1), mac(0), 100, 1);

    let header = FrameHeader { gso_type: 1, segment_size: [100, 0], ..FrameHeader::default() };
    sender.send_as(header, &good, &[], Shape::Direct);
    sender.send(&good);

    assert_eq!(receiver.receive().1, good);
    assert_eq!(rig.counter("en0", "bad_header"), 1);
}

/// Received frames wait for buffers, and none of them is lost.
#[body(on(PATIENT))]
pub fn frames_wait_for_buffers_for_a_while(rig: &dyn Rig) {
    let (mut sender, mut receiver) = (Nic::open(rig, "en0", ALL), Nic::open(rig, "en1", ALL));
    let all = usize::from(ENTRIES) + BATCH;

    for seed in 0..all {
        sender.send(&frame(mac(1), mac(0), 60, seed));
    }

    // The frames beyond the receiver's buffers stand on the link meanwhile.
    for seed in 0..all {
        assert_eq!(receiver.receive().1, frame(mac(1), mac(0), 60, seed));
    }
}

/// A receiver that offers no buffers loses frames, and holds up its sender for a while only.
#[body(on(DIRECT))]
pub fn a_receiver_without_buffers_does_not_block_its_sender(rig: &dyn Rig) {
    let (mut sender, mut receiver) = (Nic::open(rig, "en0", ALL), Nic::open(rig, "en1", ALL));
    let lost = 4 * usize::from(ENTRIES);

    for seed in 0..usize::from(ENTRIES) + lost {
        sender.send(&frame(mac(1), mac(0), 60, seed));
    }
    sender.finish_sending();

    for seed in 0..usize::from(ENTRIES) {
        let (_, received) = receiver.receive_until(test_deadline()).unwrap();
        assert_eq!(received, frame(mac(1), mac(0), 60, seed));
    }

    let dropped = || rig.counter("en1", "no_buffer") >= (lost - CREDITS as usize) as u64;
    receiver.device.wait_until(test_deadline(), None, dropped).unwrap();
}
