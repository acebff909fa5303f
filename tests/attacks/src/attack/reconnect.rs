//! Attacks by work that a client leaves to its successor.

use nicforge_vfio_user::wire::Command;

use crate::{
    arena::{Arena, Round},
    client::{self, Client},
};

/// Fills the socket with resets without replies, disconnects, and connects again, repeatedly.
///
/// A correct server serves the rest of the predecessor's messages within the usual budget, while
/// the new client waits.
pub(super) fn resets(arena: &Arena) -> Round {
    repeat_connections(arena, &client::posted(Command::DeviceReset, &[]))
}

/// Fills the socket with reads of 4 KiB of the card's memory, disconnects, and connects again,
/// repeatedly. The reads ask for no reply, since a socket that is closed with unread replies loses
/// its requests.
///
/// A correct server acts as against [`resets`].
pub(super) fn reads(arena: &Arena) -> Round {
    repeat_connections(arena, &client::posted(Command::RegionRead, &client::access(2, 0, 4096, &[])))
}

/// Connects, fills the socket with copies of a message, and disconnects, repeatedly.
fn repeat_connections(arena: &Arena, message: &[u8]) -> Round {
    let messages = message.repeat(arena.size().pick(2_048, 16_384));
    arena.repeat(|| {
        let mut client = Client::negotiated(&arena.socket("target.user0"))?;
        client.fill(&messages)?;
        Ok(())
    })
}
