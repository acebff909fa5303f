//! A directory of the host for guests' `/share`.
//!
//! QEMU gives the directory itself to its guests, by 9P. Guests of our own virtual machine have a
//! disk with an image of it, as it was when the first of them was booted. The image is a file
//! without a name among the temporary files, which all guests of one [`Share`] have in common.
//!
//! | file | contents |
//! | --- | --- |
//! | `mod.rs` | the directory, its limits, and the copying of its files |
//! | `erofs.rs` | the image's format |

mod erofs;

use std::{
    collections::HashMap,
    ffi::OsStr,
    fs::{File, Metadata, OpenOptions},
    io::{self, ErrorKind, Read, Write},
    os::{
        fd::AsRawFd,
        unix::{
            ffi::{OsStrExt, OsStringExt},
            fs::{MetadataExt, OpenOptionsExt},
        },
    },
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use nix::fcntl::OFlag;

use self::erofs::{Attributes, BLOCK, Content, ROOT, Tree};
use crate::{
    error::{ErrorContext, GuestError},
    progress::Progress,
};

/// Maximum number of bytes of an image's files, each rounded up to whole blocks.
const MAX_BYTES: u64 = 4 << 30;
/// Maximum number of files, folders and links.
const MAX_NODES: usize = 100_000;
/// Maximum number of bytes of their names, and of the links' targets.
const MAX_TEXT: usize = 16 << 20;
/// Maximum number of folders in each other.
const MAX_DEPTH: usize = 64;
/// Bytes of a file that are copied at once, between two checks for a cancellation.
const COPIED_AT_ONCE: usize = 1 << 20;

/// A directory of the host that guests have as `/share`. Clones stand for one directory, and one
/// image of it.
#[derive(Clone, Debug)]
pub struct Share {
    folder: PathBuf,
    /// The image, once a guest has needed it.
    image: Arc<Mutex<Option<Arc<File>>>>,
}

impl Share {
    /// Takes a directory, which is looked at when a guest is booted.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), image: Arc::default() }
    }

    /// Returns the directory.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the image, which the first call makes. Others wait for it meanwhile.
    ///
    /// # Errors
    /// [`GuestError::Unsuitable`] when the directory is none, or exceeds a limit;
    /// [`GuestError::Io`], [`GuestError::Cancelled`].
    pub(crate) fn image(&self, progress: &Progress) -> Result<Arc<File>, GuestError> {
        let mut image = self.image.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(image) = &*image {
            return Ok(image.clone());
        }

        let mut file = tempfile::tempfile().context(|| self.image_text())?;
        self.write_image(&mut file, progress)?;
        Ok(image.insert(Arc::new(file)).clone())
    }

    /// Opens the image for reading.
    ///
    /// # Errors
    /// As [`Self::image`].
    pub(crate) fn open(&self, progress: &Progress) -> Result<File, GuestError> {
        let image = self.image(progress)?;
        File::open(format!("/proc/self/fd/{}", image.as_raw_fd())).context(|| self.image_text())
    }

    /// Copies the image to a file.
    ///
    /// # Errors
    /// As [`Self::image`].
    pub(crate) fn copy_to(&self, path: &Path, progress: &Progress) -> Result<(), GuestError> {
        let mut image = self.open(progress)?;
        let mut copy = File::create(path).context(|| path.display().to_string())?;
        std::io::copy(&mut image, &mut copy).context(|| path.display().to_string())?;
        Ok(())
    }

    /// Writes the image of the directory to an empty file.
    fn write_image(&self, image: &mut File, progress: &Progress) -> Result<(), GuestError> {
        let metadata = std::fs::metadata(&self.folder).context(|| self.folder.display().to_string())?;
        if !metadata.is_dir() {
            return Err(unsuitable(&self.folder, "is no directory, which /share needs".into()));
        }

        let mut walk = Walk::new(&metadata, progress);
        walk.add_folder(&self.folder, ROOT, 0)?;
        let Walk { tree, files, .. } = walk;
        let mut buffer = vec![0; COPIED_AT_ONCE];
        let written = tree.write(image, |index, size, image| match files.get(&index) {
            Some(path) => copy(path, size, image, &mut buffer, progress),
            None => Ok(()),
        });

        written.map_err(|failure| match failure {
            Failure::Guest(error) => error,
            Failure::Image(source) => GuestError::Io { what: self.image_text(), source },
        })
    }

    /// Returns the image's description in errors.
    fn image_text(&self) -> String {
        let place = std::env::temp_dir();
        format!(
            "the image of {} for /share, in {} (set TMPDIR to use another directory)",
            self.folder.display(),
            place.display()
        )
    }
}

impl<P: Into<PathBuf>> From<P> for Share {
    fn from(folder: P) -> Self {
        Self::new(folder)
    }
}

/// A failure while the image is written.
enum Failure {
    /// The image cannot be written.
    Image(io::Error),
    /// A file cannot be copied, or the caller cancelled.
    Guest(GuestError),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Image(error)
    }
}

/// A walk through a directory that makes a [`Tree`] of it.
struct Walk<'a> {
    tree: Tree,
    /// The paths of the tree's files, by their indexes.
    files: HashMap<usize, PathBuf>,
    /// Bytes of all files so far, each rounded up to whole blocks.
    bytes: u64,
    /// Bytes of all names and targets of links so far.
    text: usize,
    progress: &'a Progress,
}

impl<'a> Walk<'a> {
    /// Begins a walk with a root that has the directory's attributes.
    fn new(root: &Metadata, progress: &'a Progress) -> Self {
        Self { tree: Tree::new(attributes(root)), files: HashMap::new(), bytes: 0, text: 0, progress }
    }

    /// Adds what a folder holds. `folder` is its index in the tree, and `depth` the number of
    /// folders around it.
    fn add_folder(&mut self, path: &Path, folder: usize, depth: usize) -> Result<(), GuestError> {
        self.progress.check()?;
        if depth > MAX_DEPTH {
            return Err(exceeds(path, &format!("is in more than {MAX_DEPTH} folders")));
        }

        for entry in std::fs::read_dir(path).context(|| path.display().to_string())? {
            let entry = entry.context(|| path.display().to_string())?;
            self.add(&entry.path(), &entry.file_name(), folder, depth)?;
        }
        Ok(())
    }

    /// Adds a file, a link, or a folder with what it holds. Sockets, pipes and devices are left
    /// out.
    fn add(&mut self, path: &Path, name: &OsStr, folder: usize, depth: usize) -> Result<(), GuestError> {
        let metadata = std::fs::symlink_metadata(path).context(|| path.display().to_string())?;
        let kind = metadata.file_type();
        let content = if kind.is_dir() {
            Content::Folder
        } else if kind.is_file() {
            Content::File(metadata.len())
        } else if kind.is_symlink() {
            let target = std::fs::read_link(path).context(|| path.display().to_string())?;
            Content::Link(target.into_os_string().into_vec())
        } else {
            return Ok(());
        };

        self.count(path, name, &content)?;
        let index = self.tree.add(folder, name.as_bytes(), attributes(&metadata), content);
        if kind.is_file() {
            self.files.insert(index, path.to_owned());
        }
        if kind.is_dir() { self.add_folder(path, index, depth + 1) } else { Ok(()) }
    }

    /// Counts a node, and checks the limits.
    fn count(&mut self, path: &Path, name: &OsStr, content: &Content) -> Result<(), GuestError> {
        self.text += name.len();
        match content {
            Content::File(size) => {
                self.bytes = self.bytes.saturating_add(size.div_ceil(BLOCK).saturating_mul(BLOCK));
            }
            Content::Link(target) => self.text += target.len(),
            Content::Folder => {}
        }

        let exceeded = if self.bytes > MAX_BYTES {
            format!("and the files before it have more than {} GiB", MAX_BYTES >> 30)
        } else if self.tree.len() >= MAX_NODES {
            format!("is one of more than {MAX_NODES} files and folders")
        } else if self.text > MAX_TEXT {
            format!("and the names before it have more than {} MiB", MAX_TEXT >> 20)
        } else {
            return Ok(());
        };
        Err(exceeds(path, &exceeded))
    }
}

/// Copies a file of `size` bytes. A file that has become shorter ends with zeros, and one that has
/// become longer is cut.
fn copy(
    path: &Path,
    size: u64,
    image: &mut File,
    buffer: &mut [u8],
    progress: &Progress,
) -> Result<(), Failure> {
    let failed = |source| Failure::Guest(GuestError::Io { what: path.display().to_string(), source });
    // The file may have become a link, or a pipe without a writer.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(Failure::Guest(unsuitable(path, "has become no regular file".into())));
    }

    // The image has room for `size` bytes.
    let mut file = file.take(size);
    loop {
        progress.check().map_err(Failure::Guest)?;
        match file.read(buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => image.write_all(&buffer[..length])?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
    }
}

/// Returns the attributes of a file of the host for the image. A time before 1970 becomes 1970.
fn attributes(metadata: &Metadata) -> Attributes {
    Attributes {
        mode: metadata.mode(),
        owner: metadata.uid(),
        group: metadata.gid(),
        time: u64::try_from(metadata.mtime()).unwrap_or_default(),
    }
}

/// Returns the error for a file with which the directory exceeds a limit.
fn exceeds(path: &Path, what: &str) -> GuestError {
    unsuitable(path, format!("{what}; share less, or use QEMU (--vmm qemu), which copies no files"))
}

/// Returns the error for a file that an image cannot have.
fn unsuitable(path: &Path, problem: String) -> GuestError {
    GuestError::Unsuitable { path: path.to_owned(), problem }
}

#[cfg(test)]
mod tests;
