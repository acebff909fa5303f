//! A kernel's boot image (bzImage), and the kernel in it.
//!
//! A boot image decompresses itself, which takes an emulated guest about half of its start (the
//! book, "Where its parts come from"). The host therefore decompresses the kernel, once for each
//! image, and QEMU starts that by its PVH entry. An image without one, or with a compression that
//! this host has no program for, is started as it is.

use std::{
    ops::Range,
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use crate::{
    cache::{Cache, Locked, hex},
    decompress::decompress,
    elf,
    error::{ErrorContext, GuestError},
    progress::Progress,
};

/// The cache's folder of unpacked kernels, and the file's name of each.
const FOLDER: &str = "kernels";
const FILE: &str = "vmlinux";
/// The number of unpacked kernels that are kept. One takes about 70 MB.
const KEPT_KERNELS: usize = 4;

/// The first version of the boot protocol whose header locates the compressed kernel: 2.08.
const PAYLOAD_VERSION: usize = 0x208;

/// Offsets of fields of the header: the number of setup sectors, its magic number, the version of
/// the boot protocol, the place of the kernel's version, and the offset and length of the
/// compressed kernel.
const SETUP_SECTORS: usize = 0x1f1;
const MAGIC: Range<usize> = 0x202..0x206;
const PROTOCOL_VERSION: usize = 0x206;
const VERSION_PLACE: usize = 0x20e;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
/// Bytes of a sector.
const SECTOR: usize = 512;
/// The offset from which the place of the kernel's version counts.
const VERSION_BASE: usize = 0x200;
/// The longest version that is looked for, in bytes.
const MAX_VERSION: usize = 128;
/// Bytes of a digest that names an unpacked kernel in the cache.
const KEY_SIZE: usize = 12;

/// A boot image (Linux, Documentation/arch/x86/boot.rst).
pub(crate) struct BootImage {
    bytes: Vec<u8>,
    /// The kernel's version, as `uname -r` prints it.
    pub(crate) version: String,
}

impl BootImage {
    /// Reads a file.
    ///
    /// # Errors
    /// [`GuestError::Unsuitable`] when it is no boot image.
    pub(crate) fn read(path: &Path) -> Result<Self, GuestError> {
        let bytes = std::fs::read(path).context(|| path.display().to_string())?;
        match version_of(&bytes) {
            Some(version) => Ok(Self { bytes, version }),
            None => Err(GuestError::Unsuitable {
                path: path.to_owned(),
                problem: "is no Linux kernel for x86 (bzImage)".into(),
            }),
        }
    }

    /// Returns the compressed kernel, and the host's program that decompresses it.
    fn payload(&self) -> Option<(&[u8], &'static str)> {
        let field = |offset: usize, size: usize| elf::number(&self.bytes, offset, size);
        if field(PROTOCOL_VERSION, 2)? < PAYLOAD_VERSION {
            return None;
        }

        // 0 setup sectors mean 4. The payload's offset counts from the protected-mode code, which
        // follows the boot sector and the setup sectors.
        let sectors = match field(SETUP_SECTORS, 1)? {
            0 => 4,
            sectors => sectors,
        };
        let start = ((sectors + 1) * SECTOR).checked_add(field(PAYLOAD_OFFSET, 4)?)?;
        let payload = self.bytes.get(start..start.checked_add(field(PAYLOAD_LENGTH, 4)?)?)?;

        // The kernel's build appends the length of the content to all formats but gzip's.
        let (program, trailer) = match payload {
            [0x1f, 0x8b, ..] => ("gzip", 0),
            [0xfd, b'7', b'z', b'X', b'Z', ..] => ("xz", 4),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => ("zstd", 4),
            _ => return None,
        };
        Some((payload.get(..payload.len().checked_sub(trailer)?)?, program))
    }
}

/// Returns the version that a boot image's header locates (`kernel_version`), up to the first
/// blank. Returns `None` for other files.
fn version_of(image: &[u8]) -> Option<String> {
    if image.get(MAGIC)? != b"HdrS" {
        return None;
    }

    let offset = VERSION_BASE + elf::number(image, VERSION_PLACE, 2)?;
    let text = image.get(offset..(offset + MAX_VERSION).min(image.len()))?;
    let end = text.iter().position(|byte| matches!(byte, b' ' | 0))?;
    std::str::from_utf8(&text[..end]).ok().map(str::to_owned)
}

/// Returns the unpacked kernel of a boot image, from the cache if it is there. Returns `None` when
/// it can't be unpacked, or has no PVH entry.
///
/// # Errors
/// [`GuestError::Io`] when the cache can't be written; [`GuestError::Cancelled`].
pub(crate) fn unpack(
    path: &Path,
    cache: &Cache,
    lock: &Locked,
    progress: &Progress,
) -> Result<Option<PathBuf>, GuestError> {
    let image = BootImage::read(path)?;
    let Some((payload, program)) = image.payload() else { return Ok(None) };
    let directory = Path::new(FOLDER).join(hex(&Sha256::digest(payload)[..KEY_SIZE]));

    let folder = cache.path(&directory);
    if !folder.is_dir() {
        progress.step(&format!("unpacking the kernel {}", image.version));
        match cache.make(&directory, |folder| decompress_kernel(folder, payload, program, progress)) {
            Ok(_) => cache.keep_newest(FOLDER, KEPT_KERNELS, lock),
            Err(error @ (GuestError::Start { .. } | GuestError::Tool { .. })) => {
                tracing::debug!(%error, "the kernel unpacks itself");
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
    }

    Ok(Some(folder.join(FILE)).filter(|file| file.is_file()))
}

/// Decompresses a kernel into a folder. The folder stays empty if the kernel is damaged or has no
/// PVH entry. An empty folder in the cache keeps later calls from another try.
fn decompress_kernel(
    folder: &Path,
    payload: &[u8],
    program: &str,
    progress: &Progress,
) -> Result<(), GuestError> {
    let packed = folder.join("packed");
    std::fs::write(&packed, payload).context(|| packed.display().to_string())?;
    let unpacked = decompress(program, &[&packed], folder, progress)?;
    std::fs::remove_file(&packed).context(|| packed.display().to_string())?;

    for file in unpacked.iter().filter(|file| file.exists()) {
        let kernel = std::fs::read(file).context(|| file.display().to_string())?;
        let done = match elf::has_pvh_entry(&kernel) {
            true => std::fs::rename(file, folder.join(FILE)),
            false => std::fs::remove_file(file),
        };
        done.context(|| file.display().to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Returns a boot image of version 6.1.0-1 with a compressed kernel.
    fn image(payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 0x800];
        bytes[0x1f1] = 1;
        bytes[0x202..0x206].copy_from_slice(b"HdrS");
        bytes[0x206..0x208].copy_from_slice(&0x20f_u16.to_le_bytes());
        bytes[0x20e..0x210].copy_from_slice(&0x100_u16.to_le_bytes());
        bytes[0x300..0x30f].copy_from_slice(b"6.1.0-1 (someon");

        // After two sectors: 0x400 bytes of code, then the kernel.
        bytes[0x248..0x24c].copy_from_slice(&0x400_u32.to_le_bytes());
        bytes[0x24c..0x250].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        bytes.extend(payload);
        bytes
    }

    /// Returns an ELF kernel with one segment of notes, whose only note has type `kind`.
    fn kernel(kind: u32) -> Vec<u8> {
        let mut bytes = vec![0; 120];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        for (offset, value) in [(32, 64), (54, 56), (56, 1), (64, 4), (72, 120), (96, 20)] {
            bytes[offset] = value;
        }
        for word in [4, 4, kind, u32::from_le_bytes(*b"Xen\0"), 0x0100_0000] {
            bytes.extend(word.to_le_bytes());
        }
        bytes
    }

    fn gzip(folder: &Path, bytes: &[u8]) -> Vec<u8> {
        let file = folder.join("plain");
        std::fs::write(&file, bytes).unwrap();
        Command::new("gzip").arg("-c").arg(&file).output().unwrap().stdout
    }

    #[test]
    fn version_is_in_the_header() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("vmlinuz");
        std::fs::write(&file, image(b"")).unwrap();
        assert_eq!(BootImage::read(&file).unwrap().version, "6.1.0-1");

        std::fs::write(&file, b"#!/bin/sh").unwrap();
        let error = BootImage::read(&file).err().unwrap();
        assert!(error.to_string().contains("is no Linux kernel"), "{error}");
    }

    #[test]
    fn kernel_with_a_pvh_entry_is_unpacked_once_and_all_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(&folder.path().join("cache")).unwrap();
        let progress = Progress::silent();
        let lock = cache.lock(&progress).unwrap();
        let file = folder.path().join("vmlinuz");
        let unpack = |image: &[u8]| {
            std::fs::write(&file, image).unwrap();
            unpack(&file, &cache, &lock, &progress).unwrap()
        };

        let startable = image(&gzip(folder.path(), &kernel(18)));
        let unpacked = unpack(&startable).unwrap();
        assert_eq!(std::fs::read(&unpacked).unwrap(), kernel(18));
        std::fs::write(&unpacked, "kept").unwrap();
        assert_eq!(std::fs::read(unpack(&startable).unwrap()).unwrap(), b"kept");

        let mut damaged = startable.clone();
        let last = damaged.len() - 1;
        damaged[last] ^= 1;
        assert_eq!(unpack(&damaged), None);
        assert_eq!(unpack(&image(&gzip(folder.path(), &kernel(17)))), None);
        assert_eq!(unpack(&image(b"no known compression")), None);
        assert_eq!(unpack(&image(b"\xfd7zXZ")), None);

        let missing = decompress_kernel(folder.path(), b"", "no-such-program", &progress).unwrap_err();
        assert!(matches!(missing, GuestError::Tool { .. }), "{missing}");

        let mut beyond = startable.clone();
        beyond[0x24c..0x250].fill(0xff);
        assert_eq!(unpack(&beyond), None);
        assert_eq!(unpack(&startable[..0x320]), None);
    }
}
