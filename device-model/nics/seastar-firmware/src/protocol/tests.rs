use proptest::prelude::*;

use super::*;

type Number = Sequence<5>;

/// Messages in flight, where a message's slot is its place in the array.
struct Array([Option<Flight<5>>; 4]);

impl Flights<5> for Array {
    fn flight(&self, slot: Slot) -> Option<&Flight<5>> {
        self.0.get(usize::from(slot.0))?.as_ref()
    }

    fn flight_mut(&mut self, slot: Slot) -> Option<&mut Flight<5>> {
        self.0.get_mut(usize::from(slot.0))?.as_mut()
    }

    fn find(&self, sequence: Number) -> Option<Slot> {
        let place =
            self.0.iter().position(|flight| flight.is_some_and(|flight| flight.sequence() == sequence));
        place.map(|place| Slot(place as u16))
    }
}

fn number(value: u16) -> Number {
    Number::new(value).unwrap()
}

/// Makes a send queue of long messages with the numbers 1, 2, and so on, all of them transmitted.
fn transmitted(count: u16) -> (Sender, Array) {
    let mut sender = Sender::default();
    let mut flights = Array([None; 4]);
    for slot in 0..count {
        flights.0[usize::from(slot)] = Some(Flight::new(number(slot + 1), true));
        sender.push(&mut flights, Slot(slot), false, false);
        let next = sender.next_to_transmit(&flights).unwrap();
        sender.begin_transmission(&mut flights, next);
        sender.transmitted(&mut flights, next);
    }
    (sender, flights)
}

fn respond(sender: &mut Sender, flights: &mut Array, response: Response, value: u16) -> Reaction {
    sender.respond(flights, response, number(value))
}

#[test]
fn sequence_numbers_skip_the_initial_one() {
    let numbers = core::iter::successors(Some(Number::INITIAL), |sequence| Some(sequence.next()));
    let values: Vec<u16> = numbers.take(6).map(Number::value).collect();

    assert_eq!(values, [0, 1, 2, 3, 4, 1]);
    assert_eq!(Number::INITIAL.distance(number(2)), 2);
    assert_eq!(number(4).distance(number(1)), 1);
    assert_eq!(Number::new(5), None);
}

#[test]
fn message_ends_when_acknowledged_and_transmitted_in_either_order() {
    let (mut sender, mut flights) = transmitted(1);
    assert_eq!(sender.pop_ended(&mut flights), None);
    assert_eq!(respond(&mut sender, &mut flights, Response::Ack, 1), Reaction::Ended);
    assert_eq!(sender.pop_ended(&mut flights), Some((Slot(0), Outcome::Taken)));

    flights.0[0] = Some(Flight::new(number(1), true));
    sender.push(&mut flights, Slot(0), false, false);
    sender.begin_transmission(&mut flights, Slot(0));
    respond(&mut sender, &mut flights, Response::Ack, 1);
    assert_eq!(sender.pop_ended(&mut flights), None);
    sender.transmitted(&mut flights, Slot(0));
    assert_eq!(sender.pop_ended(&mut flights), Some((Slot(0), Outcome::Taken)));
}

#[test]
fn refused_message_and_all_behind_it_are_repeated_in_order() {
    let (mut sender, mut flights) = transmitted(3);

    assert_eq!(respond(&mut sender, &mut flights, Response::Nack, 1), Reaction::Repeat);
    for slot in 0..3 {
        assert_eq!(sender.next_to_transmit(&flights), Some(Slot(slot)));
        sender.begin_transmission(&mut flights, Slot(slot));
        sender.transmitted(&mut flights, Slot(slot));
    }

    // The answers to the first transmissions of the others repeat nothing.
    assert_eq!(respond(&mut sender, &mut flights, Response::Nack, 2), Reaction::Ignored);
    assert_eq!(respond(&mut sender, &mut flights, Response::Nack, 3), Reaction::Ignored);
    assert_eq!(sender.next_to_transmit(&flights), None);
}

#[test]
fn message_overtakes_refused_ones_once_all_their_transmissions_are_answered() {
    let (mut sender, mut flights) = transmitted(4);
    let is_last = |_: &Array, slot: Slot| slot == Slot(3);
    respond(&mut sender, &mut flights, Response::Ack, 1);
    assert!(!sender.let_overtake(&mut flights, is_last), "nothing was refused");
    for value in 2..=4 {
        assert!(!sender.let_overtake(&mut flights, is_last), "number {value} is not answered");
        respond(&mut sender, &mut flights, Response::Nack, value);
    }

    assert!(sender.let_overtake(&mut flights, is_last));
    assert!(!sender.let_overtake(&mut flights, is_last), "it is in front already");
    for (value, slot) in [(2, 3), (3, 1), (4, 2)] {
        assert_eq!(sender.next_to_transmit(&flights), Some(Slot(slot)));
        assert_eq!(flights.find(number(value)), Some(Slot(slot)));
        sender.begin_transmission(&mut flights, Slot(slot));
        sender.transmitted(&mut flights, Slot(slot));
        respond(&mut sender, &mut flights, Response::Ack, value);
    }
    for slot in [0, 3, 1, 2] {
        assert_eq!(sender.pop_ended(&mut flights), Some((Slot(slot), Outcome::Taken)));
    }
    assert_eq!((sender.count(), sender.pop_ended(&mut flights)), (0, None));
}

#[test]
fn refused_message_is_sent_whole_before_it_is_repeated() {
    let mut sender = Sender::default();
    let mut flights = Array([Some(Flight::new(number(1), true)), None, None, None]);
    sender.push(&mut flights, Slot(0), false, false);
    sender.begin_transmission(&mut flights, Slot(0));

    respond(&mut sender, &mut flights, Response::Nack, 1);
    assert_eq!(sender.next_to_transmit(&flights), None);

    sender.transmitted(&mut flights, Slot(0));
    assert_eq!(sender.next_to_transmit(&flights), Some(Slot(0)));
}

#[test]
fn preboot_ack_fails_the_message_and_all_before_it() {
    let (mut sender, mut flights) = transmitted(3);

    respond(&mut sender, &mut flights, Response::PrebootAck, 2);

    assert_eq!(sender.pop_ended(&mut flights), Some((Slot(0), Outcome::Failed)));
    assert_eq!(sender.pop_ended(&mut flights), Some((Slot(1), Outcome::Failed)));
    assert_eq!(sender.pop_ended(&mut flights), None);
    assert_eq!(sender.count(), 1);
}

#[test]
fn first_postboot_ack_fails_all_before_the_message() {
    let (mut sender, mut flights) = transmitted(3);

    respond(&mut sender, &mut flights, Response::FirstPostbootAck, 2);

    assert_eq!(sender.pop_ended(&mut flights), Some((Slot(0), Outcome::Failed)));
    assert_eq!(sender.pop_ended(&mut flights), Some((Slot(1), Outcome::Taken)));
    assert_eq!(sender.pop_ended(&mut flights), None);
}

#[test]
fn time_out_fails_all_messages_that_were_not_accepted() {
    let (mut sender, mut flights) = transmitted(3);
    respond(&mut sender, &mut flights, Response::Ack, 1);

    sender.fail_all(&mut flights);

    assert_eq!(sender.pop_ended(&mut flights), Some((Slot(0), Outcome::Taken)));
    assert_eq!(sender.pop_ended(&mut flights), Some((Slot(1), Outcome::Failed)));
    assert_eq!(sender.pop_ended(&mut flights), Some((Slot(2), Outcome::Failed)));
    assert_eq!(sender, Sender::default());
}

#[test]
fn short_message_is_implicit_only_in_front_of_no_long_one() {
    let mut sender = Sender::default();
    let lengths = [false, true, false];
    let mut flights = Array([None; 4]);
    for (place, is_long) in lengths.into_iter().enumerate() {
        flights.0[place] = Some(Flight::new(number(place as u16 + 1), is_long));
        sender.push(&mut flights, Slot(place as u16), true, false);
    }

    let implicit = [0, 1, 2].map(|slot| flights.flight(Slot(slot)).unwrap().is_implicit());
    assert_eq!(implicit, [true, false, false]);

    sender.begin_transmission(&mut flights, Slot(0));
    sender.transmitted(&mut flights, Slot(0));
    assert_eq!(sender.pop_ended(&mut flights), Some((Slot(0), Outcome::Taken)));
}

#[test]
fn short_message_is_implicit_only_if_all_before_it_are_or_were_taken() {
    let mut sender = Sender::default();
    let mut flights = Array([None; 4]);
    // The second message must be acknowledged although it is short, as a get.
    for (place, may_be_implicit) in [true, false, true].into_iter().enumerate() {
        flights.0[place] = Some(Flight::new(number(place as u16 + 1), false));
        sender.push(&mut flights, Slot(place as u16), may_be_implicit, false);
    }
    let implicit = [0, 1, 2].map(|slot| flights.flight(Slot(slot)).unwrap().is_implicit());
    assert_eq!(implicit, [true, false, false]);

    while let Some(slot) = sender.next_to_transmit(&flights) {
        sender.begin_transmission(&mut flights, slot);
        sender.transmitted(&mut flights, slot);
    }
    for value in [2, 3] {
        assert_eq!(respond(&mut sender, &mut flights, Response::Ack, value), Reaction::Ended);
    }
    flights.0[3] = Some(Flight::new(number(4), false));
    sender.push(&mut flights, Slot(3), true, false);
    assert!(flights.flight(Slot(3)).unwrap().is_implicit());
}

#[test]
fn receiver_checks_numbers_only_between_a_drop_and_its_repetition() {
    let mut receiver = Receiver::<5>::default();
    let mut pressure = Pressure::default();
    assert_eq!(receiver.judge_header(number(3), false).answer, Answer::FirstPostbootAck);
    assert_eq!(receiver.judge_header(number(1), false).answer, Answer::Ack);

    assert_eq!(pressure.record(receiver.judge_dropped(number(2), false)), 1);
    assert!(pressure.is_abnormal());
    assert_eq!(pressure.record(receiver.judge_header(number(3), false)), 2);
    assert_eq!(pressure.record(receiver.judge_dropped(number(2), false)), 3);

    let repeated = receiver.judge_header(number(2), false);
    assert_eq!((repeated.taken, repeated.answer), (true, Answer::Ack));
    assert_eq!(pressure.record(repeated), 2);
    assert!(!pressure.is_abnormal());
}

#[test]
fn resynchronizing_message_ends_the_wait_for_a_dropped_one() {
    let mut receiver = Receiver::<5>::default();
    receiver.judge_dropped(number(1), false);

    assert!(!receiver.judge_header(number(3), false).taken);
    assert!(receiver.judge_header(number(3), true).taken);
    assert_eq!(receiver.expected, None);
}

/// The next step of a network of many senders and one receiver.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A sender transmits all that it may.
    Transmit(usize),
    /// The receiver takes the next packet of a sender.
    Arrive(usize),
    /// A stream ends.
    End,
    /// A sender takes its next response.
    Respond(usize),
}

/// More senders than the receiver has streams: all messages arrive once, in order.
#[test]
fn senders_beyond_the_streams_all_deliver() {
    const SENDERS: usize = 257;
    const STREAMS: usize = 256;
    const MESSAGES: u16 = 4;

    let mut send_queues: Vec<_> = (0..SENDERS).map(|_| (Sender::default(), Array([None; 4]))).collect();
    for (sender, flights) in &mut send_queues {
        for slot in 0..MESSAGES {
            flights.0[usize::from(slot)] = Some(Flight::new(number(slot), true));
            sender.push(flights, Slot(slot), false, false);
        }
    }
    let mut receivers = vec![Receiver::<5>::default(); SENDERS];
    let mut pressure = Pressure::default();
    let mut delivered = vec![0; SENDERS];
    let mut streams = 0;
    let mut drops = 0;

    for round in 0.. {
        assert!(round < 1000, "not all messages are delivered");
        let mut busy = false;
        for place in 0..SENDERS {
            let (sender, flights) = &mut send_queues[place];
            let mut answers = Vec::new();
            while let Some(slot) = sender.next_to_transmit(flights) {
                busy = true;
                sender.begin_transmission(flights, slot);
                sender.transmitted(flights, slot);
                let sequence = flights.flight(slot).unwrap().sequence();
                let receiver = &mut receivers[place];

                let judgement = if streams == STREAMS {
                    drops += 1;
                    receiver.judge_dropped(sequence, false)
                } else {
                    receiver.judge_header(sequence, false)
                };
                assert!(pressure.record(judgement) <= Pressure::MAX_PLACE);
                if judgement.taken {
                    assert_eq!(slot.0, delivered[place]);
                    delivered[place] += 1;
                    streams += 1;
                }
                answers.push((judgement.answer, sequence));
            }
            for (answer, sequence) in answers {
                let response = match answer {
                    Answer::Ack => Response::Ack,
                    Answer::Nack => Response::Nack,
                    Answer::PrebootAck => Response::PrebootAck,
                    Answer::FirstPostbootAck => Response::FirstPostbootAck,
                };
                sender.respond(flights, response, sequence);
            }
            while let Some((slot, outcome)) = sender.pop_ended(flights) {
                assert_eq!(outcome, Outcome::Taken);
                flights.0[usize::from(slot.0)] = None;
            }
        }
        streams = 0;
        if !busy {
            break;
        }
    }

    assert!(delivered.iter().all(|count| *count == MESSAGES));
    assert!(drops > 0);
    assert!(!pressure.is_abnormal());
}

proptest! {
    /// A random schedule of three senders, and a receiver with one stream.
    #[test]
    fn random_schedules_deliver_once_in_order(choices in proptest::collection::vec(0..100usize, 0..400)) {
        let mut send_queues: Vec<_> = (0..3).map(|_| (Sender::default(), Array([None; 4]))).collect();
        let lengths = [true, false, true, true];
        for (sender, flights) in &mut send_queues {
            for (slot, is_long) in lengths.into_iter().enumerate() {
                flights.0[slot] = Some(Flight::new(number(slot as u16), is_long));
                sender.push(flights, Slot(slot as u16), true, false);
            }
        }
        let mut receivers = [Receiver::<5>::default(); 3];
        let mut wires: [Vec<(Slot, Number, bool, bool)>; 3] = Default::default();
        let mut responses: [Vec<(Response, Number)>; 3] = Default::default();
        let mut delivered = [0u16; 3];
        let mut in_use = false;

        // After the random choices, a fair schedule ends all that is left.
        let fair = (0..600).map(|turn| turn % 10);
        for choice in choices.into_iter().chain(fair) {
            let step = match choice % 10 {
                0..3 => Step::Transmit(choice % 10),
                3..6 => Step::Arrive(choice % 10 - 3),
                6 => Step::End,
                other => Step::Respond(other - 7),
            };
            match step {
                Step::Transmit(place) => {
                    let (sender, flights) = &mut send_queues[place];
                    while let Some(slot) = sender.next_to_transmit(flights) {
                        sender.begin_transmission(flights, slot);
                        sender.transmitted(flights, slot);
                        let flight = flights.flight(slot).unwrap();
                        wires[place].push((slot, flight.sequence(), lengths[usize::from(slot.0)], flight.is_implicit()));
                    }
                }
                Step::Arrive(place) if !wires[place].is_empty() => {
                    let (slot, sequence, is_long, is_implicit) = wires[place].remove(0);
                    let judgement = if is_long && in_use {
                        receivers[place].judge_dropped(sequence, false)
                    } else {
                        receivers[place].judge_header(sequence, false)
                    };
                    if judgement.taken {
                        in_use |= is_long;
                        prop_assert_eq!(slot.0, delivered[place]);
                        delivered[place] += 1;
                    }
                    prop_assert!(judgement.taken || !is_implicit);
                    let response = match judgement.answer {
                        Answer::Nack => Response::Nack,
                        Answer::FirstPostbootAck => Response::FirstPostbootAck,
                        _ => Response::Ack,
                    };
                    if !is_implicit {
                        responses[place].push((response, sequence));
                    }
                }
                Step::Arrive(_) => {}
                Step::End => in_use = false,
                Step::Respond(place) => {
                    let (sender, flights) = &mut send_queues[place];
                    if !responses[place].is_empty() {
                        let (response, sequence) = responses[place].remove(0);
                        sender.respond(flights, response, sequence);
                    }
                    while let Some((slot, outcome)) = sender.pop_ended(flights) {
                        prop_assert_eq!(outcome, Outcome::Taken);
                        flights.0[usize::from(slot.0)] = None;
                    }
                }
            }
        }

        prop_assert_eq!(delivered, [4; 3]);
        prop_assert!(send_queues.iter().all(|(sender, _)| *sender == Sender::default()));
    }
}
