//! Checks a PCI-IDIO-16 with a loop-back plug, inside a guest.
//!
//! It uses either Linux's GPIO character device, as any program would, or the bare ports while no
//! driver is bound.
//!
//! ```text
//! guest-gpio lines ADDRESS      # the PCI address, which is also the label of the driver's chip
//! guest-gpio ports ADDRESS
//! ```
//!
//! It prints one line for each passed check. The exit status is 0 when all of them pass.

use std::{error::Error, fs::File, os::unix::fs::FileExt, path::Path, process::ExitCode, time::Duration};

use gpiocdev::{
    Request,
    chip::{self, Chip},
    line::{EdgeDetection, EdgeKind, Offset, Value, Values},
};
use nicforge_hwi::idio16::{INPUTS_LOW, OUTPUTS_HIGH, OUTPUTS_LOW};

/// The result of a check, or the text of its failure.
type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// Lines 0 to 15 are the outputs, 16 to 31 the inputs.
const OUTPUTS: u32 = 16;
/// Time limit of an interrupt, generous enough for an emulated processor on a loaded machine.
const LIMIT: Duration = Duration::from_secs(20);
/// Number of changes of a line in [`no_interrupt_is_lost`].
const EDGES: usize = 200;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["lines", address] => lines(address),
        ["ports", address] => ports(address),
        _ => Err("usage: guest-gpio lines|ports ADDRESS".into()),
    };

    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("failed: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Checks levels, edges and interrupts of all lines by Linux's GPIO character device.
fn lines(address: &str) -> Outcome {
    let chip = find(address)?;
    let path = chip.path().to_path_buf();
    let outputs: Vec<Offset> = (0..OUTPUTS).collect();
    let inputs: Vec<Offset> = (OUTPUTS..2 * OUTPUTS).collect();
    let outputs =
        Request::builder().on_chip(&path).with_lines(&outputs).as_output(Value::Inactive).request()?;

    let inputs = Request::builder().on_chip(&path).with_lines(&inputs).as_input().request()?;
    check_levels(&outputs, &inputs)?;
    drop(inputs);
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
        return Err("an edge from before the request for events was reported".into());
    }

    println!("ok: a request reports no edge from before it");
    Ok(())
}

/// Accesses the ports with one, two and four bytes. The kernel makes each access with one
/// instruction.
fn ports(address: &str) -> Outcome {
    let function = Path::new("/sys/bus/pci/devices").join(address);
    std::fs::write(function.join("enable"), "1")?;
    let ports = File::options().read(true).write(true).open(function.join("resource2"))?;
    let read = |port, bytes: &mut [u8]| ports.read_at(bytes, port).map(|_| ());
    let write = |port, bytes: &[u8]| ports.write_at(bytes, port).map(|_| ());
    let (mut first, mut second, mut four) = ([0], [0; 2], [0; 4]);

    write(OUTPUTS_LOW, &[0x42])?;
    read(INPUTS_LOW, &mut first)?;

    // The last two of these four ports have no value to read. Reading them enables interrupts and
    // filters.
    read(OUTPUTS_LOW, &mut four)?;

    // Writing them disables both again. The inputs then follow the outputs at once.
    write(OUTPUTS_LOW, &[0; 4])?;
    write(OUTPUTS_HIGH, &[0x81, 0])?;
    read(OUTPUTS_HIGH, &mut second)?;
    if (first, second, four) != ([0x42], [0x81, 0x81], [0x42, 0x42, 0xff, 0xff]) {
        return Err(format!("the ports answered {first:#x?}, {second:#x?}, {four:#x?}").into());
    }

    write(OUTPUTS_HIGH, &[0])?;
    println!("ok: ports take accesses of 1, 2 and 4 bytes");
    Ok(())
}

/// Returns the chip with this label that has the card's lines.
fn find(label: &str) -> Outcome<Chip> {
    for path in chip::chips()? {
        let chip = Chip::from_path(path)?;
        let info = chip.info()?;
        if info.num_lines == 2 * OUTPUTS && info.label == label {
            println!("ok: {} is the card at {}", info.name, info.label);
            return Ok(chip);
        }
    }

    Err(format!("there is no GPIO chip {label:?} of 32 lines").into())
}

/// Checks that inputs and outputs have the levels that are set, for patterns of all lines.
fn check_levels(outputs: &Request, inputs: &Request) -> Outcome {
    let patterns = (0..OUTPUTS).map(|line| 1 << line).chain([0xa55a, 0x5aa5, 0xffff, 0]);
    for pattern in patterns {
        let mut expected = Values::default();
        for line in 0..OUTPUTS {
            expected.set(line, Value::from(pattern & 1 << line != 0));
        }
        outputs.set_values(&expected)?;
        let read = [level_bits(outputs, 0)?, level_bits(inputs, OUTPUTS)?];
        if read != [pattern; 2] {
            return Err(format!("{pattern:#06x} was set; outputs and inputs are {read:#06x?}").into());
        }
    }

    Ok(())
}

/// Returns the levels of the sixteen lines from `first` on, one bit for each.
fn level_bits(request: &Request, first: u32) -> Outcome<u32> {
    let mut values = Values::default();
    request.values(&mut values)?;
    let is_active = |line: &u32| values.get(first + line) == Some(Value::Active);
    Ok((0..OUTPUTS).filter(is_active).map(|line| 1 << line).sum())
}

// ANCHOR: edges
/// Requests the edges of one input line.
///
/// The card reports that an input changed and not which one, so its driver notifies all listeners.
/// To learn which one, a program listens to a single line.
fn watched(path: &Path, line: Offset) -> Outcome<Request> {
    let request = Request::builder()
        .on_chip(path)
        .with_line(line)
        .as_input()
        .with_edge_detection(EdgeDetection::BothEdges)
        .request()?;

    Ok(request)
}

/// Waits for one edge of a line, to `level`, and checks that no other one comes with it.
fn expect_edge(input: &Request, line: Offset, level: Value) -> Outcome {
    if !input.wait_edge_event(LIMIT)? {
        return Err(format!("line {line}: no interrupt within {LIMIT:?}").into());
    }

    let event = input.read_edge_event()?;
    let kind = if level == Value::Active { EdgeKind::Rising } else { EdgeKind::Falling };
    if (event.offset, event.kind) != (line, kind) {
        return Err(format!("line {line}: expected {kind:?}, received {event:?}").into());
    }

    if input.has_edge_event()? {
        return Err(format!("line {line}: a second event for one edge").into());
    }

    Ok(())
}
// ANCHOR_END: edges

/// Makes one edge at a time: the next one follows the report of the last.
fn no_interrupt_is_lost(outputs: &Request, input: &Request) -> Outcome {
    for edge in 0..EDGES {
        let level = Value::from(edge % 2 == 0);
        outputs.set_value(0, level)?;
        expect_edge(input, OUTPUTS, level).map_err(|error| format!("edge {edge}: {error}"))?;
    }
    Ok(())
}
