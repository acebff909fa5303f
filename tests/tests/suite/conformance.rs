//! Checks that the tests named in the book's chapter on vfio-user exist, and that each row of its
//! tables names one.
#![allow(clippy::unwrap_used, reason = "all of this file is tests")]

use std::{collections::BTreeSet, fs, path::Path};

/// Folders of the workspace that have tests.
const FOLDERS: [&str; 4] = ["device-model", "tests", "userlib", "vmm"];
/// The column that names tests.
const COLUMN: &str = "test";
/// A name of at least this many words in the text is a test's name too.
const WORDS: usize = 5;

/// Collects the names of all functions in the sources below `folder`.
fn functions(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            functions(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let names = text.split("fn ").skip(1).filter_map(|rest| {
                let name = rest.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
                name.into_iter().next().map(str::to_owned)
            });
            found.extend(names);
        }
    }
}

/// Returns the texts between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Returns the cells of a table's row.
fn cells(row: &str) -> Vec<&str> {
    row.trim().trim_matches('|').split('|').map(str::trim).collect()
}

/// Returns whether a name could be a function's.
fn is_snake_case(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

/// Returns the mistakes of a page: tests that are not `known`, and rows that name none.
fn mistakes_of(page: &str, known: &BTreeSet<String>) -> Vec<String> {
    let mut mistakes = Vec::new();
    // The column of the current table that names tests, if there is one.
    let mut column = None;
    let mut in_table = false;

    for (line, number) in page.lines().zip(1..) {
        let mut named: BTreeSet<&str> =
            quoted(line).filter(|name| is_snake_case(name) && name.split('_').count() >= WORDS).collect();
        if !line.starts_with('|') {
            (column, in_table) = (None, false);
        } else if !in_table {
            column = cells(line).iter().position(|head| *head == COLUMN);
            in_table = true;
        } else if let Some(column) = column
            && !line.starts_with("| ---")
        {
            let cell = cells(line).get(column).copied().unwrap_or_default();
            named.extend(quoted(cell));
            if quoted(cell).next().is_none() {
                mistakes.push(format!("{number}: the row names no test"));
            }
        }

        let missing = named.into_iter().filter(|name| !known.contains(*name));
        mistakes.extend(missing.map(|name| format!("{number}: there is no test {name}")));
    }

    mistakes
}

#[test]
fn every_row_of_the_conformance_tables_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut known = BTreeSet::new();

    for folder in FOLDERS {
        functions(&root.join(folder), &mut known);
    }

    let page = fs::read_to_string(root.join("docs/src/vfio-user.md")).unwrap();
    let mistakes = mistakes_of(&page, &known);

    assert!(mistakes.is_empty(), "docs/src/vfio-user.md:\n{}", mistakes.join("\n"));
}

#[test]
fn a_row_without_a_test_and_a_test_that_does_not_exist_are_found() {
    let known = BTreeSet::from(["a_b".to_owned()]);
    let table = "| what | test |\n| --- | --- |\n| good | `a_b` |\n| none | |\n| gone | `a_c` |\n\n`one_of_so_many_words`\n";

    let mistakes = mistakes_of(table, &known);
    let expected =
        ["4: the row names no test", "5: there is no test a_c", "7: there is no test one_of_so_many_words"];

    assert_eq!(mistakes, expected);
}
