//! A function of a machine in this process.

use std::{
    fs::File,
    io::Write,
    os::fd::BorrowedFd,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use nicforge_core::{
    device::{Device, Ended},
    dma::{DmaBacking, DmaPermission},
    ids::{AttachmentId, FunctionId},
    interrupt::{INTX, InterruptSink, MSIX},
    machine::{Access, AccessError, Machine, MachineError, region},
    spec::{AreaKind, BarKind as CoreBarKind, FunctionSpec},
};

use super::{Client, LocalMachine, Source, SourceKind};
use crate::{
    event::Event,
    function::{Area, Bar, BarKind, Doorbell, Function, FunctionError},
    memory::Ram,
};

/// Time for which an access waits while the device cannot take it.
const STALL_LIMIT: Duration = Duration::from_secs(2);
/// Most doorbells of a function. Writes to further ones are exits.
const MOST_DOORBELLS: u32 = 64;

/// The PCI vendor of virtio devices, and the type of the capability that locates the notification
/// registers (VIRTIO 1.2, 4.1.2 and 4.1.4).
const VENDOR_VIRTIO: u16 = 0x1af4;
const CAPABILITY_NOTIFY: u8 = 2;

/// The place of a register in a function's BARs.
struct RegisterPlace {
    bar: u8,
    offset: u64,
}

/// A function of a [`LocalMachine`]. It is the only client of its attachment.
///
/// The notification registers of a virtio device are doorbells: each has an eventfd, so that a
/// notification of the guest wakes the machine's thread and makes no exit.
pub struct LocalFunction {
    machine: Arc<LocalMachine>,
    client: Client,
    bars: Vec<Bar>,
    doorbells: Vec<Doorbell>,
}

impl LocalFunction {
    /// Starts a machine of one device, and returns its function, by its first attachment. `name` is
    /// 1 to 64 letters, digits and `-`.
    ///
    /// ```no_run
    /// # use nicforge_kvm::{FunctionError, LocalFunction};
    /// # fn plug(device: Box<dyn nicforge_core::device::Device>) -> Result<(), FunctionError> {
    /// let random = LocalFunction::of_device("rng0", device)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`FunctionError::Malformed`] when the device's description makes no sense,
    /// [`FunctionError::Machine`], [`FunctionError::System`].
    pub fn of_device(name: &str, device: Box<dyn Device>) -> Result<Self, FunctionError> {
        let mut machine = Machine::new();
        let added = machine.add_function(name, device);
        let function = added.map_err(|error| FunctionError::Malformed(error.to_string()))?;
        LocalMachine::start(machine)?.function(function, AttachmentId(0))
    }

    /// Attaches a client to the machine's function, and watches an eventfd for each doorbell.
    pub(super) fn attach(machine: Arc<LocalMachine>, client: Client) -> Result<Self, FunctionError> {
        let Client { function, attachment } = client;
        machine.shared.with(|state| Ok(state.machine.attach(function, attachment)?))?;

        // From here on, an error drops `attached`, which detaches the client.
        let mut attached = Self { machine, client, bars: Vec::new(), doorbells: Vec::new() };
        attached.bars = attached.machine.shared.with(|state| bars(&state.machine, client))?;
        let registers = attached
            .machine
            .shared
            .with(|state| Ok(state.machine.spec(function).map(notification_registers).unwrap_or_default()))?;

        for (queue, RegisterPlace { bar, offset }) in (0..).zip(registers) {
            let event = Event::new().map_err(FunctionError::system("an eventfd"))?;
            let kind = SourceKind::Doorbell { event: event.clone(), bar, offset, queue };
            attached.machine.shared.watch(Source { client, kind })?;
            attached.doorbells.push(Doorbell { bar, offset, event });
        }
        Ok(attached)
    }

    /// Returns the machine.
    pub fn machine(&self) -> &Arc<LocalMachine> {
        &self.machine
    }

    /// Carries out an access. While the device cannot take it, it is tried again, for at most
    /// [`STALL_LIMIT`]: the steps of the machine's thread make room for it.
    fn access(
        &self,
        mut access: impl FnMut(&mut Machine, FunctionId, AttachmentId) -> Result<Access, AccessError>,
    ) -> Result<(), FunctionError> {
        let Client { function, attachment } = self.client;
        let deadline = Instant::now() + STALL_LIMIT;

        loop {
            let is_late = Instant::now() >= deadline;
            let done = self.machine.shared.with(|state| {
                let stalled = access(&mut state.machine, function, attachment)? == Access::Stalled;
                if stalled && is_late {
                    state.machine.give_up_access(function, attachment)?;
                    return Err(FunctionError::Stalled(STALL_LIMIT));
                }
                Ok(!stalled)
            })?;
            if done {
                return Ok(());
            }
            thread::yield_now();
        }
    }
}

impl Function for LocalFunction {
    fn bars(&self) -> Vec<Bar> {
        self.bars.clone()
    }

    fn doorbells(&self) -> Vec<Doorbell> {
        self.doorbells.clone()
    }

    fn config_read(&self, offset: u16, data: &mut [u8]) -> Result<(), FunctionError> {
        self.access(|machine, function, attachment| {
            machine.read(function, attachment, region::CONFIG, offset.into(), data)
        })
    }

    fn config_write(&self, offset: u16, data: &[u8]) -> Result<(), FunctionError> {
        self.access(|machine, function, attachment| {
            machine.write(function, attachment, region::CONFIG, offset.into(), data)
        })
    }

    fn bar_read(&self, bar: u8, offset: u64, data: &mut [u8]) -> Result<(), FunctionError> {
        self.access(|machine, function, attachment| {
            machine.read(function, attachment, bar.into(), offset, data)
        })
    }

    fn bar_write(&self, bar: u8, offset: u64, data: &[u8]) -> Result<(), FunctionError> {
        self.access(|machine, function, attachment| {
            machine.write(function, attachment, bar.into(), offset, data)
        })
    }

    fn bind_vector(&self, vector: u16, event: BorrowedFd<'_>) -> Result<(), FunctionError> {
        let sinks = vec![Some(EventSink::new(event)? as Arc<_>)];
        let Client { function, attachment } = self.client;
        self.machine.shared.with(|state| {
            Ok(state.machine.bind_interrupts(function, attachment, MSIX, vector.into(), sinks)?)
        })
    }

    fn release_vectors(&self) -> Result<(), FunctionError> {
        let Client { function, attachment } = self.client;
        self.machine.shared.with(|state| {
            let interrupts = state.machine.interrupts(function, attachment)?;
            Ok(interrupts.disable(MSIX).map_err(MachineError::from)?)
        })
    }

    fn bind_line(&self, raised: BorrowedFd<'_>, serviced: BorrowedFd<'_>) -> Result<(), FunctionError> {
        let shared = &self.machine.shared;
        // The eventfd of an earlier call is watched no more.
        shared.unwatch(self.client, |kind| matches!(kind, SourceKind::Serviced(_)))?;
        let kind = SourceKind::Serviced(duplicate(serviced)?);
        shared.watch(Source { client: self.client, kind })?;

        let sinks = vec![Some(EventSink::new(raised)? as Arc<_>)];
        let Client { function, attachment } = self.client;
        shared.with(|state| Ok(state.machine.bind_interrupts(function, attachment, INTX, 0, sinks)?))
    }

    fn map_ram(&self, ram: &Ram) -> Result<(), FunctionError> {
        let Client { function, attachment } = self.client;
        let windows = ram.windows().map_err(|error| FunctionError::Map(error.to_string()))?;

        self.machine.shared.with(|state| {
            state.machine.dma_unmap_all(function, attachment)?;
            for (range, window) in ram.ranges().iter().zip(windows) {
                let backing = DmaBacking::Memory(window.clone());
                let permission = DmaPermission::READ_WRITE;
                let machine = &mut state.machine;
                machine.dma_map(function, attachment, range.address, range.size, permission, backing)?;
            }
            Ok(())
        })
    }

    fn reset(&self) -> Result<(), FunctionError> {
        let Client { function, attachment } = self.client;
        self.machine.shared.with(|state| Ok(state.machine.reset_attachment(function, attachment)?))
    }
}

impl Drop for LocalFunction {
    fn drop(&mut self) {
        let shared = &self.machine.shared;
        let Client { function, attachment } = self.client;
        let unwatched = shared.unwatch(self.client, |_| true);
        let detached = shared.with(|state| Ok(state.machine.detach(function, attachment, Ended::Closed)?));

        if let Err(error) = unwatched.and(detached) {
            tracing::warn!(%error, "the end of a function");
        }
    }
}

/// An eventfd that an interrupt signals.
struct EventSink(File);

impl EventSink {
    fn new(event: BorrowedFd<'_>) -> Result<Arc<Self>, FunctionError> {
        Ok(Arc::new(Self(duplicate(event)?)))
    }
}

impl InterruptSink for EventSink {
    fn signal(&self) {
        // A counter at its limit is an interrupt that is pending already.
        let _ = (&self.0).write(&1_u64.to_ne_bytes());
    }
}

/// Duplicates an eventfd's descriptor.
fn duplicate(file: BorrowedFd<'_>) -> Result<File, FunctionError> {
    let duplicate = file.try_clone_to_owned();
    duplicate.map(File::from).map_err(FunctionError::system("a duplicate of an eventfd"))
}

/// Returns the BARs of a function.
fn bars(machine: &Machine, client: Client) -> Result<Vec<Bar>, FunctionError> {
    let Some(spec) = machine.spec(client.function) else { return Ok(Vec::new()) };
    let mut bars = Vec::new();

    for (index, bar) in (0_u8..).zip(&spec.bars) {
        let Some(bar) = bar else { continue };
        let kind = match bar.kind {
            CoreBarKind::Io => BarKind::Io,
            CoreBarKind::Memory32 => BarKind::Memory32,
            CoreBarKind::Memory64 { .. } => BarKind::Memory64,
        };

        let view = machine.region(client.function, client.attachment, index.into())?;
        let file = match view.memory.as_ref().and_then(|memory| memory.fd()) {
            Some(file) => Some(Arc::new(duplicate(file)?)),
            None => None,
        };
        let area = |area: &nicforge_core::spec::Area| {
            Some(Area {
                offset: area.offset,
                size: area.length,
                file: file.clone()?,
                file_offset: area.offset,
                writable: area.kind == AreaKind::Mapped,
            })
        };
        bars.push(Bar { index, kind, size: bar.size, areas: view.areas.iter().filter_map(area).collect() });
    }
    Ok(bars)
}

/// Returns the notification register of each queue of a virtio device, by the queues' numbers. It
/// returns none for other devices, and for one whose queues share a register.
fn notification_registers(spec: &FunctionSpec) -> Vec<RegisterPlace> {
    let capability = spec.capabilities.iter().find_map(|capability| {
        // Type, BAR, three bytes of padding; then the words offset, length, and the distance of the
        // registers.
        let (type_and_bar, words) = capability.content.split_at_checked(5)?;
        let (words, []) = words.as_chunks::<4>() else { return None };
        let [offset, length, stride] = words else { return None };
        let words = [offset, length, stride].map(|word| u32::from_le_bytes(*word));
        let is_notify = spec.identity.vendor == VENDOR_VIRTIO && type_and_bar[0] == CAPABILITY_NOTIFY;
        is_notify.then_some((type_and_bar[1], words))
    });

    let Some((bar, [offset, length, stride])) = capability else { return Vec::new() };
    // With a distance of 0, all queues share a register: the value written tells them apart, which
    // a doorbell does not see.
    let count = length.checked_div(stride).unwrap_or(0).min(MOST_DOORBELLS);
    let offset_of = |queue: u32| u64::from(offset) + u64::from(queue) * u64::from(stride);
    (0..count).map(|queue| RegisterPlace { bar, offset: offset_of(queue) }).collect()
}
