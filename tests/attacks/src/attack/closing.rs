//! Attacks by descriptors whose last close takes long.

use std::{
    collections::VecDeque,
    io,
    net::TcpStream,
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use nicforge_vfio_user::wire::Command;

use crate::{
    arena::{Arena, Round},
    client::{self, Client},
    files,
};

/// Maximum number of lingering sockets whose peers are kept. The close of a socket waits only while
/// its peer exists. The oldest peers are dropped.
const PEERS: usize = 32;

/// How a descriptor reaches the server and is closed there.
#[derive(Clone, Copy, Debug)]
enum ClosePath {
    /// With a message that takes no descriptor.
    Unwanted,
    /// With a `DMA_MAP` that is refused.
    RefusedMap,
    /// With a `SET_IRQS` that is refused.
    RefusedEventfd,
    /// After bytes that end the connection: the server closes its socket with the descriptor in
    /// it.
    Unread,
    /// Before the version.
    Early,
    /// With a byte out of band, which a read drops, in front of another message.
    OutOfBand,
}

/// All paths. The rounds use them in turn.
const PATHS: [ClosePath; 6] = [
    ClosePath::Unwanted,
    ClosePath::OutOfBand,
    ClosePath::RefusedMap,
    ClosePath::RefusedEventfd,
    ClosePath::Unread,
    ClosePath::Early,
];

/// Passes TCP sockets with `SO_LINGER` and unsent data. The last close of one waits for the time
/// that the client chose.
///
/// A correct server closes them on a thread for which no other work waits, and continues at once.
pub(super) fn sockets(arena: &Arena) -> Round {
    let linger = arena.size().pick(Duration::from_secs(3), Duration::from_secs(15));
    let mut peers = VecDeque::<TcpStream>::new();
    arena.repeat(|| {
        let (socket, peer) = files::socket_with_linger(linger)?;
        peers.push_back(peer);
        if peers.len() > PEERS {
            peers.pop_front();
        }
        let path = PATHS[arena.rounds() as usize % PATHS.len()];
        Ok(pass(arena, path, socket)?)
    })
}

/// Passes the last descriptor of a large memory file with all pages allocated, which its close
/// frees.
///
/// A correct server closes it on a thread for which no other work waits.
pub(super) fn memory(arena: &Arena) -> Round {
    let size = arena.size().pick(256 << 20, 3 << 30);
    arena.repeat(|| {
        let file = files::populated(size)?;
        let path = PATHS[arena.rounds() as usize % PATHS.len()];
        Ok(pass(arena, path, file)?)
    })
}

/// Maps a large memory file with all pages allocated, and disconnects. The end of the attachment
/// unmaps the file and drops its last reference.
///
/// A correct server unmaps on a thread that does not delay other clients' mappings.
pub(super) fn mapped(arena: &Arena) -> Round {
    let size = arena.size().pick(256 << 20, 3 << 30);
    arena.repeat(|| {
        let mut client = Client::negotiated(&arena.socket("target.user0"))?;
        let file = files::populated(size)?;
        client.map_file(0, size, &file)?;
        drop(file);
        Ok(())
    })
}

/// Passes a file to the server on a path. The server then has its last descriptor.
fn pass(arena: &Arena, path: ClosePath, file: impl AsFd) -> io::Result<()> {
    let socket = arena.socket("target.user0");
    let mut client = match path {
        ClosePath::Early => Client::connect(&socket)?,
        _ => Client::negotiated(&socket)?,
    };

    send(&mut client, path, file.as_fd())?;
    drop(file);

    // The reply comes after the server has dropped the unwanted descriptor.
    match path {
        ClosePath::Unread | ClosePath::Early | ClosePath::OutOfBand => Ok(()),
        _ => client.ask(Command::DeviceGetInfo, &client::info()).map(drop),
    }
}

/// Sends the messages of a path.
fn send(client: &mut Client, path: ClosePath, file: BorrowedFd<'_>) -> io::Result<()> {
    let id = client.id();
    let info = client::request(id, Command::DeviceGetInfo, &client::info());
    match path {
        ClosePath::Unwanted | ClosePath::Early => client.send_fds(&info, &[file]),
        // Address 1 is not aligned to a page.
        ClosePath::RefusedMap => {
            client.send_fds(&client::request(id, Command::DmaMap, &client::map(1, 0, 4096)), &[file])
        }
        ClosePath::RefusedEventfd => {
            let message = client::request(id, Command::DeviceSetIrqs, &client::bind_eventfd());
            client.send_fds(&message, &[file])
        }
        ClosePath::OutOfBand => {
            client.send_out_of_band(file)?;
            client.send(&info)
        }
        ClosePath::Unread => {
            client.send(&[0xff; 64])?;
            // A read ends after the first descriptor, so the next one stays in the socket.
            let null = std::fs::File::open("/dev/null")?;
            client.send_fds(&info, &[null.as_fd()])?;
            client.send_fds(&info, &[file])
        }
    }
}
