//! The part of the layout that rustfmt and the compiler do not check: comments end at column 100, a
//! long function has paragraphs, and each file of a test program is a module of it.

use std::{fs, path::Path, process::Command};

use crate::steps::Failed;

/// The last column of a comment.
const COMMENT_WIDTH: usize = 100;
/// Lines of a function's body from which on it needs a blank line.
const LONG_FUNCTION: usize = 25;
/// Maximum number of findings that the message names.
const MAX_NAMED: usize = 20;

/// Checks comment widths, blank lines in long functions, and that test modules are declared, in all
/// Rust files that git knows below `root`.
pub(crate) fn check(root: &Path) -> Result<(), Failed> {
    let listed = Command::new("git").args(["ls-files", "*.rs"]).current_dir(root).output();
    let listed = listed.map_err(|error| Failed::new(format!("git ls-files: {error}")))?;

    let names = String::from_utf8_lossy(&listed.stdout);
    let names: Vec<&str> = names.lines().collect();
    let read = |name: &str| {
        let text = fs::read_to_string(root.join(name));
        text.map_err(|error| Failed::new(format!("{name}: {error}")))
    };

    let mut findings = Vec::new();
    for name in &names {
        let text = read(name)?;
        let findings_of_file = check_file(&text, is_test(name));
        findings.extend(findings_of_file.into_iter().map(|(line, what)| format!("{name}:{line}: {what}")));

        if let Some((main, module)) = program_of(name).filter(|(main, _)| names.contains(&main.as_str()))
            && !declares(&read(&main)?, module)
        {
            findings.push(format!("{name}: {main} does not declare it, so that its tests never run"));
        }
    }
    if findings.is_empty() {
        return Ok(());
    }

    let named = findings.iter().take(MAX_NAMED).cloned().collect::<Vec<_>>().join("\n");
    Err(Failed::new(format!("{} findings of the layout need an edit:\n{named}", findings.len())))
}

/// Returns whether a file is of tests, whose functions may be lists of cases.
fn is_test(name: &str) -> bool {
    name.starts_with("tests/") || name.contains("/tests/") || name.ends_with("tests.rs")
}

/// Returns the main file of the test program that a file would be a module of, if it had one, and
/// the module's name: `tests/PROGRAM/NAME.rs` belongs to `tests/PROGRAM/main.rs`.
fn program_of(name: &str) -> Option<(String, &str)> {
    let (folder, file) = name.rsplit_once('/')?;
    let (parent, _) = folder.rsplit_once('/')?;
    let (_, parent_name) = parent.rsplit_once('/').unwrap_or(("", parent));
    let module = file.strip_suffix(".rs").filter(|module| parent_name == "tests" && *module != "main")?;
    Some((format!("{folder}/main.rs"), module))
}

/// Returns whether a main file declares a module.
fn declares(main: &str, module: &str) -> bool {
    main.lines().any(|line| line.trim() == format!("mod {module};"))
}

/// Returns the findings of a file, each with its line and its fault.
fn check_file(text: &str, is_test: bool) -> Vec<(usize, String)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut findings = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let width = line.chars().count();
        if line.trim_start().starts_with("//") && width > COMMENT_WIDTH {
            findings.push((index + 1, format!("a comment of {width} columns; {COMMENT_WIDTH} are allowed")));
        }

        let Some(name) = function_name(line).filter(|_| !is_test) else { continue };
        let body = body(&lines[index..]);
        if body.len() >= LONG_FUNCTION && body.iter().all(|line| !line.trim().is_empty()) {
            let description = format!("{name} has {} lines and no blank line between its steps", body.len());
            findings.push((index + 1, description));
        }
    }
    findings
}

/// Returns the name of the function that begins in a line.
fn function_name(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    for qualifier in ["pub(crate) ", "pub(super) ", "pub ", "const ", "async ", "unsafe ", "extern \"C\" "] {
        rest = rest.strip_prefix(qualifier).unwrap_or(rest);
    }
    rest.strip_prefix("fn ")?.split(['(', '<']).next()
}

/// Returns the lines between a function's first line and its closing brace, which has the same
/// indentation. There are none when the function ends in its first line, or has no body.
fn body<'a>(lines: &'a [&'a str]) -> &'a [&'a str] {
    let Some((first, rest)) = lines.split_first() else { return &[] };
    if first.ends_with(['}', ';']) {
        return &[];
    }
    let indent = first.len() - first.trim_start().len();
    let is_brace = |line: &&str| line.len() - line.trim_start().len() == indent && line.trim() == "}";
    let is_end_of_declaration =
        |line: &&str| line.len() - line.trim_start().len() == indent && line.ends_with(';');

    match rest.iter().position(|line| is_brace(line) || is_end_of_declaration(line)) {
        Some(end) => &rest[..end],
        None => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the text of a function, perhaps with a blank line after one of its body's lines.
    fn function(body_lines: usize, blank_after: Option<usize>) -> String {
        let mut text = "    pub(crate) fn long(\n        &self,\n    ) -> u32 {\n".to_owned();
        for line in 0..body_lines {
            text.push_str("        step();\n");
            if blank_after == Some(line) {
                text.push('\n');
            }
        }
        text + "    }\n"
    }

    #[test]
    fn wide_comment_is_found_and_wide_code_is_not() {
        let text = format!("    // {}\nlet x = \"{}\";\n", "x".repeat(100), "x".repeat(100));

        assert_eq!(check_file(&text, true).iter().map(|finding| finding.0).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn long_function_without_a_blank_line_is_found() {
        assert_eq!(check_file(&function(30, None), false).len(), 1);
        assert_eq!(check_file(&function(30, Some(12)), false), []);
        assert_eq!(check_file(&function(10, None), false), []);
        assert_eq!(check_file(&function(30, None), true), []);
    }

    #[test]
    fn file_of_a_test_program_belongs_to_its_main_file() {
        let main = "a/tests/suite/main.rs";

        assert_eq!(program_of("a/tests/suite/rings.rs"), Some((main.to_owned(), "rings")));
        assert_eq!(program_of(main), None);
        assert_eq!(program_of("a/tests/suite/program/ends.rs"), None);
        assert_eq!(program_of("a/src/suite/rings.rs"), None);
        assert!(declares("mod rings;\n", "rings"));
        assert!(!declares("mod ring;\n", "rings"));
    }

    #[test]
    fn declaration_without_a_body_is_no_function() {
        let text = format!("    fn declared(&self) -> u32;\n{}", "    // x\n".repeat(30));

        assert_eq!(check_file(&text, false), []);
    }
}
