//! Work that a client leaves behind for its successor.

use nicforge_vfio_user::wire::Command;

use crate::{
    arena::{Arena, Round},
    client::{self, Client},
};

/// Fills the socket with resets that want no reply, closes, and connects again, over and over.
///
/// A mended server serves the rest of the predecessor's messages within the usual budget, and the newcomer waits.
pub(super) fn resets(arena: &Arena) -> Round {
    again(arena, &client::posted(Command::DeviceReset, &[]))
}

/// The same with reads of 4 KiB of the card's memory. They want no reply either: a socket that is closed with replies in it
/// loses its requests.
///
/// A mended server does as with resets.
pub(super) fn reads(arena: &Arena) -> Round {
    again(arena, &client::posted(Command::RegionRead, &client::access(2, 0, 4096, &[])))
}

fn again(arena: &Arena, message: &[u8]) -> Round {
    let messages = message.repeat(arena.size().pick(2_048, 16_384));
    arena.repeat(|| {
        let mut client = Client::negotiated(&arena.socket("target.user0"))?;
        client.fill(&messages)?;
        Ok(())
    })
}
