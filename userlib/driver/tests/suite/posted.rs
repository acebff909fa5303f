//! Posted writes, doorbells, and rings across resets.

use std::time::Duration;

use crate::common::{Access, BAR0_SIZE, Fake, RING_CELLS, capability, config};
use nicforge_driver::{Cancel, Device, Error, GoneCause, OpenOptions, SharedPoster, WriteMode};
use nicforge_hwi::attachment::{control, mirror};
use proptest::prelude::*;

fn record(offset: u32, data: &[u8]) -> Access {
    Access::Record { ring: 0, bar: 0, offset, data: data.to_vec() }
}

fn wake() -> Access {
    Access::Write {
        region: 0,
        offset: crate::common::CONTROL_PAGE + control::WAKE,
        data: vec![1, 0, 0, 0],
        mode: WriteMode::Posted,
    }
}

#[test]
fn post_with_awake_engine_makes_no_trapped_access() {
    let fake = Fake::new();
    let device = fake.open();
    let mut poster = device.poster(0).unwrap();
    fake.clear_log();

    poster.post(0, 0x20, &7u32.to_le_bytes()).unwrap();

    assert_eq!(fake.log(), []);
    fake.step();
    assert_eq!(fake.log(), [record(0x20, &[7, 0, 0, 0])]);
}

#[test]
fn post_with_sleeping_engine_writes_the_wake_register_posted() {
    let fake = Fake::new();
    let device = fake.open();
    let mut poster = device.poster(0).unwrap();
    fake.set_mirror(mirror::SLEEPING, 1);
    fake.clear_log();

    poster.post(0, 0x20, &[1]).unwrap();

    assert_eq!(fake.log(), [wake()]);
}

#[test]
fn doorbell_kicks_only_while_the_engine_sleeps() {
    let fake = Fake::new();
    let device = fake.open();
    let doorbell = device.doorbell();
    fake.clear_log();

    doorbell.after_store().unwrap();
    let awake = fake.log();
    fake.set_mirror(mirror::SLEEPING, 1);
    doorbell.after_store().unwrap();
    device.bar(1).unwrap().kick_if_sleeping().unwrap();

    assert_eq!(awake, []);
    assert_eq!(fake.log(), [wake(), wake()]);
}

#[test]
fn posts_beyond_the_ring_wait_for_the_engine_and_arrive_in_order() {
    let fake = Fake::new();
    let device = fake.open();
    let mut poster = device.poster(0).unwrap();
    fake.clear_log();

    for value in 0..10 * RING_CELLS {
        poster.post(0, 8, &value.to_le_bytes()).unwrap();
    }
    device.flush().unwrap();

    let records: Vec<_> =
        fake.log().into_iter().filter(|access| matches!(access, Access::Record { .. })).collect();
    let expected: Vec<_> = (0..10 * RING_CELLS).map(|value| record(8, &value.to_le_bytes())).collect();
    assert_eq!(records, expected);
}

#[test]
fn try_post_to_a_full_ring_returns_ring_full_and_posts_nothing() {
    let fake = Fake::new();
    let device = fake.open();
    let mut poster = device.poster(1).unwrap();
    (0..RING_CELLS).for_each(|_| poster.try_post(0, 8, &[1]).unwrap());

    let result = poster.try_post(0, 8, &[2]);

    assert_eq!(result, Err(Error::RingFull { ring: 1 }));
    fake.step();
    assert!(fake.log().iter().all(|access| !matches!(access, Access::Record { data, .. } if data == &[2])));
}

#[test]
fn mark_has_passed_when_the_device_has_finished_all_earlier_records() {
    let fake = Fake::new();
    let device = fake.open();
    let mut poster = device.poster(0).unwrap();
    let before = poster.position().unwrap();
    poster.try_post(0, 8, &[1]).unwrap();
    let behind = poster.position().unwrap();
    poster.try_post(0, 8, &[2]).unwrap();
    assert_eq!([before, behind].map(|position| poster.has_passed(position)), [true, false]);

    fake.step();

    assert!(poster.has_passed(behind));
    assert!(poster.has_passed(poster.position().unwrap()));
}

#[test]
fn post_to_a_stalled_ring_times_out() {
    let fake = Fake::new();
    let device = fake.open();
    let mut poster = device.poster(0).unwrap();
    poster.set_timeout(Duration::from_millis(5));
    fake.state().stalled = true;
    (0..RING_CELLS).for_each(|_| poster.try_post(0, 8, &[1]).unwrap());

    let error = poster.post(0, 8, &[2]).unwrap_err();

    assert!(matches!(error, Error::Timeout { what: "room in a posted-write ring", .. }), "{error}");
}

#[test]
fn post_to_a_stalled_ring_ends_when_cancelled() {
    let fake = Fake::new();
    let device = fake.open();
    let mut poster = device.poster(0).unwrap();
    let cancel = Cancel::new().unwrap();
    poster.set_cancel(Some(cancel.clone()));
    fake.state().stalled = true;
    (0..RING_CELLS).for_each(|_| poster.try_post(0, 8, &[1]).unwrap());
    cancel.cancel();

    assert_eq!(poster.post(0, 8, &[2]), Err(Error::Cancelled));
}

#[test]
fn post_to_a_stalled_ring_ends_when_the_server_hangs_up() {
    let fake = Fake::new();
    let device = fake.open();
    let shared = SharedPoster::new(device.poster(0).unwrap());
    fake.state().stalled = true;
    (0..RING_CELLS).for_each(|_| shared.post(0, 8, &[1]).unwrap());
    fake.state().gone = Some(GoneCause::HungUp);

    assert_eq!(shared.post(0, 8, &[2]), Err(Error::DeviceGone { cause: GoneCause::HungUp }));
}

#[test]
fn second_poster_of_a_ring_is_refused_until_the_first_is_dropped() {
    let fake = Fake::new();
    let device = fake.open();
    let bar = device.bar(0).unwrap();
    let first = device.poster(0).unwrap();

    let second = device.poster(0).map(drop);
    let shared = bar.posted_write(0, &[1]);
    drop(first);

    assert_eq!(second, Err(Error::RingTaken { ring: 0 }));
    assert_eq!(shared, Err(Error::RingTaken { ring: 0 }));
    bar.posted_write(0, &[1]).unwrap();
    device.poster(0).unwrap();
}

#[test]
fn poster_of_a_ring_the_device_does_not_have_is_refused() {
    let fake = Fake::new();
    let device = fake.open();

    let error = device.poster(2).map(drop).unwrap_err();

    assert_eq!(error, Error::NoSuch { what: "posted-write ring", index: 2, count: 2 });
}

#[test]
fn ring_continues_at_the_position_of_the_previous_device() {
    let fake = Fake::new();
    let first = fake.open();
    (0..RING_CELLS + 5).for_each(|_| first.bar(0).unwrap().posted_write(8, &[1]).unwrap());
    drop(first);

    let second = fake.open();
    fake.clear_log();
    second.bar(0).unwrap().posted_write(16, &[2]).unwrap();
    fake.step();

    assert_eq!(fake.log(), [record(16, &[2])]);
}

#[test]
fn poster_held_across_a_reset_starts_the_ring_again() {
    let fake = Fake::new();
    let device = fake.open();
    let mut poster = device.poster(0).unwrap();
    fake.state().stalled = true;
    (0..17).for_each(|_| poster.post(0, 8, &[1]).unwrap());

    device.reset().unwrap();
    fake.clear_log();
    poster.post(0, 8, &[2]).unwrap();
    fake.step();

    assert!(fake.log().ends_with(&[record(8, &[2])]));
    assert!(!fake.log().contains(&record(8, &[1])));
}

#[test]
fn posted_write_of_a_device_without_rings_is_a_confirmed_trapped_write() {
    let mut plain = capability();
    plain.ring_count = 0;
    let fake = Fake::with_config(config(Some(plain)), false);
    let device = fake.open();
    fake.clear_log();

    device.bar(0).unwrap().posted_write(8, &[1, 2, 3]).unwrap();
    device.poster(0).unwrap().post(0, 16, &[4]).unwrap();

    let write = |offset, data: &[u8]| Access::Write {
        region: 0,
        offset,
        data: data.to_vec(),
        mode: WriteMode::Confirmed,
    };
    assert_eq!(fake.log(), [write(8, &[1, 2, 3]), write(16, &[4])]);
}

#[test]
fn posted_write_out_of_its_bar_or_length_is_refused() {
    let fake = Fake::new();
    let device = fake.open();
    let mut poster = device.poster(0).unwrap();

    let beyond = poster.post(0, BAR0_SIZE - 2, &[0; 4]).unwrap_err();
    let out_of_range = poster.post(0, u64::MAX, &[0; 4]).unwrap_err();
    let missing = poster.post(7, 0, &[0; 4]).unwrap_err();
    let long = poster.post(0, 0, &[0; 513]).unwrap_err();
    let empty = poster.post(0, 0, &[]).unwrap_err();

    let out_of_bar =
        Error::OutOfRange { what: "BAR", index: 0, offset: BAR0_SIZE - 2, len: 4, size: BAR0_SIZE };
    assert_eq!(beyond, out_of_bar);
    assert!(matches!(out_of_range, Error::OutOfRange { .. }), "{out_of_range}");
    assert!(matches!(missing, Error::OutOfRange { index: 7, .. }), "{missing}");
    assert_eq!(long, Error::BadLength { len: 513, most: 512 });
    assert_eq!(empty, Error::BadLength { len: 0, most: 512 });
}

#[test]
fn four_threads_on_one_shared_poster_lose_nothing() {
    const RECORDS: u32 = 500;
    let fake = Fake::new();
    let device: Device = fake.open_with(OpenOptions { heartbeat: None, ..OpenOptions::default() });
    let poster = SharedPoster::new(device.poster(0).unwrap());
    fake.clear_log();

    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let poster = poster.clone();
            scope.spawn(move || {
                (0..RECORDS)
                    .for_each(|value| poster.post(0, u64::from(thread) * 4, &value.to_le_bytes()).unwrap());
            });
        }
    });
    device.flush().unwrap();

    for thread in 0..4 {
        let of_thread: Vec<_> = fake
            .log()
            .into_iter()
            .filter(|access| matches!(access, Access::Record { offset, .. } if *offset == thread * 4))
            .collect();
        let expected: Vec<_> = (0..RECORDS).map(|value| record(thread * 4, &value.to_le_bytes())).collect();
        assert_eq!(of_thread, expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn records_of_any_length_arrive_unchanged_and_in_order(
        writes in proptest::collection::vec((0u32..64, proptest::collection::vec(any::<u8>(), 1..512)), 1..60)
    ) {
        let fake = Fake::new();
        let device = fake.open();
        let mut poster = device.poster(0).unwrap();
        fake.clear_log();

        for (word, data) in &writes {
            poster.post(0, u64::from(word * 4), data).unwrap();
        }
        fake.step();

        let expected: Vec<_> = writes.iter().map(|(word, data)| record(word * 4, data)).collect();
        prop_assert_eq!(fake.log(), expected);
    }
}
