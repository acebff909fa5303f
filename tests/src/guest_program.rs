//! The roles that programs play in guest tests. The program `guest_program` runs one role, whose
//! output ends with the line `ok`.

use std::time::{Duration, Instant};

use nicforge_driver::{Deadline, Device, DmaPermission, Error, HugePages, REGION_CONFIG, WriteMode};
use nicforge_fcnp::{ComputeCore, Config, IoNode};
use nicforge_hwi::{
    extoll, pci,
    proof::{dma_engine, slot_fifo},
    tree,
};
use nicforge_proof_driver::{
    dma_engine::{DmaEngine, piece},
    slot_fifo::SlotFifo,
};
use nicforge_shm::{MemoryError, SharedMemory};
use nicforge_velo::Address;

use crate::{
    backing::{Rig, limit, test_deadline},
    exchange::{self, RmaSide},
    guest_rig::GuestRig,
    pattern::pattern,
    velo_body,
};

/// Bytes of a page.
const PAGE: u64 = 4096;
/// An address at which no guest has memory.
const NOWHERE: u64 = 1 << 45;

/// Runs a role with its arguments.
///
/// # Panics
///
/// When a check fails.
pub fn run_role(role: &str, arguments: &[String]) {
    let rig = GuestRig::from_env();
    let number = |at: usize| -> u64 {
        let text = arguments.get(at).unwrap_or_else(|| panic!("{role} has more arguments"));
        text.parse().unwrap_or_else(|_| panic!("{text} is no number"))
    };

    match role {
        "io" => io(&rig, &arguments.iter().map(|rank| rank.parse().unwrap()).collect::<Vec<_>>()),
        "compute" => compute(&rig, number(0) as u32),
        "remap" => remap(&rig, number(0)),
        "pages" => pages(&rig, number(0)),
        "outside" => outside(&rig),
        "vectors" => vectors(&rig),
        "hold" => hold(&rig, &arguments[0], &arguments[1]),
        "refused" => refused(&rig, &arguments[0], &arguments[1]),
        "transfer" => transfer(&rig),
        "fifo" => fifo(&rig),
        "read-only" => read_only(&rig),
        "velo-send" => {
            let peer = Address { node: 1, vpid: number(0) as u16 };
            exchange::velo_send(&rig, number(1) as u16, peer);
        }
        "velo-echo" => {
            let peer = Address { node: 0, vpid: number(1) as u16 };
            exchange::velo_echo(&rig, number(0) as u16, peer, || println!("open"));
        }
        "rma-take" => {
            let mut side = RmaSide::open(&rig, 1, number(0) as u16);
            println!("open {}", side.address());
            side.check_puts();
        }
        "rma-put" => RmaSide::open(&rig, 0, number(1) as u16).put_and_get(1, number(0) as u16, number(2)),
        "velo" => velo_body::messages_of_every_length_and_tag_arrive_in_order(&rig),
        "costs" => costs(&rig, &arguments[0]),
        "posts" => posts(&rig, &arguments[0], number(1)),
        "hostile" => hostile(&rig, Duration::from_secs(number(0)), number(1)),
        _ => panic!("there is no role {role}"),
    }

    println!("{role} ok");
}

/// Sizes of the messages between nodes: sizes at which the number or kind of packets changes, and a
/// large one.
pub const SIZES: [usize; 8] = [1, 17, 240, 241, 5000, 65_535, 300_000, 0];

/// Returns a configuration in which no call exceeds the time limit of two guests that boot.
fn config() -> Config {
    Config { timeout: Some(4 * limit()), open_timeout: 4 * limit(), ..Config::default() }
}

/// Echoes messages of [`SIZES`] to some cores, one after the other.
pub fn echo(io: &IoNode, ranks: &[u32]) {
    let mut buffer = vec![0; 1 << 20];
    for &rank in ranks {
        for size in SIZES {
            assert_eq!(io.read(rank, &mut buffer).unwrap(), size);
            assert_eq!(io.write(rank, &buffer[..size]).unwrap(), size);
        }
    }
}

/// Sends messages of [`SIZES`], and receives each back.
pub fn send(core: &ComputeCore) {
    for (seed, size) in SIZES.into_iter().enumerate() {
        let sent = pattern(seed as u64, size);
        let mut received = vec![0; size];
        assert_eq!(core.write(&sent).unwrap(), size);
        assert_eq!(core.read(&mut received).unwrap(), size);
        assert!(sent == received, "{size} bytes came back changed");
    }
}

/// Opens the I/O node.
pub fn open_io(rig: &dyn Rig) -> IoNode {
    IoNode::open(rig.open("io0", "core0"), config()).unwrap()
}

/// Opens a core.
pub fn open_core(rig: &dyn Rig, rank: u32) -> ComputeCore {
    ComputeCore::open(rig.open(&format!("cn{}", rank / 4), &format!("core{}", rank % 4)), config()).unwrap()
}

/// Echoes the messages of some cores.
fn io(rig: &dyn Rig, ranks: &[u32]) {
    echo(&open_io(rig), ranks);
}

/// Sends messages to the I/O node, and receives each back.
fn compute(rig: &dyn Rig, rank: u32) {
    send(&open_core(rig, rank));
}

/// Opens the DMA engine.
fn dma(rig: &dyn Rig) -> (Device, DmaEngine) {
    dma_of(rig, "dma0")
}

fn dma_of(rig: &dyn Rig, function: &str) -> (Device, DmaEngine) {
    let device = rig.open(function, "user0");
    let engine = DmaEngine::open(&device).unwrap();
    (device, engine)
}

/// Maps and unmaps memory while the device copies between other memory. The device never touches
/// unmapped memory, and every copy is correct.
fn remap(rig: &dyn Rig, rounds: u64) {
    let (device, mut engine) = dma(rig);
    let (source, target) = (
        device.dma_buffer(1 << 18, HugePages::Never).unwrap(),
        device.dma_buffer(1 << 18, HugePages::Never).unwrap(),
    );

    for round in 0..rounds {
        let sent = pattern(round, 1 << 18);
        source.write(0, &sent).unwrap();
        engine.start(&[piece(source.iova(), target.iova(), 1 << 18)]).unwrap();

        // The new buffer often gets the address of the previous one.
        for step in 0..4 {
            let remapped = device.dma_buffer(PAGE as usize * (1 + step), HugePages::Never).unwrap();
            remapped.write(0, &[round as u8; 64]).unwrap();
        }

        let outcome = engine.poll(test_deadline(), None).unwrap();
        assert_eq!((outcome.errors, outcome.done), (0, 1), "round {round}");

        let mut received = vec![0; sent.len()];
        target.read(0, &mut received).unwrap();

        assert!(sent == received, "round {round}: the copy is not what was sent");
    }
}

/// Makes thousands of mappings of one page each. The device reaches every one of them, and none
/// after they are unmapped.
fn pages(rig: &dyn Rig, count: u64) {
    let (device, mut engine) = dma(rig);
    let memory = SharedMemory::create("pages", (count * PAGE) as usize).unwrap();
    let target = device.dma_buffer(PAGE as usize, HugePages::Never).unwrap();
    let buffers: Vec<_> = (0..count)
        .map(|page| device.map_dma(&memory, page * PAGE, PAGE, DmaPermission::READ_WRITE).unwrap())
        .collect();

    for (page, buffer) in buffers.iter().enumerate() {
        buffer.write(0, &(page as u64).to_le_bytes()).unwrap();
    }

    for (group, some) in buffers.chunks(128).enumerate() {
        let list: Vec<_> = some
            .iter()
            .enumerate()
            .map(|(at, buffer)| piece(buffer.iova(), target.iova() + 8 * at as u64, 8))
            .collect();

        assert_eq!(engine.copy(&list, test_deadline()).unwrap().errors, 0);

        for at in 0..some.len() {
            let found = target.window().load_u64_acquire(8 * at as u64).unwrap();
            assert_eq!(found, (group * 128 + at) as u64);
        }
    }

    let last = buffers.last().unwrap().iova();
    drop(buffers);
    let outcome = engine.copy(&[piece(last, target.iova(), 8)], test_deadline()).unwrap();

    assert_eq!(outcome.errors, dma_engine::STATUS_DMA_ERROR, "the device does not reach what was unmapped");
}

/// Checks that DMA outside mapped memory is refused, reported and harmless, and that mapped memory
/// still works.
fn outside(rig: &dyn Rig) {
    let (device, mut engine) = dma(rig);
    let memory = device.dma_buffer(2 * PAGE as usize, HugePages::Never).unwrap();
    let (inside, end) = (memory.iova(), memory.iova() + memory.len());
    for (from, to) in
        [(end, inside), (inside, end), (0, inside), (inside, 0), (u64::MAX - 3, inside), (inside, NOWHERE)]
    {
        let outcome = engine.copy(&[piece(from, to, 8)], test_deadline()).unwrap();
        assert_eq!((outcome.errors, outcome.done), (dma_engine::STATUS_DMA_ERROR, 0), "{from:#x} to {to:#x}");
    }
    memory.write(0, b"harmless").unwrap();

    assert_eq!(engine.copy(&[piece(inside, inside + PAGE, 8)], test_deadline()).unwrap().errors, 0);

    let mut found = [0; 8];
    memory.read(PAGE, &mut found).unwrap();

    assert_eq!(&found, b"harmless");
}

/// Checks that two vectors fire independently, and that a masked one stays pending and fires when
/// it is unmasked.
fn vectors(rig: &dyn Rig) {
    let (device, mut engine) = dma(rig);
    let memory = device.dma_buffer(2 * PAGE as usize, HugePages::Never).unwrap();
    let (done, error) = (
        device.interrupt(dma_engine::VECTOR_DONE.into()).unwrap(),
        device.interrupt(dma_engine::VECTOR_ERROR.into()).unwrap(),
    );
    let mapped = piece(memory.iova(), memory.iova() + PAGE, 64);

    // No memory is mapped at this address, with or without an IOMMU.
    let unmapped = piece(NOWHERE, memory.iova(), 64);
    let run = |engine: &mut DmaEngine, descriptor| {
        engine.start(&[descriptor]).unwrap();
        engine.poll(test_deadline(), None).unwrap()
    };
    let expect_no_interrupt = |interrupt: &nicforge_driver::Interrupt| {
        let silent = interrupt.wait(Deadline::after(Duration::from_millis(50)), None);
        assert!(matches!(silent, Err(Error::Timeout { .. })), "{silent:?}");
    };

    for _ in 0..10 {
        run(&mut engine, mapped);
        done.wait(test_deadline(), None).unwrap();
        run(&mut engine, unmapped);
        error.wait(test_deadline(), None).unwrap();
    }

    expect_no_interrupt(&done);
    expect_no_interrupt(&error);
    done.mask().unwrap();
    run(&mut engine, mapped);
    expect_no_interrupt(&done);
    run(&mut engine, unmapped);
    error.wait(test_deadline(), None).unwrap();
    done.unmask().unwrap();
    done.wait(test_deadline(), None).unwrap();
    run(&mut engine, mapped);

    // `done`, which has index 1, is the one that fires.
    assert_eq!(device.wait_any(&[&error, &done], test_deadline(), None).unwrap().0, 1);
}

/// Prints the times of a read that is trapped, and of a copy from its start to the end of the wait
/// for its interrupt: `read NANOSECONDS` and `interrupt NANOSECONDS`. Both are medians.
fn costs(rig: &dyn Rig, function: &str) {
    let (device, mut engine) = dma_of(rig, function);
    let registers = device.bar(0).unwrap();
    let memory = device.dma_buffer(2 * PAGE as usize, HugePages::Never).unwrap();
    let list = [piece(memory.iova(), memory.iova() + PAGE, 8)];

    let read = median(|| {
        registers.read64(dma_engine::REG_LIST).unwrap();
    });
    println!("read {read}");
    let interrupt = median(|| assert_eq!(engine.copy(&list, test_deadline()).unwrap().errors, 0));
    println!("interrupt {interrupt}");
}

/// Returns the median time of an action in nanoseconds.
fn median(mut action: impl FnMut()) -> u128 {
    const REPETITIONS: usize = 501;
    let mut times: Vec<_> = std::iter::repeat_with(|| {
        let begin = Instant::now();
        action();
        begin.elapsed().as_nanos()
    })
    .take(REPETITIONS)
    .collect();
    times.sort_unstable();
    times[REPETITIONS / 2]
}

/// Posts a number of writes, and waits without an access until the device has taken all of them.
fn posts(rig: &dyn Rig, function: &str, count: u64) {
    let (device, mut engine) = dma_of(rig, function);
    let registers = device.bar(0).unwrap();
    let memory = device.dma_buffer(2 * PAGE as usize, HugePages::Never).unwrap();

    let deadline = test_deadline();
    for _ in 0..count {
        // The writer is descheduled for longer than a ring waits for room, on a loaded machine.
        while let Err(error) = registers.posted_write(dma_engine::REG_COUNT, &0_u32.to_le_bytes()) {
            assert!(matches!(error, Error::Timeout { .. }) && !deadline.has_passed(), "{error}");
        }
    }

    engine.start(&[piece(memory.iova(), memory.iova() + PAGE, 8)]).unwrap();
    assert_eq!(engine.poll(test_deadline(), None).unwrap().errors, 0);
}

/// Holds an attachment until it is killed.
fn hold(rig: &dyn Rig, function: &str, attachment: &str) {
    let _device = rig.open(function, attachment);
    println!("holding");
    loop {
        std::thread::park();
    }
}

/// Checks that the error of an attachment in use is reported at once.
fn refused(rig: &dyn Rig, function: &str, attachment: &str) {
    let error = rig.try_open(function, attachment).map(drop).unwrap_err();
    assert!(error.contains("in use"), "{error}");
}

/// Copies until it is killed.
fn transfer(rig: &dyn Rig) {
    let (device, mut engine) = dma(rig);
    let memory = device.dma_buffer(1 << 20, HugePages::Never).unwrap();
    println!("transferring");

    loop {
        let list = [piece(memory.iova(), memory.iova() + (1 << 19), 1 << 19); 64];
        engine.copy(&list, test_deadline()).unwrap();
    }
}

/// Pseudo-random numbers (xorshift).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// Writes random values over every register, window, ring and descriptor of all attachments of this
/// guest. Some of the values are nearly valid.
fn hostile(rig: &GuestRig, time: Duration, seed: u64) {
    let mut random = Random(seed | 1);
    let devices: Vec<_> = rig.names().map(|(function, attachment)| rig.open(function, attachment)).collect();
    let memory: Vec<_> =
        devices.iter().map(|device| device.dma_buffer(1 << 16, HugePages::Never).unwrap()).collect();
    let (mut writes, started) = (0_u64, Instant::now());

    while started.elapsed() < time {
        let at = random.below(devices.len() as u64) as usize;
        let (device, memory) = (&devices[at], &memory[at]);

        for _ in 0..256 {
            let bar = random.below(6) as u8;
            // Read-only BARs are among them. A store that reached one would end QEMU.
            let Ok(bar) = device.bar(bar) else { continue };

            // Offsets near the ends of pages and of BARs are the likeliest boundaries of the
            // layout.
            let offset = match random.below(4) {
                0 => random.below(bar.size()),
                1 => random.below(bar.size() / PAGE) * PAGE + random.below(64) * 8,
                2 => random.below(64) * 4,
                _ => bar.size().saturating_sub(1 + random.below(64)),
            };

            let value = match random.below(4) {
                0 => random.next(),
                1 => memory.iova() + random.below(memory.len()),
                2 => random.below(512),
                _ => 1 << random.below(64),
            };

            // Misaligned writes and those to a mirror are refused by the library already.
            let _ = match random.below(5) {
                0 => bar.write8(offset, value as u8),
                1 => bar.write16(offset & !1, value as u16),
                2 => bar.write32(offset & !3, value as u32),
                3 => bar.write64(offset & !7, value),
                _ => bar.posted_write(offset, &value.to_le_bytes()[..1 + random.below(8) as usize]),
            };

            writes += 1;
        }

        let bytes: [u8; 64] = std::array::from_fn(|_| random.next() as u8);
        memory.write(random.below(memory.len() - 64), &bytes).unwrap();
        let command = random.below(8) as u16;

        // Some reads wait behind a blocked access; the kernel may refuse configuration space.
        let _ = device.backing().write(REGION_CONFIG, 4, &command.to_le_bytes(), WriteMode::Confirmed);
        if random.below(16) == 0 {
            let _ = device.reset();
        }
    }

    println!("{writes} writes");
}

/// Checks that a new client finds the function in its initial state, whatever the last one did.
fn fifo(rig: &dyn Rig) {
    let device = rig.open("fifo0", "user0");
    assert_eq!(device.identity().device, pci::DEVICE_SLOT_FIFO);
    let mut fifo = SlotFifo::open(&device).unwrap();
    assert_eq!(device.bar(2).unwrap().read64(slot_fifo::MIRROR_TAKEN).unwrap(), 0);
    fifo.send(&[5; slot_fifo::DATA], test_deadline(), None).unwrap();
    assert_eq!(fifo.receive(test_deadline(), None).unwrap(), [5; slot_fifo::DATA]);
}

/// Checks that stores to BARs that only the device writes are refused, and change nothing.
fn read_only(rig: &GuestRig) {
    for (function, attachment) in rig.names() {
        let device = rig.open(function, attachment);
        // Each function has the attachment mirror in this BAR, and some have one of their own.
        let attachment_mirror = 2;
        let own_mirror = match device.identity().device {
            pci::DEVICE_TREE => tree::BAR_MIRROR,
            pci::DEVICE_EXTOLL => extoll::BAR_DIRECTORY,
            _ => attachment_mirror,
        };

        for number in [attachment_mirror, own_mirror] {
            let bar = device.bar(number).unwrap();
            let last = bar.size() - 8;
            let before = bar.read64(last).unwrap();
            let refused = |result| matches!(result, Err(Error::Memory(MemoryError::ReadOnly { .. })));
            assert!(refused(bar.write8(last, 1)), "{function} {number}");
            assert!(refused(bar.write16(last, 1)), "{function} {number}");
            assert!(refused(bar.write32(last, 1)), "{function} {number}");
            assert!(refused(bar.write64(last, 1)), "{function} {number}");
            assert_eq!(bar.read64(last).unwrap(), before);
        }
    }
}
