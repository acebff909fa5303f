//! Builds the book with mdBook's library and checks the links between its pages. Run by `cargo xtask doc`; a program of its
//! own because mdBook takes longer to compile than all the other tasks together.

use std::{
    path::{Component, Path, PathBuf},
    process::ExitCode,
};

use mdbook_driver::MDBook;

fn main() -> ExitCode {
    // tests/book is two levels below the workspace.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("."));
    match build(root) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// Build `docs/` into `target/book`.
fn build(root: &Path) -> Result<(), String> {
    let docs = root.join("docs");
    check_links(&docs.join("src"))?;
    let mut book = MDBook::load(&docs).map_err(|error| format!("docs: {error:#}"))?;
    book.config.build.build_dir = root.join("target/book");
    book.build().map_err(|error| format!("docs: {error:#}"))?;
    eprintln!("    the book is in target/book/index.html");
    Ok(())
}

/// Every relative link in a page must lead to a file, and every page must be in SUMMARY.md.
fn check_links(source: &Path) -> Result<(), String> {
    let summary = read(&source.join("SUMMARY.md"))?;
    let mut bad = Vec::new();
    for page in pages(source)? {
        let text = read(&page)?;
        for link in links(&text) {
            let path = link.split('#').next().unwrap_or_default();
            if path.is_empty() || path.contains("://") || path.starts_with("mailto:") {
                continue;
            }
            let target = page.parent().unwrap_or(source).join(path);
            if !target.exists() {
                bad.push(format!("{}: no such file: {path}", page.display()));
            }
        }
        let name = normal(page.strip_prefix(source).unwrap_or(&page));
        if name != "SUMMARY.md"
            && !summary.contains(&format!("({name})"))
            && !summary.contains(&format!("(./{name})"))
        {
            bad.push(format!("{name} is not in SUMMARY.md"));
        }
    }
    if bad.is_empty() { Ok(()) } else { Err(format!("the book:\n  {}", bad.join("\n  "))) }
}

/// The targets of inline links outside code.
fn links(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut in_code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        for part in line.split("](").skip(1) {
            if let Some(end) = part.find(')') {
                found.push(part[..end].split(' ').next().unwrap_or_default());
            }
        }
    }
    found
}

fn pages(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut pages = Vec::new();
    let entries = std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            pages.extend(self::pages(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
    Ok(pages)
}

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

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}
