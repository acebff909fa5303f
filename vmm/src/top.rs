//! `nicforge top`: a live page of the nodes and attachments of a served machine, with rates.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use crate::{
    failure::{Failure, counted},
    samples,
    stat::{
        AttachmentSnapshot, ColumnSnapshot, EngineActivity, MachineSnapshot, NodeSnapshot, ask_for_snapshot,
        columns, count_packets, describe_activity, find_directory, sum_of_errors, sum_of_stalls,
    },
};

/// Width of the page in characters.
const WIDTH: usize = 80;
/// Lines of a page that is not for a terminal.
const MAX_LINES: usize = 1000;
/// Titles of the columns with numbers.
const TITLES: [&str; 6] = ["packets/s", "posted/s", "trapped/s", "irq/s", "stalls/s", "errors"];

/// Runs `nicforge top`: at each interval until a signal comes, or `once` after one interval.
pub fn main(directory: &Path, interval: Duration, once: bool) -> Result<u8, Failure> {
    let directory = find_directory(directory)?;
    let sample = || Ok::<_, Failure>((ask_for_snapshot(&directory)?, Instant::now()));
    let mut last: Option<(MachineSnapshot, Instant)> = None;
    if once {
        last = Some(sample()?);
        std::thread::sleep(interval);
    }

    samples::print((!once).then_some(interval), true, || {
        let (snapshot, now) = sample()?;
        let since = last.as_ref().map(|(old, time)| Since { old, elapsed: now.duration_since(*time) });
        let lines = terminal_size::terminal_size().map_or(MAX_LINES, |(_, height)| height.0.into());
        let text = page(&snapshot, since.as_ref(), lines);
        last = Some((snapshot, now));
        Ok(text)
    })
}

/// The sample before the present one.
struct Since<'a> {
    old: &'a MachineSnapshot,
    elapsed: Duration,
}

impl<'a> Since<'a> {
    /// Returns the rate of a count that was `before`, in events a second.
    fn rate(&self, now: u64, before: u64) -> f64 {
        // The lower bound avoids a division by 0.
        now.saturating_sub(before) as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Returns the earlier state of a node.
    fn node(&self, index: usize) -> Option<&'a NodeSnapshot> {
        self.old.nodes.get(index)
    }
}

/// Returns the page of a snapshot, of at most `max_lines` lines. Without an earlier sample, there
/// are no rates.
fn page(snapshot: &MachineSnapshot, since: Option<&Since<'_>>, max_lines: usize) -> String {
    let columns = columns(&snapshot.columns);
    let mut lines = vec![
        format!(
            "{} ({}), up {:.1} s, {}",
            snapshot.machine,
            snapshot.event_loop,
            snapshot.uptime_ms as f64 / 1e3,
            describe_activity(snapshot)
        ),
        engine_line(&snapshot.engine, since),
        format!("longest turn {}", snapshot.longest_turn),
        String::new(),
        line("node", "clients", &TITLES.map(str::to_owned)),
    ];

    let mut idle = 0;
    for (index, node) in snapshot.nodes.iter().enumerate() {
        let before = since.and_then(|since| since.node(index));
        let has_client = node.attachments.iter().any(|attachment| attachment.pid.is_some());
        let is_idle = before.is_some_and(|before| before.counters == node.counters);
        if is_idle && !has_client {
            idle += 1;
            continue;
        }
        lines.extend(node_lines(node, before, since, &columns));
    }
    if idle > 0 {
        lines.push(format!("{} without a client and without a change", counted(idle, "node")));
    }

    lines.extend(problem_lines(snapshot));
    lines.extend(counter_lines(snapshot, since));
    cut(&lines, max_lines)
}

/// Returns the lines about devices and companions that have failed.
fn problem_lines(snapshot: &MachineSnapshot) -> Vec<String> {
    let problems = snapshot.nodes.iter().flat_map(|node| node.panics.iter().chain(&node.companions));
    problems.cloned().collect()
}

/// Returns the line about the engine's thread.
fn engine_line(engine: &EngineActivity, since: Option<&Since<'_>>) -> String {
    let Some(since) = since else { return "engine: rates follow after an interval".to_owned() };
    let before = &since.old.engine;
    let rate = |now, before| short(since.rate(now, before));
    let turns = engine.turns.saturating_sub(before.turns);
    let worked = engine.worked.saturating_sub(before.worked);

    format!(
        "engine: {} turns/s, {:.0} % with work; {} yields/s, {} late; {} sleeps/s",
        rate(engine.turns, before.turns),
        100.0 * worked as f64 / turns.max(1) as f64,
        rate(engine.yields, before.yields),
        engine.late_yields.saturating_sub(before.late_yields),
        rate(engine.sleeps, before.sleeps)
    )
}

/// Returns the lines of a node and of its attachments that have clients.
fn node_lines(
    node: &NodeSnapshot,
    before: Option<&NodeSnapshot>,
    since: Option<&Since<'_>>,
    columns: &[ColumnSnapshot],
) -> Vec<String> {
    let rate = |now: u64, before: Option<u64>| match (since, before) {
        (Some(since), Some(before)) => short(since.rate(now, before)),
        _ => "-".to_owned(),
    };
    let sum = |node: &NodeSnapshot, of: fn(&AttachmentSnapshot) -> u64| {
        node.attachments.iter().map(of).fold(0, u64::wrapping_add)
    };
    let of_attachments =
        |of: fn(&AttachmentSnapshot) -> u64| rate(sum(node, of), before.map(|before| sum(before, of)));

    let with_client = || node.attachments.iter().zip(0..).filter(|(attachment, _)| attachment.pid.is_some());
    let clients = format!("{}/{}", with_client().count(), node.attachments.len());
    let mut lines = vec![line(
        &node.name,
        &clients,
        &[
            rate(count_packets(node, columns), before.map(|before| count_packets(before, columns))),
            of_attachments(|attachment| attachment.posted),
            of_attachments(|attachment| attachment.trapped),
            of_attachments(|attachment| attachment.interrupts),
            rate(sum_of_stalls(node, columns), before.map(|before| sum_of_stalls(before, columns))),
            count(sum_of_errors(node, columns)),
        ],
    )];

    for (attachment, index) in with_client() {
        let before: Option<&AttachmentSnapshot> =
            before.and_then(|before| before.attachments.get::<usize>(index));
        let own = |of: fn(&AttachmentSnapshot) -> u64| rate(of(attachment), before.map(of));
        lines.push(line(
            &format!("  {}", attachment.name),
            &attachment.pid.map_or_else(String::new, |pid| pid.to_string()),
            &[
                String::new(),
                own(|attachment| attachment.posted),
                own(|attachment| attachment.trapped),
                own(|attachment| attachment.interrupts),
                own(|attachment| attachment.stalls),
                count(attachment.errors),
            ],
        ));
    }
    lines
}

/// Returns the lines of the devices' own counters that have changed since the last sample.
fn counter_lines(snapshot: &MachineSnapshot, since: Option<&Since<'_>>) -> Vec<String> {
    let Some(since) = since else { return Vec::new() };
    let mut lines = Vec::new();
    for (index, node) in snapshot.nodes.iter().enumerate() {
        let Some(before) = since.node(index) else { continue };
        for ((name, now), (_, old)) in node.counters.iter().zip(&before.counters) {
            if now != old {
                let name = format!("{}.{name}", node.name);
                let (rate, now) = (short(since.rate(*now, *old)), now.to_string());
                lines.push(format!("{:<46} {rate:>10} {now:>20}", fitted(&name, 46)));
            }
        }
    }

    if !lines.is_empty() {
        let titles = format!("{:<46} {:>10} {:>20}", "counters that change", "a second", "now");
        lines.splice(0..0, [String::new(), titles]);
    }
    lines
}

/// Returns a line of the table: a name, its clients, and six numbers.
fn line(name: &str, clients: &str, numbers: &[String; TITLES.len()]) -> String {
    let mut text = format!("{:<19} {:>7}", fitted(name, 19), fitted(clients, 7));
    for (number, title) in numbers.iter().zip(TITLES) {
        let width = title.len();
        text.push_str(&format!(" {number:>width$}"));
    }
    text
}

/// Returns a text with at most `width` characters. One that is cut ends with `~`.
fn fitted(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width - 1).chain(['~']).collect()
}

/// Returns a count in at most 6 characters.
fn count(number: u64) -> String {
    if number < 10_000 { number.to_string() } else { short(number as f64) }
}

/// Returns a rate in at most 6 characters, such as `1234`, `56.7k` or `1.23M`.
fn short(number: f64) -> String {
    if number < 9999.5 {
        // A rate below 1 is shown as such, since something has happened.
        let decimals = usize::from(number > 0.0 && number < 9.95);
        return format!("{number:.decimals$}");
    }

    let mut scaled = number;
    for unit in ["k", "M", "G", "T", "P"] {
        scaled /= 1e3;
        if scaled < 999.5 {
            let decimals = if scaled < 9.995 { 2 } else { usize::from(scaled < 99.95) };
            return format!("{scaled:.decimals$}{unit}");
        }
    }
    format!("{number:.0e}")
}

/// Returns the lines as a page, each at most [`WIDTH`] wide. A page that is too long tells how many
/// lines are left out.
fn cut(lines: &[String], max_lines: usize) -> String {
    // The line end after the last one would scroll a page that is as long as the terminal.
    let room = max_lines.saturating_sub(1).max(2);
    let shown = if lines.len() > room { room - 1 } else { lines.len() };
    let mut page: Vec<_> = lines[..shown].iter().map(|line| fitted(line, WIDTH)).collect();
    if shown < lines.len() {
        page.push(format!("... and {} more lines", lines.len() - shown));
    }
    page.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stat::LongestTurn;

    /// Returns a machine of two nodes, of which the first has a client with these counts.
    fn snapshot(sent: u64, posted: u64) -> MachineSnapshot {
        let node = |name: &str, sent, attachment| NodeSnapshot {
            name: name.into(),
            role: "compute".into(),
            rank: 0,
            functions: Vec::new(),
            panics: Vec::new(),
            companions: Vec::new(),
            counters: vec![("vc0_sent".into(), sent), ("lost".into(), 3)],
            attachments: vec![attachment],
        };
        let client = AttachmentSnapshot {
            name: "core0".into(),
            pid: Some(7),
            posted,
            errors: 2,
            ..Default::default()
        };
        let free = AttachmentSnapshot { name: "core0".into(), ..Default::default() };

        MachineSnapshot {
            machine: "m".into(),
            uptime_ms: 1500,
            event_loop: "epoll".into(),
            awake: 1,
            longest_turn: LongestTurn::default(),
            engine: EngineActivity {
                turns: posted.saturating_mul(10),
                worked: posted.saturating_mul(5),
                ..EngineActivity::default()
            },
            nodes: vec![node("cn0", sent, client), node("cn1", 9, free)],
            columns: Vec::new(),
        }
    }

    /// Returns the page two seconds after another one.
    fn page_after(old: &MachineSnapshot, new: &MachineSnapshot, max_lines: usize) -> String {
        let since = Since { old, elapsed: Duration::from_secs(2) };
        page(new, Some(&since), max_lines)
    }

    /// Returns the words of the line that begins with a word.
    fn words_of<'a>(page: &'a str, first: &str) -> Vec<&'a str> {
        let lines = page.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        lines.into_iter().find(|words| words.first() == Some(&first)).unwrap_or_default()
    }

    #[test]
    fn rates_are_those_since_the_last_sample() {
        let page = page_after(&snapshot(100, 1000), &snapshot(300, 5000), 100);

        assert_eq!(words_of(&page, "cn0"), ["cn0", "1/1", "100", "2000", "0", "0", "0", "0"]);
        assert_eq!(words_of(&page, "core0"), ["core0", "7", "2000", "0", "0", "0", "2"]);
        assert_eq!(words_of(&page, "cn0.vc0_sent"), ["cn0.vc0_sent", "100", "300"]);
        assert!(page.contains("20.0k turns/s, 50 % with work"), "{page}");
        assert!(!page.contains("lost"), "{page}");
    }

    #[test]
    fn nodes_without_a_client_and_a_change_are_counted() {
        let page = page_after(&snapshot(1, 1), &snapshot(1, 1), 100);
        assert!(page.contains("\n1 node without a client and without a change"), "{page}");
        assert!(words_of(&page, "cn1").is_empty() && !words_of(&page, "cn0").is_empty());
    }

    #[test]
    fn first_page_has_no_rates() {
        let page = page(&snapshot(1, 1), None, 100);
        assert_eq!(words_of(&page, "cn1"), ["cn1", "0/1", "-", "-", "-", "-", "-", "0"]);
    }

    #[test]
    fn page_fits_the_terminal() {
        let mut new = snapshot(u64::MAX, u64::MAX);
        new.nodes[0].name = "a-very-long-name-of-a-node".repeat(9);
        new.nodes[0].panics = vec!["device x panicked in step: ".repeat(9)];
        let page = page_after(&snapshot(0, 0), &new, 8);

        assert!(page.lines().all(|line| line.chars().count() <= WIDTH), "{page}");
        assert_eq!(page.lines().count(), 7);
        assert!(page.lines().last().unwrap().starts_with("... and "), "{page}");
    }

    #[test]
    fn numbers_are_short() {
        let cases = [
            (0.0, "0"),
            (0.5, "0.5"),
            (12.4, "12"),
            (9999.0, "9999"),
            (10_000.0, "10.0k"),
            (123_456.0, "123k"),
            (999_600.0, "1.00M"),
            (59_800_000.0, "59.8M"),
            (1.8e19, "2e19"),
        ];
        for (number, text) in cases {
            assert_eq!(short(number), text);
            assert!(text.len() <= 6);
        }
    }
}
