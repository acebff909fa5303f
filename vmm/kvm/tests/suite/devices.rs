//! The devices without a processor: accesses that a guest of few instructions does not make.

use std::sync::Arc;

use nicforge_kvm::{Devices, Event, ExitAddress, Function, Hypervisor, MemoryAccess, Ram, Route, VmError};
use vm_memory::MmapRegion;

use crate::{
    card::{Card, TABLE},
    rig::{BAR, BAR_0, COMMAND, COMMAND_MEMORY, SLOT, at_slot},
};

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
