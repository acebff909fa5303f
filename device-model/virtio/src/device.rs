//! A device that serves its queues when there is work, and has neither links nor a BAR of its own.

use nicforge_core::{
    context::Context,
    device::{Counter, Device, Progress, Reset, Write},
    ids::{Address, AttachmentId},
    spec::FunctionSpec,
};

use crate::{
    function::{Action, Function},
    queue::QueueError,
    transport::Model,
};

/// The part of a device that its type defines: how it serves its queues.
///
/// It must keep the rules of [`nicforge_core::device`]: no method waits, and each does a bounded
/// amount of work. Work that may wait belongs to a companion.
pub trait Backend: Send {
    /// Returns the type.
    fn model(&self) -> Model;

    /// Returns the configuration of the type, [`Model::config_bytes`] long.
    fn config(&self) -> &[u8];

    /// Moves buffers, about `budget` descriptors in each queue. Returns the number of descriptors
    /// used, which is 0 if nothing moved. It is called while the driver is set up: after a
    /// notification, after a message of a companion, and again after a result other than 0.
    ///
    /// # Errors
    /// [`QueueError`]. The device then stops until the driver resets it.
    fn serve(
        &mut self,
        context: &mut Context<'_>,
        function: &mut Function,
        budget: u32,
    ) -> Result<u32, QueueError>;

    /// Returns to the state of power-on: requests of the driver without a completion are
    /// forgotten.
    fn reset(&mut self, context: &mut Context<'_>);

    /// Returns the statistics of the type, always the same names in the same order.
    fn counters(&self) -> Vec<Counter>;
}

/// A device of one type.
pub struct VirtioDevice<B> {
    function: Function,
    backend: B,
}

impl<B: Backend> VirtioDevice<B> {
    /// Builds a device in the state of power-on.
    pub fn new(backend: B) -> Self {
        Self { function: Function::new(backend.model()), backend }
    }
}

impl<B: Backend> Device for VirtioDevice<B> {
    fn spec(&self) -> FunctionSpec {
        self.function.spec()
    }

    fn ports(&self) -> u8 {
        0
    }

    fn read(&mut self, context: &mut Context<'_>, _: AttachmentId, at: Address, data: &mut [u8]) {
        self.function.read(context, at, self.backend.config(), data);
    }

    fn write(&mut self, context: &mut Context<'_>, _: AttachmentId, at: Address, data: &[u8]) -> Write {
        match self.function.write(context, at, data) {
            Action::None | Action::Notified(_) => {}
            Action::Reset => self.backend.reset(context),
        }
        Write::Accepted
    }

    fn reset(&mut self, context: &mut Context<'_>, _: Reset) {
        self.function.reset(context);
        self.backend.reset(context);
    }

    fn step(&mut self, context: &mut Context<'_>, budget: u32) -> Progress {
        if !self.function.is_live() {
            return Progress::Idle;
        }

        match self.backend.serve(context, &mut self.function, budget) {
            Ok(0) => Progress::Idle,
            Ok(_) => Progress::Busy,
            Err(error) => {
                self.function.fail(context, error);
                Progress::Busy
            }
        }
    }

    fn counters(&self) -> Vec<Counter> {
        let mut counters = self.backend.counters();
        counters.extend([
            Counter { name: "notifications", value: self.function.notifications() },
            Counter { name: "queue_errors", value: self.function.errors() },
        ]);
        counters
    }
}
