//! An arbitrary driver of the virtio network device: registers, rings, descriptors and memory of
//! any kind. Another device on the same switch continues, and after a reset both exchange a frame.

use nicforge_core::{
    device::Ended,
    dma::{DmaBacking, DmaPermission},
    ids::{AttachmentId, FunctionId},
    machine::{Machine, Next, region},
    time::Nanos,
};
use nicforge_shm::SharedMemory;
use nicforge_virtio_net::{
    MacAddress, NicConfig, Switch, SwitchConfig, VirtioNet,
    nic::{HOLD, LINGER},
    registers::*,
};

use crate::input::Input;

/// Maximum number of actions in one input.
const MAX: usize = 300;
/// Steps after which a machine that is still busy never comes to rest.
const MANY_STEPS: usize = 10_000;
/// Granularity of DMA mappings.
const PAGE: u64 = 4096;
/// The device with the arbitrary driver.
const VICTIM: FunctionId = FunctionId(0);
/// The device whose driver keeps the rules.
const OTHER: FunctionId = FunctionId(1);
/// The switch between the two devices.
const SWITCH: FunctionId = FunctionId(2);
/// The only attachment of each device.
const USER: AttachmentId = AttachmentId(0);
/// Packets on a link in each direction.
const CREDITS: u32 = 4;
/// Entries of the queues of a driver that keeps the rules.
const ENTRIES: u16 = 8;
/// Pages of a driver's memory. Its first address is that of the second page.
const PAGES: u64 = 8;
const BASE: u64 = PAGE;

/// Places of a queue's parts in a driver's memory: one queue in each half.
const HALF: u64 = PAGES / 2 * PAGE;
const AVAILABLE: u64 = 0x400;
const USED: u64 = 0x800;
const TABLES: u64 = 0xc00;
const BUFFERS: u64 = 0x1000;
/// Bytes of a buffer.
const BUFFER: u64 = 0x600;

/// Flags of a descriptor (virtio specification, 2.7.5).
const NEXT: u16 = 1;
const WRITE: u16 = 2;

/// A machine of two devices on a switch.
struct Net {
    machine: Machine,
    now: Nanos,
    memories: [SharedMemory; 2],
}

/// Runs the test body on one fuzz input. The module's documentation describes the steps.
pub fn body(data: &[u8]) {
    let mut input = Input::new(data);
    let mut net = Net::new();
    net.start(VICTIM, LEAST);
    net.start(OTHER, LEAST);

    for _ in 0..MAX {
        if input.is_empty() {
            break;
        }
        act(&mut net, &mut input);
        assert!(net.machine.fabric().packets_in_use() <= 4 * CREDITS as usize);
    }

    net.recover();
}

/// The fewest features that a driver may accept.
const LEAST: u64 = feature::VERSION_1;
/// Value of the PCI command register that lets the device use memory and DMA.
const MEMORY_AND_DMA: u16 = 6;

/// Performs one action of the arbitrary driver, sends a frame to it, or lets the machine step.
fn act(net: &mut Net, input: &mut Input<'_>) {
    match input.below(16) {
        0 | 1 => registers(net, input),
        2 => net.start(VICTIM, input.pick(&[LEAST, feature::OFFERED, LEAST | feature::EVENT_INDEX])),
        3 | 4 => descriptor(net, input),
        5 | 6 => available(net, input),
        7 => {
            let length = input.below(40) as usize;
            let at = u64::from(input.below((PAGES * PAGE) as u32 - 40));
            let bytes = input.bytes(length).to_vec();
            net.memories[0].write(at, &bytes).unwrap();
        }
        8 => net.write(VICTIM, 0, NOTIFY + 4 * u64::from(input.below(3)), &[0, 0]),
        9 => {
            let (address, length) = (MacAddress::derived(input.below(3)), input.below(1600) as usize);
            if net.may_send(OTHER) {
                net.send(OTHER, address, length);
            }
        }
        10 => remap(net, input),
        11 => {
            let command = input.pick(&[MEMORY_AND_DMA, MEMORY_AND_DMA, 2, 0]);
            net.write(VICTIM, region::CONFIG, 4, &command.to_le_bytes());
        }
        12 => match input.below(8) {
            0 => net.machine.reset_attachment(VICTIM, USER).unwrap(),
            1 => net.machine.reset_function(VICTIM).unwrap(),
            2 => net.machine.reset_function(SWITCH).unwrap(),
            3 => {
                net.machine.detach(VICTIM, USER, Ended::Closed).unwrap();
                net.attach(VICTIM);
            }
            _ => net.write(VICTIM, 0, common::STATUS, &[0]),
        },
        _ => {
            let time = input.pick(&[0, 1_000, LINGER, HOLD]);
            net.now = net.now.after(time);
            net.machine.step(net.now, input.pick(&[1, 4, 64]));
        }
    }
}

/// Reads or writes a register, through the BAR or configuration space.
fn registers(net: &mut Net, input: &mut Input<'_>) {
    let (region, offset) = match input.below(8) {
        0..=3 => (0, u64::from(input.below(common::SIZE as u32))),
        4 => (0, input.pick(&[ISR, DEVICE, NOTIFY, u64::from(MSIX_TABLE)]) + u64::from(input.below(16))),
        5 | 6 => (region::CONFIG, u64::from(input.below(0x100))),
        _ => (0, input.number() % BAR_SIZE),
    };
    let width = input.pick(&[1, 2, 4, 8, 4, 2, 64, 3]);

    if input.flag() {
        let mut data = vec![0; width];
        let _ = net.machine.read(VICTIM, USER, region, offset, &mut data);
    } else {
        let mut data = vec![0; width];
        let bytes = input.bytes(width.min(8));
        data[..bytes.len()].copy_from_slice(bytes);
        let _ = net.machine.write(VICTIM, USER, region, offset, &data);
    }
}

/// Returns the offset of one of the two queues in its driver's memory.
fn queue_offset(input: &mut Input<'_>) -> u64 {
    if input.flag() { HALF } else { 0 }
}

/// Writes a descriptor of a queue's table or of an indirect one.
fn descriptor(net: &mut Net, input: &mut Input<'_>) {
    let table = queue_offset(input) + if input.flag() { 0 } else { TABLES };
    let at = table + 16 * u64::from(input.below(ENTRIES.into()));
    let iova = match input.below(8) {
        0..=4 => BASE + u64::from(input.below((PAGES * PAGE) as u32)),
        5 | 6 => BASE + queue_offset(input) + TABLES,
        _ => input.number(),
    };
    let length = match input.below(4) {
        0 | 1 => input.below(BUFFER as u32 + 20),
        2 => 16 * input.below(20),
        _ => input.number32(),
    };
    let flags = input.pick(&[0, NEXT, WRITE, NEXT | WRITE, 4, 5, 7, u16::MAX]);
    let next = if input.below(8) > 0 { input.below(u32::from(ENTRIES) + 1) as u16 } else { input.u16() };

    net.put_descriptor(VICTIM, at, (iova, length, flags, next));
}

/// Changes the available ring of a queue.
fn available(net: &mut Net, input: &mut Input<'_>) {
    let ring = queue_offset(input) + AVAILABLE;
    let head = if input.below(8) > 0 { input.below(ENTRIES.into()) as u16 } else { input.u16() };
    let entry = u64::from(input.below(u32::from(ENTRIES) + 1));
    net.memories[0].write(ring + 4 + 2 * entry, &head.to_le_bytes()).unwrap();

    let mut index = [0; 2];
    net.memories[0].read(ring + 2, &mut index).unwrap();
    let advance = if input.below(8) > 0 { input.below(3) as u16 } else { input.u16() };
    let index = u16::from_le_bytes(index).wrapping_add(advance);
    net.memories[0].write(ring + 2, &index.to_le_bytes()).unwrap();
}

/// Maps pages of the driver's memory with other permissions or another backing, or unmaps them.
fn remap(net: &mut Net, input: &mut Input<'_>) {
    let (page, pages) = (u64::from(input.below(PAGES as u32)), u64::from(1 + input.below(3)));
    let (iova, length) = (BASE + page * PAGE, pages * PAGE);
    let _ = net.machine.dma_unmap(VICTIM, USER, iova, length);

    let permission = input.pick(&[DmaPermission::READ, DmaPermission::WRITE, DmaPermission::READ_WRITE]);
    let backing = match net.memories[0].window(page * PAGE, length) {
        Ok(window) if input.below(4) > 0 => DmaBacking::Memory(window),
        _ => DmaBacking::Remote,
    };
    if input.below(4) > 0 {
        let _ = net.machine.dma_map(VICTIM, USER, iova, length, permission, backing);
    }
}

impl Net {
    fn new() -> Self {
        let mut machine = Machine::new();
        for number in 0..2 {
            let nic = VirtioNet::new(NicConfig::new(MacAddress::derived(number))).unwrap();
            machine.add_function(&format!("en{number}"), Box::new(nic)).unwrap();
        }
        let switch = Switch::new(SwitchConfig { addresses: 8, ..SwitchConfig::default() }).unwrap();
        machine.add_function("sw0", Box::new(switch)).unwrap();
        for (port, nic) in (0..).zip([VICTIM, OTHER]) {
            let link = nicforge_core::fabric::LinkSpec { credits: vec![CREDITS], ..Default::default() };
            machine.fabric().connect((nic, 0), (SWITCH, port), link).unwrap();
        }

        let memories =
            [(); 2].map(|()| SharedMemory::create("fuzz-virtio", (PAGES * PAGE) as usize).unwrap());
        let mut net = Self { machine, now: Nanos::ZERO, memories };
        net.attach(VICTIM);
        net.attach(OTHER);
        net
    }

    /// Attaches a client, and maps its memory page by page.
    fn attach(&mut self, nic: FunctionId) {
        self.machine.attach(nic, USER).unwrap();
        self.map_all(nic);
    }

    /// Maps a driver's whole memory page by page, and lets the device reach it.
    fn map_all(&mut self, nic: FunctionId) {
        self.machine.dma_unmap_all(nic, USER).unwrap();
        for page in 0..PAGES {
            let window = self.memories[nic.0 as usize].window(page * PAGE, PAGE).unwrap();
            let (iova, backing) = (BASE + page * PAGE, DmaBacking::Memory(window));
            self.machine.dma_map(nic, USER, iova, PAGE, DmaPermission::READ_WRITE, backing).unwrap();
        }
        self.write(nic, region::CONFIG, 4, &MEMORY_AND_DMA.to_le_bytes());
    }

    /// Writes a register that takes the write.
    fn write(&mut self, nic: FunctionId, region: u32, offset: u64, data: &[u8]) {
        let _ = self.machine.write(nic, USER, region, offset, data).unwrap();
    }

    /// Writes a descriptor with these four fields at an offset of the driver's memory.
    fn put_descriptor(&self, nic: FunctionId, at: u64, (iova, length, flags, next): (u64, u32, u16, u16)) {
        let mut bytes = iova.to_le_bytes().to_vec();
        bytes.extend(length.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        self.memories[nic.0 as usize].write(at, &bytes).unwrap();
    }

    /// Sets a device up by the rules. The receive queue has a buffer in each of two entries.
    fn start(&mut self, nic: FunctionId, features: u64) {
        self.write(nic, 0, common::STATUS, &[0]);
        self.memories[nic.0 as usize].zero(0, PAGES * PAGE).unwrap();

        for (half, value) in [(0_u32, features as u32), (1, (features >> 32) as u32)] {
            self.write(nic, 0, common::DRIVER_FEATURE_SELECT, &half.to_le_bytes());
            self.write(nic, 0, common::DRIVER_FEATURE, &value.to_le_bytes());
        }
        self.write(nic, 0, common::STATUS, &[status::FEATURES_OK]);

        for queue in 0..QUEUES as u16 {
            let base = BASE + u64::from(queue) * HALF;
            self.write(nic, 0, common::QUEUE_SELECT, &queue.to_le_bytes());
            self.write(nic, 0, common::QUEUE_SIZE, &ENTRIES.to_le_bytes());
            self.write(nic, 0, common::QUEUE_DESCRIPTORS, &base.to_le_bytes());
            self.write(nic, 0, common::QUEUE_DRIVER, &(base + AVAILABLE).to_le_bytes());
            self.write(nic, 0, common::QUEUE_DEVICE, &(base + USED).to_le_bytes());
            self.write(nic, 0, common::QUEUE_ENABLE, &1_u16.to_le_bytes());
        }

        for entry in 0..2 {
            let iova = BASE + BUFFERS + u64::from(entry) * BUFFER;
            self.put_descriptor(nic, 16 * u64::from(entry), (iova, BUFFER as u32, WRITE, 0));
            self.offer(nic, RECEIVE, entry);
        }
        self.write(nic, 0, common::STATUS, &[status::DRIVER_OK]);
    }

    /// Offers an entry of a queue.
    fn offer(&mut self, nic: FunctionId, queue: usize, entry: u16) {
        let memory = &self.memories[nic.0 as usize];
        let ring = queue as u64 * HALF + AVAILABLE;
        let index = memory.whole().load_u16_relaxed(ring + 2).unwrap();
        memory.write(ring + 4 + 2 * u64::from(index % ENTRIES), &entry.to_le_bytes()).unwrap();
        memory.write(ring + 2, &index.wrapping_add(1).to_le_bytes()).unwrap();
    }

    /// Returns whether the transmit queue has room for a further entry. A driver that offers more
    /// breaks the rules.
    fn may_send(&self, nic: FunctionId) -> bool {
        let memory = self.memories[nic.0 as usize].whole();
        let [offered, used] = [AVAILABLE, USED].map(|ring| memory.load_u16_relaxed(HALF + ring + 2).unwrap());
        offered.wrapping_sub(used) < ENTRIES
    }

    /// Sends a frame of `length` bytes from entry 0 of the transmit queue.
    fn send(&mut self, nic: FunctionId, to: MacAddress, length: usize) {
        let length = length.min(BUFFER as usize - FRAME_HEADER);
        let mut content = vec![0; FRAME_HEADER + length.max(12)];
        content[FRAME_HEADER..FRAME_HEADER + 6].copy_from_slice(&to.0);
        content[FRAME_HEADER + 6..FRAME_HEADER + 12].copy_from_slice(&MacAddress::derived(nic.0).0);
        self.memories[nic.0 as usize].write(HALF + BUFFERS, &content).unwrap();

        let bytes = (FRAME_HEADER + length) as u32;
        self.put_descriptor(nic, HALF, (BASE + HALF + BUFFERS, bytes, 0, 0));
        self.offer(nic, TRANSMIT, 0);
        self.write(nic, 0, NOTIFY + u64::from(NOTIFY_STRIDE), &1_u16.to_le_bytes());
    }

    /// Steps until there is nothing to do at once.
    fn step_until_idle(&mut self) {
        let rests = (0..MANY_STEPS).any(|_| self.machine.step(self.now, 64) != Next::Now);
        assert!(rests, "the machine does not come to rest");
    }

    /// Returns the frames that a device has received.
    fn received(&mut self, nic: FunctionId) -> u64 {
        let counters = self.machine.counters(nic);
        counters.iter().find(|counter| counter.name == "received").unwrap().value
    }

    /// Checks that the other device never failed, and that a frame passes in each direction after a
    /// reset of the first device.
    fn recover(&mut self) {
        let mut status = [0];
        let _ = self.machine.read(OTHER, USER, 0, common::STATUS, &mut status).unwrap();
        assert_eq!(status[0] & status::NEEDS_RESET, 0, "the other device goes on");

        // The driver may have put the function to sleep, and sent frames in the other's name.
        self.machine.reset_attachment(VICTIM, USER).unwrap();
        self.machine.reset_function(SWITCH).unwrap();
        self.map_all(VICTIM);
        for nic in [VICTIM, OTHER] {
            self.write(nic, 0, common::STATUS, &[0]);
        }
        self.step_until_idle();
        self.start(VICTIM, LEAST);
        self.start(OTHER, LEAST);

        for (from, to) in [(VICTIM, OTHER), (OTHER, VICTIM)] {
            let before = self.received(to);
            self.send(from, MacAddress::derived(to.0), 100);
            self.step_until_idle();
            assert_eq!(self.received(to), before + 1, "a frame from {} to {}", from.0, to.0);
        }
    }
}
