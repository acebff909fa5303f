//! J. W. Romein, *FCNP: Fast I/O on the Blue Gene/P*: bandwidth and latency of FCNP between an I/O
//! node and a compute node, beside bare packets and beside CIOD's sockets (section VI).
//!
//! The library is FCNP as it is, on the tree NIC with the paper's link. The costs of software are
//! those of a core of 850 MHz. Four are calibrated, each by one row: a packet between memory and a
//! FIFO, a lock on the I/O node, taking the FIFO over from the daemon's thread, and a byte copied
//! by CIOD's sockets. The three penalties of an interrupt calibrate themselves. Everything else
//! follows. `rows.rs` has the paper's values.

mod rows;

use nicforge::failure::Failure;
use nicforge_driver::runtime::Cost;

use super::{
    experiment::{Experiment, Mechanism, Run},
    figure::{Axis, Figure, Scale, Series},
};
use crate::{
    interrupted::Interrupted,
    pset::{Direction, Pset, PsetError, Waiting},
    world::{Picos, Profile},
};

/// The time of software.
const SOFTWARE_COST: Mechanism =
    Mechanism { name: "software-cost", without: "software takes no time: only links do" };
/// The time until a call has the FIFO.
const HAND_OFF: Mechanism =
    Mechanism { name: "hand-off", without: "a call takes the FIFO over from the daemon's thread in no time" };
/// The bytes of headers.
const PROTOCOL_BYTES: Mechanism =
    Mechanism { name: "protocol-bytes", without: "packets have no header on the link" };

/// The experiments of the paper.
pub const FCNP: Experiment = Experiment {
    name: "fcnp",
    title: "FCNP on the Blue Gene/P",
    citation: "J. W. Romein, FCNP: Fast I/O on the Blue Gene/P, PDPTA 2009",
    mechanisms: &[SOFTWARE_COST, HAND_OFF, PROTOCOL_BYTES],
    rows: rows::all,
    run,
};

/// Payload of a packet in bytes, and its header.
const PAYLOAD_BYTES: f64 = 256.0;
const HEADER_BYTES: f64 = 4.0;
/// Rate of the link in Gb/s.
const LINK_GBIT_S: f64 = 6.8;
/// Time from the end of a transmission to the arrival of the packet, in nanoseconds. The paper does
/// not name it. Blue Gene/L's tree took 1.5 us for 16 hops.
const HOP_NS: u64 = 90;
/// Time in which software reads a FIFO's status, in nanoseconds: some forty cycles of the core. The
/// paper does not name it.
const POLL_NS: u64 = 50;

/// Calibrated: time of a packet between memory and a FIFO, in nanoseconds.
const PACKET_NS: f64 = 313.1;
/// Calibrated: time of an uncontended lock of the I/O node, in nanoseconds.
const LOCK_NS: f64 = 74.0;
/// Calibrated: time until a call has taken the FIFO over from the daemon's thread, in nanoseconds.
const TAKE_OVER_NS: f64 = 11_780.0;
/// Calibrated: time of a byte copied between an application and the kernel, in nanoseconds.
const COPY_BYTE_NS: f64 = 1.75;
/// Time of a system call on either node, in nanoseconds. The paper does not name it.
const SYSTEM_CALL_NS: f64 = 2_000.0;
/// Calibrated: penalties of an interrupt in microseconds, by the core on which threads run.
const INTERRUPT_PENALTIES: [(&str, f64); 3] =
    [("neither thread on core 0", 8.0), ("the daemon on core 0", 5.0), ("the application on core 0", 26.0)];

/// Messages of a stream. The simulation is deterministic: all messages but the first take the same
/// time.
const MESSAGES: u32 = 8;
const KIB: usize = 1 << 10;
const LARGE: usize = 1 << 20;

/// The mechanisms of the model that this run has, and its seed.
struct Model<'a> {
    software: bool,
    take_over: f64,
    rate: f64,
    seed: u64,
    interrupted: Interrupted<'a>,
}

impl<'a> Model<'a> {
    /// Returns the model with the mechanisms that this run has. Without the bytes of headers the
    /// link is faster by their share.
    fn of(run: &Run<'a>) -> Self {
        let take_over = if run.has(&HAND_OFF) { TAKE_OVER_NS } else { 0.0 };
        let rate = if run.has(&PROTOCOL_BYTES) {
            LINK_GBIT_S
        } else {
            LINK_GBIT_S * (PAYLOAD_BYTES + HEADER_BYTES) / PAYLOAD_BYTES
        };
        let (seed, interrupted) = (run.seed(), run.interrupted());
        Self { software: run.has(&SOFTWARE_COST), take_over, rate, seed, interrupted }
    }

    /// Returns the pset, whose I/O node pays `interrupt` microseconds for each interrupt.
    fn pset(&self, waiting: Waiting, interrupt: f64) -> Pset<'a> {
        let compute = self.profile([(Cost::SendPacket, PACKET_NS), (Cost::ReceivePacket, PACKET_NS)].into());
        let io = self.profile(vec![
            (Cost::SendPacket, PACKET_NS),
            (Cost::ReceivePacket, PACKET_NS),
            (Cost::Lock, LOCK_NS),
            (Cost::HandOff, self.take_over),
            (Cost::InterruptWake, interrupt * 1e3),
            (Cost::SystemCall, SYSTEM_CALL_NS),
            (Cost::CopyByte, COPY_BYTE_NS),
        ]);

        // A thread that the daemon wakes runs after the same time as a call that takes the FIFO
        // over.
        let wake = if self.software { self.take_over } else { 0.0 };
        let io = io.with_wake(Picos::of_nanos(wake));
        let link = format!("delay_ns = {HOP_NS}\ngbit_s = {}\ncut_through_bytes = 4", self.rate);
        Pset { link, io, compute, waiting, seed: self.seed, interrupted: self.interrupted }
    }

    /// Returns the pset whose I/O node polls.
    fn polling(&self) -> Pset<'a> {
        self.pset(Waiting::Polling, 0.0)
    }

    /// Returns the profile of a core with these costs, or without any if software takes no time.
    fn profile(&self, costs: Vec<(Cost, f64)>) -> Profile {
        let poll = if self.software { Picos::nanos(POLL_NS) } else { Picos::nanos(1) };
        let costs = if self.software { costs } else { Vec::new() };
        Profile::of_nanos(costs).with_poll(poll)
    }
}

/// Returns the bandwidth in Gb/s of messages that each take this time.
fn gigabits_per_s(bytes: usize, time: Picos) -> f64 {
    bytes as f64 * 8.0 / time.as_nanos()
}

/// Fits the paper's simplified LogGP model: the time of a message is the latency and its bytes'
/// time. Returns the latency in us, and the time of a byte in ns.
fn fit_log_gp(pset: &Pset<'_>, direction: Direction) -> Result<(f64, f64), PsetError> {
    let (short, long) = (16 * KIB, LARGE);
    let [short_time, long_time] =
        [pset.stream(direction, short, MESSAGES)?, pset.stream(direction, long, MESSAGES)?];
    let per_byte = (long_time.as_nanos() - short_time.as_nanos()) / (long - short) as f64;
    Ok(((short_time.as_nanos() - per_byte * short as f64) / 1e3, per_byte))
}

/// Measures all rows and figures.
fn run(run: &mut Run<'_>) -> Result<(), Failure> {
    let model = Model::of(run);
    let polling = model.polling();

    measure_packets(run, &model)?;
    measure_latency(run, &polling)?;
    measure_bandwidth(run, &polling)?;
    measure_interrupts(run, &model)?;
    measure_ciod(run, &polling)?;
    if !run.is_quick() {
        draw_curves(run, &model)?;
    }

    run.note(format!(
        "assumed, because the paper does not name them: {HOP_NS} ns a hop, {POLL_NS} ns a look at a FIFO, \
         {SYSTEM_CALL_NS} ns a system call"
    ));
    Ok(())
}

/// Measures bare packets: the link's ceiling, and what a core achieves.
fn measure_packets(run: &mut Run<'_>, model: &Model<'_>) -> Result<(), Failure> {
    run.measure(rows::free_packets(), |_| {
        let fast = Model { software: false, ..*model };
        let packet = fast.polling().packets(Direction::ToIo, 4_000)?;
        Ok(gigabits_per_s(PAYLOAD_BYTES as usize, packet))
    })?;

    let polling = model.polling();
    run.measure(rows::packets(), |_| {
        Ok(gigabits_per_s(PAYLOAD_BYTES as usize, polling.packets(Direction::ToIo, 1_000)?))
    })?;
    Ok(())
}

/// Measures the latencies of a request.
fn measure_latency(run: &mut Run<'_>, polling: &Pset<'_>) -> Result<(), Failure> {
    run.measure(rows::awaited_latency(), |_| {
        Ok(polling.awaited(Direction::ToCompute, 240, MESSAGES)?.as_nanos() / 1e3)
    })?;

    let (read, per_byte) = fit_log_gp(polling, Direction::ToCompute)?;
    run.record(rows::read_latency(), read)?;
    run.record(rows::time_of_a_byte(), per_byte)?;

    let (write, _) = fit_log_gp(polling, Direction::ToIo)?;
    run.record(rows::write_latency(), write - read)
}

/// Measures the bandwidths of long messages.
fn measure_bandwidth(run: &mut Run<'_>, polling: &Pset<'_>) -> Result<(), Failure> {
    let best = gigabits_per_s(PAYLOAD_BYTES as usize, polling.packets(Direction::ToIo, 1_000)?);
    let percent = |direction, bytes: usize, messages| -> Result<f64, Failure> {
        Ok(100.0 * gigabits_per_s(bytes, polling.stream(direction, bytes, messages)?) / best)
    };

    for size in rows::SIZES {
        run.measure(rows::bandwidth_of_size(size), |_| percent(Direction::ToCompute, size.0, MESSAGES))?;
    }
    for (direction, name) in rows::DIRECTIONS {
        run.measure(rows::long_message(name), |_| percent(direction, 16 * LARGE, 2))?;
    }

    let both = polling.both_ways(4 * LARGE, 3)?;
    for (name, time) in rows::BOTH.into_iter().zip(both) {
        run.record(rows::both_ways(name), 100.0 * gigabits_per_s(4 * LARGE, time) / best)?;
    }
    Ok(())
}

/// Measures the penalties of interrupts, and the messages that have one.
fn measure_interrupts(run: &mut Run<'_>, model: &Model<'_>) -> Result<(), Failure> {
    // The time of a message less that of its bytes.
    let overhead = |pset: &Pset<'_>, direction, bytes: usize| -> Result<f64, Failure> {
        Ok((pset.stream(direction, bytes, MESSAGES)?.as_nanos() - bytes as f64 / PAYLOAD_BYTES * PACKET_NS)
            / 1e3)
    };

    for interrupt in INTERRUPT_PENALTIES {
        let pset = model.pset(Waiting::Interrupt, interrupt.1);
        run.measure(rows::interrupt(interrupt), |_| {
            Ok(overhead(&pset, Direction::ToCompute, 256 * KIB)?
                - overhead(&pset, Direction::ToCompute, 16 * KIB)?)
        })?;
    }

    let pset = model.pset(Waiting::Interrupt, INTERRUPT_PENALTIES[0].1);
    for penalty in rows::PENALTIES {
        run.measure(rows::penalty(penalty), |_| {
            Ok(overhead(&pset, penalty.direction, penalty.bytes)?
                - overhead(&pset, penalty.direction, 16 * KIB)?)
        })?;
    }
    Ok(())
}

/// Measures the sockets that FCNP replaces.
fn measure_ciod(run: &mut Run<'_>, polling: &Pset<'_>) -> Result<(), Failure> {
    run.measure(rows::ciod(), |_| Ok(gigabits_per_s(LARGE, polling.ciod(LARGE, MESSAGES)?)))?;
    Ok(())
}

/// Latency of a read and of a write of a compute node in the paper's text, in nanoseconds.
const READ_NS: f64 = 13_300.0;
const WRITE_NS: f64 = 13_900.0;
/// Time of a byte of a message in the paper's text, in nanoseconds.
const BYTE_NS: f64 = 1.22;

/// Draws figure 7: bandwidth by message size.
fn draw_curves(run: &mut Run<'_>, model: &Model<'_>) -> Result<(), Failure> {
    let sizes: Vec<usize> = (8..=22).map(|order| 1 << order).collect();
    let polling = model.polling();
    let interrupt = model.pset(Waiting::Interrupt, INTERRUPT_PENALTIES[0].1);

    for (direction, name, title) in [
        (Direction::ToCompute, "to-compute", "From the I/O node to the compute node"),
        (Direction::ToIo, "to-io", "From the compute node to the I/O node"),
    ] {
        let curve = |pset: &Pset<'_>| -> Result<Vec<(f64, f64)>, Failure> {
            sizes
                .iter()
                .map(|&bytes| {
                    run.show(format!("figure 7, {bytes} bytes"))?;
                    Ok((bytes as f64, gigabits_per_s(bytes, pset.stream(direction, bytes, 2)?)))
                })
                .collect()
        };

        // The points that follow from the latency and the time of a byte in the paper's text.
        let latency = if direction == Direction::ToCompute { READ_NS } else { WRITE_NS };
        let stated: Vec<_> = sizes
            .iter()
            .filter(|&&bytes| bytes >= 4 * KIB)
            .map(|&bytes| (bytes as f64, bytes as f64 * 8.0 / (latency + BYTE_NS * bytes as f64)))
            .collect();
        let mut series = vec![
            Series::new("FCNP, polling", stated, curve(&polling)?),
            Series::new("FCNP, interrupts", [], curve(&interrupt)?),
        ];
        if direction == Direction::ToIo {
            let ciod: Result<Vec<_>, Failure> = sizes
                .iter()
                .map(|&bytes| Ok((bytes as f64, gigabits_per_s(bytes, polling.ciod(bytes, 2)?))))
                .collect();
            series.push(Series::new("CIOD's sockets", [], ciod?));
        }

        run.figure(Figure {
            name,
            title: format!("Figure 7: {title}"),
            x: Axis::new("message size (bytes)", Scale::Log2),
            y: Axis::new("bandwidth (Gb/s)", Scale::Linear),
            series,
        });
    }
    Ok(())
}
