//! The Message Unit of a node.
//!
//! ```text
//!   registers ──▶ access ──▶ subgroups ◀── page ──▶ mirrors
//!                               │  ▲
//!                       active  ▼  │
//!   client memory ──▶ inject ──▶ network injection FIFOs
//!   client memory ◀── receive ◀── network reception FIFOs ◀── waits
//! ```
//!
//! | module | contents |
//! | --- | --- |
//! | `registers`, `access` | the register file, and accesses to a subgroup's page |
//! | `control`, `ranges`, `errors` | device control registers |
//! | `subgroups`, `subgroup`, `ring`, `page` | the state of clients, and what their mirrors show |
//! | `active`, `arbitrate` | injection FIFOs with descriptors, and the choice among them |
//! | `message`, `inject` | descriptors, and the injection engines |
//! | `rows` | messages of one injection FIFO with which no other competes |
//! | `deposits` | packets for one reception FIFO that follow each other |
//! | `receive`, `waits` | the reception engines, and the FIFOs in memory that they wait for |
//! | `put`, `drops` | direct puts, and packets that are dropped |
//! | `stamps` | the tenants that the descriptors of remote gets are for |
//! | `memory`, `view`, `atomic`, `reference` | client memory, and packets that refer to it |
//! | `timing` | the time that engines take |
//! | `barriers`, `globals` | the subgroups that wait for barriers, and global interrupts |
//!
//! A FIFO in memory has two numbers: `fifo`, among all FIFOs of its kind on the node, and `index`,
//! in its subgroup. Sets of FIFOs, engines and barrier classes are words with one bit for each.
//!
//! In: accesses, packets. Out: packets, deposits, interrupts. May touch: client memory, mirrors,
//! the network unit.

mod access;
mod active;
mod arbitrate;
mod atomic;
mod barriers;
mod control;
mod deposits;
mod drops;
mod errors;
mod globals;
mod inject;
mod memory;
mod message;
mod page;
mod put;
mod ranges;
mod receive;
mod reference;
mod registers;
mod ring;
mod rows;
mod stamps;
mod subgroup;
mod subgroups;
mod timing;
mod view;
mod waits;

use nicforge_core::{context::Context, ids::AttachmentId, warning::Warning};
use nicforge_hwi::{
    mu::{
        BAR_MIRROR, BASE_ADDRESSES, FIRST_SUBGROUP, INJECTION_FIFOS, KERNEL, MIRROR_BASE, PAGE,
        RECEPTION_FIFOS, SUBGROUPS_OF_GROUP, USER_SUBGROUPS, fault, reg, vector,
    },
    mu_dcr::counter,
    mu_packet::{CLASSES, PacketHeader, packet_type},
};
use nicforge_kit::Clock;
use nicforge_network::shape::Torus;

use self::{
    active::{ActiveFifos, Random},
    barriers::Barriers,
    control::Control,
    errors::{ErrorInfo, ErrorSet, Errors},
    globals::Globals,
    memory::Owner,
    page::Page,
    subgroup::Subgroup,
    subgroups::Subgroups,
    timing::Timing,
    waits::ReceptionWaits,
};
use crate::{
    config::Times,
    network::NetworkUnit,
    tenants::{self, Tenants},
};

/// The properties of a node that its unit uses.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// Number of the node.
    pub(crate) node: u32,
    /// Number of nodes.
    pub(crate) nodes: u32,
    /// Coordinates of the node, in one word.
    pub(crate) coordinates: u32,
    /// Highest coordinate of each dimension of the network, in one word.
    pub(crate) last_coordinates: u32,
    /// The compute nodes of the network.
    pub(crate) shape: Torus,
    /// Numbers of the tenants of all nodes.
    pub(crate) tenants: Tenants,
    /// Maximum number of bytes of client memory that a packet can refer to, or 0.
    pub(crate) max_reference: u32,
}

impl Identity {
    /// Returns the mark that packets with this header have if they are for the present tenants of a
    /// node: [`tenants::mark`] of these tenants' numbers.
    #[inline]
    fn mark_at(&self, node: u32, header: &PacketHeader) -> u16 {
        let tenant = |subgroup_id| self.tenants.number(node, subgroup_id);
        let unit = &header.unit;
        match header.packet_type() {
            packet_type::FIFO => tenants::mark(tenant(unit.reception_fifo() / RECEPTION_FIFOS), 0),
            packet_type::PUT => {
                let (payload, counter) = (unit.payload_base_address(), unit.counter_base_address());
                tenants::mark(tenant(payload / BASE_ADDRESSES), tenant(counter / BASE_ADDRESSES))
            }
            _ => tenants::mark(tenant(unit.get_fifo() / INJECTION_FIFOS), 0),
        }
    }
}

/// Counts about clients that come and go.
#[derive(Clone, Copy, Debug, Default)]
struct Tenancies {
    /// Packets for subgroups without a client.
    unclaimed: u64,
    /// Packets for former clients.
    stale: u64,
    /// Number of starts of any subgroup.
    starts: u64,
}

/// The Message Unit, apart from the network.
pub(crate) struct Unit {
    identity: Identity,
    subgroups: Subgroups,
    active: ActiveFifos,
    random: Random,
    /// Network injection FIFO that is chosen first among those with room.
    next_engine: u8,
    reception_waits: ReceptionWaits,
    /// A word of memory changed in all attempts of an atomic operation in this step.
    is_contended: bool,
    timing: Timing,
    control: Control,
    errors: Errors,
    barriers: Barriers,
    globals: Globals,
    /// Performance counters, by the numbers of [`counter`].
    counters: [u64; counter::COUNT],
    tenancies: Tenancies,
    /// Exceptions of the network that have interrupted the kernel.
    network_errors: u64,
}

impl Unit {
    /// Returns the unit of a node in the state of power-on, without clients.
    pub(crate) fn new(identity: Identity, clock: Clock, times: Times) -> Self {
        Self {
            random: Random::new(identity.node),
            identity,
            subgroups: Subgroups::new(),
            active: ActiveFifos::new(),
            next_engine: 0,
            reception_waits: ReceptionWaits::default(),
            is_contended: false,
            timing: Timing::new(clock, times),
            control: Control::new(),
            errors: Errors::default(),
            barriers: Barriers::default(),
            globals: Globals::default(),
            counters: [0; counter::COUNT],
            tenancies: Tenancies::default(),
            network_errors: 0,
        }
    }

    /// Returns whether an operation must be tried again in the next step, and forgets it.
    pub(crate) fn take_contended(&mut self) -> bool {
        std::mem::take(&mut self.is_contended)
    }

    /// Returns whether an injection FIFO has descriptors.
    #[inline]
    pub(crate) fn has_descriptors(&self) -> bool {
        !self.active.is_empty()
    }

    /// Returns the value of a performance counter.
    pub(crate) fn counter(&self, counter: usize) -> u64 {
        self.counters[counter]
    }

    /// Returns the number of packets for subgroups without a client.
    pub(crate) fn count_unclaimed(&self) -> u64 {
        self.tenancies.unclaimed
    }

    /// Returns the number of packets for former clients.
    pub(crate) fn count_stale(&self) -> u64 {
        self.tenancies.stale
    }

    /// Returns whether an attachment has a client.
    pub(crate) fn is_present(&self, attachment_id: AttachmentId) -> bool {
        self.subgroups.get(subgroups_of(attachment_id).start).is_some()
    }

    /// Begins a tenancy of an attachment that has a client: its subgroups return to the state of
    /// power-on.
    pub(crate) fn begin_tenancy(
        &mut self,
        network: &NetworkUnit,
        context: &Context<'_>,
        attachment_id: AttachmentId,
    ) {
        let mirror = context.memory(attachment_id, BAR_MIRROR);
        for (subgroup_id, offset) in subgroups_of(attachment_id).zip((MIRROR_BASE..).step_by(PAGE as usize)) {
            self.end_subgroup(subgroup_id);
            let page = mirror.as_ref().and_then(|mirror| Page::open(mirror, offset).ok());
            if let Some(page) = page {
                self.begin_subgroup(network, Subgroup::new(subgroup_id, self.control.thresholds, page));
            }
        }
        // Packets that wait for the former tenant must find that it is gone.
        self.reception_waits.wake_all();
    }

    /// Publishes the node's values in the page of a new subgroup, and takes the subgroup up.
    fn begin_subgroup(&mut self, network: &NetworkUnit, mut subgroup: Subgroup) {
        self.tenancies.starts += 1;
        let Identity { node, nodes, coordinates, last_coordinates, .. } = self.identity;
        let page = &mut subgroup.page;
        page.publish(reg::NODE, u64::from(node) | u64::from(nodes) << 32);
        page.publish(reg::COORDINATES, coordinates.into());
        page.publish(reg::LAST_COORDINATES, last_coordinates.into());
        for class in 0..CLASSES as u8 {
            page.publish(reg::BARRIER_STATUS + 8 * u64::from(class), network.completed_barriers(class));
            page.publish(reg::GI_STATUS + 8 * u64::from(class), network.lines(class).all.into());
        }
        page.publish(reg::STARTS, self.tenancies.starts);
        page.mark_all();

        self.subgroups.open(subgroup);
        self.active.reserve(self.subgroups.count(), INJECTION_FIFOS.into());
    }

    /// Drops an attachment's views of memory that its client has unmapped.
    pub(crate) fn release_views(&mut self, attachment_id: AttachmentId) {
        for subgroup_id in subgroups_of(attachment_id) {
            if let Some(subgroup) = self.subgroups.get_mut(subgroup_id) {
                subgroup.release_views();
            }
        }
    }

    /// Ends the tenancy of an attachment.
    pub(crate) fn end_tenancy(&mut self, attachment_id: AttachmentId) {
        for subgroup_id in subgroups_of(attachment_id) {
            self.end_subgroup(subgroup_id);
        }
        self.reception_waits.wake_all();
    }

    /// Ends the tenancy of one subgroup. Packets for its tenant are stale from now on.
    fn end_subgroup(&mut self, subgroup_id: u16) {
        for fifo in subgroup_id * INJECTION_FIFOS..(subgroup_id + 1) * INJECTION_FIFOS {
            self.active.remove(fifo);
        }
        self.barriers.forget(subgroup_id);
        self.identity.tenants.change(self.identity.node, subgroup_id);
        self.subgroups.close(subgroup_id);
    }

    /// Returns the state that subgroups share to that of power-on. The performance counters stay.
    pub(crate) fn reset_shared(&mut self) {
        self.control = Control::new();
        self.errors = Errors::default();
        self.reception_waits = ReceptionWaits::default();
        self.timing = self.timing.after_reset();
        self.barriers = self.barriers.after_reset();
        self.globals = self.globals.after_reset();
    }

    /// Returns the attachments that have clients.
    pub(crate) fn attachments(&self) -> impl Iterator<Item = AttachmentId> + use<> {
        self.subgroups
            .present()
            .filter(|&subgroup_id| subgroup_id <= USER_SUBGROUPS)
            .map(|subgroup_id| subgroup::owner_of(subgroup_id).attachment)
    }

    /// Publishes completed barriers in the pages, and interrupts the subgroups that waited for
    /// them.
    pub(crate) fn poll_barriers(&mut self, network: &NetworkUnit) {
        if !self.barriers.update_sum(network.all_completed_barriers()) {
            return;
        }
        while let Some(completed) = self.barriers.next_completed(|class| network.completed_barriers(class)) {
            let interrupts_kernel = self.control.barrier_interrupts >> completed.class & 1 == 1;
            for subgroup_id in self.subgroups.present() {
                let Some(subgroup) = self.subgroups.get_mut(subgroup_id) else { continue };
                subgroup.page.publish(reg::BARRIER_STATUS + 8 * u64::from(completed.class), completed.count);
                let has_waited = completed.waiting.contains(AttachmentId(subgroup_id));
                // The system's subgroups share the kernel's attachment. The first one raises
                // its interrupts.
                let is_for_kernel = interrupts_kernel && subgroup_id == USER_SUBGROUPS;
                if has_waited || is_for_kernel {
                    subgroup.interrupts.raise(vector::BARRIER);
                    self.subgroups.mark_changed(subgroup_id);
                }
            }
        }
    }

    /// Interrupts the kernel for new exceptions of the network.
    #[inline]
    pub(crate) fn poll_network(&mut self, network: &NetworkUnit) {
        let errors = network.pending_errors();
        if errors & !self.network_errors != 0 {
            self.errors.interrupt(vector::NON_CRITICAL);
        }
        self.network_errors = errors;
    }

    /// Publishes changed values in the mirrors, logs errors, and then raises interrupts.
    #[inline]
    pub(crate) fn publish_changes(&mut self, context: &mut Context<'_>) {
        self.subgroups.publish_changes(context);
        self.errors.log(context);
        let vectors = self.errors.take_vectors();
        if vectors != 0 {
            subgroups::raise(context, AttachmentId(KERNEL), vectors);
        }
    }

    /// Reports an error of the master port for a memory request that the address ranges refused.
    /// Other faults, such as memory that is not mapped, concern their FIFO alone, and are logged.
    #[cold]
    fn report_range(&mut self, owner: Owner, address: u64, error: u8, fault: u64) {
        if fault == fault::RANGE {
            let system = if owner.is_system { nicforge_hwi::mu_dcr::ERR_INFO_SYSTEM } else { 0 };
            self.errors.report_with_info(ErrorSet::MasterPort, error, ErrorInfo::Memory, address | system);
        } else {
            let rule = &"memory that a FIFO or a descriptor names is mapped, with permission for the access";
            self.errors.warnings.push(None, Warning::failed(rule).value(address));
        }
    }
}

/// Returns the engine after this one in the order of turns. Sets of engines have 16 bits.
#[inline]
fn engine_after(engine: u8) -> u8 {
    (engine + 1) % u16::BITS as u8
}

/// Returns the attachment of a subgroup, if there is such a subgroup.
fn attachment_of(subgroup_id: u16) -> Option<AttachmentId> {
    match subgroup_id {
        0..USER_SUBGROUPS => Some(AttachmentId(FIRST_SUBGROUP + subgroup_id)),
        _ if subgroups_of(AttachmentId(KERNEL)).contains(&subgroup_id) => Some(AttachmentId(KERNEL)),
        _ => None,
    }
}

/// Returns the subgroups of an attachment.
fn subgroups_of(attachment_id: AttachmentId) -> std::ops::Range<u16> {
    match attachment_id.0 {
        KERNEL => USER_SUBGROUPS..USER_SUBGROUPS + SUBGROUPS_OF_GROUP,
        user => user - FIRST_SUBGROUP..user - FIRST_SUBGROUP + 1,
    }
}
