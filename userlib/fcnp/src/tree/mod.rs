//! The packet layer: the user virtual channel of a tree NIC, as seen by one core of a node.
//!
//! A [`TreeChannel`] is opened on a [`Device`] that is an attachment of a tree NIC
//! ([`nicforge_hwi::tree`] has the layout). It touches BARs 3 and 4 and the interrupt enable
//! register, and knows nothing of FCNP.
//!
//! - [`SendBatch`] and [`Receiver`] move packets through the mapped slots. Each exists only while
//!   its lock is held ([`Held`]).
//! - [`LockBox`] is mutual exclusion between the cores, processes and threads of a node.
//! - [`Generation`] is an entry of the presence table: the processes that are up in the machine.
//!
//! # Memory order
//! The sender writes a slot's payload, and then its control word with release order. The NIC and
//! the receiver load the control word with acquire order before they read the payload. A receiver
//! finishes its loads of a payload before it stores `RECV_HEAD` with release order. Stores are
//! followed by one check of the doorbell for each batch.

mod lockbox;
mod presence;
mod receive;
mod send;

use std::sync::atomic::Ordering;

use nicforge_driver::{Device, Doorbell, Interrupt, Relax};
use nicforge_hwi::{
    tree::{
        BAR_MIRROR, BAR_WINDOW, CORES, MAX_FIFO_DEPTH, MAX_NODES, PAYLOAD, SLOT, SLOT_CONTROL, SLOT_PAYLOAD,
        VC_USER, mirror, vector, window,
    },
    tree_dcr::REG_INT_ENABLE,
};
use nicforge_shm::{SharedU32, Slots, Window};

pub(crate) use self::presence::PresenceWatch;
pub use self::{
    lockbox::{Held, HoldsLock, LockBox, thread_number},
    presence::Generation,
    receive::{Receiver, Taken},
    send::SendBatch,
};
use self::{receive::ReceivePort, send::SendPort};
use crate::Error;

/// The packet slots of a FIFO.
type PacketSlots = Slots<{ SLOT as usize }, { SLOT_PAYLOAD as usize }, PAYLOAD>;
const _: () = assert!(SLOT_CONTROL == 0, "the control word is where PacketSlots has it");

/// The mirror's rank of a node that is not a compute node.
const NO_RANK: u32 = u32::MAX;

/// The position of a channel in the machine, from the mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// Address of this node, 0 to 1023.
    pub address: u32,
    /// Number of this core on its node: the attachment's number, 0 to 3.
    pub core: u16,
    /// Number of addresses in use in the machine.
    pub nodes: u32,
    /// Address of the pset's I/O node.
    pub io_node: u32,
    /// Rank of this node among the compute nodes of its pset, or `None` on the I/O node.
    pub pset_rank: Option<u32>,
    /// Number of compute nodes in the pset.
    pub pset_size: u32,
    /// Number of packets that the send FIFO holds: a power of two.
    pub send_depth: u32,
    /// Number of packets that the receive FIFO holds: a power of two.
    pub recv_depth: u32,
}

/// The user virtual channel of a tree NIC.
#[derive(Debug)]
pub struct TreeChannel {
    info: NodeInfo,
    send: SendPort,
    receive: ReceivePort,
    lock_send: LockBox,
    lock_receive: LockBox,
    shared: Window,
    presence: Window,
    presence_changes: SharedU32,
    doorbell: Doorbell,
    device: Device,
}

impl TreeChannel {
    /// Maps the windows of `device`. The channel takes ownership of the device.
    ///
    /// # Errors
    /// Returns [`Error::WrongDevice`] when the device is not a core of a tree NIC. Returns
    /// [`Error::BadDevice`] when its mirror shows invalid values, such as a FIFO depth that is not
    /// a power of two. Returns [`Error::Device`] when the driver fails.
    pub fn open(device: Device) -> Result<Self, Error> {
        let windows = device.bar(BAR_WINDOW)?.window(0, window::SIZE)?;
        let mirrors = device.bar(BAR_MIRROR)?.window(0, mirror::SIZE)?;
        let info = read_info(&device, &mirrors)?;
        let doorbell = device.doorbell();

        Ok(Self {
            send: SendPort::new(&windows, &mirrors, info.send_depth)?,
            receive: ReceivePort::new(&windows, &mirrors, info.recv_depth)?,
            lock_send: LockBox::new(&windows, window::LOCK_SEND)?,
            lock_receive: LockBox::new(&windows, window::LOCK_RECV)?,
            shared: windows.window(window::SRAM, window::SRAM_SIZE)?,
            presence: mirrors.window(mirror::PRESENCE, u64::from(MAX_NODES) * 4)?,
            presence_changes: mirrors.u32(mirror::PRESENCE_CHANGES)?,
            info,
            doorbell,
            device,
        })
    }

    /// Returns the channel's position in the machine.
    pub fn info(&self) -> &NodeInfo {
        &self.info
    }

    /// Returns the device below.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the memory that the cores of the node share, [`window::SRAM_SIZE`] bytes. The NIC
    /// never reads it.
    pub fn shared(&self) -> &Window {
        &self.shared
    }

    /// Returns the lock box that guards the send FIFO.
    pub fn send_lock(&self) -> &LockBox {
        &self.lock_send
    }

    /// Returns the lock box that guards the receive FIFO.
    pub fn receive_lock(&self) -> &LockBox {
        &self.lock_receive
    }

    /// Returns the value that identifies the calling thread as the owner of a lock box.
    pub fn owner(&self) -> u32 {
        lockbox::owner_word(self.info.core, thread_number())
    }

    /// Starts to send. `guard` is the lock of [`TreeChannel::send_lock`], which the batch keeps
    /// until it is dropped.
    #[inline]
    pub fn send_batch<G: HoldsLock>(&self, guard: G) -> SendBatch<'_, G> {
        debug_assert_eq!(guard.number(), window::LOCK_SEND);
        SendBatch::begin(&self.send, &self.doorbell, guard)
    }

    /// Starts to receive. `guard` is the lock of [`TreeChannel::receive_lock`], which the receiver
    /// keeps until it is dropped.
    #[inline]
    pub fn receiver<G: HoldsLock>(&self, guard: G) -> Receiver<'_, G> {
        debug_assert_eq!(guard.number(), window::LOCK_RECV);
        Receiver::begin(&self.receive, &self.doorbell, guard)
    }

    /// Returns the number of packets that the NIC has put into the receive slots, modulo 2^32.
    #[inline]
    pub fn received(&self) -> u32 {
        self.receive.tail()
    }

    /// Returns the generation of core `core` of node `node`. A core that the machine does not have
    /// is down.
    #[inline]
    pub fn presence(&self, node: u32, core: u16) -> Generation {
        self.node_presence(node)[usize::from(core % CORES)]
    }

    /// Returns the generations of the cores of a node.
    #[inline]
    pub fn node_presence(&self, node: u32) -> [Generation; CORES as usize] {
        let word =
            if node < self.info.nodes { self.presence.load_u32_acquire(u64::from(node) * 4) } else { Ok(0) };
        word.unwrap_or(0).to_le_bytes().map(Generation)
    }

    /// Returns a count that increases whenever a presence entry has changed.
    #[inline]
    pub fn presence_changes(&self) -> u32 {
        self.presence_changes.load(Ordering::Acquire)
    }

    /// Pauses for one iteration of a waiting loop.
    ///
    /// # Errors
    /// Returns [`Error::Device`] when the device is gone.
    #[inline]
    pub fn relax(&self, relax: &mut Relax) -> Result<(), Error> {
        Ok(self.device.relax(relax)?)
    }

    /// Binds the interrupt that is raised while an irq-marked packet is in the receive FIFO.
    ///
    /// # Errors
    /// Returns [`Error::Device`].
    pub fn receive_interrupt(&self) -> Result<Interrupt, Error> {
        Ok(self.device.interrupt(vector::RECV_IRQ.into())?)
    }

    /// Enables or disables the interrupt of [`TreeChannel::receive_interrupt`]. Enabling raises it
    /// at once if an irq-marked packet is in the receive FIFO.
    ///
    /// # Errors
    /// Returns [`Error::Device`].
    pub fn enable_receive_interrupt(&self, enable: bool) -> Result<(), Error> {
        let bits = if enable { 1_u32 << vector::RECV_IRQ } else { 0 };
        self.device.bar(0)?.posted_write(REG_INT_ENABLE, &bits.to_le_bytes())?;
        Ok(())
    }
}

/// Reads the channel's position from the mirror, and checks its values.
fn read_info(device: &Device, mirrors: &Window) -> Result<NodeInfo, Error> {
    let load = |offset| mirrors.load_u32_acquire(offset);
    // `what` names the value in an error.
    let checked = |what, offset, minimum: u32, maximum: u32| -> Result<u32, Error> {
        let value = load(offset)?;
        if (minimum..=maximum).contains(&value) {
            Ok(value)
        } else {
            Err(Error::BadDevice { what, value: value.into() })
        }
    };

    // Packets are numbered modulo 2^32, and lie in slot (number modulo depth). The number alone
    // determines the slot only if the depth divides 2^32.
    let depth = |what, offset| {
        let value = checked(what, offset, 1, MAX_FIFO_DEPTH)?;
        if value.is_power_of_two() { Ok(value) } else { Err(Error::BadDevice { what, value: value.into() }) }
    };

    let attachment = device.attachment();
    let channel = load(mirror::CHANNEL)?;
    if attachment >= u32::from(CORES) || channel != VC_USER as u32 {
        return Err(Error::WrongDevice {
            expected: "a core of a tree NIC",
            found: format!("attachment {attachment}, virtual channel {channel}"),
        });
    }

    let nodes = checked("a number of nodes of", mirror::NODES, 1, MAX_NODES)?;
    let pset_size = checked("a pset size of", mirror::PSET_SIZE, 1, MAX_NODES)?;
    let pset_rank = match load(mirror::PSET_RANK)? {
        NO_RANK => None,
        rank if rank < pset_size => Some(rank),
        rank => return Err(Error::BadDevice { what: "a rank in the pset of", value: rank.into() }),
    };

    Ok(NodeInfo {
        address: checked("a node address of", mirror::NODE_ADDRESS, 0, nodes - 1)?,
        core: attachment as u16,
        nodes,
        io_node: checked("an I/O node address of", mirror::IO_NODE, 0, nodes - 1)?,
        pset_rank,
        pset_size,
        send_depth: depth("a send FIFO depth of", mirror::SEND_DEPTH)?,
        recv_depth: depth("a receive FIFO depth of", mirror::RECV_DEPTH)?,
    })
}

#[cfg(test)]
mod tests;
