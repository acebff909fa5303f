//! Attacks by DMA messages of minimum size.

use std::io;

use nicforge_hwi::proof::dma_engine::Descriptor;
use nicforge_vfio_user::wire::{Command, Header};

use crate::{
    arena::{Arena, Round},
    client::{self, Client},
    copier::Copier,
    files,
};

/// Address of the copied data, in a file that the server maps.
const SOURCE: u64 = 0x1000_0000;
/// Address of the copy, in memory without a file, which the server writes by DMA messages.
const TARGET: u64 = 0x4000_0000;
/// Number of copied bytes.
const LENGTH: u64 = 1 << 20;
/// The region of the card's memory.
const REGION: u32 = 2;
/// Bytes of a read of that region: more than the server reads in a turn.
const LONG_READ: usize = 8192;
/// Length of the protocol's longest message, which makes the server's receive buffer as large as
/// possible.
const LONGEST: usize = 1 << 20;

/// Accepts only one byte of data in a message, and has the card write 1 MiB, which takes a message
/// for each byte. It sends tens of thousands of replies to such messages at once, behind a request
/// that is deferred and one that waits for it.
///
/// A correct server charges each reply to the client's budget, and refuses so small a size.
pub(super) fn transfers(arena: &Arena) -> Round {
    arena.repeat(|| {
        let client = Client::negotiated_with(&arena.socket("target.user0"), 1)?;
        let (mut client, id) = start(client)?;
        let grow = client::access(REGION, 0, LONGEST, &vec![0; LONGEST]);

        client.send(&client::posted(Command::RegionWrite, &grow))?;
        let last = client.id();
        let replies = arena.size().pick(8_192, 65_536);
        let mut flood = client::posted(Command::RegionRead, &client::access(REGION, 0, LONG_READ, &[]));

        flood.extend(client::request(last, Command::DeviceGetInfo, &client::info()));
        flood.extend(Header::reply(id, Command::DmaWrite, 0).to_bytes().repeat(replies));
        client.send(&flood)?;
        client.reply_to(last)?;

        Ok(())
    })
}

/// Starts the copy. Returns the client, and the number of the first message by which the card
/// writes.
fn start(client: Client) -> io::Result<(Client, u16)> {
    let mut copier = Copier::new(client)?;
    copier.client.map_file(SOURCE, LENGTH, files::sparse(LENGTH)?)?;
    copier.client.ask(Command::DmaMap, &client::map(TARGET, 0, LENGTH))?;
    copier.start(&[Descriptor {
        source: SOURCE,
        destination: TARGET,
        length: LENGTH as u32,
        reserved: 0,
    }])?;

    loop {
        let (header, _) = copier.client.next_message()?;
        if header.command == Command::DmaWrite {
            return Ok((copier.client, header.id));
        }
    }
}
