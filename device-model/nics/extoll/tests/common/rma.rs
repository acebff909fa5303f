//! RMA from a client's point of view: memory, registrations, descriptors, notifications.

use nicforge_core::{
    dma::DmaPermission,
    machine::{Access, Next},
    time::Nanos,
};
use nicforge_hwi::{
    extoll::{reg, window},
    extoll_atu::{command as atu, nla, page},
    extoll_rma::{Command, Notification, command},
};
use nicforge_shm::SharedMemory;
use zerocopy::IntoBytes;

use super::{Client, Rig};

/// IOVA of each client's notification queue.
pub(crate) const QUEUE_BASE: u64 = 0x4000_0000;
/// IOVA of each client's memory for transfers.
pub(crate) const DATA_BASE: u64 = 0x8000_0000;
/// Permissions of memory that all VPIDs may read and write.
pub(crate) const OPEN_TO_ALL: u64 = atu::READ | atu::WRITE;

/// A client with a notification queue and memory.
pub(crate) struct Peer {
    pub(crate) client: Client,
    pub(crate) queue: SharedMemory,
    /// Number of entries of the queue.
    pub(crate) entries: u64,
    /// Number of notifications taken out of the queue.
    pub(crate) taken: u64,
    pub(crate) memory: SharedMemory,
    /// Network logical address (NLA) of the memory, if [`Rig::peer`] registered it.
    pub(crate) nla: u64,
}

impl Rig {
    /// Attaches a client with a queue of 64 entries, and `bytes` of memory that all VPIDs may
    /// access.
    pub(crate) fn peer(&mut self, node: u32, vpid: u16, bytes: u64) -> Peer {
        let client = self.attach(node, vpid);
        self.with_registered_memory(client, bytes)
    }

    /// As [`Rig::peer`], without a step of the machine.
    pub(crate) fn peer_at_once(&mut self, node: u32, vpid: u16, bytes: u64) -> Peer {
        let client = self.attach_at_once(node, vpid);
        self.with_registered_memory(client, bytes)
    }

    /// Adds a queue of 64 entries to a client, and `bytes` of memory that all VPIDs may access.
    fn with_registered_memory(&mut self, client: Client, bytes: u64) -> Peer {
        let mut peer = self.with_queue(client, bytes, 64);
        peer.nla = self.register(&peer.client, DATA_BASE, bytes / 4096, page::SIZE_4K, OPEN_TO_ALL).unwrap();
        peer
    }

    /// Attaches a client with a queue and memory that is not registered.
    pub(crate) fn unregistered_peer(&mut self, node: u32, vpid: u16, bytes: u64, entries: u64) -> Peer {
        let client = self.attach(node, vpid);
        self.with_queue(client, bytes, entries)
    }

    /// Adds a queue to a client, and memory that is not registered.
    fn with_queue(&mut self, client: Client, bytes: u64, entries: u64) -> Peer {
        let queue = self.map(&client, QUEUE_BASE, (entries * 16).next_multiple_of(4096));
        let memory = self.map(&client, DATA_BASE, bytes);

        self.write64(&client, reg::RMA_QUEUE_BASE, QUEUE_BASE);
        self.write64(&client, reg::RMA_QUEUE_ENTRIES, entries);
        self.write64(&client, reg::RMA_QUEUE_ENABLE, 1);

        assert_eq!(self.read64(&client, reg::RMA_QUEUE_ENABLE), 1);
        Peer { client, queue, entries, taken: 0, memory, nla: 0 }
    }

    /// Maps new memory for DMA, for reading and writing.
    pub(crate) fn map(&mut self, client: &Client, iova: u64, bytes: u64) -> SharedMemory {
        self.map_for(client, iova, bytes, DmaPermission::READ_WRITE)
    }

    /// Maps new memory for DMA with these permissions.
    pub(crate) fn map_for(
        &mut self,
        client: &Client,
        iova: u64,
        bytes: u64,
        permission: DmaPermission,
    ) -> SharedMemory {
        client.id().map_for(&mut self.machine, iova, bytes as usize, permission)
    }

    /// Carries out an address translation command with an owner (VPID), an address and a number of
    /// pages. Returns its status.
    pub(crate) fn translate(
        &mut self,
        client: &Client,
        (owner, address, pages): (u16, u64, u64),
        command: u64,
    ) -> u64 {
        self.write64(client, atu::OWNER, owner.into());
        self.write64(client, atu::ADDRESS, address);
        self.write64(client, atu::PAGES, pages);
        self.write64(client, atu::COMMAND, command);
        self.read64(client, atu::STATUS)
    }

    /// Registers memory of a client: pages of the size `class`, with the permissions `others` for
    /// other VPIDs. Returns the NLA or the status of the failure.
    pub(crate) fn register(
        &mut self,
        client: &Client,
        iova: u64,
        pages: u64,
        class: u8,
        others: u64,
    ) -> Result<u64, u64> {
        let command = atu::REGISTER | u64::from(class) << atu::CLASS_SHIFT | others;
        match self.translate(client, (client.vpid, iova, pages), command) {
            atu::DONE => Ok(self.read64(client, atu::RESULT)),
            status => Err(status),
        }
    }

    /// Registers and deregisters until all entries were granted once. The next registration gets
    /// the first free entries of the table.
    pub(crate) fn grant_all_entries_once(&mut self, client: &Client, iova: u64, pages: u64) {
        let entries = page::entries(page::SIZE_4K);
        loop {
            let nla = self.register(client, iova, pages, page::SIZE_4K, 0).unwrap();
            assert_eq!(self.deregister(client, nla), atu::DONE);
            if nla >= nla::of_entry(page::SIZE_4K, entries - pages as u32) {
                return;
            }
        }
    }

    /// Deregisters memory of a client and returns the status.
    pub(crate) fn deregister(&mut self, client: &Client, nla: u64) -> u64 {
        self.translate(client, (client.vpid, nla, 0), atu::DEREGISTER)
    }

    /// Writes a descriptor. Returns false if it stalls.
    pub(crate) fn post(&mut self, peer: &Peer, command: Command) -> bool {
        let id = peer.client.id();
        id.try_write(&mut self.machine, 0, reg::RMA_COMMAND, command.as_bytes()).unwrap() == Access::Done
    }

    /// Puts `length` bytes at offset `source` of `from`'s memory to offset `destination` of `to`'s.
    pub(crate) fn put(
        &mut self,
        from: &Peer,
        to: &Peer,
        (source, destination, length): (u64, u64, u32),
        notify: u8,
    ) -> bool {
        let command = Command::new(
            to.client.node,
            to.client.vpid,
            command::PUT,
            notify,
            length,
            from.nla + source,
            to.nla + destination,
        );
        self.post(from, command)
    }

    /// Gets `length` bytes at offset `source` of `from`'s memory to offset `destination` of `to`'s;
    /// `to` is the requester.
    pub(crate) fn get(
        &mut self,
        to: &Peer,
        from: &Peer,
        (source, destination, length): (u64, u64, u32),
        notify: u8,
    ) -> bool {
        let command = Command::new(
            from.client.node,
            from.client.vpid,
            command::GET,
            notify,
            length,
            from.nla + source,
            to.nla + destination,
        );
        self.post(to, command)
    }

    /// Steps every function once, and advances time to the fabric's next event if nothing moved.
    pub(crate) fn step_once(&mut self) {
        if self.machine.step(1) != Next::Now {
            let next = self.machine.fabric().next_event();
            if next != Nanos::NEVER {
                self.machine.advance_to(next);
            }
        }
    }
}

impl Peer {
    /// Takes a notification, without moving the read pointer.
    pub(crate) fn take(&mut self) -> Option<Notification> {
        let entry = self.queue.window(self.taken % self.entries * 16, 16).unwrap();
        let head = entry.load_u64_acquire(0).unwrap();
        if head == 0 {
            return None;
        }

        let address = entry.load_u64_relaxed(8).unwrap();
        entry.store_u64_release(0, 0).unwrap();
        self.taken += 1;
        Some(Notification { head, address })
    }

    /// Moves the read pointer after the notifications taken.
    pub(crate) fn store_read_pointer(&self) {
        let pointer = self.client.windows.window(window::RMA_READ_POINTER, 8).unwrap();
        pointer.store_u64_release(0, self.taken).unwrap();
    }

    /// Takes all notifications, and moves the read pointer.
    pub(crate) fn take_all(&mut self) -> Vec<Notification> {
        let all: Vec<_> = std::iter::from_fn(|| self.take()).collect();
        self.store_read_pointer();
        all
    }

    /// Takes all notifications, and returns the role and status of each.
    pub(crate) fn outcomes(&mut self) -> Vec<(u8, u8)> {
        self.take_all().iter().map(|notified| (notified.role(), notified.status())).collect()
    }

    /// Writes bytes of the memory.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        self.memory.write(offset, bytes).unwrap();
    }

    /// Returns bytes of the memory.
    pub(crate) fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.read(offset, &mut bytes).unwrap();
        bytes
    }
}
