//! The path of VELO: each message of the bench is one of the card.

use std::sync::{Mutex, MutexGuard, PoisonError};

use nicforge::failure::{ErrorContext, Failure};
use nicforge_driver::{Cancel, Deadline, Device};
use nicforge_velo::{Address, Config, Filter, PeerLink, Port};

use super::{
    super::fcnp::{
        flow::{Endpoint, Receiver, Sender},
        task::Side,
    },
    worker::TIMEOUT,
};

/// One side's port. A task uses it in one direction at a time.
struct End {
    port: Mutex<Port>,
    peer: PeerLink,
    cancel: Cancel,
}

/// Opens a side's end. Both sides must be opened at the same time.
///
/// # Errors
/// Returns the errors of VELO.
pub(super) fn open(side: Side, device: Device, cancel: &Cancel) -> Result<Box<dyn Endpoint + Send>, Failure> {
    let context = || format!("VELO on the {} side", side.name());
    let mut port = Port::open(device, Config::default()).context(context)?;

    let own = port.address();
    // There are two cards, 0 and 1.
    let address = Address { node: 1 - own.node.min(1), ..own };
    let peer = port.connect(address, Deadline::after(TIMEOUT), Some(cancel)).context(context)?;

    Ok(Box::new(End { port: Mutex::new(port), peer, cancel: cancel.clone() }))
}

impl End {
    /// Locks the port.
    fn port(&self) -> MutexGuard<'_, Port> {
        // A thread that panicked has ended the task.
        self.port.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Endpoint for End {
    fn sender(&self) -> Result<Box<dyn Sender + '_>, Failure> {
        Ok(Box::new(self))
    }

    fn receiver(&self) -> Result<Box<dyn Receiver + '_>, Failure> {
        Ok(Box::new(self))
    }
}

impl Sender for &End {
    fn send(&mut self, _: u32, message: &[u8]) -> Result<(), Failure> {
        let deadline = Deadline::after(TIMEOUT);
        let sent = self.port().send(self.peer, 0, message, deadline, Some(&self.cancel));
        sent.context(|| "sending by VELO".into())
    }
}

impl Receiver for &End {
    fn receive(&mut self, _: u32, message: &mut [u8]) -> Result<(), Failure> {
        let deadline = Deadline::after(TIMEOUT);
        let received = self.port().recv(Filter::ANY, deadline, Some(&self.cancel));
        let received = received.context(|| "receiving by VELO".into())?;

        let (found, expected) = (received.bytes().len(), message.len());
        if found != expected {
            return Err(Failure::result(format!("a message of {found} bytes came instead of {expected}")));
        }

        message.copy_from_slice(received.bytes());
        Ok(())
    }
}
