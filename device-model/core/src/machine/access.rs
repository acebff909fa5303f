//! Accesses to the regions of an attachment: configuration space and BARs.

use nicforge_hwi::attachment::control;
use nicforge_shm::Peek;
use thiserror::Error;

use super::{Machine, MachineError, region, schedule};
use crate::{
    device::{Address, AttachmentId, FunctionId, Write},
    spec::{AreaKind, FunctionSpec},
    trace::Event,
};

/// The widest write that a device takes in one piece, in bytes.
const MAX_WRITE: usize = nicforge_hwi::posted::MAX_DATA;
/// The widest read that a device answers in one piece, in bytes.
const MAX_READ: usize = 64;

/// What became of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Access {
    /// Done.
    Done,
    /// It waits behind a write that the device can't take yet, or is that write. Offer it again after a step.
    Stalled,
}

/// Why an access was refused. A refused access had no effect.
#[derive(Debug, Error)]
pub enum AccessError {
    /// No such attachment, or nobody has it.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The region does not exist or the access passes its end.
    #[error("region {region}: {length} bytes at {offset:#x} are outside")]
    OutOfRange {
        /// VFIO region index.
        region: u32,
        /// Offset in it.
        offset: u64,
        /// Bytes.
        length: usize,
    },
    /// A write to registers longer than a device can take in one piece.
    #[error("region {region}: a write of {length} bytes to registers; at most 512 go in one piece")]
    TooWide {
        /// VFIO region index.
        region: u32,
        /// Bytes.
        length: usize,
    },
    /// The region can't be written.
    #[error("region {region} is read-only")]
    ReadOnly {
        /// VFIO region index.
        region: u32,
    },
}

/// What a piece of a BAR is.
enum Place {
    Memory,
    Mirror,
    Control(u64),
    MsixTable(u64),
    PendingBits(u64),
    Device,
}

fn place(spec: &FunctionSpec, at: Address) -> (Place, u64) {
    // The second value: bytes from `at` to where something else may begin.
    let page_end = 4096 - at.offset % 4096;
    if let Some(bar) = spec.bars.get(usize::from(at.bar)).and_then(Option::as_ref) {
        for area in &bar.areas {
            if (area.offset..area.offset + area.length).contains(&at.offset) {
                let left = area.offset + area.length - at.offset;
                return match area.kind {
                    AreaKind::Mapped => (Place::Memory, left),
                    AreaKind::Mirrored => (Place::Mirror, left),
                };
            }
        }
    }
    if let Some(rings) = spec.rings
        && rings.control_bar == at.bar
        && let Some(offset) = at.offset.checked_sub(rings.control_offset.into())
        && offset < control::SIZE
    {
        return (Place::Control(offset), control::SIZE - offset);
    }
    if let Some(msix) = spec.msix
        && msix.bar == at.bar
    {
        let table = u64::from(msix.vectors) * 16;
        let pending = u64::from(msix.vectors).div_ceil(64) * 8;
        if let Some(offset) = at.offset.checked_sub(msix.table.into())
            && offset < table
        {
            return (Place::MsixTable(offset), table - offset);
        }
        if let Some(offset) = at.offset.checked_sub(msix.pba.into())
            && offset < pending
        {
            return (Place::PendingBits(offset), pending - offset);
        }
    }
    (Place::Device, page_end)
}

impl Machine {
    /// A trapped read of a region. The attachment's rings are drained first; while a record in them is stalled the read waits
    /// behind it, except in the control page (of which the generation does wait: reading it is a flush).
    pub fn read(
        &mut self,
        function: FunctionId,
        who: AttachmentId,
        region_index: u32,
        offset: u64,
        data: &mut [u8],
    ) -> Result<Access, AccessError> {
        self.tenant(function, who)?;
        self.check(function, region_index, offset, data.len())?;
        data.fill(0xff);
        if region_index == region::CONFIG {
            self.attachment_mut(function, who)?.config.read(offset, data);
            return Ok(Access::Done);
        }
        let bar = region_index as u8;
        self.wake(function);
        // A client flushes by reading the generation; the rest of the control page answers whatever the rings hold.
        if self.control_offset(function, Address { bar, offset }).is_none_or(|offset| offset == control::GENERATION)
            && !self.drain_rings(function, who, schedule::DRAIN_RECORDS)
        {
            return Ok(Access::Stalled);
        }
        let length = data.len();
        self.attachment_mut(function, who)?.counters.trapped_reads += 1;
        self.shared.trace(function, who, Event::Read { at: Address { bar, offset }, length });
        let mut done = 0;
        while done < length {
            let at = Address { bar, offset: offset + done as u64 };
            done += self.read_piece(function, who, at, &mut data[done..])?;
        }
        Ok(Access::Done)
    }

    fn read_piece(
        &mut self,
        function: FunctionId,
        who: AttachmentId,
        at: Address,
        data: &mut [u8],
    ) -> Result<usize, AccessError> {
        let (slot, index) = self.slot(function, who)?;
        let (place, left) = place(&slot.state.spec, at);
        let length = data.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let attachment = &mut slot.state.attachments[index];
        match place {
            Place::Memory | Place::Mirror => {
                if let Some(memory) = &attachment.memories[usize::from(at.bar)] {
                    memory.read(at.offset, &mut data[..length]).map_err(MachineError::from)?;
                }
                Ok(length)
            }
            Place::MsixTable(offset) => {
                if let Some(msix) = &attachment.msix {
                    msix.read(offset, &mut data[..length]);
                }
                Ok(length)
            }
            Place::PendingBits(offset) => {
                if let Some(msix) = &attachment.msix {
                    msix.read_pba(offset, &mut data[..length]);
                }
                Ok(length)
            }
            Place::Control(offset) => {
                let word = (offset & !3, (offset & 3) as usize);
                let take = length.min(4 - word.1);
                let value = self.read_control(function, who, word.0)?.to_le_bytes();
                data[..take].copy_from_slice(&value[word.1..word.1 + take]);
                Ok(take)
            }
            Place::Device => {
                let take = if length <= MAX_READ { length } else { natural(at.offset).min(length) };
                self.call(function, |device, context| device.read(context, who, at, &mut data[..take]));
                Ok(take)
            }
        }
    }

    /// A trapped write to a region. Rings are drained first, as for [`Machine::read`].
    pub fn write(
        &mut self,
        function: FunctionId,
        who: AttachmentId,
        region_index: u32,
        offset: u64,
        data: &[u8],
    ) -> Result<Access, AccessError> {
        self.tenant(function, who)?;
        self.check(function, region_index, offset, data.len())?;
        if region_index == region::CONFIG {
            let effect = self.attachment_mut(function, who)?.config.write(offset, data);
            if effect.function_level_reset {
                self.reset_attachment(function, who)?;
            }
            return Ok(Access::Done);
        }
        let bar = region_index as u8;
        let at = Address { bar, offset };
        self.wake(function);
        if data.is_empty() {
            return Ok(Access::Done);
        }
        if self.control_offset(function, at).is_none() && !self.drain_rings(function, who, schedule::DRAIN_RECORDS) {
            return Ok(Access::Stalled);
        }
        let (slot, index) = self.slot(function, who)?;
        let (place, left) = place(&slot.state.spec, at);
        let attachment = &mut slot.state.attachments[index];
        let crosses = data.len() as u64 > left;
        match place {
            Place::Mirror => return Err(AccessError::ReadOnly { region: region_index }),
            Place::Memory if crosses => {
                return Err(AccessError::OutOfRange { region: region_index, offset, length: data.len() });
            }
            Place::Memory => {
                if let Some(memory) = &attachment.memories[usize::from(bar)] {
                    memory.write(offset, data).map_err(MachineError::from)?;
                }
            }
            Place::MsixTable(table) => {
                let length = data.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                if let Some(msix) = &mut attachment.msix {
                    msix.write(table, &data[..length]);
                }
            }
            Place::PendingBits(_) => {}
            Place::Control(control_offset) => {
                let mut word = [0; 4];
                let take = data.len().min(4);
                word[..take].copy_from_slice(&data[..take]);
                self.write_control(function, who, control_offset, u32::from_le_bytes(word))?;
            }
            Place::Device => {
                if data.len() > MAX_WRITE {
                    return Err(AccessError::TooWide { region: region_index, length: data.len() });
                }
                let outcome = self.call(function, |device, context| device.write(context, who, at, data));
                if outcome == Some(Write::Stalled) {
                    self.shared.trace(function, who, Event::Stalled { at });
                    return Ok(Access::Stalled);
                }
            }
        }
        self.attachment_mut(function, who)?.counters.trapped_writes += 1;
        self.shared.trace(function, who, Event::Write { at, length: data.len() });
        Ok(Access::Done)
    }

    /// Carry out what an attachment's rings hold, at most `limit` records a ring. False when one is stalled.
    pub(super) fn drain_rings(&mut self, function: FunctionId, who: AttachmentId, limit: u32) -> bool {
        let Ok(tenant) = self.tenant(function, who) else { return true };
        let rings = tenant.rings.len();
        let mut all_drained = true;
        for ring in 0..rings {
            all_drained &= self.drain_ring(function, who, ring, limit) != Drained::Stalled;
        }
        all_drained
    }

    pub(super) fn drain_ring(
        &mut self,
        function: FunctionId,
        who: AttachmentId,
        ring_index: usize,
        limit: u32,
    ) -> Drained {
        let Some(slot) = self.slots.get_mut(function.0 as usize) else { return Drained::Nothing };
        let index = usize::from(who.0);
        // The ring is taken out of the function while its device is called, which gets the rest of the function.
        let Some(mut ring) = slot
            .state
            .attachments
            .get_mut(index)
            .and_then(|attachment| attachment.tenant.as_mut())
            .filter(|tenant| ring_index < tenant.rings.len())
            .map(|tenant| tenant.rings.swap_remove(ring_index))
        else {
            return Drained::Nothing;
        };
        let mut outcome = Drained::Nothing;
        for _ in 0..limit {
            let record = match ring.consumer.peek() {
                Peek::Empty => break,
                Peek::Malformed { .. } => {
                    ring.consumer.pop();
                    slot.state.attachments[index].counters.malformed_records += 1;
                    outcome = Drained::Some;
                    continue;
                }
                Peek::Record(record) => record,
            };
            let at = Address { bar: record.bar, offset: record.offset.into() };
            let data = record.data;
            let length = data.len();
            let inside =
                slot.state.spec.bars.get(usize::from(at.bar)).and_then(Option::as_ref).is_some_and(|bar| {
                    at.offset.checked_add(length as u64).is_some_and(|end| end <= bar.size)
                }) && matches!(place(&slot.state.spec, at).0, Place::Device);
            if !inside {
                ring.consumer.pop();
                slot.state.attachments[index].counters.malformed_records += 1;
                outcome = Drained::Some;
                continue;
            }
            let mut context = crate::context::Context {
                function: &mut slot.state,
                shared: &mut self.shared,
                fabric: &mut self.fabric,
            };
            match slot.device.write(&mut context, who, at, data) {
                Write::Accepted => {
                    ring.consumer.pop();
                    ring.stalled = false;
                    slot.state.attachments[index].counters.posted_writes += 1;
                    self.shared.trace(function, who, Event::Posted { at, length });
                    outcome = Drained::Some;
                }
                Write::Stalled => {
                    if !ring.stalled {
                        ring.stalled = true;
                        slot.state.attachments[index].counters.stalls += 1;
                        self.shared.trace(function, who, Event::Stalled { at });
                    }
                    outcome = Drained::Stalled;
                    break;
                }
            }
        }
        ring.publish();
        if let Some(tenant) =
            slot.state.attachments.get_mut(index).and_then(|attachment| attachment.tenant.as_mut())
        {
            tenant.rings.push(ring);
            let last = tenant.rings.len() - 1;
            tenant.rings.swap(ring_index, last);
        }
        outcome
    }

    fn check(
        &mut self,
        function: FunctionId,
        index: u32,
        offset: u64,
        length: usize,
    ) -> Result<(), AccessError> {
        let (slot, _) = self.slot(function, AttachmentId(0))?;
        let size = region::size(&slot.state.spec, index);
        if offset.checked_add(length as u64).is_none_or(|end| end > size) {
            return Err(AccessError::OutOfRange { region: index, offset, length });
        }
        Ok(())
    }

    /// Where in the control page an access goes, if it does.
    fn control_offset(&self, function: FunctionId, at: Address) -> Option<u64> {
        match place(&self.slots.get(function.0 as usize)?.state.spec, at).0 {
            Place::Control(offset) => Some(offset),
            _ => None,
        }
    }

    fn read_control(
        &mut self,
        function: FunctionId,
        who: AttachmentId,
        offset: u64,
    ) -> Result<u32, MachineError> {
        let attachment = self.attachment_mut(function, who)?;
        Ok(match offset {
            control::RING_SELECT => attachment.ring_selected,
            control::RING_STATE => attachment
                .tenant
                .as_ref()
                .and_then(|tenant| tenant.rings.get(attachment.ring_selected as usize))
                .map_or(u32::MAX, |ring| {
                    let (cell, phase) = ring.consumer.state();
                    cell | (u32::from(phase) << 31)
                }),
            control::GENERATION => attachment.generation,
            control::ATTACHMENT => who.0.into(),
            _ => u32::MAX,
        })
    }

    fn write_control(
        &mut self,
        function: FunctionId,
        who: AttachmentId,
        offset: u64,
        value: u32,
    ) -> Result<(), MachineError> {
        let attachment = self.attachment_mut(function, who)?;
        match offset {
            control::WAKE => attachment.counters.wakes += 1,
            control::RING_SELECT => attachment.ring_selected = value,
            control::RING_RESET => {
                if let Some(ring) =
                    attachment.tenant.as_mut().and_then(|tenant| tenant.rings.get_mut(value as usize))
                {
                    ring.consumer.reset();
                    ring.stalled = false;
                    ring.publish();
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// What draining a ring did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drained {
    Nothing,
    Some,
    Stalled,
}

/// The widest naturally aligned access at `offset`, at most 8 bytes.
fn natural(offset: u64) -> usize {
    1 << offset.trailing_zeros().min(3)
}
