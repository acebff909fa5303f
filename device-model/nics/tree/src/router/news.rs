//! Presence symbols on their way through a node.

use nicforge_hwi::tree::{PORTS, VCS};

use super::{Router, Surroundings};
use crate::presence::SYMBOL_BYTES;

impl Router {
    /// Notes a presence word from a port or of this node, shows it, and passes it on through the
    /// other ports.
    pub(super) fn learn(
        &mut self,
        around: &mut Surroundings<'_, '_>,
        channel: usize,
        node: u32,
        word: u32,
        from: Option<usize>,
    ) {
        let onward = self.connected & !from.map_or(0, |port| 1 << port);

        if around.presence.learn(channel, node, word, onward) {
            self.counters[channel].presence += 1;
            around.channels[channel].show_presence(node, word, around.presence.changes(channel));
            for port in 0..PORTS {
                self.flush_presence(around, channel, port);
            }
        }
    }

    /// Sends the presence symbols that wait at all ports.
    #[cold]
    pub(super) fn flush_all_presence(&mut self, around: &mut Surroundings<'_, '_>) {
        for channel in 0..VCS {
            for port in 0..PORTS {
                self.flush_presence(around, channel, port);
            }
        }
    }

    /// Sends the presence symbols that wait at a port. Returns false if some still wait.
    pub(super) fn flush_presence(
        &mut self,
        around: &mut Surroundings<'_, '_>,
        channel: usize,
        port: usize,
    ) -> bool {
        while let Some(symbol) = around.presence.first(channel, port) {
            if !around.ports.ready(port as u8, channel) {
                return false;
            }

            let Some(mut packet) = around.ports.new_packet(0) else {
                self.starved = true;
                return false;
            };

            packet.header = symbol;
            packet.framing = SYMBOL_BYTES;

            if let Err(packet) = around.ports.send(port as u8, channel, packet) {
                around.ports.recycle(packet);
                return false;
            }

            around.presence.sent(channel, port);
        }
        true
    }
}
