//! Tenants of addresses.

use std::num::NonZeroU8;

/// Generation of one tenant of an address. An address counts a generation up when a tenant comes
/// and when it goes, so a tenant's generation is odd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tenant(NonZeroU8);

impl Tenant {
    /// Returns the tenant of a generation; `None` for an even generation, which has none.
    #[inline]
    pub(crate) fn of_generation(generation: u8) -> Option<Self> {
        NonZeroU8::new(generation).filter(|_| generation & 1 != 0).map(Self)
    }

    /// Returns the generation.
    #[inline]
    pub(crate) fn generation(self) -> u8 {
        self.0.get()
    }

    /// Returns whether `tenant` is this one.
    #[inline]
    pub(crate) fn is(self, tenant: Option<Self>) -> bool {
        Self::generation_of(tenant) == self.generation()
    }

    /// Returns the generation of a tenant, and 0 for none.
    #[inline]
    pub(crate) fn generation_of(tenant: Option<Self>) -> u8 {
        tenant.map_or(0, Self::generation)
    }
}

/// This port, as its peers know it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Endpoint {
    pub(crate) address: crate::Address,
    pub(crate) tenant: Tenant,
}
