//! DMA by messages that are as small as they get.

use std::io;

use nicforge_hwi::proof::dma_engine::{Descriptor, REG_COUNT, REG_LIST, REG_START};
use nicforge_vfio_user::wire::{Command, Header};
use zerocopy::IntoBytes;

use crate::{
    arena::{Arena, Round},
    client::{self, Client},
    files,
};

/// Where the list and the data to be copied are, in a file that the server maps.
const SOURCE: u64 = 0x1000_0000;
/// Where the data go: memory without a file, which the server writes by messages.
const TARGET: u64 = 0x4000_0000;
/// Bytes that are copied.
const LENGTH: u64 = 1 << 20;
/// Where the data start in the file.
const DATA: u64 = 1 << 16;
/// The card's memory, and how much of it is read in one request: more than the server reads in a turn.
const REGION: u32 = 2;
const LONG_READ: usize = 8192;
/// A message as long as the protocol allows makes the server's receive buffer as large as it gets.
const LONGEST: usize = 1 << 20;

/// Takes one byte of data in a message, has the card write 1 MiB, and sends the replies to tens of thousands of these messages
/// in one go, behind a request that is deferred and one that waits for it.
///
/// A mended server counts each reply that it finds there against the client's budget, and refuses so small a size.
pub(super) fn transfers(arena: &Arena) -> Round {
    arena.repeat(|| {
        let mut client = Client::negotiated_with(&arena.socket("target.user0"), 1)?;
        let id = start(&mut client)?;
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

/// Starts the copy. Returns the number of the first message by which the card writes.
fn start(client: &mut Client) -> io::Result<u16> {
    let list = Descriptor { source: SOURCE + DATA, destination: TARGET, length: LENGTH as u32, reserved: 0 };
    let file = files::sparse(DATA + LENGTH)?;
    std::os::unix::fs::FileExt::write_all_at(&file, list.as_bytes(), 0)?;

    client.enable()?;
    client.map_file(SOURCE, DATA + LENGTH, &file)?;
    client.ask(Command::DmaMap, &client::map(TARGET, 0, LENGTH))?;
    client.write_region(0, REG_LIST, &SOURCE.to_le_bytes())?;
    client.write_region(0, REG_COUNT, &1_u32.to_le_bytes())?;
    let begin = client::posted(Command::RegionWrite, &client::access(0, REG_START, 4, &1_u32.to_le_bytes()));
    client.send(&begin)?;
    loop {
        let (header, _) = client.next()?;
        if header.command == Command::DmaWrite {
            return Ok(header.id);
        }
    }
}
