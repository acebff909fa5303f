//! Faults that a test or an experiment puts on a link.

use super::Packet;

/// What happens to one transmission of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// The receiver finds a checksum error and asks for the packet again. It is counted, costs a
    /// round trip and another transmission, and keeps the order: nothing is lost or doubled. The
    /// repeated transmission is offered to the hook too, up to [`MAX_RETRIES`] in a row.
    Corrupt,
    /// It arrives this many nanoseconds later, and so does everything behind it in its virtual
    /// channel.
    Delay(u64),
}

/// Transmissions of one packet that can fail in a row; the next one succeeds whatever the hook
/// says, so that a hook that always fails slows a link down and does not hang it.
pub const MAX_RETRIES: u32 = 16;

/// Decides the fault of each transmission; gets the packet and how many transmissions came before
/// it in this direction. It may change the bytes of a packet that it lets pass: an error that no
/// checksum finds.
pub type FaultHook = Box<dyn FnMut(&mut Packet, u64) -> Fault + Send>;
