//! The device: attachments, resets, one step.

use std::sync::atomic::Ordering;

use nicforge_core::{
    context::Context,
    device::{Counter, Device, Ended, Progress, Reset, Write},
    fabric::Ports,
    ids::{Address, AttachmentId},
    register::Register,
    spec::{AreaKind, AttachmentSpec, BarSpec, FunctionSpec, Identity, NicSizes, Scope},
    time::Nanos,
    warning::Warning,
};
use nicforge_hwi::{
    pci,
    torus::{
        BAR_MIRROR, BAR_SHARED, BAR_WINDOW, CORES, PORTS, RECEPTION_FIFOS, REGISTER_MAP, RING_CELLS, mirror,
        reg, shared, vector, window,
    },
};
use nicforge_kit::{CountWatch, retry};
use nicforge_network::router::Router;
use nicforge_shm::SharedMemory;

use crate::{
    config::{Network, NetworkError, Site},
    group::{GROUPS, Group, count_dropped},
    lives::Change,
    policy::NodePolicy,
    registers::{group_of, retransmissions},
};

/// PCI class code: network controller, other, without a programming interface.
const NETWORK_CONTROLLER: u32 = 0x02_80_00;
/// BAR of the registers.
pub(crate) const BAR_REGISTERS: u8 = 0;
/// Longest time for which a change of a life waits for packets of the former one, in nanoseconds.
const MAX_LINGER: u64 = 1_000_000_000;
/// Time between two looks at such packets, in nanoseconds. No event tells that they have arrived.
const LINGER_CHECK: u64 = 20_000;

/// The values at which error counters were cleared.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClearedErrors {
    pub(crate) of_clients: u64,
    pub(crate) retries: [u32; PORTS as usize],
}

/// Counts of a node since power-on.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    sent: u64,
    received: u64,
    /// Packets whose receiver was gone, and those of ended clients that found no place or whose
    /// client's life was not shown.
    discarded: u64,
    /// Steps in which a packet waited because its reception FIFO was full.
    reception_full: u64,
    interrupts: u64,
}

/// Counts of which each rise is logged.
#[derive(Debug, Default)]
struct Watches {
    discarded: CountWatch,
    undeliverable: CountWatch,
}

/// The packets that a round of a step has moved.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    moved: u32,
    /// The fabric's packets are all in use.
    is_starved: bool,
}

/// The torus side of a node of Blue Gene/L. The crate's documentation describes it.
pub struct TorusNic {
    pub(crate) site: Site,
    pub(crate) groups: [Group; GROUPS],
    router: Router<NodePolicy>,
    /// Times at which the lives of the cores are shown at the latest. They count from the first
    /// change that was not shown.
    show_by: [Nanos; GROUPS],
    /// The memory that the cores share, while one of them has a client.
    shared: Option<SharedMemory>,
    /// Hops at which software turns the direction of a packet: `CTRL_HINT_PLUS` and `MINUS`.
    pub(crate) hint_cutoffs: [u32; 2],
    pub(crate) cleared: ClearedErrors,
    counts: Counts,
    watches: Watches,
}

impl TorusNic {
    /// Builds the torus side of a node in the state of power-on. A second one of the same node
    /// belongs to another machine than the first.
    ///
    /// # Errors
    /// [`NetworkError::NoNode`].
    pub fn new(network: &Network, node: u32) -> Result<Self, NetworkError> {
        let site = network.node(node)?;
        let mut nic = Self {
            groups: [0, 1].map(Group::new),
            router: Router::with_plan(&site.plan, site.policy.clone()),
            show_by: [Nanos::ZERO; GROUPS],
            shared: None,
            hint_cutoffs: [0; 2],
            cleared: ClearedErrors::default(),
            counts: Counts::default(),
            watches: Watches::default(),
            site,
        };
        nic.hint_cutoffs = nic.default_cutoffs();
        Ok(nic)
    }

    /// Returns the hint cut-offs at power-on. On a ring, ways of more than half of it are the
    /// longer ones. On a mesh, no way up turns, and none down: the cut-off is its length, or the
    /// most that the register can hold.
    fn default_cutoffs(&self) -> [u32; 2] {
        let mut cutoffs = self.site.last();
        for (dimension, cutoff) in cutoffs.iter_mut().enumerate() {
            let is_ring = self.site.wraps() >> dimension & 1 == 1;
            *cutoff = if is_ring { *cutoff / 2 + 1 } else { cutoff.saturating_add(1) };
        }
        [Site::pack(cutoffs); 2]
    }

    /// Returns the number of errors of clients since power-on: wrong headers, tails and heads, and
    /// wrong accesses to the port.
    pub(crate) fn client_errors(&self) -> u64 {
        self.groups.iter().map(Group::all_errors).sum()
    }

    /// Raises interrupts of an attachment, one bit for each vector.
    pub(crate) fn raise(&mut self, context: &mut Context<'_>, attachment_id: AttachmentId, vectors: u32) {
        for number in (0..vector::COUNT).filter(|number| vectors >> number & 1 == 1) {
            self.counts.interrupts += 1;
            context.interrupt(attachment_id, number);
        }
    }

    /// Makes the state of both groups visible, and raises their interrupts. Each entry point that
    /// may change state ends with it.
    #[inline]
    fn publish(&mut self, context: &mut Context<'_>) {
        for core in 0..CORES {
            let life = self.site.lives.life(self.site.node, core);
            let group = &mut self.groups[usize::from(core)];
            group.warnings.log(context);
            let due = group.publish(life);
            if due != 0 {
                self.raise(context, AttachmentId(core), due);
            }
        }
    }

    /// Logs packets without a receiver or a way.
    #[inline]
    fn log_counts(&mut self, context: &mut Context<'_>) {
        self.watches.discarded.check(context, None, self.counts.discarded, || {
            Warning::dropped(&"a packet goes to a core whose client, of the life that it names, is there")
        });
        self.watches.undeliverable.check(context, None, self.router.counters().dropped, || {
            Warning::dropped(&"the network has a way for a packet")
        });
    }

    /// Moves packets out of the injection FIFOs, through the router, and into the reception FIFOs,
    /// each at most about `budget`.
    #[inline]
    fn round(&mut self, context: &mut Context<'_>, budget: u32) -> Round {
        let mut round = Round::default();
        let mut ports = context.ports();

        for group in &mut self.groups {
            if group.is_sending() {
                let injected = group.inject(&self.site, &mut self.router, &mut ports, budget);
                self.counts.sent += u64::from(injected.packets);
                round.moved += injected.packets + injected.wrong;
                round.is_starved |= injected.is_starved;
            }
        }

        let mut wake = Nanos::NEVER;
        if !self.router.is_idle(&ports) {
            let outcome = self.router.step(&mut ports, budget);
            (round.moved, wake) = (round.moved + outcome.moved, outcome.wake);
        }

        let mut received = self.router.received();
        while received != 0 {
            let fifo = received.trailing_zeros() as usize;
            received &= received - 1;
            let (group, number) = (fifo / RECEPTION_FIFOS, fifo % RECEPTION_FIFOS);
            let delivered =
                self.groups[group].deliver(number, &self.site, &mut self.router, &mut ports, budget);
            self.counts.received += u64::from(delivered.packets);
            self.counts.discarded += u64::from(delivered.discarded);
            self.counts.reception_full += u64::from(delivered.is_full);
            round.moved += delivered.packets + delivered.discarded;
        }

        context.wake_at(wake);
        round
    }

    /// Advances the life of a core.
    fn change_life(&mut self, context: &mut Context<'_>, core: u16, change: Change) {
        // Clients that end again and again must not put off the time at which the first end shows.
        if self.site.lives.is_shown(self.site.node, core) {
            self.show_by[usize::from(core)] = context.now().after(MAX_LINGER);
        }
        self.site.lives.change(self.site.node, core, change);
        context.wake_at(Nanos::ZERO);
    }

    /// Shows lives that have waited for packets of the former ones for too long, and asks for
    /// another step while any waits.
    #[inline]
    fn show_lives(&mut self, context: &mut Context<'_>) {
        for core in 0..CORES {
            if self.site.lives.is_shown(self.site.node, core) {
                continue;
            }
            let (now, show_by) = (context.now(), self.show_by[usize::from(core)]);
            if now >= show_by {
                self.site.lives.show(self.site.node, core);
            } else {
                context.wake_at(show_by.min(now.after(LINGER_CHECK)));
            }
        }
    }

    /// Frees the lock boxes of a core.
    fn free_locks(&self, core: u16) {
        let Some(memory) = &self.shared else { return };
        let owner = u32::from(core) + 1;
        for number in 0..shared::LOCKS {
            if let Ok(lock) = memory.u32(shared::LOCK + number * shared::LOCK_STRIDE) {
                // The other core may take a free box at any time.
                let _ = lock.compare_exchange(owner, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }

    /// Resets an attachment whose client asked for it. The client may have left already.
    fn reset_attachment(&mut self, context: &mut Context<'_>, attachment_id: AttachmentId) {
        let Some(group) = group_of(attachment_id) else { return };
        if self.groups[group].memory.is_none() {
            return;
        }
        self.free_locks(attachment_id.0);
        self.groups[group].reset(&self.site);
        self.change_life(context, attachment_id.0, Change::Restarts);
    }

    /// Resets the whole function.
    fn reset_function(&mut self, context: &mut Context<'_>) {
        let mut ports = context.ports();
        self.router.reset_with(&mut ports, |packet| count_dropped(&self.site, packet));
        for group in &mut self.groups {
            group.power_on(&self.site, &mut ports);
        }
        if let Some(memory) = &self.shared {
            // The memory has its full size, so this does not fail.
            let _ = memory.zero(0, shared::SIZE);
        }

        for (port, cleared) in (0..).zip(&mut self.cleared.retries) {
            *cleared = retransmissions(&ports, port);
        }
        self.cleared.of_clients = self.client_errors();
        self.hint_cutoffs = self.default_cutoffs();
        for core in 0..CORES {
            if self.groups[usize::from(core)].memory.is_some() {
                self.change_life(context, core, Change::Restarts);
            }
        }
    }
}

impl Device for TorusNic {
    fn spec(&self) -> FunctionSpec {
        let identity = Identity {
            vendor: pci::VENDOR_ID,
            device: pci::DEVICE_TORUS,
            subsystem_vendor: pci::VENDOR_ID,
            subsystem: pci::DEVICE_TORUS,
            class: NETWORK_CONTROLLER,
            revision: 1,
        };

        let cores = (0..CORES).map(|core| AttachmentSpec { name: format!("core{core}"), group: 1 });
        let kernel = AttachmentSpec { name: "kernel".to_owned(), group: 0 };
        let mut spec = FunctionSpec::nic(
            identity,
            cores.chain([kernel]).collect(),
            NicSizes {
                register_bytes: reg::SIZE,
                vectors: vector::COUNT,
                ring_cells: RING_CELLS,
                ..NicSizes::default()
            },
        );
        let memory = |bytes, kind, scope| Some(BarSpec::memory(bytes, kind, scope));
        spec.bars[usize::from(BAR_WINDOW)] = memory(window::SIZE, AreaKind::Mapped, Scope::Attachment);
        spec.bars[usize::from(BAR_MIRROR)] = memory(mirror::SIZE, AreaKind::Mirrored, Scope::Attachment);
        spec.bars[usize::from(BAR_SHARED)] = memory(shared::SIZE, AreaKind::Mapped, Scope::Group);
        spec
    }

    fn registers(&self) -> &'static [Register] {
        REGISTER_MAP
    }

    fn ports(&self) -> u8 {
        PORTS
    }

    fn attached(&mut self, context: &mut Context<'_>, attachment_id: AttachmentId) {
        let Some(group) = group_of(attachment_id) else { return };
        let memory = |bar| context.memory(attachment_id, bar);
        let (Some(window), Some(mirror)) = (memory(BAR_WINDOW), memory(BAR_MIRROR)) else { return };
        self.shared = memory(BAR_SHARED);

        // The memory has the size that `spec` asks for, so this does not fail. If it did, the group
        // would stay closed.
        let _ = self.groups[group].open(&self.site, &window, &mirror);
        self.change_life(context, attachment_id.0, Change::ComesOrGoes);
        self.publish(context);
    }

    fn detached(&mut self, context: &mut Context<'_>, attachment_id: AttachmentId, _: Ended) {
        let Some(group) = group_of(attachment_id) else { return };
        self.free_locks(attachment_id.0);
        let dropped = self.groups[group].close(&self.site, &mut context.ports());
        self.counts.discarded += u64::from(dropped);
        self.change_life(context, attachment_id.0, Change::ComesOrGoes);

        if self.groups.iter().all(|group| group.memory.is_none()) {
            self.shared = None;
        }
    }

    fn reset(&mut self, context: &mut Context<'_>, reach: Reset) {
        match reach {
            Reset::Attachment(attachment_id) => self.reset_attachment(context, attachment_id),
            Reset::Function => self.reset_function(context),
        }
        self.publish(context);
        context.wake_at(Nanos::ZERO);
    }

    fn read(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &mut [u8]) {
        if at.bar == BAR_REGISTERS {
            self.read_register(context, from, at.offset, data);
            self.publish(context);
        }
    }

    fn peek(&self, ports: &Ports<'_>, from: AttachmentId, at: Address, data: &mut [u8]) -> bool {
        at.bar == BAR_REGISTERS && self.peek_register(ports, from, at.offset, data)
    }

    fn write(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &[u8]) -> Write {
        if at.bar == BAR_REGISTERS {
            self.write_register(context, from, at.offset, data);
        }
        Write::Accepted
    }

    fn step(&mut self, context: &mut Context<'_>, budget: u32) -> Progress {
        self.groups.iter_mut().for_each(Group::begin_step);

        let mut moved = 0;
        while moved < budget.max(1) {
            let round = self.round(context, budget);
            if round.moved == 0 {
                if round.is_starved {
                    retry::when_starved(context);
                }
                break;
            }
            moved += round.moved;
        }

        self.log_counts(context);
        self.show_lives(context);
        self.publish(context);
        if moved > 0 { Progress::Busy } else { Progress::Idle }
    }

    fn counters(&self) -> Vec<Counter> {
        let router = self.router.counters();
        let forwarded = (0..PORTS).map(|port| self.router.output_counters(port).through).sum();
        let list = [
            ("packets_sent", self.counts.sent),
            ("packets_received", self.counts.received),
            ("forwarded", forwarded),
            ("discarded", self.counts.discarded),
            ("undeliverable", router.dropped),
            ("reception_full", self.counts.reception_full),
            ("escaped", router.escaped),
            ("errors", self.client_errors()),
            ("interrupts", self.counts.interrupts),
        ];
        list.into_iter().map(|(name, value)| Counter { name, value }).collect()
    }
}
