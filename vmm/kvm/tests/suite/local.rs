//! Devices in this process: driven through [`Function`] as the bus does it, and by a program.

use std::{
    os::fd::AsFd,
    process::Command,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use nicforge_core::{
    companion::MAX_ABANDONED,
    device::Device,
    ids::{AttachmentId, FunctionId},
};
use nicforge_kvm::{End, Event, Function, LocalFunction, Ram};
use nicforge_virtio::registers::{BAR_SIZE, ISR, MSIX_TABLE, NO_VECTOR, NOTIFY, common, feature, status};
use nicforge_virtio_devices::rng::{self, VirtioRng};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::resource::{Resource, getrlimit, setrlimit},
};
use vm_memory::{Bytes, GuestAddress};

use crate::{
    APIC_ENABLE, APIC_REQUESTS, MESSAGE_ADDRESS, REQUEST, VECTOR,
    payload::Payload,
    rig::{self, BAR, COMMAND, LIMIT, SLOT, at, has_kvm},
};

/// Addresses of the driver's queue in the guest, and of its buffer.
const DESCRIPTORS: u32 = 0x20_0000;
const AVAILABLE: u32 = DESCRIPTORS + 0x100;
const USED: u32 = DESCRIPTORS + 0x200;
const BUFFER: u32 = DESCRIPTORS + 0x1000;
/// Bytes of the buffer.
const LENGTH: u32 = 64;
/// Entries of the queue.
const ENTRIES: u16 = 4;
/// Flag of a descriptor that the device writes (2.7.5).
const WRITE: u32 = 2;
/// The register that enables memory and bus mastering.
const COMMAND_MASTER: u32 = 6;

/// Time after which an entropy device asks its source again.
const RETRY: Duration = Duration::from_nanos(rng::RETRY);

/// Longest call of a source before its companion counts as hung, in nanoseconds.
const POLL_LIMIT: u64 = 4_000_000;
/// The variable that is set for the process that can start no thread.
const WITHOUT_THREADS: &str = "NICFORGE_TEST_WITHOUT_THREADS";
/// Memory that is less than a thread's stack, and enough for all else.
const LITTLE_MEMORY: u64 = 1 << 20;

/// A store of a driver: offset in BAR 0, value, and width in bytes.
type Store = (u64, u32, usize);

/// Returns the stores that set the device up, with one queue whose vector is `vector`.
fn set_up(vector: u16) -> Vec<Store> {
    let accepted = [(0, 0), (1, (feature::VERSION_1 >> 32) as u32)];
    let mut stores = vec![(common::STATUS, 0, 1)];
    for (half, value) in accepted {
        stores.push((common::DRIVER_FEATURE_SELECT, half, 4));
        stores.push((common::DRIVER_FEATURE, value, 4));
    }

    stores.extend([
        (common::STATUS, status::FEATURES_OK.into(), 1),
        (common::QUEUE_SELECT, 0, 2),
        (common::QUEUE_SIZE, ENTRIES.into(), 2),
        (common::QUEUE_VECTOR, vector.into(), 2),
        (common::QUEUE_DESCRIPTORS, DESCRIPTORS, 4),
        (common::QUEUE_DRIVER, AVAILABLE, 4),
        (common::QUEUE_DEVICE, USED, 4),
        (common::QUEUE_ENABLE, 1, 2),
        (common::STATUS, status::DRIVER_OK.into(), 1),
    ]);
    stores
}

/// Returns the words in memory that make one buffer available: guest address and value.
fn one_buffer() -> [(u32, u32); 5] {
    [
        (DESCRIPTORS, BUFFER),
        (DESCRIPTORS + 4, 0),
        (DESCRIPTORS + 8, LENGTH),
        (DESCRIPTORS + 12, WRITE),
        // The ring's index is 1, and its first entry is descriptor 0.
        (AVAILABLE, 1 << 16),
    ]
}

/// A driver that reaches a device as the bus of a virtual machine does.
pub(crate) struct Driver {
    pub(crate) function: LocalFunction,
    ram: Ram,
}

impl Driver {
    fn new() -> Self {
        Self::of("rng0", Box::new(VirtioRng::device()))
    }

    /// Returns the driver of a device whose first queue has buffers that the device writes.
    pub(crate) fn of(name: &str, device: Box<dyn Device>) -> Self {
        let function = LocalFunction::of_device(name, device).unwrap();
        let ram = Ram::new(4 << 20).unwrap();
        function.map_ram(&ram).unwrap();
        Self { function, ram }
    }

    pub(crate) fn set_up(&self) {
        self.set_up_with(1);
    }

    fn set_up_with(&self, vector: u16) {
        self.function.config_write(COMMAND as u16, &COMMAND_MASTER.to_le_bytes()).unwrap();
        for (offset, value, width) in set_up(vector) {
            self.function.bar_write(0, offset, &value.to_le_bytes()[..width]).unwrap();
        }
        for (address, value) in one_buffer() {
            self.ram.memory().write_obj(value, GuestAddress(address.into())).unwrap();
        }
    }

    /// Sets the device up and notifies it of the buffer. Returns the eventfd of the queue's vector.
    fn request(&self) -> Event {
        self.set_up();
        let event = Event::new().unwrap();
        self.function.bind_vector(1, event.as_fd()).unwrap();
        self.function.bar_write(0, NOTIFY, &[0, 0]).unwrap();
        event
    }

    fn status(&self) -> u8 {
        let mut status = [0];
        self.function.bar_read(0, common::STATUS, &mut status).unwrap();
        status[0]
    }

    /// Returns the number of notifications that the device has counted.
    fn notifications(&self) -> u64 {
        let counters = self.function.machine().with(|machine| machine.counters(FunctionId(0))).unwrap();
        counters.iter().find(|counter| counter.name == "notifications").unwrap().value
    }

    /// Returns the index of the used ring, and the length of its first entry.
    pub(crate) fn used(&self) -> (u16, u32) {
        let memory = self.ram.memory();
        let at = |offset: u32| GuestAddress((USED + offset).into());
        (memory.read_obj(at(2)).unwrap(), memory.read_obj(at(8)).unwrap())
    }
}

/// Waits for an eventfd, and takes its count.
pub(crate) fn wait(event: &Event) -> u64 {
    let deadline = Instant::now() + LIMIT;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(event.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::try_from(left).unwrap()).unwrap();
        match event.take() {
            0 => assert!(Instant::now() < deadline, "no event in {LIMIT:?}"),
            count => return count,
        }
    }
}

#[test]
fn device_is_described_as_on_a_bus() {
    let driver = Driver::new();
    let [bar] = &driver.function.bars()[..] else { panic!("one BAR") };
    assert_eq!((bar.index, bar.size, bar.areas.len()), (0, BAR_SIZE, 0));
    let [doorbell] = &driver.function.doorbells()[..] else { panic!("one queue") };
    assert_eq!((doorbell.bar, doorbell.offset), (0, NOTIFY));

    let mut id = [0; 4];
    driver.function.config_read(0, &mut id).unwrap();
    assert_eq!(id, [0xf4, 0x1a, 0x44, 0x10]);
    assert!(driver.function.bar_read(1, 0, &mut id).is_err());
    assert!(driver.function.bar_write(0, BAR_SIZE, &id).is_err());
}

#[test]
fn notified_device_fills_a_buffer_and_signals_the_vectors_eventfd() {
    let driver = Driver::new();
    let event = driver.request();

    assert_eq!(wait(&event), 1);
    assert_eq!(driver.used(), (1, LENGTH));
    let mut bytes = [0; LENGTH as usize];
    driver.ram.memory().read_slice(&mut bytes, GuestAddress(BUFFER.into())).unwrap();
    assert!(bytes.iter().any(|byte| *byte != 0));
}

#[test]
fn doorbell_is_a_notification() {
    let driver = Driver::new();
    driver.set_up();
    let event = Event::new().unwrap();
    driver.function.bind_vector(1, event.as_fd()).unwrap();

    driver.function.doorbells()[0].event.signal();
    assert_eq!(wait(&event), 1);
    assert_eq!(driver.used(), (1, LENGTH));

    let deadline = Instant::now() + LIMIT;
    while driver.notifications() == 0 {
        assert!(Instant::now() < deadline, "no notification in {LIMIT:?}");
        thread::yield_now();
    }
}

#[test]
fn line_is_asserted_until_the_status_is_read_and_serviced() {
    let driver = Driver::new();
    let (raised, serviced) = (Event::new().unwrap(), Event::new().unwrap());
    driver.function.bind_line(raised.as_fd(), serviced.as_fd()).unwrap();

    driver.set_up_with(NO_VECTOR);
    driver.function.bar_write(0, NOTIFY, &[0, 0]).unwrap();
    assert_eq!(wait(&raised), 1);

    // A line that is still asserted when the guest has serviced it is raised again.
    serviced.signal();
    assert_eq!(wait(&raised), 1);
    let mut isr = [0];
    driver.function.bar_read(0, ISR, &mut isr).unwrap();
    assert_eq!(isr, [1]);
}

#[test]
fn reset_device_forgets_its_driver_and_works_for_the_next_one() {
    let driver = Driver::new();
    driver.set_up();
    let event = Event::new().unwrap();
    driver.function.bind_vector(1, event.as_fd()).unwrap();
    assert_ne!(driver.status(), 0);

    driver.function.reset().unwrap();
    // The device may have used the buffer before, as it may at any time.
    event.take();
    assert_eq!(driver.status(), 0);
    let mut command = [0; 2];
    driver.function.config_read(COMMAND as u16, &mut command).unwrap();
    assert_eq!(command, [0, 0]);

    // The RAM may be another one.
    let driver = Driver { ram: Ram::new(4 << 20).unwrap(), ..driver };
    driver.function.map_ram(&driver.ram).unwrap();
    driver.set_up();
    driver.function.bar_write(0, NOTIFY, &[0, 0]).unwrap();
    wait(&event);
    assert_eq!(driver.used(), (1, LENGTH));
}

#[test]
fn attachment_is_free_again_after_its_function() {
    let driver = Driver::new();
    let machine = driver.function.machine().clone();
    assert!(machine.function(FunctionId(0), AttachmentId(0)).is_err());
    drop(driver);
    assert!(machine.function(FunctionId(0), AttachmentId(0)).is_ok());
    assert!(machine.function(FunctionId(1), AttachmentId(0)).is_err());
}

/// A source of random bytes whose callers wait until a test opens it.
#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    /// Waits until the source is open, and returns bytes that are not 0.
    fn fill(&self, bytes: &mut [u8]) -> bool {
        let is_open = self.is_open.lock().unwrap();
        drop(self.opened.wait_while(is_open, |is_open| !*is_open).unwrap());
        bytes.fill(1);
        true
    }

    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

/// Returns the number of threads of an entropy device whose source waited for too long.
fn abandoned(driver: &Driver) -> usize {
    let companions = driver.function.machine().with(|machine| machine.companions(FunctionId(0)));
    companions.unwrap().iter().map(|companion| companion.abandoned).sum()
}

#[test]
fn buffer_gets_bytes_after_its_source_has_panicked() {
    let panics = AtomicBool::new(true);
    let source = move |bytes: &mut [u8]| {
        assert!(!panics.swap(false, Ordering::Relaxed), "the source panics for the test");
        bytes.fill(1);
        true
    };
    let driver = Driver::of("rng0", Box::new(VirtioRng::with_source(source)));
    let event = driver.request();

    assert_eq!(wait(&event), 1);
    assert_eq!(driver.used(), (1, LENGTH));
}

#[test]
fn buffer_gets_bytes_after_its_source_has_hung() {
    let gate = Arc::new(Gate::default());
    let source = {
        let gate = gate.clone();
        move |bytes: &mut [u8]| gate.fill(bytes)
    };
    let driver = Driver::of("rng0", Box::new(VirtioRng::with_source(source)));
    driver.function.machine().with(|machine| machine.set_companion_limit(POLL_LIMIT)).unwrap();
    let event = driver.request();

    // So many threads wait in the source that the machine starts no more.
    let deadline = Instant::now() + LIMIT;
    while abandoned(&driver) < MAX_ABANDONED {
        assert!(Instant::now() < deadline, "{} threads in {LIMIT:?}", abandoned(&driver));
        thread::sleep(RETRY);
    }
    assert_eq!(driver.used(), (0, 0));

    gate.open();
    assert_eq!(wait(&event), 1);
    assert_eq!(driver.used(), (1, LENGTH));
}

#[test]
fn buffer_gets_bytes_once_the_process_can_start_a_thread() {
    // The limit applies to a whole process.
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "local::process_without_room_for_threads", "--nocapture", "--test-threads=1"])
        .env(WITHOUT_THREADS, "1")
        .output()
        .unwrap();
    assert!(child.status.success(), "{child:?}");
    assert!(String::from_utf8_lossy(&child.stdout).contains("1 passed"), "{child:?}");
}

/// The body of the process that can start no thread for some time. Among the other tests it does
/// nothing.
#[test]
fn process_without_room_for_threads() {
    if std::env::var_os(WITHOUT_THREADS).is_none() {
        return;
    }
    let driver = Driver::new();
    let (soft, hard) = getrlimit(Resource::RLIMIT_AS).unwrap();
    setrlimit(Resource::RLIMIT_AS, mapped_bytes() + LITTLE_MEMORY, hard).unwrap();
    assert!(thread::Builder::new().spawn(|| {}).is_err());

    let event = driver.request();
    // The device tries several times in vain.
    thread::sleep(4 * RETRY);
    assert_eq!(driver.used(), (0, 0));

    setrlimit(Resource::RLIMIT_AS, soft, hard).unwrap();
    assert_eq!(wait(&event), 1);
    assert_eq!(driver.used(), (1, LENGTH));
}

/// Returns the size of this process's address space.
fn mapped_bytes() -> u64 {
    let sizes = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = sizes.split(' ').next().unwrap().parse().unwrap();
    pages * 4096
}

/// Returns the register of a function's MSI-X capability.
fn msix(function: &dyn Function) -> u32 {
    let mut at = [0x34 - 1];
    loop {
        function.config_read(u16::from(at[0]) + 1, &mut at).unwrap();
        let mut id = [0];
        function.config_read(at[0].into(), &mut id).unwrap();
        if id == [0x11] {
            return at[0].into();
        }
    }
}

/// Appends stores to BAR 0.
fn store_all(mut program: Payload, stores: &[Store]) -> Payload {
    for (offset, value, width) in stores {
        let address = BAR + *offset as u32;
        program = match width {
            1 => program.store_8(address, *value as u8),
            2 => program.store_16(address, *value as u16),
            _ => program.store(address, *value),
        };
    }
    program
}

/// Returns a program that gets random bytes of a device in [`SLOT`], and shows the used ring's
/// index and the number of bytes.
pub(crate) fn program(function: &dyn Function) -> Payload {
    let table = BAR + MSIX_TABLE + 16;
    let mut program = Payload::default()
        .store(at(rig::BAR_0), BAR)
        .store(at(COMMAND), COMMAND_MASTER)
        .store(APIC_ENABLE, 0x1ff)
        .store(at(msix(function)), 0x8000 << 16)
        .store(table, MESSAGE_ADDRESS)
        .store(table + 4, 0)
        .store(table + 8, VECTOR)
        .store(table + 12, 0);
    program = store_all(program, &set_up(1));
    for (address, value) in one_buffer() {
        program = program.store(address, value);
    }
    program.store_16(BAR + NOTIFY as u32, 0).wait_for(APIC_REQUESTS, REQUEST).show(USED).show(USED + 8)
}

/// The output of the program.
pub(crate) fn shown() -> Vec<u8> {
    [(1_u32 << 16).to_le_bytes(), LENGTH.to_le_bytes()].concat()
}

#[test]
fn program_gets_random_bytes_by_a_doorbell_and_a_vector() {
    if !has_kvm() {
        return;
    }
    let function = LocalFunction::of_device("rng0", Box::new(VirtioRng::device())).unwrap();
    let program = program(&function).power_off();
    let run = rig::boot_functions(program, vec![(SLOT, Arc::new(function))]);

    assert_eq!(run.output, shown());
    // The table and the registers make exits, and the doorbell makes none.
    assert_eq!(run.exits.memory, 4 + set_up(1).len() as u64);
}

#[test]
fn restarted_machine_uses_its_device_again() {
    if !has_kvm() {
        return;
    }
    let function = LocalFunction::of_device("rng0", Box::new(VirtioRng::device())).unwrap();
    let program = program(&function).reset();
    let mut started = rig::start(program, vec![(SLOT, Arc::new(function))]);

    for round in 1..=3 {
        assert_eq!(started.running.wait(LIMIT), Some(End::Reset));
        assert_eq!(started.output.bytes(), shown().repeat(round));
        started.running = started.running.restart().unwrap();
    }
    started.running.stop();
}
