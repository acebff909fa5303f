//! Configuration of an endpoint.

use std::time::Duration;

use nicforge_hwi::seastar::{MAX_EVENTS, MAX_MESSAGE};

use crate::{Error, bits};

/// Run-time parameters. All ranks of a job use the same values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Length in bytes of the longest short message, which is copied into a slot of the library;
    /// 1,024 by default.
    pub short: usize,
    /// Length in bytes of the longest medium message; 131,072 by default. A longer one is long.
    pub medium: usize,
    /// Messages to one peer that it has not acknowledged, 1 to 256; 64 by default. Further ones
    /// wait at the sender. With more than 64 ranks the window is smaller, so that all windows
    /// together have 4,096 messages.
    pub window: u16,
    /// Messages beyond all windows of which this rank keeps the headers, while their senders have
    /// the data; 262,144 by default. A receive may wait for a message that stands behind more
    /// messages than a window has. A peer may have as many headers as it leaves free. Without room
    /// for more, the receives and sends that wait for the window fail with [`Error::WindowFull`].
    pub headers: u32,
    /// Receives that are posted in the card or the kernel at a time; 1,024 by default. Further ones
    /// wait in the library, and are posted in order.
    pub receives: u32,
    /// Slots for short messages in flight; 64 by default. Without a free slot a short message
    /// leaves from its buffer, as a medium one.
    pub slots: u16,
    /// Memory for messages that arrive before their receive.
    pub unexpected: Unexpected,
    /// Sizes of the memory in which the buffers of messages lie.
    pub space: SpaceBytes,
    /// The time after which a peer that this rank waits for, and whose card or kernel does not
    /// answer, counts as gone; 30 s by default. In host-based mode, a rank that makes no calls for
    /// so long needs a thread with [`nicforge_portals::Kernel::serve`].
    pub patience: Duration,
}

/// Memory for messages that arrive before their receive: buffers that are filled in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unexpected {
    /// Number of buffers, 1 to 16; 4 by default.
    pub buffers: u8,
    /// Bytes of each buffer, at least [`Config::medium`]; 1 MiB by default.
    pub bytes: u64,
    /// Maximum number of messages in each buffer, 1 to 1,024, which is the default.
    pub messages: u32,
}

/// Bytes of the three segments of a process, as Catamount lays them out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceBytes {
    /// Data that live as long as the program; 64 KiB by default.
    pub data: u64,
    /// Memory of [`crate::Endpoint::allocate`]; 16 MiB by default.
    pub heap: u64,
    /// Memory of function calls; 64 KiB by default.
    pub stack: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            short: 1024,
            medium: 128 << 10,
            window: 64,
            headers: 1 << 18,
            receives: 1024,
            slots: 64,
            unexpected: Unexpected { buffers: 4, bytes: 1 << 20, messages: 1024 },
            space: SpaceBytes { data: 64 << 10, heap: 16 << 20, stack: 64 << 10 },
            patience: Duration::from_secs(30),
        }
    }
}

/// Maximum number of messages to all peers together that are not acknowledged.
const MAX_UNACKNOWLEDGED: u32 = 4096;
/// Maximum number of ranks of a job: each has a window of at least one message.
pub(crate) const MAX_RANKS: u32 = MAX_UNACKNOWLEDGED;
/// Maximum number of messages that this rank fetches at a time.
pub(crate) const MAX_FETCHES: u32 = 256;
/// The longest segment in bytes.
const MAX_BYTES: u64 = 1 << 32;

impl Config {
    /// Checks that an endpoint can work with these values.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let Self { unexpected, space, .. } = *self;
        let medium = self.medium as u64;
        // Name, value, minimum and maximum of each parameter.
        let ranges = [
            ("short", self.short as u64, 0, 64 << 10),
            ("medium", medium, self.short as u64, MAX_MESSAGE.into()),
            ("window", self.window.into(), 1, 1 << bits::NUMBER_BITS),
            ("headers", self.headers.into(), 0, 1 << 24),
            ("receives", self.receives.into(), 1, 8192),
            ("slots", self.slots.into(), 0, 4096),
            ("unexpected.buffers", unexpected.buffers.into(), 1, 16),
            ("unexpected.bytes", unexpected.bytes, medium.max(1), MAX_BYTES),
            ("unexpected.messages", unexpected.messages.into(), 1, 1024),
            ("space.data", space.data, 1, MAX_BYTES),
            ("space.heap", space.heap, 1, MAX_BYTES),
            ("space.stack", space.stack, 1, MAX_BYTES),
            ("patience in ms", self.patience.as_millis() as u64, 1, u64::MAX),
        ];

        match ranges.into_iter().find(|&(_, value, minimum, maximum)| !(minimum..=maximum).contains(&value)) {
            None => Ok(()),
            Some((what, value, least, most)) => Err(Error::BadConfig { what, value, least, most }),
        }
    }

    /// Returns the window of each peer in a job of `size` ranks.
    pub(crate) fn window_of(&self, size: u32) -> u16 {
        let share = MAX_UNACKNOWLEDGED / size.max(1);
        u32::from(self.window).min(share).max(1) as u16
    }

    /// Returns the events that the queue of unexpected messages must hold: start and end of each
    /// message in a buffer, the end of each buffer, and messages whose data find no place.
    pub(crate) fn unexpected_events(&self, size: u32) -> u32 {
        let (buffers, messages) = (u32::from(self.unexpected.buffers), self.unexpected.messages);
        2 * buffers * messages + buffers + 2 * self.all_windows(size)
    }

    /// Returns the events that the queue of all other operations must hold: of sends, each of
    /// which may be exposed, kept, requested and repeated; of receives and fetches; of probes.
    pub(crate) fn other_events(&self, size: u32) -> u32 {
        let events = 10 * self.all_windows(size) + 2 * (self.receives + MAX_FETCHES) + 2 * size;
        events.min(MAX_EVENTS as u32 - 1)
    }

    /// Returns the number of messages in the windows of all peers together.
    fn all_windows(&self, size: u32) -> u32 {
        u32::from(self.window_of(size)) * size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_hold_the_events_of_all_windows() {
        for config in [Config::default(), Config { window: 256, ..Config::default() }] {
            for size in [1, 2, 64, 65, 1000, MAX_RANKS] {
                assert!(u64::from(config.unexpected_events(size)) < MAX_EVENTS, "{size} ranks");
                assert!(config.all_windows(size) <= MAX_UNACKNOWLEDGED, "{size} ranks");
            }
        }
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        let refused = |config: Config| match config.check() {
            Err(Error::BadConfig { what, .. }) => what,
            other => panic!("{other:?}"),
        };
        let good = Config::default();

        assert_eq!(good.check(), Ok(()));
        assert_eq!(refused(Config { window: 0, ..good }), "window");
        assert_eq!(refused(Config { window: 257, ..good }), "window");
        assert_eq!(refused(Config { medium: 10, ..good }), "medium");
        assert_eq!(
            refused(Config { unexpected: Unexpected { bytes: 1000, ..good.unexpected }, ..good }),
            "unexpected.bytes"
        );
    }
}
