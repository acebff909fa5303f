//! One direction of a link: the wire that its virtual channels share, and the times of packets on
//! it. [`super::timing`] states the rules of these times.

use std::collections::VecDeque;

use super::{
    Fault, FaultHook, LinkSpec, MAX_RETRIES, Packet,
    node::NodePort,
    timing::{Incoming, Passage, Start, WireSpeed, duration, exact},
};
use crate::time::Nanos;

/// One direction of a link: the state that its virtual channels share.
///
/// Large networks have more paths than a cache holds. One has one cache line.
#[repr(align(64))]
pub(super) struct Path {
    /// End of the last transmission.
    busy_until: Start,
    /// Time from the end of a transmission to the packet's arrival, in nanoseconds.
    delay: u64,
    /// Transmission time of a byte in 2^-32 ns: at most 4.29 s, which is just above 2 bits a
    /// second.
    per_byte: u64,
    /// Time at which the wire is idle, as far as it is booked, rounded up.
    idle_at: Nanos,
    /// The faults of the path, from its first hook or tap on.
    faults: Option<Box<Faults>>,
    /// Bytes of a packet's head: see [`LinkSpec::cut_through`]. Without cut-through, it is longer
    /// than any packet.
    head_bytes: u32,
    /// Index of its first lane in the fabric's table. The lanes of the other virtual channels
    /// follow.
    pub(super) first_lane: u32,
    /// Sending end: index of the node in the fabric's table, and port.
    sender: u32,
    sender_port: u8,
    /// Number of its lanes.
    channels: u8,
    /// The sender has asked for the wire, and starts transmissions when it falls idle.
    arbitrated: bool,
    /// An event at the end of the last transmission is scheduled.
    pub(super) idle_scheduled: bool,
}

// A path has one cache line.
const _: () = assert!(size_of::<Path>() == 64);

/// A path that was added, as indices into the fabric's tables.
pub(super) struct NewPath {
    /// Index of the path.
    pub(super) path: u32,
    /// Index of the first of its lanes. The lanes of the other virtual channels follow.
    pub(super) first_lane: u32,
}

/// The faults of a path that has or had a hook or a tap, and the tap.
#[derive(Default)]
struct Faults {
    hook: Option<FaultHook>,
    /// Bytes of each packet that the trace keeps, if the path is tapped.
    tap: Option<usize>,
    /// Transmissions since the hook was set.
    transmissions: u64,
    /// The times in which the receiver discards packets, in order.
    discards: VecDeque<DiscardPeriod>,
}

/// The time between the end of a corrupt transmission and the arrival of the receiver's request to
/// repeat it. The receiver discards the packets that follow the corrupt one in this time, and the
/// sender repeats them all. Times are in 2^-32 ns.
#[derive(Clone, Copy, Debug)]
struct DiscardPeriod {
    /// Time until which the wire carries discarded packets.
    busy_until: u128,
    /// Time of the request, at which the sender breaks off its transmission.
    end: u128,
}

impl Path {
    pub(super) fn new(sender: NodePort, first_lane: u32, spec: &LinkSpec) -> Self {
        let WireSpeed { delay, per_byte, head_bytes } = WireSpeed::new(spec);
        Self {
            busy_until: Start::FIRST,
            delay,
            per_byte,
            idle_at: Nanos::ZERO,
            faults: None,
            head_bytes,
            first_lane,
            sender: sender.node,
            sender_port: sender.port,
            // A checked specification has at most `MAX_CHANNELS` channels.
            channels: spec.credits.len() as u8,
            arbitrated: false,
            idle_scheduled: false,
        }
    }

    /// Returns the sending end.
    #[inline]
    pub(super) fn sender(&self) -> NodePort {
        NodePort { node: self.sender, port: self.sender_port }
    }

    /// Returns the indices of the path's lanes in the fabric's table.
    pub(super) fn lanes(&self) -> std::ops::Range<usize> {
        self.first_lane as usize..self.first_lane as usize + usize::from(self.channels)
    }

    /// Returns whether only the delay affects a packet, so that a send can skip the path.
    pub(super) fn is_plain(&self) -> bool {
        self.per_byte == 0
            && self.faults.as_ref().is_none_or(|faults| faults.hook.is_none() && faults.tap.is_none())
    }

    /// Returns the time at which the wire is idle, which can be in the past.
    #[inline]
    pub(super) fn idle_at(&self) -> Nanos {
        self.idle_at
    }

    /// Sets or removes the fault hook, and begins to count transmissions anew.
    pub(super) fn set_hook(&mut self, hook: Option<FaultHook>) {
        if hook.is_some() || self.faults.is_some() {
            let faults = self.faults.get_or_insert_default();
            (faults.hook, faults.transmissions) = (hook, 0);
        }
        self.update_idle_at();
    }

    /// Taps the path, so that the trace sees its packets with their first `bytes` bytes, or ends
    /// that.
    pub(super) fn set_tap(&mut self, bytes: Option<usize>) {
        if bytes.is_some() || self.faults.is_some() {
            self.faults.get_or_insert_default().tap = bytes;
        }
        self.update_idle_at();
    }

    /// Returns the number of bytes of each packet that the trace keeps, if the path is tapped.
    #[inline]
    pub(super) fn tap(&self) -> Option<usize> {
        self.faults.as_ref()?.tap
    }

    /// Computes [`Path::idle_at`] again. A wire on which packets take no time is always idle.
    #[inline]
    fn update_idle_at(&mut self) {
        self.idle_at = if self.is_plain() { Nanos::ZERO } else { self.busy_until.rounded_up() };
    }

    /// Records that the sender waits for the wire to fall idle: see [`Start::from`].
    #[inline]
    pub(super) fn arbitrate(&mut self) {
        self.arbitrated = true;
    }

    /// Returns the arrival of a packet whose tail arrives over this path at `tail`.
    #[inline]
    pub(super) fn incoming(&self, tail: Nanos) -> Incoming {
        self.speed().incoming(tail)
    }

    /// Transmits a packet until the hook, if any, lets it pass. Returns the times of the
    /// transmission that succeeded, and the number of transmissions that had to be repeated.
    ///
    /// The hook decides at the start of a transmission. A corrupt one occupies the wire, and the
    /// receiver shows nothing of it. The request to repeat it arrives after the round trip, and
    /// the sender goes back to the corrupt packet (go-back-N).
    #[inline]
    pub(super) fn transmit(&mut self, now: Nanos, packet: &mut Packet, incoming: Incoming) -> (Passage, u64) {
        if self.faults.is_some() {
            return self.transmit_with_errors(now, packet, incoming);
        }

        let passage = self.transmit_once(now, packet.wire_bytes(), incoming);
        self.idle_at = if self.per_byte == 0 { Nanos::ZERO } else { passage.end };
        (passage, 0)
    }

    /// Does the work of [`Path::transmit`] on a path that has or had a fault hook or a tap.
    #[cold]
    #[inline(never)]
    fn transmit_with_errors(
        &mut self,
        now: Nanos,
        packet: &mut Packet,
        incoming: Incoming,
    ) -> (Passage, u64) {
        let bytes = packet.wire_bytes();
        // Transmissions of this packet behind a corrupt one, which the receiver discards. The wire
        // is booked until the request to repeat has arrived, so the loop has those after that.
        let mut repeated = self.book_discarded(now, bytes);

        let mut retries = 0;
        let passage = loop {
            let fault = self.faults.as_mut().map_or(Fault::None, |faults| faults.next(packet));
            let passage = self.transmit_once(now, bytes, incoming);
            match fault {
                Fault::Corrupt if retries < MAX_RETRIES => {
                    retries += 1;
                    repeated += 1;
                    self.wait_for_repeat();
                }
                Fault::Delay(nanoseconds) => break passage.later(nanoseconds),
                Fault::None | Fault::Corrupt => break passage,
            }
        };

        self.update_idle_at();
        (passage, repeated)
    }

    /// Transmits `bytes` as soon as the wire is idle.
    #[inline]
    fn transmit_once(&mut self, now: Nanos, bytes: u64, incoming: Incoming) -> Passage {
        let start = self.busy_until.from(now, self.arbitrated);
        let (passage, busy_until) = self.speed().transmit(start, bytes, incoming);
        self.busy_until = busy_until;
        passage
    }

    /// Returns the speed of the wire.
    #[inline]
    fn speed(&self) -> WireSpeed {
        WireSpeed { delay: self.delay, per_byte: self.per_byte, head_bytes: self.head_bytes }
    }

    /// Books the wire, after a corrupt transmission, until the request to repeat it has arrived:
    /// for the round trip.
    fn wait_for_repeat(&mut self) {
        let sent_at = self.busy_until.exact();
        self.busy_until = self.busy_until.later(self.delay.saturating_mul(2));
        let end = self.busy_until.exact();
        if let Some(faults) = &mut self.faults {
            faults.discards.push_back(DiscardPeriod { busy_until: sent_at, end });
        }
    }

    /// Books the transmissions of a packet of `bytes` bytes, sent at `now`, that the receiver
    /// discards because they follow a corrupt one: one in each period in which the wire still has
    /// time for its start. Returns their number.
    fn book_discarded(&mut self, now: Nanos, bytes: u64) -> u64 {
        let (now, duration) = (exact(now), duration(self.per_byte, bytes));
        let Some(Faults { discards, .. }) = self.faults.as_deref_mut() else { return 0 };
        while discards.front().is_some_and(|discard| discard.end <= now) {
            discards.pop_front();
        }

        let mut discarded = 0;
        for discard in discards {
            let start = discard.busy_until.max(now);
            if start < discard.end {
                discard.busy_until = start + duration;
                discarded += 1;
            }
        }
        discarded
    }
}

impl Faults {
    /// Asks the hook about the next transmission of a packet, and counts it.
    fn next(&mut self, packet: &mut Packet) -> Fault {
        let transmission = self.transmissions;
        self.transmissions += 1;
        self.hook.as_mut().map_or(Fault::None, |hook| hook(packet, transmission))
    }
}
