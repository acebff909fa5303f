//! Test bodies of the slot FIFO.

use std::{collections::VecDeque, time::Duration};

use nicforge_driver::{Deadline, Device, Error, IRQ_INTX, WriteMode};
use nicforge_hwi::proof::slot_fifo::*;
use nicforge_proof_driver::slot_fifo::{Message, SlotFifo};
use nicforge_test_body::body;
use proptest::prelude::*;

use super::{MACHINE, pause, wait_until};
use crate::{
    backing::{Rig, test_deadline},
    random::runner,
};

/// Number of slots of each FIFO.
const SLOT_COUNT: usize = SLOTS as usize;
/// Long enough that only a blocked operation exceeds it, and short enough to wait for.
const SHORT: Duration = Duration::from_millis(20);
/// Number of messages to a receiver that waits for interrupts.
const MANY: u32 = 4_000;

/// Opens an attachment of the card, and its driver.
fn open(rig: &dyn Rig, user: &str) -> (Device, SlotFifo) {
    let device = rig.open("fifo0", user);
    let fifo = SlotFifo::open(&device).unwrap();
    (device, fifo)
}

/// Returns the message with this number.
fn message(number: u64) -> Message {
    let mut message = [number as u8; DATA];
    message[..8].copy_from_slice(&number.to_le_bytes());
    message
}

/// Returns the words of a message, as the port takes them.
fn words(message: &Message) -> impl Iterator<Item = u64> {
    message.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
}

/// Pushes a message into the port.
fn push(fifo: &SlotFifo, message: &Message) {
    words(message).for_each(|word| fifo.push_word(word).unwrap());
}

/// Sends messages `0..capacity`, and checks that there is no room for one more. Returns `capacity`.
fn fill_up(device: &Device, fifo: &mut SlotFifo, capacity: usize) -> u64 {
    let capacity = capacity as u64;
    for number in 0..capacity {
        fifo.send(&message(number), test_deadline(), None).unwrap();
    }

    wait_until(device, || fifo.fill().unwrap() as usize == QUEUE);
    let more = fifo.send(&message(capacity), Deadline::after(SHORT), None);
    assert!(matches!(more, Err(Error::Timeout { .. })), "message {capacity} was taken");

    capacity
}

/// Every message comes back in order, also when there are more than all FIFOs hold.
#[body]
pub fn messages_are_returned_in_order(rig: &dyn Rig) {
    let (_device, mut fifo) = open(rig, "user0");

    for number in 0..1000 {
        fifo.send(&message(number), test_deadline(), None).unwrap();
        if number % 7 == 6 {
            for back in number - 6..=number {
                assert_eq!(fifo.receive(test_deadline(), None).unwrap(), message(back));
            }
        }
    }

    for number in 994..1000 {
        assert_eq!(fifo.receive(test_deadline(), None).unwrap(), message(number));
    }

    assert_eq!(fifo.try_receive().unwrap(), None);
}

/// A held device fills its queue, then the send slots fill. The release lets all messages through.
#[body]
pub fn a_held_device_fills_up_and_continues_when_released(rig: &dyn Rig) {
    let (device, mut fifo) = open(rig, "user0");
    fifo.hold(true).unwrap();

    let sent = fill_up(&device, &mut fifo, QUEUE + SLOT_COUNT);
    assert_eq!(fifo.try_receive().unwrap(), None);

    fifo.hold(false).unwrap();
    for number in 0..sent {
        assert_eq!(fifo.receive(test_deadline(), None).unwrap(), message(number));
    }

    fifo.send(&message(sent), test_deadline(), None).unwrap();
    assert_eq!(fifo.receive(test_deadline(), None).unwrap(), message(sent));
}

/// A reader that does not return its pointer blocks its own sends. One returned slot lets one more
/// message in.
#[body]
pub fn a_reader_that_frees_no_slot_fills_all_queues(rig: &dyn Rig) {
    let (device, mut fifo) = open(rig, "user0");

    let sent = fill_up(&device, &mut fifo, SLOT_COUNT + QUEUE + SLOT_COUNT);
    assert_eq!(fifo.receive(test_deadline(), None).unwrap(), message(0));

    fifo.send(&message(sent), test_deadline(), None).unwrap();
    assert!(matches!(fifo.send(&message(0), Deadline::after(SHORT), None), Err(Error::Timeout { .. })));

    for number in 1..=sent {
        assert_eq!(fifo.receive(test_deadline(), None).unwrap(), message(number));
    }
}

/// Messages written to the port arrive in the slots, and the other way round.
#[body]
pub fn port_and_slots_share_a_queue(rig: &dyn Rig) {
    let (device, mut fifo) = open(rig, "user0");

    push(&fifo, &message(1));
    assert_eq!(fifo.receive(test_deadline(), None).unwrap(), message(1));

    fifo.hold(true).unwrap();
    fifo.send(&message(2), test_deadline(), None).unwrap();
    wait_until(&device, || fifo.fill().unwrap() == 1);

    for word in words(&message(2)) {
        assert_eq!(fifo.pop_word().unwrap(), word);
    }

    assert_eq!((fifo.fill().unwrap(), fifo.errors().unwrap()), (0, 0));
}

/// A read of the empty port returns all ones and sets an error.
#[body]
pub fn port_read_while_empty_sets_the_error(rig: &dyn Rig) {
    let (device, fifo) = open(rig, "user0");
    let interrupt = device.interrupt(VECTOR_ERROR.into()).unwrap();

    assert_eq!(fifo.pop_word().unwrap(), u64::MAX);

    assert_eq!(interrupt.wait(test_deadline(), None).unwrap(), 1);
    assert_eq!(fifo.errors().unwrap(), ERROR_EMPTY);
    assert_eq!(fifo.errors().unwrap(), 0);
}

/// A write to the port of a full queue is lost, and no other message is.
#[body]
pub fn port_write_while_full_sets_the_error_and_loses_that_word_only(rig: &dyn Rig) {
    let (_device, mut fifo) = open(rig, "user0");
    fifo.hold(true).unwrap();
    (0..QUEUE as u64).for_each(|number| push(&fifo, &message(number)));

    assert_eq!(fifo.errors().unwrap(), 0);

    fifo.push_word(0xdead).unwrap();
    assert_eq!(fifo.errors().unwrap(), ERROR_FULL);

    fifo.hold(false).unwrap();
    for number in 0..QUEUE as u64 {
        assert_eq!(fifo.receive(test_deadline(), None).unwrap(), message(number));
    }

    push(&fifo, &message(99));
    assert_eq!(fifo.receive(test_deadline(), None).unwrap(), message(99));
}

/// The port accepts accesses of 8 bytes at its own address only.
#[body(not_through(guests) = SPLIT_ACCESSES)]
pub fn port_access_of_another_width_sets_the_error(rig: &dyn Rig) {
    let (device, fifo) = open(rig, "user0");
    let backing = device.backing();

    for (offset, width) in [(0, 1), (0, 2), (0, 4), (4, 4), (1, 8), (0, 16)] {
        backing.write(0, REG_PORT + offset, &vec![0; width], WriteMode::Confirmed).unwrap();
        assert_eq!(fifo.errors().unwrap(), ERROR_WIDTH, "write of {width} bytes at {offset}");
        let mut data = vec![0; width];
        backing.read(0, REG_PORT + offset, &mut data).unwrap();
        assert_eq!(fifo.errors().unwrap(), ERROR_WIDTH, "read of {width} bytes at {offset}");
        assert!(data.iter().all(|byte| *byte == 0xff));
    }
}

/// The other registers accept accesses of their own width only.
#[body]
pub fn register_access_of_another_width_reads_ones_and_writes_nothing(rig: &dyn Rig) {
    let (device, fifo) = open(rig, "user0");
    let registers = device.bar(0).unwrap();

    registers.write16(REG_HOLD, 1).unwrap();
    assert_eq!(registers.read32(REG_HOLD).unwrap(), 0);
    assert_eq!(registers.read16(REG_HOLD).unwrap(), u16::MAX);
    assert_eq!(registers.read32(REG_TAKEN).unwrap(), u32::MAX);
    assert_eq!(registers.read32(0xf00).unwrap(), u32::MAX);
    assert_eq!(fifo.errors().unwrap(), 0);
}

/// An invalid read pointer is reported once and changes no state.
#[body]
pub fn a_bad_read_pointer_sets_the_error_and_frees_nothing(rig: &dyn Rig) {
    let (device, mut fifo) = open(rig, "user0");
    let interrupt = device.interrupt(VECTOR_ERROR.into()).unwrap();
    let head = device.bar(1).unwrap().window(WIN_HEAD, 8).unwrap();

    head.store_u64_release(0, 1000).unwrap();
    device.doorbell().after_store().unwrap();

    assert_eq!(interrupt.wait(test_deadline(), None).unwrap(), 1);
    assert_eq!(fifo.errors().unwrap(), ERROR_POINTER);

    let sent = fill_up(&device, &mut fifo, SLOT_COUNT + QUEUE + SLOT_COUNT);
    for number in 0..sent {
        assert_eq!(fifo.receive(test_deadline(), None).unwrap(), message(number));
    }

    // The pointer returns to its first value.
    head.store_u64_release(0, 0).unwrap();
    device.doorbell().after_store().unwrap();

    assert_eq!(interrupt.wait(test_deadline(), None).unwrap(), 1);
    assert_eq!(fifo.errors().unwrap(), ERROR_POINTER);
}

/// The receive interrupt fires when the receive slots change from empty to not empty, and not for
/// each message.
#[body]
pub fn the_receive_interrupt_is_raised_when_the_slots_stop_being_empty(rig: &dyn Rig) {
    let (device, mut fifo) = open(rig, "user0");
    let interrupt = fifo.receive_interrupt().unwrap();

    fifo.send(&message(0), test_deadline(), None).unwrap();
    assert_eq!(interrupt.wait(test_deadline(), None).unwrap(), 1);

    fifo.send(&message(1), test_deadline(), None).unwrap();
    let slots = device.bar(2).unwrap().window(MIRROR_RECEIVE, SLOTS * SLOT).unwrap();
    wait_until(&device, || slots.load_u64_acquire(SLOT) == Ok(2));

    assert_eq!(interrupt.take(), 0);
    assert_eq!(fifo.receive(test_deadline(), None).unwrap(), message(0));
    assert_eq!(fifo.receive(test_deadline(), None).unwrap(), message(1));

    fifo.send(&message(2), test_deadline(), None).unwrap();
    assert_eq!(interrupt.wait(test_deadline(), None).unwrap(), 1);
}

/// A receiver that takes all messages and then waits for the interrupt gets every message, also
/// those that arrive meanwhile.
#[body]
pub fn a_receiver_that_waits_only_for_interrupts_gets_all_messages(rig: &dyn Rig) {
    let (_device, mut fifo) = open(rig, "user0");
    let interrupt = fifo.receive_interrupt().unwrap();

    for number in (0..u64::from(rig.repetitions(MANY))).step_by(2) {
        fifo.send(&message(number), test_deadline(), None).unwrap();
        // Consumes this message's interrupt, so that it is not taken for the next one's.
        interrupt.wait(test_deadline(), None).unwrap();

        // It arrives at about the time when the previous one is taken.
        fifo.send(&message(number + 1), test_deadline(), None).unwrap();
        pause(number);

        for number in number..number + 2 {
            let received = loop {
                match fifo.try_receive().unwrap() {
                    Some(received) => break received,
                    None => interrupt.wait(test_deadline(), None).unwrap(),
                };
            };
            assert_eq!(received, message(number));
        }
    }
}

/// INTx is a level: it fires once and masks itself, and fires again when it is unmasked while still
/// asserted.
#[body]
pub fn intx_fires_again_until_the_error_is_cleared(rig: &dyn Rig) {
    let (device, fifo) = open(rig, "user0");
    let line = device.intx().unwrap();
    fifo.pop_word().unwrap();

    assert_eq!(line.wait(test_deadline(), None).unwrap(), 1);

    fifo.pop_word().unwrap();
    assert_eq!(line.take(), 0);

    line.unmask().unwrap();
    assert_eq!(line.wait(test_deadline(), None).unwrap(), 1);

    fifo.errors().unwrap();
    line.unmask().unwrap();

    assert!(matches!(line.wait(Deadline::after(SHORT), None), Err(Error::Timeout { .. })));
}

/// A masked INTx keeps its interrupt until it is unmasked.
#[body]
pub fn a_masked_intx_fires_when_it_is_unmasked(rig: &dyn Rig) {
    let (device, fifo) = open(rig, "user0");
    let line = device.intx().unwrap();
    device.backing().mask(IRQ_INTX, 0, 1).unwrap();

    fifo.pop_word().unwrap();
    assert!(matches!(line.wait(Deadline::after(SHORT), None), Err(Error::Timeout { .. })));

    device.backing().unmask(IRQ_INTX, 0, 1).unwrap();
    assert_eq!(line.wait(test_deadline(), None).unwrap(), 1);
}

/// Clients do not share messages, fill levels and errors.
#[body]
pub fn two_clients_share_no_state(rig: &dyn Rig) {
    let (first_device, mut first) = open(rig, "user0");
    let (_second_device, mut second) = open(rig, "user1");
    first.hold(true).unwrap();

    let sent = fill_up(&first_device, &mut first, QUEUE + SLOT_COUNT);
    first.push_word(0).unwrap();

    second.send(&message(500), test_deadline(), None).unwrap();
    assert_eq!(second.receive(test_deadline(), None).unwrap(), message(500));
    assert_eq!((second.fill().unwrap(), second.errors().unwrap()), (0, 0));

    first.hold(false).unwrap();
    for number in 0..sent {
        assert_eq!(first.receive(test_deadline(), None).unwrap(), message(number));
    }
}

/// An attachment has one client at a time.
#[body]
pub fn a_second_client_is_refused(rig: &dyn Rig) {
    let (_device, _fifo) = open(rig, "user0");

    assert!(rig.try_open("fifo0", "user0").is_err());
}

/// The next client finds no state of the previous one, whose mappings do not reach the next
/// client's memory.
#[body(not_through(guests) = "the kernel has a function end with its last mapping")]
pub fn reattachment_sees_fresh_memory(rig: &dyn Rig) {
    let (device, mut fifo) = open(rig, "user0");
    fifo.hold(true).unwrap();
    fifo.send(&message(1), test_deadline(), None).unwrap();
    wait_until(&device, || fifo.fill().unwrap() == 1);

    let old_send = device.bar(1).unwrap().window(WIN_SEND, SLOTS * SLOT).unwrap();
    let generation = device.generation();
    drop((device, fifo));

    let (device, mut fifo) = open(rig, "user0");
    old_send.store_u64_release(0, 1).unwrap();
    device.doorbell().after_store().unwrap();
    device.flush().unwrap();

    let registers = device.bar(0).unwrap();
    assert_ne!(device.generation(), generation);
    assert_eq!((registers.read32(REG_HOLD).unwrap(), fifo.fill().unwrap()), (0, 0));
    assert_eq!(registers.read64(REG_TAKEN).unwrap(), 0);
    assert_eq!(device.bar(2).unwrap().read64(MIRROR_TAKEN).unwrap(), 0);
    assert_eq!(device.bar(1).unwrap().read64(WIN_SEND).unwrap(), 0);

    fifo.send(&message(2), test_deadline(), None).unwrap();
    assert_eq!(fifo.receive(test_deadline(), None).unwrap(), message(2));
}

/// A reset empties all FIFOs, and the device works afterwards.
#[body]
pub fn a_reset_empties_all_fifos(rig: &dyn Rig) {
    let (device, mut fifo) = open(rig, "user0");
    fill_up(&device, &mut fifo, SLOT_COUNT + QUEUE + SLOT_COUNT);
    fifo.pop_word().unwrap();
    fifo.pop_word().unwrap();

    device.reset().unwrap();
    let mut fifo = SlotFifo::open(&device).unwrap();

    assert_eq!((fifo.fill().unwrap(), fifo.errors().unwrap()), (0, 0));
    assert_eq!(fifo.try_receive().unwrap(), None);

    fifo.send(&message(3), test_deadline(), None).unwrap();
    assert_eq!(fifo.receive(test_deadline(), None).unwrap(), message(3));
}

/// A client that is evicted while it waits gets an error.
#[body(not_through(guests) = EVICTION_IS_FINAL)]
pub fn an_evicted_client_gets_the_eviction_error(rig: &dyn Rig) {
    let (_device, mut fifo) = open(rig, "user0");
    let waiting = std::thread::spawn(move || fifo.receive(test_deadline(), None));

    rig.evict("fifo0", "user0");
    assert!(waiting.join().unwrap().unwrap_err().is_gone());

    let (_device, mut fifo) = open(rig, "user0");
    fifo.send(&message(1), test_deadline(), None).unwrap();

    assert_eq!(fifo.receive(test_deadline(), None).unwrap(), message(1));
}

/// An action of a client in [`any_sequence_behaves_like_queues`].
#[derive(Clone, Debug)]
enum Action {
    Send(u64),
    Receive,
    Hold(bool),
    Push(u64),
    Pop,
    Reset,
}

/// Generates an action.
fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        6 => any::<u64>().prop_map(Action::Send),
        4 => Just(Action::Receive),
        2 => any::<bool>().prop_map(Action::Hold),
        2 => any::<u64>().prop_map(Action::Push),
        1 => Just(Action::Pop),
        1 => prop::bool::weighted(0.1).prop_map(|reset| if reset { Action::Reset } else { Action::Receive }),
    ]
}

/// The FIFO as three queues.
#[derive(Default)]
struct Model {
    send: VecDeque<Message>,
    queue: VecDeque<Message>,
    receive: VecDeque<Message>,
    hold: bool,
    taken: u64,
}

impl Model {
    /// Moves messages between the queues until none can move.
    fn move_messages(&mut self) {
        loop {
            if !self.hold && self.receive.len() < SLOT_COUNT && !self.queue.is_empty() {
                self.receive.extend(self.queue.pop_front());
            } else if self.queue.len() < QUEUE && !self.send.is_empty() {
                self.queue.extend(self.send.pop_front());
                self.taken += 1;
            } else {
                break;
            }
        }
    }
}

/// Any sequence of actions on slots, port and registers leaves the device in the state of three
/// queues.
#[body]
pub fn any_sequence_behaves_like_queues(rig: &dyn Rig) {
    let (device, _) = open(rig, "user0");
    let registers = device.bar(0).unwrap();
    let mut runner = runner(rig, 64);

    let outcome = runner.run(&prop::collection::vec(action(), 1..100), |actions| {
        device.reset().unwrap();
        let mut fifo = SlotFifo::open(&device).unwrap();
        let mut model = Model::default();

        for action in actions {
            match action {
                Action::Send(number) => {
                    let available = model.send.len() < SLOT_COUNT;
                    prop_assert_eq!(fifo.try_send(&message(number)).unwrap(), available);
                    model.send.extend(available.then(|| message(number)));
                }
                Action::Receive => prop_assert_eq!(fifo.try_receive().unwrap(), model.receive.pop_front()),
                Action::Hold(on) => {
                    fifo.hold(on).unwrap();
                    model.hold = on;
                }
                Action::Push(number) => {
                    push(&fifo, &message(number));
                    let available = model.queue.len() < QUEUE;
                    prop_assert_eq!(fifo.errors().unwrap(), if available { 0 } else { ERROR_FULL });
                    if available {
                        model.queue.push_back(message(number));
                        model.taken += 1;
                    }
                }
                Action::Pop => {
                    let expected = model.queue.pop_front();
                    for index in 0..WORDS {
                        let word = expected.map(|message| words(&message).nth(index).unwrap());
                        prop_assert_eq!(fifo.pop_word().unwrap(), word.unwrap_or(u64::MAX));
                    }
                    prop_assert_eq!(fifo.errors().unwrap(), if expected.is_some() { 0 } else { ERROR_EMPTY });
                }
                Action::Reset => {
                    device.reset().unwrap();
                    fifo = SlotFifo::open(&device).unwrap();
                    model = Model::default();
                }
            }

            model.move_messages();
            wait_until(&device, || {
                registers.read64(REG_TAKEN) == Ok(model.taken)
                    && registers.read32(REG_FILL) == Ok(model.queue.len() as u32)
            });
        }

        Ok(())
    });

    outcome.unwrap();
}
