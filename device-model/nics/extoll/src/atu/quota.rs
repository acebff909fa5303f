//! Quotas of the VPIDs for the ATU's entries and mappings.

use nicforge_hwi::extoll_atu::{ALL_MAPPINGS, page};

/// Number of resources that are shared out: entries of each of four page sizes, and mappings.
const RESOURCES: usize = 5;
/// Index of the mappings among the resources.
pub(super) const MAPPINGS: usize = 4;

/// Quotas of the VPIDs. Half of each resource is divided equally among the VPIDs and reserved for
/// them, so that each gets its part at any time. The other half goes to the first registration that
/// needs it. The indices of the resources are the page sizes' numbers, then [`MAPPINGS`].
pub(super) struct Quotas {
    /// The resources that each VPID's regions use.
    used: Vec<[u32; RESOURCES]>,
    /// The part of each resource that is reserved for one VPID.
    reserved: [u32; RESOURCES],
    /// The reserved parts that the VPIDs have not used, added up.
    unclaimed: [u32; RESOURCES],
    /// The resources that all regions use.
    in_use: [u32; RESOURCES],
}

impl Quotas {
    /// Returns the quotas of a card with this number of VPIDs, which use nothing.
    pub(super) fn new(vpids: u16) -> Self {
        let vpids = u32::from(vpids.max(1));
        let reserved = std::array::from_fn(|resource| Self::capacity(resource) / 2 / vpids);
        Self {
            used: vec![[0; RESOURCES]; vpids as usize],
            reserved,
            unclaimed: reserved.map(|reserved| reserved * vpids),
            in_use: [0; RESOURCES],
        }
    }

    /// Returns the amount of a resource that the card has.
    fn capacity(resource: usize) -> u32 {
        // The number of a page size is its index among the resources.
        if resource == MAPPINGS { ALL_MAPPINGS } else { page::entries(resource as u8) }
    }

    /// Returns the number of entries in use, of all page sizes.
    pub(super) fn entries(&self) -> u64 {
        self.in_use[..MAPPINGS].iter().map(|&entries| u64::from(entries)).sum()
    }

    /// Returns the number of mappings that a VPID's regions lie in.
    pub(super) fn mappings_of(&self, attachment: u16) -> u32 {
        self.used.get(usize::from(attachment)).map_or(0, |used| used[MAPPINGS])
    }

    /// Returns the amount of a resource that no region uses.
    pub(super) fn left(&self, resource: usize) -> u32 {
        Self::capacity(resource) - self.in_use[resource]
    }

    /// Returns the amount of a resource that a VPID may still use.
    pub(super) fn left_for(&self, attachment: u16, resource: usize) -> u32 {
        let Some(used) = self.used.get(usize::from(attachment)) else { return 0 };
        let own_reserve = self.reserved[resource].saturating_sub(used[resource]);
        let other_reserves = self.unclaimed[resource] - own_reserve;
        self.left(resource) - other_reserves
    }

    /// Changes the amount of a resource that a VPID's regions use, by applying `change` to it.
    pub(super) fn change(&mut self, attachment: u16, resource: usize, change: impl Fn(u32) -> u32) {
        let Some(used) = self.used.get_mut(usize::from(attachment)) else { return };

        let (reserved, used) = (self.reserved[resource], &mut used[resource]);

        self.unclaimed[resource] -= reserved.saturating_sub(*used);
        *used = change(*used);
        self.unclaimed[resource] += reserved.saturating_sub(*used);
        self.in_use[resource] = change(self.in_use[resource]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_a_resource_is_reserved_for_vpids_that_have_not_used_their_part() {
        let mut quotas = Quotas::new(4);
        let class = usize::from(page::SIZE_1G);

        // Of 64 entries half is reserved: 8 for each of four VPIDs.
        assert_eq!((0..4).map(|attachment| quotas.left_for(attachment, class)).collect::<Vec<_>>(), [40; 4]);

        quotas.change(0, class, |used| used + 40);
        assert_eq!(
            (0..4).map(|attachment| quotas.left_for(attachment, class)).collect::<Vec<_>>(),
            [0, 8, 8, 8]
        );

        quotas.change(2, class, |used| used + 8);
        assert_eq!(
            (0..4).map(|attachment| quotas.left_for(attachment, class)).collect::<Vec<_>>(),
            [0, 8, 0, 8]
        );

        quotas.change(0, class, |used| used - 36);
        // 12 entries are in use and 20 are reserved. A VPID below its part may use the rest of it
        // and all entries that are not reserved.
        assert_eq!(
            (0..4).map(|attachment| quotas.left_for(attachment, class)).collect::<Vec<_>>(),
            [36, 40, 32, 40]
        );
        assert_eq!(quotas.left_for(4, class), 0, "there is no such VPID");

        quotas.change(2, class, |used| used - 8);
        quotas.change(0, class, |used| used - 4);
        assert_eq!((quotas.in_use[class], quotas.unclaimed[class]), (0, 32));
    }
}
