//! Lines of the server's log.

use nicforge_vfio_user::wire::Command;

use crate::{
    arena::{Arena, Round},
    client::{self, Client},
};

/// Requests that the server logs, in one go.
const REQUESTS: usize = 1024;

/// Sends requests that the server notes in its log, whose other end is a pipe that is never read.
///
/// A mended server drops lines that its log has no room for.
pub(super) fn storm(arena: &Arena) -> Round {
    // No card has memory that far out: the access is refused, and noted.
    let far = client::access(0, 1 << 40, 4, &[0; 4]);
    let requests = client::posted(Command::RegionWrite, &far).repeat(REQUESTS);

    arena.repeat(|| {
        let mut client = Client::negotiated(&arena.socket("target.user0"))?;
        client.send(&requests)?;
        client.ask(Command::DeviceGetInfo, &client::info())?;
        Ok(())
    })
}
