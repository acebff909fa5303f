//! The virtual machine with programs of a few instructions: slots, exits, interrupts, power.
//!
//! They need `/dev/kvm`, but no KVM that runs a 64-bit kernel. A test without it says so on
//! standard error.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod card;
mod confine;
mod devices;
mod local;
mod packed;
mod payload;
mod reset;
mod rig;
mod slow;

use nicforge_kvm::{End, Vm, VmConfig, VmError};

use card::{
    BROKEN, Card, MEMORY, MIRROR, PENDING, RAISE, RAISE_LINE, REGISTER_VALUE, REGISTERS, SIZE, TABLE,
};
use payload::Payload;
use rig::{
    BAR, COMMAND, COMMAND_MEMORY, MOVED, MSIX_CONTROL, SECOND_SLOT, SLOT, at, at_slot, boot, boot_with,
    has_kvm, set_up,
};

/// The local interrupt controller: the register that enables it, and the requests of vectors 32 to
/// 63.
const APIC_ENABLE: u32 = 0xfee0_00f0;
const APIC_REQUESTS: u32 = 0xfee0_0210;
/// A message for the first processor, vector 33, and its bit in [`APIC_REQUESTS`].
const MESSAGE_ADDRESS: u32 = 0xfee0_0000;
const VECTOR: u32 = 33;
const REQUEST: u32 = 1 << (VECTOR - 32);

#[test]
fn program_prints_and_switches_off() {
    let Some(run) = boot(Payload::default().say(b'h').say(b'i').power_off(), Card::new()) else { return };
    assert_eq!(run.output, b"hi");
    assert_eq!(run.end, Some(End::PowerOff));
    assert_eq!(run.exits.ports, 3);
    assert_eq!(run.exits.total(), 3);
}

#[test]
fn string_instruction_is_one_access_for_each_byte() {
    const TEXT: u32 = 0x20_0000;
    let text = u32::from_le_bytes(*b"abcd");
    let program = Payload::default().store(TEXT, text).store(TEXT + 4, text).say_string(TEXT, 8);
    let Some(run) = boot(program.power_off(), Card::new()) else { return };

    assert_eq!(run.output, b"abcdabcd");
    assert_eq!(run.end, Some(End::PowerOff));
}

#[test]
fn triple_fault_ends_the_machine_with_a_reason() {
    let Some(run) = boot(Payload::default().fail(), Card::new()) else { return };
    let Some(End::Failed(reason)) = run.end else { panic!("{:?}", run.end) };
    assert!(reason.contains("processor 0"), "{reason}");
}

#[test]
fn mapped_memory_takes_stores_without_an_exit() {
    let card = Card::new();
    let mut program = set_up();
    for word in 0..8 {
        program = program.store(BAR + MEMORY + 4 * word, 0x100 + word);
    }
    let Some(run) = boot(program.show(BAR + MEMORY + 4).power_off(), card.clone()) else { return };

    assert_eq!(run.output, 0x101_u32.to_le_bytes());
    assert_eq!(card.word(MEMORY + 28), 0x107);
    assert_eq!(card.writes(), []);
    assert_eq!(run.exits.memory, 0);
}

#[test]
fn a_million_stores_to_mapped_memory_make_no_exit() {
    let card = Card::new();
    let program = set_up().store_countdown(BAR + MEMORY, 1_000_000);
    let Some(run) = boot(program.show(BAR + MEMORY).power_off(), card.clone()) else { return };
    let Some(without) = boot(set_up().show(BAR + MEMORY).power_off(), Card::new()) else { return };

    assert_eq!(run.output, 1_u32.to_le_bytes());
    assert_eq!(card.word(MEMORY), 1);
    assert_eq!(run.exits.total(), without.exits.total());
}

#[test]
fn mirrored_memory_is_read_without_an_exit_and_its_stores_reach_the_function() {
    let card = Card::new();
    card.set_word(MIRROR + 8, 0x1234_5678);
    let program = set_up().show(BAR + MIRROR + 8).store(BAR + MIRROR + 8, 7).show(BAR + MIRROR + 8);
    let Some(run) = boot(program.power_off(), card.clone()) else { return };

    assert_eq!(run.output, [0x1234_5678_u32.to_le_bytes(), 0x1234_5678_u32.to_le_bytes()].concat());
    assert_eq!(card.writes(), [(u64::from(MIRROR) + 8, 7)]);
    assert_eq!(run.exits.memory, 1);
}

#[test]
fn registers_are_reached_by_exits() {
    let card = Card::new();
    let program = set_up().store(BAR + REGISTERS + 4, 9).show(BAR + REGISTERS + 8);
    let Some(run) = boot(program.power_off(), card.clone()) else { return };

    assert_eq!(run.output, (REGISTER_VALUE + REGISTERS + 8).to_le_bytes());
    assert_eq!(card.writes(), [(u64::from(REGISTERS) + 4, 9)]);
    assert_eq!(run.exits.memory, 2);
}

#[test]
fn moved_bar_takes_its_memory_along() {
    let card = Card::new();
    let program = set_up()
        .store(BAR + MEMORY, 1)
        .store(at(COMMAND), 0)
        .show(BAR + MEMORY)
        .store(at(rig::BAR_0), MOVED)
        .store(at(COMMAND), COMMAND_MEMORY)
        .store(MOVED + MEMORY + 4, 2)
        .show(MOVED + MEMORY);
    let Some(run) = boot(program.power_off(), card.clone()) else { return };

    // Nothing decodes the old address.
    assert_eq!(run.output, [u32::MAX.to_le_bytes(), 1_u32.to_le_bytes()].concat());
    assert_eq!([card.word(MEMORY), card.word(MEMORY + 4)], [1, 2]);
}

#[test]
fn bar_has_the_size_that_it_reads_back() {
    let program = Payload::default().store(at(rig::BAR_0), u32::MAX).show(at(rig::BAR_0)).power_off();
    let Some(run) = boot(program, Card::new()) else { return };
    assert_eq!(run.output, (!(SIZE - 1)).to_le_bytes());
}

#[test]
fn slot_without_a_function_reads_as_ones() {
    let program = Payload::default().show(at(0)).show(at(0) + (1 << 15)).power_off();
    let Some(run) = boot(program, Card::new()) else { return };
    assert_eq!(run.output, [0x1234_1efc_u32.to_le_bytes(), u32::MAX.to_le_bytes()].concat());
}

#[test]
fn bar_over_ram_is_not_decoded() {
    let card = Card::new();
    let program = Payload::default()
        .store(at(rig::BAR_0), 0x20_0000)
        .store(at(COMMAND), COMMAND_MEMORY)
        .store(0x20_0000, 5)
        .show(0x20_0000);
    let Some(run) = boot(program.power_off(), card.clone()) else { return };
    assert_eq!(run.output, 5_u32.to_le_bytes());
    assert_eq!(card.word(MEMORY), 0);
}

#[test]
fn failed_access_reads_as_ones_and_the_machine_goes_on() {
    let program = set_up().show(BAR + BROKEN).show(BAR + REGISTERS);
    let Some(run) = boot(program.power_off(), Card::new()) else { return };
    assert_eq!(run.output, [u32::MAX.to_le_bytes(), (REGISTER_VALUE + REGISTERS).to_le_bytes()].concat());
    assert_eq!(run.end, Some(End::PowerOff));
}

#[test]
fn bars_over_each_other_leave_the_first_one_in_place() {
    let (first, second) = (Card::new(), Card::new());
    let program = set_up()
        .store(at_slot(SECOND_SLOT, rig::BAR_0), BAR)
        .store(at_slot(SECOND_SLOT, COMMAND), COMMAND_MEMORY)
        .store(BAR + MEMORY, 1)
        // The second one's memory appears when the first one's leaves.
        .store(at(COMMAND), 0)
        .store(BAR + MEMORY + 4, 2);
    let cards = [(SLOT, first.clone()), (SECOND_SLOT, second.clone())];
    let Some(run) = boot_with(program.power_off(), &cards) else { return };

    assert_eq!(run.end, Some(End::PowerOff));
    assert_eq!([first.word(MEMORY), first.word(MEMORY + 4)], [1, 0]);
    assert_eq!([second.word(MEMORY), second.word(MEMORY + 4)], [0, 2]);
    // Memory makes no exit.
    assert_eq!(run.exits.memory, 0);
}

#[test]
fn nonsense_in_configuration_space_and_table_does_not_end_the_machine() {
    // A table of ones, MSI-X enabled on top of it, and every register of a BAR set.
    let mut program = set_up().store(at(MSIX_CONTROL), 0x8000 << 16);
    for word in (0..32).step_by(4).chain([0x800, 0xffc]) {
        program = program.store(BAR + TABLE + word, u32::MAX).store(BAR + TABLE + word, 0);
    }
    program = program.store(BAR + TABLE, 0x1234_5678).store(BAR + TABLE + 12, 0).store(BAR + RAISE, 1);
    for register in (4..0x100).step_by(4) {
        program = program.store(at(register), u32::MAX);
    }
    program = program.show(at(0x10)).show(BAR + MEMORY).say(b'!');

    let Some(run) = boot(program.power_off(), Card::new()) else { return };
    // One of the bits resets the function.
    let expected = [0_u32.to_le_bytes(), u32::MAX.to_le_bytes()].concat();
    assert_eq!(run.output, [&expected[..], b"!"].concat());
    assert_eq!(run.end, Some(End::PowerOff));
}

/// Returns a program that has set vector 0 up, with the vector's mask bit.
fn with_vector(masked: u32) -> Payload {
    set_up()
        .store(APIC_ENABLE, 0x1ff)
        .store(at(MSIX_CONTROL), 0x8000 << 16)
        .store(BAR + TABLE, MESSAGE_ADDRESS)
        .store(BAR + TABLE + 4, 0)
        .store(BAR + TABLE + 8, VECTOR)
        .store(BAR + TABLE + 12, masked)
}

#[test]
fn vector_reaches_the_processor() {
    let card = Card::new();
    let program = with_vector(0).store(BAR + RAISE, 1).wait_for(APIC_REQUESTS, REQUEST).say(b'!');
    let Some(run) = boot(program.power_off(), card) else { return };
    assert_eq!(run.output, b"!");
    assert_eq!(run.end, Some(End::PowerOff));
}

#[test]
fn masked_vector_keeps_its_interrupt() {
    let card = Card::new();
    // The vector is masked after it has had its eventfd.
    let program = with_vector(0)
        .store(BAR + TABLE + 12, 1)
        .show(BAR + PENDING)
        .store(BAR + RAISE, 1)
        .show(APIC_REQUESTS)
        .show(BAR + PENDING)
        .store(BAR + TABLE + 12, 0)
        .wait_for(APIC_REQUESTS, REQUEST)
        .show(BAR + PENDING);
    let Some(run) = boot(program.power_off(), card) else { return };
    let shown: Vec<u8> = [0, 0, 1, 0].into_iter().flat_map(u32::to_le_bytes).collect();
    assert_eq!(run.output, shown);
}

#[test]
fn table_reads_back_and_disabled_msix_releases_the_vectors() {
    let card = Card::new();
    let program = with_vector(0)
        .show(BAR + TABLE + 8)
        .show(BAR + TABLE + 28)
        .store(at(MSIX_CONTROL), 0)
        .store(BAR + RAISE, 1)
        .show(APIC_REQUESTS);
    let Some(run) = boot(program.power_off(), card) else { return };
    assert_eq!(run.output, [VECTOR.to_le_bytes(), 1_u32.to_le_bytes(), 0_u32.to_le_bytes()].concat());
}

#[test]
fn interrupt_line_reaches_the_processor() {
    let card = Card::new();
    // The entry of the I/O APIC for slot 3: vector 33, level-triggered, for the first processor.
    let (select, window, entry) = (0xfec0_0000, 0xfec0_0010, 0x10 + 2 * (16 + 3));
    let program = set_up()
        .store(APIC_ENABLE, 0x1ff)
        .store(select, entry + 1)
        .store(window, 0)
        .store(select, entry)
        .store(window, VECTOR | 1 << 15)
        .show(at(0x3c))
        .store(BAR + RAISE_LINE, 1)
        .wait_for(APIC_REQUESTS, REQUEST)
        .say(b'!');
    let Some(run) = boot(program.power_off(), card) else { return };
    assert_eq!(run.output, [0, 1, 0, 0, b'!']);
}

#[test]
fn owner_stops_a_machine_that_does_not_end() {
    if !has_kvm() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let kernel = folder.path().join("kernel");
    // The interrupt never comes.
    Payload::default().wait_for(APIC_REQUESTS, REQUEST).write(&kernel);

    let running = Vm::new(&VmConfig::new(&kernel).memory(4 << 20)).unwrap().start().unwrap();
    assert_eq!(running.stop(), End::Stopped);
}

#[test]
fn impossible_machines_are_refused() {
    if !has_kvm() {
        return;
    }
    let config = VmConfig::new("/nonexistent/vmlinux").memory(4 << 20);
    assert!(matches!(Vm::new(&config.clone().processors(0)), Err(VmError::Request(_))));

    let mut vm = Vm::new(&config).unwrap();
    vm.plug(3, Card::new()).unwrap();
    assert!(matches!(vm.plug(3, Card::new()), Err(VmError::Request(_))));
    assert!(matches!(vm.plug(32, Card::new()), Err(VmError::Request(_))));
    assert!(matches!(vm.serial(3, Box::new(std::io::sink())), Err(VmError::Request(_))));
    assert!(matches!(vm.start().err(), Some(VmError::File { .. })));
}
