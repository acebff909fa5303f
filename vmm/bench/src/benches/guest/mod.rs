//! `nicforge bench guest`: the cost of the devices in guests. It also checks that posted writes and
//! packets need no message to the server and no exit.
//!
//! This process serves machines for two guests and this host. The first guest has a device of
//! registers and the I/O node of a pset. The second guest has the pset's compute node, and the
//! compute node of another pset, whose I/O node is a process of this host. Each guest has an EXTOLL
//! card, too. Two networks also connect the guests: one of QEMU's, and the served machine's virtio
//! network devices. The guests' kernels drive both in the same way. All is measured once for each
//! available accelerator and each driver.
//!
//! Counts are taken outside the guests:
//!
//! - the messages that the server took from QEMU,
//! - the device accesses that QEMU carried out, from its trace. Each of them is an exit of the
//!   guest.
//!
//! The counted machine's engine stays awake, so that no client has to wake it. Times are measured
//! on a machine whose engine sleeps as usual.
//!
//! | file | contents |
//! | --- | --- |
//! | `mod.rs` | the number of measurements, and the goals |
//! | `pair.rs` | the measurements with one pair of guests |
//! | `counts.rs` | counting |
//! | `guests.rs` | the guests |
//! | `machine.rs` | the machines |
//! | `worker.rs` | the parent's handle of a program in a guest or on the host |
//! | `child.rs` | that program |
//! | `velo.rs` | its end of a path of VELO |
//! | `order.rs` | the orders and answers between both |

mod child;
mod counts;
mod guests;
mod machine;
mod order;
mod pair;
mod velo;
mod worker;

use std::{os::fd::AsFd, time::Duration};

use nicforge::failure::{ErrorContext, Failure};
use nicforge_driver::Backoff;
use nicforge_guest::{Accelerator, Driver, Progress, Provision, Toolkit};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use self::pair::GuestPair;
use super::{fcnp::task::Direction, mmio::Effort};
use crate::{
    bench::{Bench, Run},
    process::unknown_task,
    row::{Backing, Goal, Outcome, Row},
};

/// The bench. `all` leaves it out, because it boots guests, which may first need a download of some
/// hundred megabytes.
pub const BENCH: Bench = Bench::new(
    "guest",
    "devices in QEMU guests: what passes without the server, registers, FCNP beside virtio-net (not in `all`)",
    run,
)
.with_child(run_child)
.not_in_all();

/// The task of all child processes: to be one end of the measured paths.
const END: &str = "end";

/// The message sizes of all measurements, and how often and how long each is measured.
#[derive(Clone, Copy, Debug)]
struct Sweep {
    /// The measured directions.
    directions: &'static [Direction],
    /// Sizes of messages.
    sizes: &'static [usize],
    /// Number of measurements of each contestant.
    rounds: usize,
    /// Approximate duration of a measurement of bandwidth in seconds.
    seconds: f64,
    /// Number of round trips in a measurement of latency.
    round_trips: u32,
    /// Number of posted writes, and of packets, that are counted.
    counted: u32,
}

/// The measurements of a full run.
const FULL: Sweep = Sweep {
    directions: &[Direction::IoToCompute, Direction::ComputeToIo],
    sizes: &[16, 4 << 10, 64 << 10, 1 << 20],
    rounds: 3,
    seconds: 0.5,
    round_trips: 400,
    counted: 1_000_000,
};
/// The measurements of a quick run.
const QUICK: Sweep = Sweep {
    directions: &[Direction::IoToCompute],
    sizes: &[16, 64 << 10],
    rounds: 1,
    seconds: 0.1,
    round_trips: 50,
    counted: 50_000,
};

/// Returns the amount of work for a device of registers in one measurement.
fn effort(quick: bool) -> Effort {
    if quick {
        Effort { rounds: 1, paced: 20, in_a_row: 40, batches: 3, sustained: Duration::from_millis(10) }
    } else {
        Effort { rounds: 3, paced: 100, in_a_row: 500, batches: 30, sustained: Duration::from_millis(100) }
    }
}

/// Runs a worker.
fn run_child(task: &str) -> Result<u8, Failure> {
    match task {
        END => child::main(),
        _ => Err(unknown_task(task)),
    }
}

/// Runs the benchmark.
fn run(run: &Run<'_>) -> Result<Outcome, Failure> {
    // The driver library chooses its waiting times once, by the number of usable processors. The
    // choice is made here, before this process is pinned.
    let _ = Backoff::default();
    let progress = progress(run)?;
    let toolkit = Provision::from_environment().provide(&progress)?;
    let mut outcome = Outcome::default();
    let accelerators = accelerators(run, &toolkit, &progress, &mut outcome.notes)?;
    let drivers = drivers(run, &toolkit, &progress, &mut outcome.notes);
    let sweep = if run.quick { QUICK } else { FULL };
    run.steps((accelerators.len() * drivers.len()) as u64 * GuestPair::steps(&sweep));

    for &accelerator in &accelerators {
        for &(driver, backing) in &drivers {
            let rows = pair::measure(run, &toolkit, &progress, &sweep, accelerator, driver, backing)?;
            outcome.goals.extend(goals(&rows, &sweep, accelerator, backing));
            outcome.rows.extend(rows);
        }
    }

    outcome.notes.extend(notes(&toolkit)?);
    Ok(outcome)
}

/// Returns the progress display, which is silent when a script reads the results. Ctrl-C ends the
/// work, and [`Run::check`] takes the signal later.
fn progress(run: &Run<'_>) -> Result<Progress, Failure> {
    let signals = run.ended().try_clone_to_owned().context(|| "signals".into())?;
    let progress = if run.is_silent() { Progress::silent() } else { Progress::on_stderr() };
    Ok(progress.cancelled_by(move || {
        let mut fds = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }))
}

/// Returns the accelerators to measure with. A quick run uses the best one.
fn accelerators(
    run: &Run<'_>,
    toolkit: &Toolkit,
    progress: &Progress,
    notes: &mut Vec<String>,
) -> Result<Vec<Accelerator>, Failure> {
    let choice = toolkit.accelerator(progress)?;
    if choice.accelerator == Accelerator::Tcg {
        notes.push(format!("kvm was left out: {}", choice.reason));
    } else if run.quick {
        notes.push("tcg was left out: this is a quick run".into());
    } else {
        return Ok(vec![Accelerator::Tcg, Accelerator::Kvm]);
    }

    Ok(vec![choice.accelerator])
}

/// Returns the drivers to measure with. A quick run uses the one that needs no module to be built.
fn drivers(
    run: &Run<'_>,
    toolkit: &Toolkit,
    progress: &Progress,
    notes: &mut Vec<String>,
) -> Vec<(Driver, Backing)> {
    let mut drivers = vec![(Driver::Vfio, Backing::Vfio)];
    if run.quick {
        notes.push("the shim was left out: this is a quick run".into());
        return drivers;
    }

    match toolkit.shim(progress) {
        Ok(_) => drivers.push((Driver::Shim, Backing::Shim)),
        Err(error) => notes.push(format!("the shim was left out: {error}")),
    }

    drivers
}

/// Returns the goals for one pair of guests: no exit and no message to the server is counted.
fn goals(rows: &[Row], sweep: &Sweep, accelerator: Accelerator, backing: Backing) -> Vec<Goal> {
    let mut goals = Vec::new();
    for (path, operations) in [(counts::POSTED, "posted writes"), (counts::PACKETS, "packets")] {
        let Some(row) = rows.iter().find(|row| row.path == path) else { continue };
        for (figure, name) in [("server_messages", "server messages"), ("exits", "exits to the devices")] {
            let Some(&measured) = row.figures.get(figure) else { continue };
            let number = sweep.counted;
            let (accelerator, backing) = (accelerator.name(), backing.name());
            goals.push(Goal::at_most(
                format!("{name} during {number} {operations}; {accelerator}, {backing}"),
                0.0,
                measured,
            ));
        }
    }

    goals
}

/// Returns the notes below the table.
fn notes(toolkit: &Toolkit) -> Result<Vec<String>, Failure> {
    Ok(vec![
        format!(
            "QEMU {}, Linux {} in the guests, a processor each; two guests and a process of this host share the processors here",
            toolkit.qemu()?.version(),
            toolkit.kernel.version
        ),
        "vfio: behind a virtual IOMMU that confines DMA; shim: without one".into(),
        "counted-*: server_messages are those that the server took from QEMU, exits the accesses of devices that QEMU carried out itself. \
         Their engine stays awake; counted-trapped-* show that what is to be counted is"
            .into(),
        "times are those of an engine that sleeps as usual. trapped-read and irq: 300 us of rest before each, both sides block; \
         trapped-read-hot, trapped-write: one after the other; posted-write: means of batches of 1000, its rate that of writing without a pause"
            .into(),
        "latencies of messages are half round trips. virtio-net-tcp: the same guests, a network of QEMU's without offloads (its \
         dgram on UNIX sockets); nicforge-virtio-net-tcp: the served machine's network devices and switch, with checksum offload. \
         velo carries messages of 64 bytes at most, so that it has rows of 16 bytes alone"
            .into(),
    ])
}
