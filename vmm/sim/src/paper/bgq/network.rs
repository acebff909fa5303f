//! All-to-all on nodes with their software, and zone routing on the network alone.

use nicforge_core::fabric::{CreditUnit, LinkSpec};
use nicforge_network::{
    router::policies::{ChannelClass, Fixed, TorusRules},
    shape::Dimension,
};

use super::{Benchmark, Failure, HEAD_BYTES, HOP_NS, LINK_GBIT_S, Model, Run, rows};
use crate::{
    bgq::all_to_all::{SUBGROUPS, THROUGH_RATIO},
    traffic::{LoadSweep, Network, Pattern, TrafficError, Windows, run_unless, uniform_capacity},
};

/// The torus of the all-to-all.
const TORUS_SHAPE: [u32; 5] = [4, 4, 4, 4, 2];
/// Bytes that the busiest link carries for each byte of a message, on this torus.
const LINK_BYTES_PER_BYTE: f64 = 256.0;
/// GB/s of a link's payload at most, by the paper.
const PAYLOAD_GB_S: f64 = 1.8;
/// Nanoseconds between two polls of a process that waits for an all-to-all.
const POLL_NS: u64 = 1000;

/// Bytes of the longest packet.
const PACKET_BYTES: usize = 544;
/// Check bytes that a link carries with a packet.
const CHECK_BYTES: u32 = 8;
/// Bytes of the link protocol that a link carries with a packet.
const PROTOCOL_BYTES: u32 = 24;
/// Bytes of a token.
const TOKEN_BYTES: u32 = 32;
/// Packets for which the bubble channel has room, by the public header `nd_rese_dcr.h`.
const BUBBLE_PACKETS: u32 = 7;
/// Queues of the dynamic channel. The hardware has seven. A router here has at most 64 inputs, and
/// a queue is a virtual channel of its own.
const DYNAMIC_QUEUES: u32 = 3;
/// Packets for which a dynamic queue has room. The hardware has room for seven.
const QUEUE_PACKETS: u32 = 2;
/// Number of the bubble channel. The channels of the dynamic queues follow it.
const BUBBLE_CHANNEL: u8 = 0;
/// Injection FIFOs of a node.
const FIFOS: u8 = 10;
/// Packets for which an injection FIFO has room.
const FIFO_PACKETS: u16 = 4;

/// Length of the first warm-up in nanoseconds.
const WARM_UP_NS: u64 = 100_000;
/// Length of a window of a measurement in nanoseconds.
const WINDOW_NS: u64 = 25_000;
/// Windows of a measurement.
const WINDOWS: u32 = 4;
/// Maximum number of measurements, each with a longer warm-up than the last.
const REPETITIONS: u32 = 3;
/// Greatest difference of two windows that agree, as a fraction of the last one.
const AGREEMENT: f64 = 0.01;

/// Measures the all-to-all (section V.C).
pub(super) fn all_to_all(run: &mut Run<'_>, model: Model) -> Result<(), Failure> {
    let mut shares = Vec::new();
    for (bytes, percent, null_model) in rows::ALL_TO_ALL {
        shares.extend(run.measure(rows::all_to_all(bytes, percent, null_model), |run| {
            let torus = Benchmark {
                poll_ns: POLL_NS,
                subgroups: SUBGROUPS,
                ..Benchmark::of_messages(TORUS_SHAPE, [true; 5])
            };
            let time_ns = model.nodes(run, torus).all_to_all(bytes)?.as_nanos();
            let least_ns = LINK_BYTES_PER_BYTE * bytes as f64 / PAYLOAD_GB_S;
            Ok(100.0 * least_ns / time_ns)
        })?);
    }

    if let [short, long] = shares[..] {
        run.record(rows::longer_all_to_all(), 100.0 * long / short)?;
        run.note(
            "all-to-all: as the authors' program msg_alltoall.c, from a barrier to the end of all sends, with a random \
             permutation of the destinations, 64 injection FIFOs in turn, and messages in rounds of direct puts of 2 KB",
        );
        run.note(format!(
            "all-to-all and zone routing: {THROUGH_RATIO} packets from links between two injected ones, the most that the \
             register has. The paper does not give its value"
        ));
    }
    Ok(())
}

/// Measures zone routing (section II.B).
pub(super) fn zones(run: &mut Run<'_>, model: Model) -> Result<(), Failure> {
    let rows = [
        (rows::without_zones(), [8, 4, 4, 4], Zones::Off),
        (rows::with_zones(), [8, 4, 4, 4], Zones::LongestFirst),
        (rows::with_zones_of_three(), [8, 8, 8, 4], Zones::LongestFirst),
    ];
    for (expected, lengths, zones) in rows {
        let (description, mut is_steady) = (expected.what.clone(), true);
        run.measure(expected, |run| {
            let load = measure_accepted_load(run, model, &lengths, zones)?;
            is_steady = load.is_steady;
            Ok(load.percent)
        })?;
        if !is_steady {
            run.note(format!(
                "{description}: two windows never agreed to 1 %; the value is that of the last one"
            ));
        }
    }

    if run.is_quick() {
        return Ok(());
    }
    run.note(
        "zone routing ran on 8x4x4x4 and 8x8x8x4 nodes, which have the asymmetry of the paper's 16x8x8x8 and \
         16x16x16x8 on an eighth and a sixteenth of the nodes",
    );
    run.note(format!(
        "zone routing: a bubble channel of {BUBBLE_PACKETS} packets and {DYNAMIC_QUEUES} dynamic queues of {QUEUE_PACKETS} (nd_rese_dcr.h names \
         7 tokens a channel, and the hardware has 7 queues), {FIFOS} injection FIFOs of {FIFO_PACKETS} packets"
    ));
    Ok(())
}

/// Zone routing: the order in which packets go along the dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Zones {
    /// Packets go along any dimension at any time.
    Off,
    /// Packets end their way in the longest dimensions before they begin it in the others.
    LongestFirst,
}

/// Returns the network of a zone measurement on a torus with these lengths.
fn network(model: Model, lengths: &[u32], zones: Zones) -> Network {
    let longest = lengths.iter().copied().max().unwrap_or(0);
    // A zone lists sets of dimensions, with one bit for each. A packet takes the first set in which
    // it still has a way to go.
    let set_of = |is_chosen: &dyn Fn(u32) -> bool| -> u8 {
        let chosen = lengths.iter().enumerate().filter(|(_, length)| is_chosen(**length));
        chosen.fold(0, |set, (dimension, _)| set | 1 << dimension)
    };
    let mut zone = [0; 5];
    match zones {
        Zones::Off => zone[0] = set_of(&|_| true),
        Zones::LongestFirst => {
            zone[0] = set_of(&|length| length == longest);
            zone[1] = set_of(&|length| length != longest);
        }
    }

    let dynamic_channels = ((1 << DYNAMIC_QUEUES) - 1) << (BUBBLE_CHANNEL + 1);
    let class = ChannelClass { fixed: Fixed::Bubble { vc: BUBBLE_CHANNEL }, adaptive: dynamic_channels };
    let framing = CHECK_BYTES + if model.protocol_bytes { PROTOCOL_BYTES } else { 0 };
    let packet_tokens = (PACKET_BYTES as u32 + framing).div_ceil(TOKEN_BYTES);
    let mut credits = vec![QUEUE_PACKETS * packet_tokens; DYNAMIC_QUEUES as usize + 1];
    credits[usize::from(BUBBLE_CHANNEL)] = BUBBLE_PACKETS * packet_tokens;

    Network {
        dimensions: lengths.iter().map(|&length| Dimension::torus(length)).collect(),
        link: LinkSpec {
            delay: HOP_NS.into(),
            bits_per_second: (LINK_GBIT_S * 1e9) as u64,
            credits,
            credit_unit: CreditUnit::Bytes(TOKEN_BYTES),
            max_packet: PACKET_BYTES,
            cut_through: Some(HEAD_BYTES),
        },
        framing,
        rules: TorusRules { zones: [zone; 4], ..TorusRules::shared(class) },
        adaptive_zone: Some(0),
        through_ratio: THROUGH_RATIO,
        injection_fifos: FIFOS,
        fifo_packets: FIFO_PACKETS,
    }
}

/// The accepted load of a saturated network.
struct Accepted {
    /// Percent of the peak in the last window.
    percent: f64,
    /// Whether the last two windows agree.
    is_steady: bool,
}

/// Measures the accepted load of a saturated network. The warm-up doubles until the last two
/// windows agree, for [`REPETITIONS`] measurements at most.
fn measure_accepted_load(
    run: &Run<'_>,
    model: Model,
    lengths: &[u32],
    zones: Zones,
) -> Result<Accepted, Failure> {
    let network = network(model, lengths, zones);
    let capacity = uniform_capacity(&network.dimensions).map_err(TrafficError::from)?;
    let mut sweep = LoadSweep {
        network,
        pattern: Pattern::PermutationWalk,
        packet_bytes: PACKET_BYTES,
        // More than the network can carry.
        loads: vec![1.5 * capacity],
        windows: Windows { warm_up: WARM_UP_NS, window: WINDOW_NS, windows: WINDOWS, drain: 0 },
        seed: run.seed(),
    };

    let mut load = Accepted { percent: f64::NAN, is_steady: false };
    for _ in 0..REPETITIONS {
        let warm_up = sweep.windows.warm_up;
        run.show(format!("zones on {lengths:?} nodes, {} us of warm-up", warm_up / 1000))?;
        let curve = run_unless(&sweep, &|| run.check().is_err())?;
        let windows = curve.points.first().map_or(&[][..], |point| &point.accepted_by_window);

        if let [.., before, last] = windows {
            let is_steady = (last - before).abs() <= AGREEMENT * last;
            load = Accepted { percent: 100.0 * last / capacity, is_steady };
        }
        if load.is_steady {
            break;
        }
        sweep.windows.warm_up = 2 * warm_up;
    }
    Ok(load)
}
