//! The state that all handles of one device share: regions, control page, mirror, and whether the
//! device is lost.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, Weak,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use nicforge_hwi::{
    attachment::{control, mirror},
    pci::AttachmentCapability,
};
use nicforge_shm::{
    OwnerProcess, SharedU32,
    wake::{FullFence, NoFence, must_kick, register_membarrier},
};

use super::{Identity, OpenOptions, capability, mirror::Mirror, tenancy::Tenancy};
use crate::{
    Backing, Cancel, Deadline, DmaAddresses, Error, GoneCause, IrqInfo, RegionInfo, Relax, Waiter, WriteMode,
    bar::Region,
    dma::IovaAllocator,
    heartbeat::{BEAT_TIMEOUT, Heartbeat},
    interrupt::Bound,
    posted::{Ring, RingSlot, RingState},
    runtime::{self, Cost, charge, note_store},
};

/// Number of iterations of a waiting loop between two checks of the mirror.
const PAUSES_BETWEEN_CHECKS: u32 = 64;

/// Number of pauses of a wait for the mirror's generation between two reads of the register.
const PAUSES_BETWEEN_READS: u32 = 16;

/// The attachment of a device with the pages of nicforge's core.
struct Attachment {
    /// Number of the attachment in its function.
    number: u32,
    mirror: Mirror,
    waker: EngineWaker,
}

/// The engine's sleeping flag.
#[derive(Clone)]
pub(crate) struct EngineWaker {
    /// The flag, in the mirror page.
    sleeping: SharedU32,
    /// Writers must execute a fence before they load the flag, because the engine cannot execute a
    /// barrier on their processors by `membarrier`.
    needs_fence: bool,
}

impl EngineWaker {
    /// Returns whether the engine sleeps and must be woken, after a store.
    #[inline]
    pub(crate) fn must_wake(&self) -> bool {
        if self.needs_fence {
            must_kick(&self.sleeping, &FullFence)
        } else {
            must_kick(&self.sleeping, &NoFence)
        }
    }
}

/// The BARs of a device.
///
/// Invariant: a region is mapped at most once, when it is first used.
struct Bars {
    /// Description of each BAR.
    infos: [RegionInfo; 6],
    /// The BARs that were used so far.
    regions: [OnceLock<Arc<Region>>; 6],
}

/// The resets by this process.
///
/// Invariant: `begun` counts a reset before the device is reset; `completed` counts it after this
/// process has adopted the new generation.
#[derive(Default)]
struct Resets {
    begun: AtomicU32,
    completed: AtomicU32,
}

/// The state that all handles of one device share.
pub(crate) struct Shared {
    /// The process that has opened the device. No other one uses it.
    owner: OwnerProcess,
    pub(crate) backing: Arc<dyn Backing>,
    pub(crate) options: OpenOptions,
    pub(crate) identity: Identity,
    pub(crate) capability: Option<AttachmentCapability>,
    bars: Bars,
    /// Empty for a plain PCI function.
    attachment: OnceLock<Attachment>,
    /// The posted-write rings.
    pub(crate) rings: Vec<RingSlot>,
    /// Held from the selection of a ring to the read of its state.
    ring_select: Mutex<()>,
    tenancy: Tenancy,
    resets: Resets,
    /// The allocator of DMA addresses; `None` where the backing chooses them.
    pub(crate) iova: Option<Mutex<IovaAllocator>>,
    /// The bound vectors, by VFIO index and vector.
    pub(crate) interrupts: Mutex<BTreeMap<(u32, u32), Weak<Bound>>>,
}

/// Locks a mutex, also after a holder's panic. No holder panics in the middle of a change, so the
/// data is consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    runtime::lock(mutex)
}

impl Shared {
    /// Opens a device, with its attachment and its rings, until `deadline` at the latest.
    pub(crate) fn open(
        backing: Arc<dyn Backing>,
        options: OpenOptions,
        deadline: Deadline,
    ) -> Result<Arc<Self>, Error> {
        backing.limit_calls(Some(deadline));
        let opened = Self::open_within(backing.clone(), options, deadline);
        backing.limit_calls(None);
        opened
    }

    /// Opens a device whose backing knows the deadline.
    fn open_within(
        backing: Arc<dyn Backing>,
        options: OpenOptions,
        deadline: Deadline,
    ) -> Result<Arc<Self>, Error> {
        let identity = capability::identity(&*backing)?;

        let mut infos: [RegionInfo; 6] = Default::default();
        for (index, info) in infos.iter_mut().enumerate() {
            *info = backing.region_info(index as u32)?;
        }

        // This process must not write to BARs that only the device writes.
        let capability = capability::find(&*backing, &infos)?;
        for (index, info) in infos.iter_mut().enumerate() {
            info.writable &= !capability.is_some_and(|found| capability::is_mirrored(&found, index));
        }

        capability::enable(&*backing)?;

        let iova = match backing.dma_addresses() {
            DmaAddresses::Free(ranges) => Some(Mutex::new(IovaAllocator::new(&ranges))),
            DmaAddresses::Given => None,
        };

        let ring_count = capability.map_or(0, |capability| capability.ring_count);
        let shared = Arc::new(Self {
            owner: OwnerProcess::current(),
            backing,
            options,
            identity,
            capability,
            bars: Bars { infos, regions: Default::default() },
            attachment: OnceLock::new(),
            rings: (0..ring_count).map(|_| RingSlot::default()).collect(),
            ring_select: Mutex::new(()),
            tenancy: Tenancy::default(),
            resets: Resets::default(),
            iova,
            interrupts: Mutex::new(BTreeMap::new()),
        });

        shared.open_attachment(deadline)?;
        for index in 0..ring_count {
            let ring = Ring::open(&shared, index)?;
            shared.rings[usize::from(index)].put(ring);
        }
        Ok(shared)
    }

    /// Opens the control page and the mirror of the attachment, and adopts its generation. A plain
    /// PCI function has no attachment.
    fn open_attachment(&self, deadline: Deadline) -> Result<(), Error> {
        let Some(capability) = self.capability else { return Ok(()) };

        let page =
            self.region(capability.mirror_bar)?.window(capability.mirror_offset.into(), mirror::SIZE)?;
        let magic = page.load_u32_acquire(mirror::MAGIC)?;
        if magic != mirror::MAGIC_VALUE {
            return Err(Error::Protocol {
                what: "the mirror page does not start with its magic",
                value: magic.into(),
            });
        }

        let heartbeat = page.u64(mirror::HEARTBEAT)?;
        self.backing.set_heartbeat(heartbeat.clone());
        self.backing.prepare_client_wake()?;

        let mirror = Mirror {
            generation: page.u32(mirror::GENERATION)?,
            heartbeat: Heartbeat::new(heartbeat),
            flags: page.u32(mirror::FLAGS)?,
            page: page.clone(),
        };

        // Without a fence in writers, both conditions must hold: the engine is on this kernel, and
        // the kernel has `membarrier`. With a fence, the waker is correct in any case.
        let needs_fence = !self.backing.engine_is_near() || !register_membarrier().unwrap_or(false);
        let waker = EngineWaker { sleeping: page.u32(mirror::SLEEPING)?, needs_fence };
        let number = self.control_read(control::ATTACHMENT)?;

        // `open` calls this function once, so the cell is empty.
        let _ = self.attachment.set(Attachment { number, mirror, waker });
        self.adopt_generation(deadline)
    }

    /// Reads the attachment's generation from its register, waits until the mirror shows it or
    /// `deadline` has passed, and expects it from now on.
    fn adopt_generation(&self, deadline: Deadline) -> Result<(), Error> {
        let Some(Attachment { mirror, .. }) = self.attachment.get() else { return Ok(()) };

        let mut generation = self.control_read(control::GENERATION)?;
        // The engine may update the mirror later than it replies to the read.
        let mut relax = Relax::with_backoff(self.options.backoff);

        while mirror.generation.load(Ordering::Acquire) != generation {
            if deadline.has_passed() {
                return Err(Error::Protocol {
                    what: "the mirror shows another generation",
                    value: generation.into(),
                });
            }

            self.backing.relax(&mut relax)?;
            if relax.pauses().is_multiple_of(PAUSES_BETWEEN_READS) {
                let present = self.control_read(control::GENERATION)?;
                if present != generation {
                    // Another client has reset the attachment meanwhile, which has also disabled
                    // the function.
                    self.note_loss(capability::enable(&*self.backing))?;
                    generation = present;
                }
            }
        }

        self.tenancy.set_generation(generation);
        mirror.heartbeat.restart();
        Ok(())
    }

    /// Returns BAR `bar`, mapped as far as it can be.
    pub(crate) fn region(&self, bar: u8) -> Result<&Arc<Region>, Error> {
        let none = Error::NoSuch { what: "BAR", index: bar.into(), count: 6 };
        let Some(slot) = self.bars.regions.get(usize::from(bar)) else { return Err(none) };
        if let Some(region) = slot.get() {
            return Ok(region);
        }

        self.check_owner()?;
        let info = self.bars.infos[usize::from(bar)].clone();
        if info.size == 0 {
            return Err(none);
        }

        let memory = match info.mappable.is_empty() {
            true => None,
            false if !info.writable => self.backing.map_read_only(bar.into())?,
            false => self.backing.map(bar.into())?,
        };

        // A child of `fork` could write to the registers and rings of its parent.
        if let Some(memory) = &memory {
            memory.keep_from_children()?;
        }

        Ok(slot.get_or_init(|| Arc::new(Region::new(bar.into(), info, memory.map(|memory| memory.whole())))))
    }

    /// Returns the size of BAR `bar`; 0 for a BAR that the device does not have.
    #[inline]
    pub(crate) fn bar_size(&self, bar: u8) -> u64 {
        self.bars.infos.get(usize::from(bar)).map_or(0, |info| info.size)
    }

    /// Describes the interrupts of VFIO index `index`.
    pub(crate) fn irq_info(&self, index: u32) -> Result<IrqInfo, Error> {
        self.check_owner()?;
        self.note_loss(self.backing.irq_info(index))
    }

    /// Returns the region and the offset of a register of the control page.
    fn control_register(&self, register: u64) -> Result<(u32, u64), Error> {
        let capability =
            self.capability.ok_or(Error::Unsupported { what: "a control page on a plain PCI function" })?;
        Ok((capability.control_bar.into(), u64::from(capability.control_offset) + register))
    }

    /// Reads a register of the control page.
    pub(crate) fn control_read(&self, register: u64) -> Result<u32, Error> {
        let (region, offset) = self.control_register(register)?;
        let mut value = [0; 4];
        self.read(region, offset, &mut value)?;
        Ok(u32::from_le_bytes(value))
    }

    /// Returns where the engine reads the next record of ring `ring`.
    pub(crate) fn ring_state(&self, ring: u8) -> Result<RingState, Error> {
        self.check_owner()?;
        // No other thread may select a ring between this selection and the read of its state.
        let _held = lock(&self.ring_select);

        let (region, offset) = self.control_register(control::RING_SELECT)?;
        self.write(region, offset, &u32::from(ring).to_le_bytes(), WriteMode::Confirmed)?;

        let state = self.control_read(control::RING_STATE)?;
        // Bit 31 is the phase, and the others are the cell.
        Ok(RingState { cell: state & 0x7fff_ffff, phase: state >> 31 != 0 })
    }

    /// Reads from a region by a trapped access.
    pub(crate) fn read(&self, region: u32, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        self.check_owner()?;
        charge(Cost::TrappedAccess, 1);
        self.note_loss(self.backing.read(region, offset, out))
    }

    /// Writes to a region by a trapped access.
    pub(crate) fn write(&self, region: u32, offset: u64, data: &[u8], mode: WriteMode) -> Result<(), Error> {
        self.check_owner()?;
        charge(Cost::TrappedAccess, 1);
        self.note_loss(self.backing.write(region, offset, data, mode))
    }

    /// Returns whether this process is a child, by `fork`, of the one that has opened the device.
    #[inline]
    pub(crate) fn is_inherited(&self) -> bool {
        !self.owner.is_current()
    }

    /// Checks that this process has opened the device. All calls that use more than the mapped
    /// memory check it, and do so before they take a lock: a thread that only the parent has may
    /// hold it.
    #[inline]
    pub(crate) fn check_owner(&self) -> Result<(), Error> {
        if self.is_inherited() { Err(Error::ForeignProcess) } else { Ok(()) }
    }

    /// Records the loss of the device if `result` reports it, and returns `result`. In a child of
    /// the process that has opened the device, the loss is that of the child's descriptors.
    pub(crate) fn note_loss<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(Error::DeviceGone { cause }) = &result {
            self.check_owner()?;
            self.tenancy.record_loss(*cause);
        }
        result
    }

    /// Returns the recorded cause for which the device is lost, if it is.
    pub(crate) fn loss_cause(&self) -> Option<GoneCause> {
        self.tenancy.loss_cause()
    }

    /// Returns a handle of the engine's sleeping flag, if the device has an attachment.
    pub(crate) fn engine_waker(&self) -> Option<EngineWaker> {
        self.attachment.get().map(|attachment| attachment.waker.clone())
    }

    /// Wakes the engine if it sleeps. It is called after a store to mapped memory.
    #[inline]
    pub(crate) fn after_store(&self) -> Result<(), Error> {
        match self.attachment.get() {
            Some(Attachment { waker, .. }) => self.after_store_with(waker),
            None => {
                note_store();
                Ok(())
            }
        }
    }

    /// Does the work of [`Shared::after_store`] with a handle of the engine's sleeping flag that
    /// the caller has, after a store to mapped memory or to a ring.
    #[inline]
    pub(crate) fn after_store_with(&self, waker: &EngineWaker) -> Result<(), Error> {
        note_store();
        if waker.must_wake() { self.kick() } else { Ok(()) }
    }

    /// Wakes the engine by a write to a register, which never waits.
    #[cold]
    pub(crate) fn kick(&self) -> Result<(), Error> {
        self.check_owner()?;
        let (region, offset) = self.control_register(control::WAKE)?;
        charge(Cost::TrappedAccess, 1);
        match self.note_loss(self.backing.try_write(region, offset, &1u32.to_le_bytes())) {
            Err(error @ Error::DeviceGone { .. }) => Err(error),
            // The caller's store has been made. If the wake is lost, the engine finds the store
            // when its sleep times out.
            _ => Ok(()),
        }
    }

    /// Pauses once in a waiting loop.
    #[inline]
    pub(crate) fn relax(&self, relax: &mut Relax) -> Result<(), Error> {
        self.note_loss(self.backing.relax(relax))?;
        let is_due = relax.count_call().is_multiple_of(PAUSES_BETWEEN_CHECKS);
        if std::mem::take(&mut relax.has_slept) || is_due { self.check_alive() } else { Ok(()) }
    }

    /// Checks whether the device is lost: by the recorded state, and by the mirror.
    pub(crate) fn check_alive(&self) -> Result<(), Error> {
        self.check_owner()?;
        if let Some(cause) = self.loss_cause() {
            return Err(Error::DeviceGone { cause });
        }

        let Some(Attachment { mirror, .. }) = self.attachment.get() else { return Ok(()) };

        if let Some(cause) = mirror.loss() {
            return self.note_loss(Err(Error::DeviceGone { cause }));
        }
        self.check_generation(mirror)?;
        self.check_heartbeat(mirror)
    }

    /// Checks that the attachment is of the generation that this process uses.
    fn check_generation(&self, mirror: &Mirror) -> Result<(), Error> {
        if mirror.generation.load(Ordering::Acquire) == self.tenancy.generation() {
            return Ok(());
        }
        Err(self.tenancy.handle_changed_generation(&mirror.generation))
    }

    /// Checks the engine's heartbeat against the limit of the options. A late heartbeat first
    /// handles the backing's events.
    fn check_heartbeat(&self, mirror: &Mirror) -> Result<(), Error> {
        let stopped_for = mirror.heartbeat.time_since_beat();

        // A server that dies hangs up, which the backing notices only when it handles its events.
        // It otherwise does so in long waits alone, which a caller that keeps making progress never
        // reaches. A late heartbeat is rare, so that this system call costs nothing while the
        // engine runs.
        if stopped_for > BEAT_TIMEOUT {
            self.note_loss(self.backing.handle_events())?;
        }

        match self.options.heartbeat {
            Some(limit) if stopped_for > limit => {
                self.note_loss(Err(Error::DeviceGone { cause: GoneCause::Stopped }))
            }
            _ => Ok(()),
        }
    }

    /// Returns the number of this client's attachment; 0 for a plain PCI function.
    pub(crate) fn attachment(&self) -> u32 {
        self.attachment.get().map_or(0, |attachment| attachment.number)
    }

    /// Returns how many resets this process has begun.
    #[inline]
    pub(crate) fn resets(&self) -> u32 {
        self.resets.begun.load(Ordering::Acquire)
    }

    /// Returns how many resets this process has completed: the *epoch* of rings. A ring that was
    /// opened in another epoch must be opened again.
    #[inline]
    pub(crate) fn epoch(&self, order: Ordering) -> u32 {
        self.resets.completed.load(order)
    }

    /// Returns the generation that this process expects; `None` for a plain PCI function.
    pub(crate) fn generation(&self) -> Option<u32> {
        self.attachment.get().map(|_| self.tenancy.generation())
    }

    /// Calls `attempt` until it returns a value, with a pause after each call.
    pub(crate) fn wait_for<T, E: From<Error>>(
        &self,
        deadline: Deadline,
        cancel: Option<&Cancel>,
        operation: &'static str,
        attempt: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        let relax = Relax::with_backoff(self.options.backoff);
        self.wait_with(relax, deadline, cancel, operation, attempt)
    }

    /// Calls `attempt` as [`Shared::wait_for`] does, with the given state of the pauses.
    pub(crate) fn wait_with<T, E: From<Error>>(
        &self,
        relax: Relax,
        deadline: Deadline,
        cancel: Option<&Cancel>,
        operation: &'static str,
        mut attempt: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        let mut waiter = Waiter::with_relax(relax, deadline, cancel);

        loop {
            if let Some(value) = attempt()? {
                return Ok(value);
            }

            waiter.check_for(operation)?;

            if let Err(error) = self.relax(&mut waiter.relax) {
                // A value that arrived before the device was lost still counts.
                return attempt()?.ok_or_else(|| error.into());
            }
        }
    }

    /// Resets the device, adopts the new generation, and binds the interrupts again.
    pub(crate) fn reset(&self) -> Result<(), Error> {
        self.check_owner()?;
        self.resets.begun.fetch_add(1, Ordering::SeqCst);

        self.note_loss(self.backing.reset())?;
        self.note_loss(capability::enable(&*self.backing))?;
        self.adopt_generation(Deadline::after(self.options.timeout))?;

        self.tenancy.clear_loss();
        self.resets.completed.fetch_add(1, Ordering::AcqRel);

        let bound: Vec<_> = lock(&self.interrupts).values().filter_map(Weak::upgrade).collect();
        bound.iter().try_for_each(|bound| bound.rebind())
    }

    /// The longest time for which a wait blocks before it checks the device.
    pub(crate) const SLICE: Duration = Duration::from_millis(100);
}
