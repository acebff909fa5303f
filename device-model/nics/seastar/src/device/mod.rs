//! The device: attachments, resets, the firmware's incarnations, and one step.
//!
//! | file | contents |
//! | --- | --- |
//! | `mod.rs` | the device's methods, and its state |
//! | `lifecycle.rs` | incarnations of the firmware and of nodes, tenants |
//! | `commands.rs` | the commands of clients, on their way to the firmware |
//! | `effects.rs` | the effects of the program's calls |

mod commands;
mod effects;
mod lifecycle;

use std::sync::atomic::Ordering;

use nicforge_core::{
    context::Context,
    device::{Counter, Device, Ended, Progress, Reset, Write},
    dma::DmaError,
    fabric::Ports,
    ids::{Address, AttachmentId, DmaToken},
    register::Register,
    spec::{AttachmentSpec, FunctionSpec, Identity, NicSizes},
    time::Nanos,
    warning::Warning,
};
use nicforge_hwi::{
    pci,
    seastar::{self, REGISTER_MAP, REGISTERS, RING_CELLS, firmware, mirror, reg, vector, window},
};
use nicforge_kit::{AttachmentSet, CountWatch, RegisterValue};
use nicforge_network::router::{FifoSpec, Router, RouterSpec};
use nicforge_seastar_firmware::chip::Program;

use crate::{
    config::{MAX_CLIENTS, Network, NetworkError, Options, Site},
    incarnations::Cursor,
    leased::{DepositMemory, EventMemory},
    mailbox::{Mailbox, PublishedState},
    memory::Tenants,
    parts::{FirmwareLink, Parts},
    processor::Counters,
    receive::Receiver,
    reference,
    transmit::Transmitter,
    wait_budgets::Wait,
};

/// Number of packets that each injection FIFO and the reception FIFO hold.
const FIFO_PACKETS: u16 = 8;

/// The node on which a program of the embedded processor runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramSite {
    /// The node.
    pub node: u32,
    /// Number of nodes of the network.
    pub nodes: u32,
    /// Number of processes of the node.
    pub processes: u16,
}

/// A node's SeaStar; the crate's documentation describes it.
pub struct SeaStar<P> {
    /// Makes the program at each start of the processor.
    make_program: Box<dyn FnMut(ProgramSite) -> P + Send>,
    parts: Parts,
    /// State of each attachment, by its number.
    clients: [AttachmentState; MAX_CLIENTS],
    /// Attachments with a client whose mailbox is open.
    attached: AttachmentSet<1>,
    /// Client whose commands come first in the next step.
    next_client: u16,
    /// A command had no room in the processor's FIFO when the device last looked for commands.
    has_refused_command: bool,
    firmware: FirmwareState,
    incarnation_changes: IncarnationChanges,
    transmitter: Transmitter,
    receiver: Receiver,
    /// The counters of the program.
    counters: Counters,
    /// Number of commands passed to the firmware.
    commands: u64,
    /// Number of errors of clients: invalid counts of commands, and failed writes to their memory.
    errors: u64,
    watches: Watches,
}

/// Counts of which each rise is logged.
#[derive(Debug, Default)]
struct Watches {
    dropped: CountWatch,
    discarded: CountWatch,
    corrupt: CountWatch,
    faults: CountWatch,
}

/// State of an attachment.
#[derive(Default)]
struct AttachmentState {
    mailbox: Option<Mailbox>,
    /// Number of the tenant that was last reported to the firmware, 0 for none.
    reported_tenant: u32,
    /// Memory that events are written to.
    events: EventMemory,
    /// Memory that the data of header packets are written to.
    deposits: DepositMemory,
}

/// State of the firmware, as the device sees it.
struct FirmwareState {
    /// The state as clients see it, a value of [`firmware`].
    published: u32,
    /// Number of the firmware's starts.
    epoch: u32,
    /// Number of this node's last incarnation.
    last_incarnation: u32,
    /// Time at which [`Event::Timer`](nicforge_seastar_firmware::chip::Event::Timer) is due.
    timer: Nanos,
    /// The wait of the firmware's write to a client, if one waits.
    wait: Option<Wait>,
    /// Bytes of that write that are written.
    written: usize,
    /// Number of times that the firmware has halted.
    halts: u64,
}

/// Result of [`SeaStar::move_packets`].
struct Moved {
    /// Number of packets, parts of their data, and commands.
    total: u32,
    /// Those among them that this node's engines have moved, and not the router alone.
    by_engines: u32,
    /// More can be moved in the next step.
    has_more: bool,
}

/// Changes of other nodes' incarnations that the firmware has not seen.
#[derive(Default)]
struct IncarnationChanges {
    /// How far the device has seen the changes of the network's table.
    cursor: Cursor,
    /// Nodes whose incarnation must be reported to the firmware.
    nodes: Vec<u32>,
}

impl<P: Program + Send + 'static> SeaStar<P> {
    /// Builds the SeaStar of a node, before the first start of its processor. `make` makes the
    /// program at each start.
    ///
    /// # Errors
    /// [`NetworkError::NoNode`], and [`NetworkError::Router`] if the links do not fit.
    pub fn new(
        network: &Network,
        node: u32,
        make: impl FnMut(ProgramSite) -> P + Send + 'static,
    ) -> Result<Self, NetworkError> {
        let site = network.site(node)?;
        let router = Router::new(&router_spec(&site), site.table.clone())?;
        let receiver = Receiver::new(site.nodes);
        let max_reference = reference::max_reference(&site.options);

        Ok(Self {
            make_program: Box::new(make),
            parts: Parts {
                site,
                router,
                firmware: FirmwareLink::default(),
                tenants: Tenants::default(),
                own_incarnation: 0,
                max_reference,
            },
            clients: std::array::from_fn(|_| AttachmentState::default()),
            attached: AttachmentSet::default(),
            next_client: 0,
            has_refused_command: false,
            firmware: FirmwareState {
                published: firmware::DOWN,
                epoch: 0,
                last_incarnation: 0,
                timer: Nanos::NEVER,
                wait: None,
                written: 0,
                halts: 0,
            },
            incarnation_changes: IncarnationChanges::default(),
            transmitter: Transmitter::new(),
            receiver,
            counters: Counters::default(),
            commands: 0,
            errors: 0,
            watches: Watches::default(),
        })
    }

    /// Returns the number of accesses that ended early because a budget of waits was spent.
    fn over_budget(&self) -> u64 {
        self.parts.tenants.over_budget() + self.transmitter.over_budget() + self.receiver.over_budget()
    }

    fn options(&self) -> &Options {
        &self.parts.site.options
    }

    /// Returns the state that the mirror pages of all clients have.
    fn published_state(&self) -> PublishedState {
        PublishedState {
            node: self.parts.site.node,
            nodes: self.parts.site.nodes,
            processes: self.options().processes.into(),
            firmware: self.firmware.published,
            epoch: self.firmware.epoch,
        }
    }

    /// Publishes the state of the firmware in the mirror pages of all clients.
    fn show_firmware(&mut self, state: u32) {
        self.firmware.published = state;
        let published = self.published_state();
        for attachment_id in self.attached.iter() {
            if let Some(mailbox) = &mut self.clients[usize::from(attachment_id.0)].mailbox {
                mailbox.show_firmware(published);
            }
        }
    }

    /// Returns whether a step has nothing to do, as most steps in a large network. The caller knows
    /// that the router is idle.
    #[inline]
    fn is_quiet(&self, now: Nanos) -> bool {
        self.is_node_quiet(now) && !self.has_commands()
    }

    /// Returns whether the engines and the firmware have nothing to do. The mailboxes may still
    /// have new commands, and the router packets between other nodes.
    #[inline]
    fn is_node_quiet(&self, now: Nanos) -> bool {
        self.firmware.published == firmware::RUNNING
            && self.transmitter.is_idle(now)
            && self.receiver.is_idle(&self.parts, now)
            && self.firmware.timer > now
            && self.parts.firmware.is_quiet()
            && !self.has_unreported_changes()
            && !self.has_refused_command
    }

    /// Moves packets by the engines and the router, until nothing moves or about `budget` has
    /// moved.
    ///
    /// The receive engine takes part if `receives`. `router_has_work` says whether the router has
    /// something to do before the engines move a packet, and `skips_commands` that this step has
    /// not looked for commands.
    fn move_packets(
        &mut self,
        context: &mut Context<'_>,
        budget: u32,
        receives: bool,
        mut router_has_work: bool,
        mut skips_commands: bool,
    ) -> Moved {
        let (mut total, mut by_engines) = (0, 0);
        loop {
            let remaining = budget.saturating_sub(total);
            let sent = self.transmitter.step(&mut self.parts, context, remaining);

            // A packet for this node has arrived. A client may have written a command before the
            // packet was sent, and the firmware must get the command first.
            let mut taken = 0;
            if skips_commands && !self.receiver.is_idle(&self.parts, context.now()) {
                skips_commands = false;
                taken = self.take_commands(context, budget);
            }

            let received = if receives { self.receiver.step(&mut self.parts, context, remaining) } else { 0 };
            let mut moved = sent + taken + received;
            by_engines += moved;

            // A step of the router moves all that can move. It can move more only if an engine has
            // injected a packet, or has made room in the reception FIFO.
            router_has_work |= sent > 0;
            router_has_work |= received > 0 && !self.parts.router.is_idle(&context.ports());
            let mut has_more = false;
            if std::mem::take(&mut router_has_work) {
                let outcome = self.parts.router.step(&mut context.ports(), budget);
                context.wake_at(outcome.wake);
                moved += outcome.moved;
                has_more = outcome.has_more;
            }

            total += moved;
            if moved == 0 || has_more || total >= budget {
                return Moved { total, by_engines, has_more: moved > 0 || has_more };
            }
        }
    }

    /// Logs the packets and messages that the engines have dropped, or could not deliver.
    #[inline]
    fn log_counts(&mut self, context: &mut Context<'_>) {
        let (sent, received) = (&self.transmitter.counters, &self.receiver.counters);
        let router = self.parts.router.counters();
        let Watches { dropped, discarded, corrupt, faults } = &mut self.watches;

        dropped.check(context, None, received.dropped, || {
            Warning::dropped(&"a message that arrives finds a free stream")
        });
        discarded.check(context, None, received.discarded + router.dropped, || {
            Warning::dropped(&"a packet is well formed, has a way, and finds its node's firmware running")
        });
        corrupt.check(context, None, received.corrupt, || {
            Warning::failed(&"a message arrives with the checksum with which it was sent")
        });
        faults.check(context, None, sent.faults + received.faults, || {
            Warning::failed(&"the memory that a message is read from or written to is mapped")
        });
    }

    /// Requests a step at the next time at which an effect, the timer or an engine is due.
    fn arm(&mut self, context: &mut Context<'_>) {
        let now = context.now();
        let effect = self.parts.firmware.next_effect_time();
        let times =
            [effect, self.firmware.timer, self.transmitter.next_time(now), self.receiver.next_time(now)];
        let due = times.into_iter().filter(|&time| time > now).min().unwrap_or(Nanos::NEVER);
        let next = due.min(self.parts.firmware.take_retry(now));
        if next < Nanos::NEVER {
            context.wake_at(next);
        }
    }

    /// Opens the mailbox of a client that has attached, or that was reset. It becomes a new tenant.
    fn open_mailbox(&mut self, context: &Context<'_>, attachment_id: AttachmentId) {
        let state = self.published_state();
        let Some(client) = self.clients.get_mut(usize::from(attachment_id.0)) else { return };
        client.mailbox = Mailbox::open(context, attachment_id, state);
        client.events = EventMemory::default();
        client.deposits = DepositMemory::default();
        if client.mailbox.is_some() {
            self.attached.add(attachment_id);
            self.parts.tenants.begin(attachment_id);
        }
    }
}

/// Returns the description of a node's router.
fn router_spec(site: &Site) -> RouterSpec {
    let link = site.options.link.clone();
    let bytes = link.max_packet as u32 * u32::from(FIFO_PACKETS);
    let fifo = |priority| FifoSpec { bytes, packets: FIFO_PACKETS, priority };
    RouterSpec {
        ports: site.ports,
        link,
        framing: 0,
        // By virtual channel: two for data, then two for control messages, which go first.
        priorities: vec![1, 1, 0, 0],
        bubble_vcs: 0,
        through_ratio: 1,
        // Of data, and of control messages.
        injection: vec![fifo(1), fifo(0)],
        reception: vec![fifo(0)],
    }
}

impl<P: Program + Send + 'static> Device for SeaStar<P> {
    fn spec(&self) -> FunctionSpec {
        let identity = Identity {
            vendor: pci::VENDOR_ID,
            device: pci::DEVICE_SEASTAR,
            subsystem_vendor: pci::VENDOR_ID,
            subsystem: pci::DEVICE_SEASTAR,
            // PCI class: network controller, other.
            class: 0x02_80_00,
            revision: 1,
        };

        let processes = (0..self.options().processes).map(|process| format!("p{process}"));
        let attachments = std::iter::once("kernel".to_owned())
            .chain(processes)
            .map(|name| AttachmentSpec { name, group: 0 })
            .collect();
        let sizes = NicSizes {
            register_bytes: REGISTERS,
            vectors: vector::COUNT,
            ring_cells: RING_CELLS,
            window_bytes: window::SIZE,
            mirror_bytes: mirror::SIZE,
        };
        FunctionSpec::nic(identity, attachments, sizes)
    }

    fn lets_clients_sleep(&self) -> bool {
        true
    }

    fn ports(&self) -> u8 {
        self.parts.site.ports
    }

    fn attached(&mut self, context: &mut Context<'_>, attachment_id: AttachmentId) {
        self.open_mailbox(context, attachment_id);
        context.wake_at(Nanos::ZERO);
    }

    fn detached(&mut self, context: &mut Context<'_>, attachment_id: AttachmentId, _: Ended) {
        self.attached.remove(attachment_id);
        self.parts.tenants.end(attachment_id);
        if let Some(client) = self.clients.get_mut(usize::from(attachment_id.0)) {
            client.mailbox = None;
            client.events = EventMemory::default();
            client.deposits = DepositMemory::default();
        }
        self.receiver.release_leases();
        context.wake_at(Nanos::ZERO);
    }

    fn leases_ended(&mut self, _: &mut Context<'_>, attachment_id: AttachmentId) {
        if let Some(client) = self.clients.get_mut(usize::from(attachment_id.0)) {
            client.events.release_if_over();
            client.deposits.release_if_over();
        }
        self.receiver.release_leases();
    }

    fn reset(&mut self, context: &mut Context<'_>, reach: Reset) {
        if reach == Reset::Function {
            self.stop_firmware(context, firmware::DOWN);
            self.parts.router.reset(&mut context.ports());
        }

        // A client that the reset reaches becomes a new tenant, with an empty mailbox.
        for attachment_id in self.attached.iter().filter(|&attachment_id| reach.reaches(attachment_id)) {
            self.open_mailbox(context, attachment_id);
        }
        context.wake_at(Nanos::ZERO);
    }

    fn registers(&self) -> &'static [Register] {
        REGISTER_MAP
    }

    fn read(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &mut [u8]) {
        self.peek(&context.ports(), from, at, data);
    }

    fn peek(&self, _: &Ports<'_>, _: AttachmentId, at: Address, data: &mut [u8]) -> bool {
        let is_identity = at.bar == 0 && at.offset == reg::IDENTITY;
        if is_identity {
            reg::IDENTITY_VALUE.answer_read(data);
        }
        is_identity
    }

    fn write(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &[u8]) -> Write {
        Write::Accepted
    }

    fn dma_done(
        &mut self,
        _: &mut Context<'_>,
        _: AttachmentId,
        token: DmaToken,
        result: Result<&[u8], DmaError>,
    ) {
        self.transmitter.reader().store_answer(token, result);
        self.receiver.reader().store_answer(token, result);
    }

    fn step(&mut self, context: &mut Context<'_>, budget: u32) -> Progress {
        let router_has_work = !self.parts.router.is_idle(&context.ports());
        // While its clients sleep, the device looks at their mailboxes only in steps that do
        // something for its own node.
        let skips_commands = context.clients_sleep() && self.is_node_quiet(context.now());
        if !router_has_work && (skips_commands || self.is_quiet(context.now())) {
            let now = context.now();
            let engines = self.transmitter.next_time(now).min(self.receiver.next_time(now));
            let next = self.firmware.timer.min(engines);
            if next < Nanos::NEVER {
                context.wake_at(next);
            }
            return Progress::Idle;
        }

        let now = context.now();
        self.watch_firmware(context);

        let all_changes_reported = self.report_changes_to_firmware(context);
        // Effects are carried out even while a report waits: a processor with a full FIFO of
        // effects takes no input, and the report would wait for ever.
        let mut moved = self.carry_out_due_effects(context, budget);
        if all_changes_reported {
            self.fire_timer(now);
            if !skips_commands {
                moved += self.take_commands(context, budget);
            }
        }

        // While a write of the firmware waits for a client, no further data may be written to it,
        // or the wait might not end. Without running firmware the receive engine discards packets.
        let may_deposit = all_changes_reported && self.firmware.wait.is_none();
        let receives = may_deposit || !self.parts.firmware.is_running();
        let Moved { total, by_engines, has_more } =
            self.move_packets(context, budget, receives, router_has_work, skips_commands);
        self.log_counts(context);
        self.arm(context);

        // A step that has only forwarded packets of other nodes is no work of this node.
        if moved + by_engines == 0 {
            context.note_transit();
        }
        if moved + total > 0 || has_more { Progress::Busy } else { Progress::Idle }
    }

    fn counters(&self) -> Vec<Counter> {
        let (sent, received) = (&self.transmitter.counters, &self.receiver.counters);
        let router = self.parts.router.counters();
        let ports = 0..self.parts.site.ports;
        let forwarded: u64 = ports.map(|port| self.parts.router.output_counters(port).through).sum();

        let list = [
            ("sent", sent.messages),
            ("received", received.messages),
            ("control_sent", sent.control),
            ("control_lost", sent.control_lost),
            ("control_received", received.control),
            ("bytes_sent", sent.bytes),
            ("bytes_received", received.bytes),
            ("packets_sent", sent.packets),
            ("packets_received", received.packets),
            ("forwarded", forwarded),
            ("dropped", received.dropped),
            ("stale", received.stale),
            ("cut", received.cut),
            ("corrupt", received.corrupt),
            ("memory_faults", sent.faults + received.faults),
            ("discarded", received.discarded + router.dropped),
            ("streams", self.receiver.streams_in_use()),
            ("most_streams", received.most_streams),
            ("transmissions", self.transmitter.waiting()),
            ("commands", self.commands),
            ("incarnation", self.parts.own_incarnation.into()),
            ("firmware_state", self.firmware.published.into()),
            ("firmware_incarnation", self.firmware.epoch.into()),
            ("firmware_halts", self.firmware.halts),
            ("over_budget", self.over_budget()),
            ("errors", self.errors),
        ];
        let program = P::COUNTERS.iter().zip(self.counters.iter());
        let program = program.map(|(&name, value)| (name, value.load(Ordering::Relaxed)));
        list.into_iter().chain(program).map(|(name, value)| Counter { name, value }).collect()
    }
}

// The numbers of attachments fit a set of one word.
const _: () = assert!(MAX_CLIENTS <= 64 && seastar::MAX_PROCESSES < 64);
