//! `nicforge bench rma`: the bandwidth of RMA, compared with a copy on the engine's processor. The
//! engine makes the only copy of each byte.
//!
//! One process has a port on each of two cards of a served machine. A second process would change
//! nothing, because the target of a transfer does no work. All paths cycle through buffers of the
//! same size, so caches help all of them alike.

use std::time::{Duration, Instant};

use nicforge::{
    failure::{ErrorContext, Failure},
    serve::Served,
};
use nicforge_driver::{Deadline, DmaBuffer, HugePages, OpenOptions};
use nicforge_rma::{Access, Error, Notify, Options, Port, Region, Target};
use nicforge_velo::Address;
use nix::time::ClockId;

use super::cards::{serve_two_cards, vpid_at};
use crate::{
    bench::{Bench, Run},
    contest::{self, Results},
    copies::Copies,
    machine::open,
    placement::Placement,
    row::{Backing, Goal, Outcome, Row},
    samples::median,
};

/// The bench.
pub const BENCH: Bench =
    Bench::new("rma", "puts and gets between two EXTOLL cards, against a copy of the same memory", run);

/// Bytes of a transfer.
const SIZES: [usize; 3] = [64 << 10, 1 << 20, 4 << 20];
/// Bytes of the buffer at each side.
const BUFFER_BYTES: usize = 32 << 20;
/// The greatest number of transfers in flight.
const WINDOW: usize = 8;
/// The goal for large transfers, as a share of a copy's bandwidth.
const MIN_SHARE_OF_COPY: f64 = 0.8;
/// The least size of a large transfer, in bytes.
const LARGE_BYTES: usize = 1 << 20;
/// Time after which an engine without work sleeps.
const TIME_TO_SLEEP: Duration = Duration::from_millis(50);
/// The longest wait for a transfer.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);

/// A contestant. Each has a row for each size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    Put,
    Get,
    Copy,
}

impl Path {
    /// All contestants.
    const ALL: [Self; 3] = [Self::Put, Self::Get, Self::Copy];

    /// Returns the name in the rows.
    fn name(self) -> &'static str {
        match self {
            Self::Put => "rma-put",
            Self::Get => "rma-get",
            Self::Copy => "memcpy",
        }
    }
}

/// The time that some transfers took.
#[derive(Clone, Copy)]
struct TransferTimes {
    wall: Duration,
    /// CPU time of the threads that moved the bytes.
    mover: Duration,
}

/// The threads that move the bytes of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mover {
    /// The thread that is measured: it copies.
    ThisThread,
    /// All other threads of the process: the engine.
    Engine,
}

/// Returns the CPU time of this process or of this thread, depending on `clock`.
fn cpu_time(clock: ClockId) -> Result<Duration, Failure> {
    clock.now().map(Duration::from).context(|| "CPU time".into())
}

/// Measures the wall time of `body`, and the CPU time of the threads that move its bytes.
fn timed(mover: Mover, body: impl FnOnce() -> Result<(), Failure>) -> Result<TransferTimes, Failure> {
    let process_clock = ClockId::CLOCK_PROCESS_CPUTIME_ID;
    let thread_clock = ClockId::CLOCK_THREAD_CPUTIME_ID;
    let (all_before, own_before) = (cpu_time(process_clock)?, cpu_time(thread_clock)?);
    let start = Instant::now();
    body()?;
    let wall = start.elapsed();
    let (all, own) = (cpu_time(process_clock)? - all_before, cpu_time(thread_clock)? - own_before);

    let mover = match mover {
        Mover::ThisThread => own,
        Mover::Engine => all.saturating_sub(own),
    };
    Ok(TransferTimes { wall, mover })
}

/// A port and its memory.
struct Side {
    port: Port,
    region: Region,
    _buffer: DmaBuffer,
}

impl Side {
    /// Opens a port of the card of `node`.
    fn open(server: &Served, node: u32) -> Result<Self, Failure> {
        let address = vpid_at(server, Address { node, vpid: 0 })?;
        let device = open(&address, OpenOptions::default(), STEP_TIMEOUT)?;
        let buffer = device.dma_buffer(BUFFER_BYTES, HugePages::Never).context(|| "a buffer".into())?;

        // All pages are allocated before any measurement.
        touch_all_pages(buffer.window())?;

        let port = Port::open(&device, Options::default()).context(|| "a port".into())?;
        let region = port.register(&buffer, Access::READ_WRITE).context(|| "registering".into())?;

        Ok(Self { port, region, _buffer: buffer })
    }
}

/// Writes to a memory, so that all its pages are allocated.
fn touch_all_pages(memory: &nicforge_shm::Window) -> Result<(), Failure> {
    memory.zero(0, memory.len()).context(|| "touching memory".into())
}

/// Moves `bytes` by puts or gets of `size` bytes each, with at most [`WINDOW`] in flight.
/// `remote_start` is the network address of the remote memory.
fn transfer(
    local: &mut Side,
    target: Target,
    remote_start: u64,
    path: Path,
    size: usize,
    bytes: usize,
) -> Result<(), Error> {
    let local_start = local.region.address();
    let (mut posted, mut ended) = (0, 0);

    while ended < bytes / size {
        while posted < bytes / size && posted - ended < WINDOW {
            let offset = (posted * size % BUFFER_BYTES) as u64;
            let (local_address, remote_address) = (local_start + offset, remote_start + offset);
            if path == Path::Get {
                local.port.get(target, remote_address, local_address, size as u64, Notify::REQUESTER)?;
            } else {
                local.port.put(target, local_address, remote_address, size as u64, Notify::REQUESTER)?;
            }
            posted += 1;
        }

        local.port.next(Deadline::after(STEP_TIMEOUT), None)?;
        ended += 1;
    }

    Ok(())
}

/// Runs the benchmark.
fn run(run: &Run<'_>) -> Result<Outcome, Failure> {
    let (rounds, bytes) = if run.quick { (3, 64 << 20) } else { (15, 256 << 20) };
    run.steps((SIZES.len() * rounds * Path::ALL.len()) as u64);
    let mut notes =
        vec![format!("{WINDOW} transfers in progress; buffers of {} MiB at each side", BUFFER_BYTES >> 20)];

    let placement = Placement::engine_alone()?;
    if placement.is_free() {
        notes.push("one processor: engine and application share it".into());
    }

    let server = serve_two_cards(run, BENCH.name, &placement)?;
    let result = placement.within("application", || measure(run, &server, &placement, rounds, bytes));
    server.stop()?;
    let (rows, goals) = result?;

    Ok(Outcome { rows, goals, notes })
}

/// Measures all paths in turns, for each size of transfers. Each measurement moves `bytes`. Returns
/// the rows and goals.
fn measure(
    run: &Run<'_>,
    server: &Served,
    placement: &Placement,
    rounds: usize,
    bytes: usize,
) -> Result<(Vec<Row>, Vec<Goal>), Failure> {
    let mut local = Side::open(server, 0)?;
    let remote = Side::open(server, 1)?;
    let target =
        local.port.connect(remote.port.node(), remote.port.vpid()).context(|| "connecting".into())?;
    let copies = Copies::new(BUFFER_BYTES)?;

    let (mut rows, mut goals) = (Vec::new(), Vec::new());
    for size in SIZES {
        let times = contest::run(run, rounds, Path::ALL.to_vec(), |path, _| {
            run.step(format!("{} of {} KiB", path.name(), size >> 10))?;
            match path {
                Path::Copy => {
                    // The engine runs on this processor, and must fall asleep first.
                    std::thread::sleep(TIME_TO_SLEEP);
                    placement
                        .within("engine", || timed(Mover::ThisThread, || copies.copy(size, bytes / size)))
                }
                Path::Put | Path::Get => timed(Mover::Engine, || {
                    transfer(&mut local, target, remote.region.address(), *path, size, bytes)
                        .context(|| path.name().into())
                }),
            }
        })?;

        rows.extend(rows_of(&times, placement, size, bytes));
        goals.extend(goals_of(&times, size));
    }

    Ok((rows, goals))
}

/// Returns the rows for transfers of `size`, of which each measurement moved `bytes`.
fn rows_of(
    times: &Results<Path, TransferTimes>,
    placement: &Placement,
    size: usize,
    bytes: usize,
) -> Vec<Row> {
    let row = |(&path, took): (&Path, &[TransferTimes])| {
        let row = Row {
            backing: (path != Path::Copy).then_some(Backing::VfioUser),
            placement: Some(placement.text()),
            rate_per_s: Some((bytes / size) as f64 / median_seconds(took, |took| took.wall)),
            ..Row::new(path.name())
        };

        row.with_bandwidth(size)
            .figure("of_memcpy", of_memcpy(times, path, |took| took.wall))
            .figure("of_memcpy_by_cpu_time", of_memcpy(times, path, |took| took.mover))
    };

    times.iter().map(row).collect()
}

/// Compares the bandwidth of transfers of `size` with a copy's. Smaller transfers than
/// [`LARGE_BYTES`] have no goal.
fn goals_of(times: &Results<Path, TransferTimes>, size: usize) -> Vec<Goal> {
    let goal = |path: Path| {
        let description = format!("{} of {} MiB, times a copy", path.name(), size >> 20);
        Goal::at_least(description, MIN_SHARE_OF_COPY, of_memcpy(times, path, |took| took.wall))
    };
    if size >= LARGE_BYTES { [Path::Put, Path::Get].map(goal).into() } else { Vec::new() }
}

/// Returns the median bandwidth of a path as a share of a copy's, by wall time or by CPU time.
fn of_memcpy(times: &Results<Path, TransferTimes>, path: Path, time: fn(&TransferTimes) -> Duration) -> f64 {
    median_seconds(times.of(&Path::Copy), time) / median_seconds(times.of(&path), time)
}

/// Returns the median of a time over all measurements, in seconds.
fn median_seconds(measurements: &[TransferTimes], time: fn(&TransferTimes) -> Duration) -> f64 {
    median(&measurements.iter().map(|measured| time(measured).as_secs_f64()).collect::<Vec<_>>())
}
