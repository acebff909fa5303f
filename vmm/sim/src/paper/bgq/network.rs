//! All-to-all on nodes with their software, and zone routing on the network alone.

use nicforge_core::fabric::{CreditUnit, LinkSpec};
use nicforge_network::{
    router::policies::{ChannelClass, Fixed, TorusRules},
    shape::Dimension,
};

use super::{Benchmark, Failure, HEAD, HOP, LINK, Model, Run, rows};
use crate::{
    bgq::all_to_all::{SUBGROUPS, THROUGH_RATIO},
    traffic::{Experiment, Network, Pattern, TrafficError, Windows, run_unless, uniform_capacity},
};

/// The torus of the all-to-all.
const TORUS: [u32; 5] = [4, 4, 4, 4, 2];
/// Bytes over a link for each byte of a message, on this torus.
const SHARE: f64 = 256.0;
/// GB/s of a link's payload at most, by the paper.
const EFFECTIVE: f64 = 1.8;
/// Nanoseconds between two looks of a process that waits for an all-to-all.
const POLL: u64 = 1000;

/// Longest packet, and the bytes that a link carries with it: check bytes and link protocol.
const PACKET: usize = 544;
const CHECK_BYTES: u32 = 8;
const PROTOCOL_BYTES: u32 = 24;
/// Bytes of a token.
const TOKEN: u32 = 32;
/// Packets for which the bubble channel has room, by the public header `nd_rese_dcr.h`.
const BUFFERED: u32 = 7;
/// Queues of the dynamic channel, and the packets of each. The hardware has seven for seven
/// packets. A router here has at most 64 inputs, and a queue is a virtual channel of its own.
const QUEUES: u32 = 3;
const QUEUED: u32 = 2;
/// The bubble channel. Those of the queues follow.
const BUBBLE: u8 = 0;
/// Injection FIFOs of a node, and the packets of each.
const FIFOS: u8 = 10;
const FIFO_PACKETS: u16 = 4;

/// Length of the first warm-up and of a window in nanoseconds, and the windows.
const WARM_UP: u64 = 100_000;
const WINDOW: u64 = 25_000;
const WINDOWS: u32 = 4;
/// Maximum number of measurements, each with a longer warm-up than the last.
const REPETITIONS: u32 = 3;
/// Greatest difference of two windows that agree.
const AGREEMENT: f64 = 0.01;

/// Measures the all-to-all (section V.C).
pub(super) fn all_to_all(run: &mut Run<'_>, model: Model) -> Result<(), Failure> {
    let mut shares = Vec::new();
    for (bytes, percent, null_model) in rows::ALL_TO_ALL {
        shares.extend(run.measure(rows::all_to_all(bytes, percent, null_model), |run| {
            let torus = Benchmark { poll: POLL, subgroups: SUBGROUPS, ..Benchmark::of(TORUS, [true; 5]) };
            let time = model.nodes(run, torus).all_to_all(bytes)?.as_nanos();
            Ok(100.0 * SHARE * bytes as f64 / EFFECTIVE / time)
        })?);
    }

    if let [short, long] = shares[..] {
        run.record(rows::longer_all_to_all(), 100.0 * long / short)?;
        run.note(
            "all-to-all: as the authors' program msg_alltoall.c, with a random permutation of the destinations, 64 injection \
             FIFOs in turn, and messages in rounds of direct puts of 2 KB",
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
        (rows::without_zones(), [8, 4, 4, 4], false),
        (rows::with_zones(), [8, 4, 4, 4], true),
        (rows::with_zones_of_three(), [8, 8, 8, 4], true),
    ];
    for (row, lengths, has_zones) in rows {
        let (description, mut is_steady) = (row.what.clone(), true);
        run.measure(row, |run| {
            let load = accepted(run, model, &lengths, has_zones)?;
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
        "zone routing: a bubble channel of {BUFFERED} packets and {QUEUES} dynamic queues of {QUEUED} (nd_rese_dcr.h names \
         7 tokens a channel, and the hardware has 7 queues), {FIFOS} injection FIFOs of {FIFO_PACKETS} packets"
    ));
    Ok(())
}

/// Returns the network of a zone measurement.
fn network(model: Model, lengths: &[u32], has_zones: bool) -> Network {
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let bits = |is_chosen: &dyn Fn(u32) -> bool| -> u8 {
        let chosen = lengths.iter().enumerate().filter(|(_, length)| is_chosen(**length));
        chosen.fold(0, |set, (dimension, _)| set | 1 << dimension)
    };
    let mut zone = [0; 5];
    if has_zones {
        (zone[0], zone[1]) = (bits(&|length| length == longest), bits(&|length| length != longest));
    } else {
        zone[0] = bits(&|_| true);
    }

    let queues = ((1 << QUEUES) - 1) << (BUBBLE + 1);
    let class = ChannelClass { fixed: Fixed::Bubble { vc: BUBBLE }, adaptive: queues };
    let framing = CHECK_BYTES + if model.protocol { PROTOCOL_BYTES } else { 0 };
    let tokens = (PACKET as u32 + framing).div_ceil(TOKEN);
    let mut credits = vec![QUEUED * tokens; QUEUES as usize + 1];
    credits[usize::from(BUBBLE)] = BUFFERED * tokens;

    Network {
        dimensions: lengths.iter().map(|&length| Dimension::torus(length)).collect(),
        link: LinkSpec {
            delay: HOP.into(),
            bits_per_second: (LINK * 1e9) as u64,
            credits,
            credit_unit: CreditUnit::Bytes(TOKEN),
            max_packet: PACKET,
            cut_through: Some(HEAD),
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

/// Measures the accepted load with a longer and longer warm-up, until two windows agree.
fn accepted(run: &Run<'_>, model: Model, lengths: &[u32], has_zones: bool) -> Result<Accepted, Failure> {
    let network = network(model, lengths, has_zones);
    let capacity = uniform_capacity(&network.dimensions).map_err(TrafficError::from)?;
    let mut experiment = Experiment {
        network,
        pattern: Pattern::PermutationWalk,
        packet_bytes: PACKET,
        // More than the network can carry.
        loads: vec![1.5 * capacity],
        windows: Windows { warm_up: WARM_UP, window: WINDOW, windows: WINDOWS, drain: 0 },
        seed: run.seed(),
    };

    let mut load = Accepted { percent: f64::NAN, is_steady: false };
    for _ in 0..REPETITIONS {
        let warm_up = experiment.windows.warm_up;
        run.show(format!("zones on {lengths:?} nodes, {} us of warm-up", warm_up / 1000))?;
        let curve = run_unless(&experiment, &|| run.check().is_err())?;
        let windows = curve.points.first().map_or(&[][..], |point| &point.accepted_by_window);

        if let [.., before, last] = windows {
            let is_steady = (last - before).abs() <= AGREEMENT * last;
            load = Accepted { percent: 100.0 * last / capacity, is_steady };
        }
        if load.is_steady {
            break;
        }
        experiment.windows.warm_up = 2 * warm_up;
    }
    Ok(load)
}
