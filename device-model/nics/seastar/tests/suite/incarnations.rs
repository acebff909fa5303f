//! Incarnations of nodes: messages of an earlier incarnation reach no later one.

use nicforge_core::companion::CompanionMode;
use nicforge_hwi::seastar::KERNEL;
use nicforge_seastar::Options;
use nicforge_seastar_firmware::chip::{Event, Incarnation, Pieces, TransferStatus};

use crate::common::{BOTH, Message, Rig, pattern, piece, receive_at};

fn restart(rig: &mut Rig, node: usize) {
    rig.act(node, |chip| {
        chip.set_booted(false).unwrap();
        chip.set_booted(true).unwrap();
    });
}

/// Returns the incarnation of another node as a node's processor sees it.
fn incarnation(rig: &mut Rig, node: usize, of: u32) -> Option<Incarnation> {
    let (sender, receiver) = std::sync::mpsc::channel();
    rig.act(node, move |chip| sender.send(chip.incarnation(of)).unwrap());
    receiver.recv().unwrap()
}

#[test]
fn nodes_see_each_others_incarnations() {
    for mode in BOTH {
        let mut rig = Rig::powered_on(mode, &[3], Options::default());
        assert_eq!((incarnation(&mut rig, 0, 1), incarnation(&mut rig, 1, 1)), (None, None));

        rig.boot(1);
        rig.settle();
        assert_eq!(
            (incarnation(&mut rig, 0, 1), incarnation(&mut rig, 1, 1)),
            (Some(Incarnation(1)), Some(Incarnation(1)))
        );

        restart(&mut rig, 1);
        rig.settle();
        assert_eq!(
            (incarnation(&mut rig, 2, 1), incarnation(&mut rig, 1, 1)),
            (Some(Incarnation(2)), Some(Incarnation(2)))
        );
        let down = |event: &Event| matches!(event, Event::NodeDown { node: 1 });
        assert_eq!([0, 1, 2].map(|node| rig.scripts[node].count(down)), [1, 0, 1]);
    }
}

#[test]
fn end_of_an_incarnation_reaches_nodes_that_have_nothing_to_do() {
    let mut rig = Rig::new(CompanionMode::Stepped, &[3, 3], Options::default());
    rig.settle();

    rig.act(4, |chip| chip.set_booted(false).unwrap());
    let down = |event: &Event| matches!(event, Event::NodeDown { node: 4 });
    rig.until(|rig| (0..9).filter(|&node| node != 4).all(|node| rig.scripts[node].count(down) == 1));
}

#[test]
fn message_for_another_incarnation_is_stale_and_its_data_are_discarded() {
    let mut rig = Rig::new(CompanionMode::Stepped, &[2], Options::default());
    restart(&mut rig, 1);
    rig.kernels[1].write(0, &[0xaa; 100]);
    rig.scripts[1].on_event(receive_at(0));

    for (name, length) in [(1, 8), (2, 100_000)] {
        rig.send(0, Message { incarnation: 1, ..Message::put(name, 1, 0, length) });
    }
    rig.send(0, Message { incarnation: 2, ..Message::put(3, 1, 0, 16) });
    rig.until(|rig| rig.scripts[1].count(|event| matches!(event, Event::Header { .. })) == 1);

    let names: Vec<_> = rig.scripts[1]
        .events()
        .iter()
        .filter_map(|event| match event {
            Event::Stale { packet } => Some((packet.message.match_bits, true)),
            Event::Header { packet, incarnation: Incarnation(2), .. } => {
                Some((packet.message.match_bits, false))
            }
            _ => None,
        })
        .collect();
    assert_eq!(names, [(1, true), (2, true), (3, false)]);
    assert_eq!((rig.kernels[1].read(0, 100), rig.counter(1, "stale")), (vec![0xaa; 100], 2));
}

#[test]
fn node_without_an_incarnation_sees_messages_as_stale_and_can_answer() {
    let mut rig = Rig::powered_on(CompanionMode::Stepped, &[2], Options::default());
    rig.boot(0);

    rig.send(0, Message { incarnation: 7, ..Message::put(1, 1, 0, 10_000) });
    rig.until(|rig| rig.scripts[1].count(|event| matches!(event, Event::Stale { .. })) == 1);
    rig.send(1, Message::ack(1, 0));
    rig.until(|rig| rig.scripts[0].count(|event| matches!(event, Event::Header { stream: None, .. })) == 1);

    // Data messages need an incarnation.
    rig.send(1, Message::put(9, 0, 0, 100));
    rig.until(|rig| rig.scripts[1].transmitted() == [(9, TransferStatus::Cut)]);
}

#[test]
fn sender_that_restarts_in_the_middle_cuts_its_message() {
    let mut rig = Rig::new(CompanionMode::Stepped, &[2], Options::default());
    rig.kernels[0].write(0, &pattern(1, 1 << 20));

    // The receiver sets no destination yet, so that the message stays in the middle.
    rig.send(0, Message::put(1, 1, 0, 1 << 20));
    rig.until(|rig| rig.scripts[1].count(|event| matches!(event, Event::Header { .. })) == 1);
    restart(&mut rig, 0);
    rig.until(|rig| rig.scripts[0].transmitted() == [(1, TransferStatus::Cut)]);
    rig.settle();

    // The new incarnation's message gets another stream, though the firmware has not answered the
    // first.
    rig.send(0, Message::put(2, 1, 0, 1000));
    rig.until(|rig| rig.scripts[1].count(|event| matches!(event, Event::Header { .. })) == 2);
    let headers: Vec<_> = rig.scripts[1]
        .events()
        .iter()
        .filter_map(|event| match event {
            Event::Header { stream: Some(stream), .. } => Some(*stream),
            _ => None,
        })
        .collect();
    assert_ne!(headers[0], headers[1]);

    let streams = headers.clone();
    rig.act(1, move |chip| {
        for (stream, offset) in streams.into_iter().zip([0, 1 << 21]) {
            chip.receive(stream, 1 << 20, Pieces::One(piece(KERNEL, offset, 1 << 20))).unwrap();
        }
    });
    rig.until(|rig| rig.scripts[1].received().len() == 2);
    let has_ended = |stream, status| rig.scripts[1].events().contains(&Event::Received { stream, status });
    assert!(has_ended(headers[0], TransferStatus::Cut) && has_ended(headers[1], TransferStatus::Complete));
    assert_eq!(rig.kernels[1].read(1 << 21, 1000), pattern(1, 1000));
    assert_eq!((rig.counter(1, "streams"), rig.counter(1, "cut")), (0, 1));
}

#[test]
fn receiver_that_restarts_in_the_middle_frees_its_streams() {
    let mut rig = Rig::new(CompanionMode::Stepped, &[2], Options::default());
    rig.scripts[1].on_event(|chip, event| {
        if let Event::Header { packet, stream: Some(stream), .. } = *event {
            if packet.message.match_bits == 1 {
                chip.set_booted(false).unwrap();
                chip.set_booted(true).unwrap();
            }
            chip.receive(stream, 1 << 20, Pieces::One(piece(KERNEL, 0, 1 << 20))).unwrap();
        }
    });

    rig.send(0, Message::put(1, 1, 0, 1 << 20));
    rig.until(|rig| rig.scripts[1].received() == [TransferStatus::Cut]);
    rig.until(|rig| rig.scripts[0].transmitted() == [(1, TransferStatus::Complete)]);

    rig.settle();
    rig.send(0, Message::put(2, 1, 0, 1000));
    rig.until(|rig| rig.scripts[1].received() == [TransferStatus::Cut, TransferStatus::Complete]);
    assert_eq!(rig.counter(1, "streams"), 0);
}
