//! Attack on the server's log.

use nicforge_vfio_user::wire::Command;

use crate::{
    arena::{Arena, Round},
    client::{self, Client},
};

/// Number of requests that the server logs, sent at once.
const REQUESTS: usize = 1024;

/// Sends requests that the server notes in its log, which is a pipe without a reader.
///
/// A correct server drops lines that do not fit into its log's pipe.
pub(super) fn storm(arena: &Arena) -> Round {
    // No card has memory at this offset: the access is refused, and noted.
    let out_of_range = client::access(0, 1 << 40, 4, &[0; 4]);
    let requests = client::posted(Command::RegionWrite, &out_of_range).repeat(REQUESTS);

    arena.repeat(|| {
        let mut client = Client::negotiated(&arena.socket("target.user0"))?;
        client.send(&requests)?;
        client.ask(Command::DeviceGetInfo, &client::info())?;
        Ok(())
    })
}
