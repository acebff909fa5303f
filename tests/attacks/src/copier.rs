//! The DMA engine card, driven by raw messages.

use std::{fs::File, io, os::unix::fs::FileExt, path::Path};

use nicforge_hwi::proof::dma_engine::{
    Descriptor, MAX_DESCRIPTORS, MAX_LENGTH, REG_COUNT, REG_LIST, REG_START, REG_STATUS, STATUS_BUSY,
};
use nicforge_vfio_user::wire::{Command, RegionAccess};
use zerocopy::IntoBytes;

use crate::{
    client::{self, Client},
    files,
};

/// Address of the scatter list.
const LIST: u64 = 0x1000;
/// Size of the list's file.
const LIST_SIZE: u64 = 0x2000;

/// A client that drives the card's copies.
#[derive(Debug)]
pub struct Copier {
    /// The connection.
    pub client: Client,
    list: File,
}

impl Copier {
    /// Enables the card of a client and maps its list.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn new(mut client: Client) -> io::Result<Self> {
        let list = files::sparse(LIST_SIZE)?;
        client.enable()?;
        client.map_file(LIST, LIST_SIZE, &list)?;
        Ok(Self { client, list })
    }

    /// Connects to the card behind `socket` and enables it.
    ///
    /// # Errors
    /// As [`Client::negotiated`].
    pub fn open(socket: &Path) -> io::Result<Self> {
        Self::new(Client::negotiated(socket)?)
    }

    /// Starts a copy.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn start(&mut self, pieces: &[Descriptor]) -> io::Result<()> {
        self.list.write_all_at(pieces.as_bytes(), 0)?;
        self.client.write_region(0, REG_LIST, &LIST.to_le_bytes())?;
        self.client.write_region(0, REG_COUNT, &(pieces.len() as u32).to_le_bytes())?;
        let start = client::access(0, REG_START, 4, &1_u32.to_le_bytes());
        self.client.send(&client::posted(Command::RegionWrite, &start))
    }

    /// Copies, and waits for the end.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn copy(&mut self, pieces: &[Descriptor]) -> io::Result<()> {
        self.start(pieces)?;
        loop {
            let status = client::access(0, REG_STATUS, 4, &[]);
            let (_, payload) = self.client.ask(Command::RegionRead, &status)?;
            match payload.get(size_of::<RegionAccess>()..).and_then(|data| data.first()) {
                Some(status) if u32::from(*status) & STATUS_BUSY != 0 => {}
                _ => return Ok(()),
            }
        }
    }

    /// Makes the card access all of the `size` bytes at `address`: copies the second half onto the
    /// first one.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn access_all(&mut self, address: u64, size: u64) -> io::Result<()> {
        let (half, longest) = (size / 2, u64::from(MAX_LENGTH));
        let pieces: Vec<_> = (0..half.div_ceil(longest))
            .map(|number| {
                let at = address + number * longest;
                let length = longest.min(half - number * longest) as u32;
                Descriptor { source: at + half, destination: at, length, reserved: 0 }
            })
            .collect();

        for list in pieces.chunks(MAX_DESCRIPTORS as usize) {
            self.copy(list)?;
        }

        Ok(())
    }
}
