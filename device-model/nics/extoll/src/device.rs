//! The card as a device: attachments, resets, one step.

use nicforge_core::{
    context::Context,
    device::{Counter, Device, Ended, Progress, Reset, Write},
    dma::DmaError,
    ids::{Address, AttachmentId, DmaToken},
    posted::Posted,
    spec::{AreaKind, AttachmentSpec, BarKind, BarSpec, FunctionSpec, Identity, Scope},
    time::Nanos,
};
use nicforge_hwi::{
    extoll::{BAR_DIRECTORY, BAR_VELO, REGISTERS, RING_CELLS, mirror, reg, vector, window},
    extoll_velo::address,
    pci,
};

use crate::{
    card::Card,
    directory::Directory,
    velo::send::{Reason, Sent},
    wire::{Class, Kind},
    work,
};

/// Messages taken from one source before other sources are served.
const RUN: u32 = 32;

impl Card {
    /// Takes about `budget` packets of a class that are for this card. Returns the number taken.
    fn take_arrivals(&mut self, context: &mut Context<'_>, class: Class, budget: u32) -> u32 {
        let mut taken = 0;
        // Inputs whose first packet must stay, one bit for each input.
        let mut waiting = 0;

        while taken < budget
            && let Some(arrival) = self.switch.arrived(&context.ports(), class, waiting)
        {
            if arrival.wire.kind.is_rma() {
                match self.rma_arrived(context, arrival) {
                    Some(cost) => taken += cost,
                    None => waiting |= 1 << arrival.source(),
                }
            } else if arrival.wire.kind == Kind::Velo {
                let run = self.receive(context, arrival, RUN.min(budget - taken));
                if run == 0 {
                    break;
                }
                taken += run;
            } else {
                let Some(packet) = self.switch.take(&mut context.ports(), arrival) else { break };
                self.handle_control(arrival.wire, packet.bytes());
                context.ports().recycle(packet);
                taken += 1;
            }
        }

        taken
    }
}

impl Device for Card {
    fn spec(&self) -> FunctionSpec {
        let identity = Identity {
            vendor: pci::VENDOR_EXTOLL,
            device: pci::DEVICE_EXTOLL,
            subsystem_vendor: pci::VENDOR_EXTOLL,
            subsystem: pci::DEVICE_EXTOLL,
            class: 0x02_80_00,
            revision: 1,
        };

        let vpids = (0..self.config.vpids).map(|vpid| format!("vpid{vpid}"));
        let attachments = vpids
            .chain(std::iter::once("admin".to_owned()))
            .map(|name| AttachmentSpec { name, group: 0 })
            .collect();

        let mut spec = FunctionSpec::nic(
            identity,
            attachments,
            REGISTERS,
            vector::COUNT,
            RING_CELLS,
            window::SIZE,
            mirror::SIZE,
        );

        spec.bars[usize::from(BAR_VELO)] = Some(BarSpec {
            kind: BarKind::Memory64 { prefetchable: true },
            ..BarSpec::trapped(address::APERTURE)
        });
        spec.bars[usize::from(BAR_DIRECTORY)] =
            Some(BarSpec::memory(Directory::bytes(self.config.nodes), AreaKind::Mirrored, Scope::Group));
        spec
    }

    fn attached(&mut self, context: &mut Context<'_>, who: AttachmentId) {
        self.clients += 1;
        if self.clients == 1 {
            self.directory.show_in(context.memory(who, BAR_DIRECTORY));
        }
        self.power_on(context, who);
    }

    fn detached(&mut self, _: &mut Context<'_>, who: AttachmentId, _: Ended) {
        self.work.forget(who.0);
        self.disable_ring(who);
        self.rma_power_on(who);
        if let Some(vpid) = self.vpid(who) {
            vpid.windows = None;
        }
        self.clients = self.clients.saturating_sub(1);
        if self.clients == 0 {
            self.directory.show_in(None);
        }
    }

    fn reset(&mut self, context: &mut Context<'_>, reach: Reset) {
        match reach {
            Reset::Attachment(who) => self.power_on(context, who),
            Reset::Function => {
                for number in 0..self.vpids.len() {
                    self.power_on(context, AttachmentId(number as u16));
                }
                self.forget(context);
                self.directory.show_in(
                    (0..self.vpids.len())
                        .find_map(|number| context.memory(AttachmentId(number as u16), BAR_DIRECTORY)),
                );
            }
        }
        context.wake_at(Nanos::ZERO);
    }

    fn read(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &mut [u8]) {
        if at.bar == 0 {
            self.read_register(context, from, at.offset, data);
        }
    }

    fn write(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &[u8]) -> Write {
        match at.bar {
            BAR_VELO => self.send(context, from, at.offset, data),
            0 if at.offset == reg::RMA_COMMAND => self.rma_command(context, from, data),
            0 if work::is_expensive(at.offset) && !self.work.admit(from.0) => Write::Stalled,
            0 => {
                self.write_register(context, from, at.offset, data);
                Write::Accepted
            }
            _ => Write::Accepted,
        }
    }

    fn drain(&mut self, context: &mut Context<'_>, from: AttachmentId, posted: &mut Posted<'_>) -> Write {
        while let Some((at, _)) = posted.next(context) {
            if at.bar == BAR_VELO {
                let offset = at.offset;
                match self.send_run(context, from, offset, posted) {
                    Sent::Some => continue,
                    Sent::Nothing => {}
                    Sent::Blocked => match self.stall(context, from, offset, Reason::Way) {
                        Write::Stalled => return Write::Stalled,
                        // The watchdog has ended the send.
                        Write::Accepted => {
                            posted.done(context);
                            continue;
                        }
                    },
                }
            }

            // The first record again, as a single write.
            let Some((at, data)) = posted.next(context) else { break };
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
        who: AttachmentId,
        token: DmaToken,
        result: Result<&[u8], DmaError>,
    ) {
        self.stage_arrived(who, token, result);
    }

    fn step(&mut self, context: &mut Context<'_>, budget: u32) -> Progress {
        // The posted-write rings were drained before this step, so the turn of commands ends here.
        let waited_for = self.work.turn();

        if self.next_request.is_some() {
            self.request_announcements(context);
        }

        let mut moved = self.serve_side_queues(context, budget);
        if !self.switch.is_quiet(&context.ports()) {
            moved += self.switch.step(&mut context.ports(), budget);
            for class in Class::ALL {
                moved += self.take_arrivals(context, class, budget);
            }
        }

        moved += self.rma_send(context, budget);
        let mut next = self.unread.from(0);
        while let Some(who) = next {
            moved += u32::from(self.look_at_read_pointer(context, who));
            next = self.unread.from(who + 1);
        }

        next = self.with_pending_control.from(0);
        while let Some(who) = next {
            self.send_pending_control(context, who);
            moved += 1;
            next = self.with_pending_control.from(who + 1);
        }

        next = self.with_changed_counters.from(0);
        while let Some(who) = next {
            let rma = self.rma.counts(AttachmentId(who));
            self.vpids[usize::from(who)].show_changes(rma);
            self.with_changed_counters.remove(who);
            next = self.with_changed_counters.from(who + 1);
        }

        if !self.splits.is_empty() {
            self.give_up_splits(context);
        }
        if moved > 0 || waited_for { Progress::Busy } else { Progress::Idle }
    }

    fn counters(&self) -> Vec<Counter> {
        let rma = self.rma.totals();
        let sent = self.sent_before + self.vpids.iter().map(|vpid| vpid.counts.sent).sum::<u64>();
        vec![
            Counter { name: "velo_sent", value: sent },
            Counter { name: "velo_received", value: self.delivered },
            Counter { name: "velo_undelivered", value: self.undelivered },
            Counter { name: "velo_stalls", value: self.stalls },
            Counter { name: "velo_torn", value: self.torn },
            Counter { name: "rma_commands", value: rma.commands },
            Counter { name: "rma_completed", value: rma.completed },
            Counter { name: "rma_overflows", value: rma.overflows },
            Counter { name: "rma_refused", value: self.rma.refused },
            Counter { name: "rma_timed_out", value: self.rma.watchdog.ended },
            Counter { name: "rma_hurried", value: self.rma.hurried },
            Counter { name: "rma_bytes_written", value: self.rma.bytes },
            Counter { name: "atu_entries", value: self.atu.entries() },
            Counter { name: "atu_refused", value: self.atu.refused() },
            Counter { name: "command_visits", value: self.work.visits() },
            Counter { name: "watchdogs", value: self.watchdogs },
            Counter { name: "forwarded", value: self.switch.forwarded() },
            Counter { name: "errors", value: self.errors },
        ]
    }
}
