//! Decompression by the host's tools.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::{error::GuestError, progress::Progress, tool};

/// Size limit of a decompressed file, in bytes. No distribution's module or kernel is larger.
pub(crate) const MAX_SIZE: u64 = 256 << 20;

/// Decompresses files into `folder`, and returns the paths there, in the same order. A file that
/// can't be decompressed has none there.
pub(crate) fn decompress(
    program: &str,
    files: &[&Path],
    folder: &Path,
    progress: &Progress,
) -> Result<Vec<PathBuf>, GuestError> {
    // `tool::run_quietly` takes standard output as lines of text, so the shell sends the bytes
    // to files. Its arguments are the program ($0), the limit, the folder, and the files.
    let script = "limit=$1 folder=$2 number=0
        command -v \"$0\" >/dev/null || { echo \"$0 is not installed\" >&2; exit 127; }
        shift 2
        # In blocks of 512 bytes.
        ulimit -f $((limit / 512))
        for file; do
            \"$0\" -dc -- \"$file\" >\"$folder/$number\" || rm -f \"$folder/$number\"
            number=$((number + 1))
        done";

    let mut command = Command::new("sh");
    command.args(["-c", script, program, &MAX_SIZE.to_string()]).arg(folder).args(files);
    tool::run_quietly("decompressing parts of a kernel", &mut command, progress)?;

    Ok((0..files.len()).map(|number| folder.join(number.to_string())).collect())
}
