//! The packet layer (paper, section 4.1): initialization, packet send and packet receive.
//!
//! The layer is a mechanism without a policy. It keeps no state of peers or messages, repeats
//! nothing, and no call waits: a call that can't send returns `false`, and a call that finds no
//! packet returns 0. The caller decides what to do then.
//!
//! [`PacketDevice`] is the interface to a network of packets. [`Torus`] implements it on a core of
//! a torus function. Other networks, such as memory that two cores share, can implement it too.
//!
//! # Packets
//!
//! | rule | |
//! | --- | --- |
//! | size | 32 to 256 bytes in steps of 32: a header of 16 bytes and up to 240 bytes of payload |
//! | alignment | a packet begins at a multiple of 32 bytes of its FIFO, the payload 16 later |
//! | padding | a payload is padded with zeros to the packet's size; the receiver sees the padding |
//! | order | none: the packets of a sender arrive in any order, unless they are deterministic |
//! | loss | none, while the receiver's life lasts: see [`nicforge_hwi::torus::presence`] |
//!
//! A payload may be given in any number of pieces, at any address. The torus of the paper took only
//! quads that were aligned to 16 bytes. Here the copy into the FIFO aligns them.

mod geometry;
mod injection;
mod reception;
mod ring;
#[cfg(test)]
mod tests;
mod torus;

use nicforge_hwi::torus::PacketHeader;

pub(crate) use self::geometry::RANK_BITS;

pub use self::{
    geometry::{Dimension, Direction, Place, Rank, Shape},
    injection::InjectionFifo,
    ring::PayloadReader,
    torus::Torus,
};
use crate::Error;

/// A handler's decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The packet is done with, and its space is freed.
    Taken,
    /// The packet stays where it is, and those behind it in its FIFO too. The next call offers them
    /// again.
    Left,
}

/// A network of packets, as seen by one rank.
pub trait PacketDevice {
    /// Returns the rank's place in the machine.
    fn place(&self) -> &Place;

    /// Returns the header of a dynamic packet to a rank, or `None` if no packet reaches it. It has
    /// no payload and names no life yet.
    fn route(&self, rank: Rank) -> Option<PacketHeader> {
        self.place().route(rank)
    }

    /// Returns the present life of a rank's core ([`nicforge_hwi::torus::presence`]). When it is
    /// another one than before, all packets of the former life to this rank have arrived. The call
    /// may be slow.
    ///
    /// # Errors
    /// Returns [`Error::Device`].
    fn life(&self, rank: Rank) -> Result<u16, Error>;

    /// Returns a number that changes whenever the life of any rank changes. The call may be slow.
    ///
    /// # Errors
    /// Returns [`Error::Device`].
    fn life_changes(&self) -> Result<u32, Error>;

    /// Sends a packet if there is room for it, and returns whether there was. The device sets the
    /// packet's size from the pieces of the payload. The packet may wait for
    /// [`PacketDevice::publish`].
    ///
    /// # Errors
    /// Returns [`Error::PayloadTooLong`], or [`Error::Device`].
    fn send<'a>(
        &mut self,
        header: PacketHeader,
        payload: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> Result<bool, Error>;

    /// Announces all packets to the network that were sent since the last call.
    ///
    /// # Errors
    /// Returns [`Error::Device`].
    fn publish(&mut self) -> Result<(), Error>;

    /// Returns whether the network has taken all packets that were sent.
    fn has_sent_all(&self) -> bool;

    /// Hands the packets that have arrived to `handler`, each with its payload, which is read in
    /// place. Returns the number of packets taken. The number of packets of one call is bounded.
    ///
    /// # Errors
    /// Returns [`Error::BadDevice`] or [`Error::Device`].
    fn receive(
        &mut self,
        handler: impl FnMut(PacketHeader, PayloadReader<'_>) -> Verdict,
    ) -> Result<usize, Error>;
}
