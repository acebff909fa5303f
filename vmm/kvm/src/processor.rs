//! The state in which processors start: features, and the registers at a kernel's entry.

use kvm_bindings::{CpuId, KVM_MAX_CPUID_ENTRIES, Msrs, kvm_msr_entry, kvm_regs, kvm_segment};
use kvm_ioctls::{Kvm, VcpuFd};

use crate::{
    boot::{Entry, Protocol},
    error::VmError,
};

/// Bits of CPUID leaf 1, register ECX: the local APIC's timer has deadlines in time stamps, and the
/// processor belongs to a virtual machine.
const TSC_DEADLINE: u32 = 1 << 24;
const HYPERVISOR: u32 = 1 << 31;

/// The model-specific register with the default type of memory, and its value here: enabled (bit
/// 11), write-back (6).
const MTRR_DEFAULT: u32 = 0x2ff;
const MTRR_WRITE_BACK: u64 = 1 << 11 | 6;

/// Bits of the control register CR0: protected mode, and a coprocessor of the known kind.
const CR0_PROTECTED: u64 = 1;
const CR0_COPROCESSOR: u64 = 1 << 4;

/// Selectors of the code segment. Linux's boot protocol prescribes its own; PVH prescribes none.
const PVH_CODE: u16 = 0x8;
const LINUX_CODE: u16 = 0x10;
/// Distance of the selectors of two neighbours in a descriptor table.
const NEXT_SELECTOR: u16 = 0x8;

/// Types of segments: code to execute and read, data to read and write (both already accessed), and
/// a task state of 32 bits in use.
const CODE: u8 = 0xb;
const DATA: u8 = 0x3;
const BUSY_TASK: u8 = 0xb;
/// Offset of a task state's last byte.
const TASK_LIMIT: u32 = 0x67;

/// Sets the features and model-specific registers of a processor.
pub(crate) fn set_features(kvm: &Kvm, vcpu: &VcpuFd, number: u8) -> Result<(), VmError> {
    let supported = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES);
    let mut features = supported.map_err(VmError::kvm("the processor's features"))?;
    set_number_and_timer(&mut features, number);
    vcpu.set_cpuid2(&features).map_err(VmError::kvm("the processor's features"))?;

    let entry = kvm_msr_entry { index: MTRR_DEFAULT, data: MTRR_WRITE_BACK, ..Default::default() };
    let refused = || VmError::Request(format!("KVM refuses the model-specific register {MTRR_DEFAULT:#x}"));
    let registers = Msrs::from_entries(&[entry]).map_err(|_| refused())?;
    let set = vcpu.set_msrs(&registers).map_err(VmError::kvm("the processor's model-specific registers"))?;

    // KVM stops at the first register that it refuses, and returns the number of those before.
    if set == 1 { Ok(()) } else { Err(refused()) }
}

/// Adds the features that KVM leaves to its user: the number of the processor, which is its local
/// APIC's id, and bits of leaf 1.
fn set_number_and_timer(features: &mut CpuId, number: u8) {
    for entry in features.as_mut_slice() {
        match entry.function {
            1 => {
                entry.ecx |= TSC_DEADLINE | HYPERVISOR;
                // The highest byte of EBX is the local APIC's id.
                entry.ebx = entry.ebx & 0x00ff_ffff | u32::from(number) << 24;
            }
            // Extended topology: on all processors, and on AMD's.
            0xb | 0x1f => entry.edx = number.into(),
            0x8000_001e => entry.eax = number.into(),
            _ => {}
        }
    }
}

/// Puts the first processor at a kernel's entry: 32-bit protected mode without paging, and segments
/// of 4 GiB.
pub(crate) fn set_entry(vcpu: &VcpuFd, entry: Entry) -> Result<(), VmError> {
    // Bit 1 of the flags is always set.
    let general = kvm_regs { rip: entry.address, rflags: 2, ..Default::default() };
    let (general, code_selector) = match entry.protocol {
        Protocol::Pvh { start_info } => (kvm_regs { rbx: start_info, ..general }, PVH_CODE),
        Protocol::Linux { parameters } => (kvm_regs { rsi: parameters, ..general }, LINUX_CODE),
    };
    let data_selector = code_selector + NEXT_SELECTOR;
    let task_selector = data_selector + NEXT_SELECTOR;

    let mut special = vcpu.get_sregs().map_err(VmError::kvm("the processor's registers"))?;
    special.cs = segment(code_selector, CODE);
    for data in [&mut special.ds, &mut special.es, &mut special.fs, &mut special.gs, &mut special.ss] {
        *data = segment(data_selector, DATA);
    }
    // The task register refers to a system segment (`s`), whose limit is in bytes (`g`).
    special.tr = kvm_segment { limit: TASK_LIMIT, s: 0, g: 0, db: 0, ..segment(task_selector, BUSY_TASK) };
    special.cr0 = CR0_PROTECTED | CR0_COPROCESSOR;
    special.cr4 = 0;
    special.efer = 0;
    vcpu.set_sregs(&special).map_err(VmError::kvm("the processor's registers"))?;

    vcpu.set_regs(&general).map_err(VmError::kvm("the processor's registers"))
}

/// Returns a 32-bit segment of all 4 GiB, of one of the types above.
fn segment(selector: u16, type_: u8) -> kvm_segment {
    kvm_segment {
        base: 0,
        limit: u32::MAX,
        selector,
        type_,
        present: 1,
        db: 1,
        s: 1,
        g: 1,
        ..Default::default()
    }
}
