//! The kernel's event queue, and the inspection of commands of the trusted mailbox.

use nicforge_hwi::seastar::{
    KernelCommand, KernelEvent, MAX_KERNEL_EVENTS, MAX_MESSAGE, MAX_PIECES, MessageHeader, PIECES, Piece,
    code, kernel_command,
};

use crate::chip::Pieces;

/// Events that an arriving message needs: it is reported, and so is the end of its data.
const ARRIVAL: u32 = 2;
/// Smallest number of slots: a message that is sent needs one besides those of an arrival.
const MIN_EVENTS: u32 = (ARRIVAL + 1).next_power_of_two();

/// The kernel's event queue. A slot is reserved for each event that will report the end of a
/// message that was sent or that is being received, so that the event always has room.
#[derive(Clone, Copy, Debug)]
pub(super) struct KernelQueue {
    start: u64,
    events: u32,
    /// Events written, modulo 2^32.
    written: u32,
    /// Events that the kernel has taken, modulo 2^32.
    taken: u32,
    /// Events that will follow.
    reserved: u32,
}

/// Where the slot of a new event comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotSource {
    /// It was reserved when the operation began that now ends.
    Reserved,
    /// It is free: the event reports something new.
    Free,
}

/// The slot of an event in the kernel's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct KernelSlot {
    pub(super) address: u64,
    /// Number of the event, from 1, modulo 2^32.
    pub(super) number: u32,
}

impl KernelQueue {
    /// Makes a queue of `events` slots: a power of two from [`MIN_EVENTS`] to
    /// [`MAX_KERNEL_EVENTS`].
    pub(super) fn new(start: u64, events: u32) -> Result<Self, u32> {
        let bytes = size_of::<KernelEvent>() as u64;
        let has_good_size = events.is_power_of_two() && (MIN_EVENTS..=MAX_KERNEL_EVENTS).contains(&events);
        let has_good_place =
            start.is_multiple_of(bytes) && start.checked_add(u64::from(events) * bytes).is_some();
        if !has_good_size || !has_good_place {
            return Err(code::SEGMENT_VIOLATION);
        }
        Ok(Self { start, events, written: 0, taken: 0, reserved: 0 })
    }

    /// Records that the kernel has taken `taken` events in all, modulo 2^16. A number that is
    /// larger than that of the events written is refused.
    pub(super) fn record_taken(&mut self, taken: u16) -> Result<(), u32> {
        let more = u32::from(taken.wrapping_sub(self.taken as u16));
        if more > self.written.wrapping_sub(self.taken) {
            return Err(code::SEGMENT_VIOLATION);
        }
        self.taken = self.taken.wrapping_add(more);
        Ok(())
    }

    /// Returns whether the queue has free slots for this many more events.
    pub(super) fn has_room(&self, events: u32) -> bool {
        self.written.wrapping_sub(self.taken) + self.reserved + events <= self.events
    }

    /// Returns whether the queue has free slots for the end of one more message that the kernel
    /// sends, and for an arrival besides. Nodes whose sends left no slots for arrivals would refuse
    /// each other's messages for ever.
    pub(super) fn has_room_to_send(&self) -> bool {
        self.has_room(1 + ARRIVAL)
    }

    /// Reserves a slot for an event that will follow. The caller has checked [`Self::has_room`].
    pub(super) fn reserve(&mut self) {
        self.reserved += 1;
    }

    /// Frees the reserved slots of events that will not follow.
    pub(super) fn release(&mut self, events: u32) {
        self.reserved = self.reserved.saturating_sub(events);
    }

    /// Takes the slot of the next event, from the reserved ones or from the free ones.
    pub(super) fn take_slot(&mut self, source: SlotSource) -> KernelSlot {
        let slot = u64::from(self.written & (self.events - 1));
        self.written = self.written.wrapping_add(1);
        self.reserved = self.reserved.saturating_sub(u32::from(source == SlotSource::Reserved));
        KernelSlot { address: self.start + slot * size_of::<KernelEvent>() as u64, number: self.written }
    }
}

/// Returns whether all fields that a command does not use are zero: it clears those that the
/// command's kind uses, and looks at the rest.
pub(super) fn unused_fields_are_zero(command: &KernelCommand) -> bool {
    let mut rest = *command;
    rest.taken = 0;
    let clear_pieces = |rest: &mut KernelCommand| {
        rest.count = 0;
        rest.pieces = [Piece::default(); PIECES];
    };

    match command.kind {
        kernel_command::BOOT => {
            rest.list = 0;
            rest.length = 0;
        }
        kernel_command::START_PROCESS => {
            rest.process = 0;
            rest.flags = 0;
            clear_pieces(&mut rest);
        }
        kernel_command::MAP => {
            rest.process = 0;
            clear_pieces(&mut rest);
        }
        kernel_command::STOP_PROCESS => rest.process = 0,
        kernel_command::SEND => {
            rest.token = 0;
            rest.process = 0;
            rest.node = 0;
            rest.target = 0;
            rest.message = 0;
            rest.length = 0;
            rest.header = MessageHeader::default();
            rest.list = 0;
            clear_pieces(&mut rest);
        }
        kernel_command::RECEIVE => {
            rest.token = 0;
            rest.length = 0;
            rest.list = 0;
            clear_pieces(&mut rest);
        }
        kernel_command::TAKE => {}
        kernel_command::REFUSE | kernel_command::ADMIT => rest.node = 0,
        _ => return false,
    }
    rest == KernelCommand { kind: command.kind, ..KernelCommand::default() }
}

/// Returns the pieces of a command, which must hold `length` bytes together. Each lies in the
/// memory of one of the first `attachments` attachments.
///
/// More than [`PIECES`] pieces are in a list in the kernel's memory. The DMA engine inspects them
/// when it reads the list.
pub(super) fn pieces_of(command: &KernelCommand, length: u32, attachments: u16) -> Result<Pieces, u32> {
    let count = usize::from(command.count);
    if length > MAX_MESSAGE || count > MAX_PIECES {
        return Err(code::SEGMENT_VIOLATION);
    }
    if count > PIECES {
        return Ok(Pieces::List { address: command.list, count: command.count });
    }

    let pieces = command.pieces.get(..count).ok_or(code::SEGMENT_VIOLATION)?;
    let is_good = |piece: &Piece| {
        piece.attachment < attachments
            && piece.reserved == 0
            && piece.address.checked_add(u64::from(piece.length)).is_some()
    };
    let bytes: u64 = pieces.iter().map(|piece| u64::from(piece.length)).sum();
    if bytes < u64::from(length) || command.list != 0 || !pieces.iter().all(is_good) {
        return Err(code::SEGMENT_VIOLATION);
    }
    Ok(match pieces {
        _ if length == 0 => Pieces::None,
        [piece] => Pieces::One(*piece),
        _ => Pieces::Few { count: count as u8, pieces: command.pieces },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a slot, and returns the address and the number of its event.
    fn take_slot(queue: &mut KernelQueue, source: SlotSource) -> (u64, u32) {
        let KernelSlot { address, number } = queue.take_slot(source);
        (address, number)
    }

    #[test]
    fn reserved_slots_are_kept_for_their_events() {
        let mut queue = KernelQueue::new(0x1000, 4).unwrap();
        assert!(queue.has_room_to_send());
        queue.reserve();
        queue.reserve();
        assert!(queue.has_room(2));
        assert!(!queue.has_room(3) && !queue.has_room_to_send());

        assert_eq!(take_slot(&mut queue, SlotSource::Free), (0x1000, 1));
        assert!(!queue.has_room(2));
        assert_eq!(queue.record_taken(1), Ok(()));
        assert!(queue.has_room(2));
        assert_eq!(take_slot(&mut queue, SlotSource::Reserved), (0x1080, 2));
        assert_eq!(queue.record_taken(3), Err(code::SEGMENT_VIOLATION));
    }

    #[test]
    fn queue_of_a_wrong_size_or_place_is_refused() {
        for (start, events) in [(0, 6), (0, 2), (0, MAX_KERNEL_EVENTS * 2), (64, 4), (u64::MAX - 127, 4)] {
            assert!(KernelQueue::new(start, events).is_err());
        }
    }

    #[test]
    fn pieces_must_have_room_and_belong_to_clients() {
        let piece = Piece { address: 0, length: 8, attachment: 1, reserved: 0 };
        let send = KernelCommand { count: 1, pieces: [piece; PIECES], ..KernelCommand::default() };

        assert_eq!(pieces_of(&send, 8, 2), Ok(Pieces::One(piece)));
        assert_eq!(pieces_of(&send, 9, 2), Err(code::SEGMENT_VIOLATION));
        assert_eq!(pieces_of(&send, 8, 1), Err(code::SEGMENT_VIOLATION));
        let list = KernelCommand { count: 5, list: 64, ..KernelCommand::default() };
        assert_eq!(pieces_of(&list, 9, 1), Ok(Pieces::List { address: 64, count: 5 }));
    }
}
