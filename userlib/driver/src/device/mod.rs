//! A device, opened.
//!
//! In: a backing. Out: BARs, DMA buffers, interrupts, posters and waits. Opening reads and checks what the device says of
//! itself, switches it on, and maps the core's pages.

pub(crate) mod capability;
mod shared;

use std::{ffi::OsStr, fmt, path::Path, sync::Arc, time::Duration};

use nicforge_hwi::attachment::control;
use nicforge_shm::SharedMemory;

pub use capability::Identity;
pub(crate) use shared::{Shared, lock};

use crate::{
    Backing, Bar, Cancel, Deadline, DeviceAddress, DmaBuffer, DmaPermission, Doorbell, Error, GoneCause,
    HugePages, IRQ_INTX, IRQ_MSI, IRQ_MSIX, Interrupt, Patience, PciAddress, Poster, REGION_CONFIG, Relax,
    Shim, Vfio, VfioUser, environment, interrupt,
};

/// How a device is opened and waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// The longest that opening, a trapped access, or a wait for room in a ring takes.
    pub timeout: Duration,
    /// How long a wait for an interrupt polls before it blocks.
    pub spin: Duration,
    /// How long a trapped access polls the socket for its answer before it blocks (vfio-user only).
    pub socket_spin: Duration,
    /// How waiting loops on a host move from spinning to sleeping.
    pub patience: Patience,
    /// The device counts as stopped when its heartbeat rests that long during a wait; `None`: never. A living engine counts
    /// up at least every 100 ms.
    pub heartbeat: Option<Duration>,
}

impl Default for OpenOptions {
    /// 5 s for calls, 50 us of polling before a blocking wait, 20 us on the socket, 10 s of heartbeat.
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(5),
            spin: Duration::from_micros(50),
            socket_spin: Duration::from_micros(20),
            patience: Patience::default(),
            heartbeat: Some(Duration::from_secs(10)),
        }
    }
}

/// A PCI function, or the attachment of it that this client holds. Clones stand for the same one.
#[derive(Clone)]
pub struct Device(Arc<Shared>);

impl Device {
    /// Opens what `backing` holds.
    ///
    /// # Errors
    /// [`Error::Protocol`] when the device contradicts itself; what its backing says.
    pub fn open(backing: Arc<dyn Backing>, options: OpenOptions) -> Result<Self, Error> {
        Shared::open(backing, options).map(Self)
    }

    /// Opens what `backing` holds with the usual options, but without a limit for the heartbeat: a machine in this
    /// process lives as long as somebody steps it.
    ///
    /// # Errors
    /// As [`Device::open`].
    pub fn from_backing(backing: Arc<dyn Backing>) -> Result<Self, Error> {
        Self::open(backing, OpenOptions { heartbeat: None, ..OpenOptions::default() })
    }

    /// Opens the function, or the attachment, that a vfio-user server offers at `path`.
    ///
    /// # Errors
    /// As [`VfioUser::connect`] and [`Device::open`].
    pub fn open_vfio_user(path: impl AsRef<Path>, options: OpenOptions) -> Result<Self, Error> {
        Self::open(Arc::new(VfioUser::connect(path, &options)?), options)
    }

    /// Opens the function at `address`, a PCI function of this machine, through Linux VFIO.
    ///
    /// # Errors
    /// As [`Vfio::open`] and [`Device::open`].
    pub fn open_vfio(address: PciAddress, options: OpenOptions) -> Result<Self, Error> {
        Self::open(Arc::new(Vfio::open(address)?), options)
    }

    /// Opens the function whose character device, made by the kernel shim, is at `path`.
    ///
    /// # Errors
    /// As [`Shim::open`] and [`Device::open`].
    pub fn open_shim(path: impl AsRef<Path>, options: OpenOptions) -> Result<Self, Error> {
        Self::open(Arc::new(Shim::open(path)?), options)
    }

    /// Opens the device at `address`, whatever its kind.
    ///
    /// # Errors
    /// As [`Device::open_vfio_user`], [`Device::open_vfio`] and [`Device::open_shim`].
    pub fn open_at(address: &DeviceAddress, options: OpenOptions) -> Result<Self, Error> {
        match address {
            DeviceAddress::VfioUser(path) => Self::open_vfio_user(path, options),
            DeviceAddress::Vfio(address) => Self::open_vfio(*address, options),
            DeviceAddress::Shim(path) => Self::open_shim(path, options),
        }
    }

    /// Opens the device that `text` names: the path of a vfio-user socket, `vfio:0000:00:03.0`, or `shim:/dev/nicforge0`.
    ///
    /// # Errors
    /// As [`DeviceAddress::parse`] and [`Device::open_at`].
    pub fn open_named(text: impl AsRef<OsStr>, options: OpenOptions) -> Result<Self, Error> {
        Self::open_at(&DeviceAddress::parse(text)?, options)
    }

    /// Opens the device that environment variable `variable` names, usually [`environment::SOCKET`], which `nicforge run` and
    /// `nicforge boot` set. Of several the first.
    ///
    /// # Errors
    /// [`Error::Environment`]; as [`Device::open_at`].
    pub fn open_env(variable: &str, options: OpenOptions) -> Result<Self, Error> {
        let none = || Error::Environment { name: variable.to_owned(), problem: "names no device" };
        let address = environment::devices(variable)?.into_iter().next().ok_or_else(none)?;
        Self::open_at(&address, options)
    }

    /// What it says it is.
    pub fn identity(&self) -> Identity {
        self.0.identity
    }

    /// Whether it has the pages of nicforge's core: a control page, a mirror, perhaps rings.
    pub fn has_attachment(&self) -> bool {
        self.0.capability.is_some()
    }

    /// Posted-write rings there are.
    pub fn ring_count(&self) -> u8 {
        self.0.rings.len() as u8
    }

    /// The number of this client's attachment in the function; 0 for a plain PCI function.
    pub fn attachment(&self) -> u32 {
        self.0.attachment()
    }

    /// The generation of this client's tenancy: counted up by each reset. 0 for a plain PCI function.
    pub fn generation(&self) -> u32 {
        self.0.generation().unwrap_or(0)
    }

    /// BAR `index`, 0 to 5, mapped where it can be.
    ///
    /// # Errors
    /// [`Error::NoSuch`] for a BAR that the device does not have; [`Error::Memory`] when it cannot be mapped.
    pub fn bar(&self, index: u8) -> Result<Bar, Error> {
        Bar::new(&self.0, index)
    }

    /// Memory for DMA in both directions, `len` bytes rounded up to whole pages.
    ///
    /// # Errors
    /// [`Error::Memory`], [`Error::AddressSpace`], and what the server says.
    pub fn dma_buffer(&self, len: usize, huge: HugePages) -> Result<DmaBuffer, Error> {
        DmaBuffer::create(&self.0, len, huge)
    }

    /// As [`Device::dma_buffer`], of memory that a vfio-user server cannot map: it asks this process for the bytes by messages,
    /// which are answered while somebody waits for or talks to the device. Behind the kernel it is a buffer like others.
    ///
    /// # Errors
    /// As [`Device::dma_buffer`].
    pub fn private_dma_buffer(&self, len: usize) -> Result<DmaBuffer, Error> {
        DmaBuffer::create_private(&self.0, len)
    }

    /// Makes `len` bytes of memory that the caller has reachable, from `offset` on in it and in its file, both multiples
    /// of 4096.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when a vfio-user server should map memory without a file, or when the kernel has no one address
    /// for all of it; [`Error::Misaligned`]; as [`Device::dma_buffer`].
    pub fn map_dma(
        &self,
        memory: &SharedMemory,
        offset: u64,
        len: u64,
        permission: DmaPermission,
    ) -> Result<DmaBuffer, Error> {
        DmaBuffer::of_memory(&self.0, memory, offset, len, permission)
    }

    /// MSI-X vector `vector`, or MSI vector where the device has no MSI-X.
    ///
    /// # Errors
    /// [`Error::NoSuch`], [`Error::DeviceGone`], [`Error::Refused`].
    pub fn interrupt(&self, vector: u32) -> Result<Interrupt, Error> {
        let has_msix = self.0.note(self.0.backing.irq_info(IRQ_MSIX))?.count != 0;
        Interrupt::bind(&self.0, if has_msix { IRQ_MSIX } else { IRQ_MSI }, vector)
    }

    /// The INTx line. It masks itself when it fires: see [`Interrupt::unmask`].
    ///
    /// # Errors
    /// As [`Device::interrupt`].
    pub fn intx(&self) -> Result<Interrupt, Error> {
        Interrupt::bind(&self.0, IRQ_INTX, 0)
    }

    /// Waits for any of `interrupts`, which must be of this device: the position of the first that fired, and how often it
    /// did. Others may have fired too; [`Interrupt::take`] tells.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Cancelled`], [`Error::DeviceGone`].
    pub fn wait_any(
        &self,
        interrupts: &[&Interrupt],
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<(usize, u64), Error> {
        interrupt::wait_any(&self.0, interrupts, deadline, cancel)
    }

    /// Waits until `condition` holds: the loop for everything that the device tells by writing memory.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Cancelled`], [`Error::DeviceGone`].
    #[inline]
    pub fn wait_until(
        &self,
        deadline: Deadline,
        cancel: Option<&Cancel>,
        mut condition: impl FnMut() -> bool,
    ) -> Result<(), Error> {
        self.0.wait_for(deadline, cancel, "a condition", || Ok(condition().then_some(())))
    }

    /// As [`Device::wait_until`], for a `look` that finds a value or fails by itself. `what` is for the error's text.
    ///
    /// # Errors
    /// Those of `look`, and as [`Device::wait_until`].
    #[inline]
    pub fn wait_for<T, E: From<Error>>(
        &self,
        deadline: Deadline,
        cancel: Option<&Cancel>,
        what: &'static str,
        look: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        self.0.wait_for(deadline, cancel, what, look)
    }

    /// One turn of a waiting loop of one's own.
    ///
    /// # Errors
    /// [`Error::DeviceGone`].
    #[inline]
    pub fn relax(&self, relax: &mut Relax) -> Result<(), Error> {
        self.0.relax(relax)
    }

    /// A [`Relax`] with this device's patience.
    pub fn new_relax(&self) -> Relax {
        Relax::with_patience(self.0.options.patience)
    }

    /// The writer of posted-write ring `ring`. A device without rings has ring 0, whose writes are trapped ones.
    ///
    /// # Errors
    /// [`Error::NoSuch`]; [`Error::RingTaken`] while another poster holds the ring.
    pub fn poster(&self, ring: u8) -> Result<Poster, Error> {
        Poster::new(&self.0, ring)
    }

    /// Wakes the engine after stores to mapped memory.
    pub fn doorbell(&self) -> Doorbell {
        Doorbell(self.0.clone())
    }

    /// Returns when the device has taken every posted write and every trapped write before. A trapped read.
    ///
    /// # Errors
    /// Those of a trapped read.
    pub fn flush(&self) -> Result<(), Error> {
        self.0.flush()
    }

    /// Resets the function, or this client's attachment of it: registers, rings and windows start anew, records in the rings
    /// are lost. DMA buffers stay mapped and interrupts stay bound. Other threads must not use the device meanwhile; what they
    /// post may get lost.
    ///
    /// # Errors
    /// [`Error::DeviceGone`] when it does not help, [`Error::Refused`].
    pub fn reset(&self) -> Result<(), Error> {
        self.0.reset()
    }

    /// How often this process has begun to reset it: for libraries, whose calls in other threads end when it changes. Nothing
    /// that they hold of the device from before means anything.
    #[inline]
    pub fn resets(&self) -> u32 {
        self.0.resets()
    }

    /// Whether the device is lost, by a fresh look. Does not wait.
    pub fn is_gone(&self) -> bool {
        self.gone_cause().is_some()
    }

    /// Why the device is lost, by a fresh look. Does not wait.
    pub fn gone_cause(&self) -> Option<GoneCause> {
        match self.0.note(self.0.backing.attend()).and_then(|()| self.0.check_alive()) {
            Err(Error::DeviceGone { cause }) => Some(cause),
            _ => None,
        }
    }

    /// The backing, for what this type does not offer.
    pub fn backing(&self) -> &Arc<dyn Backing> {
        &self.0.backing
    }
}

impl Shared {
    pub(crate) fn flush(&self) -> Result<(), Error> {
        if self.capability.is_some() {
            self.control_read(control::GENERATION).map(drop)
        } else {
            self.read(REGION_CONFIG, 0, &mut [0; 4])
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("identity", &self.identity())
            .field("generation", &self.generation())
            .field("gone", &self.0.gone())
            .finish()
    }
}
