//! Tests of the log lines of errors, drops and refusals.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use crate::common::*;
use nicforge_core::{
    dma::DmaError,
    ids::Address,
    machine::Machine,
    time::Nanos,
    warning::{MAX_LINES, Warning},
};
use nicforge_test_kit::LogLines;

/// A second of the machine's time.
const SECOND: u64 = 1_000_000_000;
/// The rule that the tests' device names.
const RULE: &str = "a command is even";

/// Has the device warn `count` times in one step at `now`.
fn warn(machine: &mut Machine, probe: &Probe, now: u64, count: u32) {
    probe.queue_action(move |context| {
        for number in 0..count {
            context.warn(A, Warning::refused(&RULE).value(number.into()));
        }
    });
    machine.wake(F);
    machine.step(Nanos(now), 64);
}

#[test]
fn line_names_node_attachment_register_value_and_rule() {
    let (mut machine, probe) = attached();
    let at = Address { bar: 0, offset: 0x18 };
    probe.queue_action(move |context| {
        context.warn(A, Warning::refused(&RULE).register(at).written(&[7, 1]));
        context.warn(None, Warning::dropped(&"no client has the target"));
    });

    let lines = LogLines::of(|| write(&mut machine, A, 0, 0x18, &[7, 1]));

    let expected = [
        "refused node=node0 attachment=a register=BAR0+0x18 value=0x107 rule=a command is even",
        "dropped node=node0 rule=no client has the target",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn function_has_ten_lines_a_second_and_then_one_that_counts_the_others() {
    let (mut machine, probe) = attached();

    let first = LogLines::of(|| warn(&mut machine, &probe, 5, MAX_LINES + 15));
    let later = LogLines::of(|| warn(&mut machine, &probe, SECOND, 2));
    // The heartbeat reports what is missing, although the device is quiet by now.
    let quiet = LogLines::of(|| {
        machine.step(Nanos(SECOND + 60_000_000), 64);
    });
    let next = LogLines::of(|| warn(&mut machine, &probe, SECOND + 60_000_001, 1));

    assert_eq!(first.len(), MAX_LINES as usize);
    assert!(first.iter().all(|line| line.starts_with("refused node=node0 attachment=a value=")));
    assert_eq!(later, [""; 0]);
    assert_eq!(quiet, ["more warnings came than the log takes in a second node=node0 suppressed=17"]);
    assert_eq!(next, ["refused node=node0 attachment=a value=0x0 rule=a command is even"]);
}

#[test]
fn functions_have_lines_of_their_own() {
    let (mut machine, probe) = attached();
    let (other, other_probe) = add(&mut machine, "node1", spec());
    other_probe.queue_action(|context| context.warn(None, Warning::failed(&RULE)));

    let lines = LogLines::of(|| {
        machine.wake(other);
        warn(&mut machine, &probe, 0, 2 * MAX_LINES);
    });

    assert_eq!(lines.len(), MAX_LINES as usize + 1);
    assert!(lines.contains(&"failed node=node1 rule=a command is even".to_owned()));
}

#[test]
fn end_of_a_machine_says_how_many_lines_are_missing() {
    let (mut machine, probe) = attached();
    let lines = LogLines::of(|| {
        warn(&mut machine, &probe, 0, MAX_LINES + 1);
        drop(machine);
    });
    assert!(lines.last().unwrap().ends_with("node=node0 suppressed=1"), "{lines:?}");
}

#[test]
fn warnings_that_no_log_takes_are_not_counted() {
    let (mut machine, probe) = attached();
    warn(&mut machine, &probe, 0, 2 * MAX_LINES);
    let lines = LogLines::of(|| warn(&mut machine, &probe, 1, 1));
    assert_eq!(lines.len(), 1);
}

#[test]
fn refused_accesses_failed_dma_and_malformed_records_are_logged() {
    let (mut machine, probe) = attached();
    let mut ring = Ring::new(&machine, F, A);
    // The window is memory, and a record goes to registers only.
    ring.push(1, WINDOWS as u32, &[1]).unwrap();
    probe.queue_action(|context| {
        let unmapped = DmaError::Unmapped { iova: 0x4000, length: 1 };
        assert_eq!(context.dma_write(A, 0x4000, &[1]), Err(unmapped));
    });

    let lines = LogLines::of(|| {
        machine.wake(F);
        machine.step(Nanos(0), 64);
        try_read(&mut machine, 0, u64::MAX - 8, 4).unwrap_err();
    });

    let contains = |words: &[&str]| {
        assert!(
            lines.iter().any(|line| words.iter().all(|word| line.contains(word))),
            "{words:?} in {lines:?}"
        );
    };
    contains(&["failed node=node0 attachment=a rule=no memory is mapped at IOVA 0x4000"]);
    contains(&["refused node=node0 attachment=a value=0x1 rule=a record of a posted-write ring"]);
    contains(&["refused node=node0 attachment=a rule=region 0: 4 bytes at 0xfffffffffffffff7"]);
    assert_eq!(lines.len(), 3, "{lines:?}");
}
