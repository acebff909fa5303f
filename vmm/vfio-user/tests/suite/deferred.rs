//! Requests that end later, messages that may overtake them, and requests of the server to the
//! client. The client's end is raw bytes, and the server is driven step by step in the same thread.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::time::Instant;

use crate::common::*;
use nicforge_vfio_user::wire::{Command, Header, MessageType};
use nicforge_vfio_user::*;

// Deferred requests

#[test]
fn requests_after_a_deferred_one_wait_and_keep_their_order() {
    let mut pair = Pair::negotiated();
    pair.send(&request(Command::RegionWrite, &access(STALL, 0, 1, &[1])));
    pair.send(&posted(Command::RegionWrite, &access(8, 0, 1, &[2])));
    pair.serve();
    assert_eq!(pair.device.writes.len(), 1);
    assert!(pair.try_reply().is_none());
    assert_eq!(pair.server.deferred(), Some(WRITE_TOKEN));

    pair.server.complete(WRITE_TOKEN, Err(Errno::EBUSY)).unwrap();
    assert!(pair.server.ready());
    pair.serve();

    assert_eq!(pair.reply().header.reply_error(), Some(Errno::EBUSY));
    assert_eq!(pair.device.writes.len(), 2);
}

#[test]
fn completing_an_undeferred_request_or_with_a_wrong_length_is_an_error() {
    let mut pair = Pair::negotiated();
    assert_eq!(
        pair.server.complete(WRITE_TOKEN, Ok(())),
        Err(CompleteError::NotDeferred { token: WRITE_TOKEN })
    );
    pair.send(&request(Command::RegionRead, &access(STALL_READ, 0, 4, &[])));
    pair.serve();

    assert_eq!(pair.server.complete(READ_TOKEN, Ok(())), Err(CompleteError::Length { expected: 4, got: 0 }));
    assert_eq!(pair.server.complete(5, Ok(())), Err(CompleteError::NotDeferred { token: 5 }));
    pair.server.complete_read(READ_TOKEN, Ok(&[1, 2, 3, 4])).unwrap();
    pair.serve();

    assert_eq!(pair.reply().payload[16..], [1, 2, 3, 4]);
}

#[test]
fn reset_after_stalled_posted_writes_completes_them_in_order() {
    let mut pair = Pair::negotiated();
    pair.device.reset_pending_answer = Some(Errno::ECANCELED);
    for value in 0..3 {
        pair.send(&posted(Command::RegionWrite, &access(STALL, 0, 1, &[value])));
    }
    pair.serve();
    assert_eq!(pair.device.writes.len(), 1);

    let reply = pair.ask(Command::DeviceReset, &[]);

    assert_eq!((reply.header.command, reply.header.reply_error()), (Command::DeviceReset, None));
    assert_eq!(pair.device.reset_pending_calls, [WRITE_TOKEN; 3]);
    assert_eq!(pair.device.resets, 1);
    // The reset is done: the next stalled write is not given up.
    pair.send(&posted(Command::RegionWrite, &access(STALL, 0, 1, &[9])));
    pair.serve();
    assert_eq!(pair.device.reset_pending_calls.len(), 3);
    assert_eq!(pair.server.deferred(), Some(WRITE_TOKEN));
}

#[test]
fn handler_that_does_not_give_up_is_asked_once() {
    let mut pair = Pair::negotiated();
    pair.send(&posted(Command::RegionWrite, &access(STALL, 0, 1, &[1])));
    pair.send(&request(Command::DeviceReset, &[]));
    pair.serve();
    pair.serve();
    assert_eq!((pair.device.reset_pending_calls.len(), pair.device.resets), (1, 0));

    pair.server.complete(WRITE_TOKEN, Ok(())).unwrap();
    pair.serve();

    assert_eq!(pair.device.resets, 1);
}

#[test]
fn client_that_keeps_sending_after_a_deferred_request_fills_only_one_buffer() {
    let mut pair = Pair::negotiated();
    pair.send(&posted(Command::RegionWrite, &access(STALL, 0, 1, &[1])));
    pair.peer.set_nonblocking(true).unwrap();
    let bytes = posted(Command::RegionWrite, &access(0x1000, 0, 4096, &[2; 4096]));
    let mut accepted = 0;
    let deadline = Instant::now() + TIMEOUT;
    let mut refused = 0;
    while refused < 2 {
        match pair.peer.write(&bytes[accepted % bytes.len()..]) {
            Ok(count) => (accepted, refused) = (accepted + count, 0),
            Err(_) => refused += 1,
        }
        pair.serve();
        assert!(Instant::now() < deadline && accepted < 8 << 20);
    }
    assert!(!pair.server.wants_read());

    pair.server.complete(WRITE_TOKEN, Ok(())).unwrap();
    pair.serve();

    assert_eq!(pair.device.writes.len(), 1 + accepted / bytes.len());
}

#[test]
fn death_of_a_client_with_a_full_buffer_is_detected() {
    let mut pair = Pair::negotiated();
    pair.send(&posted(Command::RegionWrite, &access(STALL, 0, 1, &[1])));
    let bytes = posted(Command::RegionWrite, &access(0x1000, 0, 65536, &[2; 65536]));
    let deadline = Instant::now() + TIMEOUT;
    pair.serve();
    while pair.server.wants_read() {
        assert!(Instant::now() < deadline);
        pair.send(&bytes);
        pair.serve();
    }
    assert_eq!(pair.try_serve().unwrap(), Progress::Blocked);

    pair.peer.shutdown(std::net::Shutdown::Both).unwrap();

    assert_eq!(pair.try_serve().unwrap(), Progress::Closed);
}

// Requests to the client

#[test]
fn dma_is_cut_to_the_clients_transfer_size() {
    let json = br#"{"capabilities":{"max_data_xfer_size":4}}"#;
    let mut pair = Pair::negotiated_with(ServerConfig::default(), json);
    pair.server.dma_read(0x1000, 10, 1).unwrap();
    pair.server.dma_write(0x2000, &[1, 2, 3, 4, 5], 2).unwrap();
    let mut spans = Vec::new();
    while let Some(reply) = pair.try_reply() {
        assert_eq!(reply.header.message_type(), MessageType::Command);
        let address = u64::from_le_bytes(reply.payload[..8].try_into().unwrap());
        let count = reply.payload[8] as usize;
        spans.push((reply.header.command, address, count));
        let data =
            if reply.header.command == Command::DmaRead { vec![address as u8; count] } else { Vec::new() };
        let payload = [&reply.payload[..16], &data].concat();
        pair.send(&message(Header::reply(reply.header.id, reply.header.command, payload.len()), &payload));
        pair.serve();
    }

    spans.sort_by_key(|span| span.1);
    assert_eq!(
        spans,
        [
            (Command::DmaRead, 0x1000, 4),
            (Command::DmaRead, 0x1004, 4),
            (Command::DmaRead, 0x1008, 2),
            (Command::DmaWrite, 0x2000, 4),
            (Command::DmaWrite, 0x2004, 1)
        ]
    );
    assert_eq!(pair.device.dma_reads, [(1, Ok(vec![0, 0, 0, 0, 4, 4, 4, 4, 8, 8]))]);
    assert_eq!(pair.device.dma_writes, [(2, Ok(()))]);
}

#[test]
fn write_that_is_cut_has_unsent_bytes_until_its_last_message() {
    let json = br#"{"capabilities":{"max_data_xfer_size":4}}"#;
    let mut pair = Pair::negotiated_with(ServerConfig::default(), json);
    pair.server.dma_read(0x1000, 10, 1).unwrap();
    pair.server.dma_write(0x2000, &[1; 4], 2).unwrap();
    let has_unsent_before = pair.server.has_unsent_writes();
    pair.server.dma_write(0x3000, &[2; 9], 3).unwrap();
    let _ = [pair.reply(), pair.reply()];

    let mut unsent = Vec::new();
    for _ in 0..3 {
        unsent.push(pair.server.has_unsent_writes());
        let reply = pair.reply();
        let header = Header::reply(reply.header.id, reply.header.command, 16);
        pair.send(&message(header, &reply.payload[..16]));
        pair.serve();
    }

    assert_eq!((has_unsent_before, unsent), (false, vec![true, true, false]));
    assert_eq!(pair.device.dma_writes, [(3, Ok(()))]);
}

#[test]
fn no_dma_message_for_unmapped_memory_follows_the_reply_to_the_unmap() {
    let json = br#"{"capabilities":{"max_data_xfer_size":4}}"#;
    let mut pair = Pair::negotiated_with(ServerConfig::default(), json);
    for address in [0, 0x1000] {
        assert!(
            pair.ask(Command::DmaMap, &map_payload(READ_WRITE, 0, address, 4096))
                .header
                .reply_error()
                .is_none()
        );
    }
    // Two messages for each operation, except for the last.
    pair.server.dma_write(0xffe, &[1; 5], 1).unwrap();
    pair.server.dma_read(0x1000, 8, 2).unwrap();
    pair.server.dma_write(0xff8, &[3; 8], 3).unwrap();
    pair.server.dma_write(0x1000, &[4; 4], 4).unwrap();
    let first = [(); 4].map(|()| pair.reply());

    let unmap = [words(&[24, 0]), [0x1000_u64, 4096].map(u64::to_le_bytes).concat()].concat();
    assert_eq!(pair.ask(Command::DmaUnmap, &unmap).header.reply_error(), None);
    for reply in first {
        let header = Header::reply(reply.header.id, reply.header.command, 16);
        pair.send(&message(header, &reply.payload[..16]));
        pair.serve();
    }

    // Only the operation beside the range continues.
    assert_eq!(pair.reply().payload[..8], 0xffc_u64.to_le_bytes());
    assert!(pair.try_reply().is_none());
    assert_eq!(pair.device.dma_writes, [(1, Err(Errno::EFAULT)), (4, Ok(()))]);
    assert_eq!(pair.device.dma_reads, [(2, Err(Errno::EFAULT))]);
}

#[test]
fn dma_replies_of_wrong_size_are_errors_of_that_operation() {
    let mut pair = Pair::negotiated();
    for (token, payload) in [(1, vec![]), (2, vec![0; 16]), (3, vec![0; 16 + 9]), (4, vec![0; 7])] {
        pair.server.dma_read(0x1000, 8, token).unwrap();
        let id = pair.reply().header.id;
        pair.send(&message(Header::reply(id, Command::DmaRead, payload.len()), &payload));
        pair.serve();
    }
    pair.server.dma_read(0x1000, 8, 5).unwrap();
    let id = pair.reply().header.id;
    pair.send(&Header::error_reply(id, Command::DmaRead, Errno::EFAULT).to_bytes());
    pair.serve();

    let errors: Vec<_> =
        pair.device.dma_reads.iter().map(|(_, result)| result.clone().unwrap_err()).collect();
    assert_eq!(errors, [Errno::EPROTO, Errno::EPROTO, Errno::EPROTO, Errno::EPROTO, Errno::EFAULT]);
    assert_eq!(pair.server.dma_outstanding(), 0);
}

#[test]
fn dma_beyond_the_bound_is_busy_and_can_be_failed() {
    let mut pair = Pair::negotiated();
    for token in 0..64 {
        pair.server.dma_read(0x1000, 8, token).unwrap();
    }

    let error = pair.server.dma_write(0, &[1], 64).unwrap_err();
    pair.server.fail_dma(Errno::ENOTCONN, &mut pair.device);

    assert!(matches!(error, DmaError::Busy { outstanding: 64, .. }));
    assert_eq!(pair.device.dma_reads.len(), 64);
    assert!(matches!(pair.server.dma_read(u64::MAX, 2, 0), Err(DmaError::Range { .. })));
    assert!(matches!(pair.server.dma_read(0, 0, 0), Err(DmaError::Range { .. })));
}

#[test]
fn forgotten_dma_takes_no_slot_and_its_late_reply_is_dropped() {
    let mut pair = Pair::negotiated();
    for token in 0..64 {
        pair.server.dma_read(0x1000, 8, token).unwrap();
    }
    let id = pair.reply().header.id;

    assert!(pair.server.forget_dma(0));
    assert!(!pair.server.forget_dma(0));
    pair.server.dma_read(0x1000, 8, 64).unwrap();
    let payload = access(0x1000, 8, 0, &[1; 8]);
    pair.send(&message(Header::reply(id, Command::DmaRead, payload.len()), &payload));
    pair.serve();

    assert!(pair.device.dma_reads.is_empty());
    assert_eq!((pair.server.dma_outstanding(), pair.server.counters().unmatched_replies), (64, 1));
}

#[test]
fn dma_replies_pass_requests_that_wait_for_a_deferred_one() {
    let mut pair = Pair::negotiated();
    pair.server.dma_read(0x1000, 3, 1).unwrap();
    pair.server.dma_read(0x1000, 1, 2).unwrap();
    let (first, second) = (pair.reply().header.id, pair.reply().header.id);
    pair.send(&request(Command::RegionWrite, &access(STALL, 0, 1, &[1])));
    pair.send(&posted(Command::RegionWrite, &access(8, 0, 1, &[2])));
    let payload = access(0x1000, 3, 0, &[7, 8, 9]);
    pair.send(&message(Header::reply(first, Command::DmaRead, payload.len()), &payload));
    // A descriptor after the reply stays with its own message.
    pair.send_fds(&posted(Command::DmaMap, &map_payload(READ_WRITE, 0, 0, 4096)), &[memfd(4096)]);
    let payload = access(0x1000, 1, 0, &[6]);
    pair.send(&message(Header::reply(second, Command::DmaRead, payload.len()), &payload));
    pair.serve();

    assert_eq!(pair.device.dma_reads, [(1, Ok(vec![7, 8, 9])), (2, Ok(vec![6]))]);
    assert_eq!(pair.device.writes.len(), 1);
    pair.server.complete(WRITE_TOKEN, Ok(())).unwrap();
    pair.serve();
    assert_eq!(pair.device.writes.len(), 2);
    assert!(pair.device.maps[&0].1.is_some());
}

#[test]
fn dma_before_the_version_is_refused() {
    let mut pair = Pair::new(ServerConfig::default());

    assert!(matches!(pair.server.dma_read(0, 1, 1), Err(DmaError::NotConnected)));
}
