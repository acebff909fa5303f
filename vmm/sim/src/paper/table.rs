//! The table of a paper, as text, as Markdown and as JSON.

use std::fmt::Write;

use nicforge::{
    failure::{ErrorContext, Failure},
    table::{TableColumn, TableData},
};
use serde::Serialize;

use super::{
    experiment::{Experiment, Options},
    figure::Figure,
    judgement::{Judgement, Tolerance},
    number::rounded,
    row::Row,
};

/// Decimals that a value is shown with at most.
const MAX_DECIMALS: usize = 6;

/// The result of one run of a paper's experiments.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Table {
    /// The word for the paper on the command line.
    pub name: &'static str,
    /// The heading.
    pub title: &'static str,
    /// The paper.
    pub citation: &'static str,
    /// The seed of the run.
    pub seed: u64,
    /// Whether only quick rows were measured.
    pub quick: bool,
    /// The mechanisms that the model lacked in this run.
    pub without: Vec<&'static str>,
    /// The rows, in the order of their measurement.
    pub rows: Vec<Row>,
    /// The figures.
    pub figures: Vec<Figure>,
    /// Facts that a reader must know.
    pub notes: Vec<String>,
}

/// The number of judged rows, and of those that hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// The number of rows that can be out.
    pub judged: usize,
    /// The number of judged rows that hold.
    pub hold: usize,
}

impl Verdict {
    /// Returns the verdict on the rows of several tables.
    pub fn of(tables: &[Table]) -> Self {
        let judged = tables.iter().flat_map(|table| &table.rows).filter_map(Row::holds);
        judged.fold(Self::default(), |sum, holds| Self {
            judged: sum.judged + 1,
            hold: sum.hold + usize::from(holds),
        })
    }

    /// Returns whether no judged row is out.
    pub fn is_good(self) -> bool {
        self.hold == self.judged
    }

    /// Returns the sentence about it.
    pub fn sentence(self) -> String {
        let Self { judged, hold } = self;
        match judged - hold {
            0 if judged == 0 => "No row is judged.".into(),
            0 => format!("All {judged} judged rows hold."),
            out => format!("{hold} of {judged} judged rows hold, {out} out."),
        }
    }
}

impl Table {
    /// Returns the table of an experiment, without rows. `without` lists those mechanisms of the
    /// experiment that the options switch off.
    pub(super) fn new(experiment: &Experiment, options: &Options) -> Self {
        let Experiment { name, title, citation, mechanisms, .. } = *experiment;
        let is_off = |name: &&str| options.without.iter().any(|without| without == name);
        let without = mechanisms.iter().map(|mechanism| mechanism.name).filter(is_off).collect();

        Self {
            name,
            title,
            citation,
            seed: options.seed,
            quick: options.quick,
            without,
            rows: Vec::new(),
            figures: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Returns the table for a terminal: two lines of heading, the rows, the notes, and the verdict
    /// in the last line.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n{}\n{}\n", self.heading(), self.citation, self.table_data().table());
        self.write_notes(&mut text);
        text.push_str(&Verdict::of(std::slice::from_ref(self)).sentence());

        text
    }

    /// Returns the table as a section of a Markdown document.
    pub fn markdown(&self) -> String {
        let mut text =
            format!("## {}\n\n{}\n\n{}\n", self.heading(), self.citation, self.table_data().markdown());
        self.write_notes(&mut text);
        if !self.notes.is_empty() {
            text.push('\n');
        }
        text.push_str(&Verdict::of(std::slice::from_ref(self)).sentence());

        text
    }

    /// Returns the title with everything that makes this run differ from the usual one.
    fn heading(&self) -> String {
        let without = match self.without.as_slice() {
            [] => String::new(),
            names => format!(", WITHOUT {}", names.join(" and ")),
        };
        let quick = if self.quick { ", quick rows only" } else { "" };

        format!("{}{without}, seed {}{quick}", self.title, self.seed)
    }

    /// Appends the notes as a list.
    fn write_notes(&self, text: &mut String) {
        for note in &self.notes {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "- {note}");
        }
    }

    /// Returns the columns and cells of the table.
    fn table_data(&self) -> TableData {
        let columns = [
            ("", false),
            ("paper", true),
            ("ours", true),
            ("unit", false),
            ("error", true),
            ("allowed", true),
            ("null model", true),
            ("without", false),
            ("role", false),
            ("", false),
        ];

        TableData {
            columns: columns.map(|(name, is_numeric)| TableColumn::new(name, is_numeric)).into(),
            rows: self.rows.iter().map(cells).collect(),
        }
    }
}

/// Returns the cells of a row.
fn cells(row: &Row) -> Vec<String> {
    let expected = row.expected();
    let value = |value| value_text(value, expected.paper);
    let null_model = expected.null_model.as_ref();
    let verdict = match row.holds() {
        Some(true) => "holds",
        Some(false) => "OUT",
        None => "shown",
    };

    let (bound, allowed) = match expected.judgement {
        Judgement::Unjudged => ("", "-".into()),
        Judgement::Within(tolerance) => ("", tolerance.to_string()),
        Judgement::AtLeast => ("at least ", "any above".into()),
        Judgement::AtMost => ("at most ", "any below".into()),
        Judgement::Above => ("above ", "any above".into()),
        Judgement::Below => ("below ", "any below".into()),
    };

    vec![
        expected.what.clone(),
        format!("{bound}{}", value(expected.paper)),
        value(row.simulated()),
        expected.unit.to_owned(),
        error_text(row),
        allowed,
        null_model.map_or_else(|| "-".into(), |model| value(model.value)),
        null_model.map_or_else(String::new, |model| model.without.clone()),
        expected.role.name().to_owned(),
        verdict.to_owned(),
    ]
}

/// Returns the difference between the simulated value and the paper's: in the unit of the
/// tolerance, or in percent without one.
fn error_text(row: &Row) -> String {
    match row.expected().judgement {
        Judgement::Within(Tolerance::Points(_)) => format!("{:+.2} points", rounded(row.difference(), 2)),
        Judgement::Within(Tolerance::Microseconds(_)) => format!("{:+.2} us", rounded(row.difference(), 2)),
        _ => {
            row.error_percent().map_or_else(|| "-".into(), |percent| format!("{:+.2} %", rounded(percent, 2)))
        }
    }
}

/// Formats a value with as many decimals as the paper's value has, and with three digits at least.
fn value_text(value: f64, paper: f64) -> String {
    let paper_text = format!("{paper}");
    if value == paper {
        return paper_text;
    }

    let decimals_of_paper = paper_text.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let decimals_of_three_digits = match value.abs() {
        large if large >= 100.0 => 0,
        middle if middle >= 10.0 => 1,
        small if small >= 1.0 => 2,
        _ => 3,
    };
    let decimals = decimals_of_paper.max(decimals_of_three_digits).min(MAX_DECIMALS);
    format!("{:.decimals$}", rounded(value, decimals))
}

/// The object of [`json()`].
#[derive(Serialize)]
struct TablesReport<'a> {
    papers: &'a [Table],
    complete: bool,
    #[serde(flatten)]
    verdict: Verdict,
}

/// Returns tables as one JSON object, with the verdict on all of them. `is_complete` says whether
/// all experiments that the user chose have a table.
///
/// # Errors
/// Returns an error when a value has no form in JSON.
pub fn json(tables: &[Table], is_complete: bool) -> Result<String, Failure> {
    let all = TablesReport { papers: tables, complete: is_complete, verdict: Verdict::of(tables) };
    serde_json::to_string_pretty(&all).context(|| "the tables".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_decimals_of_the_papers_and_three_digits_at_least() {
        assert_eq!(value_text(0.208_91, 0.208_53), "0.20891");
        assert_eq!(value_text(13.412, 13.3), "13.4");
        assert_eq!(value_text(2.027, 2.0), "2.03");
        assert_eq!(value_text(1166.4, 1166.0), "1166");
        assert_eq!(value_text(86.0, 86.0), "86");
        assert_eq!(value_text(-0.000_4, 0.0), "0.000");
        assert_eq!(value_text(f64::NAN, 1.0), "NaN");
    }
}
