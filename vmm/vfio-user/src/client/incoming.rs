//! Requests of the server: `DMA_READ` and `DMA_WRITE` to memory that was mapped without a
//! descriptor.

use zerocopy::IntoBytes;

use super::GuestMemory;
use crate::Errno;
use crate::socket::Message;
use crate::wire::{Command, DmaAccess, HEADER_SIZE, Header, parse_prefix};

/// Size of a DMA message without its data.
const FIXED: usize = HEADER_SIZE + size_of::<DmaAccess>();

/// Maximum number of answers of the largest size that wait for a server that does not read them.
const MAX_QUEUED_ANSWERS: usize = 64;
/// Maximum number of bytes in such answers.
const MAX_QUEUED_BYTES: usize = 256 << 20;

/// Returns how many bytes of answers may wait for a server that does not read them. An answer has
/// `max_data` bytes of data at most.
pub(super) fn max_queued(max_data: u32) -> usize {
    (max_data as usize).saturating_mul(MAX_QUEUED_ANSWERS).min(MAX_QUEUED_BYTES)
}

/// Carries out a request of the server, and returns the whole answer with its header.
pub(super) fn answer(memory: Option<&dyn GuestMemory>, max_data: u32, message: &Message<'_>) -> Vec<u8> {
    let header = message.header;
    let result = match header.command {
        Command::DmaRead => read(memory, max_data, header, message.payload),
        Command::DmaWrite => write(memory, max_data, header, message.payload),
        Command::Unknown(_) => Err(Errno::ENOSYS),
        _ => Err(Errno::ENOTSUP),
    };
    result.unwrap_or_else(|errno| Header::error_reply(header.id, header.command, errno).to_bytes().to_vec())
}

/// Reads the memory that a request of the server names. Returns the whole reply.
fn read(
    memory: Option<&dyn GuestMemory>,
    max_data: u32,
    header: Header,
    payload: &[u8],
) -> Result<Vec<u8>, Errno> {
    let (access, count, _) = parse_access(max_data, payload)?;

    let mut reply = vec![0; FIXED + count];
    let (fixed, data) = reply.split_at_mut(FIXED);
    memory.ok_or(Errno::EFAULT)?.read(access.address.get(), data)?;
    put_fixed(fixed, header, &access, count);
    Ok(reply)
}

/// Writes the memory that a request of the server names. Returns the whole reply.
fn write(
    memory: Option<&dyn GuestMemory>,
    max_data: u32,
    header: Header,
    payload: &[u8],
) -> Result<Vec<u8>, Errno> {
    let (access, count, data) = parse_access(max_data, payload)?;
    if data.len() != count {
        return Err(Errno::EINVAL);
    }

    memory.ok_or(Errno::EFAULT)?.write(access.address.get(), data)?;
    let mut reply = vec![0; FIXED];
    put_fixed(&mut reply, header, &access, 0);
    Ok(reply)
}

/// Parses and checks the fixed part of a request. Returns it with its number of bytes as a `usize`,
/// and with the data that follow it.
fn parse_access(max_data: u32, payload: &[u8]) -> Result<(DmaAccess, usize, &[u8]), Errno> {
    let (access, data) = parse_prefix::<DmaAccess>(payload).map_err(|_| Errno::EINVAL)?;
    let count = access.count.get();
    if count > max_data.into() || access.address.get().checked_add(count).is_none() {
        return Err(Errno::EINVAL);
    }
    Ok((access, count as usize, data))
}

/// Writes the header and the fixed part of a reply that carries `data_len` bytes of data. The fixed
/// part repeats the request's.
fn put_fixed(fixed: &mut [u8], header: Header, access: &DmaAccess, data_len: usize) {
    let reply = Header::reply(header.id, header.command, size_of::<DmaAccess>() + data_len);
    fixed[..HEADER_SIZE].copy_from_slice(&reply.to_bytes());
    fixed[HEADER_SIZE..FIXED].copy_from_slice(access.as_bytes());
}
