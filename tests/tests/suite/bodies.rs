//! Checks that each test body is registered, once, and under a name of its own.
#![allow(clippy::unwrap_used, reason = "all of this file is tests")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use nicforge_tests::bodies;

/// The types of a body's only argument, without white space.
const ARGUMENTS: [&str; 2] = ["&dynRig", "&implNetwork"];

/// Returns all Rust files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// Returns the path of the module that a file of the library `nicforge_tests` is.
fn module(file: &Path) -> String {
    let names = file.with_extension("");
    let names = names.iter().map(|name| name.to_str().unwrap());
    ["nicforge_tests"].into_iter().chain(names).collect::<Vec<_>>().join("::")
}

/// Returns the name of the function whose text follows, if it has the signature of a body.
fn name_of_body(text: &str) -> Option<String> {
    let signature: String = text.split('{').next()?.split_whitespace().collect();
    let (name, arguments) = signature.split_once('(')?;
    let argument = arguments.strip_suffix(')')?.trim_end_matches(',');
    let (argument_name, argument_type) = argument.split_once(':')?;
    let is_body = !argument_name.contains(',') && ARGUMENTS.contains(&argument_type);
    is_body.then(|| name.to_owned())
}

/// Returns the names of the public functions in a text that have the signature of a body.
fn names_of_bodies(text: &str) -> impl Iterator<Item = String> {
    text.split("pub fn ").skip(1).filter_map(name_of_body)
}

#[test]
fn every_body_in_the_sources_is_registered_and_linked() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut defined = BTreeSet::new();

    for file in files(&sources) {
        let module = module(file.strip_prefix(&sources).unwrap());
        let text = fs::read_to_string(&file).unwrap();
        defined.extend(names_of_bodies(&text).map(|name| format!("{module}::{name}")));
    }

    let registered: BTreeSet<_> =
        bodies::all().iter().map(|body| format!("{}::{}", body.module, body.function)).collect();

    assert!(!registered.is_empty());
    assert_eq!(defined.difference(&registered).collect::<Vec<_>>(), [""; 0], "without the attribute `body`");
    assert_eq!(registered.difference(&defined).collect::<Vec<_>>(), [""; 0], "not public, or not found");
}

#[test]
fn every_body_has_a_name_of_its_own_on_each_of_its_machines() {
    let mut names = BTreeSet::new();

    for body in bodies::all() {
        for machine in body.machines {
            let name = body.name(machine, None);
            assert!(names.insert(name.clone()), "{name} is registered twice");
        }
    }
}

#[test]
fn every_door_is_excluded_at_most_once() {
    for body in bodies::all() {
        for (door, reason) in body.not_through {
            let count = body.not_through.iter().filter(|(excluded, _)| excluded == door).count();

            assert_eq!(count, 1, "{} through {door:?}", body.function);
            assert!(!reason.is_empty());
        }
    }
}

#[test]
fn only_functions_with_a_body_signature_are_bodies() {
    let text = "pub fn one(rig: &dyn Rig) {}\npub fn of_two(rig: &dyn Rig, other: u32) {}\n\
        fn helper(rig: &dyn Rig) {}\npub fn method(&self, rig: &dyn Rig) {}\npub fn with_result(rig: &dyn Rig) -> u32 {}\n\
        pub fn over_networks(\n    network: &impl Network,\n) {}\n";

    assert_eq!(names_of_bodies(text).collect::<Vec<_>>(), ["one", "over_networks"]);
}
