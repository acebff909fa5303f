//! Random histories of a process, compared with the model after each step.

use alloc::{vec, vec::Vec};

use nicforge_hwi::seastar::{ANY_NODE, ANY_PROCESS, MessageHeader, event, message, option, status};
use proptest::prelude::*;

use super::model::{ExpectedEvent, Model, Values};
use super::{MEMORY, PEER, PORTAL, QUEUE, SELF, arriving, request};
use crate::matching::*;

/// Slots of the event queue.
const SLOTS: u32 = 8;

/// One step of a history. Objects are named by their place among all that were ever made, so that
/// some names are stale.
#[derive(Clone, Debug)]
enum Step {
    Post { position: EntryPosition, bits: u64, ignore: u64, unlinks: bool, values: Values, lag: Option<u32> },
    Bind(Values),
    UnlinkEntry(usize),
    UnlinkDescriptor(usize),
    Update { descriptor: usize, values: Values, lag: Option<u32> },
    Arrive { is_put: bool, bits: u64, length: u32, offset: u64 },
    Send { is_put: bool, descriptor: usize, offset: u64, length: u32 },
    Reply { operation: usize, length: u32 },
    Acknowledge { descriptor: usize, moved: u32 },
    End(usize),
}

#[derive(Clone, Debug)]
enum EntryPosition {
    Head,
    Tail,
    Before(usize),
    After(usize),
}

fn values() -> impl Strategy<Value = Values> {
    let options = prop::sample::subsequence(
        vec![
            option::UNLINK,
            option::OP_PUT,
            option::OP_GET,
            option::MANAGE_REMOTE,
            option::TRUNCATE,
            option::START_DISABLE,
            option::END_DISABLE,
            option::MAX_SIZE,
        ],
        0..8,
    );
    (0u64..40, -1i32..4, 0u64..20, options).prop_map(|(length, threshold, max_size, options)| Values {
        length,
        threshold,
        max_size,
        options: options.into_iter().fold(0, |all, one| all | one),
    })
}

fn step() -> impl Strategy<Value = Step> {
    let name = 0usize..24;
    let position = prop_oneof![
        Just(EntryPosition::Head),
        Just(EntryPosition::Tail),
        name.clone().prop_map(EntryPosition::Before),
        name.clone().prop_map(EntryPosition::After),
    ];
    let lag = prop::option::of(0u32..2);
    prop_oneof![
        4 => (position, 0u64..3, 0u64..4, any::<bool>(), values(), lag.clone()).prop_map(
            |(position, bits, ignore, unlinks, values, lag)| Step::Post { position, bits, ignore, unlinks, values, lag }
        ),
        1 => values().prop_map(Step::Bind),
        1 => name.clone().prop_map(Step::UnlinkEntry),
        1 => name.clone().prop_map(Step::UnlinkDescriptor),
        1 => (name.clone(), values(), lag).prop_map(|(descriptor, values, lag)| Step::Update { descriptor, values, lag }),
        6 => (any::<bool>(), 0u64..3, 0u32..40, 0u64..48)
            .prop_map(|(is_put, bits, length, offset)| Step::Arrive { is_put, bits, length, offset }),
        3 => (any::<bool>(), name.clone(), 0u64..32, 0u32..32)
            .prop_map(|(is_put, descriptor, offset, length)| Step::Send { is_put, descriptor, offset, length }),
        3 => (name.clone(), 0u32..48).prop_map(|(operation, length)| Step::Reply { operation, length }),
        1 => (name.clone(), 0u32..32).prop_map(|(descriptor, moved)| Step::Acknowledge { descriptor, moved }),
        5 => name.prop_map(Step::End),
    ]
}

/// The process, the model, and their names for the same objects.
struct Pair {
    process: Process,
    model: Model,
    queue: QueueHandle,
    entries: Vec<(EntryHandle, u32)>,
    descriptors: Vec<(DescriptorHandle, u32)>,
    operations: Vec<(OperationHandle, u32)>,
}

impl Pair {
    fn new() -> Self {
        let limits = Limits { entries: 100, descriptors: 100, queues: 1, incoming: 100, outgoing: 100 };
        let mut process = Process::new(SELF, limits);
        let queue = process.allocate_queue(QUEUE, SLOTS.into()).unwrap();
        let (entries, descriptors, operations) = (Vec::new(), Vec::new(), Vec::new());
        Self { process, model: Model::default(), queue, entries, descriptors, operations }
    }

    fn descriptor(&self, values: &Values) -> MemoryDescriptor {
        let Values { length, threshold, max_size, options } = *values;
        MemoryDescriptor {
            start: MEMORY,
            length,
            threshold,
            max_size,
            options,
            user_pointer: 0,
            queue: Some(self.queue),
        }
    }

    fn test(&self, lag: Option<u32>) -> (Option<QueueTest>, Option<u32>) {
        let taken = lag.map(|lag| self.model.written.wrapping_sub(lag));
        (taken.map(|taken| QueueTest { queue: self.queue, taken }), taken)
    }

    /// Checks events, which end with the last one that the model has written.
    fn check_events(&self, events: &Events, expected: &[ExpectedEvent]) {
        let seen: Vec<ExpectedEvent> = events
            .iter()
            .map(|event| {
                let record = event.record;
                let name = |handle| {
                    self.descriptors
                        .iter()
                        .rev()
                        .find(|(created, _)| created.0 == handle)
                        .map_or(0, |entry| entry.1)
                };
                let is_unlink = record.kind == event::UNLINK;
                let (offset, moved) = if is_unlink { (0, 0) } else { (record.offset, record.moved) };
                (record.kind, name(record.descriptor), offset, moved, record.flags & 1 == 1)
            })
            .collect();
        assert_eq!(seen, expected);

        let first = self.model.written - expected.len() as u32;
        for (number, event) in (first..).zip(events.iter()) {
            assert_eq!(event.record.number, number + 1);
            assert_eq!(event.address, QUEUE + u64::from(number % SLOTS) * 64);
        }
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Post { ref position, bits, ignore, unlinks, ref values, lag } => {
                self.post(position, bits, ignore, unlinks, values, lag);
            }
            Step::Bind(ref values) => {
                let handle = self.process.bind_descriptor(&self.descriptor(values)).unwrap();
                let name = self.model.bind(*values);
                self.descriptors.push((handle, name));
            }
            Step::UnlinkEntry(which) => {
                if let Some(&(handle, name)) = self.entries.get(which) {
                    let expected = self.model.unlink_entry(name);
                    assert_eq!(self.process.unlink_entry(handle).is_ok(), expected);
                }
            }
            Step::UnlinkDescriptor(which) => {
                if let Some(&(handle, name)) = self.descriptors.get(which) {
                    let expected = self.model.unlink_descriptor(name);
                    assert_eq!(self.process.unlink_descriptor(handle).is_ok(), expected);
                }
            }
            Step::Update { descriptor, ref values, lag } => {
                if let Some(&(handle, name)) = self.descriptors.get(descriptor) {
                    let (test, taken) = self.test(lag);
                    let expected = self.model.update(name, *values, taken);
                    let updated = self.process.update_descriptor(handle, &self.descriptor(values), test);
                    assert_eq!(updated.ok(), expected);
                }
            }
            Step::Arrive { is_put, bits, length, offset } => self.arrive(is_put, bits, length, offset),
            Step::Send { is_put, descriptor, offset, length } => {
                self.send(is_put, descriptor, offset, length)
            }
            Step::Reply { operation, length } => self.reply(operation, length),
            Step::Acknowledge { descriptor, moved } => {
                if let Some(&(handle, name)) = self.descriptors.get(descriptor) {
                    let (trusted, header) = arriving(message::PORTALS_ACK, 0);
                    let header = MessageHeader { operation: handle.0, header_data: moved.into(), ..header };
                    let expected = self.model.acknowledge(name, moved);
                    let events = self.process.acknowledgement(&trusted, &header);
                    self.check_events(&events, &expected);
                }
            }
            Step::End(which) => {
                if let Some(&(handle, name)) = self.operations.get(which) {
                    let expected = self.model.end(name);
                    let events = self.process.end(handle, 0);
                    self.check_events(&events, &expected);
                }
            }
        }
        assert_eq!(self.process.status(status::DROP_COUNT), Ok(self.model.drops));
    }

    fn post(
        &mut self,
        position: &EntryPosition,
        bits: u64,
        ignore: u64,
        unlinks: bool,
        values: &Values,
        lag: Option<u32>,
    ) {
        let base = |which: usize| self.entries.get(which).copied();
        let (position, index) = match *position {
            EntryPosition::Head => (Position::Head(PORTAL), Some(0)),
            EntryPosition::Tail => (Position::Tail(PORTAL), Some(usize::MAX)),
            EntryPosition::Before(which) => match base(which) {
                Some((handle, name)) => (Position::Before(handle), self.model.position_of(name)),
                None => return,
            },
            EntryPosition::After(which) => match base(which) {
                Some((handle, name)) => {
                    (Position::After(handle), self.model.position_of(name).map(|at| at + 1))
                }
                None => return,
            },
        };

        let criteria =
            Criteria { match_bits: bits, ignore_bits: ignore, node: ANY_NODE, process: ANY_PROCESS };
        let (test, taken) = self.test(lag);
        let posted = self.process.post(position, criteria, unlinks, &self.descriptor(values), test);
        let Some(index) = index else {
            assert!(posted.is_err(), "the base does not exist any more");
            return;
        };

        let is_allowed = taken.is_none_or(|taken| self.model.is_queue_empty(taken));
        assert_eq!(posted.unwrap().is_some(), is_allowed);
        if let Ok(Some(Posted { entry, descriptor })) = posted {
            let names = self.model.post(index, bits, ignore, unlinks, *values);
            self.entries.push((entry, names.0));
            self.descriptors.push((descriptor, names.1));
        }
    }

    fn arrive(&mut self, is_put: bool, bits: u64, length: u32, offset: u64) {
        let kind = if is_put { message::PUT } else { message::GET };
        let (trusted, header) = arriving(kind, length);
        let header = MessageHeader { match_bits: bits, offset, ..header };
        let expected = self.model.arrive(is_put, bits, length, offset);

        match (self.process.incoming(&trusted, &header), expected) {
            (Incoming::Accepted(taken), Some((operation, descriptor, offset, moved, traversed, events))) => {
                assert!(self.descriptors.contains(&(taken.descriptor, descriptor)));
                assert_eq!((taken.offset, taken.length, taken.traversed), (offset, moved, traversed));
                self.check_events(&taken.events, &events);
                self.operations.push((taken.operation, operation));
            }
            (Incoming::Dropped(_), None) => {}
            (found, expected) => panic!("{found:?}, but the model says {expected:?}"),
        }
    }

    fn send(&mut self, is_put: bool, descriptor: usize, offset: u64, length: u32) {
        let Some(&(handle, name)) = self.descriptors.get(descriptor) else { return };
        let request = Request { local_offset: offset, ..request(handle, length.into()) };
        let sent = if is_put { self.process.put(&request) } else { self.process.get(&request) };

        match (sent, self.model.send(is_put, name, offset, length)) {
            (Ok(sent), Some((operation, events))) => {
                self.check_events(&sent.events, &events);
                self.operations.push((sent.operation, operation));
            }
            (Err(_), None) => {}
            (found, expected) => panic!("{found:?}, but the model says {expected:?}"),
        }
    }

    fn reply(&mut self, operation: usize, length: u32) {
        let Some(&(handle, name)) = self.operations.get(operation) else { return };
        let (trusted, header) = arriving(message::REPLY, length);
        assert_eq!(trusted.source_node, PEER.node);
        let header = MessageHeader { operation: handle.0, ..header };

        match (self.process.reply(&trusted, &header), self.model.reply(name, length)) {
            (Incoming::Accepted(taken), Some((offset, moved, events))) => {
                assert_eq!((taken.offset, taken.length), (offset, moved));
                self.check_events(&taken.events, &events);
            }
            (Incoming::Dropped(_), None) => {}
            (found, expected) => panic!("{found:?}, but the model says {expected:?}"),
        }
    }
}

proptest! {
    #[test]
    fn a_process_behaves_like_the_model(steps in prop::collection::vec(step(), 1..60)) {
        let mut pair = Pair::new();
        for step in &steps {
            pair.apply(step);
        }
    }
}
