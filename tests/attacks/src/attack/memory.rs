//! Attacks by memory that is expensive to map, to access, or to remove.

use std::{
    fs::File,
    sync::atomic::{AtomicBool, Ordering},
};

use nicforge_hwi::proof::dma_engine::Descriptor;
use nicforge_vfio_user::wire::Command;
use nix::{
    errno::Errno,
    sys::memfd::{MFdFlags, memfd_create},
};

use crate::{
    arena::{Arena, Failed, Round},
    client,
    copier::Copier,
    files,
};

/// DMA address of the attackers' memory.
const BASE: u64 = 0x1_0000_0000;
/// Bytes of a file that a client of `nicforge serve` may map beside its scatter list.
const MAPPED: u64 = 120 << 20;
/// A huge page.
const GIGABYTE: u64 = 1 << 30;

/// Maps files without pages and has the card write to all of them. The server accesses the pages
/// and is charged for them.
///
/// A correct server has a quota of mapped bytes that fits a machine; its cgroup bounds the rest.
pub(super) fn sparse(arena: &Arena) -> Round {
    let size = arena.size().pick(64 << 20, 2 << 30);
    arena.repeat(|| {
        let mut copier = Copier::open(&arena.socket("target.user0"))?;
        copier.client.map_file(BASE, size, files::sparse(size)?)?;
        Ok(copier.access_all(BASE, size)?)
    })
}

/// Removes pages from a file while the card writes to them, so that each access of the server
/// faults.
///
/// A correct server copies in pieces within its time budget.
pub(super) fn punched(arena: &Arena) -> Round {
    let size = arena.size().pick(64 << 20, MAPPED);
    let file = files::populated(size)?;
    let is_over = AtomicBool::new(false);

    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) && files::punch(&file, 0, size).is_ok() {
                // The next holes are in allocated pages again.
                if files::populate(&file, size / 2).is_err() {
                    return;
                }
            }
        });

        let result = arena.repeat(|| {
            let mut copier = Copier::open(&arena.socket("target.user0"))?;
            copier.client.map_file(BASE, size, &file)?;
            Ok(copier.access_all(BASE, size)?)
        });

        is_over.store(true, Ordering::Relaxed);
        result
    })
}

/// Has the card write the first byte of a huge page: the kernel zeroes all of it in that access.
///
/// A correct server has no huge pages of a gigabyte available, or refuses them.
pub(super) fn huge(arena: &Arena) -> Round {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_1GB;
    arena.repeat(|| {
        let file = match memfd_create(c"attack", flags) {
            Ok(fd) => File::from(fd),
            Err(errno) => return Err(Failed::NotRun(format!("no huge pages of 1 GiB: {errno}"))),
        };

        file.set_len(GIGABYTE)?;
        if files::populate(&file, GIGABYTE).is_err() {
            return Err(Failed::NotRun(format!("no huge page of 1 GiB is free: {}", Errno::ENOMEM)));
        }

        files::punch(&file, 0, GIGABYTE)?;
        let mut copier = Copier::open(&arena.socket("target.user0"))?;
        copier.client.map_file(BASE, GIGABYTE, &file)?;
        let byte = Descriptor { source: BASE + 64, destination: BASE, length: 1, reserved: 0 };

        Ok(copier.copy(&[byte])?)
    })
}

/// Maps a large file, has the card access a part of it, and unmaps it, on all sockets of a card at
/// once. These calls hold the lock of the server's address space, for which its page faults wait.
///
/// A correct server's pauses stay within its budget.
pub(super) fn remapped(arena: &Arena) -> Round {
    let size: u64 = arena.size().pick(64 << 20, 2 << 30);
    let file = files::populated(size)?;
    let sockets = ["target.user0", "target.user1", "target.user2"];

    std::thread::scope(|scope| {
        let threads = sockets.map(|name| {
            let file = &file;
            scope.spawn(move || remap(arena, name, file, size))
        });
        threads.into_iter().for_each(|thread| drop(thread.join()));
    });

    Ok(())
}

/// Runs the loop of [`remapped`] on one socket.
fn remap(arena: &Arena, name: &str, file: &File, size: u64) -> Round {
    arena.repeat(|| {
        let mut copier = Copier::open(&arena.socket(name))?;
        for _ in 0..4 {
            copier.client.map_file(BASE, size, file)?;
            copier.access_all(BASE, size / 8)?;
            copier.client.ask(Command::DmaUnmap, &client::unmap(BASE, size))?;
        }
        Ok(())
    })
}
