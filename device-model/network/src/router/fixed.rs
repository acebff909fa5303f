//! The shorter way of packets that have one exit without the bubble rule.
//!
//! Most packets of a busy network are such. The router sends the one whose turn it is without a
//! look at the room of the others.

use nicforge_core::fabric::PortChannel;

use super::{
    Links, MAX_INPUTS, Policy, RoutedPacket, Router, Source,
    heads::Heads,
    outputs::Choice,
    plan::Plan,
    requests::{Inputs, bits},
};

impl<P: Policy, K: RoutedPacket> Router<P, K> {
    /// Sends the packet of the input whose turn it is at a port, if the packet has one exit,
    /// without the bubble rule, and room behind it. Returns false, and changes nothing, otherwise.
    ///
    /// [`Router::serve_one_of`] does the same with such a packet, but checks the room of all
    /// inputs. Most packets of a busy network take this path.
    #[inline(always)]
    pub(super) fn send_fixed<L: Links<Packet = K>>(&mut self, ports: &mut L, port: u8) -> bool {
        let Some(output) = self.outputs.ports.get(usize::from(port)) else { return false };
        let requesting = output.requests.fixed;
        if requesting & requesting.wrapping_sub(1) != 0 {
            return self.send_chosen(ports, port, requesting);
        }

        // Nothing but the input has to be kept while the packet is sent.
        let input = requesting.trailing_zeros() as usize % MAX_INPUTS;
        let Some(vc) = self.fixed_vc(input, port) else { return false };
        if self.plan.rules.injection >> input & 1 == 1 {
            return self.send_fixed_injected(ports, input, (port, vc));
        }
        self.forward_fixed(ports, input, (port, vc), false)
    }

    /// Sends the packet of one of several inputs as [`Router::send_fixed`] does.
    #[inline(always)]
    fn send_chosen<L: Links<Packet = K>>(&mut self, ports: &mut L, port: u8, requesting: Inputs) -> bool {
        let Choice { input, is_injected, competes, .. } =
            self.outputs.choose(&self.plan.rules, requesting, port);
        let input = usize::from(input) % MAX_INPUTS;
        let Some(vc) = self.fixed_vc(input, port) else { return false };
        // An input without room has no part in the choice. That makes a difference only if none of
        // those that the choice competes with has room.
        if competes && !competes_with_room(&self.plan, &self.heads, ports, port, (requesting, is_injected)) {
            return false;
        }

        if is_injected {
            return self.send_fixed_injected(ports, input, (port, vc));
        }
        self.forward_fixed(ports, input, (port, vc), competes)
    }

    /// Returns the virtual channel of the first packet of an input, if a port is its one exit, and
    /// the virtual channel is without the bubble rule.
    #[inline(always)]
    fn fixed_vc(&self, input: usize, port: u8) -> Option<u8> {
        // The table names the port only if it is the one exit of the packet.
        let exit = self.heads.exits.of(input);
        (exit.port == port && !self.plan.bubble_channels.has(exit.vc.into())).then_some(exit.vc)
    }

    /// Forwards the chosen packet of a virtual channel as [`Router::send_fixed`] does.
    #[inline(always)]
    fn forward_fixed<L: Links<Packet = K>>(
        &mut self,
        ports: &mut L,
        input: usize,
        (port, vc): (u8, u8),
        competes: bool,
    ) -> bool {
        let from = self.plan.layout.link_input(input);
        let to = PortChannel { port, channel: vc.into() };
        let Some(has_next) = ports.forward_within(from, to, self.plan.longest_credits) else { return false };

        if has_next {
            self.heads.exposed |= 1 << input;
        }
        let priority = self.plan.rules.priority(input);
        if let Some(output) = self.outputs.ports.get_mut(usize::from(port)) {
            output.count_through(input as u8, priority, competes);
            if output.remove_fixed(input) {
                self.outputs.wanted &= !(1 << port);
            }
        }
        self.heads.leave(input, ports.now());
        true
    }

    /// Sends the chosen packet of an injection FIFO as [`Router::send_fixed`] does.
    #[inline(never)]
    fn send_fixed_injected<L: Links<Packet = K>>(
        &mut self,
        ports: &mut L,
        input: usize,
        (port, vc): (u8, u8),
    ) -> bool {
        let source = self.plan.layout.source(input);
        let Source::Injection { fifo } = source else { return false };
        let to = PortChannel { port, channel: vc.into() };
        if !ports.update_room(port, vc, self.plan.longest_credits) || !self.send_injected(ports, fifo, to) {
            return false;
        }

        let priority = self.plan.rules.priority(input);
        if let Some(output) = self.outputs.ports.get_mut(usize::from(port)) {
            output.count_injected(input as u8, priority);
            if output.remove_fixed(input) {
                self.outputs.wanted &= !(1 << port);
            }
        }
        self.heads.leave(input, ports.now());
        self.show_next_injected(source, input, ports.now());
        true
    }
}

/// Returns whether a choice among inputs with one exit each competes with an input that has room:
/// one from a link with one that injects, or the other way round.
#[inline(never)]
fn competes_with_room<L: Links>(
    plan: &Plan,
    heads: &Heads,
    ports: &mut L,
    port: u8,
    (requesting, is_injected): (Inputs, bool),
) -> bool {
    let rules = &plan.rules;
    let (_, first) = rules.highest(requesting);
    let others = if is_injected { first & !rules.injection } else { first & rules.injection };
    bits(others).any(|input| {
        let exit = heads.single_exit(input.into());
        exit.is_some_and(|exit| {
            !plan.bubble_channels.has(exit.vc.into())
                && ports.update_room(port, exit.vc, plan.longest_credits)
        })
    })
}
