//! Clients that leave in the middle of a transfer.

use nicforge_core::{companion::CompanionMode, device::Ended};
use nicforge_hwi::seastar::KERNEL;
use nicforge_seastar::Options;
use nicforge_seastar_firmware::chip::{Event, Pieces, TransferStatus};

use crate::common::{Message, Rig, User, pattern, piece};

const LENGTH: usize = 2 << 20;

/// Begins a message from process 0 of node 0 to process 0 of node 1, and stops in its middle.
fn begin() -> (Rig, [User; 2]) {
    let mut rig = Rig::new(CompanionMode::Stepped, &[2], Options::default());
    let users = [0, 1].map(|node| User::attach(&mut rig.bed, rig.functions[node], 1));
    users[0].write(0, &pattern(1, LENGTH));
    users[1].write(0, &vec![0xaa; LENGTH]);
    rig.scripts[1].on_event(|chip, event| {
        if let Event::Header { stream: Some(stream), packet, .. } = *event {
            chip.receive(stream, packet.trusted.length, Pieces::One(piece(1, 0, LENGTH))).unwrap();
        }
    });

    let pieces = Pieces::One(piece(1, 0, LENGTH));
    rig.send(0, Message { pieces, ..Message::put(1, 1, 0, LENGTH) });
    rig.until(|rig| rig.counter(1, "bytes_received") > 0);
    assert!(rig.counter(1, "bytes_received") < LENGTH as u64);
    (rig, users)
}

#[test]
fn sender_that_leaves_makes_the_message_corrupt() {
    let (mut rig, [sender, receiver]) = begin();
    sender.client.detach(&mut rig.bed);

    rig.until(|rig| rig.scripts[1].received() == [TransferStatus::Corrupt]);
    rig.until(|rig| rig.scripts[0].transmitted() == [(1, TransferStatus::MemoryFault)]);
    let (data, sent) = (receiver.read(0, LENGTH), pattern(1, LENGTH));
    let end = data.iter().zip(&sent).take_while(|(read, sent)| read == sent).count();
    assert!(end > 0 && data[end..].iter().all(|&byte| byte == 0));
}

#[test]
fn receiver_that_leaves_ends_the_message_with_a_fault() {
    let (mut rig, [_, receiver]) = begin();
    receiver.client.detach(&mut rig.bed);

    rig.until(|rig| rig.scripts[1].received() == [TransferStatus::MemoryFault]);
    rig.until(|rig| rig.scripts[0].transmitted() == [(1, TransferStatus::Complete)]);
}

#[test]
fn next_tenant_gets_nothing_of_a_message_for_the_former_one() {
    let (mut rig, [sender, receiver]) = begin();
    receiver.client.detach(&mut rig.bed);
    let next = User::attach(&mut rig.bed, rig.functions[1], 1);

    rig.until(|rig| rig.scripts[1].received() == [TransferStatus::MemoryFault]);
    assert_eq!(next.read(0, LENGTH), vec![0; LENGTH]);

    // The same holds for a reset, after which the client stays.
    next.write(0, &vec![0xbb; LENGTH]);
    let before = rig.counter(1, "bytes_received");
    let pieces = Pieces::One(piece(1, 0, LENGTH));
    rig.send(0, Message { pieces, ..Message::put(2, 1, 0, LENGTH) });
    rig.until(|rig| rig.counter(1, "bytes_received") > before);
    rig.bed.reset_attachment(next.client.function, next.client.attachment).unwrap();
    rig.until(|rig| rig.scripts[1].received().len() == 2);
    assert_eq!(rig.scripts[1].received()[1], TransferStatus::MemoryFault);
    assert_eq!(next.read(LENGTH - 1, 1), [0xbb]);
    let _ = sender;
}

#[test]
fn next_tenant_is_not_read_for_a_message_of_the_former_one() {
    let (mut rig, [sender, receiver]) = begin();
    rig.bed.detach(sender.client.function, sender.client.attachment, Ended::Evicted).unwrap();
    let next = User::attach(&mut rig.bed, rig.functions[0], 1);
    next.write(0, &vec![0xcc; LENGTH]);

    rig.until(|rig| rig.scripts[1].received() == [TransferStatus::Corrupt]);
    let data = receiver.read(0, LENGTH);
    let sent = pattern(1, LENGTH);
    let end = data.iter().zip(&sent).take_while(|(read, sent)| read == sent).count();
    assert!(data[end..].iter().all(|&byte| byte == 0), "the next tenant's memory was sent");
}

#[test]
fn kernel_that_leaves_stops_nothing_else() {
    let (mut rig, _users) = begin();
    let kernel = rig.kernels[0].client;
    kernel.detach(&mut rig.bed);

    rig.until(|rig| rig.scripts[1].received() == [TransferStatus::Complete]);
    assert_eq!(kernel.attachment.0, KERNEL);
}
