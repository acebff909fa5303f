//! R. Brightwell, K. T. Pedretti, K. D. Underwood and T. Hudson, *SeaStar Interconnect: Balanced
//! Bandwidth for Scalable Performance*: latency, bandwidth and message rates of Portals in
//! host-based and in NIC-based mode.
//!
//! The paper prints figures without tables. So the rows are the inequalities and shapes of its
//! text. The library is Portals as it is, the firmware that of the device, on a line of nodes with
//! Red Storm's links: a torus in the dimension z alone.

mod protocol;
mod rows;
mod stages;

use nicforge::failure::Failure;
use nicforge_driver::runtime::Cost;
use nicforge_portals::Mode;

use self::stages::Stage;
use super::{
    experiment::{Experiment, Mechanism, Run},
    figure::{Axis, Figure, Scale, Series},
};
use crate::{
    seastar::{
        SeaStars, SeaStarsError,
        programs::{Collective, Posting, Streams},
    },
    world::{Picos, Profile},
};

/// The time of interrupts.
const INTERRUPTS: Mechanism = Mechanism { name: "interrupts", without: "an interrupt takes no time" };
/// The firmware's flow control.
const PROTOCOL: Mechanism =
    Mechanism { name: "protocol", without: "no message is acknowledged or repeated by flow control" };
/// The time of software.
const SOFTWARE_COST: Mechanism =
    Mechanism { name: "software-cost", without: "software takes no time, on the host and on the card" };

/// The experiments of the paper.
pub const SEASTAR: Experiment = Experiment {
    name: "seastar",
    title: "SeaStar: Portals in host-based and NIC-based mode",
    citation: "R. Brightwell, K. T. Pedretti, K. D. Underwood, T. Hudson, SeaStar Interconnect: Balanced Bandwidth \
               for Scalable Performance, IEEE Micro 26(3), 2006",
    mechanisms: &[SOFTWARE_COST, INTERRUPTS, PROTOCOL],
    rows: rows::all,
    run,
};

/// Frequency of the embedded processor in MHz.
const FIRMWARE_MHZ: u32 = 500;
/// Rate of a link's payload in Gb/s.
const LINK_GBIT_S: f64 = 20.0;
/// Delay of a hop in nanoseconds. The paper does not name it; it calls the router's share of the
/// latency small.
const HOP_NS: u32 = 60;
/// Rate in Gb/s of a link that takes next to no time.
const INSTANT_LINK_GBIT_S: f64 = 10_000.0;
/// Time of a system call of Catamount in nanoseconds (section *MPI receive posting*).
const SYSTEM_CALL_NS: f64 = 65.0;

/// Calibrated by the peak bandwidth: rate of the host interface in MB/s.
const HOST_MB_S: u32 = 1_150;
/// Calibrated by the round trip of a call: time of 64 bytes from the processor to the card's
/// memory, in nanoseconds.
const STORE_NS: f64 = 150.0;
/// Calibrated by the same: time of a load of the card's memory, in nanoseconds.
const LOAD_NS: f64 = 310.0;
/// Calibrated by the difference of the modes' latencies for long messages: time of an interrupt in
/// nanoseconds.
const INTERRUPT_NS: f64 = 1_250.0;
/// Calibrated by the length of the queue at which the modes are equally fast: time in which the
/// host compares a message with a posted receive, in nanoseconds.
const HOST_MATCH_NS: f64 = 9.5;
/// Time of a library's path for a message, in nanoseconds. The paper calls MPI's share of the
/// latency small.
const LIBRARY_NS: f64 = 150.0;
/// Time between two polls of a waiting process, in nanoseconds. The paper does not name it.
const POLL_NS: u64 = 20;

/// Round trips of a measurement. The simulation is deterministic.
const ROUNDS: u32 = 4;
/// Messages of a stream of short ones. The receiver has posted receives for all of them.
const MESSAGES: u32 = 64;
/// Messages of a stream of messages of 1 MB.
const LONG_MESSAGES: u32 = 6;
/// Receives that a measurement of their time posts.
const POSTED_RECEIVES: u32 = 16;
/// Collective operations of a measurement.
const COLLECTIVE_ROUNDS: u32 = 2;
/// Nodes of most collective operations.
const COLLECTIVE_NODES: u32 = 16;
/// Nodes of the largest barrier.
const LARGE_BARRIER_NODES: u32 = 64;

/// The mechanisms of the model that this run has, and its seed.
#[derive(Clone, Copy)]
struct Model {
    /// [`SOFTWARE_COST`].
    software_cost: bool,
    /// [`INTERRUPTS`].
    interrupts: bool,
    /// [`PROTOCOL`].
    protocol: bool,
    seed: u64,
    /// The stage of a message's way that takes no time.
    left_out: Option<Stage>,
}

impl Model {
    /// Returns the model with the mechanisms that this run has.
    fn of(run: &Run<'_>) -> Self {
        Self {
            software_cost: run.has(&SOFTWARE_COST),
            interrupts: run.has(&INTERRUPTS),
            protocol: run.has(&PROTOCOL),
            seed: run.seed(),
            left_out: None,
        }
    }

    /// Returns the model with firmware that has no flow control.
    fn without_protocol(self) -> Self {
        Self { protocol: false, ..self }
    }

    /// Returns whether a stage of a message's way takes time.
    fn has_stage(self, stage: Stage) -> bool {
        self.left_out != Some(stage)
    }

    /// Returns the costs of software on the host.
    fn profile(self) -> Profile {
        let of_stage = |stage, time_ns| if self.has_stage(stage) { time_ns } else { 0.0 };
        let interrupt_ns = if self.interrupts { INTERRUPT_NS } else { 0.0 };
        let costs = [
            (Cost::SystemCall, of_stage(Stage::Kernel, SYSTEM_CALL_NS)),
            (Cost::InterruptWake, of_stage(Stage::Interrupts, interrupt_ns)),
            (Cost::Burst, of_stage(Stage::HostInterface, STORE_NS)),
            (Cost::TrappedAccess, of_stage(Stage::HostInterface, LOAD_NS)),
            (Cost::Match, of_stage(Stage::Kernel, HOST_MATCH_NS)),
            (Cost::SendMessage, of_stage(Stage::Library, LIBRARY_NS)),
            (Cost::ReceiveMessage, of_stage(Stage::Library, LIBRARY_NS)),
        ];

        let profile = Profile::of_nanos(costs);
        if self.has_stage(Stage::HostInterface) { profile.with_poll(Picos::nanos(POLL_NS)) } else { profile }
    }

    /// Returns `nodes` nodes on a line. `card_keys` are further keys of the section of their cards.
    fn nodes(self, nodes: u32, mode: Mode, card_keys: &str) -> SeaStars {
        // In the machine file, zero stands for an embedded processor and a host interface that take
        // no time.
        let firmware_mhz =
            if self.software_cost && self.has_stage(Stage::Firmware) { FIRMWARE_MHZ } else { 0 };
        let host_mb_s = if self.has_stage(Stage::HostInterface) { HOST_MB_S } else { 0 };
        let (hop_ns, link_gbit_s) =
            if self.has_stage(Stage::Router) { (HOP_NS, LINK_GBIT_S) } else { (0, INSTANT_LINK_GBIT_S) };
        let protocol = self.protocol;

        SeaStars {
            nodes,
            card: format!(
                "wrap = [false, false, true]\nprocesses = 1\nfirmware_mhz = {firmware_mhz}\n\
                 ht_mbytes_s = {host_mb_s}\nflow_control = {protocol}\n{card_keys}"
            ),
            link: format!("delay_ns = {hop_ns}\ngbit_s = {link_gbit_s:.1}\ncut_through_bytes = 64"),
            mode,
            profile: if self.software_cost { self.profile() } else { Profile::default() },
            seed: self.seed,
        }
    }

    /// Returns two nodes.
    fn pair(self, mode: Mode) -> SeaStars {
        self.nodes(2, mode, "")
    }
}

/// Returns the profile of the paper's processors, with the kernel and the libraries.
pub(crate) fn opteron() -> Profile {
    Model { software_cost: true, interrupts: true, protocol: true, seed: 0, left_out: None }.profile()
}

impl From<SeaStarsError> for Failure {
    fn from(error: SeaStarsError) -> Self {
        match error {
            SeaStarsError::World(error) => error.into(),
            _ => Self::result(error.to_string()),
        }
    }
}

/// The modes, in the order of the paper's figures.
const MODES: [(Mode, &str); 2] = [(Mode::HostBased, "host-based"), (Mode::NicBased, "NIC-based")];

/// Returns a time in microseconds.
fn micros(time: Picos) -> f64 {
    time.as_nanos() / 1e3
}

/// Measures all rows and figures.
fn run(run: &mut Run<'_>) -> Result<(), Failure> {
    let model = Model::of(run);
    measure_posting(run, model)?;
    measure_latency(run, model)?;
    measure_bandwidth(run, model)?;
    measure_rates(run, model)?;
    measure_queues(run, model)?;
    measure_collectives(run, model)?;
    protocol::measure(run, model)?;
    stages::measure(run, model)?;
    if !run.is_quick() {
        draw_curves(run, model)?;
    }

    run.note(format!(
        "assumed, because the paper does not name them: {HOP_NS} ns a hop, {LIBRARY_NS} ns a message in the library, \
         {POLL_NS} ns a look at memory"
    ));
    Ok(())
}

/// Measures the time in which a receive is posted (Figure 3).
fn measure_posting(run: &mut Run<'_>, model: Model) -> Result<(), Failure> {
    let nic = model.pair(Mode::NicBased);
    let one_call = micros(nic.post_time(Posting::OneCall, POSTED_RECEIVES)?);
    run.record(rows::posting_with_one_call(), one_call)?;

    let three_calls = micros(nic.post_time(Posting::ThreeCalls, POSTED_RECEIVES)?);
    run.record(rows::posting_with_three_calls(), 100.0 * three_calls / one_call)?;

    run.measure(rows::posting_host_based(), |_| {
        Ok(micros(model.pair(Mode::HostBased).post_time(Posting::ThreeCalls, POSTED_RECEIVES)?))
    })?;
    Ok(())
}

/// Measures latencies of small messages (Figure 4).
fn measure_latency(run: &mut Run<'_>, model: Model) -> Result<(), Failure> {
    let one_way_time =
        |mode, bytes| -> Result<f64, Failure> { Ok(micros(model.pair(mode).ping_pong(bytes, ROUNDS, 0)?)) };
    let advantage = |bytes| -> Result<f64, Failure> {
        Ok(one_way_time(Mode::HostBased, bytes)? - one_way_time(Mode::NicBased, bytes)?)
    };

    run.measure(rows::advantage_of_1_kb(), |_| advantage(1024))?;

    run.measure(rows::advantage_of_8_bytes(), |_| advantage(8))?;

    run.measure(rows::advantage_of_one_interrupt(), |_| Ok(100.0 * advantage(8)? / advantage(1024)?))?;

    // The growth from 16 to 32 bytes, less that of 16 further bytes, which are in a second packet
    // in any case.
    for (mode, name) in MODES {
        run.measure(rows::second_packet(name), |_| {
            Ok((one_way_time(mode, 32)? - one_way_time(mode, 16)?)
                - (one_way_time(mode, 48)? - one_way_time(mode, 32)?))
        })?;
    }
    Ok(())
}

/// Measures bandwidths of long messages (Figures 5 and 7).
fn measure_bandwidth(run: &mut Run<'_>, model: Model) -> Result<(), Failure> {
    const BYTES: usize = 1 << 20;
    let rate = |time: Picos| BYTES as f64 / time.as_nanos();

    let nic = model.pair(Mode::NicBased);
    let one_way = rate(nic.stream(BYTES, LONG_MESSAGES, Streams::OneWay)?);
    run.record(rows::bandwidth(), one_way)?;

    // The rate is that of one of the two streams.
    run.measure(rows::both_ways(), |_| {
        Ok(200.0 * rate(nic.stream(BYTES, LONG_MESSAGES, Streams::BothWays)?) / one_way)
    })?;
    Ok(())
}

/// Measures rates of messages in a stream (Figure 6).
fn measure_rates(run: &mut Run<'_>, model: Model) -> Result<(), Failure> {
    let time = |nodes: SeaStars, bytes| -> Result<f64, Failure> {
        Ok(nodes.stream(bytes, MESSAGES, Streams::OneWay)?.as_nanos())
    };

    run.measure(rows::rate_of_1_kb(), |_| {
        Ok(100.0 * time(model.pair(Mode::HostBased), 1024)? / time(model.pair(Mode::NicBased), 1024)?)
    })?;

    run.measure(rows::implicit_acks(), |_| {
        let implicit = model.nodes(2, Mode::NicBased, "implicit_acks = true");
        Ok(100.0 * time(model.pair(Mode::NicBased), 8)? / time(implicit, 8)?)
    })?;
    Ok(())
}

/// Measures latencies behind posted receives that do not match (Figure 11).
fn measure_queues(run: &mut Run<'_>, model: Model) -> Result<(), Failure> {
    const QUEUED: u32 = 100;
    let one_way_time = |mode, queued| -> Result<f64, Failure> {
        Ok(model.pair(mode).ping_pong(8, ROUNDS, queued)?.as_nanos())
    };

    run.show("queues of posted receives")?;
    // The latency with an empty queue, and the time of each receive in the queue.
    let [host, nic] = [Mode::HostBased, Mode::NicBased].map(|mode| -> Result<_, Failure> {
        let empty = one_way_time(mode, 0)?;
        Ok((empty, (one_way_time(mode, QUEUED)? - empty) / f64::from(QUEUED)))
    });
    let ((host_empty, host_receive), (nic_empty, nic_receive)) = (host?, nic?);

    run.record(rows::passed_receive(), nic_receive)?;

    // The card has the lower latency, and takes more time for each receive.
    run.record(rows::equal_queues(), (host_empty - nic_empty) / (nic_receive - host_receive))
}

/// Measures collective operations (Figures 8 and 9).
fn measure_collectives(run: &mut Run<'_>, model: Model) -> Result<(), Failure> {
    let time = |mode, nodes, collective| -> Result<f64, Failure> {
        Ok(micros(model.nodes(nodes, mode, "").collective(collective, COLLECTIVE_ROUNDS)?))
    };
    // The time of the NIC-based operation in percent of the host-based one.
    let percent = |collective| -> Result<f64, Failure> {
        let time_in = |mode| time(mode, COLLECTIVE_NODES, collective);
        Ok(100.0 * time_in(Mode::NicBased)? / time_in(Mode::HostBased)?)
    };
    let advantage = |nodes, collective| -> Result<f64, Failure> {
        Ok(time(Mode::HostBased, nodes, collective)? - time(Mode::NicBased, nodes, collective)?)
    };

    for (collective, name) in Collective::ALL {
        run.measure(rows::collective(name), |_| percent(collective))?;
    }
    run.measure(rows::reduce_of_allreduce(), |_| {
        Ok(100.0 * percent(Collective::Reduce)? / percent(Collective::Allreduce)?)
    })?;
    run.note(
        "the paper's reduce gains more than its allreduce, and here less: the host's arithmetic, with which \
         matching on the card overlaps, takes no time here",
    );

    run.measure(rows::advantage_of_64_nodes(), |_| {
        let advantage_in_barrier = |nodes| advantage(nodes, Collective::Barrier);
        Ok(100.0 * advantage_in_barrier(LARGE_BARRIER_NODES)? / advantage_in_barrier(COLLECTIVE_NODES)?)
    })?;
    Ok(())
}

/// Draws figures 4 and 11: the latency by the size of messages, and by the number of posted
/// receives in front.
fn draw_curves(run: &mut Run<'_>, model: Model) -> Result<(), Failure> {
    let mut by_size = Vec::new();
    let mut by_queue = Vec::new();
    for (mode, name) in MODES {
        let (mut sizes, mut queues) = (Vec::new(), Vec::new());
        for bytes in (0..=10).map(|order| 1_usize << order) {
            run.show(format!("figure 4, {bytes} bytes"))?;
            sizes.push((bytes as f64, micros(model.pair(mode).ping_pong(bytes, ROUNDS, 0)?)));
        }
        for queued in (0..=100).step_by(10) {
            run.show(format!("figure 11, {queued} receives"))?;
            queues.push((f64::from(queued), micros(model.pair(mode).ping_pong(8, ROUNDS, queued)?)));
        }
        by_size.push(Series::new(name, [], sizes));
        by_queue.push(Series::new(name, [], queues));
    }

    run.figure(Figure {
        name: "latency",
        title: "Figure 4: Small-message latency".into(),
        x: Axis::new("message size (bytes)", Scale::Log2),
        y: Axis::new("latency (us)", Scale::Linear),
        series: by_size,
    });
    run.figure(Figure {
        name: "queues",
        title: "Figure 11: Latency behind posted receives".into(),
        x: Axis::new("posted receives that are passed", Scale::Linear),
        y: Axis::new("latency (us)", Scale::Linear),
        series: by_queue,
    });
    Ok(())
}
