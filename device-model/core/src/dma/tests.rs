//! Tests of the map of client memory, and of DMA through it.

use std::{fs::File, os::fd::AsFd};

use nicforge_shm::{Access, SharedMemory};
use nix::sys::memfd::{MFdFlags, memfd_create};
use proptest::prelude::*;

use super::*;

const PAGE: u64 = 4096;
const BOTH: DmaPermission = DmaPermission::READ_WRITE;

/// Returns new memory with a file of `len` bytes, all zero.
fn memory(len: u64) -> SharedMemory {
    SharedMemory::create("dma-test", len as usize).unwrap()
}

/// Returns a part of `memory` as the backing of a mapping.
fn backing(memory: &SharedMemory, offset: u64, len: u64) -> DmaBacking {
    DmaBacking::Memory(memory.window(offset, len).unwrap())
}

/// Returns a map of two pages at 0x1000, one at 0x3000, and one at 0x5000 that only messages reach.
/// The first two ranges lie in one file in reverse order.
fn mapped() -> (DmaMap, SharedMemory) {
    let memory = memory(3 * PAGE);
    let mut map = DmaMap::new(16);
    map.map(0x1000, 2 * PAGE, BOTH, backing(&memory, PAGE, 2 * PAGE)).unwrap();
    map.map(0x3000, PAGE, BOTH, backing(&memory, 0, PAGE)).unwrap();
    map.map(0x5000, PAGE, BOTH, DmaBacking::Remote).unwrap();
    (map, memory)
}

/// Returns the address and length of each segment of a read, and its offset in its mapping.
fn segments(map: &DmaMap, iova: u64, length: usize) -> Vec<(u64, usize, u64)> {
    map.segments(iova, length, DmaAccess::Read)
        .unwrap()
        .map(|segment| (segment.iova, segment.length, segment.offset))
        .collect()
}

/// Returns the first address of each mapping.
fn starts(map: &DmaMap) -> Vec<u64> {
    map.ranges().map(|range| range.iova).collect()
}

#[test]
fn overlapping_map_is_refused_and_names_the_existing_mapping() {
    let (mut map, _memory) = mapped();

    let overlap = Err(DmaMapError::Overlap { iova: 0x3000, length: PAGE });

    assert_eq!(map.map(0x3000, PAGE, BOTH, DmaBacking::Remote), overlap);
    assert_eq!(map.map(0x3fff, 1, BOTH, DmaBacking::Remote), overlap);
    assert_eq!(
        map.map(0, u64::MAX, BOTH, DmaBacking::Remote),
        Err(DmaMapError::Overlap { iova: 0x1000, length: 2 * PAGE })
    );
    assert_eq!(map.map(0x4000, PAGE, BOTH, DmaBacking::Remote), Ok(()), "a hole that just fits");
    assert_eq!((map.len(), map.bytes()), (4, 5 * PAGE));
}

#[test]
fn map_of_nothing_or_past_the_end_is_refused() {
    let mut map = DmaMap::new(1);

    assert_eq!(map.map(5, 0, BOTH, DmaBacking::Remote), Err(DmaMapError::Zero { iova: 5 }));
    assert_eq!(
        map.map(u64::MAX, 2, BOTH, DmaBacking::Remote),
        Err(DmaMapError::Wraps { iova: u64::MAX, length: 2 })
    );
    assert_eq!(map.map(u64::MAX, 1, BOTH, DmaBacking::Remote), Ok(()), "the last address");
    assert_eq!(segments(&map, u64::MAX, 1), [(u64::MAX, 1, 0)]);
    assert_eq!(
        map.segments(u64::MAX, 2, DmaAccess::Read).err(),
        Some(DmaError::Unmapped { iova: u64::MAX, length: 2 })
    );
}

#[test]
fn map_past_the_quota_is_refused_until_something_is_unmapped() {
    let mut map = DmaMap::new(1);
    map.map(0, PAGE, BOTH, DmaBacking::Remote).unwrap();

    let refused = map.map(PAGE, PAGE, BOTH, DmaBacking::Remote);
    map.unmap(0, PAGE).unwrap();

    assert_eq!(refused, Err(DmaMapError::Quota { quota: 1 }));
    assert_eq!(map.map(PAGE, PAGE, BOTH, DmaBacking::Remote), Ok(()));
}

#[test]
fn map_of_memory_that_does_not_fit_the_range_is_refused() {
    let mut map = DmaMap::new(4);
    let memory = memory(PAGE);
    let read_only =
        SharedMemory::map(memory.fd().unwrap().as_fd(), 0, PAGE as usize, Access::ReadOnly).unwrap();

    let short = map.map(0, 2 * PAGE, BOTH, backing(&memory, 0, PAGE));
    let protected = map.map(0, PAGE, BOTH, backing(&read_only, 0, PAGE));

    assert_eq!(short, Err(DmaMapError::BadBacking { iova: 0, length: 2 * PAGE, window: PAGE }));
    assert_eq!(protected, Err(DmaMapError::NotWritable { iova: 0 }));
    assert_eq!(map.map(0, PAGE, DmaPermission::READ, backing(&read_only, 0, PAGE)), Ok(()));
}

#[test]
fn unmap_of_a_range_removes_every_mapping_in_it() {
    let (mut map, _memory) = mapped();

    map.unmap(0, 0x4800).unwrap();

    assert_eq!((starts(&map), map.bytes()), (vec![0x5000], PAGE));
}

#[test]
fn unmap_that_would_cut_a_mapping_is_refused_and_removes_nothing() {
    let (mut map, _memory) = mapped();

    let front = map.unmap(0x2000, 2 * PAGE);
    let back = map.unmap(0x1000, 0x2800);
    let inside = map.unmap(0x1800, 16);

    assert_eq!(front, Err(DmaMapError::Partial { iova: 0x1000, length: 2 * PAGE }));
    assert_eq!(back, Err(DmaMapError::Partial { iova: 0x3000, length: PAGE }));
    assert_eq!(inside, Err(DmaMapError::Partial { iova: 0x1000, length: 2 * PAGE }));
    assert_eq!(map.len(), 3);
}

#[test]
fn unmap_of_an_unmapped_range_finds_nothing() {
    let (mut map, _memory) = mapped();

    assert_eq!(map.unmap(0x4000, PAGE), Err(DmaMapError::NotFound { iova: 0x4000, length: PAGE }));
    assert_eq!(map.unmap(1 << 32, 1 << 63), Err(DmaMapError::NotFound { iova: 1 << 32, length: 1 << 63 }));
    assert_eq!(map.unmap(0, 0), Err(DmaMapError::Zero { iova: 0 }));
    assert_eq!(map.unmap(2, u64::MAX), Err(DmaMapError::Wraps { iova: 2, length: u64::MAX }));
}

#[test]
fn unmap_releases_the_memory() {
    let (mut map, memory) = mapped();
    map.write_local(0x1000, b"before").unwrap();

    map.unmap(0x1000, 2 * PAGE).unwrap();

    let mut out = [0; 1];

    assert_eq!(map.read_local(0x1000, &mut out), Err(DmaError::Unmapped { iova: 0x1000, length: 1 }));

    let mut kept = [0; 6];
    memory.read(PAGE, &mut kept).unwrap();
    assert_eq!(&kept, b"before");
}

#[test]
fn unmap_all_empties_the_map() {
    let (mut map, _memory) = mapped();

    map.unmap_all();

    assert!(map.is_empty());
    assert_eq!(map.bytes(), 0);
    assert!(
        map.segments(0x1000, 1, DmaAccess::Read).is_err(),
        "the mapping that the last access found is still used"
    );
}

#[test]
fn whole_address_space_in_two_ranges_counts_without_overflow() {
    let mut map = DmaMap::new(2);

    map.map(0, 1 << 63, BOTH, DmaBacking::Remote).unwrap();
    map.map(1 << 63, 1 << 63, BOTH, DmaBacking::Remote).unwrap();

    assert_eq!(map.bytes(), u64::MAX);
    assert_eq!(segments(&map, (1 << 63) - 1, 2), [((1 << 63) - 1, 1, (1 << 63) - 1), (1 << 63, 1, 0)]);

    map.unmap(0, 1 << 63).unwrap();
    assert_eq!(map.bytes(), 1 << 63);
}

#[test]
fn segments_split_an_access_at_the_ends_of_mappings() {
    let (map, _memory) = mapped();

    assert_eq!(segments(&map, 0x2ff0, 0x20), [(0x2ff0, 0x10, 0x1ff0), (0x3000, 0x10, 0)]);
    assert_eq!(segments(&map, 0x1000, 0x3000), [(0x1000, 0x2000, 0), (0x3000, 0x1000, 0)]);
    assert_eq!(segments(&map, 0x9999, 0), []);
}

#[test]
fn segments_of_an_access_with_a_hole_name_the_hole() {
    let (map, _memory) = mapped();

    let hole = map.segments(0x3ff0, 0x2000, DmaAccess::Read).err();

    assert_eq!(hole, Some(DmaError::Unmapped { iova: 0x4000, length: 0x1ff0 }));
}

#[test]
fn segments_of_an_access_without_permission_name_the_place() {
    let (mut map, _memory) = mapped();
    map.map(0x4000, PAGE, DmaPermission::READ, DmaBacking::Remote).unwrap();
    map.map(0x6000, PAGE, DmaPermission::WRITE, DmaBacking::Remote).unwrap();

    let write = map.segments(0x3ff0, 0x20, DmaAccess::Write).err();
    let read = map.segments(0x5ff0, 0x20, DmaAccess::Read).err();

    assert_eq!(write, Some(DmaError::Permission { iova: 0x4000, length: 0x10, write: true }));
    assert_eq!(read, Some(DmaError::Permission { iova: 0x6000, length: 0x10, write: false }));
    assert!(map.segments(0x3ff0, 0x20, DmaAccess::Read).is_ok());
}

#[test]
fn access_that_is_too_long_is_refused() {
    let mut map = DmaMap::new(1);
    map.map(0, 1 << 40, BOTH, DmaBacking::Remote).unwrap();

    assert!(map.segments(0, MAX_DMA, DmaAccess::Write).is_ok());
    let refused = map.segments(0, MAX_DMA + 1, DmaAccess::Write).err();
    assert_eq!(refused, Some(DmaError::TooLong { length: MAX_DMA + 1 }));
}

#[test]
fn access_is_local_only_if_every_part_is_mapped() {
    let (mut map, _memory) = mapped();
    map.map(0x4000, PAGE, BOTH, DmaBacking::Remote).unwrap();

    assert_eq!(map.is_local(0x1000, 0x3000, DmaAccess::Write), Ok(true));
    assert_eq!(map.is_local(0x3ff0, 0x20, DmaAccess::Write), Ok(false));
    assert_eq!(map.is_local(0x5000, 1, DmaAccess::Read), Ok(false));
    assert_eq!(map.is_local(0x6000, 1, DmaAccess::Read), Err(DmaError::Unmapped { iova: 0x6000, length: 1 }));
}

#[test]
fn write_that_is_partly_remote_or_unmapped_writes_nothing() {
    let (mut map, memory) = mapped();

    let unmapped = map.write_local(0x3ff8, &[0xaa; 16]);
    map.map(0x4000, PAGE, BOTH, DmaBacking::Remote).unwrap();
    let remote = map.write_local(0x3ff8, &[0xaa; 16]);

    assert_eq!(unmapped, Err(DmaError::Unmapped { iova: 0x4000, length: 8 }));
    assert_eq!(remote, Err(DmaError::Remote { iova: 0x4000 }));

    let mut out = [1; 8];
    memory.read(0xff8, &mut out).unwrap();
    assert_eq!(out, [0; 8]);
}

#[test]
fn a_transfer_over_several_mappings_moves_every_byte() {
    let (map, memory) = mapped();
    let pattern: Vec<u8> = (0..0x900_u32).map(|byte| (byte % 251) as u8).collect();

    map.write_local(0x2a00, &pattern).unwrap();

    let mut out = vec![0; pattern.len()];
    map.read_local(0x2a00, &mut out).unwrap();
    assert_eq!(out, pattern);

    let mut behind = vec![0; 0x300];
    memory.read(0, &mut behind).unwrap();
    assert_eq!(behind, pattern[0x600..], "the second mapping is at the front of the file");
}

#[test]
fn dma_to_a_truncated_file_faults_and_gives_zeros() {
    let file = resizable_file();
    let memory = SharedMemory::map_guarded(file.as_fd(), 0, 2 * PAGE as usize, Access::ReadWrite).unwrap();
    let mut map = DmaMap::new(1);
    map.map(0x1000, 2 * PAGE, BOTH, backing(&memory, 0, 2 * PAGE)).unwrap();
    map.write_local(0x2000, &[7; 8]).unwrap();

    file.set_len(0).unwrap();

    let mut out = [1; 8];

    assert_eq!(map.read_local(0x2000, &mut out), Err(DmaError::Faulted { iova: 0x2000 }));
    assert_eq!(out, [0; 8]);
    assert_eq!(map.write_local(0x1000, &[7; 8]), Err(DmaError::Faulted { iova: 0x1000 }));
}

/// Returns a file of two pages that its owner can truncate.
fn resizable_file() -> File {
    let file = File::from(memfd_create("dma-test", MFdFlags::MFD_CLOEXEC).unwrap());
    file.set_len(2 * PAGE).unwrap();
    file
}

/// Bytes of the file that are set apart for each address, for a mapping that begins there. Mappings
/// thus never share bytes of the file.
const FILE_SHARE: u64 = 64;
/// Number of addresses in the property test.
const ADDRESSES: u64 = 256;

/// The reference map: for each address the start of its mapping and its permission, and the bytes
/// of the file.
struct Model {
    addresses: Vec<Option<(u64, DmaPermission)>>,
    file: Vec<u8>,
}

impl Model {
    /// Returns the offset in the file of each address of an access, if all of it is mapped and
    /// permitted.
    fn places(&self, iova: u64, length: usize, write: bool) -> Option<Vec<usize>> {
        (iova..iova + length as u64)
            .map(|at| {
                let (start, permission) = self.addresses[at as usize]?;
                let allowed = if write { permission.write } else { permission.read };
                allowed.then_some((start * FILE_SHARE + at - start) as usize)
            })
            .collect()
    }

    /// Removes the mappings in a range. Returns false if there are none, or one lies there in part
    /// only.
    fn unmap(&mut self, iova: u64, length: u64) -> bool {
        let range = iova as usize..(iova + length) as usize;
        let starts: Vec<u64> =
            self.addresses[range.clone()].iter().flatten().map(|&(start, _)| start).collect();
        let is_hit = |address: &Option<(u64, DmaPermission)>| {
            address.is_some_and(|(start, _)| starts.contains(&start))
        };

        // The addresses of the hit mappings outside the range count here and not in `starts`.
        let hit = self.addresses.iter().filter(|address| is_hit(address)).count();
        let are_whole = !starts.is_empty() && hit == starts.len();
        if are_whole {
            self.addresses[range].fill(None);
        }

        are_whole
    }
}

/// One operation of the property test, on the map and on the reference.
#[derive(Clone, Debug)]
enum Step {
    Map { iova: u64, length: u64, permission: DmaPermission },
    Unmap { iova: u64, length: u64 },
    Write { iova: u64, data: Vec<u8> },
    Read { iova: u64, length: usize },
}

fn permission() -> impl Strategy<Value = DmaPermission> {
    prop_oneof![6 => Just(BOTH), 1 => Just(DmaPermission::READ), 1 => Just(DmaPermission::WRITE)]
}

fn step() -> impl Strategy<Value = Step> {
    let iova = 0..ADDRESSES;
    prop_oneof![
        4 => (iova.clone(), 0..FILE_SHARE, permission())
            .prop_map(|(iova, length, permission)| Step::Map { iova, length, permission }),
        1 => (iova.clone(), 0_u64..128).prop_map(|(iova, length)| Step::Unmap { iova, length }),
        3 => (iova.clone(), prop::collection::vec(any::<u8>(), 0..64))
            .prop_map(|(iova, data)| Step::Write { iova, data }),
        3 => (iova, 0_usize..64).prop_map(|(iova, length)| Step::Read { iova, length }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn map_behaves_like_an_array_of_bytes(steps in prop::collection::vec(step(), 1..120)) {
        const QUOTA: usize = 12;
        let memory = memory(ADDRESSES * FILE_SHARE);
        let mut map = DmaMap::new(QUOTA);
        let mut model = Model { addresses: vec![None; 512], file: vec![0; memory.len()] };

        for step in steps {
            match step {
                Step::Map { iova, length, permission } => {
                    let range = iova as usize..(iova + length) as usize;
                    let free = length > 0 && model.addresses[range.clone()].iter().all(Option::is_none);
                    let is_accepted = free && map.len() < QUOTA;
                    let result = map.map(iova, length, permission, backing(&memory, iova * FILE_SHARE, length));
                    prop_assert_eq!(result.is_ok(), is_accepted);
                    if is_accepted {
                        model.addresses[range].fill(Some((iova, permission)));
                    }
                }
                Step::Unmap { iova, length } => {
                    prop_assert_eq!(map.unmap(iova, length).is_ok(), model.unmap(iova, length));
                }
                Step::Write { iova, data } => {
                    let places = model.places(iova, data.len(), true);
                    prop_assert_eq!(map.write_local(iova, &data).is_ok(), places.is_some());
                    for (place, byte) in places.into_iter().flatten().zip(data) {
                        model.file[place] = byte;
                    }
                }
                Step::Read { iova, length } => {
                    let mut out = vec![0; length];
                    let places = model.places(iova, length, false);
                    prop_assert_eq!(map.read_local(iova, &mut out).is_ok(), places.is_some());
                    for (place, byte) in places.into_iter().flatten().zip(out) {
                        prop_assert_eq!(model.file[place], byte);
                    }
                }
            }
            let mapped = model.addresses.iter().flatten().count();
            prop_assert_eq!(map.bytes(), mapped as u64);
            prop_assert_eq!(map.ranges().map(|range| range.length).sum::<u64>(), mapped as u64);
        }

        let mut file = vec![0; memory.len()];
        memory.read(0, &mut file).unwrap();

        prop_assert_eq!(file, model.file);
    }
}
