//! Prints results: tables for a terminal, or Markdown for a document.

use std::fmt::Write;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::{
    host::Host,
    row::{Backing, Goal, Outcome, Row, Wanted},
};
use crate::failure::{Failure, print_line};

/// A document with more rows than this shows bandwidths side by side, with a column for each path.
const LONG: usize = 60;

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
        print_line(format_args!("{}: {}", self.bench, self.where_()))?;
        print_line(rows(&self.outcome.rows).table())?;
        if !self.outcome.goals.is_empty() {
            print_line(goals(&self.outcome.goals).table())?;
        }

        for note in &self.outcome.notes {
            print_line(format_args!("- {note}"))?;
        }

        print_line("")
    }

    /// Returns a section of a Markdown document. When there are many rows and all have a bandwidth,
    /// it shows the bandwidths side by side.
    pub fn markdown(&self) -> String {
        let mut text = format!("## `nicforge bench {}`\n\n{}\n\n", self.bench, self.where_());
        let bandwidths = self.outcome.rows.iter().all(|row| row.gbit_s.is_some());
        let sheet = if self.outcome.rows.len() > LONG && bandwidths {
            side_by_side(&self.outcome.rows)
        } else {
            rows(&self.outcome.rows)
        };

        text.push_str(&sheet.markdown());
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

    fn where_(&self) -> String {
        let Host { processor, processors, kernel, load, .. } = &self.machine;
        format!(
            "{processor}, {processors} processors, Linux {kernel}, load {load:.1}{}",
            if self.quick { ", QUICK: not for quoting" } else { "" }
        )
    }
}

/// The contents of a table.
struct Sheet {
    /// The names of the columns, and whether they hold numbers.
    columns: Vec<(String, bool)>,
    rows: Vec<Vec<String>>,
}

impl Sheet {
    fn table(self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::UTF8_BORDERS_ONLY);
        table.set_header(self.columns.iter().map(|(name, _)| name));

        for row in self.rows {
            table.add_row(row);
        }

        for (index, _) in self.columns.iter().enumerate().filter(|(_, (_, number))| *number) {
            if let Some(column) = table.column_mut(index) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }

        table
    }

    fn markdown(self) -> String {
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let mut text = line(self.columns.iter().map(|(name, _)| name.clone()).collect());
        let rule = |&(_, number): &(String, bool)| if number { "--:" } else { "---" }.to_owned();
        text.push_str(&line(self.columns.iter().map(rule).collect()));

        for row in self.rows {
            text.push_str(&line(row));
        }

        text
    }
}

/// Returns the text of a cell, or `None` if the column does not apply to the row.
type Cell = fn(&Row) -> Option<String>;

fn rows(rows: &[Row]) -> Sheet {
    let fixed: [(&str, bool, Cell); 11] = [
        ("path", false, |row| Some(row.path.clone())),
        ("backing", false, |row| row.backing.map(|backing| backing.name().to_owned())),
        ("accelerator", false, |row| row.accelerator.map(str::to_owned)),
        ("placement", false, |row| row.placement.clone()),
        ("FIFO", true, |row| row.fifo_depth.map(|depth| depth.to_string())),
        ("direction", false, |row| row.direction.map(str::to_owned)),
        ("bytes", true, |row| row.bytes.map(size)),
        ("Gb/s", true, |row| row.gbit_s.map(figure)),
        ("p50 us", true, |row| row.p50_us.map(figure)),
        ("p99 us", true, |row| row.p99_us.map(figure)),
        ("rate/s", true, |row| row.rate_per_s.map(figure)),
    ];

    let used: Vec<_> =
        fixed.iter().filter(|(_, _, cell)| rows.iter().any(|row| cell(row).is_some())).collect();
    let mut own: Vec<&str> = rows.iter().flat_map(|row| row.figures.keys().copied()).collect();

    own.sort_unstable();
    own.dedup();

    let mut columns: Vec<_> = used.iter().map(|(name, number, _)| ((*name).to_owned(), *number)).collect();
    columns.extend(own.iter().map(|name| (name.replace('_', " "), true)));
    let cells = |row: &Row| {
        let fixed = used.iter().map(|(_, _, cell)| cell(row));
        let figures = own.iter().map(|name| row.figures.get(name).copied().map(figure));
        fixed.chain(figures).map(|cell| cell.unwrap_or_else(|| "-".into())).collect()
    };

    Sheet { columns, rows: rows.iter().map(cells).collect() }
}

/// Returns a sheet of bandwidths in Gb/s, with a column for each path. The first columns hold the
/// other properties of a row.
fn side_by_side(rows: &[Row]) -> Sheet {
    let key = |row: &Row| {
        // Rows without this figure have one outstanding request.
        let outstanding = row.figures.get("outstanding").map_or(1, |&count| count as u64).to_string();
        [row.direction.unwrap_or("-").to_owned(), row.bytes.map_or_else(|| "-".into(), size), outstanding]
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

    let front = [("direction", false), ("bytes", true), ("outstanding", true)];
    let mut columns: Vec<_> = front.map(|(name, number)| (name.to_owned(), number)).to_vec();
    columns.extend(labels.iter().map(|label| (label.clone(), true)));
    let line = |wanted: &[String; 3]| {
        let cell = |label_: &String| {
            let found = rows.iter().find(|row| key(row) == *wanted && label(row) == *label_);
            found.and_then(|row| row.gbit_s).map_or_else(|| "-".into(), figure)
        };
        wanted.iter().cloned().chain(labels.iter().map(cell)).collect()
    };

    Sheet { columns, rows: keys.iter().map(line).collect() }
}

fn goals(goals: &[Goal]) -> Sheet {
    let columns = [("goal", false), ("wanted", true), ("measured", true), ("", false)];
    let line = |goal: &Goal| {
        let sign = match goal.wanted {
            Wanted::AtMost => "at most",
            Wanted::AtLeast => "at least",
        };
        let met = if goal.met { "met" } else { "MISSED" };
        vec![goal.what.clone(), format!("{sign} {}", figure(goal.limit)), figure(goal.measured), met.into()]
    };

    Sheet {
        columns: columns.map(|(name, number)| (name.to_owned(), number)).to_vec(),
        rows: goals.iter().map(line).collect(),
    }
}

/// Formats a number with three significant digits, and large numbers with a suffix.
fn figure(value: f64) -> String {
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
fn size(bytes: u64) -> String {
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
        let texts = [0.0, 0.5, 12.34, 123.4, 9999.0, 12_345.0, 61_000_000.0].map(figure);
        assert_eq!(texts, ["0", "0.50", "12.3", "123", "9999", "12.3 k", "61.0 M"]);
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!([16, 1000, 4096, 1 << 20].map(size), ["16", "1000", "4 K", "1 M"]);
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
    fn many_bandwidths_stand_side_by_side() {
        let row = |path: &str, bytes, gbit_s| Row {
            bytes: Some(bytes),
            gbit_s: Some(gbit_s),
            direction: Some("both"),
            ..Row::new(path)
        };

        let text =
            side_by_side(&[row("raw", 16, 1.0), row("unix", 16, 2.0), row("raw", 1 << 20, 3.0)]).markdown();
        let expected = "| direction | bytes | outstanding | raw | unix |\n| --- | --: | --: | --: | --: |\n\
            | both | 16 | 1 | 1.00 | 2.00 |\n| both | 1 M | 1 | 3.00 | - |\n";

        assert_eq!(text, expected);
    }
}
