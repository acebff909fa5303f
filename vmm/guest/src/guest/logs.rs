//! A guest's logs, and the excerpts that errors show.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use super::vmm::Vmm;
use crate::error::LogEnds;

/// The part of a log's end that is shown, in bytes and in lines.
const MAX_END_BYTES: u64 = 4096;
const MAX_END_LINES: usize = 40;

/// The logs of one guest.
#[derive(Clone, Debug)]
pub(crate) struct Logs {
    /// The output of the kernel and of init.
    pub(crate) console: PathBuf,
    /// The command line and messages of the program that makes the machine.
    pub(crate) machine: PathBuf,
    /// QEMU's trace.
    pub(crate) trace: PathBuf,
}

impl Logs {
    /// Returns the paths in a folder, named after the guest.
    pub(crate) fn in_folder(folder: &Path, node: &str, vmm: Vmm) -> Self {
        let file = |what: &str| folder.join(format!("{node}.{what}.log"));
        Self { console: file("console"), machine: file(vmm.log_name()), trace: file("trace") }
    }

    /// Returns the ends of the logs.
    pub(crate) fn ends(&self) -> LogEnds {
        let logs = [&self.console, &self.machine, &self.trace]
            .into_iter()
            .filter_map(|path| Some((path.clone(), end(path)?)))
            .collect();
        LogEnds { logs }
    }
}

/// Returns the last lines of a file without terminal control sequences, or `None` when there are
/// none.
pub(crate) fn end(path: &Path) -> Option<String> {
    let mut file = File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MAX_END_BYTES))).ok()?;

    let mut bytes = Vec::new();
    file.take(MAX_END_BYTES).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<String> = text.lines().map(printable).filter(|line| !line.is_empty()).collect();
    let start = lines.len().saturating_sub(MAX_END_LINES);

    (!lines.is_empty()).then(|| lines[start..].join("\n"))
}

/// Removes control characters and escape sequences from a line.
fn printable(line: &str) -> String {
    let mut text = String::new();
    let mut characters = line.chars();

    while let Some(character) = characters.next() {
        if character == '\u{1b}' {
            // An escape sequence ends with its first letter.
            let _ = characters.by_ref().find(char::is_ascii_alphabetic);
        } else if !character.is_control() || character == '\t' {
            text.push(character);
        }
    }

    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_the_last_lines_without_escapes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let text: String = (0..10_000).map(|line| format!("\u{1b}[2Jline {line}\r\n")).collect();

        std::fs::write(&path, text).unwrap();
        let end = end(&path).unwrap();

        assert_eq!(end.lines().count(), MAX_END_LINES);
        assert!(end.ends_with("line 9999"), "{end}");
        assert!(!end.contains('\u{1b}'));
    }

    #[test]
    fn no_log_has_no_end() {
        assert!(end(Path::new("/no/such/log")).is_none());
    }
}
