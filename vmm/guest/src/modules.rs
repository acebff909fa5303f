//! Kernel modules: their files, their dependencies and their loading order.
//!
//! An unpacked package has no `modules.dep`, which is made at installation. The dependencies are
//! therefore read from the modules themselves, from `depends=` in their `.modinfo` section.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    error::{ErrorContext, GuestError},
    progress::Progress,
    tool,
};

/// Size limit of a module, in bytes. No distribution's module is larger.
const MAX_MODULE: u64 = 256 << 20;

/// A kernel's `/lib/modules/VERSION`.
#[derive(Clone, Debug)]
pub struct ModuleTree {
    root: PathBuf,
    paths: BTreeMap<String, PathBuf>,
    builtin: BTreeSet<String>,
}

/// A module to be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Module {
    /// Its name with `_`, as `lsmod` prints it.
    pub(crate) name: String,
    /// The names of the modules it needs.
    pub(crate) depends: Vec<String>,
    /// The object file, decompressed.
    pub(crate) object: Vec<u8>,
}

/// Returns a module's canonical name: `-` and `_` are equivalent.
fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

/// Returns the module's name of a file, without the endings of kernel objects and of compression.
fn module_name(file: &str) -> Option<String> {
    let name =
        ["", ".xz", ".zst", ".gz"].iter().find_map(|end| file.strip_suffix(end)?.strip_suffix(".ko"))?;
    Some(canonical(name))
}

impl ModuleTree {
    /// Opens the modules in a directory such as `/lib/modules/6.1.0-1-amd64`.
    ///
    /// # Errors
    /// [`GuestError::Unsuitable`] when there are none.
    pub fn open(root: &Path) -> Result<Self, GuestError> {
        let mut paths = BTreeMap::new();
        let mut folders = vec![root.to_owned()];

        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).context(|| folder.display().to_string())? {
                let entry = entry.context(|| folder.display().to_string())?;
                let kind = entry.file_type().context(|| entry.path().display().to_string())?;
                // `build` and `source` are links to other trees, and are not followed.
                if kind.is_dir() {
                    folders.push(entry.path());
                } else if let Some(name) = entry.file_name().to_str().and_then(module_name) {
                    paths.insert(name, entry.path());
                }
            }
        }

        let builtin: BTreeSet<String> = std::fs::read_to_string(root.join("modules.builtin"))
            .unwrap_or_default()
            .lines()
            .filter_map(|line| module_name(line.rsplit('/').next()?))
            .collect();

        if paths.is_empty() && builtin.is_empty() {
            let problem = "has no kernel modules; name a directory like /lib/modules/VERSION".into();
            return Err(GuestError::Unsuitable { path: root.to_owned(), problem });
        }

        Ok(Self { root: root.to_owned(), paths, builtin })
    }

    /// Returns the directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns whether the kernel has the module, loadable or built in.
    pub fn has(&self, name: &str) -> bool {
        let name = canonical(name);
        self.paths.contains_key(&name) || self.builtin.contains(&name)
    }

    /// Returns the modules and all their dependencies in loading order. Built-in ones are left out.
    pub(crate) fn closure(&self, names: &[&str], progress: &Progress) -> Result<Vec<Module>, GuestError> {
        let mut order = Vec::new();
        let mut seen = BTreeSet::new();
        for name in names {
            self.add_with_dependencies(&canonical(name), &mut seen, &mut order, progress)?;
        }
        Ok(order)
    }

    /// Adds a module to `order`, after the modules it needs. A module in `seen` was added before.
    fn add_with_dependencies(
        &self,
        name: &str,
        seen: &mut BTreeSet<String>,
        order: &mut Vec<Module>,
        progress: &Progress,
    ) -> Result<(), GuestError> {
        if self.builtin.contains(name) || !seen.insert(name.to_owned()) {
            return Ok(());
        }

        let Some(path) = self.paths.get(name) else {
            let problem = format!("the kernel has no module {name}");
            return Err(GuestError::Unsuitable { path: self.root.clone(), problem });
        };
        let object = read_module(path, progress)?;
        let depends = depends(&object);

        for needed in &depends {
            self.add_with_dependencies(needed, seen, order, progress)?;
        }

        order.push(Module { name: name.to_owned(), depends, object });
        Ok(())
    }
}

/// Reads a module's object file. The host's tools decompress it if needed.
fn read_module(path: &Path, progress: &Progress) -> Result<Vec<u8>, GuestError> {
    let program = match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        Some("gz") => "gzip",
        _ => return read_file(path),
    };

    let folder = tempfile::tempdir().context(|| "a temporary directory".into())?;
    let plain = folder.path().join("module.ko");
    // `tool::run_quietly` takes standard output as lines of text, so the shell sends the module's
    // bytes to a file.
    let script = "exec \"$0\" -dc \"$1\" > \"$2\"";
    let mut command = Command::new("sh");

    command.args(["-c", script, program]).arg(path).arg(&plain);
    tool::run_quietly(&format!("decompressing {}", path.display()), &mut command, progress)?;
    read_file(&plain)
}

fn read_file(path: &Path) -> Result<Vec<u8>, GuestError> {
    let size = std::fs::metadata(path).context(|| path.display().to_string())?.len();
    if size > MAX_MODULE {
        let problem = format!("has {size} bytes; a kernel module has at most {MAX_MODULE}");
        return Err(GuestError::Unsuitable { path: path.to_owned(), problem });
    }
    std::fs::read(path).context(|| path.display().to_string())
}

/// Returns the dependencies from `.modinfo`, a sequence of NUL-terminated strings, one of them
/// `depends=a,b`.
fn depends(object: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(place) = object.windows(KEY.len()).position(|window| window == KEY) else { return Vec::new() };
    let rest = &object[place + KEY.len()..];
    let end = rest.iter().position(|&byte| byte == 0).unwrap_or(0);
    let text = String::from_utf8_lossy(&rest[..end]);
    text.split(',').filter(|name| !name.is_empty()).map(canonical).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(modules: &[(&str, &str)]) -> (tempfile::TempDir, ModuleTree) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("kernel")).unwrap();

        for (name, depends) in modules {
            let text = format!("ELF\0license=GPL\0depends={depends}\0retpoline=Y\0");
            std::fs::write(folder.path().join("kernel").join(name), text).unwrap();
        }

        std::fs::write(folder.path().join("modules.builtin"), "kernel/drivers/pci/pci-stub.ko\n").unwrap();
        let tree = ModuleTree::open(folder.path()).unwrap();
        (folder, tree)
    }

    fn names(tree: &ModuleTree, wanted: &[&str]) -> Vec<String> {
        tree.closure(wanted, &Progress::silent()).unwrap().into_iter().map(|module| module.name).collect()
    }

    #[test]
    fn what_is_needed_comes_first_and_once() {
        let (_folder, tree) =
            tree(&[("vfio.ko", ""), ("vfio-pci.ko", "vfio-pci-core,vfio"), ("vfio-pci-core.ko", "vfio")]);
        assert_eq!(names(&tree, &["vfio-pci", "vfio"]), ["vfio", "vfio_pci_core", "vfio_pci"]);
    }

    #[test]
    fn what_is_built_in_is_there_and_not_loaded() {
        let (_folder, tree) = tree(&[("a.ko", "pci-stub")]);
        assert!(tree.has("pci-stub"));
        assert_eq!(names(&tree, &["a", "pci_stub"]), ["a"]);
    }

    #[test]
    fn a_module_that_is_not_there_is_named() {
        let (_folder, tree) = tree(&[("a.ko", "b")]);
        let error = tree.closure(&["a"], &Progress::silent()).unwrap_err();
        assert!(error.to_string().contains("no module b"), "{error}");
    }

    #[test]
    fn modules_that_need_each_other_end() {
        let (_folder, tree) = tree(&[("a.ko", "b"), ("b.ko", "a")]);
        assert_eq!(names(&tree, &["a"]), ["b", "a"]);
    }

    #[test]
    fn a_directory_without_modules_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let error = ModuleTree::open(folder.path()).unwrap_err();
        assert!(error.to_string().contains("has no kernel modules"), "{error}");
    }
}
