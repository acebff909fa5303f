//! Test bodies of the addressed-send device.

use std::{cell::RefCell, collections::VecDeque, time::Duration};

use nicforge_core::ids::AttachmentId;
use nicforge_driver::{Device, Error};
use nicforge_hwi::{attachment::control, posted, proof::addressed_send::*};
use nicforge_proof_driver::addressed_send::{AddressedSend, Message, address};
use nicforge_test_body::body;
use proptest::prelude::*;

use super::{MACHINE, SEND, pause, wait_until};
use crate::{
    backing::{Rig, ask, test_deadline},
    random::runner,
};

/// Messages that a sender can send before the target takes one: a credit for each of its slots.
const CREDITS: u64 = SLOTS;
/// Cells of a client's ring; a message of at most 48 bytes takes one.
const RING: u64 = 64;
/// Offset of the control page in BAR 0: after 4 KiB of registers.
const CONTROL: u64 = 0x1000;
/// Long enough that only a blocked operation exceeds it, and short enough to wait for.
const SHORT: Duration = Duration::from_millis(20);
/// Number of messages to a receiver that waits for interrupts.
const MANY: u32 = 4_000;

/// Opens an attachment of the card, and its driver.
fn open(rig: &dyn Rig, attachment: u16) -> (Device, AddressedSend) {
    let device = rig.open("send0", &format!("user{attachment}"));
    let send = AddressedSend::open(&device).unwrap();
    (device, send)
}

/// Asserts that a message has this source, tag and data.
fn expect(message: &Message, source: u16, tag: u16, data: &[u8]) {
    assert_eq!((message.source, message.tag, message.data()), (source, tag, data));
}

/// Uses up the credits of `target` and sends one more message. Returns when that one is stalled.
/// Each message's data is its number.
fn stall(rig: &dyn Rig, device: &Device, sender: &mut AddressedSend, target: u16) {
    let before = rig.counter("send0", "stalls");
    for number in 0..=CREDITS {
        sender.send(target, 0, &[number as u8]).unwrap();
    }
    wait_until(device, || rig.counter("send0", "stalls") == before + 1);
}

/// Returns the number of malformed records in an attachment's ring so far.
fn malformed(rig: &dyn Rig, attachment: u16) -> u64 {
    ask(rig, move |machine| {
        machine.attachment_counters(SEND, AttachmentId(attachment)).unwrap().malformed_records
    })
}

/// Messages arrive at the target in the address, the sender's own included, with the sender as the
/// card knows it.
#[body]
pub fn every_client_reaches_every_client(rig: &dyn Rig) {
    let mut clients: Vec<_> = (0..ATTACHMENTS).map(|attachment| open(rig, attachment).1).collect();
    for source in 0..ATTACHMENTS {
        for target in 0..ATTACHMENTS {
            let (tag, data) = (source * 16 + target, [source as u8, target as u8]);

            clients[usize::from(source)].send(target, tag, &data).unwrap();
            expect(&clients[usize::from(target)].receive(test_deadline(), None).unwrap(), source, tag, &data);
        }
    }

    assert!(clients.iter_mut().all(|client| client.try_receive().unwrap().is_none()));
}

/// Messages of every length from 1 to the longest arrive, and others are refused.
#[body]
pub fn every_length_arrives(rig: &dyn Rig) {
    let (_device, mut client) = open(rig, 0);
    let data: Vec<u8> = (1..=MAX_MESSAGE as u8).collect();

    for length in 1..=MAX_MESSAGE {
        client.send(0, 63, &data[..length]).unwrap();
        expect(&client.receive(test_deadline(), None).unwrap(), 0, 63, &data[..length]);
    }

    assert!(matches!(client.send(0, 0, &[]), Err(Error::BadLength { .. })));
    assert!(matches!(client.send(0, 0, &[0; MAX_MESSAGE + 1]), Err(Error::BadLength { .. })));
    assert!(matches!(client.try_send(0, 0, &[]), Err(Error::BadLength { .. })));
    assert!(matches!(client.try_send(0, 0, &[0; MAX_MESSAGE + 1]), Err(Error::BadLength { .. })));
    assert!(matches!(client.send(ATTACHMENTS, 0, &[0]), Err(Error::NoSuch { .. })));
    assert!(matches!(client.send(0, TAGS as u16, &[0]), Err(Error::NoSuch { .. })));
}

/// A store of another length or at another offset is refused and counted, posted or trapped.
#[body(not_through(guests) = SPLIT_ACCESSES)]
pub fn a_bad_length_or_address_is_refused(rig: &dyn Rig) {
    let (device, mut client) = open(rig, 0);
    let other = rig.open("send0", "user1");
    let window = other.bar(SEND_BAR).unwrap();

    window.posted_write(0, &[0; MAX_MESSAGE + 1]).unwrap();
    window.posted_write(0, &[0; posted::MAX_DATA]).unwrap();
    window.posted_write(32, &[1]).unwrap();
    window.write32(4, 1).unwrap();

    assert_eq!(other.bar(0).unwrap().read64(REG_BAD).unwrap(), 4);
    assert_eq!(client.try_receive().unwrap(), None);

    window.write_burst16(0, &[7; 16]).unwrap();
    wait_until(&device, || client.try_receive().unwrap().is_some_and(|message| message.data() == [7; 16]));
}

/// A send to a target without a client is refused.
#[body(not_through(guests) = QEMU_HOLDS_ATTACHMENTS)]
pub fn a_send_to_an_absent_address_is_refused(rig: &dyn Rig) {
    let (_device, mut client) = open(rig, 0);
    assert!(client.is_present(0).unwrap() && !client.is_present(2).unwrap());

    client.send(2, 0, &[1]).unwrap();
    assert_eq!(client.stalls_and_refusals().unwrap(), (0, 1));
}

/// The ninth message waits until the target takes the first, and later messages wait for it.
#[body]
pub fn a_send_without_credits_stalls_until_one_is_returned(rig: &dyn Rig) {
    let (device, mut sender) = open(rig, 0);
    let (_target_device, mut target) = open(rig, 1);
    let (_bystander_device, mut bystander) = open(rig, 2);

    stall(rig, &device, &mut sender, 1);
    sender.send(2, 5, &[100]).unwrap();
    bystander.send(2, 6, &[101]).unwrap();

    expect(&bystander.receive(test_deadline(), None).unwrap(), 2, 6, &[101]);
    assert_eq!(bystander.try_receive().unwrap(), None);

    expect(&target.receive(test_deadline(), None).unwrap(), 0, 0, &[0]);
    expect(&bystander.receive(test_deadline(), None).unwrap(), 0, 5, &[100]);

    for number in 1..=CREDITS {
        expect(&target.receive(test_deadline(), None).unwrap(), 0, 0, &[number as u8]);
    }

    assert_eq!(sender.stalls_and_refusals().unwrap(), (1, 0));
}

/// The ring accepts messages that wait for credits until it is full, and none is lost.
#[body]
pub fn a_full_ring_blocks_the_sender(rig: &dyn Rig) {
    let (device, mut sender) = open(rig, 0);
    let (_target_device, mut target) = open(rig, 1);
    let available = CREDITS + RING;

    for number in 0..available {
        sender.send(1, 0, &[number as u8]).unwrap();
    }

    wait_until(&device, || rig.counter("send0", "delivered") == CREDITS);
    assert!(matches!(sender.try_send(1, 0, &[0]), Err(Error::RingFull { .. })));

    expect(&target.receive(test_deadline(), None).unwrap(), 0, 0, &[0]);
    sender.send(1, 0, &[available as u8]).unwrap();

    for number in 1..=available {
        expect(&target.receive(test_deadline(), None).unwrap(), 0, 0, &[number as u8]);
    }

    assert_eq!(target.try_receive().unwrap(), None);
}

/// An invalid read pointer returns no credits.
#[body]
pub fn a_bad_read_pointer_returns_no_credits(rig: &dyn Rig) {
    let (device, mut sender) = open(rig, 0);
    let (target_device, mut target) = open(rig, 1);
    let (_other_device, mut other) = open(rig, 2);
    let head = target_device.bar(1).unwrap().window(WIN_HEAD, 8).unwrap();

    stall(rig, &device, &mut sender, 1);
    head.store_u64_release(0, 1 << 40).unwrap();
    target_device.doorbell().after_store().unwrap();

    // The device reads the pointer again for the other sender.
    other.send(1, 1, &[100]).unwrap();
    wait_until(&device, || rig.counter("send0", "stalls") == 2);

    assert_eq!(rig.counter("send0", "delivered"), CREDITS);

    for number in 0..CREDITS {
        expect(&target.receive(test_deadline(), None).unwrap(), 0, 0, &[number as u8]);
    }

    let mut last =
        [target.receive(test_deadline(), None).unwrap(), target.receive(test_deadline(), None).unwrap()];
    last.sort_by_key(|message| message.source);
    expect(&last[0], 0, 0, &[CREDITS as u8]);
    expect(&last[1], 2, 1, &[100]);
}

/// A reset of the target returns its credits. The waiting message arrives; those in the mailbox are
/// lost.
#[body]
pub fn a_reset_of_the_target_lets_a_stalled_send_pass(rig: &dyn Rig) {
    let (device, mut sender) = open(rig, 0);
    let (target_device, target) = open(rig, 1);
    stall(rig, &device, &mut sender, 1);

    drop(target);
    target_device.reset().unwrap();
    let mut target = AddressedSend::open(&target_device).unwrap();

    expect(&target.receive(test_deadline(), None).unwrap(), 0, 0, &[CREDITS as u8]);
    assert_eq!(target.try_receive().unwrap(), None);
}

/// A reset of the sender does not wait for its own stalled send. That send and all messages after
/// it are lost.
#[body]
pub fn a_reset_of_the_sender_drops_a_stalled_send(rig: &dyn Rig) {
    let (device, mut sender) = open(rig, 0);
    let (_target_device, mut target) = open(rig, 1);
    stall(rig, &device, &mut sender, 1);

    drop(sender);
    device.reset().unwrap();
    let mut sender = AddressedSend::open(&device).unwrap();
    sender.send(1, 1, &[200]).unwrap();

    for number in 0..CREDITS {
        expect(&target.receive(test_deadline(), None).unwrap(), 0, 0, &[number as u8]);
    }

    expect(&target.receive(test_deadline(), None).unwrap(), 0, 1, &[200]);
}

/// When a target detaches, the senders that wait for it continue.
#[body(not_through(guests) = QEMU_HOLDS_ATTACHMENTS)]
pub fn a_stalled_send_ends_when_its_target_detaches(rig: &dyn Rig) {
    let (device, mut sender) = open(rig, 0);
    let (target_device, target) = open(rig, 1);
    stall(rig, &device, &mut sender, 1);

    drop((target, target_device));
    wait_until(&device, || rig.counter("send0", "bad_sends") == 1);

    assert_eq!(sender.stalls_and_refusals().unwrap(), (1, 1));
}

/// The operator's reset clears a stall that clients caused.
#[body]
pub fn an_operators_reset_clears_a_stall(rig: &dyn Rig) {
    let (device, mut sender) = open(rig, 0);
    let (target_device, target) = open(rig, 1);
    stall(rig, &device, &mut sender, 1);
    drop((sender, target));

    rig.reset("send0");
    // Both find a new generation, and start again.
    device.reset().unwrap();
    target_device.reset().unwrap();

    let mut sender = AddressedSend::open(&device).unwrap();
    let mut target = AddressedSend::open(&target_device).unwrap();
    sender.send(1, 2, &[1]).unwrap();
    expect(&target.receive(test_deadline(), None).unwrap(), 0, 2, &[1]);
}

/// A trapped read waits for a stalled record, but the control page answers.
#[body(not_through(guests) = FRESH_MACHINE)]
pub fn a_trapped_read_waits_for_an_earlier_stalled_send(rig: &dyn Rig) {
    let (device, mut sender) = open(rig, 0);
    let (_target_device, mut target) = open(rig, 1);
    let registers = device.bar(0).unwrap();

    stall(rig, &device, &mut sender, 1);
    assert_eq!(registers.read32(CONTROL + control::ATTACHMENT).unwrap(), 0);

    let reader = registers.clone();
    let waiting = std::thread::spawn(move || reader.read64(REG_STALLS));
    assert_eq!(target.receive(test_deadline(), None).unwrap().data(), [0]);

    assert_eq!(waiting.join().unwrap(), Ok(1));
}

/// A producer that dies between the cells of a record leaves a ring that a reset empties. The ring
/// works afterwards.
#[body(not_through(guests) = OPERATORS_CODE)]
pub fn a_ring_with_a_half_written_record_works_after_a_reset(rig: &dyn Rig) {
    let (device, client) = open(rig, 0);
    let (_target_device, mut target) = open(rig, 1);
    drop(client);

    let ring = device.bar(1).unwrap().window(0, RING * posted::CELL as u64).unwrap();
    let registers = device.bar(0).unwrap();
    let cell = posted::CELL as u64;

    // The second cell of a record is there, the first is not.
    ring.store_u64_release(cell, posted::PHASE).unwrap();
    device.doorbell().after_store().unwrap();

    registers.write32(CONTROL + control::RING_SELECT, 0).unwrap();
    assert_eq!(registers.read32(CONTROL + control::RING_STATE).unwrap(), 1 << 31);

    registers.write32(CONTROL + control::RING_RESET, 0).unwrap();
    assert_eq!(ring.load_u64_acquire(cell).unwrap(), 0);

    let mut client = AddressedSend::open(&device).unwrap();
    for number in 0..2 * RING {
        client.send(1, 0, &[number as u8]).unwrap();
        expect(&target.receive(test_deadline(), None).unwrap(), 0, 0, &[number as u8]);
    }

    assert_eq!(malformed(rig, 0), 0);
}

/// Records that are invalid, or address memory or the core's own pages, are skipped and counted.
#[body(not_through(guests) = OPERATORS_CODE)]
pub fn malformed_records_are_skipped(rig: &dyn Rig) {
    let (device, client) = open(rig, 0);
    drop(client);
    let ring = device.bar(1).unwrap().window(0, RING * posted::CELL as u64).unwrap();
    let malformed_headers = [
        posted::header(SEND_BAR, 0, 0),
        posted::header(SEND_BAR, 0, 513),
        posted::header(7, 0, 4),
        posted::header(3, 0, 4),
        posted::header(0, CONTROL as u32, 4),
        posted::header(1, WIN_HEAD as u32, 8),
        posted::header(2, MIRROR_MAILBOX as u32, 8),
        posted::header(SEND_BAR, SEND_WINDOW as u32 - 1, 8),
        posted::header(SEND_BAR, u32::MAX, 8),
    ];

    for (cell, header) in malformed_headers.iter().enumerate() {
        ring.store_u64_release((cell * posted::CELL) as u64, header | posted::PHASE).unwrap();
    }

    device.doorbell().after_store().unwrap();
    wait_until(&device, || malformed(rig, 0) == malformed_headers.len() as u64);
    assert_eq!(rig.counter("send0", "delivered") + rig.counter("send0", "bad_sends"), 0);

    let registers = device.bar(0).unwrap();
    assert_eq!(
        registers.read32(CONTROL + control::RING_STATE).unwrap(),
        malformed_headers.len() as u32 | 1 << 31
    );
}

/// The interrupt fires when the mailbox changes from empty to not empty.
#[body]
pub fn the_receive_interrupt_is_raised_when_the_mailbox_stops_being_empty(rig: &dyn Rig) {
    let (_device, mut sender) = open(rig, 0);
    let (target_device, mut target) = open(rig, 1);
    let interrupt = target.receive_interrupt().unwrap();

    sender.send(1, 0, &[1]).unwrap();
    sender.send(1, 0, &[2]).unwrap();
    assert_eq!(interrupt.wait(test_deadline(), None).unwrap(), 1);

    wait_until(&target_device, || rig.counter("send0", "delivered") == 2);
    assert_eq!(interrupt.take(), 0);

    expect(&target.receive(test_deadline(), None).unwrap(), 0, 0, &[1]);
    expect(&target.receive(test_deadline(), None).unwrap(), 0, 0, &[2]);
    sender.send(1, 0, &[3]).unwrap();

    assert_eq!(interrupt.wait(test_deadline(), None).unwrap(), 1);
}

/// A receiver that takes all messages and then waits for the interrupt gets every message, also
/// those that arrive meanwhile.
#[body]
pub fn a_receiver_that_waits_only_for_interrupts_gets_all_messages(rig: &dyn Rig) {
    let (_device, mut sender) = open(rig, 0);
    let (_target_device, mut target) = open(rig, 1);
    let interrupt = target.receive_interrupt().unwrap();

    for number in (0..u64::from(rig.repetitions(MANY))).step_by(2) {
        sender.send(1, 0, &number.to_le_bytes()).unwrap();
        // Consumes this message's interrupt, so that it is not taken for the next one's.
        interrupt.wait(test_deadline(), None).unwrap();

        // It arrives at about the time when the previous one is taken.
        sender.send(1, 0, &(number + 1).to_le_bytes()).unwrap();
        pause(number);

        for number in number..number + 2 {
            let received = loop {
                match target.try_receive().unwrap() {
                    Some(received) => break received,
                    None => interrupt.wait(test_deadline(), None).unwrap(),
                };
            };
            expect(&received, 0, 0, &number.to_le_bytes());
        }
    }
}

/// A send that waits beyond its deadline returns an error, and no message is sent.
#[body]
pub fn a_full_ring_times_out(rig: &dyn Rig) {
    let (device, sender) = open(rig, 0);
    let (_target_device, mut target) = open(rig, 1);
    drop(sender);

    let mut poster = device.poster(0).unwrap();
    let at = address(1, 0).unwrap();
    let available = CREDITS + RING;

    for number in 0..available {
        poster.post(SEND_BAR, at, &[number as u8]).unwrap();
    }

    poster.set_timeout(SHORT);
    assert!(matches!(poster.post(SEND_BAR, at, &[255]), Err(Error::Timeout { .. })));

    for number in 0..available {
        expect(&target.receive(test_deadline(), None).unwrap(), 0, 0, &[number as u8]);
    }

    device.flush().unwrap();
    assert_eq!(target.try_receive().unwrap(), None);
}

/// An action of a client in [`any_sequence_arrives_in_order`].
#[derive(Clone, Debug)]
enum Action {
    Send { source: u16, target: u16, tag: u16, data: Vec<u8> },
    Receive { attachment: u16 },
}

/// Generates an action.
fn action() -> impl Strategy<Value = Action> {
    let attachment = || 0..ATTACHMENTS;
    let data = prop::collection::vec(any::<u8>(), 1..=MAX_MESSAGE);
    prop_oneof![
        3 => (attachment(), attachment(), 0..TAGS as u16, data)
            .prop_map(|(source, target, tag, data)| Action::Send { source, target, tag, data }),
        2 => attachment().prop_map(|attachment| Action::Receive { attachment }),
    ]
}

/// The messages in flight from each client to each, oldest first.
type Model = [[VecDeque<(u16, Vec<u8>)>; ATTACHMENTS as usize]; ATTACHMENTS as usize];

/// Takes a message, which must be the oldest in flight from its source. Returns whether there was
/// one.
fn take(client: &mut AddressedSend, attachment: u16, model: &mut Model) -> Result<bool, TestCaseError> {
    let Some(message) = client.try_receive().unwrap() else { return Ok(false) };
    let oldest = model[usize::from(message.source)][usize::from(attachment)].pop_front();
    prop_assert_eq!(oldest, Some((message.tag, message.data().to_vec())));
    Ok(true)
}

/// For any sequence of sends and receives, messages between two clients arrive complete, in order
/// and once.
#[body]
pub fn any_sequence_arrives_in_order(rig: &dyn Rig) {
    let clients: Vec<_> = (0..ATTACHMENTS).map(|attachment| open(rig, attachment)).collect();
    let device = clients[0].0.clone();
    let clients = RefCell::new(clients.into_iter().map(|(_, client)| client).collect::<Vec<_>>());
    let mut runner = runner(rig, 64);

    let outcome = runner.run(&prop::collection::vec(action(), 1..300), |actions| {
        let mut clients = clients.borrow_mut();
        let mut model = Model::default();

        for action in actions {
            match action {
                Action::Send { source, target, tag, data } => {
                    match clients[usize::from(source)].try_send(target, tag, &data) {
                        Ok(()) => model[usize::from(source)][usize::from(target)].push_back((tag, data)),
                        Err(error) => prop_assert_eq!(error, Error::RingFull { ring: 0 }),
                    }
                }
                Action::Receive { attachment } => {
                    take(&mut clients[usize::from(attachment)], attachment, &mut model)?;
                }
            }
        }

        let deadline = test_deadline();
        let mut relax = device.new_relax();

        while model.iter().flatten().any(|queue| !queue.is_empty()) {
            prop_assert!(!deadline.has_passed(), "messages got lost");
            for (attachment, client) in clients.iter_mut().enumerate() {
                while take(client, attachment as u16, &mut model)? {
                    relax.reset();
                }
            }
            device.relax(&mut relax).unwrap();
        }

        Ok(())
    });

    outcome.unwrap();
}
