//! Client memory, as the unit's requests reach it.
//!
//! In: addresses in the memory of an attachment. Out: copies, and faults. May touch: client memory.
//!
//! Memory that only messages reach is out of range: the unit can't wait for a client's answer.

use nicforge_core::{
    context::Context,
    dma::{DmaAccess, DmaError, DmaLease, WordUpdate},
    ids::AttachmentId,
};

use nicforge_hwi::mu::fault;

use super::{
    ranges::{Access, Ranges},
    reference::PayloadPlace,
    view::View,
};

/// Bytes that are copied at a time to memory that can't be leased.
const PIECE: usize = 4096;

/// The client whose memory a request concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) attachment: AttachmentId,
    pub(crate) is_system: bool,
}

/// Reasons why a request was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryFault {
    /// It is outside the permitted ranges, or in memory that only messages reach.
    Range,
    /// The memory is not mapped, or not for this kind of access.
    Unmapped,
}

impl From<DmaError> for MemoryFault {
    fn from(error: DmaError) -> Self {
        match error {
            // The unit sends no messages, so none can be in progress.
            DmaError::Remote { .. } | DmaError::Busy => Self::Range,
            _ => Self::Unmapped,
        }
    }
}

/// The memory of all clients, as far as the ranges permit it, for the duration of a call.
pub(crate) struct Memory<'a, 'b> {
    pub(crate) context: &'a mut Context<'b>,
    pub(crate) ranges: &'a Ranges,
}

impl Memory<'_, '_> {
    /// Checks a request against the ranges that the kernel permits.
    #[inline]
    fn check(&self, owner: Owner, address: u64, length: usize, access: Access) -> Result<(), MemoryFault> {
        let is_permitted = self.ranges.permit(owner.is_system, address, length as u64, access);
        if is_permitted { Ok(()) } else { Err(MemoryFault::Range) }
    }

    /// Reads memory.
    #[inline]
    pub(crate) fn read(&mut self, owner: Owner, address: u64, out: &mut [u8]) -> Result<(), MemoryFault> {
        self.check(owner, address, out.len(), Access::Read)?;
        Ok(self.context.copy_from(owner.attachment, address, out)?)
    }

    /// Reads memory, by a view if that holds it.
    #[inline]
    pub(crate) fn read_by(
        &mut self,
        view: &mut View,
        owner: Owner,
        address: u64,
        out: &mut [u8],
    ) -> Result<(), MemoryFault> {
        self.check(owner, address, out.len(), Access::Read)?;
        if view.read(address, out) {
            return Ok(());
        }
        self.context.copy_from(owner.attachment, address, out)?;
        view.note_miss(self.context, owner.attachment, address, out.len(), &[Access::Read]);
        Ok(())
    }

    /// Writes memory, by a view if that holds it.
    #[inline]
    pub(crate) fn write_by(
        &mut self,
        view: &mut View,
        owner: Owner,
        address: u64,
        data: &[u8],
    ) -> Result<(), MemoryFault> {
        self.check(owner, address, data.len(), Access::Write)?;
        if view.write(address, data) {
            return Ok(());
        }
        self.context.copy_to(owner.attachment, address, data)?;
        view.note_miss(self.context, owner.attachment, address, data.len(), &[Access::Write]);
        Ok(())
    }

    /// Writes memory.
    #[inline]
    pub(crate) fn write(&mut self, owner: Owner, address: u64, data: &[u8]) -> Result<(), MemoryFault> {
        self.check(owner, address, data.len(), Access::Write)?;
        Ok(self.context.copy_to(owner.attachment, address, data)?)
    }

    /// Copies from `place` in a lease of another client's memory to an address. The later update of
    /// the put's counter publishes the data.
    ///
    /// Target memory that can't be leased as a whole is written in pieces.
    pub(crate) fn copy_lease(
        &mut self,
        owner: Owner,
        address: u64,
        source: &DmaLease,
        place: PayloadPlace,
    ) -> Result<(), MemoryFault> {
        let PayloadPlace { offset, length, .. } = place;
        let bytes = usize::try_from(length).or(Err(MemoryFault::Range))?;
        self.check(owner, address, bytes, Access::Write)?;
        let target = self.context.dma_lease(owner.attachment, address, length, DmaAccess::Write);
        if let Ok(target) = target {
            return source.copy_to(offset, &target, 0, length).or(Err(MemoryFault::Unmapped));
        }

        let mut piece = [0; PIECE];
        for start in (0..bytes).step_by(PIECE) {
            let piece = &mut piece[..PIECE.min(bytes - start)];
            source.read(offset + start as u64, piece).or(Err(MemoryFault::Unmapped))?;
            self.write(owner, address + start as u64, piece)?;
        }
        Ok(())
    }

    /// Reads an aligned word.
    pub(crate) fn read_word(&mut self, owner: Owner, address: u64) -> Result<u64, MemoryFault> {
        let mut word = [0; 8];
        self.read(owner, address, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    /// Changes an aligned word, and returns its previous value.
    #[inline]
    pub(crate) fn update(
        &mut self,
        owner: Owner,
        address: u64,
        update: WordUpdate,
    ) -> Result<u64, MemoryFault> {
        self.check(owner, address, 8, Access::Write)?;
        Ok(self.context.update_u64(owner.attachment, address, update)?)
    }

    /// Adds to an aligned word, by a view if that holds it.
    #[inline]
    pub(crate) fn add_by(
        &mut self,
        view: &mut View,
        owner: Owner,
        address: u64,
        value: u64,
    ) -> Result<(), MemoryFault> {
        const WORD: usize = size_of::<u64>();
        self.check(owner, address, WORD, Access::Write)?;
        if view.add(address, value) {
            return Ok(());
        }
        self.context.update_u64(owner.attachment, address, WordUpdate::Add(value))?;
        view.note_miss(self.context, owner.attachment, address, WORD, &[Access::Read, Access::Write]);
        Ok(())
    }
}

/// Returns the fault of a FIFO whose memory can't be reached: one of [`fault`].
pub(crate) fn fault_of(fault: MemoryFault) -> u64 {
    match fault {
        MemoryFault::Range => fault::RANGE,
        MemoryFault::Unmapped => fault::UNMAPPED,
    }
}
