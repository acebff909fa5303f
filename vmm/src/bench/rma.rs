//! `nicforge bench rma`: the bandwidth of RMA, compared with a copy on the engine's processor. The
//! engine makes the only copy of each byte.
//!
//! One process has a port on each of two cards of a served machine. A second process would change
//! nothing, because the target of a transfer does no work. All paths cycle through buffers of the
//! same size, so caches help all of them alike.

use std::time::{Duration, Instant};

use nicforge_driver::{Deadline, Device, DmaBuffer, HugePages, OpenOptions};
use nicforge_rma::{Access, Error, Notify, Options, Port, Region, Target};
use nicforge_shm::SharedMemory;
use nix::time::ClockId;

use super::{
    Run,
    cards::serve_two_cards,
    placement::Placement,
    row::{Backing, Goal, Outcome, Row},
    samples::{in_turns, median},
};
use crate::{
    failure::{ErrorContext, Failure},
    serve::Served,
};

/// Bytes of a transfer.
const SIZES: [usize; 3] = [64 << 10, 1 << 20, 4 << 20];
/// Bytes of the buffer at each side.
const BUFFER: usize = 32 << 20;
/// The greatest number of transfers in flight.
const WINDOW: usize = 8;
/// The goal for large transfers, as a share of a copy's bandwidth.
const SHARE: f64 = 0.8;
/// The least size of a large transfer, in bytes.
const LARGE: usize = 1 << 20;
/// The longest wait for a transfer.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);

const PATHS: [&str; 3] = ["rma-put", "rma-get", "memcpy"];

/// The time that some transfers took.
#[derive(Clone, Copy)]
struct Took {
    wall: Duration,
    /// CPU time of the thread that moved the bytes: the engine, or the copying thread.
    mover: Duration,
}

/// Returns the CPU time of this process or of this thread, depending on `clock`.
fn cpu(clock: ClockId) -> Result<Duration, Failure> {
    clock.now().map(Duration::from).context(|| "CPU time".into())
}

/// Measures `body`. Bytes are moved by this thread, or by all other threads.
fn timed(this_thread: bool, body: impl FnOnce() -> Result<(), Failure>) -> Result<Took, Failure> {
    let own = ClockId::CLOCK_THREAD_CPUTIME_ID;
    let (all_before, own_before) = (cpu(ClockId::CLOCK_PROCESS_CPUTIME_ID)?, cpu(own)?);
    let start = Instant::now();
    body()?;
    let wall = start.elapsed();
    let (all, own) = (cpu(ClockId::CLOCK_PROCESS_CPUTIME_ID)? - all_before, cpu(own)? - own_before);
    Ok(Took { wall, mover: if this_thread { own } else { all.saturating_sub(own) } })
}

/// A port and its memory.
struct Side {
    port: Port,
    region: Region,
    _buffer: DmaBuffer,
}

impl Side {
    fn open(server: &Served, name: &str) -> Result<Self, Failure> {
        let nodes = &server.built().nodes;
        let place = nodes
            .iter()
            .find(|node| node.name == name)
            .and_then(|node| Some((node, node.attachments.first()?)));
        let (node, attachment) =
            place.ok_or_else(|| Failure::environment(format!("there is no node {name}")))?;
        let socket = server.socket(node, attachment)?;
        let device = Device::open_vfio_user(socket, OpenOptions::default())
            .context(|| format!("the card of {name}"))?;
        let buffer = device.dma_buffer(BUFFER, HugePages::Never).context(|| "a buffer".into())?;

        // All pages are allocated before any measurement.
        touch(buffer.window())?;

        let port = Port::open(&device, Options::default()).context(|| "a port".into())?;
        let region = port.register(&buffer, Access::READ_WRITE).context(|| "registering".into())?;

        Ok(Self { port, region, _buffer: buffer })
    }
}

fn touch(memory: &nicforge_shm::Window) -> Result<(), Failure> {
    memory.zero(0, memory.len()).context(|| "touching memory".into())
}

/// Moves `bytes` in pieces of `size`, with at most [`WINDOW`] in flight.
fn transfer(
    here: &mut Side,
    target: Target,
    there: u64,
    get: bool,
    size: usize,
    bytes: usize,
) -> Result<(), Error> {
    let own = here.region.address();
    let (mut posted, mut ended) = (0, 0);

    while ended < bytes / size {
        while posted < bytes / size && posted - ended < WINDOW {
            let offset = (posted * size % BUFFER) as u64;
            let (ours, theirs) = (own + offset, there + offset);
            if get {
                here.port.get(target, theirs, ours, size as u64, Notify::REQUESTER)?;
            } else {
                here.port.put(target, ours, theirs, size as u64, Notify::REQUESTER)?;
            }
            posted += 1;
        }

        here.port.next(Deadline::after(STEP_TIMEOUT), None)?;
        ended += 1;
    }

    Ok(())
}

/// Moves the same bytes as [`transfer`] by copies on this thread.
fn copy(from: &SharedMemory, to: &SharedMemory, size: usize, bytes: usize) -> Result<(), Failure> {
    let (from, to) = (from.whole(), to.whole());
    for piece in 0..bytes / size {
        let offset = (piece * size % BUFFER) as u64;
        from.copy_to(offset, &to, offset, size as u64).context(|| "copying".into())?;
    }
    Ok(())
}

pub(super) fn run(run: &Run<'_>) -> Result<Outcome, Failure> {
    let (rounds, bytes) = if run.quick { (3, 64 << 20) } else { (15, 256 << 20) };
    run.steps((SIZES.len() * rounds * PATHS.len()) as u64);
    let mut notes =
        vec![format!("{WINDOW} transfers under way; buffers of {} MiB at each side", BUFFER >> 20)];

    let placement = Placement::engine_alone()?;
    if placement.is_free() {
        notes.push("one processor: engine and application share it".into());
    }

    let server = serve_two_cards(run, "rma", &placement)?;
    let result = placement.within("application", || measure(run, &server, &placement, rounds, bytes));
    server.stop()?;
    let (rows, goals) = result?;

    Ok(Outcome { rows, goals, notes })
}

fn measure(
    run: &Run<'_>,
    server: &Served,
    placement: &Placement,
    rounds: usize,
    bytes: usize,
) -> Result<(Vec<Row>, Vec<Goal>), Failure> {
    let mut here = Side::open(server, "ex0")?;
    let there = Side::open(server, "ex1")?;
    let target = here.port.connect(there.port.node(), there.port.vpid()).context(|| "connecting".into())?;
    let memory = || SharedMemory::create("bench", BUFFER).context(|| "memory to copy".into());
    let (from, to) = (memory()?, memory()?);
    touch(&from.whole())?;
    touch(&to.whole())?;

    let (mut rows, mut goals) = (Vec::new(), Vec::new());
    for size in SIZES {
        let times = in_turns(rounds, PATHS.len(), |path, _| {
            run.step(format!("{} of {} KiB", PATHS[path], size >> 10))?;
            match path {
                2 => {
                    // The engine runs on this processor, and must fall asleep first.
                    std::thread::sleep(Duration::from_millis(50));
                    placement.within("engine", || timed(true, || copy(&from, &to, size, bytes)))
                }
                _ => timed(false, || {
                    transfer(&mut here, target, there.region.address(), path == 1, size, bytes)
                        .context(|| PATHS[path].into())
                }),
            }
        })?;

        let rates = |time: fn(&Took) -> Duration| -> Vec<f64> {
            let rate = |took: &Took| bytes as f64 * 8.0 / time(took).as_secs_f64() / 1e9;
            times.iter().map(|times| median(&times.iter().map(rate).collect::<Vec<_>>())).collect()
        };
        let (rates, work) = (rates(|took| took.wall), rates(|took| took.mover));
        let memcpy = rates[2];

        for ((path, &rate), &work_rate) in PATHS.iter().zip(&rates).zip(&work) {
            let row = Row {
                backing: (*path != "memcpy").then_some(Backing::VfioUser),
                placement: Some(placement.text()),
                bytes: Some(size as u64),
                gbit_s: Some(rate),
                rate_per_s: Some(rate * 1e9 / 8.0 / size as f64),
                ..Row::new(*path)
            };

            rows.push(
                row.figure("of_memcpy", rate / memcpy).figure("of_memcpy_by_cpu_time", work_rate / work[2]),
            );

            if size >= LARGE && *path != "memcpy" {
                let what = format!("{path} of {} MiB, times a copy", size >> 20);
                goals.push(Goal::at_least(what, SHARE, rate / memcpy));
            }
        }
    }

    Ok((rows, goals))
}
