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
    figure::{Axis, Figure, Point, Scale, Series},
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

/// Bytes of a packet's payload.
const PAYLOAD_BYTES: f64 = 256.0;
/// Bytes of a packet's header.
const HEADER_BYTES: f64 = 4.0;
/// Bytes of a message that travels in the request or the acknowledgement alone.
const IN_REQUEST_BYTES: usize = 240;
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
/// Bare packets of a measurement.
const PACKETS: usize = 1_000;
/// Bare packets of a measurement in which software takes no time.
const FAST_PACKETS: usize = 4_000;
const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// The values of the model that depend on the mechanisms of this run, and its seed.
struct Model<'a> {
    /// Whether software takes time.
    software_cost: bool,
    /// Time until a call has taken the FIFO over, in nanoseconds.
    take_over_ns: f64,
    /// Rate of the link in Gb/s.
    link_gbit_s: f64,
    seed: u64,
    interrupted: Interrupted<'a>,
}

impl<'a> Model<'a> {
    /// Returns the model with the mechanisms that this run has. Without the bytes of headers the
    /// link is faster by their share.
    fn of(run: &Run<'a>) -> Self {
        let link_gbit_s = if run.has(&PROTOCOL_BYTES) {
            LINK_GBIT_S
        } else {
            LINK_GBIT_S * (PAYLOAD_BYTES + HEADER_BYTES) / PAYLOAD_BYTES
        };
        Self {
            software_cost: run.has(&SOFTWARE_COST),
            take_over_ns: if run.has(&HAND_OFF) { TAKE_OVER_NS } else { 0.0 },
            link_gbit_s,
            seed: run.seed(),
            interrupted: run.interrupted(),
        }
    }

    /// Returns the pset, in which an interrupt of the I/O node takes `interrupt_us` microseconds.
    fn pset(&self, waiting: Waiting, interrupt_us: f64) -> Pset<'a> {
        let compute = self.profile([(Cost::SendPacket, PACKET_NS), (Cost::ReceivePacket, PACKET_NS)].into());
        let io = self.profile(vec![
            (Cost::SendPacket, PACKET_NS),
            (Cost::ReceivePacket, PACKET_NS),
            (Cost::Lock, LOCK_NS),
            (Cost::HandOff, self.take_over_ns),
            (Cost::InterruptWake, interrupt_us * 1e3),
            (Cost::SystemCall, SYSTEM_CALL_NS),
            (Cost::CopyByte, COPY_BYTE_NS),
        ]);

        // A thread that the daemon wakes runs after the same time as a call that takes the FIFO
        // over.
        let wake_ns = if self.software_cost { self.take_over_ns } else { 0.0 };
        let io = io.with_wake(Picos::of_nanos(wake_ns));
        let link =
            format!("delay_ns = {HOP_NS}\ngbit_s = {}\ncut_through_bytes = {HEADER_BYTES}", self.link_gbit_s);
        Pset { link, io, compute, waiting, seed: self.seed, interrupted: self.interrupted }
    }

    /// Returns the pset whose I/O node polls.
    fn polling(&self) -> Pset<'a> {
        self.pset(Waiting::Polling, 0.0)
    }

    /// Returns the profile of a core with these costs, or without any if software takes no time.
    fn profile(&self, costs: Vec<(Cost, f64)>) -> Profile {
        let poll = if self.software_cost { Picos::nanos(POLL_NS) } else { Picos::nanos(1) };
        let costs = if self.software_cost { costs } else { Vec::new() };
        Profile::of_nanos(costs).with_poll(poll)
    }
}

/// Returns the bandwidth in Gb/s of messages that each take this time.
fn gigabits_per_s(bytes: usize, time: Picos) -> f64 {
    bytes as f64 * 8.0 / time.as_nanos()
}

/// The paper's simplified LogGP model: the time of a message is the latency and its bytes' time.
struct LogGp {
    latency_us: f64,
    /// Time of a byte in nanoseconds.
    byte_ns: f64,
}

impl LogGp {
    /// Fits the model to the times of a short and a long message.
    fn fit(pset: &Pset<'_>, direction: Direction) -> Result<Self, PsetError> {
        let (short_bytes, long_bytes) = (16 * KIB, MIB);
        let short_ns = pset.stream(direction, short_bytes, MESSAGES)?.as_nanos();
        let long_ns = pset.stream(direction, long_bytes, MESSAGES)?.as_nanos();

        let byte_ns = (long_ns - short_ns) / (long_bytes - short_bytes) as f64;
        Ok(Self { latency_us: (short_ns - byte_ns * short_bytes as f64) / 1e3, byte_ns })
    }
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

/// Measures the bandwidth of bare packets: with software that takes no time, in which the link is
/// busy all the time, and with the costs of the cores.
fn measure_packets(run: &mut Run<'_>, model: &Model<'_>) -> Result<(), Failure> {
    run.measure(rows::free_packets(), |_| {
        let fast = Model { software_cost: false, ..*model };
        let packet = fast.polling().packets(Direction::ToIo, FAST_PACKETS)?;
        Ok(gigabits_per_s(PAYLOAD_BYTES as usize, packet))
    })?;

    let polling = model.polling();
    run.measure(rows::packets(), |_| {
        Ok(gigabits_per_s(PAYLOAD_BYTES as usize, polling.packets(Direction::ToIo, PACKETS)?))
    })?;
    Ok(())
}

/// Measures the latencies of a read and of a write, and the time of a byte.
fn measure_latency(run: &mut Run<'_>, polling: &Pset<'_>) -> Result<(), Failure> {
    run.measure(rows::awaited_latency(), |_| {
        Ok(polling.awaited(Direction::ToCompute, IN_REQUEST_BYTES, MESSAGES)?.as_nanos() / 1e3)
    })?;

    let read = LogGp::fit(polling, Direction::ToCompute)?;
    run.record(rows::read_latency(), read.latency_us)?;
    run.record(rows::time_of_a_byte(), read.byte_ns)?;

    let write = LogGp::fit(polling, Direction::ToIo)?;
    run.record(rows::write_latency(), write.latency_us - read.latency_us)
}

/// Measures the bandwidths of long messages, in percent of that of bare packets.
fn measure_bandwidth(run: &mut Run<'_>, polling: &Pset<'_>) -> Result<(), Failure> {
    // The longest messages, and those of both directions at once: bytes of one, and their number.
    const LONGEST: (usize, u32) = (16 * MIB, 2);
    const BOTH_WAYS: (usize, u32) = (4 * MIB, 3);

    let best = gigabits_per_s(PAYLOAD_BYTES as usize, polling.packets(Direction::ToIo, PACKETS)?);
    let percent = |direction, bytes: usize, messages| -> Result<f64, Failure> {
        Ok(100.0 * gigabits_per_s(bytes, polling.stream(direction, bytes, messages)?) / best)
    };

    for (bytes, paper, null_model) in rows::SIZES {
        run.measure(rows::bandwidth_of_size(bytes, paper, null_model), |_| {
            percent(Direction::ToCompute, bytes, MESSAGES)
        })?;
    }
    for (direction, name) in rows::DIRECTIONS {
        let (bytes, messages) = LONGEST;
        run.measure(rows::long_message(name), |_| percent(direction, bytes, messages))?;
    }

    let (bytes, messages) = BOTH_WAYS;
    let both = polling.both_ways(bytes, messages)?;
    for (name, time) in rows::BOTH.into_iter().zip(both) {
        run.record(rows::both_ways(name), 100.0 * gigabits_per_s(bytes, time) / best)?;
    }
    Ok(())
}

/// Measures the penalties of interrupts, and the messages that have one.
fn measure_interrupts(run: &mut Run<'_>, model: &Model<'_>) -> Result<(), Failure> {
    /// Bytes of a message without an interrupt: the I/O node still polls when it ends.
    const SHORT_BYTES: usize = 16 * KIB;
    /// Bytes of a message with an interrupt.
    const LONG_BYTES: usize = 256 * KIB;

    // The time of a message less that of its packets, in microseconds.
    let overhead_us = |pset: &Pset<'_>, direction, bytes: usize| -> Result<f64, Failure> {
        let packets_ns = bytes as f64 / PAYLOAD_BYTES * PACKET_NS;
        Ok((pset.stream(direction, bytes, MESSAGES)?.as_nanos() - packets_ns) / 1e3)
    };
    let penalty_us = |pset: &Pset<'_>, direction, bytes: usize| -> Result<f64, Failure> {
        Ok(overhead_us(pset, direction, bytes)? - overhead_us(pset, direction, SHORT_BYTES)?)
    };

    for (threads, interrupt_us) in INTERRUPT_PENALTIES {
        let pset = model.pset(Waiting::Interrupt, interrupt_us);
        run.measure(rows::interrupt(threads, interrupt_us), |_| {
            penalty_us(&pset, Direction::ToCompute, LONG_BYTES)
        })?;
    }

    let (_, interrupt_us) = INTERRUPT_PENALTIES[0];
    let pset = model.pset(Waiting::Interrupt, interrupt_us);
    for penalty in rows::PENALTIES {
        run.measure(rows::penalty(penalty), |_| penalty_us(&pset, penalty.direction, penalty.bytes))?;
    }
    Ok(())
}

/// Measures the sockets that FCNP replaces.
fn measure_ciod(run: &mut Run<'_>, polling: &Pset<'_>) -> Result<(), Failure> {
    run.measure(rows::ciod(), |_| Ok(gigabits_per_s(MIB, polling.ciod(MIB, MESSAGES)?)))?;
    Ok(())
}

/// Latency of a read of a compute node in the paper's text, in nanoseconds.
const READ_NS: f64 = 13_300.0;
/// Latency of a write of a compute node in the paper's text, in nanoseconds.
const WRITE_NS: f64 = 13_900.0;
/// Time of a byte of a message in the paper's text, in nanoseconds.
const BYTE_NS: f64 = 1.22;

/// Returns the bandwidths of messages of 4 KB and more that follow from the latency and the time of
/// a byte in the paper's text.
fn stated_curve(direction: Direction, sizes: &[usize]) -> Vec<Point> {
    let latency_ns = if direction == Direction::ToCompute { READ_NS } else { WRITE_NS };
    let long = sizes.iter().filter(|&&bytes| bytes >= 4 * KIB);
    long.map(|&bytes| (bytes as f64, bytes as f64 * 8.0 / (latency_ns + BYTE_NS * bytes as f64))).collect()
}

/// Draws figure 7: bandwidth by message size.
fn draw_curves(run: &mut Run<'_>, model: &Model<'_>) -> Result<(), Failure> {
    const MESSAGES_OF_POINT: u32 = 2;
    let sizes: Vec<usize> = (8..=22).map(|order| 1 << order).collect();
    let polling = model.polling();
    let (_, interrupt_us) = INTERRUPT_PENALTIES[0];
    let interrupt = model.pset(Waiting::Interrupt, interrupt_us);

    for (direction, name, title) in [
        (Direction::ToCompute, "to-compute", "From the I/O node to the compute node"),
        (Direction::ToIo, "to-io", "From the compute node to the I/O node"),
    ] {
        let curve = |pset: &Pset<'_>| -> Result<Vec<Point>, Failure> {
            sizes
                .iter()
                .map(|&bytes| {
                    run.show(format!("figure 7, {bytes} bytes"))?;
                    Ok((
                        bytes as f64,
                        gigabits_per_s(bytes, pset.stream(direction, bytes, MESSAGES_OF_POINT)?),
                    ))
                })
                .collect()
        };

        let mut series = vec![
            Series::new("FCNP, polling", stated_curve(direction, &sizes), curve(&polling)?),
            Series::new("FCNP, interrupts", [], curve(&interrupt)?),
        ];
        if direction == Direction::ToIo {
            let ciod: Result<Vec<_>, Failure> = sizes
                .iter()
                .map(|&bytes| {
                    Ok((bytes as f64, gigabits_per_s(bytes, polling.ciod(bytes, MESSAGES_OF_POINT)?)))
                })
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
