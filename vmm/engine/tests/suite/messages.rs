//! DMA messages: they end without an answer, and none is sent too late. The client is bytes on a
//! stream.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

use std::time::Duration;

use crate::common::{
    raw::{PAGE, Raw, access, client_with_dma, map_payload, posted, request, unmap_payload},
    *,
};
use nicforge_core::context::MAX_REMOTE;
use nicforge_engine::EngineSnapshot;
use nicforge_vfio_user::wire::Command;

/// Time-out of DMA messages. It is long enough that a message sent by mistake would come first.
const SHORT: Duration = Duration::from_millis(30);

both_loops! {
    fn unanswered_messages_time_out_whatever_their_number(config) {
        config.dma_limit = SHORT;
        let served = Served::start(config);
        let mut raw = client_with_dma(&served, A);

        for round in 1..=3 {
            raw.send(&doorbell(64).repeat(MAX_REMOTE));
            let all = round * MAX_REMOTE as u64;
            served.wait_until("all have ended", |snapshot| server_of(snapshot, A).dma_timeouts == all);
        }

        assert_eq!(dma_errors(&served.snapshot()), 3 * MAX_REMOTE as u64);
    }

    fn a_message_that_could_not_be_sent_ends_too(config) {
        config.dma_limit = SHORT;
        config.max_queued = 1 << 16;
        config.messages = 256;
        config.client_turn = LONG;
        let served = Served::start(config);
        let mut raw = client_with_dma(&served, A);

        fill_the_socket(&mut raw);
        let snapshot = served
        .wait_until("the message times out", |snapshot| server_of(snapshot, A).dma_timeouts == 1);

        assert_eq!((dma_errors(&snapshot), server_of(&snapshot, A).dma_messages), (1, 0));
    }

    fn no_message_follows_the_answer_to_an_unmap(config) {
        let served = Served::start(config);
        let mut raw = client_with_dma(&served, A);

        for round in 1..=2 {
            let unmap = request(Command::DmaUnmap, &unmap_payload());
            raw.send(&[doorbell(64), unmap].concat());
            assert_eq!(raw.reply().0.command, Command::DmaUnmap);
            raw.assert_served();
            let snapshot = served.wait_until("the device gets an error", |snapshot| dma_errors(snapshot) == round);
            assert_eq!(server_of(&snapshot, A).dma_messages, 0);
            assert_eq!(raw.ask(Command::DmaMap, &map_payload()), None);
        }
    }

    fn no_message_follows_the_answer_to_an_unmap_when_the_socket_is_full(config) {
        config.max_queued = 1 << 16;
        config.messages = 256;
        config.client_turn = LONG;
        let served = Served::start(config);
        let mut raw = client_with_dma(&served, A);

        fill_the_socket(&mut raw);
        served.wait_until("the socket is full", |snapshot| client_of(snapshot, A).unwrap().messages > 40);
        raw.send(&request(Command::DmaUnmap, &unmap_payload()));
        let mut commands = Vec::new();
        while commands.last() != Some(&Command::DmaUnmap) {
            commands.push(raw.reply().0.command);
        }
        let snapshot = served.wait_until("the device gets an error", |snapshot| dma_errors(snapshot) == 1);

        assert_eq!(server_of(&snapshot, A).dma_messages, 0, "{commands:?}");
    }

    fn no_message_follows_the_end_of_bus_mastering(config) {
        let served = Served::start(config);
        let mut raw = client_with_dma(&served, A);
        let off = request(Command::RegionWrite, &access(COMMAND, CONFIG_REGION, 2, &MEMORY_DECODE.to_le_bytes()));

        raw.send(&[doorbell(64), off].concat());
        assert_eq!(raw.reply().0.command, Command::RegionWrite);
        raw.assert_served();
        let snapshot = served.wait_until("the device gets an error", |snapshot| dma_errors(snapshot) == 1);

        assert_eq!(server_of(&snapshot, A).dma_messages, 0);
    }

    fn an_operators_reset_cancels_no_dma_that_starts_after_it(config) {
        // Only one client is served in each round, and the second one's turn comes after the step
        // that starts its DMA.
        config.service_limit = Duration::ZERO;
        let served = Served::start(config);
        let (_first, mut second) = (served.client(A), client_with_dma(&served, B));

        served.handle.call(LONG, |control| {
            control.reset_function(FUNCTION).unwrap();
            for (register, value) in [(reg::SOURCE, PAGE), (reg::COPY, 64)] {
                let _ = control.machine().write(FUNCTION, B, 0, register, &value.to_le_bytes()).unwrap();
            }
        }).unwrap();

        assert_eq!(second.reply().0.command, Command::DmaRead);
        assert_eq!(served.snapshot().functions[0].attachments[1].counters.dma_errors, 0);
    }
}

/// Fills the socket with unread replies in the turn in which the device asks for a message, so that
/// the message cannot be sent.
fn fill_the_socket(raw: &mut Raw) {
    let read = request(Command::RegionRead, &access(0, 1, 1 << 12, &[]));
    raw.send(&[doorbell(64), read.repeat(200)].concat());
}

/// Returns a posted write that starts a copy of this many bytes.
fn doorbell(length: u32) -> Vec<u8> {
    posted(Command::RegionWrite, &access(reg::COPY, 0, 4, &length.to_le_bytes()))
}

/// Returns how many DMA operations of attachment A have failed.
fn dma_errors(snapshot: &EngineSnapshot) -> u64 {
    snapshot.functions[0].attachments[0].counters.dma_errors
}
