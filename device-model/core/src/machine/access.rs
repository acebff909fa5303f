//! Accesses to the regions of an attachment: configuration space and BARs.

use thiserror::Error;

use super::{
    Machine, MachineError,
    decode::{self, BarSpace},
    region,
};
use crate::{
    device::Write,
    ids::{Address, AttachmentId, FunctionId},
    pci::MAX_TABLE_WRITE,
    trace::Event,
};

/// The widest write that a device takes in one piece, in bytes.
const MAX_WRITE: usize = nicforge_hwi::posted::MAX_DATA;
/// The widest read that a device answers in one piece, in bytes.
const MAX_READ: usize = 64;

/// Result of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Access {
    /// The access was carried out.
    Done,
    /// The access waits behind a write that the device can't take yet, or is that write. The caller
    /// should retry it after a step.
    Stalled,
}

/// Reason why an access was refused. A refused access had no effect.
#[derive(Debug, Error)]
pub enum AccessError {
    /// The attachment does not exist, or has no client.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The region does not exist, or the access passes its end. A write may also not cross a border
    /// between mapped memory, registers, the control page and MSI-X.
    #[error("region {region}: {length} bytes at {offset:#x} are outside, or a write across a border")]
    OutOfRange {
        /// VFIO region index.
        region: u32,
        /// Offset in the region.
        offset: u64,
        /// Length in bytes.
        length: usize,
    },
    /// A write to registers is longer than a device can take in one piece.
    #[error("region {region}: a write of {length} bytes to registers; at most 512 go in one piece")]
    TooWide {
        /// VFIO region index.
        region: u32,
        /// Length in bytes.
        length: usize,
    },
    /// The region is read-only.
    #[error("region {region} is read-only")]
    ReadOnly {
        /// VFIO region index.
        region: u32,
    },
}

impl Machine {
    /// Carries out a trapped read of a region.
    ///
    /// The read is ordered behind the attachment's earlier posted writes: the machine drains its
    /// rings first. While a record is stalled, the read stalls behind it. Two kinds of read wait
    /// for nothing: configuration space, and the control page without the generation word. A read
    /// of the generation waits, and thus serves as a flush.
    ///
    /// While clients compete for a resource of the device, rings are drained only in the function's
    /// turns, and the read waits for those. Accesses between turns could otherwise take more than
    /// their share.
    ///
    /// After [`Access::Stalled`], the caller should retry the read after a step. A caller that
    /// stops retrying must call [`Machine::give_up_access`].
    pub fn read(
        &mut self,
        function: FunctionId,
        who: AttachmentId,
        region_index: u32,
        offset: u64,
        data: &mut [u8],
    ) -> Result<Access, AccessError> {
        self.tenant(function, who)?;
        self.check_range(function, region_index, offset, data.len())?;
        if data.is_empty() {
            return Ok(Access::Done);
        }

        data.fill(0xff);
        if region_index == region::CONFIG {
            self.attachment_mut(function, who)?.config.read(offset, data);
            return Ok(Access::Done);
        }

        let length = data.len();
        let at = Address { bar: region_index as u8, offset };
        self.wake(function);
        let passes = decode::passes_rings(&self.slot(function, who)?.0.state.spec, at, length, false);
        if !passes && !self.drain_before_access(function, who) {
            return Ok(Access::Stalled);
        }

        self.attachment_mut(function, who)?.counters.trapped_reads += 1;
        self.shared.trace(function, who, Event::Read { at, length });

        let mut done = 0;
        while done < length {
            let at = Address { bar: at.bar, offset: offset + done as u64 };
            done += self.read_piece(function, who, at, &mut data[done..])?;
        }

        Ok(Access::Done)
    }

    /// Reads the part of a range that one kind of space holds. Returns its length, at least 1 byte.
    fn read_piece(
        &mut self,
        function: FunctionId,
        who: AttachmentId,
        at: Address,
        data: &mut [u8],
    ) -> Result<usize, AccessError> {
        let (slot, index) = self.slot(function, who)?;
        let (space, left) = decode::decode(&slot.state.spec, at);
        let length = data.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let attachment = &mut slot.state.attachments[index];

        match space {
            BarSpace::Memory | BarSpace::Mirror => {
                if let Some(memory) = &attachment.memories[usize::from(at.bar)] {
                    memory.read(at.offset, &mut data[..length]).map_err(MachineError::from)?;
                }
                Ok(length)
            }
            BarSpace::MsixTable(offset) => {
                if let Some(msix) = &attachment.msix {
                    msix.read(offset, &mut data[..length]);
                }
                Ok(length)
            }
            BarSpace::PendingBits(offset) => {
                if let Some(msix) = &attachment.msix {
                    msix.read_pba(offset, &mut data[..length]);
                }
                Ok(length)
            }
            BarSpace::Control(offset) => {
                let (word, within) = (offset & !3, (offset & 3) as usize);
                let take = length.min(4 - within);
                let value = self.read_control(function, who, word).to_le_bytes();
                data[..take].copy_from_slice(&value[within..within + take]);
                Ok(take)
            }
            BarSpace::Device => {
                let take = if length <= MAX_READ { length } else { natural_width(at.offset).min(length) };
                self.call(function, |device, context| device.read(context, who, at, &mut data[..take]));
                Ok(take)
            }
        }
    }

    /// Carries out a trapped write to a region. It is ordered behind the attachment's posted writes
    /// as [`Machine::read`] is, and the caller retries it in the same way.
    ///
    /// The write must lie in one kind of space as a whole: the device's registers, mapped memory,
    /// the control page, or the MSI-X table. The control page takes aligned 32-bit words and
    /// ignores others.
    pub fn write(
        &mut self,
        function: FunctionId,
        who: AttachmentId,
        region_index: u32,
        offset: u64,
        data: &[u8],
    ) -> Result<Access, AccessError> {
        self.tenant(function, who)?;
        self.check_range(function, region_index, offset, data.len())?;
        if data.is_empty() {
            return Ok(Access::Done);
        }

        if region_index == region::CONFIG {
            self.write_config(function, who, offset, data)?;
            return Ok(Access::Done);
        }

        let length = data.len();

        let at = Address { bar: region_index as u8, offset };
        let spec = &self.slot(function, who)?.0.state.spec;
        let (space, left) = decode::decode(spec, at);
        match space {
            BarSpace::Mirror => return Err(AccessError::ReadOnly { region: region_index }),
            BarSpace::Device if length > MAX_WRITE => {
                return Err(AccessError::TooWide { region: region_index, length });
            }
            BarSpace::Device if decode::is_device(spec, at, length) => {}
            BarSpace::Device => return Err(AccessError::OutOfRange { region: region_index, offset, length }),
            _ if length as u64 > left => {
                return Err(AccessError::OutOfRange { region: region_index, offset, length });
            }
            _ => {}
        }

        let passes = decode::passes_rings(spec, at, length, true);
        self.wake(function);
        if !passes && !self.drain_before_access(function, who) {
            return Ok(Access::Stalled);
        }

        match space {
            // A write to a mirror was refused above. Software does not write pending bits.
            BarSpace::Mirror | BarSpace::PendingBits(_) => {}
            BarSpace::Memory => {
                if let Some(memory) = &self.attachment_mut(function, who)?.memories[usize::from(at.bar)] {
                    memory.write(offset, data).map_err(MachineError::from)?;
                }
            }
            BarSpace::MsixTable(table) => {
                if let Some(msix) = &mut self.attachment_mut(function, who)?.msix {
                    for (index, piece) in data.chunks(MAX_TABLE_WRITE).enumerate() {
                        // The result is of no use: a vector whose interrupt is pending is not
                        // bound.
                        let _ = msix.write(table + (index * MAX_TABLE_WRITE) as u64, piece);
                    }
                }
            }
            BarSpace::Control(control_offset) => {
                for (index, word) in data.chunks(4).enumerate() {
                    let offset = control_offset + 4 * index as u64;
                    if let (Ok(word), true) = (<[u8; 4]>::try_from(word), offset.is_multiple_of(4)) {
                        self.write_control(function, who, offset, u32::from_le_bytes(word));
                    }
                }
            }
            BarSpace::Device => {
                let outcome = self.call(function, |device, context| device.write(context, who, at, data));
                let stalled = outcome == Some(Write::Stalled);
                let attachment = self.attachment_mut(function, who)?;
                let newly = stalled && !attachment.write_stalled;

                attachment.write_stalled = stalled;
                attachment.counters.stalls += u64::from(newly);
                if newly {
                    self.shared.trace(function, who, Event::Stalled { at });
                }

                if stalled {
                    return Ok(Access::Stalled);
                }
            }
        }

        self.attachment_mut(function, who)?.counters.trapped_writes += 1;
        self.shared.trace(function, who, Event::Write { at, length });

        Ok(Access::Done)
    }

    /// Ends the wait of a stalled access that the caller does not retry. The attachment's next
    /// access waits for all the records in front of it.
    pub fn give_up_access(&mut self, function: FunctionId, who: AttachmentId) -> Result<(), MachineError> {
        for ring in &mut self.tenant(function, who)?.rings {
            ring.waited_from = None;
        }
        Ok(())
    }

    /// Writes configuration space, and carries out the effects: a function-level reset, a change of
    /// INTx, or the end of bus mastering.
    fn write_config(
        &mut self,
        function: FunctionId,
        who: AttachmentId,
        offset: u64,
        data: &[u8],
    ) -> Result<(), MachineError> {
        let attachment = self.attachment_mut(function, who)?;
        let effect = attachment.config.write(offset, data);
        let stopped = !attachment.config.bus_master();
        if stopped {
            attachment.dma.revoke_leases();
        }

        if effect.function_level_reset {
            return self.reset_attachment(function, who);
        }

        if effect.interrupts_changed {
            attachment.drive_intx();
        }

        if stopped { self.stop_messages(function, who) } else { Ok(()) }
    }

    /// Checks that a range lies in a region.
    fn check_range(
        &mut self,
        function: FunctionId,
        index: u32,
        offset: u64,
        length: usize,
    ) -> Result<(), AccessError> {
        let (slot, _) = self.slot(function, AttachmentId(0))?;
        let size = region::size(&slot.state.spec, index);
        if size == 0 || offset.checked_add(length as u64).is_none_or(|end| end > size) {
            return Err(AccessError::OutOfRange { region: index, offset, length });
        }
        Ok(())
    }
}

/// Returns the widest naturally aligned access at `offset`, at most 8 bytes.
fn natural_width(offset: u64) -> usize {
    1 << offset.trailing_zeros().min(3)
}
