//! The records of a posted-write ring on their way to a device.
//!
//! In: a ring, and who has it. Out: register writes, one after the other, each checked to go to the
//! device's registers. What it may touch: the ring, and the machine's trace. A device gets it in
//! [`crate::device::Device::drain`].

use nicforge_shm::Peek;

use crate::{
    attachment::Ring,
    context::Context,
    device::{Address, AttachmentId},
    trace::Event,
};

/// Records of a ring, in order, as many as may be taken now.
pub struct Posted<'a> {
    ring: &'a mut Ring,
    who: AttachmentId,
    /// Records that may still be taken.
    left: u32,
    carried_out: u64,
    malformed: u64,
    /// Somebody wants to know of each.
    traced: bool,
}

impl<'a> Posted<'a> {
    /// At most `left` records of `ring`, which `who` wrote.
    pub(crate) fn new(ring: &'a mut Ring, who: AttachmentId, left: u32, traced: bool) -> Self {
        Self { ring, who, left, carried_out: 0, malformed: 0, traced }
    }

    /// The next record: where it goes, and its data, 1 to 512 bytes. Until [`Posted::done`] it is
    /// the same one. `None`: there is no other one now. Records that no device is to see are
    /// skipped and counted.
    #[inline]
    pub fn next(&mut self, context: &Context<'_>) -> Option<(Address, &[u8])> {
        while self.left > 0 {
            let found = match self.ring.consumer.peek() {
                Peek::Empty => return None,
                Peek::Malformed { .. } => None,
                Peek::Record(record) => {
                    Some((Address { bar: record.bar, offset: record.offset.into() }, record.data.len()))
                }
            };
            let spec = &context.function.spec;
            let known = &mut self.ring.registers;
            if let Some((at, length)) = found
                && (known.hold(at, length) || known.look(spec, at, length))
            {
                return Some((at, self.ring.consumer.data()));
            }
            self.ring.consumer.pop();
            self.left -= 1;
            self.malformed += 1;
        }

        None
    }

    /// The record that [`Posted::next`] gave was carried out.
    #[inline]
    pub fn done(&mut self, context: &mut Context<'_>) {
        if self.traced
            && let Peek::Record(record) = self.ring.consumer.peek()
        {
            let at = Address { bar: record.bar, offset: record.offset.into() };
            let event = Event::Posted { at, length: record.data.len() };
            context.shared.trace(context.function.id, self.who, event);
        }

        self.ring.consumer.pop();
        self.ring.stalled = false;
        self.left = self.left.saturating_sub(1);
        self.carried_out += 1;
    }

    /// Shows `take` the records in front, in order, until it refuses one; those that it takes were
    /// carried out. Gives how many.
    ///
    /// For who takes records in a row and holds parts of the context meanwhile: it comes to short
    /// records only that go to the same registers as the last one that [`Posted::next`] gave, and
    /// to none while somebody traces. There may be others. The third argument of `take` says that
    /// the record goes where the one before went, which it took, and is as long.
    #[inline]
    pub fn take_while(&mut self, mut take: impl FnMut(Address, &[u8], bool) -> bool) -> u32 {
        if self.traced {
            return 0;
        }

        let known = self.ring.registers;
        let taken = self.ring.consumer.take_while(self.left, |record, alike| {
            let at = Address { bar: record.bar, offset: record.offset.into() };
            (alike || known.hold(at, record.data.len())) && take(at, record.data, alike)
        });

        if taken > 0 {
            self.ring.stalled = false;
            self.left -= taken;
            self.carried_out += u64::from(taken);
        }

        taken
    }

    /// The record in front can't be carried out now. True when that is new.
    pub(crate) fn note_stall(&mut self, context: &mut Context<'_>) -> bool {
        let Peek::Record(record) = self.ring.consumer.peek() else { return false };
        if self.ring.stalled {
            return false;
        }

        self.ring.stalled = true;
        let at = Address { bar: record.bar, offset: record.offset.into() };
        context.shared.trace(context.function.id, self.who, Event::Stalled { at });

        true
    }

    /// Records that were carried out, and that were skipped.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.carried_out, self.malformed)
    }
}
