//! The devices without a processor: accesses that a guest of few instructions does not make.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use nicforge_kvm::{
    Devices, Event, ExitAddress, Function, Hypervisor, LocalFunction, MemoryAccess, Ram, Route, VmError,
};
use nicforge_virtio_devices::rng::VirtioRng;
use tracing::{Level, Metadata, Subscriber, span};
use vm_memory::MmapRegion;

use crate::{
    card::{Card, RAISE, TABLE},
    rig::{BAR, BAR_0, COMMAND, COMMAND_MEMORY, MSIX_CONTROL, SECOND_SLOT, SLOT, at, at_slot},
};

/// The slot of a function with a doorbell.
const DOORBELL_SLOT: u8 = 5;
/// Address of a BAR that lies over no other one.
const OTHER_BAR: u32 = 0xc200_0000;
/// The end of the card's table, which has two vectors.
const TABLE_END: u32 = BAR + TABLE + 32;

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

/// Returns devices with functions in slots.
fn devices(functions: Vec<(u8, Arc<dyn Function>)>) -> Devices {
    let ram = Ram::new(4 << 20).unwrap();
    let mut devices = Devices::new(Arc::new(Refusing), &ram).unwrap();
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
