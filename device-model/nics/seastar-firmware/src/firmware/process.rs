//! Processes of the node: modes, address maps, and the inspection of their commands.

use alloc::boxed::Box;

use nicforge_hwi::seastar::{Command, MAX_PROCESSES, MAX_RANGES, Piece, STREAMS, code};
use zerocopy::transmute_ref;

use crate::{
    chip::Client,
    matching::{Identity, Limits, Process as Portals},
    scratch::{NoSpace, Scratch},
};

/// Maximum number of event queues that a process in NIC-based mode has.
const MAX_QUEUES: u16 = 16;
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
    /// Its portals, match entries, descriptors and event queues.
    pub(super) portals: Portals,
    /// The memory that it may name.
    pub(super) map: Map,
    /// It starts again when its client has detached.
    pub(super) is_permanent: bool,
    /// Bytes of scratch memory that it takes.
    bytes: usize,
}

impl NicBased {
    /// Allocates all memory that the process will use: one of `shares` equal shares of the free
    /// scratch memory. What its fixed tables leave of that is for match entries and descriptors.
    ///
    /// `max_outgoing` is the number of operations that the process may have in progress.
    /// `generation` is that of its first handles.
    pub(super) fn new(
        identity: Identity,
        generation: u16,
        map: Map,
        max_outgoing: u16,
        shares: u16,
        scratch: &mut Scratch,
    ) -> Result<Self, NoSpace> {
        let share = scratch.free() as usize / usize::from(shares.max(1));
        let map_bytes = size_of::<Map>();
        let without_receives = Limits {
            entries: 0,
            descriptors: 0,
            queues: MAX_QUEUES,
            incoming: STREAMS / 2,
            outgoing: max_outgoing,
        };
        let mut limits = without_receives.with_receives_in(share.saturating_sub(map_bytes));
        limits.entries = limits.entries.min(MAX_RECEIVES);
        limits.descriptors = limits.descriptors.min(MAX_RECEIVES);

        let bytes = map_bytes + limits.bytes();
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

/// The address map of a process in NIC-based mode: the ranges of its memory that the kernel lets it
/// name in commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Map {
    ranges: [Range; MAX_RANGES],
    count: u8,
}

impl Map {
    /// Adds ranges of a client's memory. Returns the [`code`] of a range that is refused, and then
    /// changes nothing.
    pub(super) fn add(&mut self, client: Client, pieces: &[Piece]) -> Result<(), u32> {
        let mut map = *self;
        for piece in pieces {
            let end = piece.address.checked_add(u64::from(piece.length));
            let is_well_formed = piece.attachment == client.0 && piece.reserved == 0 && piece.length > 0;
            let Some(end) = end.filter(|_| is_well_formed) else { return Err(code::SEGMENT_VIOLATION) };

            let slot = map.ranges.get_mut(usize::from(map.count)).ok_or(code::NO_SPACE)?;
            *slot = Range { start: piece.address, end };
            map.count += 1;
        }
        *self = map;
        Ok(())
    }

    /// Returns whether a single range has all of these bytes, or there are none.
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
pub(super) fn unused_fields_are_zero(command: &Command) -> bool {
    let Some(used) = fields::used_by(command.kind) else { return false };
    let (command, used): (&[u64; WORDS], &[u64; WORDS]) = (transmute_ref!(command), transmute_ref!(used));
    // The words are combined and tested once: a branch for each word would cost more, because all
    // unused ones are zero in most commands.
    let set_bits = command.iter().zip(used).fold(0, |bits, (command, used)| bits | command & !used);
    set_bits == 0
}

/// Number of words of a command.
const WORDS: usize = size_of::<Command>() / size_of::<u64>();

/// A mask for each kind of command: all bits are set in the fields that it uses, and no others.
mod fields {
    use nicforge_hwi::seastar::{Command, INLINE, command};

    const NONE: Command = Command {
        kind: u16::MAX,
        options: 0,
        handle: 0,
        queue: 0,
        test_queue: 0,
        start: 0,
        length: 0,
        match_bits: 0,
        ignore_bits: 0,
        offset: 0,
        local_offset: 0,
        header_data: 0,
        user_pointer: 0,
        max_size: 0,
        threshold: 0,
        node: 0,
        process: 0,
        portal: 0,
        access: 0,
        test_number: 0,
        reserved: [0; 2],
        inline: [0; INLINE],
    };

    const HANDLE: Command = Command { handle: u32::MAX, ..NONE };
    const QUEUE: Command = Command { start: u64::MAX, length: u64::MAX, ..NONE };
    const ACCESS: Command =
        Command { access: u8::MAX, node: u32::MAX, process: u16::MAX, portal: u8::MAX, ..NONE };
    const ENTRY: Command = Command {
        portal: u8::MAX,
        node: u32::MAX,
        process: u16::MAX,
        match_bits: u64::MAX,
        ignore_bits: u64::MAX,
        options: u16::MAX,
        ..NONE
    };
    const INSERTED_ENTRY: Command = Command { handle: u32::MAX, ..ENTRY };

    const DESCRIPTOR: Command = Command {
        queue: u32::MAX,
        start: u64::MAX,
        length: u64::MAX,
        threshold: -1,
        max_size: u64::MAX,
        options: u16::MAX,
        user_pointer: u64::MAX,
        ..NONE
    };
    const ATTACHED_DESCRIPTOR: Command = Command { handle: u32::MAX, ..DESCRIPTOR };
    const UPDATE: Command = Command { test_queue: u32::MAX, test_number: u32::MAX, ..ATTACHED_DESCRIPTOR };
    const POST: Command = Command {
        portal: u8::MAX,
        node: u32::MAX,
        process: u16::MAX,
        match_bits: u64::MAX,
        ignore_bits: u64::MAX,
        ..UPDATE
    };

    const GET: Command = Command {
        handle: u32::MAX,
        local_offset: u64::MAX,
        length: u64::MAX,
        node: u32::MAX,
        process: u16::MAX,
        portal: u8::MAX,
        access: u8::MAX,
        match_bits: u64::MAX,
        offset: u64::MAX,
        options: u16::MAX,
        ..NONE
    };
    const PUT: Command = Command { header_data: u64::MAX, inline: [u8::MAX; INLINE], ..GET };

    /// Returns the mask of a kind of command, or `None` if there is no such kind.
    #[inline]
    pub(super) const fn used_by(kind: u16) -> Option<&'static Command> {
        Some(match kind {
            command::PUT => &PUT,
            command::GET => &GET,
            command::POST => &POST,
            command::ALLOCATE_QUEUE => &QUEUE,
            command::FREE_QUEUE | command::UNLINK_ENTRY | command::UNLINK_DESCRIPTOR | command::STATUS => {
                &HANDLE
            }
            command::ATTACH_ENTRY => &ENTRY,
            command::INSERT_ENTRY => &INSERTED_ENTRY,
            command::ATTACH_DESCRIPTOR => &ATTACHED_DESCRIPTOR,
            command::BIND_DESCRIPTOR => &DESCRIPTOR,
            command::UPDATE_DESCRIPTOR => &UPDATE,
            command::SET_ACCESS => &ACCESS,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use nicforge_hwi::seastar::command;

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
        assert!(unused_fields_are_zero(&free));
        assert!(!unused_fields_are_zero(&Command { start: 1, ..free }));
        assert!(!unused_fields_are_zero(&Command { reserved: [0, 1], ..free }));
        assert!(!unused_fields_are_zero(&Command { kind: 77, ..Command::default() }));
    }
}
