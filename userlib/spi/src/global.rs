//! Global interrupts: lines that the nodes of a class route share.

use std::sync::atomic::Ordering;

use nicforge_driver::{Cancel, Deadline};
use nicforge_hwi::{
    mu::{reg, vector},
    mu_packet::{CLASSES, LINES},
};
use nicforge_shm::SharedU64;

use crate::{Error, Resource, Subgroup, subgroup::ended_by_spin};

/// A line of global interrupts. Its public name is `MUSPI_GI_t`.
///
/// The line is set at all nodes of the class route as long as one node sets it. If a node clears it
/// before another one has looked, that one may not notice it. All subgroups of a node share its
/// lines, so one of them changes those of a class at a time.
///
/// The lines of a class are clear when its route has been set at all nodes, by
/// [`Kernel::set_barrier_route`](crate::Kernel::set_barrier_route) (`MUSPI_GIInitMU`).
#[derive(Clone, Debug)]
pub struct GlobalInterrupt {
    class: u8,
    line: u8,
    /// Mirror of the lines that some node sets, one bit for each.
    lines: SharedU64,
}

impl GlobalInterrupt {
    /// Returns the class route.
    pub fn class(&self) -> u8 {
        self.class
    }

    /// Returns the line, 0 to 2.
    pub fn line(&self) -> u8 {
        self.line
    }

    /// Returns whether some node sets the line, as far as this node knows. The public names are
    /// `MUSPI_GIPollForArrival` and `MUSPI_GIPollForClear`.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.lines.load(Ordering::Acquire) >> self.line & 1 == 1
    }
}

impl Subgroup {
    /// Returns a line of a class route. The public name is `MUSPI_GIInit`.
    ///
    /// # Errors
    /// [`Error::NoSuch`], [`Error::NoLine`].
    pub fn global_interrupt(&self, class: u8, line: u8) -> Result<GlobalInterrupt, Error> {
        if usize::from(class) >= CLASSES {
            return Err(Error::NoSuch { resource: Resource::BarrierClass, number: class });
        }
        if line >= LINES {
            return Err(Error::NoLine { line });
        }

        let lines = self.page().word(reg::GI_STATUS + 8 * u64::from(class))?;
        Ok(GlobalInterrupt { class, line, lines })
    }

    /// Sets a line for this node, or no longer sets it. It does not wait. The public names are
    /// `MUSPI_GISend` and `MUSPI_GISendClear`.
    ///
    /// The unit refuses a line of a class route that has no part of this node, and a user's write
    /// to one of the system.
    ///
    /// # Errors
    /// [`Error::LineRefused`]; errors of a trapped access.
    pub fn set_global_interrupt(&mut self, interrupt: &GlobalInterrupt, is_set: bool) -> Result<(), Error> {
        let &GlobalInterrupt { class, line, .. } = interrupt;
        let register = reg::GI_CONTROL + 8 * u64::from(class);
        let before = self.page().read(register)?;
        let after = if is_set { before | 1 << line } else { before & !(1 << line) };

        // A refused write leaves the register unchanged.
        self.page().write(register, after)?;
        if self.page().read(register)? == after { Ok(()) } else { Err(Error::LineRefused { class, line }) }
    }

    /// Waits until some node sets a line, or until none does. The call polls first. It then waits
    /// for the interrupt, if the kernel has enabled it, and polls again after some time. The public
    /// names are `MUSPI_GIPollForArrivalWithTimeout` and `MUSPI_GIPollForClearWithTimeout`.
    ///
    /// # Errors
    /// [`nicforge_driver::Error::Timeout`], [`nicforge_driver::Error::Cancelled`],
    /// [`nicforge_driver::Error::DeviceGone`]; [`Error::Reset`].
    pub fn wait_global_interrupt(
        &mut self,
        interrupt: &GlobalInterrupt,
        is_set: bool,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<(), Error> {
        loop {
            let spin = deadline.at_most(self.options().spin);
            let polled = self.device().wait_for(spin, cancel, "a global interrupt", || {
                if interrupt.is_set() == is_set {
                    return Ok(Some(()));
                }
                self.page().check_not_reset()?;
                Ok(None)
            });

            if !ended_by_spin(&polled, deadline) {
                return polled;
            }
            self.sleep_for(vector::GLOBAL, deadline, cancel)?;
        }
    }
}
