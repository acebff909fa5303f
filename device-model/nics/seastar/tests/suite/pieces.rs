//! Messages whose memory lies in pieces.

use nicforge_core::companion::CompanionMode;
use nicforge_hwi::seastar::{KERNEL, Piece};
use nicforge_seastar::Options;
use nicforge_seastar_firmware::chip::{Event, Pieces, TransferStatus};
use zerocopy::IntoBytes;

use crate::common::{MEMORY, Message, Rig, User, pattern, piece};

/// Where lists of pieces lie in a kernel's memory.
const LIST: usize = 3 << 20;

/// Writes a list into a kernel's memory.
fn list(user: &User, pieces: &[Piece]) -> Pieces {
    for (index, piece) in pieces.iter().enumerate() {
        user.write(LIST + index * 16, piece.as_bytes());
    }
    Pieces::List { address: MEMORY + LIST as u64, count: pieces.len() as u16 }
}

/// Splits a range of the kernel's memory into pieces of growing length, in reverse order.
fn split(at: usize, length: usize, step: usize) -> Vec<Piece> {
    let (mut pieces, mut done) = (Vec::new(), 0);
    while done < length {
        let bytes = (step + pieces.len()).min(length - done);
        pieces.push(piece(KERNEL, at + length - done - bytes, bytes));
        done += bytes;
    }
    pieces
}

/// Returns the bytes of pieces.
fn bytes_of(user: &User, pieces: &[Piece]) -> Vec<u8> {
    let filled = pieces.iter().filter(|piece| piece.length > 0);
    filled.flat_map(|piece| user.read((piece.address - MEMORY) as usize, piece.length as usize)).collect()
}

/// Sends a message from pieces of node 0 to pieces of node 1. Returns how it ended there.
fn transfer(rig: &mut Rig, length: usize, from: Pieces, to: Pieces) -> TransferStatus {
    rig.scripts[1].on_event(move |chip, event| {
        if let Event::Header { stream: Some(stream), packet, .. } = *event {
            chip.receive(stream, packet.trusted.length, to).unwrap();
        }
    });
    let before = rig.scripts[1].received().len();
    rig.send(0, Message { pieces: from, ..Message::put(1, 1, 0, length) });
    rig.until(|rig| rig.scripts[1].received().len() > before);
    rig.scripts[1].received()[before]
}

#[test]
fn lists_gather_and_scatter() {
    let mut rig = Rig::new(CompanionMode::Stepped, &[2], Options::default());
    rig.kernels[0].write(0, &pattern(1, 200_000));

    for (length, step) in [(17, 1), (1000, 7), (100_000, 300), (200_000, 5000)] {
        let (source, target) = (split(0, length, step), split(1 << 20, length, step + 2));
        let expected = bytes_of(&rig.kernels[0], &source);
        let (from, to) = (list(&rig.kernels[0], &source), list(&rig.kernels[1], &target));

        assert_eq!(transfer(&mut rig, length, from, to), TransferStatus::Complete);
        assert_eq!(bytes_of(&rig.kernels[1], &target), expected, "{length} bytes");
    }
}

#[test]
fn few_pieces_gather_and_scatter_and_empty_ones_are_skipped() {
    let mut rig = Rig::new(CompanionMode::Stepped, &[2], Options::default());
    rig.kernels[0].write(0, &pattern(1, 10_000));
    let source =
        [piece(KERNEL, 5000, 100), piece(KERNEL, 0, 0), piece(KERNEL, 1, 4999), piece(KERNEL, 7000, 1)];
    let target =
        [piece(KERNEL, 100, 50), piece(KERNEL, 9000, 5000), piece(KERNEL, 0, 0), piece(KERNEL, 1, 50)];

    let (from, to) = (Pieces::Few { count: 4, pieces: source }, Pieces::Few { count: 4, pieces: target });
    assert_eq!(transfer(&mut rig, 5100, from, to), TransferStatus::Complete);
    assert_eq!(bytes_of(&rig.kernels[1], &target), bytes_of(&rig.kernels[0], &source));
}

#[test]
fn pieces_gather_a_message_of_one_packet() {
    let mut rig = Rig::new(CompanionMode::Stepped, &[2], Options::default());
    rig.kernels[0].write(0, &pattern(1, 100));
    let source = [piece(KERNEL, 50, 3), piece(KERNEL, 7, 2), Piece::default(), piece(KERNEL, 90, 4)];
    let from = Pieces::Few { count: 4, pieces: source };

    rig.send(0, Message { pieces: from, ..Message::put(1, 1, 0, 9) });
    rig.until(|rig| !rig.scripts[1].events().is_empty());

    let Event::Header { packet, .. } = rig.scripts[1].events()[0] else { panic!("no header") };
    assert_eq!(packet.inline[..9], bytes_of(&rig.kernels[0], &source));
}

#[test]
fn bytes_behind_the_kept_length_are_discarded() {
    let mut rig = Rig::new(CompanionMode::Stepped, &[2], Options::default());
    rig.kernels[0].write(0, &pattern(1, 30_000));

    for kept in [0, 1, 8191, 8192, 8193, 29_999, 40_000] {
        rig.kernels[1].write(0, &[0; 30_001]);
        rig.scripts[1].on_event(move |chip, event| {
            if let Event::Header { stream: Some(stream), .. } = *event {
                chip.receive(stream, kept, Pieces::One(piece(KERNEL, 0, 30_000))).unwrap();
            }
        });
        let before = rig.scripts[1].received().len();
        rig.send(0, Message::put(1, 1, 0, 30_000));
        rig.until(|rig| rig.scripts[1].received().len() > before);

        assert_eq!(rig.scripts[1].received()[before], TransferStatus::Complete);
        let mut expected = pattern(1, 30_000);
        expected.resize(30_001, 0);
        expected[(kept as usize).min(30_000)..].fill(0);
        assert_eq!(rig.kernels[1].read(0, 30_001), expected);
    }
}

#[test]
fn memory_that_cannot_be_read_is_filled_and_both_ends_see_it() {
    let mut rig = Rig::new(CompanionMode::Stepped, &[2], Options::default());
    rig.kernels[0].write(0, &pattern(1, 10_000));
    let hole = Piece { address: 0, length: 5000, attachment: KERNEL, reserved: 0 };
    let source = [piece(KERNEL, 0, 10_000), hole, piece(KERNEL, 0, 5000), Piece::default()];
    let from = Pieces::Few { count: 3, pieces: source };
    rig.kernels[1].write(0, &[0xaa; 20_000]);

    let end = transfer(&mut rig, 20_000, from, Pieces::One(piece(KERNEL, 0, 20_000)));

    assert_eq!(end, TransferStatus::Corrupt);
    let mut expected = pattern(1, 10_000);
    expected.resize(20_000, 0);
    assert_eq!(rig.kernels[1].read(0, 20_000), expected);
    rig.until(|rig| rig.scripts[0].transmitted() == [(1, TransferStatus::MemoryFault)]);
    assert_eq!(rig.counter(0, "memory_faults"), 1);
}

#[test]
fn memory_of_a_short_message_that_cannot_be_read_is_flagged_in_its_header() {
    let mut rig = Rig::new(CompanionMode::Stepped, &[2], Options::default());
    let from = Pieces::One(Piece { address: 0, length: 8, attachment: KERNEL, reserved: 0 });

    rig.send(0, Message { pieces: from, ..Message::put(1, 1, 0, 8) });
    rig.until(|rig| !rig.scripts[1].events().is_empty());

    let Event::Header { packet, .. } = rig.scripts[1].events()[0] else { panic!("no header") };
    let fault = nicforge_hwi::seastar::trusted_flag::INLINE_FAULT;
    assert_eq!((packet.trusted.flags & fault, packet.inline), (fault, [0; 16]));
    rig.until(|rig| rig.scripts[0].transmitted() == [(1, TransferStatus::MemoryFault)]);
}

#[test]
fn memory_that_cannot_be_written_ends_a_message_with_a_fault() {
    let mut rig = Rig::new(CompanionMode::Stepped, &[2], Options::default());
    let hole = Piece { address: 0, length: 20_000, attachment: KERNEL, reserved: 0 };
    let empty = Pieces::List { address: 0, count: 3 };

    for to in [Pieces::One(hole), Pieces::One(piece(KERNEL, 0, 100)), Pieces::None, empty] {
        let from = Pieces::One(piece(KERNEL, 0, 20_000));
        assert_eq!(transfer(&mut rig, 20_000, from, to), TransferStatus::MemoryFault);
    }
    let from = Pieces::One(piece(KERNEL, 0, 20_000));
    assert_eq!(transfer(&mut rig, 20_000, from, from), TransferStatus::Complete);
}

#[test]
fn process_memory_is_reached_as_well_as_the_kernels() {
    let mut rig = Rig::new(CompanionMode::Stepped, &[2], Options::default());
    let source = User::attach(&mut rig.bed, rig.functions[0], 1);
    let target = User::attach(&mut rig.bed, rig.functions[1], 2);
    source.write(64, &pattern(3, 50_000));

    let from = Pieces::One(piece(1, 64, 50_000));
    let to = Pieces::One(piece(2, 128, 50_000));
    assert_eq!(transfer(&mut rig, 50_000, from, to), TransferStatus::Complete);
    assert_eq!(target.read(128, 50_000), pattern(3, 50_000));
}
