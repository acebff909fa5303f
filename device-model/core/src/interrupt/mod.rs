//! The interrupts of one attachment, by VFIO's indices: INTx, MSI (none), MSI-X, error, request.
//!
//! A client binds sinks (an eventfd, a condition variable) and sets masks. A device raises
//! interrupts. The module signals the sinks, and touches nothing else.
//!
//! - **MSI-X.** The table is apart ([`crate::pci::MsixTable`]). A bound vector fires whatever the
//!   table says, because a client that binds one, such as a virtual machine monitor, keeps the
//!   table itself.
//! - **INTx** is a level. Its delivery masks it, and it fires again when it is unmasked while still
//!   asserted. A server that received an eventfd for unmasking polls that and calls
//!   [`Interrupts::unmask`].
//! - **Order.** An interrupt must not overtake earlier DMA writes. While any write is in flight as
//!   a message, interrupts are held ([`Interrupts::hold`]). They are delivered in order when all
//!   writes are acknowledged ([`Interrupts::release`]). Answers may come in any order, so the
//!   release waits for all of them.

mod error;
#[cfg(test)]
mod tests;

use std::{ops::Range, slice, sync::Arc};

use vfio_bindings::bindings::vfio;

pub use error::IrqError;

use crate::spec::FunctionSpec;

/// Index of the INTx line.
pub const INTX: u32 = vfio::VFIO_PCI_INTX_IRQ_INDEX;
/// Index of MSI. No function has it; MSI-X replaces it.
pub const MSI: u32 = vfio::VFIO_PCI_MSI_IRQ_INDEX;
/// Index of the MSI-X vectors.
pub const MSIX: u32 = vfio::VFIO_PCI_MSIX_IRQ_INDEX;
/// Index of the interrupt for an uncorrectable error of the function.
pub const ERROR: u32 = vfio::VFIO_PCI_ERR_IRQ_INDEX;
/// Index of the request interrupt, which asks the client to release the function.
pub const REQUEST: u32 = vfio::VFIO_PCI_REQ_IRQ_INDEX;
/// Number of indices.
pub const INDICES: u32 = vfio::VFIO_PCI_NUM_IRQS;

/// Entry of INTx in the queue of held interrupts. MSI-X vectors are below 2048.
const HELD_INTX: u16 = u16::MAX;

/// Destination of an interrupt.
pub trait InterruptSink: Send + Sync {
    /// Signals the destination. The machine calls it on the data path: it must not block. Several
    /// signals before the receiver looks may merge into one.
    fn signal(&self);
}

/// A sink, or `None` for `-1` in VFIO's list of eventfds.
pub type Sink = Option<Arc<dyn InterruptSink>>;

/// Properties of an interrupt index, in VFIO's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IrqInfo {
    /// Number of interrupts.
    pub count: u32,
    /// Flags: `VFIO_IRQ_INFO_*`.
    pub flags: u32,
}

/// Selection of interrupts from the first one of a request on.
#[derive(Clone, Copy, Debug)]
pub enum Selection<'a> {
    /// All of this number of interrupts.
    Count(u32),
    /// The interrupts whose entry is true.
    Each(&'a [bool]),
}

impl Selection<'_> {
    /// Returns the number of interrupts in the request.
    fn count(self) -> u32 {
        match self {
            Self::Count(count) => count,
            Self::Each(flags) => u32::try_from(flags.len()).unwrap_or(u32::MAX),
        }
    }

    /// Returns whether the interrupt at a position of the request is selected.
    fn selects(self, position: usize) -> bool {
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

/// Result of raising an MSI-X vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Raised {
    /// The sink was signalled.
    Delivered,
    /// The interrupt waits for earlier DMA writes; [`Interrupts::release`] delivers it.
    Held,
    /// No sink is bound to the vector. The caller must set its pending bit.
    Pending,
    /// The vector does not exist.
    Spurious,
}

/// Statistics since the attachment was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InterruptCounters {
    /// Signals to sinks after a device raised an interrupt.
    pub delivered: u64,
    /// Interrupts raised without a sink, and assertions of INTx while masked.
    pub pending: u64,
    /// Interrupts raised that do not exist.
    pub spurious: u64,
}

/// State of the INTx line.
#[derive(Default)]
struct IntxLine {
    sink: Sink,
    asserted: bool,
    /// The sink is not signalled: the client has masked the line, or has not unmasked it since the
    /// last delivery.
    masked: bool,
}

/// State of one attachment's interrupts.
pub struct Interrupts {
    /// The INTx line, if the function has one.
    line: Option<IntxLine>,
    /// Number of MSI-X vectors.
    vectors: u16,
    /// Sinks of the MSI-X vectors, or nothing before the first one is bound.
    sinks: Vec<Sink>,
    /// Sinks of the error interrupt and of the request interrupt.
    error: Sink,
    request: Sink,
    /// DMA writes are in flight, and interrupts wait for them.
    holding: bool,
    /// Held interrupts in order, each once: MSI-X vectors and [`HELD_INTX`]. After a release, the
    /// vectors among them that had no sink.
    held: Vec<u16>,
    /// Bit mask of the MSI-X vectors in `held`, or nothing before the first hold.
    held_bits: Vec<u64>,
    counters: InterruptCounters,
}

impl Interrupts {
    /// Returns the interrupts that `spec` describes, none of them bound.
    pub fn new(spec: &FunctionSpec) -> Self {
        Self {
            line: spec.intx.then(IntxLine::default),
            vectors: spec.msix.map_or(0, |msix| msix.vectors),
            sinks: Vec::new(),
            error: None,
            request: None,
            holding: false,
            held: Vec::new(),
            held_bits: Vec::new(),
            counters: InterruptCounters::default(),
        }
    }

    /// Returns the properties of an index, or `None` if it does not exist. MSI-X vectors may be
    /// bound and unbound one by one.
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

    /// Binds the interrupts from `start` on to `sinks`. `None` unbinds an interrupt. Binding
    /// unmasks an INTx line, which fires at once if it is asserted.
    ///
    /// # Errors
    /// [`IrqError::Index`], [`IrqError::Empty`], [`IrqError::Range`].
    pub fn bind(&mut self, index: u32, start: u32, sinks: Vec<Sink>) -> Result<(), IrqError> {
        let count = u32::try_from(sinks.len()).unwrap_or(u32::MAX);
        let range = self.check_range(index, start, count)?;
        if index == MSIX {
            self.sinks.resize(self.vectors.into(), None);
        }

        for (bound, sink) in self.sinks_of(index, range).iter_mut().zip(sinks) {
            *bound = sink;
        }

        if index == INTX {
            self.unmask_line();
        }

        Ok(())
    }

    /// Returns whether an interrupt of an index is bound.
    pub fn is_bound(&self, index: u32) -> bool {
        match index {
            INTX => self.line.as_ref().is_some_and(|line| line.sink.is_some()),
            MSIX => self.sinks.iter().any(Option::is_some),
            ERROR => self.error.is_some(),
            REQUEST => self.request.is_some(),
            _ => false,
        }
    }

    /// Unbinds all interrupts of an index.
    ///
    /// # Errors
    /// [`IrqError::Index`].
    pub fn disable(&mut self, index: u32) -> Result<(), IrqError> {
        let available = self.available(index).ok_or(IrqError::Index { index })?;
        if available > 0 { self.disable_range(index, 0, available) } else { Ok(()) }
    }

    /// Unbinds these interrupts of an index.
    ///
    /// # Errors
    /// [`IrqError::Index`], [`IrqError::Empty`], [`IrqError::Range`].
    pub fn disable_range(&mut self, index: u32, start: u32, count: u32) -> Result<(), IrqError> {
        let range = self.check_range(index, start, count)?;
        self.sinks_of(index, range).fill(None);
        if index == INTX {
            self.unmask_line();
        }
        Ok(())
    }

    /// Masks INTx.
    ///
    /// # Errors
    /// [`IrqError::Index`], [`IrqError::Empty`], [`IrqError::Range`], [`IrqError::NotMaskable`].
    pub fn mask<'a>(
        &mut self,
        index: u32,
        start: u32,
        which: impl Into<Selection<'a>>,
    ) -> Result<(), IrqError> {
        if self.selects_intx(index, start, which.into())?
            && let Some(line) = &mut self.line
        {
            line.masked = true;
        }
        Ok(())
    }

    /// Unmasks INTx, which fires at once if it is asserted.
    ///
    /// # Errors
    /// [`IrqError::Index`], [`IrqError::Empty`], [`IrqError::Range`], [`IrqError::NotMaskable`].
    pub fn unmask<'a>(
        &mut self,
        index: u32,
        start: u32,
        which: impl Into<Selection<'a>>,
    ) -> Result<(), IrqError> {
        if self.selects_intx(index, start, which.into())? {
            self.unmask_line();
        }
        Ok(())
    }

    /// Signals sinks as if their interrupts were raised, which is VFIO's loop-back test. Unbound
    /// interrupts are skipped. Masks, holds and levels have no effect and do not change.
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
        let range = self.check_range(index, start, which.count())?;
        for (position, sink) in self.sinks_of(index, range).iter().enumerate() {
            if which.selects(position) {
                signal(sink);
            }
        }

        Ok(())
    }

    /// Raises an MSI-X vector. A vector raised again while it is held is delivered once.
    pub fn raise_msix(&mut self, vector: u16) -> Raised {
        let Some(sink) = self.sinks.get(usize::from(vector)).or_else(|| self.unbound_sink(vector)) else {
            self.counters.spurious += 1;
            return Raised::Spurious;
        };

        if self.holding {
            let (word, bit) = (usize::from(vector) / 64, 1 << (vector % 64));
            if let Some(word) = self.held_bits.get_mut(word)
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

    /// Returns the sink of a vector, which is `None`, before any vector is bound. The outer `None`
    /// stands for a vector that does not exist.
    #[cold]
    fn unbound_sink(&self, vector: u16) -> Option<&Sink> {
        (vector < self.vectors).then_some(&None)
    }

    /// Sets the level of the INTx line. For a function without INTx, an assertion counts as
    /// spurious.
    pub fn set_intx(&mut self, asserted: bool) {
        let Some(line) = &mut self.line else {
            self.counters.spurious += u64::from(asserted);
            return;
        };

        let rises = asserted && !line.asserted;
        line.asserted = asserted;
        if rises {
            let is_pending = line.masked || line.sink.is_none();
            self.counters.pending += u64::from(is_pending);
            self.deliver_line();
        }
    }

    /// Asks the client to release the function. Returns whether a sink was bound.
    pub fn raise_request(&mut self) -> bool {
        signal(&self.request)
    }

    /// Holds interrupts from now on, because a DMA write is in flight. Further calls before
    /// [`Interrupts::release`] have no effect.
    pub fn hold(&mut self) {
        if !self.holding {
            let vectors = usize::from(self.vectors);
            self.held_bits.resize(vectors.div_ceil(64), 0);
            self.held.clear();
            self.held.reserve(vectors + 1);
            self.holding = true;
        }
    }

    /// Delivers in order the interrupts raised since [`Interrupts::hold`], because no DMA write is
    /// in flight any more. Returns the MSI-X vectors among them without a sink; the caller must set
    /// their pending bits.
    pub fn release(&mut self) -> &[u16] {
        if !self.holding {
            return &[];
        }

        self.holding = false;
        self.held_bits.fill(0);

        // The vectors without a sink move to the front of the list, which becomes the result.
        let mut unbound_count = 0;
        for position in 0..self.held.len() {
            let vector = self.held[position];
            if vector == HELD_INTX {
                self.deliver_line();
            } else if self.raise_msix(vector) == Raised::Pending {
                self.held[unbound_count] = vector;
                unbound_count += 1;
            }
        }

        self.held.truncate(unbound_count);

        &self.held
    }

    /// Returns whether interrupts are held.
    pub fn is_holding(&self) -> bool {
        self.holding
    }

    /// Returns whether an interrupt waits for [`Interrupts::release`]. The device raised it, or the
    /// client has just unmasked, enabled or bound one that was raised before.
    pub fn has_held(&self) -> bool {
        self.holding && !self.held.is_empty()
    }

    /// Returns the statistics.
    pub fn counters(&self) -> InterruptCounters {
        self.counters
    }

    /// Resets the state after a reset of the function: deasserts INTx and drops held interrupts.
    /// Bindings and masks stay.
    pub fn clear(&mut self) {
        self.holding = false;
        self.held.clear();
        self.held_bits.fill(0);
        if let Some(line) = &mut self.line {
            line.asserted = false;
        }
    }

    /// Resets the state after the client left: the same as [`Interrupts::clear`], without bindings
    /// and masks.
    pub fn reset(&mut self) {
        self.clear();
        self.sinks = Vec::new();
        self.error = None;
        self.request = None;
        if let Some(line) = &mut self.line {
            *line = IntxLine::default();
        }
    }

    /// Returns the number of interrupts of an index, or `None` if it does not exist.
    fn available(&self, index: u32) -> Option<u32> {
        match index {
            INTX => Some(self.line.is_some().into()),
            MSI => Some(0),
            MSIX => Some(self.vectors.into()),
            ERROR | REQUEST => Some(1),
            _ => None,
        }
    }

    /// Checks that a range of interrupts exists and is not empty, and returns it.
    fn check_range(&self, index: u32, start: u32, count: u32) -> Result<Range<usize>, IrqError> {
        let available = self.available(index).ok_or(IrqError::Index { index })?;
        if count == 0 {
            return Err(IrqError::Empty { index });
        }

        match start.checked_add(count) {
            Some(end) if end <= available => Ok(start as usize..end as usize),
            _ => Err(IrqError::Range { index, start, count, available }),
        }
    }

    /// Returns the sinks of a range that [`Interrupts::check_range`] has accepted.
    fn sinks_of(&mut self, index: u32, range: Range<usize>) -> &mut [Sink] {
        let all = match index {
            INTX => self.line.as_mut().map_or(&mut [][..], |line| slice::from_mut(&mut line.sink)),
            MSIX => &mut self.sinks[..],
            ERROR => slice::from_mut(&mut self.error),
            REQUEST => slice::from_mut(&mut self.request),
            _ => &mut [],
        };

        all.get_mut(range).unwrap_or_default()
    }

    /// Checks a mask request, and returns whether it selects the INTx line.
    fn selects_intx(&self, index: u32, start: u32, which: Selection<'_>) -> Result<bool, IrqError> {
        self.check_range(index, start, which.count())?;
        if index == INTX { Ok(which.selects(0)) } else { Err(IrqError::NotMaskable { index }) }
    }

    /// Unmasks INTx, and signals it if it is asserted.
    fn unmask_line(&mut self) {
        if let Some(line) = &mut self.line {
            line.masked = false;
        }
        self.deliver_line();
    }

    /// Signals INTx if it is asserted, unmasked and bound, or adds it to the held interrupts.
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

        // VFIO's auto-mask: the client unmasks the line when it has handled the interrupt.
        line.masked = true;
        signal(&line.sink);
        self.counters.delivered += 1;
    }
}

/// Signals a sink. Returns whether there is one.
fn signal(sink: &Sink) -> bool {
    sink.as_ref().inspect(|sink| sink.signal()).is_some()
}
