//! Tests of leases: their extent, their end, and the memory that they reach.

use nicforge_shm::SharedMemory;
use proptest::prelude::*;

use super::{lease::LeaseTerms, *};

const PAGE: u64 = 4096;
const BOTH: DmaPermission = DmaPermission::READ_WRITE;

/// Returns new memory with a file of `len` bytes, all zero.
fn memory(len: u64) -> SharedMemory {
    SharedMemory::create("lease-test", len as usize).unwrap()
}

/// Returns a part of `memory` as the backing of a mapping.
fn backing(memory: &SharedMemory, offset: u64, len: u64) -> DmaBacking {
    DmaBacking::Memory(memory.window(offset, len).unwrap())
}

/// Maps adjacent ranges of the given lengths from `iova` on. They lie in one file in reverse order.
fn side_by_side(map: &mut DmaMap, iova: u64, lengths: &[u64]) -> SharedMemory {
    let total: u64 = lengths.iter().sum();
    let memory = memory(total);
    let mut at = 0;
    for &length in lengths {
        map.map(iova + at, length, BOTH, backing(&memory, total - at - length, length)).unwrap();
        at += length;
    }

    memory
}

/// Returns whether the lease is valid.
fn is_valid(lease: &DmaLease) -> bool {
    lease.part(0).is_some()
}

#[test]
fn a_lease_ends_with_each_of_its_mappings_and_with_no_other() {
    for gone in 0..4 {
        let mut map = DmaMap::new(8);
        let _memory = side_by_side(&mut map, 0x1000, &[PAGE; 4]);
        let all = map.lease(0x1800, 3 * PAGE, DmaAccess::Write).unwrap();
        let each: Vec<_> =
            (0..4).map(|page| map.lease(0x1000 + page * PAGE, PAGE, DmaAccess::Read).unwrap()).collect();
        map.unmap(0x1000 + gone * PAGE, PAGE).unwrap();
        assert!(!is_valid(&all) && all.write(3 * PAGE - 8, &[1; 8]) == Err(LeaseError::Over));
        let good: Vec<_> = each.iter().map(is_valid).collect();
        assert_eq!(good, [0, 1, 2, 3].map(|page| page != gone));
        drop(map);
        assert!(!each.iter().any(is_valid));
    }
}

#[test]
fn a_lease_needs_adjacent_mappings_that_permit_the_access() {
    let mut map = DmaMap::new(16);
    let memory = side_by_side(&mut map, 0x1000, &[PAGE; 2]);
    map.map(0x3000, PAGE, DmaPermission::READ, backing(&memory, 0, PAGE)).unwrap();
    map.map(0x4000, PAGE, BOTH, DmaBacking::Remote).unwrap();
    let mut refused =
        |iova, length, access| map.lease(iova, length, access).map(|lease| lease.len()).unwrap_err();
    let length = PAGE as usize;

    assert_eq!(refused(0x5000, 1, DmaAccess::Read), DmaError::Unmapped { iova: 0x5000, length: 1 });
    assert_eq!(refused(0x1000, 0, DmaAccess::Read), DmaError::Unmapped { iova: 0x1000, length: 0 });
    assert_eq!(refused(u64::MAX, 2, DmaAccess::Read), DmaError::Unmapped { iova: u64::MAX, length: 2 });
    assert_eq!(refused(0x3800, PAGE, DmaAccess::Read), DmaError::Remote { iova: 0x4000 });
    assert_eq!(
        refused(0x2000, 2 * PAGE, DmaAccess::Write),
        DmaError::Permission { iova: 0x3000, length, write: true }
    );
    assert_eq!(map.lease(0x1000, 3 * PAGE, DmaAccess::Read).unwrap().len(), 3 * PAGE);

    map.unmap(0x4000, PAGE).unwrap();
    let hole = map.lease(0x3800, PAGE, DmaAccess::Read).map(|lease| lease.len());
    assert_eq!(hole.unwrap_err(), DmaError::Unmapped { iova: 0x4000, length: 0x800 });
}

#[test]
fn a_lease_lies_in_a_bounded_number_of_mappings() {
    let count = MAX_LEASE as u64 + 1;
    let mut map = DmaMap::new(count as usize);
    let memory = memory(PAGE);
    for index in 0..count {
        map.map(index * 8, 8, BOTH, backing(&memory, 0, 8)).unwrap();
    }

    assert!(map.lease(4, 8 * (count - 1) - 4, DmaAccess::Write).is_ok());

    let refused = map.lease(4, 8 * (count - 1), DmaAccess::Write).map(|lease| lease.len());
    let scattered = DmaError::Scattered { iova: 4, length: 8 * (count - 1), limit: MAX_LEASE };
    assert_eq!(refused, Err(scattered));

    let piece = map.piece(4, 8 * count, &Term::default()).unwrap();
    assert_eq!((piece.length, piece.mappings), (8 * (count - 1) - 4, MAX_LEASE));
}

#[test]
fn mappings_are_counted_from_the_first_to_the_last_across_gaps() {
    let mut map = DmaMap::new(8);
    let _memory = side_by_side(&mut map, 0x1000, &[0x1000, 8, 0xff8]);
    map.map(0x6000, 0x1000, DmaPermission::READ, DmaBacking::Remote).unwrap();
    let last_page = u64::MAX - 0xfff;
    map.map(last_page, 0x1000, DmaPermission::READ, DmaBacking::Remote).unwrap();
    let cases = [(0x1000, 1, 1), (0x1fff, 2, 2), (0x1fff, 10, 3), (0x1000, 0x6000, 4), (0x6000, 0x1000, 1)];
    for (iova, length, count) in cases {
        assert_eq!(map.count_mappings(iova, length), Ok(count), "{length:#x} bytes at {iova:#x}");
    }

    assert_eq!(map.count_mappings(0x1000, u64::MAX - 0xfff), Ok(5), "to the last address there is");

    for (iova, length) in
        [(0x1000, 0), (0xfff, 2), (0x2fff, 2), (0x5fff, 1), (0x6000, 0x1001), (0x2000, u64::MAX)]
    {
        assert!(
            matches!(map.count_mappings(iova, length), Err(DmaError::Unmapped { .. })),
            "{length:#x} at {iova:#x}"
        );
    }
}

#[test]
fn a_piece_stops_where_permission_or_backing_changes_and_unmapping_ends_its_lease() {
    let mut map = DmaMap::new(16);
    let memory = side_by_side(&mut map, 0x1000, &[PAGE; 3]);
    map.map(0x4000, PAGE, DmaPermission::READ, backing(&memory, 0, PAGE)).unwrap();
    map.map(0x5000, PAGE, DmaPermission::READ, DmaBacking::Remote).unwrap();
    map.map(0x6000, PAGE, DmaPermission::READ, DmaBacking::Remote).unwrap();
    let term = Term::default();
    let mut pieces = Vec::new();
    let mut at = 0x1800;
    while at < 0x6800 {
        let piece = map.piece(at, 0x6800 - at, &term).unwrap();
        pieces.push((piece.length, piece.mappings, piece.permission, piece.lease.is_some()));
        at += piece.length;
    }

    let read = DmaPermission::READ;

    assert_eq!(
        pieces,
        [(0x2800, 3, BOTH, true), (PAGE, 1, read, true), (PAGE, 1, read, false), (0x800, 1, read, false)]
    );

    assert!(!term.is_over());

    // Memory without a lease shares the term, so unmapping it ends the leases of the other pieces.
    map.unmap(0x5000, PAGE).unwrap();
    assert!(term.is_over());
    assert_eq!(map.piece(0x5000, 1, &term).map(|_| ()), Err(DmaError::Unmapped { iova: 0x5000, length: 1 }));
}

#[test]
fn ending_a_term_ends_its_own_leases_only() {
    let mut map = DmaMap::new(16);
    let _memory = side_by_side(&mut map, 0x1000, &[PAGE; 2]);
    let (one, two) = (Term::default(), Term::default());
    let mut lease = |term| map.piece(0x1000, 2 * PAGE, term).unwrap().lease.unwrap();
    let (first, second) = (lease(&one), lease(&two));
    one.end();

    assert!(!is_valid(&first) && is_valid(&second));

    map.revoke_leases();
    assert!(!is_valid(&second));
    assert!(is_valid(&map.lease(0x1000, PAGE, DmaAccess::Read).unwrap()));
}

#[test]
fn a_word_in_two_mappings_is_refused_as_keeps_whole_predicts() {
    // The second mapping begins at the boundary, so units of more than `largest_unit` bytes cross
    // it.
    for (boundary, largest_unit) in [(4, 4), (8, 8), (24, 8), (4096, 4096)] {
        let mut map = DmaMap::new(2);
        let _memory = side_by_side(&mut map, 0x1000, &[boundary, 8192 - boundary]);
        let lease = map.lease(0x1000, 8192, DmaAccess::Write).unwrap();
        assert!(
            lease.keeps_whole(largest_unit) && !lease.keeps_whole(2 * largest_unit),
            "the second mapping begins at {boundary}"
        );
        let word_at_boundary = boundary & !7;
        assert_eq!(lease.store_u64_release(word_at_boundary, 1).is_ok(), lease.keeps_whole(8));
        assert!(matches!(lease.store_u64_release(8192, 1), Err(LeaseError::Over | LeaseError::Memory(_))));
    }

    let in_one_window = DmaLease::new(memory(PAGE).whole(), Term::default());
    assert!(in_one_window.keeps_whole(1 << 40));
}

#[test]
fn accesses_that_leave_a_lease_are_refused_as_a_whole() {
    let mut map = DmaMap::new(4);
    let memory = side_by_side(&mut map, 0x1000, &[PAGE; 4]);
    for length in [PAGE / 2, 4 * PAGE] {
        let lease = map.lease(0x1000, length, DmaAccess::Write).unwrap();
        let other = lease.clone();
        for (offset, count) in [(length - 7, 8), (length + 1, 1), (u64::MAX, 8), (u64::MAX - 3, 8)] {
            let mut bytes = vec![7; count as usize];
            assert!(matches!(lease.write(offset, &bytes), Err(LeaseError::Memory(_))));
            assert!(matches!(lease.read(offset, &mut bytes), Err(LeaseError::Memory(_))));
            assert!(matches!(lease.copy_to(offset, &other, 0, count), Err(LeaseError::Memory(_))));
            assert!(matches!(lease.copy_to(0, &other, offset, count), Err(LeaseError::Memory(_))));
        }
        assert_eq!(lease.read(length, &mut []), Ok(()));
    }

    let mut all = vec![1; 4 * PAGE as usize];
    memory.read(0, &mut all).unwrap();

    assert!(all.iter().all(|&byte| byte == 0));
}

#[test]
fn a_mapping_drops_terms_without_a_lease() {
    let mut lease_terms = LeaseTerms::default();
    let kept: Vec<_> = (0..100)
        .map(|_| {
            for _ in 0..100 {
                lease_terms.add(&Term::default());
            }
            let term = Term::default();
            lease_terms.add(&term);
            term
        })
        .collect();
    let LeaseTerms::Many(list) = &lease_terms else { panic!("there are many") };

    assert!(list.terms.len() <= 2 * kept.len() + 1, "{}", list.terms.len());
    assert!(!kept.iter().any(Term::is_over));

    lease_terms.end();
    assert!(kept.iter().all(Term::is_over));
}

/// Number of addresses in the property test.
const ADDRESSES: u64 = 512;
/// Length of adjacent mappings that have one length, as pages have.
const MODEL_PAGE: u64 = 16;

/// The mapping of one address.
#[derive(Clone, Copy, Debug, PartialEq)]
struct AddressMapping {
    /// Number of the mapping that the address belongs to.
    mapping: u64,
    permission: DmaPermission,
    /// Offset in the file, or `None` if only messages reach the address.
    byte: Option<usize>,
}

/// A lease in the reference.
struct ModelLease {
    /// Offset in the file of each byte of the lease.
    bytes: Vec<usize>,
    /// Number of the mapping of each byte.
    mappings: Vec<u64>,
    valid: bool,
}

/// The reference: what each address is mapped to, the content of the file, and all leases.
struct Model {
    addresses: Vec<Option<AddressMapping>>,
    file: Vec<u8>,
    leases: Vec<ModelLease>,
    /// Number of the newest mapping.
    newest: u64,
}

impl Model {
    /// Adds a mapping to the file from offset `byte` on, or to memory that only messages reach.
    /// Returns false if the addresses do not exist or are mapped already.
    fn map(&mut self, iova: u64, length: u64, permission: DmaPermission, byte: Option<usize>) -> bool {
        let Some(range) = self.addresses.get_mut(iova as usize..(iova + length) as usize) else {
            return false;
        };

        if length == 0 || range.iter().any(Option::is_some) {
            return false;
        }

        self.newest += 1;
        for (offset, address) in range.iter_mut().enumerate() {
            *address = Some(AddressMapping {
                mapping: self.newest,
                permission,
                byte: byte.map(|byte| byte + offset),
            });
        }

        true
    }

    /// Removes the mapping that contains an address, and ends its leases. Returns the mapping's
    /// start and length.
    fn unmap(&mut self, iova: u64) -> Option<(u64, u64)> {
        let removed = self.addresses[iova as usize]?.mapping;
        let is_removed =
            |address: &Option<AddressMapping>| address.is_some_and(|address| address.mapping == removed);
        let first = self.addresses.iter().position(is_removed)?;
        let length = self.addresses.iter().filter(|address| is_removed(address)).count();
        self.addresses[first..first + length].fill(None);
        for lease in self.leases.iter_mut().filter(|lease| lease.mappings.contains(&removed)) {
            lease.valid = false;
        }

        Some((first as u64, length as u64))
    }

    /// Adds a lease of `length` bytes, if all of them are mapped to the file and permitted. Returns
    /// whether it did.
    fn lease(&mut self, iova: u64, length: u64, write: bool) -> bool {
        let leased: Option<Vec<_>> = (iova..iova + length)
            .map(|at| {
                let address = (*self.addresses.get(at as usize)?)?;
                let allowed = if write { address.permission.write } else { address.permission.read };
                Some((address.byte.filter(|_| allowed)?, address.mapping))
            })
            .collect();
        let Some(leased) = leased.filter(|leased| !leased.is_empty()) else { return false };
        self.leases.push(ModelLease {
            bytes: leased.iter().map(|(byte, _)| *byte).collect(),
            mappings: leased.iter().map(|(_, mapping)| *mapping).collect(),
            valid: true,
        });

        true
    }
}

/// One operation of the property test, on the map and on the reference.
#[derive(Clone, Debug)]
enum Step {
    /// Maps adjacent ranges to the file. Those that overlap earlier mappings are left out.
    MapAdjacent {
        iova: u64,
        lengths: Vec<u64>,
        permission: DmaPermission,
    },
    /// Maps memory that only messages reach.
    MapRemote {
        iova: u64,
        length: u64,
    },
    /// Unmaps the mapping at an address.
    Unmap {
        iova: u64,
    },
    /// Ends all leases.
    Revoke,
    /// Takes a lease.
    Lease {
        iova: u64,
        length: u64,
        write: bool,
    },
    // The following use the leases taken so far, whether they are valid or not.
    Write {
        lease: prop::sample::Index,
        offset: u64,
        data: Vec<u8>,
    },
    /// Stores a word.
    Word {
        lease: prop::sample::Index,
        word: u64,
        value: u64,
    },
    Read {
        lease: prop::sample::Index,
        offset: u64,
        length: usize,
    },
    Copy {
        from: prop::sample::Index,
        to: prop::sample::Index,
        offsets: (u64, u64),
        length: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let iova = 0..ADDRESSES;
    let any_lease = any::<prop::sample::Index>;
    let permission =
        prop_oneof![8 => Just(BOTH), 1 => Just(DmaPermission::READ), 1 => Just(DmaPermission::WRITE)];
    let pages = (1..24_usize).prop_map(|pages| vec![MODEL_PAGE; pages]);
    let lengths = prop_oneof![2 => pages, 1 => prop::collection::vec(1..40_u64, 1..12)];
    let start =
        prop_oneof![2 => (0..ADDRESSES / MODEL_PAGE).prop_map(|page| page * MODEL_PAGE), 1 => iova.clone()];

    prop_oneof![
        6 => (start, lengths, permission)
            .prop_map(|(iova, lengths, permission)| Step::MapAdjacent { iova, lengths, permission }),
        1 => (iova.clone(), 1..32_u64).prop_map(|(iova, length)| Step::MapRemote { iova, length }),
        4 => iova.clone().prop_map(|iova| Step::Unmap { iova }),
        1 => Just(Step::Revoke),
        12 => (iova, 0..200_u64, any::<bool>())
            .prop_map(|(iova, length, write)| Step::Lease { iova, length, write }),
        8 => (any_lease(), 0..200_u64, prop::collection::vec(any::<u8>(), 0..80))
            .prop_map(|(lease, offset, data)| Step::Write { lease, offset, data }),
        3 => (any_lease(), 0..25_u64, any::<u64>())
            .prop_map(|(lease, word, value)| Step::Word { lease, word, value }),
        8 => (any_lease(), 0..200_u64, 0..80_usize)
            .prop_map(|(lease, offset, length)| Step::Read { lease, offset, length }),
        8 => (any_lease(), any_lease(), (0..200_u64, 0..200_u64), 0..80_u64)
            .prop_map(|(from, to, offsets, length)| Step::Copy { from, to, offsets, length }),
    ]
}

/// Size of the file in bytes. All steps of a run together map less.
const FILE: u64 = 1 << 20;

/// The map under test and the reference.
struct Harness {
    map: DmaMap,
    memory: SharedMemory,
    leases: Vec<DmaLease>,
    model: Model,
    /// Offset of the last mapping in the file. Mappings take the file from its end, so that
    /// neighbours in the address space are not adjacent in it.
    used: u64,
}

impl Harness {
    fn new() -> Self {
        let model = Model {
            addresses: vec![None; ADDRESSES as usize],
            file: vec![0; FILE as usize],
            leases: Vec::new(),
            newest: 0,
        };
        Self { map: DmaMap::new(1000), memory: memory(FILE), leases: Vec::new(), model, used: FILE }
    }

    /// Maps the next bytes of the file, unless the range overlaps a mapping.
    fn map(&mut self, iova: u64, length: u64, permission: DmaPermission) {
        let at = self.used - length;
        if self.model.map(iova, length, permission, Some(at as usize)) {
            self.map.map(iova, length, permission, backing(&self.memory, at, length)).unwrap();
            self.used = at;
        }
    }

    /// Returns the bytes of the file that an access to a lease reaches, if it is permitted.
    fn access(&self, lease: usize, offset: u64, length: u64) -> Option<&[usize]> {
        let lease = &self.model.leases[lease];
        let bytes = lease.bytes.get(offset as usize..(offset + length) as usize)?;
        (lease.valid || length == 0).then_some(bytes)
    }

    /// Carries out a step on both, and checks that results and valid leases agree.
    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        let count = self.leases.len();
        match step {
            Step::MapAdjacent { iova, lengths, permission } => {
                let mut at = iova;
                for length in lengths {
                    self.map(at, length, permission);
                    at += length;
                }
            }
            Step::MapRemote { iova, length } => {
                if self.model.map(iova, length, BOTH, None) {
                    self.map.map(iova, length, BOTH, DmaBacking::Remote).unwrap();
                }
            }
            Step::Unmap { iova } => match self.model.unmap(iova) {
                Some((first, length)) => drop(self.map.unmap(first, length).unwrap()),
                None => prop_assert!(self.map.unmap(iova, 1).is_err()),
            },
            Step::Revoke => {
                self.map.revoke_leases();
                self.model.leases.iter_mut().for_each(|lease| lease.valid = false);
            }
            Step::Lease { iova, length, write } => {
                let access = if write { DmaAccess::Write } else { DmaAccess::Read };
                let lease = self.map.lease(iova, length, access);
                prop_assert_eq!(lease.is_ok(), self.model.lease(iova, length, write));
                self.leases.extend(lease);
            }
            _ if count == 0 => {}
            Step::Write { lease, offset, data } => {
                let lease = lease.index(count);
                let bytes = self.access(lease, offset, data.len() as u64).map(<[usize]>::to_vec);
                prop_assert_eq!(self.leases[lease].write(offset, &data).is_ok(), bytes.is_some());
                for (offset, byte) in bytes.into_iter().flatten().zip(data) {
                    self.model.file[offset] = byte;
                }
            }
            Step::Word { lease, word, value } => {
                let lease = lease.index(count);
                let bytes =
                    self.access(lease, word * 8, 8).and_then(|bytes| bytes.first_chunk::<8>().copied());
                // The bytes must be adjacent in the file, from a multiple of 8 on.
                let bytes =
                    bytes.filter(|bytes| bytes[0] % 8 == 0 && bytes.is_sorted() && bytes[7] - bytes[0] == 7);
                let stored = self.leases[lease].store_u64_release(word * 8, value);
                prop_assert_eq!(stored.is_ok(), bytes.is_some());
                for (offset, byte) in bytes.into_iter().flatten().zip(value.to_ne_bytes()) {
                    self.model.file[offset] = byte;
                }
            }
            Step::Read { lease, offset, length } => {
                let lease = lease.index(count);
                let mut out = vec![0; length];
                let read = self.leases[lease].read(offset, &mut out);
                let bytes = self.access(lease, offset, length as u64);
                prop_assert_eq!(read.is_ok(), bytes.is_some());
                if let Some(bytes) = bytes {
                    let expected: Vec<_> = bytes.iter().map(|&offset| self.model.file[offset]).collect();
                    prop_assert_eq!(out, expected);
                }
            }
            Step::Copy { from, to, offsets, length } => {
                let (from, to) = (from.index(count), to.index(count));
                let ranges = self.access(from, offsets.0, length).zip(self.access(to, offsets.1, length));
                let ranges = ranges.map(|(source, target)| (source.to_vec(), target.to_vec()));
                // The result of a copy between overlapping ranges is unspecified.
                if let Some((source, target)) = &ranges
                    && source.iter().any(|byte| target.contains(byte))
                {
                    return Ok(());
                }
                let copied = self.leases[from].copy_to(offsets.0, &self.leases[to], offsets.1, length);
                prop_assert_eq!(copied.is_ok(), ranges.is_some());
                for (source, target) in
                    ranges.into_iter().flat_map(|(source, target)| source.into_iter().zip(target))
                {
                    self.model.file[target] = self.model.file[source];
                }
            }
        }

        let valid: Vec<_> = self.leases.iter().map(is_valid).collect();
        let expected: Vec<_> = self.model.leases.iter().map(|lease| lease.valid).collect();

        prop_assert_eq!(valid, expected);

        Ok(())
    }
}

proptest! {
    #[test]
    fn leases_behave_like_a_list_of_bytes(steps in prop::collection::vec(step(), 1..120)) {
        let mut harness = Harness::new();
        for step in steps {
            harness.step(step)?;
        }
        let mut file = vec![0; FILE as usize];
        harness.memory.read(0, &mut file).unwrap();
        prop_assert!(file == harness.model.file);
    }
}
