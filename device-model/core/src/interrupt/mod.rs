//! The interrupts of one attachment, as VFIO numbers them: INTx, MSI (none), MSI-X, error, request.
//!
//! In: sinks that a client binds (an eventfd, a condition variable), masks, and what a device
//! raises. Out: signals to the sinks. May touch: nothing else. The MSI-X table is apart
//! ([`crate::pci::MsixTable`]): a bound vector fires whatever the table says, because a client that
//! binds one (a virtual machine monitor) keeps the table itself.
//!
//! INTx is a level. It is masked by its delivery, and fires again when it is unmasked while still
//! asserted. A server that was given an eventfd to unmask by polls it and calls
//! [`Interrupts::unmask`]; this module need not know.
//!
//! An interrupt must not overtake the DMA writes before it. While any write is on its way to the
//! client as a message, the interrupts are held ([`Interrupts::hold`]); they are let go, in order,
//! once all of those writes are acknowledged ([`Interrupts::release`]). The answers may come in any
//! order, so that nothing less would do.

mod error;
#[cfg(test)]
mod tests;

use std::{ops::Range, slice, sync::Arc};

use vfio_bindings::bindings::vfio;

pub use error::IrqError;

use crate::spec::FunctionSpec;

/// The function's INTx line.
pub const INTX: u32 = vfio::VFIO_PCI_INTX_IRQ_INDEX;
/// MSI, which no function has: MSI-X takes its place.
pub const MSI: u32 = vfio::VFIO_PCI_MSI_IRQ_INDEX;
/// The MSI-X vectors.
pub const MSIX: u32 = vfio::VFIO_PCI_MSIX_IRQ_INDEX;
/// An uncorrectable error of the function.
pub const ERROR: u32 = vfio::VFIO_PCI_ERR_IRQ_INDEX;
/// The function is wanted back: the client should let go of it.
pub const REQUEST: u32 = vfio::VFIO_PCI_REQ_IRQ_INDEX;
/// Number of indices.
pub const INDICES: u32 = vfio::VFIO_PCI_NUM_IRQS;

/// INTx in the queue of held interrupts. MSI-X vectors are below 2048.
const HELD_INTX: u16 = u16::MAX;

/// Where an interrupt goes.
pub trait InterruptSink: Send + Sync {
    /// Tell it. Called on the data path: it must not wait. Signals that were not seen yet may be
    /// taken as one.
    fn signal(&self);
}

/// A sink, or none: `-1` in VFIO's list of eventfds.
pub type Sink = Option<Arc<dyn InterruptSink>>;

/// What an index has, in VFIO's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IrqInfo {
    /// Interrupts in it.
    pub count: u32,
    /// `VFIO_IRQ_INFO_*`.
    pub flags: u32,
}

/// Which interrupts of a range are meant.
#[derive(Clone, Copy, Debug)]
pub enum Selection<'a> {
    /// So many, all of them.
    Count(u32),
    /// So many as there are entries, those that are true.
    Each(&'a [bool]),
}

impl Selection<'_> {
    fn count(self) -> u32 {
        match self {
            Self::Count(count) => count,
            Self::Each(flags) => u32::try_from(flags.len()).unwrap_or(u32::MAX),
        }
    }

    fn has(self, position: usize) -> bool {
        match self {
            Self::Count(_) => true,
            Self::Each(flags) => flags.get(position).copied().unwrap_or(false),
        }
    }
}

impl From<u32> for Selection<'_> {
    fn from(count: u32) -> Self {
        Self::Count(count)
    }
}

impl<'a> From<&'a [bool]> for Selection<'a> {
    fn from(flags: &'a [bool]) -> Self {
        Self::Each(flags)
    }
}

/// What became of an MSI-X vector that was raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Raised {
    /// The sink was told.
    Delivered,
    /// It waits for DMA writes before it; [`Interrupts::release`] delivers it.
    Held,
    /// Nothing is bound to it: its pending bit is to be set.
    Pending,
    /// There is no such vector.
    Spurious,
}

/// How often what happened since the attachment was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterruptCounters {
    /// Sinks told because a device raised an interrupt.
    pub delivered: u64,
    /// Raised without a sink, or INTx asserted while masked.
    pub pending: u64,
    /// Raised, but not there.
    pub spurious: u64,
}

#[derive(Default)]
struct Line {
    sink: Sink,
    asserted: bool,
    masked: bool,
}

/// The interrupts of one attachment.
pub struct Interrupts {
    line: Option<Line>,
    vectors: Vec<Sink>,
    error: Sink,
    request: Sink,
    holding: bool,
    /// Held interrupts in order, each once. After a release: the vectors that had no sink.
    held: Vec<u16>,
    /// A bit an MSI-X vector: whether it is in `held`.
    is_held: Vec<u64>,
    counters: InterruptCounters,
}

impl Interrupts {
    /// The interrupts that a function of this description has, none of them bound.
    pub fn new(spec: &FunctionSpec) -> Self {
        let vectors = spec.msix.map_or(0, |msix| usize::from(msix.vectors));
        Self {
            line: spec.intx.then(Line::default),
            vectors: vec![None; vectors],
            error: None,
            request: None,
            holding: false,
            held: Vec::with_capacity(vectors + 1),
            is_held: vec![0; vectors.div_ceil(64)],
            counters: InterruptCounters::default(),
        }
    }

    /// What an index has; `None` when there is no such index. MSI-X vectors may be bound and
    /// unbound one by one.
    pub fn info(&self, index: u32) -> Option<IrqInfo> {
        let flags = match index {
            INTX => {
                vfio::VFIO_IRQ_INFO_EVENTFD | vfio::VFIO_IRQ_INFO_MASKABLE | vfio::VFIO_IRQ_INFO_AUTOMASKED
            }
            MSIX => vfio::VFIO_IRQ_INFO_EVENTFD,
            _ => vfio::VFIO_IRQ_INFO_EVENTFD | vfio::VFIO_IRQ_INFO_NORESIZE,
        };

        self.available(index).map(|count| IrqInfo { count, flags })
    }

    /// Bind interrupts `start`, `start + 1` and so on to `sinks`; `None` unbinds one. An INTx line
    /// is unmasked by it, and fires at once when it is asserted.
    ///
    /// # Errors
    /// [`IrqError::Index`], [`IrqError::Empty`], [`IrqError::Range`].
    pub fn bind(&mut self, index: u32, start: u32, sinks: Vec<Sink>) -> Result<(), IrqError> {
        let count = u32::try_from(sinks.len()).unwrap_or(u32::MAX);
        let range = self.range(index, start, count)?;
        for (slot, sink) in self.slots(index, range).iter_mut().zip(sinks) {
            *slot = sink;
        }

        if index == INTX {
            self.unmask_line();
        }

        Ok(())
    }

    /// Unbind all interrupts of an index.
    ///
    /// # Errors
    /// [`IrqError::Index`].
    pub fn disable(&mut self, index: u32) -> Result<(), IrqError> {
        let available = self.available(index).ok_or(IrqError::Index { index })?;
        if available > 0 { self.disable_range(index, 0, available) } else { Ok(()) }
    }

    /// Unbind exactly these interrupts of an index.
    ///
    /// # Errors
    /// [`IrqError::Index`], [`IrqError::Empty`], [`IrqError::Range`].
    pub fn disable_range(&mut self, index: u32, start: u32, count: u32) -> Result<(), IrqError> {
        let range = self.range(index, start, count)?;
        self.slots(index, range).fill(None);
        if index == INTX {
            self.unmask_line();
        }
        Ok(())
    }

    /// Mask INTx.
    ///
    /// # Errors
    /// [`IrqError::Index`], [`IrqError::Empty`], [`IrqError::Range`], [`IrqError::NotMaskable`].
    pub fn mask<'a>(
        &mut self,
        index: u32,
        start: u32,
        which: impl Into<Selection<'a>>,
    ) -> Result<(), IrqError> {
        if self.names_line(index, start, which.into())?
            && let Some(line) = &mut self.line
        {
            line.masked = true;
        }
        Ok(())
    }

    /// Unmask INTx; it fires at once when it is asserted.
    ///
    /// # Errors
    /// [`IrqError::Index`], [`IrqError::Empty`], [`IrqError::Range`], [`IrqError::NotMaskable`].
    pub fn unmask<'a>(
        &mut self,
        index: u32,
        start: u32,
        which: impl Into<Selection<'a>>,
    ) -> Result<(), IrqError> {
        if self.names_line(index, start, which.into())? {
            self.unmask_line();
        }
        Ok(())
    }

    /// Signal sinks as if their interrupts were raised: VFIO's loop-back test. What is not bound is
    /// passed over; no mask, hold or level is looked at or changed.
    ///
    /// # Errors
    /// [`IrqError::Index`], [`IrqError::Empty`], [`IrqError::Range`].
    pub fn trigger<'a>(
        &mut self,
        index: u32,
        start: u32,
        which: impl Into<Selection<'a>>,
    ) -> Result<(), IrqError> {
        let which = which.into();
        let range = self.range(index, start, which.count())?;
        for (position, sink) in self.slots(index, range).iter().enumerate() {
            if which.has(position) {
                signal(sink);
            }
        }

        Ok(())
    }

    /// Raise an MSI-X vector. A vector raised again while it is held is delivered once.
    pub fn raise_msix(&mut self, vector: u16) -> Raised {
        let Some(sink) = self.vectors.get(usize::from(vector)) else {
            self.counters.spurious += 1;
            return Raised::Spurious;
        };

        if self.holding {
            let (word, bit) = (usize::from(vector) / 64, 1 << (vector % 64));
            if let Some(word) = self.is_held.get_mut(word)
                && *word & bit == 0
            {
                *word |= bit;
                self.held.push(vector);
            }
            return Raised::Held;
        }

        if signal(sink) {
            self.counters.delivered += 1;
            Raised::Delivered
        } else {
            self.counters.pending += 1;
            Raised::Pending
        }
    }

    /// Drive the INTx line. A function without one counts it as spurious.
    pub fn set_intx(&mut self, asserted: bool) {
        let Some(line) = &mut self.line else {
            self.counters.spurious += u64::from(asserted);
            return;
        };

        let rises = asserted && !line.asserted;
        line.asserted = asserted;
        if rises {
            let waits = line.masked || line.sink.is_none();
            self.counters.pending += u64::from(waits);
            self.deliver_line();
        }
    }

    /// Ask the client to let go of the function. Whether anybody was listening.
    pub fn raise_request(&mut self) -> bool {
        signal(&self.request)
    }

    /// A DMA write is on its way: remember what is raised from now on. Once is enough, however many
    /// writes there are.
    pub fn hold(&mut self) {
        if !self.holding {
            self.held.clear();
            self.holding = true;
        }
    }

    /// No DMA write is on its way any more: deliver in order what was raised since
    /// [`Interrupts::hold`]. Gives the MSI-X vectors among them that nothing is bound to: their
    /// pending bits are to be set.
    pub fn release(&mut self) -> &[u16] {
        if !self.holding {
            return &[];
        }

        self.holding = false;
        self.is_held.fill(0);
        let mut unbound = 0;
        for position in 0..self.held.len() {
            let vector = self.held[position];
            if vector == HELD_INTX {
                self.deliver_line();
            } else if self.raise_msix(vector) == Raised::Pending {
                self.held[unbound] = vector;
                unbound += 1;
            }
        }

        self.held.truncate(unbound);

        &self.held
    }

    /// Whether interrupts are held.
    pub fn is_holding(&self) -> bool {
        self.holding
    }

    /// Whether something waits for [`Interrupts::release`], whoever brought it there: the device,
    /// or a client that has just unmasked, enabled or bound what was raised before.
    pub fn has_held(&self) -> bool {
        self.holding && !self.held.is_empty()
    }

    /// How often what happened.
    pub fn counters(&self) -> InterruptCounters {
        self.counters
    }

    /// The function was reset: INTx is not asserted, nothing is held. What is bound stays bound,
    /// what is masked stays masked.
    pub fn clear(&mut self) {
        self.holding = false;
        self.held.clear();
        self.is_held.fill(0);
        if let Some(line) = &mut self.line {
            line.asserted = false;
        }
    }

    /// The client is gone: as [`Interrupts::clear`], and nothing is bound or masked any more.
    pub fn reset(&mut self) {
        self.clear();
        self.vectors.fill(None);
        self.error = None;
        self.request = None;
        if let Some(line) = &mut self.line {
            *line = Line::default();
        }
    }

    fn available(&self, index: u32) -> Option<u32> {
        match index {
            INTX => Some(self.line.is_some().into()),
            MSI => Some(0),
            MSIX => Some(self.vectors.len() as u32),
            ERROR | REQUEST => Some(1),
            _ => None,
        }
    }

    fn range(&self, index: u32, start: u32, count: u32) -> Result<Range<usize>, IrqError> {
        let available = self.available(index).ok_or(IrqError::Index { index })?;
        if count == 0 {
            return Err(IrqError::Empty { index });
        }

        match start.checked_add(count) {
            Some(end) if end <= available => Ok(start as usize..end as usize),
            _ => Err(IrqError::Range { index, start, count, available }),
        }
    }

    fn slots(&mut self, index: u32, range: Range<usize>) -> &mut [Sink] {
        let all = match index {
            INTX => self.line.as_mut().map_or(&mut [][..], |line| slice::from_mut(&mut line.sink)),
            MSIX => &mut self.vectors[..],
            ERROR => slice::from_mut(&mut self.error),
            REQUEST => slice::from_mut(&mut self.request),
            _ => &mut [],
        };

        all.get_mut(range).unwrap_or_default()
    }

    fn names_line(&self, index: u32, start: u32, which: Selection<'_>) -> Result<bool, IrqError> {
        self.range(index, start, which.count())?;
        if index == INTX { Ok(which.has(0)) } else { Err(IrqError::NotMaskable { index }) }
    }

    fn unmask_line(&mut self) {
        if let Some(line) = &mut self.line {
            line.masked = false;
        }
        self.deliver_line();
    }

    fn deliver_line(&mut self) {
        let Some(line) = &mut self.line else { return };
        if !line.asserted || line.masked || line.sink.is_none() {
            return;
        }

        if self.holding {
            if !self.held.contains(&HELD_INTX) {
                self.held.push(HELD_INTX);
            }
            return;
        }

        line.masked = true;
        signal(&line.sink);
        self.counters.delivered += 1;
    }
}

fn signal(sink: &Sink) -> bool {
    sink.as_ref().inspect(|sink| sink.signal()).is_some()
}
