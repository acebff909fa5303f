//! An attachment: one client's view of a function.
//!
//! It has its own configuration space, windows, posted-write rings, DMA map and interrupts, and it
//! ends alone. Before its first client it has no state at all, and after one no files and no
//! configuration space of its own. Each tenant gets new files, so that a former tenant that kept
//! the old ones reaches nothing.

use std::sync::{Arc, atomic::Ordering};

use nicforge_hwi::{attachment::mirror, posted};
use nicforge_shm::{
    Consumer, MemoryError, SharedCells, SharedMemory, SharedU32, SharedU64,
    wake::{NoFence, take_sleeper},
};

use crate::{
    decode::RegisterRange,
    dma::{DmaError, DmaMap},
    error::MachineError,
    ids::{AttachmentId, DmaToken},
    interrupt::{INTX, InterruptSink, Interrupts, MSIX},
    pci::{ConfigSpace, MsixTable},
    spec::{AreaKind, BarSpec, FunctionSpec, Scope},
    time::Nanos,
};

/// Largest number of DMA mappings of an attachment.
pub const DMA_QUOTA: usize = 65_536;

/// Statistics that the core keeps for each attachment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttachmentCounters {
    /// Trapped reads of BARs.
    pub trapped_reads: u64,
    /// Trapped writes of BARs that were carried out.
    pub trapped_writes: u64,
    /// Records of posted-write rings that were carried out.
    pub posted_writes: u64,
    /// Writes, trapped or out of a ring, that stalled at least once.
    pub stalls: u64,
    /// Ring records that were skipped because they were malformed or addressed space that a record
    /// may not reach.
    pub malformed_records: u64,
    /// Interrupts raised: MSI-X vectors, and rising edges of the INTx line.
    pub interrupts: u64,
    /// Bytes read by DMA, without those by leases: these are accesses of a device's own, which the
    /// core does not see.
    pub dma_read_bytes: u64,
    /// Bytes written by DMA, without those by leases.
    pub dma_written_bytes: u64,
    /// DMA operations that failed.
    pub dma_errors: u64,
    /// Wake-ups that the client requested.
    pub wakes: u64,
}

/// The waiting word of a client, and what wakes the client.
pub struct ClientWaker {
    /// Not 0 while the client waits.
    pub word: SharedU32,
    /// Signalled when the word was found set.
    pub sink: Arc<dyn InterruptSink>,
}

impl ClientWaker {
    /// Wakes the client if it waits. Returns whether it did.
    #[inline]
    pub(crate) fn wake(&self) -> bool {
        // The barrier on this processor is the client's.
        let is_waiting = take_sleeper(&self.word, &NoFence);
        if is_waiting {
            self.sink.signal();
        }
        is_waiting
    }
}

/// A posted-write ring, on the consumer's side.
pub(crate) struct Ring {
    pub(crate) consumer: Consumer<SharedCells>,
    /// Word of the mirror page that publishes the consumer's position to the client.
    head: SharedU32,
    /// Last value stored in `head`.
    published: u32,
    /// Register range of the last records, kept for the next check.
    pub(crate) registers: RegisterRange,
    /// The device has refused the record in front at least once.
    pub(crate) stalled: bool,
    /// Consumer position at the first attempt of a trapped access that waits for the records of
    /// that time.
    pub(crate) waited_from: Option<u32>,
    /// Index of the ring's head in the function's list, or [`Ring::UNWATCHED`].
    pub(crate) watch_index: usize,
}

impl Ring {
    /// The `watch_index` of a ring at which no turn looks.
    pub(crate) const UNWATCHED: usize = usize::MAX;

    /// Publishes the consumer's position to the client.
    pub(crate) fn publish(&mut self) {
        let consumed = self.consumer.consumed();
        if consumed != self.published {
            self.published = consumed;
            self.head.store(consumed, Ordering::Release);
        }
    }

    /// Discards the records and restarts at the first cell.
    pub(crate) fn reset(&mut self) {
        self.consumer.reset();
        self.stalled = false;
        self.waited_from = None;
        self.publish();
    }
}

/// Whether the turns of a function poll the rings of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchState {
    /// Each turn polls them.
    Hot,
    /// The client's sleeping word is set. The rings are polled once more after the barrier.
    Cooling,
    /// No turn polls them until the client wakes the function.
    Cold {
        /// Time of the last poll.
        since: Nanos,
    },
}

/// State of the polling of a client's rings: see `machine/clients.rs`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingWatch {
    pub(crate) state: WatchState,
    /// Records of the client at the last check for idle clients, or [`RingWatch::UNCHECKED`].
    pub(crate) records: u64,
    /// Checks in a row that found no new record.
    pub(crate) idle_checks: u32,
    /// Number of such checks after which the client goes cold.
    pub(crate) idle_limit: u32,
}

impl RingWatch {
    /// A number of records that no client has posted.
    pub(crate) const UNCHECKED: u64 = u64::MAX;
}

impl Default for RingWatch {
    fn default() -> Self {
        Self { state: WatchState::Hot, records: Self::UNCHECKED, idle_checks: 0, idle_limit: 1 }
    }
}

/// Words of the mirror page that the machine updates.
pub(crate) struct MirrorWords {
    pub(crate) generation: SharedU32,
    pub(crate) heartbeat: SharedU64,
    pub(crate) sleeping: SharedU32,
    pub(crate) flags: SharedU32,
}

/// A DMA read that waits for the client's reply.
pub(crate) struct RemoteRead {
    pub(crate) id: u64,
    /// Token of the device, or `None` after the device has forgotten the read. Its reply is then
    /// dropped, but until then it counts against the limit.
    pub(crate) token: Option<DmaToken>,
    pub(crate) length: usize,
}

/// State that belongs to the current client of an attachment.
pub(crate) struct Tenant {
    pub(crate) rings: Vec<Ring>,
    /// Whether turns look at the rings.
    pub(crate) watch: RingWatch,
    pub(crate) mirror: Option<Box<MirrorWords>>,
    pub(crate) remote_reads: Vec<RemoteRead>,
    /// Numbers of the DMA writes that wait for the client's reply.
    pub(crate) remote_writes: Vec<u64>,
}

/// The memory behind each BAR that has some.
pub(crate) type Memories = [Option<SharedMemory>; 6];

/// One attachment of a function.
pub(crate) struct Attachment {
    /// The generation that clients read in the control page and in the mirror.
    pub(crate) generation: u32,
    /// Configuration space, as the attachment's client sees it.
    pub(crate) config: ConfigSpace,
    /// The MSI-X table of a client, if the function has MSI-X.
    pub(crate) msix: Option<Box<MsixTable>>,
    pub(crate) interrupts: Interrupts,
    pub(crate) dma: DmaMap,
    pub(crate) tenant: Option<Tenant>,
    /// The memory behind the BARs, while there is a client.
    memories: Option<Box<Memories>>,
    /// Number of the ring whose state the control page shows.
    pub(crate) ring_selected: u32,
    pub(crate) counters: AttachmentCounters,
    /// Finished DMA reads whose result the device has not received.
    pub(crate) waiting_reads: usize,
    /// Level of INTx that the device drives.
    pub(crate) intx: bool,
    /// The device refused the last trapped write.
    pub(crate) write_stalled: bool,
    /// DMA met a file that the client has truncated.
    pub(crate) faulted: bool,
    /// Records carried out recently: each turn subtracts an eighth and adds its own.
    pub(crate) recent_records: u64,
    /// Value of `counters.posted_writes` at the last update of `recent_records`.
    pub(crate) posted_at_update: u64,
}

impl Attachment {
    /// Returns an attachment without a client. `config` is its configuration space without one.
    pub(crate) fn new(spec: &FunctionSpec, config: ConfigSpace) -> Self {
        Self {
            generation: 0,
            config,
            msix: None,
            interrupts: Interrupts::new(spec),
            dma: DmaMap::new(DMA_QUOTA),
            tenant: None,
            memories: None,
            ring_selected: 0,
            counters: AttachmentCounters::default(),
            waiting_reads: 0,
            intx: false,
            write_stalled: false,
            faulted: false,
            recent_records: 0,
            posted_at_update: 0,
        }
    }

    /// Sets up the state of a new tenant, whose windows are in `memories`.
    pub(crate) fn set_up_tenant(
        &mut self,
        spec: &FunctionSpec,
        memories: Memories,
    ) -> Result<(), MachineError> {
        self.memories = Some(Box::new(memories));

        let mut rings = Vec::new();
        let mut mirror_words = None;
        if let Some(ring_spec) = spec.rings {
            let page = self.memory(ring_spec.mirror_bar);
            if let Some(page) = page {
                page.u32(mirror::MAGIC)?.store(mirror::MAGIC_VALUE, Ordering::Release);

                mirror_words = Some(Box::new(MirrorWords {
                    generation: page.u32(mirror::GENERATION)?,
                    heartbeat: page.u64(mirror::HEARTBEAT)?,
                    sleeping: page.u32(mirror::SLEEPING)?,
                    flags: page.u32(mirror::FLAGS)?,
                }));
            }

            if let (Some(cells), Some(page)) = (self.memory(ring_spec.bar), page) {
                let ring_bytes = u64::from(ring_spec.cells) * posted::CELL as u64;
                for index in 0..u64::from(ring_spec.count) {
                    let start = u64::from(ring_spec.offset) + index * ring_bytes;
                    let window = cells.window(start, ring_bytes)?;
                    rings.push(Ring {
                        consumer: Consumer::new(SharedCells::new(window)?),
                        head: page.u32(mirror::RING_HEAD + index * mirror::RING_HEAD_STRIDE)?,
                        published: 0,
                        registers: RegisterRange::NONE,
                        stalled: false,
                        waited_from: None,
                        // `FunctionState::refresh_rings` sets it.
                        watch_index: 0,
                    });
                }
            }
        }

        self.msix = spec.msix.map(|msix| Box::new(MsixTable::new(msix.vectors)));
        self.config.power_on();
        self.config.set_interrupt_status(self.intx);
        self.tenant = Some(Tenant {
            rings,
            watch: RingWatch::default(),
            mirror: mirror_words,
            remote_reads: Vec::new(),
            remote_writes: Vec::new(),
        });
        self.next_generation();

        Ok(())
    }

    /// Drops the tenant and all its state.
    pub(crate) fn drop_tenant(&mut self) {
        self.tenant = None;
        self.dma = DmaMap::new(DMA_QUOTA);
        self.interrupts.reset();
        self.config.power_off();
        self.msix = None;
        self.memories = None;
        self.ring_selected = 0;
        self.intx = false;
        self.write_stalled = false;
        self.faulted = false;
        self.generation = self.generation.wrapping_add(1);
    }

    /// Carries out a reset that the tenant requested and survives, such as PCI's function-level
    /// reset.
    ///
    /// It does all of [`Attachment::clear`], and puts configuration space and the MSI-X table in
    /// their power-on state. The DMA map and the bound interrupts stay, as with a reset through
    /// Linux's VFIO. The caller must reset the device too, and then report the reset to the client
    /// with [`Attachment::next_generation`].
    pub(crate) fn reset(&mut self, spec: &FunctionSpec) -> Result<(), MemoryError> {
        self.config.reset();
        if let Some(msix) = &mut self.msix {
            msix.reset();
        }
        self.clear(spec)
    }

    /// Clears the state that a reset of the device invalidates for a tenant that did not request
    /// the reset. It empties the rings, zeroes the attachment's own windows, and drops DMA in
    /// flight and pending interrupts.
    ///
    /// The settings of the tenant's operating system stay. The system does not know of the reset;
    /// with bus mastering or interrupts off, the function would not work for it any more.
    pub(crate) fn clear(&mut self, spec: &FunctionSpec) -> Result<(), MemoryError> {
        self.dma.revoke_leases();
        self.config.set_interrupt_status(false);
        if let Some(msix) = &mut self.msix {
            msix.clear_all_pending();
        }

        self.interrupts.clear();
        self.ring_selected = 0;
        self.intx = false;
        self.write_stalled = false;
        self.faulted = false;
        let zeroed = self.zero_windows(spec);
        if let Some(tenant) = &mut self.tenant {
            tenant.remote_reads.clear();
            tenant.remote_writes.clear();
            for ring in &mut tenant.rings {
                ring.reset();
            }
        }

        zeroed
    }

    /// Ends the operations of the tenant and its device after the device panicked: leases, DMA
    /// by messages, interrupts that were held back, and the level of INTx.
    pub(crate) fn end_device(&mut self) {
        self.dma.revoke_leases();
        if let Some(tenant) = &mut self.tenant {
            tenant.remote_reads.clear();
            tenant.remote_writes.clear();
        }

        self.config.set_interrupt_status(false);
        self.interrupts.clear();
        self.intx = false;
        self.write_stalled = false;
    }

    /// Zeroes the attachment's own windows.
    fn zero_windows(&self, spec: &FunctionSpec) -> Result<(), MemoryError> {
        let memories = self.memories.as_deref().into_iter().flatten();
        for (index, (bar, memory)) in spec.bars.iter().zip(memories).enumerate() {
            let (Some(bar), Some(memory)) = (bar, memory) else { continue };
            if bar.scope != Scope::Attachment {
                continue;
            }

            // The first page of the attachment mirror (generation, heartbeat, flags) stays, because
            // a client reads it at any time.
            let is_mirror = spec.rings.is_some_and(|rings| usize::from(rings.mirror_bar) == index);
            for area in &bar.areas {
                let kept_bytes = if is_mirror && area.offset == 0 { mirror::SIZE } else { 0 };
                memory.zero(area.offset + kept_bytes, area.length - kept_bytes)?;
            }
        }

        Ok(())
    }

    /// Returns whether the client gets interrupts by MSI-X vectors. Its bit in configuration space
    /// decides, except for a client that has bound vectors and no INTx line: with VFIO the binding
    /// alone enables MSI-X.
    pub(crate) fn uses_msix(&self) -> bool {
        let binds_vectors_only = || self.interrupts.is_bound(MSIX) && !self.interrupts.is_bound(INTX);
        self.config.msix_enabled() || binds_vectors_only()
    }

    /// Sets the INTx line to the device's level if configuration space allows, and deasserts it
    /// otherwise.
    pub(crate) fn drive_intx(&mut self) {
        let allowed = !self.config.intx_disabled() && !self.config.msix_enabled();
        self.interrupts.set_intx(self.intx && allowed);
    }

    /// Counts a DMA error and sets the status bits that belong to it.
    pub(crate) fn count_dma_error(&mut self, error: &DmaError) {
        self.counters.dma_errors += 1;
        self.faulted |= matches!(error, DmaError::Faulted { .. });
        if matches!(error, DmaError::Unmapped { .. }) {
            self.config.set_master_abort();
        }
    }

    /// Returns the memory behind a BAR.
    pub(crate) fn memory(&self, bar: u8) -> Option<&SharedMemory> {
        self.memories.as_ref()?.get(usize::from(bar))?.as_ref()
    }

    /// Advances the generation, which reports to the client through its mirror that it starts
    /// again.
    pub(crate) fn next_generation(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        if let Some(words) = self.tenant.as_ref().and_then(|tenant| tenant.mirror.as_ref()) {
            words.flags.store(0, Ordering::Release);
            words.generation.store(self.generation, Ordering::Release);
        }
    }

    /// Sets the sleeping word in the client's mirror. The order is `SeqCst`, for the barrier that
    /// follows.
    pub(crate) fn set_sleeping(&self, sleeping: bool) {
        if let Some(words) = self.tenant.as_ref().and_then(|tenant| tenant.mirror.as_ref()) {
            words.sleeping.store(sleeping.into(), Ordering::SeqCst);
        }
    }
}

/// The attachments of a function.
///
/// The state of an attachment is allocated when its first client comes, and kept for the clients
/// after it. Machines of many nodes have thousands of attachments without software.
pub(crate) struct AttachmentList {
    /// By attachment, the state of those that have or had a client.
    states: Box<[Option<Box<Attachment>>]>,
    /// The configuration space of an attachment without a client. A hub has none.
    config: Option<ConfigSpace>,
}

impl AttachmentList {
    /// Returns `count` attachments without clients. `config` is the configuration space of one,
    /// which a function without attachments does not need.
    pub(crate) fn new(count: usize, config: Option<ConfigSpace>) -> Self {
        Self { states: (0..count).map(|_| None).collect(), config }
    }

    /// Returns the number of attachments, with and without state.
    pub(crate) fn len(&self) -> usize {
        self.states.len()
    }

    /// Returns an attachment that has or had a client.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&Attachment> {
        self.states.get(index)?.as_deref()
    }

    /// Returns an attachment that has or had a client, for changes.
    #[inline]
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut Attachment> {
        self.states.get_mut(index)?.as_deref_mut()
    }

    /// Returns an attachment whose client comes. Allocates its state before the first client.
    /// Returns `None` if the function does not have the attachment.
    pub(crate) fn open(&mut self, index: usize, spec: &FunctionSpec) -> Option<&mut Attachment> {
        let (state, config) = (self.states.get_mut(index)?, self.config.as_ref()?);
        Some(state.get_or_insert_with(|| Box::new(Attachment::new(spec, config.clone()))))
    }

    /// Returns the attachments that have or had a client, with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (AttachmentId, &Attachment)> {
        // The numbers fit: a description has at most 65535 attachments.
        self.states
            .iter()
            .zip(0..)
            .filter_map(|(state, attachment_id)| Some((AttachmentId(attachment_id), state.as_deref()?)))
    }

    /// As [`AttachmentList::iter`], for changes.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Attachment> {
        self.states.iter_mut().filter_map(Option::as_deref_mut)
    }
}

/// Creates the memory of a BAR that has areas, or returns `None` for a BAR whose accesses are all
/// trapped.
pub(crate) fn create_memory(name: &str, bar: &BarSpec) -> Result<Option<SharedMemory>, MemoryError> {
    let Some(area) = bar.areas.first() else { return Ok(None) };

    // The file's size is sealed at creation. Only the device's description bounds it, and no client
    // supplies that.
    let size = usize::try_from(bar.size).unwrap_or(usize::MAX);
    match area.kind {
        AreaKind::Mapped => SharedMemory::create(name, size).map(Some),
        AreaKind::Mirrored => SharedMemory::create_write_protected(name, size).map(Some),
    }
}
