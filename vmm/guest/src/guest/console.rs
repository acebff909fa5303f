//! Logs of unlimited guest output (its console and QEMU's trace) in files of limited size.

use std::{
    fs::File,
    io::{self, Read, Seek, Write},
    thread::JoinHandle,
};

/// Size in bytes at which the file begins anew; the latest output is the useful one.
const MAX_FILE_BYTES: usize = 4 << 20;

/// Starts a thread that writes the bytes of `output` to the file until its end, which is the
/// guest's.
pub(crate) fn spawn_writer(
    mut output: impl Read + Send + 'static,
    mut file: File,
) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("guest-log".into()).spawn(move || {
        let mut buffer = vec![0; 16 << 10];
        let mut written = 0;

        loop {
            match output.read(&mut buffer) {
                Ok(0) => return,
                Ok(length) => {
                    if written + length > MAX_FILE_BYTES
                        && file.set_len(0).and_then(|()| file.rewind()).is_ok()
                    {
                        written = 0;
                    }
                    written += length;
                    // A full disk must not stop the guest.
                    let _ = file.write_all(&buffer[..length]);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_console_without_end_stays_below_the_limit_and_ends_with_the_last_words() {
        let (mut guest, host) = UnixStream::pair().unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        let keeper = spawn_writer(host, file.reopen().unwrap()).unwrap();

        for _ in 0..MAX_FILE_BYTES / 4096 * 2 + 7 {
            guest.write_all(&[b'x'; 4096]).unwrap();
        }

        guest.write_all(b"the last words").unwrap();
        drop(guest);
        keeper.join().unwrap();

        let bytes = std::fs::read(file.path()).unwrap();
        assert!(bytes.len() <= MAX_FILE_BYTES);
        assert!(bytes.ends_with(b"xxthe last words"));
    }
}
