//! Tests of clients that go cold while their function stays hot.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use crate::common::*;
use nicforge_core::{
    ids::AttachmentId,
    machine::{Machine, Next},
    spec::{AttachmentSpec, FunctionSpec},
    time::Nanos,
};
use nicforge_hwi::attachment::control;

/// Time without records after which a client goes cold, in nanoseconds: the shortest one.
const COOL_AFTER: u64 = 50_000;
/// The client that goes cold. Client A keeps the function hot.
const IDLE: AttachmentId = AttachmentId(5);

/// Returns a description with this number of attachments.
fn spec_of(attachments: u16) -> FunctionSpec {
    let mut many = spec();
    many.attachments =
        (0..attachments).map(|index| AttachmentSpec { name: format!("a{index}"), group: 0 }).collect();
    many
}

/// A machine with one function, all of whose attachments have clients.
struct Crowd {
    machine: Machine,
    probe: Probe,
    /// The ring of client A.
    busy: Ring,
    now: u64,
}

impl Crowd {
    fn new(attachments: u16) -> Self {
        let mut machine = Machine::new();
        machine.set_cool_after(COOL_AFTER);
        let (_, probe) = add(&mut machine, "node0", spec_of(attachments));
        for index in 0..attachments {
            attach(&mut machine, AttachmentId(index));
        }

        let busy = Ring::new(&machine, F, A);
        Self { machine, probe, busy, now: 0 }
    }

    /// Steps the machine for a time, while client A posts.
    fn run(&mut self, nanoseconds: u64) {
        let end = self.now + nanoseconds;
        while self.now < end {
            self.busy.push_number(1);
            self.step();
        }
        numbers(&self.probe);
    }

    fn step(&mut self) -> Next {
        self.now += COOL_AFTER / 10;
        self.machine.step(Nanos(self.now), 64)
    }

    fn is_asleep(&self, attachment_id: AttachmentId) -> bool {
        is_sleeping(&memory(&self.machine, attachment_id, 2))
    }

    /// Returns the numbers that the device has received besides those of client A.
    fn others(&self) -> Vec<u32> {
        numbers(&self.probe).into_iter().filter(|number| *number != 1).collect()
    }
}

#[test]
fn idle_clients_of_a_busy_function_go_cold_where_they_are_many() {
    let mut crowd = Crowd::new(12);
    let mut ring = Ring::new(&crowd.machine, F, IDLE);

    crowd.run(3 * COOL_AFTER);
    let asleep: Vec<_> = (0..12).map(|index| crowd.is_asleep(AttachmentId(index))).collect();
    ring.push_number(7);
    crowd.busy.push_number(1);
    crowd.step();

    assert_eq!(asleep, [vec![false], vec![true; 11]].concat());
    assert_eq!((crowd.others(), crowd.machine.hot_functions()), (vec![], 1));
}

#[test]
fn a_wake_makes_one_client_hot_and_leaves_the_others_cold() {
    let mut crowd = Crowd::new(12);
    let mut ring = Ring::new(&crowd.machine, F, IDLE);
    crowd.run(3 * COOL_AFTER);

    ring.push_number(7);
    write_control(&mut crowd.machine, IDLE, control::WAKE, 1);
    crowd.step();
    ring.push_number(8);
    crowd.step();

    assert_eq!(crowd.others(), [7, 8]);
    assert_eq!((crowd.is_asleep(IDLE), crowd.is_asleep(B)), (false, true));
}

#[test]
fn few_clients_stay_hot_with_their_function() {
    let mut crowd = Crowd::new(8);
    let mut ring = Ring::new(&crowd.machine, F, IDLE);

    crowd.run(20 * COOL_AFTER);
    ring.push_number(7);
    crowd.step();

    assert_eq!((crowd.others(), crowd.is_asleep(IDLE)), (vec![7], false));
}

#[test]
fn rescan_finds_the_records_of_a_cold_client() {
    let mut crowd = Crowd::new(12);
    let mut ring = Ring::new(&crowd.machine, F, IDLE);
    crowd.run(3 * COOL_AFTER);
    ring.push_number(7);

    crowd.machine.rescan();
    crowd.step();

    assert_eq!(crowd.others(), [7]);
    assert_eq!((crowd.is_asleep(IDLE), crowd.is_asleep(B)), (false, true));
}

#[test]
fn the_last_look_after_the_barrier_finds_a_record_of_a_cooling_client() {
    let mut crowd = Crowd::new(12);
    // The turn of this function comes after that in which the first one finds its clients idle.
    let (other, late) = add(&mut crowd.machine, "node1", spec());
    let mut ring = Ring::new(&crowd.machine, F, IDLE);
    crowd.step();

    late.queue_action(move |_| ring.push_number(7));
    crowd.now = 5 * COOL_AFTER;
    crowd.busy.push_number(1);
    crowd.machine.wake(other);
    let next = crowd.step();
    let asleep = (crowd.is_asleep(IDLE), crowd.is_asleep(B));
    crowd.step();

    assert_eq!((next, asleep), (Next::Now, (false, true)));
    assert_eq!(crowd.others(), [7]);
}

#[test]
fn a_client_that_is_woken_early_stays_hot_for_longer() {
    let mut crowd = Crowd::new(12);
    crowd.run(3 * COOL_AFTER);

    let hot_times = [0; 4].map(|_| {
        write_control(&mut crowd.machine, IDLE, control::WAKE, 1);
        // Client B and others are hot, so that the function has many rings.
        for index in 1..12 {
            write_control(&mut crowd.machine, AttachmentId(index), control::WAKE, 1);
        }
        let start = crowd.now;
        while !crowd.is_asleep(IDLE) {
            crowd.run(COOL_AFTER / 10);
        }
        crowd.now - start
    });

    assert!(hot_times.windows(2).all(|times| times[1] > times[0] * 3 / 2), "{hot_times:?}");
}

#[test]
fn a_function_that_wakes_leaves_its_cold_clients_asleep() {
    let mut crowd = Crowd::new(12);
    crowd.run(3 * COOL_AFTER);
    while crowd.step() != Next::At(Nanos::NEVER) {}
    let cold = (crowd.is_asleep(A), crowd.is_asleep(IDLE));

    crowd.machine.wake(F);

    assert_eq!(cold, (true, true));
    assert_eq!((crowd.is_asleep(A), crowd.is_asleep(IDLE)), (false, true));
}
