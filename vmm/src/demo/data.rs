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
    /// The file that the user named. `None` stands for libraries.
    user_file: Option<PathBuf>,
    files: Vec<SourceFile>,
}

/// A file of the data.
struct SourceFile {
    path: PathBuf,
    /// Its length when it was chosen.
    length: u64,
}

impl Data {
    /// Returns `file`, or a choice of libraries. The choice is the same in every process of a
    /// demonstration.
    pub(super) fn choose(file: Option<&Path>) -> Result<Self, Failure> {
        if let Some(file) = file {
            let unusable = |error: io::Error| Failure::usage(format!("{}: {error}", file.display()));
            let metadata = std::fs::metadata(file).map_err(unusable)?;
            if !metadata.is_file() {
                return Err(Failure::usage(format!("{} is not a file", file.display())));
            }
            // A file that cannot be read is reported before anything is started.
            File::open(file).map_err(unusable)?;
            let files = vec![SourceFile { path: file.to_owned(), length: metadata.len() }];
            return Ok(Self { user_file: Some(file.to_owned()), files });
        }

        let files = choose_libraries();
        if files.is_empty() {
            return Err(Failure::usage("no libraries were found to stream; name a file: nicforge demo FILE"));
        }
        Ok(Self { user_file: None, files })
    }

    /// Returns the file that the user named.
    pub(super) fn file(&self) -> Option<&Path> {
        self.user_file.as_deref()
    }

    /// Returns the total number of bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.length).sum()
    }

    /// Returns a description for the terminal.
    pub(super) fn describe(&self) -> String {
        let megabytes = self.bytes() as f64 / 1e6;
        match self.files.as_slice() {
            [one] => format!("streaming {} ({megabytes:.1} MB)", one.path.display()),
            [first, ..] => format!(
                "streaming {megabytes:.1} MB of libraries: {} and {} more files",
                first.path.display(),
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
    /// The files that were not opened yet.
    rest: &'a [SourceFile],
    /// The file that is being read, up to its length.
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
                    let Some((SourceFile { path, length }, rest)) = self.rest.split_first() else { break };
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

/// Returns libraries of at least [`MIN_BYTES`] in all, if there are so many.
fn choose_libraries() -> Vec<SourceFile> {
    let mut files: Vec<SourceFile> = Vec::new();
    let mut bytes = 0;

    for folder in folders() {
        if bytes >= MIN_BYTES {
            break;
        }

        let mut found = Vec::new();
        collect(&folder, &mut found);
        // The largest files come first, and equal sizes are sorted by name, so that the order does
        // not depend on the file system.
        found.sort_by(|a, b| b.length.cmp(&a.length).then_with(|| a.path.cmp(&b.path)));

        for file in found {
            if bytes >= MIN_BYTES {
                break;
            }
            if files.iter().all(|other| other.path != file.path) {
                bytes += file.length;
                files.push(file);
            }
        }
    }

    files
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

/// Collects the regular files below `folder` that are readable and not empty. It does not follow
/// links.
fn collect(folder: &Path, found: &mut Vec<SourceFile>) {
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
                found.push(SourceFile { path: entry.path(), length: metadata.len() });
            }
        }
    }
}
