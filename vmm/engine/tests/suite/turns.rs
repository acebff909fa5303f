//! The work of one client in a turn of the engine.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

use std::{os::unix::net::UnixStream, time::Duration};

use crate::common::{
    raw::{Raw, access, posted, request},
    *,
};
use nicforge_engine::EngineSnapshot;
use nicforge_shm::{Access, Producer, SharedCells};
use nicforge_vfio_user::{Errno, wire::Command};

/// BAR of the windows, and the offset of the device's own part in it.
const WINDOW_BAR: u32 = 1;
const WINDOW: u64 = 0x1_0000;
const LENGTH: usize = 0x1_0000;
/// Length of the ring at the beginning of that BAR.
const RING_BYTES: u64 = 64 * 64;

both_loops! {
    fn a_long_read_takes_as_many_turns_as_it_has_pages(config) {
        let served = Served::start(config);
        let client = served.client(A);
        let expected: Vec<u8> = (0..LENGTH).map(|index| (index / 7) as u8).collect();

        for (index, piece) in expected.chunks(0x1000).enumerate() {
            client.region_write(WINDOW_BAR, WINDOW + index as u64 * 0x1000, piece, false).unwrap();
        }
        let before = served.snapshot();
        let mut read = vec![0; LENGTH];
        client.region_read(WINDOW_BAR, WINDOW, &mut read).unwrap();
        let after = served.snapshot();

        assert!(read == expected);
        assert_eq!(trapped_reads(&after) - trapped_reads(&before), 16);
        assert!(after.turns - before.turns >= 16);
        assert_eq!(server_of(&after, A).stalled, 0);
    }

    fn a_long_read_past_the_end_reads_nothing(config) {
        let served = Served::start(config);
        let client = served.client(A);
        let mut read = vec![0; LENGTH];
        let refused = client.region_read(WINDOW_BAR, WINDOW + 4, &mut read);
        assert_eq!(refused.err().unwrap().errno(), Errno::EINVAL);
        assert_eq!(trapped_reads(&served.snapshot()), 0);
    }

    fn a_reset_queued_after_a_long_read_waits_for_its_end(config) {
        let served = Served::start(config);
        let mut raw = Raw::negotiated(&served.path(A));
        let read = request(Command::RegionRead, &access(WINDOW, WINDOW_BAR, LENGTH as u32, &[]));

        raw.send(&[read, request(Command::DeviceReset, &[])].concat());
        let (header, payload) = raw.reply();

        assert_eq!((header.reply_error(), payload.len()), (None, 16 + LENGTH));
        assert_eq!(raw.reply().0.command, Command::DeviceReset);
    }

    fn a_reset_queued_after_a_long_read_cancels_it_when_it_stalls(config) {
        let served = Served::start(config);
        let client = served.client(A);
        let windows = map_bar(&client, WINDOW_BAR, Access::ReadWrite);
        let ring = SharedCells::new(windows.window(0, RING_BYTES).unwrap()).unwrap();
        Producer::new(ring).try_push(|| 0, 0, reg::SEND as u32, &[0; 4]).unwrap();
        let mut raw = Raw(client.socket_fd().try_clone_to_owned().unwrap().into());
        raw.0.set_nonblocking(false).unwrap();
        raw.0.set_read_timeout(Some(LONG)).unwrap();
        let read = request(Command::RegionRead, &access(0, 0, 0x2000, &[]));

        raw.send(&[read, request(Command::DeviceReset, &[])].concat());

        assert_eq!(raw.reply().0.reply_error(), Some(Errno::ECANCELED));
        let (header, _) = raw.reply();
        assert_eq!((header.command, header.reply_error()), (Command::DeviceReset, None));
        assert_eq!(served.counter("sent"), 0);
    }

    fn a_newcomer_waits_until_its_predecessor_was_served_in_normal_turns(config) {
        const RESETS: usize = 1000;
        let served = Served::start(config);
        let mut raw = Raw::negotiated(&served.path(A));
        let before = served.snapshot();

        raw.send(&posted(Command::DeviceReset, &[]).repeat(RESETS));
        drop(raw);
        let client = served.client(A);
        write32(&client, reg::SCRATCH, 5);
        assert_eq!(read32(&client, reg::SCRATCH), 5);
        let after = served.snapshot();

        assert!(counter(&after, "resets") - counter(&before, "resets") >= RESETS as u64);
        assert!(after.turns - before.turns >= RESETS as u64 / u64::from(config.messages));
    }

    fn a_turn_ends_by_the_clock(config) {
        const RESETS: usize = 1000;
        config.messages = u32::MAX;
        config.client_turn = Duration::ZERO;
        let served = Served::start(config);
        let mut raw = Raw::negotiated(&served.path(A));
        let before = served.snapshot();

        raw.send(&posted(Command::DeviceReset, &[]).repeat(RESETS));

        raw.assert_served();
        // One message in each turn: the first step is always taken.
        assert!(served.snapshot().turns - before.turns >= RESETS as u64);
    }

    fn connections_that_wait_together_are_accepted_in_many_rounds(config) {
        // Fewer than the kernel keeps.
        const CONNECTIONS: u64 = 48;
        config.service_limit = Duration::ZERO;
        let served = Served::start(config);
        let (client, path) = (served.client(A), served.path(A));
        let before = served.snapshot();

        // The engine's thread connects, so all connections wait when its next round begins.
        let connect = move || UnixStream::connect(&path).unwrap();
        let crowd = served.handle.call(LONG, move |_| {
            (0..CONNECTIONS).map(|_| connect()).collect::<Vec<_>>()
        }).unwrap();
        let after = served.wait_until("all are refused", |snapshot| server_of(snapshot, A).refused == CONNECTIONS);

        // One connection in each round: the first one is always accepted.
        assert!(after.turns - before.turns >= CONNECTIONS);
        assert_eq!(read32(&client, reg::SCRATCH), 0);
        drop(crowd);
    }

    fn the_longest_turn_and_its_client_are_reported(config) {
        let served = Served::start(config);
        let client = served.client(B);

        write32(&client, reg::SCRATCH, 1);
        let snapshot = served.snapshot();
        let longest = snapshot.longest_turn;
        assert!(longest.time > Duration::ZERO);
        let of_b = server_of(&snapshot, B).longest_turn;

        assert!(of_b > Duration::ZERO && of_b <= longest.time);
        assert!(longest.client.is_none_or(|client| client == (FUNCTION, B)));
    }

    fn a_long_read_waits_for_a_write_that_stalls(config) {
        let served = Served::start(config);
        let (mut raw, other) = (Raw::negotiated(&served.path(A)), served.client(B));

        raw.send(&request(Command::RegionWrite, &access(reg::SEND, 0, 4, &[0; 4])));
        raw.send(&request(Command::RegionRead, &access(WINDOW, WINDOW_BAR, LENGTH as u32, &[])));
        served.wait_until("the write stalls", |snapshot| client_of(snapshot, A).unwrap().stalled);
        write32(&other, reg::CREDITS, 1);

        assert_eq!(raw.reply().0.command, Command::RegionWrite);
        assert_eq!(raw.reply().0.command, Command::RegionRead);
    }
}

fn trapped_reads(snapshot: &EngineSnapshot) -> u64 {
    snapshot.functions[0].attachments[0].counters.trapped_reads
}
