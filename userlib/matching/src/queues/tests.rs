//! Compares the queues with two plain lists, as the MPI standard describes matching.

use proptest::prelude::*;

use super::*;

/// The two lists of the MPI standard.
#[derive(Default)]
struct Model {
    posted: Vec<(u32, Selector)>,
    stored: Vec<(u32, Envelope)>,
}

/// One operation on the queues.
#[derive(Clone, Debug)]
enum Step {
    Receive(Selector),
    Arrive(Envelope),
    Probe(Selector),
    Cancel(usize),
    Claim(usize),
}

/// Few different values, so that many entries match, and more classes of wildcards than there are
/// tables.
fn selectors() -> impl Strategy<Value = Selector> {
    (
        prop::option::of(0..3_u32),
        0..2_u32,
        0..8_u64,
        prop::sample::select(vec![0, 0, 0, 1, 2, 3, 4, 6, 7, u64::MAX]),
    )
        .prop_map(|(source, context, tag, ignore)| Selector { source, context, tag, ignore })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let envelopes =
        (0..3_u32, 0..2_u32, 0..8_u64).prop_map(|(peer, context, tag)| Envelope::new(peer, context, tag));
    let step = prop_oneof![
        4 => selectors().prop_map(Step::Receive),
        4 => envelopes.prop_map(Step::Arrive),
        1 => selectors().prop_map(Step::Probe),
        1 => any::<usize>().prop_map(Step::Cancel),
        1 => any::<usize>().prop_map(Step::Claim),
    ];
    prop::collection::vec(step, 0..300)
}

/// Applies the steps to the queues and to the model, and asserts that each has the same result.
fn run(steps: Vec<Step>) {
    let (mut queues, mut model) = (Queues::new(), Model::default());
    for (number, step) in (0..).zip(steps) {
        match step {
            Step::Receive(selector) => {
                let expected = model.stored.iter().position(|(_, envelope)| selector.matches(envelope));
                let found = queues.find_unexpected(&selector);
                assert_eq!(found, expected.map(|position| model.stored[position].0));

                match (found, expected) {
                    (Some(message), Some(position)) => {
                        queues.remove_unexpected(message);
                        model.stored.remove(position);
                    }
                    _ => {
                        queues.post(number, selector);
                        model.posted.push((number, selector));
                    }
                }
            }
            Step::Arrive(envelope) => {
                let expected = model.posted.iter().position(|(_, selector)| selector.matches(&envelope));
                let found = queues.take_posted_for(&envelope);

                assert_eq!(found, expected.map(|position| model.posted[position].0));
                if let Some(position) = expected {
                    model.posted.remove(position);
                } else {
                    queues.add_unexpected(number, envelope);
                    model.stored.push((number, envelope));
                }
            }
            Step::Probe(selector) => {
                let expected = model.stored.iter().find(|(_, envelope)| selector.matches(envelope));
                assert_eq!(queues.find_unexpected(&selector), expected.map(|&(message, _)| message));
            }
            Step::Cancel(which) if !model.posted.is_empty() => {
                let (receive, _) = model.posted.remove(which % model.posted.len());
                queues.unpost(receive);
            }
            Step::Claim(which) if !model.stored.is_empty() => {
                let (message, _) = model.stored.remove(which % model.stored.len());
                queues.remove_unexpected(message);
            }
            Step::Cancel(_) | Step::Claim(_) => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_matches_as_two_lists_do(steps in steps()) {
        run(steps);
    }
}

/// Runs every sequence of five steps of this menu.
#[test]
fn every_short_sequence_matches_as_two_lists_do() {
    let menu = [
        Step::Receive(Selector::exact(0, 0, 1)),
        Step::Receive(Selector::any_source(0, 1)),
        Step::Receive(Selector::any_tag(0, 0)),
        Step::Receive(Selector::any(0)),
        Step::Arrive(Envelope::new(0, 0, 1)),
        Step::Arrive(Envelope::new(1, 0, 1)),
        Step::Arrive(Envelope::new(0, 0, 2)),
        Step::Cancel(0),
    ];

    for number in 0..menu.len().pow(5) {
        let digits = (0..5).map(|digit| menu[number / menu.len().pow(digit) % menu.len()].clone());
        run(digits.collect());
    }
}

/// More classes than tables have posted receives. Those without a table are in one list, and still
/// in order.
#[test]
fn receives_without_a_table_keep_their_order() {
    let mut queues = Queues::new();

    for bit in 0..20 {
        assert_eq!(queues.find_unexpected(&Selector::exact(0, 0, 0).ignoring(1 << bit)), None);
        queues.post(bit, Selector::exact(0, 0, 0).ignoring(1 << bit));
    }

    for bit in (0..20).rev() {
        assert_eq!(queues.take_posted_for(&Envelope::new(0, 0, 1 << bit)), Some(bit));
    }

    assert_eq!(queues.take_posted_for(&Envelope::new(0, 0, 0)), None);
    assert_eq!(queues.posted_classes, 0);
}
