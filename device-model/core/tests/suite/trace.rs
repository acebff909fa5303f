//! Tests of the trace: what a sink receives, and in which order.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::sync::{Arc, Mutex};

use super::dma::in_step;
use crate::common::*;
use nicforge_core::{
    device::Ended,
    fabric::{Direction, LinkId, LinkSpec},
    ids::{Address, AttachmentId, DmaToken, FunctionId},
    interrupt::Raised,
    machine::Machine,
    time::Nanos,
    trace::{Crossing, Event, TraceSink},
};

/// An event as text, with its attachment.
type Shown = (Option<AttachmentId>, String);

/// The events of a trace.
#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<Shown>>>);

impl TraceSink for Events {
    fn event(&mut self, _: Nanos, _: FunctionId, attachment: Option<AttachmentId>, event: &Event<'_>) {
        self.0.lock().unwrap().push((attachment, format!("{event:?}")));
    }
}

impl Events {
    /// Takes all events, and returns those of an attachment of any function, or those of no
    /// attachment.
    fn take(&self, attachment: Option<AttachmentId>) -> Vec<String> {
        let events = std::mem::take(&mut *self.0.lock().unwrap());
        events.into_iter().filter(|event| event.0 == attachment).map(|event| event.1).collect()
    }

    /// Takes all events, and returns those of an attachment of any function.
    fn of_attachment(&self, attachment_id: AttachmentId) -> Vec<String> {
        self.take(Some(attachment_id))
    }
}

#[test]
fn trace_shows_events_at_the_boundary() {
    let (mut machine, probe) = machine();
    let events = Events::default();
    machine.set_trace(Some(Box::new(events.clone())));
    attach(&mut machine, A);
    map_local(&mut machine, A, 0x1000, 0x1000);

    let value = read::<4>(&mut machine, A, 0, 0x10);
    write(&mut machine, A, 0, 0x14, &[1; 2]);
    Ring::new(&machine, F, A).push_number(1);
    probe.queue_action(|context| {
        context.dma_read(A, 0x1000, 4, DmaToken(0)).unwrap();
        context.dma_write(A, 0x1004, &[1]).unwrap();
        context.interrupt(A, 1);
        for asserted in [true, true, false] {
            context.set_intx(A, asserted);
        }
        context.trace(Some(A), "descriptor", &[("length", 64)]);
    });

    step_until_idle(&mut machine, 0);
    machine.reset_attachment(F, A).unwrap();
    machine.detach(F, A, Ended::Closed).unwrap();

    let at = |offset| Address { bar: 0, offset };
    let expected = [
        Event::Attached,
        Event::Read { at: at(0x10), data: &value },
        Event::Write { at: at(0x14), data: &[1; 2] },
        Event::Posted { at: at(0x10), data: &1_u32.to_le_bytes() },
        Event::DmaRead { iova: 0x1000, length: 4, outcome: Ok(&[0; 4]) },
        Event::DmaWrite { iova: 0x1004, data: &[1], outcome: Ok(()) },
        Event::Interrupt { vector: 1, raised: Raised::Pending },
        Event::Intx { asserted: true },
        Event::Intx { asserted: false },
        Event::Device { name: "descriptor", values: &[("length", 64)] },
        Event::Reset,
        Event::Detached,
    ];

    assert_eq!(events.of_attachment(A), expected.map(|event| format!("{event:?}")));
}

#[test]
fn trace_shows_a_stall_once_and_nothing_of_dma_that_was_not_started() {
    let (mut machine, probe) = attached();
    map_remote(&mut machine, A, 0x1000, 0x1000);
    Ring::new(&machine, F, A).push_number(1);
    let events = Events::default();
    machine.set_trace(Some(Box::new(events.clone())));
    probe.script().stalled.push(A);
    probe.queue_action(|context| while context.dma_write(A, 0x1000, &[1]).is_ok() {});

    for _ in 0..10 {
        machine.step(Nanos(0), 64);
    }

    let traced = events.of_attachment(A);
    let stalls = traced.iter().filter(|event| event.starts_with("Stalled")).count();
    let writes = traced.iter().filter(|event| event.starts_with("DmaWrite")).count();

    assert_eq!((stalls, writes), (1, nicforge_core::context::MAX_REMOTE));
}

/// A write that the device refuses shows once, and so does its later success.
#[test]
fn trace_shows_when_a_refused_write_is_carried_out() {
    let (mut machine, probe) = attached();
    let events = Events::default();
    machine.set_trace(Some(Box::new(events.clone())));
    Ring::new(&machine, F, A).push_number(7);
    probe.script().stalled.push(A);
    for _ in 0..5 {
        machine.step(Nanos(0), 64);
    }
    probe.script().stalled.clear();
    machine.wake(F);
    step_until_idle(&mut machine, 0);

    let at = Address { bar: 0, offset: 0x10 };
    let expected =
        [Event::Posted { at, data: &7_u32.to_le_bytes() }, Event::Stalled { at }, Event::Resumed { at }];
    assert_eq!(events.of_attachment(A), expected.map(|event| format!("{event:?}")));
}

/// Sends a packet of 8 bytes from the first function of a machine in the next step.
fn send(machine: &mut Machine, probe: &Probe, number: u64) {
    in_step(machine, probe, move |context| {
        let mut ports = context.ports();
        let mut packet = ports.new_packet(8).unwrap();
        packet.bytes_mut().copy_from_slice(&number.to_le_bytes());
        packet.header = number;
        ports.send(0, 0, packet).unwrap();
    });
}

#[test]
fn trace_shows_the_packets_of_tapped_links_alone() {
    let (mut machine, probe) = attached();
    let (other, _) = add(&mut machine, "node1", spec());
    let spec = LinkSpec { delay: 100, ..LinkSpec::default() };
    let link = machine.fabric().connect((F, 0), (other, 0), spec).unwrap();
    let events = Events::default();
    machine.set_trace(Some(Box::new(events.clone())));

    send(&mut machine, &probe, 1);
    machine.fabric().set_taps(Some(4));
    send(&mut machine, &probe, 2);
    machine.fabric().set_tap(link, Direction::Forward, None).unwrap();
    send(&mut machine, &probe, 3);

    let crossing = Crossing {
        link: LinkId(0),
        direction: Direction::Forward,
        channel: 0,
        packet: 1,
        header: 2,
        arrives: Nanos(100),
        repeats: 0,
        length: 8,
        data: &[2, 0, 0, 0],
    };
    assert_eq!(events.take(None), [format!("{:?}", Event::Packet(crossing))]);
}

#[test]
fn sink_can_be_taken_back() {
    let (mut machine, _) = machine();
    let events = Events::default();
    machine.set_trace(Some(Box::new(events.clone())));
    attach(&mut machine, A);

    assert_eq!(machine.trace_sink::<Events>().unwrap().of_attachment(A).len(), 1);
    assert!(machine.set_trace(None).is_some());
    assert!(machine.trace_sink::<Events>().is_none());
}
