//! Disks.

use nicforge_test_body::body;
use nicforge_virtio::registers::{DEVICE, common, feature};
use nicforge_virtio_devices::blk::{
    MAX_IN_FLIGHT,
    image::{CLUSTER, SECTOR},
    registers::{self, FLUSH, GET_ID, ID_BYTES, IN, OUT, REQUESTS, Status},
};

use super::{
    CHANGES, MACHINE, SECTORS,
    driver::{ALL, Piece, Virtio},
    sector,
};
use crate::{backing::Rig, virtio_body::driver::SLOT};

/// Status of a request that is done.
pub(super) const OK: u8 = Status::Ok as u8;
/// Status of a request that failed.
pub(super) const IO_ERROR: u8 = Status::IoError as u8;
/// Status of a request of an unknown kind.
const UNSUPPORTED: u8 = Status::Unsupported as u8;

/// Returns the header of a request.
pub(super) fn header(kind: u32, sector: u64) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat()
}

/// Sends a request with `out` bytes to the device and room for `available` bytes. Returns the
/// status, and the bytes that came.
fn request(disk: &mut Virtio, kind: u32, sector: u64, out: &[u8], available: usize) -> (u8, Vec<u8>) {
    let (status, written, mut data) = exchange(disk, kind, sector, out, available);
    data.truncate(written);
    (status, data)
}

/// Sends a request as [`request`] does. Returns the status, the used length, and all bytes of the
/// room before the status.
fn exchange(disk: &mut Virtio, kind: u32, sector: u64, out: &[u8], available: usize) -> (u8, usize, Vec<u8>) {
    let header = header(kind, sector);
    let mut pieces = vec![Piece::Out(&header)];
    pieces.extend(out.chunks(SLOT as usize).map(Piece::Out));
    let first = pieces.len();
    let rooms = available.div_ceil(SLOT as usize);
    pieces.extend((0..rooms).map(|at| Piece::In((available - at * SLOT as usize).min(SLOT as usize))));
    pieces.push(Piece::In(1));

    let head = disk.submit(REQUESTS, &pieces);
    let (used, written) = disk.wait_used(REQUESTS);
    assert_eq!(used, head);
    let status = disk.piece(REQUESTS, head, pieces.len() - 1, 1)[0];
    let mut data = Vec::new();
    for (number, piece) in pieces.iter().enumerate().take(pieces.len() - 1).skip(first) {
        if let Piece::In(length) = piece {
            data.extend(disk.piece(REQUESTS, head, number, *length));
        }
    }
    disk.free(REQUESTS, head);
    (status, written as usize, data)
}

/// Reads sectors, and asserts that the disk returns them.
fn read(disk: &mut Virtio, first: u64, count: u64) -> Vec<u8> {
    let (status, data) = request(disk, IN, first, &[], (count * SECTOR) as usize);
    assert_eq!((status, data.len() as u64), (OK, count * SECTOR));
    data
}

/// Writes sectors. Returns the status.
fn write(disk: &mut Virtio, first: u64, data: &[u8]) -> u8 {
    request(disk, OUT, first, data, 0).0
}

/// Returns the content of sectors in the file.
fn original(first: u64, count: u64) -> Vec<u8> {
    (first..first + count).flat_map(sector).collect()
}

/// A driver reads the content of the file, up to its last sector.
#[body]
pub fn sectors_are_those_of_the_file(rig: &dyn Rig) {
    for name in ["disk0", "disk1"] {
        let mut disk = Virtio::open(rig, name);
        assert_eq!(disk.bar.read64(DEVICE).unwrap(), SECTORS);
        for (first, count) in [(0, 1), (7, 9), (1, 60), (SECTORS - 1, 1), (SECTORS - 40, 40)] {
            assert_eq!(read(&mut disk, first, count), original(first, count));
        }
    }
}

/// Written sectors are read back, also by the next driver and after a reset by the operator.
#[body]
pub fn changes_stay(rig: &dyn Rig) {
    let mut disk = Virtio::open(rig, "disk0");
    let mut expected = original(0, 64);
    for (first, count) in [(3_u64, 1_u64), (6, 4), (16, 8), (40, 17)] {
        let data: Vec<u8> = (0..count * SECTOR).map(|at| (at * 3 + first) as u8).collect();
        assert_eq!(write(&mut disk, first, &data), OK);
        let range = (first * SECTOR) as usize..((first + count) * SECTOR) as usize;
        expected[range].copy_from_slice(&data);
    }
    assert_eq!(request(&mut disk, FLUSH, 0, &[], 0).0, OK);
    assert_eq!(read(&mut disk, 0, 64), expected);
    assert_eq!(write(&mut disk, SECTORS - 1, &[7; 512]), OK);

    let disk = disk.restart(feature::VERSION_1);
    rig.reset("disk0");
    let mut disk = disk.restart(ALL);
    assert_eq!(read(&mut disk, 0, 64), expected);
    assert_eq!(read(&mut disk, SECTORS - 1, 1), [7; 512]);

    // The other disk has the same contents, and none of the changes.
    assert_eq!(read(&mut Virtio::open(rig, "disk1"), 0, 64), original(0, 64));
    assert_eq!(rig.counter("disk0", "io_errors"), 0);
}

/// Requests that a disk can't carry out return an error status, and the device continues to work.
#[body]
pub fn requests_outside_the_disk_are_errors(rig: &dyn Rig) {
    let mut disk = Virtio::open(rig, "disk0");
    for (first, bytes) in [
        (SECTORS, 512),
        (SECTORS - 1, 1024),
        (u64::MAX, 512),
        (u64::MAX - 1, 1024),
        (0, 0),
        (0, 100),
        (0, 513),
    ] {
        assert_eq!(request(&mut disk, IN, first, &[], bytes), (IO_ERROR, Vec::new()), "{first} {bytes}");
        assert_eq!(write(&mut disk, first, &vec![1; bytes]), IO_ERROR, "{first} {bytes}");
    }
    for kind in [2, 3, 11, 13, u32::MAX] {
        assert_eq!(request(&mut disk, kind, 0, &[], 512).0, UNSUPPORTED, "{kind}");
    }

    assert_eq!(read(&mut disk, 0, 4), original(0, 4));
    assert_eq!(rig.counter("disk0", "io_errors"), 14);
    assert_eq!(rig.counter("disk0", "unsupported"), 5);
    assert_eq!(rig.counter("disk0", "queue_errors"), 0);
}

/// A read-only disk reports that in its features, and refuses writes.
#[body]
pub fn a_read_only_disk_takes_no_writes(rig: &dyn Rig) {
    let mut disk = Virtio::open(rig, "disk1");
    let offered = disk.bar.read32(common::DEVICE_FEATURE).unwrap();
    assert_ne!(offered & registers::feature::READ_ONLY as u32, 0);
    assert_eq!(write(&mut disk, 0, &[1; 512]), IO_ERROR);
    assert_eq!(request(&mut disk, FLUSH, 0, &[], 0).0, OK);
    assert_eq!(read(&mut disk, 0, 1), original(0, 1));
}

/// Changes have a limit. Writes beyond it fail, and those to changed clusters do not.
#[body]
pub fn changes_beyond_the_limit_are_errors(rig: &dyn Rig) {
    let mut disk = Virtio::open(rig, "disk0");
    let per_cluster = CLUSTER / SECTOR;
    for cluster in 0..CHANGES {
        assert_eq!(write(&mut disk, cluster * per_cluster, &[1; 512]), OK);
    }
    assert_eq!(write(&mut disk, CHANGES * per_cluster, &[1; 512]), IO_ERROR);
    assert_eq!(write(&mut disk, 1, &[2; 512]), OK);
    assert_eq!(read(&mut disk, CHANGES * per_cluster, 1), original(CHANGES * per_cluster, 1));
    assert_eq!(read(&mut disk, 1, 1), [2; 512]);
}

/// A disk has a name, of which a short buffer gets the beginning.
#[body]
pub fn a_disk_has_a_name(rig: &dyn Rig) {
    let mut disk = Virtio::open(rig, "disk0");
    let (status, name) = request(&mut disk, GET_ID, 0, &[], ID_BYTES);
    assert_eq!((status, &name[..]), (OK, &b"nicforge-disk0\0\0\0\0\0\0"[..]));
    assert_eq!(request(&mut disk, GET_ID, 0, &[], 8), (OK, b"nicforge".to_vec()));
    assert_eq!(request(&mut disk, GET_ID, 0, &[], 0), (OK, Vec::new()));
}

/// The used length is that of the bytes written without a gap from the buffer's start on, whose
/// last one is the status only if the data reach it (2.7.8.2).
#[body]
pub fn used_lengths_count_no_byte_that_was_not_written(rig: &dyn Rig) {
    let mut disk = Virtio::open(rig, "disk0");
    let sector = [5; SECTOR as usize];

    for (kind, first, out, available, used) in [
        (IN, 0, &[][..], 512, 513),
        (OUT, 0, &sector[..], 0, 1),
        (FLUSH, 0, &[], 0, 1),
        (GET_ID, 0, &[], ID_BYTES, ID_BYTES + 1),
        (GET_ID, 0, &[], 8, 9),
        // The room is longer than the data, so there is a gap before the status.
        (GET_ID, 0, &[], ID_BYTES + 1, ID_BYTES),
        (GET_ID, 0, &[], 512, ID_BYTES),
        (FLUSH, 0, &[], 64, 0),
        // Failed requests have no data.
        (IN, SECTORS, &[], 512, 0),
        (IN, 0, &[], 100, 0),
        (IN, 0, &[], 0, 1),
        (OUT, SECTORS, &sector, 0, 1),
        (u32::MAX, 0, &[], 512, 0),
    ] {
        let (_, written, data) = exchange(&mut disk, kind, first, out, available);
        assert_eq!(written, used, "kind {kind}, sector {first}, room for {available}");
        // The driver has filled the room with these bytes.
        let rest = &data[used.min(available)..];
        assert!(rest.iter().all(|byte| *byte == 0xee), "kind {kind}, sector {first}, room for {available}");
    }
}

/// Offers a read of one sector for each of `sectors`. Returns the head of each chain with its
/// sector.
fn offer_reads(disk: &mut Virtio, sectors: impl Iterator<Item = u64>) -> Vec<(u16, u64)> {
    let read = |number| {
        let header = header(IN, number);
        (disk.offer(REQUESTS, &[Piece::Out(&header), Piece::In(512), Piece::In(1)]), number)
    };
    let heads = sectors.map(read).collect();
    disk.notify(REQUESTS);
    heads
}

/// More requests than the device takes at a time are all answered, and the last one interrupts.
#[body]
pub fn many_requests_at_once_are_all_answered(rig: &dyn Rig) {
    let mut disk = Virtio::open(rig, "disk0");
    let interrupt = disk.device.interrupt(1).unwrap();
    let count = MAX_IN_FLIGHT as u64 + 4;
    disk.queues[REQUESTS].ask_for_interrupt(Some(0));

    let heads = offer_reads(&mut disk, (0..count).map(|number| number * 31));
    interrupt.wait(crate::backing::test_deadline(), None).unwrap();
    for _ in 0..count {
        let (used, written) = disk.wait_used(REQUESTS);
        let (_, number) = heads.iter().find(|(head, _)| *head == used).expect("a head that was offered");
        assert_eq!((written, disk.piece(REQUESTS, used, 2, 1)), (513, vec![OK]));
        assert_eq!(disk.piece(REQUESTS, used, 1, 512), sector(*number));
        disk.free(REQUESTS, used);
    }
}

/// A reset with requests in flight forgets them: the next driver gets its own answers alone.
#[body]
pub fn a_reset_in_mid_request_starts_anew(rig: &dyn Rig) {
    let mut disk = Virtio::open(rig, "disk0");
    for round in 0..20 {
        offer_reads(&mut disk, (0..20).map(|number| number + round));
        disk = disk.restart(ALL);
        assert_eq!(read(&mut disk, round, 3), original(round, 3));
        assert_eq!(disk.queues[REQUESTS].take_used(), None);
    }
    assert_eq!(rig.counter("disk0", "queue_errors"), 0);
}
