//! The tests that the book names: each must exist, so that a line of a checklist has its evidence.
//!
//! A citation is a file, and names after it: `` `fifos.rs`: `a_full_fifo`, `an_empty_fifo` ``. A
//! name has an underscore; a file may have folders in front of it.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::steps::Failed;

/// The folder of the book's pages.
const BOOK: &str = "docs/src";

/// A name that the book cites, and the file that it stands in according to the book.
#[derive(Debug, PartialEq, Eq)]
struct Citation<'a> {
    line: usize,
    file: &'a str,
    name: &'a str,
}

/// Checks that each test that a page of the book cites exists in the file that it names.
pub(crate) fn check(root: &Path) -> Result<(), Failed> {
    let sources = Sources::read(root)?;
    let mut missing = Vec::new();
    for page in files(root, &format!("{BOOK}/*.md"))? {
        let text = read(&root.join(&page))?;
        for Citation { line, file, name } in citations(&text) {
            if !sources.have(file, name) {
                missing.push(format!("{}:{line}: there is no {name} in {file}", page.display()));
            }
        }
    }

    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join("\n");
    Err(Failed::new(format!("the book names {} tests that do not exist:\n{list}", missing.len())))
}

/// Returns the citations of a page.
fn citations(page: &str) -> Vec<Citation<'_>> {
    let mut found = Vec::new();
    for (index, text) in page.lines().enumerate() {
        let mut file = None;
        // Text outside and inside of backquotes alternates.
        let mut parts = text.split('`');
        while let (Some(between), Some(quoted)) = (parts.next(), parts.next()) {
            if quoted.ends_with(".rs") && !quoted.contains(' ') {
                file = Some(quoted);
                continue;
            }
            // The names of a file's citation end with the first text that is no name in the list.
            let is_list = matches!(between.trim(), ":" | "," | "and" | ", and");
            file = file.filter(|_| is_list && is_name(quoted));
            found.extend(file.map(|file| Citation { line: index + 1, file, name: quoted }));
        }
    }
    found
}

/// Returns whether a text may be the name of a test.
fn is_name(text: &str) -> bool {
    text.contains('_') && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// The words of all Rust files, by the file's path.
struct Sources(HashMap<PathBuf, Vec<String>>);

impl Sources {
    /// Reads all Rust files that git knows.
    fn read(root: &Path) -> Result<Self, Failed> {
        let mut sources = HashMap::new();
        for file in files(root, "*.rs")? {
            let text = read(&root.join(&file))?;
            let words = text.split(|c: char| c != '_' && !c.is_ascii_alphanumeric());
            sources.insert(file, words.filter(|word| word.contains('_')).map(str::to_owned).collect());
        }
        Ok(Self(sources))
    }

    /// Returns whether a file whose path ends in `file` contains this name. It need not be the name
    /// of an `fn`, because a macro may make the function.
    fn have(&self, file: &str, name: &str) -> bool {
        let mut named = self.0.iter().filter(|(path, _)| path.ends_with(file));
        named.any(|(_, words)| words.iter().any(|word| word == name))
    }
}

/// Returns the files that git knows below `root` and that match its `pattern`.
fn files(root: &Path, pattern: &str) -> Result<Vec<PathBuf>, Failed> {
    let listed = Command::new("git").args(["ls-files", pattern]).current_dir(root).output();
    let listed = listed.map_err(|error| Failed::new(format!("git ls-files: {error}")))?;
    Ok(String::from_utf8_lossy(&listed.stdout).lines().map(PathBuf::from).collect())
}

/// Returns the text of a file.
fn read(path: &Path) -> Result<String, Failed> {
    fs::read_to_string(path).map_err(|error| Failed::new(format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_after_a_file_are_citations() {
        let page = "| a line | `fifos.rs`: `a_full_fifo`, `an_empty_fifo`; `src/ring.rs`: `it_wraps` |";

        let names: Vec<_> = citations(page).iter().map(|found| (found.file, found.name)).collect();
        assert_eq!(
            names,
            [("fifos.rs", "a_full_fifo"), ("fifos.rs", "an_empty_fifo"), ("src/ring.rs", "it_wraps")]
        );
    }

    #[test]
    fn other_words_in_backquotes_are_no_citations() {
        for page in ["`set_tail` of `fifos.rs`", "`fifos.rs`: all; `set_tail`", "`fifos.rs` uses `set_tail`"]
        {
            assert_eq!(citations(page), [], "{page}");
        }
    }

    #[test]
    fn file_is_known_by_the_end_of_its_path() {
        let words = vec!["a_full_fifo".to_owned()];
        let sources = Sources(HashMap::from([(PathBuf::from("mu/tests/suite/fifos.rs"), words)]));

        assert!(sources.have("fifos.rs", "a_full_fifo"));
        assert!(sources.have("suite/fifos.rs", "a_full_fifo"));
        assert!(!sources.have("os.rs", "a_full_fifo"));
        assert!(!sources.have("fifos.rs", "a_full"));
    }
}
