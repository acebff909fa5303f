//! The C examples: compiled with the system's compiler against the generated headers, linked both ways, and run on a machine.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    path::{Path, PathBuf},
    process::Command,
};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Where the libraries are: beside the program under test.
fn libraries() -> PathBuf {
    let folder = Path::new(env!("CARGO_BIN_EXE_nicforge")).parent().unwrap().to_owned();
    // A test's own package is built for it, and nothing else.
    let status = Command::new(std::env::var("CARGO").unwrap())
        .args(["build", "--quiet", "--package", "nicforge-fcnp-c", "--target-dir"])
        .arg(folder.parent().unwrap())
        .current_dir(workspace())
        .status()
        .unwrap();
    assert!(status.success(), "nicforge-fcnp-c was not built");
    folder
}

fn compile(example: &str, into: &Path, options: &[String]) -> String {
    let room = workspace().join("userlib/fcnp/c-api");
    let program = into.join(example);
    let output = Command::new("cc")
        .args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-pedantic"])
        .arg("-I")
        .arg(room.join("include"))
        .arg(room.join("examples").join(format!("{example}.c")))
        .arg("-o")
        .arg(&program)
        .args(options)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program.display().to_string()
}

fn echo_comes_back(options: &[String]) {
    let folder = tempfile::tempdir().unwrap();
    let io_node = compile("stream_ion", folder.path(), options);
    let compute_node = compile("stream_cn", folder.path(), options);
    let output = Command::new(env!("CARGO_BIN_EXE_nicforge"))
        .arg("run")
        .arg(workspace().join("machines/pset.toml"))
        .arg("--dir")
        .arg(folder.path().join("m"))
        .args(["--io", &io_node, ":", "--cn0", &compute_node])
        // An error, or memory that is lost, ends the program that a sanitizer is in with a code of its own.
        .env("ASAN_OPTIONS", "exitcode=86:detect_leaks=1:detect_stack_use_after_return=1")
        .env("UBSAN_OPTIONS", "halt_on_error=1:print_stacktrace=1:exitcode=87")
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}{err}");
    assert!(out.contains("cn0 | 1000 messages of 65536 bytes came back"), "{out}");
}

/// How to link with the shared library.
fn shared() -> [String; 3] {
    let folder = libraries();
    [
        format!("-L{}", folder.display()),
        "-lnicforge_fcnp_c".into(),
        format!("-Wl,-rpath,{}", folder.display()),
    ]
}

/// The compiler's options for its sanitizers of addresses and of undefined behaviour, tried on a program that is right and on
/// one that is not.
fn sanitizers() -> [String; 3] {
    let options = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g"].map(str::to_owned);
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("try.c"), folder.path().join("try"));
    let text = "#include <stdlib.h>\n\
                int main(int count, char **words) {\n\
                    char *bytes = malloc(4);\n\
                    volatile char *end = bytes + 3 + count;\n\
                    char found = count > 1 ? *end : 0;\n\
                    free(bytes);\n\
                    return words == 0 || found == 86;\n\
                }\n";
    std::fs::write(&source, text).unwrap();
    let output = Command::new("cc").args(&options).arg(&source).arg("-o").arg(&program).output().unwrap();
    assert!(
        output.status.success(),
        "cc has no AddressSanitizer: install its runtime (with gcc it is libasan and libubsan, with clang compiler-rt)\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let right = Command::new(&program).status().unwrap();
    assert!(right.success(), "a program with AddressSanitizer does not run here: {right}");
    let wrong = Command::new(&program).arg("read past the end").output().unwrap();
    let said = String::from_utf8_lossy(&wrong.stderr);
    assert!(said.contains("heap-buffer-overflow"), "AddressSanitizer has missed an error: {said}");
    options
}

#[test]
fn c_examples_linked_with_the_archive_echo_a_stream() {
    let archive = libraries().join("libnicforge_fcnp_c.a");
    echo_comes_back(&[archive.display().to_string(), "-lpthread".into(), "-ldl".into(), "-lm".into()]);
}

#[test]
fn c_examples_linked_with_the_shared_library_echo_a_stream() {
    echo_comes_back(&shared());
}

#[test]
fn c_examples_under_address_sanitizer_echo_a_stream() {
    let options: Vec<_> = sanitizers().into_iter().chain(shared()).collect();
    echo_comes_back(&options);
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
