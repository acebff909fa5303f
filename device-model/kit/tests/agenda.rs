//! An agenda in a device of a machine: each timer causes a step at its time.
#![allow(clippy::unwrap_used, reason = "a failure to set up is a failed test")]

use std::sync::{Arc, Mutex};

use nicforge_core::{
    context::Context,
    device::{Device, Progress, Reset, Write},
    ids::{Address, AttachmentId},
    machine::{Machine, Next},
    spec::{AttachmentSpec, FunctionSpec, Identity, NicSizes},
    time::Nanos,
};
use nicforge_kit::Agenda;

const ONCE: usize = 0;
const PERIODIC: usize = 1;
const CANCELLED: usize = 2;
const PERIOD: u64 = 1_000_000;

/// The timers that came, each with its time.
type Log = Arc<Mutex<Vec<(u64, usize)>>>;

struct Clock {
    agenda: Agenda<3>,
    log: Log,
}

impl Device for Clock {
    fn spec(&self) -> FunctionSpec {
        let identity = Identity {
            vendor: 0x1efc,
            device: 1,
            subsystem_vendor: 0,
            subsystem: 0,
            class: 0x02_80_00,
            revision: 1,
        };
        let attachments = vec![AttachmentSpec { name: "user0".to_owned(), group: 0 }];
        FunctionSpec::nic(
            identity,
            attachments,
            NicSizes { register_bytes: 0x1000, vectors: 1, ring_cells: 64, ..NicSizes::default() },
        )
    }

    fn read(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &mut [u8]) {}

    fn write(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &[u8]) -> Write {
        Write::Accepted
    }

    fn reset(&mut self, _: &mut Context<'_>, _: Reset) {}

    fn step(&mut self, context: &mut Context<'_>, _: u32) -> Progress {
        while let Some(timer) = self.agenda.take_due(context.now()) {
            self.log.lock().unwrap().push((context.now().0, timer));
            if timer == PERIODIC {
                self.agenda.set(PERIODIC, context.now() + PERIOD);
            }
        }
        self.agenda.cancel(CANCELLED);
        self.agenda.request_step(context);
        Progress::Idle
    }
}

#[test]
fn each_timer_of_a_device_causes_a_step_at_its_time() {
    let log = Log::default();
    let mut agenda = Agenda::new();
    agenda.set(ONCE, Nanos(2_500_000));
    agenda.set(PERIODIC, Nanos(PERIOD));
    agenda.set(CANCELLED, Nanos(3_500_000));
    let mut machine = Machine::new();
    let function = machine.add_function("clock", Box::new(Clock { agenda, log: log.clone() })).unwrap();
    machine.set_cool_after(0);
    machine.wake(function);

    // The time jumps from one timer of the machine to the next.
    let mut now = 0;
    while now < 4 * PERIOD {
        match machine.step(Nanos(now), 64) {
            Next::At(time) => now = time.0,
            Next::Now | Next::Poll => now += 1,
        }
    }

    let expected = [(PERIOD, PERIODIC), (2 * PERIOD, PERIODIC), (2_500_000, ONCE), (3 * PERIOD, PERIODIC)];
    assert_eq!(*log.lock().unwrap(), expected);
}
