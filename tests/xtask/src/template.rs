//! The templates of devices (`docs/template`, `docs/template-stock`): their tests, and copies.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::Args;

use crate::steps::{Failed, Steps};

/// A template.
#[derive(Clone, Copy)]
struct Template {
    /// Its folder in the repository.
    folder: &'static str,
    /// The name of its package, and of the card in it.
    name: &'static str,
}

/// The template of a device with a driver library of its own.
const DEVICE: Template = Template { folder: "docs/template", name: "courier" };
/// The template of a device that a driver of Linux drives.
const STOCK: Template = Template { folder: "docs/template-stock", name: "ferry" };
/// Names in a template's folder that a build makes, and that are not copied.
const BUILD_OUTPUT: [&str; 2] = ["target", "Cargo.lock"];
/// How a template's manifest names the folder of nicforge.
const ROOT: &str = "../..";
/// Names that a package can't have: words of Rust, crates that every crate sees, and types and
/// functions that the templates import.
const RESERVED: [&str; 64] = [
    "abstract",
    "alloc",
    "as",
    "async",
    "await",
    "become",
    "box",
    "break",
    "const",
    "context",
    "continue",
    "core",
    "crate",
    "control",
    "descriptor",
    "device",
    "do",
    "dyn",
    "else",
    "enum",
    "event",
    "extern",
    "false",
    "final",
    "fn",
    "for",
    "gen",
    "if",
    "impl",
    "in",
    "let",
    "loop",
    "macro",
    "match",
    "mod",
    "move",
    "mut",
    "nicforge",
    "packet",
    "ports",
    "progress",
    "pub",
    "ref",
    "register",
    "reset",
    "return",
    "self",
    "static",
    "status",
    "std",
    "struct",
    "super",
    "test",
    "trait",
    "true",
    "try",
    "type",
    "unsafe",
    "use",
    "warning",
    "where",
    "while",
    "work",
    "write",
];

#[derive(Args)]
pub(crate) struct New {
    /// The folder to make. Its name becomes that of the package: lower-case letters and digits,
    /// beginning with a letter.
    folder: PathBuf,
    /// Make a card for a driver that Linux has, without a driver library.
    #[arg(long)]
    stock: bool,
}

/// Tests the templates, with the guests if asked.
pub(crate) fn test(steps: &Steps, with_guests: bool) -> Result<(), Failed> {
    test_one(steps, DEVICE, with_guests)?;
    test_one(steps, STOCK, with_guests)
}

/// Tests a template, with the guests if asked. It is a workspace of its own. It gets this
/// workspace's versions, profiles and target folder, so that packages of others are compiled once
/// for both.
fn test_one(steps: &Steps, Template { folder, .. }: Template, with_guests: bool) -> Result<(), Failed> {
    let root = steps.root();
    let template = root.join(folder);
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);

    let lock_file = template.join("Cargo.lock");
    fs::copy(root.join("Cargo.lock"), &lock_file).map_err(|error| failure_at(&lock_file, &error))?;
    let profiles = write_profiles(root, &target)?;

    let text = |path: &Path| path.display().to_string();
    let (manifest, target, profiles) = (text(&template.join("Cargo.toml")), text(&target), text(&profiles));
    let mut arguments = vec!["test", "--no-fail-fast", "--manifest-path", &manifest];
    arguments.extend(["--target-dir", &target, "--config", &profiles]);
    if with_guests {
        arguments.extend(["--", "--include-ignored"]);
    }

    steps.cargo(&format!("the template {folder}"), &arguments)
}

/// Checks the templates' formatting.
pub(crate) fn check(steps: &Steps) -> Result<(), Failed> {
    for Template { folder, .. } in [DEVICE, STOCK] {
        let manifest = steps.root().join(folder).join("Cargo.toml").display().to_string();
        let arguments = ["fmt", "--manifest-path", &manifest, "--", "--check"];
        steps.cargo(&format!("the formatting of {folder}"), &arguments)?;
    }
    Ok(())
}

/// Writes the workspace's profiles into a configuration file of cargo, and returns its path.
fn write_profiles(root: &Path, target: &Path) -> Result<PathBuf, Failed> {
    let manifest = root.join("Cargo.toml");
    let text = fs::read_to_string(&manifest).map_err(|error| failure_at(&manifest, &error))?;
    let mut table: toml::Table = toml::from_str(&text).map_err(|error| failure_at(&manifest, &error))?;
    table.retain(|name, _| name == "profile");

    fs::create_dir_all(target).map_err(|error| failure_at(target, &error))?;
    let path = target.join("template-profiles.toml");
    let text = toml::to_string(&table).map_err(|error| failure_at(&path, &error))?;
    fs::write(&path, text).map_err(|error| failure_at(&path, &error))?;
    Ok(path)
}

/// Copies a template to a new folder, with the folder's name as that of the package.
pub(crate) fn copy(steps: &Steps, new: &New) -> Result<(), Failed> {
    let name = new.folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_plain = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    if !is_plain || !name.starts_with(|first: char| first.is_ascii_lowercase()) {
        return Err(Failed::new(format!(
            "{name:?} is no name for a package: it begins with a lower-case letter, and has lower-case \
             letters and digits"
        )));
    }
    if RESERVED.contains(&name) {
        return Err(Failed::new(format!(
            "{name} has a meaning in Rust or in the template: take another name"
        )));
    }
    if new.folder.exists() {
        return Err(Failed::new(format!("{} exists already", new.folder.display())));
    }

    let template = if new.stock { STOCK } else { DEVICE };
    steps.print_heading(&format!("copying {} to {}", template.folder, new.folder.display()));
    let copy = TemplateCopy { template, name, root: steps.root() };
    let count = copy.folder(&steps.root().join(template.folder), &new.folder)?;

    // The copy begins with the versions with which the template was tested.
    let lock_file = new.folder.join("Cargo.lock");
    fs::copy(steps.root().join("Cargo.lock"), &lock_file).map_err(|error| failure_at(&lock_file, &error))?;
    steps.print_heading(&format!(
        "{} has {count} files; its README.md says what they are",
        new.folder.display()
    ));
    steps.print_heading("next: cargo test in it, which compiles nicforge the first time and takes minutes");
    Ok(())
}

/// A copy of a template.
struct TemplateCopy<'a> {
    template: Template,
    /// The name of its package.
    name: &'a str,
    /// The folder of nicforge.
    root: &'a Path,
}

impl TemplateCopy<'_> {
    /// Copies a folder, with the package's name and the folder of nicforge replaced. Returns the
    /// number of files.
    fn folder(&self, from: &Path, to: &Path) -> Result<u32, Failed> {
        fs::create_dir_all(to).map_err(|error| failure_at(to, &error))?;
        let mut count = 0;
        for entry in fs::read_dir(from).map_err(|error| failure_at(from, &error))? {
            let entry = entry.map_err(|error| failure_at(from, &error))?;
            let file = entry.file_name().to_string_lossy().into_owned();
            if BUILD_OUTPUT.contains(&file.as_str()) {
                continue;
            }

            let (path, target) = (entry.path(), to.join(self.renamed(&file)));
            if path.is_dir() {
                count += self.folder(&path, &target)?;
                continue;
            }

            let text = fs::read_to_string(&path).map_err(|error| failure_at(&path, &error))?;
            let text = self.renamed(&text).replace(ROOT, &self.root.display().to_string());
            fs::write(&target, text).map_err(|error| failure_at(&target, &error))?;
            count += 1;
        }
        Ok(count)
    }

    /// Returns a text of the template with the copy's name for the card.
    fn renamed(&self, text: &str) -> String {
        let (from, to) = (self.template.name, self.name);
        text.replace(from, to).replace(&capitalized(from), &capitalized(to))
    }
}

/// Returns a name with an upper-case first letter.
fn capitalized(name: &str) -> String {
    let (first, rest) = name.split_at(1.min(name.len()));
    first.to_uppercase() + rest
}

/// Returns the failure at a file.
fn failure_at(path: &Path, error: &dyn std::fmt::Display) -> Failed {
    Failed::new(format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn root() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
    }

    #[test]
    fn a_copy_has_its_own_name_and_finds_nicforge() {
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("mycard");

        super::copy(&Steps::new(root().to_owned()), &New { folder: copy.clone(), stock: false }).unwrap();

        let manifest: toml::Table = fs::read_to_string(copy.join("Cargo.toml")).unwrap().parse().unwrap();
        let library = manifest["dependencies"]["nicforge-core"]["path"].as_str().unwrap();
        assert_eq!(manifest["package"]["name"].as_str(), Some("mycard"));
        assert!(Path::new(library).join("Cargo.toml").exists());
        assert!(copy.join("src/bin/mycard-ping.rs").exists() && copy.join("Cargo.lock").exists());

        let device = fs::read_to_string(copy.join("src/device.rs")).unwrap();
        assert!(device.contains("pub struct Mycard {") && !device.to_lowercase().contains(DEVICE.name));
    }

    #[test]
    fn a_stock_card_has_no_driver_and_nodes_named_after_hosts() {
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("tulip");

        super::copy(&Steps::new(root().to_owned()), &New { folder: copy.clone(), stock: true }).unwrap();

        let machine = fs::read_to_string(copy.join("machine.toml")).unwrap();
        assert!(machine.contains("name = \"host0\"\nkind = \"tulip\""), "{machine}");
        assert!(!copy.join("src/driver.rs").exists() && !copy.join("src/bin").exists());
        let device = fs::read_to_string(copy.join("src/device.rs")).unwrap();
        assert!(device.contains("pub struct Tulip {") && !device.to_lowercase().contains(STOCK.name));
    }

    #[test]
    fn a_folder_that_exists_or_has_no_name_for_a_package_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let steps = Steps::new(root().to_owned());
        let refuses =
            |name: &str| copy(&steps, &New { folder: folder.path().join(name), stock: false }).is_err();

        fs::create_dir(folder.path().join("there")).unwrap();

        assert!(refuses("there") && refuses("my-card") && refuses("1card") && refuses(".."));
        let digit = copy(&steps, &New { folder: folder.path().join("82540em"), stock: true }).unwrap_err();
        assert!(digit.to_string().contains("begins with a lower-case letter"), "{digit}");
    }
}
