//! An open device: the entry to BARs, DMA buffers, interrupts, posters and waits.
//!
//! Opening a device reads and checks its configuration space, enables it, and maps the attachment's
//! mirror page and rings.
pub(crate) mod capability;
mod mirror;
mod shared;
mod tenancy;

use std::{ffi::OsStr, fmt, path::Path, sync::Arc, time::Duration};

use nicforge_hwi::attachment::control;
use nicforge_shm::SharedMemory;

pub use capability::Identity;
pub(crate) use shared::{EngineWaker, Shared, lock};

use crate::{
    Backing, Backoff, Bar, Cancel, Deadline, DeviceAddress, DmaBuffer, DmaPermission, Doorbell, Error,
    GoneCause, HugePages, IRQ_INTX, IRQ_MSI, IRQ_MSIX, Interrupt, PciAddress, Poster, REGION_CONFIG, Relax,
    Shim, Vfio, VfioUser, environment, interrupt,
};

/// Time limits and polling times of an open device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// The longest time that opening as a whole, a trapped access, or a wait for room in a ring
    /// takes.
    pub timeout: Duration,
    /// How long a wait for an interrupt polls before it blocks.
    pub spin: Duration,
    /// How long a trapped access polls the socket for its reply before it blocks (vfio-user only).
    pub socket_spin: Duration,
    /// How waiting loops on a host move from spinning to sleeping.
    pub backoff: Backoff,
    /// The device counts as stopped when its heartbeat has not moved for this long during a wait.
    /// With `None`, it never does. A living engine advances the heartbeat at least every 100 ms.
    pub heartbeat: Option<Duration>,
}

impl Default for OpenOptions {
    /// Returns 10 s for calls, 50 us of polling before a wait blocks, 20 us on the socket, and 10 s
    /// for the heartbeat.
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(10),
            spin: Duration::from_micros(50),
            socket_spin: Duration::from_micros(20),
            backoff: Backoff::default(),
            heartbeat: Some(Duration::from_secs(10)),
        }
    }
}

/// A PCI function, or the attachment of it that this client holds. Clones share the device.
///
/// It belongs to the process that has opened it. In a child by `fork`, calls return
/// [`Error::ForeignProcess`], BARs read as zeros and keep stores to themselves, and a drop changes
/// nothing for the parent. DMA buffers remain readable.
#[derive(Clone)]
pub struct Device(Arc<Shared>);

impl Device {
    /// Opens the device behind `backing`.
    ///
    /// # Errors
    /// Returns [`Error::Protocol`] when the device's description contradicts itself, and the errors
    /// of the backing.
    pub fn open(backing: Arc<dyn Backing>, options: OpenOptions) -> Result<Self, Error> {
        Self::open_until(backing, options, Deadline::after(options.timeout))
    }

    /// Opens the device behind `backing`, until `deadline` at the latest.
    fn open_until(
        backing: Arc<dyn Backing>,
        options: OpenOptions,
        deadline: Deadline,
    ) -> Result<Self, Error> {
        Shared::open(backing, options, deadline).map(Self)
    }

    /// Opens the device behind `backing` with the default options, but without a limit for the
    /// heartbeat. A machine in this process advances only while a thread steps it.
    ///
    /// # Errors
    /// Returns the errors of [`Device::open`].
    pub fn from_backing(backing: Arc<dyn Backing>) -> Result<Self, Error> {
        Self::open(backing, OpenOptions { heartbeat: None, ..OpenOptions::default() })
    }

    /// Opens the function, or the attachment, that a vfio-user server offers on the socket at
    /// `path`.
    ///
    /// # Errors
    /// Returns the errors of [`VfioUser::connect`] and [`Device::open`].
    pub fn open_vfio_user(path: impl AsRef<Path>, options: OpenOptions) -> Result<Self, Error> {
        let deadline = Deadline::after(options.timeout);
        Self::open_until(Arc::new(VfioUser::connect(path, &options)?), options, deadline)
    }

    /// Opens the PCI function of this machine at `address`, through Linux VFIO.
    ///
    /// # Errors
    /// Returns the errors of [`Vfio::open`] and [`Device::open`].
    pub fn open_vfio(address: PciAddress, options: OpenOptions) -> Result<Self, Error> {
        Self::open(Arc::new(Vfio::open(address)?), options)
    }

    /// Opens the PCI function whose character device, made by the kernel shim, is at `path`.
    ///
    /// # Errors
    /// Returns the errors of [`Shim::open`] and [`Device::open`].
    pub fn open_shim(path: impl AsRef<Path>, options: OpenOptions) -> Result<Self, Error> {
        Self::open(Arc::new(Shim::open(path)?), options)
    }

    /// Opens the device at `address`, of any kind.
    ///
    /// # Errors
    /// Returns the errors of [`Device::open_vfio_user`], [`Device::open_vfio`] or
    /// [`Device::open_shim`].
    pub fn open_at(address: &DeviceAddress, options: OpenOptions) -> Result<Self, Error> {
        match address {
            DeviceAddress::VfioUser(path) => Self::open_vfio_user(path, options),
            DeviceAddress::Vfio(address) => Self::open_vfio(*address, options),
            DeviceAddress::Shim(path) => Self::open_shim(path, options),
        }
    }

    /// Opens the device that `text` names: the path of a vfio-user socket, `vfio:0000:00:03.0`, or
    /// `shim:/dev/nicforge0`.
    ///
    /// # Errors
    /// Returns the errors of [`DeviceAddress::parse`] and [`Device::open_at`].
    pub fn open_named(text: impl AsRef<OsStr>, options: OpenOptions) -> Result<Self, Error> {
        Self::open_at(&DeviceAddress::parse(text)?, options)
    }

    /// Opens the first device that environment variable `variable` names. The usual variable is
    /// [`environment::SOCKET`], which `nicforge run` and `nicforge boot` set.
    ///
    /// # Errors
    /// Returns [`Error::Environment`] when the variable names no device, and the errors of
    /// [`Device::open_at`].
    pub fn open_env(variable: &str, options: OpenOptions) -> Result<Self, Error> {
        let none = || Error::Environment { name: variable.to_owned(), problem: "names no device" };
        let address = environment::devices(variable)?.into_iter().next().ok_or_else(none)?;
        Self::open_at(&address, options)
    }

    /// Returns the identity in the function's configuration header.
    pub fn identity(&self) -> Identity {
        self.0.identity
    }

    /// Returns whether the function has the pages of nicforge's core: a control page, a mirror and
    /// possibly rings.
    pub fn has_attachment(&self) -> bool {
        self.0.capability.is_some()
    }

    /// Returns the number of posted-write rings.
    pub fn ring_count(&self) -> u8 {
        self.0.rings.len() as u8
    }

    /// Returns the number of this client's attachment in the function; 0 for a plain PCI function.
    pub fn attachment(&self) -> u32 {
        self.0.attachment()
    }

    /// Returns the generation of this client's tenancy, which each reset increments; 0 for a plain
    /// PCI function.
    pub fn generation(&self) -> u32 {
        self.0.generation().unwrap_or(0)
    }

    /// Returns BAR `index`, 0 to 5, mapped where it can be.
    ///
    /// # Errors
    /// Returns [`Error::NoSuch`] for a BAR that the device does not have, and [`Error::Memory`]
    /// when the mapping fails.
    pub fn bar(&self, index: u8) -> Result<Bar, Error> {
        Bar::new(&self.0, index)
    }

    /// Allocates memory for DMA in both directions, `len` bytes rounded up to whole pages.
    ///
    /// # Errors
    /// Returns [`Error::Memory`], [`Error::AddressSpace`], or the errors of the backing.
    pub fn dma_buffer(&self, len: usize, huge: HugePages) -> Result<DmaBuffer, Error> {
        DmaBuffer::create(&self.0, len, huge)
    }

    /// Allocates a DMA buffer that a vfio-user server cannot map.
    ///
    /// The server asks this process for the bytes by DMA messages. These are answered while a
    /// thread waits for the device or accesses it. A device behind the kernel treats the buffer as
    /// any other.
    ///
    /// # Errors
    /// Returns the errors of [`Device::dma_buffer`].
    pub fn private_dma_buffer(&self, len: usize) -> Result<DmaBuffer, Error> {
        DmaBuffer::create_private(&self.0, len)
    }

    /// Maps `len` bytes of `memory` from `offset`, for DMA by the device. `offset` is also the
    /// offset in the memory's file. `offset` and `len` are multiples of 4096.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] when a vfio-user server would have to map memory without a
    /// file. The kernel shim returns it when the memory does not have one contiguous range of
    /// addresses for the device: without an IOMMU, only a single page or huge page has. Returns
    /// [`Error::Misaligned`] when `offset` or `len` is not a multiple of 4096. All errors of
    /// [`Device::dma_buffer`] are possible too.
    pub fn map_dma(
        &self,
        memory: &SharedMemory,
        offset: u64,
        len: u64,
        permission: DmaPermission,
    ) -> Result<DmaBuffer, Error> {
        DmaBuffer::map_shared(&self.0, memory, offset, len, permission)
    }

    /// Binds MSI-X vector `vector`, or an MSI vector if the device has no MSI-X.
    ///
    /// # Errors
    /// Returns [`Error::NoSuch`], [`Error::DeviceGone`] or [`Error::Refused`].
    pub fn interrupt(&self, vector: u32) -> Result<Interrupt, Error> {
        let msix = self.0.irq_info(IRQ_MSIX)?;
        match msix.count {
            0 => Interrupt::bind(&self.0, IRQ_MSI, self.0.irq_info(IRQ_MSI)?, vector),
            _ => Interrupt::bind(&self.0, IRQ_MSIX, msix, vector),
        }
    }

    /// Binds the INTx line. It masks itself when it fires: see [`Interrupt::unmask`].
    ///
    /// # Errors
    /// Returns the errors of [`Device::interrupt`].
    pub fn intx(&self) -> Result<Interrupt, Error> {
        Interrupt::bind(&self.0, IRQ_INTX, self.0.irq_info(IRQ_INTX)?, 0)
    }

    /// Waits for any of `interrupts`, which must belong to this device. Returns the position of the
    /// first that has fired and its number of interrupts. Other interrupts may have fired too:
    /// [`Interrupt::take`] returns their numbers.
    ///
    /// # Errors
    /// Returns [`Error::Timeout`], [`Error::Cancelled`] or [`Error::DeviceGone`].
    pub fn wait_any(
        &self,
        interrupts: &[&Interrupt],
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<(usize, u64), Error> {
        interrupt::wait_any(&self.0, interrupts, deadline, cancel)
    }

    /// Waits until `condition` holds. It is the loop for everything that the device reports by
    /// writing memory.
    ///
    /// # Errors
    /// Returns [`Error::Timeout`], [`Error::Cancelled`] or [`Error::DeviceGone`].
    #[inline]
    pub fn wait_until(
        &self,
        deadline: Deadline,
        cancel: Option<&Cancel>,
        mut condition: impl FnMut() -> bool,
    ) -> Result<(), Error> {
        self.0.wait_for(deadline, cancel, "a condition", || Ok(condition().then_some(())))
    }

    /// Waits until `attempt` returns a value or an error. `operation` names the condition in a
    /// time-out error's text.
    ///
    /// # Errors
    /// Returns the errors of `attempt` and of [`Device::wait_until`].
    #[inline]
    pub fn wait_for<T, E: From<Error>>(
        &self,
        deadline: Deadline,
        cancel: Option<&Cancel>,
        operation: &'static str,
        attempt: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        self.0.wait_for(deadline, cancel, operation, attempt)
    }

    /// Pauses once in a waiting loop of the caller's own.
    ///
    /// # Errors
    /// Returns [`Error::DeviceGone`].
    #[inline]
    pub fn relax(&self, relax: &mut Relax) -> Result<(), Error> {
        self.0.relax(relax)
    }

    /// Wakes the threads of this process that wait for the device, after a change by the program
    /// itself that one of them may wait for. Without such threads it makes no system call.
    pub fn wake_waiting_threads(&self) {
        if let Some(wake) = self.0.backing.client_wake() {
            wake.wake_threads();
        }
    }

    /// Returns a [`Relax`] with this device's back-off.
    pub fn new_relax(&self) -> Relax {
        Relax::with_backoff(self.0.options.backoff)
    }

    /// Returns the producer of posted-write ring `ring`. A device without rings has a ring 0 whose
    /// writes are trapped.
    ///
    /// # Errors
    /// Returns [`Error::NoSuch`] for a ring that the device does not have, and [`Error::RingTaken`]
    /// while another poster holds the ring.
    pub fn poster(&self, ring: u8) -> Result<Poster, Error> {
        Poster::new(&self.0, ring)
    }

    /// Returns a handle that wakes the engine after stores to mapped memory.
    pub fn doorbell(&self) -> Doorbell {
        Doorbell(self.0.clone())
    }

    /// Waits until the device has taken every earlier posted and trapped write. It is a trapped
    /// read.
    ///
    /// # Errors
    /// Returns the errors of a trapped read.
    pub fn flush(&self) -> Result<(), Error> {
        self.0.flush()
    }

    /// Resets the function, or this client's attachment of it.
    ///
    /// Registers, rings and windows start again, and records in the rings are lost. DMA buffers
    /// stay mapped, and interrupts stay bound. Other threads must not use the device meanwhile:
    /// their posted writes may be lost.
    ///
    /// # Errors
    /// Returns [`Error::DeviceGone`] when the device stays lost, or [`Error::Refused`].
    pub fn reset(&self) -> Result<(), Error> {
        self.0.reset()
    }

    /// Returns how often this process has begun to reset the device. A library ends its calls in
    /// other threads when this number changes: all state of the device that it has read before is
    /// invalid.
    #[inline]
    pub fn resets(&self) -> u32 {
        self.0.resets()
    }

    /// Returns whether this process is a child, by `fork`, of the one that has opened the device. A
    /// library then neither uses the device nor waits for it, also not when it is dropped.
    #[inline]
    pub fn is_inherited(&self) -> bool {
        self.0.is_inherited()
    }

    /// Checks now whether the device is lost. It does not wait.
    pub fn is_gone(&self) -> bool {
        self.gone_cause().is_some()
    }

    /// Checks now whether the device is lost, and returns the cause. It does not wait.
    pub fn gone_cause(&self) -> Option<GoneCause> {
        // In a child, the events may be the parent's.
        let handled = self.0.check_owner().and_then(|()| self.0.backing.handle_events());
        match self.0.note_loss(handled).and_then(|()| self.0.check_alive()) {
            Err(Error::DeviceGone { cause }) => Some(cause),
            _ => None,
        }
    }

    /// Returns the backing, for operations that this type does not offer.
    pub fn backing(&self) -> &Arc<dyn Backing> {
        &self.0.backing
    }
}

impl Shared {
    /// Waits until the device has taken all earlier writes: see [`Device::flush`]. The register
    /// that is read has no side effect.
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
            .field("gone", &self.0.loss_cause())
            .finish()
    }
}
