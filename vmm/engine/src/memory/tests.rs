use std::os::fd::OwnedFd;

use super::*;

const RW: u32 = DMA_FLAG_WRITE | nicforge_vfio_user::DMA_FLAG_READ;

/// Returns the memory of a client of the server's own user.
fn client_memory(quotas: Quotas) -> ClientMemory {
    ClientMemory::new(quotas, false)
}

/// Returns a file that can grow.
fn growable_file(len: i64) -> OwnedFd {
    let file = nix::sys::memfd::memfd_create(c"growable", nix::sys::memfd::MFdFlags::empty()).unwrap();
    nix::unistd::ftruncate(&file, len).unwrap();
    file
}

fn map(address: u64, offset: u64, size: u64) -> DmaMap {
    DmaMap { flags: RW, offset, address, size }
}

fn file(len: usize) -> (SharedMemory, OwnedFd) {
    let memory = SharedMemory::create("test", len).unwrap();
    let fd = memory.fd().unwrap().try_clone_to_owned().unwrap();
    (memory, fd)
}

/// Prepares a range and maps the file it needs, as the engine does.
fn map_range(memory: &mut ClientMemory, map: &DmaMap, fd: &OwnedFd) -> Window {
    let (id, window) = match memory.prepare(map, Some(fd.try_clone().unwrap().into())).unwrap() {
        Backing::NotMapped(file, source) => {
            let mapped = SharedMemory::map_guarded(file.fd.as_fd(), 0, file.length, file.access).unwrap();
            memory.adopt(source, mapped, map).unwrap()
        }
        Backing::Ready(id, window) => (id, window),
        Backing::Remote | Backing::Unmappable { .. } => panic!("a memfd was given"),
    };
    memory.insert(map, Some(id));
    window
}

#[test]
fn ranges_of_one_file_share_its_mapping_until_the_last_is_dropped() {
    let mut memory = client_memory(Quotas::default());
    let (_keep, fd) = file(0x4000);
    let first = map_range(&mut memory, &map(0, 0, 0x1000), &fd);
    let second = map_range(&mut memory, &map(0x8000, 0x2000, 0x1000), &fd);
    assert_eq!(second.base_address() - first.base_address(), 0x2000);

    drop((first, second));
    memory.remove(&DmaUnmap::Range { address: 0, size: 0x1000 });
    assert_eq!(memory.sweep().len(), 0);
    memory.remove(&DmaUnmap::Range { address: 0x8000, size: 0x1000 });
    assert_eq!(memory.sweep().len(), 1);
    assert_eq!((memory.mapped_bytes(), memory.count_ranges()), (0, 0));
}

#[test]
fn a_file_that_a_device_holds_counts_no_more_when_its_ranges_are_gone() {
    let quotas = Quotas { files: 1, mapped_bytes: 0x2000, ..Quotas::default() };
    let mut memory = client_memory(quotas);
    let (_keep, fd) = file(0x2000);
    let (_other, other) = file(0x2000);
    let leased = map_range(&mut memory, &map(0, 0, 0x1000), &fd);

    memory.remove(&DmaUnmap::All);
    let swept = memory.sweep();
    assert!(swept.iter().all(SharedMemory::has_other_handles));
    assert_eq!((swept.len(), memory.mapped_bytes()), (1, 0));

    let prepared = memory.prepare(&map(0, 0, 0x1000), Some(other.into()));
    assert!(matches!(prepared, Ok(Backing::NotMapped(..))));
    drop(leased);
}

#[test]
fn a_read_only_mapping_does_not_serve_a_range_for_writing() {
    let mut memory = client_memory(Quotas::default());
    let (_keep, fd) = file(0x2000);
    let read = DmaMap { flags: nicforge_vfio_user::DMA_FLAG_READ, ..map(0, 0, 0x1000) };
    assert!(!map_range(&mut memory, &read, &fd).is_writable());

    assert!(map_range(&mut memory, &map(0x8000, 0x1000, 0x1000), &fd).is_writable());
}

#[test]
fn a_range_at_the_end_of_the_address_space_overlaps_itself_only() {
    let mut memory = client_memory(Quotas::default());
    let (_keep, fd) = file(0x1000);
    let last = map(u64::MAX - 0xfff, 0, 0x1000);
    map_range(&mut memory, &last, &fd);
    assert!(matches!(memory.prepare(&last, None), Err(Errno::EEXIST)));
    assert!(matches!(memory.prepare(&map(u64::MAX - 0x1fff, 0, 0x1000), None), Ok(Backing::Remote)));
}

#[test]
fn a_file_of_another_file_system_is_reached_by_messages_and_reported_once() {
    let mut memory = client_memory(Quotas::default());
    // The file has a size and is readable, but neither is checked.
    let foreign = || {
        PeerFd::from(std::os::fd::OwnedFd::from(std::fs::File::open("/sys/kernel/uevent_seqnum").unwrap()))
    };

    let first = memory.prepare(&map(0, 0, 0x1000), Some(foreign())).unwrap();
    let second = memory.prepare(&map(0x1000, 0, 0x1000), Some(foreign())).unwrap();

    assert!(matches!(first, Backing::Unmappable { is_first: true, .. }), "{first:?}");
    assert!(matches!(second, Backing::Unmappable { is_first: false, .. }), "{second:?}");
    assert_eq!(memory.mapped_bytes(), 0);
}

#[test]
fn a_file_of_pages_that_take_long_to_clear_is_reached_by_messages() {
    use nix::sys::memfd::{MFdFlags, memfd_create};
    let mut memory = client_memory(Quotas::default());
    // No page is ever touched, so none need exist. Processors without such pages refuse the
    // file.
    let Ok(fd) = memfd_create(c"huge", MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_1GB) else { return };
    nix::unistd::ftruncate(&fd, 1 << 30).unwrap();

    let backing = memory.prepare(&map(0, 0, 1 << 30), Some(fd.into())).unwrap();

    assert!(matches!(backing, Backing::Unmappable { is_first: true, .. }), "{backing:?}");
}

#[test]
fn a_file_beyond_the_quota_is_reached_by_messages() {
    let mut memory = client_memory(Quotas { mapped_bytes: 0x3000, ..Quotas::default() });
    let (_sealed, small) = file(0x2000);
    let (_other, second) = file(0x2000);
    map_range(&mut memory, &map(0, 0x1000, 0x1000), &small);

    let beyond = memory.prepare(&map(0x8000, 0, 0x1000), Some(second.into())).unwrap();

    let reason = Unmappable::Limit { charge: 0x2000, counted: 0x2000, limit: 0x3000 };
    assert!(
        matches!(beyond, Backing::Unmappable { reason: found, is_first: true } if found == reason),
        "{beyond:?}"
    );
    assert!(reason.to_string().contains("--mapped-limit"), "{reason}");
    assert_eq!(memory.mapped_bytes(), 0x2000, "the file counts as a whole");
}

#[test]
fn a_file_that_can_grow_counts_with_its_size_and_anew_when_it_has_grown() {
    let mut memory = client_memory(Quotas { mapped_bytes: 0x3000, ..Quotas::default() });
    let (growing, other) = (growable_file(0x1000), growable_file(0x1000));
    map_range(&mut memory, &map(0, 0, 0x1000), &growing);
    map_range(&mut memory, &map(0x1000, 0, 0x1000), &other);

    // Within the quota, both files count with what they have.
    nix::unistd::ftruncate(&growing, 0x2000).unwrap();
    map_range(&mut memory, &map(0x2000, 0, 0x1000), &growing);
    let mut prepare = |address, offset, fd: &OwnedFd| {
        memory.prepare(&map(address, offset, 0x1000), Some(fd.try_clone().unwrap().into())).unwrap()
    };
    assert!(matches!(prepare(0x3000, 0, &other), Backing::Ready(..)));
    assert!(matches!(prepare(0x3000, 0, &growable_file(0x1000)), Backing::Unmappable { .. }));

    // Beyond it, neither a further part nor a mapped one gets another range.
    nix::unistd::ftruncate(&growing, 0x1_0000).unwrap();
    for offset in [0x8000, 0] {
        let beyond = prepare(0x3000, offset, &growing);
        assert!(matches!(beyond, Backing::Unmappable { .. }), "{beyond:?}");
    }
}

#[test]
fn a_file_of_another_user_that_can_grow_counts_as_a_gibibyte() {
    let quotas = Quotas { foreign_mapped_bytes: (1 << 30) + 0x1000, ..Quotas::default() };
    let mut memory = ClientMemory::new(quotas, true);
    let (_sealed, sealed) = file(0x1000);
    map_range(&mut memory, &map(0, 0, 0x1000), &growable_file(0x1000));
    map_range(&mut memory, &map(0x1000, 0, 0x1000), &sealed);

    let beyond = memory.prepare(&map(0x2000, 0, 0x1000), Some(growable_file(0x1000).into())).unwrap();

    let Backing::Unmappable { reason, .. } = beyond else { panic!("{beyond:?}") };
    let text = reason.to_string();
    assert!(text.contains("F_SEAL_GROW") && text.contains("--mapped-limit"), "{text}");
}

#[test]
fn a_file_opened_for_reading_is_refused_for_a_writable_range() {
    let mut memory = client_memory(Quotas::default());
    let (keep, _) = file(0x1000);
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&keep.fd().unwrap()));
    let read_only = OwnedFd::from(std::fs::File::open(path).unwrap());

    assert!(matches!(memory.prepare(&map(0, 0, 0x1000), Some(read_only.into())), Err(Errno::EACCES)));
}
