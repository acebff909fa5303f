//! The streamed data: a file, or libraries of the toolchain and the system.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    process::Command,
};

use crate::failure::{ErrorContext, Failure};

/// The least number of bytes that are streamed when no file is named.
const MIN_BYTES: u64 = 256 << 20;
/// The greatest number of entries of a folder tree that are examined.
const MAX_ENTRIES: usize = 200_000;

/// The data: files that are read one after the other.
pub(super) struct Data {
    named: Option<PathBuf>,
    /// Paths and lengths.
    files: Vec<(PathBuf, u64)>,
}

impl Data {
    /// Returns `file`, or a choice of libraries. The choice is the same in every process of a
    /// demonstration.
    pub(super) fn choose(file: Option<&Path>) -> Result<Self, Failure> {
        if let Some(file) = file {
            let named = |error: io::Error| Failure::usage(format!("{}: {error}", file.display()));
            let metadata = std::fs::metadata(file).map_err(named)?;
            if !metadata.is_file() {
                return Err(Failure::usage(format!("{} is not a file", file.display())));
            }
            // A file that cannot be read is reported before anything is started.
            File::open(file).map_err(named)?;
            return Ok(Self { named: Some(file.to_owned()), files: vec![(file.to_owned(), metadata.len())] });
        }

        let mut files: Vec<(PathBuf, u64)> = Vec::new();
        let mut bytes = 0;

        for folder in folders() {
            if bytes >= MIN_BYTES {
                break;
            }

            let mut found = Vec::new();
            collect(&folder, &mut found);
            // The largest files come first, and equal sizes are sorted by name, so that the order
            // does not depend on the file system.
            found.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));

            for (path, length) in found {
                if bytes >= MIN_BYTES {
                    break;
                }
                if files.iter().all(|(other, _)| *other != path) {
                    bytes += length;
                    files.push((path, length));
                }
            }
        }

        if files.is_empty() {
            return Err(Failure::usage("no libraries were found to stream; name a file: nicforge demo FILE"));
        }

        Ok(Self { named: None, files })
    }

    /// Returns the file that the user named.
    pub(super) fn file(&self) -> Option<&Path> {
        self.named.as_deref()
    }

    /// Returns the total number of bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, length)| length).sum()
    }

    /// Returns a description for the terminal.
    pub(super) fn describe(&self) -> String {
        let megabytes = self.bytes() as f64 / 1e6;
        match self.files.as_slice() {
            [(one, _)] => format!("streaming {} ({megabytes:.1} MB)", one.display()),
            [(first, _), ..] => format!(
                "streaming {megabytes:.1} MB of libraries: {} and {} more files",
                first.display(),
                self.files.len() - 1
            ),
            [] => String::new(),
        }
    }

    /// Returns a reader from the start of the data.
    pub(super) fn reader(&self) -> Reader<'_> {
        Reader { rest: &self.files, current: None }
    }
}

/// Reads the files one after the other, each with the length that it had when it was chosen.
pub(super) struct Reader<'a> {
    rest: &'a [(PathBuf, u64)],
    current: Option<io::Take<File>>,
}

impl Reader<'_> {
    /// Fills `buffer` as far as there is data. Returns the number of bytes.
    pub(super) fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, Failure> {
        let mut filled = 0;
        while filled < buffer.len() {
            let current = match &mut self.current {
                Some(current) => current,
                None => {
                    let Some(((path, length), rest)) = self.rest.split_first() else { break };
                    self.rest = rest;
                    let file = File::open(path).context(|| path.display().to_string())?;
                    self.current.insert(file.take(*length))
                }
            };

            match current.read(&mut buffer[filled..]).context(|| "reading the data".into())? {
                0 if current.limit() > 0 => {
                    return Err(Failure::environment("a file became shorter while it was read"));
                }
                0 => self.current = None,
                count => filled += count,
            }
        }

        Ok(filled)
    }
}

/// Returns the folders with libraries: those of the toolchain, and then those of the system.
fn folders() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    if let Ok(output) = Command::new(compiler).args(["--print", "sysroot"]).output()
        && output.status.success()
    {
        folders.push(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()).join("lib"));
    }
    folders.extend(["/usr/lib", "/usr/bin", "/lib"].map(PathBuf::from));

    folders
}

/// Collects the regular files below `folder`. It does not follow links.
fn collect(folder: &Path, found: &mut Vec<(PathBuf, u64)>) {
    let mut folders = vec![folder.to_owned()];
    let mut seen = 0;

    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            seen += 1;
            if seen > MAX_ENTRIES {
                return;
            }

            let Ok(metadata) = entry.path().symlink_metadata() else { continue };
            if metadata.is_dir() {
                folders.push(entry.path());
            } else if metadata.is_file() && metadata.len() > 0 && File::open(entry.path()).is_ok() {
                found.push((entry.path(), metadata.len()));
            }
        }
    }
}
