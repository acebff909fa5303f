//! What is below: something that carries small messages in order and fetches memory of other ranks.

#![allow(
    unsafe_code,
    reason = "a transport hands addresses of registered memory to a device, and must stop it in time"
)]

use std::ptr::NonNull;

use nicforge_driver::Relax;
use thiserror::Error;

use crate::Rank;

/// A failure of a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{what} ({value:#x})")]
pub struct TransportError {
    /// What went wrong.
    pub what: &'static str,
    /// A value that belongs to it: an address, a status, an error number.
    pub value: u64,
}

/// Why a rank is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Loss {
    /// Nobody has its address any more.
    #[error("its process has ended, closed its endpoint or reset its device")]
    Ended,
    /// Another tenant has its address.
    #[error(
        "its address has another owner: it was reset or its process replaced (tenant {tenant} after {before})"
    )]
    Replaced {
        /// What the transport calls the tenant that it was.
        before: u64,
        /// What it calls the one that is there now.
        tenant: u64,
    },
    /// It has no room for messages from here.
    #[error("it promises no room for messages from here; it needs a longer receive ring")]
    Refused,
    /// A message for it waited in the network for longer than the network allows, and was dropped.
    #[error("a message for it was dropped by the network's watchdog")]
    TimedOut,
    /// A message for it was dropped as one for nobody, although it is there.
    #[error("a message for it could not be delivered")]
    Undelivered,
}

/// A rank that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone {
    /// Which.
    pub rank: Rank,
    /// Why nothing more is to be expected of it.
    pub why: Loss,
}

/// What became of a message that a transport offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It was taken.
    Yes,
    /// Not now: the transport keeps it, and offers it again before anything else of the same rank.
    NotNow,
}

/// Memory to register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Where it begins; any alignment.
    pub start: NonNull<u8>,
    /// Bytes, at least 1.
    pub length: usize,
}

/// What registered memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Other ranks get from it.
    Source,
    /// This rank's gets write to it.
    Destination,
}

/// How other ranks name registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteRegion {
    /// The transport's key.
    pub key: u64,
    /// Where the memory begins, in the transport's terms: added to, and otherwise not looked at.
    pub offset: u64,
}

/// Registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// The transport's handle.
    pub handle: u64,
    /// For other ranks.
    pub remote: RemoteRegion,
}

/// One get: `length` bytes from a peer's memory to ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Get {
    /// Whose memory.
    pub peer: Rank,
    /// From where, as the peer said. It may be wrong: the transport checks it.
    pub remote: RemoteRegion,
    /// To which registered memory.
    pub local: Region,
    /// Where in it, in bytes from its beginning.
    pub local_offset: usize,
    /// Bytes, at least 1.
    pub length: usize,
    /// Comes back with the completion.
    pub cookie: u64,
}

/// What an [`crate::Endpoint`] needs of a network.
///
/// Messages of a pair of ranks arrive in the order in which they were sent, complete, once, and with the true rank of their
/// sender. Nothing here blocks. An error of a call that names no request says that the transport as a whole has failed.
///
/// # Safety
/// Memory that was registered is accessed only within its bounds, as its [`Access`] says, and not at all after
/// [`Transport::deregister`] has returned or the transport was dropped, whatever other ranks ask for. A get writes only the
/// range it names, and not after its completion was given.
pub unsafe trait Transport {
    /// Which rank this is.
    fn rank(&self) -> Rank;

    /// How many ranks there are.
    fn size(&self) -> u32;

    /// Bytes that one message carries, at least [`crate::wire::LEAST_MESSAGE`].
    fn max_message_bytes(&self) -> usize;

    /// Bytes that one get fetches, at least 1.
    fn max_get_bytes(&self) -> usize;

    /// Sends `message` with a tag of 1 to 7 to another rank, which is not asked. `false`: there is no room or credit now. To a
    /// rank that is gone it is dropped.
    ///
    /// # Errors
    /// The transport has failed.
    fn try_send(&mut self, to: Rank, tag: u8, message: &[u8]) -> Result<bool, TransportError>;

    /// Offers up to `budget` messages that have arrived to `sink`, with the sender and the tag, and says how many were taken.
    ///
    /// After [`Taken::NotNow`] the messages of other ranks go on if the transport can tell them apart; one that can't stops.
    ///
    /// # Errors
    /// The transport has failed.
    fn poll(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(Rank, u8, &[u8]) -> Taken,
    ) -> Result<usize, TransportError>;

    /// Makes memory reachable for gets. `None`: there is no room now.
    ///
    /// Sources are registered until their receiver has fetched them, for which it needs a destination. So that ranks do not wait
    /// for each other for ever, sources must not take the last room: one destination at a time can always be registered.
    ///
    /// # Errors
    /// This memory can't be registered.
    ///
    /// # Safety
    /// Until it is deregistered or the transport dropped, the memory is valid for what `access` says; a source is not written, a
    /// destination not accessed where gets are under way.
    unsafe fn register(&mut self, memory: Memory, access: Access) -> Result<Option<Region>, TransportError>;

    /// Takes memory back. Gets under way that use it end, with or without an error.
    fn deregister(&mut self, region: Region);

    /// As [`Transport::deregister`], of a source that `peer` was told of and has not said that it has fetched: it was given up, but may live, and fetch
    /// it still. Whatever it is given must not be another message's: a transport that uses the place again keeps it until `peer` is no more.
    fn abandon(&mut self, region: Region, peer: Rank) {
        let _ = peer;
        self.deregister(region);
    }

    /// Starts a get. `false`: there is no room now.
    ///
    /// # Errors
    /// This get can't be done; there will be no completion.
    fn start_get(&mut self, get: &Get) -> Result<bool, TransportError>;

    /// Gives up to `budget` completions of gets to `sink`, in any order, with their cookies, and says how many.
    ///
    /// # Errors
    /// The transport has failed.
    fn poll_gets(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(u64, Result<(), TransportError>),
    ) -> Result<usize, TransportError>;

    /// A rank that is gone, each one once, after what had arrived of it was offered if that is possible. Nothing of a rank
    /// comes after this.
    fn poll_gone(&mut self) -> Option<Gone>;

    /// One turn of a loop that waits. A transport over a device lets the device's backing do it.
    ///
    /// # Errors
    /// The transport has failed.
    fn relax(&mut self, relax: &mut Relax) -> Result<(), TransportError> {
        relax.turn().take();
        Ok(())
    }
}
