//! Barriers of the nodes of a class route.

use std::sync::atomic::Ordering;

use nicforge_driver::{Cancel, Deadline};
use nicforge_hwi::{
    mu::{BAR_REGISTERS, reg, vector},
    mu_packet::CLASSES,
};
use nicforge_shm::SharedU64;

use crate::{Error, Resource, Subgroup, subgroup::ended_by_spin};

/// The state of this node in the barriers of a class route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The node has entered no barrier that is not complete.
    Outside,
    /// The node has entered a barrier. It is complete when the unit has counted this many barriers.
    Inside(u64),
}

/// A barrier of the nodes of a class route. Its public name is `MUSPI_GIBarrier_t`.
///
/// One subgroup of each node enters for the node.
#[derive(Clone, Debug)]
pub struct Barrier {
    class: u8,
    /// Mirror of the number of completed barriers.
    completed: SharedU64,
    state: State,
}

impl Barrier {
    /// Returns the class route.
    pub fn class(&self) -> u8 {
        self.class
    }

    /// Returns whether the barrier that was entered last is complete, or none was entered at all.
    /// The public name is `MUSPI_GIBarrierPoll`.
    pub fn poll(&mut self) -> bool {
        if let State::Inside(count) = self.state {
            if self.completed.load(Ordering::Acquire) < count {
                return false;
            }
            self.state = State::Outside;
        }
        true
    }
}

impl Subgroup {
    /// Returns the barrier of a class route. The public name is `MUSPI_GIBarrierInit`.
    ///
    /// # Errors
    /// [`Error::NoSuch`].
    pub fn barrier(&self, class: u8) -> Result<Barrier, Error> {
        if usize::from(class) >= CLASSES {
            return Err(Error::NoSuch { resource: Resource::BarrierClass, number: class });
        }

        let completed = self.page().word(reg::BARRIER_STATUS + 8 * u64::from(class))?;
        Ok(Barrier { class, completed, state: State::Outside })
    }

    /// Enters the next barrier of a class route, and does not wait for it. The public name is
    /// `MUSPI_GIBarrierEnter`.
    ///
    /// It does not wait for the unit either, which can refuse the entry. [`Subgroup::wait_barrier`]
    /// and [`Subgroup::check_entered`] return the error then.
    ///
    /// # Errors
    /// [`Error::InBarrier`] while the one before is not complete; errors of the posted-write ring.
    pub fn enter(&mut self, barrier: &mut Barrier) -> Result<(), Error> {
        if !barrier.poll() {
            return Err(Error::InBarrier { class: barrier.class });
        }

        let count = barrier.completed.load(Ordering::Acquire) + 1;
        let register = self.page().offset(reg::BARRIER_CONTROL + 8 * u64::from(barrier.class));
        self.injection().poster.post(BAR_REGISTERS, register, &1_u64.to_le_bytes())?;
        barrier.state = State::Inside(count);
        Ok(())
    }

    /// Checks that the unit has let the node enter the barrier, or that this barrier is complete.
    /// The node counts as outside after an error, and can enter again.
    ///
    /// # Errors
    /// [`Error::BarrierRefused`]; errors of a trapped access.
    pub fn check_entered(&self, barrier: &mut Barrier) -> Result<(), Error> {
        let (class, State::Inside(count)) = (barrier.class, barrier.state) else { return Ok(()) };
        let offset = 8 * u64::from(class);

        // The unit takes the posted write before this read.
        let is_inside = self.page().read(reg::BARRIER_CONTROL + offset)? == 1;
        if is_inside || self.page().read(reg::BARRIER_STATUS + offset)? >= count {
            return Ok(());
        }
        barrier.state = State::Outside;
        Err(Error::BarrierRefused { class })
    }

    /// Waits until the barrier that was entered last is complete. The call polls first, and then
    /// waits for an interrupt. The public name is `MUSPI_GIBarrierPollWithTimeout`.
    ///
    /// # Errors
    /// [`Error::BarrierRefused`], after the polling part; [`nicforge_driver::Error::Timeout`],
    /// [`nicforge_driver::Error::Cancelled`], [`nicforge_driver::Error::DeviceGone`];
    /// [`Error::Reset`].
    pub fn wait_barrier(
        &mut self,
        barrier: &mut Barrier,
        deadline: Deadline,
        cancel: Option<&Cancel>,
    ) -> Result<(), Error> {
        loop {
            let spin = deadline.at_most(self.options().spin);
            let polled = self.device().wait_for(spin, cancel, "a barrier", || {
                if barrier.poll() {
                    return Ok(Some(()));
                }
                self.page().check_not_reset()?;
                Ok(None)
            });

            if !ended_by_spin(&polled, deadline) {
                return polled;
            }
            self.check_entered(barrier)?;
            self.sleep_for(vector::BARRIER, deadline, cancel)?;
        }
    }
}
