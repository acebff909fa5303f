//! The list of families and kinds of devices.

use std::{fmt, sync::Arc};

use crate::{DeviceKind, Family, Role};

/// The families and kinds of devices that machine files can name.
#[derive(Clone, Default)]
pub struct Families {
    families: Vec<Arc<dyn Family>>,
    kinds: Vec<DeviceKind>,
}

impl Families {
    /// Returns an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a family. It replaces a family of the same table, if there is one.
    ///
    /// The order of the families is that of their nodes in a machine.
    #[must_use]
    pub fn family(mut self, family: impl Family + 'static) -> Self {
        self.put(Arc::new(family));
        self
    }

    /// Adds a kind of device. It replaces a kind of the same name, if there is one.
    #[must_use]
    pub fn device(mut self, kind: DeviceKind) -> Self {
        self.put_kind(kind);
        self
    }

    /// Adds the families and kinds of another list.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        for family in other.families {
            self.put(family);
        }
        for kind in other.kinds {
            self.put_kind(kind);
        }

        self
    }

    /// Adds a family, or replaces that of the same table.
    fn put(&mut self, family: Arc<dyn Family>) {
        match self.families.iter_mut().find(|old| old.table() == family.table()) {
            Some(old) => *old = family,
            None => self.families.push(family),
        }
    }

    /// Adds a kind of device, or replaces that of the same name.
    fn put_kind(&mut self, kind: DeviceKind) {
        match self.kinds.iter_mut().find(|old| old.name() == kind.name()) {
            Some(old) => *old = kind,
            None => self.kinds.push(kind),
        }
    }

    /// Returns the families in the order of their registration.
    pub fn families(&self) -> impl Iterator<Item = &dyn Family> {
        self.families.iter().map(AsRef::as_ref)
    }

    /// Returns the kinds of devices in the order of their registration.
    pub fn kinds(&self) -> &[DeviceKind] {
        &self.kinds
    }

    /// Returns the kind of a name.
    pub fn kind(&self, name: &str) -> Option<&DeviceKind> {
        self.kinds.iter().find(|kind| kind.name() == name)
    }

    /// Returns the roles of all families and kinds, each once.
    pub fn roles(&self) -> Vec<Role> {
        let of_families = self.families().flat_map(|family| family.roles().iter().copied());
        let of_kinds = self.kinds.iter().map(DeviceKind::role);

        let mut roles: Vec<Role> = Vec::new();
        for role in of_families.chain(of_kinds) {
            if !roles.contains(&role) {
                roles.push(role);
            }
        }
        roles
    }
}

impl fmt::Debug for Families {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tables: Vec<_> = self.families().map(Family::table).collect();
        f.debug_struct("Families").field("families", &tables).field("kinds", &self.kinds).finish()
    }
}
