//! The archive that Linux unpacks as its first root file system: cpio in the `newc` format
//! (Linux, Documentation/driver-api/early-userspace/buffer-format.rst).

use std::{
    collections::BTreeSet,
    io::{self, Write},
};

/// Types of entries in their modes, and the bits of a mode that are the type.
const DIRECTORY: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const TYPE_MASK: u32 = 0o170_000;
/// The name of the entry that ends an archive.
const TRAILER: &str = "TRAILER!!!";
/// The number at the beginning of each entry.
const MAGIC: &str = "070701";

/// Writer of an archive. Paths are absolute; parent directories of a file are added.
pub(crate) struct Archive<W> {
    out: W,
    /// Bytes written so far.
    written: u64,
    /// Number of the next entry. Entries of one number would be links to one file.
    inode: u32,
    /// The directories that the archive has.
    directories: BTreeSet<String>,
}

impl<W: Write> Archive<W> {
    /// Begins an archive.
    pub(crate) fn new(out: W) -> Self {
        Self { out, written: 0, inode: 1, directories: BTreeSet::new() }
    }

    /// Adds a directory and its parents.
    pub(crate) fn add_directory(&mut self, path: &str) -> io::Result<()> {
        let mut parent = String::new();
        for part in path.split('/').filter(|part| !part.is_empty()) {
            if !parent.is_empty() {
                parent.push('/');
            }
            parent.push_str(part);
            if self.directories.insert(parent.clone()) {
                self.add_entry(&parent, DIRECTORY | 0o755, &[])?;
            }
        }

        Ok(())
    }

    /// Adds a file with its permissions.
    pub(crate) fn add_file(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.add_parent(path)?;
        self.add_entry(path, FILE | (mode & 0o7777), content)
    }

    /// Ends the archive.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.add_entry(TRAILER, 0, &[])?;
        // Another archive may follow. The kernel looks for it at the next multiple of four bytes.
        self.out.flush()?;
        Ok(self.out)
    }

    /// Adds the directories above a path.
    fn add_parent(&mut self, path: &str) -> io::Result<()> {
        match path.rsplit_once('/') {
            Some((parent, _)) => self.add_directory(parent),
            None => Ok(()),
        }
    }

    /// Adds an entry: its header, its name and its content, each padded to four bytes.
    fn add_entry(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        let name = path.trim_start_matches('/');
        let size = u32::try_from(content.len()).map_err(|_| {
            io::Error::other(format!("{path} has {} bytes; an archive's files end at 4 GiB", content.len()))
        })?;
        let header = [
            self.inode,
            mode,
            0,                                                 // owner
            0,                                                 // group
            if mode & TYPE_MASK == DIRECTORY { 2 } else { 1 }, // links
            0, // time: the same content gives the same archive
            size,
            0, // device: major, minor
            0,
            0, // the device that it is, for nodes
            0,
            name.len() as u32 + 1, // with its final zero
            0,                     // checksum, unused in this format
        ];

        self.inode += 1;
        let mut text = String::from(MAGIC);

        for field in header {
            text.push_str(&format!("{field:08x}"));
        }

        self.write(text.as_bytes())?;
        self.write(name.as_bytes())?;
        self.write(&[0])?;
        self.pad_to_four()?;
        self.write(content)?;

        self.pad_to_four()
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    /// Writes zeros up to the next multiple of four bytes.
    fn pad_to_four(&mut self) -> io::Result<()> {
        let missing = self.written.wrapping_neg() % 4;
        self.write(&[0; 3][..missing as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes names, modes and contents by the format's description.
    fn read(mut bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut entries = Vec::new();
        loop {
            assert_eq!(&bytes[..6], b"070701");

            let field = |index: usize| {
                let text = std::str::from_utf8(&bytes[6 + index * 8..14 + index * 8]).unwrap();
                usize::from_str_radix(text, 16).unwrap()
            };
            let (mode, size, name) = (field(1), field(6), field(11));
            let content = (110 + name).next_multiple_of(4);
            let text = String::from_utf8(bytes[110..110 + name - 1].to_vec()).unwrap();
            if text == TRAILER {
                return entries;
            }

            entries.push((text, mode as u32, bytes[content..content + size].to_vec()));
            bytes = &bytes[(content + size).next_multiple_of(4)..];
        }
    }

    #[test]
    fn entries_are_read_with_each_parent_directory_once() {
        let mut archive = Archive::new(Vec::new());
        archive.add_file("/a/b/c", 0o755, b"12345").unwrap();
        archive.add_directory("/a/e").unwrap();

        let entries = read(&archive.finish().unwrap());
        let expected = [
            ("a", 0o040_755, &b""[..]),
            ("a/b", 0o040_755, b""),
            ("a/b/c", 0o100_755, b"12345"),
            ("a/e", 0o040_755, b""),
        ];

        let expected: Vec<_> = expected
            .iter()
            .map(|(name, mode, content)| ((*name).to_owned(), *mode, content.to_vec()))
            .collect();

        assert_eq!(entries, expected);
    }

    #[test]
    fn an_archive_ends_where_another_can_begin() {
        for length in 0..8 {
            let mut archive = Archive::new(Vec::new());
            archive.add_file("f", 0o644, &vec![1; length]).unwrap();
            assert_eq!(archive.finish().unwrap().len() % 4, 0);
        }
    }
}
