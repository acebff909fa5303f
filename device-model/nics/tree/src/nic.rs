//! The device: its attachments, resets, and one step.

use nicforge_core::{
    context::Context,
    device::{Counter, Device, Ended, Progress, Reset, Write},
    fabric::Ports,
    ids::{Address, AttachmentId},
    register::Register,
    spec::{AreaKind, AttachmentSpec, BarSpec, FunctionSpec, Identity, NicSizes, Scope},
    warning::Warning,
};
use nicforge_hwi::{
    pci,
    tree::{
        BAR_MIRROR, BAR_WINDOW, CORES, PORTS, REGISTER_MAP, VC_SYSTEM, VC_USER, VCS, mirror, vector, window,
    },
    tree_dcr::{REGISTERS, pix},
};
use nicforge_kit::{AttachmentSet, CountWatch, retry};

use crate::{
    barrier::{self, GlobalInterrupts},
    config::{ALL_BARRIERS, ConfigError, TreeConfig},
    fifo::{Channel, ChannelConfig, Exceptions, QuadHalves, SideItem},
    interrupts::{ATTACHMENTS, Interrupts},
    presence::Presence,
    registers::channel_of,
    router::{Router, RouterContext},
};

/// Cells of each attachment's posted-write ring.
const RING_CELLS: u32 = 64;
/// Delay before the receive FIFO's lock is tried again, in nanoseconds.
const LOCKED_RETRY: u64 = 1_000_000;

/// A change of a core's client that a presence symbol reports. Its value is the number by which it
/// advances the core's generation, which is odd while the core has a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PresenceChange {
    /// Nothing has changed: the symbol is sent once more.
    Unchanged = 0,
    /// A client has come or left.
    Toggled = 1,
    /// The client counts as another one from now on.
    Restarted = 2,
}

/// A node's NIC; the crate's documentation describes it.
///
/// A channel is open while one of its attachments has a client. Each entry point that may change
/// state ends with `publish_state`, which brings mirrors and interrupts up to date.
pub struct TreeNic {
    pub(crate) config: TreeConfig,
    pub(crate) channels: [Channel; VCS],
    /// The halves of quads that each attachment has written to, or not yet read from, its channel's
    /// trapped port.
    pub(crate) halves: [QuadHalves; ATTACHMENTS],
    pub(crate) router: Router,
    presence: Presence,
    pub(crate) global_interrupts: GlobalInterrupts,
    /// Exceptions that can raise interrupts.
    pub(crate) enabled_exceptions: Exceptions,
    /// Attachments that have a client.
    attached: AttachmentSet<1>,
    pub(crate) interrupts: Interrupts,
    /// Error events counted.
    errors: u64,
    watches: Watches,
}

/// Counts of the router, of which each rise is logged.
#[derive(Debug, Default)]
struct Watches {
    no_target: CountWatch,
    mismatched: CountWatch,
}

impl TreeNic {
    /// Builds the NIC of a node in the state of power-on. Fails if `config` is not valid.
    pub fn new(config: TreeConfig) -> Result<Self, ConfigError> {
        config.validate()?;

        Ok(Self {
            channels: std::array::from_fn(|number| Channel::new(number, &config)),
            halves: Default::default(),
            router: Router::new(config.node_address, &config.routes),
            presence: Presence::new(config.nodes),
            global_interrupts: GlobalInterrupts::new(config.barriers),
            enabled_exceptions: Exceptions::enabled_at_power_on(),
            attached: AttachmentSet::default(),
            interrupts: Interrupts::default(),
            errors: 0,
            watches: Watches::default(),
            config,
        })
    }

    /// Returns whether an attachment has a client.
    fn is_attached(&self, attachment: AttachmentId) -> bool {
        self.attached.contains(attachment)
    }

    /// Returns the attachments of a channel that have a client.
    fn clients(&self, channel: usize) -> impl Iterator<Item = AttachmentId> + use<> {
        self.attached.iter().filter(move |attachment| channel_of(*attachment) == channel)
    }

    /// Advances a core's generation, and queues a presence symbol with it after the packets that
    /// the core has sent.
    fn send_presence(&mut self, core: AttachmentId, change: PresenceChange) {
        if let Some(generation) = self.presence.advance_own(core.0, change as u8) {
            for channel in &mut self.channels {
                channel.append(SideItem::Presence { core: core.0 as u8, generation });
            }
        }
    }

    /// Returns the vectors of an attachment whose condition holds, one bit for each vector.
    pub(crate) fn conditions(&mut self, attachment: AttachmentId) -> u32 {
        let channel = &mut self.channels[channel_of(attachment)];
        channel.poll_recv_head();
        channel.send_count();
        self.conditions_last_seen(attachment)
    }

    /// Returns the same as [`TreeNic::conditions`], as of the last look at the FIFOs.
    pub(crate) fn conditions_last_seen(&self, attachment: AttachmentId) -> u32 {
        let channel = channel_of(attachment);
        let mut conditions = self.channels[channel].conditions_last_seen(self.enabled_exceptions);

        if self.global_interrupts.interrupts() & barrier::gi_channels_seen_by(channel) != 0 {
            conditions |= 1 << vector::GLOBAL_INT;
        }

        if self.interrupts.is_presence_unreported(attachment) {
            conditions |= 1 << vector::PRESENCE;
        }

        conditions
    }

    /// Handles a write of the interrupt enable register: an interrupt whose condition holds already
    /// is raised at once.
    pub(crate) fn enable_interrupts(
        &mut self,
        context: &mut Context<'_>,
        attachment: AttachmentId,
        value: u32,
    ) {
        self.interrupts.enable(attachment, value);

        let due = self.conditions(attachment) & value;
        // Raising a presence interrupt also marks the change as reported.
        self.interrupts.raise(context, attachment, due);
    }

    /// Raises the interrupts that were requested during the step.
    fn raise_requested(&mut self, context: &mut Context<'_>) {
        for channel in 0..VCS {
            self.channels[channel].events.warnings.log(context);
            let mut vectors = self.channels[channel].events.take_requested();
            if vectors == 0 {
                continue;
            }

            // Every new error is counted. It raises the interrupt only if its exception is enabled.
            if vectors & (1 << vector::ERROR) != 0 {
                self.errors += 1;
                let conditions = self.channels[channel].conditions(self.enabled_exceptions);
                vectors &= !(1 << vector::ERROR) | conditions;
            }

            for attachment in self.clients(channel) {
                self.interrupts.report(context, attachment, vectors);
            }
        }
    }

    /// Reads the global interrupt channels. Requests the interrupt of the virtual channels whose
    /// clients see one that fired, and publishes the status word if it changed.
    fn update_global_interrupts(&mut self, context: &mut Context<'_>) {
        let update = self.global_interrupts.update(&mut context.ports());

        for (vc, channel) in self.channels.iter_mut().enumerate() {
            if update.fired & barrier::gi_channels_seen_by(vc) != 0 {
                channel.events.request(vector::GLOBAL_INT);
            }
            if let Some(status) = update.status {
                channel.show_global_interrupts(status);
            }
        }
    }

    /// Publishes the state and raises interrupts. Each entry point that may change state ends with
    /// it.
    fn publish_state(&mut self, context: &mut Context<'_>) {
        let wire_changes = context.ports().wire_changes();
        self.publish_state_at(context, wire_changes);
    }

    /// As [`TreeNic::publish_state`], for a caller that knows the fabric's count of wire changes.
    #[inline(always)]
    fn publish_state_at(&mut self, context: &mut Context<'_>, wire_changes: u64) {
        let wires_changed = self.global_interrupts.needs_update(wire_changes);
        let has_events = self.channels.iter().any(|channel| channel.events.is_any_requested());

        if wires_changed || !self.attached.is_empty() || has_events {
            self.publish_changes(context, wires_changed);
        }
    }

    /// Stores the mirror words that have changed, and raises the interrupts that were requested.
    /// `wires_changed` says whether to read the global interrupts first.
    #[inline(always)]
    fn publish_changes(&mut self, context: &mut Context<'_>, wires_changed: bool) {
        if wires_changed {
            self.update_global_interrupts(context);
        }

        for channel in &mut self.channels {
            channel.publish(self.enabled_exceptions);
        }

        if self.channels.iter().any(|channel| channel.events.is_any_requested()) {
            self.raise_requested(context);
        }
    }

    /// Logs packets without a route, and operands of different operations.
    #[inline]
    fn log_counts(&mut self, context: &mut Context<'_>) {
        let [system, user] = &self.router.counters;
        self.watches.no_target.check(context, None, system.no_target + user.no_target, || {
            Warning::dropped(&"a packet has a route at each node that it reaches")
        });
        self.watches.mismatched.check(context, None, system.mismatched + user.mismatched, || {
            Warning::failed(&"all operands of a class have the same operation and width")
        });
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

        for channel in &mut self.channels {
            channel.clear(&self.config, &self.presence, &mut ports);
            channel.show_global_interrupts(self.global_interrupts.mirrored());
        }
        self.halves = Default::default();

        // The clear may have dropped queued presence symbols, so they are sent again for every
        // core. A client counts as restarted, because its packets were lost.
        for core in (0..CORES).map(AttachmentId) {
            let has_client = self.is_attached(core);
            let change = if has_client { PresenceChange::Restarted } else { PresenceChange::Unchanged };
            self.send_presence(core, change);
        }
    }

    /// Resets an attachment whose client asked for it. The client may have left already.
    fn reset_attachment(&mut self, attachment: AttachmentId) {
        self.interrupts.reset_attachment(attachment);
        if let Some(halves) = self.halves.get_mut(usize::from(attachment.0)) {
            *halves = QuadHalves::default();
        }

        if self.is_attached(attachment) {
            self.channels[channel_of(attachment)].free_locks(attachment.0);
            // Peers must drop their state about the earlier client of this core.
            self.send_presence(attachment, PresenceChange::Restarted);
        }
    }
}

impl Device for TreeNic {
    fn spec(&self) -> FunctionSpec {
        let identity = Identity {
            vendor: pci::VENDOR_ID,
            device: pci::DEVICE_TREE,
            subsystem_vendor: pci::VENDOR_ID,
            subsystem: pci::DEVICE_TREE,
            // PCI: a network controller of another kind than those that have a class of their own.
            class: 0x02_80_00,
            revision: 1,
        };

        let mut attachments: Vec<AttachmentSpec> =
            (0..CORES).map(|core| AttachmentSpec { name: format!("core{core}"), group: 1 }).collect();
        attachments.push(AttachmentSpec { name: "admin".to_owned(), group: 0 });

        let mut spec = FunctionSpec::nic(
            identity,
            attachments,
            NicSizes {
                register_bytes: REGISTERS,
                vectors: vector::COUNT,
                ring_cells: RING_CELLS,
                ..NicSizes::default()
            },
        );
        spec.bars[usize::from(BAR_WINDOW)] =
            Some(BarSpec::memory(window::SIZE, AreaKind::Mapped, Scope::Group));
        spec.bars[usize::from(BAR_MIRROR)] =
            Some(BarSpec::memory(mirror::SIZE, AreaKind::Mirrored, Scope::Group));
        spec
    }

    fn registers(&self) -> &'static [Register] {
        REGISTER_MAP
    }

    fn peek(&self, ports: &Ports<'_>, from: AttachmentId, at: Address, data: &mut [u8]) -> bool {
        self.peek_register(ports, from, at, data)
    }

    fn ports(&self) -> u8 {
        PORTS as u8
    }

    fn read(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &mut [u8]) {
        self.read_register(context, from, at, data);
        self.publish_state(context);
    }

    fn write(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &[u8]) -> Write {
        self.write_register(context, from, at, data);
        self.publish_state(context);
        Write::Accepted
    }

    fn attached(&mut self, context: &mut Context<'_>, attachment: AttachmentId) {
        if usize::from(attachment.0) >= ATTACHMENTS {
            return;
        }

        let number = channel_of(attachment);

        if !self.channels[number].is_open()
            && let (Some(window), Some(mirror)) =
                (context.memory(attachment, BAR_WINDOW), context.memory(attachment, BAR_MIRROR))
        {
            // The memory has the size that `spec` asks for, so this does not fail. If it did, the
            // channel would stay closed.
            let _ = self.channels[number].open(&self.config, &self.presence, &window, &mirror);
            self.channels[number].show_global_interrupts(self.global_interrupts.mirrored());
        }

        self.attached.add(attachment);
        if attachment.0 < CORES {
            self.channels[number].core_attached(attachment.0);
            self.send_presence(attachment, PresenceChange::Toggled);
        }

        self.publish_state(context);
    }

    fn detached(&mut self, context: &mut Context<'_>, attachment: AttachmentId, _why: Ended) {
        if !self.is_attached(attachment) {
            return;
        }

        let number = channel_of(attachment);
        self.channels[number].free_locks(attachment.0);
        self.attached.remove(attachment);

        // The admin's number follows those of the cores. It has no presence.
        if attachment.0 < CORES {
            self.channels[number].core_detached(attachment.0);
        }

        if self.clients(number).next().is_none() {
            self.channels[number].close(&mut context.ports());
            let barriers = barrier::gi_channels_reset_with(number);
            self.global_interrupts.reset(barriers, &mut context.ports());
        }

        if attachment.0 < CORES {
            self.send_presence(attachment, PresenceChange::Toggled);
        }

        self.publish_state(context);
    }

    fn reset(&mut self, context: &mut Context<'_>, reach: Reset) {
        match reach {
            Reset::Attachment(attachment) => self.reset_attachment(attachment),
            Reset::Function => {
                self.router.power_on(&self.config.routes);
                self.enabled_exceptions = Exceptions::enabled_at_power_on();
                for channel in &mut self.channels {
                    channel.config = ChannelConfig::default();
                }

                self.interrupts.reset();
                self.soft_reset(context);
                self.global_interrupts.reset(ALL_BARRIERS, &mut context.ports());
            }
        }

        self.publish_state(context);
    }

    fn step(&mut self, context: &mut Context<'_>, budget: u32) -> Progress {
        let (mut busy, mut locked) = (false, false);

        let wire_changes = {
            let mut ports = context.ports();
            // In a node without clients, only the router has work: it forwards packets, and sends
            // those that the last client left behind.
            if !self.attached.is_empty() {
                for channel in &mut self.channels {
                    let discarded = channel.begin_step(&mut ports);
                    busy |= discarded.any;
                    locked |= discarded.locked;
                }
            }

            let mut router_context = RouterContext {
                channels: &mut self.channels,
                presence: &mut self.presence,
                ports: &mut ports,
                injecting: self.enabled_exceptions.inject & pix::ENABLE != 0,
            };
            busy |= self.router.run(&mut router_context, budget);

            router_context.ports.wire_changes()
        };

        if locked {
            let retry_at = context.now().after(LOCKED_RETRY);
            context.wake_at(retry_at);
        }
        if self.router.take_starved() {
            retry::when_starved(context);
        }

        self.log_counts(context);
        self.publish_state_at(context, wire_changes);
        if busy { Progress::Busy } else { Progress::Idle }
    }

    fn counters(&self) -> Vec<Counter> {
        let [system, user] = &self.router.counters;
        let discarded = self.channels.each_ref().map(Channel::discarded);
        let [system_counts, user_counts] = self.channels.each_ref().map(Channel::packet_counts);

        let list = [
            ("vc0_send_fill", system_counts.send.into()),
            ("vc0_recv_fill", system_counts.receive.into()),
            ("vc1_send_fill", user_counts.send.into()),
            ("vc1_recv_fill", user_counts.receive.into()),
            ("vc0_sent", system.sent),
            ("vc0_received", system.received),
            ("vc0_forwarded", system.forwarded),
            ("vc0_combined", system.combined),
            ("vc0_mismatched", system.mismatched),
            ("vc0_stalls", system.stalls),
            ("vc0_discarded", system.discarded + discarded[VC_SYSTEM]),
            ("vc0_no_target", system.no_target),
            ("vc0_presence", system.presence),
            ("vc1_sent", user.sent),
            ("vc1_received", user.received),
            ("vc1_forwarded", user.forwarded),
            ("vc1_combined", user.combined),
            ("vc1_mismatched", user.mismatched),
            ("vc1_stalls", user.stalls),
            ("vc1_discarded", user.discarded + discarded[VC_USER]),
            ("vc1_no_target", user.no_target),
            ("vc1_presence", user.presence),
            ("errors", self.errors),
            ("interrupts", self.interrupts.raised()),
        ];

        list.into_iter().map(|(name, value)| Counter { name, value }).collect()
    }
}
