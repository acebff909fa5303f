//! The device in memory behind a vfio-user socket, served by a thread.

use std::{
    collections::{BTreeMap, VecDeque},
    os::{fd::AsFd, unix::net::UnixListener},
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use nicforge_driver::{Backing, IRQ_INTX, IRQ_MSIX, REGION_CONFIG, WriteMode};
use nicforge_shm::{Access, SharedMemory};
use nicforge_vfio_user::{
    DEVICE_FLAGS_PCI, DEVICE_FLAGS_RESET, DeviceInfo, DmaMap, DmaUnmap, Errno, Handler, IRQ_FLAG_AUTOMASKED,
    IRQ_FLAG_EVENTFD, IRQ_FLAG_MASKABLE, IrqAction, IrqData, IrqInfo, Outcome, PeerFd, Progress,
    REGION_FLAG_MMAP, REGION_FLAG_READ, REGION_FLAG_WRITE, RegionInfo, ServerConfig, ServerConnection,
    SetIrqs, SparseArea, Token,
};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    unistd,
};

use super::Fake;

/// A request of a test to the server's thread.
pub enum Order {
    /// Read client memory by a message; the bytes land in [`Shared::read`].
    DmaRead { address: u64, len: usize },
    /// Write client memory by a message; [`Shared::written`] says how it went.
    DmaWrite { address: u64, data: Vec<u8> },
    /// Signal an interrupt.
    Fire { index: u32, vector: u32 },
    /// Close the connection.
    HangUp,
}

#[derive(Default)]
pub struct Shared {
    pub orders: Mutex<VecDeque<Order>>,
    pub read: Mutex<Option<Result<Vec<u8>, Errno>>>,
    pub written: Mutex<Option<Result<(), Errno>>>,
    pub eventfds: Mutex<BTreeMap<(u32, u32), PeerFd>>,
    pub mapped: Mutex<BTreeMap<u64, (DmaMap, Option<SharedMemory>)>>,
    pub unmasked: Mutex<Vec<(u32, u32, u32)>>,
    /// The time by which each answer is delayed.
    pub delay: Mutex<Duration>,
    /// The server's thread serves nothing while this is set.
    pub is_stopped: AtomicBool,
    stop: AtomicBool,
}

struct Door {
    fake: Arc<Fake>,
    shared: Arc<Shared>,
}

impl Handler for Door {
    fn device_info(&mut self) -> DeviceInfo {
        DeviceInfo { flags: DEVICE_FLAGS_PCI | DEVICE_FLAGS_RESET, num_regions: 9, num_irqs: 5 }
    }

    fn region_info(&mut self, index: u32) -> Result<RegionInfo, Errno> {
        let described = self.fake.region_info(index).unwrap();
        let memory = match index {
            1 => Some(&self.fake.bar1),
            2 => Some(&self.fake.bar2),
            _ => None,
        };
        let mut flags = REGION_FLAG_READ;
        flags |= if described.writable { REGION_FLAG_WRITE } else { 0 };
        flags |= if memory.is_some() { REGION_FLAG_MMAP } else { 0 };
        Ok(RegionInfo {
            flags,
            size: described.size,
            offset: 0,
            areas: described
                .mappable
                .iter()
                .map(|area| SparseArea { offset: area.offset, size: area.len })
                .collect(),
            region_type: None,
            fd: memory.map(|memory| memory.fd().unwrap().try_clone_to_owned().unwrap()),
        })
    }

    fn irq_info(&mut self, index: u32) -> Result<IrqInfo, Errno> {
        Ok(match index {
            IRQ_INTX => {
                IrqInfo { flags: IRQ_FLAG_EVENTFD | IRQ_FLAG_MASKABLE | IRQ_FLAG_AUTOMASKED, count: 1 }
            }
            IRQ_MSIX => IrqInfo { flags: IRQ_FLAG_EVENTFD, count: super::VECTORS },
            _ => IrqInfo::default(),
        })
    }

    fn region_read(&mut self, index: u32, offset: u64, data: &mut [u8]) -> Outcome {
        assert!(index <= REGION_CONFIG);
        self.fake.read(index, offset, data).unwrap();
        Outcome::Done
    }

    fn region_write(&mut self, index: u32, offset: u64, data: &[u8]) -> Outcome {
        self.fake.write(index, offset, data, WriteMode::Confirmed).unwrap();
        Outcome::Done
    }

    fn dma_map(&mut self, map: DmaMap, fd: Option<PeerFd>) -> Outcome {
        if self.fake.state().refuse_dma {
            return Outcome::Failed(Errno::ENOSPC);
        }
        let memory = fd.map(|fd| {
            SharedMemory::map(fd.as_fd(), map.offset, map.size as usize, Access::ReadWrite).unwrap()
        });
        self.shared.mapped.lock().unwrap().insert(map.address, (map, memory));
        Outcome::Done
    }

    fn dma_unmap(&mut self, unmap: DmaUnmap) -> Outcome {
        let DmaUnmap::Range { address, .. } = unmap else { return Outcome::Failed(Errno::EINVAL) };
        self.shared.mapped.lock().unwrap().remove(&address).map(drop).ok_or(Errno::ENOENT).into()
    }

    fn set_irqs(&mut self, irqs: SetIrqs) -> Result<(), Errno> {
        let mut eventfds = self.shared.eventfds.lock().unwrap();
        match (irqs.action, irqs.data) {
            (IrqAction::Disable, _) => eventfds.retain(|(index, _), _| *index != irqs.index),
            (IrqAction::Trigger, IrqData::EventFd(fds)) => {
                for (at, fd) in fds.into_iter().enumerate() {
                    eventfds.insert((irqs.index, irqs.start + at as u32), fd.unwrap());
                }
            }
            (IrqAction::Unmask, IrqData::None) => {
                self.shared.unmasked.lock().unwrap().push((irqs.index, irqs.start, irqs.count));
            }
            _ => return Err(Errno::EINVAL),
        }
        Ok(())
    }

    fn reset(&mut self) -> Outcome {
        self.fake.reset().unwrap();
        self.shared.eventfds.lock().unwrap().clear();
        Outcome::Done
    }

    fn dma_read_done(&mut self, _token: Token, result: Result<&[u8], Errno>) {
        *self.shared.read.lock().unwrap() = Some(result.map(<[u8]>::to_vec));
    }

    fn dma_write_done(&mut self, _token: Token, result: Result<(), Errno>) {
        *self.shared.written.lock().unwrap() = Some(result);
    }
}

/// A running server; its thread ends when this is dropped.
pub struct Server {
    pub fake: Arc<Fake>,
    pub shared: Arc<Shared>,
    pub path: PathBuf,
    thread: Option<JoinHandle<()>>,
    _directory: tempfile::TempDir,
}

impl Server {
    /// Serves one client after another.
    pub fn start(fake: Arc<Fake>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("device.sock");
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let shared = Arc::new(Shared::default());
        let door = Door { fake: fake.clone(), shared: shared.clone() };
        let thread = std::thread::spawn(move || serve(&listener, door));
        Self { fake, shared, path, thread: Some(thread), _directory: directory }
    }

    pub fn order(&self, order: Order) {
        self.shared.orders.lock().unwrap().push_back(order);
    }

    /// Waits until the server's thread has brought about a condition.
    pub fn wait_for<T>(&self, mut attempt: impl FnMut(&Shared) -> Option<T>) -> T {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(value) = attempt(&self.shared) {
                return value;
            }
            assert!(Instant::now() < end, "the server did not bring about the condition");
            std::thread::yield_now();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn serve(listener: &UnixListener, mut door: Door) {
    while !door.shared.stop.load(Ordering::SeqCst) {
        wait(&[listener.as_fd()]);
        if let Ok((socket, _)) = listener.accept() {
            socket.set_nonblocking(true).unwrap();
            let mut connection = ServerConnection::new(socket.into(), ServerConfig::default());
            loop {
                if door.shared.stop.load(Ordering::SeqCst) || !serve_once(&mut connection, &mut door) {
                    break;
                }
            }
        }
    }
}

/// Waits for input, for a millisecond at most. Returns whether there is any.
fn wait(fds: &[std::os::fd::BorrowedFd<'_>]) -> bool {
    let mut polled: Vec<_> = fds.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    poll(&mut polled, PollTimeout::from(1u8)).is_ok_and(|ready| ready > 0)
}

/// Serves messages of the client, and carries out the test's orders. Returns whether the connection
/// continues.
fn serve_once(connection: &mut ServerConnection, door: &mut Door) -> bool {
    if door.shared.is_stopped.load(Ordering::SeqCst) {
        wait(&[]);
        return true;
    }
    if !connection.ready() && wait(&[connection.as_fd()]) {
        let delay = *door.shared.delay.lock().unwrap();
        std::thread::sleep(delay);
    }
    if !matches!(connection.on_readable(door), Ok(Progress::Idle | Progress::More | Progress::Blocked)) {
        return false;
    }
    let orders = std::mem::take(&mut *door.shared.orders.lock().unwrap());
    for order in orders {
        match order {
            Order::DmaRead { address, len } => connection.dma_read(address, len, 1).unwrap(),
            Order::DmaWrite { address, data } => connection.dma_write(address, &data, 2).unwrap(),
            Order::Fire { index, vector } => {
                let eventfds = door.shared.eventfds.lock().unwrap();
                unistd::write(&eventfds[&(index, vector)], &1u64.to_ne_bytes()).unwrap();
            }
            Order::HangUp => return false,
        }
    }
    door.fake.step();
    connection.on_writable().is_ok()
}
