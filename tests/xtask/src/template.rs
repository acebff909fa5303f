//! The template of a device (`docs/template`): its tests, and copies of it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::Args;

use crate::steps::{Failed, Steps};

/// The folder of the template.
const TEMPLATE: &str = "docs/template";
/// The name of the template's package, and of the card in it.
const NAME: &str = "courier";
/// Names in the template's folder that a build makes, and that are not copied.
const BUILD_OUTPUT: [&str; 2] = ["target", "Cargo.lock"];
/// How the template's manifest names the folder of nicforge.
const ROOT: &str = "../..";
/// Names that a package can't have: words of Rust, crates that every crate sees, and types that the
/// template imports.
const RESERVED: [&str; 60] = [
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
    "descriptor",
    "device",
    "do",
    "dyn",
    "else",
    "enum",
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
    "where",
    "while",
    "work",
    "write",
];

#[derive(Args)]
pub(crate) struct New {
    /// The folder to make. Its name becomes that of the package: lower-case letters and digits.
    folder: PathBuf,
}

/// Formats and tests the template, with the guests if asked. It is a workspace of its own. It gets
/// this workspace's versions, profiles and target folder, so that packages of others are compiled
/// once for both.
pub(crate) fn test(steps: &Steps, with_guests: bool) -> Result<(), Failed> {
    let root = steps.root();
    let template = root.join(TEMPLATE);
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

    steps.cargo("the template", &arguments)
}

/// Checks the template's formatting.
pub(crate) fn check(steps: &Steps) -> Result<(), Failed> {
    let manifest = steps.root().join(TEMPLATE).join("Cargo.toml").display().to_string();
    steps.cargo("the template's formatting", &["fmt", "--manifest-path", &manifest, "--", "--check"])
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

/// Copies the template to a new folder, with the folder's name as that of the package.
pub(crate) fn copy(steps: &Steps, new: &New) -> Result<(), Failed> {
    let name = new.folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_plain = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    if !is_plain || !name.starts_with(|first: char| first.is_ascii_lowercase()) {
        return Err(Failed::new(format!(
            "{name:?} is no name for a package: take lower-case letters and digits"
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

    copy_folder(&steps.root().join(TEMPLATE), &new.folder, name, steps.root())?;

    // The copy begins with the versions with which the template was tested.
    let lock_file = new.folder.join("Cargo.lock");
    fs::copy(steps.root().join("Cargo.lock"), &lock_file).map_err(|error| failure_at(&lock_file, &error))?;
    steps.print_heading(&format!("{} is ready: cargo test in it runs its tests", new.folder.display()));
    Ok(())
}

/// Copies a folder of the template, with the package's name and the folder of nicforge replaced.
fn copy_folder(from: &Path, to: &Path, name: &str, root: &Path) -> Result<(), Failed> {
    fs::create_dir_all(to).map_err(|error| failure_at(to, &error))?;
    for entry in fs::read_dir(from).map_err(|error| failure_at(from, &error))? {
        let entry = entry.map_err(|error| failure_at(from, &error))?;
        let file = entry.file_name().to_string_lossy().into_owned();
        if BUILD_OUTPUT.contains(&file.as_str()) {
            continue;
        }

        let (path, target) = (entry.path(), to.join(renamed(&file, name)));
        if path.is_dir() {
            copy_folder(&path, &target, name, root)?;
            continue;
        }

        let text = fs::read_to_string(&path).map_err(|error| failure_at(&path, &error))?;
        let text = renamed(&text, name).replace(ROOT, &root.display().to_string());
        fs::write(&target, text).map_err(|error| failure_at(&target, &error))?;
    }

    Ok(())
}

/// Returns a text of the template with another name for the card.
fn renamed(text: &str, name: &str) -> String {
    text.replace(NAME, name).replace(&capitalized(NAME), &capitalized(name))
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

        super::copy(&Steps::new(root().to_owned()), &New { folder: copy.clone() }).unwrap();

        let manifest: toml::Table = fs::read_to_string(copy.join("Cargo.toml")).unwrap().parse().unwrap();
        let library = manifest["dependencies"]["nicforge-core"]["path"].as_str().unwrap();
        assert_eq!(manifest["package"]["name"].as_str(), Some("mycard"));
        assert!(Path::new(library).join("Cargo.toml").exists());
        assert!(copy.join("src/bin/mycard-ping.rs").exists() && copy.join("Cargo.lock").exists());

        let device = fs::read_to_string(copy.join("src/device.rs")).unwrap();
        assert!(device.contains("pub struct Mycard {") && !device.to_lowercase().contains(NAME));
    }

    #[test]
    fn a_folder_that_exists_or_has_no_name_for_a_package_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let steps = Steps::new(root().to_owned());
        let refuses = |name: &str| copy(&steps, &New { folder: folder.path().join(name) }).is_err();

        fs::create_dir(folder.path().join("there")).unwrap();

        assert!(refuses("there") && refuses("my-card") && refuses("1card") && refuses(".."));
    }
}
