//! The load test: all attacks, one after the other, under each event loop.

use std::time::{Duration, Instant};

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::{
    arena::Failed,
    attack::Attack,
    contest::{self, Contest, Setting},
};

/// Limit of a tenant's pause that other clients cause.
pub const PAUSE_LIMIT: Duration = Duration::from_millis(100);
/// Limit of the time from SIGTERM to the end.
pub const END_LIMIT: Duration = Duration::from_secs(2);
/// Interval between newcomers.
const BEAT: Duration = Duration::from_millis(100);

/// A row of the table.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    /// The attack.
    pub attack: &'static str,
    /// The event loop.
    pub event_loop: &'static str,
    /// Rounds of the attacker that were carried out completely.
    pub landed: u64,
    /// Rounds of the attacker that the server cut short.
    pub cut: u64,
    /// The reasons of some cut rounds.
    pub reasons: Vec<String>,
    /// Rounds of the polite tenant.
    pub rounds: u64,
    /// The tenant's longest round, in milliseconds.
    pub worst_ms: f64,
    /// The tenant's longest round without the host's delays, in milliseconds.
    pub worst_of_server_ms: f64,
    /// The duration that 99 of 100 rounds do not exceed, in milliseconds.
    pub p99_ms: f64,
    /// The host's longest delay, in milliseconds.
    pub host_ms: f64,
    /// Newcomers that were served.
    pub newcomers: u64,
    /// Newcomers that were not served.
    pub newcomers_failed: u64,
    /// The longest time of a newcomer, in milliseconds.
    pub newcomer_ms: f64,
    /// From SIGTERM to the end of the sockets, in milliseconds.
    pub sockets_ms: Option<f64>,
    /// From SIGTERM to the end of the process, in milliseconds.
    pub end_ms: Option<f64>,
    /// Why the attack was not run.
    pub not_run: Option<String>,
    /// Why the tenant lost its card.
    pub tenant_lost: Option<String>,
    /// The limits that were missed.
    pub missed: Vec<String>,
}

/// The limits that decide a contest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Whether times count. They do not for a server that a sanitizer slows down.
    pub times: bool,
}

/// Runs one attack for `seconds`. `is_cancelled` is polled often and can end it early.
///
/// # Errors
/// When server, tenant or attacker cannot be started, or the tenant loses its card.
pub fn run(
    setting: &Setting,
    attack: &Attack,
    seconds: Duration,
    limits: Limits,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<Row, Failed> {
    let mut contest = Contest::start(setting, attack)?;
    let end = Instant::now() + seconds;
    let mut beat = Instant::now();

    while Instant::now() < end && !is_cancelled() && !contest.check_attacker_ended()? {
        contest.newcomer();
        beat += BEAT;
        std::thread::sleep(beat.saturating_duration_since(Instant::now()));
        beat = beat.max(Instant::now() - BEAT);
    }

    let result = contest.finish()?;
    Ok(add_missed_limits(row(setting, attack, &result), attack, &result, limits))
}

/// Returns the row of a finished contest, without missed limits.
fn row(setting: &Setting, attack: &Attack, result: &contest::Outcome) -> Row {
    let milliseconds = |duration: Duration| duration.as_secs_f64() * 1e3;
    Row {
        attack: attack.name,
        event_loop: setting.event_loop,
        landed: result.attacker.landed,
        cut: result.attacker.cut,
        reasons: result.attacker.reasons.clone(),
        rounds: result.tenant.rounds,
        worst_ms: result.tenant.worst_ms,
        worst_of_server_ms: result.tenant.worst_of_server_ms,
        p99_ms: result.tenant.p99_ms,
        host_ms: result.tenant.host_ms,
        newcomers: result.newcomers.served,
        newcomers_failed: result.newcomers.failed,
        newcomer_ms: milliseconds(result.newcomers.worst),
        sockets_ms: result.end.sockets.map(milliseconds),
        end_ms: result.end.process.map(milliseconds),
        not_run: result.attacker.not_run.clone(),
        tenant_lost: result.tenant.lost.clone(),
        missed: Vec::new(),
    }
}

/// Adds to the row of an attack each limit that the server or its other clients have not met, and
/// an attacker without a complete round.
fn add_missed_limits(mut row: Row, attack: &Attack, result: &contest::Outcome, limits: Limits) -> Row {
    if row.not_run.is_some() {
        return row;
    }

    let mut miss = |is_missed: bool, description: &str| {
        if is_missed {
            row.missed.push(description.to_owned());
        }
    };

    miss(row.landed + row.cut == 0, "the attacker completed no round");
    if let Some(harm) = &result.attacker.harmed {
        miss(true, &format!("an honest peer was harmed: {harm}"));
    }
    miss(attack.has_honest_ranks && row.cut > 0, "an honest rank was held up");
    if let Some(reason) = &result.tenant.lost {
        miss(true, &format!("tenant lost: {reason}"));
    }
    miss(result.tenant.wrong > 0, "the tenant received wrong data");
    miss(row.newcomers_failed > 0, "a new client was refused");
    miss(
        limits.times && row.worst_of_server_ms > PAUSE_LIMIT.as_secs_f64() * 1e3,
        "the server paused too long",
    );

    let ended_in_time = |end: Option<Duration>| end.is_some_and(|end| !limits.times || end <= END_LIMIT);
    miss(!ended_in_time(result.end.sockets), "the server's sockets stayed after its end");
    if !attack.kernel_keeps_process {
        miss(!ended_in_time(result.end.process), "the server's process did not end in time");
        miss(result.end.process.is_some() && !result.end.succeeded, "the server ended with a failure");
    }

    row
}

/// Formats the rows as a table.
pub fn table(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header([
        "attack",
        "loop",
        "landed",
        "cut",
        "rounds",
        "worst ms",
        "server's",
        "p99 ms",
        "host ms",
        "newcomer ms",
        "end ms",
        "verdict",
    ]);

    for row in rows {
        table.add_row(cells(row));
    }

    for column in table.column_iter_mut().skip(2).take(9) {
        column.set_cell_alignment(CellAlignment::Right);
    }

    table.to_string()
}

/// Returns the row as cells of the table.
fn cells(row: &Row) -> Vec<String> {
    let (name, event_loop) = (row.attack.to_owned(), row.event_loop.to_owned());
    if let Some(why) = &row.not_run {
        let mut cells = vec![name, event_loop];
        cells.resize(11, String::new());
        cells.push(format!("not run: {why}"));
        return cells;
    }

    let number = |value: f64| format!("{value:.1}");
    vec![
        name,
        event_loop,
        row.landed.to_string(),
        row.cut.to_string(),
        row.rounds.to_string(),
        number(row.worst_ms),
        number(row.worst_of_server_ms),
        format!("{:.2}", row.p99_ms),
        number(row.host_ms),
        number(row.newcomer_ms),
        row.end_ms.map_or("never".to_owned(), number),
        verdict(row),
    ]
}

/// Returns a short verdict on a row.
pub fn verdict(row: &Row) -> String {
    match (&row.not_run, row.missed.is_empty()) {
        (Some(why), _) => format!("not run: {why}"),
        (None, true) => "held".to_owned(),
        (None, false) => format!("MISSED: {}", row.missed.join(", ")),
    }
}
