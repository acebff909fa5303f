//! Prints results: tables for a terminal, or Markdown for a document.

use std::fmt::Write;

use nicforge::{
    failure::{ErrorContext, Failure, print_line},
    table::{TableColumn, TableData},
};
use serde::Serialize;

use crate::{
    host::Host,
    row::{Backing, Goal, Outcome, Row, Wanted},
};

/// A document with more rows than this shows bandwidths side by side, with a column for each path.
const MAX_PLAIN_ROWS: usize = 60;

/// The result of one benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The bench's name.
    pub bench: &'static str,
    /// The host that it ran on.
    pub machine: Host,
    /// Whether it ran with fewer repetitions than quoted figures need.
    pub quick: bool,
    /// The rows, goals and notes.
    #[serde(flatten)]
    pub outcome: Outcome,
}

impl Report {
    /// Prints tables on standard output.
    ///
    /// # Errors
    /// Returns an error when the output is closed.
    pub fn print(&self) -> Result<(), Failure> {
        print_line(format_args!("{}: {}", self.bench, self.host_line()))?;
        print_line(rows(&self.outcome.rows).table())?;
        if !self.outcome.goals.is_empty() {
            print_line(goals(&self.outcome.goals).table())?;
        }

        for note in &self.outcome.notes {
            print_line(format_args!("- {note}"))?;
        }

        print_line("")
    }

    /// Returns the report as a section of a Markdown document: a heading, the host, the rows, the
    /// goals and the notes.
    ///
    /// When there are many rows and all have a bandwidth, the table of rows has a column for each
    /// path, which shows the bandwidths side by side.
    pub fn markdown(&self) -> String {
        let mut text = format!("## `nicforge bench {}`\n\n{}\n\n", self.bench, self.host_line());
        let bandwidths = self.outcome.rows.iter().all(|row| row.gbit_s.is_some());
        let data = if self.outcome.rows.len() > MAX_PLAIN_ROWS && bandwidths {
            bandwidth_table(&self.outcome.rows)
        } else {
            rows(&self.outcome.rows)
        };

        text.push_str(&data.markdown());
        if !self.outcome.goals.is_empty() {
            text.push('\n');
            text.push_str(&goals(&self.outcome.goals).markdown());
        }

        if !self.outcome.notes.is_empty() {
            text.push('\n');
        }

        for note in &self.outcome.notes {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "- {note}");
        }

        text
    }

    /// Returns the report as JSON.
    ///
    /// # Errors
    /// Returns an error when a figure has no form in JSON.
    pub fn json(&self) -> Result<String, Failure> {
        serde_json::to_string_pretty(self).context(|| "the report".into())
    }

    /// Returns the line that describes the host, and whether the run was a quick one.
    fn host_line(&self) -> String {
        let Host { processor, processors, kernel, load, .. } = &self.machine;
        format!(
            "{processor}, {processors} processors, Linux {kernel}, load {load:.1}{}",
            if self.quick { ", QUICK: not for quoting" } else { "" }
        )
    }
}

/// Returns the text of a cell, or `None` if the column does not apply to the row.
type Cell = fn(&Row) -> Option<String>;

/// Returns a table with a line for each row. A column that applies to no row is left out. The
/// figures that only some benchmarks have follow the fixed columns, by name.
fn rows(rows: &[Row]) -> TableData {
    // Name, whether the cells are numbers, and the cell of a row.
    let fixed: [(&str, bool, Cell); 13] = [
        ("path", false, |row| Some(row.path.clone())),
        ("backing", false, |row| row.backing.map(|backing| backing.name().to_owned())),
        ("accelerator", false, |row| row.accelerator.map(str::to_owned)),
        ("placement", false, |row| row.placement.clone()),
        ("FIFO", true, |row| row.fifo_depth.map(|depth| depth.to_string())),
        ("direction", false, |row| row.direction.map(str::to_owned)),
        ("bytes", true, |row| row.bytes.map(format_size)),
        ("Gb/s", true, |row| row.gbit_s.map(format_figure)),
        ("mean us", true, |row| row.mean_us.map(format_figure)),
        ("p50 us", true, |row| row.p50_us.map(format_figure)),
        ("p99 us", true, |row| row.p99_us.map(format_figure)),
        ("rate/s", true, |row| row.rate_per_s.map(format_figure)),
        ("not measured", false, |row| row.not_measured.clone()),
    ];

    let used: Vec<_> =
        fixed.iter().filter(|(_, _, cell)| rows.iter().any(|row| cell(row).is_some())).collect();
    let mut figure_names: Vec<&str> = rows.iter().flat_map(|row| row.figures.keys().copied()).collect();
    figure_names.sort_unstable();
    figure_names.dedup();

    let mut columns: Vec<_> =
        used.iter().map(|(name, is_numeric, _)| TableColumn::new(*name, *is_numeric)).collect();
    columns.extend(figure_names.iter().map(|name| TableColumn::new(name.replace('_', " "), true)));

    let cells = |row: &Row| {
        let fixed = used.iter().map(|(_, _, cell)| cell(row));
        let figures = figure_names.iter().map(|name| row.figures.get(name).copied().map(format_figure));
        fixed.chain(figures).map(|cell| cell.unwrap_or_else(|| "-".into())).collect()
    };

    TableData { columns, rows: rows.iter().map(cells).collect() }
}

/// Returns a table of bandwidths in Gb/s, with a column for each path, FIFO depth and backing. The
/// first columns hold the other properties of a row.
fn bandwidth_table(rows: &[Row]) -> TableData {
    // The rows with the same key share a line, and those with the same label a column.
    let key = |row: &Row| {
        // Rows without this figure have one outstanding request.
        let outstanding = row.figures.get("outstanding").map_or(1, |&count| count as u64).to_string();
        [
            row.direction.unwrap_or("-").to_owned(),
            row.bytes.map_or_else(|| "-".into(), format_size),
            outstanding,
        ]
    };

    let label = |row: &Row| {
        let depth = row.fifo_depth.map(|depth| format!(" {depth}")).unwrap_or_default();
        let backing = if row.backing == Some(Backing::InProcess) { " in process" } else { "" };
        format!("{}{depth}{backing}", row.path)
    };

    let (mut keys, mut labels) = (Vec::new(), Vec::new());
    for row in rows.iter().filter(|row| row.gbit_s.is_some()) {
        if !keys.contains(&key(row)) {
            keys.push(key(row));
        }
        if !labels.contains(&label(row)) {
            labels.push(label(row));
        }
    }

    let mut columns = vec![
        TableColumn::new("direction", false),
        TableColumn::new("bytes", true),
        TableColumn::new("outstanding", true),
    ];
    columns.extend(labels.iter().map(|label| TableColumn::new(label.as_str(), true)));
    let line = |line_key: &[String; 3]| {
        let cell = |column_label: &String| {
            let found = rows.iter().find(|row| key(row) == *line_key && label(row) == *column_label);
            found.and_then(|row| row.gbit_s).map_or_else(|| "-".into(), format_figure)
        };
        line_key.iter().cloned().chain(labels.iter().map(cell)).collect()
    };

    TableData { columns, rows: keys.iter().map(line).collect() }
}

/// Returns a table of the goals, and whether each is met.
fn goals(goals: &[Goal]) -> TableData {
    let columns = vec![
        TableColumn::new("goal", false),
        TableColumn::new("wanted", true),
        TableColumn::new("measured", true),
        TableColumn::new("", false),
    ];
    let line = |goal: &Goal| {
        let sign = match goal.wanted {
            Wanted::AtMost => "at most",
            Wanted::AtLeast => "at least",
        };
        let met = if goal.met { "met" } else { "MISSED" };
        vec![
            goal.what.clone(),
            format!("{sign} {}", format_figure(goal.limit)),
            format_figure(goal.measured),
            met.into(),
        ]
    };

    TableData { columns, rows: goals.iter().map(line).collect() }
}

/// Formats a number with three significant digits, and large numbers with a suffix.
fn format_figure(value: f64) -> String {
    let (value, suffix) = match value.abs() {
        large if large >= 1e9 => (value / 1e9, " G"),
        large if large >= 1e6 => (value / 1e6, " M"),
        large if large >= 1e4 => (value / 1e3, " k"),
        _ => (value, ""),
    };

    let decimals = match value.abs() {
        0.0 => 0,
        small if small < 10.0 => 2,
        middle if middle < 100.0 => 1,
        _ => 0,
    };

    format!("{value:.decimals$}{suffix}")
}

/// Formats a number of bytes: 16, 4 K, 1 M.
fn format_size(bytes: u64) -> String {
    match bytes {
        mega if mega >= 1 << 20 && mega % (1 << 20) == 0 => format!("{} M", mega >> 20),
        kilo if kilo >= 1 << 10 && kilo % (1 << 10) == 0 => format!("{} K", kilo >> 10),
        bytes => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        let texts = [0.0, 0.5, 12.34, 123.4, 9999.0, 12_345.0, 61_000_000.0].map(format_figure);
        assert_eq!(texts, ["0", "0.50", "12.3", "123", "9999", "12.3 k", "61.0 M"]);
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!([16, 1000, 4096, 1 << 20].map(format_size), ["16", "1000", "4 K", "1 M"]);
    }

    #[test]
    fn columns_that_no_row_has_are_left_out() {
        let rows =
            rows(&[Row { p50_us: Some(1.5), ..Row::new("a") }, Row::new("b").figure("instructions", 42.0)])
                .table()
                .to_string();
        assert!(rows.contains("p50 us") && rows.contains("instructions"), "{rows}");
        assert!(!rows.contains("backing") && !rows.contains("FIFO"), "{rows}");
    }

    #[test]
    fn a_row_without_figures_says_why() {
        let not_measured = Some("not done in 30 s".to_owned());
        let rows = [Row { mean_us: Some(1.5), ..Row::new("a") }, Row { not_measured, ..Row::new("b") }];

        let expected = "| path | mean us | not measured |\n| --- | --: | --- |\n\
            | a | 1.50 | - |\n| b | - | not done in 30 s |\n";
        assert_eq!(super::rows(&rows).markdown(), expected);
    }

    #[test]
    fn bandwidths_of_different_paths_stand_side_by_side() {
        let row = |path: &str, bytes, gbit_s| Row {
            bytes: Some(bytes),
            gbit_s: Some(gbit_s),
            direction: Some("both"),
            ..Row::new(path)
        };

        let text = bandwidth_table(&[row("raw", 16, 1.0), row("unix", 16, 2.0), row("raw", 1 << 20, 3.0)])
            .markdown();
        let expected = "| direction | bytes | outstanding | raw | unix |\n| --- | --: | --: | --: | --: |\n\
            | both | 16 | 1 | 1.00 | 2.00 |\n| both | 1 M | 1 | 3.00 | - |\n";

        assert_eq!(text, expected);
    }
}
