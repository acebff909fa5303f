//! The registers and queues of one device together.

use nicforge_core::{
    context::Context, dma::GuestMemoryView, ids::Address, spec::FunctionSpec, warning::Warning,
};

use crate::{
    queue::{QueueError, SplitQueue},
    registers::{BAR, feature},
    transport::{self, Event, Model, Request, Transport, USER},
};

/// The effect of a register write on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The device has nothing to do.
    None,
    /// The device must return to the state of power-on, as the registers and queues have done.
    Reset,
    /// Serve this queue: it has new buffers.
    Notified(usize),
}

/// The registers and queues of one device.
pub struct Function {
    transport: Transport,
    /// The queues that the driver has enabled.
    queues: Vec<Option<SplitQueue>>,
    /// Number of the driver's notifications.
    notifications: u64,
    /// Number of times that the device stopped because of a queue.
    errors: u64,
}

impl Function {
    /// Returns the registers and queues of a device of this type in the state of power-on.
    pub fn new(model: Model) -> Self {
        let queues = model.queues.iter().map(|_| None).collect();
        Self { transport: Transport::new(model), queues, notifications: 0, errors: 0 }
    }

    /// Returns the description of the PCI function.
    pub fn spec(&self) -> FunctionSpec {
        transport::spec(self.transport.model())
    }

    /// Reads registers. `config` is the configuration of the type of device. Bytes outside the
    /// registers keep the content of `data`.
    pub fn read(&mut self, context: &mut Context<'_>, at: Address, config: &[u8], data: &mut [u8]) {
        if at.bar == BAR {
            self.transport.read(context, at.offset, config, data);
        }
    }

    /// Writes a register, and resets the device or enables a queue if the write asks for that.
    pub fn write(&mut self, context: &mut Context<'_>, at: Address, data: &[u8]) -> Action {
        if at.bar != BAR {
            return Action::None;
        }

        match self.transport.write(at.offset, data) {
            Request::None => Action::None,
            Request::Reset => {
                self.reset(context);
                Action::Reset
            }
            Request::EnableQueue(index) => {
                self.enable_queue(context, index);
                Action::None
            }
            Request::Notify(index) => {
                self.notifications += 1;
                if let Some(queue) = self.queue(index) {
                    queue.record_notification();
                }
                Action::Notified(index)
            }
        }
    }

    /// Returns to the state of power-on. The counts stay.
    pub fn reset(&mut self, context: &mut Context<'_>) {
        self.transport.reset();
        self.queues.fill_with(|| None);
        context.set_intx(USER, false);
    }

    /// Creates a queue from its registers. If they describe no valid queue, the device stops.
    fn enable_queue(&mut self, context: &mut Context<'_>, index: usize) {
        let direction = self.transport.model().queues[index];
        let event_index = self.features() & feature::EVENT_INDEX != 0;
        let layout = self.transport.queue(index).layout;

        match SplitQueue::new(layout, direction, event_index) {
            Ok(queue) => self.queues[index] = Some(queue),
            Err(error) => self.fail(context, error),
        }
    }

    /// Stops the device until the driver resets it, because a queue breaks the rules, and logs the
    /// rule.
    #[cold]
    pub fn fail(&mut self, context: &mut Context<'_>, error: QueueError) {
        match &error {
            QueueError::Memory(error) => context.count_dma_error(USER, error),
            rule => context.warn(USER, Warning::failed(rule)),
        }
        self.errors += 1;
        self.transport.require_reset(context);
    }

    /// Records a change of the configuration of the type, and reports it to the driver.
    pub fn change_config(&mut self, context: &mut Context<'_>) {
        self.transport.change_config(context);
    }

    /// Returns whether the driver is set up, and the device can use the queues.
    pub fn is_live(&self) -> bool {
        self.transport.is_live()
    }

    /// Returns the features that the driver accepted.
    pub fn features(&self) -> u64 {
        self.transport.features()
    }

    /// Returns a queue, if the driver has enabled it.
    #[inline]
    pub fn queue(&mut self, index: usize) -> Option<&mut SplitQueue> {
        self.queues.get_mut(index)?.as_mut()
    }

    /// Returns a queue with the driver's memory, if the driver has enabled both.
    #[inline]
    pub fn queue_with_memory<'a>(
        &mut self,
        context: &'a mut Context<'_>,
        index: usize,
    ) -> Option<(&mut SplitQueue, GuestMemoryView<'a>)> {
        Some((self.queue(index)?, context.guest_memory(USER).ok()?))
    }

    /// Interrupts the driver.
    pub fn interrupt(&mut self, context: &mut Context<'_>, event: Event) {
        self.transport.interrupt(context, event);
    }

    /// Interrupts the driver if it wants that for the buffers returned to a queue since the last
    /// call.
    ///
    /// # Errors
    /// [`QueueError::Memory`].
    pub fn interrupt_for_used_buffers(
        &mut self,
        context: &mut Context<'_>,
        index: usize,
    ) -> Result<(), QueueError> {
        let Some((queue, memory)) = self.queue_with_memory(context, index) else { return Ok(()) };
        if queue.needs_interrupt(&memory)? {
            self.transport.interrupt(context, Event::Queue(index));
        }
        Ok(())
    }

    /// Returns the number of the driver's notifications.
    pub fn notifications(&self) -> u64 {
        self.notifications
    }

    /// Returns how often the device stopped because of a queue.
    pub fn errors(&self) -> u64 {
        self.errors
    }
}
