//! Accesses to the regions of an attachment: configuration space and BARs.

use thiserror::Error;

use super::{Machine, MachineError, active::ActiveFunction, region};
use crate::{
    attachment::Attachment,
    decode::{self, BarSpace},
    device::Write,
    ids::{Address, AttachmentId, FunctionId},
    panic::DeviceMethod,
    pci::MAX_TABLE_WRITE,
    trace::Event,
    warning::Warning,
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
    /// The write was carried out, and took bus mastering away from the function: by the command
    /// register or by a function-level reset. The caller should cancel the DMA messages that it has
    /// sent to this client. The machine has failed those that the caller has not taken.
    BusMasteringLost,
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
    /// The read is ordered after the attachment's earlier posted writes: the machine drains its
    /// rings first. While a record is stalled, the read stalls after it. Two kinds of read wait
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
        attachment_id: AttachmentId,
        region_index: u32,
        offset: u64,
        data: &mut [u8],
    ) -> Result<Access, AccessError> {
        let accessed = self.guarded(|machine| {
            let mut active = machine.active_for_client(function, attachment_id)?;
            let read = active.read(attachment_id, region_index, offset, data);
            read.inspect_err(|error| active.warn_of_access(attachment_id, error))
        });

        accessed.unwrap_or_else(|_| {
            // The device has panicked, and the function is out of service: its reads return ones. A
            // part of the data may be there already.
            data.fill(0xff);
            Ok(Access::Done)
        })
    }

    /// Carries out a trapped write to a region. It is ordered after the attachment's posted writes
    /// as [`Machine::read`] is, and the caller retries it in the same way.
    ///
    /// The write must lie in one kind of space as a whole: the device's registers, mapped memory,
    /// the control page, or the MSI-X table. The control page takes aligned 32-bit words and
    /// ignores others.
    pub fn write(
        &mut self,
        function: FunctionId,
        attachment_id: AttachmentId,
        region_index: u32,
        offset: u64,
        data: &[u8],
    ) -> Result<Access, AccessError> {
        let accessed = self.guarded(|machine| {
            let mut active = machine.active_for_client(function, attachment_id)?;
            let written = active.write(attachment_id, region_index, offset, data);
            written.inspect_err(|error| active.warn_of_access(attachment_id, error))
        });

        // After a panic of the device, the function is out of service: its writes have no effect.
        accessed.unwrap_or(Ok(Access::Done))
    }

    /// Ends the wait of a stalled access that the caller does not retry. The attachment's next
    /// access waits for all the records in front of it.
    pub fn give_up_access(
        &mut self,
        function: FunctionId,
        attachment_id: AttachmentId,
    ) -> Result<(), MachineError> {
        for ring in &mut self.active_for(function, attachment_id)?.tenant(attachment_id)?.rings {
            ring.waited_from = None;
        }
        Ok(())
    }
}

impl ActiveFunction<'_> {
    /// Carries out a read of a region. Reads of a function that is out of service return ones.
    fn read(
        &mut self,
        attachment_id: AttachmentId,
        region_index: u32,
        offset: u64,
        data: &mut [u8],
    ) -> Result<Access, AccessError> {
        self.check_range(region_index, offset, data.len())?;
        if data.is_empty() {
            return Ok(Access::Done);
        }

        data.fill(0xff);
        if self.slot.state.panic.is_some() {
            return Ok(Access::Done);
        }

        if region_index == region::CONFIG {
            return self.read_config(attachment_id, offset, data);
        }

        let length = data.len();
        let at = Address { bar: region_index as u8, offset };
        self.wake();
        self.wake_client(attachment_id);
        let bypasses_rings = decode::read_bypasses_rings(&self.slot.state.spec, at, length);
        if !bypasses_rings && !self.drain_before_access(attachment_id) {
            return Ok(Access::Stalled);
        }

        self.attachment(attachment_id)?.counters.trapped_reads += 1;

        let mut done = 0;
        while done < length {
            let at = Address { bar: at.bar, offset: offset + done as u64 };
            done += self.read_piece(attachment_id, at, &mut data[done..])?;
        }

        self.trace(attachment_id, Event::Read { at, data });
        Ok(Access::Done)
    }

    /// Reads the part of a range that one kind of space holds. Returns its length, at least 1 byte.
    fn read_piece(
        &mut self,
        attachment_id: AttachmentId,
        at: Address,
        data: &mut [u8],
    ) -> Result<usize, AccessError> {
        let (space, remaining) = decode::decode(&self.slot.state.spec, at);
        let length = data.len().min(usize::try_from(remaining).unwrap_or(usize::MAX));
        let attachment = self.attachment(attachment_id)?;

        match space {
            BarSpace::Memory | BarSpace::Mirror => {
                if let Some(memory) = attachment.memory(at.bar) {
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
                // One word at a time, of which the access may cover a part.
                let (word_offset, skipped) = (offset & !3, (offset & 3) as usize);
                let count = length.min(4 - skipped);
                let word = attachment.read_control(attachment_id, word_offset).to_le_bytes();
                data[..count].copy_from_slice(&word[skipped..skipped + count]);
                Ok(count)
            }
            BarSpace::Device => {
                // A long read is split into naturally aligned accesses, as a bus would split it.
                let count = if length <= MAX_READ { length } else { natural_width(at.offset).min(length) };
                self.call(DeviceMethod::Read, |device, context| {
                    device.read(context, attachment_id, at, &mut data[..count]);
                });
                Ok(count)
            }
        }
    }

    /// Carries out a write to a region. Writes to a function that is out of service have no effect.
    fn write(
        &mut self,
        attachment_id: AttachmentId,
        region_index: u32,
        offset: u64,
        data: &[u8],
    ) -> Result<Access, AccessError> {
        self.check_range(region_index, offset, data.len())?;
        if data.is_empty() || self.slot.state.panic.is_some() {
            return Ok(Access::Done);
        }

        if region_index == region::CONFIG {
            return self.write_config(attachment_id, offset, data);
        }

        let length = data.len();
        let at = Address { bar: region_index as u8, offset };
        let space = self.check_write(at, length)?;

        let bypasses_rings = decode::write_bypasses_rings(&self.slot.state.spec, at, length);
        self.wake();
        self.wake_client(attachment_id);
        if !bypasses_rings && !self.drain_before_access(attachment_id) {
            return Ok(Access::Stalled);
        }

        let is_retry = self.attachment(attachment_id)?.write_stalled;
        if !is_retry {
            self.trace(attachment_id, Event::Write { at, data });
        }

        match space {
            BarSpace::Device => {
                if self.write_device(attachment_id, at, data)? == Write::Stalled {
                    return Ok(Access::Stalled);
                }
            }
            BarSpace::Control(_) => {
                self.attachment(attachment_id)?.write_space(&space, at, data)?;
                // The write may have reset a ring.
                self.slot.state.refresh_rings();
            }
            _ => self.attachment(attachment_id)?.write_space(&space, at, data)?,
        }

        self.attachment(attachment_id)?.counters.trapped_writes += 1;

        Ok(Access::Done)
    }

    /// Checks that a write to a BAR lies in one kind of space that software writes, and returns the
    /// kind.
    fn check_write(&self, at: Address, length: usize) -> Result<BarSpace, AccessError> {
        let (region, offset) = (u32::from(at.bar), at.offset);
        let spec = &self.slot.state.spec;
        let (space, remaining) = decode::decode(spec, at);

        match space {
            BarSpace::Mirror => Err(AccessError::ReadOnly { region }),
            BarSpace::Device if length > MAX_WRITE => Err(AccessError::TooWide { region, length }),
            BarSpace::Device if decode::is_device(spec, at, length) => Ok(space),
            BarSpace::Device => Err(AccessError::OutOfRange { region, offset, length }),
            _ if length as u64 > remaining => Err(AccessError::OutOfRange { region, offset, length }),
            _ => Ok(space),
        }
    }

    /// Passes a trapped write to the device.
    fn write_device(
        &mut self,
        attachment_id: AttachmentId,
        at: Address,
        data: &[u8],
    ) -> Result<Write, MachineError> {
        let result =
            self.call(DeviceMethod::Write, |device, context| device.write(context, attachment_id, at, data));

        let stalled = result == Write::Stalled;
        let attachment = self.attachment(attachment_id)?;
        let was_stalled = std::mem::replace(&mut attachment.write_stalled, stalled);
        let is_new_stall = stalled && !was_stalled;
        attachment.counters.stalls += u64::from(is_new_stall);
        if is_new_stall {
            self.trace(attachment_id, Event::Stalled { at });
        } else if was_stalled && !stalled {
            self.trace(attachment_id, Event::Resumed { at });
        }

        Ok(result)
    }

    /// Reads configuration space. A read of the data register of the device's BAR window
    /// ([`crate::spec::BarWindow`]) reads the BAR first. The value is ones if the window's other
    /// registers name no register of a BAR.
    fn read_config(
        &mut self,
        attachment_id: AttachmentId,
        offset: u64,
        data: &mut [u8],
    ) -> Result<Access, AccessError> {
        if let Some(access) = self.attachment(attachment_id)?.config.window_access(offset, data.len()) {
            let mut value = [0xff; 4];
            let read =
                self.read(attachment_id, access.bar.into(), access.offset, &mut value[..access.length]);
            if matches!(read, Ok(Access::Stalled)) {
                return read;
            }
            self.attachment(attachment_id)?.config.set_window_data(value);
        }

        self.attachment(attachment_id)?.config.read(offset, data);

        Ok(Access::Done)
    }

    /// Writes configuration space, and carries out the effects: a function-level reset, a change of
    /// INTx, a write to a BAR through the device's BAR window ([`crate::spec::BarWindow`]), and the
    /// end of bus mastering.
    fn write_config(
        &mut self,
        attachment_id: AttachmentId,
        offset: u64,
        data: &[u8],
    ) -> Result<Access, AccessError> {
        let attachment = self.attachment(attachment_id)?;
        let was_bus_master = attachment.config.bus_master();
        let effect = attachment.config.write(offset, data);

        if effect.function_level_reset {
            self.reset_attachment(attachment_id)?;
        } else if effect.interrupts_changed {
            attachment.drive_intx();
        }

        // A write that the window directs to no register has no effect, as on a bus. A write to the
        // window's data register covers no other register, so that its retry repeats no effect.
        let config = &self.attachment(attachment_id)?.config;
        if let Some(access) = config.window_access(offset, data.len()) {
            let value = config.window_data();
            let written =
                self.write(attachment_id, access.bar.into(), access.offset, &value[..access.length]);
            if matches!(written, Ok(Access::Stalled)) {
                return written;
            }
        }

        if !was_bus_master || self.attachment(attachment_id)?.config.bus_master() {
            return Ok(Access::Done);
        }

        // The write has ended bus mastering.
        self.attachment(attachment_id)?.dma.revoke_leases();
        self.stop_messages(attachment_id)?;

        Ok(Access::BusMasteringLost)
    }

    /// Logs and traces an access that was refused.
    #[cold]
    fn warn_of_access(&mut self, attachment_id: AttachmentId, error: &AccessError) {
        let warning = Warning::refused(error);
        self.trace(attachment_id, Event::Warning(warning));
        self.slot.state.warn(self.shared.now, Some(attachment_id), warning);
    }

    /// Checks that a range lies in a region.
    fn check_range(&self, index: u32, offset: u64, length: usize) -> Result<(), AccessError> {
        let size = region::size(&self.slot.state.spec, index);
        if size == 0 || offset.checked_add(length as u64).is_none_or(|end| end > size) {
            return Err(AccessError::OutOfRange { region: index, offset, length });
        }
        Ok(())
    }
}

impl Attachment {
    /// Carries out a write to a part of a BAR that is not the device's registers.
    fn write_space(&mut self, space: &BarSpace, at: Address, data: &[u8]) -> Result<(), MachineError> {
        match *space {
            // The machine has refused a write to a mirror. Software does not write pending bits.
            BarSpace::Mirror | BarSpace::PendingBits(_) | BarSpace::Device => {}
            BarSpace::Memory => {
                if let Some(memory) = self.memory(at.bar) {
                    memory.write(at.offset, data)?;
                }
            }
            BarSpace::MsixTable(table_offset) => {
                if let Some(msix) = &mut self.msix {
                    for (index, piece) in data.chunks(MAX_TABLE_WRITE).enumerate() {
                        // The pending vectors that the write unmasks are not delivered: a vector is
                        // pending only while it has no sink.
                        let _ = msix.write(table_offset + (index * MAX_TABLE_WRITE) as u64, piece);
                    }
                }
            }
            BarSpace::Control(control_offset) => {
                for (index, word) in data.chunks(4).enumerate() {
                    let offset = control_offset + 4 * index as u64;
                    if let (Ok(word), true) = (<[u8; 4]>::try_from(word), offset.is_multiple_of(4)) {
                        self.write_control(offset, u32::from_le_bytes(word));
                    }
                }
            }
        }

        Ok(())
    }
}

/// Returns the widest naturally aligned access at `offset`, at most 8 bytes.
fn natural_width(offset: u64) -> usize {
    1 << offset.trailing_zeros().min(3)
}
