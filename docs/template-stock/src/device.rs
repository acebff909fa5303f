//! The model of the card.
//!
//! It has no rings yet: a frame that arrives is dropped and counted, as on a card whose driver has
//! given it no buffers.

use nicforge_core::{
    context::Context,
    device::{Counter, Device, Progress, Reset, Write},
    fabric::Ports,
    ids::{Address, AttachmentId},
    register::Register,
    spec::{AttachmentSpec, BarSpec, FunctionSpec, Identity},
    warning::Warning,
};
use nicforge_kit::RegisterValue;

use crate::registers::{
    BAR, BAR_SIZE, CLASS, DEVICE, REG_CONTROL, REG_ENABLED, REG_EVENTS, REG_STATUS, REGISTERS, VENDOR,
    control, event, status,
};

/// The only attachment: a driver of Linux expects the card for itself.
const USER: AttachmentId = AttachmentId(0);
/// The only port, and its virtual channel.
const PORT: u8 = 0;
const CHANNEL: usize = 0;

/// The card.
#[derive(Debug, Default)]
pub struct Ferry {
    /// The events since they were cleared, and those that assert the interrupt line.
    events: u32,
    enabled: u32,
    /// Number of frames that were dropped.
    missed: u64,
}

impl Ferry {
    /// Notes events, and drives the interrupt line.
    fn note(&mut self, context: &mut Context<'_>, events: u32) {
        self.events |= events;
        self.drive_line(context);
    }

    /// Drives the interrupt line to its present level. Whatever may change the level ends with it.
    fn drive_line(&self, context: &mut Context<'_>) {
        context.set_intx(USER, self.events & self.enabled != 0);
    }

    /// Returns to the state of power-on. The counts continue.
    fn power_on(&mut self, context: &mut Context<'_>) {
        (self.events, self.enabled) = (0, 0);
        self.drive_line(context);
    }
}

impl Device for Ferry {
    fn spec(&self) -> FunctionSpec {
        let identity = Identity {
            vendor: VENDOR,
            device: DEVICE,
            subsystem_vendor: VENDOR,
            subsystem: 0,
            class: CLASS,
            revision: 1,
        };

        let mut bars = [const { None }; 6];
        bars[usize::from(BAR)] = Some(BarSpec::trapped(BAR_SIZE));

        FunctionSpec {
            identity,
            bars,
            attachments: vec![AttachmentSpec { name: "user0".to_owned(), group: 0 }],
            msix: None,
            intx: true,
            rings: None,
            capabilities: Vec::new(),
        }
    }

    fn ports(&self) -> u8 {
        1
    }

    fn registers(&self) -> &'static [Register] {
        REGISTERS
    }

    fn read(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &mut [u8]) {
        // `data` comes filled with ones, the value of reads that no register answers.
        self.peek(&context.ports(), from, at, data);
    }

    fn peek(&self, ports: &Ports<'_>, _: AttachmentId, at: Address, data: &mut [u8]) -> bool {
        match at.offset {
            REG_STATUS => {
                let is_up = ports.is_up(PORT);
                (if is_up { status::LINK_UP } else { 0 }).answer_read(data);
            }
            REG_EVENTS => self.events.answer_read(data),
            REG_ENABLED => self.enabled.answer_read(data),
            _ => return false,
        }
        true
    }

    fn write(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &[u8]) -> Write {
        match (at.offset, u32::from_write(data)) {
            (REG_CONTROL, Some(bits)) if bits & control::RESET != 0 => self.power_on(context),
            (REG_EVENTS, Some(bits)) => self.events &= !bits,
            (REG_ENABLED, Some(bits)) => self.enabled = bits & event::ALL,
            (REG_CONTROL, Some(_)) => {}
            _ => {
                // The log says which of the driver's accesses the model does not know.
                let rule = &"a write has the width of a register that can be written";
                context.warn(from, Warning::refused(rule).register(at).written(data));
            }
        }

        self.drive_line(context);
        Write::Accepted
    }

    fn link_changed(&mut self, context: &mut Context<'_>, _: u8, _: bool) {
        self.note(context, event::LINK);
    }

    fn step(&mut self, context: &mut Context<'_>, budget: u32) -> Progress {
        let mut dropped = 0;
        while dropped < budget
            && let Some(frame) = context.ports().take(PORT, CHANNEL)
        {
            context.ports().recycle(frame);
            dropped += 1;
        }
        if dropped == 0 {
            return Progress::Idle;
        }

        self.missed += u64::from(dropped);
        self.note(context, event::MISSED);
        Progress::Busy
    }

    fn reset(&mut self, context: &mut Context<'_>, _: Reset) {
        self.power_on(context);
    }

    fn counters(&self) -> Vec<Counter> {
        vec![Counter { name: "missed", value: self.missed }]
    }
}
