//! How results are shown.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::{
    host::Host,
    row::{Goal, Outcome, Row, Wanted},
};
use crate::failure::{Failure, say};

/// One bench's result.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The bench's name.
    pub bench: &'static str,
    /// Where it ran.
    pub machine: Host,
    /// Whether it ran with fewer repetitions than figures to be quoted need.
    pub quick: bool,
    /// What it gave.
    #[serde(flatten)]
    pub outcome: Outcome,
}

impl Report {
    /// Tables on standard output.
    ///
    /// # Errors
    /// When nobody reads them.
    pub fn say(&self) -> Result<(), Failure> {
        let Host { processor, processors, kernel, load, .. } = &self.machine;
        say(format_args!(
            "{}: {processor}, {processors} processors, Linux {kernel}, load {load:.1}{}",
            self.bench,
            if self.quick { ", QUICK: not for quoting" } else { "" }
        ))?;
        say(rows(&self.outcome.rows))?;
        if !self.outcome.goals.is_empty() {
            say(goals(&self.outcome.goals))?;
        }
        for note in &self.outcome.notes {
            say(format_args!("- {note}"))?;
        }
        say("")
    }
}

/// How a cell of a column is made; `None` where it does not apply.
type Cell = fn(&Row) -> Option<String>;

fn rows(rows: &[Row]) -> Table {
    let fixed: [(&str, Cell); 10] = [
        ("path", |row| Some(row.path.clone())),
        ("backing", |row| row.backing.map(|backing| backing.name().to_owned())),
        ("placement", |row| row.placement.clone()),
        ("FIFO", |row| row.fifo_depth.map(|depth| depth.to_string())),
        ("direction", |row| row.direction.map(str::to_owned)),
        ("bytes", |row| row.bytes.map(size)),
        ("Gb/s", |row| row.gbit_s.map(figure)),
        ("p50 us", |row| row.p50_us.map(figure)),
        ("p99 us", |row| row.p99_us.map(figure)),
        ("rate/s", |row| row.rate_per_s.map(figure)),
    ];
    let columns: Vec<_> =
        fixed.iter().filter(|(_, cell)| rows.iter().any(|row| cell(row).is_some())).collect();
    let mut own: Vec<&str> = rows.iter().flat_map(|row| row.figures.keys().copied()).collect();
    own.sort_unstable();
    own.dedup();
    let mut table = new_table();
    table.set_header(
        columns
            .iter()
            .map(|(name, _)| (*name).to_owned())
            .chain(own.iter().map(|name| name.replace('_', " "))),
    );
    for row in rows {
        let cells = columns.iter().map(|(_, cell)| cell(row));
        let figures = own.iter().map(|name| row.figures.get(name).copied().map(figure));
        table.add_row(cells.chain(figures).map(|cell| cell.unwrap_or_else(|| "-".into())));
    }
    let is_text = |name: &str| ["path", "backing", "placement", "direction"].contains(&name);
    let numbers = columns.iter().enumerate().filter(|(_, (name, _))| !is_text(name)).map(|(index, _)| index);
    let numbers: Vec<_> = numbers.chain(columns.len()..columns.len() + own.len()).collect();
    for index in numbers {
        align_right(&mut table, index);
    }
    table
}

fn goals(goals: &[Goal]) -> Table {
    let mut table = new_table();
    table.set_header(["goal", "wanted", "measured", ""]);
    for goal in goals {
        let wanted = match goal.wanted {
            Wanted::AtMost => format!("<= {}", figure(goal.limit)),
            Wanted::AtLeast => format!(">= {}", figure(goal.limit)),
        };
        table.add_row([
            goal.what.clone(),
            wanted,
            figure(goal.measured),
            if goal.met { "met".into() } else { "MISSED".into() },
        ]);
    }
    align_right(&mut table, 1);
    align_right(&mut table, 2);
    table
}

fn new_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table
}

fn align_right(table: &mut Table, column: usize) {
    if let Some(column) = table.column_mut(column) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

/// Three significant digits, large numbers with a suffix.
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

/// Bytes as people say them: 16, 4 K, 1 M.
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
                .to_string();
        assert!(rows.contains("p50 us") && rows.contains("instructions"), "{rows}");
        assert!(!rows.contains("backing") && !rows.contains("FIFO"), "{rows}");
    }
}
