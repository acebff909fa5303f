//! Builds the C examples with the system's compiler against the installed C library, with the flags
//! that its file for pkg-config has. The program pkg-config is not needed.

#![allow(dead_code, reason = "no test needs all of it")]

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::LazyLock,
};

use crate::built::{built, workspace};

/// The folder into which this process has installed the C library.
static INSTALLED: LazyLock<PathBuf> = LazyLock::new(install);

/// Installs the C library that cargo has built for tests.
fn install() -> PathBuf {
    let programs = built(&["--package", "nicforge-c", "--package", "xtask"]);
    let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c-library");
    if prefix.exists() {
        std::fs::remove_dir_all(&prefix).unwrap();
    }

    let mut command = Command::new(programs.join("xtask"));
    command.arg("install").arg("--prefix").arg(&prefix).arg("--libraries").arg(&programs);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    prefix
}

/// Returns the folder of the installed headers.
pub(crate) fn headers() -> PathBuf {
    PathBuf::from(variable("includedir"))
}

/// Returns the path of the installed shared library, as the linker finds it.
pub(crate) fn shared_library() -> PathBuf {
    Path::new(&variable("libdir")).join("libnicforge.so")
}

/// Returns the text after the start of a line of nicforge.pc, with the values of variables.
fn package_field(start: &str) -> String {
    let text = std::fs::read_to_string(INSTALLED.join("lib/pkgconfig/nicforge.pc")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(start));
    let mut value = line.unwrap_or_else(|| panic!("nicforge.pc has no {start}")).trim().to_owned();

    while let Some((before, rest)) = value.split_once("${") {
        let (name, after) = rest.split_once('}').unwrap();
        value = format!("{before}{}{after}", variable(name));
    }
    value
}

/// Returns the value of a variable of nicforge.pc.
fn variable(name: &str) -> String {
    package_field(&format!("{name}="))
}

/// Returns the flags of some fields, one after another.
fn flags(fields: &[&str]) -> Vec<String> {
    let values: Vec<_> = fields.iter().map(|field| package_field(&format!("{field}:"))).collect();
    values.iter().flat_map(|value| value.split_whitespace()).map(str::to_owned).collect()
}

/// The compiler's options for linking with the archive.
pub(crate) fn archive() -> Vec<String> {
    let flags = flags(&["Cflags", "Libs", "Libs.private"]);
    flags
        .into_iter()
        .map(|flag| if flag == "-lnicforge" { "-l:libnicforge.a".into() } else { flag })
        .collect()
}

/// The compiler's options for linking with the shared library.
pub(crate) fn shared() -> Vec<String> {
    [flags(&["Cflags", "Libs"]), vec![format!("-Wl,-rpath,{}", variable("libdir"))]].concat()
}

/// Compiles an example into a folder, and returns the program's path.
pub(crate) fn compile(example: &str, into: &Path, options: &[String]) -> String {
    compile_in("userlib/c-api/examples", example, into, options)
}

/// Compiles program `name` of a folder of the workspace into a folder, and returns its path.
pub(crate) fn compile_in(sources: &str, name: &str, into: &Path, options: &[String]) -> String {
    let program = into.join(name);
    let output = Command::new("cc")
        .args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-pedantic", "-pthread"])
        .arg(workspace().join(sources).join(format!("{name}.c")))
        .arg("-o")
        .arg(&program)
        .args(options)
        .output()
        .unwrap();

    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program.display().to_string()
}

/// Runs programs on one of the project's machines with `nicforge run`, with the sockets below
/// `folder`. Returns their output. All programs must end successfully.
pub(crate) fn run(machine: &str, folder: &Path, programs: &[&str]) -> String {
    let output: Output = Command::new(env!("CARGO_BIN_EXE_nicforge"))
        .arg("run")
        .arg(workspace().join("machines").join(machine))
        .arg("--dir")
        .arg(folder.join("m"))
        .args(programs)
        // With these settings a memory error or a leak ends a sanitized program with a code of its
        // own.
        .env("ASAN_OPTIONS", "exitcode=86:detect_leaks=1:detect_stack_use_after_return=1")
        .env("UBSAN_OPTIONS", "halt_on_error=1:print_stacktrace=1:exitcode=87")
        .output()
        .unwrap();

    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}{err}");

    out.into_owned()
}

/// Returns the compiler's options for AddressSanitizer and UndefinedBehaviorSanitizer. It tries
/// them on a correct program and on a faulty one.
pub(crate) fn sanitizers() -> Vec<String> {
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
    let stderr = String::from_utf8_lossy(&wrong.stderr);

    assert!(stderr.contains("heap-buffer-overflow"), "AddressSanitizer has missed an error: {stderr}");
    options.into()
}
