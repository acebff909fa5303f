//! The `vfio_user` crate's server on a thread.

use std::{
    os::{fd::AsRawFd, unix::net::UnixStream},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::JoinHandle,
};

use nicforge_tests::backing::LIMIT;
use nicforge_vfio_user::{Client, IRQ_FLAG_AUTOMASKED, IRQ_FLAG_EVENTFD, IRQ_FLAG_MASKABLE};
use tempfile::TempDir;
use vfio_bindings::bindings::vfio::*;
use vfio_user::{IrqInfo, Server, ServerRegion, SparseArea};

use super::card::{
    AREAS, CONFIG, Card, FILE_OFFSET, LARGE, MEMORY, ObservedState, REGISTERS, UNDIVIDED, VECTORS,
};

/// A card that is served to one client after another, until this is dropped. All clients must be
/// gone by then, since the server checks for its end only between two of them.
pub(super) struct Rig {
    pub(super) seen: Arc<ObservedState>,
    pub(super) path: PathBuf,
    pub(super) directory: TempDir,
    /// Number of clients that have disconnected.
    pub(super) served: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Rig {
    /// Serves a card that can be reset.
    pub(super) fn start() -> Self {
        Self::start_with(true)
    }

    /// Serves a card that can or can't be reset.
    pub(super) fn start_with(resettable: bool) -> Self {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("card");
        let (observed, stop) = (ObservedState::new(), Arc::new(AtomicBool::new(false)));
        let served = Arc::new(AtomicU32::new(0));
        let server = Server::new(&path, resettable, irqs(), regions(&observed)).unwrap();
        let mut card = Card::new(observed.clone());
        let (stopped, count) = (stop.clone(), served.clone());
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::SeqCst) {
                // An error ends one client only: for instance, it disconnected before its answer.
                let _ = server.run(&mut card);
                count.fetch_add(1, Ordering::SeqCst);
            }
        });

        Self { seen: observed, path, directory, served, stop, thread: Some(thread) }
    }

    /// Connects nicforge's client.
    pub(super) fn client(&self) -> Client {
        Client::connect(&self.path, LIMIT).unwrap()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // The server waits for a connection, and then sees that it must stop. A card that has ended
        // its server has none that listens.
        drop(UnixStream::connect(&self.path));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Returns the card's interrupt types.
fn irqs() -> Vec<IrqInfo> {
    let of = |index| match index {
        VFIO_PCI_INTX_IRQ_INDEX => (IRQ_FLAG_EVENTFD | IRQ_FLAG_MASKABLE | IRQ_FLAG_AUTOMASKED, 1),
        VFIO_PCI_MSIX_IRQ_INDEX => (IRQ_FLAG_EVENTFD, VECTORS),
        _ => (0, 0),
    };

    (0..VFIO_PCI_NUM_IRQS)
        .map(|index| {
            let (flags, count) = of(index);
            IrqInfo { index, flags, count }
        })
        .collect()
}

/// Returns the card's regions.
fn regions(observed: &ObservedState) -> Vec<ServerRegion> {
    let both_ways = VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE;
    let mapped = both_ways | VFIO_REGION_INFO_FLAG_MMAP;
    let file = observed.memory.fd().unwrap().as_raw_fd();
    let region = |index| {
        let (flags, size, offset) = match index {
            0 => (both_ways, REGISTERS, 0),
            1 => (mapped, MEMORY, FILE_OFFSET),
            2 => (mapped, UNDIVIDED, 0),
            3 => (both_ways, LARGE, 0),
            VFIO_PCI_CONFIG_REGION_INDEX => (both_ways, CONFIG, 0),
            _ => (0, 0, 0),
        };

        let area = |(offset, size)| SparseArea { area: vfio_region_sparse_mmap_area { offset, size } };
        ServerRegion {
            region_info: vfio_region_info {
                argsz: size_of::<vfio_region_info>() as u32,
                flags,
                index,
                cap_offset: 0,
                size,
                offset,
            },
            sparse_areas: if index == 1 { AREAS.map(area).to_vec() } else { Vec::new() },
            mmap_fd: (flags & VFIO_REGION_INFO_FLAG_MMAP != 0).then_some(file),
        }
    };

    (0..VFIO_PCI_NUM_REGIONS).map(region).collect()
}
