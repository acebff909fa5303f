//! Queries of a machine. They change nothing, unless a device panics.

use nicforge_hwi::register::Register;
use nicforge_shm::{Cells, SharedMemory};

use super::{Machine, MachineError, PollState, active::ActiveFunction};
use crate::{
    attachment::{AttachmentCounters, Ring},
    decode::{self, BarSpace},
    device::Counter,
    ids::{Address, AttachmentId, FunctionId},
    interrupt::{Interrupts, IrqInfo},
    panic::DeviceMethod,
    spec::{Area, BarSpec, FunctionSpec},
    time::Nanos,
};

/// VFIO region indices of a PCI function.
pub mod region {
    use crate::spec::FunctionSpec;

    /// Index of BAR 0. The other BARs follow it.
    pub const BAR0: u32 = vfio_bindings::bindings::vfio::VFIO_PCI_BAR0_REGION_INDEX;
    /// Configuration space.
    pub const CONFIG: u32 = vfio_bindings::bindings::vfio::VFIO_PCI_CONFIG_REGION_INDEX;
    /// Number of regions.
    pub const COUNT: u32 = vfio_bindings::bindings::vfio::VFIO_PCI_NUM_REGIONS;
    /// Bytes of configuration space.
    pub const CONFIG_SIZE: u64 = 4096;

    /// Returns the size of a region in bytes, 0 if it does not exist.
    pub fn size(spec: &FunctionSpec, index: u32) -> u64 {
        match index {
            CONFIG => CONFIG_SIZE,
            _ => spec.bars.get(index as usize).and_then(Option::as_ref).map_or(0, |bar| bar.size),
        }
    }
}

/// A region as a client sees it.
#[derive(Clone)]
pub struct RegionView {
    /// Size in bytes, 0 if the region does not exist.
    pub size: u64,
    /// Whether the client can read it.
    pub readable: bool,
    /// Whether the client can write it.
    pub writable: bool,
    /// The parts that the client can map.
    pub areas: Vec<Area>,
    /// The file behind the areas, as long as the region.
    pub memory: Option<SharedMemory>,
}

/// The fill of a posted-write ring. Positions count cells since the ring began, modulo 2^32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingState {
    /// Number of cells of the ring.
    pub cells: u32,
    /// Position of the next record that the machine carries out.
    pub head: u32,
    /// Position behind the last record that the client has published.
    pub tail: u32,
    /// Whether the device has refused the record at the head.
    pub is_stalled: bool,
}

impl Machine {
    /// Returns the machine's time: that of the last step, or of the last event in virtual time.
    pub fn now(&self) -> Nanos {
        self.shared.now
    }

    /// Returns the number of functions.
    pub fn functions(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Returns a function's description.
    pub fn spec(&self, function: FunctionId) -> Option<&FunctionSpec> {
        self.slots.get(function.0 as usize).map(|slot| &slot.state.spec)
    }

    /// Returns a function's name.
    pub fn name(&self, function: FunctionId) -> Option<&str> {
        self.slots.get(function.0 as usize).map(|slot| slot.state.name.as_str())
    }

    /// Returns the declarations of a function's registers: none if the device declares none.
    /// [`nicforge_hwi::register::show`] shows accesses by them.
    pub fn registers(&self, function: FunctionId) -> &'static [Register] {
        self.slots.get(function.0 as usize).map_or(&[], |slot| slot.state.registers)
    }

    /// Copies the bytes at an address of a BAR as a read of the attachment's client would return
    /// them, without any effect of a read. Records in posted-write rings stay there. Returns false,
    /// with unspecified `data`, where that can't be said: in memory without a client, across spaces
    /// of different kinds, and where the device does not answer [`crate::device::Device::peek`].
    pub fn peek(
        &mut self,
        function: FunctionId,
        attachment_id: AttachmentId,
        at: Address,
        data: &mut [u8],
    ) -> bool {
        let peeked = self.guarded(|machine| {
            let mut active = machine.active_for(function, attachment_id).ok()?;
            active.peek(attachment_id, at, data)
        });
        peeked.ok().flatten().is_some()
    }

    /// Returns the posted-write rings of an attachment's client: none without a client.
    pub fn rings(&self, function: FunctionId, attachment_id: AttachmentId) -> Vec<RingState> {
        let slot = self.slots.get(function.0 as usize);
        let attachment = slot.and_then(|slot| slot.state.attachments.get(usize::from(attachment_id.0)));
        let Some(tenant) = attachment.and_then(|attachment| attachment.tenant.as_ref()) else {
            return Vec::new();
        };

        let state_of = |ring: &Ring| {
            let head = ring.consumer.consumed();
            RingState {
                cells: ring.consumer.cells().count() as u32,
                head,
                tail: head.wrapping_add(ring.consumer.count_filled()),
                is_stalled: ring.stalled,
            }
        };
        tenant.rings.iter().map(state_of).collect()
    }

    /// Returns a region as the attachment's client sees it. A region that does not exist has size
    /// 0.
    pub fn region(
        &self,
        function: FunctionId,
        attachment_id: AttachmentId,
        index: u32,
    ) -> Result<RegionView, MachineError> {
        let missing = MachineError::NoSuchAttachment { function: function.0, attachment: attachment_id.0 };
        let Some(slot) = self.slots.get(function.0 as usize) else { return Err(missing) };
        let position = usize::from(attachment_id.0);
        if position >= slot.state.attachments.len() {
            return Err(missing);
        }

        let spec = &slot.state.spec;
        let attachment = slot.state.attachments.get(position);
        let bar = spec.bars.get(index as usize).and_then(Option::as_ref);
        let size = region::size(spec, index);
        let mirrored = bar.is_some_and(BarSpec::is_mirrored);

        Ok(RegionView {
            size,
            readable: size > 0,
            writable: size > 0 && !mirrored,
            areas: bar.map(|bar| bar.areas.clone()).unwrap_or_default(),
            memory: u8::try_from(index).ok().and_then(|bar| attachment?.memory(bar)).cloned(),
        })
    }

    /// Returns the information that VFIO reports for an interrupt index, or `None` if it does not
    /// exist.
    pub fn irq_info(&self, function: FunctionId, attachment_id: AttachmentId, index: u32) -> Option<IrqInfo> {
        let state = &self.slots.get(function.0 as usize)?.state;
        if usize::from(attachment_id.0) >= state.attachments.len() {
            return None;
        }
        Interrupts::new(&state.spec).info(index)
    }

    /// Returns whether a client has the attachment.
    pub fn is_attached(&self, function: FunctionId, attachment_id: AttachmentId) -> bool {
        self.slots
            .get(function.0 as usize)
            .and_then(|slot| slot.state.attachments.get(usize::from(attachment_id.0)))
            .is_some_and(|attachment| attachment.tenant.is_some())
    }

    /// Returns whether DMA met a file that the client has truncated. The caller should then evict
    /// the client with [`Machine::detach`].
    pub fn is_faulted(&self, function: FunctionId, attachment_id: AttachmentId) -> bool {
        self.slots
            .get(function.0 as usize)
            .and_then(|slot| slot.state.attachments.get(usize::from(attachment_id.0)))
            .is_some_and(|attachment| attachment.faulted)
    }

    /// Returns the device's statistics: none if its function is out of service.
    pub fn counters(&mut self, function: FunctionId) -> Vec<Counter> {
        let counters = self.guarded(|machine| {
            let mut active = machine.active(function)?;
            Some(active.call(DeviceMethod::Counters, |device, _| device.counters()))
        });
        counters.ok().flatten().unwrap_or_default()
    }

    /// Returns the statistics that the core keeps for an attachment.
    pub fn attachment_counters(
        &self,
        function: FunctionId,
        attachment_id: AttachmentId,
    ) -> Option<AttachmentCounters> {
        let attachments = &self.slots.get(function.0 as usize)?.state.attachments;
        let index = usize::from(attachment_id.0);
        let counters =
            || attachments.get(index).map_or_else(Default::default, |attachment| attachment.counters);
        (index < attachments.len()).then(counters)
    }

    /// Returns the number of functions whose mapped memory the machine polls.
    pub fn hot_functions(&self) -> usize {
        self.slots.iter().filter(|slot| matches!(slot.poll_state, PollState::Hot { .. })).count()
    }
}

impl ActiveFunction<'_> {
    /// Does the work of [`Machine::peek`]. Returns `None` where the value can't be said.
    fn peek(&mut self, attachment_id: AttachmentId, at: Address, data: &mut [u8]) -> Option<()> {
        let (space, remaining) = decode::decode(&self.slot.state.spec, at);
        let length = data.len();
        if matches!(space, BarSpace::Device) {
            let is_answered = decode::is_device(&self.slot.state.spec, at, length)
                && self.call(DeviceMethod::Peek, |device, context| {
                    device.peek(&context.ports(), attachment_id, at, data)
                });
            return is_answered.then_some(());
        }

        if length as u64 > remaining {
            return None;
        }
        let attachment = self.attachment(attachment_id).ok()?;
        match space {
            BarSpace::Memory | BarSpace::Mirror => attachment.memory(at.bar)?.read(at.offset, data).ok()?,
            BarSpace::MsixTable(offset) => attachment.msix.as_ref()?.read(offset, data),
            BarSpace::PendingBits(offset) => attachment.msix.as_ref()?.read_pba(offset, data),
            BarSpace::Control(offset) => {
                let word = attachment.read_control(attachment_id, offset).to_le_bytes();
                data.copy_from_slice(word.get(..length).filter(|_| offset.is_multiple_of(4))?);
            }
            BarSpace::Device => return None,
        }
        Some(())
    }
}
