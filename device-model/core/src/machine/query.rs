//! Queries of a machine. They change nothing, unless a device panics.

use nicforge_shm::SharedMemory;

use super::{Machine, MachineError, PollState};
use crate::{
    attachment::AttachmentCounters,
    device::Counter,
    ids::{AttachmentId, FunctionId},
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
