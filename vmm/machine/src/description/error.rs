//! Reasons why a machine file is refused.

use std::{fmt, ops::Range};

use nicforge_family::SectionError;
use thiserror::Error;

use super::MAX_FILE;

/// The reason why a machine file was refused.
#[derive(Debug, Error)]
pub enum DescriptionError {
    /// The file could not be read.
    #[error("{path}: {source}")]
    Read {
        /// The path of the file.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The path is a directory, a device, or something else that cannot be a machine file.
    #[error("{path} is not a regular file; name a machine file")]
    NoFile {
        /// The path.
        path: String,
    },
    /// The file is too large to be a machine file.
    #[error("{path} has {bytes} bytes; a machine file has at most {MAX_FILE}")]
    TooLarge {
        /// The path of the file.
        path: String,
        /// Its size in bytes.
        bytes: u64,
    },
    /// The text is not TOML, has a field that does not belong there, or a value out of its limits.
    #[error("{position}: {problem}")]
    Content {
        /// The position of the error.
        position: FilePosition,
        /// The reason.
        problem: Box<SectionError>,
    },
}

impl DescriptionError {
    /// Returns the error of a section. `text` is the contents of the file `path`.
    pub(super) fn in_file(path: &str, text: &str, problem: SectionError) -> Self {
        let line = problem.span().map_or(0, |span| line_of(text, span));
        Self::Content { position: FilePosition { path: path.to_owned(), line }, problem: Box::new(problem) }
    }
}

/// A position in a machine file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePosition {
    /// The path of the file.
    pub path: String,
    /// Line number from 1, or 0 when the error has no position.
    pub line: usize,
}

impl fmt::Display for FilePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path)?;
        if self.line > 0 {
            write!(f, ", line {}", self.line)?;
        }
        Ok(())
    }
}

/// Returns the number of the line in which a span begins, from 1.
fn line_of(text: &str, span: Range<usize>) -> usize {
    let end = span.start.min(text.len());
    text.as_bytes()[..end].iter().filter(|&&byte| byte == b'\n').count() + 1
}
