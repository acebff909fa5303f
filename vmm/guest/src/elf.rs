//! The shared libraries that a program needs, as listed by its own loader (like `ldd`).

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    error::{ErrorContext, GuestError},
    progress::Progress,
    tool,
};

/// Maximum length of a loader's path.
const MAX_PATH: usize = 4096;

/// Returns the program's loader (`PT_INTERP` of a 64-bit ELF file), or `None` for a static program
/// or a script.
pub(crate) fn interpreter(program: &[u8]) -> Option<String> {
    if program.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }

    let number = |place: usize, size: usize| -> Option<usize> {
        let bytes = program.get(place..place.checked_add(size)?)?;
        let value = bytes.iter().rev().fold(0_u64, |value, &byte| (value << 8) | u64::from(byte));
        usize::try_from(value).ok()
    };

    let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    for index in 0..count {
        let header = table.checked_add(index * size)?;
        if number(header, 4)? == 3 {
            let (start, length) = (number(header.checked_add(8)?, 8)?, number(header.checked_add(32)?, 8)?);
            let text = program.get(start..start.checked_add(length.min(MAX_PATH))?)?;
            return Some(String::from_utf8_lossy(text).trim_end_matches('\0').to_owned());
        }
    }

    None
}

/// A loader and the directories it searches for libraries.
pub(crate) struct Loader {
    /// The program, as in `/lib64/ld-linux-x86-64.so.2`.
    pub(crate) path: PathBuf,
    /// Directories to search first, separated by `:`; empty for the host's own.
    pub(crate) library_path: String,
}

impl Loader {
    /// Returns the libraries of a program as absolute paths, without the loader.
    pub(crate) fn libraries(&self, program: &Path, progress: &Progress) -> Result<Vec<PathBuf>, GuestError> {
        let mut command = Command::new(&self.path);
        if !self.library_path.is_empty() {
            command.args(["--library-path", &self.library_path]);
        }

        command.arg("--list").arg(program).env("LC_ALL", "C");
        let what = format!("looking for the libraries of {}", program.display());
        let lines = tool::run_quietly(&what, &mut command, progress)?;
        let mut libraries = Vec::new();

        for line in &lines {
            match listed(line) {
                Listed::At(path) if Path::new(path) != self.path => libraries.push(PathBuf::from(path)),
                Listed::Missing(name) => {
                    let problem = format!("needs {name}, which is not there");
                    return Err(GuestError::Unsuitable { path: program.to_owned(), problem });
                }
                Listed::At(_) | Listed::Nothing => {}
            }
        }

        Ok(libraries)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Listed<'a> {
    At(&'a str),
    Missing(&'a str),
    Nothing,
}

/// Parses a line such as `libc.so.6 => /lib/libc.so.6 (0x7f...)` or `linux-vdso.so.1 (0x7f...)`.
fn listed(line: &str) -> Listed<'_> {
    let (name, place) = match line.trim().split_once(" => ") {
        Some((name, place)) => (name, place),
        None => ("", line.trim()),
    };
    if place.starts_with("not found") {
        return Listed::Missing(name);
    }

    let path = place.rsplit_once(" (").map_or(place, |(path, _)| path);
    if path.starts_with('/') { Listed::At(path) } else { Listed::Nothing }
}

/// Returns a program's content and the host's files that it needs: the libraries and the loader.
pub(crate) fn read_with_dependencies(
    program: &Path,
    progress: &Progress,
) -> Result<(Vec<u8>, Vec<PathBuf>), GuestError> {
    let bytes = std::fs::read(program).context(|| program.display().to_string())?;
    let Some(interpreter) = interpreter(&bytes) else { return Ok((bytes, Vec::new())) };
    let loader = Loader { path: PathBuf::from(interpreter), library_path: String::new() };
    let mut files = loader.libraries(program, progress)?;
    files.push(loader.path);
    Ok((bytes, files))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loaders_lines_are_understood() {
        assert_eq!(listed("\tlibc.so.6 => /lib/libc.so.6 (0x00007f)"), Listed::At("/lib/libc.so.6"));
        assert_eq!(listed("\t/lib64/ld.so (0x00007f)"), Listed::At("/lib64/ld.so"));
        assert_eq!(listed("\tlinux-vdso.so.1 (0x00007f)"), Listed::Nothing);
        assert_eq!(listed("\tlibx.so.1 => not found"), Listed::Missing("libx.so.1"));
        assert_eq!(listed("\tstatically linked"), Listed::Nothing);
    }

    #[test]
    fn this_test_needs_the_c_library_and_its_loader() {
        let (bytes, files) =
            read_with_dependencies(&std::env::current_exe().unwrap(), &Progress::silent()).unwrap();
        let loader = interpreter(&bytes).unwrap();
        assert_eq!(files.last().unwrap(), Path::new(&loader));
        assert!(files.iter().any(|file| file.to_string_lossy().contains("libc")), "{files:?}");
    }

    #[test]
    fn no_prefix_of_a_program_is_taken_for_more_than_it_is() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        for length in 0..2000 {
            let _ = interpreter(&bytes[..length]);
        }
        assert_eq!(interpreter(b"#!/bin/sh\n"), None);
    }
}
