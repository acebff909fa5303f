//! Start and end of the firmware's and of nodes' incarnations, and the changes of incarnations and
//! tenants, which the firmware must receive before any other event.

use nicforge_core::{context::Context, ids::AttachmentId, time::Nanos};
use nicforge_hwi::seastar::firmware;
use nicforge_seastar_firmware::chip::{Client, Event, Program};

use super::{ProgramSite, SeaStar};
use crate::{
    config::Site,
    incarnations::Changed,
    parts::Parts,
    processor::{InputContent, Processor, Start, spec},
};

impl<P: Program + Send + 'static> SeaStar<P> {
    /// Begins an incarnation of the processor.
    pub(super) fn start_firmware(&mut self, context: &mut Context<'_>) {
        let Site { node, nodes, options, incarnations, .. } = &self.parts.site;
        let program = (self.make)(ProgramSite { node: *node, nodes: *nodes, processes: options.processes });
        // The processor starts with the present incarnations, so that unreported changes are void.
        let _ = incarnations.take_changes(&mut self.incarnation_changes.cursor);
        self.incarnation_changes.nodes.clear();
        let start = Start {
            node: *node,
            clock: options.clock,
            incarnations: (0..*nodes).map(|node| incarnations.shown(node)).collect(),
            last_incarnation: self.firmware.last_incarnation,
            now: context.now(),
        };

        let processor = Processor::new(program, start, self.counters.clone());
        match context.start_companion(spec(self.parts.site.firmware), processor) {
            Ok(end) => {
                self.firmware.epoch = end.epoch();
                self.parts.firmware.begin(Some(end));
                self.show_firmware(firmware::RUNNING);
            }
            Err(_) => self.show_firmware(firmware::HALTED),
        }
    }

    /// Stops the firmware, ends this node's incarnation, and drops all messages. Called when the
    /// firmware halts and when the function is reset. Clients read `state` as the firmware's state.
    pub(super) fn stop_firmware(&mut self, context: &mut Context<'_>, state: u32) {
        self.parts.firmware.begin(None);
        // The end of the incarnation is announced to the other nodes. Its reports to the firmware
        // are then dropped with the rest, because no firmware reads them.
        self.end_incarnation(context);
        self.transmitter.clear(context);
        self.receiver.clear(context);

        self.firmware.timer = Nanos::NEVER;
        self.firmware.wait = None;
        self.firmware.written = 0;
        // The next firmware must hear of every client again.
        for client in &mut self.clients {
            client.known = 0;
        }
        self.parts.tenants.set_changed(true);
        self.show_firmware(state);
    }

    /// Ends this node's incarnation, if it has one.
    pub(super) fn end_incarnation(&mut self, context: &mut Context<'_>) {
        if self.parts.own_incarnation != 0 {
            self.parts.own_incarnation = 0;
            self.parts.site.incarnations.end(self.parts.site.node, context.now());
            self.transmitter.end_incarnation(context);
            self.receiver.cut_all(context);
        }
    }

    /// Starts the firmware at the first step, and records that it has halted.
    pub(super) fn watch_firmware(&mut self, context: &mut Context<'_>) {
        if self.firmware.published == firmware::DOWN {
            self.start_firmware(context);
        } else if self.parts.firmware.has_halted() {
            self.halt(context);
        }
    }

    #[cold]
    pub(super) fn halt(&mut self, context: &mut Context<'_>) {
        self.firmware.halts += 1;
        self.stop_firmware(context, firmware::HALTED);
    }

    /// Reports changes of nodes and tenants to the firmware. Returns false if a report has to wait;
    /// no other event may then reach the firmware.
    #[inline]
    pub(super) fn report_changes_to_firmware(&mut self, context: &mut Context<'_>) -> bool {
        if !self.parts.firmware.is_running() {
            return false;
        }

        if self.has_unreported_incarnations() {
            self.note_incarnation_changes();
            if !self.report_incarnations(context) {
                return false;
            }
        }
        !self.parts.tenants.has_changed() || self.report_tenants(context.now())
    }

    /// Returns whether nodes or tenants may have changed since the last report to the firmware.
    #[inline]
    pub(super) fn has_unreported_changes(&self) -> bool {
        self.parts.tenants.has_changed() || self.has_unreported_incarnations()
    }

    #[inline]
    fn has_unreported_incarnations(&self) -> bool {
        self.parts.site.incarnations.has_changed(self.incarnation_changes.cursor)
            || !self.incarnation_changes.nodes.is_empty()
    }

    #[cold]
    pub(super) fn note_incarnation_changes(&mut self) {
        let site = &self.parts.site;
        match site.incarnations.take_changes(&mut self.incarnation_changes.cursor) {
            Changed::Nodes(nodes) => self.incarnation_changes.nodes.extend(nodes),
            Changed::All => self.incarnation_changes.nodes = (0..site.nodes).collect(),
        }
    }

    /// Cuts the streams of incarnations that are over, and reports the incarnations of nodes to the
    /// firmware.
    #[cold]
    pub(super) fn report_incarnations(&mut self, context: &mut Context<'_>) -> bool {
        let now = context.now();
        while let Some(&node) = self.incarnation_changes.nodes.last() {
            let incarnation = self.parts.site.incarnations.shown(node);
            self.receiver.incarnation_changed(context, node, incarnation);
            if !self.receiver.report_cuts(&mut self.parts, now) {
                return false;
            }

            // The processor counts its own node's incarnations itself.
            let is_own = node == self.parts.site.node;
            if !is_own
                && !self.parts.firmware.send_input(now, InputContent::Incarnation { node, incarnation })
            {
                return false;
            }
            self.incarnation_changes.nodes.pop();
        }
        true
    }

    /// Reports the tenants of attachments to the firmware.
    #[cold]
    pub(super) fn report_tenants(&mut self, now: Nanos) -> bool {
        let Parts { firmware, tenants, .. } = &mut self.parts;
        for (attachment_id, client) in self.clients.iter_mut().enumerate() {
            let (attachment_id, number) =
                (attachment_id as u16, tenants.number(AttachmentId(attachment_id as u16)));
            if client.known == number {
                continue;
            }

            if client.known != 0 {
                let event = Event::Detached { client: Client(attachment_id), epoch: client.known };
                if !firmware.send(now, event) {
                    return false;
                }
                client.known = 0;
            }
            if number != 0 {
                if !firmware.send(now, Event::Attached { client: Client(attachment_id), epoch: number }) {
                    return false;
                }
                client.known = number;
            }
        }

        tenants.set_changed(false);
        true
    }
}
