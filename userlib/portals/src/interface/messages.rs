//! Puts and gets.

use nicforge_driver::runtime;
use nicforge_hwi::seastar::{
    ACCESS_ENTRIES, ANY_PROCESS, Command, INLINE, MAX_MESSAGE, PORTALS, command, option,
};

use super::{Interface, MemoryDescriptor};
use crate::{Ack, Error, Refusal, Target};

impl Interface {
    /// Sends all of a descriptor's memory (`PtlPut`).
    ///
    /// # Errors
    /// As [`Interface::put_region`].
    pub fn put(
        &self,
        descriptor: &MemoryDescriptor,
        ack: Ack,
        target: &Target,
        header_data: u64,
    ) -> Result<(), Error> {
        self.put_region(descriptor, 0, descriptor.length, ack, target, header_data)
    }

    /// Sends a part of a descriptor's memory (`PtlPutRegion`). Events report its progress and end.
    ///
    /// The call does not wait for the card if the card cannot refuse it: if the descriptor is
    /// bound, and without a threshold. If the process has lost its interface meanwhile, the next
    /// call that waits is refused with [`Refusal::Interface`].
    ///
    /// For at most [`INLINE`] bytes, the caller may reuse the memory when the call returns. For
    /// more, it may do so after [`crate::EventKind::SendEnd`].
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::TooLong`], [`Error::NoSuchNode`]; [`Refusal::Portal`],
    /// [`Refusal::Access`]; [`Refusal::Descriptor`] for one that is inactive; [`Refusal::NoSpace`]
    /// when too many operations of this process are in progress.
    pub fn put_region(
        &self,
        descriptor: &MemoryDescriptor,
        offset: u64,
        length: u64,
        ack: Ack,
        target: &Target,
        header_data: u64,
    ) -> Result<(), Error> {
        const CALL: &str = "PtlPutRegion";
        let mut put = self.request(command::PUT, CALL, descriptor, offset, length, target)?;
        put.header_data = header_data;
        if ack == Ack::Requested {
            put.options |= option::ACK;
        }

        // The kernel of the host-based mode reads the memory itself, so that a command to it
        // carries no data.
        if length <= INLINE as u64 && !self.link.is_host_based() {
            put.options |= option::INLINE;
            descriptor.region.read(descriptor.offset + offset, &mut put.inline[..length as usize])?;
        }
        self.link.start(CALL, &put, || cannot_be_refused(descriptor, target))
    }

    /// Fetches data for all of a descriptor's memory (`PtlGet`).
    ///
    /// # Errors
    /// As [`Interface::put_region`].
    pub fn get(&self, descriptor: &MemoryDescriptor, target: &Target) -> Result<(), Error> {
        self.get_region(descriptor, 0, descriptor.length, target)
    }

    /// Fetches data for a part of a descriptor's memory (`PtlGetRegion`). A get that nothing at the
    /// target matches has no event: it ends when its descriptor is unlinked.
    ///
    /// # Errors
    /// As [`Interface::put_region`].
    pub fn get_region(
        &self,
        descriptor: &MemoryDescriptor,
        offset: u64,
        length: u64,
        target: &Target,
    ) -> Result<(), Error> {
        const CALL: &str = "PtlGetRegion";
        let get = self.request(command::GET, CALL, descriptor, offset, length, target)?;
        self.link.start(CALL, &get, || cannot_be_refused(descriptor, target))
    }

    /// Checks the arguments of a put or get of `length` bytes at `offset` of a descriptor, and
    /// makes the fields of the command that both have in common.
    #[inline]
    fn request(
        &self,
        kind: u16,
        call: &'static str,
        descriptor: &MemoryDescriptor,
        offset: u64,
        length: u64,
        target: &Target,
    ) -> Result<Command, Error> {
        if offset.checked_add(length).is_none_or(|end| end > descriptor.length) {
            return Err(Error::OutOfRange { offset, length, size: descriptor.length });
        }
        if length > u64::from(MAX_MESSAGE) {
            return Err(Error::TooLong { length });
        }
        self.check_node(target.process.node)?;
        if target.portal >= PORTALS {
            return Err(Error::Refused { call, reason: Refusal::Portal });
        }
        if target.access >= ACCESS_ENTRIES {
            return Err(Error::Refused { call, reason: Refusal::Access });
        }

        runtime::charge(runtime::Cost::SendMessage, 1);
        Ok(Command {
            kind,
            handle: descriptor.id.0,
            local_offset: offset,
            length,
            node: target.process.node,
            process: target.process.process,
            portal: target.portal,
            access: target.access,
            match_bits: target.match_bits,
            offset: target.offset,
            ..Command::default()
        })
    }

    /// Checks that the network has a node.
    pub(super) fn check_node(&self, node: u32) -> Result<(), Error> {
        if node < self.nodes { Ok(()) } else { Err(Error::NoSuchNode { node, nodes: self.nodes }) }
    }
}

/// Returns whether the card can refuse a checked request for no other reason than lack of room.
#[inline]
fn cannot_be_refused(descriptor: &MemoryDescriptor, target: &Target) -> bool {
    descriptor.is_steady() && target.process.process != ANY_PROCESS
}
