//! Start and end of the firmware's and of nodes' lives, and the changes of lives and tenants, which
//! the firmware must receive before any other event.

use nicforge_core::{context::Context, ids::AttachmentId, time::Nanos};
use nicforge_hwi::seastar::firmware;
use nicforge_seastar_firmware::chip::{Client, Event, Program};

use super::{ProgramSite, SeaStar};
use crate::{
    config::Site,
    lives::Changed,
    parts::Parts,
    processor::{News, Processor, Start, spec},
};

impl<P: Program + Send + 'static> SeaStar<P> {
    /// Begins a life of the processor.
    pub(super) fn start_firmware(&mut self, context: &mut Context<'_>) {
        let Site { node, nodes, options, lives, .. } = &self.parts.site;
        let program = (self.make)(ProgramSite { node: *node, nodes: *nodes, processes: options.processes });
        // The changes until now are in the table that the processor gets.
        let _ = lives.take_changes(&mut self.lives.cursor);
        self.lives.nodes.clear();
        let start = Start {
            node: *node,
            clock: options.clock,
            lives: (0..*nodes).map(|node| lives.shown(node)).collect(),
            last_life: self.firmware.last_life,
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

    /// Stops the firmware, ends this node's life, and drops all messages. Called when the firmware
    /// halts and when the function is reset. Clients read `state` as the firmware's state.
    pub(super) fn stop_firmware(&mut self, context: &mut Context<'_>, state: u32) {
        self.parts.firmware.begin(None);
        // The end of the life is announced to the other nodes. Its reports to the firmware are then
        // dropped with the rest, because no firmware reads them.
        self.end_life(context);
        self.transmitter.clear(context);
        self.receiver.clear(context);

        self.firmware.timer = Nanos::NEVER;
        self.firmware.waits_since = None;
        self.firmware.written = 0;
        // The next firmware must hear of every client again.
        for client in &mut self.clients {
            client.known = 0;
        }
        self.parts.tenants.set_changed(true);
        self.show_firmware(state);
    }

    /// Ends this node's life, if it has one.
    pub(super) fn end_life(&mut self, context: &mut Context<'_>) {
        if self.parts.own_life != 0 {
            self.parts.own_life = 0;
            self.parts.site.lives.end(self.parts.site.node, context.now());
            self.transmitter.end_life(context);
            self.receiver.cut_all(context);
        }
    }

    /// Starts the firmware at the first step, and notes that it has halted.
    pub(super) fn watch_firmware(&mut self, context: &mut Context<'_>) {
        if self.firmware.shown == firmware::DOWN {
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

    /// Shows the firmware what has happened to nodes and tenants. Returns false if some of it has
    /// to wait; nothing else may then reach the firmware.
    #[inline]
    pub(super) fn announce(&mut self, context: &mut Context<'_>) -> bool {
        if !self.parts.firmware.is_running() {
            return false;
        }

        if self.has_news_of_lives() {
            self.note_life_changes();
            if !self.announce_lives(context) {
                return false;
            }
        }
        !self.parts.tenants.has_changed() || self.announce_tenants(context.now())
    }

    /// Returns whether the firmware may have to see something of nodes or tenants.
    #[inline]
    pub(super) fn has_news_of_others(&self) -> bool {
        self.parts.tenants.has_changed() || self.has_news_of_lives()
    }

    #[inline]
    fn has_news_of_lives(&self) -> bool {
        self.parts.site.lives.has_changed(self.lives.cursor) || !self.lives.nodes.is_empty()
    }

    #[cold]
    pub(super) fn note_life_changes(&mut self) {
        let site = &self.parts.site;
        match site.lives.take_changes(&mut self.lives.cursor) {
            Changed::Nodes(nodes) => self.lives.nodes.extend(nodes),
            Changed::All => self.lives.nodes = (0..site.nodes).collect(),
        }
    }

    /// Cuts the streams of lives that are over, and shows the firmware the lives of nodes.
    #[cold]
    pub(super) fn announce_lives(&mut self, context: &mut Context<'_>) -> bool {
        let now = context.now();
        while let Some(&node) = self.lives.nodes.last() {
            let life = self.parts.site.lives.shown(node);
            self.receiver.life_changed(context, node, life);
            if !self.receiver.show_cuts(&mut self.parts, now) {
                return false;
            }

            // The processor counts its own node's lives itself.
            let is_own = node == self.parts.site.node;
            if !is_own && !self.parts.firmware.send_news(now, News::Life { node, life }) {
                return false;
            }
            self.lives.nodes.pop();
        }
        true
    }

    /// Shows the firmware the tenants of attachments.
    #[cold]
    pub(super) fn announce_tenants(&mut self, now: Nanos) -> bool {
        let Parts { firmware, tenants, .. } = &mut self.parts;
        for (who, client) in self.clients.iter_mut().enumerate() {
            let (who, number) = (who as u16, tenants.number(AttachmentId(who as u16)));
            if client.known == number {
                continue;
            }

            if client.known != 0 {
                let event = Event::Detached { client: Client(who), epoch: client.known };
                if !firmware.send(now, event) {
                    return false;
                }
                client.known = 0;
            }
            if number != 0 {
                if !firmware.send(now, Event::Attached { client: Client(who), epoch: number }) {
                    return false;
                }
                client.known = number;
            }
        }

        tenants.set_changed(false);
        true
    }
}
