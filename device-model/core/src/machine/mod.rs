//! A machine: functions, their attachments, and the fabric between them.
//!
//! A machine never blocks, does no I/O and reads no clock. Its owner drives it: the owner passes
//! accesses in ([`Machine::read`], [`Machine::write`]), calls [`Machine::step`] with the current
//! time, and takes the DMA messages out ([`Machine::pop_outgoing`]).
//!
//! | file | contents |
//! | --- | --- |
//! | `mod.rs` | construction, attach and detach, resets |
//! | `access.rs` | accesses to regions |
//! | `decode.rs` | decoding of BAR offsets |
//! | `rings.rs` | posted writes and the control page |
//! | `dma.rs` | client memory, and replies to DMA messages |
//! | `schedule.rs` | stepping, sleeping and waking |
//! | `query.rs` | queries, which change nothing |

mod access;
mod decode;
mod dma;
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

pub(crate) use self::decode::RegisterRange;
pub use self::{
    access::{Access, AccessError},
    query::{RegionView, region},
    schedule::Next,
};
pub use crate::context::Outgoing;
use crate::{
    attachment::{Attachment, create_memory},
    context::{Context, FunctionState, Shared},
    device::{Device, Ended, Reset},
    dma::DmaMapError,
    fabric::Fabric,
    ids::{AttachmentId, FunctionId},
    interrupt::{IrqError, MSIX, Raised, Sink},
    pci::ConfigSpace,
    spec::{MAX_NAME, Scope, SpecError},
    time::Nanos,
    trace::{Event, TraceSink},
};

/// Largest number of DMA mappings of an attachment.
pub const DMA_QUOTA: usize = 65_536;

/// Whether the machine polls a function's mapped memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollState {
    /// The machine polls it in every turn. `idle_since` is the time of the first turn of the
    /// current run of turns without work, and `None` until the first turn.
    Hot { idle_since: Option<Nanos> },
    /// The machine does not poll it until an event wakes the function.
    Cold,
}

/// A function of the machine: its state, its device, and its place in the schedule.
struct FunctionSlot {
    state: FunctionState,
    device: Box<dyn Device>,
    poll_state: PollState,
    /// The function is in [`Machine::hot`], or being put there.
    queued: bool,
    /// Time of the device's next step, or [`Nanos::NEVER`] if it requested none. An entry of
    /// [`Machine::timers`] with another time is stale.
    timer: Nanos,
}

/// Functions and the fabric between them. The module documentation says how to drive it.
pub struct Machine {
    slots: Vec<FunctionSlot>,
    fabric: Fabric,
    shared: Shared,
    /// Functions to run in the next turns.
    hot: VecDeque<FunctionId>,
    /// Timers of the functions, earliest first. Some entries are stale: see
    /// [`FunctionSlot::timer`].
    timers: BinaryHeap<Reverse<(Nanos, FunctionId)>>,
    /// Time without work after which a function goes cold, in nanoseconds.
    cool_after: u64,
    heartbeat_due: Nanos,
    heartbeat: u64,
    /// Functions that go cold at the end of this step.
    cooling: Vec<FunctionId>,
    sleeper: Sleeper<Membarrier>,
}

/// Reason why an operation on an attachment failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MachineError {
    /// The function or the attachment does not exist.
    #[error("there is no attachment {attachment} of function {function}")]
    NoSuchAttachment {
        /// Number of the function.
        function: u32,
        /// Number of the attachment.
        attachment: u16,
    },
    /// Another client has the attachment.
    #[error("attachment {attachment} of function {function} has a client already; wait until it is gone")]
    Taken {
        /// Number of the function.
        function: u32,
        /// Number of the attachment.
        attachment: u16,
    },
    /// The attachment has no client.
    #[error("attachment {attachment} of function {function} has no client")]
    NotAttached {
        /// Number of the function.
        function: u32,
        /// Number of the attachment.
        attachment: u16,
    },
    /// The attachment's memory could not be created.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A ring could not be created: the device's description is wrong.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The DMA map refused the operation.
    #[error(transparent)]
    DmaMap(#[from] DmaMapError),
    /// The interrupts refused the operation.
    #[error(transparent)]
    Irq(#[from] IrqError),
}

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}

impl Machine {
    /// Returns a machine without functions.
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

    /// Adds a device as a function called `name`, which sockets and tables show.
    ///
    /// # Errors
    /// The device's description is inconsistent: see [`crate::spec::FunctionSpec::validate`].
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

        self.slots.push(FunctionSlot {
            state,
            device,
            poll_state: PollState::Cold,
            queued: false,
            timer: Nanos::NEVER,
        });

        Ok(id)
    }

    /// Returns the fabric, for connecting functions and setting faults.
    pub fn fabric(&mut self) -> &mut Fabric {
        &mut self.fabric
    }

    /// Sends trace events to `sink`, or discards them if it is `None`.
    pub fn set_trace(&mut self, sink: Option<Box<dyn TraceSink>>) {
        self.shared.trace = sink;
    }

    /// Attaches a client to an attachment. The attachment's own windows are new. The windows of its
    /// group are new if the group has no other client.
    ///
    /// # Errors
    /// [`MachineError::Taken`] if the attachment has a client, and the errors of creating its
    /// memory. The attachment is free after an error of the second kind.
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
                _ => {
                    create_memory(&memory_name(&state.name, &state.spec.attachments[index].name, bar), spec)?
                }
            };
        }

        let attachment = &mut state.attachments[index];
        attachment.memories = memories;
        if let Err(error) = attachment.set_up_tenant(&state.spec) {
            attachment.drop_tenant(&state.spec);
            return Err(error);
        }

        state.refresh_clients();
        self.shared.trace(function, who, Event::Attached);
        self.call(function, |device, context| device.attached(context, who));
        self.wake(function);

        Ok(())
    }

    /// Takes an attachment from its client. The records in its rings are carried out as far as the
    /// device takes them at once. Then the attachment is reset and its memory dropped.
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

        self.drop_pending_dma(function, Some(who));
        let (slot, index) = self.slot(function, who)?;
        slot.state.attachments[index].drop_tenant(&slot.state.spec);
        slot.state.refresh_clients();
        self.shared.trace(function, who, Event::Detached);
        self.wake(function);

        Ok(())
    }

    /// Resets an attachment whose client stays.
    pub fn reset_attachment(&mut self, function: FunctionId, who: AttachmentId) -> Result<(), MachineError> {
        self.tenant(function, who)?;
        self.drop_pending_dma(function, Some(who));
        let (slot, index) = self.slot(function, who)?;
        let zeroed = slot.state.attachments[index].reset(&slot.state.spec);
        self.shared.trace(function, who, Event::Reset);
        self.call(function, |device, context| device.reset(context, Reset::Attachment(who)));
        self.attachment_mut(function, who)?.next_generation();
        self.wake(function);

        Ok(zeroed?)
    }

    /// Resets a whole function, with or without clients, on the operator's request. No state that
    /// clients can set makes it fail.
    ///
    /// The device clears memory of [`Scope::Group`]. Configuration space and the MSI-X table keep
    /// the clients' settings. A guest's kernel does not take part in this reset, and would go on
    /// without bus mastering and interrupts.
    pub fn reset_function(&mut self, function: FunctionId) -> Result<(), MachineError> {
        self.slot(function, AttachmentId(0))?;
        self.drop_pending_dma(function, None);
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

    /// Reports to the client, through its mirror, that it lost the attachment.
    pub fn mark_dead(&mut self, function: FunctionId, who: AttachmentId) -> Result<(), MachineError> {
        if let Some(words) = &self.tenant(function, who)?.mirror {
            words.flags.store(mirror::FLAG_DEAD, Ordering::Release);
        }

        // A client that does not read the mirror, such as QEMU, gets a request to release the
        // device. VFIO's error interrupt would be wrong: it reports an untrustworthy device, and
        // QEMU then halts the guest.
        self.attachment_mut(function, who)?.interrupts.raise_request();

        Ok(())
    }

    /// Connects the vectors from `start` on of VFIO interrupt index `index` to sinks, or
    /// disconnects them. An MSI-X vector that is pending is raised when it is connected.
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
            // `bind` has checked the range, so that every vector is below 2048.
            for vector in (start..start + count).map(|vector| vector as u16) {
                if msix.clear_pending(vector) && attachment.interrupts.raise_msix(vector) == Raised::Pending {
                    msix.set_pending(vector);
                }
            }
        }

        Ok(())
    }

    /// Returns the interrupts of an attachment, for masking, triggering and unbinding.
    pub fn interrupts(
        &mut self,
        function: FunctionId,
        who: AttachmentId,
    ) -> Result<&mut crate::interrupt::Interrupts, MachineError> {
        self.tenant(function, who)?;
        Ok(&mut self.attachment_mut(function, who)?.interrupts)
    }

    /// Calls a device with its context, and takes over its timer request.
    fn call<R>(
        &mut self,
        function: FunctionId,
        f: impl FnOnce(&mut dyn Device, &mut Context<'_>) -> R,
    ) -> Option<R> {
        let slot = self.slots.get_mut(function.0 as usize)?;
        let mut context =
            Context { function: &mut slot.state, shared: &mut self.shared, fabric: &mut self.fabric };

        let result = f(slot.device.as_mut(), &mut context);
        self.update_timer(function);
        Some(result)
    }

    /// Drops unsent DMA messages and undelivered results of `who`, or of the whole function.
    fn drop_pending_dma(&mut self, function: FunctionId, who: Option<AttachmentId>) {
        if let Some(slot) = self.slots.get_mut(function.0 as usize) {
            self.shared.drop_pending(&mut slot.state, who);
        }
    }

    /// Returns a function and the index of an attachment that exists in it.
    fn slot(
        &mut self,
        function: FunctionId,
        who: AttachmentId,
    ) -> Result<(&mut FunctionSlot, usize), MachineError> {
        let missing = MachineError::NoSuchAttachment { function: function.0, attachment: who.0 };
        let Some(slot) = self.slots.get_mut(function.0 as usize) else { return Err(missing) };
        let index = usize::from(who.0);
        if index < slot.state.attachments.len() { Ok((slot, index)) } else { Err(missing) }
    }

    /// Returns an attachment, with or without a client.
    fn attachment_mut(
        &mut self,
        function: FunctionId,
        who: AttachmentId,
    ) -> Result<&mut Attachment, MachineError> {
        let (slot, index) = self.slot(function, who)?;
        Ok(&mut slot.state.attachments[index])
    }

    /// Returns the state of an attachment's client, or [`MachineError::NotAttached`].
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

/// Returns the name of a BAR's memory in `/proc`. A long or odd function name is shortened, because
/// the kernel would refuse it.
fn memory_name(function: &str, attachment: &str, bar: usize) -> String {
    let function: String = function.chars().filter(char::is_ascii_graphic).take(MAX_NAME).collect();
    format!("{function}-{attachment}-bar{bar}")
}
