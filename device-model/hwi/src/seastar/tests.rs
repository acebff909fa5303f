//! The layout of the structures, which the C header has too.

use core::mem::offset_of;

use super::*;

/// Asserts offsets of fields.
macro_rules! assert_offsets {
    ($kind:ty { $($field:ident: $offset:expr),+ $(,)? }) => {
        $(assert_eq!(offset_of!($kind, $field), $offset, stringify!($kind.$field));)+
    };
}

#[test]
fn structures_have_their_sizes() {
    assert_eq!((size_of::<Command>(), size_of::<KernelCommand>()), (COMMAND_BYTES, COMMAND_BYTES));
    assert_eq!((size_of::<CommandResult>(), size_of::<HeaderPacket>()), (RESULT_BYTES, PACKET));
    assert_eq!((size_of::<Event>(), size_of::<KernelEvent>(), size_of::<Piece>()), (64, 128, 16));
}

#[test]
fn fields_of_commands_have_their_offsets() {
    assert_offsets!(Command {
        kind: 0,
        options: 2,
        handle: 4,
        queue: 8,
        test_queue: 12,
        start: 16,
        length: 24,
        match_bits: 32,
        ignore_bits: 40,
        offset: 48,
        local_offset: 56,
        header_data: 64,
        user_pointer: 72,
        max_size: 80,
        threshold: 88,
        node: 92,
        process: 96,
        portal: 98,
        access: 99,
        test_number: 100,
        reserved: 104,
        inline: 112,
    });
    assert_offsets!(KernelCommand {
        kind: 0,
        flags: 2,
        message: 3,
        process: 4,
        target: 6,
        token: 8,
        count: 12,
        taken: 14,
        list: 16,
        node: 24,
        length: 28,
        header: 32,
        pieces: 64,
    });
    assert_offsets!(CommandResult { value: 0, extra: 8, code: 16, reserved: 20, number: 28 });
}

#[test]
fn fields_of_events_and_headers_have_their_offsets() {
    assert_offsets!(Event {
        match_bits: 0,
        header_data: 8,
        offset: 16,
        user_pointer: 24,
        requested: 32,
        moved: 36,
        node: 40,
        process: 44,
        portal: 46,
        kind: 47,
        descriptor: 48,
        failure: 52,
        flags: 54,
        link: 56,
        number: 60,
    });
    assert_offsets!(KernelEvent {
        packet: 0,
        token: 64,
        moved: 68,
        failure: 72,
        kind: 74,
        reserved: 76,
        number: 124,
    });
    assert_offsets!(HeaderPacket { trusted: 0, message: 16, inline: 48 });
    assert_offsets!(TrustedHeader {
        source_node: 0,
        source_process: 4,
        target_process: 6,
        length: 8,
        sequence: 12,
        kind: 14,
        flags: 15,
    });
    assert_offsets!(MessageHeader {
        match_bits: 0,
        header_data: 8,
        offset: 16,
        operation: 24,
        portal: 28,
        access: 29,
        options: 30,
    });
}
