//! The generated C headers: the hardware interface for C drivers, and the protocols of the C
//! library.
//!
//! [`hwi`] writes the first, because its constants are in modules, which C does not have. cbindgen
//! writes the others, one for each table in the library's `headers.toml`.

mod hwi;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use cbindgen::{Config, DocumentationStyle, FunctionConfig, Language, SortKey};
use serde::Deserialize;

use crate::steps::Failed;

/// The folder of the C library.
const LIBRARY: &str = "userlib/c-api";

/// A generated file and its expected content.
struct Generated {
    path: PathBuf,
    text: String,
}

/// Writes all headers.
pub(crate) fn write(root: &Path) -> Result<(), Failed> {
    for header in generate(root)? {
        std::fs::write(&header.path, header.text)
            .map_err(|error| Failed::new(format!("{}: {error}", header.path.display())))?;
        eprintln!("    wrote {}", header.path.display());
    }
    Ok(())
}

/// Checks that the C headers are up to date with the Rust sources from which they are generated.
pub(crate) fn check(root: &Path) -> Result<(), Failed> {
    for header in generate(root)? {
        if std::fs::read_to_string(&header.path).ok().as_deref() != Some(&header.text) {
            return Err(Failed::new(format!(
                "{} is out of date; run `cargo xtask headers` and commit it",
                header.path.display()
            )));
        }
    }

    Ok(())
}

/// Generates all headers.
fn generate(root: &Path) -> Result<Vec<Generated>, Failed> {
    let library = root.join(LIBRARY);
    let mut headers = vec![Generated {
        path: root.join("kmod-shim/include/nicforge_hwi.h"),
        text: hwi::generate(&root.join("device-model/hwi/src"))?,
    }];

    for (module, header) in protocols(&library)? {
        headers.push(header.generate(&library, &module)?);
    }
    Ok(headers)
}

/// The part of a protocol's header that is not in its module.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Protocol {
    /// The comment at the top.
    about: String,
    /// Other headers that it needs.
    #[serde(default)]
    includes: Vec<String>,
}

/// Returns the protocols of the C library by their modules.
fn protocols(library: &Path) -> Result<BTreeMap<String, Protocol>, Failed> {
    let path = library.join("headers.toml");
    let failed = |error: &dyn std::fmt::Display| Failed::new(format!("{}: {error}", path.display()));
    let text = std::fs::read_to_string(&path).map_err(|error| failed(&error))?;

    toml::from_str(&text).map_err(|error| failed(&error))
}

impl Protocol {
    /// Generates the header of a module.
    fn generate(self, library: &Path, module: &str) -> Result<Generated, Failed> {
        let folder = library.join("src").join(module);
        let source = if folder.is_dir() { folder.join("mod.rs") } else { folder.with_extension("rs") };

        let builder = cbindgen::Builder::new().with_config(self.config(module)).with_src(source);
        let bindings = builder.generate().map_err(|error| Failed::new(format!("cbindgen: {error}")))?;

        let mut text = Vec::new();
        bindings.write(&mut text);
        let text = String::from_utf8(text).map_err(|error| Failed::new(format!("cbindgen: {error}")))?;

        Ok(Generated { path: library.join("include/nicforge").join(format!("{module}.h")), text })
    }

    /// Returns cbindgen's options for the header of a module.
    fn config(self, module: &str) -> Config {
        let link = "Compile and link with the flags of `pkg-config --cflags --libs nicforge`.";
        let comment = format!("{}\n\n{link}", self.about);
        let lines = comment.lines().map(|line| format!(" * {line}").trim_end().to_owned() + "\n");

        Config {
            language: Language::C,
            cpp_compat: true,
            header: Some(format!("/*\n{} */", lines.collect::<String>())),
            include_guard: Some(format!("NICFORGE_{}_H", module.to_uppercase())),
            autogen_warning: Some(format!(
                "/* Generated from the module `{module}`: change that, then run `cargo xtask headers`. */"
            )),
            sys_includes: self.includes,
            usize_is_size_t: true,
            documentation_style: DocumentationStyle::C,
            line_length: 110,
            function: FunctionConfig { sort_by: Some(SortKey::None), ..FunctionConfig::default() },
            ..Config::default()
        }
    }
}
