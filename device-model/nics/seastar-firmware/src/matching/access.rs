//! Access control: which initiators may use which portals (section 3.12).

use nicforge_hwi::seastar::{ACCESS_ENTRIES, ANY_NODE, ANY_PORTAL, ANY_PROCESS, code};

use super::process::Refusal;

/// An access control entry (`PtlACEntry`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessEntry {
    /// The initiator's node, or [`ANY_NODE`].
    pub node: u32,
    /// The initiator's process, or [`ANY_PROCESS`].
    pub process: u16,
    /// The portal, or [`ANY_PORTAL`].
    pub portal: u8,
}

/// The access control entries of a process. Entry 0 permits everything at first, and the others
/// nothing.
#[derive(Debug)]
pub(super) struct AccessTable([Option<AccessEntry>; ACCESS_ENTRIES as usize]);

impl AccessTable {
    pub(super) fn new() -> Self {
        let mut entries = [None; ACCESS_ENTRIES as usize];
        entries[0] = Some(AccessEntry { node: ANY_NODE, process: ANY_PROCESS, portal: ANY_PORTAL });
        Self(entries)
    }

    /// Sets an entry.
    pub(super) fn set(&mut self, index: u8, entry: AccessEntry) -> Result<(), Refusal> {
        let slot = self.0.get_mut(usize::from(index)).ok_or(Refusal(code::ACCESS_INVALID))?;
        *slot = Some(entry);
        Ok(())
    }

    /// Returns whether an entry permits a message of `node` and `process` to use a portal.
    #[inline]
    pub(super) fn permits(&self, index: u8, node: u32, process: u16, portal: u8) -> bool {
        let Some(Some(entry)) = self.0.get(usize::from(index)) else { return false };
        (entry.node == ANY_NODE || entry.node == node)
            && (entry.process == ANY_PROCESS || entry.process == process)
            && (entry.portal == ANY_PORTAL || entry.portal == portal)
    }
}
