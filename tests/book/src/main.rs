//! Builds the book with mdBook's library, and checks links.
//!
//! It checks the links between the book's pages and those of the repository's other Markdown files,
//! including the headings that they lead to. `cargo xtask book` runs it. It is a program of its own
//! because mdBook takes longer to compile than all the other tasks together.

use std::{
    collections::BTreeSet,
    path::{Component, Path, PathBuf},
    process::ExitCode,
};

use mdbook_driver::MDBook;

fn main() -> ExitCode {
    // The folder tests/book is two levels below the workspace's root.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("."));
    match build(root) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// Builds `docs/` into `target/book`.
fn build(root: &Path) -> Result<(), String> {
    let docs = root.join("docs");
    eprintln!("    checking the links of all pages");
    check_links(root, &docs.join("src"))?;
    eprintln!("    writing the chapters");
    let mut book = MDBook::load(&docs).map_err(|error| format!("docs: {error:#}"))?;
    book.config.build.build_dir = root.join("target/book");
    book.build().map_err(|error| format!("docs: {error:#}"))?;
    eprintln!("    the book is in target/book/index.html");

    Ok(())
}

/// Checks that every relative link in a page leads to a file, and to a heading if it names one.
/// Every page of the book must be in SUMMARY.md. A file that a page includes belongs to that page.
fn check_links(root: &Path, source: &Path) -> Result<(), String> {
    let summary = read(&source.join("SUMMARY.md"))?;
    let pages = pages(root)?;
    let mut errors = Vec::new();
    let mut included_files = BTreeSet::new();

    for page in &pages {
        included_files.extend(included(page, &read(page)?).map(|(_, file)| file));
    }

    for page in pages.iter().filter(|page| !included_files.contains(*page)) {
        let text = read_page(page)?;
        for link in links(&text) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }

            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => page.clone(),
                path => page.parent().unwrap_or(root).join(path),
            };

            if !target.exists() {
                errors.push(format!("{}: no such file: {path}", page.display()));
            } else if !anchor.is_empty() && !anchors(&read_page(&target)?).any(|heading| heading == anchor) {
                errors.push(format!("{}: no such heading: {link}", page.display()));
            }
        }

        let Ok(name) = page.strip_prefix(source) else { continue };
        let name = normal(name);
        if name != "SUMMARY.md"
            && !summary.contains(&format!("({name})"))
            && !summary.contains(&format!("(./{name})"))
        {
            errors.push(format!("{name} is not in SUMMARY.md"));
        }
    }

    if errors.is_empty() { Ok(()) } else { Err(format!("the book:\n  {}", errors.join("\n  "))) }
}

/// Returns the text of a page, with the files that it includes in the place of their lines.
fn read_page(page: &Path) -> Result<String, String> {
    let text = read(page)?;
    let mut expanded = text.clone();
    for (line, file) in included(page, &text) {
        expanded = expanded.replace(line, &read(&file)?);
    }
    Ok(expanded)
}

/// Returns the lines of a page that include a whole Markdown file, with the paths of these files.
fn included<'a>(page: &'a Path, text: &'a str) -> impl Iterator<Item = (&'a str, PathBuf)> {
    text.lines().filter_map(move |line| {
        let path = line.trim().strip_prefix("{{#include ")?.strip_suffix("}}")?;
        path.ends_with(".md").then(|| (line, page.with_file_name(path)))
    })
}

/// Returns the lines outside code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    })
}

/// Returns the possible targets of links within a page: the headings, as mdBook and others name
/// them.
fn anchors(text: &str) -> impl Iterator<Item = String> {
    prose(text).filter(|line| line.starts_with('#')).map(|line| {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let kept =
            heading.chars().filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
        kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
    })
}

/// Returns the targets of inline links outside code.
fn links(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for line in prose(text) {
        for part in line.split("](").skip(1) {
            if let Some(end) = part.find(')') {
                found.push(part[..end].split(' ').next().unwrap_or_default());
            }
        }
    }

    found
}

/// Returns the Markdown files below a folder, without build results.
fn pages(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut pages = Vec::new();
    let entries = std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;

    for entry in entries.flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let is_source = !name.to_string_lossy().starts_with('.') && name != "target";
        if path.is_dir() && is_source {
            pages.extend(self::pages(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }

    Ok(pages)
}

/// Returns a relative path with `/` between its parts, without `.` and `..`.
fn normal(path: &Path) -> String {
    let parts: Vec<_> = path
        .components()
        .filter_map(|part| match part {
            Component::Normal(name) => name.to_str(),
            _ => None,
        })
        .collect();

    parts.join("/")
}

/// Returns the text of a file.
fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}
