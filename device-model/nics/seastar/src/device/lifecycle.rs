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
    processor::{InputContent, Processor, Start, companion_spec},
};

impl<P: Program + Send + 'static> SeaStar<P> {
    /// Starts the processor with a new program, and shows clients whether that has succeeded.
    pub(super) fn start_firmware(&mut self, context: &mut Context<'_>) {
        let Site { node, nodes, options, incarnations, .. } = &self.parts.site;
        let program =
            (self.make_program)(ProgramSite { node: *node, nodes: *nodes, processes: options.processes });
        // The processor starts with the present incarnations of all nodes, so that earlier changes
        // need no report.
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
        match context.start_companion(companion_spec(self.parts.site.firmware), processor) {
            Ok(end) => {
                self.firmware.epoch = end.epoch();
                self.parts.firmware.set_end(Some(end));
                self.show_firmware(firmware::RUNNING);
            }
            Err(_) => self.show_firmware(firmware::HALTED),
        }
    }

    /// Stops the firmware, ends this node's incarnation, and drops all messages. Called when the
    /// firmware halts and when the function is reset. Clients read `state` as the firmware's state.
    pub(super) fn stop_firmware(&mut self, context: &mut Context<'_>, state: u32) {
        self.parts.firmware.set_end(None);
        // This announces the end of the incarnation to the other nodes. The reports that it queues
        // for the firmware are dropped below, because no firmware reads them.
        self.end_incarnation(context);
        self.transmitter.clear(context);
        self.receiver.clear(context);

        self.firmware.timer = Nanos::NEVER;
        self.firmware.wait = None;
        self.firmware.written = 0;
        // The next firmware gets a report of each client.
        for client in &mut self.clients {
            client.reported_tenant = 0;
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

    /// Starts the firmware in the first step after power-on or a reset, and stops it if it has
    /// halted.
    pub(super) fn watch_firmware(&mut self, context: &mut Context<'_>) {
        if self.firmware.published == firmware::DOWN {
            self.start_firmware(context);
        } else if self.parts.firmware.has_halted() {
            self.halt(context);
        }
    }

    /// Stops the firmware after it has panicked, hung, or broken the rules of its calls. Only a
    /// reset of the function starts it again.
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

    /// Returns whether nodes may have changed since the last report to the firmware.
    #[inline]
    fn has_unreported_incarnations(&self) -> bool {
        self.parts.site.incarnations.has_changed(self.incarnation_changes.cursor)
            || !self.incarnation_changes.nodes.is_empty()
    }

    /// Adds the nodes that have changed in the network's table to those that must be reported.
    #[cold]
    pub(super) fn note_incarnation_changes(&mut self) {
        let site = &self.parts.site;
        match site.incarnations.take_changes(&mut self.incarnation_changes.cursor) {
            Changed::Nodes(nodes) => self.incarnation_changes.nodes.extend(nodes),
            Changed::All => self.incarnation_changes.nodes = (0..site.nodes).collect(),
        }
    }

    /// Cuts the streams of incarnations that are over, and reports the present incarnations of
    /// nodes that have changed to the firmware. Returns false if a report has to wait.
    #[cold]
    pub(super) fn report_incarnations(&mut self, context: &mut Context<'_>) -> bool {
        let now = context.now();
        while let Some(&node) = self.incarnation_changes.nodes.last() {
            let incarnation = self.parts.site.incarnations.shown(node);
            self.receiver.incarnation_changed(context, node, incarnation);
            if !self.receiver.report_cuts(&mut self.parts, now) {
                return false;
            }

            // The processor counts its own node's incarnations itself, in `Chip::set_booted`.
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

    /// Reports the tenants of attachments that have changed to the firmware. Returns false if a
    /// report has to wait.
    ///
    /// The ends of all former tenants come first. Once the firmware has seen a tenant, its calls
    /// may access those with lower numbers, so it must know by then whose place these have taken.
    #[cold]
    pub(super) fn report_tenants(&mut self, now: Nanos) -> bool {
        let Parts { firmware, tenants, .. } = &mut self.parts;
        let number_of = |index: u16| tenants.number(AttachmentId(index));

        for (index, client) in (0..).zip(&mut self.clients) {
            let epoch = client.reported_tenant;
            if epoch != 0 && epoch != number_of(index) {
                if !firmware.send(now, Event::Detached { client: Client(index), epoch }) {
                    return false;
                }
                client.reported_tenant = 0;
            }
        }

        for (index, client) in (0..).zip(&mut self.clients) {
            let number = number_of(index);
            if client.reported_tenant != number {
                if !firmware.send(now, Event::Attached { client: Client(index), epoch: number }) {
                    return false;
                }
                client.reported_tenant = number;
            }
        }

        tenants.set_changed(false);
        true
    }
}
