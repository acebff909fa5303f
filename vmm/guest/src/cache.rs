//! The user's directory for downloaded and built files, and its lock.
//!
//! ```text
//! CACHE/lock              held by the process that provisions
//! CACHE/downloads/...     packages of an interrupted download; removed on completion
//! CACHE/qemu-...          a private tree with QEMU
//! CACHE/linux-...         a private tree with a kernel, its modules and headers, busybox, lspci
//! CACHE/modules/NAME-HASH a kernel module, for its sources and a kernel
//! CACHE/kernels/HASH      the unpacked kernel of a boot image
//! CACHE/aliases/HASH      the index of the aliases of a kernel's modules, for a tree of modules
//! CACHE/accel             result of the KVM trial since the host booted
//! ```
//! A tree is made under a temporary name and renamed, so a tree under its own name is complete.

use std::{
    ffi::OsString,
    fs::{DirBuilder, File},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg, OFlag},
    unistd::{getegid, geteuid},
};

use crate::{
    error::{ErrorContext, GuestError},
    progress::{CHECK_INTERVAL, Progress},
};

/// The environment variable that names the cache.
pub const CACHE_VARIABLE: &str = "NICFORGE_CACHE";

/// Mode bit of a directory in which users can remove and rename only their own entries.
const STICKY: u32 = 0o1000;

/// A cache directory.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

/// The lock on a cache, released on drop.
#[derive(Debug)]
pub struct Locked {
    _lock: Flock<File>,
}

impl Cache {
    /// Opens the user's cache, and creates it if necessary. The first of these directories whose
    /// variable is set and not empty counts:
    ///
    /// 1. `$NICFORGE_CACHE`, which is never replaced by another one;
    /// 2. `$XDG_CACHE_HOME/nicforge`;
    /// 3. `$HOME/.cache/nicforge`.
    ///
    /// A directory of this user among the temporary files is the cache when no variable is set, and
    /// when the second or the third directory is unusable.
    ///
    /// # Errors
    /// [`GuestError::Cache`] when the directory can't be made, or other users may write to it.
    pub fn open() -> Result<Self, GuestError> {
        let temporary = std::env::temp_dir().join(format!("nicforge-cache-{}", geteuid()));
        Self::from_variables(|name| std::env::var_os(name), &temporary)
    }

    /// Opens the cache that the environment variables name, or else the one at `temporary`.
    fn from_variables(
        variable: impl Fn(&str) -> Option<OsString>,
        temporary: &Path,
    ) -> Result<Self, GuestError> {
        let directory = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);

        // The user means this directory, so an unusable one is an error.
        if let Some(named) = directory(CACHE_VARIABLE) {
            return Self::at(&named);
        }

        let usual = directory("XDG_CACHE_HOME")
            .map(|caches| caches.join("nicforge"))
            .or_else(|| directory("HOME").map(|home| home.join(".cache/nicforge")));

        // Users of services often have no home, or not their own.
        match usual.and_then(|usual| Self::at(&usual).ok()) {
            Some(cache) => Ok(cache),
            None => Self::at(temporary),
        }
    }

    /// Opens a cache in a directory of the caller's choice, which is created. It may be a link
    /// where no other user can make one.
    ///
    /// # Errors
    /// [`GuestError::Cache`] when it can't be made, or other users may write to it or replace it.
    pub fn at(path: &Path) -> Result<Self, GuestError> {
        let unusable = |why: String| GuestError::Cache { path: path.to_owned(), why };
        let failed = |error: std::io::Error| unusable(error.to_string());
        let root = std::path::absolute(path).map_err(failed)?;

        DirBuilder::new().recursive(true).mode(0o700).create(&root).map_err(failed)?;

        // In a folder that all users can write to, another user may have created this name.
        let parent = std::fs::metadata(root.parent().unwrap_or(&root)).map_err(failed)?;
        let is_public = parent.mode() & 0o002 != 0;
        if is_public && parent.mode() & STICKY == 0 {
            return Err(unusable("other users can put another directory in its place".into()));
        }

        let nofollow = if is_public { OFlag::O_NOFOLLOW.bits() } else { 0 };
        let opened = File::options()
            .read(true)
            .custom_flags(OFlag::O_DIRECTORY.bits() | nofollow)
            .open(&root)
            .map_err(|error| match is_public && root.is_symlink() {
                true => unusable("it is a link, in a directory that other users can write to".into()),
                false => failed(error),
            })?;

        // Programs are run from the cache, so no other user may own or write it.
        let metadata = opened.metadata().map_err(failed)?;
        if metadata.uid() != geteuid().as_raw() {
            return Err(unusable("it belongs to another user".into()));
        }

        if metadata.mode() & 0o022 != 0 {
            return Err(unusable("other users can write to it".into()));
        }

        // From here on the path is without links, which others could change.
        let path = std::fs::canonicalize(&root).map_err(failed)?;
        if let Some(part) = find_replaceable_parent(&path).map_err(failed)? {
            let part = part.display();
            return Err(unusable(format!(
                "a user who can write to {part} can put another directory in its place"
            )));
        }
        let found = std::fs::metadata(&path).map_err(failed)?;
        if (found.dev(), found.ino()) != (metadata.dev(), metadata.ino()) {
            return Err(unusable("another directory was put in its place".into()));
        }

        Ok(Self { root: path })
    }

    /// Returns a path in the cache.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.root.join(name)
    }

    /// Waits until no other process provisions, and takes the lock.
    pub(crate) fn lock(&self, progress: &Progress) -> Result<Locked, GuestError> {
        let path = self.path("lock");
        let mut file =
            File::options().create(true).append(true).open(&path).context(|| path.display().to_string())?;
        let mut is_reported = false;

        loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(Locked { _lock: lock }),
                Err((unlocked, Errno::EWOULDBLOCK)) => file = unlocked,
                Err((_, errno)) => return Err(errno).context(|| format!("lock {}", path.display())),
            }

            if !is_reported {
                progress.step(&format!("waiting for another process that uses {}", path.display()));
                is_reported = true;
            }

            progress.check()?;
            std::thread::sleep(CHECK_INTERVAL);
        }
    }

    /// Makes the directory `name` unless it exists: `fill` fills a temporary one, which is then
    /// renamed.
    pub(crate) fn make(
        &self,
        name: impl AsRef<Path>,
        fill: impl FnOnce(&Path) -> Result<(), GuestError>,
    ) -> Result<PathBuf, GuestError> {
        let path = self.path(name);
        if path.is_dir() {
            return Ok(path);
        }

        let parent = path.parent().unwrap_or(&self.root);
        std::fs::create_dir_all(parent).context(|| parent.display().to_string())?;
        let folder = tempfile::Builder::new()
            .prefix(".making-")
            .tempdir_in(parent)
            .context(|| format!("a directory in {}", parent.display()))?;

        fill(folder.path())?;
        let made = folder.keep();
        std::fs::rename(&made, &path)
            .context(|| format!("rename {} to {}", made.display(), path.display()))?;

        Ok(path)
    }

    /// Removes the directory `name`, if it exists. Requires the lock.
    pub(crate) fn remove(&self, name: impl AsRef<Path>, _lock: &Locked) -> Result<(), GuestError> {
        let path = self.path(name);
        match std::fs::remove_dir_all(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).context(|| format!("remove {}", path.display()))
            }
            _ => Ok(()),
        }
    }

    /// Removes all directories in the directory `name` but the newest `count`. Requires the lock.
    pub(crate) fn keep_newest(&self, name: &str, count: usize, _lock: &Locked) {
        let entries = std::fs::read_dir(self.path(name)).into_iter().flatten().flatten();
        let mut folders: Vec<_> = entries
            .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
            .collect();

        folders.sort();
        let old = folders.len().saturating_sub(count);
        for (_, path) in &folders[..old] {
            // A directory that can't be removed costs only space.
            let _ = std::fs::remove_dir_all(path);
        }
    }

    /// Removes the unfinished directories of killed processes. Requires the lock.
    pub(crate) fn sweep(&self, _lock: &Locked) {
        let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
        let nested = entries(&self.root).flat_map(|entry| entries(&entry.path()));

        for entry in entries(&self.root).chain(nested) {
            if entry.file_name().to_string_lossy().starts_with(".making-") {
                // A directory that can't be removed costs only space.
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }
}

/// Returns bytes as a name of a cache's entry.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a directory above `path` in which a user other than this one and root can rename what
/// leads to `path`, which has no links.
fn find_replaceable_parent(path: &Path) -> std::io::Result<Option<&Path>> {
    // In a user namespace the root directory may belong to a user without a number of its own. Its
    // owner can replace anything in any case.
    let trusted = [0, geteuid().as_raw(), std::fs::metadata("/")?.uid()];

    for parent in path.ancestors().skip(1) {
        let metadata = std::fs::metadata(parent)?;
        let others_write = metadata.mode() & 0o002 != 0
            || (metadata.mode() & 0o020 != 0 && metadata.gid() != getegid().as_raw());
        // What is in a sticky directory is renamed by its own owner, who is checked too.
        if !trusted.contains(&metadata.uid()) || (others_write && metadata.mode() & STICKY == 0) {
            return Ok(Some(parent));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;

    /// Opens the cache of a user whose environment has these variables. The directory among the
    /// temporary files is `temporary` in `folder`.
    fn opened(folder: &Path, variables: &[(&str, &Path)]) -> Result<PathBuf, GuestError> {
        let value =
            |name: &str| variables.iter().find(|variable| variable.0 == name).map(|found| found.1.into());
        let cache = Cache::from_variables(value, &folder.join("temporary"))?;
        Ok(cache.root.strip_prefix(folder).unwrap().to_owned())
    }

    #[test]
    fn an_unusable_home_is_replaced_by_a_temporary_directory() {
        let folder = tempfile::tempdir().unwrap();
        let unusable = folder.path().join("file");
        std::fs::write(&unusable, "").unwrap();

        let of_home = opened(folder.path(), &[("HOME", &unusable)]);
        let of_usable_home = opened(folder.path(), &[("HOME", folder.path())]);

        assert_eq!(of_home.unwrap(), Path::new("temporary"));
        assert_eq!(of_usable_home.unwrap(), Path::new(".cache/nicforge"));
    }

    #[test]
    fn an_empty_cache_variable_does_not_forbid_the_temporary_directory() {
        let folder = tempfile::tempdir().unwrap();
        let unusable = folder.path().join("file");
        std::fs::write(&unusable, "").unwrap();

        let opened = opened(folder.path(), &[(CACHE_VARIABLE, Path::new("")), ("HOME", &unusable)]);

        assert_eq!(opened.unwrap(), Path::new("temporary"));
    }

    #[test]
    fn an_unusable_named_cache_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let unusable = folder.path().join("file");
        std::fs::write(&unusable, "").unwrap();

        let error =
            opened(folder.path(), &[(CACHE_VARIABLE, &unusable), ("HOME", folder.path())]).unwrap_err();

        assert!(matches!(error, GuestError::Cache { .. }), "{error}");
    }

    #[test]
    fn a_cache_that_others_can_write_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let error = Cache::at(folder.path()).unwrap_err();
        assert!(error.to_string().contains("other users can write"), "{error}");
    }

    /// Returns a directory with a mode, and a private one elsewhere. `cache` in the first is a link
    /// to the second.
    fn linked(mode: u32) -> (tempfile::TempDir, tempfile::TempDir) {
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::set_permissions(elsewhere.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), folder.path().join("cache")).unwrap();
        (folder, elsewhere)
    }

    #[test]
    fn a_link_is_refused_where_others_can_make_one_and_followed_elsewhere() {
        let (folder, elsewhere) = linked(0o1777);
        let error = Cache::at(&folder.path().join("cache")).unwrap_err();

        assert!(error.to_string().contains("it is a link"), "{error}");
        assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);

        let (folder, _elsewhere) = linked(0o755);
        Cache::at(&folder.path().join("cache")).unwrap();
    }

    #[test]
    fn a_link_that_leads_nowhere_is_refused_and_its_target_is_not_made() {
        let (folder, elsewhere) = linked(0o1777);
        let target = elsewhere.path().to_owned();
        drop(elsewhere);
        assert!(Cache::at(&folder.path().join("cache")).is_err());
        assert!(!target.exists());
    }

    #[test]
    fn a_folder_that_others_can_rename_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let error = Cache::at(&folder.path().join("cache")).unwrap_err();
        assert!(error.to_string().contains("another directory in its place"), "{error}");
    }

    #[test]
    fn a_cache_below_a_folder_that_another_user_can_rename_in_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let [of_all, of_other] = ["all", "other"].map(|name| folder.path().join(name));
        let cache = |parent: &Path| parent.join("private/cache");
        for parent in [&of_all, &of_other] {
            std::fs::create_dir_all(parent.join("private")).unwrap();
        }

        std::fs::set_permissions(&of_all, std::fs::Permissions::from_mode(0o777)).unwrap();
        let error = Cache::at(&cache(&of_all)).unwrap_err();
        assert!(error.to_string().contains("another directory in its place"), "{error}");

        // Only root can give a directory away.
        if geteuid().is_root() {
            chown(&of_other, Some(71_001), None).unwrap();
            let error = Cache::at(&cache(&of_other)).unwrap_err();
            assert!(error.to_string().contains(&format!("write to {} can", of_other.display())), "{error}");
        }
    }

    #[test]
    fn a_cache_in_the_temporary_folder_is_private_to_its_user() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
        Cache::at(&folder.path().join("cache")).unwrap();
        let mode = std::fs::metadata(folder.path().join("cache")).unwrap().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn an_entry_that_could_not_be_filled_does_not_exist() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path()).unwrap();
        let error = cache.make("a", |_| Err(GuestError::Cancelled)).unwrap_err();
        assert!(matches!(error, GuestError::Cancelled));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn leftovers_of_a_killed_process_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path()).unwrap();
        let made =
            cache.make("x/a", |path| std::fs::write(path.join("f"), "1").context(String::new)).unwrap();

        for left in [".making-1/y", "x/.making-2/y"] {
            std::fs::create_dir_all(folder.path().join(left)).unwrap();
        }

        cache.sweep(&cache.lock(&Progress::silent()).unwrap());
        assert!(made.join("f").is_file());
        assert!(!folder.path().join(".making-1").exists() && !folder.path().join("x/.making-2").exists());
    }

    #[test]
    fn an_existing_entry_is_not_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path()).unwrap();
        let made =
            cache.make("x/a", |path| std::fs::write(path.join("f"), "1").context(String::new)).unwrap();
        cache.make("x/a", |_| Err(GuestError::Cancelled)).unwrap();
        assert_eq!(std::fs::read_to_string(made.join("f")).unwrap(), "1");
    }

    #[test]
    fn a_second_lock_waits_and_can_be_cancelled() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path()).unwrap();
        let held = cache.lock(&Progress::silent()).unwrap();
        let progress = Progress::silent().cancelled_by(|| true);

        assert!(matches!(cache.lock(&progress).unwrap_err(), GuestError::Cancelled));

        drop(held);
        cache.lock(&Progress::silent()).unwrap();
    }
}
