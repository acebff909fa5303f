//! Delays before a retry, and times that have to come.
//!
//! A NIC that can't continue asks for a step at a later time. A function has one timer, whose
//! requests end when it fires, for whatever reason. So a part that waits asks again in each step
//! until its time has come.

use nicforge_core::{context::Context, time::Nanos};

/// Delay before a retry when the fabric's packets were all in use, in nanoseconds. No event tells a
/// NIC that packets are free again.
pub const STARVED: u64 = 10_000;

/// Delay before a retry when client memory that is accessed by DMA messages was busy, in
/// nanoseconds: the machine has no room for an operation, or the client has not answered.
pub const MEMORY_BUSY: u64 = 20_000;

/// Asks for a step soon, because the fabric's packets were all in use.
#[inline]
pub fn when_starved(context: &mut Context<'_>) {
    context.wake_at(context.now().after(STARVED));
}

/// Returns whether `time` has come. If it has not, asks for a step at that time.
#[inline]
pub fn is_due(context: &mut Context<'_>, time: Nanos) -> bool {
    let is_due = context.now() >= time;
    if !is_due {
        context.wake_at(time);
    }
    is_due
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use nicforge_core::{
        device::{Counter, Device, Progress, Reset, Write},
        ids::{Address, AttachmentId, FunctionId},
        machine::{Machine, Next},
        spec::{AttachmentSpec, BarSpec, FunctionSpec, Identity},
    };

    use super::*;

    const TIME: Nanos = Nanos(1_000_000);

    /// A device that waits for [`TIME`] and records what each check of it found.
    #[derive(Clone, Default)]
    struct Waiting(Arc<Mutex<Vec<bool>>>);

    impl Device for Waiting {
        fn spec(&self) -> FunctionSpec {
            let identity =
                Identity { vendor: 1, device: 1, subsystem_vendor: 1, subsystem: 1, class: 0, revision: 0 };
            let attachments = vec![AttachmentSpec { name: "user0".to_owned(), group: 0 }];
            let mut bars = [const { None }; 6];
            bars[0] = Some(BarSpec::trapped(4096));
            FunctionSpec { bars, attachments, ..FunctionSpec::hub(identity) }
        }

        fn read(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &mut [u8]) {}

        fn write(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &[u8]) -> Write {
            Write::Accepted
        }

        fn step(&mut self, context: &mut Context<'_>, _: u32) -> Progress {
            self.0.lock().unwrap().push(is_due(context, TIME));
            Progress::Idle
        }

        fn reset(&mut self, _: &mut Context<'_>, _: Reset) {}

        fn counters(&self) -> Vec<Counter> {
            Vec::new()
        }
    }

    #[test]
    fn a_waiting_part_is_stepped_at_its_time_despite_other_steps() {
        let (mut machine, device) = (Machine::new(), Waiting::default());
        machine.add_function("waiting", Box::new(device.clone())).unwrap();

        for woken_at in [Nanos::ZERO, Nanos(400_000)] {
            machine.wake(FunctionId(0));
            assert_ne!(machine.step(woken_at, 1), Next::At(TIME), "the function is polled at first");
            assert_eq!(machine.step(woken_at.after(200_000), 1), Next::At(TIME));
        }
        let checks_before = device.0.lock().unwrap().len();
        assert!(device.0.lock().unwrap().iter().all(|due| !due));

        machine.step(TIME, 1);
        assert!(device.0.lock().unwrap()[checks_before..].iter().all(|due| *due));
        assert!(device.0.lock().unwrap().len() > checks_before);
    }
}
