//! The interrupts of a NIC's attachments.

use nicforge_core::{context::Context, ids::AttachmentId};
use nicforge_hwi::tree::{CORES, vector};
use nicforge_kit::InterruptEnables;

/// Attachments: four cores and the admin.
pub(crate) const ATTACHMENTS: usize = CORES as usize + 1;

/// The interrupt state of each attachment, and counters.
///
/// A presence change stays unreported until its interrupt is raised. Every raised interrupt is
/// counted.
#[derive(Default)]
pub(crate) struct Interrupts {
    states: [InterruptState; ATTACHMENTS],
    /// Interrupts raised.
    raised: u64,
}

/// The interrupt state of one attachment. The default is the state of power-on.
#[derive(Clone, Copy, Default)]
struct InterruptState {
    enabled: InterruptEnables<{ vector::COUNT }>,
    /// Whether the attachment has a presence change that no interrupt has reported.
    presence_unreported: bool,
}

impl Interrupts {
    /// Returns the number of interrupts raised.
    pub(crate) fn raised(&self) -> u64 {
        self.raised
    }

    /// Sets all attachments to the state of power-on.
    pub(crate) fn reset(&mut self) {
        self.states = Default::default();
    }

    /// Sets an attachment to the state of power-on.
    pub(crate) fn reset_attachment(&mut self, attachment: AttachmentId) {
        if let Some(state) = self.states.get_mut(usize::from(attachment.0)) {
            *state = InterruptState::default();
        }
    }

    /// Returns the enabled vectors of an attachment, one bit for each vector.
    pub(crate) fn enabled(&self, attachment: AttachmentId) -> u32 {
        self.states[usize::from(attachment.0)].enabled.bits()
    }

    /// Enables these vectors of an attachment, and disables all others.
    pub(crate) fn enable(&mut self, attachment: AttachmentId, vectors: u32) {
        self.states[usize::from(attachment.0)].enabled.set(vectors);
    }

    /// Returns whether an attachment has an unreported presence change.
    pub(crate) fn is_presence_unreported(&self, attachment: AttachmentId) -> bool {
        self.states[usize::from(attachment.0)].presence_unreported
    }

    /// Raises those of an attachment's `vectors` that are enabled. A presence change whose
    /// interrupt is not enabled stays unreported, and is raised when it is enabled.
    pub(crate) fn report(&mut self, context: &mut Context<'_>, attachment: AttachmentId, vectors: u32) {
        let state = &mut self.states[usize::from(attachment.0)];
        state.presence_unreported |= vectors & (1 << vector::PRESENCE) != 0;
        let due = state.enabled.among(vectors);
        self.raise(context, attachment, due);
    }

    /// Raises an attachment's interrupts, and marks a presence change as reported.
    pub(crate) fn raise(&mut self, context: &mut Context<'_>, attachment: AttachmentId, vectors: u32) {
        if vectors & (1 << vector::PRESENCE) != 0 {
            self.states[usize::from(attachment.0)].presence_unreported = false;
        }

        for number in 0..vector::COUNT {
            if vectors & (1 << number) != 0 {
                self.raised += 1;
                context.interrupt(attachment, number);
            }
        }
    }
}
