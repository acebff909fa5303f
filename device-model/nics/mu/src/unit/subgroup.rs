//! A subgroup: its FIFOs, its base address table, its interrupts.
//!
//! In: registers of its client, packets for it. Out: its mirror page, interrupts. May touch: its
//! own state and its mirror page.
//!
//! FIFOs have their index in the subgroup as number here. The state exists while a client has the
//! attachment. A subgroup without one takes no memory.

use nicforge_core::ids::AttachmentId;
use nicforge_hwi::mu::{
    BASE_ADDRESSES, FIRST_SUBGROUP, INJECTION_FIFOS, KERNEL, NO_BASE_ADDRESS, RECEPTION_FIFOS,
    USER_SUBGROUPS, fault, interrupt, vector,
};

use super::{
    active::Priority,
    memory::Owner,
    message::{LastTemplate, Message},
    page::Page,
    reference::Reference,
    ring::{Kind, Ring},
    view::View,
};

/// State of an injection FIFO.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Injection {
    /// Software has not enabled it, or a fault has stopped it.
    #[default]
    Disabled,
    /// It has no message in service.
    Waiting,
    /// This message is in service.
    Sending(Message),
    /// All packets of its message have been sent, and some that refer to the payload have not been
    /// received.
    Draining,
}

/// An injection FIFO.
#[derive(Debug, Default)]
pub(crate) struct InjectionFifo {
    pub(crate) ring: Ring,
    pub(crate) state: Injection,
    /// The payload of the message in service, if its packets refer to it.
    pub(crate) reference: Option<Reference>,
    /// The template of its last message, with the result of its checks.
    pub(crate) template: LastTemplate,
    /// View of the FIFO's own memory, for fetches of descriptors.
    pub(crate) view: View,
    /// View of the FIFO's own memory, for writes of descriptors by remote gets.
    pub(crate) get_view: View,
    /// View of the payloads' memory.
    pub(crate) payload_view: View,
    /// Number of descriptors that are done.
    pub(crate) descriptors_done: u64,
    /// One of [`fault`].
    pub(crate) fault: u64,
}

impl InjectionFifo {
    /// Returns whether software has enabled it, and no fault has stopped it.
    pub(crate) fn is_enabled(&self) -> bool {
        !matches!(self.state, Injection::Disabled)
    }

    /// Returns whether software may set this tail while the FIFO is enabled. While a descriptor is
    /// in service the FIFO is not empty, so the tail can't be the head.
    #[inline]
    pub(crate) fn may_have_tail(&self, tail: u64) -> bool {
        let is_in_service = matches!(self.state, Injection::Sending(_) | Injection::Draining);
        self.ring.holds(Kind::Injection, tail) && !(is_in_service && tail == self.ring.head)
    }

    /// Disables the FIFO. Its message ends with the packets that have been sent.
    pub(crate) fn disable(&mut self) {
        (self.state, self.reference) = (Injection::Disabled, None);
    }

    /// Enables the FIFO, if its pointers are valid. Otherwise it gets a fault.
    pub(crate) fn enable(&mut self) {
        if self.is_enabled() {
            return;
        }
        if self.ring.is_valid(Kind::Injection) {
            (self.state, self.fault) = (Injection::Waiting, fault::NONE);
        } else {
            self.fault = fault::POINTERS;
        }
    }
}

/// A reception FIFO.
#[derive(Debug, Default)]
pub(crate) struct ReceptionFifo {
    pub(crate) ring: Ring,
    /// View of the FIFO's memory.
    pub(crate) view: View,
    /// Software has enabled it, and no fault has stopped it.
    pub(crate) is_enabled: bool,
    /// One of [`fault`].
    pub(crate) fault: u64,
}

impl ReceptionFifo {
    /// Enables the FIFO, if its pointers are valid. Otherwise it gets a fault.
    pub(crate) fn enable(&mut self) {
        if !self.is_enabled {
            self.is_enabled = self.ring.is_valid(Kind::Reception);
            self.fault = if self.is_enabled { fault::NONE } else { fault::POINTERS };
        }
    }
}

/// The interrupts of a subgroup.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Interrupts {
    /// Interrupts that have come: bits of [`interrupt`].
    pub(crate) status: u64,
    /// Interrupts that raise a vector.
    pub(crate) enabled: u64,
    /// Vectors to raise once the mirror shows the reason, one bit for each.
    vectors: u32,
}

impl Interrupts {
    /// Records an interrupt. One that is recorded already raises its vector again: software may
    /// have handled the earlier one, and not yet cleared it.
    pub(crate) fn record(&mut self, bit: u64) {
        self.status |= bit;
        if self.enabled & bit != 0 {
            self.vectors |= 1 << vector_of(bit);
        }
    }

    /// Records a vector without an interrupt bit, which software cannot disable here.
    pub(crate) fn raise(&mut self, vector: u16) {
        self.vectors |= 1 << vector;
    }

    /// Sets the enabled interrupts. Those that have come already raise their vectors.
    pub(crate) fn enable(&mut self, bits: u64) {
        let new = bits & !self.enabled & self.status;
        self.enabled = bits & interrupt::ALL;
        for bit in (0..16).map(|bit| 1 << bit).filter(|bit| new & bit != 0) {
            self.vectors |= 1 << vector_of(bit);
        }
    }

    /// Returns the vectors to raise, one bit for each.
    pub(crate) fn take_vectors(&mut self) -> u32 {
        std::mem::take(&mut self.vectors)
    }
}

/// Returns the vector of an interrupt. The bits of [`interrupt`] are in three ranges, one behind
/// the other.
fn vector_of(bit: u64) -> u16 {
    match bit {
        _ if bit < interrupt::RECEPTION_THRESHOLD => vector::INJECTION_THRESHOLD,
        _ if bit < interrupt::PACKET => vector::RECEPTION_THRESHOLD,
        _ => vector::PACKET,
    }
}

/// The free space at which FIFOs raise their interrupts, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Thresholds {
    /// An injection FIFO interrupts when its free space rises above this.
    pub(crate) injection: u64,
    /// An injection FIFO for remote gets interrupts when its free space falls below this.
    pub(crate) remote_get: u64,
    /// A reception FIFO interrupts when its free space falls below this.
    pub(crate) reception: u64,
}

/// A subgroup with a client.
pub(crate) struct Subgroup {
    /// Its number, 0 to 67.
    pub(crate) id: u16,
    pub(crate) injection: [InjectionFifo; INJECTION_FIFOS as usize],
    pub(crate) reception: [ReceptionFifo; RECEPTION_FIFOS as usize],
    /// Entries of the base address table, or [`NO_BASE_ADDRESS`].
    pub(crate) base_addresses: [u64; BASE_ADDRESSES as usize],
    /// View of the memory that puts write.
    pub(crate) put_view: View,
    /// View of the memory of puts' counters.
    pub(crate) counter_view: View,
    /// Injection FIFOs of high priority, one bit for each.
    pub(crate) high_priority: u8,
    /// Injection FIFOs for remote gets, one bit for each.
    pub(crate) remote_get: u8,
    pub(crate) interrupts: Interrupts,
    pub(crate) thresholds: Thresholds,
    /// Packets for it that were dropped.
    pub(crate) dropped: u64,
    pub(crate) page: Page,
}

impl Subgroup {
    /// Drops the views whose memory the client has unmapped.
    pub(crate) fn release_views(&mut self) {
        let Self { injection, reception, put_view, counter_view, .. } = self;
        let of_injection = injection
            .iter_mut()
            .flat_map(|fifo| [&mut fifo.view, &mut fifo.get_view, &mut fifo.payload_view]);
        let of_fifos = of_injection.chain(reception.iter_mut().map(|fifo| &mut fifo.view));
        of_fifos.chain([put_view, counter_view]).for_each(View::release_if_over);
    }

    /// Returns the state of power-on.
    pub(crate) fn new(subgroup_id: u16, thresholds: Thresholds, page: Page) -> Self {
        Self {
            id: subgroup_id,
            injection: Default::default(),
            reception: Default::default(),
            base_addresses: [NO_BASE_ADDRESS; BASE_ADDRESSES as usize],
            put_view: View::default(),
            counter_view: View::default(),
            high_priority: 0,
            remote_get: 0,
            interrupts: Interrupts::default(),
            thresholds,
            dropped: 0,
            page,
        }
    }

    /// Returns the client of the subgroup.
    #[inline]
    pub(crate) fn owner(&self) -> Owner {
        owner_of(self.id)
    }

    /// Returns the priority of an injection FIFO's descriptors.
    #[inline]
    pub(crate) fn priority(&self, index: usize) -> Priority {
        if self.id >= USER_SUBGROUPS {
            Priority::System
        } else if self.high_priority >> index & 1 == 1 {
            Priority::High
        } else {
            Priority::Normal
        }
    }

    /// Records that the head or the tail of an injection FIFO has moved, and its interrupt if the
    /// free space has crossed the threshold. `free_before` is the free space before the move.
    pub(crate) fn injection_moved(&mut self, index: usize, free_before: u64) {
        let free = self.injection[index].ring.free();
        let is_for_gets = self.remote_get >> index & 1 == 1;
        let Thresholds { injection, remote_get, .. } = self.thresholds;
        let has_crossed = if is_for_gets {
            free_before >= remote_get && free < remote_get
        } else {
            free_before <= injection && free > injection
        };

        if has_crossed {
            self.interrupts.record(interrupt::INJECTION_THRESHOLD << index);
        }
        self.page.mark_moved_injection(index);
    }

    /// Records that packets have come into a reception FIFO, and its interrupts: if the free space
    /// has crossed the threshold, and if a packet asks for one. `free_before` is the free space
    /// before.
    pub(crate) fn reception_moved(&mut self, index: usize, free_before: u64, packet_interrupts: bool) {
        let free = self.reception[index].ring.free();
        let threshold = self.thresholds.reception;
        if free_before >= threshold && free < threshold {
            self.interrupts.record(interrupt::RECEPTION_THRESHOLD << index);
        }
        if packet_interrupts {
            self.interrupts.record(interrupt::PACKET << index);
        }
        self.page.mark_moved_reception(index);
    }

    /// Returns the enabled injection FIFOs, one bit for each.
    pub(crate) fn enabled_injection(&self) -> u64 {
        bits_of(self.injection.iter().map(InjectionFifo::is_enabled))
    }

    /// Returns the enabled reception FIFOs, one bit for each.
    pub(crate) fn enabled_reception(&self) -> u64 {
        bits_of(self.reception.iter().map(|fifo| fifo.is_enabled))
    }
}

/// Returns a word whose bit `n` is flag `n`.
fn bits_of(flags: impl Iterator<Item = bool>) -> u64 {
    flags.zip(0..).fold(0, |bits, (flag, index)| bits | u64::from(flag) << index)
}

/// Returns the client of a subgroup.
#[inline]
pub(crate) fn owner_of(subgroup_id: u16) -> Owner {
    let is_system = subgroup_id >= USER_SUBGROUPS;
    let attachment = if is_system { KERNEL } else { FIRST_SUBGROUP + subgroup_id };
    Owner { attachment: AttachmentId(attachment), is_system }
}
