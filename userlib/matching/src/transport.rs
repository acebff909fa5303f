//! The interface to the network: it carries small messages in order, and fetches memory of other
//! ranks.

#![allow(
    unsafe_code,
    reason = "a transport hands addresses of registered memory to a device, and must stop it in time"
)]

use std::ptr::NonNull;

use nicforge_driver::Relax;
use thiserror::Error;

use crate::Rank;

/// Failure of a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{what} ({value:#x})")]
pub struct TransportError {
    /// Description of the failure.
    pub what: &'static str,
    /// A value that belongs to it: an address, a status, an error number.
    pub value: u64,
}

/// Reason for the loss of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Loss {
    /// No process has its address any more.
    #[error("its process has ended, closed its endpoint or reset its device")]
    Ended,
    /// Another process has its address.
    #[error(
        "its address has another owner: it was reset or its process replaced (tenant {current} after {previous})"
    )]
    Replaced {
        /// The transport's number of the lost process.
        previous: u64,
        /// The transport's number of the process that has the address now.
        current: u64,
    },
    /// It has no room for messages from this rank.
    #[error("it grants this rank no credits; it needs a longer receive ring")]
    Refused,
    /// A message for it waited in the network longer than the network allows, and was dropped.
    #[error("a message for it was dropped by the network's watchdog")]
    TimedOut,
    /// It has sent more than its window allows.
    #[error("it has sent more than its window allows; all ranks of a job need the same windows")]
    Overrun,
    /// Its device does not answer questions.
    #[error(
        "its device has not answered for longer than this rank's patience: its process has ended, or the network"
    )]
    Silent,
}

/// The loss of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone {
    /// The lost rank.
    pub rank: Rank,
    /// The reason. Nothing more arrives from the rank.
    pub why: Loss,
}

/// The sink's decision about a message that a transport offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The sink has taken the message.
    Yes,
    /// The sink can't take the message now. The transport keeps it, and offers it again before
    /// anything else of the same rank.
    NotNow,
}

/// Memory to register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// First byte, of any alignment.
    pub start: NonNull<u8>,
    /// Length in bytes, at least 1.
    pub length: usize,
}

/// Purpose of registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Other ranks fetch from it.
    Source,
    /// This rank's gets write to it.
    Destination,
}

/// The name of registered memory for other ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteRegion {
    /// The transport's key.
    pub key: u64,
    /// Offset of the first byte, as the transport counts. Callers only add to it.
    pub offset: u64,
}

/// Registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// The transport's handle.
    pub handle: u64,
    /// The name for other ranks.
    pub remote: RemoteRegion,
}

/// One get: fetches `length` bytes from a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Get {
    /// The owner of the source memory.
    pub peer: Rank,
    /// The source, as the peer has announced it. The transport checks it.
    pub remote: RemoteRegion,
    /// The registered destination memory.
    pub local: Region,
    /// Offset of the destination from the beginning of that memory, in bytes.
    pub local_offset: usize,
    /// Length in bytes, at least 1.
    pub length: usize,
    /// The completion returns this value.
    pub cookie: u64,
}

/// A network, as an [`crate::Endpoint`] needs it.
///
/// Messages of a pair of ranks arrive in the order in which they were sent, complete, once, and
/// with the true rank of their sender. No call blocks. An error of a call that concerns no single
/// request means that the transport as a whole has failed.
///
/// # Safety
/// The transport accesses registered memory only within its bounds, and only as its [`Access`]
/// allows, whatever other ranks request. It does not access the memory after
/// [`Transport::deregister`] has returned, or after the transport was dropped. A get writes only
/// the range that it names, and does not write after its completion was reported.
pub unsafe trait Transport {
    /// Returns this rank.
    fn rank(&self) -> Rank;

    /// Returns the number of ranks.
    fn size(&self) -> u32;

    /// Returns the bytes that one message carries, at least [`crate::wire::LEAST_MESSAGE`].
    fn max_message_bytes(&self) -> usize;

    /// Returns the bytes that one get fetches, at least 1.
    fn max_get_bytes(&self) -> usize;

    /// Sends `message` with a tag of 1 to 7 to another rank. Returns `false` when there is no room
    /// or credit now. A message to a rank that is gone is dropped, and counts as sent.
    ///
    /// # Errors
    /// The transport has failed.
    fn try_send(&mut self, to: Rank, tag: u8, message: &[u8]) -> Result<bool, TransportError>;

    /// Offers up to `budget` messages that have arrived to `sink`, with the sender and the tag.
    /// Returns the number of messages taken.
    ///
    /// After [`Taken::NotNow`] a transport continues with the messages of other ranks if it can
    /// separate them; otherwise it stops.
    ///
    /// # Errors
    /// The transport has failed.
    fn poll(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(Rank, u8, &[u8]) -> Taken,
    ) -> Result<usize, TransportError>;

    /// Registers memory for gets. Returns `None` when there is no room now.
    ///
    /// A source stays registered until its receiver has fetched it, for which the receiver needs a
    /// destination. Sources must therefore not take the last room: otherwise ranks could wait for
    /// each other for ever. One destination at a time can always be registered.
    ///
    /// # Errors
    /// This memory can't be registered.
    ///
    /// # Safety
    /// Until it is deregistered or the transport is dropped, the memory is valid for `access`. A
    /// source is not written. A destination is not accessed where gets are in flight.
    unsafe fn register(&mut self, memory: Memory, access: Access) -> Result<Option<Region>, TransportError>;

    /// Ends a registration. Gets in flight that use it end, with or without an error.
    fn deregister(&mut self, region: Region);

    /// Ends the registration of a source that `peer` knows and has not acknowledged.
    ///
    /// The send has failed, but the peer may still run and fetch from the source. Such a get must
    /// not reach another message's data. A transport that reuses the memory therefore keeps it
    /// until `peer` is gone.
    fn abandon(&mut self, region: Region, peer: Rank) {
        let _ = peer;
        self.deregister(region);
    }

    /// Starts a get. Returns `false` when there is no room for a get from this peer now. A
    /// transport that shares its room among peers gives each of them a part at most, so that a
    /// peer that does not answer leaves room for others.
    ///
    /// # Errors
    /// This get is impossible; no completion will follow.
    fn start_get(&mut self, get: &Get) -> Result<bool, TransportError>;

    /// Reports up to `budget` completions of gets to `sink`, in any order, with their cookies.
    /// Returns the number of completions.
    ///
    /// # Errors
    /// The transport has failed.
    fn poll_gets(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(u64, Result<(), TransportError>),
    ) -> Result<usize, TransportError>;

    /// Returns a rank that is gone, each rank once. Messages that had arrived from it are offered
    /// before, if possible. Nothing of a rank comes after this.
    fn poll_gone(&mut self) -> Option<Gone>;

    /// Pauses once in a loop that waits. A transport over a device leaves this to the device's
    /// backing.
    ///
    /// # Errors
    /// The transport has failed.
    fn relax(&mut self, relax: &mut Relax) -> Result<(), TransportError> {
        relax.pause();
        Ok(())
    }
}
