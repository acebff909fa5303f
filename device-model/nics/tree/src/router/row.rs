//! Rows of packets: the common case.
//!
//! A row is a sequence of point-to-point packets from one source that go the same way. They share
//! the lookup of the route, the check of link and FIFO, the credits, and the wake-up of the next
//! node.
//!
//! Everything less common ends a row: classes, several targets, presence symbols, checksums, absent
//! receivers, and the node's own packets onto links that take time. [`Router::advance`] then moves
//! the first packet, whatever it is.

use nicforge_core::fabric::Packet;
use nicforge_hwi::tree::{Header, PORTS};

use super::{LOCAL, Router, RouterContext};
use crate::{config::Route, fifo::RowEnd};

/// The result where no row begins.
const NONE: (u32, RowEnd) = (0, RowEnd::Other);

/// Returns the route of a point-to-point packet; `None` for any other.
#[inline(always)]
fn route_of(targets: &[Route], header: u64) -> Option<Route> {
    // A presence symbol has bits above the header's 32; a class's packet lacks the point-to-point
    // bit.
    let plain = header >> 32 == 0 && Header(header as u32).is_point_to_point();
    if plain { targets.get(Header(header as u32).node() as usize).copied() } else { None }
}

/// Returns why a row of packets with the header `alike` ended, from the packet that is first now.
#[inline(never)]
fn end_of(front: Option<&Packet>, alike: u64) -> RowEnd {
    match front {
        None => RowEnd::Empty,
        Some(packet) if packet.header == alike => RowEnd::Blocked,
        Some(_) => RowEnd::Other,
    }
}

impl Router {
    /// Moves packets that go the same way as the first packet of a source, at most `limit`. Returns
    /// the number moved and why the row ended.
    #[inline]
    pub(super) fn move_row(
        &mut self,
        context: &mut RouterContext<'_, '_>,
        channel: usize,
        source: usize,
        limit: u32,
    ) -> (u32, RowEnd) {
        let held = self.held_mask[channel] & (1 << source) != 0;
        if self.rcfg != 0 || held || context.presence.ports_waiting[channel] != 0 {
            return NONE;
        }

        if source < PORTS {
            self.port_row(context, channel, source, limit)
        } else if source == LOCAL {
            self.send_row(context, channel, limit)
        } else {
            NONE
        }
    }

    /// Moves packets from a port into the receive FIFO, or on through another port.
    #[inline(never)]
    fn port_row(
        &mut self,
        context: &mut RouterContext<'_, '_>,
        channel: usize,
        source: usize,
        limit: u32,
    ) -> (u32, RowEnd) {
        let targets = self.targets.as_slice();
        let through = self.connected & !(1 << source);
        let (mut route, mut alike) = (None, 0);

        let forwarded = context.ports.forward_row(source as u8, channel, limit, |first| {
            alike = first.header;
            route = route_of(targets, alike);
            let Some(Route::Port(port)) = route else { return None };

            // The packets of a stream have equal headers, so one comparison decides.
            let alike = alike;
            (through & (1 << port) != 0).then_some((port, move |packet: &Packet| packet.header == alike))
        });

        match (forwarded, route) {
            (Some((moved, more)), _) => {
                self.counters[channel].forwarded += u64::from(moved);
                let end = if more {
                    end_of(context.ports.peek(source as u8, channel), alike)
                } else {
                    RowEnd::Empty
                };
                (moved, end)
            }
            (None, Some(Route::Local)) => self.receive_row(context, channel, source, limit),
            (None, _) => NONE,
        }
    }

    /// Moves packets from a port into the receive FIFO.
    #[inline(never)]
    fn receive_row(
        &mut self,
        context: &mut RouterContext<'_, '_>,
        channel: usize,
        source: usize,
        limit: u32,
    ) -> (u32, RowEnd) {
        let targets = self.targets.as_slice();
        let goes = |header| route_of(targets, header) == Some(Route::Local);

        let fifo = &mut context.channels[channel];
        let (received, end) = fifo.receive_row(context.ports, source as u8, limit, goes);
        self.counters[channel].received += u64::from(received);
        (received, end)
    }

    /// Moves packets from the send FIFO to a port.
    #[inline(never)]
    fn send_row(&mut self, context: &mut RouterContext<'_, '_>, channel: usize, limit: u32) -> (u32, RowEnd) {
        let targets = self.targets.as_slice();
        let fifo = &mut context.channels[channel];
        let Some(first) = fifo.slot_header().filter(|_| context.injecting) else { return NONE };
        let Some(Route::Port(port)) = route_of(targets, first.0.into()) else { return NONE };
        if self.connected & (1 << port) == 0 {
            return NONE;
        }

        let Some(mut run) = context.ports.run(port, channel) else { return NONE };
        let goes = |header: Header| route_of(targets, header.0.into()) == Some(Route::Port(port));
        let (sent, end) = fifo.send_row(&mut run, limit, goes);

        let counters = &mut self.counters[channel];
        counters.sent += u64::from(sent);
        counters.forwarded += u64::from(sent);
        (sent, end)
    }
}
