//! The address ranges that the kernel permits.
//!
//! In: device control registers. Out: whether a memory request is permitted. May touch: its own
//! state.

use nicforge_hwi::{
    mu::ADDRESS_BITS,
    mu_dcr::{
        MAX_SYS_ADDR_RANGE, MAX_USR_ADDR_RANGE, MIN_SYS_ADDR_RANGE, MIN_USR_ADDR_RANGE, SYS_INJ_RANGE,
        SYS_RANGES, USR_INJ_RANGE, USR_RANGES,
    },
};

/// The bits of an address in a register: ranges are multiples of 1 MB.
const ADDRESS_REGISTER: u64 = 0xf_fff0_0000;

/// Number of addresses.
const ADDRESSES: u64 = 1 << ADDRESS_BITS;

/// Direction of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// A range of addresses, as its two registers state it.
#[derive(Clone, Copy, Debug)]
struct Range {
    /// Lowest address.
    first: u64,
    /// First address of the last megabyte.
    last: u64,
}

/// A range without addresses.
const EMPTY: Range = Range { first: ADDRESS_REGISTER, last: 0 };
/// The range of all addresses.
const EVERYTHING: Range = Range { first: 0, last: ADDRESS_REGISTER };

/// The ranges of users or of the system.
#[derive(Debug)]
struct RangeSet<const COUNT: usize> {
    ranges: [Range; COUNT],
    /// Ranges that can only be read, one bit for each.
    read_only: u64,
}

impl<const COUNT: usize> RangeSet<COUNT> {
    /// Returns the ranges of power-on: the first one has all addresses, the others none.
    fn new() -> Self {
        let mut ranges = [EMPTY; COUNT];
        ranges[0] = EVERYTHING;
        Self { ranges, read_only: 0 }
    }

    /// Returns whether one of the ranges permits a request from address `first` to address `last`.
    #[inline]
    fn permits(&self, first: u64, last: u64, access: Access) -> bool {
        // At power-on, and mostly afterwards, the first range permits all requests.
        self.permits_in(0, first, last, access)
            || (1..COUNT).any(|index| self.permits_in(index, first, last, access))
    }

    /// Returns whether a range permits a request.
    #[inline]
    fn permits_in(&self, index: usize, first: u64, last: u64, access: Access) -> bool {
        let range = self.ranges[index];
        let last_of_range = range.last | !ADDRESS_REGISTER & (ADDRESSES - 1);
        first >= range.first
            && last <= last_of_range
            && (access == Access::Read || self.read_only >> index & 1 == 0)
    }
}

/// All ranges of a node.
#[derive(Debug)]
pub(crate) struct Ranges {
    users: RangeSet<USR_RANGES>,
    system: RangeSet<SYS_RANGES>,
}

impl Ranges {
    /// Returns the ranges of power-on: all addresses.
    pub(crate) fn new() -> Self {
        Self { users: RangeSet::new(), system: RangeSet::new() }
    }

    /// Returns whether a request for `length` bytes is permitted.
    #[inline]
    pub(crate) fn permit(&self, is_system: bool, address: u64, length: u64, access: Access) -> bool {
        let Some(last) = address.checked_add(length.max(1) - 1) else { return false };
        if is_system {
            self.system.permits(address, last, access)
        } else {
            self.users.permits(address, last, access)
        }
    }

    /// Returns the ranges as a permission for several requests in one direction.
    #[inline]
    pub(crate) fn permission(&self, is_system: bool, access: Access) -> Permission<'_> {
        let permits_all = self.permit(is_system, 0, ADDRESSES, access);
        Permission { ranges: self, is_system, access, permits_all }
    }

    /// Returns the value of the register at an offset; `None` if it is not one of these.
    pub(crate) fn value(&self, offset: u64) -> Option<u64> {
        match offset {
            USR_INJ_RANGE => return Some(self.users.read_only),
            SYS_INJ_RANGE => return Some(self.system.read_only),
            _ => {}
        }

        let (users, system) = (&self.users.ranges, &self.system.ranges);
        if let Some(index) = index_in(offset, MIN_USR_ADDR_RANGE, USR_RANGES) {
            Some(users[index].first)
        } else if let Some(index) = index_in(offset, MAX_USR_ADDR_RANGE, USR_RANGES) {
            Some(users[index].last)
        } else if let Some(index) = index_in(offset, MIN_SYS_ADDR_RANGE, SYS_RANGES) {
            Some(system[index].first)
        } else {
            index_in(offset, MAX_SYS_ADDR_RANGE, SYS_RANGES).map(|index| system[index].last)
        }
    }

    /// Returns the register at an offset, for a write; `None` if it is not one of these.
    pub(crate) fn register(&mut self, offset: u64) -> Option<RangeRegister<'_>> {
        match offset {
            USR_INJ_RANGE => {
                return Some(RangeRegister { value: &mut self.users.read_only, mask: (1 << USR_RANGES) - 1 });
            }
            SYS_INJ_RANGE => {
                return Some(RangeRegister {
                    value: &mut self.system.read_only,
                    mask: (1 << SYS_RANGES) - 1,
                });
            }
            _ => {}
        }

        let users = &mut self.users.ranges;
        let system = &mut self.system.ranges;
        let value = if let Some(index) = index_in(offset, MIN_USR_ADDR_RANGE, USR_RANGES) {
            &mut users[index].first
        } else if let Some(index) = index_in(offset, MAX_USR_ADDR_RANGE, USR_RANGES) {
            &mut users[index].last
        } else if let Some(index) = index_in(offset, MIN_SYS_ADDR_RANGE, SYS_RANGES) {
            &mut system[index].first
        } else {
            let index = index_in(offset, MAX_SYS_ADDR_RANGE, SYS_RANGES)?;
            &mut system[index].last
        };
        Some(RangeRegister { value, mask: ADDRESS_REGISTER })
    }
}

/// The permission for requests of users or of the system in one direction.
#[derive(Debug)]
pub(crate) struct Permission<'a> {
    ranges: &'a Ranges,
    is_system: bool,
    access: Access,
    /// One range permits all addresses, as at power-on.
    permits_all: bool,
}

impl Permission<'_> {
    /// Returns the result of [`Ranges::permit`] for a request.
    #[inline(always)]
    pub(crate) fn permits(&self, address: u64, length: u64) -> bool {
        if self.permits_all {
            address < ADDRESSES && length <= ADDRESSES - address
        } else {
            self.ranges.permit(self.is_system, address, length, self.access)
        }
    }
}

/// A register of the ranges.
pub(crate) struct RangeRegister<'a> {
    value: &'a mut u64,
    /// The bits that exist.
    mask: u64,
}

impl RangeRegister<'_> {
    /// Sets the bits that exist.
    pub(crate) fn set(self, value: u64) {
        *self.value = value & self.mask;
    }
}

/// Returns the index of the register at an offset among `count` registers of 8 bytes, the first of
/// which is at `first`. Returns `None` if it is none of them.
pub(crate) fn index_in(offset: u64, first: u64, count: usize) -> Option<usize> {
    let index = offset.checked_sub(first)? / 8;
    (index < count as u64).then_some(index as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ranges: &mut Ranges, offset: u64, value: u64) {
        ranges.register(offset).unwrap().set(value);
    }

    #[test]
    fn power_on_permits_all_addresses_and_none_behind() {
        let ranges = Ranges::new();
        for is_system in [false, true] {
            assert!(ranges.permit(is_system, 0, 0, Access::Write));
            assert!(ranges.permit(is_system, 0, 1 << 36, Access::Write));
            assert!(!ranges.permit(is_system, 1, 1 << 36, Access::Read));
            assert!(!ranges.permit(is_system, u64::MAX, 8, Access::Read));
        }
    }

    #[test]
    fn ranges_of_users_and_of_the_system_are_apart() {
        let mut ranges = Ranges::new();
        set(&mut ranges, MIN_USR_ADDR_RANGE, 0x20_0000);
        set(&mut ranges, MAX_USR_ADDR_RANGE, 0x3f_ffff);

        assert!(ranges.permit(false, 0x20_0000, 0x20_0000, Access::Write));
        assert!(!ranges.permit(false, 0x1f_ffff, 1, Access::Read));
        assert!(!ranges.permit(false, 0x3f_ffff, 2, Access::Read));
        assert!(ranges.permit(true, 0x1f_ffff, 1, Access::Read));
    }

    #[test]
    fn ranges_for_injection_can_only_be_read() {
        let mut ranges = Ranges::new();
        set(&mut ranges, USR_INJ_RANGE, 1);
        assert!(ranges.permit(false, 0, 8, Access::Read) && !ranges.permit(false, 0, 8, Access::Write));

        // A second range permits a part of it.
        set(&mut ranges, MIN_USR_ADDR_RANGE + 8, 0);
        set(&mut ranges, MAX_USR_ADDR_RANGE + 8, 0);
        assert!(ranges.permit(false, 0xf_fff8, 8, Access::Write));
        assert!(!ranges.permit(false, 0xf_fff9, 8, Access::Write));
    }

    #[test]
    fn a_permission_is_that_of_each_request() {
        let mut ranges = Ranges::new();
        let mut narrow = Ranges::new();
        set(&mut ranges, USR_INJ_RANGE, 1);
        set(&mut narrow, MAX_USR_ADDR_RANGE, 0x10_0000);

        let edges = [0, 1, 0x20_0000 - 8, 0x20_0000, ADDRESSES - 8, ADDRESSES, ADDRESSES + 8, u64::MAX];
        for ranges in [&ranges, &narrow] {
            for (is_system, access) in
                [(false, Access::Read), (false, Access::Write), (true, Access::Read), (true, Access::Write)]
            {
                let permission = ranges.permission(is_system, access);
                for (address, length) in edges.iter().flat_map(|&edge| edges.map(|length| (edge, length))) {
                    let expected = ranges.permit(is_system, address, length, access);
                    assert_eq!(permission.permits(address, length), expected, "{address:#x} {length:#x}");
                }
            }
        }
    }

    #[test]
    fn registers_end_with_the_last_range() {
        let mut ranges = Ranges::new();
        assert!(ranges.register(MAX_SYS_ADDR_RANGE + 8 * 7).is_some());
        assert!(ranges.register(SYS_INJ_RANGE + 8).is_none());
        assert!(ranges.register(MIN_USR_ADDR_RANGE - 8).is_none());
    }
}
