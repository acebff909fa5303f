//! The demultiplexer: its streams, and what happens without a free one.

use std::collections::VecDeque;

use nicforge_core::companion::CompanionMode;
use nicforge_core::machine::Outgoing;
use nicforge_hwi::seastar::{INLINE, KERNEL, Piece, STREAMS};
use nicforge_seastar::Options;
use nicforge_seastar_firmware::chip::{Client, Event, Pieces, TransferStatus};
use nicforge_test_kit::take_messages;

use crate::common::{MEMORY, Message, Rig, User, pattern, piece, receive_at};

/// Start of memory that only messages reach.
const REMOTE: u64 = 0x4000_0000;
/// Bytes of a packet over links without a bandwidth, in these tests.
const MTU: usize = 1024;

/// Returns a message whose second packet waits until the test answers a read by message.
fn slow_message(name: u32, target: usize) -> Message {
    let remote = Piece { address: REMOTE, length: 4096, attachment: KERNEL, reserved: 0 };
    let pieces = [piece(KERNEL, 0, MTU), remote, Piece::default(), Piece::default()];
    Message { pieces: Pieces::Few { count: 2, pieces }, ..Message::put(name, target, 0, MTU + 4096) }
}

/// Answers all reads by message, with bytes of this value.
fn answer_reads(rig: &mut Rig, value: u8) -> usize {
    let messages = take_messages(&mut rig.bed);
    for message in &messages {
        let Outgoing::DmaRead { id, function, attachment, length, .. } = message else { panic!("a write") };
        let bytes = vec![value; *length];
        rig.bed.dma_read_done(*function, *attachment, *id, Ok(&bytes)).unwrap();
    }
    messages.len()
}

#[test]
fn stream_257_is_dropped_and_short_messages_need_none() {
    let options = Options { mtu: MTU, ..Options::default() };
    let mut rig = Rig::new(CompanionMode::Stepped, &[18, 15], options);
    let sources = 1..=usize::from(STREAMS);
    for node in sources.clone() {
        rig.kernels[node].client.map_remote(&mut rig.bed, REMOTE, 4096);
        rig.kernels[node].write(0, &pattern(node, MTU));
    }
    rig.scripts[0].on_event(|chip, event| {
        if let Event::Header { packet, stream: Some(stream), .. } = *event {
            let offset = packet.trusted.source_node as usize * 8192;
            let length = packet.trusted.length;
            chip.receive(stream, length, Pieces::One(piece(KERNEL, offset, length as usize))).unwrap();
        }
    });

    // 256 messages are in progress at once.
    for node in sources.clone() {
        rig.send(node, slow_message(1, 0));
    }
    rig.until(|rig| rig.counter(0, "streams") == u64::from(STREAMS));

    // One more is dropped, and a short one from the same node arrives.
    let late = usize::from(STREAMS) + 1;
    rig.send(late, Message::put(7, 0, 0, 10_000));
    rig.send(late, Message::put(8, 0, 0, 16));
    rig.until(|rig| rig.scripts[0].count(|event| matches!(event, Event::Header { stream: None, .. })) == 1);
    let dropped =
        |event: &Event| matches!(event, Event::Dropped { packet, .. } if packet.message.match_bits == 7);
    assert_eq!((rig.scripts[0].count(dropped), rig.counter(0, "dropped")), (1, 1));

    // The 256 messages end, and their data are right.
    let mut answered = 0;
    rig.until(|rig| {
        answered += answer_reads(rig, 0x5a);
        rig.scripts[0].received().len() == usize::from(STREAMS)
    });
    assert!(answered >= usize::from(STREAMS));
    assert!(rig.scripts[0].received().iter().all(|&end| end == TransferStatus::Complete));
    for node in sources {
        let mut expected = pattern(node, MTU);
        expected.resize(MTU + 4096, 0x5a);
        assert_eq!(rig.kernels[0].read(node * 8192, MTU + 4096), expected, "from node {node}");
    }

    // A stream is free for the message that was dropped.
    rig.send(late, Message::put(9, 0, 0, 10_000));
    rig.until(|rig| rig.scripts[0].received().len() == usize::from(STREAMS) + 1);
    assert_eq!((rig.counter(0, "streams"), rig.counter(0, "most_streams")), (0, STREAMS.into()));
    assert_eq!(rig.counter(0, "corrupt") + rig.counter(0, "memory_faults"), 0);
}

#[test]
fn data_wait_for_their_destination_and_control_messages_leave_meanwhile() {
    let mut rig = Rig::new(CompanionMode::Stepped, &[2], Options::default());
    rig.kernels[0].write(0, &pattern(1, 200_000));

    rig.send(0, Message::put(1, 1, 0, 200_000));
    rig.settle();
    assert_eq!(rig.scripts[1].events().len(), 1);

    // Node 1 does not receive data, but it sends.
    rig.send(1, Message::ack(5, 0));
    rig.send(1, Message::put(6, 0, 0, 16));
    rig.until(|rig| rig.scripts[0].count(|event| matches!(event, Event::Header { .. })) == 2);

    let Event::Header { stream: Some(stream), .. } = rig.scripts[1].events()[0] else { panic!("no stream") };
    rig.act(1, move |chip| {
        chip.receive(stream, 200_000, Pieces::One(piece(KERNEL, 0, 200_000))).unwrap();
    });
    rig.until(|rig| rig.scripts[1].received() == [TransferStatus::Complete]);
    assert_eq!(rig.kernels[1].read(0, 200_000), pattern(1, 200_000));
}

#[test]
fn message_to_the_own_node_arrives() {
    let mut rig = Rig::new(CompanionMode::Stepped, &[2], Options::default());
    rig.kernels[0].write(0, &pattern(4, 100_000));
    rig.scripts[0].on_event(receive_at(1 << 20));

    rig.send(0, Message::put(1, 0, 0, 100_000));
    rig.until(|rig| rig.scripts[0].received() == [TransferStatus::Complete]);
    assert_eq!(rig.kernels[0].read(1 << 20, 100_000), pattern(4, 100_000));
}

#[test]
fn read_that_is_not_answered_ends_the_message_with_a_fault() {
    let options = Options { mtu: MTU, ..Options::default() };
    let mut rig = Rig::new(CompanionMode::Stepped, &[2], options);
    rig.kernels[0].client.map_remote(&mut rig.bed, REMOTE, 4096);
    rig.scripts[1].on_event(receive_at(0));

    rig.send(0, slow_message(1, 1));
    rig.until(|rig| rig.counter(1, "streams") == 1);
    rig.settle();
    assert!(rig.scripts[1].received().is_empty());

    rig.bed.advance(2_000_000_000);
    rig.until(|rig| rig.scripts[1].received() == [TransferStatus::Corrupt]);
    rig.until(|rig| rig.scripts[0].transmitted() == [(1, TransferStatus::MemoryFault)]);
}

#[test]
fn client_that_answers_no_writes_does_not_stop_its_node() {
    let mut rig = Rig::new(CompanionMode::Stepped, &[2], Options::default());
    rig.kernels[1].client.map_remote(&mut rig.bed, REMOTE, 16 << 20);
    rig.kernels[0].write(0, &pattern(1, 1 << 20));
    let remote = Piece { address: REMOTE, length: 1 << 20, attachment: KERNEL, reserved: 0 };
    rig.scripts[1].on_event(move |chip, event| {
        if let Event::Header { packet, stream: Some(stream), .. } = *event {
            let (length, name) = (packet.trusted.length, packet.message.match_bits);
            let place = if name == 1 { remote } else { piece(KERNEL, 0, 1 << 20) };
            chip.receive(stream, length, Pieces::One(place)).unwrap();
        }
    });

    // More packets than writes by message may be in progress.
    rig.send(0, Message::put(1, 1, 0, 1 << 20));
    rig.settle();
    rig.bed.advance(200_000_000);
    rig.until(|rig| rig.scripts[1].received() == [TransferStatus::MemoryFault]);
    let _ = MEMORY;

    // Other messages to the node continue, though this client's memory does not.
    rig.send(0, Message::put(2, 1, 0, 16));
    rig.until(|rig| rig.scripts[1].count(|event| matches!(event, Event::Header { stream: None, .. })) == 1);
}

#[test]
fn event_in_mapped_memory_waits_for_the_data_that_a_message_writes() {
    let mut rig = Rig::new(CompanionMode::Stepped, &[2], Options::default());
    rig.kernels[0].client.map_remote(&mut rig.bed, REMOTE, 4096);
    let number = rig.start(0, |chip| {
        chip.write_host(Client(KERNEL), REMOTE, &[0x11; INLINE]).unwrap();
        chip.write_host(Client(KERNEL), MEMORY, &[0x22; 64]).unwrap();
    });
    rig.until(|rig| rig.kernels[0].result(number).is_some());
    rig.settle();
    assert_eq!(rig.kernels[0].read(0, 64), [0; 64], "the event has overtaken its data");

    // The client stores the data and answers. The event follows.
    let mut written = Vec::new();
    rig.until(|rig| {
        for message in take_messages(&mut rig.bed) {
            let Outgoing::DmaWrite { id, function, attachment, data, .. } = message else { panic!("a read") };
            assert_eq!(rig.kernels[0].read(0, 64), [0; 64]);
            written.extend(data);
            rig.bed.dma_write_done(function, attachment, id, Ok(())).unwrap();
        }
        rig.kernels[0].read(0, 64) == [0x22; 64]
    });
    assert_eq!(written, [0x11; INLINE]);
}

#[test]
fn end_of_a_message_waits_for_the_answers_to_its_writes() {
    let mut rig = Rig::new(CompanionMode::Stepped, &[2], Options::default());
    let process = User::attach(&mut rig.bed, rig.functions[1], 1);
    process.client.map_remote(&mut rig.bed, REMOTE, 4096);
    let remote = Piece { address: REMOTE, length: 4096, attachment: 1, reserved: 0 };
    rig.scripts[1].on_event(move |chip, event| {
        if let Event::Header { packet, stream: Some(stream), .. } = *event {
            chip.receive(stream, packet.trusted.length, Pieces::One(remote)).unwrap();
        }
    });

    rig.send(0, Message::put(1, 1, 0, 4096));
    rig.until(|rig| rig.counter(1, "bytes_received") == 4096);
    rig.settle();
    assert!(rig.scripts[1].received().is_empty(), "the data are not in memory");
    for message in take_messages(&mut rig.bed) {
        let Outgoing::DmaWrite { id, function, attachment, .. } = message else { panic!("a read") };
        rig.bed.dma_write_done(function, attachment, id, Ok(())).unwrap();
    }
    rig.until(|rig| rig.scripts[1].received() == [TransferStatus::Complete]);

    // A client that answers none of them is cut off.
    rig.send(0, Message::put(2, 1, 0, 4096));
    rig.until(|rig| rig.counter(1, "bytes_received") == 8192);
    rig.settle();
    rig.bed.advance(200_000_000);
    rig.until(|rig| rig.scripts[1].received() == [TransferStatus::Complete, TransferStatus::MemoryFault]);
}

#[test]
fn event_in_mapped_memory_is_written_while_a_message_continues() {
    let options = Options { mtu: MTU, ..Options::default() };
    let mut rig = Rig::new(CompanionMode::Stepped, &[2], options);
    rig.kernels[1].client.map_remote(&mut rig.bed, REMOTE, 16 << 20);
    let remote = Piece { address: REMOTE, length: 1 << 20, attachment: KERNEL, reserved: 0 };
    rig.scripts[1].on_event(move |chip, event| {
        if let Event::Header { packet, stream: Some(stream), .. } = *event {
            chip.receive(stream, packet.trusted.length, Pieces::One(remote)).unwrap();
        }
    });
    rig.send(0, Message::put(1, 1, 0, 1 << 20));
    rig.until(|rig| rig.counter(1, "bytes_received") > 0);
    rig.start(1, |chip| chip.write_host(Client(KERNEL), MEMORY, &[0x22; 64]).unwrap());

    // The client answers one write after the other, each within 40 ms. All of them take longer than
    // a write may wait.
    let mut writes = VecDeque::new();
    rig.until(|rig| {
        writes.extend(take_messages(&mut rig.bed));
        if let Some(Outgoing::DmaWrite { id, function, attachment, .. }) = writes.pop_front() {
            rig.bed.dma_write_done(function, attachment, id, Ok(())).unwrap();
            rig.bed.advance(1_000_000);
        }
        !rig.scripts[1].received().is_empty()
    });
    assert_eq!(rig.scripts[1].received(), [TransferStatus::Complete]);
    assert_eq!(rig.kernels[1].read(0, 64), [0x22; 64]);
}
