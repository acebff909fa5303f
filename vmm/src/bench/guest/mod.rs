//! `nicforge bench guest`: what the devices cost in guests, and that what is to pass without the server and without an exit does.
//!
//! Two guests and this host are on machines that this process serves. In the first guest is a device of registers and the I/O node of a
//! pset, in the second the pset's compute node and another one, whose I/O node is a process of this host. Between the guests is a
//! virtual network too. All is measured once for each accelerator that works here and each way to a device in a guest.
//!
//! What is counted is counted twice, from outside: the messages that the server took from QEMU, and the accesses of the devices
//! that QEMU itself carried out, which its trace shows; each of these left the guest. The machine it is counted on has an engine that stays
//! awake, so that nobody has to wake it; times are measured on one that sleeps as usual.
//!
//! - `mod.rs`: what is run how often, and the goals; `session.rs`: the measurements with one pair of guests; `counts.rs`: the counting;
//! - `place.rs`: the guests; `machine.rs`: the machines;
//! - `end.rs`, `child.rs`, `order.rs`: the programs in the guests and on the host, from outside, from inside, and between.

mod child;
mod counts;
mod end;
mod machine;
mod order;
mod place;
mod session;

use std::{os::fd::AsFd, time::Duration};

use nicforge_driver::Patience;
use nicforge_guest::{Accelerator, Driver, Provision, Toolkit, Watch};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use self::session::Session;
use super::{
    Run,
    fcnp::task::Direction,
    mmio::Effort,
    row::{Backing, Goal, Outcome, Row},
};
use crate::failure::{Doing, Failure};

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Extent {
    /// Who sends.
    directions: &'static [Direction],
    /// Sizes of messages.
    sizes: &'static [usize],
    /// Turns of all that is compared.
    rounds: usize,
    /// Seconds of a bandwidth's measurement, about.
    seconds: f64,
    /// Round trips of a latency's measurement.
    round_trips: u32,
    /// Posted writes, and packets, that are counted.
    counted: u32,
}

const FULL: Extent = Extent {
    directions: &[Direction::IoToCompute, Direction::ComputeToIo],
    sizes: &[16, 4 << 10, 64 << 10, 1 << 20],
    rounds: 3,
    seconds: 0.5,
    round_trips: 400,
    counted: 1_000_000,
};
const QUICK: Extent = Extent {
    directions: &[Direction::IoToCompute],
    sizes: &[16, 64 << 10],
    rounds: 1,
    seconds: 0.1,
    round_trips: 50,
    counted: 50_000,
};

/// How much of a device of registers is measured in a turn.
fn effort(quick: bool) -> Effort {
    if quick {
        Effort { rounds: 1, paced: 20, in_a_row: 40, batches: 3, sustained: Duration::from_millis(10) }
    } else {
        Effort { rounds: 3, paced: 100, in_a_row: 500, batches: 30, sustained: Duration::from_millis(100) }
    }
}

/// The body of an end.
pub(super) fn part(part: &str) -> Result<u8, Failure> {
    match part {
        "end" => child::main(),
        _ => Err(Failure::usage("this is for the bench itself")),
    }
}

pub(super) fn run(run: &Run<'_>) -> Result<Outcome, Failure> {
    // How patient the library is depends on how many processors it may use: ask while it is all of them.
    let _ = Patience::default();
    let watch = watch(run)?;
    let toolkit = Provision::from_environment().provide(&watch)?;
    let mut outcome = Outcome::default();
    let accelerators = accelerators(run, &toolkit, &watch, &mut outcome.notes)?;
    let drivers = drivers(run, &toolkit, &watch, &mut outcome.notes);
    let extent = if run.quick { QUICK } else { FULL };
    run.steps((accelerators.len() * drivers.len()) as u64 * Session::steps(&extent));
    for &accelerator in &accelerators {
        for &(driver, backing) in &drivers {
            let rows = session::measure(run, &toolkit, &watch, &extent, accelerator, driver, backing)?;
            outcome.goals.extend(goals(&rows, &extent, accelerator, backing));
            outcome.rows.extend(rows);
        }
    }
    outcome.notes.extend(notes(&toolkit));
    Ok(outcome)
}

/// Progress, unless a script reads the results; Ctrl-C ends the work, and is left for [`Run::check`] to take.
fn watch(run: &Run<'_>) -> Result<Watch, Failure> {
    let signals = run.signals().fd().try_clone_to_owned().doing(|| "signals".into())?;
    let watch = if run.progress.is_hidden() { Watch::silent() } else { Watch::on_stderr() };
    Ok(watch.cancelled_by(move || {
        let mut fds = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }))
}

/// Those to measure with. A quick run takes the best one.
fn accelerators(
    run: &Run<'_>,
    toolkit: &Toolkit,
    watch: &Watch,
    notes: &mut Vec<String>,
) -> Result<Vec<Accelerator>, Failure> {
    let choice = toolkit.accelerator(watch)?;
    if choice.accelerator == Accelerator::Tcg {
        notes.push(format!("kvm was left out: {}", choice.reason));
    } else if run.quick {
        notes.push("tcg was left out: this is a quick run".into());
    } else {
        return Ok(vec![Accelerator::Tcg, Accelerator::Kvm]);
    }
    Ok(vec![choice.accelerator])
}

/// The ways to a device. A quick run takes the one that nothing has to be built for.
fn drivers(
    run: &Run<'_>,
    toolkit: &Toolkit,
    watch: &Watch,
    notes: &mut Vec<String>,
) -> Vec<(Driver, Backing)> {
    let mut drivers = vec![(Driver::Vfio, Backing::Vfio)];
    if run.quick {
        notes.push("the shim was left out: this is a quick run".into());
        return drivers;
    }
    match toolkit.shim(watch) {
        Ok(_) => drivers.push((Driver::Shim, Backing::Shim)),
        Err(error) => notes.push(format!("the shim was left out: {error}")),
    }
    drivers
}

/// What is wanted of the rows of one pair of guests: that nothing was counted.
fn goals(rows: &[Row], extent: &Extent, accelerator: Accelerator, backing: Backing) -> Vec<Goal> {
    let mut goals = Vec::new();
    for (path, what) in [(counts::POSTED, "posted writes"), (counts::PACKETS, "packets")] {
        let Some(row) = rows.iter().find(|row| row.path == path) else { continue };
        for (figure, name) in [("server_messages", "server messages"), ("exits", "exits to the devices")] {
            let Some(&measured) = row.figures.get(figure) else { continue };
            let number = extent.counted;
            let (accelerator, backing) = (accelerator.name(), backing.name());
            goals.push(Goal::at_most(
                format!("{name} during {number} {what}; {accelerator}, {backing}"),
                0.0,
                measured,
            ));
        }
    }
    goals
}

fn notes(toolkit: &Toolkit) -> Vec<String> {
    vec![
        format!(
            "QEMU {}, Linux {} in the guests, a processor each; two guests and a process of this host share the processors here",
            toolkit.qemu.version(),
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
         dgram on UNIX sockets)"
            .into(),
    ]
}
