//! A machine with cards, which runs one program.

use std::{
    io::Write,
    sync::{Arc, Mutex},
    time::Duration,
};

use nicforge_kvm::{End, Exits, Function, Running, Vm, VmConfig};
use tempfile::TempDir;

use crate::{card::Card, payload::Payload};

/// Time limit of a program, generous for a KVM that emulates.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// The card's slot, and that of a second one.
pub(crate) const SLOT: u8 = 3;
pub(crate) const SECOND_SLOT: u8 = 4;
/// The configuration space of bus 0.
const ECAM: u32 = 0xe000_0000;

/// Registers of the card's configuration space: command, BAR 0, MSI-X.
pub(crate) const COMMAND: u32 = 0x04;
pub(crate) const BAR_0: u32 = 0x10;
pub(crate) const MSIX_CONTROL: u32 = 0x40;
/// The command that enables the card's BARs.
pub(crate) const COMMAND_MEMORY: u32 = 2;

/// Addresses for BAR 0.
pub(crate) const BAR: u32 = 0xc100_0000;
pub(crate) const MOVED: u32 = 0xd000_0000;

/// Returns the address of a register of the card's configuration space.
pub(crate) fn at(register: u32) -> u32 {
    at_slot(SLOT, register)
}

/// Returns the address of a register of the configuration space of a card in a slot.
pub(crate) fn at_slot(slot: u8, register: u32) -> u32 {
    ECAM + (u32::from(slot) << 15) + register
}

/// Returns a program that has put BAR 0 at its address.
pub(crate) fn set_up() -> Payload {
    Payload::default().store(at(BAR_0), BAR).store(at(COMMAND), COMMAND_MEMORY)
}

/// The result of a program.
pub(crate) struct Run {
    pub(crate) output: Vec<u8>,
    pub(crate) end: Option<End>,
    pub(crate) exits: Exits,
}

/// Returns whether there is a KVM. Where there is none, the test's standard error says so.
pub(crate) fn has_kvm() -> bool {
    match std::fs::File::options().read(true).write(true).open("/dev/kvm") {
        Ok(_) => true,
        Err(error) => {
            // Standard error of a test is captured; this line is not.
            let _ = writeln!(std::io::stderr(), "NOT RUN, no virtual machine here: /dev/kvm: {error}");
            false
        }
    }
}

/// Runs a program with one card to its end, or returns `None` where there is no KVM.
pub(crate) fn boot(program: Payload, card: Arc<Card>) -> Option<Run> {
    boot_with(program, &[(SLOT, card)])
}

/// Runs a program with cards in slots to its end, or returns `None` where there is no KVM.
pub(crate) fn boot_with(program: Payload, cards: &[(u8, Arc<Card>)]) -> Option<Run> {
    if !has_kvm() {
        return None;
    }
    let functions = cards.iter().map(|(slot, card)| (*slot, card.clone() as Arc<dyn Function>));
    Some(boot_functions(program, functions.collect()))
}

/// Runs a program with functions in slots to its end.
pub(crate) fn boot_functions(program: Payload, functions: Vec<(u8, Arc<dyn Function>)>) -> Run {
    let Started { running, output, .. } = start(program, functions);
    let end = running.wait(LIMIT);
    let exits = running.exits();
    running.stop();
    Run { output: output.bytes(), end, exits }
}

/// A machine that runs a program.
pub(crate) struct Started {
    pub(crate) running: Running,
    pub(crate) output: Lines,
    /// The folder of the program, which a machine reads again when it restarts.
    pub(crate) folder: TempDir,
}

/// Starts a program with functions in slots.
pub(crate) fn start(program: Payload, functions: Vec<(u8, Arc<dyn Function>)>) -> Started {
    let folder = tempfile::tempdir().unwrap();
    let kernel = folder.path().join("kernel");
    program.write(&kernel);

    let output = Lines::default();
    let mut vm = Vm::new(&VmConfig::new(&kernel).memory(4 << 20)).unwrap();
    vm.serial(0, Box::new(output.clone())).unwrap();
    for (slot, function) in functions {
        vm.plug(slot, function).unwrap();
    }
    Started { running: vm.start().unwrap(), output, folder }
}

/// The bytes of a serial port.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
