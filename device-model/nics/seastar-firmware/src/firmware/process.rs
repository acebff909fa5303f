//! Processes of the node: modes, address maps, and the inspection of their commands.

use alloc::boxed::Box;

use nicforge_hwi::seastar::{Command, INLINE, MAX_PROCESSES, MAX_RANGES, Piece, STREAMS, code, command};

use crate::{
    chip::Client,
    matching::{Identity, Limits, Process as Portals},
    scratch::{NoSpace, Scratch},
};

/// Event queues that a process in NIC-based mode can have.
const QUEUES: u16 = 16;
/// Maximum number of match entries and descriptors of a process in NIC-based mode.
const MAX_RECEIVES: u16 = 4096;

/// A process that the kernel has started.
#[allow(clippy::large_enum_variant, reason = "the large one is boxed")]
pub(super) enum Process {
    /// The kernel matches its messages.
    HostBased,
    /// The firmware matches its messages.
    NicBased(Box<NicBased>),
}

/// A process in NIC-based mode.
pub(super) struct NicBased {
    pub(super) portals: Portals,
    pub(super) map: Map,
    /// It begins anew when its client has detached.
    pub(super) is_permanent: bool,
    /// Bytes of scratch memory that it takes.
    bytes: usize,
}

impl NicBased {
    /// Allocates all that the process will use: an equal share of what the others leave.
    pub(super) fn new(
        (identity, generation): (Identity, u16),
        map: Map,
        outgoing: u16,
        shares: u16,
        scratch: &mut Scratch,
    ) -> Result<Self, NoSpace> {
        let share = scratch.free() as usize / usize::from(shares.max(1));
        let fixed = size_of::<Map>();
        let least = Limits { entries: 0, descriptors: 0, queues: QUEUES, incoming: STREAMS / 2, outgoing };
        let mut limits = least.with_receives_in(share.saturating_sub(fixed));
        limits.entries = limits.entries.min(MAX_RECEIVES);
        limits.descriptors = limits.descriptors.min(MAX_RECEIVES);

        let bytes = fixed + limits.bytes();
        scratch.take(bytes)?;
        Ok(Self {
            portals: Portals::with_generation(identity, limits, generation),
            map,
            is_permanent: false,
            bytes,
        })
    }

    /// Returns the bytes of scratch memory that the process takes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// A range of a process's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Range {
    start: u64,
    end: u64,
}

/// The memory that a process in NIC-based mode may name: ranges that the kernel has given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Map {
    ranges: [Range; MAX_RANGES],
    count: u8,
}

impl Map {
    /// Adds ranges of a client's memory. Changes nothing if one of them is refused.
    pub(super) fn add(&mut self, client: Client, pieces: &[Piece]) -> Result<(), u32> {
        let mut map = *self;
        for piece in pieces {
            let end = piece.address.checked_add(u64::from(piece.length));
            let is_good = piece.attachment == client.0 && piece.reserved == 0 && piece.length > 0;
            let Some(end) = end.filter(|_| is_good) else { return Err(code::SEGMENT_VIOLATION) };

            let slot = map.ranges.get_mut(usize::from(map.count)).ok_or(code::NO_SPACE)?;
            *slot = Range { start: piece.address, end };
            map.count += 1;
        }
        *self = map;
        Ok(())
    }

    /// Returns whether one range has all of these bytes.
    pub(super) fn contains(&self, start: u64, length: u64) -> bool {
        let Some(end) = start.checked_add(length) else { return false };
        length == 0
            || self
                .ranges
                .iter()
                .take(usize::from(self.count))
                .any(|range| range.start <= start && end <= range.end)
    }
}

/// Returns the client of a process.
pub(super) fn client_of(process: u16) -> Client {
    Client(process + 1)
}

/// Returns the process of a client, or `None` for the kernel and for clients that do not exist.
pub(super) fn process_of(client: Client) -> Option<u16> {
    client.0.checked_sub(1).filter(|process| *process < MAX_PROCESSES)
}

/// Returns whether all fields that a command does not use are zero.
pub(super) fn has_no_other_fields(given: &Command) -> bool {
    let mut rest = *given;
    let entry = |rest: &mut Command| {
        rest.portal = 0;
        rest.node = 0;
        rest.process = 0;
        rest.match_bits = 0;
        rest.ignore_bits = 0;
        rest.options = 0;
    };
    let descriptor = |rest: &mut Command| {
        rest.queue = 0;
        rest.start = 0;
        rest.length = 0;
        rest.threshold = 0;
        rest.max_size = 0;
        rest.options = 0;
        rest.user_pointer = 0;
    };
    let message = |rest: &mut Command| {
        rest.handle = 0;
        rest.local_offset = 0;
        rest.length = 0;
        rest.node = 0;
        rest.process = 0;
        rest.portal = 0;
        rest.access = 0;
        rest.match_bits = 0;
        rest.offset = 0;
        rest.options = 0;
    };

    match given.kind {
        command::ALLOCATE_QUEUE => {
            rest.start = 0;
            rest.length = 0;
        }
        command::FREE_QUEUE | command::UNLINK_ENTRY | command::UNLINK_DESCRIPTOR | command::STATUS => {
            rest.handle = 0;
        }
        command::ATTACH_ENTRY => entry(&mut rest),
        command::INSERT_ENTRY => {
            rest.handle = 0;
            entry(&mut rest);
        }
        command::ATTACH_DESCRIPTOR => {
            rest.handle = 0;
            descriptor(&mut rest);
        }
        command::BIND_DESCRIPTOR => descriptor(&mut rest),
        command::UPDATE_DESCRIPTOR => {
            rest.handle = 0;
            rest.test_queue = 0;
            rest.test_number = 0;
            descriptor(&mut rest);
        }
        command::SET_ACCESS => {
            rest.access = 0;
            rest.node = 0;
            rest.process = 0;
            rest.portal = 0;
        }
        command::PUT => {
            message(&mut rest);
            rest.header_data = 0;
            rest.inline = [0; INLINE];
        }
        command::GET => message(&mut rest),
        command::POST => {
            rest.handle = 0;
            rest.test_queue = 0;
            rest.test_number = 0;
            entry(&mut rest);
            descriptor(&mut rest);
        }
        _ => return false,
    }
    rest == Command { kind: given.kind, ..Command::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(address: u64, length: u32) -> Piece {
        Piece { address, length, attachment: 1, reserved: 0 }
    }

    #[test]
    fn map_contains_only_whole_ranges() {
        let mut map = Map::default();
        map.add(Client(1), &[piece(0x1000, 0x1000), piece(0x4000, 0x100)]).unwrap();

        assert!(map.contains(0x1000, 0x1000));
        assert!(map.contains(0x4000, 0x100));
        assert!(!map.contains(0x1fff, 2));
        assert!(!map.contains(0xfff, 2));
        assert!(!map.contains(u64::MAX, 2));
    }

    #[test]
    fn map_refuses_memory_of_others_and_ranges_that_wrap() {
        let mut map = Map::default();

        assert_eq!(map.add(Client(2), &[piece(0, 1)]), Err(code::SEGMENT_VIOLATION));
        assert_eq!(map.add(Client(1), &[piece(u64::MAX, 1)]), Err(code::SEGMENT_VIOLATION));
        assert_eq!(map.add(Client(1), &[piece(0, 0)]), Err(code::SEGMENT_VIOLATION));
        assert_eq!(map.add(Client(1), &[piece(0, 1); MAX_RANGES + 1]), Err(code::NO_SPACE));
        assert_eq!(map, Map::default());
    }

    #[test]
    fn command_with_a_field_that_it_does_not_use_is_refused() {
        let free = Command { kind: command::FREE_QUEUE, handle: 3, ..Command::default() };
        assert!(has_no_other_fields(&free));
        assert!(!has_no_other_fields(&Command { start: 1, ..free }));
        assert!(!has_no_other_fields(&Command { reserved: [0, 1], ..free }));
        assert!(!has_no_other_fields(&Command { kind: 77, ..Command::default() }));
    }
}
