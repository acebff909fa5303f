//! ELF files: the shared libraries that a program needs, as listed by its own loader (like `ldd`),
//! and the notes of a kernel.

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

/// Types of segments: the path of the loader, and notes.
const PT_INTERP: usize = 3;
const PT_NOTE: usize = 4;

/// Fields of the file's header: the offset of the table of segments, the size of its entries, and
/// their number.
const TABLE_OFFSET: usize = 32;
const ENTRY_SIZE: usize = 54;
const ENTRY_COUNT: usize = 56;
/// Fields of a segment's entry behind its type: the segment's offset in the file, and its size
/// there.
const SEGMENT_OFFSET: usize = 8;
const SEGMENT_SIZE: usize = 32;

/// Bytes of a note before its owner's name: the sizes of name and content, and the type.
const NOTE_HEADER: usize = 12;
/// Owner and type of the note with the PVH entry.
const PVH_OWNER: &[u8] = b"Xen\0";
const PVH_ENTRY: usize = 18;

/// Returns whether a file is a 64-bit ELF file of little-endian numbers.
pub(crate) fn is_elf(file: &[u8]) -> bool {
    file.starts_with(b"\x7fELF\x02\x01")
}

/// Returns the program's loader (`PT_INTERP` of a 64-bit ELF file), or `None` for a static program
/// or a script.
pub(crate) fn interpreter(program: &[u8]) -> Option<String> {
    let text = segments(program, PT_INTERP).next()?;
    let text = text.get(..text.len().min(MAX_PATH))?;
    Some(String::from_utf8_lossy(text).trim_end_matches('\0').to_owned())
}

/// Returns whether a kernel has the entry by which a virtual machine starts it without firmware:
/// the note `XEN_ELFNOTE_PHYS32_ENTRY` (Linux, include/xen/interface/elfnote.h).
pub(crate) fn has_pvh_entry(kernel: &[u8]) -> bool {
    segments(kernel, PT_NOTE).any(|notes| has_note(notes, PVH_OWNER, PVH_ENTRY))
}

/// Returns whether a segment of notes has one of an owner and a type.
fn has_note(mut notes: &[u8], owner: &[u8], kind: usize) -> bool {
    let mut next = || {
        let [name_size, content_size, found_kind] = [0, 4, 8].map(|offset| number(notes, offset, 4));
        let name_end = NOTE_HEADER.checked_add(name_size?)?;
        // The name and the content are each padded to four bytes.
        let content_size = content_size?.checked_next_multiple_of(4)?;
        let end = name_end.checked_next_multiple_of(4)?.checked_add(content_size)?;

        let is_wanted = notes.get(NOTE_HEADER..name_end)? == owner && found_kind? == kind;
        notes = notes.get(end..).unwrap_or_default();
        Some(is_wanted)
    };

    std::iter::from_fn(&mut next).any(|is_wanted| is_wanted)
}

/// Returns the bytes of all segments of a type in a 64-bit ELF file. Segments that are not within
/// the file are left out. A file of another kind has none.
fn segments(file: &[u8], kind: usize) -> impl Iterator<Item = &[u8]> {
    let is_elf = is_elf(file);
    let field = move |offset: usize, size: usize| number(file, offset, size).filter(|_| is_elf);
    let (table, entry_size) = (field(TABLE_OFFSET, 8), field(ENTRY_SIZE, 2));
    let count = field(ENTRY_COUNT, 2).unwrap_or_default();

    (0..count).filter_map(move |index| {
        let entry = table?.checked_add(index.checked_mul(entry_size?)?)?;
        if field(entry, 4)? != kind {
            return None;
        }

        let start = field(entry.checked_add(SEGMENT_OFFSET)?, 8)?;
        let length = field(entry.checked_add(SEGMENT_SIZE)?, 8)?;
        file.get(start..start.checked_add(length)?)
    })
}

/// Returns the little-endian number of `size` bytes at an offset.
pub(crate) fn number(bytes: &[u8], offset: usize, size: usize) -> Option<usize> {
    let bytes = bytes.get(offset..offset.checked_add(size)?)?;
    let value = bytes.iter().rev().fold(0_u64, |value, &byte| (value << 8) | u64::from(byte));
    usize::try_from(value).ok()
}

/// A loader and the directories it searches for libraries.
#[derive(Clone, Debug)]
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
            match parse_library(line) {
                LibraryLine::At(path) if Path::new(path) != self.path => libraries.push(PathBuf::from(path)),
                LibraryLine::Missing(name) => {
                    let problem = format!("needs {name}, which is not there");
                    return Err(GuestError::Unsuitable { path: program.to_owned(), problem });
                }
                LibraryLine::At(_) | LibraryLine::Nothing => {}
            }
        }

        Ok(libraries)
    }
}

/// A line of a loader's list of libraries.
#[derive(Debug, PartialEq, Eq)]
enum LibraryLine<'a> {
    /// The path of a library.
    At(&'a str),
    /// The name of a library that was not found.
    Missing(&'a str),
    /// No library in a file.
    Nothing,
}

/// Parses a line such as `libc.so.6 => /lib/libc.so.6 (0x7f...)` or `linux-vdso.so.1 (0x7f...)`.
fn parse_library(line: &str) -> LibraryLine<'_> {
    let (name, location) = match line.trim().split_once(" => ") {
        Some((name, location)) => (name, location),
        None => ("", line.trim()),
    };
    if location.starts_with("not found") {
        return LibraryLine::Missing(name);
    }

    let path = location.rsplit_once(" (").map_or(location, |(path, _)| path);
    if path.starts_with('/') { LibraryLine::At(path) } else { LibraryLine::Nothing }
}

/// Returns a program's content and the host's files that it needs: the libraries, and the loader as
/// the last one. A static program or a script needs none.
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
        assert_eq!(
            parse_library("\tlibc.so.6 => /lib/libc.so.6 (0x00007f)"),
            LibraryLine::At("/lib/libc.so.6")
        );
        assert_eq!(parse_library("\t/lib64/ld.so (0x00007f)"), LibraryLine::At("/lib64/ld.so"));
        assert_eq!(parse_library("\tlinux-vdso.so.1 (0x00007f)"), LibraryLine::Nothing);
        assert_eq!(parse_library("\tlibx.so.1 => not found"), LibraryLine::Missing("libx.so.1"));
        assert_eq!(parse_library("\tstatically linked"), LibraryLine::Nothing);
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
            let _ = has_pvh_entry(&bytes[..length]);
        }
        assert_eq!(interpreter(b"#!/bin/sh\n"), None);
        assert!(!has_pvh_entry(&bytes));
    }

    #[test]
    fn pvh_entry_is_found_after_other_notes() {
        let note = |owner: &[u8], content: &[u8], kind: u32| {
            let mut note = Vec::new();
            for number in [owner.len() as u32, content.len() as u32, kind] {
                note.extend(number.to_le_bytes());
            }
            for part in [owner, content] {
                note.extend(part);
                note.resize(note.len().next_multiple_of(4), 0);
            }
            note
        };

        let entry = note(PVH_OWNER, &0x0100_0000_u32.to_le_bytes(), 18);
        let other = note(b"GNU\0", b"12345", 18);
        let older = note(PVH_OWNER, b"linux", 6);
        let all = [older.clone(), other.clone(), entry].concat();
        assert!(has_note(&all, PVH_OWNER, PVH_ENTRY));
        assert!(!has_note(&[other, older].concat(), PVH_OWNER, PVH_ENTRY));

        for length in 0..all.len() - 7 {
            assert!(!has_note(&all[..length], PVH_OWNER, PVH_ENTRY), "{length}");
        }
        assert!(!has_note(&[0xff; 64], PVH_OWNER, PVH_ENTRY));
    }
}
