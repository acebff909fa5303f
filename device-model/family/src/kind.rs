//! Kinds of devices that stand alone.

use std::{fmt, sync::Arc};

use nicforge_core::device::Device;
use serde::Deserialize;

use crate::{CounterColumn, DeviceSource, Role, Section, SectionError};

/// Checks a table of a machine file, and returns the source of the device that it describes.
type Reader = dyn Fn(Section<'_>) -> Result<DeviceSource, SectionError> + Send + Sync;

/// A kind of device for the tables `[[function]]` of machine files.
///
/// ```
/// use nicforge_family::{DeviceKind, DeviceSource, Spanned, check_range};
/// # use nicforge_core::{context::Context, device::{Device, Reset, Write}};
/// # use nicforge_core::ids::{Address, AttachmentId};
/// # use nicforge_core::spec::{FunctionSpec, Identity};
/// # const SPEC: FunctionSpec = FunctionSpec::hub(Identity {
/// #     vendor: 0, device: 0, subsystem_vendor: 0, subsystem: 0,
/// #     class: 0xff_00_00, revision: 0,
/// # });
/// # #[derive(Default)]
/// # struct Tally { target: u64 }
/// # impl Device for Tally {
/// #     fn spec(&self) -> FunctionSpec { SPEC }
/// #     fn read(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &mut [u8]) {}
/// #     fn write(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &[u8]) -> Write {
/// #         Write::Accepted
/// #     }
/// #     fn reset(&mut self, _: &mut Context<'_>, _: Reset) {}
/// # }
///
/// // A device without parameters: kind = "plain-tally"
/// let plain = DeviceKind::plain("plain-tally", Tally::default);
///
/// // A device with a parameter: kind = "tally", target = 100
/// let tally = DeviceKind::new("tally", |section| {
///     #[derive(serde::Deserialize)]
///     #[serde(deny_unknown_fields)]
///     struct Parameters {
///         target: Spanned<u64>,
///     }
///
///     let Parameters { target } = section.parse()?;
///     let target = check_range("target", &target, 1, 1 << 32)?;
///     Ok(DeviceSource::new(move || Tally { target }))
/// });
/// # assert_eq!(tally.name(), "tally");
/// # assert_eq!(plain.name(), "plain-tally");
/// ```
#[derive(Clone)]
pub struct DeviceKind {
    name: &'static str,
    role: Role,
    columns: &'static [CounterColumn],
    reader: Arc<Reader>,
}

impl DeviceKind {
    /// Returns a kind of devices with parameters.
    ///
    /// `read` gets the table `[[function]]` without its `kind`, `name` and `node`. It checks the
    /// parameters, and returns the source of such a device. It must refuse keys that it does not
    /// know, as `deny_unknown_fields` does.
    pub fn new(
        name: &'static str,
        read: impl Fn(Section<'_>) -> Result<DeviceSource, SectionError> + Send + Sync + 'static,
    ) -> Self {
        Self { name, role: Role::DEVICE, columns: &[], reader: Arc::new(read) }
    }

    /// Returns a kind of devices without parameters. `make` makes one.
    pub fn plain<D: Device + 'static>(
        name: &'static str,
        make: impl Fn() -> D + Clone + Send + Sync + 'static,
    ) -> Self {
        /// The table of a device without parameters.
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct NoParameters {}

        Self::new(name, move |section| {
            let NoParameters {} = section.parse()?;
            Ok(DeviceSource::new(make.clone()))
        })
    }

    /// Returns the kind with another role for its nodes than [`Role::DEVICE`].
    pub fn with_role(mut self, role: Role) -> Self {
        self.role = role;
        self
    }

    /// Returns the kind with columns for `stat`, as [`crate::Family::columns`] has them.
    pub fn with_columns(mut self, columns: &'static [CounterColumn]) -> Self {
        self.columns = columns;
        self
    }

    /// Returns the value of `kind` in machine files.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the role of a node with such a device.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Returns the columns for `stat`.
    pub fn columns(&self) -> &'static [CounterColumn] {
        self.columns
    }

    /// Returns the source of the device that a table describes.
    ///
    /// # Errors
    /// The kind refuses a parameter.
    pub fn read(&self, section: Section<'_>) -> Result<DeviceSource, SectionError> {
        (self.reader)(section)
    }
}

impl fmt::Debug for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceKind")
            .field("name", &self.name)
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}
