//! Attacks by connections.

use std::{
    fs::File,
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use nicforge_vfio_user::wire::Command;

use crate::{
    arena::{Arena, Round},
    client::{self, Client},
};

/// Number of connections that are held at a time.
const HELD: usize = 256;
/// Sockets that are attacked at a time.
const SOCKETS: [&str; 6] =
    ["target.user0", "target.user1", "target.user2", "target.user3", "send.user0", "send.user1"];
/// Descriptors in a message: the kernel's maximum.
const PASSED: usize = 253;

/// How long a client with descriptors stays connected.
const HOLD: Duration = Duration::from_millis(500);

/// Connects ten thousand times to free and occupied sockets, without sending a byte.
///
/// A correct server refuses connections without a free attachment, and accepts within its budget.
pub(super) fn many(arena: &Arena) -> Round {
    let count = arena.size().pick(500, 10_000);
    arena.repeat(|| {
        let mut held = Vec::new();
        for number in 0..count {
            held.push(Client::connect(&arena.socket(SOCKETS[number % SOCKETS.len()]))?);
            if held.len() == HELD {
                held.clear();
            }
        }
        Ok(())
    })
}

/// Passes the kernel's maximum of descriptors in one message before the version, on several sockets
/// at once.
///
/// A correct server keeps none before the version, and few after it, so others can still connect.
pub(super) fn pending(arena: &Arena) -> Round {
    arena.repeat(|| {
        let null = File::open("/dev/null")?;
        let fds: Vec<BorrowedFd<'_>> = vec![null.as_fd(); PASSED];
        let mut clients = Vec::new();

        for name in SOCKETS {
            let mut client = Client::connect(&arena.socket(name))?;
            // A part of a message, so that its descriptors wait for the rest.
            client.send_fds(&client::request(1, Command::Version, &[0; 4])[..8], &fds)?;
            clients.push(client);
        }

        // The clients stay until the server disconnects them or the time is over.
        for client in &mut clients {
            client.wait_for_end(HOLD)?;
        }

        Ok(())
    })
}
