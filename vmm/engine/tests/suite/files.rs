//! Client files that are truncated at any time, endless, of any kind, or too many. A neighbour is
//! served meanwhile.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

use std::{
    fs::{File, OpenOptions},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{fs::OpenOptionsExt, net::UnixStream},
    },
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use crate::common::{neighbour::Neighbour, *};
use nicforge_engine::{EngineConfig, Quotas};
use nicforge_hwi::attachment::mirror;
use nicforge_shm::Access;
use nicforge_vfio_user::{Client, DMA_FLAG_READ, DmaMap, DmaUnmap, Errno};
use nix::{
    errno::Errno as SystemErrno,
    fcntl::{FallocateFlags, FcntlArg, OFlag, SealFlag, fallocate, fcntl},
    sys::memfd::{MFdFlags, memfd_create},
    unistd::ftruncate,
};

const PAGE: u64 = 0x1000;
/// Bytes in one copy.
const COPY: u32 = 0x1000;
const TERABYTE: u64 = 1 << 40;
/// BAR of the attachment's windows, and of the mirror page.
const BARS: [u32; 2] = [1, 2];
/// Size of a client's file, in pages.
const PAGES: u64 = 64;

fn file(length: u64) -> OwnedFd {
    let file = memfd_create("client", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap();
    ftruncate(&file, length as i64).unwrap();
    file
}

/// Returns a file that cannot grow.
fn sealed_file(length: u64) -> OwnedFd {
    let file = file(length);
    fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_GROW)).unwrap();
    file
}

fn map(client: &Client, address: u64, offset: u64, size: u64, file: &OwnedFd) -> Result<(), Errno> {
    client.dma_map(range(address, offset, size), Some(file.as_fd())).map_err(|error| error.errno())
}

/// Copies from `source` to `target` until the connection ends, because the file behind the second
/// terabyte is truncated.
fn assert_truncation_costs_its_client(config: EngineConfig, source: u64, target: u64) {
    let neighbour = Neighbour::start(config);
    let client = neighbour.served.client(A);
    let (safe, cut_short) = (file(PAGES * PAGE), file(PAGES * PAGE));

    map(&client, 0, 0, PAGES * PAGE, &safe).unwrap();
    map(&client, TERABYTE, 0, PAGES * PAGE, &cut_short).unwrap();
    enable(&client);
    let page = map_bar(&client, BARS[1], Access::ReadOnly);
    for _ in 0..100 {
        copy(&client, source, target, COPY).unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| ftruncate(&cut_short, 0).unwrap());
        let started = Instant::now();
        while copy(&client, source, target, COPY).is_ok() {
            assert!(started.elapsed() < LONG, "the client keeps its attachment");
        }
    });
    neighbour.assert_served_and_reusable();
    assert_eq!(server_of(&neighbour.served.snapshot(), A).evicted, 1);
    let flags = page.u32(mirror::FLAGS).unwrap().load(Ordering::Acquire);

    assert_eq!(flags, mirror::FLAG_DEAD);
}

/// Truncates the file for a moment, and restores its length.
fn truncate_and_restore(file: &OwnedFd) {
    ftruncate(file, 0).unwrap();
    ftruncate(file, (PAGES * PAGE) as i64).unwrap();
}

/// Checks that a range of each of these files is accessed by DMA messages, for reading only and for
/// writing too, and that none is mapped.
fn assert_none_is_mapped(config: EngineConfig, files: &[(&str, BorrowedFd<'_>)]) {
    let neighbour = Neighbour::start(config);
    let client = neighbour.served.client(A);

    for (name, fd) in files {
        for flags in [DMA_FLAG_READ, range(0, 0, PAGE).flags] {
            let mapped = client.dma_map(DmaMap { flags, ..range(0, 0, PAGE) }, Some(*fd));
            assert!(mapped.is_ok(), "{name}: {mapped:?}");
            let usage = client_of(&neighbour.served.snapshot(), A).unwrap();
            assert_eq!((usage.ranges, usage.mapped_bytes), (1, 0), "{name}");
            client.dma_unmap(DmaUnmap::All).unwrap();
        }
    }

    assert_eq!(server_of(&neighbour.served.snapshot(), A).unmappable, 1);
    neighbour.assert_served();
    drop(client);
    neighbour.assert_served_and_reusable();
}

both_loops! {
    fn files_count_with_their_size_and_those_beyond_the_quota_are_reached_by_messages(config) {
        config.quotas.mapped_bytes = 5 * PAGE;
        let neighbour = Neighbour::start(config);
        let client = neighbour.served.client(A);
        // The client asks for a page of each. Whole files are mapped, with this many bytes in all.
        let files = [
            ("may grow", file(PAGE), PAGE),
            ("fits the rest", sealed_file(4 * PAGE), 5 * PAGE),
            ("is one too many", sealed_file(PAGE), 5 * PAGE),
        ];

        for (number, (name, file, mapped)) in (0..).zip(&files) {
            assert_eq!(map(&client, number * PAGE, 0, PAGE, file), Ok(()), "{name}");
            let usage = client_of(&neighbour.served.snapshot(), A).unwrap();
            assert_eq!((usage.ranges as u64, usage.mapped_bytes), (number + 1, *mapped), "{name}");
        }
        assert_eq!(server_of(&neighbour.served.snapshot(), A).unmappable, 1);
        client.dma_unmap(DmaUnmap::All).unwrap();

        // An unmapped file does not count any more.
        neighbour.assert_served();
        assert_eq!(map(&client, 0, 0, PAGE, &files[2].1), Ok(()));
        assert_eq!(client_of(&neighbour.served.snapshot(), A).unwrap().mapped_bytes, PAGE);
        drop(client);
        neighbour.assert_served_and_reusable();
    }

    fn a_file_cut_short_before_it_is_mapped_is_refused(config) {
        let neighbour = Neighbour::start(config);
        let client = neighbour.served.client(A);
        let short = file(4 * PAGE);
        ftruncate(&short, 0).unwrap();
        assert_eq!(map(&client, 0, 0, 4 * PAGE, &short), Err(Errno::EINVAL));
        ftruncate(&short, PAGE as i64).unwrap();
        assert_eq!(map(&client, 0, 0, 4 * PAGE, &short), Err(Errno::EINVAL));
        assert_eq!(map(&client, 0, 0, PAGE, &short), Ok(()));
        drop(client);
        neighbour.assert_served_and_reusable();
    }

    fn a_file_that_changes_its_length_while_it_is_mapped_costs_at_most_its_client(config) {
        let neighbour = Neighbour::start(config);
        let flickering = file(PAGES * PAGE);
        let stop = AtomicBool::new(false);
        let mut mapped = 0;

        std::thread::scope(|scope| {
            scope.spawn(|| {
                let started = Instant::now();
                while !stop.load(Ordering::Relaxed) && started.elapsed() < LONG {
                    truncate_and_restore(&flickering);
                }
            });
            for _ in 0..20 {
                neighbour.served.wait_until_free(A);
                let client = neighbour.served.client(A);
                enable(&client);
                for _ in 0..20 {
                    if map(&client, 0, 0, PAGES * PAGE, &flickering).is_ok() {
                        mapped += 1;
                        let _ = copy(&client, 0, PAGE, COPY);
                        let _ = client.dma_unmap(DmaUnmap::All);
                    }
                }
                neighbour.assert_served();
            }
            stop.store(true, Ordering::Relaxed);
        });

        assert!(mapped > 0);
        neighbour.assert_served_and_reusable();
    }

    fn a_file_cut_short_while_the_device_reads_it_costs_its_client(config) {
        assert_truncation_costs_its_client(config, TERABYTE, 0);
    }

    fn a_file_cut_short_while_the_device_writes_it_costs_its_client(config) {
        assert_truncation_costs_its_client(config, 0, TERABYTE);
    }

    fn windows_and_mirror_can_not_be_cut_short_or_sealed(config) {
        let neighbour = Neighbour::start(config);
        let client = neighbour.served.client(A);

        for bar in BARS {
            let fd = client.region_info(bar).unwrap().fd.unwrap();
            assert_eq!(ftruncate(&fd, 0), Err(SystemErrno::EPERM));
            assert_eq!(ftruncate(&fd, 1 << 30), Err(SystemErrno::EPERM));
            for seal in [SealFlag::F_SEAL_WRITE, SealFlag::F_SEAL_FUTURE_WRITE] {
                assert_eq!(fcntl(&fd, FcntlArg::F_ADD_SEALS(seal)), Err(SystemErrno::EPERM));
            }
        }
        // Holes in the windows read as zeros, which the client could have written as well.
        let windows = client.region_info(BARS[0]).unwrap();
        let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        fallocate(windows.fd.unwrap(), hole, 0, windows.size as i64).unwrap();
        let mirror_page = client.region_info(BARS[1]).unwrap();
        assert!(fallocate(mirror_page.fd.unwrap(), hole, 0, mirror_page.size as i64).is_err());
        let page = map_bar(&client, BARS[1], Access::ReadOnly);

        assert_eq!(page.u32(mirror::MAGIC).unwrap().load(Ordering::Acquire), mirror::MAGIC_VALUE);
        assert_eq!(read32(&client, reg::SCRATCH), 0);
        drop(client);
        neighbour.assert_served_and_reusable();
    }

    fn a_sparse_file_of_a_terabyte_is_reached_by_messages(config) {
        let neighbour = Neighbour::start(config);
        let client = neighbour.served.client(A);
        let huge = file(TERABYTE);

        for (address, offset) in [(0, 0), (PAGE, TERABYTE / 2), (2 * PAGE, TERABYTE - PAGE)] {
            map(&client, address, offset, PAGE, &huge).unwrap();
        }
        let usage = client_of(&neighbour.served.snapshot(), A).unwrap();

        assert_eq!((usage.ranges, usage.mapped_bytes), (3, 0));
        assert_eq!(nix::sys::stat::fstat(&huge).unwrap().st_blocks, 0, "no page was touched");
        drop(client);
        neighbour.assert_served_and_reusable();
    }

    fn a_sparse_file_within_the_quota_takes_no_memory(config) {
        let neighbour = Neighbour::start(config);
        let client = neighbour.served.client(A);
        let size = config.quotas.mapped_bytes;
        let sparse = file(size);

        map(&client, 0, 0, size, &sparse).unwrap();
        neighbour.assert_served();
        assert_eq!(nix::sys::stat::fstat(&sparse).unwrap().st_blocks, 0, "no page was touched");

        // The quota is used up: one more file is not mapped.
        map(&client, size, 0, PAGE, &file(PAGE)).unwrap();
        assert_eq!(client_of(&neighbour.served.snapshot(), A).unwrap().mapped_bytes, size);
        drop(client);
        neighbour.assert_served_and_reusable();
    }

    fn files_of_other_kinds_are_not_mapped(config) {
        let disk = File::open(std::env::current_exe().unwrap()).unwrap();
        let process = File::open("/proc/self/environ").unwrap();
        let memory = OpenOptions::new().read(true).write(true).open("/proc/self/mem").unwrap();
        let attribute = File::open("/sys/kernel/uevent_seqnum").unwrap();
        let zero = OpenOptions::new().read(true).write(true).open("/dev/zero").unwrap();
        let folder = File::open("/").unwrap();
        let path_only = OpenOptions::new().read(true).custom_flags(OFlag::O_PATH.bits()).open("/proc/self/exe").unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        let (socket, _other) = UnixStream::pair().unwrap();
        let event = eventfd();

        assert_none_is_mapped(
            config,
            &[
                ("a program on a disk", disk.as_fd()),
                ("a file of /proc", process.as_fd()),
                ("a process's memory", memory.as_fd()),
                ("a file of /sys", attribute.as_fd()),
                ("/dev/zero", zero.as_fd()),
                ("a folder", folder.as_fd()),
                ("a path", path_only.as_fd()),
                ("a pipe's reading end", reader.as_fd()),
                ("a pipe's writing end", writer.as_fd()),
                ("a socket", socket.as_fd()),
                ("an eventfd", event.as_fd()),
            ],
        );
    }

    fn a_file_on_the_disk_is_not_mapped(config) {
        let on_disk = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        on_disk.set_len(PAGE).unwrap();
        if nix::sys::statfs::fstatfs(&on_disk).unwrap().filesystem_type() == nix::sys::statfs::TMPFS_MAGIC {
            // The whole workspace is on tmpfs, where the file is as good as a memfd.
            return;
        }
        assert_none_is_mapped(config, &[("a file on a disk", on_disk.as_fd())]);
    }

    fn a_file_sealed_against_writing_serves_for_reading_only(config) {
        let neighbour = Neighbour::start(config);
        let client = neighbour.served.client(A);
        let sealed_file = file(PAGE);
        fcntl(&sealed_file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SHRINK)).unwrap();
        assert!(map(&client, 0, 0, PAGE, &sealed_file).is_err());
        let read_only = DmaMap { flags: DMA_FLAG_READ, ..range(0, 0, PAGE) };
        client.dma_map(read_only, Some(sealed_file.as_fd())).unwrap();
        enable(&client);
        copy(&client, 0, 0x800, 64).unwrap();
        neighbour.served.wait_until("the copy fails", |_| read64(&client, reg::COPIED) == reg::ONE_COPY_FAILED);

        drop(client);
        neighbour.assert_served_and_reusable();
    }

    fn a_file_of_huge_pages_is_mapped_or_refused(config) {
        const HUGE: u64 = 2 << 20;
        let neighbour = Neighbour::start(config);
        let client = neighbour.served.client(A);
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_HUGETLB | MFdFlags::MFD_HUGE_2MB;

        // A kernel without huge pages refuses to make such a file.
        if let Ok(huge) = memfd_create("huge", flags) {
            ftruncate(&huge, HUGE as i64).unwrap();
            if map(&client, 0, 0, HUGE, &huge).is_ok() {
                enable(&client);
                copy(&client, 0, PAGE, 64).unwrap();
                neighbour.served.wait_until("the copy ends", |_| read64(&client, reg::COPIED) != 0);
            }
        }

        assert_eq!(read32(&client, reg::SCRATCH), 0);
        drop(client);
        neighbour.assert_served_and_reusable();
    }

    fn a_client_with_a_full_quota_of_ranges_gets_no_more_and_slows_no_other(config) {
        config.quotas = Quotas { ranges: 4096, ..config.quotas };
        let ranges = config.quotas.ranges as u64;
        let neighbour = Neighbour::start(config);
        let client = neighbour.served.client(A);
        let shared = file(PAGE);

        // From the top, which is the worst order for a sorted list.
        for index in (0..ranges).rev() {
            map(&client, index * 2 * PAGE, 0, PAGE, &shared).unwrap();
        }
        assert_eq!(map(&client, 2 * ranges * PAGE, 0, PAGE, &shared), Err(Errno::ENOSPC));
        let usage = client_of(&neighbour.served.snapshot(), A).unwrap();

        assert_eq!((usage.ranges as u64, usage.mapped_bytes), (ranges, PAGE));
        neighbour.assert_served();
        drop(client);
        neighbour.assert_served_and_reusable();
    }
}
