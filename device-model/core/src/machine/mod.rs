//! A machine: functions, their attachments, and the fabric between them.
//!
//! Nothing here waits, does I/O or knows the time. Who holds a machine drives it: it brings
//! accesses ([`Machine::read`], [`Machine::write`]), calls [`Machine::step`] with the time, and
//! takes what comes out ([`Machine::pop_outgoing`]).
//!
//! - `mod.rs`: building, coming and going of clients, resets;
//! - `access.rs`: accesses to regions, `place.rs`: what lies where in them;
//! - `rings.rs`: posted writes, and the control page;
//! - `dma.rs`: client memory and the answers to DMA messages;
//! - `schedule.rs`: stepping, going to sleep, waking up;
//! - `query.rs`: what can be asked without changing anything.

mod access;
mod dma;
mod place;
mod query;
mod rings;
mod schedule;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    sync::atomic::Ordering,
};

use nicforge_hwi::attachment::mirror;
use nicforge_shm::{
    MemoryError, RingError,
    wake::{Membarrier, Sleeper},
};
use thiserror::Error;

pub(crate) use self::place::Registers;
pub use self::{
    access::{Access, AccessError},
    query::{RegionView, region},
    schedule::Next,
};
pub use crate::context::Outgoing;
use crate::{
    attachment::{Attachment, memory_for},
    context::{Context, FunctionState, Shared},
    device::{AttachmentId, Device, Ended, FunctionId, Reset},
    dma::DmaMapError,
    fabric::Fabric,
    interrupt::{IrqError, MSIX, Raised, Sink},
    pci::ConfigSpace,
    spec::{MAX_NAME, Scope, SpecError},
    time::Nanos,
    trace::{Event, TraceSink},
};

/// How many DMA mappings an attachment can have at a time.
pub const DMA_QUOTA: usize = 65_536;

/// Whether the machine looks at a function's mapped memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heat {
    /// Every turn; nothing was found since the time given, which is `None` until the first turn.
    Hot { idle_since: Option<Nanos> },
    /// Not until somebody wakes it.
    Cold,
}

struct Slot {
    state: FunctionState,
    device: Box<dyn Device>,
    heat: Heat,
    /// In [`Machine::hot`], or about to be.
    queued: bool,
    /// When the device wants its next step; [`Nanos::NEVER`] when it does not say. An entry of
    /// [`Machine::timers`] with another time is stale.
    timer: Nanos,
}

/// See the module.
pub struct Machine {
    slots: Vec<Slot>,
    fabric: Fabric,
    shared: Shared,
    hot: VecDeque<FunctionId>,
    timers: BinaryHeap<Reverse<(Nanos, FunctionId)>>,
    cool_after: u64,
    heartbeat_due: Nanos,
    heartbeat: u64,
    cooling: Vec<FunctionId>,
    sleeper: Sleeper<Membarrier>,
}

/// Why something could not be done with an attachment.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MachineError {
    /// No such function or attachment.
    #[error("there is no attachment {attachment} of function {function}")]
    NoSuchAttachment {
        /// Function asked for.
        function: u32,
        /// Attachment asked for.
        attachment: u16,
    },
    /// Another client has it.
    #[error("attachment {attachment} of function {function} has a client already; wait until it is gone")]
    Taken {
        /// Function asked for.
        function: u32,
        /// Attachment asked for.
        attachment: u16,
    },
    /// No client has it.
    #[error("attachment {attachment} of function {function} has no client")]
    NotAttached {
        /// Function asked for.
        function: u32,
        /// Attachment asked for.
        attachment: u16,
    },
    /// Its memory could not be made.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A ring could not be made in it: the device's description is wrong.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The DMA map refused.
    #[error(transparent)]
    DmaMap(#[from] DmaMapError),
    /// The interrupts refused.
    #[error(transparent)]
    Irq(#[from] IrqError),
}

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}

impl Machine {
    /// An empty machine.
    pub fn new() -> Self {
        Self {
            slots: Vec::new(),
            fabric: Fabric::new(),
            shared: Shared::new(),
            hot: VecDeque::new(),
            timers: BinaryHeap::new(),
            cool_after: schedule::COOL_AFTER,
            heartbeat_due: Nanos::ZERO,
            heartbeat: 0,
            cooling: Vec::new(),
            sleeper: Sleeper::open(),
        }
    }

    /// Add a device as a function called `name` (for sockets and tables).
    pub fn add_function(&mut self, name: &str, device: Box<dyn Device>) -> Result<FunctionId, SpecError> {
        let spec = device.spec();
        spec.validate()?;
        let id = FunctionId(self.slots.len() as u32);
        let config = ConfigSpace::new(&spec);
        let attachments = spec.attachments.iter().map(|_| Attachment::new(&spec, config.clone())).collect();
        let state = FunctionState {
            id,
            name: name.to_owned(),
            spec,
            attachments,
            clients: Vec::new(),
            contended: false,
            completions: VecDeque::new(),
            wake_at: Nanos::NEVER,
        };

        self.slots.push(Slot { state, device, heat: Heat::Cold, queued: false, timer: Nanos::NEVER });

        Ok(id)
    }

    /// The fabric, for connecting functions and setting faults.
    pub fn fabric(&mut self) -> &mut Fabric {
        &mut self.fabric
    }

    /// Send events to `sink`, or to nobody.
    pub fn set_trace(&mut self, sink: Option<Box<dyn TraceSink>>) {
        self.shared.trace = sink;
    }

    /// Give an attachment to a client. Its windows are new; those of its group are new when it is
    /// the group's only client.
    pub fn attach(&mut self, function: FunctionId, who: AttachmentId) -> Result<(), MachineError> {
        let (slot, _) = self.slot(function, who)?;
        let state = &mut slot.state;
        let index = usize::from(who.0);
        if state.attachments[index].tenant.is_some() {
            return Err(MachineError::Taken { function: function.0, attachment: who.0 });
        }

        let group = state.spec.attachments[index].group;
        let neighbour = state
            .spec
            .attachments
            .iter()
            .zip(&state.attachments)
            .find(|(spec, attachment)| spec.group == group && attachment.tenant.is_some())
            .map(|(_, attachment)| attachment.memories.clone());
        let mut memories: [Option<_>; 6] = Default::default();
        for (bar, (spec, memory)) in state.spec.bars.iter().zip(&mut memories).enumerate() {
            let Some(spec) = spec else { continue };
            *memory = match (&neighbour, spec.scope) {
                (Some(theirs), Scope::Group) => theirs[bar].clone(),
                _ => memory_for(&memory_name(&state.name, &state.spec.attachments[index].name, bar), spec)?,
            };
        }

        let attachment = &mut state.attachments[index];
        attachment.memories = memories;
        if let Err(error) = attachment.occupy(&state.spec) {
            attachment.vacate(&state.spec);
            return Err(error);
        }

        state.count_clients();
        self.shared.trace(function, who, Event::Attached);
        self.call(function, |device, context| device.attached(context, who));
        self.wake(function);

        Ok(())
    }

    /// Take an attachment from its client: what it posted before is still carried out as far as it
    /// can be at once, then it is reset and its memory dropped.
    pub fn detach(
        &mut self,
        function: FunctionId,
        who: AttachmentId,
        why: Ended,
    ) -> Result<(), MachineError> {
        self.tenant(function, who)?;
        if why == Ended::Evicted {
            self.mark_dead(function, who)?;
        }

        self.drain_rings(function, who);
        self.call(function, |device, context| {
            device.detached(context, who, why);
            device.reset(context, Reset::Attachment(who));
        });

        self.forget_dma(function, Some(who));
        let (slot, index) = self.slot(function, who)?;
        slot.state.attachments[index].vacate(&slot.state.spec);
        slot.state.count_clients();
        self.shared.trace(function, who, Event::Detached);
        self.wake(function);

        Ok(())
    }

    /// Reset an attachment whose client stays.
    pub fn reset_attachment(&mut self, function: FunctionId, who: AttachmentId) -> Result<(), MachineError> {
        self.tenant(function, who)?;
        self.forget_dma(function, Some(who));
        let (slot, index) = self.slot(function, who)?;
        let zeroed = slot.state.attachments[index].reset(&slot.state.spec);
        self.shared.trace(function, who, Event::Reset);
        self.call(function, |device, context| device.reset(context, Reset::Attachment(who)));
        self.attachment_mut(function, who)?.next_generation();
        self.wake(function);

        Ok(zeroed?)
    }

    /// Reset a whole function, clients or not. This is the operator's: it always works, whatever
    /// clients did. Memory of [`Scope::Group`] is left to the device. Configuration space and the
    /// MSI-X table stay as the clients set them up: the kernel of a guest has no part in this
    /// reset, and would go on without bus mastering and interrupts.
    pub fn reset_function(&mut self, function: FunctionId) -> Result<(), MachineError> {
        self.slot(function, AttachmentId(0))?;
        self.forget_dma(function, None);
        let (slot, _) = self.slot(function, AttachmentId(0))?;
        let mut zeroed = Ok(());
        let mut clients = Vec::new();
        for (index, attachment) in slot.state.attachments.iter_mut().enumerate() {
            if attachment.tenant.is_some() {
                zeroed = zeroed.and(attachment.clear(&slot.state.spec));
                clients.push(AttachmentId(index as u16));
            }
        }

        for &who in &clients {
            self.shared.trace(function, who, Event::Reset);
        }

        self.call(function, |device, context| device.reset(context, Reset::Function));
        for who in clients {
            self.attachment_mut(function, who)?.next_generation();
        }

        self.wake(function);

        Ok(zeroed?)
    }

    /// Tell the attachment's client, in its mirror, that it was given up.
    pub fn mark_dead(&mut self, function: FunctionId, who: AttachmentId) -> Result<(), MachineError> {
        if let Some(words) = &self.tenant(function, who)?.mirror {
            words.flags.store(mirror::FLAG_DEAD, Ordering::Release);
        }

        // A client without the mirror, as QEMU, is asked to let go of it. VFIO's error interrupt
        // would say that the device is not to be trusted any more, and QEMU would halt the whole
        // guest.
        self.attachment_mut(function, who)?.interrupts.raise_request();

        Ok(())
    }

    /// Connect vectors `start..` of VFIO interrupt index `index` to sinks, or to nothing. An MSI-X
    /// vector that is pending fires when it is connected.
    pub fn bind_interrupts(
        &mut self,
        function: FunctionId,
        who: AttachmentId,
        index: u32,
        start: u32,
        sinks: Vec<Sink>,
    ) -> Result<(), MachineError> {
        self.tenant(function, who)?;
        let count = sinks.len() as u32;
        let attachment = self.attachment_mut(function, who)?;
        attachment.interrupts.bind(index, start, sinks)?;
        if index == MSIX
            && let Some(msix) = &mut attachment.msix
        {
            // The range was found to exist, so that the vectors are below 2048.
            for vector in (start..start + count).map(|vector| vector as u16) {
                if msix.clear_pending(vector) && attachment.interrupts.raise_msix(vector) == Raised::Pending {
                    msix.set_pending(vector);
                }
            }
        }

        Ok(())
    }

    /// The interrupts of an attachment, for masking, triggering and taking apart.
    pub fn interrupts(
        &mut self,
        function: FunctionId,
        who: AttachmentId,
    ) -> Result<&mut crate::interrupt::Interrupts, MachineError> {
        self.tenant(function, who)?;
        Ok(&mut self.attachment_mut(function, who)?.interrupts)
    }

    /// Call a device with its context.
    fn call<R>(
        &mut self,
        function: FunctionId,
        f: impl FnOnce(&mut dyn Device, &mut Context<'_>) -> R,
    ) -> Option<R> {
        let slot = self.slots.get_mut(function.0 as usize)?;
        let mut context =
            Context { function: &mut slot.state, shared: &mut self.shared, fabric: &mut self.fabric };
        let result = f(slot.device.as_mut(), &mut context);
        self.arm(function);
        Some(result)
    }

    /// Forget DMA messages that were not sent, and reads that are over and were not handed to the
    /// device.
    fn forget_dma(&mut self, function: FunctionId, who: Option<AttachmentId>) {
        if let Some(slot) = self.slots.get_mut(function.0 as usize) {
            self.shared.forget(&mut slot.state, who);
        }
    }

    fn slot(&mut self, function: FunctionId, who: AttachmentId) -> Result<(&mut Slot, usize), MachineError> {
        let missing = MachineError::NoSuchAttachment { function: function.0, attachment: who.0 };
        let Some(slot) = self.slots.get_mut(function.0 as usize) else { return Err(missing) };
        let index = usize::from(who.0);
        if index < slot.state.attachments.len() { Ok((slot, index)) } else { Err(missing) }
    }

    fn attachment_mut(
        &mut self,
        function: FunctionId,
        who: AttachmentId,
    ) -> Result<&mut Attachment, MachineError> {
        let (slot, index) = self.slot(function, who)?;
        Ok(&mut slot.state.attachments[index])
    }

    fn tenant(
        &mut self,
        function: FunctionId,
        who: AttachmentId,
    ) -> Result<&mut crate::attachment::Tenant, MachineError> {
        let (function_number, attachment_number) = (function.0, who.0);
        self.attachment_mut(function, who)?
            .tenant
            .as_mut()
            .ok_or(MachineError::NotAttached { function: function_number, attachment: attachment_number })
    }
}

/// What a BAR's memory is called in `/proc`, where a name of the function's that is too long or odd
/// would be refused.
fn memory_name(function: &str, attachment: &str, bar: usize) -> String {
    let function: String = function.chars().filter(char::is_ascii_graphic).take(MAX_NAME).collect();
    format!("{function}-{attachment}-bar{bar}")
}
