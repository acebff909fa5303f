//! A small device in memory, a loop that serves it, and raw messages.
// Each test program uses its own part of this.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nicforge_vfio_user::socket::{Framed, ReadOutcome};
use nicforge_vfio_user::wire::{Command, HEADER_SIZE, Header};
use nicforge_vfio_user::*;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Longest time of anything in a test.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// Size of region 0, which is trapped.
pub const BAR0: usize = 3 << 20;
/// Number of MSI-X vectors.
pub const VECTORS: u32 = 40;
/// A write to this offset of region 0 is deferred, with [`WRITE_TOKEN`].
pub const STALL: u64 = 0x100;
/// A read of this offset of region 0 is deferred, with [`READ_TOKEN`].
pub const STALL_READ: u64 = 0x200;
/// Tokens of deferred requests.
pub const WRITE_TOKEN: Token = 77;
pub const READ_TOKEN: Token = 78;
pub const MAP_TOKEN: Token = 79;
/// Flags of a range that the device may read and write.
pub const READ_WRITE: u32 = DMA_FLAG_READ | DMA_FLAG_WRITE;
/// `VFIO_DMA_UNMAP_FLAG_ALL`.
pub const UNMAP_ALL: u32 = 2;

/// Returns a memory file of `size` bytes.
pub fn memfd(size: u64) -> OwnedFd {
    let fd = nix::sys::memfd::memfd_create(c"test", nix::sys::memfd::MFdFlags::MFD_CLOEXEC).unwrap();
    File::from(fd.try_clone().unwrap()).set_len(size).unwrap();
    fd
}

/// Region 0 is plain trapped memory, region 1 a memfd of which the second page is mapped, region 7
/// the configuration space; the others are empty. MSI-X has `VECTORS` vectors, INTx one that can be
/// masked.
pub struct Device {
    pub bar0: Vec<u8>,
    pub bar1: OwnedFd,
    pub bar1_areas: Vec<SparseArea>,
    pub maps: BTreeMap<u64, (DmaMap, Option<PeerFd>)>,
    pub vectors: Vec<Option<PeerFd>>,
    pub irq_calls: Vec<SetIrqs>,
    pub writes: Vec<(u32, u64, Vec<u8>)>,
    pub resets: u32,
    pub reset_pending_calls: Vec<Token>,
    /// Tokens that `reset_pending` was called with, and what it returns.
    pub reset_pending_answer: Option<Errno>,
    pub dma_reads: Vec<(Token, Result<Vec<u8>, Errno>)>,
    pub dma_writes: Vec<(Token, Result<(), Errno>)>,
    pub defer_maps: bool,
}

impl Default for Device {
    fn default() -> Self {
        Self {
            bar0: (0..BAR0).map(|index| (index % 251) as u8).collect(),
            bar1: memfd(8192),
            bar1_areas: vec![SparseArea { offset: 4096, size: 4096 }],
            maps: BTreeMap::new(),
            vectors: (0..VECTORS).map(|_| None).collect(),
            irq_calls: Vec::new(),
            writes: Vec::new(),
            resets: 0,
            reset_pending_calls: Vec::new(),
            reset_pending_answer: None,
            dma_reads: Vec::new(),
            dma_writes: Vec::new(),
            defer_maps: false,
        }
    }
}

impl Handler for Device {
    fn device_info(&mut self) -> DeviceInfo {
        DeviceInfo { flags: DEVICE_FLAGS_PCI | DEVICE_FLAGS_RESET, num_regions: 9, num_irqs: 5 }
    }

    fn region_info(&mut self, index: u32) -> Result<RegionInfo, Errno> {
        let rw = REGION_FLAG_READ | REGION_FLAG_WRITE;
        match index {
            0 => Ok(RegionInfo { flags: rw, size: BAR0 as u64, ..Default::default() }),
            1 => Ok(RegionInfo {
                flags: rw | REGION_FLAG_MMAP,
                size: 8192,
                areas: self.bar1_areas.clone(),
                region_type: Some(RegionType { kind: 3, subtype: 4 }),
                fd: Some(self.bar1.try_clone()?),
                ..Default::default()
            }),
            PCI_CONFIG_REGION => Ok(RegionInfo { flags: rw, size: 256, ..Default::default() }),
            2..=6 | 8 => Ok(RegionInfo::default()),
            _ => Err(Errno::EINVAL),
        }
    }

    fn irq_info(&mut self, index: u32) -> Result<IrqInfo, Errno> {
        match index {
            PCI_INTX_IRQ => Ok(IrqInfo { flags: IRQ_FLAG_EVENTFD | IRQ_FLAG_MASKABLE, count: 1 }),
            PCI_MSIX_IRQ => Ok(IrqInfo { flags: IRQ_FLAG_EVENTFD | IRQ_FLAG_NORESIZE, count: VECTORS }),
            PCI_MSI_IRQ | PCI_ERR_IRQ | PCI_REQ_IRQ => Ok(IrqInfo::default()),
            _ => Err(Errno::EINVAL),
        }
    }

    fn region_read(&mut self, index: u32, offset: u64, data: &mut [u8]) -> Outcome {
        if (index, offset) == (0, STALL_READ) {
            return Outcome::Deferred(READ_TOKEN);
        }
        let start = offset as usize;
        match self.bar0.get(start..start.saturating_add(data.len())) {
            Some(bytes) if index == 0 => {
                data.copy_from_slice(bytes);
                Outcome::Done
            }
            _ => Outcome::Failed(Errno::EINVAL),
        }
    }

    fn region_write(&mut self, index: u32, offset: u64, data: &[u8]) -> Outcome {
        let start = offset as usize;
        let Some(bytes) = self.bar0.get_mut(start..start.saturating_add(data.len())) else {
            return Outcome::Failed(Errno::EINVAL);
        };
        if index != 0 {
            return Outcome::Failed(Errno::EINVAL);
        }
        bytes.copy_from_slice(data);
        self.writes.push((index, offset, data.to_vec()));
        if offset == STALL { Outcome::Deferred(WRITE_TOKEN) } else { Outcome::Done }
    }

    fn dma_map(&mut self, map: DmaMap, fd: Option<PeerFd>) -> Outcome {
        let end = map.address + (map.size - 1);
        if self
            .maps
            .values()
            .any(|(old, _)| old.address <= end && map.address <= old.address + (old.size - 1))
        {
            return Outcome::Failed(Errno::EEXIST);
        }
        self.maps.insert(map.address, (map, fd));
        if self.defer_maps { Outcome::Deferred(MAP_TOKEN) } else { Outcome::Done }
    }

    fn dma_unmap(&mut self, unmap: DmaUnmap) -> Outcome {
        match unmap {
            DmaUnmap::All => self.maps.clear(),
            DmaUnmap::Range { address, size } => {
                if self.maps.get(&address).is_none_or(|(map, _)| map.size != size) {
                    return Outcome::Failed(Errno::ENOENT);
                }
                self.maps.remove(&address);
            }
        }
        Outcome::Done
    }

    fn set_irqs(&mut self, mut irqs: SetIrqs) -> Result<(), Errno> {
        if irqs.index == PCI_MSIX_IRQ {
            if irqs.action == IrqAction::Disable {
                self.vectors.iter_mut().for_each(|vector| *vector = None);
            }
            if let IrqData::EventFd(fds) = &mut irqs.data {
                for (slot, fd) in self.vectors[irqs.start as usize..].iter_mut().zip(fds.drain(..)) {
                    *slot = fd;
                }
            }
        }
        self.irq_calls.push(irqs);
        Ok(())
    }

    fn reset(&mut self) -> Outcome {
        self.resets += 1;
        Outcome::Done
    }

    fn reset_pending(&mut self, token: Token) -> Option<Errno> {
        self.reset_pending_calls.push(token);
        self.reset_pending_answer
    }

    fn dma_read_done(&mut self, token: Token, result: Result<&[u8], Errno>) {
        self.dma_reads.push((token, result.map(<[u8]>::to_vec)));
    }

    fn dma_write_done(&mut self, token: Token, result: Result<(), Errno>) {
        self.dma_writes.push((token, result));
    }
}

impl Device {
    /// Returns the numbers of the vectors that have an eventfd.
    pub fn bound(&self) -> Vec<usize> {
        (0..self.vectors.len()).filter(|index| self.vectors[*index].is_some()).collect()
    }
}

/// A connection, the device behind it, and the client's end of the socket, all in one thread.
pub struct Pair {
    pub peer: UnixStream,
    pub reader: Framed,
    pub server: ServerConnection,
    pub device: Device,
}

/// A message that the peer received.
#[derive(Debug)]
pub struct ReceivedMessage {
    pub header: Header,
    pub payload: Vec<u8>,
    pub fds: Vec<PeerFd>,
}

impl Pair {
    pub fn new(config: ServerConfig) -> Self {
        let (peer, server) = UnixStream::pair().unwrap();
        // With a time-out, a test that fills the socket fails instead of hanging.
        peer.set_write_timeout(Some(TIMEOUT)).unwrap();
        let reader = Framed::new(peer.try_clone().unwrap().into(), 4 << 20, 16);
        Self { peer, reader, server: ServerConnection::new(server.into(), config), device: Device::default() }
    }

    /// Makes a connection after the negotiation, with the default limits.
    pub fn negotiated() -> Self {
        Self::negotiated_with(ServerConfig::default(), br#"{"capabilities":{"max_msg_fds":8}}"#)
    }

    /// Returns a pair that has negotiated the version with these capabilities of the client.
    pub fn negotiated_with(config: ServerConfig, json: &[u8]) -> Self {
        let mut pair = Self::new(config);
        pair.send(&request(Command::Version, &version(json)));
        pair.serve();
        assert_eq!(pair.reply().header.reply_error(), None);
        pair
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.peer.write_all(bytes).unwrap();
    }

    pub fn send_fds(&mut self, bytes: &[u8], fds: &[OwnedFd]) {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        self.reader.send(bytes, &[], &fds).unwrap();
        assert_eq!(self.reader.queued(), 0);
    }

    /// Serves until no progress is made, and returns the last progress.
    pub fn try_serve(&mut self) -> Result<Progress, ConnectionError> {
        let deadline = Instant::now() + TIMEOUT;
        let mut last = Progress::More;
        loop {
            self.server.note_second_socket_readable();
            let progress = self.server.on_readable(&mut self.device)?;
            // After `Idle` the end of the stream may be unread; a level-triggered loop calls again
            // for it.
            let must_repeat = progress == Progress::Idle && last != Progress::Idle;
            if progress != Progress::More && !must_repeat && !self.server.ready() {
                return Ok(progress);
            }
            last = progress;
            assert!(Instant::now() < deadline, "the server does not come to an end");
        }
    }

    pub fn serve(&mut self) {
        let progress = self.try_serve().unwrap();
        assert!(matches!(progress, Progress::Idle | Progress::Blocked), "{progress:?}");
    }

    /// Returns the next message to the peer, which must be there.
    pub fn reply(&mut self) -> ReceivedMessage {
        self.try_reply().expect("a message to the peer")
    }

    pub fn try_reply(&mut self) -> Option<ReceivedMessage> {
        receive(&mut self.reader)
    }

    /// Sends a request, serves, and returns the reply.
    pub fn ask(&mut self, command: Command, payload: &[u8]) -> ReceivedMessage {
        self.send(&request(command, payload));
        self.serve();
        self.reply()
    }

    /// As `ask`, for a request that must fail with this number.
    #[track_caller]
    pub fn assert_refuses(&mut self, command: Command, payload: &[u8], errno: Errno) {
        let reply = self.ask(command, payload);
        assert_eq!(reply.header.reply_error(), Some(errno));
        assert_eq!(reply.header.size as usize, HEADER_SIZE);
    }

    /// Asserts that the connection still works.
    #[track_caller]
    pub fn assert_alive(&mut self) {
        let reply = self.ask(Command::DeviceGetInfo, &[16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(reply.header.reply_error(), None);
        assert_eq!(reply.payload.len(), 16);
    }
}

/// Returns the next message, if all of it has arrived.
pub fn receive(reader: &mut Framed) -> Option<ReceivedMessage> {
    loop {
        if let Some(message) = reader.next_message().unwrap() {
            let payload = message.payload.to_vec();
            return Some(ReceivedMessage { header: message.header, payload, fds: message.fds });
        }
        match reader.fill().unwrap() {
            ReadOutcome::Data { .. } => {}
            _ => return None,
        }
    }
}

/// Returns a message with this header.
pub fn message(header: Header, payload: &[u8]) -> Vec<u8> {
    [&header.to_bytes()[..], payload].concat()
}

pub fn request(command: Command, payload: &[u8]) -> Vec<u8> {
    message(Header::request(9, command, payload.len(), false), payload)
}

/// Returns a request that wants no reply.
pub fn posted(command: Command, payload: &[u8]) -> Vec<u8> {
    message(Header::request(9, command, payload.len(), true), payload)
}

/// Returns the payload of a VERSION 0.0 with this JSON.
pub fn version(json: &[u8]) -> Vec<u8> {
    let nul: &[u8] = if json.is_empty() { &[] } else { &[0] };
    [&[0, 0, 0, 0], json, nul].concat()
}

pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Returns the payload of an access: offset, region, count, data.
pub fn access(offset: u64, region: u32, count: u32, data: &[u8]) -> Vec<u8> {
    [&offset.to_le_bytes()[..], &region.to_le_bytes(), &count.to_le_bytes(), data].concat()
}

pub fn map_payload(flags: u32, offset: u64, address: u64, size: u64) -> Vec<u8> {
    let longs = [offset, address, size];
    [words(&[32, flags]), longs.iter().flat_map(|long| long.to_le_bytes()).collect()].concat()
}

pub fn unmap_payload(flags: u32, address: u64, size: u64) -> Vec<u8> {
    [words(&[24, flags]), address.to_le_bytes().to_vec(), size.to_le_bytes().to_vec()].concat()
}

pub fn eventfd() -> OwnedFd {
    nix::sys::eventfd::EventFd::from_flags(nix::sys::eventfd::EfdFlags::EFD_CLOEXEC).unwrap().into()
}

/// Whether the other end of this pipe end was closed.
pub fn other_end_is_closed(pipe: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(pipe.as_fd(), PollFlags::empty())];
    poll(&mut fds, PollTimeout::ZERO).unwrap();
    fds[0].revents().unwrap().intersects(PollFlags::POLLERR | PollFlags::POLLHUP)
}

/// A server on a socket, in a thread of its own.
pub struct Served {
    pub path: PathBuf,
    pub device: Arc<Mutex<Device>>,
    /// Result of the loop.
    pub result: Option<JoinHandle<Result<(), ConnectionError>>>,
    stop: Arc<AtomicBool>,
    _dir: tempfile::TempDir,
}

/// Called in each turn of the loop.
pub type Turn = Box<dyn FnMut(&mut ServerConnection, &mut Device) + Send>;

impl Served {
    pub fn start(config: ServerConfig) -> Self {
        Self::start_with(config, Box::new(|_, _| {}))
    }

    pub fn start_with(config: ServerConfig, mut on_round: Turn) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let device = Arc::new(Mutex::new(Device::default()));
        let (stopped, device_of_thread) = (stop.clone(), device.clone());
        let thread = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut server = ServerConnection::new(stream.into(), config);
            while !stopped.load(Ordering::Acquire) {
                let mut events = PollFlags::empty();
                events.set(PollFlags::POLLIN, server.wants_read());
                events.set(PollFlags::POLLOUT, server.wants_write());
                let wait = if server.ready() { 0u8 } else { 5 };
                let mut fds = [PollFd::new(server.as_fd(), events)];
                poll(&mut fds, PollTimeout::from(wait)).unwrap();
                let mut device = device_of_thread.lock().unwrap();
                server.on_writable()?;
                if server.on_readable(&mut *device)? == Progress::Closed {
                    break;
                }
                on_round(&mut server, &mut device);
            }
            Ok(())
        });
        Self { path, device, result: Some(thread), stop, _dir: dir }
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.path, TIMEOUT).unwrap()
    }

    pub fn client_with(&self, config: ClientConfig) -> Client {
        Client::connect_with(&self.path, config).unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.result.take() {
            let _ = thread.join();
        }
    }
}
