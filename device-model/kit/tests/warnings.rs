//! Warnings of parts without a context, as a device logs them.
#![allow(clippy::unwrap_used, reason = "tests")]

use nicforge_core::{
    context::Context,
    device::{Device, Progress, Reset, Write},
    ids::{Address, AttachmentId},
    spec::{AttachmentSpec, BarSpec, FunctionSpec, Identity},
    warning::Warning,
};
use nicforge_kit::{CountWatch, PendingWarnings};
use nicforge_test_kit::{Client, LogLines, Testbed};

const USER: AttachmentId = AttachmentId(0);
/// Register whose value is the number of warnings that a part keeps.
const REG_KEPT: u64 = 0;
/// Register whose value is added to a count.
const REG_COUNTED: u64 = 4;

/// A device whose parts have no context.
#[derive(Default)]
struct Card {
    pending: PendingWarnings,
    count: u64,
    watch: CountWatch,
}

impl Device for Card {
    fn spec(&self) -> FunctionSpec {
        let identity =
            Identity { vendor: 0x1234, device: 1, subsystem_vendor: 0, subsystem: 0, class: 0, revision: 0 };
        let mut spec = FunctionSpec::hub(identity);
        spec.attachments = vec![AttachmentSpec { name: "user0".to_owned(), group: 0 }];
        spec.bars[0] = Some(BarSpec::trapped(16));
        spec
    }

    fn read(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &mut [u8]) {}

    fn write(&mut self, _: &mut Context<'_>, from: AttachmentId, at: Address, data: &[u8]) -> Write {
        let value = u32::from_le_bytes(data.try_into().unwrap());
        match at.offset {
            REG_COUNTED => self.count += u64::from(value),
            _ => (0..value).for_each(|number| {
                self.pending.push(from, Warning::failed(&"a rule").value(number.into()));
            }),
        }
        Write::Accepted
    }

    fn step(&mut self, context: &mut Context<'_>, _: u32) -> Progress {
        self.pending.log(context);
        self.watch.check(context, None, self.count, || Warning::dropped(&"a way"));
        Progress::Idle
    }

    fn reset(&mut self, _: &mut Context<'_>, _: Reset) {}
}

/// Returns the lines of a step after a write.
fn logged(bed: &mut Testbed, user: Client, register: u64, value: u32) -> Vec<String> {
    user.write32(bed, 0, register, value);
    LogLines::of(|| bed.run_until_idle())
}

#[test]
fn warnings_are_logged_once_in_the_next_step_and_those_beyond_the_limit_counted() {
    let mut bed = Testbed::new();
    let card = bed.add("card0", Card::default());
    let user = Client::attach(&mut bed, card, USER);

    let lines = logged(&mut bed, user, REG_KEPT, 13);
    let end = LogLines::of(|| drop(bed));

    assert_eq!(lines.len(), 10);
    assert_eq!(lines[9], "failed node=card0 attachment=user0 value=0x9 rule=a rule");
    assert_eq!(end, ["more warnings came than the log takes in a second node=card0 suppressed=3"]);
}

#[test]
fn count_that_has_risen_is_one_line_with_the_number_of_new_events() {
    let mut bed = Testbed::new();
    let card = bed.add("card0", Card::default());
    let user = Client::attach(&mut bed, card, USER);

    let lines = [5, 0, 2].map(|value| logged(&mut bed, user, REG_COUNTED, value));

    let line = |value: &str| vec![format!("dropped node=card0 value={value} rule=a way")];
    assert_eq!(lines, [line("0x5"), vec![], line("0x2")]);
}
