//! A vfio-user client that enforces no rule of the protocol by itself.

use std::{
    io::{self, ErrorKind, IoSlice, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        unix::net::UnixStream,
    },
    path::Path,
    time::Duration,
};

use nicforge_driver::REGION_CONFIG;
use nicforge_vfio_user::{
    PCI_MSIX_IRQ,
    wire::{
        Capabilities, Command, DmaMapPayload, DmaUnmapPayload, HEADER_SIZE, Header, MessageType,
        RegionAccess, SetIrqsPayload, VersionMessage, build_version,
    },
};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg, setsockopt, sockopt};
use vfio_bindings::bindings::vfio;
use zerocopy::IntoBytes;

/// Time limit of a reply: an attacker outlasts the pauses that it causes.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Requested size of the send buffer, in bytes. The kernel may grant less.
const SEND_BUFFER: usize = 4 << 20;
/// Maximum size of a reply that is read, in bytes.
const MAX_REPLY: usize = 16 << 20;
/// The command register in configuration space.
const PCI_COMMAND: u64 = 4;
/// The bits of that register that let the device use memory and DMA.
const MEMORY_AND_DMA: u16 = 1 << 1 | 1 << 2;

/// The flags of memory that the device may read and write.
pub const READ_WRITE: u32 = nicforge_vfio_user::DMA_FLAG_READ | nicforge_vfio_user::DMA_FLAG_WRITE;

/// A connection to one socket of the server.
#[derive(Debug)]
pub struct Client {
    /// The connection, for operations that this type does not have.
    pub stream: UnixStream,
    next_id: u16,
}

/// Returns the bytes of a request.
pub fn request(id: u16, command: Command, payload: &[u8]) -> Vec<u8> {
    [&Header::request(id, command, payload.len(), false).to_bytes()[..], payload].concat()
}

/// Returns the bytes of a request without a reply.
pub fn posted(command: Command, payload: &[u8]) -> Vec<u8> {
    [&Header::request(0, command, payload.len(), true).to_bytes()[..], payload].concat()
}

/// Returns the payload of a region access, with the data of a write.
pub fn access(region: u32, offset: u64, count: usize, data: &[u8]) -> Vec<u8> {
    let start = RegionAccess { offset: offset.into(), region: region.into(), count: (count as u32).into() };
    [start.as_bytes(), data].concat()
}

/// Returns the payload of a `DMA_MAP`.
pub fn map(address: u64, offset: u64, size: u64) -> Vec<u8> {
    let payload = DmaMapPayload {
        argsz: (size_of::<DmaMapPayload>() as u32).into(),
        flags: READ_WRITE.into(),
        offset: offset.into(),
        address: address.into(),
        size: size.into(),
    };

    payload.as_bytes().to_vec()
}

/// Returns the payload of a `DMA_UNMAP`.
pub fn unmap(address: u64, size: u64) -> Vec<u8> {
    let payload = DmaUnmapPayload {
        argsz: (size_of::<DmaUnmapPayload>() as u32).into(),
        flags: 0.into(),
        address: address.into(),
        size: size.into(),
    };

    payload.as_bytes().to_vec()
}

/// Returns the payload of a `DEVICE_GET_INFO`, the cheapest request.
pub fn info() -> Vec<u8> {
    [16_u32, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Returns the payload of a `SET_IRQS` that binds MSI-X vector 0 to the message's eventfd.
pub fn bind_eventfd() -> Vec<u8> {
    irqs(vfio::VFIO_IRQ_SET_DATA_EVENTFD)
}

/// Returns the payload of a `SET_IRQS` that raises MSI-X vector 0.
pub fn raise() -> Vec<u8> {
    irqs(vfio::VFIO_IRQ_SET_DATA_NONE)
}

/// Returns the payload of a `SET_IRQS` for MSI-X vector 0 with a kind of data.
fn irqs(data: u32) -> Vec<u8> {
    let payload = SetIrqsPayload {
        argsz: (size_of::<SetIrqsPayload>() as u32).into(),
        flags: (data | vfio::VFIO_IRQ_SET_ACTION_TRIGGER).into(),
        index: PCI_MSIX_IRQ.into(),
        start: 0.into(),
        count: 1.into(),
    };

    payload.as_bytes().to_vec()
}

impl Client {
    /// Connects, and sends no message.
    ///
    /// # Errors
    /// The system's error.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        setsockopt(&stream, sockopt::SndBuf, &SEND_BUFFER)?;
        let mut client = Self { stream, next_id: 0 };
        client.set_time_out(TIMEOUT)?;
        Ok(client)
    }

    /// Connects and negotiates a version.
    ///
    /// # Errors
    /// [`ErrorKind::ResourceBusy`] when the server refuses; else the system's error.
    pub fn negotiated(path: &Path) -> io::Result<Self> {
        Self::negotiated_with(path, 1 << 20)
    }

    /// As [`Client::negotiated`], with `transfer` as the most bytes of data in a message to the
    /// client.
    ///
    /// # Errors
    /// As [`Client::negotiated`].
    pub fn negotiated_with(path: &Path, transfer: u64) -> io::Result<Self> {
        let mut client = Self::connect(path)?;
        client.negotiate(transfer)?;
        Ok(client)
    }

    /// Sets the time limit of replies and writes.
    ///
    /// # Errors
    /// The system's error.
    pub fn set_time_out(&mut self, limit: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(limit))?;
        self.stream.set_write_timeout(Some(limit))
    }

    /// Negotiates a version, with `transfer` as the most bytes of data in a message to the client.
    ///
    /// # Errors
    /// As [`Client::negotiated`].
    pub fn negotiate(&mut self, transfer: u64) -> io::Result<()> {
        let version = VersionMessage {
            has_json: true,
            capabilities: Some(Capabilities {
                max_msg_fds: Some(16),
                max_data_xfer_size: Some(transfer),
                ..Capabilities::default()
            }),
            ..VersionMessage::default()
        };

        let (header, _) = self.ask(Command::Version, &build_version(&version))?;
        match header.reply_error() {
            None => Ok(()),
            Some(errno) => Err(io::Error::new(ErrorKind::ResourceBusy, format!("refused: {errno}"))),
        }
    }

    /// Writes bytes, waiting for room.
    ///
    /// # Errors
    /// The system's error.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Writes as many of the bytes as the socket takes without waiting. Returns their number.
    ///
    /// # Errors
    /// The system's error.
    pub fn fill(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_nonblocking(true)?;
        let mut sent = 0;
        let result = loop {
            match self.stream.write(&bytes[sent..]) {
                Ok(0) => break Ok(sent),
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break Ok(sent),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };

        self.stream.set_nonblocking(false)?;
        result
    }

    /// Sends a message with descriptors.
    ///
    /// # Errors
    /// The system's error.
    pub fn send_fds(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let raw: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let sent = sendmsg::<()>(
            self.stream.as_raw_fd(),
            &[IoSlice::new(bytes)],
            &rights,
            MsgFlags::MSG_NOSIGNAL,
            None,
        )?;

        self.send(&bytes[sent..])
    }

    /// Sends a byte out of band, with a descriptor.
    pub fn send_out_of_band(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_OOB;
        let rights = [fd.as_raw_fd()];
        let message = [ControlMessage::ScmRights(&rights)];
        sendmsg::<()>(self.stream.as_raw_fd(), &[IoSlice::new(&[0])], &message, flags, None)?;
        Ok(())
    }

    /// Returns the id of the next request.
    pub fn id(&mut self) -> u16 {
        self.next_id = self.next_id.wrapping_add(1);
        self.next_id
    }

    /// Sends a request and waits for its reply. The server's requests in between are dropped.
    ///
    /// # Errors
    /// [`ErrorKind::UnexpectedEof`] when the server ends the connection; else the system's error.
    pub fn ask(&mut self, command: Command, payload: &[u8]) -> io::Result<(Header, Vec<u8>)> {
        self.ask_with(command, payload, &[])
    }

    /// As [`Client::ask`], with descriptors.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn ask_with(
        &mut self,
        command: Command,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<(Header, Vec<u8>)> {
        let id = self.id();
        let message = request(id, command, payload);
        if fds.is_empty() {
            self.send(&message)?
        } else {
            self.send_fds(&message, fds)?
        }

        self.reply_to(id)
    }

    /// Waits for the reply to request `id`. All earlier messages are dropped.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn reply_to(&mut self, id: u16) -> io::Result<(Header, Vec<u8>)> {
        loop {
            let (header, payload) = self.next_message()?;
            if header.message_type() == MessageType::Reply && header.id == id {
                return Ok((header, payload));
            }
        }
    }

    /// Waits for the next message of the server.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn next_message(&mut self) -> io::Result<(Header, Vec<u8>)> {
        let mut bytes = [0; HEADER_SIZE];
        self.stream.read_exact(&mut bytes)?;
        let header = Header::parse(&bytes).ok_or(ErrorKind::InvalidData)?;
        let length = (header.size as usize).checked_sub(HEADER_SIZE).filter(|length| *length <= MAX_REPLY);
        let mut payload = vec![0; length.ok_or(ErrorKind::InvalidData)?];

        self.stream.read_exact(&mut payload)?;
        Ok((header, payload))
    }

    /// Writes a register of `region`.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn write_region(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        self.ask(Command::RegionWrite, &access(region, offset, data.len(), data)).map(drop)
    }

    /// Enables the device's memory decoding and DMA.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn enable(&mut self) -> io::Result<()> {
        self.write_region(REGION_CONFIG, PCI_COMMAND, &MEMORY_AND_DMA.to_le_bytes())
    }

    /// Maps a file for DMA.
    ///
    /// # Errors
    /// [`ErrorKind::PermissionDenied`] when the server refuses; else as [`Client::ask`].
    pub fn map_file(&mut self, address: u64, size: u64, file: impl AsFd) -> io::Result<()> {
        let (header, _) = self.ask_with(Command::DmaMap, &map(address, 0, size), &[file.as_fd()])?;
        match header.reply_error() {
            None => Ok(()),
            Some(errno) => Err(io::Error::new(ErrorKind::PermissionDenied, format!("DMA_MAP: {errno}"))),
        }
    }

    /// Waits until the server ends the connection, at most for `limit`.
    ///
    /// # Errors
    /// The system's error.
    pub fn wait_for_end(&mut self, limit: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(limit))?;
        let ended = match self.stream.read(&mut [0; 4096]) {
            Ok(_) => Ok(()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionReset) => {
                Ok(())
            }
            Err(error) => Err(error),
        };

        self.stream.set_read_timeout(Some(TIMEOUT))?;
        ended
    }
}
