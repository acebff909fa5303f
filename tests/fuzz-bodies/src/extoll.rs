//! An EXTOLL card against hostile software on one of its VPIDs.
//!
//! The software writes arbitrary registers, commands of the address translation, RMA descriptors,
//! pieces of messages, records in its ring and pointers after it. It maps and unmaps memory, is
//! reset, and ends at any point. Checked: unregistered memory does not change, messages between
//! others arrive all, once and in order, and RMA works after the software is gone.

use std::{sync::Arc, time::Duration};

use nicforge_driver::{Deadline, Device, DmaBuffer, HugePages, OpenOptions, Poster, WriteMode};
use nicforge_hwi::{
    extoll::{BAR_VELO, REGISTERS, RING_CELLS, reg, window},
    extoll_atu::{command as atu, nla, page},
    extoll_rma::{COMMAND_BYTES, Command, command},
    extoll_velo::address,
    posted::CELL,
};
use nicforge_machine::in_process::LocalMachine;
use nicforge_rma::{Access, Notification, Notify, Options, Port, Region, Role, Status, Target};
use nicforge_velo as velo;
use zerocopy::IntoBytes;

use crate::{input::Input, world};

/// Maximum number of actions in one input.
const MAX: usize = 150;
/// Time limit of operations that must succeed.
const LIMIT: Duration = Duration::from_secs(60);
/// Time limit of a write of the hostile software.
const SHORT: Duration = Duration::from_millis(5);
/// Bytes of registered memory, which the hostile software may know.
const SHARED: usize = 1 << 16;
/// Bytes of unregistered memory.
const PRIVATE: usize = 1 << 13;
/// The value of bytes that no message may change.
const UNTOUCHED: u8 = 0xc5;
/// VPIDs of each card. The last one of node 0 is the hostile software's.
const VPIDS: u16 = 3;

/// Opens a VPID of a node's card.
fn open(machine: &Arc<LocalMachine>, node: u32, vpid: u16, options: OpenOptions) -> Device {
    let backing = machine.open_named(&format!("ex{node}"), &format!("vpid{vpid}")).unwrap();
    Device::open(backing, options).unwrap()
}

/// Runs the test body on one fuzz input. The module's documentation describes the steps.
pub fn body(data: &[u8]) {
    let mut input = Input::new(data);
    let times = "watchdog_ms = 1\nrma_watchdog_ms = 50\n";
    let machine = world::local(&format!("name = \"extoll\"\n[[extoll]]\nmesh = 2\nvpids = {VPIDS}\n{times}"));
    let mut sides = [0, 1].map(|node| Side::new(&machine, node));
    let mut traffic = Traffic::new(&machine);
    let known = sides.each_ref().map(|side| side.region.address());
    let mut hostile = Hostile::new(&machine, known, input.below(4) > 0);

    for _ in 0..MAX {
        if input.is_empty() {
            break;
        }

        match input.below(16) {
            0 if input.below(4) == 0 => {
                drop(hostile);
                hostile = Hostile::new(&machine, known, input.flag());
            }
            0..=1 => traffic.poll_once(u64::MAX),
            2 => sides.iter_mut().for_each(Side::drain_notifications),
            _ => hostile.act(&mut input),
        }

        machine.settle(input.below(8));
    }

    drop(hostile);
    traffic.finish(&machine);

    for (local, remote) in [(0, 1), (1, 0)] {
        transfer(&mut sides, local, remote);
    }

    for side in &sides {
        let mut bytes = vec![0; PRIVATE];
        side.private.read(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == UNTOUCHED), "unregistered memory was written");
    }
}

/// A well-behaved VPID.
struct Side {
    port: Port,
    /// The registration of `shared`.
    region: Region,
    shared: DmaBuffer,
    /// Memory that is not registered.
    private: DmaBuffer,
}

impl Side {
    /// Opens VPID 0 of a node, and registers memory.
    fn new(machine: &Arc<LocalMachine>, node: u32) -> Self {
        let device = open(machine, node, 0, OpenOptions::default());
        // Unregistered memory lies on both sides of the registered memory.
        let private = device.dma_buffer(PRIVATE, HugePages::Never).unwrap();
        private.write(0, &[UNTOUCHED; PRIVATE]).unwrap();

        let shared = device.dma_buffer(SHARED, HugePages::Never).unwrap();
        let port = Port::open(&device, Options { entries: 64, ..Options::default() }).unwrap();
        let region = port.register(&shared, Access::READ_WRITE).unwrap();

        Self { port, region, shared, private }
    }

    /// Receives all notifications. Puts of the hostile software may have caused some of them.
    fn drain_notifications(&mut self) {
        while self.notification().is_some() {}
    }

    /// Takes a notification, if one has arrived.
    fn notification(&mut self) -> Option<Notification> {
        // Lost notifications are reported once, as an error.
        let notification = self.port.probe().ok().flatten();
        if notification.is_some() {
            self.port.free().unwrap();
        }
        notification
    }

    /// Waits for a notification of `role` about a command between this side and VPID 0 of node
    /// `other`. It drops other notifications.
    fn expect_notification(&mut self, role: Role, other: u32) -> Notification {
        let deadline = Deadline::after(LIMIT);
        loop {
            assert!(!deadline.has_passed(), "no notification as the {role:?}");
            let _ = self.port.device().relax(&mut self.port.device().new_relax());
            if let Some(found) = self.notification()
                && (found.role, found.node, found.vpid) == (role, other, 0)
            {
                return found;
            }
        }
    }

    /// Returns the other side as the target of this side's commands.
    fn to(&self, other: &Self) -> Target {
        self.port.connect(other.port.node(), other.port.vpid()).unwrap()
    }
}

/// Checks a put and a get from one side to the other.
fn transfer(sides: &mut [Side; 2], local: usize, remote: usize) {
    sides.iter_mut().for_each(Side::drain_notifications);
    let target = sides[local].to(&sides[remote]);

    for length in [8, 3000, 20_000] {
        let (from, to) = (sides[local].region.address() + 5, sides[remote].region.address() + 30_001);
        let sent: Vec<_> = (0..length).map(|index| (index * 7 + local) as u8).collect();
        sides[local].shared.write(5, &sent).unwrap();
        sides[local].port.put(target, from, to, length as u64, Notify::COMPLETER).unwrap();

        let notification = sides[remote].expect_notification(Role::Completer, local as u32);
        assert_eq!(
            (notification.status, notification.length as usize, notification.address),
            (Status::Done, length, to)
        );

        let mut received = vec![0; length];
        sides[remote].shared.read(30_001, &mut received).unwrap();
        assert!(received == sent, "a put came as it was sent");

        sides[local].shared.write(5, &vec![0; length]).unwrap();
        sides[local].port.get(target, to, from, length as u64, Notify::COMPLETER).unwrap();
        let notification = sides[local].expect_notification(Role::Completer, remote as u32);

        assert_eq!((notification.status, notification.length as usize), (Status::Done, length));

        sides[local].shared.read(5, &mut received).unwrap();
        assert!(received == sent, "a get brought what was there");
    }
}

/// Messages from a process of node 1, which has no hostile process, to one of node 0.
struct Traffic {
    from: velo::Port,
    to: velo::Port,
    link: velo::PeerLink,
    sent: u64,
    received: u64,
}

impl Traffic {
    /// Opens VPID 1 of both nodes, and connects them.
    fn new(machine: &Arc<LocalMachine>) -> Self {
        let port = |node| {
            let device = open(machine, node, 1, OpenOptions::default());
            velo::Port::open(device, velo::Config::default()).unwrap()
        };
        let (mut from, mut to) = (port(1), port(0));
        let link = from.connect(to.address(), Deadline::after(LIMIT), None).unwrap();

        to.progress().unwrap();
        Self { from, to, link, sent: 0, received: 0 }
    }

    /// Sends a message if fewer than `maximum` were sent, and checks the received ones.
    fn poll_once(&mut self, maximum: u64) {
        if self.sent < maximum {
            match self.from.send_nb(self.link, 3, &self.sent.to_le_bytes()) {
                Ok(()) => self.sent += 1,
                Err(error) => assert_eq!(error, velo::Error::WouldBlock),
            }
        }

        // Neither port has connected to the hostile one, so none of its messages are for them.
        assert_eq!(self.from.poll().unwrap(), None);

        while let Some(message) = self.to.poll().unwrap() {
            assert_eq!((message.from, message.tag), (self.from.address(), 3));
            assert_eq!(message.quadword(0), self.received);
            self.received += 1;
        }
    }

    /// Sends some more messages, and waits until all have arrived.
    fn finish(&mut self, machine: &LocalMachine) {
        let (deadline, total) = (Deadline::after(LIMIT), self.sent + 100);
        while self.received < total {
            assert!(!deadline.has_passed(), "{} sent, {} received", self.sent, self.received);
            self.poll_once(total);
            machine.settle(8);
        }

        assert_eq!((self.from.check(), self.to.check()), (Ok(()), Ok(())));
    }
}

/// Software with a VPID of its own.
struct Hostile {
    device: Device,
    poster: Poster,
    buffers: Vec<DmaBuffer>,
    /// Addresses of registered memory: of the two well-behaved sides', then of its own.
    regions: Vec<u64>,
}

impl Hostile {
    /// Creates the software. If `ready`, VELO and RMA are set up correctly first, so that its
    /// actions get further.
    fn new(machine: &Arc<LocalMachine>, known: [u64; 2], ready: bool) -> Self {
        let options = OpenOptions { timeout: SHORT, ..OpenOptions::default() };
        let device = open(machine, 0, VPIDS - 1, options);
        let poster = device.poster(0).unwrap();
        let mut hostile = Self { poster, device, buffers: Vec::new(), regions: known.into() };
        if ready {
            hostile.prepare();
        }

        hostile
    }

    /// Sets up a receive ring of VELO and a notification queue of RMA, and registers memory.
    fn prepare(&mut self) {
        let buffer = |length| self.device.dma_buffer(length, HugePages::Never).unwrap();
        let (memory, ring, queue) = (buffer(SHARED), buffer(8192), buffer(4096));
        let registers = self.device.bar(0).unwrap();

        for (register, value) in [
            (reg::VELO_RING_BASE, ring.iova()),
            (reg::VELO_RING_SLOTS, 64),
            (reg::VELO_RING_ENABLE, 1),
            (reg::RMA_QUEUE_BASE, queue.iova()),
            (reg::RMA_QUEUE_ENTRIES, 64),
            (reg::RMA_QUEUE_ENABLE, 1),
            (atu::ADDRESS, memory.iova()),
            (atu::PAGES, SHARED as u64 >> page::shift(page::SIZE_4K)),
            (atu::COMMAND, atu::REGISTER | atu::READ | atu::WRITE),
        ] {
            registers.write64(register, value).unwrap();
        }

        assert_eq!(registers.read64(atu::STATUS).unwrap(), atu::DONE);

        self.regions.push(registers.read64(atu::RESULT).unwrap());
        self.buffers = vec![memory, ring, queue];
    }

    /// Performs one action of the software.
    fn act(&mut self, input: &mut Input<'_>) {
        match input.below(16) {
            // Registers
            0..=2 => {
                let (offset, value) = (Self::register(input), self.value(input));
                self.write(input, 0, offset, &value.to_le_bytes());
            }
            3 => self.enable(input),
            4..=5 => self.translate(input),

            // RMA commands, sometimes of a wrong length
            6..=8 => {
                let command = self.command(input);
                let length = if input.below(8) > 0 { COMMAND_BYTES } else { input.below(40) as usize };
                let mut bytes = command.as_bytes().to_vec();
                bytes.resize(length, 0);
                self.write(input, 0, reg::RMA_COMMAND, &bytes);
            }

            // VELO messages, sometimes at a wrong position
            9..=10 => {
                let (node, vpid) = (input.below(3), input.below(u32::from(VPIDS) + 1) as u16);
                let quadwords = 1 + input.below(8) as usize;
                let position = if input.flag() { 0 } else { input.below(64).into() };
                let offset = address::encode(node, vpid, input.below(16) as u8, quadwords) + position;
                let length = if input.below(4) > 0 { 8 * quadwords } else { input.below(70) as usize };
                let mut message = vec![0; length];
                let bytes = input.bytes(length.min(8));
                message[..bytes.len()].copy_from_slice(bytes);
                self.write(input, BAR_VELO, offset, &message);
            }

            // Words of the ring and the pointers after it
            11 => {
                let words = (u64::from(RING_CELLS) * CELL as u64 + window::SIZE) / 8;
                let word = match input.below(4) {
                    0 => u64::from(input.u16()) % words,
                    1 => u64::from(input.below(64)),
                    2 => window::VELO_READ_POINTER / 8,
                    _ => window::RMA_READ_POINTER / 8,
                };
                self.device.bar(1).unwrap().write64(8 * word, input.number()).unwrap();
                self.device.doorbell().after_store().unwrap();
            }

            // Mapped memory
            12 if self.buffers.len() < 4 => {
                let length = input.pick(&[4096, 8192, 1 << 16, 1 << 21]);
                self.buffers.push(self.device.dma_buffer(length, HugePages::Never).unwrap());
            }
            12 | 13 if !self.buffers.is_empty() => {
                let index = input.below(self.buffers.len() as u32) as usize;
                drop(self.buffers.swap_remove(index));
            }

            // Resets and reads
            14 if input.below(8) == 0 => drop(self.device.reset()),
            _ => {
                let mut data = vec![0; input.pick(&[8, 8, 8, 4, 1, 16, 64])];
                let (bar, offset) = match input.below(4) {
                    0..=2 => (0, Self::register(input)),
                    _ => (input.below(7), input.number()),
                };
                let _ = self.device.backing().read(bar, offset, &mut data);
            }
        }
    }

    /// Writes through the posted-write ring or by a trapped access. Invalid writes are refused.
    fn write(&mut self, input: &mut Input<'_>, bar: u8, offset: u64, data: &[u8]) {
        if input.below(4) > 0 {
            let _ = self.poster.try_post(bar, offset, data);
        } else {
            let _ = self.device.backing().write(bar.into(), offset, data, WriteMode::Confirmed);
        }
    }

    /// Returns the offset of a register, mostly of an existing one.
    fn register(input: &mut Input<'_>) -> u64 {
        match input.below(8) {
            0 => u64::from(input.u16()) % REGISTERS,
            1 => reg::ADMIN + u64::from(input.below(0x60)) * 8,
            2..=3 => reg::ATU + u64::from(input.below(6)) * 8,
            4 => reg::INTERRUPT_ENABLE + u64::from(input.below(3)) * 8,
            5 => reg::RMA_QUEUE_BASE + u64::from(input.below(3)) * 8,
            _ => reg::VELO_RING_BASE + u64::from(input.below(4)) * 8,
        }
    }

    /// Returns an address in the hostile software's memory, one of a region, or any number.
    fn value(&self, input: &mut Input<'_>) -> u64 {
        match input.below(4) {
            0 => match self.buffers.len() {
                0 => 0,
                count => {
                    let buffer = &self.buffers[input.below(count as u32) as usize];
                    buffer.iova() + u64::from(input.below(0x2000)) * u64::from(input.flag())
                }
            },
            1 => self.region(input),
            _ => input.number(),
        }
    }

    /// Returns a network logical address, usually of a region.
    fn region(&self, input: &mut Input<'_>) -> u64 {
        let region = if input.below(8) > 0 {
            self.regions[input.below(self.regions.len() as u32) as usize]
        } else {
            nla::of_entry(input.pick(&[0, 0, 0, 1, 2, 3]), input.below(64))
        };
        region + u64::from(input.u16()) * u64::from(input.flag())
    }

    /// Sets up a receive ring or a queue correctly, and enables or disables it.
    fn enable(&mut self, input: &mut Input<'_>) {
        let [base, size, enable] = if input.flag() {
            [reg::VELO_RING_BASE, reg::VELO_RING_SLOTS, reg::VELO_RING_ENABLE]
        } else {
            [reg::RMA_QUEUE_BASE, reg::RMA_QUEUE_ENTRIES, reg::RMA_QUEUE_ENABLE]
        };

        let base_value = self.buffers.first().map_or_else(|| input.number(), DmaBuffer::iova);
        let size_value = if input.below(4) > 0 { 64 } else { input.number() };
        for (register, value) in
            [(base, base_value), (size, size_value), (enable, input.below(4).min(1).into())]
        {
            self.write(input, 0, register, &value.to_le_bytes());
        }
    }

    /// Registers or deregisters memory, mostly by a command that could succeed.
    fn translate(&mut self, input: &mut Input<'_>) {
        let class = input.pick(&[0, 0, 0, 1, 2, 3]);
        let (operation, address) = if input.below(4) > 0 {
            (atu::REGISTER, self.buffers.first().map_or(0, DmaBuffer::iova))
        } else {
            (atu::DEREGISTER, self.region(input))
        };

        let address = if input.below(4) > 0 { address } else { self.value(input) };
        let pages = if input.below(4) > 0 { 1 } else { input.number() };
        let access = u64::from(input.below(4)) << 8;
        let command = operation | class << atu::CLASS_SHIFT | access;

        for (register, value) in [
            (atu::ADDRESS, address),
            (atu::PAGES, pages),
            (atu::OWNER, input.below(4).into()),
            (atu::COMMAND, command),
        ] {
            self.write(input, 0, register, &value.to_le_bytes());
        }
    }

    /// Returns an RMA command, mostly a correct transfer with one of the well-behaved sides.
    fn command(&self, input: &mut Input<'_>) -> Command {
        let (node, vpid) = match input.below(8) {
            0..=4 => (input.below(2), 0),
            _ => (input.below(3), input.below(u32::from(VPIDS) + 1) as u16),
        };
        let length = match input.below(4) {
            0..=1 => 1 + input.below(64),
            2 => input.below(1 << 16),
            _ => input.number32(),
        };

        // No operation has the numbers 0 and 4.
        let [put, get, immediate] = [command::PUT, command::GET, command::IMMEDIATE_PUT];
        let operation = input.pick(&[put, get, immediate, put, get, immediate, 0, 4]);
        let notify = input.u8() & 7;

        let (source, destination) = if input.below(4) > 0 {
            // A correct transfer between memory of this software and the target's.
            let [own_memory, target_memory] =
                [self.regions[self.regions.len() - 1], self.regions[node as usize % 2]]
                    .map(|region| region + u64::from(input.below(4096)));
            if operation == command::GET { (target_memory, own_memory) } else { (own_memory, target_memory) }
        } else {
            (self.region(input), self.value(input))
        };

        let mut command = Command::new(node, vpid, operation, notify, length, source, destination);
        if input.below(64) == 1 {
            command.head |= Command::RESERVED;
        }
        command
    }
}
