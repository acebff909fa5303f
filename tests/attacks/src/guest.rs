//! The polite tenant in a guest: a program there drives the card through its kernel's VFIO.

use std::{io, path::Path, time::Duration};

use nicforge_guest::{Driver, Guest, GuestConfig, GuestError, Job, Progress, Provision, Running};

use crate::{arena::Failed, polite::TenantObservations};

/// Time limit of the guest's boot, and of its program beyond its own time.
const TIMEOUT: Duration = Duration::from_secs(300);

/// A guest with a running tenant program.
pub struct Tenant {
    job: Running,
    /// Shut down on drop.
    _guest: Guest,
}

impl Tenant {
    /// Boots a guest with the card behind `socket`, and starts this crate's `program` in it for
    /// `time`.
    ///
    /// # Errors
    /// When a guest cannot be provisioned, or does not boot.
    pub fn start(program: &Path, socket: &Path, time: Duration) -> Result<Self, Failed> {
        let progress = Progress::silent();
        let toolkit = Provision::from_environment().provide(&progress).map_err(failed)?;
        let config = GuestConfig::new("polite")
            .iommu(true)
            .driver(Driver::Vfio)
            .boot_deadline(TIMEOUT)
            .program_as(program, "nicforge-attack")
            .user_function("polite.user0", socket);

        let guest = Guest::boot(&toolkit, &config, &progress).map_err(failed)?;
        let seconds = time.as_secs().to_string();
        let job = guest.start(Job::program(["nicforge-attack", "polite", "--seconds", &seconds]));

        Ok(Self { job: job.map_err(failed)?, _guest: guest })
    }

    /// Waits until the program has ended. Returns its observations.
    pub fn stop(self) -> TenantObservations {
        let lost = |why: String| TenantObservations { lost: Some(why), ..TenantObservations::default() };
        match self.job.wait(TIMEOUT) {
            Ok(output) => serde_json::from_str(output.stdout.trim()).unwrap_or_else(|_| {
                lost(format!("its program ended with {}: {}", output.status, output.stderr.trim()))
            }),
            Err(error) => lost(error.to_string()),
        }
    }
}

/// Returns a guest's error as the failure of an attack.
fn failed(error: GuestError) -> Failed {
    Failed::Io(io::Error::other(error.to_string()))
}
