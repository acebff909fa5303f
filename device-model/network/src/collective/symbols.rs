//! Symbols: packets without content between the collective units of neighbours.
//!
//! A symbol waits for nothing but a wire and a credit. At most one symbol of each kind, class and
//! direction waits for a port, so the queue has a fixed size. A symbol of global interrupts carries
//! the lines that are set at the time when it is sent.

use nicforge_core::fabric::Ports;

use super::{CLASSES, lines::Lines};

/// The directions of a symbol in the tree of its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Up,
    Down,
}

/// The meaning of a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A subtree has entered a barrier, or a barrier is complete.
    Barrier,
    /// The lines of global interrupts of a subtree, or of all nodes.
    Lines(u8),
}

/// A packet without content between the collective units of neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Symbol {
    pub(super) class: usize,
    pub(super) direction: Direction,
    pub(super) kind: Kind,
}

/// Bits of a symbol's header with its class.
const CLASS_MASK: u64 = CLASSES as u64 - 1;
/// Bit of a header: the symbol is on its way down.
const DOWN_BIT: u64 = 1 << 4;
/// Bit of a header: the symbol is one of global interrupts, and not of a barrier.
const LINES_BIT: u64 = 1 << 5;
/// Lowest bit of a header with the lines of global interrupts.
const LINES_SHIFT: u32 = 6;

impl Symbol {
    /// Returns the header of the symbol's packet.
    fn bits(self) -> u64 {
        let down = if self.direction == Direction::Down { DOWN_BIT } else { 0 };
        let kind = match self.kind {
            Kind::Barrier => 0,
            Kind::Lines(lines) => LINES_BIT | u64::from(lines) << LINES_SHIFT,
        };
        self.class as u64 | down | kind
    }

    /// Returns the symbol with this header, or `None` if a field has a value that no symbol has.
    pub(super) fn from_bits(bits: u64) -> Option<Self> {
        let direction = if bits & DOWN_BIT == 0 { Direction::Up } else { Direction::Down };
        let lines = u8::try_from(bits >> LINES_SHIFT).ok()?;
        let kind = match bits & LINES_BIT {
            0 if lines == 0 => Kind::Barrier,
            0 => return None,
            _ => Kind::Lines(lines),
        };
        Some(Self { class: (bits & CLASS_MASK) as usize, direction, kind })
    }
}

/// The symbols that wait for a port: for each kind and [`Direction`], the classes of the symbols,
/// one bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Waiting {
    /// Symbols of barriers, up and down.
    barriers: [u16; 2],
    /// Symbols of global interrupts, up and down.
    lines: [u16; 2],
}

/// The symbols that wait for ports.
#[derive(Debug)]
pub(super) struct Symbols {
    /// The symbols that wait for each port.
    waiting: Vec<Waiting>,
    /// Ports with symbols that wait, one bit for each.
    ports: u64,
    /// Virtual channel of the symbols.
    vc: usize,
    /// Bytes of a symbol on a link.
    framing: u32,
    /// Credits that a symbol takes.
    credits: u32,
    /// A symbol was to be sent, and the fabric had no packet.
    pub(super) starved: bool,
}

impl Symbols {
    /// Returns empty queues for `ports` ports. `framing` and `credits` are those of a symbol.
    pub(super) fn new(ports: u8, vc: u8, framing: u32, credits: u32) -> Self {
        let waiting = vec![Waiting::default(); usize::from(ports)];
        Self { waiting, ports: 0, vc: vc.into(), framing, credits, starved: false }
    }

    /// Puts a symbol of a class's barrier into the queue of a port.
    pub(super) fn queue_barrier(&mut self, port: u8, class: usize, direction: Direction) {
        self.waiting[usize::from(port)].barriers[direction as usize] |= 1 << class;
        self.ports |= 1 << port;
    }

    /// Puts a symbol of a class's global interrupts into the queue of a port.
    pub(super) fn queue_lines(&mut self, port: u8, class: usize, direction: Direction) {
        self.waiting[usize::from(port)].lines[direction as usize] |= 1 << class;
        self.ports |= 1 << port;
    }

    /// Takes a symbol that has arrived. Returns its port and its header.
    pub(super) fn take(&self, ports: &mut Ports<'_>) -> Option<(u8, u64)> {
        let arrived = ports.arrived(self.vc) & ((1 << self.waiting.len()) - 1);
        let port = (arrived != 0).then(|| arrived.trailing_zeros() as u8)?;
        let packet = ports.take(port, self.vc)?;
        let header = packet.header;
        ports.recycle(packet);
        Some((port, header))
    }

    /// Sends symbols whose ports have room and an idle wire. Returns their number.
    pub(super) fn send(&mut self, ports: &mut Ports<'_>, lines: &Lines) -> u32 {
        let mut sent = 0;
        let mut left = self.ports;
        while left != 0 {
            let port = left.trailing_zeros() as u8;
            // Removes this port.
            left &= left - 1;
            while self.ports >> port & 1 == 1 && self.send_one(ports, port, lines) {
                sent += 1;
            }
        }
        sent
    }

    /// Sends the next symbol that waits for a port. Returns whether it was sent.
    fn send_one(&mut self, ports: &mut Ports<'_>, port: u8, lines: &Lines) -> bool {
        let can_send = ports.request_wire(port) && ports.request_credits(port, self.vc, self.credits);
        let waiting = &mut self.waiting[usize::from(port)];
        let Some((queue, symbol)) = waiting.next(lines).filter(|_| can_send) else { return false };

        let Ok(mut packet) = ports.new_packet(0) else {
            self.starved = true;
            return false;
        };
        (packet.header, packet.framing) = (symbol.bits(), self.framing);
        if let Err(unsent) = ports.send(port, self.vc, packet) {
            ports.recycle(unsent.packet);
            return false;
        }

        // The symbol was that of the lowest class in its queue, whose bit is removed.
        *queue &= *queue - 1;
        if *waiting == Waiting::default() {
            self.ports &= !(1 << port);
        }
        true
    }

    /// Removes the symbols of a class from the queues of all ports.
    pub(super) fn forget(&mut self, class: usize) {
        for (port, waiting) in self.waiting.iter_mut().enumerate() {
            for queue in waiting.barriers.iter_mut().chain(&mut waiting.lines) {
                *queue &= !(1 << class);
            }
            if *waiting == Waiting::default() {
                self.ports &= !(1 << port);
            }
        }
    }

    /// Returns whether no symbol waits or has arrived.
    #[inline]
    pub(super) fn is_idle(&self, ports: &Ports<'_>) -> bool {
        self.ports == 0 && ports.arrived(self.vc) == 0
    }
}

impl Waiting {
    /// Returns the next symbol with the mask of classes in which it waits: those on the way down
    /// first, and those of a lower class.
    fn next(&mut self, lines: &Lines) -> Option<(&mut u16, Symbol)> {
        let [barriers_up, barriers_down] = &mut self.barriers;
        let [lines_up, lines_down] = &mut self.lines;
        let queues = [
            (barriers_down, Direction::Down, false),
            (lines_down, Direction::Down, true),
            (barriers_up, Direction::Up, false),
            (lines_up, Direction::Up, true),
        ];

        let (queue, direction, is_lines) = queues.into_iter().find(|(queue, ..)| **queue != 0)?;
        let class = queue.trailing_zeros() as usize;
        let kind = if is_lines { Kind::Lines(lines.to_send(class, direction)) } else { Kind::Barrier };
        Some((queue, Symbol { class, direction, kind }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_read_as_they_were_written() {
        for class in 0..CLASSES {
            for direction in [Direction::Up, Direction::Down] {
                for kind in [Kind::Barrier, Kind::Lines(0), Kind::Lines(7)] {
                    let symbol = Symbol { class, direction, kind };
                    assert_eq!(Symbol::from_bits(symbol.bits()), Some(symbol));
                }
            }
        }
        assert_eq!(Symbol::from_bits(1 << LINES_SHIFT), None);
        assert_eq!(Symbol::from_bits(LINES_BIT | 1 << (LINES_SHIFT + 8)), None);
    }
}
