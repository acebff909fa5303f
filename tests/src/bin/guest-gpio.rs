//! Runs in a guest: checks a PCI-IDIO-16 with a loop-back plug through Linux's GPIO character device, as any program would use it.
//! The argument is the card's PCI address, which the driver gives its chip as label.
//!
//! Every check that holds is a line on standard output. The exit status is 0 when all of them hold.

use std::{error::Error, process::ExitCode, time::Duration};

use gpiocdev::{
    Request,
    chip::{self, Chip},
    line::{EdgeDetection, EdgeKind, Offset, Value, Values},
};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Lines 0 to 15 are the outputs, 16 to 31 the inputs.
const OUTPUTS: u32 = 16;
/// Longer than any interrupt takes, also on an emulated processor of a busy machine.
const LIMIT: Duration = Duration::from_secs(20);
/// How often a line changes in [`no_interrupt_is_lost`].
const EDGES: usize = 200;

fn main() -> ExitCode {
    let label = std::env::args().nth(1).unwrap_or_default();
    match check(&label) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("failed: {error}");
            ExitCode::FAILURE
        }
    }
}

fn check(label: &str) -> Outcome {
    let chip = find(label)?;
    let path = chip.path().to_path_buf();
    let outputs: Vec<Offset> = (0..OUTPUTS).collect();
    let inputs: Vec<Offset> = (OUTPUTS..2 * OUTPUTS).collect();
    let outputs =
        Request::builder().on_chip(&path).with_lines(&outputs).as_output(Value::Inactive).request()?;

    let plugged = Request::builder().on_chip(&path).with_lines(&inputs).as_input().request()?;
    levels(&outputs, &plugged)?;
    drop(plugged);
    println!("ok: every level set at the outputs is read at the outputs and the inputs");

    for line in 0..OUTPUTS {
        let input = watched(&path, OUTPUTS + line)?;
        for level in [Value::Active, Value::Inactive] {
            outputs.set_value(line, level)?;
            expect_edge(&input, OUTPUTS + line, level)?;
        }
    }
    println!("ok: both edges of every line interrupt");

    no_interrupt_is_lost(&outputs, &watched(&path, OUTPUTS)?)?;
    println!("ok: {EDGES} edges are {EDGES} events");

    outputs.set_value(0, Value::Active)?;
    outputs.set_value(0, Value::Inactive)?;
    if watched(&path, OUTPUTS)?.wait_edge_event(Duration::from_millis(100))? {
        return Err("an edge from before anybody listened was reported".into());
    }
    println!("ok: nobody is told of edges while nobody listens");
    Ok(())
}

/// The chip with this label, or with any when it is empty, that has the card's lines.
fn find(label: &str) -> Outcome<Chip> {
    for path in chip::chips()? {
        let chip = Chip::from_path(path)?;
        let info = chip.info()?;
        if info.num_lines == 2 * OUTPUTS && (label.is_empty() || info.label == label) {
            let names = [0, 15, 16, 31].map(|line| chip.line_info(line).map(|info| info.name));
            println!("ok: {} is {}, {} lines: {names:?}", info.name, info.label, info.num_lines);
            return Ok(chip);
        }
    }
    Err(format!("there is no GPIO chip {label:?} of 32 lines").into())
}

fn levels(outputs: &Request, inputs: &Request) -> Outcome {
    let patterns = (0..OUTPUTS).map(|line| 1 << line).chain([0xa55a, 0x5aa5, 0xffff, 0]);
    for pattern in patterns {
        let mut wanted = Values::default();
        for line in 0..OUTPUTS {
            wanted.set(line, Value::from(pattern & 1 << line != 0));
        }
        outputs.set_values(&wanted)?;
        let read = [level_bits(outputs, 0)?, level_bits(inputs, OUTPUTS)?];
        if read != [pattern; 2] {
            return Err(format!("{pattern:#06x} was set; outputs and inputs are {read:#06x?}").into());
        }
    }
    Ok(())
}

/// The levels of the sixteen lines from `first` on, a bit each.
fn level_bits(request: &Request, first: u32) -> Outcome<u32> {
    let mut values = Values::default();
    request.values(&mut values)?;
    let is_active = |line: &u32| values.get(first + line) == Some(Value::Active);
    Ok((0..OUTPUTS).filter(is_active).map(|line| 1 << line).sum())
}

/// The card says that an input changed and not which one, so that its driver tells all who listen. Who wants to know listens to one.
fn watched(path: &std::path::Path, line: Offset) -> Outcome<Request> {
    let request = Request::builder()
        .on_chip(path)
        .with_line(line)
        .as_input()
        .with_edge_detection(EdgeDetection::BothEdges)
        .request()?;
    Ok(request)
}

fn expect_edge(input: &Request, line: Offset, level: Value) -> Outcome {
    if !input.wait_edge_event(LIMIT)? {
        return Err(format!("line {line}: no interrupt within {LIMIT:?}").into());
    }
    let event = input.read_edge_event()?;
    let kind = if level == Value::Active { EdgeKind::Rising } else { EdgeKind::Falling };
    if (event.offset, event.kind) != (line, kind) {
        return Err(format!("line {line}: expected {kind:?}, got {event:?}").into());
    }
    if input.has_edge_event()? {
        return Err(format!("line {line}: a second event for one edge").into());
    }
    Ok(())
}

/// One edge at a time: the next one comes when the last was reported.
fn no_interrupt_is_lost(outputs: &Request, input: &Request) -> Outcome {
    for edge in 0..EDGES {
        let level = Value::from(edge % 2 == 0);
        outputs.set_value(0, level)?;
        expect_edge(input, OUTPUTS, level).map_err(|error| format!("edge {edge}: {error}"))?;
    }
    Ok(())
}
