//! The thread of a processor.
//!
//! UNSAFETY: a string instruction makes one exit for several accesses of a port. Their width is
//! only in the page that KVM shares with this process.

#![allow(unsafe_code)]

use std::{
    io,
    sync::{Arc, Once},
    thread::{self, JoinHandle},
    time::Duration,
};

use kvm_ioctls::{VcpuExit, VcpuFd};
use nix::libc::{EAGAIN, EINTR, c_int, c_void, siginfo_t};
use vmm_sys_util::signal::{Killable, SIGRTMIN, register_signal_handler};

use crate::{error::VmError, exits::count, ports::Devices, power::End};

/// Time between two signals that end a call of KVM, to a thread that has not ended yet.
const KICK_INTERVAL: Duration = Duration::from_millis(1);

/// The thread of a processor. It ends when the machine does and [`Self::join`] is called.
pub(crate) struct Vcpu(JoinHandle<()>);

impl Vcpu {
    /// Starts a processor.
    pub(crate) fn start(vcpu: VcpuFd, number: u8, devices: Arc<Devices>) -> Result<Self, VmError> {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(|| {
            if let Err(error) = register_signal_handler(SIGRTMIN(), on_kick) {
                tracing::error!(%error, "processors cannot be stopped");
            }
        });

        let builder = thread::Builder::new().name(format!("processor {number}"));
        let thread = builder.spawn(move || {
            let _guard = EndOnPanic { devices: &devices, number };
            run(vcpu, number, &devices);
        });
        thread.map(Self).map_err(VmError::system("a processor's thread"))
    }

    /// Waits for the thread of a machine that has ended.
    pub(crate) fn join(self) {
        // A signal that comes just before the thread enters the guest has no effect, so it is
        // repeated.
        while !self.0.is_finished() {
            if let Err(error) = self.0.kill(SIGRTMIN()) {
                tracing::warn!(%error, "a signal to a processor");
            }
            thread::sleep(KICK_INTERVAL);
        }

        if self.0.join().is_err() {
            tracing::error!("the thread of a processor panicked");
        }
    }
}

/// Ends the machine when its thread panics: the guest could not go on without the processor.
struct EndOnPanic<'a> {
    devices: &'a Devices,
    number: u8,
}

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let reason = format!("processor {}: its thread panicked", self.number);
            self.devices.power.end(End::Failed(reason));
        }
    }
}

/// The signal's only effect is to end a call of KVM.
extern "C" fn on_kick(_: c_int, _: *mut siginfo_t, _: *mut c_void) {}

/// Runs a processor until the machine ends.
fn run(mut vcpu: VcpuFd, number: u8, devices: &Devices) {
    // SAFETY: the address of a field is taken, and nothing is read.
    let port_width: *const u8 = unsafe { &raw const vcpu.get_kvm_run().__bindgen_anon_1.io.size };
    while devices.power.ended().is_none() {
        match vcpu.run() {
            Ok(exit) => {
                // SAFETY: the page is mapped for as long as `vcpu` exists, and KVM writes to it in
                // `KVM_RUN` alone. Any bytes are a number.
                let port_width = unsafe { port_width.read_volatile() };
                if let Err(reason) = answer(exit, port_width, devices) {
                    let registers = registers(&vcpu);
                    devices.power.end(End::Failed(format!("processor {number}: {reason}; {registers}")));
                }
            }
            Err(error) if matches!(error.errno(), EINTR | EAGAIN) => count(&devices.exits.other),
            Err(error) => {
                let error = io::Error::from_raw_os_error(error.errno());
                devices.power.end(End::Failed(format!("processor {number}: KVM_RUN: {error}")));
            }
        }
    }
}

/// Answers an exit, or returns why the processor cannot go on. `port_width` is the size in bytes of
/// each access of an exit to an I/O port. Other exits leave any value there, 0 too.
fn answer(exit: VcpuExit<'_>, port_width: u8, devices: &Devices) -> Result<(), String> {
    let port_width = usize::from(port_width.max(1));
    match exit {
        VcpuExit::MmioRead(address, data) => devices.memory_read(address, data),
        VcpuExit::MmioWrite(address, data) => devices.memory_write(address, data),
        VcpuExit::IoIn(port, data) => read_ports(devices, port, data.chunks_mut(port_width)),
        VcpuExit::IoOut(port, data) => write_ports(devices, port, data.chunks(port_width)),
        VcpuExit::Intr | VcpuExit::IrqWindowOpen | VcpuExit::Hlt => count(&devices.exits.other),
        VcpuExit::Shutdown => return Err("a triple fault".into()),
        exit => return Err(format!("{exit:?}")),
    }
    Ok(())
}

/// Reads from a port for each access of an exit. Once the machine has ended, the accesses that are
/// left read as ones. A string instruction makes a thousand of them, and each may wait for a server
/// that hangs.
fn read_ports<'a>(devices: &Devices, port: u16, accesses: impl Iterator<Item = &'a mut [u8]>) {
    for access in accesses {
        match devices.power.ended() {
            None => devices.port_read(port, access),
            Some(_) => access.fill(0xff),
        }
    }
}

/// Writes to a port for each access of an exit. Once the machine has ended, the accesses that are
/// left have no effect.
fn write_ports<'a>(devices: &Devices, port: u16, accesses: impl Iterator<Item = &'a [u8]>) {
    for access in accesses {
        if devices.power.ended().is_some() {
            return;
        }
        devices.port_write(port, access);
    }
}

/// Returns the registers that say where a processor failed.
fn registers(vcpu: &VcpuFd) -> String {
    match (vcpu.get_regs(), vcpu.get_sregs()) {
        (Ok(general), Ok(special)) => format!(
            "rip {:#x}, rsp {:#x}, cr0 {:#x}, cr2 {:#x}, cr3 {:#x}",
            general.rip, general.rsp, special.cr0, special.cr2, special.cr3
        ),
        _ => "its registers are unknown".into(),
    }
}
