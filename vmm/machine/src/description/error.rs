//! Reasons why a machine file is refused.

use std::fmt;

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
    #[error("{path} is not a regular file; name a machine file such as machines/pset.toml")]
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
    /// The text is not TOML, or has a field that does not belong there.
    #[error("{0}")]
    Syntax(FilePosition, #[source] Box<toml::de::Error>),
    /// A value is out of its limits.
    #[error("{position}: {what} is {found}; expected {expected}")]
    Value {
        /// The position of the value.
        position: FilePosition,
        /// The value's name.
        what: &'static str,
        /// The value in the file.
        found: String,
        /// The expected values.
        expected: String,
    },
}

/// A position in a machine file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePosition {
    /// The path of the file.
    pub path: String,
    /// Line number from 1, or 0 when the error has no position.
    pub line: usize,
    /// The parser's message for a syntax error.
    pub message: Option<String>,
}

impl fmt::Display for FilePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path)?;
        if self.line > 0 {
            write!(f, ", line {}", self.line)?;
        }
        match &self.message {
            Some(message) => write!(f, ": {message}"),
            None => Ok(()),
        }
    }
}
