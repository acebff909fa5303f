//! An arbitrary guest of our virtual machine, without a processor: accesses of all sizes to ports,
//! memory and configuration space, on functions of any description.
//!
//! The hypervisor checks each call: no two memory slots overlap, none lies over RAM or outside the
//! bus's windows, and no eventfd is connected twice. It refuses some calls. Functions get accesses
//! of natural widths within their BARs only. After the guest's reset of a function, its BARs, its
//! command register and its MSI-X control are as at power-on.

use std::{
    collections::BTreeMap,
    fs::File,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

use nicforge_kvm::{
    Area, Bar, BarKind, Devices, Doorbell, Event, ExitAddress, Function, FunctionError, Hypervisor,
    LocalFunction, MemoryAccess, Ram, Route, VmError,
};
use nicforge_virtio_devices::rng::VirtioRng;
use vm_memory::MmapRegion;

use crate::input::Input;

/// Maximum number of actions in one input.
const MAX: usize = 300;
/// Size of a page, and of the file of a function's areas.
const PAGE: u64 = 4096;
const FILE: u64 = 16 * PAGE;
/// Memory slots of the hypervisor: few, so that inputs use them up.
const SLOTS: u32 = 12;
/// Interrupts of the hypervisor.
const NUMBERS: u32 = 4096;

/// Addresses of the bus: windows for BARs, and the configuration space.
const WINDOWS: [(u64, u64); 2] = [(0xc000_0000, 0xe000_0000), (0x10_0000_0000, 0x40_0000_0000)];
const ECAM: u64 = 0xe000_0000;
/// Registers of a function's configuration space.
const COMMAND: u16 = 0x04;
const BARS: u16 = 0x10;
const MSIX: u16 = 0x40;
const EXPRESS: u16 = 0x60;
/// Bit of the PCI Express device capabilities: the function can be reset.
const FUNCTION_RESET: u32 = 1 << 28;
/// The second byte of PCI Express device control.
const RESET: u16 = EXPRESS + 9;
/// Bit of that byte that resets the function.
const INITIATE: u8 = 1 << 7;

/// The hypervisor.
struct Checker {
    state: Mutex<Calls>,
    /// Ranges of RAM. They are the first slots.
    ram: usize,
    /// One bit for each call, from the lowest on: whether it is refused.
    refusals: u64,
    calls: AtomicU32,
}

/// The state that the calls so far have set up. Events are named by their file descriptors.
#[derive(Default)]
struct Calls {
    /// First address of each memory slot, and the address after it.
    slots: BTreeMap<u32, (u64, u64)>,
    doorbells: BTreeMap<ExitAddress, i32>,
    routes: Vec<(u32, Route)>,
    /// The interrupt number of each connected event.
    connected: BTreeMap<i32, u32>,
}

impl Checker {
    /// Fails if `refusals` says so of this call.
    fn refuse(&self) -> Result<(), VmError> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed) % u64::BITS;
        match self.refusals >> call & 1 {
            0 => Ok(()),
            _ => Err(VmError::Request("refused".into())),
        }
    }

    /// Records that an event is connected to an interrupt number, and checks that it may be.
    fn connect_number(&self, event: &Event, number: u32) {
        let mut state = self.state.lock().unwrap();
        assert!(state.routes.iter().any(|(routed, _)| *routed == number), "number {number} has no route");
        let before = state.connected.insert(event.as_fd().as_raw_fd(), number);
        assert_eq!(before, None, "an eventfd is connected twice");
    }
}

impl Hypervisor for Checker {
    fn count_slots(&self) -> u32 {
        SLOTS
    }

    fn add_memory(
        &self,
        slot: u32,
        address: u64,
        memory: Arc<MmapRegion>,
        _: MemoryAccess,
    ) -> Result<(), VmError> {
        let mut state = self.state.lock().unwrap();
        let end = address.checked_add(memory.size() as u64).unwrap();
        let is_ram = state.slots.len() < self.ram;

        assert!(slot < SLOTS && !state.slots.contains_key(&slot), "slot {slot} is free");
        assert!(address.is_multiple_of(PAGE) && end.is_multiple_of(PAGE) && end > address);
        for (first, after) in state.slots.values() {
            assert!(end <= *first || *after <= address, "{address:#x} overlaps {first:#x}");
        }
        let is_in = |(first, after): &(u64, u64)| *first <= address && end <= *after;
        assert!(is_ram || WINDOWS.iter().any(is_in), "{address:#x} is in no window");

        if !is_ram {
            self.refuse()?;
        }
        state.slots.insert(slot, (address, end));
        Ok(())
    }

    fn remove_memory(&self, slot: u32) -> Result<(), VmError> {
        let mut state = self.state.lock().unwrap();
        assert!(slot as usize >= self.ram && state.slots.contains_key(&slot), "slot {slot} is in use");
        self.refuse()?;
        state.slots.remove(&slot);
        Ok(())
    }

    fn add_doorbell(&self, at: ExitAddress, event: &Event) -> Result<(), VmError> {
        self.refuse()?;
        let mut state = self.state.lock().unwrap();
        if state.doorbells.contains_key(&at) {
            return Err(VmError::Request("another doorbell has the address".into()));
        }
        state.doorbells.insert(at, event.as_fd().as_raw_fd());
        Ok(())
    }

    fn remove_doorbell(&self, at: ExitAddress, event: &Event) -> Result<(), VmError> {
        let removed = self.state.lock().unwrap().doorbells.remove(&at);
        assert_eq!(removed, Some(event.as_fd().as_raw_fd()), "the doorbell was there");
        Ok(())
    }

    fn set_routes(&self, routes: &[(u32, Route)]) -> Result<(), VmError> {
        let mut state = self.state.lock().unwrap();
        assert!(routes.iter().all(|(number, _)| *number < NUMBERS));
        assert!(routes.is_sorted_by(|(a, _), (b, _)| a < b), "each number has one route");
        state.routes = routes.to_vec();
        Ok(())
    }

    fn connect(&self, event: &Event, number: u32) -> Result<(), VmError> {
        // The serial ports are connected before any function.
        if number >= 24 {
            self.refuse()?;
        }
        self.connect_number(event, number);
        Ok(())
    }

    fn disconnect(&self, event: &Event, number: u32) -> Result<(), VmError> {
        let removed = self.state.lock().unwrap().connected.remove(&event.as_fd().as_raw_fd());
        assert_eq!(removed, Some(number), "the eventfd was connected");
        Ok(())
    }

    fn connect_line(&self, raised: &Event, _: &Event, number: u32) -> Result<(), VmError> {
        self.connect_number(raised, number);
        Ok(())
    }
}

/// A function of any description.
struct AnyFunction {
    config: Mutex<Vec<u8>>,
    bars: Vec<Bar>,
    doorbells: Vec<Doorbell>,
    /// Every access fails whose number is a multiple of this one. No access fails if it is 0.
    failing_period: u32,
    accesses: AtomicU32,
}

impl AnyFunction {
    /// Returns a function whose areas are parts of `file`.
    fn new(input: &mut Input<'_>, file: &Arc<File>) -> Self {
        let mut config = vec![0; 4096];
        config[0x34] = MSIX as u8;
        config[0x3d] = input.below(3) as u8;
        let vectors = input.pick(&[0_u16, 1, 7, 0x7ff]);
        let table = input.pick(&[0x1000, 0, 0x3001, 0x2007, u32::MAX]);
        put(&mut config, MSIX, &[0x11, EXPRESS as u8]);
        put(&mut config, MSIX + 2, &vectors.to_le_bytes());
        put(&mut config, MSIX + 4, &table.to_le_bytes());

        let next = input.pick(&[0, MSIX as u8, 0xfc]);
        put(&mut config, EXPRESS, &[0x10, next]);
        let capabilities = if input.below(4) > 0 { FUNCTION_RESET } else { 0 };
        put(&mut config, EXPRESS + 4, &capabilities.to_le_bytes());

        let bars: Vec<_> = (0..input.below(4)).map(|number| bar(input, number as u8, file)).collect();
        let doorbells = (0..input.below(3)).map(|_| Doorbell {
            bar: input.below(3) as u8,
            offset: input.pick(&[0x100, 0x2000, 0, u64::MAX]),
            event: Event::new().unwrap(),
        });
        let doorbells = doorbells.collect();
        let failing_period = input.pick(&[0, 0, 7, 50]);
        Self { config: Mutex::new(config), bars, doorbells, failing_period, accesses: AtomicU32::new(0) }
    }

    /// Counts an access, and fails if it is one of those that do.
    fn access(&self) -> Result<(), FunctionError> {
        let number = self.accesses.fetch_add(1, Ordering::Relaxed) + 1;
        let fails = self.failing_period > 0 && number.is_multiple_of(self.failing_period);
        if fails { Err(FunctionError::Malformed("it fails".into())) } else { Ok(()) }
    }

    /// Checks that an access to a BAR has a natural width and lies in the BAR, and counts it.
    fn check_access(&self, bar: u8, offset: u64, length: usize) -> Result<(), FunctionError> {
        assert!(matches!(length, 1 | 2 | 4 | 8), "{length} bytes");
        let size = self.bars.iter().find(|found| found.index == bar).unwrap().size;
        assert!(offset.checked_add(length as u64).unwrap() <= size, "{length} bytes at {offset:#x}");
        self.access()
    }
}

/// Returns a BAR, which may make no sense.
fn bar(input: &mut Input<'_>, number: u8, file: &Arc<File>) -> Bar {
    let kind = input.pick(&[BarKind::Memory32, BarKind::Memory64, BarKind::Io]);
    let size = match kind {
        BarKind::Io => input.pick(&[16, 4, 256, 3]),
        _ => input.pick(&[0x4000, 0x1_0000, 0x1000, 16, 1 << 28, 1 << 31, 1 << 40, 12]),
    };
    let index = if input.below(8) > 0 { 2 * number } else { input.below(8) as u8 };
    let areas = (0..input.below(3)).map(|_| Area {
        offset: input.pick(&[0, PAGE, 3 * PAGE, 100]),
        size: input.pick(&[PAGE, 2 * PAGE, 16 * PAGE, 0]),
        file: file.clone(),
        file_offset: input.pick(&[0, PAGE, 15 * PAGE, u64::MAX]),
        writable: input.flag(),
    });
    Bar { index, kind, size, areas: areas.collect() }
}

impl Function for AnyFunction {
    fn bars(&self) -> Vec<Bar> {
        self.bars.clone()
    }

    fn doorbells(&self) -> Vec<Doorbell> {
        self.doorbells.clone()
    }

    fn config_read(&self, offset: u16, data: &mut [u8]) -> Result<(), FunctionError> {
        self.access()?;
        let at = usize::from(offset);
        data.copy_from_slice(&self.config.lock().unwrap()[at..at + data.len()]);
        Ok(())
    }

    fn config_write(&self, offset: u16, data: &[u8]) -> Result<(), FunctionError> {
        assert!(matches!(data.len(), 1 | 2 | 4) && usize::from(offset) + data.len() <= 4096);
        self.access()
    }

    fn bar_read(&self, bar: u8, offset: u64, data: &mut [u8]) -> Result<(), FunctionError> {
        self.check_access(bar, offset, data.len())?;
        data.fill(0x5a);
        Ok(())
    }

    fn bar_write(&self, bar: u8, offset: u64, data: &[u8]) -> Result<(), FunctionError> {
        self.check_access(bar, offset, data.len())
    }

    fn bind_vector(&self, vector: u16, _: BorrowedFd<'_>) -> Result<(), FunctionError> {
        assert!(vector < 2048);
        self.access()
    }

    fn release_vectors(&self) -> Result<(), FunctionError> {
        self.access()
    }

    fn bind_line(&self, _: BorrowedFd<'_>, _: BorrowedFd<'_>) -> Result<(), FunctionError> {
        self.access()
    }

    fn map_ram(&self, _: &Ram) -> Result<(), FunctionError> {
        self.access()
    }

    fn reset(&self) -> Result<(), FunctionError> {
        self.access()
    }
}

/// Stores bytes in a configuration space.
fn put(config: &mut [u8], at: u16, bytes: &[u8]) {
    config[usize::from(at)..usize::from(at) + bytes.len()].copy_from_slice(bytes);
}

/// Runs the test body on one fuzz input. The module's documentation describes the steps.
pub fn body(data: &[u8]) {
    let mut input = Input::new(data);
    let ram = Ram::new(input.pick(&[1 << 20, 4 << 20, 3 << 30, (3 << 30) + (1 << 20)])).unwrap();
    let checker = Arc::new(Checker {
        state: Mutex::default(),
        ram: ram.ranges().len(),
        refusals: input.pick(&[0, 0, 1 << 5, u64::MAX, 0x1111_1111_1111_1111]),
        calls: AtomicU32::new(0),
    });
    let mut devices = Devices::new(checker.clone(), &ram).unwrap();

    let file = Arc::new(tempfile::tempfile().unwrap());
    file.set_len(FILE).unwrap();
    let functions = 1 + input.below(4);
    for number in 0..functions {
        let slot = if input.below(8) > 0 { number as u8 } else { input.u8() };
        // A function whose description makes no sense is refused.
        let _ = devices.plug(slot, Arc::new(AnyFunction::new(&mut input, &file)), &ram);
    }
    if input.below(8) == 1 {
        let random = LocalFunction::of_device("rng0", Box::new(VirtioRng::device())).unwrap();
        let _ = devices.plug(functions as u8, Arc::new(random), &ram);
    }

    for _ in 0..MAX {
        if input.is_empty() {
            break;
        }
        act(&devices, &mut input, u64::from(functions) + 1);
    }
    (0..u64::from(functions)).for_each(|slot| check_reset(&devices, slot));
}

/// Returns the address of a register of a slot's configuration space.
fn at(slot: u64, register: u16) -> u64 {
    ECAM + (slot << 15) + u64::from(register)
}

/// Makes one or more accesses of the guest, to one of the first `slots` slots where it matters.
fn act(devices: &Devices, input: &mut Input<'_>, slots: u64) {
    let slot = u64::from(input.below(8)) % slots;
    match input.below(16) {
        0..=4 => {
            // An address for a BAR: over others, over RAM, at a window's border, or anywhere.
            let register = BARS + 4 * input.below(6) as u16;
            let value = input.pick(&[0xc000_0000, 0xc000_4000, 0xdfff_c000, 0xe000_0000, 0x1000, 0x10, 0]);
            devices.memory_write(at(slot, register), &u32::to_le_bytes(value));
        }
        5 | 6 => devices.memory_write(at(slot, COMMAND), &[input.pick(&[7, 2, 1, 0])]),
        7 => devices.memory_write(at(slot, MSIX + 3), &[input.pick(&[0x80, 0xc0, 0, 0x40])]),
        8 => devices.memory_write(at(slot, RESET), &[input.pick(&[INITIATE, 0])]),
        9 => {
            let (register, data) = (input.number() & 0x7fff, input.number().to_le_bytes());
            devices.memory_write(at(slot, 0) + register, &data[..width(input)]);
        }
        10..=12 => {
            // An entry of a table, or a register.
            let page = input.pick(&[0xc000_1000, 0xc000_0000, 0xc000_5000, 0xdfff_d000, 0x10_0000_1000]);
            let address = page + u64::from(input.below(64));
            devices.memory_write(address, &input.number().to_le_bytes()[..width(input)]);
            devices.memory_read(address, &mut [0; 8][..width(input)]);
        }
        13 => {
            let address = input.number();
            devices.memory_write(address, &input.number().to_le_bytes()[..width(input)]);
            devices.memory_read(address, &mut [0; 8][..width(input)]);
            devices.memory_read(at(slot, 0) + (address & 0x7fff), &mut [0; 8][..width(input)]);
        }
        _ => {
            let port = match input.below(4) {
                0 => 0x3f8 + input.below(8) as u16,
                1 => 0x5ff + input.below(5) as u16,
                2 => input.pick(&[0x1000, 0x1010, 0x2f8, 0xcf8, 0xcfc, 0xffff]),
                _ => input.u16(),
            };
            let length = input.pick(&[1, 2, 4, 3, 64]);
            devices.port_write(port, &[input.u8(); 64][..length]);
            devices.port_read(port, &mut [0; 64][..length]);
        }
    }
}

/// Takes the width of an access.
fn width(input: &mut Input<'_>) -> usize {
    input.pick(&[4, 1, 2, 8, 3, 5, 7])
}

/// Resets a function, if it offers a reset, and checks that its BARs have no addresses then.
fn check_reset(devices: &Devices, slot: u64) {
    let mut capabilities = [0; 4];
    devices.memory_read(at(slot, EXPRESS + 4), &mut capabilities);
    if u32::from_le_bytes(capabilities) != FUNCTION_RESET {
        return;
    }

    devices.memory_write(at(slot, RESET), &[INITIATE]);
    for register in 0..6 {
        let mut bar = [0; 4];
        devices.memory_read(at(slot, BARS + 4 * register), &mut bar);
        // The low four bits of a BAR are its kind.
        assert!(u32::from_le_bytes(bar) < 16, "BAR register {register} is reset");
    }
}
