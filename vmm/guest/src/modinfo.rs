//! A kernel module's description of itself: its section `.modinfo`, a sequence of strings
//! `key=value` that each end with a NUL (Linux, `include/linux/moduleparam.h`).

use std::{fs::File, io, os::unix::fs::FileExt};

use thiserror::Error;

/// Size limit of a section that is read, in bytes. Those of Linux 6.1 have less than 100 KB.
const MAX_SECTION: u64 = 4 << 20;
/// The name of the section, with its end.
const SECTION_NAME: &[u8] = b".modinfo\0";

/// Length of an ELF file's header, and of an entry of its table of sections, in bytes.
const HEADER: usize = 64;
const SECTION: usize = 64;
/// Fields of the file's header: the offset of the table of sections, the size of its entries, their
/// number, and the index of the section with the sections' names.
const TABLE_OFFSET: usize = 40;
const ENTRY_SIZE: usize = 58;
const ENTRY_COUNT: usize = 60;
const NAMES_INDEX: usize = 62;
/// Fields of an entry of the table: the offset of the section's name among the names, and the
/// offset and size of the section in the file.
const NAME_OFFSET: usize = 0;
const SECTION_OFFSET: usize = 24;
const SECTION_SIZE: usize = 32;
/// The beginning of every 64-bit little-endian ELF file.
const MAGIC: &[u8] = b"\x7fELF\x02\x01";

/// Why a file has no description of a module.
#[derive(Debug, Error)]
pub(crate) enum ModInfoError {
    /// The file can't be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is no 64-bit little-endian ELF file.
    #[error("is no 64-bit kernel module")]
    Foreign,
    /// Its headers name bytes beyond its end.
    #[error("ends within its headers or sections")]
    Truncated,
    /// It has no such section.
    #[error("has no section .modinfo, as every kernel module has")]
    Missing,
    /// Its section is too large.
    #[error("has a section of {0} bytes to be read; a kernel module's has at most {MAX_SECTION}")]
    TooLarge(u64),
}

/// The bytes of a module, in memory or in a file.
pub(crate) trait Bytes {
    /// Fills `out` with the bytes from `offset` on.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;
}

impl Bytes for File {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(out, offset)
    }
}

impl Bytes for [u8] {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).ok();
        let range = start.and_then(|start| Some(start..start.checked_add(out.len())?));

        match range.and_then(|range| self.get(range)) {
            Some(bytes) => {
                out.copy_from_slice(bytes);
                Ok(())
            }
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// The content of a module's section `.modinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModInfo {
    bytes: Vec<u8>,
}

impl ModInfo {
    /// Reads the section from a module. Of a file, only the headers and the section are read.
    pub(crate) fn read(module: &(impl Bytes + ?Sized)) -> Result<Self, ModInfoError> {
        let mut header = [0; HEADER];
        read(module, 0, &mut header)?;
        if !header.starts_with(MAGIC) || usize::from(u16_at(&header, ENTRY_SIZE)) != SECTION {
            return Err(ModInfoError::Foreign);
        }

        let count = usize::from(u16_at(&header, ENTRY_COUNT));
        let names_index = usize::from(u16_at(&header, NAMES_INDEX));
        let mut table = vec![0; count * SECTION];
        read(module, u64_at(&header, TABLE_OFFSET), &mut table)?;

        let sections = || table.chunks_exact(SECTION);
        let names = content(module, sections().nth(names_index).ok_or(ModInfoError::Foreign)?)?;
        let is_wanted = |section: &&[u8]| {
            let start = u32_at(section, NAME_OFFSET) as usize;
            names.get(start..).is_some_and(|name| name.starts_with(SECTION_NAME))
        };

        let section = sections().find(is_wanted).ok_or(ModInfoError::Missing)?;
        Ok(Self { bytes: content(module, section)? })
    }

    /// Returns the values of a key, in the section's order. Values that are not UTF-8 are left out.
    pub(crate) fn values<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        let strings = self.bytes.split(|&byte| byte == 0);
        strings.filter_map(move |string| {
            let value = string.strip_prefix(key.as_bytes())?.strip_prefix(b"=")?;
            std::str::from_utf8(value).ok()
        })
    }

    /// Returns the modules without which this one can't be loaded.
    pub(crate) fn depends(&self) -> impl Iterator<Item = &str> {
        self.values("depends").flat_map(|list| list.split(',')).filter(|name| !name.is_empty())
    }

    /// Returns the modules that this one works better with, and that are to be loaded before it
    /// (`softdep=pre: a b`).
    pub(crate) fn soft_dependencies(&self) -> impl Iterator<Item = &str> {
        self.values("softdep").flat_map(|text| {
            let words = text.split_ascii_whitespace().skip_while(|&word| word != "pre:").skip(1);
            words.take_while(|&word| word != "post:")
        })
    }
}

/// Returns the bytes of the section that an entry of the table describes.
fn content(module: &(impl Bytes + ?Sized), section: &[u8]) -> Result<Vec<u8>, ModInfoError> {
    let (offset, size) = (u64_at(section, SECTION_OFFSET), u64_at(section, SECTION_SIZE));
    if size > MAX_SECTION {
        return Err(ModInfoError::TooLarge(size));
    }

    let mut bytes = vec![0; size as usize];
    read(module, offset, &mut bytes)?;
    Ok(bytes)
}

/// Fills `out` with a module's bytes from `offset` on.
fn read(module: &(impl Bytes + ?Sized), offset: u64, out: &mut [u8]) -> Result<(), ModInfoError> {
    module.read_at(offset, out).map_err(|error| match error.kind() {
        // The kernel refuses offsets beyond any file's end as invalid.
        io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidInput => ModInfoError::Truncated,
        _ => error.into(),
    })
}

/// Returns `N` bytes from `offset` on, or zeros where there are fewer.
fn bytes_at<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    bytes.get(offset..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes(bytes_at(bytes, offset))
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes_at(bytes, offset))
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes_at(bytes, offset))
}

/// Module files for tests.
#[cfg(test)]
pub(crate) mod samples {
    use super::{HEADER, MAGIC, SECTION, SECTION_NAME};

    /// Returns an ELF file with these strings in its `.modinfo`.
    pub(crate) fn module_file(strings: &[&str]) -> Vec<u8> {
        let info: Vec<u8> = strings.iter().flat_map(|string| [string.as_bytes(), b"\0"].concat()).collect();
        let names = [b"\0".as_slice(), SECTION_NAME].concat();
        let (info_at, names_at) = (HEADER, HEADER + info.len());
        let table_at = names_at + names.len();

        let section = |name: u32, offset: usize, size: usize| {
            let mut section = [0; SECTION];
            section[..4].copy_from_slice(&name.to_le_bytes());
            section[24..32].copy_from_slice(&(offset as u64).to_le_bytes());
            section[32..40].copy_from_slice(&(size as u64).to_le_bytes());
            section
        };

        let mut header = [0; HEADER];
        header[..MAGIC.len()].copy_from_slice(MAGIC);
        header[40..48].copy_from_slice(&(table_at as u64).to_le_bytes());
        header[58] = SECTION as u8;
        header[60] = 3;
        header[62] = 2;

        let table =
            [[0; SECTION], section(1, info_at, info.len()), section(0, names_at, names.len())].concat();
        [header.as_slice(), &info, &names, &table].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::{samples::module_file, *};

    #[test]
    fn values_of_a_key_come_in_order_from_memory_and_from_a_file() {
        let object = module_file(&["alias=pci:a", "depends=x,y-z", "alias=pci:b", "aliases=no"]);
        let info = ModInfo::read(object.as_slice()).unwrap();
        assert_eq!(info.values("alias").collect::<Vec<_>>(), ["pci:a", "pci:b"]);
        assert_eq!(info.depends().collect::<Vec<_>>(), ["x", "y-z"]);

        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &object).unwrap();
        assert_eq!(ModInfo::read(&File::open(file.path()).unwrap()).unwrap(), info);
    }

    #[test]
    fn soft_dependencies_are_those_to_be_loaded_before() {
        let object = module_file(&["softdep=pre: a b post: c", "softdep=post: d", "depends="]);
        let info = ModInfo::read(object.as_slice()).unwrap();
        assert_eq!(info.soft_dependencies().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(info.depends().count(), 0);
    }

    #[test]
    fn file_that_is_cut_anywhere_is_refused() {
        let object = module_file(&["depends=a"]);
        for length in 0..object.len() {
            assert!(ModInfo::read(&object[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn headers_that_lead_anywhere_are_refused() {
        let object = module_file(&["depends=a"]);
        let table = u64_at(&object, 40) as usize;

        // The offset of the table, the entry of the names, and the offsets and sizes of sections.
        let offsets = [40, 62, table + SECTION + 24, table + SECTION + 32, table + 2 * SECTION + 24];
        for offset in offsets {
            let mut wrong = object.clone();
            wrong[offset..offset + 2].copy_from_slice(&[0xff; 2]);
            wrong[offset + 6] = 0xff;
            assert!(ModInfo::read(wrong.as_slice()).is_err(), "{offset}");
        }
    }

    #[test]
    fn file_of_another_kind_is_refused() {
        assert!(matches!(ModInfo::read([b'#'; 200].as_slice()), Err(ModInfoError::Foreign)));
    }
}
