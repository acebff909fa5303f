//! A device with an arbitrary description. The driver library opens a server whose regions, files,
//! configuration space, registers and interrupts are arbitrary. It opens or refuses it, and every
//! later operation ends.

use std::{
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixListener,
    },
    path::PathBuf,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use nicforge_core::{
    ids::AttachmentId,
    machine::{Machine, region},
};
use nicforge_driver::{Device, HugePages, OpenOptions};
use nicforge_hwi::attachment::mirror;
use nicforge_vfio_user::{
    DEVICE_FLAGS_PCI, DeviceInfo, DmaMap, DmaUnmap, Errno, Handler, IrqInfo, Outcome, PCI_CONFIG_REGION,
    PCI_NUM_REGIONS, PeerFd, Progress, REGION_FLAG_MMAP, RegionInfo, ServerConfig, ServerConnection, SetIrqs,
    SparseArea,
};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::memfd::{MFdFlags, memfd_create},
};
use tempfile::TempDir;

use crate::{
    input::Input,
    world::{FIFO, World},
};

/// Time limit of a call. The wait for a generation that never appears takes this long.
const SHORT: Duration = Duration::from_millis(5);
/// Bytes of configuration space.
const CONFIG: usize = 4096;

/// Runs the test body on one fuzz input. The module's documentation describes the steps.
pub fn body(data: &[u8]) {
    let mut input = Input::new(data);
    let device = FalseDescription::new(&mut input);
    let folder = folder();
    let _ = std::fs::remove_file(&folder.0);
    let listener = UnixListener::bind(&folder.0).unwrap();
    let stop = AtomicBool::new(false);

    std::thread::scope(|scope| {
        let stop = &stop;
        let server = scope.spawn(move || serve(&listener, device, stop));
        let options = OpenOptions { timeout: SHORT, socket_spin: Duration::ZERO, ..OpenOptions::default() };
        if let Ok(device) = Device::open_vfio_user(&folder.0, options) {
            let _ = work(&device, &mut input);
        }
        stop.store(true, Ordering::Release);
        server.join().unwrap();
    });
}

/// Uses every part of an opened device. Each operation may fail.
fn work(device: &Device, input: &mut Input<'_>) -> Result<(), nicforge_driver::Error> {
    let _ = (device.identity(), device.attachment(), device.generation());
    for index in 0..6 {
        let Ok(bar) = device.bar(index) else { continue };
        for offset in [0, 8, bar.size().saturating_sub(4), input.number()] {
            let _ = bar.read32(offset);
            let _ = bar.write32(offset, 1);
            let _ = bar.posted_write(offset, &[1; 8]);
            let _ = bar.write_burst64(offset, &[2; 64]);
        }

        let whole = bar.window(0, bar.size());
        if let Ok(window) = whole {
            let mut bytes = [0; 64];
            window.read(window.len().saturating_sub(64), &mut bytes[..(window.len().min(64)) as usize])?;
        }
    }

    for ring in 0..device.ring_count() {
        let mut poster = device.poster(ring)?;
        let _ = poster.try_post(0, 0, &[1; 100]);
    }

    let _ = device.doorbell().after_store();
    let _ = device.interrupt(input.number32());
    let _ = device.intx();
    let _ = device.dma_buffer(4096, HugePages::Never);
    let _ = device.flush();

    device.reset()
}

/// Serves one client until it is gone.
fn serve(listener: &UnixListener, mut device: FalseDescription, stop: &AtomicBool) {
    let wait = |fd: std::os::fd::BorrowedFd<'_>| {
        let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
        let _ = poll(&mut fds, PollTimeout::from(1_u8));
    };

    listener.set_nonblocking(true).unwrap();
    let socket = loop {
        match listener.accept() {
            Ok((socket, _)) => break socket,
            Err(_) if stop.load(Ordering::Acquire) => return,
            Err(_) => wait(listener.as_fd()),
        }
    };

    let mut server = ServerConnection::new(socket.into(), ServerConfig::default());
    loop {
        if matches!(server.on_readable(&mut device), Err(_) | Ok(Progress::Closed)) {
            return;
        }
        let _ = server.on_writable();
        if !server.ready() {
            wait(server.as_fd());
        }
    }
}

/// Returns the server's path, which the inputs use one after the other.
fn folder() -> &'static (PathBuf, TempDir) {
    static FOLDER: OnceLock<(PathBuf, TempDir)> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        (folder.path().join("probe"), folder)
    })
}

/// A slot FIFO's description with false values.
struct FalseDescription {
    config: Vec<u8>,
    regions: Vec<ReportedRegion>,
    /// The first bytes of the files of all regions.
    mirror: Vec<u8>,
    interrupts: IrqInfo,
    /// The value of every register.
    register: u32,
    /// Bit `n` refuses the requests whose number is `n` modulo 8, after the first 32.
    refused_bits: u8,
    requests: u8,
}

impl FalseDescription {
    /// Returns the true description of a slot FIFO with some changes.
    fn new(input: &mut Input<'_>) -> Self {
        let (mut config, mut regions) = true_description().reported();
        for _ in 0..input.below(6) {
            // Most fields that the library reads are in the first 256 bytes.
            let at = input.below(256) as usize;
            config[at] = input.u8();
        }

        for _ in 0..input.below(4) {
            let index = input.below(regions.len() as u32) as usize;
            falsify(&mut regions[index], input);
        }

        let mut mirror = vec![0; 0x200];
        mirror[..4].copy_from_slice(&mirror::MAGIC_VALUE.to_le_bytes());
        mirror[4..8].copy_from_slice(&1_u32.to_le_bytes());

        if input.below(4) == 0 {
            let at = input.below(mirror.len() as u32) as usize;
            mirror[at] = input.u8();
        }

        Self {
            config,
            regions,
            mirror,
            interrupts: IrqInfo {
                flags: input.pick(&[1, 0, 7, u32::MAX]),
                count: input.pick(&[2, 0, u32::MAX]),
            },
            register: if input.below(4) > 0 { 1 } else { input.u32() },
            refused_bits: if input.flag() { 0 } else { input.u8() },
            requests: 0,
        }
    }

    /// Counts a request, and returns whether it succeeds.
    fn outcome(&mut self) -> Outcome {
        self.requests = self.requests.wrapping_add(1);
        let refused = self.refused_bits & 1 << (self.requests % 8) != 0;
        if refused && self.requests > 32 { Outcome::Failed(Errno::EIO) } else { Outcome::Done }
    }
}

/// A region's information without its file, and the file's length.
type ReportedRegion = (RegionInfo, Option<u64>);

/// Returns a region's information without its file.
fn copy(info: &RegionInfo) -> RegionInfo {
    RegionInfo {
        flags: info.flags,
        size: info.size,
        offset: info.offset,
        areas: info.areas.clone(),
        region_type: info.region_type,
        fd: None,
    }
}

/// Changes one value of a region.
fn falsify((info, file): &mut ReportedRegion, input: &mut Input<'_>) {
    let page = |input: &mut Input<'_>| match input.below(4) {
        0..=2 => u64::from(input.below(64)) * 4096,
        _ => input.number(),
    };

    match input.below(7) {
        0 => info.size = page(input),
        1 => info.flags = input.u32(),
        2 => info.offset = page(input),
        3 => *file = input.flag().then(|| page(input).min(1 << 30)),
        4 => info.areas = vec![SparseArea { offset: page(input), size: page(input) }],
        5 => info.areas.push(SparseArea { offset: page(input), size: page(input) }),
        _ => info.areas = vec![SparseArea { offset: 0, size: 4096 }; input.u8().into()],
    }
}

/// Returns the true description of a slot FIFO.
fn true_description() -> &'static TrueDescription {
    static DESCRIPTION: OnceLock<TrueDescription> = OnceLock::new();
    DESCRIPTION.get_or_init(TrueDescription::of_a_slot_fifo)
}

/// The configuration space and the regions of a device.
struct TrueDescription {
    config: Vec<u8>,
    regions: Vec<ReportedRegion>,
}

impl TrueDescription {
    /// Asks a machine for the description.
    fn of_a_slot_fifo() -> Self {
        let mut world = World::new(8);
        let client_id = (FIFO, AttachmentId(0));
        world.attach(client_id);

        let mut config = vec![0; CONFIG];
        let _ = world.read(client_id, PCI_CONFIG_REGION, 0, &mut config);
        let machine: &Machine = &world.machine;
        let regions = (0..PCI_NUM_REGIONS)
            .map(|index| {
                let view = machine.region(client_id.0, client_id.1, region::BAR0 + index).unwrap();
                let mapped = !view.areas.is_empty();
                let flags = if view.size == 0 { 0 } else { 3 | if mapped { REGION_FLAG_MMAP } else { 0 } };
                let areas = view
                    .areas
                    .iter()
                    .map(|area| SparseArea { offset: area.offset, size: area.length })
                    .collect();

                let info = RegionInfo { flags, size: view.size, areas, ..RegionInfo::default() };
                (info, mapped.then_some(view.size))
            })
            .collect();

        Self { config, regions }
    }

    /// Returns a copy of the configuration space and of the regions.
    fn reported(&self) -> (Vec<u8>, Vec<ReportedRegion>) {
        let regions = self.regions.iter().map(|(info, file)| (copy(info), *file)).collect();
        (self.config.clone(), regions)
    }
}

impl Handler for FalseDescription {
    fn device_info(&mut self) -> DeviceInfo {
        DeviceInfo { flags: DEVICE_FLAGS_PCI, num_regions: PCI_NUM_REGIONS, num_irqs: 5 }
    }

    fn region_info(&mut self, index: u32) -> Result<RegionInfo, Errno> {
        let (info, file) = self.regions.get(index as usize).ok_or(Errno::EINVAL)?;
        let mut info = copy(info);
        info.fd = match file {
            Some(length) => Some(memory(*length, &self.mirror)?),
            None => None,
        };

        Ok(info)
    }

    fn irq_info(&mut self, _index: u32) -> Result<IrqInfo, Errno> {
        Ok(self.interrupts)
    }

    fn region_read(&mut self, index: u32, offset: u64, data: &mut [u8]) -> Outcome {
        let value = self.register.to_le_bytes();
        for (at, byte) in (offset..).zip(data.iter_mut()) {
            let position = usize::try_from(at).unwrap_or(usize::MAX);
            *byte = match index {
                PCI_CONFIG_REGION => self.config.get(position).copied().unwrap_or(0xff),
                _ => value[position % 4],
            };
        }

        self.outcome()
    }

    fn region_write(&mut self, _index: u32, _offset: u64, _data: &[u8]) -> Outcome {
        self.outcome()
    }

    fn dma_map(&mut self, _map: DmaMap, _fd: Option<PeerFd>) -> Outcome {
        self.outcome()
    }

    fn dma_unmap(&mut self, _unmap: DmaUnmap) -> Outcome {
        self.outcome()
    }

    fn set_irqs(&mut self, _irqs: SetIrqs) -> Result<(), Errno> {
        Ok(())
    }

    fn reset(&mut self) -> Outcome {
        self.outcome()
    }
}

/// Returns a file of `length` bytes that begins with `start`, as far as it fits.
fn memory(length: u64, start: &[u8]) -> Result<OwnedFd, Errno> {
    let fd = memfd_create(c"region", MFdFlags::MFD_CLOEXEC)?;
    nix::sys::uio::pwrite(&fd, start, 0)?;
    nix::unistd::ftruncate(&fd, length as i64)?;
    Ok(fd)
}
