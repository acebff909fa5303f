//! Presence symbols on their way through a node.

use nicforge_hwi::tree::{PORTS, VCS};

use super::{Router, RouterContext};
use crate::presence::SYMBOL_BYTES;

impl Router {
    /// Records a node's presence word that came from a port (`from`), or that this node has set
    /// itself (`None`). A new word is shown in the mirror and sent through all other ports.
    pub(super) fn update_presence(
        &mut self,
        context: &mut RouterContext<'_, '_>,
        channel: usize,
        node: u32,
        presence_word: u32,
        from: Option<u8>,
    ) {
        let onward = self.routes.connected() & !from.map_or(0, |port| 1 << port);

        if context.presence.update_word(channel, node, presence_word, onward) {
            self.counters[channel].presence += 1;
            context.channels[channel].show_presence(node, presence_word, context.presence.changes(channel));
            for port in 0..PORTS as u8 {
                self.flush_presence(context, channel, port);
            }
        }
    }

    /// Sends the presence symbols that wait at all ports.
    #[cold]
    pub(super) fn flush_all_presence(&mut self, context: &mut RouterContext<'_, '_>) {
        for channel in 0..VCS {
            for port in 0..PORTS as u8 {
                self.flush_presence(context, channel, port);
            }
        }
    }

    /// Sends the presence symbols that wait at a port, as far as credits and free packets are
    /// available.
    fn flush_presence(&mut self, context: &mut RouterContext<'_, '_>, channel: usize, port: u8) {
        while let Some(symbol) = context.presence.first(channel, port.into()) {
            if !context.ports.ready(port, channel) {
                return;
            }

            let Ok(mut packet) = context.ports.new_packet(0) else {
                self.starved = true;
                return;
            };

            packet.header = symbol;
            packet.framing = SYMBOL_BYTES;

            if let Err(unsent) = context.ports.send(port, channel, packet) {
                context.ports.recycle(unsent.packet);
                return;
            }

            context.presence.remove_first(channel, port.into());
        }
    }
}
