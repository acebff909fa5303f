//! The device: its attachments, resets, and one step.

use nicforge_core::{
    context::Context,
    device::{Counter, Device, Ended, Progress, Reset, Write},
    ids::{Address, AttachmentId},
    spec::{AreaKind, AttachmentSpec, BarSpec, FunctionSpec, Identity, Scope},
};
use nicforge_hwi::{
    pci,
    tree::{
        ATTACHMENT_ADMIN, BAR_MIRROR, BAR_WINDOW, CORES, VC_SYSTEM, VC_USER, VCS, mirror, vector, window,
    },
    tree_dcr::{REGISTERS, gi, pix, prx},
};

use crate::{
    barrier::Barrier,
    config::{ConfigError, TreeConfig},
    fifo::{Channel, Discarded, SideItem},
    port::{QuadHalves, TrappedPort},
    presence::Presence,
    registers::channel_of,
    router::{Router, RouterContext},
};

/// Attachments: four cores and the admin.
const ATTACHMENTS: usize = CORES as usize + 1;
/// Cells of each attachment's posted-write ring.
const RING_CELLS: u32 = 64;
/// Delay before a retry when the fabric's packets were all in use, in nanoseconds.
const STARVED_RETRY: u64 = 10_000;
/// Delay before the receive FIFO's lock is tried again, in nanoseconds.
const LOCKED_RETRY: u64 = 1_000_000;
/// The bits of all vectors.
const VECTORS: u32 = (1 << vector::COUNT) - 1;

/// A node's NIC; the crate's documentation describes it.
pub struct TreeNic {
    pub(crate) config: TreeConfig,
    pub(crate) channels: [Channel; VCS],
    pub(crate) port: [TrappedPort; VCS],
    pub(crate) halves: [QuadHalves; ATTACHMENTS],
    pub(crate) router: Router,
    presence: Presence,
    pub(crate) barrier: Barrier,
    /// Whether the node has joined its global interrupt wires; it does so in the first step.
    barriers_joined: bool,
    /// The fabric's count of wire changes when the wires were last read.
    wire_changes: u64,
    /// The global interrupt status word in the mirrors.
    global_interrupts_shown: u32,
    /// Receive and injection exception enables.
    pub(crate) prxen: u32,
    pub(crate) pixen: u32,
    /// Attachments that have a client, one bit for each attachment.
    attached: u32,
    /// Vectors enabled, by attachment.
    pub(crate) enabled: [u32; ATTACHMENTS],
    /// Attachments with an unreported presence change.
    presence_unreported: [bool; ATTACHMENTS],
    /// Interrupts raised.
    interrupts: u64,
    /// Error events counted.
    errors: u64,
}

impl TreeNic {
    /// Builds the NIC of a node in the state of power-on. Fails if `config` is not valid.
    pub fn new(config: TreeConfig) -> Result<Self, ConfigError> {
        config.validate()?;

        Ok(Self {
            channels: std::array::from_fn(|number| Channel::new(number, &config)),
            port: Default::default(),
            halves: Default::default(),
            router: Router::new(config.node_address, &config.routes),
            presence: Presence::new(config.nodes),
            barrier: Barrier::new(),
            barriers_joined: false,
            wire_changes: 0,
            global_interrupts_shown: 0,
            prxen: prx::ALL,
            pixen: power_on_pixen(),
            attached: 0,
            enabled: [0; ATTACHMENTS],
            presence_unreported: [false; ATTACHMENTS],
            interrupts: 0,
            errors: 0,
            config,
        })
    }

    fn is_attached(&self, who: AttachmentId) -> bool {
        self.attached & (1 << who.0) != 0
    }

    /// Returns the attachments of a channel that have a client, one bit for each attachment.
    fn clients(&self, channel: usize) -> u32 {
        let of_channel = if channel == VC_SYSTEM { 1 << ATTACHMENT_ADMIN } else { (1 << CORES) - 1 };
        self.attached & of_channel
    }

    /// Advances a core's generation by `by` and queues a presence symbol behind the packets the
    /// core has sent.
    fn announce(&mut self, core: AttachmentId, by: u8) {
        if let Some(generation) = self.presence.own.get_mut(usize::from(core.0)) {
            *generation = generation.wrapping_add(by);
            let generation = *generation;
            for channel in &mut self.channels {
                channel.append(SideItem::Presence { core: core.0 as u8, generation });
            }
        }
    }

    /// Returns the vectors of an attachment whose condition holds.
    pub(crate) fn conditions(&mut self, who: AttachmentId) -> u32 {
        let channel = channel_of(who);
        self.channels[channel].poll_recv_head();
        let mut conditions = self.channels[channel].conditions((self.prxen, self.pixen));

        if self.barrier.interrupts() & global_interrupt_channels(channel) != 0 {
            conditions |= 1 << vector::GLOBAL_INT;
        }

        if self.presence_unreported[usize::from(who.0)] {
            conditions |= 1 << vector::PRESENCE;
        }

        conditions
    }

    /// Handles a write of the interrupt enable register: an interrupt whose condition holds already
    /// is raised at once.
    pub(crate) fn enable_interrupts(&mut self, context: &mut Context<'_>, who: AttachmentId, value: u32) {
        self.enabled[usize::from(who.0)] = value & VECTORS;

        let due = self.conditions(who) & value;
        // Raising a presence interrupt also marks the change as reported.
        self.raise(context, who, due);
    }

    /// Raises an attachment's interrupts, and marks a presence change as reported.
    fn raise(&mut self, context: &mut Context<'_>, who: AttachmentId, vectors: u32) {
        if vectors & (1 << vector::PRESENCE) != 0 {
            self.presence_unreported[usize::from(who.0)] = false;
        }

        for number in 0..vector::COUNT {
            if vectors & (1 << number) != 0 {
                self.interrupts += 1;
                context.interrupt(who, number);
            }
        }
    }

    /// Raises the interrupts for the events of the step.
    fn raise_events(&mut self, context: &mut Context<'_>) {
        for channel in 0..VCS {
            let mut events = std::mem::take(&mut self.channels[channel].events);
            if events == 0 {
                continue;
            }

            if events & (1 << vector::ERROR) != 0 {
                self.errors += 1;
                let conditions = self.channels[channel].conditions((self.prxen, self.pixen));
                events &= !(1 << vector::ERROR) | conditions;
            }

            let clients = self.clients(channel);
            for who in (0..ATTACHMENTS as u16).filter(|who| clients & (1 << who) != 0) {
                let index = usize::from(who);
                self.presence_unreported[index] |= events & (1 << vector::PRESENCE) != 0;
                self.raise(context, AttachmentId(who), events & self.enabled[index]);
            }
        }
    }

    /// Reads the global interrupt wires, and publishes the status word if it changed.
    fn update_barriers(&mut self, context: &mut Context<'_>) {
        self.barrier.written = false;
        let mut ports = context.ports();
        if !self.barriers_joined {
            self.barriers_joined = true;
            self.barrier.reset(self.config.barriers, &mut ports);
        }

        self.wire_changes = ports.wire_changes();
        let fired = self.barrier.update(&ports);
        for channel in 0..VCS {
            if fired & global_interrupt_channels(channel) != 0 {
                self.channels[channel].events |= 1 << vector::GLOBAL_INT;
            }
        }

        let word = self.barrier.status(&ports);
        if word != self.global_interrupts_shown {
            self.global_interrupts_shown = word;
            for channel in &self.channels {
                channel.show_global_interrupts(word);
            }
        }
    }

    /// Publishes the state and raises interrupts. Each entry point that may change state ends with
    /// it.
    fn settle(&mut self, context: &mut Context<'_>) {
        let changes = context.ports().wire_changes();
        self.settle_after(context, changes);
    }

    /// As [`TreeNic::settle`], with the fabric's count of wire changes as `changes`.
    #[inline(always)]
    fn settle_after(&mut self, context: &mut Context<'_>, changes: u64) {
        let wires = changes != self.wire_changes || self.barrier.written || !self.barriers_joined;
        let [system, user] = &self.channels;

        if wires || self.attached != 0 || system.events | user.events != 0 {
            self.settle_changes(context, wires);
        }
    }

    #[inline(always)]
    fn settle_changes(&mut self, context: &mut Context<'_>, wires: bool) {
        if wires {
            self.update_barriers(context);
        }

        let enables = (self.prxen, self.pixen);
        for channel in &mut self.channels {
            channel.publish(enables);
        }

        if self.channels.iter().any(|channel| channel.events != 0) {
            self.raise_events(context);
        }
    }

    /// Performs the soft reset of [`nicforge_hwi::tree_dcr::rcfg::RST`].
    pub(crate) fn soft_reset(&mut self, context: &mut Context<'_>) {
        let mut ports = context.ports();
        self.router.clear(&mut RouterContext {
            channels: &mut self.channels,
            presence: &mut self.presence,
            ports: &mut ports,
            injecting: false,
        });

        for (channel, port) in self.channels.iter_mut().zip(&mut self.port) {
            channel.clear(&self.config, &self.presence, &mut ports);
            channel.show_global_interrupts(self.global_interrupts_shown);
            port.clear();
        }
        self.halves = Default::default();

        // The clear may have dropped queued presence symbols, so every core is announced again. A
        // core with a client counts as a new one, because its packets were lost.
        for core in (0..CORES).map(AttachmentId) {
            self.announce(core, if self.is_attached(core) { 2 } else { 0 });
        }
    }

    /// Resets an attachment whose client asked for it. The client may have left already.
    fn reset_attachment(&mut self, who: AttachmentId) {
        let index = usize::from(who.0);
        if let (Some(enabled), Some(unreported), Some(halves)) =
            (self.enabled.get_mut(index), self.presence_unreported.get_mut(index), self.halves.get_mut(index))
        {
            *enabled = 0;
            *unreported = false;
            *halves = QuadHalves::default();
        }

        if self.is_attached(who) {
            self.channels[channel_of(who)].free_locks(who.0);
            // Peers must drop their state about the earlier life of this core.
            self.announce(who, 2);
        }
    }
}

/// Returns the injection exceptions enabled at power-on.
fn power_on_pixen() -> u32 {
    (pix::ALL | pix::ENABLE) & !(pix::WM0 | pix::WM1)
}

/// Returns the global interrupt channels that interrupt the clients of a virtual channel, one bit
/// for each channel.
fn global_interrupt_channels(channel: usize) -> u8 {
    let user = (1u8 << gi::PRIVILEGED) - 1;
    if channel == VC_USER { user } else { 0xf }
}

impl Device for TreeNic {
    fn spec(&self) -> FunctionSpec {
        let identity = Identity {
            vendor: pci::VENDOR_ID,
            device: pci::DEVICE_TREE,
            subsystem_vendor: pci::VENDOR_ID,
            subsystem: pci::DEVICE_TREE,
            class: 0x02_80_00,
            revision: 1,
        };

        let mut attachments: Vec<AttachmentSpec> =
            (0..CORES).map(|core| AttachmentSpec { name: format!("core{core}"), group: 1 }).collect();
        attachments.push(AttachmentSpec { name: "admin".to_owned(), group: 0 });

        let mut spec = FunctionSpec::nic(identity, attachments, REGISTERS, vector::COUNT, RING_CELLS, 0, 0);
        spec.bars[usize::from(BAR_WINDOW)] =
            Some(BarSpec::memory(window::SIZE, AreaKind::Mapped, Scope::Group));
        spec.bars[usize::from(BAR_MIRROR)] =
            Some(BarSpec::memory(mirror::SIZE, AreaKind::Mirrored, Scope::Group));
        spec
    }

    fn read(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &mut [u8]) {
        self.read_register(context, from, at, data);
        self.settle(context);
    }

    fn write(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &[u8]) -> Write {
        self.write_register(context, from, at, data);
        self.settle(context);
        Write::Accepted
    }

    fn attached(&mut self, context: &mut Context<'_>, who: AttachmentId) {
        if usize::from(who.0) >= ATTACHMENTS {
            return;
        }

        let number = channel_of(who);

        if !self.channels[number].is_open()
            && let (Some(window), Some(mirror)) =
                (context.memory(who, BAR_WINDOW), context.memory(who, BAR_MIRROR))
        {
            self.port[number].clear();
            // The memory has the size that `spec` asks for, so this does not fail. If it did, the
            // channel would stay closed.
            let _ = self.channels[number].open(&self.config, &self.presence, &window, &mirror);
            self.channels[number].show_global_interrupts(self.global_interrupts_shown);
        }

        self.attached |= 1 << who.0;
        if who.0 < CORES {
            self.channels[number].core_attached(who.0);
            self.announce(who, 1);
        }

        self.settle(context);
    }

    fn detached(&mut self, context: &mut Context<'_>, who: AttachmentId, _why: Ended) {
        if !self.is_attached(who) {
            return;
        }

        let number = channel_of(who);
        self.channels[number].free_locks(who.0);
        self.attached &= !(1 << who.0);
        if who.0 < CORES {
            self.channels[number].core_detached(who.0);
        }

        if self.clients(number) == 0 {
            self.channels[number].close(&mut context.ports());
            self.port[number].clear();
            if number == VC_USER {
                self.barrier.reset(self.config.barriers, &mut context.ports());
            }
        }

        if who.0 < CORES {
            self.announce(who, 1);
        }

        self.settle(context);
    }

    fn reset(&mut self, context: &mut Context<'_>, reach: Reset) {
        match reach {
            Reset::Attachment(who) => self.reset_attachment(who),
            Reset::Function => {
                self.router.rcfg = 0;
                self.router.classes = self.config.routes.classes;
                self.prxen = prx::ALL;
                self.pixen = power_on_pixen();
                for channel in &mut self.channels {
                    channel.vcfg = 0;
                }

                self.enabled = [0; ATTACHMENTS];
                self.presence_unreported = [false; ATTACHMENTS];
                self.soft_reset(context);
                self.barrier.reset(self.config.barriers, &mut context.ports());
            }
        }

        self.settle(context);
    }

    fn step(&mut self, context: &mut Context<'_>, budget: u32) -> Progress {
        let (mut busy, mut locked) = (false, false);

        let wire_changes = {
            let mut ports = context.ports();
            // In a node without clients only the router has work: packets that the last client left
            // behind.
            if self.attached != 0 {
                for (channel, port) in self.channels.iter_mut().zip(&mut self.port) {
                    channel.poll_recv_head();
                    busy |= channel.discard_orphans();
                    match channel.discard_for_absent() {
                        Discarded::Nothing => {}
                        Discarded::Some => busy = true,
                        Discarded::Later => locked = true,
                    }
                    port.form(channel, &mut ports);
                }
            }

            let mut router_context = RouterContext {
                channels: &mut self.channels,
                presence: &mut self.presence,
                ports: &mut ports,
                injecting: self.pixen & pix::ENABLE != 0,
            };
            busy |= self.router.run(&mut router_context, budget);

            router_context.ports.wire_changes()
        };

        if locked {
            let soon = context.now().after(LOCKED_RETRY);
            context.wake_at(soon);
        }
        if std::mem::take(&mut self.router.starved) {
            let soon = context.now().after(STARVED_RETRY);
            context.wake_at(soon);
        }

        self.settle_after(context, wire_changes);
        if busy { Progress::Busy } else { Progress::Idle }
    }

    fn counters(&self) -> Vec<Counter> {
        let [system, user] = &self.router.counters;
        let discarded = self.channels.each_ref().map(|channel| channel.discarded);
        let [system_fill, user_fill] = self.channels.each_ref().map(Channel::fill);

        let list = [
            ("vc0_send_fill", system_fill.0.into()),
            ("vc0_recv_fill", system_fill.1.into()),
            ("vc1_send_fill", user_fill.0.into()),
            ("vc1_recv_fill", user_fill.1.into()),
            ("vc0_sent", system.sent),
            ("vc0_received", system.received),
            ("vc0_forwarded", system.forwarded),
            ("vc0_combined", system.combined),
            ("vc0_mismatched", system.mismatched),
            ("vc0_stalls", system.stalls),
            ("vc0_discarded", system.sunk + discarded[VC_SYSTEM]),
            ("vc0_no_target", system.no_target),
            ("vc0_presence", system.presence),
            ("vc1_sent", user.sent),
            ("vc1_received", user.received),
            ("vc1_forwarded", user.forwarded),
            ("vc1_combined", user.combined),
            ("vc1_mismatched", user.mismatched),
            ("vc1_stalls", user.stalls),
            ("vc1_discarded", user.sunk + discarded[VC_USER]),
            ("vc1_no_target", user.no_target),
            ("vc1_presence", user.presence),
            ("errors", self.errors),
            ("interrupts", self.interrupts),
        ];

        list.into_iter().map(|(name, value)| Counter { name, value }).collect()
    }
}
