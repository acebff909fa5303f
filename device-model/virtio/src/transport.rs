//! Virtio on PCI (4.1): the capabilities that locate the registers, negotiation, device status, the
//! queues' registers, and interrupts.
//!
//! The transport does not use the buffers of the queues. [`Transport::write`] returns the effect
//! that a write has on the device beyond the registers.

use nicforge_core::{
    context::Context,
    ids::AttachmentId,
    spec::{AttachmentSpec, BarSpec, BarWindow, FunctionSpec, Identity, MsixSpec, VendorCapability},
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{
    queue::{Direction, QueueLayout},
    registers::{
        BAR, BAR_SIZE, COMMON, DEVICE, DEVICE_BASE, ISR, MAX_QUEUE_SIZE, MSIX_PENDING, MSIX_TABLE, NO_VECTOR,
        NOTIFY, NOTIFY_STRIDE, VENDOR_VIRTIO, capability, common, feature, isr, status,
    },
};

/// Bits of the lower half of a 64-bit register.
const LOWER_HALF: u64 = 0xffff_ffff;

/// The only attachment. Each device has one client, its driver.
pub const USER: AttachmentId = AttachmentId(0);

/// The properties of a type of device that its driver sees on PCI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Model {
    /// Number of the type (5). The PCI device id is [`DEVICE_BASE`] more.
    pub device_type: u16,
    /// PCI class.
    pub class: u32,
    /// All features that the device offers, [`feature::COMMON`] among them.
    pub features: u64,
    /// The queues, at most 256, by their numbers: the direction of the buffers of each.
    pub queues: &'static [Direction],
    /// Bytes of the configuration of the type, at most 4096.
    pub config_bytes: usize,
}

impl Model {
    /// Returns the number of MSI-X vectors: configuration changes, and one for each queue.
    fn vectors(&self) -> u16 {
        self.queues.len() as u16 + 1
    }

    /// Returns the bytes of the notification registers.
    fn notify_bytes(&self) -> u64 {
        u64::from(NOTIFY_STRIDE) * self.queues.len() as u64
    }
}

/// The common configuration as a driver reads it (4.1.4.3). The fields have the order and the
/// widths of the offsets in [`common`].
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct CommonConfig {
    device_feature_select: [u8; 4],
    device_feature: [u8; 4],
    driver_feature_select: [u8; 4],
    driver_feature: [u8; 4],
    config_vector: [u8; 2],
    queues: [u8; 2],
    status: u8,
    generation: u8,
    queue_select: [u8; 2],
    queue: QueueConfig,
}

/// The part of the common configuration that belongs to the selected queue.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct QueueConfig {
    size: [u8; 2],
    vector: [u8; 2],
    enable: [u8; 2],
    notify_offset: [u8; 2],
    descriptors: [u8; 8],
    driver: [u8; 8],
    device: [u8; 8],
}

const _: () = assert!(size_of::<CommonConfig>() as u64 == common::SIZE);

/// The registers of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueRegisters {
    pub(crate) layout: QueueLayout,
    /// MSI-X vector of used buffers, or [`NO_VECTOR`].
    pub(crate) vector: u16,
    /// The driver has enabled the queue since the last reset.
    pub(crate) enabled: bool,
}

impl Default for QueueRegisters {
    fn default() -> Self {
        let layout = QueueLayout { size: MAX_QUEUE_SIZE, ..QueueLayout::default() };
        Self { layout, vector: NO_VECTOR, enabled: false }
    }
}

/// The effect of a register write beyond the registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Nothing beyond the registers.
    None,
    /// Return to the state of power-on.
    Reset,
    /// Create a queue from its registers.
    EnableQueue(usize),
    /// Serve a queue: it has new buffers.
    Notify(usize),
}

/// An event that interrupts the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The device's configuration or its status has changed.
    Config,
    /// A queue has used buffers.
    Queue(usize),
}

/// The registers of the device.
pub(crate) struct Transport {
    model: Model,
    /// Half of the offered features that the driver reads: 0 for the lower one, 1 for the upper.
    device_feature_select: u32,
    /// Half of the accepted features that the driver accesses.
    driver_feature_select: u32,
    /// Features that the driver accepted so far.
    accepted: u64,
    /// Bits of [`status`].
    status: u8,
    /// Number of changes of the configuration, modulo 256.
    generation: u8,
    /// MSI-X vector of configuration changes, or [`NO_VECTOR`].
    config_vector: u16,
    /// Number of the queue whose registers the driver accesses.
    queue_select: u16,
    queues: Vec<QueueRegisters>,
    /// Events since the driver read the interrupt status: bits of [`isr`].
    isr: u8,
}

impl Transport {
    /// Returns the registers in the state of power-on.
    pub(crate) fn new(model: Model) -> Self {
        Self {
            model,
            device_feature_select: 0,
            driver_feature_select: 0,
            accepted: 0,
            status: 0,
            generation: 0,
            config_vector: NO_VECTOR,
            queue_select: 0,
            queues: vec![QueueRegisters::default(); model.queues.len()],
            isr: 0,
        }
    }

    /// Returns the type of device.
    pub(crate) fn model(&self) -> &Model {
        &self.model
    }

    /// Returns to the state of power-on.
    pub(crate) fn reset(&mut self) {
        // The vector of queues is kept, so that a reset allocates nothing.
        let mut queues = std::mem::take(&mut self.queues);
        queues.fill(QueueRegisters::default());
        let model = self.model;
        *self = Self { model, queues, ..Self::new(Model { queues: &[], ..model }) };
    }

    /// Returns the features that the driver accepted.
    pub(crate) fn features(&self) -> u64 {
        self.accepted
    }

    /// Returns whether the driver is set up, and the device can use the queues.
    pub(crate) fn is_live(&self) -> bool {
        const LIVE: u8 = status::DRIVER_OK | status::FEATURES_OK;
        self.status & (LIVE | status::NEEDS_RESET | status::FAILED) == LIVE
    }

    /// Returns the registers of a queue.
    pub(crate) fn queue(&self, index: usize) -> QueueRegisters {
        self.queues[index]
    }

    /// Reads registers from `offset` on into `data`. `config` is the configuration of the type of
    /// device. Bytes outside the registers keep the content of `data`.
    pub(crate) fn read(&mut self, context: &mut Context<'_>, offset: u64, config: &[u8], data: &mut [u8]) {
        // A read of the interrupt status clears it, and takes back the interrupt (4.1.4.5).
        if offset == ISR
            && let Some(first) = data.first_mut()
        {
            *first = std::mem::take(&mut self.isr);
            context.set_intx(USER, false);
            return;
        }

        copy_overlap(offset, data, COMMON, self.common_config().as_bytes());
        copy_overlap(offset, data, DEVICE, config);
    }

    /// Returns the common configuration as the driver reads it now.
    fn common_config(&self) -> CommonConfig {
        let half = |features: u64, select: u32| match select {
            0 => features as u32,
            1 => (features >> 32) as u32,
            _ => 0,
        };
        let selected = usize::from(self.queue_select);
        // A queue that does not exist has the size 0.
        let absent = QueueRegisters { layout: QueueLayout::default(), vector: NO_VECTOR, enabled: false };
        let queue = self.queues.get(selected).copied().unwrap_or(absent);

        CommonConfig {
            device_feature_select: self.device_feature_select.to_le_bytes(),
            device_feature: half(self.model.features, self.device_feature_select).to_le_bytes(),
            driver_feature_select: self.driver_feature_select.to_le_bytes(),
            driver_feature: half(self.accepted, self.driver_feature_select).to_le_bytes(),
            config_vector: self.config_vector.to_le_bytes(),
            queues: (self.queues.len() as u16).to_le_bytes(),
            status: self.status,
            generation: self.generation,
            queue_select: self.queue_select.to_le_bytes(),
            queue: QueueConfig {
                size: queue.layout.size.to_le_bytes(),
                vector: queue.vector.to_le_bytes(),
                enable: u16::from(queue.enabled).to_le_bytes(),
                notify_offset: self.queue_select.to_le_bytes(),
                descriptors: queue.layout.descriptors.to_le_bytes(),
                driver: queue.layout.available.to_le_bytes(),
                device: queue.layout.used.to_le_bytes(),
            },
        }
    }

    /// Writes a register. A write of another width than the register's is ignored, except that the
    /// 64-bit addresses also take their halves (4.1.3.1).
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> Request {
        let value = match *data {
            [a] => u64::from(a),
            [a, b] => u16::from_le_bytes([a, b]).into(),
            [a, b, c, d] => u32::from_le_bytes([a, b, c, d]).into(),
            [a, b, c, d, e, f, g, h] => u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            _ => return Request::None,
        };

        if (NOTIFY..NOTIFY + self.model.notify_bytes()).contains(&offset) {
            // The place of the register names the queue, and so does the value (4.1.5.2).
            return Request::Notify(((offset - NOTIFY) / u64::from(NOTIFY_STRIDE)) as usize);
        }

        match (offset, data.len()) {
            (common::DEVICE_FEATURE_SELECT, 4) => self.device_feature_select = value as u32,
            (common::DRIVER_FEATURE_SELECT, 4) => self.driver_feature_select = value as u32,
            (common::DRIVER_FEATURE, 4) => self.accept_features(value as u32),
            (common::CONFIG_VECTOR, 2) => self.config_vector = self.existing_vector(value),
            (common::STATUS, 1) => return self.write_status(value as u8),
            (common::QUEUE_SELECT, 2) => self.queue_select = value as u16,
            (_, length) => return self.write_queue(offset, length, value),
        }

        Request::None
    }

    /// Sets one half of the features that the driver accepts. Once the negotiation has ended with
    /// `FEATURES_OK`, the write is ignored.
    fn accept_features(&mut self, value: u32) {
        if self.status & status::FEATURES_OK != 0 {
            return;
        }
        let value = u64::from(value);
        match self.driver_feature_select {
            0 => self.accepted = self.accepted & !LOWER_HALF | value,
            1 => self.accepted = self.accepted & LOWER_HALF | value << 32,
            _ => {}
        }
    }

    /// Writes the device status. A driver only adds bits, or resets the device by 0 (2.1).
    fn write_status(&mut self, value: u8) -> Request {
        if value == 0 {
            return Request::Reset;
        }

        let mut added = value & !(self.status | status::NEEDS_RESET);
        // If the device refuses the driver's choice of features, `FEATURES_OK` stays 0.
        let are_offered = self.accepted & !self.model.features == 0;
        if !are_offered || self.accepted & feature::VERSION_1 == 0 {
            added &= !status::FEATURES_OK;
        }
        self.status |= added;

        Request::None
    }

    /// Writes a register of the selected queue. An enabled queue keeps its layout until a reset.
    fn write_queue(&mut self, offset: u64, length: usize, value: u64) -> Request {
        let selected = usize::from(self.queue_select);
        let vector = self.existing_vector(value);
        let Some(queue) = self.queues.get_mut(selected) else { return Request::None };
        if (offset, length) == (common::QUEUE_VECTOR, 2) {
            queue.vector = vector;
            return Request::None;
        }
        if queue.enabled {
            return Request::None;
        }

        let layout = &mut queue.layout;
        match (offset, length) {
            (common::QUEUE_SIZE, 2) => layout.size = value as u16,
            (common::QUEUE_ENABLE, 2) if value == 1 && self.status & status::FEATURES_OK != 0 => {
                queue.enabled = true;
                return Request::EnableQueue(selected);
            }
            _ => {
                let addresses = [
                    (common::QUEUE_DESCRIPTORS, &mut layout.descriptors),
                    (common::QUEUE_DRIVER, &mut layout.available),
                    (common::QUEUE_DEVICE, &mut layout.used),
                ];
                for (register, address) in addresses {
                    write_address_register(address, offset.wrapping_sub(register), length, value);
                }
            }
        }

        Request::None
    }

    /// Returns the vector of a written number, or [`NO_VECTOR`] if it does not exist (4.1.5.1.2).
    fn existing_vector(&self, value: u64) -> u16 {
        if value < u64::from(self.model.vectors()) { value as u16 } else { NO_VECTOR }
    }

    /// Records a change of the device's configuration, and reports it.
    pub(crate) fn change_config(&mut self, context: &mut Context<'_>) {
        self.generation = self.generation.wrapping_add(1);
        if self.status & status::DRIVER_OK != 0 {
            self.interrupt(context, Event::Config);
        }
    }

    /// Stops the device until the driver resets it, and reports that (2.1.2).
    pub(crate) fn require_reset(&mut self, context: &mut Context<'_>) {
        self.status |= status::NEEDS_RESET;
        if self.status & status::DRIVER_OK != 0 {
            self.interrupt(context, Event::Config);
        }
    }

    /// Interrupts the driver: by the event's vector if it uses MSI-X, and by INTx otherwise
    /// (4.1.5.3,
    /// 4.1.5.4). An event without a vector interrupts no driver that uses MSI-X.
    ///
    /// The interrupt status has the bit of a configuration change in both cases, and that of a
    /// queue without MSI-X only (4.1.4.5.1).
    pub(crate) fn interrupt(&mut self, context: &mut Context<'_>, event: Event) {
        let (vector, bit) = match event {
            Event::Config => (self.config_vector, isr::CONFIG),
            Event::Queue(index) => (self.queues[index].vector, isr::QUEUE),
        };
        let uses_msix = context.uses_msix(USER);

        if event == Event::Config || !uses_msix {
            self.isr |= bit;
        }
        if !uses_msix {
            context.set_intx(USER, true);
        } else if vector != NO_VECTOR {
            context.interrupt(USER, vector);
        }
    }
}

/// Writes a 64-bit address register, as a whole or by halves. `at` is the access's offset from the
/// register. Any other access changes nothing.
fn write_address_register(register: &mut u64, at: u64, length: usize, value: u64) {
    match (at, length) {
        (0, 8) => *register = value,
        (0, 4) => *register = *register & !LOWER_HALF | value,
        (4, 4) => *register = *register & LOWER_HALF | value << 32,
        _ => {}
    }
}

/// Copies the overlap of two register ranges from `source`, which begins at `start`, to `data`,
/// which begins at `offset`.
fn copy_overlap(offset: u64, data: &mut [u8], start: u64, source: &[u8]) {
    for (at, byte) in (offset..).zip(data) {
        if let Some(value) = at.checked_sub(start).and_then(|index| source.get(index as usize)) {
            *byte = *value;
        }
    }
}

/// Returns the description of the PCI function of a type of device.
pub(crate) fn spec(model: &Model) -> FunctionSpec {
    let device = DEVICE_BASE + model.device_type;
    let identity = Identity {
        vendor: VENDOR_VIRTIO,
        device,
        subsystem_vendor: VENDOR_VIRTIO,
        subsystem: device,
        class: model.class,
        revision: 1,
    };

    let mut bars = [const { None }; 6];
    bars[usize::from(BAR)] = Some(BarSpec::trapped(BAR_SIZE));

    FunctionSpec {
        identity,
        bars,
        attachments: vec![AttachmentSpec { name: "user0".to_owned(), group: 0 }],
        msix: Some(MsixSpec { vectors: model.vectors(), bar: BAR, table: MSIX_TABLE, pba: MSIX_PENDING }),
        intx: true,
        rings: None,
        capabilities: capabilities(model),
    }
}

/// Returns the capabilities that locate the registers. Linux's driver refuses a device that has one
/// of no bytes, so a type without a configuration has no capability for it.
fn capabilities(model: &Model) -> Vec<VendorCapability> {
    let config = model.config_bytes as u64;
    let mut capabilities = vec![
        location(capability::COMMON, COMMON, common::SIZE, &[]),
        location(capability::NOTIFY, NOTIFY, model.notify_bytes(), &NOTIFY_STRIDE.to_le_bytes()),
        location(capability::ISR, ISR, 1, &[]),
    ];
    if config > 0 {
        capabilities.push(location(capability::DEVICE, DEVICE, config, &[]));
    }
    capabilities.push(VendorCapability {
        // Offsets in the capability: of the BAR, offset and length of an access, and of its data.
        window: Some(BarWindow { bar: 4, offset: 8, length: 12, data: 16 }),
        ..location(capability::PCI, 0, 0, &[0; 4])
    });
    capabilities
}

/// Returns the capability that locates registers of one kind in the BAR (4.1.4), with the bytes of
/// `more` after the common part.
fn location(kind: u8, offset: u64, length: u64, more: &[u8]) -> VendorCapability {
    // The type, the BAR, an id and two bytes of padding.
    let mut content = vec![kind, BAR, 0, 0, 0];
    content.extend((offset as u32).to_le_bytes());
    content.extend((length as u32).to_le_bytes());
    content.extend(more);
    VendorCapability { content, window: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capability_of_the_configuration_is_there_if_it_has_bytes() {
        let kinds = |config_bytes| {
            let model = Model {
                device_type: 4,
                class: 0xff00,
                features: feature::COMMON,
                queues: &[Direction::Write],
                config_bytes,
            };
            let capabilities = spec(&model).capabilities;
            capabilities.iter().map(|capability| capability.content[0]).collect::<Vec<_>>()
        };

        let (common, notify, isr) = (capability::COMMON, capability::NOTIFY, capability::ISR);
        assert_eq!(kinds(0), [common, notify, isr, capability::PCI]);
        assert_eq!(kinds(8), [common, notify, isr, capability::DEVICE, capability::PCI]);
    }
}
