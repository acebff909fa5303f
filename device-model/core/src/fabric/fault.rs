//! Faults that a test or an experiment injects into a link.

use super::Packet;

/// Fault of one transmission of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No fault.
    None,
    /// The receiver finds a checksum error and requests the packet again.
    ///
    /// The fault counts as a retransmission, and costs a round trip and another transmission. Order
    /// is kept, and no packet is lost or doubled. The hook also decides on the retransmission, up
    /// to [`MAX_RETRIES`] in a row.
    Corrupt,
    /// The packet arrives this many nanoseconds later. The packets after it in its virtual channel
    /// wait for it.
    Delay(u64),
}

/// Largest number of failed transmissions of one packet in a row. The next one succeeds whatever
/// the hook returns: a hook that always fails slows a link down, but does not hang it.
pub const MAX_RETRIES: u32 = 16;

/// Decides on the fault of each transmission. Its arguments are the packet and the number of
/// earlier transmissions in this direction. It may change the bytes of a packet that it lets pass,
/// which models an error that no checksum finds.
pub type FaultHook = Box<dyn FnMut(&mut Packet, u64) -> Fault + Send>;
