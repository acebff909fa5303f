//! The experiments of a paper, and a run of them.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use nicforge::failure::Failure;

use super::{
    figure::Figure,
    row::{Expected, Row, RowError},
    table::Table,
};
use crate::interrupted::Interrupted;

/// A part of the model that a run can switch off, to show that rows of the table then fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mechanism {
    /// The mechanism's name on the command line, such as `protocol-bytes`.
    pub name: &'static str,
    /// The behaviour of the model without the mechanism, in one line.
    pub without: &'static str,
}

/// The experiments of one paper.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// The word for the paper on the command line, and in the names of files.
    pub name: &'static str,
    /// The heading of the table.
    pub title: &'static str,
    /// The paper: authors, title, place, year.
    pub citation: &'static str,
    /// The mechanisms that a run can do without.
    pub mechanisms: &'static [Mechanism],
    /// Returns all rows, also those that only some runs measure. They are checked before a run.
    pub rows: fn() -> Vec<Expected>,
    /// Measures the rows and figures.
    pub run: fn(&mut Run<'_>) -> Result<(), Failure>,
}

/// The options of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The seed of all random numbers of the run.
    pub seed: u64,
    /// Measure the quick rows only.
    pub quick: bool,
    /// The names of the mechanisms to take away. Names of other experiments' mechanisms have no
    /// effect.
    pub without: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self { seed: 1, quick: false, without: Vec::new() }
    }
}

/// One run of an experiment: its options, its progress, and the rows so far.
pub struct Run<'a> {
    options: &'a Options,
    /// Returns whether the user has ended the run.
    interrupted: &'a dyn Fn() -> bool,
    progress: ProgressBar,
    /// All rows of the experiment, measured or not.
    rows: Vec<Expected>,
    table: Table,
}

impl<'a> Run<'a> {
    /// Runs an experiment, and returns its table. The progress is shown when standard error is a
    /// terminal. `interrupted` returns whether the user has ended the run.
    ///
    /// # Errors
    /// Returns an error when a row of the experiment cannot fail, also if the run leaves it out,
    /// when the user has ended the run, and when the experiment fails.
    pub fn of(
        experiment: &Experiment,
        options: &'a Options,
        interrupted: &'a dyn Fn() -> bool,
    ) -> Result<Table, Failure> {
        let rows = (experiment.rows)();
        rows.iter().try_for_each(Expected::check)?;

        let mut run = Self {
            options,
            interrupted,
            rows,
            progress: progress(experiment),
            table: Table::new(experiment, options),
        };

        let ended = run.check().and_then(|()| (experiment.run)(&mut run));
        run.progress.finish_and_clear();

        ended.map(|()| run.table)
    }

    /// Returns the seed of all random numbers of this run.
    pub fn seed(&self) -> u64 {
        self.options.seed
    }

    /// Returns whether only quick rows are measured.
    pub fn is_quick(&self) -> bool {
        self.options.quick
    }

    /// Returns the check of whether the user has ended the run, for simulations.
    pub fn interrupted(&self) -> Interrupted<'a> {
        Interrupted::new(self.interrupted)
    }

    /// Returns whether the model has a mechanism in this run.
    pub fn has(&self, mechanism: &Mechanism) -> bool {
        !self.table.without.contains(&mechanism.name)
    }

    /// Returns whether a row is measured in this run.
    pub fn measures(&self, expected: &Expected) -> bool {
        expected.quick || !self.options.quick
    }

    /// Checks that the user has not ended the run, by a system call. Long measurements call it
    /// every tenth of a second or so.
    ///
    /// # Errors
    /// Returns an error when the user has ended the run.
    pub fn check(&self) -> Result<(), Failure> {
        if (self.interrupted)() { Err(Failure::interrupted()) } else { Ok(()) }
    }

    /// Shows the description of the next measurement, and calls [`Run::check`].
    ///
    /// # Errors
    /// Returns an error when the user has ended the run.
    pub fn show(&self, description: impl Into<String>) -> Result<(), Failure> {
        self.progress.set_message(description.into());
        self.check()
    }

    /// Measures a row and returns its value, or `None` when this run leaves the row out.
    ///
    /// # Errors
    /// Returns an error when the experiment does not name the row, when the user has ended the run,
    /// and when the measurement fails.
    pub fn measure(
        &mut self,
        expected: Expected,
        measurement: impl FnOnce(&Self) -> Result<f64, Failure>,
    ) -> Result<Option<f64>, Failure> {
        self.check_row(&expected)?;
        if !self.measures(&expected) {
            return Ok(None);
        }

        self.show(expected.what.as_str())?;
        let simulated = measurement(self)?;
        self.record(expected, simulated)?;

        Ok(Some(simulated))
    }

    /// Adds a row that was measured together with others, unless this run leaves the row out.
    ///
    /// # Errors
    /// Returns an error when the experiment does not name the row.
    pub fn record(&mut self, expected: Expected, simulated: f64) -> Result<(), Failure> {
        self.check_row(&expected)?;
        let is_measured = self.measures(&expected);
        let row = Row::new(expected, simulated)?;
        if is_measured {
            self.table.rows.push(row);
            self.progress.inc(1);
        }

        Ok(())
    }

    /// Checks that the experiment names the row, so that [`Expected::check`] has accepted it.
    fn check_row(&self, expected: &Expected) -> Result<(), RowError> {
        match self.rows.contains(expected) {
            true => Ok(()),
            false => Err(RowError::Unnamed { what: expected.what.clone() }),
        }
    }

    /// Adds a figure.
    pub fn figure(&mut self, figure: Figure) {
        self.table.figures.push(figure);
    }

    /// Adds a fact that a reader of the table must know.
    pub fn note(&mut self, note: impl Into<String>) {
        self.table.notes.push(note.into());
    }
}

/// Returns the display of an experiment's progress on standard error. It has no total, because the
/// number of rows depends on the run.
fn progress(experiment: &Experiment) -> ProgressBar {
    let progress = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix}: {pos} rows, {elapsed}, {msg}") {
        progress.set_style(style);
    }

    progress.set_prefix(experiment.name);
    progress.enable_steady_tick(Duration::from_millis(200));
    progress
}
