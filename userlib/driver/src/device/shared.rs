//! What the handles of one device share: its regions, its control page and mirror, and the knowledge whether it lives.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicU8, AtomicU32, Ordering},
    },
    time::Duration,
};

use nicforge_hwi::{
    attachment::{control, mirror},
    pci::AttachmentCapability,
};
use nicforge_shm::{
    SharedU32, Window,
    wake::{FullFence, NoFence, must_kick, register_membarrier},
};

use super::{Identity, OpenOptions, capability};
use crate::{
    Backing, Cancel, Deadline, DmaAddresses, Error, GoneCause, RegionInfo, Relax, WriteMode,
    bar::Region,
    dma::IovaAllocator,
    heartbeat::{Heartbeat, RESTS},
    interrupt::Bound,
    posted::{Ring, RingSlot},
};

/// Turns of a waiting loop between two looks at the mirror.
const CHECK_EVERY: u32 = 64;

/// Turns of waiting for the mirror's generation between two readings of the register.
const ASK_AGAIN: u32 = 16;

/// The words of the attachment mirror.
pub(crate) struct Mirror {
    page: Window,
    generation: SharedU32,
    heartbeat: Heartbeat,
    sleeping: SharedU32,
    flags: SharedU32,
}

pub(crate) struct Shared {
    pub(crate) backing: Arc<dyn Backing>,
    pub(crate) options: OpenOptions,
    pub(crate) identity: Identity,
    pub(crate) capability: Option<AttachmentCapability>,
    pub(crate) bars: [RegionInfo; 6],
    regions: [OnceLock<Arc<Region>>; 6],
    mirror: OnceLock<Mirror>,
    attachment: OnceLock<u32>,
    pub(crate) rings: Vec<RingSlot>,
    /// Writers must fence before they look whether the engine sleeps: there is no membarrier here, or it does not reach us.
    fence: bool,
    control: Mutex<()>,
    /// Counts our own resets; rings start again when it moved.
    pub(crate) epoch: AtomicU32,
    generation: AtomicU32,
    /// Counts our own resets too, when they begin.
    resets: AtomicU32,
    gone: AtomicU8,
    /// Absent where the backing chooses addresses.
    pub(crate) iova: Option<Mutex<IovaAllocator>>,
    pub(crate) interrupts: Mutex<HashMap<(u32, u32), Weak<Bound>>>,
}

/// A lock whose data stays good when a holder panicked: none of ours panics half way through a change.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn encode(cause: GoneCause) -> u8 {
    match cause {
        GoneCause::HungUp => 1,
        GoneCause::Evicted => 2,
        GoneCause::Reset => 3,
        GoneCause::Stopped => 4,
        GoneCause::Withdrawn => 5,
    }
}

fn decode(code: u8) -> Option<GoneCause> {
    Some(match code {
        0 => return None,
        1 => GoneCause::HungUp,
        2 => GoneCause::Evicted,
        3 => GoneCause::Reset,
        4 => GoneCause::Stopped,
        _ => GoneCause::Withdrawn,
    })
}

impl Shared {
    pub(crate) fn open(backing: Arc<dyn Backing>, options: OpenOptions) -> Result<Arc<Self>, Error> {
        let identity = capability::identity(&*backing)?;
        let mut bars: [RegionInfo; 6] = Default::default();
        for (index, info) in bars.iter_mut().enumerate() {
            *info = backing.region_info(index as u32)?;
        }
        let capability = capability::find(&*backing, &bars)?;
        for (index, info) in bars.iter_mut().enumerate() {
            info.writable &= !capability.is_some_and(|found| capability::is_mirrored(&found, index));
        }
        capability::enable(&*backing)?;
        // Whoever it is that fails here, a fence in the writer is always right.
        let fence = !backing.engine_is_near() || !register_membarrier().unwrap_or(false);
        let iova = match backing.dma_addresses() {
            DmaAddresses::Free(ranges) => Some(Mutex::new(IovaAllocator::new(&ranges))),
            DmaAddresses::Given => None,
        };
        let ring_count = capability.map_or(0, |capability| capability.ring_count);
        let shared = Arc::new(Self {
            backing,
            options,
            identity,
            capability,
            bars,
            regions: Default::default(),
            mirror: OnceLock::new(),
            attachment: OnceLock::new(),
            rings: (0..ring_count).map(|_| RingSlot::default()).collect(),
            fence,
            control: Mutex::new(()),
            epoch: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            resets: AtomicU32::new(0),
            gone: AtomicU8::new(0),
            iova,
            interrupts: Mutex::new(HashMap::new()),
        });
        shared.open_mirror()?;
        for index in 0..ring_count {
            let ring = Ring::open(&shared, index)?;
            shared.rings[usize::from(index)].put(ring);
        }
        Ok(shared)
    }

    fn open_mirror(&self) -> Result<(), Error> {
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
        let opened = Mirror {
            generation: page.u32(mirror::GENERATION)?,
            heartbeat: Heartbeat::new(heartbeat),
            sleeping: page.u32(mirror::SLEEPING)?,
            flags: page.u32(mirror::FLAGS)?,
            page,
        };
        // Called once, by `open`.
        let _ = self.mirror.set(opened);
        let _ = self.attachment.set(self.control_read(control::ATTACHMENT)?);
        self.adopt_generation()
    }

    /// Takes the present generation as ours.
    fn adopt_generation(&self) -> Result<(), Error> {
        let Some(mirror) = self.mirror.get() else { return Ok(()) };
        let mut generation = self.control_read(control::GENERATION)?;
        // The engine may write the mirror a little later than it answers.
        let deadline = Deadline::after(self.options.timeout);
        let mut relax = Relax::with_patience(self.options.patience);
        while mirror.generation.load(Ordering::Acquire) != generation {
            if deadline.has_passed() {
                return Err(Error::Protocol {
                    what: "the mirror shows another generation",
                    value: generation.into(),
                });
            }
            self.backing.relax(&mut relax)?;
            if relax.turns().is_multiple_of(ASK_AGAIN) {
                let present = self.control_read(control::GENERATION)?;
                if present != generation {
                    // Somebody else's reset came between. It switched the function off, too.
                    self.note(capability::enable(&*self.backing))?;
                    generation = present;
                }
            }
        }
        self.generation.store(generation, Ordering::Release);
        mirror.heartbeat.restart();
        Ok(())
    }

    /// BAR `bar`, mapped as far as it can be.
    pub(crate) fn region(&self, bar: u8) -> Result<&Arc<Region>, Error> {
        let none = Error::NoSuch { what: "BAR", index: bar.into(), count: 6 };
        let Some(slot) = self.regions.get(usize::from(bar)) else { return Err(none) };
        if let Some(region) = slot.get() {
            return Ok(region);
        }
        let info = self.bars[usize::from(bar)].clone();
        if info.size == 0 {
            return Err(none);
        }
        let memory = match info.mappable.is_empty() {
            true => None,
            false if !info.writable => self.backing.map_read_only(bar.into())?,
            false => self.backing.map(bar.into())?,
        };
        Ok(slot.get_or_init(|| Arc::new(Region::new(bar.into(), info, memory.map(|memory| memory.whole())))))
    }

    fn control_place(&self, register: u64) -> Result<(u32, u64), Error> {
        let capability =
            self.capability.ok_or(Error::Unsupported { what: "a control page on a plain PCI function" })?;
        Ok((capability.control_bar.into(), u64::from(capability.control_offset) + register))
    }

    pub(crate) fn control_read(&self, register: u64) -> Result<u32, Error> {
        let (region, offset) = self.control_place(register)?;
        let mut value = [0; 4];
        self.read(region, offset, &mut value)?;
        Ok(u32::from_le_bytes(value))
    }

    /// {cell, phase} at which the engine reads ring `ring` next.
    pub(crate) fn ring_state(&self, ring: u8) -> Result<(u32, bool), Error> {
        // The selection and the read behind it belong together.
        let _held = lock(&self.control);
        let (region, offset) = self.control_place(control::RING_SELECT)?;
        self.write(region, offset, &u32::from(ring).to_le_bytes(), WriteMode::Confirmed)?;
        let state = self.control_read(control::RING_STATE)?;
        Ok((state & 0x7fff_ffff, state >> 31 != 0))
    }

    pub(crate) fn read(&self, region: u32, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        self.note(self.backing.read(region, offset, out))
    }

    pub(crate) fn write(&self, region: u32, offset: u64, data: &[u8], mode: WriteMode) -> Result<(), Error> {
        self.note(self.backing.write(region, offset, data, mode))
    }

    /// Remembers a lost device.
    pub(crate) fn note<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(Error::DeviceGone { cause }) = &result {
            self.gone.store(encode(*cause), Ordering::Release);
        }
        result
    }

    pub(crate) fn gone(&self) -> Option<GoneCause> {
        decode(self.gone.load(Ordering::Acquire))
    }

    /// After a store to mapped memory or a ring: wakes the engine if it sleeps.
    #[inline]
    pub(crate) fn after_store(&self) -> Result<(), Error> {
        let Some(mirror) = self.mirror.get() else { return Ok(()) };
        let kick = if self.fence {
            must_kick(&mirror.sleeping, &FullFence)
        } else {
            must_kick(&mirror.sleeping, &NoFence)
        };
        if kick { self.kick() } else { Ok(()) }
    }

    #[cold]
    fn kick(&self) -> Result<(), Error> {
        let (region, offset) = self.control_place(control::WAKE)?;
        match self.write(region, offset, &1u32.to_le_bytes(), WriteMode::Posted) {
            Err(error @ Error::DeviceGone { .. }) => Err(error),
            // A kick that got lost costs the engine's safety time-out, and the store itself was made.
            _ => Ok(()),
        }
    }

    /// One turn of a waiting loop.
    #[inline]
    pub(crate) fn relax(&self, relax: &mut Relax) -> Result<(), Error> {
        self.note(self.backing.relax(relax))?;
        if relax.count().is_multiple_of(CHECK_EVERY) { self.check_alive() } else { Ok(()) }
    }

    /// Looks at the mirror whether the device is still ours and alive.
    pub(crate) fn check_alive(&self) -> Result<(), Error> {
        if let Some(cause) = self.gone() {
            return Err(Error::DeviceGone { cause });
        }
        let Some(mirror) = self.mirror.get() else { return Ok(()) };
        let cause = if mirror.page.faulted() {
            GoneCause::HungUp
        } else if mirror.flags.load(Ordering::Acquire) & mirror::FLAG_DEAD != 0 {
            GoneCause::Evicted
        } else if mirror.generation.load(Ordering::Acquire) != self.generation.load(Ordering::Acquire) {
            return self.note_reset(mirror);
        } else {
            let rests = mirror.heartbeat.rests_for();
            if rests > RESTS {
                // A loop that always finds something of its own to do never gets to the slow part of the backing.
                self.note(self.backing.attend())?;
            }
            if self.options.heartbeat.is_none_or(|limit| rests <= limit) {
                return Ok(());
            }
            GoneCause::Stopped
        };
        self.note(Err(Error::DeviceGone { cause }))
    }

    /// Another generation. Unless it is of our own reset, which is just over: then the device is not lost for good.
    #[cold]
    fn note_reset(&self, mirror: &Mirror) -> Result<(), Error> {
        let cause = GoneCause::Reset;
        self.gone.swap(encode(cause), Ordering::AcqRel);
        if mirror.generation.load(Ordering::Acquire) == self.generation.load(Ordering::Acquire) {
            let _ = self.gone.compare_exchange(encode(cause), 0, Ordering::AcqRel, Ordering::Relaxed);
        }
        Err(Error::DeviceGone { cause })
    }

    pub(crate) fn attachment(&self) -> u32 {
        self.attachment.get().copied().unwrap_or(0)
    }

    #[inline]
    pub(crate) fn resets(&self) -> u32 {
        self.resets.load(Ordering::Acquire)
    }

    pub(crate) fn generation(&self) -> Option<u32> {
        self.mirror.get().map(|_| self.generation.load(Ordering::Acquire))
    }

    /// The generic waiting loop: until `look` finds something.
    pub(crate) fn wait_for<T, E: From<Error>>(
        &self,
        deadline: Deadline,
        cancel: Option<&Cancel>,
        what: &'static str,
        mut look: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<T, E> {
        let mut relax = Relax::with_patience(self.options.patience);
        loop {
            if let Some(found) = look()? {
                return Ok(found);
            }
            if let Some(cancel) = cancel {
                cancel.check()?;
            }
            if deadline.has_passed() {
                return Err(deadline.timeout(what).into());
            }
            if let Err(error) = self.relax(&mut relax) {
                // What arrived before the device went away still counts.
                return look()?.ok_or_else(|| error.into());
            }
        }
    }

    /// Resets the device and makes it ours again.
    pub(crate) fn reset(&self) -> Result<(), Error> {
        self.resets.fetch_add(1, Ordering::SeqCst);
        self.note(self.backing.reset())?;
        self.note(capability::enable(&*self.backing))?;
        self.adopt_generation()?;
        self.gone.store(0, Ordering::Release);
        self.epoch.fetch_add(1, Ordering::AcqRel);
        let bound: Vec<_> = lock(&self.interrupts).values().filter_map(Weak::upgrade).collect();
        bound.iter().try_for_each(|bound| bound.bind_again())
    }

    /// How long a blocked wait sleeps before it looks whether the device lives.
    pub(crate) const SLICE: Duration = Duration::from_millis(100);
}
