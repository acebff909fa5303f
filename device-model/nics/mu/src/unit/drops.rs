//! Packets that are dropped, and the errors that report them.
//!
//! In: reasons. Out: errors and counts. May touch: the unit's error registers and counters, and the
//! counts of subgroups.

use nicforge_core::warning::Warning;
use nicforge_hwi::mu_dcr::{counter, error};

use super::{
    Unit,
    errors::{ErrorInfo, ErrorSet},
    inject::subgroup_and_index,
    memory::{MemoryFault, fault_of},
    put::Target,
    receive::Undelivered,
};

impl Unit {
    /// Drops a packet: counts it.
    #[cold]
    pub(crate) fn drop_packet(&mut self) -> Undelivered {
        self.counters[counter::DROPPED] += 1;
        Undelivered::Dropped
    }

    /// Drops a packet, and counts it for its subgroup, too.
    #[cold]
    pub(crate) fn drop_for(&mut self, subgroup_id: u16) -> Undelivered {
        if let Some(subgroup) = self.subgroups.get_mut(subgroup_id) {
            subgroup.dropped += 1;
            self.subgroups.mark_changed(subgroup_id);
        }
        self.drop_packet()
    }

    /// Drops a packet for a subgroup without a client.
    #[cold]
    pub(crate) fn drop_without_client(&mut self) -> Undelivered {
        let rule = &"a packet goes to a subgroup that has a client";
        self.errors.warnings.push(None, Warning::dropped(rule));
        self.tenancies.unclaimed += 1;
        self.drop_packet()
    }

    /// Drops a packet whose header has no meaning.
    #[cold]
    pub(crate) fn drop_for_header(&mut self, engine: u8) -> Undelivered {
        // The registers of the reception engines are in two sets of 8 engines.
        let set = if engine < 8 { ErrorSet::Header0 } else { ErrorSet::Header1 };
        self.errors.report(set, error::rme_header(engine));
        self.drop_packet()
    }

    /// Drops a packet whose header names a reception FIFO that it may not use.
    #[cold]
    pub(crate) fn drop_at_reception(&mut self, error: u8, fifo: u16) -> Undelivered {
        self.errors.report_with_info(ErrorSet::Reception, error, ErrorInfo::Reception, fifo.into());
        self.drop_packet()
    }

    /// Drops a packet for a reception FIFO of a subgroup that takes none.
    #[cold]
    pub(crate) fn drop_at_subgroup_reception(
        &mut self,
        subgroup_id: u16,
        error: u8,
        fifo: u16,
    ) -> Undelivered {
        self.errors.report_with_info(ErrorSet::Reception, error, ErrorInfo::Reception, fifo.into());
        self.drop_for(subgroup_id)
    }

    /// Drops a direct put to a subgroup.
    #[cold]
    pub(crate) fn drop_put(&mut self, subgroup_id: u16, error: u8) -> Undelivered {
        self.errors.report(ErrorSet::Put, error);
        self.drop_for(subgroup_id)
    }

    /// Drops a remote get for an injection FIFO.
    #[cold]
    pub(crate) fn drop_get(&mut self, fifo: u16, error: u8) -> Undelivered {
        self.errors.report_with_info(ErrorSet::Get, error, ErrorInfo::Get, fifo.into());
        self.drop_for(subgroup_and_index(fifo).0)
    }

    /// Drops a direct put whose target memory can't be written.
    #[cold]
    pub(crate) fn drop_for_memory(&mut self, target: Target, fault: MemoryFault) -> Undelivered {
        self.report_range(target.owner(), target.address, error::XM_WRITE_RANGE, fault_of(fault));
        self.drop_for(target.subgroup_id)
    }
}
