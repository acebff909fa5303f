//! `nicforge bench vm`: the cost of one of our own virtual machines before its guest does anything.

use std::{
    io::{self, Write},
    path::Path,
    process::Stdio,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use nicforge::failure::{ErrorContext, Failure, print_line};
use nicforge_kvm::{Function, LocalFunction, Running, Vm, VmConfig, VmError};
use nicforge_virtio_devices::rng::VirtioRng;
use serde::{Deserialize, Serialize};

use crate::{
    bench::{Bench, Run},
    process::child_command,
    row::{Goal, Outcome, Row},
    samples::Samples,
};

/// The bench.
pub const BENCH: Bench =
    Bench::new("vm", "what one of our own virtual machines costs before its first instruction", run)
        .with_child(run_child);

/// The numbers of functions of the measured machines.
const FUNCTIONS: [u8; 2] = [0, 8];
/// Time limit of a machine until its first instruction.
const LIMIT: Duration = Duration::from_secs(10);
/// Bytes of the guest's RAM.
const RAM: u64 = 256 << 20;
/// The goal for the time until the guest's first output, in milliseconds.
const MAX_SET_UP_MS: f64 = 50.0;
/// The goal for the memory of a machine without the guest's RAM, in units of 10^6 bytes.
const MAX_MACHINE_MB: f64 = 10.0;

/// The task of a child process, whose memory has nothing but its machines.
#[derive(Serialize, Deserialize)]
struct Task {
    /// Number of functions of each machine.
    functions: u8,
    /// Number of machines that are started, one after the other.
    machines: u32,
}

/// The result of a task.
#[derive(Serialize, Deserialize)]
struct Measured {
    /// Times from the making of a machine to the first output of its guest.
    set_ups: Samples,
    /// Resident memory that the first machine adds, without the guest's RAM, in units of 10^6
    /// bytes.
    machine_mb: f64,
    /// Resident memory of the process with that machine, in the same units.
    process_mb: f64,
}

/// Runs the benchmark.
fn run(run: &Run<'_>) -> Result<Outcome, Failure> {
    let machines = if run.quick { 5 } else { 50 };
    run.steps(FUNCTIONS.len() as u64);
    if let Err(error) = std::fs::File::options().read(true).write(true).open("/dev/kvm") {
        let reason = format!("no virtual machine here: /dev/kvm: {error}");
        return match run.all {
            true => Ok(Outcome { notes: vec![reason], ..Outcome::default() }),
            false => Err(Failure::environment(reason)),
        };
    }

    let mut outcome = Outcome {
        notes: vec![
            "the guest is a program of a few instructions, which needs no KVM for 64-bit kernels".into(),
            "setup: from the making of a machine to the first output of its guest; machine_mb: resident memory \
             that the first machine adds to its process, without the guest's RAM; process_mb: all of the process, \
             which is the bench's own program"
                .into(),
        ],
        ..Outcome::default()
    };
    for functions in FUNCTIONS {
        run.step(format!("{functions} functions"))?;
        let measured = measure_in_child(&Task { functions, machines })?;
        let row = Row {
            p50_us: Some(measured.set_ups.p50_us()),
            p99_us: Some(measured.set_ups.p99_us()),
            ..Row::new("setup")
        };
        outcome.rows.push(
            row.figure("functions", functions.into())
                .figure("machine_mb", measured.machine_mb)
                .figure("process_mb", measured.process_mb),
        );

        let milliseconds = measured.set_ups.p50_us() / 1e3;
        let of_machine = format!("of a machine with {functions} functions");
        outcome.goals.extend([
            Goal::at_most(format!("set-up {of_machine}, ms"), MAX_SET_UP_MS, milliseconds),
            Goal::at_most(
                format!("memory {of_machine} without the guest's RAM, MB"),
                MAX_MACHINE_MB,
                measured.machine_mb,
            ),
        ]);
    }
    Ok(outcome)
}

/// Carries out a task in a process of its own.
fn measure_in_child(task: &Task) -> Result<Measured, Failure> {
    let text = serde_json::to_string(task).context(|| "the task".into())?;
    let mut command = child_command(BENCH.name, &text)?;
    let output = command.stderr(Stdio::inherit()).output().context(|| "the machines' process".into())?;
    if !output.status.success() {
        return Err(Failure::environment("the machines' process failed"));
    }
    serde_json::from_slice(&output.stdout).context(|| "the machines' figures".into())
}

/// Carries out a task in the child process, and prints its result.
fn run_child(text: &str) -> Result<u8, Failure> {
    let task: Task = serde_json::from_str(text).context(|| "the task".into())?;
    let folder = tempfile::tempdir().context(|| "a temporary folder".into())?;
    let program = folder.path().join("program");
    std::fs::write(&program, bare_program()).context(|| "the guest's program".into())?;

    let before = resident_mb()?;
    let (mut set_ups, mut with_first_machine) = (Samples::with_capacity(task.machines as usize), None);
    for _ in 0..task.machines {
        let begin = Instant::now();
        let (running, first_output) = start(&program, task.functions)?;
        set_ups.add(first_output - begin);
        if with_first_machine.is_none() {
            with_first_machine = Some(resident_mb()?);
        }
        running.stop();
    }

    let process_mb = with_first_machine.unwrap_or(before);
    let measured = Measured { set_ups, machine_mb: process_mb - before, process_mb };
    print_line(serde_json::to_string(&measured).context(|| "the figures".into())?)?;
    Ok(0)
}

/// Starts a machine with a number of random-number devices. Returns it with the time of its guest's
/// first output.
fn start(program: &Path, functions: u8) -> Result<(Running, Instant), Failure> {
    let failed = |error: VmError| Failure::environment(format!("a virtual machine: {error}"));
    let (output_sender, output) = mpsc::channel();
    let mut vm = Vm::new(&VmConfig::new(program).memory(RAM)).map_err(failed)?;
    vm.serial(0, Box::new(OutputTimes(output_sender))).map_err(failed)?;

    for slot in 0..functions {
        let function = LocalFunction::of_device("rng", Box::new(VirtioRng::device()));
        let function: Arc<dyn Function> = Arc::new(function.map_err(|error| failed(error.into()))?);
        vm.plug(slot, function).map_err(failed)?;
    }
    let running = vm.start().map_err(failed)?;
    let first_output = output.recv_timeout(LIMIT);
    let first_output =
        first_output.map_err(|_| Failure::environment(format!("the guest was silent for {LIMIT:?}")))?;
    Ok((running, first_output))
}

/// Sends the time of each output of the guest on its serial port.
struct OutputTimes(mpsc::Sender<Instant>);

impl Write for OutputTimes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Nothing waits for later output.
        let _ = self.0.send(Instant::now());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns an ELF file with a PVH entry, whose code writes a byte to the serial port and then waits
/// for ever.
fn bare_program() -> Vec<u8> {
    const CODE: u64 = 0x10_0000;
    const CODE_OFFSET: usize = 0x100;
    const NOTE_OFFSET: usize = 176;
    const NOTE_BYTES: u64 = 20;
    // mov al, '!'; mov dx, 0x3f8; out dx, al; jmp to itself
    let code = [0xb0, b'!', 0x66, 0xba, 0xf8, 0x03, 0xee, 0xeb, 0xfe];
    let mut file = vec![0; CODE_OFFSET];
    let mut write_at =
        |offset: usize, bytes: &[u8]| file[offset..offset + bytes.len()].copy_from_slice(bytes);

    // The file's header: a 64-bit little-endian file of type 2 (a program) for machine 62 (x86-64),
    // version 1; the address of the entry; the offset of the program headers; the bytes of this
    // header and of a program header, and the number of program headers.
    write_at(0, b"\x7fELF\x02\x01\x01");
    write_at(16, &[2, 0, 62, 0, 1]);
    write_at(24, &CODE.to_le_bytes());
    write_at(32, &64_u64.to_le_bytes());
    write_at(52, &[64, 0, 56, 0, 2]);

    // The program headers: the code, which is loaded (type 1), and the note (type 4).
    let code_header = (64, 1_u32, CODE_OFFSET as u64, code.len() as u64);
    let note_header = (120, 4, NOTE_OFFSET as u64, NOTE_BYTES);
    for (at, kind, offset, size) in [code_header, note_header] {
        write_at(at, &kind.to_le_bytes());
        write_at(at + 8, &offset.to_le_bytes());
        write_at(at + 24, &CODE.to_le_bytes());
        write_at(at + 32, &size.to_le_bytes());
        write_at(at + 40, &size.to_le_bytes());
    }
    // The note: bytes of its name, bytes of its contents, its type (18, the PVH entry), its name,
    // and as contents the entry's address.
    let note = [4, 4, 18, u32::from_le_bytes(*b"Xen\0"), CODE as u32];
    for (at, word) in (NOTE_OFFSET..).step_by(4).zip(note) {
        write_at(at, &word.to_le_bytes());
    }

    file.extend(code);
    file
}

/// Returns the resident memory of this process without shared memory, which is the guest's RAM, in
/// units of 10^6 bytes.
fn resident_mb() -> Result<f64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status").context(|| "/proc/self/status".into())?;
    let kib = |name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name));
        let value = value.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
        value.ok_or_else(|| Failure::environment(format!("/proc/self/status has no {name}")))
    };
    Ok((kib("RssAnon:")? + kib("RssFile:")?) * 1024.0 / 1e6)
}
