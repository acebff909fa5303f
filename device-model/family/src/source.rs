//! How a plan makes its devices.

use std::{error::Error, fmt, sync::Arc};

use nicforge_core::{device::Device, ids::AttachmentId};

/// The reason why a device could not be made.
pub type DeviceError = Box<dyn Error + Send + Sync>;

/// Makes a device.
type Maker = dyn Fn() -> Result<Box<dyn Device>, DeviceError> + Send + Sync;

/// Makes a device, each time that a machine is built from its plan.
#[derive(Clone)]
pub struct DeviceSource {
    make: Arc<Maker>,
    /// The admin attachment, if the device has one.
    admin: Option<AttachmentId>,
    /// The longest packet that the device makes, in bytes, if it states one.
    max_packet: Option<usize>,
}

impl DeviceSource {
    /// Returns a source whose devices `make` makes.
    pub fn new<D: Device + 'static>(make: impl Fn() -> D + Send + Sync + 'static) -> Self {
        Self::fallible(move || Ok::<_, DeviceError>(make()))
    }

    /// Returns a source whose devices `make` makes, unless their configuration is impossible.
    pub fn fallible<D: Device + 'static, E: Into<DeviceError>>(
        make: impl Fn() -> Result<D, E> + Send + Sync + 'static,
    ) -> Self {
        let make = move || match make() {
            Ok(device) => Ok(Box::new(device) as Box<dyn Device>),
            Err(error) => Err(error.into()),
        };
        Self { make: Arc::new(make), admin: None, max_packet: None }
    }

    /// Names the admin attachment of the device. Its socket is apart from those of the users.
    #[must_use]
    pub fn with_admin(mut self, admin: AttachmentId) -> Self {
        self.admin = Some(admin);
        self
    }

    /// States the longest packet that the device makes, in bytes. It is needed only for a device
    /// without links that sends packets to itself.
    #[must_use]
    pub fn with_max_packet(mut self, bytes: usize) -> Self {
        self.max_packet = Some(bytes);
        self
    }

    /// Makes a device.
    ///
    /// # Errors
    /// The error of the function given to [`DeviceSource::fallible`].
    pub fn make(&self) -> Result<Box<dyn Device>, DeviceError> {
        (self.make)()
    }

    /// Returns the admin attachment.
    pub fn admin(&self) -> Option<AttachmentId> {
        self.admin
    }

    /// Returns the longest packet in bytes, if the device stated it.
    pub fn max_packet(&self) -> Option<usize> {
        self.max_packet
    }
}

impl fmt::Debug for DeviceSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { admin, max_packet, .. } = self;
        f.debug_struct("DeviceSource")
            .field("admin", admin)
            .field("max_packet", max_packet)
            .finish_non_exhaustive()
    }
}
