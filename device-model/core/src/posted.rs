//! The records of a posted-write ring on their way to a device.
//!
//! The machine passes a [`Posted`] to [`crate::device::Device::drain`]. It yields the records of
//! one ring as register writes. Each record is checked to go to the device's registers.

use nicforge_shm::Peek;

use crate::{
    attachment::Ring,
    context::Context,
    ids::{Address, AttachmentId},
    trace::Event,
};

/// The records of a ring, in order, as many as may be taken in this call.
pub struct Posted<'a> {
    ring: &'a mut Ring,
    attachment_id: AttachmentId,
    /// Number of records that may still be taken.
    remaining: u32,
    /// Records that the device has carried out.
    carried_out: u64,
    /// Records that were skipped, because they are malformed or not for the device's registers.
    malformed: u64,
    /// A trace sink receives every record.
    traced: bool,
    /// The sink has received the record in front.
    is_shown: bool,
}

impl<'a> Posted<'a> {
    /// Returns at most `remaining` records of `ring`, whose client is `attachment_id`.
    pub(crate) fn new(ring: &'a mut Ring, attachment_id: AttachmentId, remaining: u32, traced: bool) -> Self {
        Self { ring, attachment_id, remaining, carried_out: 0, malformed: 0, traced, is_shown: false }
    }

    /// Returns the address and the data of the record in front, 1 to 512 bytes. It stays in front
    /// until [`Posted::done`].
    ///
    /// Returns `None` when the ring is empty or the limit is reached. Records that are malformed or
    /// go outside the device's registers are skipped and counted.
    #[inline]
    pub fn next(&mut self, context: &mut Context<'_>) -> Option<(Address, &[u8])> {
        while self.remaining > 0 {
            let address_and_length = match self.ring.consumer.peek() {
                Peek::Empty => return None,
                Peek::Malformed { .. } => None,
                Peek::Record(record) => {
                    Some((Address { bar: record.bar, offset: record.offset.into() }, record.data.len()))
                }
            };

            let spec = &context.function.spec;
            let registers = &mut self.ring.registers;
            if let Some((at, length)) = address_and_length
                && (registers.contains(at, length) || registers.look_up(spec, at, length))
            {
                if self.traced {
                    self.show(context, at);
                }
                return Some((at, self.ring.consumer.data()));
            }

            // The record is malformed, or its address is not one of the device's registers.
            self.ring.consumer.pop();
            self.remaining -= 1;
            self.malformed += 1;
        }

        None
    }

    /// Removes the record that [`Posted::next`] returned, after the device has carried it out.
    #[inline]
    pub fn done(&mut self, context: &mut Context<'_>) {
        if self.traced {
            self.show_done(context);
        }

        self.ring.consumer.pop();
        self.ring.stalled = false;
        self.remaining = self.remaining.saturating_sub(1);
        self.carried_out += 1;
    }

    /// Passes the record in front to the trace, unless the trace has received it already.
    #[cold]
    fn show(&mut self, context: &mut Context<'_>, at: Address) {
        if !std::mem::replace(&mut self.is_shown, true) && !self.ring.stalled {
            let event = Event::Posted { at, data: self.ring.consumer.data() };
            context.shared.trace(context.function.id, self.attachment_id, event);
        }
    }

    /// Passes to the trace what the record in front has caused.
    #[cold]
    fn show_done(&mut self, context: &mut Context<'_>) {
        self.is_shown = false;
        if self.ring.stalled
            && let Peek::Record(record) = self.ring.consumer.peek()
        {
            let event = Event::Resumed { at: Address { bar: record.bar, offset: record.offset.into() } };
            context.shared.trace(context.function.id, self.attachment_id, event);
        }
        context.trace_packets();
    }

    /// Passes the oldest records to `accept`, in order, until it returns false. A record for which
    /// it returns true counts as carried out. Returns the number of these records.
    ///
    /// It serves devices that borrow parts of the context during a run of records. It passes on
    /// only short records to the same registers as the last record of [`Posted::next`], and none
    /// while tracing is on. Other records may follow; the caller must continue with
    /// [`Posted::next`].
    ///
    /// The first argument of `accept` is the record's address. It is `None` if the record has the
    /// address and length of the record that was accepted just before.
    #[inline]
    pub fn take_while(&mut self, mut accept: impl FnMut(Option<Address>, &[u8]) -> bool) -> u32 {
        if self.traced {
            return 0;
        }

        let registers = self.ring.registers;
        let accepted = self.ring.consumer.take_while(self.remaining, |record, is_repeat| {
            if is_repeat {
                return accept(None, record.data);
            }

            let at = Address { bar: record.bar, offset: record.offset.into() };
            registers.contains(at, record.data.len()) && accept(Some(at), record.data)
        });

        if accepted > 0 {
            self.ring.stalled = false;
            self.remaining -= accepted;
            self.carried_out += u64::from(accepted);
        }

        accepted
    }

    /// Records that the device refused the record in front. Returns true for the first refusal of
    /// this record.
    pub(crate) fn mark_stalled(&mut self, context: &mut Context<'_>) -> bool {
        let Peek::Record(record) = self.ring.consumer.peek() else { return false };
        if self.ring.stalled {
            return false;
        }

        self.ring.stalled = true;
        let at = Address { bar: record.bar, offset: record.offset.into() };
        context.shared.trace(context.function.id, self.attachment_id, Event::Stalled { at });

        true
    }

    /// Returns the numbers of records that have left the ring so far.
    pub(crate) fn counts(&self) -> PostedCounts {
        PostedCounts { carried_out: self.carried_out, malformed: self.malformed }
    }
}

/// Numbers of the records that have left a ring.
pub(crate) struct PostedCounts {
    /// Records that the device has carried out.
    pub(crate) carried_out: u64,
    /// Records that were skipped, because they are malformed or not for the device's registers.
    pub(crate) malformed: u64,
}
