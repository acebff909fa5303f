//! The parts that the engines of a node share: its place in the network, the router, the FIFO to
//! the firmware, and the tenants of its attachments.

use nicforge_core::{
    companion::{DeviceEnd, SendError},
    time::Nanos,
};
use nicforge_network::router::{Router, policies::TablePolicy};
use nicforge_seastar_firmware::chip::Event;

use crate::{
    config::Site,
    memory::Tenants,
    processor::{Effect, Input, InputContent},
};

/// Delay in nanoseconds before an event that had no room in the FIFO is sent again.
const FULL_RETRY: u64 = 10_000;

/// The parts of a node's device that its engines share.
pub(crate) struct Parts {
    pub(crate) site: Site,
    pub(crate) router: Router<TablePolicy>,
    pub(crate) firmware: FirmwareLink,
    pub(crate) tenants: Tenants,
    /// This node's incarnation, 0 if it has none.
    pub(crate) own_incarnation: u32,
    /// Maximum number of bytes of client memory that a packet refers to, 0 if packets carry their
    /// data.
    pub(crate) max_reference: u32,
}

/// The device's end of the FIFOs to and from the processor, while the processor runs.
#[derive(Default)]
pub(crate) struct FirmwareLink {
    /// `None` if the processor does not run, and while the end is lent.
    end: Option<DeviceEnd<Input, Effect>>,
    /// The device has taken the end out in order to carry out effects.
    is_lent: bool,
    /// An input had no room in this step.
    is_full: bool,
}

impl FirmwareLink {
    /// Sets the FIFOs of a processor that starts, or `None` for one that stops. The earlier ones
    /// end.
    pub(crate) fn set_end(&mut self, end: Option<DeviceEnd<Input, Effect>>) {
        self.end = end;
        self.is_lent = false;
    }

    /// Takes the end out, so that the device can carry out effects that are still in the FIFO.
    #[inline]
    pub(crate) fn lend(&mut self) -> Option<DeviceEnd<Input, Effect>> {
        self.is_lent = self.end.is_some();
        self.end.take()
    }

    /// Puts the end of [`FirmwareLink::lend`] back. If the processor was stopped meanwhile, the end
    /// is dropped.
    #[inline]
    pub(crate) fn give_back(&mut self, end: DeviceEnd<Input, Effect>) {
        if std::mem::take(&mut self.is_lent) {
            self.end = Some(end);
        }
    }

    /// Returns whether the end is lent, and the processor was not stopped meanwhile.
    #[inline]
    pub(crate) fn is_lent(&self) -> bool {
        self.is_lent
    }

    /// Returns whether the processor runs. While the end is lent, the answer is false.
    #[inline]
    pub(crate) fn is_running(&self) -> bool {
        self.end.is_some()
    }

    /// Returns whether the processor runs, and has nothing for the device.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        !self.is_full && self.end.as_ref().is_some_and(DeviceEnd::is_quiet)
    }

    /// Returns whether the companion of this incarnation has halted.
    #[inline]
    pub(crate) fn has_halted(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end.halt().is_some())
    }

    /// Sends an event to the processor, which sees it from `time` on. Returns false if the FIFO is
    /// full; the caller must send the event again in a later step. Events for a processor that does
    /// not run are dropped, and the result is true.
    #[inline]
    pub(crate) fn send(&mut self, time: Nanos, event: Event) -> bool {
        self.send_input(time, InputContent::Event(event))
    }

    /// Sends any input, as [`FirmwareLink::send`] sends an event.
    #[inline]
    pub(crate) fn send_input(&mut self, time: Nanos, content: InputContent) -> bool {
        let Some(end) = &mut self.end else { return true };
        match end.send(Input { time, content }) {
            Err(SendError::Full(_)) => {
                self.is_full = true;
                false
            }
            Ok(()) | Err(SendError::Ended(_)) => true,
        }
    }

    /// Returns the time of the next effect, or [`Nanos::NEVER`] if there is none.
    #[inline]
    pub(crate) fn next_effect_time(&self) -> Nanos {
        self.end.as_ref().and_then(DeviceEnd::front).map_or(Nanos::NEVER, |effect| effect.time)
    }

    /// Returns the time at which inputs must be sent again, if one had no room in this step, and
    /// forgets that; otherwise [`Nanos::NEVER`].
    pub(crate) fn take_retry(&mut self, now: Nanos) -> Nanos {
        if std::mem::take(&mut self.is_full) { now.after(FULL_RETRY) } else { Nanos::NEVER }
    }
}
