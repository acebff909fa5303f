//! The libraries take time, threads and random numbers from `nicforge_driver::runtime`, so that
//! they also run in virtual time. This check finds those that ask the operating system.

use std::{fs, path::Path, process::Command};

use crate::steps::Failed;

/// Parts of the libraries that may use the operating system's clock and threads: the runtime
/// itself, the doors to devices elsewhere, and the turns of a waiting loop on a host.
const EXEMPT: [&str; 4] = [
    "userlib/driver/src/runtime/",
    "userlib/driver/src/backing/",
    "userlib/driver/src/wait.rs",
    "userlib/c-api/",
];
/// Words that no library may contain, and what it uses of the runtime instead.
const FORBIDDEN: [(&str, &str); 11] = [
    ("std::thread", "runtime::spawn, runtime::sleep or runtime::pause"),
    ("yield_now", "runtime::pause"),
    ("spin_loop", "runtime::pause"),
    ("std::sync::Barrier", "runtime::Event"),
    ("Condvar", "runtime::Event"),
    ("SystemTime", "runtime::random or runtime::Instant"),
    ("RandomState", "runtime::random"),
    ("time::Instant", "runtime::Instant"),
    (".lock().unwrap", LOCK),
    (".lock().map_err", LOCK),
    (".lock().ok()", LOCK),
];
/// The function that takes a lock in place of the lock's own methods. In virtual time only one
/// thread runs at a time. A thread that blocked in the operating system's lock would keep the
/// lock's holder from running.
const LOCK: &str = "runtime::lock";

/// Checks that no library below `root` takes time, threads, locks or random numbers from the
/// operating system instead of from the runtime, which virtual time replaces.
pub(crate) fn check(root: &Path) -> Result<(), Failed> {
    let listed = Command::new("git").args(["ls-files", "userlib/*/src/*.rs"]).current_dir(root).output();
    let listed = listed.map_err(|error| Failed::new(format!("git ls-files: {error}")))?;
    if !listed.status.success() || listed.stdout.is_empty() {
        return Err(Failed::new("git ls-files names no sources of the libraries".to_owned()));
    }

    let mut calls = Vec::new();
    for name in String::from_utf8_lossy(&listed.stdout).lines() {
        let is_test = name.ends_with("tests.rs") || name.contains("/tests/");
        if is_test || EXEMPT.iter().any(|exempt| name.starts_with(exempt)) {
            continue;
        }

        let text = fs::read_to_string(root.join(name));
        let text = text.map_err(|error| Failed::new(format!("{name}: {error}")))?;
        calls.extend(findings(&text).into_iter().map(|(line, what)| format!("{name}:{line}: {what}")));
    }

    if calls.is_empty() {
        return Ok(());
    }
    Err(Failed::new(format!(
        "{} calls of the libraries would not work in virtual time:\n{}",
        calls.len(),
        calls.join("\n")
    )))
}

/// Returns the findings of a file, each with its line and the forbidden word. The tests at a file's
/// end may use the operating system.
fn findings(text: &str) -> Vec<(usize, String)> {
    let code = text.lines().enumerate().take_while(|(_, line)| *line != "#[cfg(test)]");
    let code = code.filter(|(_, line)| !line.trim_start().starts_with("//"));
    let mut found = Vec::new();
    // The first line of an import that has not ended, and the import so far.
    let mut import: Option<(usize, String)> = None;

    for (index, line) in code {
        let (first, statement) = match import.take() {
            Some((first, begun)) => (first, format!("{begun} {}", line.trim())),
            None if is_import(line) => (index, line.trim().to_owned()),
            None => {
                found.extend(forbidden(line).map(|what| (index + 1, what)));
                continue;
            }
        };

        if statement.contains(';') {
            let paths = paths(statement.trim_end_matches(';'));
            found.extend(paths.iter().filter_map(|path| forbidden(path)).map(|what| (first + 1, what)));
        } else {
            import = Some((first, statement));
        }
    }
    found
}

/// Returns whether an import begins in a line.
fn is_import(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("use ") || line.starts_with("pub use ")
}

/// Returns the forbidden word of a line or a path, with its replacement.
fn forbidden(text: &str) -> Option<String> {
    let (word, instead) = FORBIDDEN.iter().find(|(word, _)| text.contains(word))?;
    let is_runtime = text.contains("runtime::");
    (!is_runtime).then(|| format!("{word}; use {instead}"))
}

/// Returns the paths of an import, each written out: `use a::{b, c::{d}}` has `use a::b` and
/// `use a::c::d`.
fn paths(import: &str) -> Vec<String> {
    let Some((head, group)) = import.split_once('{') else { return vec![import.to_owned()] };

    let (mut depth, mut parts) = (0, vec![String::new()]);
    for letter in group.chars() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => parts.push(String::new()),
            _ => {}
        }
        // The last brace closes the group itself.
        if let Some(part) = parts.last_mut().filter(|_| depth >= 0 && (letter != ',' || depth > 0)) {
            part.push(letter);
        }
    }

    parts.iter().flat_map(|part| paths(&format!("{head}{}", part.trim()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operating_systems_clock_is_found_outside_of_comments_and_tests() {
        let text =
            "use std::time::Instant;\n// std::thread\nuse a::runtime::Instant;\n#[cfg(test)]\nCondvar\n";
        assert_eq!(findings(text), [(1, "time::Instant; use runtime::Instant".to_owned())]);
    }

    #[test]
    fn a_group_of_imports_hides_nothing() {
        let text = "use std::{\n    io,\n    sync::{Arc, Condvar},\n    thread,\n};\nuse a::b;\n\
                    use std::{mem, time::{Duration, Instant}};\nuse crate::{a, runtime::{self, Instant}};\n";

        let lines: Vec<_> = findings(text).into_iter().map(|(line, _)| line).collect();

        assert_eq!(lines, [1, 1, 7]);
    }

    #[test]
    fn a_mutex_is_locked_by_the_runtime() {
        let text = "let a = b.lock().unwrap_or_default();\nlet c = runtime::lock(&d);\n\
                    let e = fabric.lock();\n";

        assert_eq!(findings(text), [(1, ".lock().unwrap; use runtime::lock".to_owned())]);
    }
}
