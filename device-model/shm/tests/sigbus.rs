//! Tests of files that their owner truncates while they are mapped.
#![allow(clippy::unwrap_used, reason = "a failure to set up is a failed test")]

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::atomic::Ordering;

use nicforge_shm::{Access, SharedMemory, guard_faults, install_sigbus_guard};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::Signal;
use nix::unistd::ftruncate;

/// The page size of every target that the tests run on.
const PAGE: usize = 4096;
/// Environment variable of the process that is meant to die.
const VICTIM: &str = "NICFORGE_SIGBUS_VICTIM";

fn file(pages: usize) -> OwnedFd {
    let file = memfd_create("test", MFdFlags::MFD_CLOEXEC).unwrap();
    ftruncate(&file, (pages * PAGE) as i64).unwrap();
    file
}

#[test]
fn read_of_a_truncated_file_gives_zeros_and_marks_the_mapping() {
    let file = file(4);
    let memory = SharedMemory::map_guarded(file.as_fd(), 0, 4 * PAGE, Access::ReadWrite).unwrap();
    memory.write(3 * PAGE as u64, &[0x55; 256]).unwrap();
    let faults = guard_faults();
    ftruncate(&file, PAGE as i64).unwrap();
    let marked_before = memory.faulted();

    let mut bytes = [0xffu8; 256];
    memory.read(3 * PAGE as u64, &mut bytes).unwrap();

    assert!(!marked_before);
    assert_eq!(bytes, [0; 256]);
    assert!(memory.faulted());
    assert!(guard_faults() > faults);
}

#[test]
fn stores_and_string_copies_into_a_truncated_file_survive() {
    let file = file(4);
    let memory = SharedMemory::map_guarded(file.as_fd(), 0, 4 * PAGE, Access::ReadWrite).unwrap();
    let word = memory.u64(PAGE as u64).unwrap();
    ftruncate(&file, 0).unwrap();

    word.store(7, Ordering::Release);
    memory.write(0, &[0x11; 4 * PAGE]).unwrap();

    assert!(memory.faulted());
    assert_eq!(memory.window(0, 8).unwrap().load_u64_acquire(0), Ok(0x1111_1111_1111_1111));
}

#[test]
fn truncated_read_only_mapping_reads_zeros() {
    let file = file(2);
    let memory = SharedMemory::map_guarded(file.as_fd(), PAGE as u64, PAGE, Access::ReadOnly).unwrap();
    ftruncate(&file, 0).unwrap();
    assert_eq!(memory.u32(0).unwrap().load(Ordering::Relaxed), 0);
    assert!(memory.faulted());
}

#[test]
fn fault_of_one_mapping_does_not_affect_the_others() {
    let (short, whole) = (file(1), file(1));
    let truncated = SharedMemory::map_guarded(short.as_fd(), 0, PAGE, Access::ReadWrite).unwrap();
    let intact = SharedMemory::map_guarded(whole.as_fd(), 0, PAGE, Access::ReadWrite).unwrap();
    intact.write(0, b"kept").unwrap();
    ftruncate(&short, 0).unwrap();

    truncated.read(0, &mut [0; 8]).unwrap();

    let mut bytes = [0; 4];
    intact.read(0, &mut bytes).unwrap();

    assert!(truncated.faulted());
    assert!(!intact.faulted());
    assert_eq!(&bytes, b"kept");
}

#[test]
fn slot_of_a_dropped_mapping_is_reused_without_its_fault_mark() {
    let file = file(1);

    // More ranges than the first chunk of the table holds, one after the other and then at once.
    for _ in 0..3 {
        let all: Vec<_> = (0..1500)
            .map(|_| SharedMemory::map_guarded(file.as_fd(), 0, PAGE, Access::ReadWrite).unwrap())
            .collect();
        assert!(all.iter().all(|memory| !memory.faulted()));
        ftruncate(&file, 0).unwrap();
        all[1400].read(0, &mut [0; 8]).unwrap();
        assert!(all[1400].faulted());
        assert!(!all[1399].faulted());
        ftruncate(&file, PAGE as i64).unwrap();
    }
}

#[test]
fn a_replaced_file_is_unmapped_for_all_handles_and_is_no_fault() {
    let file = file(4);
    let memory = SharedMemory::map_guarded(file.as_fd(), 0, 4 * PAGE, Access::ReadWrite).unwrap();
    let other = SharedMemory::map(file.as_fd(), 0, 4 * PAGE, Access::ReadWrite).unwrap();
    other.write(0, b"kept").unwrap();
    let (window, word) = (memory.window(0, 64).unwrap(), memory.u64(PAGE as u64).unwrap());
    let other_window = other.whole();

    assert!(memory.has_other_handles());
    memory.replace_by_zeros().unwrap();
    drop(memory);

    let mut bytes = [0xff; 4];
    window.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 4]);
    assert!(window.faulted());
    window.write(0, b"lost").unwrap();
    word.store(7, Ordering::Release);
    other.read(0, &mut bytes).unwrap();
    assert_eq!((&bytes, other.u64(PAGE as u64).unwrap().load(Ordering::Acquire)), (b"kept", 0));

    // A mapping without a guard has no mark. A file that is cut short later does not matter.
    other.replace_by_zeros().unwrap();
    ftruncate(&file, 0).unwrap();
    other_window.read(0, &mut bytes).unwrap();
    assert_eq!((bytes, other_window.faulted()), ([0; 4], false));
}

#[test]
fn threads_that_fault_at_once_all_survive() {
    let file = file(64);
    let memory = SharedMemory::map_guarded(file.as_fd(), 0, 64 * PAGE, Access::ReadWrite).unwrap();
    ftruncate(&file, 0).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for page in 0..64 {
                    memory.read((page * PAGE) as u64, &mut [0; 8]).unwrap();
                }
            });
        }
    });

    assert!(memory.faulted());
}

#[test]
fn fault_of_an_unguarded_mapping_still_kills() {
    if std::env::var_os(VICTIM).is_some() {
        install_sigbus_guard().unwrap();
        let file = file(1);
        let memory = SharedMemory::map(file.as_fd(), 0, PAGE, Access::ReadWrite).unwrap();
        ftruncate(&file, 0).unwrap();
        let _ = memory.read(0, &mut [0; 8]);
        return;
    }

    let test = ["--exact", "fault_of_an_unguarded_mapping_still_kills"];
    let output = Command::new(std::env::current_exe().unwrap()).args(test).env(VICTIM, "1").output().unwrap();

    assert_eq!(output.status.signal(), Some(Signal::SIGBUS as i32), "{output:?}");
}
