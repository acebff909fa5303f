//! Messages of a server to a client: replies of every type that are correct, nearly correct or
//! wrong, the server's own requests, and any bytes.
//!
//! The replies are in the socket before the client sends its requests, which it numbers from 1 on.

use std::{
    os::unix::net::UnixStream,
    sync::{Arc, Mutex},
    time::Duration,
};

use nicforge_vfio_user::{
    Client, ClientConfig, ClientError, DmaMap, DmaUnmap, Errno, GuestMemory, IrqAction, IrqPayload,
    PCI_MSIX_IRQ, wire,
    wire::{Command, Header},
};

use crate::{
    input::Input,
    messages::{message, write_all},
};

/// Time limit of a call. All calls end earlier, since the server's end is closed already.
const LIMIT: Duration = Duration::from_secs(60);
/// Bytes of the client's memory that the server may reach.
const MEMORY: usize = 8192;
/// Calls in one input.
const CALLS: u16 = 24;
/// Number of bytes that a socket certainly buffers.
const ROOM: usize = 64 << 10;

/// Runs the test body on one fuzz input. The module's documentation describes the steps.
pub fn body(data: &[u8]) {
    parse(data);
    let mut input = Input::new(data);
    let (local_end, mut remote_end) = UnixStream::pair().unwrap();
    let calls: Vec<_> = (0..CALLS).map(|_| input.below(10)).collect();
    let mut bytes = Vec::new();

    for (id, call) in (1..).zip(std::iter::once(u32::MAX).chain(calls.iter().copied())) {
        if input.is_empty() || bytes.len() >= ROOM {
            break;
        }
        append_message(&mut bytes, id, call, &mut input);
    }

    bytes.truncate(ROOM);
    remote_end.set_nonblocking(true).unwrap();
    write_all(&mut remote_end, &bytes);

    // The client's own messages are never read, and fit into the socket.
    remote_end.shutdown(std::net::Shutdown::Write).unwrap();
    let memory = Arc::new(Memory(Mutex::new(vec![0; MEMORY])));
    let config = ClientConfig { timeout: LIMIT, memory: Some(memory), ..ClientConfig::default() };
    let Ok(client) = Client::from_socket(local_end.into(), config) else { return };

    assert!(client.limits().max_data_xfer_size > 0);

    for call in calls {
        let outcome = make_call(&client, call);
        assert!(!matches!(outcome, Err(ClientError::Timeout { .. })), "the server is gone: {outcome:?}");
        if matches!(outcome, Err(ClientError::Disconnected { .. })) {
            assert!(!client.is_alive());
            let next = client.reset();
            assert!(matches!(next, Err(ClientError::Disconnected { .. })), "no later call succeeds");
            break;
        }
    }
}

/// Runs the parsers of messages, and checks that a parsed message can be built again.
fn parse(data: &[u8]) {
    if let Ok((info, argsz)) = wire::parse_region_info(data) {
        let rebuilt = wire::build_region_info(0, &info, u32::MAX);
        let (info_again, argsz_again) = wire::parse_region_info(&rebuilt).unwrap();
        assert_eq!((info.size, &info.areas), (info_again.size, &info_again.areas));
        assert_eq!(argsz_again as usize, rebuilt.len());
        let _ = argsz;
    }

    if let Ok(version) = wire::parse_version(data) {
        let rebuilt = wire::parse_version(&wire::build_version(&version)).unwrap();
        assert_eq!((rebuilt.major, rebuilt.minor), (version.major, version.minor));
    }

    if let Some(header) = Header::parse(data) {
        assert_eq!(Header::parse(&header.to_bytes()), Some(header));
    }
}

/// Makes the call with a number of the client's library. [`reply`] has the reply to each.
fn make_call(client: &Client, call: u32) -> Result<(), ClientError> {
    let mut data = [0; 40];
    match call {
        0 => client.device_info().map(drop),
        1 => client.region_info(1).map(|info| {
            // Mapping code calls this on a server's region infos.
            let _ = info.mappable();
        }),
        2 => client.irq_info(PCI_MSIX_IRQ).map(drop),
        3 => client.region_read(0, 8, &mut data[..8]),
        4 => client.region_read(0, 0, &mut data),
        5 => client.region_write(0, 0, &data, false),
        6 => client.dma_map(DmaMap { flags: 3, size: 4096, ..DmaMap::default() }, None),
        7 => client.dma_unmap(DmaUnmap::Range { address: 0, size: 4096 }),
        8 => client.set_irqs(PCI_MSIX_IRQ, 0, IrqAction::Trigger, IrqPayload::Bool(&[true, false])),
        _ => client.reset(),
    }
}

/// Appends a server's message about the client's request number `id`.
fn append_message(bytes: &mut Vec<u8>, id: u16, call: u32, input: &mut Input<'_>) {
    match input.below(16) {
        0 => bytes.extend(input.bytes(40)),
        1 | 2 => bytes.extend(message(input).bytes),
        3 => {
            // Addresses inside and outside the memory that the server may reach.
            let count = u64::from(input.below(64));
            let address = u64::from(input.below(2 * MEMORY as u32));
            let command = input.pick(&[Command::DmaRead, Command::DmaWrite]);
            let mut payload = [address.to_le_bytes(), count.to_le_bytes()].concat();
            if command == Command::DmaWrite {
                payload.extend(vec![1; count as usize]);
            }

            bytes.extend(Header::request(id, command, payload.len(), false).to_bytes());
            bytes.extend(payload);
        }
        _ => {}
    }

    let (command, mut payload) = reply(call, input);
    match input.below(8) {
        0 => payload.truncate(usize::from(input.u8())),
        1 => {
            let at = input.below(64) as usize;
            if let Some(byte) = payload.get_mut(at) {
                *byte = input.u8();
            }
        }
        _ => {}
    }

    let header = match input.below(16) {
        0 => Header::error_reply(id, command, Errno::from_wire(input.u32())),
        1 => Header { size: input.number32(), ..Header::reply(id, command, 0) },
        2 => Header { flags: input.u32(), ..Header::reply(id, command, payload.len()) },
        3 => Header::reply(input.u16(), command, payload.len()),
        _ => Header::reply(id, command, payload.len()),
    };

    bytes.extend(header.to_bytes());
    bytes.extend(payload);
}

/// Returns the bytes of 32-bit words.
fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Returns the command and payload of a correct reply to the call with a number (see
/// [`make_call`]), or a payload of the same shape with any numbers. Other numbers mean the version
/// message.
fn reply(call: u32, input: &mut Input<'_>) -> (Command, Vec<u8>) {
    let any = input.below(4) == 0;
    let mut number = |good: u32| if any { input.number32() } else { good };
    match call {
        0 => (Command::DeviceGetInfo, words(&[16, number(2), number(9), number(5)])),
        1 => {
            let mut payload = words(&[number(32 + 40), number(0xf), 1, number(32), number(0x4000), 0, 0, 0]);
            payload.extend(words(&[0x0001_0001, number(0), number(1), 0, 0, 0, number(4096), 0]));
            payload.extend(words(&[number(0x0001_0002), number(0)]));
            (Command::DeviceGetRegionInfo, payload)
        }
        2 => (Command::DeviceGetIrqInfo, words(&[16, number(1), 2, number(8)])),
        3 => (Command::RegionRead, words(&[8, 0, 0, number(8), 1, 2])),
        4 => (Command::RegionRead, [words(&[0, 0, 0, number(40)]), vec![7; 40]].concat()),
        5 => (Command::RegionWrite, words(&[0, 0, 0, number(40)])),
        6 => (Command::DmaMap, Vec::new()),
        7 => (Command::DmaUnmap, vec![0; 24]),
        8 => (Command::DeviceSetIrqs, Vec::new()),
        9 => (Command::DeviceReset, Vec::new()),
        _ => {
            let mut payload = words(&[number(0)]);
            match input.below(4) {
                0 => {
                    let size = input.pick(&["1048576", "1", "0", "16", "18446744073709551616", "-1"]);
                    payload
                        .extend(format!("{{\"capabilities\":{{\"max_data_xfer_size\":{size}}}}}\0").bytes());
                }
                1 => payload.extend(input.bytes(60)),
                _ => {}
            }

            (Command::Version, payload)
        }
    }
}

/// The client's memory from address 0 on, which the server may reach.
struct Memory(Mutex<Vec<u8>>);

impl GuestMemory for Memory {
    fn read(&self, address: u64, data: &mut [u8]) -> Result<(), Errno> {
        let memory = self.0.lock().unwrap();
        let start = usize::try_from(address).map_err(|_| Errno::EFAULT)?;
        let end = start.checked_add(data.len()).ok_or(Errno::EFAULT)?;
        data.copy_from_slice(memory.get(start..end).ok_or(Errno::EFAULT)?);
        Ok(())
    }

    fn write(&self, address: u64, data: &[u8]) -> Result<(), Errno> {
        let mut memory = self.0.lock().unwrap();
        let start = usize::try_from(address).map_err(|_| Errno::EFAULT)?;
        let end = start.checked_add(data.len()).ok_or(Errno::EFAULT)?;
        memory.get_mut(start..end).ok_or(Errno::EFAULT)?.copy_from_slice(data);
        Ok(())
    }
}
