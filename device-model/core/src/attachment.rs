//! An attachment: one client's view of a function.
//!
//! It has configuration space, windows, posted-write rings, a DMA map and interrupts of its own,
//! and ends alone. While no client has it, it has no files, and of its own little more than
//! configuration space; each tenant gets new files, so that whoever kept the old ones reaches
//! nothing.

use std::sync::atomic::Ordering;

use nicforge_hwi::{attachment::mirror, posted};
use nicforge_shm::{Consumer, MemoryError, SharedCells, SharedMemory, SharedU32, SharedU64};

use crate::{
    device::DmaToken,
    dma::{DmaError, DmaMap},
    interrupt::Interrupts,
    machine::{DMA_QUOTA, MachineError, Registers},
    pci::{ConfigSpace, MsixTable},
    spec::{AreaKind, BarSpec, FunctionSpec, Scope},
};

/// What the core counts for each attachment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttachmentCounters {
    /// Trapped reads of BARs.
    pub trapped_reads: u64,
    /// Trapped writes of BARs that were carried out.
    pub trapped_writes: u64,
    /// Records out of posted-write rings.
    pub posted_writes: u64,
    /// Writes, trapped or out of a ring, that stalled at least once.
    pub stalls: u64,
    /// Ring records that made no sense, or that went where a record may not go, and were skipped.
    pub malformed_records: u64,
    /// Interrupts raised: MSI-X vectors, and how often the INTx line rose.
    pub interrupts: u64,
    /// Bytes read by DMA.
    pub dma_read_bytes: u64,
    /// Bytes written by DMA.
    pub dma_written_bytes: u64,
    /// DMA that failed.
    pub dma_errors: u64,
    /// Wake-ups that the client asked for.
    pub wakes: u64,
}

/// A posted-write ring as the engine sees it.
pub(crate) struct Ring {
    pub(crate) consumer: Consumer<SharedCells>,
    head: SharedU32,
    published: u32,
    /// Where the records last went.
    pub(crate) registers: Registers,
    /// The record in front was refused once already.
    pub(crate) stalled: bool,
    /// How far it had been read when a trapped access came that waits for what was in it then.
    pub(crate) waited_from: Option<u32>,
}

impl Ring {
    /// Tell the client how far the ring has been read.
    pub(crate) fn publish(&mut self) {
        let consumed = self.consumer.consumed();
        if consumed != self.published {
            self.published = consumed;
            self.head.store(consumed, Ordering::Release);
        }
    }

    /// Lose what is in it and start at its first cell again.
    pub(crate) fn reset(&mut self) {
        self.consumer.reset();
        self.stalled = false;
        self.waited_from = None;
        self.publish();
    }
}

/// The words of the mirror page that the machine keeps up to date.
pub(crate) struct MirrorWords {
    pub(crate) generation: SharedU32,
    pub(crate) heartbeat: SharedU64,
    pub(crate) sleeping: SharedU32,
    pub(crate) flags: SharedU32,
}

/// A DMA read that waits for the client's answer.
pub(crate) struct RemoteRead {
    pub(crate) id: u64,
    pub(crate) token: DmaToken,
    pub(crate) length: usize,
}

/// What a tenant has.
pub(crate) struct Tenant {
    pub(crate) rings: Vec<Ring>,
    pub(crate) mirror: Option<MirrorWords>,
    pub(crate) remote_reads: Vec<RemoteRead>,
    pub(crate) remote_writes: Vec<u64>,
}

/// One attachment of a function.
pub(crate) struct Attachment {
    pub(crate) generation: u32,
    pub(crate) config: ConfigSpace,
    pub(crate) msix: Option<MsixTable>,
    pub(crate) interrupts: Interrupts,
    pub(crate) dma: DmaMap,
    pub(crate) tenant: Option<Tenant>,
    pub(crate) memories: [Option<SharedMemory>; 6],
    pub(crate) ring_selected: u32,
    pub(crate) counters: AttachmentCounters,
    /// DMA reads that are over and were not handed to the device yet.
    pub(crate) waiting_reads: usize,
    /// The level at which the device drives INTx.
    pub(crate) intx: bool,
    /// The last trapped write was refused.
    pub(crate) write_stalled: bool,
    /// DMA met a file that the client had truncated.
    pub(crate) faulted: bool,
    /// Records that were carried out of late, those of each turn before counting an eighth less,
    /// and `counters.posted_writes` at the last look.
    pub(crate) recent: u64,
    pub(crate) looked_at: u64,
}

impl Attachment {
    /// One that nobody has, with configuration space as after power-on.
    pub(crate) fn new(spec: &FunctionSpec, config: ConfigSpace) -> Self {
        Self {
            generation: 0,
            config,
            msix: spec.msix.map(|msix| MsixTable::new(msix.vectors)),
            interrupts: Interrupts::new(spec),
            dma: DmaMap::new(DMA_QUOTA),
            tenant: None,
            memories: Default::default(),
            ring_selected: 0,
            counters: AttachmentCounters::default(),
            waiting_reads: 0,
            intx: false,
            write_stalled: false,
            faulted: false,
            recent: 0,
            looked_at: 0,
        }
    }

    /// Set up for a new tenant whose windows are in `memories` already.
    pub(crate) fn occupy(&mut self, spec: &FunctionSpec) -> Result<(), MachineError> {
        let mut rings = Vec::new();
        let mut words = None;
        if let Some(ring_spec) = spec.rings {
            let page = self.memory(ring_spec.mirror_bar);
            if let Some(page) = page {
                page.u32(mirror::MAGIC)?.store(mirror::MAGIC_VALUE, Ordering::Release);
                words = Some(MirrorWords {
                    generation: page.u32(mirror::GENERATION)?,
                    heartbeat: page.u64(mirror::HEARTBEAT)?,
                    sleeping: page.u32(mirror::SLEEPING)?,
                    flags: page.u32(mirror::FLAGS)?,
                });
            }
            if let (Some(cells), Some(page)) = (self.memory(ring_spec.bar), page) {
                let bytes = u64::from(ring_spec.cells) * posted::CELL as u64;
                for index in 0..u64::from(ring_spec.count) {
                    let window = cells.window(u64::from(ring_spec.offset) + index * bytes, bytes)?;
                    rings.push(Ring {
                        consumer: Consumer::new(SharedCells::new(window)?),
                        head: page.u32(mirror::RING_HEAD + index * mirror::RING_HEAD_STRIDE)?,
                        published: 0,
                        registers: Registers::NONE,
                        stalled: false,
                        waited_from: None,
                    });
                }
            }
        }

        self.tenant =
            Some(Tenant { rings, mirror: words, remote_reads: Vec::new(), remote_writes: Vec::new() });
        self.next_generation();

        Ok(())
    }

    /// Forget the tenant and everything of its.
    pub(crate) fn vacate(&mut self, spec: &FunctionSpec) {
        self.tenant = None;
        self.dma = DmaMap::new(DMA_QUOTA);
        self.interrupts.reset();
        self.config.power_on();
        self.msix = spec.msix.map(|msix| MsixTable::new(msix.vectors));
        self.memories = Default::default();
        self.ring_selected = 0;
        self.intx = false;
        self.write_stalled = false;
        self.faulted = false;
        self.generation = self.generation.wrapping_add(1);
    }

    /// A reset that the tenant asked for and survives, as PCI's function-level one: all of
    /// [`Attachment::clear`], and configuration space with the MSI-X table as after power-on. The
    /// DMA map and the bound interrupts stay, as with a reset through Linux' VFIO.
    /// [`Attachment::next_generation`] tells the client, once the device is reset too.
    pub(crate) fn reset(&mut self, spec: &FunctionSpec) -> Result<(), MemoryError> {
        self.config.reset();
        if let Some(msix) = &mut self.msix {
            msix.reset();
        }
        self.clear(spec)
    }

    /// What the device's reset means for a tenant that did not ask for it: rings emptied, own
    /// windows zeroed, DMA on its way forgotten, nothing pending. What its operating system has set
    /// up stays: it would not know that bus mastering or interrupts are off, and the function would
    /// be dead to it.
    pub(crate) fn clear(&mut self, spec: &FunctionSpec) -> Result<(), MemoryError> {
        self.dma.take_back_leases();
        self.config.set_interrupt_status(false);
        if let Some(msix) = &mut self.msix {
            msix.forget_pending();
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

    fn zero_windows(&self, spec: &FunctionSpec) -> Result<(), MemoryError> {
        for (index, (bar, memory)) in spec.bars.iter().zip(&self.memories).enumerate() {
            let (Some(bar), Some(memory)) = (bar, memory) else { continue };
            if bar.scope != Scope::Attachment {
                continue;
            }
            // The core's own words in the mirror page stay: a client reads them at any time.
            let mirror = spec.rings.is_some_and(|rings| usize::from(rings.mirror_bar) == index);
            for area in &bar.areas {
                let keep = if mirror && area.offset == 0 { mirror::SIZE } else { 0 };
                memory.zero(area.offset + keep, area.length - keep)?;
            }
        }

        Ok(())
    }

    /// Assert or deassert INTx as the device drives it, and as configuration space allows.
    pub(crate) fn drive_intx(&mut self) {
        let allowed = !self.config.intx_disabled() && !self.config.msix_enabled();
        self.interrupts.set_intx(self.intx && allowed);
    }

    /// Count a DMA error.
    pub(crate) fn note(&mut self, error: &DmaError) {
        self.counters.dma_errors += 1;
        self.faulted |= matches!(error, DmaError::Faulted { .. });
        if matches!(error, DmaError::Unmapped { .. }) {
            self.config.set_master_abort();
        }
    }

    fn memory(&self, bar: u8) -> Option<&SharedMemory> {
        self.memories.get(usize::from(bar))?.as_ref()
    }

    /// Tell the client, in its mirror, that it starts anew.
    pub(crate) fn next_generation(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        if let Some(words) = self.tenant.as_ref().and_then(|tenant| tenant.mirror.as_ref()) {
            words.flags.store(0, Ordering::Release);
            words.generation.store(self.generation, Ordering::Release);
        }
    }

    pub(crate) fn set_sleeping(&self, sleeping: bool) {
        if let Some(words) = self.tenant.as_ref().and_then(|tenant| tenant.mirror.as_ref()) {
            words.sleeping.store(sleeping.into(), Ordering::SeqCst);
        }
    }
}

/// New memory for a BAR that has areas; `None` for one that is all trapped.
pub(crate) fn memory_for(name: &str, bar: &BarSpec) -> Result<Option<SharedMemory>, MemoryError> {
    let Some(area) = bar.areas.first() else { return Ok(None) };

    // Sealed at creation; the size is bounded by the device's description, which no client
    // supplies.
    let size = usize::try_from(bar.size).unwrap_or(usize::MAX);
    match area.kind {
        AreaKind::Mapped => SharedMemory::create(name, size).map(Some),
        AreaKind::Mirrored => SharedMemory::create_write_protected(name, size).map(Some),
    }
}
