//! H. Fröning, M. Nüssle, H. Litz, C. Leber and U. Brüning, *On Achieving High Message Rates*:
//! message rate, bandwidth and latency of MPI over EXTOLL, at four frequencies of the card's core,
//! and RandomAccess (sections II, V and VI).
//!
//! The libraries are VELO, RMA, their MPI transport and the matching layer as they are, on cards
//! with the paper's links and clock. The software's costs are those of an Opteron of 2.5 GHz. Each
//! is calibrated by the rows that its constant names, and so is the part of a hop that scales with
//! the clock. Everything else follows.
//!
//! `model.rs` has the machine and the costs, and `rows.rs` the paper's values. The experiments are
//! here.

mod model;
mod rows;

use nicforge::failure::Failure;

pub use self::model::opteron;
use self::{
    model::{CLOCK_MHZ, COPY_BYTE_NS, Model, RANKS_OF_NODE, UPDATE_NS},
    rows::{DELAYS, FREQUENCIES},
};
use super::{
    experiment::{Experiment, Mechanism, Run},
    figure::{Axis, Figure, Point, Scale, Series},
};
use crate::cluster::{
    Cluster,
    programs::{Pairs, Passes, window_of},
};

/// The bytes of headers and framing.
const PROTOCOL_BYTES: Mechanism =
    Mechanism { name: "protocol-bytes", without: "packets have no header, framing and gap on the link" };
/// The time of software.
const SOFTWARE_COST: Mechanism =
    Mechanism { name: "software-cost", without: "software takes no time: only cards and links do" };
/// Forwarding a packet whose end has not arrived.
const CUT_THROUGH: Mechanism =
    Mechanism { name: "cut-through", without: "a card forwards a packet when all of it has arrived" };

/// The experiments of the paper.
pub const EXTOLL: Experiment = Experiment {
    name: "extoll",
    title: "EXTOLL: On Achieving High Message Rates",
    citation: "H. Fröning, M. Nüssle, H. Litz, C. Leber, U. Brüning, On Achieving High Message Rates, CCGrid 2013",
    mechanisms: &[PROTOCOL_BYTES, SOFTWARE_COST, CUT_THROUGH],
    rows: rows::all,
    run,
};

/// Pairs that saturate the link: one more than it takes.
const MANY_PAIRS: u16 = 5;
/// Bytes of the short messages of the paper.
const SHORT_BYTES: usize = 8;
/// Windows of a pair in most measurements.
const WINDOWS: u32 = 40;
/// Windows of a pair with messages of more than 512 bytes.
const WINDOWS_OF_LONG_MESSAGES: u32 = 2;
/// Windows of a pair in a measurement of four pairs with short messages. The pairs begin at the
/// same time, and it takes some windows until their pauses between two windows no longer coincide.
const WINDOWS_OF_FOUR: u32 = 150;
/// Round trips of a measurement.
const ROUNDS: u32 = 4;
/// Ranks of all nodes in RandomAccess.
const ALL_RANKS: f64 = 64.0;
/// Words of a rank in the two runs of RandomAccess, as powers of two. The difference of the runs
/// stands for the middle of a long run, because it cancels their beginnings and ends.
const TABLE_ORDERS: [u32; 2] = [9, 11];
/// Length of most messages of RandomAccess, in bytes.
const UPDATES_BYTES: usize = 256;

/// Measures all rows and figures.
fn run(run: &mut Run<'_>) -> Result<(), Failure> {
    let model = Model::of(run);

    let peak = measure_message_rate(run, model)?;
    measure_bandwidth(run, model)?;
    measure_hop(run, model)?;
    measure_frequencies(run, model, peak)?;
    measure_random_access(run, model)?;
    if !run.is_quick() {
        draw_curves(run, model)?;
    }

    run.note(format!("assumed, because the paper does not name it: {COPY_BYTE_NS} ns to copy a byte"));
    Ok(())
}

/// Measures messages of `bytes` bytes between `pairs` pairs of ranks. Returns millions of messages
/// per second of all pairs together.
fn million_messages_per_s(cluster: &Cluster, pairs: u16, bytes: usize) -> Result<f64, Failure> {
    let windows = match bytes {
        ..=SHORT_BYTES if pairs == 4 => WINDOWS_OF_FOUR,
        ..=512 => WINDOWS,
        _ => WINDOWS_OF_LONG_MESSAGES,
    };
    Ok(cluster.message_rate(Pairs { pairs, bytes, window: window_of(bytes), windows })? / 1e6)
}

/// Measures the peak rate of messages of 8 bytes, and the rates of three and four pairs. Returns
/// the peak in millions of messages per second.
fn measure_message_rate(run: &mut Run<'_>, model: Model) -> Result<f64, Failure> {
    run.show("message rate")?;
    let cluster = model.pair()?;
    let rate = |pairs| million_messages_per_s(&cluster, pairs, SHORT_BYTES);
    let peak = rate(MANY_PAIRS)?;
    run.record(rows::peak(), peak)?;
    run.record(rows::rate_of_three_pairs(), 100.0 * rate(3)? / peak)?;
    run.record(rows::rate_of_four_pairs(), 100.0 * rate(4)? / peak)?;

    run.note(
        "\"EXTOLL requires four simultaneous pairs to saturate\" is read as: four pairs are within 2 % of the \
         peak, and three are not",
    );
    Ok(peak)
}

/// Measures the peak bandwidth of the message rate test.
fn measure_bandwidth(run: &mut Run<'_>, model: Model) -> Result<(), Failure> {
    run.measure(rows::bandwidth(), |_| {
        let bytes = 64 << 10;
        Ok(million_messages_per_s(&model.pair()?, 4, bytes)? * bytes as f64)
    })?;
    Ok(())
}

/// Measures the time of a hop in microseconds, between ranks whose software takes no time.
fn measure_hop(run: &mut Run<'_>, model: Model) -> Result<(), Failure> {
    const FURTHER_HOPS: f64 = 2.0;
    run.measure(rows::hop(), |_| {
        let cluster = model.without_software().torus()?;
        // In the torus of 2x2x2 nodes, node 1 is one hop from node 0, and node 7 three.
        let near = cluster.ping_pong(1, SHORT_BYTES, ROUNDS)?;
        let far = cluster.ping_pong(7, SHORT_BYTES, ROUNDS)?;
        Ok((far - near) * 1e6 / FURTHER_HOPS)
    })?;
    Ok(())
}

/// Sizes in bytes of the messages over which bandwidth and latency of Table III are means, as
/// powers of two: 8 bytes to 1 MB.
const SIZES: std::ops::RangeInclusive<u32> = 3..=20;

/// The quantities that are measured with messages of one size.
#[derive(Clone, Copy)]
struct SizeMeasurement {
    /// Millions of messages per second.
    rate: f64,
    /// The reciprocal of the latency, in messages per second.
    inverse_latency: f64,
}

/// Measures and draws Table III: message rate, bandwidth and latency at lower frequencies.
fn measure_frequencies(run: &mut Run<'_>, model: Model, peak: f64) -> Result<(), Failure> {
    let rates = measure_rates(run, model, peak)?;
    if run.is_quick() {
        return Ok(());
    }

    let [bandwidths, latencies] = measure_means(run, model)?;
    draw_frequencies(run, [rates, bandwidths, latencies]);
    run.note(
        "bandwidth and latency are means over messages of 8 bytes to 1 MB, of one pair; the paper does not \
         list its sizes",
    );
    Ok(())
}

/// Measures the message rate at each lower frequency. Returns it in percent of `peak`, by the
/// frequency in MHz.
fn measure_rates(run: &mut Run<'_>, model: Model, peak: f64) -> Result<Vec<Point>, Failure> {
    let mut rates = Vec::new();
    for (mhz, [paper_rate, _, _]) in FREQUENCIES {
        let percent = run.measure(rows::rate_at(mhz, paper_rate), |_| {
            Ok(100.0 * million_messages_per_s(&model.at(mhz).pair()?, MANY_PAIRS, SHORT_BYTES)? / peak)
        })?;
        rates.push((f64::from(mhz), percent.unwrap_or_default()));
    }
    Ok(rates)
}

/// Measures bandwidth and latency at each lower frequency, as means over all sizes of messages.
/// Returns each in percent of that at [`CLOCK_MHZ`], by the frequency in MHz.
fn measure_means(run: &mut Run<'_>, model: Model) -> Result<[Vec<Point>; 2], Failure> {
    let at_full_clock = measure_sizes(run, model)?;
    let mut curves = [Vec::new(), Vec::new()];

    for (mhz, [_, paper_bandwidth, paper_latency]) in FREQUENCIES {
        let at_lower_clock = measure_sizes(run, model.at(mhz))?;
        let mean_percent = |quantity: fn(&SizeMeasurement) -> f64| {
            let pairs = at_lower_clock.iter().zip(&at_full_clock);
            let ratios = pairs.map(|(lower, full)| quantity(lower) / quantity(full));
            100.0 * ratios.sum::<f64>() / at_full_clock.len() as f64
        };

        // The bandwidths of messages of one size have the same ratio as their rates.
        let means = [mean_percent(|size| size.rate), mean_percent(|size| size.inverse_latency)];
        let expected = [rows::bandwidth_at(mhz, paper_bandwidth), rows::latency_at(mhz, paper_latency)];
        for (expected, mean) in expected.into_iter().zip(means) {
            run.record(expected, mean)?;
        }
        for (curve, mean) in curves.iter_mut().zip(means) {
            curve.push((f64::from(mhz), mean));
        }
    }
    Ok(curves)
}

/// Draws Table III: message rate, bandwidth and latency by frequency.
fn draw_frequencies(run: &mut Run<'_>, curves: [Vec<Point>; 3]) {
    // The order is that of the percentages in FREQUENCIES, too.
    let names = ["message rate", "bandwidth", "latency"];
    let at_full_clock = (f64::from(CLOCK_MHZ), 100.0);

    let series = names.iter().enumerate().zip(curves).map(|((index, name), mut simulated)| {
        let paper = FREQUENCIES.map(|(mhz, percents)| (f64::from(mhz), percents[index]));
        simulated.insert(0, at_full_clock);
        Series::new(*name, paper, simulated)
    });
    run.figure(Figure {
        name: "frequencies",
        title: "Table III: Impact of frequency variation".into(),
        x: Axis::new("frequency (MHz)", Scale::Linear),
        y: Axis::new("performance (% of that at 156 MHz)", Scale::Linear),
        series: series.collect(),
    });
}

/// Measures messages of each of [`SIZES`] between one pair.
fn measure_sizes(run: &Run<'_>, model: Model) -> Result<Vec<SizeMeasurement>, Failure> {
    let cluster = model.pair()?;
    let measure = |order| {
        let bytes = 1_usize << order;
        run.show(format!("{} MHz, {bytes} bytes", model.mhz))?;
        let inverse_latency = cluster.ping_pong(1, bytes, ROUNDS)?.recip();
        Ok(SizeMeasurement { rate: million_messages_per_s(&cluster, 1, bytes)?, inverse_latency })
    };
    SIZES.map(measure).collect()
}

/// Results of a long run of RandomAccess.
#[derive(Clone, Copy)]
struct Updates {
    /// Billions of updates per second of all ranks.
    gups: f64,
    /// Share of the time that is spent in MPI.
    time_in_mpi: f64,
}

impl Updates {
    /// Measures RandomAccess with tables of both [`TABLE_ORDERS`], and takes their difference.
    fn measure(model: Model) -> Result<Self, Failure> {
        let cluster = model.torus()?;
        let [short, long] =
            TABLE_ORDERS.map(|order| cluster.random_access(RANKS_OF_NODE, order, Passes::UpdatesOnly));
        let ((short, _), (long, _)) = (short?, long?);
        let updates = (long.updates - short.updates) as f64;
        let seconds = long.seconds - short.seconds;
        // A rank spends the rest of the time in MPI.
        let seconds_in_updates = updates / ALL_RANKS * UPDATE_NS / 1e9;
        Ok(Self { gups: updates / seconds / 1e9, time_in_mpi: 1.0 - seconds_in_updates / seconds })
    }
}

/// Measures RandomAccess on eight nodes, and with lower message rates and frequencies.
fn measure_random_access(run: &mut Run<'_>, model: Model) -> Result<(), Failure> {
    run.show("RandomAccess")?;
    let undelayed = Updates::measure(model)?;
    run.record(rows::time_in_mpi(), 100.0 * undelayed.time_in_mpi)?;
    run.record(rows::updates(), undelayed.gups)?;

    if run.is_quick() {
        return Ok(());
    }
    measure_delays(run, model, undelayed)?;
    for (mhz, _) in FREQUENCIES {
        run.measure(rows::updates_at(mhz), |_| {
            Ok(100.0 * Updates::measure(model.at(mhz))?.gups / undelayed.gups)
        })?;
    }

    run.note(
        "RandomAccess at lower rates and frequencies: the paper's text has no numbers; those shown are of \
         its exponential fit to the time in MPI, whose exponents follow from its Table IV",
    );
    Ok(())
}

/// Measures the message rate and RandomAccess with delays after each send, in percent of those
/// without.
fn measure_delays(run: &mut Run<'_>, model: Model, undelayed: Updates) -> Result<(), Failure> {
    let undelayed_rate = million_messages_per_s(&model.pair()?, 4, UPDATES_BYTES)?;
    for delay in DELAYS {
        let delayed = model.with_delay(delay.ns);
        run.measure(rows::rate_with_delay(delay), |_| {
            Ok(100.0 * million_messages_per_s(&delayed.pair()?, 4, UPDATES_BYTES)? / undelayed_rate)
        })?;

        run.show("RandomAccess with delays")?;
        let simulated = 100.0 * Updates::measure(delayed)?.gups / undelayed.gups;
        run.record(rows::updates_with_delay(delay), simulated)?;
    }
    Ok(())
}

/// Draws figures 3 and 4: message rate and bandwidth by the size of messages, and the message rate
/// by the number of pairs.
fn draw_curves(run: &mut Run<'_>, model: Model) -> Result<(), Failure> {
    let (peak, bandwidth_of_64_kb) = (rows::peak().paper, rows::bandwidth().paper);
    let cluster = model.pair()?;
    let mut by_size = Vec::new();
    for bytes in (3..=16).map(|order| 1_usize << order) {
        run.show(format!("figure 3, {bytes} bytes"))?;
        by_size.push((bytes as f64, million_messages_per_s(&cluster, 4, bytes)?));
    }
    let bandwidth: Vec<_> = by_size.iter().map(|&(bytes, rate)| (bytes, bytes * rate)).collect();

    run.figure(Figure {
        name: "rate-by-size",
        title: "Figure 3: Message rate over message size".into(),
        x: Axis::new("message size (bytes)", Scale::Log2),
        y: Axis::new("message rate (M/s)", Scale::Log10),
        series: vec![Series::new("EXTOLL", [(8.0, peak)], by_size)],
    });
    run.figure(Figure {
        name: "bandwidth-by-size",
        title: "Figure 3: Bandwidth in the message rate test".into(),
        x: Axis::new("message size (bytes)", Scale::Log2),
        y: Axis::new("bandwidth (MB/s)", Scale::Linear),
        series: vec![Series::new("EXTOLL", [(8.0, 8.0 * peak), (65_536.0, bandwidth_of_64_kb)], bandwidth)],
    });

    let mut by_pairs = Vec::new();
    for pairs in 1..=RANKS_OF_NODE {
        run.show(format!("figure 4, {pairs} pairs"))?;
        by_pairs.push((f64::from(pairs), million_messages_per_s(&cluster, pairs, SHORT_BYTES)?));
    }
    run.figure(Figure {
        name: "rate-by-pairs",
        title: "Figure 4: Message rate over pair count".into(),
        x: Axis::new("pairs", Scale::Linear),
        y: Axis::new("message rate (M/s)", Scale::Linear),
        series: vec![Series::new("EXTOLL", [(4.0, peak)], by_pairs)],
    });
    Ok(())
}
