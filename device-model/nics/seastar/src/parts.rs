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

/// Delay before an input that had no room is sent again, in nanoseconds.
const FULL_RETRY: u64 = 10_000;

/// The shared parts.
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

/// The device's end of the FIFOs of the processor's incarnation.
#[derive(Default)]
pub(crate) struct FirmwareLink {
    end: Option<DeviceEnd<Input, Effect>>,
    /// The end is with the device, which carries out effects.
    is_lent: bool,
    /// An input had no room in this step.
    is_full: bool,
}

impl FirmwareLink {
    /// Takes the FIFOs of a new incarnation. Those of the earlier incarnation end.
    pub(crate) fn begin(&mut self, end: Option<DeviceEnd<Input, Effect>>) {
        self.end = end;
        self.is_lent = false;
    }

    /// Takes the end, so that the device can carry out effects that are still in the FIFO.
    #[inline]
    pub(crate) fn lend(&mut self) -> Option<DeviceEnd<Input, Effect>> {
        self.is_lent = self.end.is_some();
        self.end.take()
    }

    /// Returns the end of [`FirmwareLink::lend`]. If the incarnation has ended meanwhile, it is
    /// dropped.
    #[inline]
    pub(crate) fn give_back(&mut self, end: DeviceEnd<Input, Effect>) {
        if std::mem::take(&mut self.is_lent) {
            self.end = Some(end);
        }
    }

    /// Returns whether the end is lent, and its incarnation has not ended meanwhile.
    #[inline]
    pub(crate) fn is_lent(&self) -> bool {
        self.is_lent
    }

    /// Returns whether the processor runs.
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

    /// Sends an event to the processor. Returns false if the queue is full; the caller must send
    /// the event again in a later step. Events for a processor that does not run are dropped, with
    /// the result true.
    #[inline]
    pub(crate) fn send(&mut self, time: Nanos, event: Event) -> bool {
        self.send_input(time, InputContent::Event(event))
    }

    /// Sends a message as [`FirmwareLink::send`] does.
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

    /// Returns the time of the next effect, or [`Nanos::NEVER`].
    #[inline]
    pub(crate) fn next_time(&self) -> Nanos {
        self.end.as_ref().and_then(DeviceEnd::front).map_or(Nanos::NEVER, |effect| effect.time)
    }

    /// Returns the time of the next attempt if an input had no room in this step, and forgets that.
    pub(crate) fn take_retry(&mut self, now: Nanos) -> Nanos {
        if std::mem::take(&mut self.is_full) { now.after(FULL_RETRY) } else { Nanos::NEVER }
    }
}
