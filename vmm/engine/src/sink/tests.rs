use std::os::fd::OwnedFd;

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::*;
use crate::watchdog::{BlockedWriteCheck, TIMEOUT};

fn eventfd() -> (EventFd, OwnedFd) {
    let fd = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC).unwrap();
    let copy = fd.as_fd().try_clone_to_owned().unwrap();
    (fd, copy)
}

fn sink(copy: OwnedFd, eventfds: &Arc<EventFds>) -> Arc<EventFdSink> {
    EventFdSink::bind(copy.into(), &Arc::default(), eventfds).unwrap()
}

#[test]
fn a_blocked_write_is_ended_and_its_client_given_up() {
    sigurg::set_handler().unwrap();
    let eventfds = Arc::new(EventFds::default());
    let (full, copy) = eventfd();
    let blocked = sink(copy, &eventfds);
    let owner = Arc::clone(&blocked.owner);
    let (same_client, copy) = eventfd();
    let sibling = EventFdSink::bind(copy.into(), &owner, &eventfds).unwrap();
    let (other_client, copy) = eventfd();
    let of_another_client = sink(copy, &eventfds);
    fcntl(&full, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    full.write(u64::MAX - 1).unwrap();

    let mut blocked_write = BlockedWriteCheck::default();
    let writer = std::thread::spawn(move || blocked.signal());
    let start = Instant::now();
    let deadline = start + Duration::from_secs(20);
    while eventfds.write_in_progress().is_none() {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }

    blocked_write.check(&eventfds, start);
    assert_eq!(eventfds.given_up_count(), 0);
    // The thread may not be asleep yet.
    while !writer.is_finished() {
        assert!(Instant::now() < deadline);
        blocked_write.check(&eventfds, start + TIMEOUT);
        std::thread::yield_now();
    }
    writer.join().unwrap();

    assert_eq!(eventfds.given_up_count(), 1);
    assert_eq!(full.read(), Ok(u64::MAX - 1));
    sibling.signal();
    of_another_client.signal();
    assert!(same_client.read().is_err());
    assert_eq!(other_client.read(), Ok(1));
    assert_eq!(EventFdSink::bind(eventfd().1.into(), &owner, &eventfds).err(), Some(Errno::EPERM));
}

#[test]
fn a_signal_to_a_full_eventfd_returns_and_leaves_its_count() {
    let eventfds = Arc::new(EventFds::default());
    let (full, copy) = eventfd();
    let sink = sink(copy, &eventfds);
    full.write(u64::MAX - 1).unwrap();

    sink.signal();

    assert_eq!(full.read(), Ok(u64::MAX - 1));
}

/// Returns the thread's time if a write to the eventfd would be measured by it now.
fn account_for(sink: &EventFdSink) -> Option<ThreadTime> {
    sink.owner.is_suspected(Instant::now()).then(|| ThreadTime::now().unwrap())
}

/// Ends a write that took `length` by the clock and by the thread's account.
fn end_long_write(sink: &EventFdSink, length: Duration) {
    let account = account_for(sink);
    let start = Instant::now();
    let deadline = start + Duration::from_secs(20);
    while start.elapsed() < length || account.is_some_and(|account| !account.confirms_call_of(length)) {
        assert!(Instant::now() < deadline);
    }
    sink.check_length(start, account);
}

/// Ends a write that took no time.
fn end_short_write(sink: &EventFdSink) {
    sink.check_length(Instant::now() + Duration::from_secs(60), account_for(sink));
}

#[test]
fn eventfd_that_is_slow_twice_in_a_row_gives_its_client_up() {
    let sink = sink(eventfd().1, &Arc::new(EventFds::default()));
    end_long_write(&sink, LONG_CALL);
    assert!(!sink.owner.is_given_up());

    end_long_write(&sink, LONG_CALL);
    assert!(sink.owner.is_given_up());
}

#[test]
fn eventfd_that_is_slow_now_and_then_is_tolerated() {
    let sink = sink(eventfd().1, &Arc::new(EventFds::default()));
    // A loaded host makes the writes longer. The first one is not charged, because its client
    // is not suspected yet, and two more never overspend the budget.
    for _ in 0..3 {
        end_long_write(&sink, LONG_CALL);
        end_short_write(&sink);
    }
    assert!(!sink.owner.is_given_up());
}

#[test]
fn many_slow_eventfds_of_one_client_give_it_up() {
    let (owner, eventfds) = (Arc::new(EventFdOwner::default()), Arc::new(EventFds::default()));
    let count = 2 + CALL_BUDGET.as_nanos() / LONG_CALL.as_nanos() * 2;
    let given_up = (0..count).any(|_| {
        let sink = EventFdSink::bind(eventfd().1.into(), &owner, &eventfds);
        sink.map_or(true, |sink| {
            end_long_write(&sink, LONG_CALL * 2);
            owner.is_given_up()
        })
    });
    assert!(given_up);
}

#[test]
fn many_writes_just_below_the_limit_give_their_client_up() {
    let sink = sink(eventfd().1, &Arc::new(EventFds::default()));
    let given_up = (0..60).any(|_| {
        end_long_write(&sink, LONG_CALL * 9 / 10);
        sink.owner.is_given_up()
    });
    assert!(given_up);
}

#[test]
fn writes_below_a_raised_limit_cost_their_part_of_it() {
    let owner = Arc::new(EventFdOwner::new(LONG_CALL * 40));
    let sink = EventFdSink::bind(eventfd().1.into(), &owner, &Arc::default()).unwrap();
    for _ in 0..40 {
        end_long_write(&sink, LONG_CALL);
    }
    assert!(!owner.is_given_up());
}

#[test]
fn suspicion_after_a_slow_write_ends_and_after_a_long_one_stays() {
    let (owner, now) = (EventFdOwner::default(), Instant::now());
    owner.suspect(LONG_CALL / 2, now);
    assert!(owner.is_suspected(now + SLOW_TIME / 2) && !owner.is_suspected(now + SLOW_TIME * 2));

    owner.suspect(LONG_CALL, now);
    owner.suspect(LONG_CALL / 2, now);
    assert!(owner.is_suspected(now + SLOW_TIME * 1000));
}

#[test]
fn a_dropped_sink_is_removed() {
    let eventfds = Arc::new(EventFds::default());
    let sink = sink(eventfd().1, &eventfds);
    assert_eq!(eventfds.sinks().len(), 1);

    drop(sink);

    assert_eq!(eventfds.sinks().len(), 0);
}
