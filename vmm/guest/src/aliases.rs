//! The aliases of a kernel's modules: which modules drive a PCI function.
//!
//! An installed kernel has them in `modules.alias`. An unpacked package has not, so they are read
//! from the modules themselves, once for each tree, and kept in the cache.

use std::{fmt::Write, os::unix::fs::MetadataExt, path::Path};

use sha2::{Digest, Sha256};

use crate::{
    cache::{Cache, hex},
    error::{ErrorContext, GuestError},
    identity::{PciIdentity, matches},
    modules::{self, ModuleTree, canonical},
    progress::Progress,
};

/// The cache's folder of indexes, and the file's name of each.
const FOLDER: &str = "aliases";
const FILE: &str = "index";
/// The number of indexes that are kept.
const KEPT_INDEXES: usize = 8;

/// The beginning of an index. It has the version of the format.
const TITLE: &str = "nicforge-aliases 1";
/// Size limit of an index and of `modules.alias`, in bytes. A distribution's has about 2 MB.
const MAX_SIZE: u64 = 32 << 20;
/// The longest alias that is kept, in bytes. Those of PCI functions have 54.
const MAX_ALIAS: usize = 256;
/// The beginnings of aliases that are kept: drivers of PCI functions, and of virtio devices.
const BUSES: [&str; 2] = ["pci:", "virtio:"];
/// The number of modules that are read at a time.
const BATCH: usize = 64;
/// More bytes than an index's first line has behind its title: a blank, a digest, and the line's
/// end.
const MAX_DIGEST: usize = 128;
/// Bytes of a digest that names a tree in the cache.
const KEY_SIZE: usize = 12;

/// The aliases of a kernel's modules, in the order in which the kernel prefers the modules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AliasIndex {
    entries: Vec<Entry>,
}

/// An alias of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    alias: String,
    /// The module's canonical name.
    module: String,
}

impl AliasIndex {
    /// Returns the index of a tree: from its `modules.alias`, or from the cache, or from its
    /// modules.
    ///
    /// Another process that makes an index meanwhile is waited for. A damaged index is made anew.
    ///
    /// # Errors
    /// [`GuestError::Unsuitable`] when the aliases are too many; [`GuestError::Io`];
    /// [`GuestError::Cancelled`].
    pub(crate) fn of(tree: &ModuleTree, cache: &Cache, progress: &Progress) -> Result<Self, GuestError> {
        if let Some(index) = Self::from_depmod(&tree.root().join("modules.alias"))? {
            return Ok(index);
        }

        let key = tree_key(tree)?;
        let directory = Path::new(FOLDER).join(&key);
        let file = cache.path(&directory).join(FILE);
        if let Some(index) = Self::read_cached(&file, &key) {
            return Ok(index);
        }

        let lock = cache.lock(progress)?;
        // Another process may have made the index while this one waited for the lock.
        if let Some(index) = Self::read_cached(&file, &key) {
            return Ok(index);
        }

        let index = Self::scan(tree, progress);
        progress.done();
        let index = index?;

        cache.remove(&directory, &lock)?;
        cache.make(&directory, |folder| {
            let file = folder.join(FILE);
            std::fs::write(&file, index.to_text(&key)).context(|| file.display().to_string())
        })?;
        cache.keep_newest(FOLDER, KEPT_INDEXES, &lock);

        Ok(index)
    }

    /// Returns the modules whose aliases match an identity, the preferred one first.
    pub(crate) fn modules_for(&self, identity: &PciIdentity) -> Vec<&str> {
        let mut modules: Vec<&str> = Vec::new();
        for modalias in identity.modaliases() {
            for entry in self.entries.iter().filter(|entry| matches(&entry.alias, &modalias)) {
                if !modules.contains(&entry.module.as_str()) {
                    modules.push(&entry.module);
                }
            }
        }
        modules
    }

    /// Reads `modules.alias`, whose lines are `alias PATTERN MODULE`. Returns `None` when there is
    /// no such file.
    fn from_depmod(path: &Path) -> Result<Option<Self>, GuestError> {
        let size = match std::fs::metadata(path) {
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).context(|| path.display().to_string()),
        };
        if size > MAX_SIZE {
            return Err(too_large(path));
        }

        let bytes = std::fs::read(path).context(|| path.display().to_string())?;
        let text = String::from_utf8_lossy(&bytes);
        let entries = text.lines().filter_map(|line| {
            let mut words = line.strip_prefix("alias ")?.split_ascii_whitespace();
            Entry::new(words.next()?, words.next()?)
        });

        Ok(Some(Self { entries: entries.collect() }))
    }

    /// Reads the index of the tree with this key. Returns `None` when there is none, or when the
    /// file is not a whole index of this tree.
    fn read_cached(path: &Path, key: &str) -> Option<Self> {
        let size = std::fs::metadata(path).ok()?.len();
        let text = (size <= MAX_SIZE).then(|| std::fs::read_to_string(path).ok()).flatten();
        let index = text.and_then(|text| Self::from_text(&text, key));

        if index.is_none() {
            tracing::warn!("{} is damaged, and is made anew", path.display());
        }
        index
    }

    /// Reads the aliases from all modules of a tree.
    fn scan(tree: &ModuleTree, progress: &Progress) -> Result<Self, GuestError> {
        progress.step("listing the devices that the kernel's modules drive (once)");
        let modules = tree.in_order();
        let mut entries = Vec::new();
        // The size of the index's file without its first line: each entry has a blank and a line's
        // end.
        let mut size = 0;

        for (number, batch) in modules.chunks(BATCH).enumerate() {
            progress.check()?;
            progress.percent((number * BATCH * 100) as f32 / modules.len() as f32);

            for (name, info) in modules::read_infos(batch, progress)? {
                let found = info.values("alias").filter_map(|alias| Entry::new(alias, name));
                entries.extend(found.inspect(|entry| size += entry.alias.len() + entry.module.len() + 2));
            }

            // `read_cached` refuses a larger index.
            if (size + TITLE.len() + MAX_DIGEST) as u64 > MAX_SIZE {
                return Err(too_large(tree.root()));
            }
        }

        Ok(Self { entries })
    }

    /// Returns the text of the index's file: a line with a digest of the rest and of the tree's
    /// key, and a line `ALIAS MODULE` for each entry.
    fn to_text(&self, key: &str) -> String {
        let mut body = String::new();
        for Entry { alias, module } in &self.entries {
            // Writing to a string can't fail.
            let _ = writeln!(body, "{alias} {module}");
        }

        format!("{TITLE} {}\n{body}", digest(key, &body))
    }

    /// Parses the text of an index's file. Returns `None` unless it is whole and of this tree.
    fn from_text(text: &str, key: &str) -> Option<Self> {
        let (title, body) = text.split_once('\n')?;
        let stored_digest = title.strip_prefix(TITLE)?.strip_prefix(' ')?;
        if stored_digest != digest(key, body) {
            return None;
        }

        let entries = body.lines().map(|line| {
            let (alias, module) = line.split_once(' ')?;
            Entry::new(alias, module)
        });
        Some(Self { entries: entries.collect::<Option<_>>()? })
    }
}

impl Entry {
    /// Returns an entry, unless the alias is for another bus or for no device at all.
    fn new(alias: &str, module: &str) -> Option<Self> {
        let is_kept = BUSES.iter().any(|bus| alias.starts_with(bus))
            && alias.len() <= MAX_ALIAS
            && !alias.contains(char::is_whitespace);
        is_kept.then(|| Self { alias: alias.to_owned(), module: canonical(module) })
    }
}

/// Returns the error for aliases that exceed [`MAX_SIZE`].
fn too_large(path: &Path) -> GuestError {
    let problem = format!("has more than {MAX_SIZE} bytes of aliases of kernel modules");
    GuestError::Unsuitable { path: path.to_owned(), problem }
}

/// Returns a name for a tree, which changes with its path and with its modules' names, sizes and
/// times.
fn tree_key(tree: &ModuleTree) -> Result<String, GuestError> {
    let root = tree.root().canonicalize().context(|| tree.root().display().to_string())?;
    let mut hash = Sha256::new();
    let mut add = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };

    add(TITLE.as_bytes());
    add(root.as_os_str().as_encoded_bytes());

    for (name, path) in tree.in_order() {
        add(name.as_bytes());
        add(path.as_os_str().as_encoded_bytes());
        // A dangling link has no size and no time. `read_infos` leaves it out.
        let Ok(metadata) = path.metadata() else { continue };
        add(&metadata.len().to_le_bytes());
        add(&metadata.mtime().to_le_bytes());
        add(&metadata.mtime_nsec().to_le_bytes());
    }

    Ok(hex(&hash.finalize()[..KEY_SIZE]))
}

/// Returns the digest in an index's first line, of the tree's key and the lines after it.
fn digest(key: &str, body: &str) -> String {
    hex(&Sha256::new().chain_update(key).chain_update("\n").chain_update(body).finalize())
}

#[cfg(test)]
mod tests;
