//! Kernel modules: their files, their dependencies and their loading order.
//!
//! An unpacked package has no `modules.dep`, which is made at installation. The dependencies are
//! therefore read from the modules themselves.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    path::{Path, PathBuf},
};

use crate::{
    decompress::{MAX_SIZE, decompress},
    error::{ErrorContext, GuestError},
    modinfo::{ModInfo, ModInfoError},
    progress::Progress,
};

/// Maximum number of modules of a kernel. Distributions have about 5,000.
const MAX_MODULES: usize = 1 << 16;

/// A kernel's `/lib/modules/VERSION`.
#[derive(Clone, Debug)]
pub struct ModuleTree {
    root: PathBuf,
    /// The files of the modules, by canonical name.
    paths: BTreeMap<String, PathBuf>,
    /// The canonical names of the modules that are built into the kernel.
    builtin: BTreeSet<String>,
}

/// A module to be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Module {
    /// Its name with `_`, as `lsmod` prints it.
    pub(crate) name: String,
    /// The names of the modules that are loaded before it.
    pub(crate) depends: Vec<String>,
    /// The object file, decompressed.
    pub(crate) object: Vec<u8>,
}

/// Returns a module's canonical name: `-` and `_` are equivalent.
pub(crate) fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

/// Returns the module's name of a file, without the endings of kernel objects and of compression.
fn module_name(file: &str) -> Option<String> {
    let name =
        ["", ".xz", ".zst", ".gz"].iter().find_map(|end| file.strip_suffix(end)?.strip_suffix(".ko"))?;
    Some(canonical(name))
}

/// A step of the walk through modules and their dependencies.
enum Visit {
    /// A module whose dependencies are still unknown.
    Enter(String),
    /// A module after all its dependencies.
    Leave(Module),
}

impl ModuleTree {
    /// Opens the modules in a directory such as `/lib/modules/6.1.0-1-amd64`.
    ///
    /// # Errors
    /// [`GuestError::Unsuitable`] when there are none, or too many.
    pub fn open(root: &Path) -> Result<Self, GuestError> {
        let unsuitable = |problem: String| GuestError::Unsuitable { path: root.to_owned(), problem };
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

            if paths.len() > MAX_MODULES {
                return Err(unsuitable(format!("has more than {MAX_MODULES} kernel modules")));
            }
        }

        let builtin: BTreeSet<String> = std::fs::read_to_string(root.join("modules.builtin"))
            .unwrap_or_default()
            .lines()
            .filter_map(|line| module_name(line.rsplit('/').next()?))
            .collect();

        if paths.is_empty() && builtin.is_empty() {
            let problem = "has no kernel modules; name a directory like /lib/modules/VERSION";
            return Err(unsuitable(problem.into()));
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

    /// Returns whether the module is built into the kernel, so that it need not be loaded.
    pub(crate) fn has_built_in(&self, name: &str) -> bool {
        self.builtin.contains(&canonical(name))
    }

    /// Returns the names and files of all modules in the order of `modules.order`, in which the
    /// kernel prefers one driver to another. Modules that are not in it come last.
    pub(crate) fn in_order(&self) -> Vec<(&str, &Path)> {
        let order = std::fs::read_to_string(self.root.join("modules.order")).unwrap_or_default();
        let names = order.lines().filter_map(|line| module_name(line.rsplit('/').next()?));
        let ranks: BTreeMap<String, usize> = names.zip(0..).collect();

        let mut modules: Vec<_> =
            self.paths.iter().map(|(name, path)| (name.as_str(), path.as_path())).collect();
        modules.sort_by_key(|(name, _)| ranks.get(*name).copied().unwrap_or(usize::MAX));
        modules
    }

    /// Returns the modules and all their dependencies in loading order. Built-in ones are left out.
    ///
    /// A module that another one only works better with is not required. It is left out when the
    /// kernel does not have it.
    pub(crate) fn closure(&self, names: &[&str], progress: &Progress) -> Result<Vec<Module>, GuestError> {
        let mut order = Vec::new();
        let mut seen = BTreeSet::new();
        let mut open: Vec<Visit> = names.iter().rev().map(|name| Visit::Enter(canonical(name))).collect();

        while let Some(visit) = open.pop() {
            let name = match visit {
                Visit::Enter(name) => name,
                Visit::Leave(module) => {
                    order.push(module);
                    continue;
                }
            };

            if self.builtin.contains(&name) || !seen.insert(name.clone()) {
                continue;
            }

            // The next visits are its dependencies, in their order, and then the module itself.
            let module = self.read_with_dependency_names(&name, progress)?;
            let depends: Vec<_> = module.depends.iter().rev().cloned().map(Visit::Enter).collect();
            open.push(Visit::Leave(module));
            open.extend(depends);
        }

        Ok(order)
    }

    /// Reads a module and the names of those that are to be loaded before it.
    fn read_with_dependency_names(&self, name: &str, progress: &Progress) -> Result<Module, GuestError> {
        let Some(path) = self.paths.get(name) else {
            let problem = format!("the kernel has no module {name}");
            return Err(GuestError::Unsuitable { path: self.root.clone(), problem });
        };

        let object = read_module(path, progress)?;
        let info = ModInfo::read(object.as_slice())
            .map_err(|error| GuestError::Unsuitable { path: path.clone(), problem: error.to_string() })?;

        let soft = info.soft_dependencies().map(canonical).filter(|name| self.paths.contains_key(name));
        let depends = soft.chain(info.depends().map(canonical)).collect();
        Ok(Module { name: name.to_owned(), depends, object })
    }
}

/// Returns the program that decompresses a module's file, if the file is compressed.
fn decompressor(path: &Path) -> Option<&'static str> {
    match path.extension()?.to_str()? {
        "xz" => Some("xz"),
        "zst" => Some("zstd"),
        "gz" => Some("gzip"),
        _ => None,
    }
}

/// Reads a module's object file. The host's tools decompress it if needed.
fn read_module(path: &Path, progress: &Progress) -> Result<Vec<u8>, GuestError> {
    let Some(program) = decompressor(path) else { return read_file(path) };

    let folder = tempfile::tempdir().context(|| "a temporary directory".into())?;
    let plain = decompress(program, &[path], folder.path(), progress)?;
    match plain.first().filter(|plain| plain.exists()) {
        Some(plain) => read_file(plain),
        None => {
            let problem = format!("{program} can't decompress it");
            Err(GuestError::Unsuitable { path: path.to_owned(), problem })
        }
    }
}

/// Reads the descriptions of some modules. Modules that have none are left out, with a line in the
/// log.
pub(crate) fn read_infos<'a>(
    modules: &[(&'a str, &'a Path)],
    progress: &Progress,
) -> Result<Vec<(&'a str, ModInfo)>, GuestError> {
    let mut infos = Vec::with_capacity(modules.len());
    // `file` has the module's bytes, and `path` is its name in the log.
    let mut add = |name: &'a str, path: &Path, file: &Path| match read_info(file) {
        Ok(info) => infos.push((name, info)),
        Err(error) => tracing::warn!(%error, "{}", path.display()),
    };

    // Each run of files of one kind is decompressed by one process.
    for run in modules.chunk_by(|(_, a), (_, b)| decompressor(a) == decompressor(b)) {
        let Some(program) = run.first().and_then(|(_, path)| decompressor(path)) else {
            run.iter().for_each(|(name, path)| add(name, path, path));
            continue;
        };

        let folder = tempfile::tempdir().context(|| "a temporary directory".into())?;
        let files: Vec<&Path> = run.iter().map(|(_, path)| *path).collect();
        let plain = decompress(program, &files, folder.path(), progress)?;
        run.iter().zip(&plain).for_each(|((name, path), file)| add(name, path, file));
    }

    Ok(infos)
}

/// Reads the description in an object file.
fn read_info(path: &Path) -> Result<ModInfo, ModInfoError> {
    ModInfo::read(&File::open(path)?)
}

/// Reads an object file that is not compressed.
fn read_file(path: &Path) -> Result<Vec<u8>, GuestError> {
    let size = std::fs::metadata(path).context(|| path.display().to_string())?.len();
    if size > MAX_SIZE {
        let problem = format!("has {size} bytes; a kernel module has at most {MAX_SIZE}");
        return Err(GuestError::Unsuitable { path: path.to_owned(), problem });
    }
    std::fs::read(path).context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::modinfo::samples::module_file;

    fn tree(modules: &[(&str, &str)]) -> (tempfile::TempDir, ModuleTree) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("kernel")).unwrap();

        for (name, depends) in modules {
            let depends = format!("depends={depends}");
            let object = module_file(&["license=GPL", &depends, "softdep=pre: soft no-such", "retpoline=Y"]);
            std::fs::write(folder.path().join("kernel").join(name), object).unwrap();
        }

        std::fs::write(folder.path().join("modules.builtin"), "kernel/drivers/pci/pci-stub.ko\n").unwrap();
        let tree = ModuleTree::open(folder.path()).unwrap();
        (folder, tree)
    }

    fn names(tree: &ModuleTree, wanted: &[&str]) -> Vec<String> {
        tree.closure(wanted, &Progress::silent()).unwrap().into_iter().map(|module| module.name).collect()
    }

    #[test]
    fn dependencies_are_listed_first_and_once() {
        let (_folder, tree) =
            tree(&[("vfio.ko", ""), ("vfio-pci.ko", "vfio-pci-core,vfio"), ("vfio-pci-core.ko", "vfio")]);
        assert_eq!(names(&tree, &["vfio-pci", "vfio"]), ["vfio", "vfio_pci_core", "vfio_pci"]);
    }

    #[test]
    fn built_in_modules_exist_and_are_not_loaded() {
        let (_folder, tree) = tree(&[("a.ko", "pci-stub")]);
        assert!(tree.has("pci-stub"));
        assert_eq!(names(&tree, &["a", "pci_stub"]), ["a"]);
    }

    #[test]
    fn the_error_names_a_missing_module() {
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
    fn modules_with_circular_dependencies_are_listed_once() {
        let (_folder, tree) = tree(&[("a.ko", "b"), ("b.ko", "c,d"), ("c.ko", "a,b,c"), ("d.ko", "")]);
        assert_eq!(names(&tree, &["a"]), ["c", "d", "b", "a"]);
        assert_eq!(names(&tree, &["c"]), ["d", "b", "a", "c"]);
    }

    #[test]
    fn long_chain_of_modules_is_followed_to_its_end() {
        let modules: Vec<_> = (0..3000).map(|n| (format!("m{n}.ko"), format!("m{}", n + 1))).collect();
        let modules: Vec<_> = modules.iter().map(|(name, needs)| (name.as_str(), needs.as_str())).collect();
        let (_folder, tree) = tree(&[&modules[..], &[("m3000.ko", "")]].concat());

        let order = names(&tree, &["m0"]);
        assert_eq!((order.len(), order[0].as_str(), order[3000].as_str()), (3001, "m3000", "m0"));
    }

    #[test]
    fn module_that_is_needed_softly_comes_first_if_the_kernel_has_it() {
        let (_folder, tree) = tree(&[("a.ko", "b"), ("b.ko", ""), ("soft.ko", "")]);
        assert_eq!(names(&tree, &["a"]), ["soft", "b", "a"]);
    }

    #[test]
    fn file_that_is_no_module_is_refused_and_has_no_description() {
        let (folder, tree) = tree(&[("a.ko", ""), ("b.ko", "")]);
        std::fs::write(folder.path().join("kernel/b.ko"), "depends=a").unwrap();

        let error = tree.closure(&["b"], &Progress::silent()).unwrap_err();
        assert!(error.to_string().contains("b.ko: ends within its headers"), "{error}");

        let infos = read_infos(&tree.in_order(), &Progress::silent()).unwrap();
        assert_eq!(infos.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn compressed_modules_are_read_and_a_damaged_one_is_left_out() {
        let (folder, _) = tree(&[("a.ko", ""), ("b.ko", "a"), ("c.ko", "")]);
        let file = |name: &str| folder.path().join("kernel").join(name);
        assert!(Command::new("gzip").args([file("a.ko"), file("b.ko")]).status().unwrap().success());
        std::fs::write(file("d.ko.gz"), "no gzip").unwrap();

        let tree = ModuleTree::open(folder.path()).unwrap();
        let infos = read_infos(&tree.in_order(), &Progress::silent()).unwrap();
        assert_eq!(infos.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(names(&tree, &["b"]), ["a", "b"]);

        let error = tree.closure(&["d"], &Progress::silent()).unwrap_err();
        assert!(error.to_string().contains("can't decompress"), "{error}");
    }

    #[test]
    fn modules_are_in_the_kernels_order_with_unknown_ones_last() {
        let (folder, tree) = tree(&[("a.ko", ""), ("b-b.ko", ""), ("c.ko", "")]);
        std::fs::write(folder.path().join("modules.order"), "kernel/c.ko\nkernel/b-b.ko\n").unwrap();
        let order: Vec<_> = tree.in_order().into_iter().map(|(name, _)| name).collect();
        assert_eq!(order, ["c", "b_b", "a"]);
    }

    #[test]
    fn a_directory_without_modules_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let error = ModuleTree::open(folder.path()).unwrap_err();
        assert!(error.to_string().contains("has no kernel modules"), "{error}");
    }
}
