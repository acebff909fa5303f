//! Tests of creating, sealing, mapping and accessing shared memory.
#![allow(clippy::unwrap_used, reason = "a failure to set up is a failed test")]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use nicforge_shm::{Access, MemoryError, SharedMemory};
use nix::errno::Errno;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::{ftruncate, pipe};

/// The page size of every target that the tests run on.
const PAGE: usize = 4096;

fn file(len: i64) -> OwnedFd {
    let file = memfd_create("test", MFdFlags::MFD_CLOEXEC).unwrap();
    ftruncate(&file, len).unwrap();
    file
}

#[test]
fn create_rounds_the_length_up_to_a_page_and_is_zeroed() {
    let memory = SharedMemory::create("test", 1).unwrap();
    let mut bytes = [0xffu8; PAGE];
    memory.read(0, &mut bytes).unwrap();
    assert_eq!(memory.len(), PAGE);
    assert_eq!(memory.access(), Access::ReadWrite);
    assert_eq!(bytes, [0; PAGE]);
}

#[test]
fn create_of_nothing_is_refused() {
    assert_eq!(SharedMemory::create("test", 0).unwrap_err(), MemoryError::Empty);
}

#[test]
fn create_with_a_nul_in_the_name_is_refused() {
    let error = SharedMemory::create("a\0b", 5).unwrap_err();
    assert_eq!(error, MemoryError::Create { len: 5, errno: Errno::EINVAL });
}

#[test]
fn create_of_more_than_the_address_space_is_refused() {
    let error = SharedMemory::create("test", usize::MAX).unwrap_err();
    assert_eq!(error, MemoryError::Overflow { offset: 0, len: u64::MAX });
}

#[test]
fn created_file_cannot_be_truncated_or_extended() {
    let memory = SharedMemory::create("test", PAGE).unwrap();
    let fd = memory.fd().unwrap();
    assert_eq!(ftruncate(fd, 0), Err(Errno::EPERM));
    assert_eq!(ftruncate(fd, 2 * PAGE as i64), Err(Errno::EPERM));
}

#[test]
fn second_mapping_sees_the_bytes_of_the_first() {
    let original = SharedMemory::create("test", 2 * PAGE).unwrap();
    let second_mapping =
        SharedMemory::map(original.fd().unwrap(), PAGE as u64, PAGE, Access::ReadWrite).unwrap();
    let mut bytes = [0; 5];
    original.write(PAGE as u64 + 3, b"hello").unwrap();
    second_mapping.read(3, &mut bytes).unwrap();
    assert_eq!(&bytes, b"hello");
}

#[test]
fn write_protected_file_can_only_be_mapped_read_only() {
    let original = SharedMemory::create_write_protected("test", PAGE).unwrap();
    let fd = original.fd().unwrap();
    let refused = SharedMemory::map(fd, 0, PAGE, Access::ReadWrite).unwrap_err();
    let second_mapping = SharedMemory::map(fd, 0, PAGE, Access::ReadOnly).unwrap();
    original.u32(0x40).unwrap().store(7, Ordering::Release);

    assert_eq!(refused, MemoryError::Map { offset: 0, len: PAGE as u64, errno: Errno::EPERM });
    assert_eq!(second_mapping.u32(0x40).unwrap().load(Ordering::Acquire), 7);
    assert_eq!(nix::unistd::write(fd, b"x"), Err(Errno::EPERM));
}

#[test]
fn create_huge_of_a_page_and_a_half_is_refused() {
    // 1 MiB + 4 KiB is not a multiple of any huge page size. Kernels without huge pages refuse to
    // create the file.
    let error = SharedMemory::create_huge("test", (1 << 20) + PAGE).unwrap_err();
    assert!(matches!(error, MemoryError::UnalignedLength { .. } | MemoryError::Create { .. }), "{error}");
}

#[test]
fn map_past_the_end_of_the_file_is_refused() {
    let file = file(PAGE as i64);
    let error = SharedMemory::map(file.as_fd(), PAGE as u64, 1, Access::ReadOnly).unwrap_err();
    assert_eq!(error, MemoryError::FileTooShort { offset: PAGE as u64, len: 1, size: PAGE as u64 });
}

#[test]
fn map_at_an_offset_within_a_page_is_refused() {
    let file = file(PAGE as i64);
    let error = SharedMemory::map(file.as_fd(), 8, 8, Access::ReadOnly).unwrap_err();
    assert_eq!(error, MemoryError::UnalignedOffset { offset: 8, page: PAGE as u64 });
}

#[test]
fn map_of_a_range_that_wraps_around_is_refused() {
    let file = file(PAGE as i64);
    let offset = u64::MAX - PAGE as u64 + 1;
    let error = SharedMemory::map(file.as_fd(), offset, PAGE, Access::ReadOnly).unwrap_err();
    assert_eq!(error, MemoryError::Overflow { offset, len: PAGE as u64 });
}

#[test]
fn map_of_nothing_is_refused() {
    let file = file(PAGE as i64);
    assert_eq!(SharedMemory::map(file.as_fd(), 0, 0, Access::ReadOnly).unwrap_err(), MemoryError::Empty);
}

#[test]
fn map_of_less_than_a_page_ends_where_it_was_asked_to() {
    let file = file(PAGE as i64);
    let memory = SharedMemory::map(file.as_fd(), 0, 100, Access::ReadOnly).unwrap();
    let error = memory.read(99, &mut [0; 2]).unwrap_err();
    assert_eq!(error, MemoryError::OutOfBounds { offset: 99, len: 2, size: 100 });
}

#[test]
fn map_guarded_refuses_files_that_are_not_shared_memory() {
    let (reader, _writer) = pipe().unwrap();
    let executable = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
    let from_pipe = SharedMemory::map_guarded(reader.as_fd(), 0, PAGE, Access::ReadOnly);
    let from_disk = SharedMemory::map_guarded(executable.as_fd(), 0, PAGE, Access::ReadOnly);

    assert_eq!(from_pipe.unwrap_err(), MemoryError::ForeignFile { magic: 0 });

    // The test may run on a tmpfs, where this file is accepted.
    let tmpfs =
        nix::sys::statfs::fstatfs(&executable).unwrap().filesystem_type() == nix::sys::statfs::TMPFS_MAGIC;

    assert!(tmpfs || matches!(from_disk, Err(MemoryError::ForeignFile { magic: 1.. })), "{from_disk:?}");
}

#[test]
fn read_only_mapping_refuses_every_kind_of_store() {
    let original = SharedMemory::create("test", PAGE).unwrap();
    let second_mapping = SharedMemory::map(original.fd().unwrap(), 0, PAGE, Access::ReadOnly).unwrap();
    let window = second_mapping.window(0, 0x100).unwrap();
    let refused = Err(MemoryError::ReadOnly { offset: 0x40 });

    assert_eq!(second_mapping.write(0x40, b"x"), refused);
    assert_eq!(second_mapping.zero(0x40, 1), refused);
    assert_eq!(window.store_u8_relaxed(0x40, 1), refused);
    assert_eq!(window.store_u16_relaxed(0x40, 1), refused);
    assert_eq!(window.store_u32_release(0x40, 1), refused);
    assert_eq!(window.store_u64_relaxed(0x40, 1), refused);
    assert_eq!(window.store_16(0x40, [1; 16]), refused);
    assert_eq!(window.store_64(0x40, [1; 64]), refused);
    assert_eq!(window.write_array(0x40, &[1; 32]), refused);
    assert_eq!(original.whole().copy_to(0, &window, 0x40, 8), refused);
}

#[test]
fn word_of_a_read_only_mapping_ignores_stores() {
    let original = SharedMemory::create("test", PAGE).unwrap();
    let second_mapping = SharedMemory::map(original.fd().unwrap(), 0, PAGE, Access::ReadOnly).unwrap();
    let word = second_mapping.u64(8).unwrap();
    original.u64(8).unwrap().store(5, Ordering::Relaxed);
    word.store(6, Ordering::Relaxed);

    assert!(!word.is_writable());
    assert_eq!(word.compare_exchange(5, 6, Ordering::AcqRel, Ordering::Acquire), Err(5));
    assert_eq!(word.fetch_add(1, Ordering::AcqRel), 5);
    assert_eq!(word.swap(9, Ordering::AcqRel), 5);
    assert_eq!(word.load(Ordering::Relaxed), 5);
}

#[test]
fn shared_words_behave_like_atomics() {
    let memory = SharedMemory::create("test", PAGE).unwrap();
    let word = memory.u32(4).unwrap();
    word.store(5, Ordering::Release);

    assert_eq!(word.compare_exchange(5, 6, Ordering::AcqRel, Ordering::Acquire), Ok(5));
    assert_eq!(word.compare_exchange(5, 7, Ordering::AcqRel, Ordering::Acquire), Err(6));
    assert_eq!(word.fetch_add(u32::MAX, Ordering::AcqRel), 6);
    assert_eq!(word.fetch_or(8, Ordering::AcqRel), 5);
    assert_eq!(word.fetch_and(9, Ordering::AcqRel), 13);
    assert_eq!(word.swap(1, Ordering::AcqRel), 9);
    assert_eq!(word.load(Ordering::Acquire), 1);
}

#[test]
fn word_keeps_its_mapping_alive() {
    let word = SharedMemory::create("test", PAGE).unwrap().u32(PAGE as u64 - 4).unwrap();
    word.store(0xdead_beef, Ordering::Relaxed);
    assert_eq!(word.load(Ordering::Relaxed), 0xdead_beef);
}

#[test]
fn misaligned_words_are_refused() {
    let memory = SharedMemory::create("test", PAGE).unwrap();

    // A window may start at any offset. Alignment is that of the address.
    let window = memory.window(4, 0x100).unwrap();

    assert_eq!(memory.u32(2).unwrap_err(), MemoryError::Misaligned { offset: 2, align: 4 });
    assert_eq!(memory.u64(4).unwrap_err(), MemoryError::Misaligned { offset: 4, align: 8 });
    assert_eq!(window.load_u64_acquire(0), Err(MemoryError::Misaligned { offset: 0, align: 8 }));
    assert_eq!(window.load_u64_acquire(4), Ok(0));
    assert_eq!(window.load_u16_relaxed(1), Err(MemoryError::Misaligned { offset: 1, align: 2 }));
    assert_eq!(window.store_16(4, [0; 16]), Err(MemoryError::Misaligned { offset: 4, align: 16 }));
    assert_eq!(window.store_64(28, [0; 64]), Err(MemoryError::Misaligned { offset: 28, align: 64 }));
}

#[test]
fn out_of_bounds_accesses_are_refused() {
    let memory = SharedMemory::create("test", 2 * PAGE).unwrap();
    let window = memory.window(0x100, 0x40).unwrap();
    let out = |offset, len| MemoryError::OutOfBounds { offset, len, size: 0x40 };

    assert_eq!(window.load_u32_acquire(0x40), Err(out(0x40, 4)));
    assert_eq!(window.load_u32_acquire(u64::MAX), Err(out(u64::MAX, 4)));
    assert_eq!(window.store_u64_release(0x39, 0), Err(out(0x39, 8)));
    assert_eq!(window.read(0x3f, &mut [0; 2]), Err(out(0x3f, 2)));
    assert_eq!(window.write(u64::MAX, &[0; 2]), Err(out(u64::MAX, 2)));
    assert_eq!(window.window(1, 0x40).unwrap_err(), out(1, 0x40));
    assert_eq!(window.window(1, u64::MAX).unwrap_err(), out(1, u64::MAX));
    assert_eq!(window.u32(0x40).unwrap_err(), out(0x40, 4));
    assert_eq!(window.copy_to(0, &memory.whole(), 0, 0x41), Err(out(0, 0x41)));
    assert_eq!(memory.whole().copy_to(0, &window, 0x20, 0x21), Err(out(0x20, 0x21)));
    assert_eq!(window.zero(0, 0x41), Err(out(0, 0x41)));
    assert_eq!(window.write(0x40, &[]), Ok(()));
}

#[test]
fn window_stores_land_at_their_offset_only() {
    let memory = SharedMemory::create("test", PAGE).unwrap();
    let window = memory.window(0x200, 0x200).unwrap();
    let mut expected = vec![0u8; PAGE];
    window.store_u8_relaxed(1, 0x11).unwrap();
    expected[0x201] = 0x11;
    window.store_u16_relaxed(2, 0x2233).unwrap();
    expected[0x202..0x204].copy_from_slice(&0x2233u16.to_le_bytes());
    window.store_u32_release(4, 0x4455_6677).unwrap();
    expected[0x204..0x208].copy_from_slice(&0x4455_6677u32.to_le_bytes());
    window.store_u64_release(8, 0x8899_aabb_ccdd_eeff).unwrap();
    expected[0x208..0x210].copy_from_slice(&0x8899_aabb_ccdd_eeffu64.to_le_bytes());
    window.store_16(16, [0x16; 16]).unwrap();
    expected[0x210..0x220].fill(0x16);
    window.store_64(64, [0x64; 64]).unwrap();
    expected[0x240..0x280].fill(0x64);
    window.write_array(0x100, &[0x99; 256]).unwrap();
    expected[0x300..0x400].fill(0x99);
    window.zero(0x110, 16).unwrap();
    expected[0x310..0x320].fill(0);

    let mut found = vec![0u8; PAGE];
    memory.read(0, &mut found).unwrap();

    assert_eq!(found, expected);
    assert_eq!(window.load_u8_relaxed(1), Ok(0x11));
    assert_eq!(window.load_u16_relaxed(2), Ok(0x2233));
    assert_eq!(window.load_u32_relaxed(4), Ok(0x4455_6677));
    assert_eq!(window.load_u64_relaxed(8), Ok(0x8899_aabb_ccdd_eeff));
}

#[test]
fn dropped_memory_is_unmapped() {
    let memory = SharedMemory::create("nicforge-drop-test", PAGE).unwrap();
    let window = memory.window(0, 8).unwrap();
    let mapped = || std::fs::read_to_string("/proc/self/maps").unwrap().contains("nicforge-drop-test");
    drop(memory);
    let mapped_by_window = mapped();
    drop(window);

    assert!(mapped_by_window);
    assert!(!mapped());
}

#[test]
fn device_memory_has_its_areas_where_they_lie_in_the_file() {
    let file = SharedMemory::create("device", 8 * 4096).unwrap();
    file.write(3 * 4096, b"first").unwrap();
    file.write(6 * 4096, b"second").unwrap();
    let areas = [(2 * 4096, 4096), (5 * 4096, 4096)];

    let memory =
        SharedMemory::map_device(file.fd().unwrap(), 4096, 6 * 4096, &areas, Access::ReadWrite).unwrap();

    let mut found = [0; 6];
    memory.read(2 * 4096, &mut found[..5]).unwrap();

    assert_eq!(&found[..5], b"first");

    memory.read(5 * 4096, &mut found).unwrap();
    assert_eq!(&found, b"second");
    assert!(!memory.faulted());
}

#[test]
fn device_memory_refuses_areas_that_are_misaligned_or_outside() {
    let file = SharedMemory::create("device", 4 * 4096).unwrap();
    let map =
        |area| SharedMemory::map_device(file.fd().unwrap(), 0, 2 * 4096, &[area], Access::ReadOnly).map(drop);

    assert!(matches!(map((100, 4096)), Err(MemoryError::UnalignedOffset { offset: 100, .. })));
    assert!(matches!(map((0, 100)), Err(MemoryError::UnalignedOffset { offset: 100, .. })));
    assert!(matches!(map((4096, 8192)), Err(MemoryError::OutOfBounds { .. })));
    assert!(matches!(map((!0xfff, 8192)), Err(MemoryError::OutOfBounds { .. })));
    assert!(matches!(map((0, 0)), Err(MemoryError::Empty)));
}
