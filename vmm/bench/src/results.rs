//! The files of results, for a document that includes them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use nicforge::failure::{ErrorContext, Failure};

use crate::report::Report;

/// A directory with two files for each bench: its report as Markdown (`NAME.md`) and as JSON
/// (`NAME.json`). A report replaces an earlier one of the same bench.
#[derive(Debug)]
pub struct Results {
    directory: PathBuf,
}

impl Results {
    /// Creates the directory, if it is missing.
    ///
    /// # Errors
    /// Returns an error when it cannot be created.
    pub fn create(directory: &Path) -> Result<Self, Failure> {
        fs::create_dir_all(directory)
            .context(|| format!("can't make the directory {}", directory.display()))?;
        Ok(Self { directory: directory.to_owned() })
    }

    /// Writes the two files of a report.
    ///
    /// # Errors
    /// Returns an error when a file cannot be written.
    pub fn write(&self, report: &Report) -> Result<(), Failure> {
        self.write_file(report, "md", &report.markdown())?;
        self.write_file(report, "json", &format!("{}\n", report.json()?))
    }

    /// Writes one file of a report.
    fn write_file(&self, report: &Report, extension: &str, text: &str) -> Result<(), Failure> {
        let path = self.directory.join(report.bench).with_extension(extension);
        fs::write(&path, text).context(|| format!("can't write {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        host::Host,
        row::{Outcome, Row},
    };

    #[test]
    fn a_report_is_a_file_for_the_book_and_a_file_for_scripts() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("a/b");
        let results = Results::create(&directory).unwrap();
        let outcome = Outcome { rows: vec![Row::new("path")], ..Outcome::default() };
        let report = Report { bench: "some-bench", machine: Host::detect(), quick: false, outcome };

        results.write(&report).unwrap();

        let read = |name: &str| fs::read_to_string(directory.join(name)).unwrap();
        assert!(read("some-bench.md").starts_with("## `nicforge bench some-bench`\n"));
        let json: serde_json::Value = serde_json::from_str(&read("some-bench.json")).unwrap();
        assert_eq!(json["rows"][0]["path"], "path");
    }
}
