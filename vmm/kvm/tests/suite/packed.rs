//! Packed kernels (bzImage), with programs in the place of a kernel.

use std::path::Path;

use nicforge_kvm::{End, Vm, VmConfig, VmError};

use crate::{
    payload::Payload,
    rig::{LIMIT, Lines, has_kvm},
};

/// Address in RAM to which the program stores the register ESI, and that of the parameters.
const ESI: u32 = 0x11_0000;
const PARAMETERS: u32 = 0x8000;
/// Bytes of the guest's RAM.
const RAM: u64 = 4 << 20;
/// Bytes that the kernel says it needs to unpack itself.
const INIT_SIZE: u32 = 0x2_0000;

/// Returns a machine with a packed kernel and an initramfs of 4 bytes.
fn machine(folder: &Path, program: &Payload, init_size: u32) -> (Vm, Lines) {
    let (kernel, initrd) = (folder.join("kernel"), folder.join("initrd"));
    program.write_packed(&kernel, init_size);
    std::fs::write(&initrd, b"ramd").unwrap();

    let config = VmConfig::new(kernel).initrd(initrd).command_line("quiet").memory(RAM);
    let (mut vm, output) = (Vm::new(&config).unwrap(), Lines::default());
    vm.serial(0, Box::new(output.clone())).unwrap();
    (vm, output)
}

#[test]
fn packed_kernel_finds_its_parameters() {
    if !has_kvm() {
        return;
    }
    // Initramfs: the last page of RAM. Its address and size, the command line, the first entries
    // of the memory map, and their number.
    let initrd = RAM as u32 - 4096;
    let program = Payload::default()
        .store_esi(ESI)
        .show(ESI)
        .show(PARAMETERS + 0x218)
        .show(PARAMETERS + 0x21c)
        .show(initrd)
        .show(0x2_0000)
        .show(PARAMETERS + 0x2d0 + 20)
        .show(PARAMETERS + 0x2d0 + 28)
        .show(PARAMETERS + 0x2d0 + 36)
        .power_off();
    let folder = tempfile::tempdir().unwrap();
    let (vm, output) = machine(folder.path(), &program, INIT_SIZE);
    let running = vm.start().unwrap();

    assert_eq!(running.wait(LIMIT), Some(End::PowerOff));
    let words = [PARAMETERS, initrd, 4, u32::from_le_bytes(*b"ramd"), u32::from_le_bytes(*b"quie")];
    let map = [0x10_0000, RAM as u32 - 0x10_0000, 1];
    let expected: Vec<_> = words.iter().chain(&map).flat_map(|word| word.to_le_bytes()).collect();
    assert_eq!(output.bytes(), expected);
}

#[test]
fn kernel_that_has_no_room_to_unpack_itself_is_refused() {
    if !has_kvm() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for init_size in [RAM as u32, u32::MAX] {
        let (vm, _) = machine(folder.path(), &Payload::default().power_off(), init_size);
        assert!(matches!(vm.start().err(), Some(VmError::File { .. })));
    }
}

#[test]
fn file_that_is_no_kernel_is_refused() {
    if !has_kvm() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let kernel = folder.path().join("kernel");
    for content in [vec![], vec![0; 3], vec![0; 1 << 12], b"\x7fELF".repeat(100)] {
        std::fs::write(&kernel, content).unwrap();
        let vm = Vm::new(&VmConfig::new(&kernel).memory(RAM)).unwrap();
        assert!(matches!(vm.start().err(), Some(VmError::File { .. })));
    }
}
