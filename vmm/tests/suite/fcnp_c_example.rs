//! Tests FCNP's C examples on a machine, linked with the archive and the shared library and under a
//! sanitizer, and the hardware's header.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::process::Command;

use crate::{
    built::workspace,
    c_program::{archive, compile, run, sanitizers, shared},
};

/// Compiles the examples with these options, and checks that all messages of one come back from
/// the other.
fn run_examples(options: &[String]) {
    let folder = tempfile::tempdir().unwrap();
    let io_node = compile("stream_ion", folder.path(), options);
    let compute_node = compile("stream_cn", folder.path(), options);
    let out = run("pset.toml", folder.path(), &["--io", &io_node, ":", "--cn0", &compute_node]);
    assert!(out.contains("cn0 | 1000 messages of 65536 bytes came back"), "{out}");
}

#[test]
fn c_examples_linked_with_the_archive_echo_a_stream() {
    run_examples(&archive());
}

#[test]
fn c_examples_linked_with_the_shared_library_echo_a_stream() {
    run_examples(&shared());
}

#[test]
fn c_examples_under_address_sanitizer_echo_a_stream() {
    run_examples(&[sanitizers(), shared()].concat());
}

#[test]
fn hardware_header_compiles_and_agrees_with_the_layouts() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("header.c");
    std::fs::write(
        &source,
        "#include <nicforge_hwi.h>\n\
         _Static_assert(NICFORGE_TREE_WINDOW_SIZE == 0x20000, \"window\");\n\
         _Static_assert(NICFORGE_POSTED_MAX_CELLS == 10, \"cells\");\n\
         _Static_assert(sizeof(struct nicforge_pci_attachment_capability) == 28, \"capability\");\n",
    )
    .unwrap();

    for standard in ["-std=c11", "-std=gnu99"] {
        let output = Command::new("cc")
            .args([standard, "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"])
            .arg(workspace().join("kmod-shim/include"))
            .arg(&source)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
