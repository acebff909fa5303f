//! A machine: functions, their attachments, and the fabric between them.
//!
//! Nothing here waits, does I/O or knows the time. Who holds a machine drives it: it brings accesses ([`Machine::read`],
//! [`Machine::write`]), calls [`Machine::step`] with the time, and takes what comes out ([`Machine::pop_outgoing`]).
//!
//! - `mod.rs`: building, coming and going of clients, resets;
//! - `access.rs`: accesses to regions;
//! - `schedule.rs`: stepping, going to sleep, waking up;
//! - `query.rs`: what can be asked without changing anything.

mod access;
mod query;
mod schedule;

use std::{collections::VecDeque, sync::Arc};

use nicforge_shm::{
    MemoryError, RingError,
    wake::{Membarrier, Sleeper},
};
use thiserror::Error;

pub use self::{
    access::{Access, AccessError},
    query::{RegionView, region},
    schedule::Next,
};
pub use crate::context::Outgoing;
use crate::{
    attachment::{Attachment, memory_for},
    context::{Completion, Context, FunctionState, Shared},
    device::{AttachmentId, Device, Ended, FunctionId, Reset},
    dma::{DmaBacking, DmaError, DmaMapError, DmaPermission},
    fabric::Fabric,
    interrupt::{InterruptSink, IrqError},
    spec::{Scope, SpecError},
    time::Nanos,
    trace::{Event, TraceSink},
};

/// How many DMA mappings an attachment can have at a time.
pub const DMA_QUOTA: usize = 65_536;

/// Whether the machine looks at a function's mapped memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heat {
    /// Every turn; nothing was found since the time given.
    Hot { idle_since: Nanos },
    /// Not until somebody wakes it.
    Cold,
}

struct Slot {
    state: FunctionState,
    device: Box<dyn Device>,
    heat: Heat,
    /// In [`Machine::hot`], or about to be.
    queued: bool,
}

/// See the module.
pub struct Machine {
    slots: Vec<Slot>,
    fabric: Fabric,
    shared: Shared,
    hot: VecDeque<FunctionId>,
    timers: std::collections::BinaryHeap<std::cmp::Reverse<(Nanos, FunctionId)>>,
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
            timers: std::collections::BinaryHeap::new(),
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
        let attachments = spec.attachments.iter().map(|_| Attachment::new(&spec, DMA_QUOTA)).collect();
        let state = FunctionState {
            id,
            name: name.to_owned(),
            spec,
            attachments,
            completions: VecDeque::new(),
            wake_at: Nanos::NEVER,
        };
        self.slots.push(Slot { state, device, heat: Heat::Cold, queued: false });
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

    /// Give an attachment to a client. Its windows are new; those of its group are new when it is the group's only client.
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
                _ => memory_for(
                    &format!("{}-{}-bar{bar}", state.name, state.spec.attachments[index].name),
                    spec,
                )?,
            };
        }
        let attachment = &mut state.attachments[index];
        attachment.memories = memories;
        if let Err(error) = attachment.occupy(&state.spec) {
            attachment.vacate(&state.spec);
            return Err(error);
        }
        self.shared.trace(function, who, Event::Attached);
        self.call(function, |device, context| device.attached(context, who));
        self.wake(function);
        Ok(())
    }

    /// Take an attachment from its client: what it posted before is still carried out as far as it can be at once, then it is
    /// reset and its memory dropped.
    pub fn detach(
        &mut self,
        function: FunctionId,
        who: AttachmentId,
        why: Ended,
    ) -> Result<(), MachineError> {
        self.tenant(function, who)?;
        self.drain_rings(function, who, schedule::DRAIN_RECORDS);
        self.call(function, |device, context| {
            device.detached(context, who, why);
            device.reset(context, Reset::Attachment(who));
        });
        let (slot, _) = self.slot(function, who)?;
        drop_completions(&mut slot.state.completions, Some(who));
        slot.state.attachments[usize::from(who.0)].vacate(&slot.state.spec);
        self.shared.trace(function, who, Event::Detached);
        self.wake(function);
        Ok(())
    }

    /// Reset an attachment whose client stays.
    pub fn reset_attachment(&mut self, function: FunctionId, who: AttachmentId) -> Result<(), MachineError> {
        self.tenant(function, who)?;
        let (slot, _) = self.slot(function, who)?;
        drop_completions(&mut slot.state.completions, Some(who));
        slot.state.attachments[usize::from(who.0)].reset(&slot.state.spec)?;
        self.shared.trace(function, who, Event::Reset);
        self.call(function, |device, context| device.reset(context, Reset::Attachment(who)));
        self.wake(function);
        Ok(())
    }

    /// Reset a whole function, clients or not. This is the operator's: it always works, whatever clients did.
    pub fn reset_function(&mut self, function: FunctionId) -> Result<(), MachineError> {
        let (slot, _) = self.slot(function, AttachmentId(0))?;
        drop_completions(&mut slot.state.completions, None);
        for attachment in &mut slot.state.attachments {
            if attachment.tenant.is_some() {
                attachment.reset(&slot.state.spec)?;
            }
        }
        self.call(function, |device, context| device.reset(context, Reset::Function));
        self.wake(function);
        Ok(())
    }

    /// Tell the attachment's client, in its mirror, that it was given up.
    pub fn mark_dead(&mut self, function: FunctionId, who: AttachmentId) -> Result<(), MachineError> {
        let tenant = self.tenant(function, who)?;
        if let Some(words) = &tenant.mirror {
            words
                .flags
                .store(nicforge_hwi::attachment::mirror::FLAG_DEAD, std::sync::atomic::Ordering::Release);
        }
        Ok(())
    }

    /// Let the attachment's DMA reach memory.
    pub fn dma_map(
        &mut self,
        function: FunctionId,
        who: AttachmentId,
        iova: u64,
        length: u64,
        permission: DmaPermission,
        backing: DmaBacking,
    ) -> Result<(), MachineError> {
        self.tenant(function, who)?;
        Ok(self.attachment_mut(function, who)?.dma.map(iova, length, permission, backing)?)
    }

    /// Take memory back. When this returns, no DMA reaches it any more.
    pub fn dma_unmap(
        &mut self,
        function: FunctionId,
        who: AttachmentId,
        iova: u64,
        length: u64,
    ) -> Result<(), MachineError> {
        self.tenant(function, who)?;
        Ok(self.attachment_mut(function, who)?.dma.unmap(iova, length)?)
    }

    /// Take all memory back.
    pub fn dma_unmap_all(&mut self, function: FunctionId, who: AttachmentId) -> Result<(), MachineError> {
        self.tenant(function, who)?;
        self.attachment_mut(function, who)?.dma.unmap_all();
        Ok(())
    }

    /// Connect vectors `start..` of VFIO interrupt index `index` to sinks, or to nothing.
    pub fn bind_interrupts(
        &mut self,
        function: FunctionId,
        who: AttachmentId,
        index: u32,
        start: u32,
        sinks: Vec<Option<Arc<dyn InterruptSink>>>,
    ) -> Result<(), MachineError> {
        self.tenant(function, who)?;
        Ok(self.attachment_mut(function, who)?.interrupts.bind(index, start, sinks)?)
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

    /// The next DMA message for a client.
    pub fn pop_outgoing(&mut self) -> Option<Outgoing> {
        self.shared.outgoing.pop_front()
    }

    /// A client answered a DMA read. An answer nobody waits for (after a reset) is ignored.
    pub fn dma_read_done(
        &mut self,
        function: FunctionId,
        who: AttachmentId,
        id: u64,
        result: Result<&[u8], DmaError>,
    ) -> Result<(), MachineError> {
        let tenant = self.tenant(function, who)?;
        let Some(position) = tenant.remote_reads.iter().position(|read| read.id == id) else { return Ok(()) };
        let read = tenant.remote_reads.swap_remove(position);
        let result = match result {
            Ok(data) if data.len() == read.length => {
                Ok(crate::context::Filled { buffer: self.shared.buffer_with(data), length: data.len() })
            }
            Ok(data) => Err(DmaError::ShortAnswer { length: data.len(), wanted: read.length }),
            Err(error) => Err(error),
        };
        let attachment = self.attachment_mut(function, who)?;
        match &result {
            Ok(filled) => attachment.counters.dma_read_bytes += filled.length as u64,
            Err(error) => attachment.note(error),
        }
        let (slot, _) = self.slot(function, who)?;
        slot.state.completions.push_back(Completion { who, token: read.token, result });
        self.wake(function);
        Ok(())
    }

    /// A client answered a DMA write.
    pub fn dma_write_done(
        &mut self,
        function: FunctionId,
        who: AttachmentId,
        id: u64,
        result: Result<(), DmaError>,
    ) -> Result<(), MachineError> {
        let tenant = self.tenant(function, who)?;
        let Some(position) = tenant.remote_writes.iter().position(|&write| write == id) else {
            return Ok(());
        };
        tenant.remote_writes.swap_remove(position);
        let last = tenant.remote_writes.is_empty();
        let attachment = self.attachment_mut(function, who)?;
        if let Err(error) = &result {
            attachment.note(error);
        }
        if last {
            for &vector in attachment.interrupts.release() {
                if let Some(msix) = &mut attachment.msix {
                    msix.set_pending(vector);
                }
            }
        }
        self.wake(function);
        Ok(())
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
        if slot.state.wake_at < Nanos::NEVER {
            self.timers.push(std::cmp::Reverse((slot.state.wake_at, function)));
            slot.state.wake_at = Nanos::NEVER;
        }
        Some(result)
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

/// Drop the completions of `who`, or all.
fn drop_completions(completions: &mut VecDeque<Completion>, who: Option<AttachmentId>) {
    completions.retain(|completion| who.is_some_and(|who| completion.who != who));
}
