//! Unexpected messages, and their part of the windows.

use std::ops::{Index, IndexMut};

use nicforge_driver::runtime::{Cost, charge};

use super::Arrived;
use crate::{
    Envelope, RemoteRegion,
    lists::{List, Lists},
    pool::Pool,
    store::{Chain, Store},
};

/// An unexpected message.
#[derive(Debug, Default)]
pub(super) struct UnexpectedMessage {
    pub(super) envelope: Envelope,
    pub(super) size: u64,
    /// Units of its sender's window that it uses.
    pub(super) cost: u64,
    /// Whether it was claimed, and is no longer in the queues.
    pub(super) claimed: bool,
    pub(super) content: Content,
}

/// The content of an unexpected message.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Content {
    /// Its sender was lost before the data was complete. Only claimed messages have this state.
    #[default]
    Lost,
    /// Eager data, of which a part may still be missing.
    Stored { chain: Chain, is_complete: bool },
    /// The memory to fetch it from, and the sender's handle of its request, which the
    /// acknowledgement returns.
    Remote { region: RemoteRegion, ack_handle: u64 },
    /// A send of this rank to itself, by its request.
    ToSelf(u32),
}

/// The unexpected messages of all peers, with the data of the eager ones.
///
/// Invariant: a message is in `unexpected` of its peer until it is removed, and its chain is its
/// own.
pub(super) struct UnexpectedMessages {
    pub(super) pool: Pool<UnexpectedMessage>,
    pub(super) links: Lists,
    pub(super) store: Store,
}

impl Index<u32> for UnexpectedMessages {
    type Output = UnexpectedMessage;

    #[inline]
    fn index(&self, message: u32) -> &UnexpectedMessage {
        &self.pool[message]
    }
}

impl IndexMut<u32> for UnexpectedMessages {
    #[inline]
    fn index_mut(&mut self, message: u32) -> &mut UnexpectedMessage {
        &mut self.pool[message]
    }
}

impl UnexpectedMessages {
    pub(super) fn new() -> Self {
        Self { pool: Pool::new(), links: Lists::default(), store: Store::new() }
    }

    /// Allocates memory for `count` messages, and as many blocks of data.
    pub(super) fn reserve(&mut self, count: usize) {
        self.pool.reserve(count);
        self.links.reserve(count);
        self.store.reserve(count);
    }

    /// Adds a message to those of its peer. Returns `None` when there are too many.
    pub(super) fn add(&mut self, of_peer: &mut List, unexpected: UnexpectedMessage) -> Option<u32> {
        let message = self.pool.insert(unexpected).ok()?.index;
        self.links.push(of_peer, message);
        Some(message)
    }

    /// Removes a message from those of its peer, and frees its data.
    pub(super) fn remove(&mut self, of_peer: &mut List, message: u32) -> UnexpectedMessage {
        self.links.remove(of_peer, message);

        let unexpected = self.pool.remove(message);
        if let Content::Stored { chain, .. } = unexpected.content {
            self.store.release(chain);
        }
        unexpected
    }

    /// Appends data to an eager message, which is `complete` with them.
    pub(super) fn append(&mut self, message: u32, data: &[u8], complete: bool) {
        if let Content::Stored { chain, is_complete } = &mut self.pool[message].content {
            self.store.append(chain, data);
            charge(Cost::CopyByte, data.len());
            *is_complete = complete;
        }
    }

    /// Returns the description of a message.
    pub(super) fn arrived(&self, message: u32) -> Arrived {
        let unexpected = &self.pool[message];
        Arrived { envelope: unexpected.envelope, length: unexpected.size }
    }
}
