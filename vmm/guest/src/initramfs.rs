//! The guest's first root file system: busybox, init, agent, modules, `lspci`, and the caller's
//! files.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{BufWriter, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use crate::{
    cpio::Archive,
    elf,
    error::{ErrorContext, GuestError},
    module_plan::ModulePlan,
    modules::Module,
    progress::Progress,
    provision::{Lspci, Toolkit},
};

/// The guest's own programs, as scripts for busybox's shell.
const INIT: &[u8] = include_bytes!("inside/init.sh");
const AGENT: &[u8] = include_bytes!("inside/agent.sh");
const JOB: &[u8] = include_bytes!("inside/job.sh");
const BARRIER: &[u8] = include_bytes!("inside/barrier.sh");

/// The indexes that kmod's library reads. `lspci` looks up the names of modules in them. They are
/// empty here: magic number, version and no root.
const INDEXES: [&str; 5] = [
    "modules.dep.bin",
    "modules.alias.bin",
    "modules.symbols.bin",
    "modules.builtin.bin",
    "modules.builtin.alias.bin",
];
const EMPTY_INDEX: [u8; 12] = [0xb0, 0x07, 0xf4, 0x57, 0, 2, 0, 1, 0, 0, 0, 0];

/// A file for the guest.
#[derive(Clone, Debug)]
pub(crate) struct Extra {
    /// Path on the host.
    pub(crate) source: PathBuf,
    /// Absolute path in the guest.
    pub(crate) guest_path: String,
    /// Whether it is a program whose libraries are copied too.
    pub(crate) program: bool,
}

/// The parts of an initramfs that differ between guests.
pub(crate) struct Contents<'a> {
    pub(crate) extras: &'a [Extra],
    /// Its kernel modules.
    pub(crate) modules: &'a ModulePlan,
    /// Shell assignments that init and agent read.
    pub(crate) config: String,
    /// Shell text with the environment of the commands.
    pub(crate) environment: String,
    /// The built kernel module `kmod-shim`.
    pub(crate) shim: Option<&'a Path>,
    /// Whether there is the program `nicforge-barrier`.
    pub(crate) barriers: bool,
}

/// Writes a guest's initramfs to an open file.
pub(crate) fn write(
    toolkit: &Toolkit,
    contents: &Contents<'_>,
    file: &File,
    progress: &Progress,
) -> Result<(), GuestError> {
    let context = || "a guest's initramfs".to_owned();
    let mut out = BufWriter::new(file);
    if let Some(initrd) = &toolkit.initrd {
        // The caller's archive comes first. Archives may follow each other, compressed or not;
        // later ones add to earlier ones.
        let mut base = File::open(initrd).context(|| initrd.display().to_string())?;
        let length = std::io::copy(&mut base, &mut out).context(context)?;
        // The kernel expects the next archive at a multiple of 4.
        let padding = length.wrapping_neg() % 4;
        out.write_all(&[0; 3][..padding as usize]).context(context)?;
    }

    let mut builder = Builder { archive: Archive::new(out), libraries: BTreeSet::new(), context: context() };
    builder.add_file("/nicforge/init", 0o755, INIT)?;
    builder.add_file("/nicforge/agent", 0o755, AGENT)?;
    builder.add_file("/nicforge/job", 0o755, JOB)?;
    builder.add_file("/nicforge/config", 0o644, contents.config.as_bytes())?;
    builder.add_file("/nicforge/environment", 0o644, contents.environment.as_bytes())?;
    builder.add_copy(&toolkit.programs.busybox, "/nicforge/busybox")?;
    if let Some(lspci) = &toolkit.programs.lspci {
        builder.add_lspci(lspci)?;
    }

    if contents.barriers {
        builder.add_file("/nicforge/tools/nicforge-barrier", 0o755, BARRIER)?;
    }

    builder.add_file("/nicforge/modules", 0o644, contents.modules.load.as_bytes())?;
    if toolkit.kernel.modules.is_some() {
        builder.add_modules(&contents.modules.included, &toolkit.kernel.version)?;
    }

    if let Some(shim) = contents.shim {
        builder.add_copy(shim, "/nicforge/shim.ko")?;
    }

    for extra in contents.extras {
        builder.add_extra(extra, progress)?;
    }

    builder.archive.finish().context(context)?;
    Ok(())
}

/// An initramfs while it is written.
struct Builder<'a> {
    archive: Archive<BufWriter<&'a File>>,
    /// The shared libraries that the archive already contains.
    libraries: BTreeSet<PathBuf>,
    /// The description of the initramfs in errors.
    context: String,
}

impl Builder<'_> {
    /// Adds a file with this content.
    fn add_file(&mut self, guest_path: &str, mode: u32, content: &[u8]) -> Result<(), GuestError> {
        self.archive.add_file(guest_path, mode, content).context(|| self.context.clone())
    }

    /// Adds a file of the host, with its permissions.
    fn add_copy(&mut self, source: &Path, guest_path: &str) -> Result<(), GuestError> {
        let content = std::fs::read(source).context(|| source.display().to_string())?;
        let mode = std::fs::metadata(source).context(|| source.display().to_string())?.permissions().mode();
        self.add_file(guest_path, mode | 0o444, &content)
    }

    /// Adds `lspci` with its own loader and libraries in a folder, as it may come from another tree
    /// than the guest's programs.
    fn add_lspci(&mut self, lspci: &Lspci) -> Result<(), GuestError> {
        const FOLDER: &str = "/nicforge/lspci";

        self.add_copy(&lspci.program, &format!("{FOLDER}/lspci"))?;
        self.add_copy(&lspci.loader, &format!("{FOLDER}/loader"))?;
        self.add_copy(&lspci.names, &format!("{FOLDER}/pci.ids"))?;

        for library in &lspci.libraries {
            let name = library.file_name().unwrap_or_default().to_string_lossy();
            self.add_copy(library, &format!("{FOLDER}/lib/{name}"))?;
        }

        let script = format!(
            "#!/nicforge/busybox sh\nexec {FOLDER}/loader --library-path {FOLDER}/lib {FOLDER}/lspci -i {FOLDER}/pci.ids \"$@\"\n"
        );

        self.add_file("/nicforge/tools/lspci", 0o755, script.as_bytes())
    }

    /// Adds modules, with `modules.dep` for `modprobe`.
    fn add_modules(&mut self, modules: &[Module], version: &str) -> Result<(), GuestError> {
        // A line of `modules.dep` has a module and then all modules that it needs.
        let mut dependencies = String::new();

        for module in modules {
            let all = all_needed(module, modules);
            let paths: Vec<String> = all.iter().map(|name| format!("kernel/{name}.ko")).collect();
            dependencies.push_str(&format!("kernel/{}.ko: {}\n", module.name, paths.join(" ")));
        }

        for module in modules {
            self.add_file(
                &format!("/lib/modules/{version}/kernel/{}.ko", module.name),
                0o644,
                &module.object,
            )?;
        }

        for index in INDEXES {
            self.add_file(&format!("/lib/modules/{version}/{index}"), 0o644, &EMPTY_INDEX)?;
        }

        self.add_file(&format!("/lib/modules/{version}/modules.dep"), 0o644, dependencies.as_bytes())
    }

    /// Adds a file, a directory, or a program with its libraries.
    fn add_extra(&mut self, extra: &Extra, progress: &Progress) -> Result<(), GuestError> {
        if !extra.program {
            return self.add_tree(&extra.source, &extra.guest_path);
        }

        let (content, files) = elf::read_with_dependencies(&extra.source, progress)?;
        self.add_file(&extra.guest_path, 0o755, &content)?;

        for file in files {
            if self.libraries.insert(file.clone()) {
                // Links are followed: the guest has the file under the name that programs look for.
                self.add_copy(&file, &file.to_string_lossy())?;
            }
        }

        Ok(())
    }

    /// Adds a file, or a directory with its content.
    fn add_tree(&mut self, source: &Path, guest_path: &str) -> Result<(), GuestError> {
        if !source.is_dir() {
            return self.add_copy(source, guest_path);
        }

        self.archive.add_directory(guest_path).context(|| self.context.clone())?;
        for entry in std::fs::read_dir(source).context(|| source.display().to_string())? {
            let entry = entry.context(|| source.display().to_string())?;
            let guest_path = format!("{guest_path}/{}", entry.file_name().to_string_lossy());
            self.add_tree(&entry.path(), &guest_path)?;
        }

        Ok(())
    }
}

/// Returns all direct and indirect dependencies of a module, the nearest first, in `depmod`'s
/// order.
fn all_needed(module: &Module, modules: &[Module]) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut open = module.depends.clone();

    while let Some(name) = open.pop() {
        if name == module.name || all.contains(&name) {
            continue;
        }

        // A built-in dependency is not among the modules.
        if let Some(needed) = modules.iter().find(|other| other.name == name) {
            open.extend(needed.depends.iter().cloned());
            all.push(name);
        }
    }

    // `modules` is in loading order, and `modules.dep` in the reverse one.
    all.sort_by_key(|name| std::cmp::Reverse(modules.iter().position(|module| module.name == *name)));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_of_a_module_are_listed_nearest_first() {
        let module = |name: &str, depends: &[&str]| Module {
            name: name.into(),
            depends: depends.iter().map(|&name| name.into()).collect(),
            object: Vec::new(),
        };

        let modules = [
            module("a", &[]),
            module("b", &["a", "built_in"]),
            module("c", &["a"]),
            module("d", &["c", "b"]),
        ];

        assert_eq!(all_needed(&modules[3], &modules), ["c", "b", "a"]);
    }
}
