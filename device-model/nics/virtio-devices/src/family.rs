//! Kinds of devices for the tables `[[function]]` of machine files.
//!
//! ```toml
//! [[function]]
//! name = "rng0"
//! kind = "virtio-rng"       # a source of random bytes
//!
//! [[function]]
//! name = "disk0"
//! kind = "virtio-blk"       # a disk
//! file = "/srv/root.img"    # its contents
//! access = "read-only"      # optional: or "copy-on-write", which keeps changes apart
//! changes_mib = 1024        # optional: the most that copy-on-write keeps, 1 to 1048576
//! serial = "disk0"          # optional: what the driver sees as its serial number, up to 20 bytes
//!
//! [[function]]
//! name = "console0"
//! kind = "virtio-console"   # a console
//! socket = "/run/con0"      # a socket that the server makes, and to which one client connects
//! # file = "/tmp/con0.log"  # instead: a file, to which the driver's bytes are appended
//! ```
//!
//! A relative path is relative to the directory that the server was started in.

use std::path::Path;

use nicforge_family::{
    CounterColumn, DeviceKind, DeviceSource, Section, SectionError, Spanned, range_or, refuse_value,
};
use serde::Deserialize;

use crate::{
    blk::{
        VirtioBlk,
        image::{Access, Image, ImageError},
        registers::ID_BYTES,
    },
    console::{
        VirtioConsole,
        line::{Line, LineError},
    },
    rng::VirtioRng,
};

/// The most that a disk's changes may have, in MiB, unless the file says otherwise.
pub const DEFAULT_CHANGES_MIB: u64 = 1024;
/// The most that a machine file can allow a disk's changes, in MiB.
pub const MAX_CHANGES_MIB: u64 = 1 << 20;

/// Columns of `stat` for an entropy device.
const RNG_COLUMNS: &[CounterColumn] = &[
    CounterColumn::new("buffers", &["buffers"]),
    CounterColumn::new("errors", &["queue_errors", "failures"]),
];
/// Columns of `stat` for a disk.
const BLK_COLUMNS: &[CounterColumn] = &[
    CounterColumn::new("reads", &["reads"]),
    CounterColumn::new("writes", &["writes"]),
    CounterColumn::new("errors", &["queue_errors", "io_errors", "unsupported"]),
];
/// Columns of `stat` for a console.
const CONSOLE_COLUMNS: &[CounterColumn] = &[
    CounterColumn::new("sent", &["sent_bytes"]),
    CounterColumn::new("received", &["received_bytes"]),
    CounterColumn::new("dropped", &["lost_bytes"]),
    CounterColumn::new("errors", &["queue_errors"]),
];

/// The parameters of a disk.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Disk {
    file: Spanned<String>,
    #[serde(default)]
    access: Option<Spanned<String>>,
    #[serde(default)]
    changes_mib: Option<Spanned<u64>>,
    #[serde(default)]
    serial: Option<Spanned<String>>,
}

/// The parameters of a console.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Console {
    #[serde(default)]
    socket: Option<Spanned<String>>,
    #[serde(default)]
    file: Option<Spanned<String>>,
}

impl Disk {
    /// Returns the driver's access to the file.
    fn access(&self) -> Result<Access, SectionError> {
        let limit_mib =
            range_or("changes_mib", self.changes_mib.as_ref(), (1, MAX_CHANGES_MIB), DEFAULT_CHANGES_MIB)?;
        let access = self.access.as_ref().map_or("read-only", |access| access.get_ref().as_str());

        match (access, &self.access, &self.changes_mib) {
            ("copy-on-write", ..) => Ok(Access::CopyOnWrite { limit: limit_mib << 20 }),
            ("read-only", _, Some(changes)) => {
                Err(refuse_value("changes_mib", changes, "no value, or access = \"copy-on-write\""))
            }
            ("read-only", ..) | (_, None, _) => Ok(Access::ReadOnly),
            (_, Some(access), _) => Err(refuse_value("access", access, "\"read-only\" or \"copy-on-write\"")),
        }
    }

    /// Returns the source of the disk, which opens the file.
    fn source(self) -> Result<DeviceSource, SectionError> {
        let access = self.access()?;
        let is_too_long = |serial: &&Spanned<String>| serial.get_ref().len() > ID_BYTES;
        if let Some(serial) = self.serial.as_ref().filter(is_too_long) {
            return Err(refuse_value("serial", serial, format!("at most {ID_BYTES} bytes")));
        }

        let serial = self.serial.map(Spanned::into_inner).unwrap_or_default();
        let path = self.file.into_inner();
        Ok(DeviceSource::fallible(move || {
            Ok::<_, ImageError>(VirtioBlk::device(Image::open(Path::new(&path), access)?, &serial))
        }))
    }
}

impl Console {
    /// Returns the source of the console, which makes the socket or opens the file.
    fn source(self, section: &Section<'_>) -> Result<DeviceSource, SectionError> {
        let open_line: fn(&Path) -> Result<Line, LineError> =
            if self.socket.is_some() { Line::listen } else { Line::append_to };
        let path = match (self.socket, self.file) {
            (Some(_), Some(file)) => {
                return Err(refuse_value("file", &file, "no value, because there is a socket"));
            }
            (Some(path), None) | (None, Some(path)) => path.into_inner(),
            (None, None) => {
                return Err(SectionError::syntax(section.span(), "a console needs `socket` or `file`"));
            }
        };

        let make = move || Ok::<_, LineError>(VirtioConsole::device(open_line(Path::new(&path))?));
        Ok(DeviceSource::fallible(make))
    }
}

/// Returns the kinds of devices.
pub fn kinds() -> [DeviceKind; 3] {
    let rng = DeviceKind::plain("virtio-rng", VirtioRng::device);
    let disk = DeviceKind::new("virtio-blk", |section| section.parse::<Disk>()?.source());
    let console = DeviceKind::new("virtio-console", |section| section.parse::<Console>()?.source(&section));

    [rng.with_columns(RNG_COLUMNS), disk.with_columns(BLK_COLUMNS), console.with_columns(CONSOLE_COLUMNS)]
}
