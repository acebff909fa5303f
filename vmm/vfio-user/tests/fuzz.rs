//! Arbitrary bytes against the server: it never panics, never runs without end, never grows without bound.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Pair, memfd, message};
use nicforge_vfio_user::wire::{Command, Header};
use nicforge_vfio_user::*;
use proptest::prelude::*;

/// A message whose framing is right, of any command, with a payload of small and of extreme numbers.
fn plausible() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![4 => 0u32..6, 2 => 0u32..4096, 1 => any::<u32>(), 1 => Just(u32::MAX)];
    let payload = proptest::collection::vec(number, 0..12);
    (0u16..20, payload, 0usize..4, any::<bool>(), 0u8..16).prop_map(
        |(command, numbers, cut, no_reply, kind)| {
            let mut payload = common::words(&numbers);
            payload.truncate(payload.len().saturating_sub(cut));
            let command = Command::from_number(command);
            let header = match kind {
                0 => Header::reply(1, command, payload.len()),
                _ => Header::request(1, command, payload.len(), no_reply),
            };
            message(header, &payload)
        },
    )
}

/// Serves the chunks as they come, with completions and requests of our own in between.
fn feed(pair: &mut Pair, chunks: &[Vec<u8>]) {
    for (turn, chunk) in chunks.iter().enumerate() {
        if turn % 3 == 0 {
            pair.send_fds(chunk, &[memfd(4096)]);
        } else {
            pair.send(chunk);
        }
        if turn % 4 == 0 {
            let _ = pair.server.dma_read(0x1000, 8, turn as u64);
        }
        if pair.try_serve().is_err() {
            return;
        }
        if let Some(token) = pair.server.deferred() {
            let _ = pair.server.complete(token, Err(Errno::EIO));
        }
        while pair.try_reply().is_some() {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn arbitrary_bytes_never_panic(chunks in proptest::collection::vec(
        proptest::collection::vec(any::<u8>(), 1..200), 1..8,
    )) {
        feed(&mut Pair::new(ServerConfig::default()), &chunks);
        feed(&mut Pair::negotiated(), &chunks);
    }

    #[test]
    fn plausible_messages_never_panic_and_never_end_the_connection(
        messages in proptest::collection::vec(plausible(), 1..20),
    ) {
        let mut pair = Pair::negotiated();
        feed(&mut pair, &messages);

        prop_assert!(pair.try_serve().is_ok());
    }

    #[test]
    fn plausible_messages_cut_anywhere_are_the_same_messages(
        messages in proptest::collection::vec(plausible(), 1..10),
        cuts in proptest::collection::vec(1usize..40, 1..10),
    ) {
        let bytes = messages.concat();
        let mut pair = Pair::negotiated();
        let mut rest = &bytes[..];
        for cut in cuts.iter().cycle() {
            let (now, later) = rest.split_at((*cut).min(rest.len()));
            pair.send(now);
            pair.try_serve().unwrap();
            while let Some(token) = pair.server.deferred() {
                pair.server.complete(token, Err(Errno::EIO)).unwrap();
                pair.try_serve().unwrap();
            }
            while pair.try_reply().is_some() {}
            rest = later;
            if rest.is_empty() {
                break;
            }
        }

        // The version was one more.
        prop_assert_eq!(pair.server.counters().messages, messages.len() as u64 + 1);
    }
}
