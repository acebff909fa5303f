//! An ACCES PCI-IDIO-16: 16 outputs, 16 inputs, and an interrupt when an input changes. Linux's
//! `gpio-pci-idio-16` drives it.
//!
//! The connector has a loop-back plug, as in a bench test: output `n` is wired to input `n`.
//!
//! In: accesses to its I/O ports ([`nicforge_hwi::idio16`]), and the time. Out: its INTx line. May
//! touch: core, family, hwi, kit.
#![forbid(unsafe_code)]

use nicforge_core::{
    context::Context,
    device::{Counter, Device, Progress, Reset, Write},
    fabric::Ports,
    ids::{Address, AttachmentId},
    register::Register,
    spec::{AttachmentSpec, BarSpec, FunctionSpec, Identity},
    time::Nanos,
};
use nicforge_family::DeviceKind;
use nicforge_hwi::idio16::*;
use nicforge_kit::retry;

/// Returns the kind of the card, for the tables `[[function]]` of machine files.
pub fn kind() -> DeviceKind {
    DeviceKind::plain("idio-16", Idio16::default)
}

// ANCHOR: state
/// The only attachment, because the card has one connector.
const USER: AttachmentId = AttachmentId(0);

/// The card.
#[derive(Default)]
pub struct Idio16 {
    lines: Lines,
    /// Number of changes of inputs.
    changes: u64,
}

/// The state that a reset restores. The default is the state of power-on.
#[derive(Default)]
struct Lines {
    /// Outputs that are high, one bit for each.
    outputs: u16,
    /// Inputs that are high, after the filters, as the ports show them.
    inputs: u16,
    /// Inputs with an active filter.
    filtered: u16,
    /// For each filtered input that has changed, the time at which its new level counts as stable.
    settled_at: [Option<Nanos>; LINES],
    /// Whether the interrupt is enabled.
    enabled: bool,
    /// Flags `STATUS_CHANGED_*` of inputs that have changed.
    changed: u8,
}
// ANCHOR_END: state

// ANCHOR: lines
impl Idio16 {
    /// Copies the outputs to the inputs, as far as their filters allow, and drives the interrupt
    /// line.
    fn update(&mut self, context: &mut Context<'_>) {
        let (lines, now) = (&mut self.lines, context.now());
        for (line, settled_at) in lines.settled_at.iter_mut().enumerate() {
            // The plug wires each input to its output, so a difference is a change of the input.
            let bit = 1 << line;
            if (lines.outputs ^ lines.inputs) & bit == 0 {
                *settled_at = None;
                continue;
            }

            if lines.filtered & bit != 0 {
                // A filtered input changes once its new level has been stable for a time.
                let time = *settled_at.get_or_insert(now.after(FILTER_NS));
                if !retry::is_due(context, time) {
                    continue;
                }
            }

            *settled_at = None;
            lines.inputs ^= bit;
            self.changes += 1;
            if lines.enabled {
                lines.changed |= if line < 8 { STATUS_CHANGED_LOW } else { STATUS_CHANGED_HIGH };
            }
        }

        context.set_intx(USER, lines.is_pending());
    }
}

impl Lines {
    /// Returns whether the interrupt line is asserted.
    fn is_pending(&self) -> bool {
        self.enabled && self.changed != 0
    }

    /// Returns the value of a port, if it has one.
    fn value(&self, port: u64) -> Option<u8> {
        let [outputs, inputs, filtered] = [self.outputs, self.inputs, self.filtered].map(u16::to_le_bytes);
        let pending = if self.is_pending() { STATUS_PENDING } else { 0 };

        match port {
            OUTPUTS_LOW => Some(outputs[0]),
            OUTPUTS_HIGH => Some(outputs[1]),
            INPUTS_LOW => Some(inputs[0]),
            INPUTS_HIGH => Some(inputs[1]),
            INTERRUPT_STATUS => Some(self.changed | pending),
            FILTERS_LOW => Some(filtered[0]),
            _ => None,
        }
    }

    /// Reads one port. Ports without a value have an effect instead: it is how a driver enables
    /// interrupts and filters.
    fn read(&mut self, port: u64) -> Option<u8> {
        match port {
            INTERRUPT_CONTROL => self.enabled = true,
            FILTER_CONTROL => self.filtered = u16::MAX,
            _ => {}
        }
        self.value(port)
    }

    /// Writes one port. A write to the ports that enable interrupts and filters disables them, and
    /// one to the lower inputs clears the changes.
    fn write(&mut self, port: u64, value: u8) {
        match port {
            OUTPUTS_LOW => self.outputs = self.outputs & 0xff00 | u16::from(value),
            OUTPUTS_HIGH => self.outputs = self.outputs & 0x00ff | u16::from(value) << 8,
            INPUTS_LOW => self.changed = 0,
            INTERRUPT_CONTROL => self.enabled = false,
            FILTER_CONTROL => self.filtered = 0,
            FILTERS_LOW if self.filtered & 0xff00 == 0 => self.filtered = value.into(),
            _ => {}
        }
    }
}
// ANCHOR_END: lines

// ANCHOR: device
impl Device for Idio16 {
    fn spec(&self) -> FunctionSpec {
        let identity = Identity {
            vendor: VENDOR_ACCES,
            device: DEVICE_PCI_IDIO_16,
            subsystem_vendor: VENDOR_ACCES,
            subsystem: DEVICE_PCI_IDIO_16,
            class: 0xff_00_00,
            revision: 0,
        };

        let mut bars = [const { None }; 6];
        bars[usize::from(PORTS_BAR)] = Some(BarSpec::io(PORTS));
        let attachments = vec![AttachmentSpec { name: "user0".to_owned(), group: 0 }];

        FunctionSpec {
            identity,
            bars,
            attachments,
            msix: None,
            intx: true,
            rings: None,
            capabilities: Vec::new(),
        }
    }

    fn registers(&self) -> &'static [Register] {
        REGISTER_MAP
    }

    fn ports(&self) -> u8 {
        0
    }

    fn read(&mut self, context: &mut Context<'_>, _: AttachmentId, at: Address, data: &mut [u8]) {
        // The card's bus is one byte wide, so a wider access is one access for each byte.
        for (port, byte) in (at.offset..).zip(data) {
            *byte = self.lines.read(port).unwrap_or(*byte);
        }
        self.update(context);
    }

    fn peek(&self, _: &Ports<'_>, _: AttachmentId, at: Address, data: &mut [u8]) -> bool {
        let mut ports = (at.offset..).zip(data);
        ports.all(|(port, byte)| self.lines.value(port).map(|value| *byte = value).is_some())
    }

    fn write(&mut self, context: &mut Context<'_>, _: AttachmentId, at: Address, data: &[u8]) -> Write {
        (at.offset..).zip(data).for_each(|(port, byte)| self.lines.write(port, *byte));
        self.update(context);
        Write::Accepted
    }

    fn step(&mut self, context: &mut Context<'_>, _: u32) -> Progress {
        self.update(context);
        Progress::Idle
    }

    fn reset(&mut self, context: &mut Context<'_>, _: Reset) {
        self.lines = Lines::default();
        self.update(context);
    }

    fn counters(&self) -> Vec<Counter> {
        vec![Counter { name: "input_changes", value: self.changes }]
    }
}
// ANCHOR_END: device
