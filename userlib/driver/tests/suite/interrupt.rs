//! Interrupts whose sources have no descriptors, as in a machine in this process.

use std::{sync::Arc, time::Duration};

use crate::common::{Counter, Fake, VECTORS};
use nicforge_driver::{Cancel, Deadline, Error, GoneCause, IRQ_INTX, IRQ_MSIX, OpenOptions};

const LONG: Duration = Duration::from_secs(20);

fn source(fake: &Fake, vector: u32) -> Arc<Counter> {
    fake.state().bound[&(IRQ_MSIX, vector)].clone()
}

#[test]
fn wait_returns_the_number_of_interrupts_since_the_last() {
    let fake = Fake::new();
    let device = fake.open();
    let interrupt = device.interrupt(1).unwrap();
    (0..3).for_each(|_| source(&fake, 1).fire());

    let count = interrupt.wait(Deadline::after(LONG), None).unwrap();

    assert_eq!((count, interrupt.take()), (3, 0));
}

#[test]
fn wait_without_interrupt_times_out() {
    let device = Fake::new().open();
    let interrupt = device.interrupt(0).unwrap();

    let error = interrupt.wait(Deadline::after(Duration::from_millis(2)), None).unwrap_err();

    assert!(matches!(error, Error::Timeout { what: "an interrupt", .. }), "{error}");
}

#[test]
fn blocked_wait_is_woken_by_an_interrupt() {
    let fake = Fake::new();
    let device =
        fake.open_with(OpenOptions { spin: Duration::ZERO, heartbeat: None, ..OpenOptions::default() });
    let interrupt = device.interrupt(2).unwrap();
    let source = source(&fake, 2);

    let count = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| interrupt.wait(Deadline::after(LONG), None));
        while !source.is_waited_for() {
            std::thread::yield_now();
        }
        source.fire();
        waiter.join().unwrap()
    });

    assert_eq!(count, Ok(1));
}

#[test]
fn blocked_wait_ends_by_cancellation_or_device_loss() {
    let fake = Fake::new();
    let device = fake.open();
    let interrupt = device.interrupt(0).unwrap();
    let cancel = Cancel::new().unwrap();
    cancel.cancel();

    let cancelled = interrupt.wait(Deadline::never(), Some(&cancel));
    fake.state().gone = Some(GoneCause::HungUp);
    let device_gone = interrupt.wait(Deadline::never(), None);

    assert_eq!(cancelled, Err(Error::Cancelled));
    assert_eq!(device_gone, Err(Error::DeviceGone { cause: GoneCause::HungUp }));
}

#[test]
fn interrupt_at_the_end_of_the_device_is_reported_first() {
    let fake = Fake::new();
    let device =
        fake.open_with(OpenOptions { spin: Duration::ZERO, heartbeat: None, ..OpenOptions::default() });
    let interrupt = device.interrupt(2).unwrap();
    let last = source(&fake, 2);
    fake.state().last = Some(last);

    let first = interrupt.wait(Deadline::after(LONG), None);
    let second = interrupt.wait(Deadline::after(LONG), None);

    assert_eq!(first, Ok(1));
    assert_eq!(second, Err(Error::DeviceGone { cause: GoneCause::HungUp }));
}

#[test]
fn wait_any_names_the_vector_that_fired() {
    let fake = Fake::new();
    let device = fake.open();
    let interrupts: Vec<_> = (0..VECTORS).map(|vector| device.interrupt(vector).unwrap()).collect();
    let list: Vec<_> = interrupts.iter().collect();
    source(&fake, 3).fire();

    let fired = device.wait_any(&list, Deadline::after(LONG), None);
    let timed_out = device.wait_any(&list, Deadline::after(Duration::from_millis(2)), None);

    assert_eq!(fired, Ok((3, 1)));
    assert!(matches!(timed_out, Err(Error::Timeout { .. })));
}

#[test]
fn vector_that_does_not_exist_is_refused() {
    let device = Fake::new().open();

    let error = device.interrupt(VECTORS).unwrap_err();

    assert_eq!(error, Error::NoSuch { what: "interrupt vector", index: VECTORS, count: VECTORS });
}

#[test]
fn second_interrupt_of_a_vector_is_the_same_one() {
    let fake = Fake::new();
    let device = fake.open();
    let (first, second) = (device.interrupt(0).unwrap(), device.interrupt(0).unwrap());
    source(&fake, 0).fire();

    assert_eq!((first.take(), second.take()), (1, 0));
}

#[test]
fn last_interrupt_dropped_unbinds_its_kind() {
    let fake = Fake::new();
    let device = fake.open();
    let (first, second, line) =
        (device.interrupt(0).unwrap(), device.interrupt(1).unwrap(), device.intx().unwrap());

    drop(first);
    let after_first = fake.state().bound.len();
    drop(second);

    assert_eq!(after_first, 3);
    assert_eq!(fake.state().bound.keys().copied().collect::<Vec<_>>(), [(IRQ_INTX, 0)]);
    drop(line);
    assert!(fake.state().bound.is_empty());
}

#[test]
fn interrupt_stays_bound_over_a_reset() {
    let fake = Fake::new();
    let device = fake.open();
    let interrupt = device.interrupt(1).unwrap();

    device.reset().unwrap();
    source(&fake, 1).fire();

    assert_eq!(interrupt.wait(Deadline::after(LONG), None), Ok(1));
}

#[test]
fn unmask_reaches_the_line_and_does_nothing_for_vectors_that_cannot_be_masked() {
    let fake = Fake::new();
    let device = fake.open();
    let (line, vector) = (device.intx().unwrap(), device.interrupt(0).unwrap());

    line.unmask().unwrap();
    vector.unmask().unwrap();

    assert!(line.is_intx());
    assert_eq!(fake.state().unmasked, [(IRQ_INTX, 0, 1)]);
    assert_eq!(vector.mask(), Err(Error::Unsupported { what: "masking this kind of interrupt" }));
}
