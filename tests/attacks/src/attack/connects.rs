//! Connections.

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

/// Connections that are held at a time.
const HELD: usize = 256;
/// Sockets that are attacked at a time.
const SOCKETS: [&str; 6] =
    ["target.user0", "target.user1", "target.user2", "target.user3", "send.user0", "send.user1"];
/// Descriptors in a message: as many as the kernel takes.
const PASSED: usize = 253;

/// How long a client with descriptors stays.
const HOLD: Duration = Duration::from_millis(500);

/// Connects ten thousand times to sockets that are free, taken, or about to be, and says nothing.
///
/// A mended server refuses those it has no attachment for, and accepts within its budget.
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

/// Passes as many descriptors as the kernel takes in one message, before the version, on several sockets at once.
///
/// A mended server keeps none before the version, and few after it: others can still connect.
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

        // They are held until the server gives the clients up, or a while.
        for client in &mut clients {
            client.wait_for_end(HOLD)?;
        }

        Ok(())
    })
}
