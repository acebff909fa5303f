//! Checksums that the driver leaves to the device.

use nicforge_test_body::body;
use nicforge_virtio_net::registers::{FrameHeader, NEEDS_CHECKSUM, feature};

use super::{
    DIRECT, MACHINE,
    driver::{ALL, LEAST, Nic, Shape},
    frame, mac,
};
use crate::backing::Rig;

/// Offset in a frame of the first byte that the checksum covers.
const START: usize = 34;
/// Offset of the checksum's field after [`START`].
const FIELD: usize = 16;
/// Bytes of the frame: the last word of the sum is half a word.
const LENGTH: usize = 133;

/// Returns the header of a frame with a partial checksum.
fn partial_header() -> FrameHeader {
    FrameHeader {
        flags: NEEDS_CHECKSUM,
        checksum_start: (START as u16).to_le_bytes(),
        checksum_offset: (FIELD as u16).to_le_bytes(),
        ..FrameHeader::default()
    }
}

/// Returns the frame with its checksum, computed word by word as RFC 1071 describes it.
fn completed(mut frame: Vec<u8>) -> Vec<u8> {
    let mut sum = 0_u32;
    for (at, byte) in frame[START..].iter().enumerate() {
        sum += u32::from(*byte) << if at % 2 == 0 { 8 } else { 0 };
        sum = (sum & 0xffff) + (sum >> 16);
    }

    frame[START + FIELD..START + FIELD + 2].copy_from_slice(&(!sum as u16).to_be_bytes());
    frame
}

/// A driver that takes partial checksums gets the frame and its header as they were sent.
#[body(on(MACHINE, DIRECT))]
pub fn a_partial_checksum_travels_with_its_frame(rig: &dyn Rig) {
    let (mut sender, mut receiver) = (Nic::open(rig, "en0", ALL), Nic::open(rig, "en1", ALL));
    let sent = frame(mac(1), mac(0), LENGTH, 7);

    sender.send_as(partial_header(), &sent, &[], Shape::Direct);

    let (header, received) = receiver.receive();
    assert_eq!(header, FrameHeader { buffers: [1, 0], ..partial_header() });
    assert_eq!(received, sent);
    assert_eq!(rig.counter("en1", "checksums"), 0);
}

/// A driver that takes no partial checksums gets the frame with its checksum completed, also when
/// the switch has copied the frame.
#[body(on(MACHINE, DIRECT))]
pub fn a_partial_checksum_is_completed_for_a_driver_that_takes_none(rig: &dyn Rig) {
    let (mut sender, mut receiver) = (Nic::open(rig, "en0", ALL), Nic::open(rig, "en1", LEAST));

    for seed in 0..5 {
        let sent = frame(mac(1), mac(0), LENGTH, seed);
        sender.send_as(partial_header(), &sent, &[], Shape::Direct);

        let (header, received) = receiver.receive();
        assert_eq!(header.flags, 0);
        assert_eq!(received, completed(sent));
    }

    assert_eq!(rig.counter("en1", "checksums"), 5);
}

/// A checksum outside the frame is an error of the sender, whose frame is dropped.
#[body]
pub fn a_checksum_outside_its_frame_is_dropped(rig: &dyn Rig) {
    let (mut sender, mut receiver) = (Nic::open(rig, "en0", ALL), Nic::open(rig, "en1", ALL));
    let good = frame(mac(1), mac(0), LENGTH, 1);
    let starts = [LENGTH - FIELD - 1, LENGTH, usize::from(u16::MAX)];

    for start in starts {
        let header = FrameHeader { checksum_start: (start as u16).to_le_bytes(), ..partial_header() };
        sender.send_as(header, &good, &[], Shape::Direct);
    }
    sender.send(&good);

    assert_eq!(receiver.receive().1, good);
    assert_eq!(rig.counter("en0", "bad_header"), starts.len() as u64);
}

/// The flag of a partial checksum has no meaning for a driver that has not accepted the feature.
#[body]
pub fn the_flag_of_a_partial_checksum_is_ignored_without_the_feature(rig: &dyn Rig) {
    let mut sender = Nic::open(rig, "en0", ALL & !feature::CSUM);
    let mut receiver = Nic::open(rig, "en1", ALL);
    let sent = frame(mac(1), mac(0), LENGTH, 7);

    sender.send_as(partial_header(), &sent, &[], Shape::Direct);

    let (header, received) = receiver.receive();
    assert_eq!((header.flags, received), (0, sent));
}
