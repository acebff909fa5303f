//! Barrier classes: trees of symbols without content.

use nicforge_core::fabric::Ports;

use super::{CLASSES, ClassRoute};

/// A barrier class at a node.
#[derive(Clone, Copy, Debug, Default)]
struct Barrier {
    /// Inputs whose subtree has arrived, one bit for each.
    arrived: u64,
    /// The node itself has arrived.
    has_entered: bool,
    /// Completed barriers.
    completed: u64,
}

/// A symbol that waits for a port.
#[derive(Clone, Copy, Debug, Default)]
struct Waiting {
    /// Classes whose symbol goes up by this port, one bit for each.
    up: u16,
    /// Classes whose symbol goes down by this port.
    down: u16,
}

/// The barrier classes of a node.
#[derive(Debug)]
pub(super) struct Barriers {
    of: [Barrier; CLASSES],
    /// Symbols that wait, by port.
    waiting: Vec<Waiting>,
    /// Ports with symbols that wait, one bit for each.
    ports: u64,
    /// Virtual channel of the symbols.
    vc: usize,
    framing: u32,
    /// Credits of a symbol.
    credits: u32,
    /// Symbols that no route expects.
    pub(super) unexpected: u64,
    /// Completed barriers of all classes.
    pub(super) all_completed: u64,
    /// A symbol was to be sent, and the fabric had no packet.
    pub(super) starved: bool,
}

/// Bit of a symbol's header that says that it is on its way down. The class is in the lower bits.
const DOWN: u64 = 1 << 4;

impl Barriers {
    pub(super) fn new(ports: u8, vc: u8, framing: u32, credits: u32) -> Self {
        Self {
            of: [Barrier::default(); CLASSES],
            waiting: vec![Waiting::default(); usize::from(ports)],
            ports: 0,
            vc: vc.into(),
            framing,
            credits,
            unexpected: 0,
            all_completed: 0,
            starved: false,
        }
    }

    /// Returns the number of completed barriers of a class.
    pub(super) fn completed(&self, class: usize) -> u64 {
        self.of[class].completed
    }

    /// Returns whether the node has entered a barrier that is not complete.
    pub(super) fn is_entered(&self, class: usize) -> bool {
        self.of[class].has_entered
    }

    /// Enters the node into the barrier of a class.
    pub(super) fn enter(&mut self, class: usize, route: &ClassRoute) {
        self.of[class].has_entered = true;
        self.advance(class, route);
    }

    /// Takes the symbols that have arrived. Returns their number.
    pub(super) fn receive(&mut self, ports: &mut Ports<'_>, routes: &[ClassRoute; CLASSES]) -> u32 {
        let mut received = 0;
        let mut arrived = ports.arrived(self.vc) & ((1 << self.waiting.len()) - 1);
        while arrived != 0 {
            let port = arrived.trailing_zeros() as u8;
            arrived &= arrived - 1;
            while let Some(packet) = ports.take(port, self.vc) {
                self.note(port, packet.header, routes);
                ports.recycle(packet);
                received += 1;
            }
        }
        received
    }

    /// Notes a symbol.
    fn note(&mut self, port: u8, word: u64, routes: &[ClassRoute; CLASSES]) {
        let class = (word % CLASSES as u64) as usize;
        let route = &routes[class];
        let is_down = word & DOWN != 0;

        let is_known = word < 2 * DOWN;
        let is_due = self.of[class].arrived >> port & 1 == 0;
        if is_known && is_down && route.output == Some(port) {
            self.complete(class, route);
        } else if is_known && !is_down && is_due && route.inputs >> port & 1 == 1 {
            self.of[class].arrived |= 1 << port;
            self.advance(class, route);
        } else {
            self.unexpected += 1;
        }
    }

    /// Sends a symbol up if all have arrived. At the root, the barrier is then complete.
    fn advance(&mut self, class: usize, route: &ClassRoute) {
        let barrier = &mut self.of[class];
        if barrier.arrived != route.inputs || route.is_member && !barrier.has_entered {
            return;
        }

        barrier.arrived = 0;
        match route.output {
            None => self.complete(class, route),
            Some(port) => {
                self.waiting[usize::from(port)].up |= 1 << class;
                self.ports |= 1 << port;
            }
        }
    }

    /// Completes a barrier, and sends symbols down.
    fn complete(&mut self, class: usize, route: &ClassRoute) {
        let barrier = &mut self.of[class];
        barrier.has_entered = false;
        barrier.completed += 1;
        self.all_completed += 1;

        for port in 0..self.waiting.len() {
            if route.inputs >> port & 1 == 1 {
                self.waiting[port].down |= 1 << class;
                self.ports |= 1 << port;
            }
        }
    }

    /// Sends symbols whose ports have room and an idle wire, those on the way down first. Returns
    /// their number.
    pub(super) fn send(&mut self, ports: &mut Ports<'_>) -> u32 {
        let mut sent = 0;
        let mut left = self.ports;
        while left != 0 {
            let port = left.trailing_zeros() as u8;
            left &= left - 1;
            while self.ports >> port & 1 == 1 && self.send_one(ports, port) {
                sent += 1;
            }
        }
        sent
    }

    /// Sends a symbol through a port that has one waiting.
    fn send_one(&mut self, ports: &mut Ports<'_>, port: u8) -> bool {
        let is_possible = ports.request_wire(port) && ports.request_credits(port, self.vc, self.credits);
        if !is_possible {
            return false;
        }

        let waiting = &mut self.waiting[usize::from(port)];
        let is_down = waiting.down != 0;
        let queue = if is_down { &mut waiting.down } else { &mut waiting.up };
        let class = queue.trailing_zeros();
        let Ok(mut packet) = ports.new_packet(0) else {
            self.starved = true;
            return false;
        };
        packet.header = u64::from(class) | if is_down { DOWN } else { 0 };
        packet.framing = self.framing;

        if let Err(unsent) = ports.send(port, self.vc, packet) {
            ports.recycle(unsent.packet);
            return false;
        }
        *queue &= *queue - 1;
        if waiting.up | waiting.down == 0 {
            self.ports &= !(1 << port);
        }
        true
    }

    /// Forgets the arrivals and symbols of a class.
    pub(super) fn forget(&mut self, class: usize) {
        self.of[class] = Barrier { completed: self.of[class].completed, ..Barrier::default() };
        for (port, waiting) in self.waiting.iter_mut().enumerate() {
            waiting.up &= !(1 << class);
            waiting.down &= !(1 << class);
            if waiting.up | waiting.down == 0 {
                self.ports &= !(1 << port);
            }
        }
    }

    /// Forgets all arrivals and symbols.
    pub(super) fn reset(&mut self) {
        for barrier in &mut self.of {
            *barrier = Barrier { completed: barrier.completed, ..Barrier::default() };
        }
        self.waiting.fill(Waiting::default());
        self.ports = 0;
    }
}
