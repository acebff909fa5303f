//! Packets that refer to client memory: the memory of a message until its packets are gone.

use nicforge_core::companion::CompanionMode;
use nicforge_hwi::seastar::{KERNEL, Piece};
use nicforge_seastar::Options;
use nicforge_seastar_firmware::chip::{Client, Event, Pieces, TransferStatus};

use crate::common::{BOTH, Message, Rig, pattern, piece, receive_at};

/// Start of a second mapping of a kernel.
const OTHER: u64 = 0x4000_0000;
/// Bytes of a message whose packets all have room in the network.
const LENGTH: usize = 25 << 12;

/// Returns all of the second mapping's first bytes.
fn other(length: usize) -> Pieces {
    Pieces::One(Piece { address: OTHER, length: length as u32, attachment: KERNEL, reserved: 0 })
}

/// Returns the stream of the only message that has arrived at node 1, and has no destination.
fn receive(rig: &mut Rig, place: Pieces, length: usize) {
    let Event::Header { stream: Some(stream), .. } = rig.scripts[1].events()[0] else { panic!("no stream") };
    rig.act(1, move |chip| chip.receive(stream, length as u32, place).unwrap());
}

#[test]
fn memory_is_the_cards_until_the_receiver_has_copied_it() {
    for mode in BOTH {
        let mut rig = Rig::new(mode, &[2], Options::default());
        rig.kernels[0].write(0, &pattern(1, LENGTH));
        rig.send(0, Message::put(1, 1, 0, LENGTH));
        rig.until(|rig| !rig.scripts[1].events().is_empty());
        rig.settle();
        assert_eq!(rig.scripts[0].transmitted(), [], "all packets are in the network, and none was copied");

        // The receiver gets bytes that the client stores before the end of the transmission.
        rig.kernels[0].write(0, &pattern(2, LENGTH));
        receive(&mut rig, Pieces::One(piece(KERNEL, 0, LENGTH)), LENGTH);
        // A firmware thread takes its events when it runs.
        rig.until(|rig| rig.scripts[0].transmitted() == [(1, TransferStatus::Complete)]);
        rig.until(|rig| rig.scripts[1].received() == [TransferStatus::Complete]);

        assert_eq!(rig.kernels[1].read(0, LENGTH), pattern(2, LENGTH));
    }
}

#[test]
fn memory_that_is_unmapped_after_a_message_is_not_kept() {
    let mut rig = Rig::new(CompanionMode::Stepped, &[2], Options::default());
    let client = rig.kernels[1].client;
    let memory = client.map(&mut rig.bed, OTHER, LENGTH);
    rig.kernels[0].write(0, &pattern(1, LENGTH));
    rig.send(0, Message::put(1, 1, 0, LENGTH));
    rig.until(|rig| !rig.scripts[1].events().is_empty());
    receive(&mut rig, other(LENGTH), LENGTH);
    rig.until(|rig| rig.scripts[1].received() == [TransferStatus::Complete]);

    // An event and the data of a header packet go there, too.
    rig.act(1, |chip| {
        chip.write_host(Client(KERNEL), OTHER, &[7; 128]).unwrap();
        (0..10).for_each(|_| chip.write_host(Client(KERNEL), OTHER + 256, &[7; 8]).unwrap());
    });
    rig.settle();
    assert!(memory.has_other_handles());

    rig.bed.dma_unmap(client.function, client.attachment, OTHER, LENGTH as u64).unwrap();
    rig.settle();
    assert!(!memory.has_other_handles());
}

#[test]
fn sender_learns_at_once_that_its_memory_is_free() {
    let mut rig = Rig::new(CompanionMode::Stepped, &[5], Options::default());
    rig.kernels[0].write(0, &pattern(1, LENGTH));
    rig.send(0, Message::put(1, 2, 0, LENGTH));
    rig.until(|rig| !rig.scripts[2].events().is_empty());
    rig.settle();
    assert_eq!(rig.scripts[0].transmitted(), []);

    let start = rig.now();
    let Event::Header { stream: Some(stream), .. } = rig.scripts[2].events()[0] else { panic!("no stream") };
    let place = Pieces::One(piece(KERNEL, 0, LENGTH));
    rig.act(2, move |chip| chip.receive(stream, LENGTH as u32, place).unwrap());
    rig.until(|rig| rig.scripts[0].transmitted() == [(1, TransferStatus::Complete)]);

    // The timer by which the sender looks for lost packets takes far longer.
    assert!(rig.now() < start.after(1_000_000), "{:?} after {start:?}", rig.now());
}

#[test]
fn checked_message_is_in_its_packets_when_they_are_sent() {
    let options = Options { end_to_end_crc: Some(true), ..Options::default() };
    let mut rig = Rig::new(CompanionMode::Stepped, &[2], options);
    rig.kernels[0].write(0, &pattern(1, 20_000));
    rig.send(0, Message::put(1, 1, 0, 20_000));
    rig.until(|rig| rig.scripts[0].transmitted() == [(1, TransferStatus::Complete)]);
    rig.until(|rig| !rig.scripts[1].events().is_empty());

    rig.kernels[0].write(0, &pattern(2, 20_000));
    receive(&mut rig, Pieces::One(piece(KERNEL, 0, 20_000)), 20_000);
    rig.until(|rig| rig.scripts[1].received() == [TransferStatus::Complete]);

    assert_eq!(rig.kernels[1].read(0, 20_000), pattern(1, 20_000));
}

#[test]
fn source_that_is_unmapped_in_the_middle_fails_the_message_at_both_ends() {
    let mut rig = Rig::new(CompanionMode::Stepped, &[2], Options::default());
    rig.kernels[0].client.map(&mut rig.bed, OTHER, LENGTH);
    rig.kernels[1].write(0, &[0xaa; LENGTH]);
    rig.send(0, Message { pieces: other(LENGTH), ..Message::put(1, 1, 0, LENGTH) });
    rig.until(|rig| !rig.scripts[1].events().is_empty());
    rig.settle();

    let function = rig.functions[0];
    let attachment_id = nicforge_core::ids::AttachmentId(KERNEL);
    rig.bed.dma_unmap(function, attachment_id, OTHER, LENGTH as u64).unwrap();
    receive(&mut rig, Pieces::One(piece(KERNEL, 0, LENGTH)), LENGTH);
    rig.until(|rig| rig.scripts[0].transmitted() == [(1, TransferStatus::MemoryFault)]);

    assert_eq!(rig.scripts[1].received(), [TransferStatus::Corrupt]);
    assert_eq!(rig.kernels[1].read(0, LENGTH), [0; LENGTH], "nothing of unmapped memory is copied");
    assert_eq!(rig.counter(0, "memory_faults"), 1);
}

#[test]
fn target_that_is_unmapped_in_the_middle_ends_the_message_with_a_fault() {
    const LONG: usize = 3 << 20;
    let mut rig = Rig::new(CompanionMode::Stepped, &[2], Options::default());
    rig.kernels[1].client.map(&mut rig.bed, OTHER, LONG);
    rig.scripts[1].on_event(|chip, event| {
        if let Event::Header { packet, stream: Some(stream), .. } = *event {
            chip.receive(stream, packet.trusted.length, other(LONG)).unwrap();
        }
    });

    rig.send(0, Message::put(1, 1, 0, LONG));
    rig.until(|rig| rig.counter(1, "bytes_received") > 0);
    assert!(rig.counter(1, "bytes_received") < LONG as u64, "a step moves a part of the message");
    let function = rig.functions[1];
    let attachment_id = nicforge_core::ids::AttachmentId(KERNEL);
    rig.bed.dma_unmap(function, attachment_id, OTHER, LONG as u64).unwrap();
    rig.until(|rig| rig.scripts[1].received() == [TransferStatus::MemoryFault]);
    rig.until(|rig| rig.scripts[0].transmitted() == [(1, TransferStatus::Complete)]);

    // The node continues.
    rig.kernels[0].write(0, &pattern(3, LENGTH));
    rig.scripts[1].on_event(receive_at(0));
    rig.send(0, Message::put(2, 1, 0, LENGTH));
    rig.until(|rig| rig.scripts[1].received().len() == 2);
    assert_eq!(rig.kernels[1].read(0, LENGTH), pattern(3, LENGTH));
}

#[test]
fn receiver_whose_memory_is_reached_by_messages_gets_the_data() {
    let mut rig = Rig::new(CompanionMode::Stepped, &[2], Options::default());
    rig.kernels[1].client.map_remote(&mut rig.bed, OTHER, LENGTH as u64);
    rig.kernels[0].write(0, &pattern(5, LENGTH));
    rig.send(0, Message::put(1, 1, 0, LENGTH));
    rig.until(|rig| !rig.scripts[1].events().is_empty());
    receive(&mut rig, other(LENGTH), LENGTH);

    let mut written = vec![0; LENGTH];
    rig.until(|rig| {
        for message in nicforge_test_kit::take_messages(&mut rig.bed) {
            let nicforge_core::machine::Outgoing::DmaWrite { id, function, attachment, iova, data } = message
            else {
                panic!("a read");
            };
            let start = (iova - OTHER) as usize;
            written[start..start + data.len()].copy_from_slice(&data);
            rig.bed.dma_write_done(function, attachment, id, Ok(())).unwrap();
        }
        rig.scripts[1].received() == [TransferStatus::Complete]
    });

    assert_eq!(written, pattern(5, LENGTH));
    rig.until(|rig| rig.scripts[0].transmitted() == [(1, TransferStatus::Complete)]);
}

#[test]
fn packets_that_wait_lose_their_memory_after_ten_seconds() {
    let mut rig = Rig::new(CompanionMode::Stepped, &[2], Options::default());
    rig.kernels[0].write(0, &pattern(1, LENGTH));
    rig.send(0, Message::put(1, 1, 0, LENGTH));
    rig.until(|rig| !rig.scripts[1].events().is_empty());
    rig.settle();

    rig.bed.advance(10_000_000_000);
    rig.until(|rig| rig.scripts[0].transmitted() == [(1, TransferStatus::MemoryFault)]);
    receive(&mut rig, Pieces::One(piece(KERNEL, 0, LENGTH)), LENGTH);
    rig.until(|rig| rig.scripts[1].received() == [TransferStatus::Corrupt]);

    assert_eq!(rig.kernels[1].read(0, LENGTH), [0; LENGTH]);
}

#[test]
fn sender_that_resets_while_its_memory_is_lent_sends_again() {
    let mut rig = Rig::new(CompanionMode::Stepped, &[2], Options::default());
    rig.send(0, Message::put(1, 1, 0, LENGTH));
    rig.until(|rig| !rig.scripts[1].events().is_empty());
    rig.settle();

    let function = rig.functions[0];
    rig.bed.reset_function(function).unwrap();
    rig.kernels[0].restart();
    rig.boot(0);
    receive(&mut rig, Pieces::One(piece(KERNEL, 0, LENGTH)), LENGTH);
    rig.until(|rig| rig.scripts[1].received() == [TransferStatus::Cut]);

    rig.kernels[0].write(0, &pattern(6, LENGTH));
    rig.scripts[1].on_event(receive_at(0));
    rig.send(0, Message::put(2, 1, 0, LENGTH));
    rig.until(|rig| rig.scripts[1].received().len() == 2);
    assert_eq!(rig.scripts[1].received()[1], TransferStatus::Complete);
    assert_eq!(rig.kernels[1].read(0, LENGTH), pattern(6, LENGTH));
    rig.until(|rig| rig.counter(0, "transmissions") == 0);
}
