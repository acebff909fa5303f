//! `nicforge bench bgl`: instructions of the communication software of Blue Gene/L, and of its
//! torus.
//!
//! This program runs itself again under callgrind, once for each figure. The results are
//! instructions of one packet or message. They stand beside those of the paper (Almási et al., "MPI
//! on BlueGene/L", 2003, section 6), which are of a PowerPC.
//!
//! | file | contents |
//! | --- | --- |
//! | `counted.rs` | the functions whose instructions are counted, with all that they call |
//! | `exchange.rs` | the program under callgrind |

mod counted;
mod exchange;

use nicforge::failure::Failure;

use self::exchange::{BURST, Figure, MESSAGE};
use crate::{
    bench::{Bench, Run},
    callgrind::{Callgrind, Count},
    process::unknown_task,
    row::{Backing, Goal, Outcome, Row},
};

/// The bench.
pub const BENCH: Bench =
    Bench::new("bgl", "packets and messages of Blue Gene/L by instructions (needs valgrind)", run)
        .with_child(run_child);

/// The least instructions for sending or receiving an aligned packet (section 6).
const PAPERS_FLOOR: f64 = 50.0;
/// Instructions with which the paper's message layer sends a packet, less the 25 % that its authors
/// want to save at least.
const PAPERS_PACKET: f64 = 671.0 * 0.75;
/// Instructions of the paper's `postsend` with its first packet, less the same.
const PAPERS_POSTSEND: f64 = 1300.0 * 0.75;

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
    run.steps(Figure::ALL.len() as u64);
    let mut counts = Vec::with_capacity(Figure::ALL.len());
    let mut rows = Vec::with_capacity(Figure::ALL.len());

    for figure in Figure::ALL {
        run.step(figure.name())?;
        let rounds = if run.quick { 2 } else { 64 };
        let counted = callgrind.run(
            run,
            &Count {
                name: "packets",
                bench: BENCH.name,
                task: format!("{}:{rounds}", figure.name()),
                functions: vec![figure.toggle()],
                first_thread_only: false,
            },
        )?;
        let each = counted.total() as f64 / (rounds * figure.per_round()) as f64;
        counts.push(each);
        let row =
            Row { backing: Some(Backing::InProcess), bytes: Some(figure.bytes()), ..Row::new(figure.name()) };
        rows.push(row.figure("instructions", each));
    }

    let of = |figure: Figure| counts[figure as usize];
    let goals = vec![
        Goal::at_most(
            "instructions to send a packet of 256 bytes, with its copy",
            PAPERS_FLOOR,
            of(Figure::Send),
        ),
        Goal::at_most("instructions to receive one, with its copy", PAPERS_FLOOR, of(Figure::Receive)),
        Goal::at_most(
            "instructions of the message layer to send a packet of a long message",
            PAPERS_PACKET,
            of(Figure::LongSend),
        ),
        Goal::at_most(
            "instructions of the message layer to receive one",
            PAPERS_PACKET,
            of(Figure::LongReceive),
        ),
        Goal::at_most("instructions of `postsend` with its packet", PAPERS_POSTSEND, of(Figure::Post)),
    ];
    Ok(Outcome { rows, goals, notes: notes(callgrind) })
}

/// Carries out the task of a child process. `text` is `FIGURE:ROUNDS`.
fn run_child(text: &str) -> Result<u8, Failure> {
    let unknown = || unknown_task(text);
    let (name, rounds) = text.split_once(':').ok_or_else(unknown)?;
    let figure = Figure::ALL.into_iter().find(|figure| figure.name() == name).ok_or_else(unknown)?;
    exchange::run(figure, rounds.parse().map_err(|_| unknown())?)?;
    Ok(0)
}

/// Returns the notes below the table.
fn notes(callgrind: &Callgrind) -> Vec<String> {
    let mut notes = vec![
        format!("counted by {}, inclusive, divided by packets or messages", callgrind.version()),
        format!(
            "send, receive: the packet layer, {BURST} packets of 256 bytes in a row to the next node, with all that belongs to them; \
             torus: the machine's steps for one of these packets, with both cards and the link"
        ),
        format!(
            "long-send, long-receive: the message layer's `advance`, for a packet of a rendezvous message of {MESSAGE} bytes; post: \
             `postsend` of a message of 8 bytes, which sends its packet"
        ),
        "the paper's numbers are of a PowerPC: 50 as the least for an aligned packet, 671 for a packet of its message layer, 1,300 for \
         `postsend`, of which its authors hoped to save 25 to 50 %"
            .into(),
    ];
    if cfg!(debug_assertions) {
        notes.push("not a release build: NOT for quoting".into());
    }
    notes
}
