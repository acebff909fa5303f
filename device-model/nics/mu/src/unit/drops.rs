//! Packets that are dropped, and the errors that tell of it.
//!
//! In: reasons. Out: errors and counts. May touch: the unit's error registers and counters, and the
//! counts of subgroups.

use nicforge_hwi::mu_dcr::{counter, error};

use super::{
    Unit,
    errors::{Info, Set},
    inject::subgroup_and_index,
    memory::{MemoryFault, fault_of},
    put::Target,
    receive::Undelivered,
};

impl Unit {
    /// Counts a packet that is dropped.
    #[cold]
    pub(crate) fn drop_packet(&mut self) -> Undelivered {
        self.counters[counter::DROPPED] += 1;
        Undelivered::Dropped
    }

    /// Counts a packet that is dropped, for its subgroup, too.
    #[cold]
    pub(crate) fn drop_for(&mut self, number: u16) -> Undelivered {
        if let Some(subgroup) = self.subgroups.get_mut(number) {
            subgroup.dropped += 1;
            self.subgroups.mark_changed(number);
        }
        self.drop_packet()
    }

    /// Drops a packet for a subgroup without a client.
    #[cold]
    pub(crate) fn no_client(&mut self) -> Undelivered {
        self.tenancies.unclaimed += 1;
        self.drop_packet()
    }

    /// Drops a packet whose header has no meaning.
    #[cold]
    pub(crate) fn bad_header(&mut self, engine: u8) -> Undelivered {
        let set = if engine < 8 { Set::Header0 } else { Set::Header1 };
        self.errors.report(set, error::rme_header(engine));
        self.drop_packet()
    }

    #[cold]
    pub(crate) fn drop_at_reception(&mut self, error: u8, fifo: u16) -> Undelivered {
        self.errors.report_about(Set::Reception, error, Info::Reception, fifo.into());
        self.drop_packet()
    }

    #[cold]
    pub(crate) fn drop_at_reception_of(&mut self, number: u16, error: u8, fifo: u16) -> Undelivered {
        self.errors.report_about(Set::Reception, error, Info::Reception, fifo.into());
        self.drop_for(number)
    }

    #[cold]
    pub(crate) fn drop_put(&mut self, number: u16, error: u8) -> Undelivered {
        self.errors.report(Set::Put, error);
        self.drop_for(number)
    }

    #[cold]
    pub(crate) fn drop_get(&mut self, fifo: u16, error: u8) -> Undelivered {
        self.errors.report_about(Set::Get, error, Info::Get, fifo.into());
        self.drop_for(subgroup_and_index(fifo).0)
    }

    #[cold]
    pub(crate) fn drop_for_memory(&mut self, target: Target, fault: MemoryFault) -> Undelivered {
        self.report_range(target.owner(), target.address, error::XM_WRITE_RANGE, fault_of(fault));
        self.drop_for(target.subgroup)
    }
}
