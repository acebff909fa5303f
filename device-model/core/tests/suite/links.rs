//! Tests of the report of a link's changes to the devices at its ends.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::{Arc, Mutex};

use crate::common::*;
use nicforge_core::{
    context::Context,
    device::{Device, Progress, Reset, Write},
    fabric::{LinkId, LinkSpec},
    ids::{Address, AttachmentId, FunctionId},
    machine::Machine,
    spec::FunctionSpec,
    time::Nanos,
};

/// A call that the device received.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Report {
    Link(u8, bool),
    Packet(u64),
}

/// A device that notes changes of its links and sends a packet when one comes up.
#[derive(Clone, Default)]
struct Watcher(Arc<Mutex<Vec<Report>>>);

impl Watcher {
    /// Returns the calls received since the last call of this method.
    fn take_reports(&self) -> Vec<Report> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Device for Watcher {
    fn spec(&self) -> FunctionSpec {
        spec()
    }

    fn read(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &mut [u8]) {}

    fn write(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &[u8]) -> Write {
        Write::Accepted
    }

    fn reset(&mut self, _: &mut Context<'_>, _: Reset) {}

    fn link_changed(&mut self, context: &mut Context<'_>, port: u8, up: bool) {
        self.0.lock().unwrap().push(Report::Link(port, up));
        let number = context.function().0.into();
        let mut ports = context.ports();
        assert_eq!(ports.is_up(port), up);
        if up {
            let mut packet = ports.new_packet(0).unwrap();
            packet.header = number;
            ports.send(port, 0, packet).unwrap();
        }
    }

    fn step(&mut self, context: &mut Context<'_>, _: u32) -> Progress {
        let mut ports = context.ports();
        for port in 0..ports.count() {
            while let Some(packet) = ports.take(port, 0) {
                self.0.lock().unwrap().push(Report::Packet(packet.header));
                ports.recycle(packet);
            }
        }
        Progress::Idle
    }
}

/// Returns a machine with two functions and `links` links between them, which have settled.
fn two_functions(links: u8) -> (Machine, [Watcher; 2]) {
    let watchers = [Watcher::default(), Watcher::default()];
    let mut machine = Machine::new();
    let functions = [0, 1].map(|index: usize| {
        machine.add_function(&format!("node{index}"), Box::new(watchers[index].clone())).unwrap()
    });
    for port in 0..links {
        machine.fabric().connect((functions[0], port), (functions[1], port), LinkSpec::default()).unwrap();
    }
    (machine, watchers)
}

#[test]
fn new_links_are_reported_in_the_first_step() {
    let (mut machine, watchers) = two_functions(1);

    assert_eq!(watchers[0].take_reports(), []);
    machine.step(Nanos(0), 64);

    assert_eq!(watchers[0].take_reports(), [Report::Link(0, true), Report::Packet(1)]);
    assert_eq!(watchers[1].take_reports(), [Report::Link(0, true), Report::Packet(0)]);
}

#[test]
fn changes_of_a_link_are_reported_to_both_ends_hot_or_cold() {
    let (mut machine, watchers) = two_functions(2);
    let mut now = 0;
    for cold in [false, true] {
        if cold {
            now = go_cold(&mut machine, now);
        } else {
            step_until_idle(&mut machine, now);
        }
        watchers.iter().for_each(|watcher| drop(watcher.take_reports()));

        machine.fabric().set_link_up(LinkId(1), false).unwrap();
        machine.step(Nanos(now), 64);
        let down = watchers.each_ref().map(Watcher::take_reports);
        machine.fabric().set_link_up(LinkId(1), true).unwrap();
        machine.step(Nanos(now), 64);
        let up = watchers.each_ref().map(Watcher::take_reports);

        assert_eq!(down, [vec![Report::Link(1, false)], vec![Report::Link(1, false)]]);
        assert_eq!(up[0], [Report::Link(1, true), Report::Packet(1)]);
        assert_eq!(up[1], [Report::Link(1, true), Report::Packet(0)]);
    }
}

#[test]
fn changes_between_two_steps_are_one_report_of_the_last_state() {
    let (mut machine, watchers) = two_functions(1);
    step_until_idle(&mut machine, 0);
    watchers.iter().for_each(|watcher| drop(watcher.take_reports()));

    for up in [false, true, false] {
        machine.fabric().set_link_up(LinkId(0), up).unwrap();
    }
    machine.step(Nanos(0), 64);
    machine.fabric().set_link_up(LinkId(0), false).unwrap();
    machine.step(Nanos(0), 64);

    assert_eq!(watchers[0].take_reports(), [Report::Link(0, false)]);
    assert_eq!(watchers[1].take_reports(), [Report::Link(0, false)]);
}

#[test]
fn resets_change_no_link() {
    let (mut machine, watchers) = two_functions(1);
    step_until_idle(&mut machine, 0);
    watchers.iter().for_each(|watcher| drop(watcher.take_reports()));

    machine.reset_function(FunctionId(0)).unwrap();
    step_until_idle(&mut machine, 0);

    assert_eq!(watchers.each_ref().map(Watcher::take_reports), [vec![], vec![]]);
}
