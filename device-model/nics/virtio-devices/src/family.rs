//! Kinds of devices for the tables `[[function]]` of machine files.
//!
//! ```toml
//! [[function]]
//! name = "rng0"
//! kind = "virtio-rng"       # a source of random bytes
//! ```

use nicforge_family::{Column, DeviceKind};

use crate::rng::VirtioRng;

/// Columns of `stat` for the entropy device.
const RNG_COLUMNS: &[Column] =
    &[Column::new("buffers", &["buffers"]), Column::new("errors", &["queue_errors", "failures"])];

/// Returns the kinds of devices.
pub fn kinds() -> [DeviceKind; 1] {
    [DeviceKind::plain("virtio-rng", VirtioRng::device).with_columns(RNG_COLUMNS)]
}
