//! The paths through a tree NIC.

use nicforge::failure::{ErrorContext, Failure};
use nicforge_driver::{Cancel, Deadline, Device, Relax};
use nicforge_fcnp::{
    ComputeCore, Config, IoNode, Mode,
    tree::{Held, HoldsLock, LockBox, TreeChannel},
};
use nicforge_hwi::tree::Header;

use super::{
    flow::{Endpoint, Receiver, Sender},
    task::{Path, Side, Task},
};

/// The class of routes for raw packets, which FCNP uses, too.
const ROUTE_CLASS: u32 = 0;
/// The greatest number of raw packets between two accesses to the doorbell.
const RAW_BATCH: usize = 8;

/// Opens `side`'s end of the task's path. For FCNP both sides must be opened at the same time.
pub(in crate::benches) fn open(
    side: Side,
    task: &Task,
    mut devices: Vec<Device>,
    cancel: &Cancel,
) -> Result<Box<dyn Endpoint + Send>, Failure> {
    let context = || format!("opening {} on the {} side", task.path.name(), side.name());
    let mode = if task.path == Path::FcnpIrq { Mode::Interrupt } else { Mode::Polling };
    let config = Config { mode, ..Config::default() };
    devices.truncate(task.compute_cores as usize);

    Ok(match (task.path, side) {
        (Path::Raw, _) => Box::new(Raw::open(first_device(devices)?, cancel).context(context)?),
        (_, Side::Io) => {
            let node = IoNode::open(first_device(devices)?, config).context(context)?;
            Box::new(Io { node, cancel: cancel.clone() })
        }
        _ => {
            let open = |device| {
                ComputeCore::open_until(device, config, Deadline::after(config.open_timeout), Some(cancel))
            };
            let cores = devices.into_iter().map(open).collect::<Result<_, _>>().context(context)?;
            Box::new(Compute { cores, cancel: cancel.clone() })
        }
    })
}

/// Returns the only device of a side.
fn first_device(devices: Vec<Device>) -> Result<Device, Failure> {
    devices.into_iter().next().ok_or_else(|| Failure::environment("no device was given"))
}

/// FCNP on the I/O node.
struct Io {
    node: IoNode,
    cancel: Cancel,
}

impl Endpoint for Io {
    fn sender(&self) -> Result<Box<dyn Sender + '_>, Failure> {
        Ok(Box::new(self))
    }

    fn receiver(&self) -> Result<Box<dyn Receiver + '_>, Failure> {
        Ok(Box::new(self))
    }
}

impl Sender for &Io {
    fn send(&mut self, core: u32, message: &[u8]) -> Result<(), Failure> {
        let sent = self.node.write_until(core, message, Deadline::never(), Some(&self.cancel));
        check_length(sent, message.len(), "writing to a core")
    }
}

impl Receiver for &Io {
    fn receive(&mut self, core: u32, message: &mut [u8]) -> Result<(), Failure> {
        let received = self.node.read_until(core, message, Deadline::never(), Some(&self.cancel));
        check_length(received, message.len(), "reading from a core")
    }
}

/// FCNP on a compute node.
struct Compute {
    cores: Vec<ComputeCore>,
    cancel: Cancel,
}

impl Endpoint for Compute {
    fn sender(&self) -> Result<Box<dyn Sender + '_>, Failure> {
        Ok(Box::new(self))
    }

    fn receiver(&self) -> Result<Box<dyn Receiver + '_>, Failure> {
        Ok(Box::new(self))
    }
}

impl Compute {
    /// Returns an open compute core by its number.
    fn core(&self, core: u32) -> Result<&ComputeCore, Failure> {
        self.cores
            .get(core as usize)
            .ok_or_else(|| Failure::environment(format!("compute core {core} is not open")))
    }
}

impl Sender for &Compute {
    fn send(&mut self, core: u32, message: &[u8]) -> Result<(), Failure> {
        let sent = self.core(core)?.write_until(message, Deadline::never(), Some(&self.cancel));
        check_length(sent, message.len(), "writing to the I/O node")
    }
}

impl Receiver for &Compute {
    fn receive(&mut self, core: u32, message: &mut [u8]) -> Result<(), Failure> {
        let received = self.core(core)?.read_until(message, Deadline::never(), Some(&self.cancel));
        check_length(received, message.len(), "reading from the I/O node")
    }
}

/// Checks that a message was moved completely.
fn check_length(
    moved: Result<usize, nicforge_fcnp::Error>,
    expected: usize,
    description: &'static str,
) -> Result<(), Failure> {
    let moved = moved.context(|| description.into())?;
    if moved == expected {
        return Ok(());
    }
    Err(Failure::result(format!("{description}: {moved} bytes instead of {expected}")))
}

/// Packets without FCNP's protocol. Both sides know the lengths of all messages.
struct Raw {
    channel: TreeChannel,
    /// Address of the other node.
    peer: u32,
    cancel: Cancel,
}

impl Raw {
    /// Opens the channel of a side of a pset with one compute node.
    fn open(device: Device, cancel: &Cancel) -> Result<Self, nicforge_fcnp::Error> {
        let channel = TreeChannel::open(device)?;
        let info = channel.info();
        // In a pset of one compute node, the I/O node's peer is the only other node.
        let peer = if info.address == info.io_node {
            (0..info.nodes).find(|&node| node != info.io_node).unwrap_or_default()
        } else {
            info.io_node
        };

        Ok(Self { channel, peer, cancel: cancel.clone() })
    }

    /// Makes one iteration of a waiting loop.
    fn wait_once(&self, relax: &mut Relax) -> Result<(), Failure> {
        self.cancel.check().context(|| "raw packets".into())?;
        self.channel.relax(relax).context(|| "raw packets".into())
    }

    /// Waits until a lock box is free, and takes it.
    fn lock<'a>(&self, lock: &'a LockBox) -> Result<Held<&'a LockBox>, Failure> {
        let mut relax = self.channel.device().new_relax();
        loop {
            if let Some(guard) = lock.try_lock(self.channel.owner()) {
                return Ok(guard);
            }
            self.wait_once(&mut relax)?;
        }
    }
}

impl Endpoint for Raw {
    fn sender(&self) -> Result<Box<dyn Sender + '_>, Failure> {
        let guard = self.lock(self.channel.send_lock())?;
        let interrupts = false;
        let header = Header::point_to_point(ROUTE_CLASS, self.peer, interrupts);
        Ok(Box::new(RawSender { raw: self, header, held: guard, relax: self.channel.device().new_relax() }))
    }

    fn receiver(&self) -> Result<Box<dyn Receiver + '_>, Failure> {
        let guard = self.lock(self.channel.receive_lock())?;
        let packets = self.channel.receiver(guard);
        Ok(Box::new(RawReceiver { raw: self, packets, relax: self.channel.device().new_relax() }))
    }
}

/// A sender's lock, lent to each of its batches.
struct SenderLock<'a>(&'a Held<&'a LockBox>);

impl HoldsLock for SenderLock<'_> {
    fn number(&self) -> u64 {
        self.0.number()
    }
}

/// Sends messages as packets. It holds the sender's lock all the time.
struct RawSender<'a> {
    raw: &'a Raw,
    header: Header,
    held: Held<&'a LockBox>,
    relax: Relax,
}

impl Sender for RawSender<'_> {
    fn send(&mut self, _: u32, message: &[u8]) -> Result<(), Failure> {
        let mut done = 0;
        while done < message.len() {
            let sent = self.raw.channel.send_batch(SenderLock(&self.held)).send_data(
                self.header,
                &message[done..],
                RAW_BATCH,
            );

            done += sent * nicforge_hwi::tree::PAYLOAD;
            if sent == 0 {
                self.raw.wait_once(&mut self.relax)?;
            } else {
                self.relax.reset();
            }
        }

        Ok(())
    }
}

/// Receives messages from packets. It holds the receiver's lock all the time.
struct RawReceiver<'a> {
    raw: &'a Raw,
    packets: nicforge_fcnp::tree::Receiver<'a, Held<&'a LockBox>>,
    relax: Relax,
}

impl Receiver for RawReceiver<'_> {
    fn receive(&mut self, _: u32, message: &mut [u8]) -> Result<(), Failure> {
        let mut done = 0;
        while done < message.len() {
            let taken = self.packets.take_data(&mut message[done..]);
            done += taken.packets * nicforge_hwi::tree::PAYLOAD;

            if taken.packets != 0 {
                self.relax.reset();
            } else if taken.control {
                return Err(Failure::result("a control packet came where there is no protocol"));
            } else {
                self.packets.publish();
                self.raw.wait_once(&mut self.relax)?;
            }
        }

        Ok(())
    }
}
