//! The card as a device: attachments, resets, one step.

use nicforge_core::{
    context::Context,
    device::{Counter, Device, Ended, Progress, Reset, Write},
    dma::DmaError,
    fabric::Ports,
    ids::{Address, AttachmentId, DmaToken},
    posted::Posted,
    register::Register,
    spec::{AreaKind, AttachmentSpec, BarKind, BarSpec, FunctionSpec, Identity, NicSizes, Scope},
    time::Nanos,
};
use nicforge_hwi::{
    extoll::{
        BAR_DIRECTORY, BAR_VELO, LINKS, REGISTER_MAP, REGISTERS, RING_CELLS, mirror, reg, vector, window,
    },
    extoll_velo::address,
    pci,
};

use crate::{
    card::Card,
    command_budget,
    directory::Directory,
    packet::{PacketKind, TrafficClass},
    rma::Rma,
    unit::UnitContext,
    velo::Velo,
};

/// Maximum number of packets with messages that are taken from one input before other inputs are
/// served.
const MESSAGE_ROW: u32 = 32;
/// BAR of the register file.
pub(crate) const BAR_REGISTERS: u8 = 0;

impl Card {
    /// Returns whether a step can do anything: whether the switch has packets, or a unit has work.
    #[inline(always)]
    fn has_work(&self, context: &mut Context<'_>) -> bool {
        !self.parts.switch.is_idle(&context.ports())
            || self.parts.attachments.has_changes()
            || self.rma.has_work()
            || self.velo.has_work()
    }

    /// Carries out a step of a card that has work. This is not a part of [`Device::step`], because
    /// most steps of an idle card find no work. Returns the amount of work done.
    #[inline(never)]
    fn step_units(&mut self, context: &mut Context<'_>, budget: u32) -> u32 {
        let (velo, rma, mut unit) = self.units(context);
        let unit = &mut unit;
        velo.request_announcements(unit);

        let mut moved = rma.serve_side_queues(unit, budget);
        if !unit.parts.switch.is_idle(&unit.context.ports()) {
            moved += unit.parts.switch.step(&mut unit.context.ports(), budget);
            for class in TrafficClass::ALL {
                moved += take_arrivals(velo, rma, unit, class, budget);
            }
        }

        moved += rma.send(unit, budget);
        moved += velo.poll_read_pointers(unit);
        moved += velo.send_pending_control(unit);

        velo.end_overdue_splits(unit);
        self.show_changed_counters();

        moved
    }

    /// Writes changed counters to the mirrors of their attachments.
    #[inline]
    fn show_changed_counters(&mut self) {
        let (velo, rma) = (&self.velo, &self.rma);
        self.parts
            .attachments
            .show_changes(|attachment| Some((velo.counts(attachment)?, rma.counts(attachment)?)));
    }
}

/// Hands about `budget` packets of a class that are for this card to VELO and RMA. Returns the work
/// done: the number of messages and control packets, and the costs of RMA packets.
#[inline(always)]
fn take_arrivals(
    velo: &mut Velo,
    rma: &mut Rma,
    unit: &mut UnitContext<'_, '_>,
    class: TrafficClass,
    budget: u32,
) -> u32 {
    let mut count = 0;
    // Inputs whose first packet must stay where it is, one bit for each input.
    let mut blocked = 0;

    while count < budget
        && let Some(arrival) = unit.parts.switch.next_arrival(&unit.context.ports(), class, blocked)
    {
        if arrival.header.kind.is_rma() {
            match rma.take_arrival(unit, arrival) {
                Some(cost) => count += cost,
                None => blocked |= 1 << arrival.source(),
            }
        } else if arrival.header.kind == PacketKind::Velo {
            match velo.receive(unit, arrival, MESSAGE_ROW.min(budget - count)) {
                0 => blocked |= 1 << arrival.source(),
                messages => count += messages,
            }
        } else {
            let Some(packet) = unit.parts.switch.take_packet(&mut unit.context.ports(), arrival) else {
                break;
            };
            velo.handle_control(unit, arrival.header, packet.bytes());
            unit.context.ports().recycle(packet);
            count += 1;
        }
    }

    count
}

impl Device for Card {
    fn spec(&self) -> FunctionSpec {
        let identity = Identity {
            vendor: pci::VENDOR_EXTOLL,
            device: pci::DEVICE_EXTOLL,
            subsystem_vendor: pci::VENDOR_EXTOLL,
            subsystem: pci::DEVICE_EXTOLL,
            // PCI: a network controller of another kind than those that have a class of their own.
            class: 0x02_80_00,
            revision: 1,
        };

        let vpids = (0..self.parts.config.vpids).map(|vpid| format!("vpid{vpid}"));
        let attachments = vpids
            .chain(std::iter::once("admin".to_owned()))
            .map(|name| AttachmentSpec { name, group: 0 })
            .collect();

        let mut spec = FunctionSpec::nic(
            identity,
            attachments,
            NicSizes {
                register_bytes: REGISTERS,
                vectors: vector::COUNT,
                ring_cells: RING_CELLS,
                window_bytes: window::SIZE,
                mirror_bytes: mirror::SIZE,
            },
        );

        spec.bars[usize::from(BAR_VELO)] = Some(BarSpec {
            kind: BarKind::Memory64 { prefetchable: true },
            ..BarSpec::trapped(address::APERTURE)
        });
        spec.bars[usize::from(BAR_DIRECTORY)] = Some(BarSpec::memory(
            Directory::bytes(self.parts.config.nodes),
            AreaKind::Mirrored,
            Scope::Group,
        ));
        spec
    }

    fn registers(&self) -> &'static [Register] {
        REGISTER_MAP
    }

    fn ports(&self) -> u8 {
        LINKS as u8
    }

    fn attached(&mut self, context: &mut Context<'_>, attachment: AttachmentId) {
        if self.clients.is_empty() {
            self.parts.directory.set_client_memory(context.memory(attachment, BAR_DIRECTORY));
        }

        self.clients.add(attachment);
        self.parts.attachments.open(attachment);
        self.velo.open(attachment);
        self.rma.open(attachment);
        self.reset_attachment(context, attachment);
    }

    fn detached(&mut self, _: &mut Context<'_>, attachment: AttachmentId, _: Ended) {
        self.detach(attachment);
        self.clients.remove(attachment);
        if self.clients.is_empty() {
            self.parts.directory.set_client_memory(None);
        }
    }

    fn reset(&mut self, context: &mut Context<'_>, reach: Reset) {
        match reach {
            Reset::Attachment(attachment) => self.reset_attachment(context, attachment),
            Reset::Function => {
                for attachment in self.parts.attachments.ids() {
                    self.reset_attachment(context, attachment);
                }
                self.reset_shared_state(context);
                // The machine leaves it to the device to clear memory that all clients share. This
                // writes every generation anew.
                let memory = self
                    .parts
                    .attachments
                    .ids()
                    .find_map(|attachment| context.memory(attachment, BAR_DIRECTORY));
                self.parts.directory.set_client_memory(memory);
            }
        }
        // The next step sends the announcements, and requests for them, that follow from the reset.
        context.wake_at(Nanos::ZERO);
    }

    fn read(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &mut [u8]) {
        if at.bar == BAR_REGISTERS {
            self.read_register(context, from, at.offset, data);
            self.show_changed_counters();
        }
    }

    fn peek(&self, ports: &Ports<'_>, from: AttachmentId, at: Address, data: &mut [u8]) -> bool {
        at.bar == BAR_REGISTERS && self.peek_register(ports, from, at.offset, data)
    }

    fn write(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &[u8]) -> Write {
        match at.bar {
            BAR_VELO => {
                let (velo, _, mut unit) = self.units(context);
                velo.send(&mut unit, from, at.offset, data)
            }
            BAR_REGISTERS if at.offset == reg::RMA_COMMAND => {
                let (_, rma, mut unit) = self.units(context);
                rma.write_command(&mut unit, from, data)
            }
            BAR_REGISTERS
                if command_budget::is_expensive(at.offset) && !self.parts.command_budget.admit(from.0) =>
            {
                Write::Stalled
            }
            BAR_REGISTERS => {
                self.write_register(context, from, at.offset, data);
                Write::Accepted
            }
            _ => Write::Accepted,
        }
    }

    fn drain(&mut self, context: &mut Context<'_>, from: AttachmentId, posted: &mut Posted<'_>) -> Write {
        while let Some((at, data)) = posted.next(context) {
            if at.bar == BAR_VELO {
                // This also sends the messages behind the first one, and removes their records.
                let (velo, _, mut unit) = self.units(context);
                if velo.send_front(&mut unit, from, at.offset, posted) == Write::Stalled {
                    return Write::Stalled;
                }
                continue;
            }

            if self.write(context, from, at, data) == Write::Stalled {
                return Write::Stalled;
            }
            posted.done(context);
        }
        Write::Accepted
    }

    fn dma_done(
        &mut self,
        _: &mut Context<'_>,
        attachment: AttachmentId,
        token: DmaToken,
        result: Result<&[u8], DmaError>,
    ) {
        self.rma.read_answered(attachment, token, result);
    }

    fn step(&mut self, context: &mut Context<'_>, budget: u32) -> Progress {
        // The posted-write rings were drained before this step, so the pass of commands ends here.
        let has_waiting_commands = self.parts.command_budget.end_pass();

        let moved = if self.has_work(context) { self.step_units(context, budget) } else { 0 };
        if moved > 0 || has_waiting_commands { Progress::Busy } else { Progress::Idle }
    }

    fn counters(&self) -> Vec<Counter> {
        let (velo, rma) = (self.velo.totals(), self.rma.totals());
        vec![
            Counter { name: "velo_sent", value: velo.sent },
            Counter { name: "velo_received", value: velo.delivered },
            Counter { name: "velo_undelivered", value: velo.undelivered },
            Counter { name: "velo_stalls", value: velo.stalls },
            Counter { name: "velo_torn", value: velo.torn },
            Counter { name: "rma_commands", value: rma.clients.commands },
            Counter { name: "rma_completed", value: rma.clients.completed },
            Counter { name: "rma_overflows", value: rma.clients.overflows },
            Counter { name: "rma_refused", value: rma.refused },
            Counter { name: "rma_timed_out", value: rma.timed_out },
            Counter { name: "rma_over_budget", value: rma.over_budget },
            Counter { name: "rma_bytes_written", value: rma.bytes },
            Counter { name: "atu_entries", value: self.parts.atu.entries() },
            Counter { name: "atu_refused", value: self.parts.atu.refused() },
            Counter { name: "command_visits", value: self.parts.command_budget.visits() },
            Counter { name: "watchdogs", value: velo.given_up },
            Counter { name: "forwarded", value: self.parts.switch.forwarded() },
            Counter { name: "errors", value: self.parts.attachments.errors() },
        ]
    }
}
