//! Builds the libraries' C examples with the system's compiler against the generated headers. They
//! are linked with the libraries in the target folder of the program under test.

#![allow(dead_code, reason = "no test needs all of it")]

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use crate::built::{built, workspace};

/// The C API of a library.
pub(crate) struct CApi {
    /// Its folder in the workspace.
    pub(crate) room: &'static str,
    /// Its package.
    pub(crate) package: &'static str,
}

impl CApi {
    /// Builds the library, and returns its folder.
    fn libraries(&self) -> PathBuf {
        built(&["--package", self.package])
    }

    fn library(&self) -> String {
        self.package.replace('-', "_")
    }

    /// The compiler's options for linking with the archive.
    pub(crate) fn archive(&self) -> Vec<String> {
        let archive = self.libraries().join(format!("lib{}.a", self.library()));
        vec![archive.display().to_string(), "-lpthread".into(), "-ldl".into(), "-lm".into()]
    }

    /// The compiler's options for linking with the shared library.
    pub(crate) fn shared(&self) -> Vec<String> {
        let folder = self.libraries();
        vec![
            format!("-L{}", folder.display()),
            format!("-l{}", self.library()),
            format!("-Wl,-rpath,{}", folder.display()),
        ]
    }

    /// Compiles an example into a folder, and returns the program's path.
    pub(crate) fn compile(&self, example: &str, into: &Path, options: &[String]) -> String {
        let room = workspace().join(self.room);
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
    let said = String::from_utf8_lossy(&wrong.stderr);

    assert!(said.contains("heap-buffer-overflow"), "AddressSanitizer has missed an error: {said}");
    options.into()
}
