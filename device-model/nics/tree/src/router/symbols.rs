//! Presence symbols on their way through a node.

use nicforge_hwi::tree::{PORTS, VCS};

use super::{Router, RouterContext};
use crate::presence::SYMBOL_BYTES;

impl Router {
    /// Notes a presence word from a port or of this node, shows it, and passes it on through the
    /// other ports.
    pub(super) fn learn(
        &mut self,
        context: &mut RouterContext<'_, '_>,
        channel: usize,
        node: u32,
        word: u32,
        from: Option<usize>,
    ) {
        let onward = self.connected & !from.map_or(0, |port| 1 << port);

        if context.presence.learn(channel, node, word, onward) {
            self.counters[channel].presence += 1;
            context.channels[channel].show_presence(node, word, context.presence.changes(channel));
            for port in 0..PORTS {
                self.flush_presence(context, channel, port);
            }
        }
    }

    /// Sends the presence symbols that wait at all ports.
    #[cold]
    pub(super) fn flush_all_presence(&mut self, context: &mut RouterContext<'_, '_>) {
        for channel in 0..VCS {
            for port in 0..PORTS {
                self.flush_presence(context, channel, port);
            }
        }
    }

    /// Sends the presence symbols that wait at a port. Returns false if some still wait.
    pub(super) fn flush_presence(
        &mut self,
        context: &mut RouterContext<'_, '_>,
        channel: usize,
        port: usize,
    ) -> bool {
        while let Some(symbol) = context.presence.first(channel, port) {
            if !context.ports.ready(port as u8, channel) {
                return false;
            }

            let Some(mut packet) = context.ports.new_packet(0) else {
                self.starved = true;
                return false;
            };

            packet.header = symbol;
            packet.framing = SYMBOL_BYTES;

            if let Err(packet) = context.ports.send(port as u8, channel, packet) {
                context.ports.recycle(packet);
                return false;
            }

            context.presence.sent(channel, port);
        }
        true
    }
}
