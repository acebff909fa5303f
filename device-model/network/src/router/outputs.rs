//! The output ports: which of them can send, and the choice among the inputs that want one.

use nicforge_core::time::Nanos;

use super::{
    Links, MAX_INPUTS, OutputCounters, PRIORITIES,
    plan::{Layout, Plan, Rules},
    requests::{Inputs, PortRequests, next_in_turn},
    slots::Slots,
};

/// An output port: the inputs that want it, and the state of its arbitration.
///
/// The ports of a large network are more than a cache holds. One has one cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub(super) struct Output {
    pub(super) requests: PortRequests,
    /// Input of each priority that was served last: from links, and from injection FIFOs.
    last: [[u8; 2]; PRIORITIES],
    /// Packets of each priority sent from links while injected ones were waiting, since the last
    /// injected one.
    run: [u8; PRIORITIES],
    pub(super) counters: OutputCounters,
}

/// A choice of an output.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    pub(super) input: u8,
    priority: u8,
    pub(super) is_injected: bool,
    /// Packets from links and from injection FIFOs were both waiting.
    pub(super) competes: bool,
}

/// Ports that cannot send now, so that a step does not look at them.
#[derive(Debug)]
struct Blocked {
    /// Ports whose wire is busy. The function is woken when it falls idle.
    busy: u64,
    /// Ports without room for any of the inputs that want them. The function is woken when there is
    /// more.
    full: u64,
}

/// The output ports of a router, and the inputs that want them.
#[derive(Debug)]
pub(super) struct Outputs {
    pub(super) ports: Vec<Output>,
    /// Ports that inputs want.
    pub(super) wanted: u64,
    /// Virtual channels that adaptive packets have wanted so far.
    pub(super) adaptive_vcs: u16,
    blocked: Blocked,
    pub(super) slots: Slots,
    /// See [`super::RouterSpec::through_ratio`].
    pub(super) through_ratio: u8,
}

impl Output {
    /// Chooses among inputs, of which there is at least one.
    #[inline(always)]
    pub(super) fn choose(&self, rules: &Rules, inputs: Inputs, through_ratio: u8) -> Choice {
        let (priority, first) = rules.highest(inputs);
        let (injected, through) = (first & rules.injection, first & !rules.injection);

        let competes = injected != 0 && through != 0;
        let is_injected = if competes { self.run[priority] >= through_ratio } else { through == 0 };
        let set = if is_injected { injected } else { through };
        let input = next_in_turn(set, self.last[priority][usize::from(is_injected)]);

        Choice { input: input as u8, priority: priority as u8, is_injected, competes }
    }

    /// Records that the choice was sent.
    #[inline(always)]
    pub(super) fn count_sent(&mut self, choice: Choice) {
        let Choice { input, priority, is_injected, competes } = choice;
        if is_injected {
            self.count_injected(input, priority);
        } else {
            self.count_through(input, priority, competes);
        }
    }

    /// Records that the packet of an input from a link was sent.
    #[inline(always)]
    pub(super) fn count_through(&mut self, input: u8, priority: u8, competes: bool) {
        let priority = usize::from(priority) % PRIORITIES;
        self.last[priority][0] = input;
        if competes {
            self.run[priority] = self.run[priority].saturating_add(1);
        }
        self.counters.through += 1;
    }

    /// Records that the packet of an injection FIFO was sent.
    #[inline(always)]
    pub(super) fn count_injected(&mut self, input: u8, priority: u8) {
        let priority = usize::from(priority) % PRIORITIES;
        self.last[priority][1] = input;
        self.run[priority] = 0;
        self.counters.injected += 1;
    }

    /// Records that so many packets of the choice were sent one after the other.
    #[inline]
    pub(super) fn count_row(&mut self, choice: Choice, packets: u32) {
        self.count_sent(choice);
        let others = u64::from(packets) - 1;
        if choice.is_injected {
            self.counters.injected += others;
        } else {
            self.counters.through += others;
        }
    }
}

impl Choice {
    /// Returns the choice of an input with which none competes.
    #[inline(always)]
    pub(super) fn only(rules: &Rules, input: usize) -> Self {
        let is_injected = rules.injection >> (input % MAX_INPUTS) & 1 == 1;
        Self { input: input as u8, priority: rules.priority(input), is_injected, competes: false }
    }
}

impl Outputs {
    pub(super) fn new(plan: &Plan) -> Self {
        let Layout { ports, .. } = plan.layout;
        Self {
            ports: vec![Output::default(); ports.into()],
            wanted: 0,
            adaptive_vcs: 0,
            blocked: Blocked { busy: 0, full: 0 },
            slots: Slots::new(ports, &plan.bubble_channels),
            through_ratio: plan.spec.through_ratio,
        }
    }

    /// Forgets all requests.
    pub(super) fn clear(&mut self) {
        for output in &mut self.ports {
            output.requests = PortRequests::default();
        }
        (self.wanted, self.blocked.full) = (0, 0);
    }

    /// Lets ports with too little room send again.
    #[inline]
    pub(super) fn end_full(&mut self, ports: u64) {
        self.blocked.full &= !ports;
    }

    /// Lets the ports that were blocked send again, if their wire or their credits may permit it.
    #[inline]
    pub(super) fn update_blocked<L: Links>(&mut self, ports: &mut L) {
        let freed = ports.take_freed();
        self.blocked.busy &= !freed;
        self.blocked.full &= !freed;
    }

    /// Returns the ports that inputs want and that may send.
    #[inline]
    pub(super) fn open(&self) -> u64 {
        self.wanted & !(self.blocked.busy | self.blocked.full)
    }

    /// Returns those of some ports whose wire is not known to be busy.
    #[inline]
    pub(super) fn maybe_idle(&self, ports: u64) -> u64 {
        ports & !self.blocked.busy
    }

    /// Returns whether the wire of a port is known to be busy.
    #[inline(always)]
    pub(super) fn is_busy(&self, port: u8) -> bool {
        self.blocked.busy >> (port % 64) & 1 == 1
    }

    /// Returns whether a port can't send now, as far as that is known.
    #[inline]
    pub(super) fn is_blocked(&self, port: u8) -> bool {
        (self.blocked.busy | self.blocked.full) >> port & 1 == 1
    }

    /// Records that the wire of a port is busy until a time. A port without a link never falls
    /// idle, and is asked again at each event.
    #[inline]
    pub(super) fn note_busy(&mut self, idle_at: Nanos, port: u8) {
        self.blocked.busy |= u64::from(idle_at < Nanos::NEVER) << port;
    }

    /// Records that a port has no room for any of the inputs that want it.
    #[inline]
    pub(super) fn note_full(&mut self, port: u8) {
        self.blocked.full |= 1 << port;
        self.ports[usize::from(port)].counters.stalls += 1;
    }

    /// Chooses among inputs for a port, of which there is at least one.
    #[inline]
    pub(super) fn choose(&self, rules: &Rules, inputs: Inputs, port: u8) -> Choice {
        self.ports[usize::from(port)].choose(rules, inputs, self.through_ratio)
    }
}
