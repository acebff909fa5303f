//! Tests of what a child of `fork` inherits. It is a program of its own, whose tests fork while no
//! other thread changes mappings.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failure to set up is a failed test")]
#![allow(unsafe_code, reason = "`fork` is unsafe")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use nicforge_shm::{OwnerCell, OwnerProcess, SharedMemory, Uninherited};
use nix::libc::_exit;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, alarm, fork};

/// Seconds after which a child ends that hangs.
const LIMIT: u32 = 60;

/// Returns whether `check` is true in a child.
fn is_true_in_child(check: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child makes few calls, and ends without returning.
    match unsafe { fork() }.unwrap() {
        ForkResult::Parent { child } => waitpid(child, None) == Ok(WaitStatus::Exited(child, 0)),
        ForkResult::Child => {
            alarm::set(LIMIT);
            let is_true = check();
            // SAFETY: this ends the process.
            unsafe { _exit(i32::from(!is_true)) }
        }
    }
}

#[test]
fn a_child_is_another_process_and_its_child_is_a_third_one() {
    let owner = OwnerProcess::current();
    static CELL: OwnerCell = OwnerCell::new();
    assert!(owner.is_current() && !CELL.is_inherited());
    CELL.set_current();
    assert!(!CELL.is_inherited());

    assert!(is_true_in_child(|| {
        let child = OwnerProcess::current();
        let is_inherited = !owner.is_current() && CELL.is_inherited() && child.is_current();
        CELL.set_current();
        is_inherited
            && !CELL.is_inherited()
            && is_true_in_child(|| !owner.is_current() && !child.is_current() && CELL.is_inherited())
    }));
    assert!(owner.is_current() && !CELL.is_inherited());
}

#[test]
fn a_child_has_zeros_of_its_own_in_place_of_a_kept_mapping() {
    let (kept, shared) = (SharedMemory::create("kept", 8192), SharedMemory::create("shared", 8192));
    let (kept, shared) = (kept.unwrap(), shared.unwrap());
    kept.keep_from_children().unwrap();
    kept.keep_from_children().unwrap();
    let (word, other) = (kept.u32(4096).unwrap(), shared.u32(4096).unwrap());

    for memory in [&kept, &shared] {
        memory.write(4096, &[7; 4]).unwrap();
    }

    assert!(is_true_in_child(|| {
        let mut bytes = [1; 4];
        kept.read(4096, &mut bytes).unwrap();
        kept.write(4096, &[9; 4]).unwrap();
        other.store(1, std::sync::atomic::Ordering::Release);
        bytes == [0; 4] && word.load(std::sync::atomic::Ordering::Acquire) == 0x0909_0909
    }));
    assert_eq!(word.load(std::sync::atomic::Ordering::Acquire), 0x0707_0707);
    assert_eq!(other.load(std::sync::atomic::Ordering::Acquire), 1);
}

#[test]
fn a_child_that_drops_a_kept_mapping_unmaps_nothing_else() {
    let kept = SharedMemory::create("kept", 1 << 20).unwrap();
    kept.keep_from_children().unwrap();
    let address = kept.base_address();
    let mut kept = Some(kept);

    assert!(is_true_in_child(|| {
        // New mappings of the child lie elsewhere as long as it has the old one.
        let new: Vec<_> = (0..16).map(|_| SharedMemory::create("new", 1 << 20).unwrap()).collect();
        drop(kept.take());
        new.iter().all(|memory| memory.base_address() != address && memory.write(0, &[1; 8]).is_ok())
    }));
    assert!(kept.is_some_and(|kept| kept.write(0, &[1]).is_ok()));
}

#[test]
fn a_child_does_not_keep_a_file_open() {
    let (near, mut far) = UnixStream::pair().unwrap();
    let near = Uninherited::new(near).unwrap();
    assert!(is_true_in_child(|| {
        let mut end: &UnixStream = &near;
        matches!(end.read(&mut [0]), Ok(0)) && end.write(&[1]).is_err()
    }));

    // The child and its end have changed nothing.
    (&*near).write_all(&[5]).unwrap();
    let mut byte = [0];
    far.read_exact(&mut byte).unwrap();
    assert_eq!(byte, [5]);

    // While another child lives, the file is closed by its owner.
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut writer = Some(writer);
    // SAFETY: the child makes few calls, and ends without returning.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            alarm::set(LIMIT);
            drop(writer.take());
            let is_end = matches!(reader.read(&mut [0]), Ok(0));
            // SAFETY: this ends the process.
            unsafe { _exit(i32::from(!is_end)) }
        }
        ForkResult::Parent { child } => {
            drop(near);
            assert_eq!(far.read(&mut byte).unwrap(), 0);
            drop(writer);
            assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
        }
    }
}
