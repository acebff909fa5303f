//! The state in which processors start: features, and the registers at a kernel's entry.

use kvm_bindings::{CpuId, KVM_MAX_CPUID_ENTRIES, Msrs, kvm_msr_entry, kvm_regs, kvm_segment};
use kvm_ioctls::{Kvm, VcpuFd};

use crate::{
    boot::{Entry, Protocol},
    error::VmError,
};

/// Bits of CPUID leaf 1, register ECX: the local APIC's timer counts in time stamps, and the
/// processor belongs to a virtual machine.
const TSC_DEADLINE: u32 = 1 << 24;
const HYPERVISOR: u32 = 1 << 31;

/// The register with the default type of memory: enabled, write-back.
const MTRR_DEFAULT: u32 = 0x2ff;
const MTRR_WRITE_BACK: u64 = 1 << 11 | 6;

/// Bits of the control register CR0: protected mode, and a coprocessor of the known kind.
const CR0_PROTECTED: u64 = 1;
const CR0_COPROCESSOR: u64 = 1 << 4;

/// Sets the features and model-specific registers of a processor.
pub(crate) fn set_features(kvm: &Kvm, vcpu: &VcpuFd, number: u8) -> Result<(), VmError> {
    let supported = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES);
    let mut features = supported.map_err(VmError::kvm("the processor's features"))?;
    describe(&mut features, number);
    vcpu.set_cpuid2(&features).map_err(VmError::kvm("the processor's features"))?;

    let entry = kvm_msr_entry { index: MTRR_DEFAULT, data: MTRR_WRITE_BACK, ..Default::default() };
    let registers = Msrs::from_entries(&[entry])
        .map_err(|_| VmError::Request("KVM takes no model-specific registers".into()))?;
    vcpu.set_msrs(&registers).map_err(VmError::kvm("the processor's model-specific registers"))?;
    Ok(())
}

/// Adds what KVM does not know of: the processor's number, and that its timer is the usual one.
fn describe(features: &mut CpuId, number: u8) {
    for entry in features.as_mut_slice() {
        match entry.function {
            1 => {
                entry.ecx |= TSC_DEADLINE | HYPERVISOR;
                entry.ebx = entry.ebx & 0x00ff_ffff | u32::from(number) << 24;
            }
            // Extended topology: the number of the processor.
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
    let (general, code) = match entry.protocol {
        Protocol::Pvh { start_info } => (kvm_regs { rbx: start_info, ..general }, 0x8),
        Protocol::Linux { parameters } => (kvm_regs { rsi: parameters, ..general }, 0x10),
    };

    let mut special = vcpu.get_sregs().map_err(VmError::kvm("the processor's registers"))?;
    special.cs = segment(code, 0xb);
    for data in [&mut special.ds, &mut special.es, &mut special.fs, &mut special.gs, &mut special.ss] {
        *data = segment(code + 0x8, 0x3);
    }
    special.tr = kvm_segment { limit: 0x67, s: 0, g: 0, db: 0, ..segment(code + 0x10, 0xb) };
    special.cr0 = CR0_PROTECTED | CR0_COPROCESSOR;
    special.cr4 = 0;
    special.efer = 0;
    vcpu.set_sregs(&special).map_err(VmError::kvm("the processor's registers"))?;

    vcpu.set_regs(&general).map_err(VmError::kvm("the processor's registers"))
}

/// Returns a segment of 4 GiB.
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
