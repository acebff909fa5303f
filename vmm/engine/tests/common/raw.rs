//! A client that is bytes on a stream, which may be malformed.

use std::{
    io::{ErrorKind, IoSlice, Read, Write as _},
    os::{
        fd::{AsRawFd, BorrowedFd},
        unix::net::UnixStream,
    },
    path::Path,
};

use nicforge_core::ids::AttachmentId;
use nicforge_vfio_user::{
    DMA_FLAG_READ, DMA_FLAG_WRITE, Errno,
    wire::{Command, HEADER_SIZE, Header},
};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

use super::{BUS_MASTER, COMMAND, CONFIG_REGION, LONG, MEMORY_DECODE, Served, negotiated, reg};

/// Address and size of the client memory of [`client_with_dma`].
pub const PAGE: u64 = 0x1000;
/// Message ID of the requests.
const ID: u16 = 9;

/// The client's end of a connection.
pub struct Raw(pub UnixStream);

/// Returns a request with its header.
pub fn request(command: Command, payload: &[u8]) -> Vec<u8> {
    [&Header::request(ID, command, payload.len(), false).to_bytes()[..], payload].concat()
}

/// Returns a request that wants no reply.
pub fn posted(command: Command, payload: &[u8]) -> Vec<u8> {
    [&Header::request(ID, command, payload.len(), true).to_bytes()[..], payload].concat()
}

/// Returns the VERSION request of version `major`.`minor`, with `rest` after the numbers.
pub fn version(major: u16, minor: u16, rest: &[u8]) -> Vec<u8> {
    let payload = [&major.to_le_bytes()[..], &minor.to_le_bytes(), rest].concat();
    request(Command::Version, &payload)
}

pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Returns a DEVICE_GET_INFO request.
pub fn device_info() -> Vec<u8> {
    request(Command::DeviceGetInfo, &words(&[16, 0, 0, 0]))
}

/// Returns the payload of an access: offset, region, count, data.
pub fn access(offset: u64, region: u32, count: u32, data: &[u8]) -> Vec<u8> {
    [&offset.to_le_bytes()[..], &words(&[region, count]), data].concat()
}

/// Returns a client that has mapped [`PAGE`] and lets the device start DMA, which copies from
/// there.
pub fn client_with_dma(served: &Served, attachment: AttachmentId) -> Raw {
    let mut raw = Raw::negotiated(&served.path(attachment));

    assert_eq!(raw.ask(Command::DmaMap, &map_payload()), None);
    let command = (MEMORY_DECODE | BUS_MASTER).to_le_bytes();
    assert_eq!(raw.ask(Command::RegionWrite, &access(COMMAND, CONFIG_REGION, 2, &command)), None);
    for offset in [reg::SOURCE, reg::TARGET] {
        assert_eq!(raw.ask(Command::RegionWrite, &access(offset, 0, 8, &PAGE.to_le_bytes())), None);
    }
    raw
}

/// Returns the payload of a DMA_MAP of [`PAGE`] for reading and writing.
pub fn map_payload() -> Vec<u8> {
    let flags = DMA_FLAG_READ | DMA_FLAG_WRITE;
    [&words(&[32, flags])[..], &[0, PAGE, PAGE].map(u64::to_le_bytes).concat()].concat()
}

/// Returns the payload of a DMA_UNMAP of [`PAGE`].
pub fn unmap_payload() -> Vec<u8> {
    [&words(&[24, 0])[..], &[PAGE, PAGE].map(u64::to_le_bytes).concat()].concat()
}

impl Raw {
    /// Connects without negotiation.
    pub fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.set_write_timeout(Some(LONG)).unwrap();
        Self(stream)
    }

    /// Connects and negotiates.
    pub fn negotiated(path: &Path) -> Self {
        let stream = negotiated(path);
        stream.set_write_timeout(Some(LONG)).unwrap();
        Self(stream)
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    /// Sends bytes with descriptors.
    pub fn send_fds(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let fds: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&fds)];
        let sent =
            sendmsg::<()>(self.0.as_raw_fd(), &[IoSlice::new(bytes)], &rights, MsgFlags::empty(), None);
        assert_eq!(sent, Ok(bytes.len()));
    }

    /// Returns the next message.
    pub fn reply(&mut self) -> (Header, Vec<u8>) {
        let mut header = [0; HEADER_SIZE];
        self.0.read_exact(&mut header).unwrap();
        let header = Header::parse(&header).unwrap();
        let mut payload = vec![0; header.size as usize - HEADER_SIZE];
        self.0.read_exact(&mut payload).unwrap();
        (header, payload)
    }

    /// Sends a request, and returns the error number in its reply; `None` if the request succeeded.
    pub fn ask(&mut self, command: Command, payload: &[u8]) -> Option<Errno> {
        self.send(&request(command, payload));
        let (header, _) = self.reply();
        assert_eq!(header.id, ID);
        header.reply_error()
    }

    /// Asserts that the connection works.
    #[track_caller]
    pub fn assert_served(&mut self) {
        assert_eq!(self.ask(Command::DeviceGetInfo, &words(&[16, 0, 0, 0])), None);
    }

    /// Asserts that the server has closed the connection; bytes that it sent before are skipped.
    #[track_caller]
    pub fn assert_ended(&mut self) {
        let mut rest = [0; 4096];
        loop {
            match self.0.read(&mut rest) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // A reset of the connection ends it, too.
                Err(error) => return assert_eq!(error.kind(), ErrorKind::ConnectionReset),
            }
        }
    }
}
