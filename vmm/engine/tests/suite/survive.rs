//! Malformed and unusual requests on the wire that a vfio-user server must survive, with the engine
//! after it and a neighbour that is served meanwhile. Each is known to break a server. The tests
//! of `nicforge-vfio-user` cover the protocol's own side step by step.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

use std::{
    io::{ErrorKind, Write},
    os::fd::AsFd,
};

use crate::common::{
    neighbour::Neighbour,
    raw::{Raw, access, posted, request, version, words},
    *,
};
use nicforge_vfio_user::{
    Errno, PCI_MSIX_IRQ,
    wire::{Command, HEADER_SIZE, Header},
};

const DATA_NONE: u32 = 1;
const DATA_EVENTFD: u32 = 4;
const ACTION_TRIGGER: u32 = 32;
/// Type bits of a reply's header.
const REPLY: u32 = 1;

fn set_irqs_payload(flags: u32, start: u32, count: u32) -> Vec<u8> {
    words(&[20, flags, PCI_MSIX_IRQ, start, count])
}

fn header_bytes(command: u16, size: u32, flags: u32) -> Vec<u8> {
    [&9_u16.to_le_bytes()[..], &command.to_le_bytes(), &words(&[size, flags, 0])].concat()
}

/// Asserts that the negotiation succeeds with these bytes after the version's numbers.
fn assert_negotiates(config: nicforge_engine::EngineConfig, rest: &[u8]) {
    let neighbour = Neighbour::start(config);
    let mut raw = Raw::connect(&neighbour.served.path(A));

    raw.send(&version(0, 0, rest));

    assert_eq!(raw.reply().0.reply_error(), None);
    raw.assert_served();
    drop(raw);
    neighbour.assert_served_and_reusable();
}

/// Asserts that these bytes, after the negotiation, end the connection.
fn assert_ends_connection(config: nicforge_engine::EngineConfig, bytes: &[u8]) {
    let neighbour = Neighbour::start(config);
    let mut raw = Raw::negotiated(&neighbour.served.path(A));
    // The connection may end before all bytes are written.
    let _ = raw.0.write_all(bytes);

    raw.assert_ended();
    neighbour.assert_served_and_reusable();
    assert_eq!(server_of(&neighbour.served.snapshot(), A).broken, 1);
}

both_loops! {
    fn version_without_json_is_accepted(config) {
        assert_negotiates(config, b"");
    }

    fn version_with_json_that_lacks_its_nul_is_accepted(config) {
        assert_negotiates(config, br#"{"capabilities":{"max_msg_fds":8}}"#);
    }

    fn version_with_an_empty_object_is_accepted(config) {
        assert_negotiates(config, b"{}\0");
    }

    fn version_with_another_major_number_is_refused(config) {
        let neighbour = Neighbour::start(config);
        let mut raw = Raw::connect(&neighbour.served.path(A));
        raw.send(&version(7, 0, b"{}\0"));
        assert!(raw.reply().0.reply_error().is_some());
        raw.assert_ended();
        neighbour.assert_served_and_reusable();
    }

    fn message_size_below_that_of_a_header_ends_the_connection(config) {
        assert_ends_connection(config, &header_bytes(4, 15, 0));
    }

    fn message_size_past_the_limit_ends_the_connection(config) {
        assert_ends_connection(config, &header_bytes(4, u32::MAX, 0));
    }

    fn sizes_and_counts_of_all_ones_are_refused(config) {
        let neighbour = Neighbour::start(config);
        let mut raw = Raw::negotiated(&neighbour.served.path(A));
        let flags = DATA_NONE | ACTION_TRIGGER;

        for (command, payload) in [
            (Command::RegionRead, access(0, 0, u32::MAX, &[])),
            (Command::RegionWrite, access(0, 0, u32::MAX, &[0; 4])),
            (Command::DeviceSetIrqs, set_irqs_payload(flags, 0, u32::MAX)),
            (Command::DeviceSetIrqs, set_irqs_payload(flags, u32::MAX, u32::MAX)),
            (Command::DmaMap, words(&[u32::MAX; 8])),
            (Command::DmaUnmap, words(&[u32::MAX; 6])),
            (Command::DeviceGetInfo, words(&[0, 0, 0, 0])),
            (Command::RegionWriteMulti, words(&[u32::MAX; 8])),
        ] {
            assert!(raw.ask(command, &payload).is_some(), "{command:?}");
        }

        raw.assert_served();
        drop(raw);
        neighbour.assert_served_and_reusable();
    }

    fn an_unknown_command_is_refused_and_its_payload_skipped(config) {
        let neighbour = Neighbour::start(config);
        let mut raw = Raw::negotiated(&neighbour.served.path(A));

        for command in [0, 20, 99, u16::MAX] {
            // The payload looks like another message.
            let inner = request(Command::DeviceReset, &[]);
            let size = (HEADER_SIZE + inner.len()) as u32;
            raw.send(&[header_bytes(command, size, 0), inner].concat());
            let (reply, _) = raw.reply();
            assert!(reply.reply_error().is_some());
            raw.assert_served();
        }

        assert_eq!(neighbour.served.counter("resets"), 0);
        drop(raw);
        neighbour.assert_served_and_reusable();
    }

    fn a_reply_without_a_request_is_ignored(config) {
        let neighbour = Neighbour::start(config);
        let mut raw = Raw::negotiated(&neighbour.served.path(A));

        for command in [11, 12, 4, 77] {
            raw.send(&[header_bytes(command, 32, REPLY), vec![0xff; 16]].concat());
        }

        raw.assert_served();
        drop(raw);
        neighbour.assert_served_and_reusable();
    }

    fn a_request_that_arrives_byte_by_byte_is_carried_out(config) {
        let neighbour = Neighbour::start(config);
        let mut raw = Raw::negotiated(&neighbour.served.path(A));

        for byte in request(Command::RegionWrite, &access(reg::SCRATCH, 0, 4, &7_u32.to_le_bytes())) {
            raw.send(&[byte]);
            // The snapshot ensures that the engine reads each byte alone.
            neighbour.served.snapshot();
        }
        assert_eq!(raw.reply().0.reply_error(), None);
        raw.send(&request(Command::RegionRead, &access(reg::SCRATCH, 0, 4, &[])));

        assert_eq!(raw.reply().1[16..], [7, 0, 0, 0]);
        drop(raw);
        neighbour.assert_served_and_reusable();
    }

    fn requests_sent_in_one_write_are_answered_in_order(config) {
        let neighbour = Neighbour::start(config);
        let mut raw = Raw::negotiated(&neighbour.served.path(A));
        let write = |value: u32| request(Command::RegionWrite, &access(reg::SCRATCH, 0, 4, &value.to_le_bytes()));
        let read = request(Command::RegionRead, &access(reg::SCRATCH, 0, 4, &[]));
        let all: Vec<u8> = (0..100_u32).flat_map(|value| [write(value), read.clone()].concat()).collect();

        raw.send(&all);
        for value in 0..100_u32 {
            assert_eq!(raw.reply().0.reply_error(), None);
            assert_eq!(raw.reply().1[16..], value.to_le_bytes());
        }

        drop(raw);
        neighbour.assert_served_and_reusable();
    }

    fn a_failing_request_that_wants_no_reply_gets_none(config) {
        let neighbour = Neighbour::start(config);
        let mut raw = Raw::negotiated(&neighbour.served.path(A));

        raw.send(&posted(Command::RegionWrite, &access(u64::MAX, 0, 4, &[0; 4])));
        raw.send(&posted(Command::RegionRead, &access(0, 55, 4, &[])));
        raw.send(&posted(Command::DmaUnmap, &words(&[24, 0, 0, 0, 0x1000, 0])));
        raw.send(&posted(Command::Unknown(77), &[1; 9]));

        // The next message must be the reply to this request.
        raw.assert_served();
        drop(raw);
        neighbour.assert_served_and_reusable();
    }

    fn interrupts_past_the_last_are_refused(config) {
        let neighbour = Neighbour::start(config);
        let mut raw = Raw::negotiated(&neighbour.served.path(A));

        for (start, count) in [(4, 1), (0, 5), (3, 2), (u32::MAX, 1), (1, u32::MAX)] {
            let refused = raw.ask(Command::DeviceSetIrqs, &set_irqs_payload(DATA_NONE | ACTION_TRIGGER, start, count));
            assert_eq!(refused, Some(Errno::EINVAL));
        }

        raw.assert_served();
        drop(raw);
        neighbour.assert_served_and_reusable();
    }

    fn interrupts_with_too_few_or_too_many_descriptors_are_refused(config) {
        let neighbour = Neighbour::start(config);
        let mut raw = Raw::negotiated(&neighbour.served.path(A));
        let fd = eventfd();

        for (count, descriptors) in [(3, 1), (3, 2), (1, 2), (2, 4)] {
            let fds = vec![fd.as_fd(); descriptors];
            let message = request(Command::DeviceSetIrqs, &set_irqs_payload(DATA_EVENTFD | ACTION_TRIGGER, 0, count));
            raw.send_fds(&message, &fds);
            assert!(raw.reply().0.reply_error().is_some());
        }
        // None of them was bound.
        raw.send(&request(Command::RegionWrite, &access(reg::RAISE, 0, 4, &0_u32.to_le_bytes())));

        assert_eq!(raw.reply().0.reply_error(), None);
        assert!(is_unsignalled(&fd));
        drop(raw);
        neighbour.assert_served_and_reusable();
    }

    fn interrupts_of_a_range_are_disabled_and_no_others(config) {
        let neighbour = Neighbour::start(config);
        let mut raw = Raw::negotiated(&neighbour.served.path(A));
        let fds = [(); 4].map(|()| eventfd());
        let each: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let bind = |start, count| request(Command::DeviceSetIrqs, &set_irqs_payload(DATA_EVENTFD | ACTION_TRIGGER, start, count));

        raw.send_fds(&bind(0, 4), &each);
        assert_eq!(raw.reply().0.reply_error(), None);
        // A message without descriptors stands for eventfds of -1, which unbind the interrupts.
        raw.send(&bind(1, 2));
        assert_eq!(raw.reply().0.reply_error(), None);
        for vector in 0..4_u32 {
            raw.send(&request(Command::RegionWrite, &access(reg::RAISE, 0, 4, &vector.to_le_bytes())));
            assert_eq!(raw.reply().0.reply_error(), None);
        }

        assert_eq!((wait_for(&fds[0]), wait_for(&fds[3])), (1, 1));
        assert!(is_unsignalled(&fds[1]) && is_unsignalled(&fds[2]));
        drop(raw);
        neighbour.assert_served_and_reusable();
    }

    fn descriptors_with_requests_that_take_none_are_closed(config) {
        let neighbour = Neighbour::start(config);
        let mut raw = Raw::negotiated(&neighbour.served.path(A));
        let (mut reader, writer) = std::io::pipe().unwrap();

        for command in [Command::DeviceGetInfo, Command::DeviceReset, Command::RegionRead, Command::Unknown(77)] {
            raw.send_fds(&request(command, &[0; 16]), &[writer.as_fd(), writer.as_fd()]);
            raw.reply();
        }

        drop(writer);
        // The pipe ends only when the server has no copy left.
        assert_eq!(std::io::Read::read(&mut reader, &mut [0]).unwrap(), 0);
        drop(raw);
        neighbour.assert_served_and_reusable();
    }

    fn a_client_that_stops_reading(config) {
        config.max_queued = 1 << 16;
        let neighbour = Neighbour::start(config);
        let mut raw = Raw::negotiated(&neighbour.served.path(A));

        raw.0.set_nonblocking(true).unwrap();
        let read = request(Command::RegionRead, &access(0, 1, 0x1_0000, &[]));
        // Writes until the server takes no more requests, while it serves others.
        let (mut full, mut rest) = (0, &read[..]);
        while full < 3 {
            match raw.0.write(rest) {
                Ok(written) => {
                    (full, rest) = (0, &rest[written..]);
                    if rest.is_empty() {
                        rest = &read;
                    }
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    full += 1;
                    neighbour.assert_served();
                }
            }
        }

        assert!(client_of(&neighbour.served.snapshot(), A).is_some(), "it was thrown out");
        neighbour.assert_served();
        drop(raw);
        neighbour.assert_served_and_reusable();
    }

    fn death_of_a_client_within_a_message_disturbs_no_neighbour(config) {
        let neighbour = Neighbour::start(config);
        let message = request(Command::RegionWrite, &access(reg::SCRATCH, 0, 4, &[9; 4]));

        for length in 1..message.len() {
            let mut raw = Raw::negotiated(&neighbour.served.path(A));
            raw.send(&message[..length]);
            drop(raw);
            neighbour.served.wait_until_free(A);
        }
        let client = neighbour.served.client(A);

        assert_eq!(read32(&client, reg::SCRATCH), 0, "an incomplete write was carried out");
        drop(client);
        neighbour.assert_served_and_reusable();
    }

    fn failures_are_answered_with_their_errno(config) {
        let neighbour = Neighbour::start(config);
        let mut raw = Raw::negotiated(&neighbour.served.path(A));
        let map = |size: u32| words(&[32, 3, 0, 0, 0x1000, 0, size, 0]);

        assert_eq!(raw.ask(Command::DmaMap, &map(0x1000)), None);
        for (command, payload, errno) in [
            (Command::RegionRead, access(0, 55, 4, &[]), Errno::EINVAL),
            (Command::DmaMap, map(0x1000), Errno::EEXIST),
            (Command::DmaUnmap, words(&[24, 0, 0x9000, 0, 0x1000, 0]), Errno::ENOENT),
            (Command::RegionWrite, access(0, 2, 4, &[0; 4]), Errno::EACCES),
            (Command::Unknown(77), vec![], Errno::ENOSYS),
        ] {
            assert_eq!(raw.ask(command, &payload), Some(errno), "{command:?}");
        }

        raw.assert_served();
        drop(raw);
        neighbour.assert_served_and_reusable();
    }

    fn garbage_of_random_length_disturbs_no_neighbour(config) {
        let neighbour = Neighbour::start(config);
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };

        for _ in 0..200 {
            let mut raw = Raw::negotiated(&neighbour.served.path(A));
            let garbage: Vec<u8> = (0..random() % 512).map(|_| random() as u8).collect();
            let _ = raw.0.write_all(&garbage);
            drop(raw);
            neighbour.served.wait_until_free(A);
        }

        neighbour.assert_served_and_reusable();
    }
}

#[test]
fn requests_have_the_headers_that_the_library_writes() {
    let written = header_bytes(4, 16, 0);
    assert_eq!(written, Header::request(9, Command::DeviceGetInfo, 0, false).to_bytes());
}
