//! The statistics of the network device.

use nicforge_core::{context::Context, device::Counter, fabric::Refusal, warning::Warning};
use nicforge_kit::CountWatch;
use nicforge_virtio::{Function, USER};

/// Statistics of a device.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Statistics {
    pub(super) sent: u64,
    pub(super) sent_bytes: u64,
    pub(super) received: u64,
    pub(super) received_bytes: u64,
    /// Frames to send that are shorter than a header or longer than the network allows.
    pub(super) bad_length: u64,
    /// Frames to send that request a feature that the device does not offer.
    pub(super) bad_header: u64,
    /// Frames to send while there was no link.
    pub(super) no_link: u64,
    /// Frames to send while the fabric had no packet for them.
    pub(super) no_packet: u64,
    /// Received frames for which the driver had no buffer in time.
    pub(super) no_buffer: u64,
    /// Received frames that were longer than the driver's buffer.
    pub(super) short_buffer: u64,
    /// Received frames while the driver was not set up.
    pub(super) no_driver: u64,
    /// Checksums that the device completed.
    pub(super) checksums: u64,
}

/// The counts of frames that were dropped, of which each rise is logged.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Watches {
    invalid: CountWatch,
    unsent: CountWatch,
    no_buffer: CountWatch,
    short_buffer: CountWatch,
}

impl Watches {
    /// Logs the frames that were dropped since the last call. Frames that arrive before the driver
    /// is set up are dropped on every network, and are only counted.
    #[inline]
    pub(super) fn log(&mut self, context: &mut Context<'_>, counts: &Statistics) {
        let (invalid, unsent) = (counts.bad_length + counts.bad_header, counts.no_link + counts.no_packet);
        self.invalid.check(context, Some(USER), invalid, || {
            Warning::dropped(&"a frame to send has a length that the link takes, and a header as negotiated")
        });
        self.unsent.check(context, Some(USER), unsent, || {
            Warning::dropped(&"a frame to send finds the link up, and room in the network")
        });
        self.no_buffer.check(context, Some(USER), counts.no_buffer, || {
            Warning::dropped(&"a frame that arrives finds a receive buffer in time")
        });
        self.short_buffer.check(context, Some(USER), counts.short_buffer, || {
            Warning::dropped(&"a receive buffer is as long as a frame that arrives")
        });
    }
}

/// Reason why a frame of the driver was not sent.
pub(super) enum Dropped {
    /// It is shorter than a header, or longer than the network or the link allows.
    BadLength,
    /// It requests a feature that the device does not offer, or names an impossible checksum.
    BadHeader,
    /// There is no link, or it is down.
    NoLink,
    /// The fabric has no packet for it, or the link no credit.
    NoPacket,
}

impl From<Refusal> for Dropped {
    fn from(reason: Refusal) -> Self {
        match reason {
            Refusal::TooLong { .. } => Self::BadLength,
            Refusal::NoLink | Refusal::NoChannel | Refusal::LinkDown => Self::NoLink,
            Refusal::NoCredit | Refusal::PoolEmpty => Self::NoPacket,
        }
    }
}

impl Statistics {
    /// Counts a frame that was not sent.
    pub(super) fn count_drop(&mut self, reason: &Dropped) {
        *match reason {
            Dropped::BadLength => &mut self.bad_length,
            Dropped::BadHeader => &mut self.bad_header,
            Dropped::NoLink => &mut self.no_link,
            Dropped::NoPacket => &mut self.no_packet,
        } += 1;
    }

    /// Returns the statistics, and those of the queues, as counters of the device.
    pub(super) fn counters(&self, function: &Function) -> Vec<Counter> {
        [
            ("sent", self.sent),
            ("sent_bytes", self.sent_bytes),
            ("received", self.received),
            ("received_bytes", self.received_bytes),
            ("bad_length", self.bad_length),
            ("bad_header", self.bad_header),
            ("no_link", self.no_link),
            ("no_packet", self.no_packet),
            ("no_buffer", self.no_buffer),
            ("short_buffer", self.short_buffer),
            ("no_driver", self.no_driver),
            ("checksums", self.checksums),
            ("notifications", function.notifications()),
            ("queue_errors", function.errors()),
        ]
        .map(|(name, value)| Counter { name, value })
        .to_vec()
    }
}
