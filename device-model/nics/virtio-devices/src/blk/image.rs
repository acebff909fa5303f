//! The file of a disk, and what its driver has changed.
//!
//! With [`Access::CopyOnWrite`] the file stays as it is. A write goes to a second file, in whole
//! clusters of [`CLUSTER`] bytes at the same offsets. That file has no name, so it is gone when the
//! device is, and it has blocks only where it was written.

use std::{
    collections::BTreeSet,
    fs::{File, OpenOptions},
    io::{self, ErrorKind},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use nix::fcntl::OFlag;
use thiserror::Error;

use super::Store;

/// Bytes of a sector (5.2.4).
pub const SECTOR: u64 = 512;
/// Bytes of a cluster, the unit of changes.
pub const CLUSTER: u64 = 4096;

/// Permission of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The driver can only read.
    ReadOnly,
    /// The driver can read and write. Its changes are kept apart from the file.
    CopyOnWrite {
        /// Maximum number of bytes of changed clusters. Further writes fail.
        limit: u64,
    },
}

/// Reason why a file can't be a disk.
#[derive(Debug, Error)]
pub enum ImageError {
    /// The file can't be opened.
    #[error("{}: {reason}; name a file that the server may read", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        reason: io::Error,
    },
    /// It is a directory, a device or a pipe.
    #[error("{} is no regular file, which a disk needs", path.display())]
    NotAFile {
        /// The file.
        path: PathBuf,
    },
    /// The file has no bytes.
    #[error("{0} is empty: give the disk a size, as with `truncate --size=64M {0}`", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The file's last sector is not whole.
    #[error(
        "{0} has {bytes} bytes, which are no whole sectors: extend it with `truncate --size=%{SECTOR} {0}`",
        path.display()
    )]
    Size {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// There is no place for the changes.
    #[error("the changes of {} have no place: {reason}; set TMPDIR to a directory with room", path.display())]
    Changes {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        reason: io::Error,
    },
}

/// The contents of a disk.
#[derive(Debug)]
pub struct Image {
    file: File,
    sectors: u64,
    changes: Option<Changes>,
}

/// The clusters that the driver has written.
#[derive(Debug)]
struct Changes {
    /// A file without a name, with the clusters at their offsets.
    file: File,
    /// Numbers of the clusters in it.
    clusters: Mutex<BTreeSet<u64>>,
    /// Maximum number of clusters.
    limit: usize,
}

impl Image {
    /// Opens a file. Its length must not change from then on.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn open(path: &Path, access: Access) -> Result<Self, ImageError> {
        let open_error = |reason| ImageError::Open { path: path.to_owned(), reason };
        // Without this flag, the opening of a pipe would wait for a writer.
        let flags = OFlag::O_NONBLOCK.bits();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(open_error)?;
        let metadata = file.metadata().map_err(open_error)?;
        if !metadata.is_file() {
            return Err(ImageError::NotAFile { path: path.to_owned() });
        }

        let bytes = metadata.len();
        if bytes == 0 {
            return Err(ImageError::Empty { path: path.to_owned() });
        }
        if !bytes.is_multiple_of(SECTOR) {
            return Err(ImageError::Size { path: path.to_owned(), bytes });
        }

        let changes = match access {
            Access::ReadOnly => None,
            Access::CopyOnWrite { limit } => {
                let new = Changes::new(limit);
                Some(new.map_err(|reason| ImageError::Changes { path: path.to_owned(), reason })?)
            }
        };
        Ok(Self { file, sectors: bytes / SECTOR, changes })
    }

    /// Writes bytes within one cluster to the changes. A cluster that is new there is written as a
    /// whole, with the rest of its content copied from the file.
    fn write_in_cluster(&self, changes: &Changes, offset: u64, data: &[u8]) -> io::Result<()> {
        let cluster = offset / CLUSTER;
        if changes.has(cluster) {
            return changes.file.write_all_at(data, offset);
        }

        let start = cluster * CLUSTER;
        let length = CLUSTER.min(self.sectors * SECTOR - start) as usize;
        let mut content = [0; CLUSTER as usize];
        if data.len() < length {
            self.file.read_exact_at(&mut content[..length], start)?;
        }
        let first = (offset - start) as usize;
        content[first..first + data.len()].copy_from_slice(data);

        // An earlier companion that hung may have written the cluster since the first check.
        let mut clusters = changes.clusters();
        if clusters.contains(&cluster) {
            return changes.file.write_all_at(data, offset);
        }
        if clusters.len() >= changes.limit {
            return Err(ErrorKind::QuotaExceeded.into());
        }
        changes.file.write_all_at(&content[..length], start)?;
        clusters.insert(cluster);
        Ok(())
    }
}

impl Store for Image {
    fn sectors(&self) -> u64 {
        self.sectors
    }

    fn is_read_only(&self) -> bool {
        self.changes.is_none()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let Some(changes) = &self.changes else { return self.file.read_exact_at(out, offset) };

        // Neighbouring clusters in the same file are read at once.
        let (mut offset, mut rest) = (offset, out);
        while !rest.is_empty() {
            let is_changed = changes.has(offset / CLUSTER);
            let mut length = to_cluster_end(offset).min(rest.len() as u64);
            while length < rest.len() as u64 && changes.has((offset + length) / CLUSTER) == is_changed {
                length = (length + CLUSTER).min(rest.len() as u64);
            }

            let (part, behind) = rest.split_at_mut(length as usize);
            let file = if is_changed { &changes.file } else { &self.file };
            file.read_exact_at(part, offset)?;
            (offset, rest) = (offset + length, behind);
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let Some(changes) = &self.changes else { return Err(ErrorKind::ReadOnlyFilesystem.into()) };

        let (mut offset, mut rest) = (offset, data);
        while !rest.is_empty() {
            let length = to_cluster_end(offset).min(rest.len() as u64);
            let (part, behind) = rest.split_at(length as usize);
            self.write_in_cluster(changes, offset, part)?;
            (offset, rest) = (offset + length, behind);
        }
        Ok(())
    }
}

impl Changes {
    /// Returns no changes, with room for `limit` bytes of clusters.
    fn new(limit: u64) -> io::Result<Self> {
        let limit = usize::try_from(limit / CLUSTER).unwrap_or(usize::MAX);
        Ok(Self { file: tempfile::tempfile()?, clusters: Mutex::default(), limit })
    }

    /// Returns the changed clusters. A companion that panicked has left them whole.
    fn clusters(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.clusters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a cluster was written.
    fn has(&self, cluster: u64) -> bool {
        self.clusters().contains(&cluster)
    }
}

/// Returns the number of bytes from `offset` to the end of its cluster.
fn to_cluster_end(offset: u64) -> u64 {
    CLUSTER - offset % CLUSTER
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Returns a file of `sectors` sectors, each full of its number.
    fn file(sectors: u8) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        for sector in 0..sectors {
            file.write_all(&[sector; SECTOR as usize]).unwrap();
        }
        file
    }

    /// Opens a file with room for `clusters` changed clusters.
    fn copy_on_write(file: &tempfile::NamedTempFile, clusters: u64) -> Image {
        Image::open(file.path(), Access::CopyOnWrite { limit: clusters * CLUSTER }).unwrap()
    }

    fn read(image: &Image, offset: u64, length: usize) -> Vec<u8> {
        let mut out = vec![0xee; length];
        image.read(offset, &mut out).unwrap();
        out
    }

    #[test]
    fn changes_are_read_back_and_leave_the_file_as_it_is() {
        let file = file(33);
        let image = copy_on_write(&file, 100);
        let original = std::fs::read(file.path()).unwrap();
        let mut expected = original.clone();

        // A part of a cluster, over the border of two, all of one, and the short last one.
        for (offset, length) in [(512, 512), (3584, 1024), (8192, 4096), (16384, 512), (512, 1536)] {
            let data: Vec<u8> = (0..length).map(|at| (at + offset / 7) as u8).collect();
            image.write(offset as u64, &data).unwrap();
            expected[offset..offset + length].copy_from_slice(&data);
        }

        assert_eq!(read(&image, 0, expected.len()), expected);
        assert_eq!(read(&image, 3000, 9000), expected[3000..12_000]);
        assert_eq!(std::fs::read(file.path()).unwrap(), original);
    }

    #[test]
    fn writes_beyond_the_limit_fail_and_change_nothing() {
        let file = file(32);
        let image = copy_on_write(&file, 2);
        image.write(0, &[9; 4096]).unwrap();
        image.write(4096, &[9; 512]).unwrap();

        let error = image.write(8192, &[9; 512]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::QuotaExceeded);
        assert_eq!(read(&image, 8192, 512), [16; 512]);
        image.write(4608, &[8; 512]).unwrap();
        assert_eq!(read(&image, 4608, 512), [8; 512]);
    }

    #[test]
    fn files_that_are_no_disks_are_refused() {
        let open = |path: &Path| Image::open(path, Access::ReadOnly).unwrap_err().to_string();
        let folder = tempfile::tempdir().unwrap();
        assert!(open(&folder.path().join("none")).contains("may read"));
        assert!(open(folder.path()).contains("no regular file"));

        for bytes in [511, 1025] {
            let path = folder.path().join("odd");
            std::fs::write(&path, vec![0; bytes]).unwrap();
            let advice = format!("`truncate --size=%512 {}`", path.display());
            assert!(open(&path).contains(&advice), "{bytes}: {}", open(&path));
        }
    }

    #[test]
    fn empty_file_is_refused_with_advice_that_gives_it_a_size() {
        let file = file(0);
        let refusal = Image::open(file.path(), Access::ReadOnly).unwrap_err().to_string();
        let advice = format!("`truncate --size=64M {}`", file.path().display());
        assert!(refusal.contains(&advice), "{refusal}");
        assert!(!refusal.contains('%'), "a multiple of 512 may be 0: {refusal}");
    }

    #[test]
    fn file_that_became_shorter_is_an_error_of_the_read() {
        let file = file(8);
        let image = Image::open(file.path(), Access::ReadOnly).unwrap();
        file.as_file().set_len(1024).unwrap();

        let mut out = [0; 512];
        image.read(512, &mut out).unwrap();
        assert_eq!(image.read(2048, &mut out).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(image.write(0, &[0; 512]).unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    }
}
