//! Resets: of the machine by its guest, and of a function by its driver.

use std::{sync::Arc, thread};

use nicforge_core::{
    context::Context,
    device::{Device, Reset, Write},
    ids::{Address, AttachmentId, FunctionId},
    machine::Machine,
    spec::{AttachmentSpec, BarSpec, FunctionSpec, Identity},
};
use nicforge_engine::{Engine, EngineConfig, Stop};
use nicforge_kvm::{End, RemoteFunction};

use crate::{
    APIC_REQUESTS, REQUEST,
    card::{Card, EXPRESS, MEMORY, RAISE, REGISTERS, TABLE},
    rig::{self, BAR, COMMAND, COMMAND_MEMORY, LIMIT, SLOT, at, boot, has_kvm},
    set_up, with_vector,
};

/// An address in RAM.
const WORD: u32 = 0x20_0000;
/// The value of all registers of [`LineOnly`].
const LINE_ONLY_VALUE: u32 = 0x6c69_6e65;
/// The register with the bit that resets a function, and the bit.
const DEVICE_CONTROL: u32 = EXPRESS + 8;
const INITIATE_RESET: u16 = 1 << 15;

#[test]
fn machine_that_resets_itself_starts_anew_with_empty_ram_and_reset_functions() {
    if !has_kvm() {
        return;
    }
    // A restarted machine decodes no BAR, and finds the card's memory as it was.
    let program = set_up()
        .show(WORD)
        .store(WORD, 7)
        .store(at(COMMAND), 0)
        .show(BAR + MEMORY)
        .store(at(COMMAND), COMMAND_MEMORY)
        .store(BAR + MEMORY, 5)
        .reset();
    let card = Card::new();
    let mut started = rig::start(program, vec![(SLOT, card.clone())]);
    let output = [0_u32.to_le_bytes(), u32::MAX.to_le_bytes()].concat();

    for round in 1..=3 {
        assert_eq!(started.running.wait(LIMIT), Some(End::Reset));
        assert_eq!(started.output.bytes(), output.repeat(round));
        assert_eq!(card.resets() as usize, round - 1);
        assert_eq!(card.word(MEMORY), 5);
        started.running = started.running.restart().unwrap();
    }
    started.running.stop();
    assert_eq!(Arc::strong_count(&card), 1);
}

/// A device whose function has an interrupt line and no MSI-X.
struct LineOnly;

impl Device for LineOnly {
    fn spec(&self) -> FunctionSpec {
        let identity = Identity {
            vendor: 0x1efc,
            device: 1,
            subsystem_vendor: 0,
            subsystem: 0,
            class: 0xff_00_00,
            revision: 0,
        };
        FunctionSpec {
            attachments: vec![AttachmentSpec { name: "user".into(), group: 0 }],
            bars: [Some(BarSpec::trapped(4096)), None, None, None, None, None],
            intx: true,
            ..FunctionSpec::hub(identity)
        }
    }

    fn read(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, data: &mut [u8]) {
        data.copy_from_slice(&LINE_ONLY_VALUE.to_le_bytes()[..data.len()]);
    }

    fn write(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &[u8]) -> Write {
        Write::Accepted
    }

    fn reset(&mut self, _: &mut Context<'_>, _: Reset) {}
}

#[test]
fn machine_with_a_served_function_without_msix_starts_anew() {
    if !has_kvm() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("line0");
    let mut machine = Machine::new();
    machine.add_function("line0", Box::new(LineOnly)).unwrap();
    let mut engine = Engine::new(machine, EngineConfig::default()).unwrap();
    engine.listen(FunctionId(0), AttachmentId(0), &socket).unwrap();

    let stop = Stop::new().unwrap();
    let (ends, output) = thread::scope(|scope| {
        scope.spawn(|| engine.run(&stop).unwrap());
        // The engine ends with this scope, whatever the result is.
        let result = std::panic::catch_unwind(|| {
            let function = RemoteFunction::connect(&socket, LIMIT).unwrap();
            let program = set_up().show(BAR).reset();
            let mut started = rig::start(program, vec![(SLOT, Arc::new(function))]);
            let mut ends = vec![started.running.wait(LIMIT)];
            started.running = started.running.restart().unwrap();
            ends.push(started.running.wait(LIMIT));
            (ends, started.output.bytes())
        });
        stop.stop();
        result.unwrap()
    });

    assert_eq!(ends, [Some(End::Reset), Some(End::Reset)]);
    assert_eq!(output, [LINE_ONLY_VALUE.to_le_bytes(), LINE_ONLY_VALUE.to_le_bytes()].concat());
}

#[test]
fn machine_that_still_runs_is_stopped_and_starts_anew() {
    if !has_kvm() {
        return;
    }
    // The interrupt never comes.
    let program = set_up().say(b'!').wait_for(APIC_REQUESTS, REQUEST);
    let mut started = rig::start(program, vec![(SLOT, Card::new())]);
    started.running = started.running.restart().unwrap();
    assert_eq!(started.running.wait(std::time::Duration::ZERO), None);
    assert_eq!(started.running.stop(), End::Stopped);
}

#[test]
fn function_level_reset_takes_the_bars_and_the_vectors_away() {
    let program = with_vector(0)
        .store_16(at(DEVICE_CONTROL), INITIATE_RESET)
        .store(BAR + RAISE, 1)
        .show(BAR + REGISTERS)
        .show(at(rig::BAR_0))
        .store(at(rig::BAR_0), BAR)
        .store(at(COMMAND), COMMAND_MEMORY)
        .show(BAR + TABLE + 8)
        .show(BAR + TABLE + 12)
        .store(BAR + RAISE, 1)
        .show(APIC_REQUESTS);
    let card = Card::new();
    let Some(run) = boot(program.power_off(), card.clone()) else { return };

    // No BAR is decoded, the table is masked and empty, and the function has no eventfd.
    let expected = [u32::MAX, 0, 0, 1, 0].map(u32::to_le_bytes);
    assert_eq!(run.output, expected.concat());
    assert_eq!(card.writes(), [(RAISE.into(), 1)]);
}

#[test]
fn vector_works_again_after_a_function_level_reset() {
    let reset = with_vector(0).store_16(at(DEVICE_CONTROL), INITIATE_RESET);
    let program = reset.then(with_vector(0)).store(BAR + RAISE, 1).wait_for(APIC_REQUESTS, REQUEST);
    let Some(run) = boot(program.say(b'!').power_off(), Card::new()) else { return };
    assert_eq!(run.output, b"!");
}

#[test]
fn reset_vector_has_code_that_resets_the_machine() {
    // mov dx, 0x602; mov al, 1; out dx, al; hlt
    let code = [0xba, 0x02, 0x06, 0xb0, 0x01, 0xee, 0xf4, 0xeb];
    let program = set_up().show(0xf_fff0).show(0xf_fff4).power_off();
    let Some(run) = boot(program, Card::new()) else { return };
    assert_eq!(run.output, code);
}
