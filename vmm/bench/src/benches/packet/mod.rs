//! `nicforge bench packet`: the instructions of a packet, in the library and in the machine.
//!
//! This program runs itself again under callgrind, once for each figure (`child.rs`). The results
//! are instructions of one packet.
//!
//! - `counted.rs`: the functions whose instructions are counted, with all functions that they call;
//! - `child.rs`: the program under callgrind, and the contents of each figure; `route.rs`: the
//!   nodes of the packets.

mod child;
mod counted;
mod route;

use nicforge::failure::Failure;

use self::{
    child::{BATCH, CountedFigure, DEPTH},
    route::Route,
};
use crate::{
    bench::{Bench, Run},
    callgrind::{Callgrind, Count},
    process::unknown_task,
    row::{Backing, Goal, Outcome, Row},
};

/// The bench.
pub const BENCH: Bench =
    Bench::new("packet", "instructions a packet, in the library and in the machine (needs valgrind)", run)
        .with_child(run_child);

/// The least instructions for sending or receiving a packet, according to the Blue Gene/L papers.
const PACKET_GOAL: f64 = 50.0;
/// The limit for the engine's instructions for a packet in one node's NIC on the way.
const HOP_GOAL: f64 = 120.0;

/// Runs the benchmark.
fn run(run: &Run<'_>) -> Result<Outcome, Failure> {
    if run.all {
        Callgrind::if_installed("", |callgrind| count(run, callgrind))
    } else {
        count(run, &Callgrind::find()?)
    }
}

/// Counts instructions with callgrind.
fn count(run: &Run<'_>, callgrind: &Callgrind) -> Result<Outcome, Failure> {
    run.steps(CountedFigure::ALL.len() as u64);
    let mut rows = Vec::new();
    let count = |figure: CountedFigure| -> Result<f64, Failure> {
        run.step(figure.name())?;
        let packets = figure.packets(run.quick);
        let counts = callgrind.run(
            run,
            &Count {
                name: figure.name(),
                bench: BENCH.name,
                task: format!("{}:{packets}", figure.name()),
                functions: figure.toggles(),
                first_thread_only: true,
            },
        )?;
        Ok(counts.total() as f64 / packets as f64)
    };

    let send = count(CountedFigure::Send)?;
    rows.push(row("send", send).figure("batch", BATCH as f64));
    let receive = count(CountedFigure::Receive)?;
    rows.push(row("receive", receive).figure("batch", BATCH as f64));

    for (path, figure) in [("copy-in", CountedFigure::CopyIn), ("copy-out", CountedFigure::CopyOut)] {
        rows.push(Row { fifo_depth: None, backing: None, ..row(path, count(figure)?) });
    }

    let ((_, short_route), (_, long_route)) =
        (Route::of(CountedFigure::EngineNear)?, Route::of(CountedFigure::EngineFar)?);
    let (near_total, far_total) = (count(CountedFigure::EngineNear)?, count(CountedFigure::EngineFar)?);
    let hop = (far_total - near_total) / f64::from(long_route.hops - short_route.hops);
    rows.push(row("engine-hop", hop));
    rows.push(row("engine-ends", near_total - hop * f64::from(short_route.hops)));

    for (path, figure) in
        [("fcnp-send", CountedFigure::FcnpSend), ("fcnp-receive", CountedFigure::FcnpReceive)]
    {
        rows.push(row(path, count(figure)?));
    }

    let goals = vec![
        Goal::at_most("instructions to send a packet of 256 bytes, with its copy", PACKET_GOAL, send),
        Goal::at_most("instructions to receive one, with its copy", PACKET_GOAL, receive),
        Goal::at_most("instructions of the engine for a packet and hop", HOP_GOAL, hop),
    ];

    Ok(Outcome { rows, goals, notes: notes(callgrind, short_route, long_route) })
}

/// Carries out the task of a child process. `text` is `FIGURE:PACKETS`.
fn run_child(text: &str) -> Result<u8, Failure> {
    let unknown = || unknown_task(text);
    let (name, packets) = text.split_once(':').ok_or_else(unknown)?;
    let figure = CountedFigure::ALL.into_iter().find(|figure| figure.name() == name).ok_or_else(unknown)?;
    figure.run(packets.parse().map_err(|_| unknown())?)?;
    Ok(0)
}

/// Returns the row of a number of instructions for each packet.
fn row(path: &str, instructions: f64) -> Row {
    Row {
        backing: Some(Backing::InProcess),
        fifo_depth: Some(DEPTH),
        bytes: Some(nicforge_hwi::tree::PAYLOAD as u64),
        ..Row::new(path)
    }
    .figure("instructions", instructions)
}

/// Returns the notes below the table.
fn notes(callgrind: &Callgrind, short_route: Route, long_route: Route) -> Vec<String> {
    let mut notes = vec![
        format!("counted by {}, inclusive, divided by packets; built for {}", callgrind.version(), built_for()),
        format!(
            "runs of packets are moved 32 bytes at once where the processor, as callgrind shows it, can: here it {}; callgrind knows no \
             AVX-512",
            if has_avx() { "can" } else { "can't" }
        ),
        format!(
            "send and receive: batches of {BATCH} with everything that belongs to one: lock box, finding the slot, {BATCH} \
             copies, publishing, the doorbell; copy-in and copy-out: the copies alone"
        ),
        format!(
            "engine-hop: all that the machine does in a stream from io0 to {} ({} hops), less the same to {} ({} hop), by the hops \
             between; engine-ends: the rest, which is injection and reception",
            long_route.name(),
            long_route.hops,
            short_route.name(),
            short_route.hops
        ),
        "fcnp-send is IoNode::write, fcnp-receive ComputeCore::read, without the machine's work in their waiting loops".into(),
    ];

    if cfg!(debug_assertions) {
        notes.push("not a release build: NOT for quoting".into());
    }

    notes
}

/// Returns whether the processor moves 32 bytes at once. callgrind emulates the host's processor up
/// to AVX2.
fn has_avx() -> bool {
    #[cfg(target_arch = "x86_64")]
    let has = std::arch::is_x86_feature_detected!("avx");
    #[cfg(not(target_arch = "x86_64"))]
    let has = false;
    has
}

/// Returns the architecture, and the vector instructions that the compiler was allowed to use.
fn built_for() -> String {
    let features = [
        ("sse2", cfg!(target_feature = "sse2")),
        ("sse4.2", cfg!(target_feature = "sse4.2")),
        ("avx", cfg!(target_feature = "avx")),
        ("avx2", cfg!(target_feature = "avx2")),
        ("bmi2", cfg!(target_feature = "bmi2")),
        ("avx512f", cfg!(target_feature = "avx512f")),
        ("neon", cfg!(target_feature = "neon")),
    ];

    let present: Vec<_> = features.iter().filter(|(_, present)| *present).map(|(name, _)| *name).collect();
    format!("{} with {}", std::env::consts::ARCH, present.join(", "))
}
