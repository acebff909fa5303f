//! A machine: functions, their attachments, and the fabric between them.
//!
//! A machine never blocks, does no I/O and reads no clock. Its owner drives it: the owner passes
//! accesses in ([`Machine::read`], [`Machine::write`]), calls [`Machine::step`] with the current
//! time, and takes the DMA messages out ([`Machine::pop_outgoing`]). In virtual time, it calls
//! [`Machine::run_until`] instead.
//!
//! | file | contents |
//! | --- | --- |
//! | `mod.rs` | construction, attach and detach, resets |
//! | `active.rs` | a function during an operation |
//! | `access.rs` | accesses to regions |
//! | `rings.rs` | posted writes and the control page |
//! | `dma.rs` | client memory, replies to DMA messages, and results of DMA reads |
//! | `schedule.rs` | stepping, sleeping and waking |
//! | `clients.rs` | clients that sleep while their function does not |
//! | `sleeping_clients.rs` | turns of a function whose clients stay asleep |
//! | `companions.rs` | companions of devices |
//! | `heartbeat.rs` | the heartbeat in clients' mirrors |
//! | `contain.rs` | containment of panics of devices |
//! | `query.rs` | queries, which change nothing |
//! | `virtual_time.rs` | running from event to event, without a clock |
//! | `waiting_clients.rs` | wake-ups of clients that wait for their device |

mod access;
mod active;
mod clients;
mod companions;
mod contain;
mod dma;
mod heartbeat;
mod query;
mod rings;
mod schedule;
mod sleeping_clients;
mod virtual_time;
mod waiting_clients;

use std::{
    any::Any,
    collections::VecDeque,
    panic::{self, AssertUnwindSafe},
    sync::atomic::Ordering,
};

use nicforge_hwi::attachment::mirror;
use nicforge_shm::wake::{Membarrier, Sleeper};

pub use self::{
    access::{Access, AccessError},
    query::{RegionView, RingState, region},
    schedule::Next,
    virtual_time::{Endless, TurnLimits},
};
use self::{
    active::ActiveFunction,
    contain::{Lent, drop_device},
    schedule::Schedule,
    virtual_time::{TurnCount, VirtualTime},
};
use crate::{
    attachment::{AttachmentList, Memories, create_memory},
    context::{FunctionState, Shared},
    device::{Device, Ended, Reset},
    fabric::Fabric,
    ids::{AttachmentId, FunctionId},
    interrupt::{Interrupts, MSIX, Raised, Sink},
    panic::{DeviceMethod, message_of},
    pci::ConfigLayouts,
    spec::{MAX_NAME, Scope, SpecError, validate_registers},
    time::Nanos,
    trace::{Event, TraceSink},
    warning::WarningLimit,
};
pub use crate::{
    attachment::{ClientWaker, DMA_QUOTA},
    context::Outgoing,
    error::MachineError,
};

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
///
/// The fields that every turn uses come first, on as few cache lines as possible. Large networks
/// have more functions than a cache holds.
#[repr(C)]
struct FunctionSlot {
    device: Box<dyn Device>,
    /// Number of the function's turns at the present virtual time.
    turns: TurnCount,
    /// Time of the device's next step, or [`Nanos::NEVER`] if it requested none. A timer of
    /// [`Schedule`] with another time is stale.
    timer: Nanos,
    /// The function is among the hot ones of [`Schedule`], or being put there.
    queued: bool,
    /// The function is in the list of those that have worked in this step: see
    /// `waiting_clients.rs`.
    has_worked: bool,
    /// The device's method that is in progress, or `None` between calls. After a panic it tells
    /// which device panicked.
    method_in_progress: Option<DeviceMethod>,
    state: FunctionState,
    poll_state: PollState,
    /// Time of the next check for idle clients, where turns poll many rings.
    client_check: Nanos,
    /// Parts of `state` that the call in progress has borrowed.
    lent: Lent,
}

/// Functions and the fabric between them. The module documentation says how to drive it.
pub struct Machine {
    slots: Vec<FunctionSlot>,
    fabric: Fabric,
    shared: Shared,
    config_layouts: ConfigLayouts,
    schedule: Schedule,
    virtual_time: VirtualTime,
    /// Time of the next heartbeat in the clients' mirrors.
    heartbeat_due: Nanos,
    /// Number of heartbeats so far, which the clients' mirrors show.
    heartbeat: u64,
    /// The barrier between the sleeping words of clients and the last look at their memory.
    sleeper: Sleeper<Membarrier>,
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
            config_layouts: ConfigLayouts::default(),
            schedule: Schedule::new(),
            virtual_time: VirtualTime::default(),
            heartbeat_due: Nanos::ZERO,
            heartbeat: 0,
            sleeper: Sleeper::open(),
        }
    }

    /// Adds a device as a function called `name`, which sockets and tables show.
    ///
    /// # Errors
    /// The device's description is inconsistent: see [`crate::spec::FunctionSpec::validate`] and
    /// [`crate::spec::RegisterRule`]. Or the device panicked while it described itself.
    pub fn add_function(&mut self, name: &str, device: Box<dyn Device>) -> Result<FunctionId, SpecError> {
        // A device that panicked is dropped, so no code sees the state that the panic left behind.
        let described = panic::catch_unwind(AssertUnwindSafe(|| {
            (device.spec(), device.ports(), device.lets_clients_sleep(), device.registers())
        }));
        let (spec, ports, lets_clients_sleep, registers) = match described {
            Ok(described) => described,
            Err(payload) => {
                drop_device(device);
                return Err(SpecError::Panicked { message: message_of(payload) });
            }
        };
        spec.validate()?;
        validate_registers(&spec, registers)?;

        let id = FunctionId(self.slots.len() as u32);
        let count = spec.attachments.len();
        let config = (count > 0).then(|| self.config_layouts.config_space(&spec));
        let attachments = AttachmentList::new(count, config);
        let state = FunctionState {
            id,
            name: name.to_owned(),
            spec,
            attachments,
            rings: Vec::new(),
            clients: Vec::new(),
            contended: false,
            lets_clients_sleep,
            clients_sleep: false,
            is_transit: false,
            has_touched_clients: false,
            completions: VecDeque::new(),
            client_wakers: Vec::new(),
            wake_at: Nanos::NEVER,
            panic: None,
            registers,
            warnings: WarningLimit::default(),
        };

        self.slots.push(FunctionSlot {
            state,
            device,
            poll_state: PollState::Cold,
            client_check: Nanos::ZERO,
            queued: false,
            has_worked: false,
            timer: Nanos::NEVER,
            turns: TurnCount::default(),
            method_in_progress: None,
            lent: Lent::NOTHING,
        });
        self.schedule.set_functions(self.slots.len());
        self.fabric.set_port_count(id, ports);

        Ok(id)
    }

    /// Returns the fabric, for connecting functions and setting faults.
    pub fn fabric(&mut self) -> &mut Fabric {
        &mut self.fabric
    }

    /// Sends trace events to `sink`, or discards them if it is `None`. Packets are events of the
    /// links that are tapped: see [`Fabric::set_taps`]. Returns the former sink.
    pub fn set_trace(&mut self, sink: Option<Box<dyn TraceSink>>) -> Option<Box<dyn TraceSink>> {
        // Packets that were tapped without a sink belong to no trace.
        self.fabric.take_tapped(|_| ());
        std::mem::replace(&mut self.shared.trace, sink)
    }

    /// Returns the sink of [`Machine::set_trace`], if it is a `T`.
    pub fn trace_sink<T: TraceSink>(&mut self) -> Option<&mut T> {
        let sink: &mut dyn Any = self.shared.trace.as_deref_mut()?;
        sink.downcast_mut()
    }

    /// Attaches a client to an attachment. The attachment's own windows are new. The windows of its
    /// group are new if the group has no other client.
    ///
    /// # Errors
    /// [`MachineError::Taken`] if the attachment has a client, [`MachineError::OutOfService`], and
    /// the errors of creating its memory. The attachment is free after an error of the last kinds.
    pub fn attach(&mut self, function: FunctionId, attachment_id: AttachmentId) -> Result<(), MachineError> {
        match self.guarded(|machine| machine.active_for(function, attachment_id)?.attach(attachment_id)) {
            Ok(result) => result,
            // The device panicked: the error is that of a function out of service.
            Err(function) => {
                let mut active = self.active_for_client(function, attachment_id)?;
                active.drop_client(attachment_id);
                active.check_in_service()
            }
        }
    }

    /// Takes an attachment from its client. The records in its rings are carried out as far as the
    /// device takes them at once. Then the attachment is reset and its memory dropped.
    pub fn detach(
        &mut self,
        function: FunctionId,
        attachment_id: AttachmentId,
        why: Ended,
    ) -> Result<(), MachineError> {
        // The client ends, whether the device panics or not.
        if let Ok(result) = self
            .guarded(|machine| machine.active_for_client(function, attachment_id)?.end(attachment_id, why))
        {
            result?;
        }

        self.active_for_client(function, attachment_id)?.drop_client(attachment_id);
        Ok(())
    }

    /// Resets an attachment whose client stays.
    ///
    /// # Errors
    /// [`MachineError::OutOfService`], and the error of zeroing its memory.
    pub fn reset_attachment(
        &mut self,
        function: FunctionId,
        attachment_id: AttachmentId,
    ) -> Result<(), MachineError> {
        let reset = self.guarded(|machine| {
            let mut active = machine.active_for_client(function, attachment_id)?;
            active.check_in_service()?;
            active.reset_attachment(attachment_id)
        });
        reset.unwrap_or_else(|function| self.active_for_client(function, attachment_id)?.check_in_service())
    }

    /// Resets a whole function, with or without clients, on the operator's request. No state that
    /// clients can set makes it fail.
    ///
    /// The device clears memory of [`Scope::Group`]. Configuration space and the MSI-X table keep
    /// the clients' settings. A guest's kernel does not take part in this reset, and would continue
    /// without bus mastering and interrupts.
    ///
    /// # Errors
    /// [`MachineError::OutOfService`], and the error of zeroing a client's memory.
    pub fn reset_function(&mut self, function: FunctionId) -> Result<(), MachineError> {
        let missing = MachineError::NoSuchAttachment { function: function.0, attachment: 0 };
        let reset = self.guarded(|machine| {
            let mut active = machine.active(function).ok_or(missing)?;
            active.check_in_service()?;
            active.reset()
        });
        reset.unwrap_or_else(|function| {
            self.active(function).map_or(Ok(()), |active| active.check_in_service())
        })
    }

    /// Reports to the client, through its mirror, that it lost the attachment.
    pub fn mark_dead(
        &mut self,
        function: FunctionId,
        attachment_id: AttachmentId,
    ) -> Result<(), MachineError> {
        self.active_for_client(function, attachment_id)?.mark_dead(attachment_id)
    }

    /// Connects the vectors from `start` on of VFIO interrupt index `index` to sinks, or
    /// disconnects them. An MSI-X vector that is pending is raised when it is connected.
    pub fn bind_interrupts(
        &mut self,
        function: FunctionId,
        attachment_id: AttachmentId,
        index: u32,
        start: u32,
        sinks: Vec<Sink>,
    ) -> Result<(), MachineError> {
        let mut active = self.active_for_client(function, attachment_id)?;
        let attachment = active.attachment(attachment_id)?;
        let count = sinks.len() as u32;

        attachment.interrupts.bind(index, start, sinks)?;
        if index == MSIX
            && let Some(msix) = &mut attachment.msix
        {
            // A pending vector is raised again, and stays pending only if it has no sink. `bind`
            // has checked the range, so that every vector is below 2048.
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
        attachment_id: AttachmentId,
    ) -> Result<&mut Interrupts, MachineError> {
        let attachment = self.active_for_client(function, attachment_id)?.into_attachment(attachment_id)?;
        Ok(&mut attachment.interrupts)
    }
}

impl ActiveFunction<'_> {
    /// Attaches a client: creates its windows and its state, and reports it to the device.
    fn attach(&mut self, attachment_id: AttachmentId) -> Result<(), MachineError> {
        self.check_in_service()?;
        let state = &mut self.slot.state;
        let index = usize::from(attachment_id.0);

        if state.attachments.get(index).is_some_and(|attachment| attachment.tenant.is_some()) {
            return Err(MachineError::Taken { function: state.id.0, attachment: attachment_id.0 });
        }

        // Another client of the same group has the windows that the group shares.
        let group_of = |index: usize| state.spec.attachments.get(index).map(|spec| spec.group);
        let group_member = state
            .attachments
            .iter()
            .filter(|(_, attachment)| attachment.tenant.is_some())
            .find(|(other, _)| group_of(usize::from(other.0)) == group_of(index))
            .map(|(_, attachment)| attachment);

        let mut memories = Memories::default();
        for (bar, (spec, memory)) in state.spec.bars.iter().zip(&mut memories).enumerate() {
            let Some(spec) = spec else { continue };
            *memory = match (&group_member, spec.scope) {
                (Some(member), Scope::Group) => member.memory(bar as u8).cloned(),
                _ => {
                    create_memory(&memory_name(&state.name, &state.spec.attachments[index].name, bar), spec)?
                }
            };
        }

        let missing = MachineError::NoSuchAttachment { function: state.id.0, attachment: attachment_id.0 };
        let attachment = state.attachments.open(index, &state.spec).ok_or(missing)?;
        if let Err(error) = attachment.set_up_tenant(&state.spec, memories) {
            attachment.drop_tenant();
            return Err(error);
        }

        state.refresh_clients();
        self.trace(attachment_id, Event::Attached);
        self.call(DeviceMethod::Attached, |device, context| device.attached(context, attachment_id));
        self.wake();

        Ok(())
    }

    /// Carries out the records in the client's rings, and reports the client's end to the device.
    fn end(&mut self, attachment_id: AttachmentId, why: Ended) -> Result<(), MachineError> {
        if why == Ended::Evicted {
            self.mark_dead(attachment_id)?;
        }

        self.drain_rings(attachment_id);
        self.call(DeviceMethod::Detached, |device, context| device.detached(context, attachment_id, why));
        self.call(DeviceMethod::Reset, |device, context| {
            device.reset(context, Reset::Attachment(attachment_id))
        });

        Ok(())
    }

    /// Drops the state of the client.
    fn drop_client(&mut self, attachment_id: AttachmentId) {
        self.drop_pending_dma(Some(attachment_id));
        let state = &mut self.slot.state;
        if let Some(attachment) = state.attachments.get_mut(usize::from(attachment_id.0)) {
            attachment.drop_tenant();
        }
        state.refresh_clients();
        self.trace(attachment_id, Event::Detached);
        self.wake();
    }

    /// Resets an attachment and its part of the device, as its client has requested. If its memory
    /// could not be zeroed, the rest of the reset takes place all the same.
    fn reset_attachment(&mut self, attachment_id: AttachmentId) -> Result<(), MachineError> {
        self.drop_pending_dma(Some(attachment_id));
        let state = &mut self.slot.state;
        let attachment = state.attachments.get_mut(usize::from(attachment_id.0));
        let zeroed = attachment.map_or(Ok(()), |attachment| attachment.reset(&state.spec));
        state.refresh_rings();

        self.trace(attachment_id, Event::Reset);
        self.call(DeviceMethod::Reset, |device, context| {
            device.reset(context, Reset::Attachment(attachment_id))
        });
        self.attachment(attachment_id)?.next_generation();
        self.wake();

        Ok(zeroed?)
    }

    /// Resets the device and all attachments that have a client: see [`Machine::reset_function`].
    /// If memory could not be zeroed, the rest of the reset takes place all the same.
    fn reset(&mut self) -> Result<(), MachineError> {
        self.drop_pending_dma(None);

        let mut zeroed = Ok(());
        let state = &mut self.slot.state;
        for attachment in state.attachments.iter_mut() {
            if attachment.tenant.is_some() {
                zeroed = zeroed.and(attachment.clear(&state.spec));
            }
        }

        state.refresh_rings();
        let clients = state.clients.clone();
        for &attachment_id in &clients {
            self.trace(attachment_id, Event::Reset);
        }

        self.call(DeviceMethod::Reset, |device, context| device.reset(context, Reset::Function));
        for attachment_id in clients {
            self.attachment(attachment_id)?.next_generation();
        }

        self.wake();

        Ok(zeroed?)
    }

    /// Reports to a client that it lost the attachment, by its mirror and by the request interrupt.
    fn mark_dead(&mut self, attachment_id: AttachmentId) -> Result<(), MachineError> {
        if let Some(words) = &self.tenant(attachment_id)?.mirror {
            words.flags.store(mirror::FLAG_DEAD, Ordering::Release);
        }

        // A client that does not read the mirror, such as QEMU, gets a request to release the
        // device. VFIO's error interrupt would be wrong: it reports an untrustworthy device, and
        // QEMU then halts the guest.
        self.attachment(attachment_id)?.interrupts.raise_request();

        Ok(())
    }
}

/// Returns the name of a BAR's memory in `/proc`. A long or odd function name is shortened, because
/// the kernel would refuse it.
fn memory_name(function: &str, attachment: &str, bar: usize) -> String {
    let function: String = function.chars().filter(char::is_ascii_graphic).take(MAX_NAME).collect();
    format!("{function}-{attachment}-bar{bar}")
}
