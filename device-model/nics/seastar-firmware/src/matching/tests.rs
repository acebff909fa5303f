//! Tests of the semantics, and of whole histories against a naive model.

mod histories;
mod model;

use alloc::{vec, vec::Vec};

use nicforge_hwi::seastar::{
    ANY_NODE, ANY_PORTAL, ANY_PROCESS, Command, INLINE, MessageHeader, NO_HANDLE, THRESHOLD_INFINITE,
    TrustedHeader, code, command, event, failure, message, option, status,
};

use super::*;

const SELF: Identity = Identity { node: 1, process: 0 };
const PEER: Identity = Identity { node: 2, process: 3 };
const LIMITS: Limits = Limits { entries: 8, descriptors: 8, queues: 2, incoming: 4, outgoing: 3 };
const PORTAL: u8 = 4;
const ANYONE: Criteria = Criteria { match_bits: 5, ignore_bits: 0, node: ANY_NODE, process: ANY_PROCESS };
/// Address of the memory that the tests' descriptors have.
const MEMORY: u64 = 0x10_0000;
/// Address of the tests' event queue.
const QUEUE: u64 = 0x2_0000;

/// A process with an event queue of 8 slots.
fn process() -> (Process, QueueHandle) {
    let mut process = Process::new(SELF, LIMITS);
    let queue = process.allocate_queue(QUEUE, 8).unwrap();
    (process, queue)
}

fn values(queue: QueueHandle, length: u64, threshold: i32, options: u16) -> MemoryDescriptor {
    MemoryDescriptor {
        start: MEMORY,
        length,
        threshold,
        max_size: 0,
        options,
        user_pointer: 77,
        queue: Some(queue),
    }
}

fn posted(process: &mut Process, values: &MemoryDescriptor) -> Posted {
    process.post(Position::Tail(PORTAL), ANYONE, true, values, None).unwrap().unwrap()
}

fn arriving(kind: u8, length: u32) -> (TrustedHeader, MessageHeader) {
    let trusted = TrustedHeader {
        source_node: PEER.node,
        source_process: PEER.process,
        target_process: SELF.process,
        length: if kind == message::GET { 0 } else { length },
        kind,
        ..TrustedHeader::default()
    };
    let header_data = if kind == message::GET { length.into() } else { 99 };
    (
        trusted,
        MessageHeader {
            match_bits: 5,
            header_data,
            portal: PORTAL,
            operation: 1234,
            ..MessageHeader::default()
        },
    )
}

fn arrive(process: &mut Process, kind: u8, length: u32) -> Incoming {
    let (trusted, header) = arriving(kind, length);
    process.incoming(&trusted, &header)
}

fn accepted(incoming: Incoming) -> Accepted {
    match incoming {
        Incoming::Accepted(accepted) => accepted,
        Incoming::Dropped(drop) => panic!("dropped: {drop:?}"),
    }
}

fn reason(incoming: Incoming) -> DropReason {
    match incoming {
        Incoming::Accepted(accepted) => panic!("accepted: {accepted:?}"),
        Incoming::Dropped(drop) => drop.reason,
    }
}

fn kinds(events: &Events) -> Vec<u8> {
    events.iter().map(|event| event.record.kind).collect()
}

fn request(descriptor: DescriptorHandle, length: u64) -> Request {
    Request {
        descriptor,
        local_offset: 16,
        length,
        target: PEER,
        portal: PORTAL,
        access: 0,
        match_bits: 5,
        offset: 8,
        header_data: 42,
        acknowledge: true,
        inline: None,
    }
}

#[test]
fn a_put_goes_to_the_descriptor_and_writes_start_end_and_unlink() {
    let (mut process, queue) = process();
    let created = posted(&mut process, &values(queue, 64, 1, option::OP_PUT | option::UNLINK));

    let acceptance = accepted(arrive(&mut process, message::PUT, 40));
    assert_eq!((acceptance.address, acceptance.length, acceptance.traversed), (MEMORY, 40, 1));
    assert_eq!(acceptance.descriptor, created.descriptor);
    assert_eq!(kinds(&acceptance.events), [event::PUT_START]);
    let ended = process.end(acceptance.operation, 0);

    assert_eq!(kinds(&ended), [event::PUT_END, event::UNLINK]);
    assert_eq!([ended[0].address, ended[1].address], [QUEUE + 64, QUEUE + 128]);
    let record = ended[0].record;
    assert_eq!((record.number, record.link, record.flags), (2, acceptance.events[0].record.link, 1));
    assert_eq!((record.header_data, record.user_pointer, record.requested, record.moved), (99, 77, 40, 40));
    assert_eq!((record.node, record.process, record.portal), (PEER.node, PEER.process, PORTAL));
    assert_eq!(process.unlink_descriptor(created.descriptor), Err(Refusal(code::DESCRIPTOR_INVALID)));
    assert_eq!(process.unlink_entry(created.entry), Err(Refusal(code::ENTRY_INVALID)));
}

#[test]
fn an_operation_ends_once() {
    let (mut process, queue) = process();
    posted(&mut process, &values(queue, 64, THRESHOLD_INFINITE, option::OP_PUT));
    let acceptance = accepted(arrive(&mut process, message::PUT, 8));

    assert_eq!(process.end(acceptance.operation, 0).len(), 1);
    assert_eq!(process.end(acceptance.operation, 0).len(), 0);
    assert_eq!(process.operations(), 0);
}

#[test]
fn the_unlink_event_follows_the_last_of_overlapping_operations() {
    let (mut process, queue) = process();
    let options = option::OP_PUT | option::UNLINK | option::START_DISABLE;
    posted(&mut process, &values(queue, 64, 2, options));
    let first = accepted(arrive(&mut process, message::PUT, 8));
    let second = accepted(arrive(&mut process, message::PUT, 8));
    assert_eq!((first.offset, second.offset), (0, 8));

    assert_eq!(kinds(&process.end(second.operation, 0)), [event::PUT_END]);
    assert_eq!(kinds(&process.end(first.operation, failure::DATA)), [event::PUT_END, event::UNLINK]);
}

#[test]
fn a_message_that_does_not_fit_goes_on_to_the_next_entry() {
    let (mut process, queue) = process();
    posted(&mut process, &values(queue, 16, 1, option::OP_PUT));
    posted(&mut process, &values(queue, 32, 1, option::OP_PUT | option::TRUNCATE));

    let acceptance = accepted(arrive(&mut process, message::PUT, 40));
    assert_eq!((acceptance.traversed, acceptance.length), (2, 32));
    assert_eq!(acceptance.events[0].record.requested, 40);
}

#[test]
fn a_locally_managed_descriptor_is_used_up_below_its_largest_size() {
    let (mut process, queue) = process();
    let options = option::OP_PUT | option::MAX_SIZE | option::UNLINK | option::END_DISABLE;
    let large = MemoryDescriptor { max_size: 20, ..values(queue, 64, THRESHOLD_INFINITE, options) };
    posted(&mut process, &large);

    let first = accepted(arrive(&mut process, message::PUT, 30));
    let second = accepted(arrive(&mut process, message::PUT, 15));
    assert_eq!(second.address, MEMORY + 30);
    assert_eq!(reason(arrive(&mut process, message::PUT, 1)), DropReason::NoMatch);
    assert_eq!(kinds(&process.end(first.operation, 0)), []);
    assert_eq!(kinds(&process.end(second.operation, 0)), [event::UNLINK]);
}

#[test]
fn a_remotely_managed_descriptor_uses_the_offset_of_the_initiator() {
    let (mut process, queue) = process();
    posted(&mut process, &values(queue, 64, THRESHOLD_INFINITE, option::OP_PUT | option::MANAGE_REMOTE));
    let (trusted, header) = arriving(message::PUT, 8);

    let acceptance = accepted(process.incoming(&trusted, &MessageHeader { offset: 56, ..header }));
    assert_eq!(acceptance.address, MEMORY + 56);
    let beyond = MessageHeader { offset: 57, ..header };
    assert_eq!(reason(process.incoming(&trusted, &beyond)), DropReason::NoMatch);
    let wrapped = MessageHeader { offset: u64::MAX, ..header };
    assert_eq!(reason(process.incoming(&trusted, &wrapped)), DropReason::NoMatch);
}

#[test]
fn a_get_is_answered_and_a_put_acknowledged_if_asked() {
    let (mut process, queue) = process();
    let options = option::OP_PUT | option::OP_GET | option::TRUNCATE | option::MANAGE_REMOTE;
    posted(&mut process, &values(queue, 64, THRESHOLD_INFINITE, options));

    let get = accepted(arrive(&mut process, message::GET, 100));
    let answer = get.answer.unwrap();
    assert_eq!((answer.kind, answer.length, answer.header.operation), (message::REPLY, 64, 1234));
    assert_eq!(kinds(&get.events), [event::GET_START]);
    assert_eq!(kinds(&process.end(get.operation, 0)), [event::GET_END]);

    let (trusted, header) = arriving(message::PUT, 100);
    let put = accepted(process.incoming(&trusted, &MessageHeader { options: option::ACK, ..header }));
    let answer = put.answer.unwrap();
    assert_eq!((answer.kind, answer.header.header_data), (message::PORTALS_ACK, 100 << 32 | 64));
    assert_eq!(accepted(arrive(&mut process, message::PUT, 1)).answer, None);
}

#[test]
fn entries_keep_the_order_of_their_positions() {
    let (mut process, queue) = process();
    let one = values(queue, 64, 1, option::OP_PUT);
    let mut add = |position| process.post(position, ANYONE, false, &one, None).unwrap().unwrap();
    let second = add(Position::Tail(PORTAL));
    let first = add(Position::Head(PORTAL));
    let fourth = add(Position::After(second.entry));
    let third = add(Position::Before(fourth.entry));

    let order: Vec<_> = (0..4).map(|_| accepted(arrive(&mut process, message::PUT, 1)).descriptor).collect();
    assert_eq!(order, [first, second, third, fourth].map(|posted| posted.descriptor));
}

#[test]
fn access_control_refuses_and_counts() {
    let (mut process, queue) = process();
    posted(&mut process, &values(queue, 64, THRESHOLD_INFINITE, option::OP_PUT));
    let (trusted, header) = arriving(message::PUT, 1);
    let by = |access| MessageHeader { access, ..header };

    assert_eq!(reason(process.incoming(&trusted, &by(1))), DropReason::Access);
    process.set_access(1, AccessEntry { node: PEER.node, process: ANY_PROCESS, portal: ANY_PORTAL }).unwrap();
    accepted(process.incoming(&trusted, &by(1)));
    process.set_access(0, AccessEntry { node: ANY_NODE, process: ANY_PROCESS, portal: PORTAL + 1 }).unwrap();
    assert_eq!(reason(process.incoming(&trusted, &by(0))), DropReason::Access);
    assert_eq!(reason(process.incoming(&trusted, &by(255))), DropReason::Access);

    assert_eq!(process.status(status::PERMISSION_VIOLATIONS), Ok(3));
    assert_eq!(process.status(status::DROP_COUNT), Ok(0));
    let everyone = AccessEntry { node: ANY_NODE, process: ANY_PROCESS, portal: ANY_PORTAL };
    assert_eq!(process.set_access(8, everyone), Err(Refusal(code::ACCESS_INVALID)));
}

#[test]
fn messages_without_a_match_are_dropped_and_counted() {
    let (mut process, queue) = process();
    posted(&mut process, &values(queue, 64, THRESHOLD_INFINITE, option::OP_GET));
    let (trusted, header) = arriving(message::PUT, 1);

    assert_eq!(reason(process.incoming(&trusted, &header)), DropReason::NoMatch);
    let outside = MessageHeader { portal: 64, ..header };
    assert_eq!(reason(process.incoming(&trusted, &outside)), DropReason::Portal);
    assert_eq!(process.status(status::DROP_COUNT), Ok(2));
}

#[test]
fn more_operations_than_the_limit_are_busy_and_not_counted() {
    let (mut process, queue) = process();
    posted(&mut process, &values(queue, 64, THRESHOLD_INFINITE, option::OP_PUT));
    let acceptances: Vec<_> =
        (0..LIMITS.incoming).map(|_| accepted(arrive(&mut process, message::PUT, 1))).collect();

    assert_eq!(reason(arrive(&mut process, message::PUT, 1)), DropReason::Busy);
    assert_eq!(process.status(status::DROP_COUNT), Ok(0));
    process.end(acceptances[1].operation, 0);
    accepted(arrive(&mut process, message::PUT, 1));
}

#[test]
fn a_put_sends_its_range_and_its_acknowledgement_counts() {
    let (mut process, queue) = process();
    let bound = process.bind_descriptor(&values(queue, 64, 2, option::UNLINK)).unwrap();

    let put = process.put(&request(bound, 32)).unwrap();
    assert_eq!((put.kind, put.length, put.source), (message::PUT, 32, Source::Memory(MEMORY + 16)));
    assert_eq!((put.header.options, put.header.header_data, put.header.offset), (option::ACK, 42, 8));
    assert_eq!(kinds(&put.events), [event::SEND_START]);
    assert_eq!(kinds(&process.end(put.operation, 0)), [event::SEND_END]);

    let (trusted, header) = arriving(message::PORTALS_ACK, 0);
    let header = MessageHeader { operation: put.header.operation, header_data: 32 << 32 | 20, ..header };
    let events = process.acknowledgement(&trusted, &header);
    assert_eq!(kinds(&events), [event::ACK, event::UNLINK]);
    assert_eq!((events[0].record.requested, events[0].record.moved), (32, 20));
    assert_eq!(process.acknowledgement(&trusted, &header).len(), 0);
}

#[test]
fn an_inline_put_needs_no_memory() {
    let (mut process, queue) = process();
    let bound = process.bind_descriptor(&values(queue, 64, THRESHOLD_INFINITE, 0)).unwrap();
    let inline = Request { inline: Some([7; INLINE]), ..request(bound, 16) };

    assert_eq!(process.put(&inline).unwrap().source, Source::Inline([7; INLINE]));
    assert_eq!(process.put(&Request { length: 17, ..inline }), Err(Refusal(code::SEGMENT_VIOLATION)));
    assert_eq!(process.put(&Request { length: 0, ..inline }).unwrap().source, Source::None);
}

#[test]
fn a_reply_is_taken_once_and_from_its_target_only() {
    let (mut process, queue) = process();
    let bound = process.bind_descriptor(&values(queue, 64, 1, option::UNLINK)).unwrap();
    let get = process.get(&request(bound, 32)).unwrap();
    assert_eq!((get.length, get.header.header_data, get.events.len()), (0, 32, 0));

    let (trusted, header) = arriving(message::REPLY, 1000);
    let header = MessageHeader { operation: get.header.operation, ..header };
    let forged = TrustedHeader { source_process: 9, ..trusted };
    assert_eq!(reason(process.reply(&forged, &header)), DropReason::Stale);
    let reply = accepted(process.reply(&trusted, &header));
    assert_eq!((reply.address, reply.length), (MEMORY + 16, 32));
    assert_eq!(kinds(&reply.events), [event::REPLY_START]);
    assert_eq!(reason(process.reply(&trusted, &header)), DropReason::Stale);

    assert_eq!(kinds(&process.end(reply.operation, 0)), [event::REPLY_END, event::UNLINK]);
    assert_eq!(reason(process.reply(&trusted, &header)), DropReason::Stale);
}

#[test]
fn gets_without_replies_are_freed_with_their_descriptor() {
    let (mut process, queue) = process();
    let bound = process.bind_descriptor(&values(queue, 64, THRESHOLD_INFINITE, 0)).unwrap();
    let gets: Vec<_> = (0..LIMITS.outgoing).map(|_| process.get(&request(bound, 8)).unwrap()).collect();
    assert_eq!(process.get(&request(bound, 8)), Err(Refusal(code::NO_SPACE)));
    assert_eq!(process.waiting_get(PEER.node), Some(gets[0].operation));

    process.unlink_descriptor(bound).unwrap();
    assert_eq!((process.operations(), process.waiting_get(PEER.node)), (0, None));
    assert_eq!(process.end(gets[0].operation, failure::NODE).len(), 0);
}

#[test]
fn a_failed_request_of_a_get_ends_with_its_failure() {
    let (mut process, queue) = process();
    let bound = process.bind_descriptor(&values(queue, 64, THRESHOLD_INFINITE, 0)).unwrap();
    let get = process.get(&request(bound, 8)).unwrap();

    let events = process.end(get.operation, failure::NODE);
    assert_eq!(kinds(&events), [event::REPLY_END]);
    assert_eq!(events[0].record.failure, failure::NODE);
    process.unlink_descriptor(bound).unwrap();
}

#[test]
fn bad_requests_are_refused() {
    let (mut process, queue) = process();
    let bound = process.bind_descriptor(&values(queue, 64, 1, 0)).unwrap();
    let good = request(bound, 8);
    let stale = DescriptorHandle(bound.0 ^ 1 << 16);
    let anyone = Identity { node: ANY_NODE, process: 0 };

    for (bad, code) in [
        (Request { descriptor: stale, ..good }, code::DESCRIPTOR_INVALID),
        (Request { length: 49, ..good }, code::DESCRIPTOR_ILLEGAL),
        (Request { local_offset: u64::MAX, ..good }, code::DESCRIPTOR_ILLEGAL),
        (Request { length: u64::MAX, ..good }, code::SEGMENT_VIOLATION),
        (Request { portal: 64, ..good }, code::PORTAL_INVALID),
        (Request { target: anyone, ..good }, code::PROCESS_INVALID),
    ] {
        assert_eq!(process.put(&bad), Err(Refusal(code)));
        assert_eq!(process.get(&bad), Err(Refusal(code)));
    }
    process.put(&good).unwrap();
    assert_eq!(process.put(&good), Err(Refusal(code::DESCRIPTOR_INVALID)));
}

#[test]
fn an_update_needs_an_empty_queue() {
    let (mut process, queue) = process();
    let inactive = values(queue, 64, 0, option::OP_PUT);
    let created = posted(&mut process, &inactive);
    let active = MemoryDescriptor { threshold: 1, ..inactive };
    let unexpected = values(queue, 64, THRESHOLD_INFINITE, option::OP_PUT);
    posted(&mut process, &unexpected);
    let test = |taken| Some(QueueTest { queue, taken });

    let message = accepted(arrive(&mut process, message::PUT, 1));
    assert_eq!(process.update_descriptor(created.descriptor, &active, test(0)), Ok(false));
    assert_eq!(
        process.update_descriptor(created.descriptor, &active, test(1)),
        Ok(false),
        "its end will come"
    );
    process.end(message.operation, 0);
    assert_eq!(process.update_descriptor(created.descriptor, &active, test(1)), Ok(false));
    assert_eq!(process.update_descriptor(created.descriptor, &active, test(2)), Ok(true));
    assert_eq!(accepted(arrive(&mut process, message::PUT, 1)).descriptor, created.descriptor);
}

#[test]
fn a_post_with_an_event_in_the_tested_queue_changes_nothing() {
    let (mut process, queue) = process();
    let one = values(queue, 64, 1, option::OP_PUT);
    posted(&mut process, &one);
    accepted(arrive(&mut process, message::PUT, 1));

    let test = Some(QueueTest { queue, taken: 0 });
    assert_eq!(process.post(Position::Tail(PORTAL), ANYONE, true, &one, test), Ok(None));
    assert_eq!(reason(arrive(&mut process, message::PUT, 1)), DropReason::NoMatch);
}

#[test]
fn objects_in_use_are_not_removed() {
    let (mut process, queue) = process();
    let created = posted(&mut process, &values(queue, 64, THRESHOLD_INFINITE, option::OP_PUT));
    let acceptance = accepted(arrive(&mut process, message::PUT, 1));
    let values = values(queue, 8, 1, 0);

    assert_eq!(process.free_queue(queue), Err(Refusal(code::QUEUE_IN_USE)));
    assert_eq!(process.unlink_entry(created.entry), Err(Refusal(code::ENTRY_IN_USE)));
    assert_eq!(process.unlink_descriptor(created.descriptor), Err(Refusal(code::DESCRIPTOR_IN_USE)));
    assert_eq!(process.attach_descriptor(created.entry, &values), Err(Refusal(code::ENTRY_IN_USE)));
    assert_eq!(process.update_descriptor(created.descriptor, &values, None), Ok(false));

    process.end(acceptance.operation, 0);
    process.unlink_entry(created.entry).unwrap();
    process.free_queue(queue).unwrap();
    assert_eq!(process.free_queue(queue), Err(Refusal(code::QUEUE_INVALID)));
}

#[test]
fn tables_refuse_more_than_their_limit() {
    let (mut process, queue) = process();
    let one = values(queue, 8, 1, option::OP_PUT);
    let all: Vec<_> = (0..LIMITS.entries).map(|_| posted(&mut process, &one)).collect();

    let refused = process.post(Position::Head(PORTAL), ANYONE, true, &one, None);
    assert_eq!(refused, Err(Refusal(code::NO_SPACE)));
    process.unlink_entry(all[3].entry).unwrap();
    posted(&mut process, &one);
    assert_eq!(process.unlink_entry(all[3].entry), Err(Refusal(code::ENTRY_INVALID)), "a stale handle");
}

#[test]
fn limits_say_how_many_receives_fit() {
    let base = Limits { entries: 0, descriptors: 0, queues: 16, incoming: 64, outgoing: 64 };
    let fitted = base.with_receives_in(128 << 10);

    assert!(fitted.entries >= 1000, "only {} receives fit", fitted.entries);
    assert!(fitted.bytes() <= 128 << 10);
    assert!(
        Limits { entries: fitted.entries + 1, descriptors: fitted.entries + 1, ..fitted }.bytes() > 128 << 10
    );
}

#[test]
fn bad_queues_are_refused() {
    let mut process = Process::new(SELF, LIMITS);
    for (start, events) in [(QUEUE, 0), (QUEUE, 1), (QUEUE, 3), (QUEUE, 1 << 17), (QUEUE + 8, 8), (!63, 2)] {
        assert_eq!(process.allocate_queue(start, events), Err(Refusal(code::SEGMENT_VIOLATION)));
    }
}

#[test]
fn commands_invoke_the_operations_with_their_arguments() {
    let mut process = Process::new(SELF, LIMITS);
    let none = Command { queue: NO_HANDLE, test_queue: NO_HANDLE, ..Command::default() };
    let queue = Command { kind: command::ALLOCATE_QUEUE, start: QUEUE, length: 4, ..none };
    assert_eq!(memory_of(&queue), Some(CommandMemory { start: QUEUE, length: 256 }));
    let queue = process.carry_out(&queue).value as u32;

    let post = Command {
        kind: command::POST,
        handle: NO_HANDLE,
        options: option::UNLINK | option::UNLINK_ENTRY | option::OP_PUT,
        queue,
        test_queue: queue,
        start: MEMORY,
        length: 8,
        threshold: 1,
        match_bits: 5,
        node: ANY_NODE,
        process: ANY_PROCESS,
        portal: PORTAL,
        ..none
    };
    let first = process.carry_out(&post);
    assert_eq!(first.code, code::OK);
    let acceptance = accepted(arrive(&mut process, message::PUT, 8));
    assert_eq!(u64::from(acceptance.descriptor.0), first.extra);
    let second = process.carry_out(&post);
    assert_eq!((second.code, second.value, second.extra), (code::OK, NO_HANDLE.into(), NO_HANDLE.into()));

    assert_eq!(process.end(acceptance.operation, 0).len(), 2);
    let unlink = Command { kind: command::UNLINK_ENTRY, handle: first.value as u32, ..none };
    assert_eq!(process.carry_out(&unlink).code, code::ENTRY_INVALID);
    assert_eq!(process.carry_out(&Command { kind: 99, ..none }).code, code::COMMAND_INVALID);
    let outside = vec![option::ACK, option::OP_PUT];
    for options in outside {
        let entry = Command { kind: command::ATTACH_ENTRY, options, ..none };
        assert_eq!(process.carry_out(&entry).code, code::COMMAND_INVALID);
    }
}
