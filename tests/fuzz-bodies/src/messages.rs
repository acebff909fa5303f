//! vfio-user messages to a server: a stream of any bytes, and correctly framed messages of every
//! type with any payload and any descriptors, split anywhere.

use std::{
    collections::VecDeque,
    io::{ErrorKind, IoSlice, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::net::UnixStream,
    },
};

use nicforge_vfio_user::{
    CompleteError, DEVICE_FLAGS_PCI, DeviceInfo, DmaMap, DmaUnmap, Errno, Handler, IRQ_FLAG_EVENTFD,
    IRQ_FLAG_MASKABLE, IrqData, IrqInfo, Outcome, PCI_NUM_REGIONS, PeerFd, Progress, REGION_FLAG_MMAP,
    REGION_FLAG_READ, REGION_FLAG_WRITE, RegionInfo, RegionType, ServerConfig, ServerConnection, SetIrqs,
    SparseArea, Token,
    socket::{Framed, ReadOutcome},
    wire::{Command, HEADER_SIZE, Header, MessageType},
};
use nix::sys::{
    eventfd::{EfdFlags, EventFd},
    memfd::{MFdFlags, memfd_create},
    socket::{ControlMessage, MsgFlags, sendmsg},
};

use crate::input::Input;

/// Maximum number of messages in one input.
const MAX: usize = 64;
/// Bytes of the device's regions.
const REGION: u64 = 65536;
/// Exceeds the longest DMA operation, in bytes.
const LONGEST_DMA: usize = 3000;
/// Number of rounds within which a server must finish its input.
const MAX_STEPS: usize = 100_000;
/// Interrupts of each type.
const INTERRUPTS: u32 = 64;

/// A message with its descriptors.
pub struct Message {
    /// Header and payload.
    pub bytes: Vec<u8>,
    /// Descriptors.
    pub fds: Vec<OwnedFd>,
}

/// Sends any bytes to a server, before or after the version is agreed on.
pub fn stream(data: &[u8]) {
    let mut input = Input::new(data);
    let mut peer = Peer::new(ServerConfig::default(), &mut input);
    if input.flag() {
        peer.queue(request(Command::Version, &[0; 4], true));
    }

    while !input.is_empty() {
        let (maximum, is_repaired) = (1 + usize::from(input.u8()), input.below(4) > 0);
        let mut bytes = input.bytes(maximum).to_vec();
        if is_repaired && let Some(header) = Header::parse(&bytes) {
            // An arbitrary header mostly ends the connection. This one gets the right size, and
            // the message's type becomes a request or a reply.
            let size = bytes.len() as u32;
            bytes[..HEADER_SIZE]
                .copy_from_slice(&Header { size, flags: header.flags & !0xe, ..header }.to_bytes());
        }

        peer.queue(Message { bytes, fds: Vec::new() });
        if peer.run(usize::MAX).is_err() {
            return;
        }
    }
}

/// Sends correctly framed messages of every type to a server.
pub fn body(data: &[u8]) {
    let mut input = Input::new(data);
    let config = ServerConfig {
        max_data_xfer_size: input.pick(&[1 << 20, 1, 64, 4096]),
        budget: input.pick(&[64, 1, 3]),
        max_queued: input.pick(&[4 << 20, 1, 4096]),
        max_dma_outstanding: input.pick(&[64, 1, 4]),
        write_multiple: input.below(8) > 0,
        ..ServerConfig::default()
    };

    let mut peer = Peer::new(config, &mut input);
    peer.queue(version(&mut input));
    let agreed = peer.run(usize::MAX).is_ok() && peer.server.peer().is_some();

    for _ in 0..MAX {
        if input.is_empty() {
            break;
        }

        let next = message(&mut input);
        peer.queue(next);
        peer.reads = input.below(8) > 0;
        if input.below(4) == 0 {
            peer.start_dma(&mut input);
        }

        let max_piece = if input.flag() { usize::MAX } else { 1 + input.below(64) as usize };
        let run = peer.run(max_piece);

        // Until the version is agreed on, any other message ends the connection. From then on no
        // correctly framed message does.
        assert!(run.is_ok() || !agreed, "{run:?}");

        if run.is_err() {
            return;
        }
    }

    if agreed {
        peer.finish();
    }
}

/// Returns a version message, usually an acceptable one.
fn version(input: &mut Input<'_>) -> Message {
    let json = match input.below(8) {
        0..=2 => String::new(),
        3 => format!("{{\"capabilities\":{{\"max_msg_fds\":{}}}}}", input.number()),
        4 => format!(
            "{{\"capabilities\":{{\"max_data_xfer_size\":{},\"write_multiple\":{}}}}}",
            input.number(),
            input.flag()
        ),
        5 => format!("{{\"capabilities\":{{\"twin_socket\":{{\"supported\":{}}}}}}}", input.flag()),
        6 => String::from_utf8_lossy(input.bytes(64)).into_owned(),
        _ => "{\"capabilities\":".repeat(usize::from(input.u8())),
    };

    let mut payload = [input.pick(&[0_u16, 0, 0, 1]), input.pick(&[0, 1, u16::MAX])]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect::<Vec<_>>();

    payload.extend(json.as_bytes());
    if !json.is_empty() && input.below(8) > 0 {
        payload.push(0);
    }

    request(Command::Version, &payload, input.below(8) == 0)
}

/// Returns a correctly framed message of any type.
pub fn message(input: &mut Input<'_>) -> Message {
    // The numbers 1 to 18 are those of the commands.
    let command = match input.below(8) {
        0 => Command::from_number(input.u16()),
        1 => Command::DeviceSetIrqs,
        2 => Command::RegionRead,
        3 => Command::RegionWrite,
        _ => Command::from_number(input.below(19) as u16),
    };

    let mut payload = payload(command, input);
    match input.below(16) {
        0 => payload.truncate(input.below(40) as usize),
        1 => payload.extend(input.array::<8>()),
        _ => {}
    }

    let header = match input.below(16) {
        0 => Header::reply(input.below(4) as u16, command, payload.len()),
        1 => Header {
            error: input.u32(),
            flags: 0x21,
            ..Header::reply(input.below(4) as u16, command, payload.len())
        },
        2 | 3 => Header::request(input.u16(), command, payload.len(), true),
        // Reserved bits are ignored.
        4 => Header {
            flags: input.u32() & !0xf,
            ..Header::request(input.u16(), command, payload.len(), false)
        },
        _ => Header::request(input.u16(), command, payload.len(), false),
    };

    let fds = descriptors(command, input);
    Message { bytes: [&header.to_bytes()[..], &payload].concat(), fds }
}

/// Returns a request with the id 0 and no descriptors.
fn request(command: Command, payload: &[u8], no_reply: bool) -> Message {
    let header = Header::request(0, command, payload.len(), no_reply);
    Message { bytes: [&header.to_bytes()[..], payload].concat(), fds: Vec::new() }
}

/// Returns the bytes of 32-bit words.
fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Returns the bytes of 64-bit words.
fn longs(longs: &[u64]) -> Vec<u8> {
    longs.iter().flat_map(|long| long.to_le_bytes()).collect()
}

/// Returns an address or a size, usually of whole pages.
fn pages(input: &mut Input<'_>) -> u64 {
    if input.below(4) > 0 { u64::from(input.below(8)) * 4096 } else { input.number() }
}

/// Returns the size that a payload names, mostly the right one.
fn argsz(input: &mut Input<'_>, right: u32) -> u32 {
    if input.below(4) > 0 { right } else { input.number32() }
}

/// Returns a payload of a command's shape, with values that are often valid.
fn payload(command: Command, input: &mut Input<'_>) -> Vec<u8> {
    match command {
        // Memory
        Command::DmaMap => {
            let head = words(&[argsz(input, 32), input.pick(&[3, 1, 2, 0, 4, u32::MAX])]);
            [head, longs(&[pages(input), pages(input), pages(input)])].concat()
        }
        Command::DmaUnmap => {
            let head = words(&[argsz(input, 24), input.pick(&[0, 0, 2, 1])]);
            [head, longs(&[pages(input), pages(input)])].concat()
        }

        // Descriptions of the device
        Command::DeviceGetInfo => words(&[argsz(input, 16), 0, 0, 0]),
        Command::DeviceGetRegionInfo => {
            let head = [argsz(input, 4096), 0, region(input), 0];
            [words(&head), longs(&[0, 0])].concat()
        }
        Command::DeviceGetIrqInfo | Command::DeviceGetRegionIoFds => {
            words(&[argsz(input, 16), 0, input.pick(&[0, 1, 2, 3, 4, 5, u32::MAX]), 0])
        }

        // Interrupts, with any subset of flags
        Command::DeviceSetIrqs => {
            let flags = input.pick(&[1, 2, 4]) | input.pick(&[8, 16, 32, 0, 24]);
            let count = if input.below(4) > 0 { input.below(8) } else { input.number32() };
            let start = if input.below(4) > 0 { input.below(4) } else { input.number32() };
            let head = words(&[argsz(input, count.saturating_add(20)), flags, input.below(6), start, count]);
            let data = if flags & 2 != 0 { input.bytes(count.min(300) as usize) } else { &[] };
            [&head, data].concat()
        }

        // Regions, with right or wrong counts
        Command::RegionRead => region_access(input).0,
        Command::RegionWrite => {
            let (head, count) = region_access(input);
            let mut data = vec![0; if input.below(8) > 0 { count.min(2000) as usize } else { 4 }];
            let bytes = input.bytes(data.len().min(16));
            data[..bytes.len()].copy_from_slice(bytes);
            [head, data].concat()
        }
        Command::RegionWriteMulti => {
            let writes = input.below(6);
            let count = if input.below(8) > 0 { writes.into() } else { input.number() };
            let mut payload = longs(&[count]);
            for _ in 0..writes {
                payload.extend(longs(&[offset(input)]));
                payload.extend(words(&[region(input), input.pick(&[4, 8, 1, 0, 9])]));
                payload.extend(input.array::<8>());
            }
            payload
        }

        // Commands of the server, and others
        Command::DmaRead | Command::DmaWrite => {
            let count = input.pick(&[8, 0, 4096, u64::MAX]);
            [longs(&[pages(input), count]), input.bytes(8).to_vec()].concat()
        }
        Command::DeviceReset => Vec::new(),
        _ => input.bytes(40).to_vec(),
    }
}

/// Returns the index of a region, mostly of an existing one.
fn region(input: &mut Input<'_>) -> u32 {
    if input.below(8) > 0 { input.below(PCI_NUM_REGIONS + 1) } else { input.number32() }
}

/// Returns an offset in a region, mostly within it.
fn offset(input: &mut Input<'_>) -> u64 {
    match input.below(4) {
        0 => 0,
        1 => u64::from(input.below(0x100)),
        2 => u64::from(input.below(0x8000)),
        _ => input.number(),
    }
}

/// Returns the first part of a region access's payload, and the count of bytes that it names.
fn region_access(input: &mut Input<'_>) -> (Vec<u8>, u32) {
    let count = match input.below(4) {
        0 => 4,
        1 => 8,
        2 => input.below(600),
        _ => input.number32(),
    };

    ([longs(&[offset(input)]), words(&[region(input), count])].concat(), count)
}

/// Returns a right or wrong number of descriptors, of right or wrong kinds.
fn descriptors(command: Command, input: &mut Input<'_>) -> Vec<OwnedFd> {
    let count = match (command, input.below(8)) {
        (Command::DmaMap, 0..=4) => 1,
        (Command::DeviceSetIrqs, 0..=4) => input.below(9),
        (_, 7) => input.pick(&[1, 2, 17]),
        _ => 0,
    };

    (0..count)
        .map(|_| match (command, input.below(8)) {
            (Command::DmaMap, 0..=4) => file(u64::from(input.below(8)) * 4096),
            (_, 5) => UnixStream::pair().unwrap().0.into(),
            (_, 6) => file(4096),
            (_, 7) => std::fs::File::open("/dev/null").unwrap().into(),
            _ => EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).unwrap().into(),
        })
        .collect()
}

/// Returns a file of zeros.
fn file(size: u64) -> OwnedFd {
    let fd = memfd_create(c"fuzz", MFdFlags::MFD_CLOEXEC).unwrap();
    nix::unistd::ftruncate(&fd, size as i64).unwrap();
    fd
}

/// Sends as many bytes as the socket takes, with descriptors on the first byte. Returns the number
/// of bytes.
pub fn send(socket: &UnixStream, bytes: &[u8], fds: &[OwnedFd]) -> usize {
    let raw: Vec<_> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control = if raw.is_empty() { &[][..] } else { &rights[..] };
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], control, flags, None).unwrap_or(0)
}

/// A client in the same thread as its server.
struct Peer {
    socket: UnixStream,
    reader: Framed,
    server: ServerConnection,
    device: Device,
    /// Messages that are not sent yet.
    waiting: VecDeque<Message>,
    /// Number of messages sent and waiting, including answers to the server's requests.
    queued: u64,
    /// Whether the client reads what the server sends.
    reads: bool,
    /// A number that changes at each request of the server, and decides how it is answered.
    answers: u8,
}

impl Peer {
    /// Connects a client to a new server.
    fn new(config: ServerConfig, input: &mut Input<'_>) -> Self {
        let (socket, server) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        let reader = Framed::new(socket.try_clone().unwrap().into(), 8 << 20, 16);
        let (aborts_for_reset, deferred_bits) = (input.flag(), input.u8());
        let device = Device { aborts_for_reset, deferred_bits, ..Device::default() };

        Self {
            socket,
            reader,
            server: ServerConnection::new(server.into(), config),
            device,
            waiting: VecDeque::new(),
            queued: 0,
            reads: true,
            answers: input.u8(),
        }
    }

    /// Lets the next run send a message.
    fn queue(&mut self, message: Message) {
        self.queued += 1;
        self.waiting.push_back(message);
    }

    /// Lets the device read or write the client's memory. It may have to wait for the client.
    fn start_dma(&mut self, input: &mut Input<'_>) {
        // The length is limited, since a client with a transfer size of one byte gets a message
        // for each byte.
        let (address, length, token) =
            (pages(input), input.number() as usize % LONGEST_DMA, self.device.dma_started);
        let outstanding = self.server.dma_outstanding();
        let outcome = if input.flag() {
            self.server.dma_read(address, length, token)
        } else {
            self.server.dma_write(address, &vec![1; length], token)
        };

        assert_eq!(self.server.dma_outstanding(), outstanding + usize::from(outcome.is_ok()));

        self.device.dma_started += u64::from(outcome.is_ok());
    }

    /// Sends queued messages in pieces of at most `max_piece` bytes, and runs the server in
    /// between.
    fn run(&mut self, max_piece: usize) -> Result<(), nicforge_vfio_user::ConnectionError> {
        for _ in 0..MAX_STEPS {
            let Some(message) = self.waiting.front_mut() else { break };
            let piece = &message.bytes[..message.bytes.len().min(max_piece)];
            let sent = send(&self.socket, piece, &message.fds);

            if sent > 0 {
                message.fds.clear();
                message.bytes.drain(..sent);
            }

            if message.bytes.is_empty() {
                self.waiting.pop_front();
            }

            self.serve()?;
            if sent == 0 && !self.reads {
                // Both sides wait for the other to read, so the client begins to.
                self.reads = true;
            }
        }

        self.serve()
    }

    /// Runs the server until it has no more work.
    fn serve(&mut self) -> Result<(), nicforge_vfio_user::ConnectionError> {
        for _ in 0..MAX_STEPS {
            let progress = self.server.on_readable(&mut self.device)?;
            self.server.on_writable()?;
            self.complete();
            if self.reads {
                self.read();
            }
            if progress != Progress::More && !self.server.ready() {
                return Ok(());
            }
        }

        panic!("the server does not come to an end");
    }

    /// Completes the deferred request, after an attempt with a wrong token that must fail.
    fn complete(&mut self) {
        let Some(token) = self.server.deferred() else { return };
        let with_wrong_token = self.server.complete(token ^ 1, Ok(()));

        assert!(matches!(with_wrong_token, Err(CompleteError::NotDeferred { .. })));

        self.device.completed = self.device.completed.wrapping_add(1);
        if self.device.completed.is_multiple_of(3) {
            self.server.complete(token, Err(Errno::EIO)).unwrap();
        } else if let Err(CompleteError::Length { expected, .. }) = self.server.complete(token, Ok(())) {
            self.server.complete_read(token, Ok(&vec![3; expected])).unwrap();
        }
    }

    /// Takes the server's messages, and answers its requests in some way.
    fn read(&mut self) {
        loop {
            let Ok(message) = self.reader.next_message() else { panic!("the server's framing is bad") };
            let Some(message) = message else {
                match self.reader.fill() {
                    Ok(ReadOutcome::Data { .. }) => continue,
                    _ => return,
                }
            };

            let header = message.header;
            if header.message_type() == MessageType::Reply {
                continue;
            }

            let mut payload = message.payload[..message.payload.len().min(16)].to_vec();
            let count = payload.get(8..16).map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
            self.answers = self.answers.rotate_left(1).wrapping_add(1);
            if header.command == Command::DmaRead && !self.answers.is_multiple_of(4) {
                payload.extend(vec![2; count as usize + usize::from(self.answers.is_multiple_of(7))]);
            }

            let reply = match self.answers % 8 {
                0 => Header::error_reply(header.id, header.command, Errno::EFAULT),
                1 => Header::reply(header.id.wrapping_add(1), header.command, payload.len()),
                _ => Header::reply(header.id, header.command, payload.len()),
            };

            payload.truncate(reply.size as usize - reply.to_bytes().len());
            let bytes = [&reply.to_bytes()[..], &payload].concat();
            self.queue(Message { bytes, fds: Vec::new() });
        }
    }

    /// Checks that all sent messages are served in the end, and counted.
    fn finish(&mut self) {
        self.reads = true;
        for _ in 0..MAX_STEPS {
            self.run(usize::MAX).expect("no message with a good framing ends the connection");
            if self.waiting.is_empty() {
                break;
            }
        }

        self.server.fail_dma(Errno::ECANCELED, &mut self.device);
        assert_eq!(self.server.dma_outstanding(), 0);
        assert_eq!(self.device.dma_ended, self.device.dma_started, "each operation ends once");
        assert_eq!(self.server.counters().messages, self.queued);

        // A connection that is closed between two messages ends in order.
        self.socket.shutdown(std::net::Shutdown::Both).unwrap();
        let is_noticed =
            (0..4).any(|_| matches!(self.server.on_readable(&mut self.device), Ok(Progress::Closed)));

        assert!(is_noticed, "the server notices the end of the connection");
    }
}

/// A device of 64 KiB that defers some requests.
#[derive(Default)]
struct Device {
    /// Whether deferred requests are aborted for a reset.
    aborts_for_reset: bool,
    /// Bit `n` defers the requests whose number is `n` modulo 8.
    deferred_bits: u8,
    requests: u8,
    /// Deferred requests that were completed.
    completed: u8,
    /// DMA operations that were started, and those of them that have ended.
    dma_started: Token,
    dma_ended: Token,
}

impl Device {
    /// Counts a request, and carries it out or defers it.
    fn outcome(&mut self) -> Outcome {
        self.requests = self.requests.wrapping_add(1);
        if self.deferred_bits & (1 << (self.requests % 8)) != 0 {
            Outcome::Deferred(self.requests.into())
        } else {
            Outcome::Done
        }
    }

    /// Returns the outcome of a region access, after a check that the server checks its range.
    fn access_outcome(&mut self, index: u32, offset: u64, length: usize) -> Outcome {
        assert!(length > 0 && offset.checked_add(length as u64).is_some(), "the connection has checked that");
        if index >= PCI_NUM_REGIONS || offset + length as u64 > REGION {
            return Outcome::Failed(Errno::EINVAL);
        }
        self.outcome()
    }
}

impl Handler for Device {
    fn device_info(&mut self) -> DeviceInfo {
        DeviceInfo { flags: DEVICE_FLAGS_PCI, num_regions: PCI_NUM_REGIONS, num_irqs: 5 }
    }

    fn region_info(&mut self, index: u32) -> Result<RegionInfo, Errno> {
        let flags = REGION_FLAG_READ | REGION_FLAG_WRITE;
        match index {
            1 => Ok(RegionInfo {
                flags: flags | REGION_FLAG_MMAP,
                size: REGION,
                offset: 0,
                areas: vec![SparseArea { offset: 4096, size: 4096 }; 3],
                region_type: Some(RegionType { kind: 1, subtype: 2 }),
                fd: Some(file(REGION)),
            }),
            _ if index < PCI_NUM_REGIONS => Ok(RegionInfo { flags, size: REGION, ..RegionInfo::default() }),
            _ => Err(Errno::EINVAL),
        }
    }

    fn irq_info(&mut self, index: u32) -> Result<IrqInfo, Errno> {
        if index > 4 {
            return Err(Errno::EINVAL);
        }
        Ok(IrqInfo { flags: IRQ_FLAG_EVENTFD | IRQ_FLAG_MASKABLE, count: INTERRUPTS })
    }

    fn region_read(&mut self, index: u32, offset: u64, data: &mut [u8]) -> Outcome {
        data.fill(offset as u8);
        self.access_outcome(index, offset, data.len())
    }

    fn region_write(&mut self, index: u32, offset: u64, data: &[u8]) -> Outcome {
        self.access_outcome(index, offset, data.len())
    }

    fn dma_map(&mut self, map: DmaMap, _fd: Option<PeerFd>) -> Outcome {
        assert!(map.size > 0 && map.address.checked_add(map.size - 1).is_some());
        self.outcome()
    }

    fn dma_unmap(&mut self, unmap: DmaUnmap) -> Outcome {
        match unmap {
            DmaUnmap::Range { size: 4096, .. } => Outcome::Failed(Errno::ENOENT),
            _ => self.outcome(),
        }
    }

    fn set_irqs(&mut self, irqs: SetIrqs) -> Result<(), Errno> {
        assert!(irqs.start.checked_add(irqs.count).is_some_and(|end| end <= INTERRUPTS));

        let entries = match &irqs.data {
            IrqData::None => irqs.count as usize,
            IrqData::Bool(flags) => flags.len(),
            IrqData::EventFd(fds) => fds.len(),
        };

        assert_eq!(entries, irqs.count as usize);

        Ok(())
    }

    fn reset(&mut self) -> Outcome {
        self.outcome()
    }

    fn reset_pending(&mut self, _token: Token) -> Option<Errno> {
        self.aborts_for_reset.then_some(Errno::ECANCELED)
    }

    fn dma_read_done(&mut self, _token: Token, _result: Result<&[u8], Errno>) {
        self.dma_ended += 1;
    }

    fn dma_write_done(&mut self, _token: Token, _result: Result<(), Errno>) {
        self.dma_ended += 1;
    }
}

/// Writes all bytes, unless the other side is gone or takes no more.
pub fn write_all(socket: &mut UnixStream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match socket.write(bytes) {
            Ok(sent) if sent > 0 => bytes = &bytes[sent..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            _ => return,
        }
    }
}
