//! The devices without a processor: accesses that a guest of few instructions does not make.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, AsRawFd},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use nicforge_kvm::{
    Devices, Event, ExitAddress, Function, Hypervisor, LocalFunction, MemoryAccess, Ram, Route, VmError,
};
use nicforge_virtio_devices::rng::VirtioRng;
use tracing::{Level, Metadata, Subscriber, span};
use vm_memory::MmapRegion;

use crate::{
    card::{Card, EXPRESS, MEMORY, MIRROR, PENDING, RAISE, TABLE},
    rig::{BAR, BAR_0, COMMAND, COMMAND_MEMORY, MOVED, MSIX_CONTROL, SECOND_SLOT, SLOT, at, at_slot},
};

/// The slot of a function with a doorbell.
const DOORBELL_SLOT: u8 = 5;
/// Address of a BAR that lies over no other one.
const OTHER_BAR: u32 = 0xc200_0000;
/// The end of the card's table, which has two vectors.
const TABLE_END: u32 = BAR + TABLE + 32;

/// Number of inputs of the I/O APIC. Higher interrupt numbers are messages.
const IO_APIC_INPUTS: u32 = 24;

/// The second serial port: its number, its first I/O port, and its input of the I/O APIC.
const LINE: usize = 1;
const LINE_PORT: u16 = 0x2f8;
const LINE_INPUT: u32 = 3;
/// Registers of a serial port: data, enabled interrupts, reason of an interrupt, and line status.
const DATA: u16 = LINE_PORT;
const ENABLE: u16 = LINE_PORT + 1;
const REASON: u16 = LINE_PORT + 2;
const STATUS: u16 = LINE_PORT + 5;
/// Most bytes that Linux reads without a look at the reason of the interrupt
/// (`serial8250_rx_chars`).
const LINUX_READS: usize = 256;

/// A hypervisor that has memory, and refuses doorbells and messages.
struct Refusing;

impl Refusing {
    fn refuse() -> Result<(), VmError> {
        Err(VmError::Request("refused for the test".into()))
    }
}

impl Hypervisor for Refusing {
    fn count_slots(&self) -> u32 {
        32
    }

    fn add_memory(&self, _: u32, _: u64, _: Arc<MmapRegion>, _: MemoryAccess) -> Result<(), VmError> {
        Ok(())
    }

    fn remove_memory(&self, _: u32) -> Result<(), VmError> {
        Ok(())
    }

    fn add_doorbell(&self, _: ExitAddress, _: &Event) -> Result<(), VmError> {
        Self::refuse()
    }

    fn remove_doorbell(&self, _: ExitAddress, _: &Event) -> Result<(), VmError> {
        Self::refuse()
    }

    fn set_routes(&self, routes: &[(u32, Route)]) -> Result<(), VmError> {
        let has_message = routes.iter().any(|(_, route)| matches!(route, Route::Message(_)));
        if has_message { Self::refuse() } else { Ok(()) }
    }

    fn connect(&self, _: &Event, _: u32) -> Result<(), VmError> {
        Ok(())
    }

    fn disconnect(&self, _: &Event, _: u32) -> Result<(), VmError> {
        Ok(())
    }

    fn connect_line(&self, _: &Event, _: &Event, _: u32) -> Result<(), VmError> {
        Ok(())
    }
}

/// A hypervisor that records what it has. The eventfd of a message that is connected has no
/// interrupts, because they are sent at once.
#[derive(Default)]
struct Recording {
    /// The eventfds of the serial ports, by their inputs of the I/O APIC.
    lines: Mutex<BTreeMap<u32, Event>>,
    /// The address of each memory slot, with the memory's address in this process.
    memory: Mutex<BTreeMap<u32, (u64, usize)>>,
    /// The descriptor of the eventfd at each address.
    doorbells: Mutex<BTreeMap<ExitAddress, i32>>,
    /// Whether it refuses to remove memory.
    keeps_memory: AtomicBool,
}

impl Recording {
    /// Returns the memory at an address, if there is any.
    fn memory_at(&self, address: u32) -> Option<usize> {
        let memory = self.memory.lock().unwrap();
        memory.values().find(|(at, _)| *at == u64::from(address)).map(|(_, memory)| *memory)
    }
}

impl Hypervisor for Recording {
    fn count_slots(&self) -> u32 {
        32
    }

    fn add_memory(
        &self,
        slot: u32,
        at: u64,
        memory: Arc<MmapRegion>,
        _: MemoryAccess,
    ) -> Result<(), VmError> {
        self.memory.lock().unwrap().insert(slot, (at, memory.as_ptr() as usize));
        Ok(())
    }

    fn remove_memory(&self, slot: u32) -> Result<(), VmError> {
        if self.keeps_memory.load(Ordering::Relaxed) {
            return Refusing::refuse();
        }
        self.memory.lock().unwrap().remove(&slot).expect("the slot is in use");
        Ok(())
    }

    fn add_doorbell(&self, at: ExitAddress, event: &Event) -> Result<(), VmError> {
        let mut doorbells = self.doorbells.lock().unwrap();
        if doorbells.contains_key(&at) {
            return Refusing::refuse();
        }
        doorbells.insert(at, event.as_fd().as_raw_fd());
        Ok(())
    }

    fn remove_doorbell(&self, at: ExitAddress, _: &Event) -> Result<(), VmError> {
        self.doorbells.lock().unwrap().remove(&at).expect("the doorbell is there");
        Ok(())
    }

    fn set_routes(&self, _: &[(u32, Route)]) -> Result<(), VmError> {
        Ok(())
    }

    fn connect(&self, event: &Event, number: u32) -> Result<(), VmError> {
        match number {
            0..IO_APIC_INPUTS => drop(self.lines.lock().unwrap().insert(number, event.clone())),
            _ => drop(event.take()),
        }
        Ok(())
    }

    fn disconnect(&self, _: &Event, _: u32) -> Result<(), VmError> {
        Ok(())
    }

    fn connect_line(&self, _: &Event, _: &Event, _: u32) -> Result<(), VmError> {
        Ok(())
    }
}

/// A log that counts the events of its default levels and of all levels.
#[derive(Clone, Default)]
struct Log {
    shown: Arc<AtomicUsize>,
    all: Arc<AtomicUsize>,
}

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn event(&self, event: &tracing::Event<'_>) {
        self.all.fetch_add(1, Ordering::Relaxed);
        if *event.metadata().level() <= Level::INFO {
            self.shown.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Returns devices with functions in slots, whose hypervisor refuses doorbells and messages.
fn devices(functions: Vec<(u8, Arc<dyn Function>)>) -> Devices {
    devices_on(Arc::new(Refusing), functions)
}

/// Returns devices with functions in slots.
fn devices_on(hypervisor: Arc<dyn Hypervisor>, functions: Vec<(u8, Arc<dyn Function>)>) -> Devices {
    let ram = Ram::new(4 << 20).unwrap();
    let mut devices = Devices::new(hypervisor, &ram).unwrap();
    for (slot, function) in functions {
        devices.plug(slot, function, &ram).unwrap();
    }
    devices
}

/// Stores a word.
fn store(devices: &Devices, address: u32, value: u32) {
    devices.memory_write(address.into(), &value.to_le_bytes());
}

/// Puts BAR 0 of a slot's function at an address.
fn place(devices: &Devices, slot: u8, address: u32) {
    store(devices, at_slot(slot, BAR_0), address);
    store(devices, at_slot(slot, COMMAND), COMMAND_MEMORY);
}

#[test]
fn write_across_the_end_of_the_table_is_cut_there() {
    let card = Card::new();
    let devices = devices(vec![(SLOT, card.clone())]);
    place(&devices, SLOT, BAR);

    devices.memory_write((TABLE_END - 4).into(), &[0, 2, 3, 4, 5, 6, 7, 8]);
    devices.memory_write((TABLE_END - 7).into(), &[1, 2, 3, 4, 5, 6, 7, 8]);
    let mut last_word = [0; 4];
    devices.memory_read((TABLE_END - 4).into(), &mut last_word);

    assert_eq!(last_word, [4, 5, 6, 7]);
    let end = u64::from(TABLE + 32);
    let first = (end - 4, vec![0, 2, 3, 4]);
    // Functions get no accesses of seven bytes.
    let bytes = (1..8).map(|number| (end - 8 + number, vec![number as u8]));
    assert_eq!(card.table_writes(), [first].into_iter().chain(bytes).collect::<Vec<_>>());
}

#[test]
fn refusals_that_a_guest_causes_are_not_in_the_log_by_default() {
    let (card, second) = (Card::new(), Card::new());
    let entropy = LocalFunction::of_device("rng0", Box::new(VirtioRng::device())).unwrap();
    let functions: Vec<(u8, Arc<dyn Function>)> =
        vec![(SLOT, card.clone()), (SECOND_SLOT, second), (DOORBELL_SLOT, Arc::new(entropy))];
    let devices = devices(functions);
    let log = Log::default();

    let logged = tracing::subscriber::with_default(log.clone(), || {
        let mut logged = vec![log.all.load(Ordering::Relaxed)];
        let mut record = || logged.push(log.all.load(Ordering::Relaxed));
        place(&devices, SLOT, BAR);
        // An area over another one, and a doorbell.
        place(&devices, SECOND_SLOT, BAR);
        record();
        place(&devices, DOORBELL_SLOT, OTHER_BAR);
        record();
        // A vector without a route.
        store(&devices, at(MSIX_CONTROL), 0x8000 << 16);
        store(&devices, BAR + TABLE, 0xfee0_0000);
        store(&devices, BAR + TABLE + 12, 0);
        record();
        // All accesses to a function whose server is gone.
        card.break_down();
        store(&devices, BAR + TABLE + 12, 1);
        record();
        store(&devices, BAR + RAISE, 1);
        record();
        store(&devices, at(0x40), 0);
        record();
        devices.memory_read(at(0).into(), &mut [0; 4]);
        record();
        logged
    });

    assert!(logged.is_sorted_by(|before, after| before < after), "{logged:?}");
    assert_eq!(log.shown.load(Ordering::Relaxed), 0);
}

/// Returns a word that the guest loads.
fn load(devices: &Devices, address: u32) -> u32 {
    let mut word = [0; 4];
    devices.memory_read(address.into(), &mut word);
    u32::from_le_bytes(word)
}

/// Returns cards in [`SLOT`] and [`SECOND_SLOT`] on a hypervisor that records.
fn two_cards() -> (Arc<Recording>, Devices) {
    let hypervisor = Arc::new(Recording::default());
    let cards: Vec<(u8, Arc<dyn Function>)> = vec![(SLOT, Card::new()), (SECOND_SLOT, Card::new())];
    (hypervisor.clone(), devices_on(hypervisor, cards))
}

#[test]
fn bar_has_its_memory_when_the_one_over_it_leaves() {
    // The ways in which the BAR that was there first leaves: it is disabled, it moves, and its
    // function is reset.
    let ways: [fn(&Devices); 3] = [
        |devices| store(devices, at(COMMAND), 0),
        |devices| store(devices, at(BAR_0), MOVED),
        |devices| store(devices, at(EXPRESS + 8), 1 << 15),
    ];
    for (number, leave) in ways.into_iter().enumerate() {
        let (hypervisor, devices) = two_cards();
        place(&devices, SLOT, BAR);
        let first = hypervisor.memory_at(BAR + MEMORY);
        place(&devices, SECOND_SLOT, BAR);
        assert_eq!(hypervisor.memory_at(BAR + MEMORY), first, "way {number}");

        leave(&devices);
        let second = hypervisor.memory_at(BAR + MEMORY);
        assert!(second.is_some() && second != first, "way {number}: {second:?}");
        assert!(hypervisor.memory_at(BAR + MIRROR).is_some(), "way {number}");

        // The first one comes back, and waits in its turn.
        place(&devices, SLOT, BAR);
        assert_eq!(hypervisor.memory_at(BAR + MEMORY), second, "way {number}");
        store(&devices, at_slot(SECOND_SLOT, COMMAND), 0);
        assert_eq!(hypervisor.memory_at(BAR + MEMORY), first, "way {number}");
    }
}

#[test]
fn doorbell_is_connected_when_the_one_at_its_address_leaves() {
    let hypervisor = Arc::new(Recording::default());
    let entropy = |name| Arc::new(LocalFunction::of_device(name, Box::new(VirtioRng::device())).unwrap());
    let functions: Vec<(u8, Arc<dyn Function>)> =
        vec![(SLOT, entropy("rng0")), (SECOND_SLOT, entropy("rng1"))];
    let devices = devices_on(hypervisor.clone(), functions);
    let doorbells = || hypervisor.doorbells.lock().unwrap().clone();

    place(&devices, SLOT, BAR);
    let of_first = doorbells();
    assert_eq!(of_first.len(), 1);
    place(&devices, SECOND_SLOT, BAR);
    assert_eq!(doorbells(), of_first);

    store(&devices, at(COMMAND), 0);
    assert_eq!(doorbells().keys().collect::<Vec<_>>(), of_first.keys().collect::<Vec<_>>());
    assert_ne!(doorbells(), of_first);
}

#[test]
fn first_of_two_bars_answers_also_when_another_bar_of_its_function_moves() {
    let hypervisor = Arc::new(Recording::default());
    let (two_bars, card) = (Card::with_two_bars(), Card::new());
    let devices = devices_on(hypervisor, vec![(SLOT, two_bars.clone()), (SECOND_SLOT, card.clone())]);
    store(&devices, at(BAR_0 + 4), OTHER_BAR);
    place(&devices, SLOT, BAR);
    place(&devices, SECOND_SLOT, BAR);

    store(&devices, at(BAR_0 + 4), MOVED);
    store(&devices, BAR + RAISE, 1);
    assert_eq!((two_bars.writes().len(), card.writes().len()), (1, 0));
}

#[test]
fn memory_that_the_hypervisor_kept_is_removed_at_the_next_occasion() {
    let (hypervisor, devices) = two_cards();
    place(&devices, SLOT, BAR);
    let first = hypervisor.memory_at(BAR + MEMORY);
    hypervisor.keeps_memory.store(true, Ordering::Relaxed);
    store(&devices, at(COMMAND), 0);
    assert_eq!(hypervisor.memory_at(BAR + MEMORY), first);

    hypervisor.keeps_memory.store(false, Ordering::Relaxed);
    place(&devices, SECOND_SLOT, BAR);
    let second = hypervisor.memory_at(BAR + MEMORY);
    assert!(second.is_some() && second != first, "{second:?}");
}

#[test]
fn pending_bit_of_a_masked_vector_is_its_eventfds() {
    let devices = devices_on(Arc::new(Recording::default()), vec![(SLOT, Card::new())]);
    place(&devices, SLOT, BAR);
    store(&devices, at(MSIX_CONTROL), 0x8000 << 16);
    let mask = |masked: u32| store(&devices, BAR + TABLE + 12, masked);
    mask(0);

    for function_mask in [false, true] {
        let mask = |masked: u32| match function_mask {
            true => store(&devices, at(MSIX_CONTROL), (0x8000_u32 | masked << 14) << 16),
            false => mask(masked),
        };
        mask(1);
        assert_eq!(load(&devices, BAR + PENDING), 0);
        store(&devices, BAR + RAISE, 1);
        // A read leaves the interrupt where it is.
        for _ in 0..2 {
            assert_eq!(load(&devices, BAR + PENDING), 1);
            assert_eq!(load(&devices, BAR + PENDING + 4), 0);
        }
        let mut word = [0xff; 8];
        devices.memory_read((BAR + PENDING).into(), &mut word);
        assert_eq!(u64::from_le_bytes(word), 1);

        mask(0);
        assert_eq!(load(&devices, BAR + PENDING), 0);
    }

    // MSI-X that is disabled has no pending interrupts.
    mask(1);
    store(&devices, BAR + RAISE, 1);
    store(&devices, at(MSIX_CONTROL), 0);
    assert_eq!(load(&devices, BAR + PENDING), 0);
}

/// Returns the value of a register of a serial port.
fn in_byte(devices: &Devices, port: u16) -> u8 {
    let mut byte = [0];
    devices.port_read(port, &mut byte);
    byte[0]
}

/// Handles an interrupt of a serial port as Linux does: for each reason it reads received bytes, up
/// to a limit, while the status says that there are more.
fn handle_serial_interrupt(devices: &Devices, received: &mut Vec<u8>) {
    while in_byte(devices, REASON) & 1 == 0 {
        for _ in 0..LINUX_READS {
            if in_byte(devices, STATUS) & 1 == 0 {
                break;
            }
            received.push(in_byte(devices, DATA));
        }
    }
}

#[test]
fn input_of_any_length_reaches_a_driver_that_waits_for_interrupts() {
    let hypervisor = Arc::new(Recording::default());
    let devices = devices_on(hypervisor.clone(), Vec::new());
    let interrupt = hypervisor.lines.lock().unwrap()[&LINE_INPUT].clone();
    devices.port_write(ENABLE, &[1]);

    for length in 1..=1200 {
        let sent: Vec<u8> = (0..length).map(|at| (at * 7 + length) as u8).collect();
        assert_eq!(devices.send(LINE, &sent), sent.len());
        let mut received = Vec::new();
        while interrupt.take() > 0 {
            handle_serial_interrupt(&devices, &mut received);
        }
        assert_eq!(received.len(), sent.len(), "the driver waits for the rest");
        assert_eq!(received, sent);
    }
}

#[test]
fn interrupt_for_received_data_stays_until_the_data_are_read() {
    let hypervisor = Arc::new(Recording::default());
    let devices = devices_on(hypervisor.clone(), Vec::new());
    let interrupt = hypervisor.lines.lock().unwrap()[&LINE_INPUT].clone();
    devices.port_write(ENABLE, &[1]);
    devices.send(LINE, b"ab");

    for byte in *b"ab" {
        for _ in 0..2 {
            assert!(interrupt.take() > 0);
            assert_eq!(in_byte(&devices, REASON) & 0xf, 4);
        }
        assert_eq!(in_byte(&devices, DATA), byte);
    }
    interrupt.take();
    assert_eq!(in_byte(&devices, REASON) & 0xf, 1);
    assert_eq!(interrupt.take(), 0);
}
