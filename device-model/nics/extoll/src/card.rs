//! The device: attachments, resets, one step.

use nicforge_core::{
    context::Context,
    device::{Address, AttachmentId, Counter, Device, DmaToken, Ended, Progress, Reset, Write},
    dma::DmaError,
    posted::Posted,
    spec::{AreaKind, AttachmentSpec, BarKind, BarSpec, FunctionSpec, Identity, Scope},
    time::Nanos,
};
use nicforge_hwi::{
    extoll::{BAR_DIRECTORY, BAR_VELO, REGISTERS, RING_CELLS, error, mirror, reg, vector, window},
    extoll_velo::address,
    pci,
};

use crate::{
    atu::Atu,
    config::{CardConfig, ConfigError},
    directory::{Directory, Entry},
    rma::{Counts, Rma},
    set::Set,
    switch::{Refused, Switch},
    velo::{
        ring::Ring,
        send::{Burst, Sent},
    },
    vpid::{Announcement, Stall, Vpid, Windows},
    wire::{Class, FRAMING, Kind, Wire},
    work::{self, Work},
};

/// How soon to try again when the fabric's packets were all in use, in nanoseconds.
pub(crate) const STARVED_RETRY: u64 = 10_000;
/// A split message that is not completed within this time is torn, in nanoseconds.
const SPLIT_TIMEOUT: u64 = 100_000_000;
/// Packets taken from one source before others have their turn.
const RUN: u32 = 32;
/// Looks at a send that waits before the watchdog ends it, at least.
const WATCHDOG_LOOKS: u64 = 16;
/// Announcements sent in one step for a VPID.
const ANNOUNCEMENTS: u32 = 16;

/// An EXTOLL card. See the crate.
pub struct Card {
    pub(crate) config: CardConfig,
    pub(crate) switch: Switch,
    pub(crate) directory: Directory,
    /// By attachment: the VPIDs, then the admin.
    pub(crate) vpids: Vec<Vpid>,
    pub(crate) atu: Atu,
    pub(crate) work: Work,
    pub(crate) rma: Rma,
    pub(crate) watchdog: u64,
    pub(crate) selected: u64,
    /// VPIDs with unread messages, whose read pointers are looked at, and those whose numbers are to be shown: a bit each.
    pub(crate) unread: Set,
    pub(crate) shown_late: Set,
    /// VPIDs with a split message that is not complete.
    splits: Set,
    /// VPIDs that owe credit or have news.
    talking: Set,
    /// Clients there are.
    clients: u32,
    /// Nodes to be asked what they have, after a reset.
    greeting: Option<u32>,
    pub(crate) delivered: u64,
    pub(crate) undelivered: u64,
    /// Messages that earlier tenants have sent.
    sent_before: u64,
    stalls: u64,
    errors: u64,
    watchdogs: u64,
    torn: u64,
}

/// Why a send has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    /// Its addressee's ring is full, as far as this node's share goes.
    Credit,
    /// The machine has no packet left: it passes by itself.
    Packets,
    /// There is no room on a way out. It passes by itself, unless the network stands still.
    Way,
}

impl Card {
    /// A card.
    ///
    /// # Errors
    /// When the configuration makes no sense.
    pub fn new(config: CardConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            switch: Switch::new(config.node, config.routes.clone()),
            directory: Directory::new(config.nodes, config.vpids),
            vpids: (0..=config.vpids).map(|_| Vpid::default()).collect(),
            atu: Atu::new(config.vpids),
            work: Work::default(),
            rma: Rma::new(usize::from(config.vpids) + 1, config.rma_watchdog),
            watchdog: config.watchdog,
            selected: 0,
            unread: Set::default(),
            shown_late: Set::default(),
            splits: Set::default(),
            talking: Set::default(),
            clients: 0,
            greeting: None,
            delivered: 0,
            undelivered: 0,
            sent_before: 0,
            stalls: 0,
            errors: 0,
            watchdogs: 0,
            torn: 0,
            config,
        })
    }

    /// The attachment that is the admin.
    pub fn admin(&self) -> AttachmentId {
        AttachmentId(self.config.vpids)
    }

    /// An attachment's state, if there is such an attachment.
    #[inline]
    pub(crate) fn vpid(&mut self, who: AttachmentId) -> Option<&mut Vpid> {
        self.vpids.get_mut(usize::from(who.0))
    }

    /// Counts an error of an attachment and tells it.
    #[cold]
    pub(crate) fn fail(&mut self, context: &mut Context<'_>, who: AttachmentId, code: u8, about: u64) {
        self.errors += 1;
        let Some(vpid) = self.vpid(who) else { return };
        vpid.counts.errors += 1;
        vpid.counts.last_error = u64::from(code) | (about & 0xffff_ffff) << 8;
        self.shown_late.add(who.0);
        self.raise(context, who, vector::ERROR);
    }

    /// Has an attachment's numbers shown at the end of the step.
    #[inline]
    pub(crate) fn show(&mut self, who: AttachmentId) {
        self.shown_late.add(who.0);
    }

    /// Raises an interrupt if it is enabled, once: it is disabled then.
    pub(crate) fn raise(&mut self, context: &mut Context<'_>, who: AttachmentId, vector: u16) {
        let Some(vpid) = self.vpid(who) else { return };
        if vpid.interrupts_enabled & (1 << vector) != 0 {
            vpid.interrupts_enabled &= !(1 << vector);
            context.interrupt(who, vector);
        }
    }

    /// A write of the interrupt enable register. What holds already is raised at once.
    pub(crate) fn enable_interrupts(&mut self, context: &mut Context<'_>, who: AttachmentId, value: u64) {
        self.look_at_read_pointer(context, who.0);
        let Some(vpid) = self.vpid(who) else { return };
        vpid.interrupts_enabled = value & ((1 << vector::COUNT) - 1);
        if vpid.ring.as_ref().is_some_and(Ring::has_unread) {
            self.raise(context, who, vector::VELO_RECEIVE);
        }
        if self.has_notifications(context, who) {
            self.raise(context, who, vector::RMA_NOTIFICATION);
        }
    }

    /// A write of the receive ring's enable register.
    pub(crate) fn enable_ring(&mut self, context: &mut Context<'_>, who: AttachmentId, on: bool) {
        let nodes = self.config.nodes;
        let admin = self.admin();
        let Some(vpid) = self.vpid(who) else { return };
        if on == vpid.ring.is_some() {
            return;
        }
        if !on {
            self.disable_ring(who);
            return;
        }
        let place = vpid.place;
        let memory = if who != admin && place.is_sound(nodes) {
            let bytes = place.slots * nicforge_hwi::extoll_velo::SLOT;
            self.work.spend(work::of_lease(context, who, place.base, bytes));
            // A slot may lie in two mappings; its header is written at once.
            context.dma_lease(who, place.base, bytes, true).ok().filter(|memory| memory.keeps_whole(8))
        } else {
            None
        };
        let Some(memory) = memory else {
            self.fail(context, who, error::RING, nicforge_hwi::extoll::reg::VELO_RING_ENABLE);
            return;
        };
        let Some(vpid) = self.vpid(who) else { return };
        vpid.ring = Some(Ring::new(memory, place, nodes));
        vpid.generation = vpid.generation.wrapping_add(1);
        vpid.announcement = Some(Announcement { next: 0 });
        self.talking.add(who.0);
    }

    /// Nobody can send to the VPID any more.
    pub(crate) fn disable_ring(&mut self, who: AttachmentId) {
        let Some(vpid) = self.vpid(who) else { return };
        if vpid.ring.take().is_some() {
            vpid.generation = vpid.generation.wrapping_add(1);
            vpid.announcement = Some(Announcement { next: 0 });
            self.talking.add(who.0);
            self.unread.remove(who.0);
        }
    }

    /// A write to the send aperture.
    fn send(&mut self, context: &mut Context<'_>, who: AttachmentId, offset: u64, data: &[u8]) -> Write {
        let now = context.now();
        let admin = self.admin();
        let Some(vpid) = self.vpid(who).filter(|_| who != admin) else {
            self.fail(context, who, error::NOT_PERMITTED, offset);
            return Write::Accepted;
        };
        let (burst, torn) = vpid.assembly.add(offset, data, now);
        if torn {
            self.torn += 1;
            self.fail(context, who, error::SEND_TORN, offset);
        }
        match burst {
            Burst::Whole => self.inject(context, who, offset, data),
            Burst::Last => {
                let (_, _, _, quadwords) = address::decode(offset);
                let message = self.vpids[usize::from(who.0)].assembly.message(quadwords);
                let written = self.inject(context, who, offset, &message[..quadwords * 8]);
                if written == Write::Accepted
                    && let Some(vpid) = self.vpid(who)
                {
                    vpid.assembly.clear();
                }
                written
            }
            Burst::Kept => {
                self.splits.add(who.0);
                context.wake_at(now.after(SPLIT_TIMEOUT));
                Write::Accepted
            }
            Burst::Bad => {
                self.fail(context, who, error::SEND_ADDRESS, offset);
                Write::Accepted
            }
        }
    }

    /// Sends a message, if there is credit for its addressee.
    #[inline]
    fn inject(&mut self, context: &mut Context<'_>, who: AttachmentId, offset: u64, message: &[u8]) -> Write {
        let (node, target, tag, quadwords) = address::decode(offset);
        let Some(entry) = self.directory.entry(node, target).filter(|entry| entry.is_up()) else {
            self.undeliverable(context, who, offset);
            return Write::Accepted;
        };
        if entry.credit == 0 {
            return self.stall(context, who, offset, Reason::Credit);
        }
        let wire = Wire {
            target: node,
            source: self.config.node,
            target_vpid: target,
            source_vpid: who.0,
            tag,
            quadwords,
            kind: Kind::Velo,
            generation: entry.generation,
        };
        let mut ports = context.ports();
        let Some(mut packet) = ports.new_packet(message.len()) else {
            context.wake_at(context.now().after(STARVED_RETRY));
            return self.stall(context, who, offset, Reason::Packets);
        };
        packet.header = wire.encode();
        packet.framing = FRAMING;
        packet.bytes_mut().copy_from_slice(message);
        match self.switch.send_for_client(&mut ports, node, Class::Request, packet) {
            Ok(()) => {
                entry.credit -= 1;
                let vpid = &mut self.vpids[usize::from(who.0)];
                vpid.counts.sent += 1;
                vpid.end_stall();
                self.shown_late.add(who.0);
                Write::Accepted
            }
            Err(Refused::Full(packet)) => {
                ports.recycle(packet);
                self.stall(context, who, offset, Reason::Way)
            }
            Err(Refused::NoRoute(packet)) => {
                ports.recycle(packet);
                self.undeliverable(context, who, offset);
                Write::Accepted
            }
        }
    }

    #[cold]
    fn undeliverable(&mut self, context: &mut Context<'_>, who: AttachmentId, offset: u64) {
        if let Some(vpid) = self.vpid(who) {
            vpid.end_stall();
            vpid.counts.undelivered += 1;
        }
        self.undelivered += 1;
        self.fail(context, who, error::NO_RECEIVER, offset);
    }

    /// The send in front has to wait, unless it has waited long enough.
    #[cold]
    fn stall(&mut self, context: &mut Context<'_>, who: AttachmentId, offset: u64, reason: Reason) -> Write {
        let (now, watchdog) = (context.now(), self.watchdog);
        let Self { vpids, switch, .. } = self;
        let Some(vpid) = vpids.get_mut(usize::from(who.0)) else { return Write::Accepted };
        let before = vpid.stalled;
        let departed = if reason == Reason::Way {
            let (node, ..) = address::decode(offset);
            switch.want(node, Class::Request);
            switch.departed(&context.ports(), node, Class::Request)
        } else {
            before.map_or(0, |before| before.departed)
        };
        // Time counts by looks: when nobody drove this card for long, its neighbours have had no time to make room either. And it does not count
        // while packets leave on the same way: the network does not stand still, and this one's turn comes.
        let slice = (watchdog / WATCHDOG_LOOKS).max(1);
        let waited = match before {
            Some(before) if before.departed == departed => {
                before.waited + now.0.saturating_sub(before.last.0).min(slice)
            }
            _ => 0,
        };
        vpid.stalled = Some(Stall { waited, last: now, departed });
        if reason == Reason::Credit && !vpid.stalled_for_credit {
            vpid.stalled_for_credit = true;
            vpid.counts.stalls += 1;
            self.stalls += 1;
            self.shown_late.add(who.0);
        }
        if watchdog == 0 {
            return Write::Stalled;
        }
        if waited < watchdog {
            context.wake_at(now.after(slice.min(watchdog - waited)));
            return Write::Stalled;
        }
        if let Some(vpid) = self.vpid(who) {
            vpid.end_stall();
            vpid.counts.given_up += 1;
        }
        self.watchdogs += 1;
        self.fail(context, who, error::WATCHDOG, offset);
        Write::Accepted
    }

    /// News of another card, or of this one.
    fn heard(&mut self, wire: Wire, content: &[u8]) {
        let number = content.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        match wire.kind {
            Kind::Credit => self.directory.credit(wire.source, wire.source_vpid, wire.generation, number),
            Kind::Directory => {
                let entry = Entry { generation: wire.generation, credit: number };
                self.directory.news(wire.source, wire.source_vpid, entry);
            }
            Kind::Hello => {
                // It has forgotten everything; tell it of each ring that is enabled, and what it may still send there.
                for (vpid, number) in self.vpids.iter_mut().zip(0..) {
                    if vpid.ring.is_some() {
                        vpid.announcement = Some(Announcement { next: 0 });
                        self.talking.add(number);
                    }
                }
            }
            Kind::Velo | Kind::Put | Kind::Get | Kind::Answer | Kind::Ended => {}
        }
    }

    /// Takes the packets of a class that are for this card, about `budget` of them. Returns how many.
    fn take_arrivals(&mut self, context: &mut Context<'_>, class: Class, budget: u32) -> u32 {
        let mut taken = 0;
        // Inputs in front of which something has to wait.
        let mut waiting = 0;
        while taken < budget
            && let Some(arrival) = self.switch.arrived(&context.ports(), class, waiting)
        {
            if arrival.wire.kind.is_rma() {
                match self.rma_arrived(context, arrival) {
                    Some(cost) => taken += cost,
                    None => waiting |= 1 << arrival.source(),
                }
            } else if arrival.wire.kind == Kind::Velo {
                let run = self.receive(context, arrival, RUN.min(budget - taken));
                if run == 0 {
                    break;
                }
                taken += run;
            } else {
                let Some(packet) = self.switch.take(&mut context.ports(), arrival) else { break };
                self.heard(arrival.wire, packet.bytes());
                context.ports().recycle(packet);
                taken += 1;
            }
        }
        taken
    }

    /// A packet with a number.
    fn tell(
        &mut self,
        context: &mut Context<'_>,
        kind: Kind,
        target: u32,
        vpid: u16,
        generation: u8,
        number: u32,
    ) -> bool {
        let wire = Wire {
            target,
            source: self.config.node,
            target_vpid: 0,
            source_vpid: vpid,
            tag: 0,
            quadwords: 1,
            kind,
            generation,
        };
        let now = context.now();
        let mut ports = context.ports();
        let Some(mut packet) = ports.new_packet(4) else {
            context.wake_at(now.after(STARVED_RETRY));
            return false;
        };
        packet.header = wire.encode();
        packet.framing = FRAMING;
        packet.bytes_mut().copy_from_slice(&number.to_le_bytes());
        match self.switch.send(&mut ports, packet) {
            Ok(()) => true,
            Err(Refused::Full(packet) | Refused::NoRoute(packet)) => {
                ports.recycle(packet);
                false
            }
        }
    }

    /// Sends what is to be told: credit, then news. True when there is more.
    fn talk(&mut self, context: &mut Context<'_>, who: u16) -> bool {
        let index = usize::from(who);
        while let Some((node, owed)) = self.vpids[index].ring.as_ref().and_then(Ring::due) {
            let generation = self.vpids[index].generation;
            if !self.tell(context, Kind::Credit, node, who, generation, owed) {
                return true;
            }
            if let Some(ring) = &mut self.vpids[index].ring {
                ring.paid();
            }
        }
        for _ in 0..ANNOUNCEMENTS {
            let Some(Announcement { next }) = self.vpids[index].announcement else { break };
            if next == self.config.nodes {
                self.vpids[index].announcement = None;
                break;
            }
            // This node is the last one, so that whoever sees the news here, and sends because of them, sends behind them.
            let node = (self.config.node + 1 + next) % self.config.nodes;
            let vpid = &self.vpids[index];
            let credit = vpid.ring.as_ref().map_or(0, |ring| ring.left_to(node));
            if !self.tell(context, Kind::Directory, node, who, vpid.generation, credit) {
                return true;
            }
            self.vpids[index].announcement = Some(Announcement { next: next + 1 });
        }
        if self.vpids[index].announcement.is_none() {
            self.talking.remove(who);
        }
        self.vpids[index].announcement.is_some()
    }

    fn look_at_read_pointer(&mut self, context: &mut Context<'_>, who: u16) -> bool {
        let Some(vpid) = self.vpids.get_mut(usize::from(who)) else { return false };
        let (Some(pointer), Some(ring)) = (vpid.read_pointer(), vpid.ring.as_mut()) else { return false };
        let good = ring.taken(pointer);
        if !ring.has_unread() {
            self.unread.remove(who);
        }
        let due = ring.due().is_some();
        if due {
            self.talking.add(who);
        }
        if !good {
            self.fail(context, AttachmentId(who), error::READ_POINTER, pointer);
            // Looked at again when the next message comes, so that a wrong pointer is one error.
            self.unread.remove(who);
        }
        due
    }

    /// A split message whose rest does not come.
    fn give_up_splits(&mut self, context: &mut Context<'_>) {
        let now = context.now();
        for who in self.splits.iter() {
            let vpid = &self.vpids[usize::from(who)];
            let Some(since) = vpid.assembly.waiting_since() else {
                self.splits.remove(who);
                continue;
            };
            // Whose last piece has come and waits for credit is whole. The watchdog looks after it.
            let end = vpid.stalled.map_or(since, |stall| stall.last).after(SPLIT_TIMEOUT);
            if now < end {
                context.wake_at(end);
                continue;
            }
            self.give_up_split(context, AttachmentId(who));
        }
    }

    /// What has come of a split message is torn, if there is one.
    pub(crate) fn give_up_split(&mut self, context: &mut Context<'_>, who: AttachmentId) {
        let Some(vpid) = self.vpid(who).filter(|vpid| vpid.assembly.waiting_since().is_some()) else {
            return;
        };
        vpid.assembly.clear();
        self.torn += 1;
        self.fail(context, who, error::SEND_TORN, 0);
    }

    /// The admin resets a VPID, as if its client had asked.
    pub(crate) fn restart(&mut self, context: &mut Context<'_>, who: AttachmentId) {
        self.work.spend(self.atu.cost_of_all(who));
        self.power_on(context, who);
    }

    fn power_on(&mut self, context: &Context<'_>, who: AttachmentId) {
        self.work.forget(who.0);
        self.disable_ring(who);
        self.rma_power_on(who);
        let (node, nodes, vpids) = (self.config.node, self.config.nodes, self.config.vpids);
        let Some(vpid) = self.vpid(who) else { return };
        let (generation, announcement, sent) = (vpid.generation, vpid.announcement, vpid.counts.sent);
        let (starts, windows) = (vpid.starts + 1, Windows::open(context, who));
        *vpid = Vpid { generation, announcement, starts, windows, ..Vpid::default() };
        if let Some(windows) = &vpid.windows {
            windows.show(mirror::NODE, u64::from(node) | u64::from(who.0) << 32);
            windows.show(mirror::NODES, u64::from(nodes) | u64::from(vpids) << 32);
            windows.show(mirror::STARTS, starts);
        }
        vpid.show_counts(Counts::default());
        self.sent_before += sent;
    }

    /// What this card is by itself: nothing is known, and everybody is asked.
    fn forget(&mut self, context: &mut Context<'_>) {
        self.directory.forget();
        self.watchdog = self.config.watchdog;
        self.rma.watch.set_limit(context, self.config.rma_watchdog);
        self.selected = 0;
        self.greeting = Some(0);
    }

    /// Asks the others what they have.
    fn greet(&mut self, context: &mut Context<'_>) {
        while let Some(next) = self.greeting {
            if next == self.config.nodes {
                self.greeting = None;
            } else if self.tell(context, Kind::Hello, next, 0, 0, 0) {
                self.greeting = Some(next + 1);
            } else {
                break;
            }
        }
    }
}

impl Device for Card {
    fn spec(&self) -> FunctionSpec {
        let identity = Identity {
            vendor: pci::VENDOR_EXTOLL,
            device: pci::DEVICE_EXTOLL,
            subsystem_vendor: pci::VENDOR_EXTOLL,
            subsystem: pci::DEVICE_EXTOLL,
            class: 0x02_80_00,
            revision: 1,
        };
        let vpids = (0..self.config.vpids).map(|vpid| format!("vpid{vpid}"));
        let attachments = vpids
            .chain(std::iter::once("admin".to_owned()))
            .map(|name| AttachmentSpec { name, group: 0 })
            .collect();
        let mut spec = FunctionSpec::nic(
            identity,
            attachments,
            REGISTERS,
            vector::COUNT,
            RING_CELLS,
            window::SIZE,
            mirror::SIZE,
        );
        spec.bars[usize::from(BAR_VELO)] = Some(BarSpec {
            kind: BarKind::Memory64 { prefetchable: true },
            ..BarSpec::trapped(address::APERTURE)
        });
        spec.bars[usize::from(BAR_DIRECTORY)] =
            Some(BarSpec::memory(Directory::bytes(self.config.nodes), AreaKind::Mirrored, Scope::Group));
        spec
    }

    fn attached(&mut self, context: &mut Context<'_>, who: AttachmentId) {
        self.clients += 1;
        if self.clients == 1 {
            self.directory.show_in(context.memory(who, BAR_DIRECTORY));
        }
        self.power_on(context, who);
    }

    fn detached(&mut self, _: &mut Context<'_>, who: AttachmentId, _: Ended) {
        self.work.forget(who.0);
        self.disable_ring(who);
        self.rma_power_on(who);
        if let Some(vpid) = self.vpid(who) {
            vpid.windows = None;
        }
        self.clients = self.clients.saturating_sub(1);
        if self.clients == 0 {
            self.directory.show_in(None);
        }
    }

    fn reset(&mut self, context: &mut Context<'_>, reach: Reset) {
        match reach {
            Reset::Attachment(who) => self.power_on(context, who),
            Reset::Function => {
                for number in 0..self.vpids.len() {
                    self.power_on(context, AttachmentId(number as u16));
                }
                self.forget(context);
                self.directory.show_in(
                    (0..self.vpids.len())
                        .find_map(|number| context.memory(AttachmentId(number as u16), BAR_DIRECTORY)),
                );
            }
        }
        context.wake_at(Nanos::ZERO);
    }

    fn read(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &mut [u8]) {
        if at.bar == 0 {
            self.read_register(context, from, at.offset, data);
        }
    }

    fn write(&mut self, context: &mut Context<'_>, from: AttachmentId, at: Address, data: &[u8]) -> Write {
        match at.bar {
            BAR_VELO => self.send(context, from, at.offset, data),
            0 if at.offset == reg::RMA_COMMAND => self.rma_command(context, from, data),
            0 if work::is_dear(at.offset) && !self.work.admits(from.0) => Write::Stalled,
            0 => {
                self.write_register(context, from, at.offset, data);
                Write::Accepted
            }
            _ => Write::Accepted,
        }
    }

    fn drain(&mut self, context: &mut Context<'_>, from: AttachmentId, posted: &mut Posted<'_>) -> Write {
        while let Some((at, _)) = posted.next(context) {
            if at.bar == BAR_VELO {
                let offset = at.offset;
                match self.send_run(context, from, offset, posted) {
                    Sent::Some => continue,
                    Sent::Nothing => {}
                    Sent::Blocked => match self.stall(context, from, offset, Reason::Way) {
                        Write::Stalled => return Write::Stalled,
                        // The watchdog has ended it.
                        Write::Accepted => {
                            posted.done(context);
                            continue;
                        }
                    },
                }
            }
            // The same one again.
            let Some((at, data)) = posted.next(context) else { break };
            if self.write(context, from, at, data) == Write::Stalled {
                return Write::Stalled;
            }
            posted.done(context);
        }
        Write::Accepted
    }

    fn dma_done(
        &mut self,
        _: &mut Context<'_>,
        who: AttachmentId,
        token: DmaToken,
        result: Result<&[u8], DmaError>,
    ) {
        self.stage_arrived(who, token, result);
    }

    fn step(&mut self, context: &mut Context<'_>, budget: u32) -> Progress {
        // Rings come before this in a turn.
        let waited_for = self.work.turn();
        if self.greeting.is_some() {
            self.greet(context);
        }
        let mut moved = 0;
        if !self.switch.is_quiet(&context.ports()) {
            moved += self.switch.step(&mut context.ports(), budget);
            for class in Class::ALL {
                moved += self.take_arrivals(context, class, budget);
            }
        }
        moved += self.rma_send(context, budget);
        let mut next = self.unread.from(0);
        while let Some(who) = next {
            moved += u32::from(self.look_at_read_pointer(context, who));
            next = self.unread.from(who + 1);
        }
        next = self.talking.from(0);
        while let Some(who) = next {
            self.talk(context, who);
            moved += 1;
            next = self.talking.from(who + 1);
        }
        next = self.shown_late.from(0);
        while let Some(who) = next {
            let rma = self.rma.counts(AttachmentId(who));
            self.vpids[usize::from(who)].show_changes(rma);
            self.shown_late.remove(who);
            next = self.shown_late.from(who + 1);
        }
        if !self.splits.is_empty() {
            self.give_up_splits(context);
        }
        if moved > 0 || waited_for { Progress::Busy } else { Progress::Idle }
    }

    fn counters(&self) -> Vec<Counter> {
        let rma = self.rma.totals();
        let sent = self.sent_before + self.vpids.iter().map(|vpid| vpid.counts.sent).sum::<u64>();
        vec![
            Counter { name: "velo_sent", value: sent },
            Counter { name: "velo_received", value: self.delivered },
            Counter { name: "velo_undelivered", value: self.undelivered },
            Counter { name: "velo_stalls", value: self.stalls },
            Counter { name: "velo_torn", value: self.torn },
            Counter { name: "rma_commands", value: rma.commands },
            Counter { name: "rma_completed", value: rma.completed },
            Counter { name: "rma_overflows", value: rma.overflows },
            Counter { name: "rma_refused", value: self.rma.refused },
            Counter { name: "rma_timed_out", value: self.rma.watch.ended },
            Counter { name: "rma_bytes_written", value: self.rma.bytes },
            Counter { name: "atu_entries", value: self.atu.entries() },
            Counter { name: "atu_refused", value: self.atu.refused() },
            Counter { name: "command_visits", value: self.work.visits() },
            Counter { name: "watchdogs", value: self.watchdogs },
            Counter { name: "forwarded", value: self.switch.forwarded() },
            Counter { name: "errors", value: self.errors },
        ]
    }
}
