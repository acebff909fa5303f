//! The end of a machine while a function is slow, as one is whose server hangs.

use std::{
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use nicforge_kvm::{Bar, BarKind, End, Function, FunctionError, Ram};

use crate::{
    payload::Payload,
    rig::{self, BAR_0, COMMAND, LIMIT, SLOT, at, has_kvm},
};

/// The first port of the function, and the command that enables it.
const PORT: u16 = 0x1000;
const COMMAND_IO: u32 = 1;
/// The bits of a BAR's register for ports.
const BAR_IO: u8 = 1;
/// Reads of one string instruction that KVM gives this process at once.
const READS: u32 = 1024;
/// Time of a read. All reads of the instruction take several times [`LIMIT`].
const READ_TIME: Duration = Duration::from_millis(200);
/// An address in RAM.
const BUFFER: u32 = 0x20_0000;

/// A function with ports whose reads take long, and their number.
#[derive(Default)]
struct SlowPorts(AtomicU32);

impl SlowPorts {
    /// Returns the number of reads.
    fn reads(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Function for SlowPorts {
    fn bars(&self) -> Vec<Bar> {
        vec![Bar { index: 0, kind: BarKind::Io, size: 16, areas: Vec::new() }]
    }

    fn config_read(&self, offset: u16, data: &mut [u8]) -> Result<(), FunctionError> {
        data.fill(0);
        if u32::from(offset) == BAR_0 {
            data[0] = BAR_IO;
        }
        Ok(())
    }

    fn config_write(&self, _: u16, _: &[u8]) -> Result<(), FunctionError> {
        Ok(())
    }

    fn bar_read(&self, _: u8, _: u64, _: &mut [u8]) -> Result<(), FunctionError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        thread::sleep(READ_TIME);
        Ok(())
    }

    fn bar_write(&self, _: u8, _: u64, _: &[u8]) -> Result<(), FunctionError> {
        Ok(())
    }

    fn bind_vector(&self, _: u16, _: BorrowedFd<'_>) -> Result<(), FunctionError> {
        Ok(())
    }

    fn release_vectors(&self) -> Result<(), FunctionError> {
        Ok(())
    }

    fn bind_line(&self, _: BorrowedFd<'_>, _: BorrowedFd<'_>) -> Result<(), FunctionError> {
        Ok(())
    }

    fn map_ram(&self, _: &Ram) -> Result<(), FunctionError> {
        Ok(())
    }

    fn reset(&self) -> Result<(), FunctionError> {
        Ok(())
    }
}

#[test]
fn string_instruction_of_a_machine_that_is_stopped_reads_no_further() {
    if !has_kvm() {
        return;
    }
    let function = Arc::new(SlowPorts::default());
    let program = Payload::default()
        .store(at(BAR_0), PORT.into())
        .store(at(COMMAND), COMMAND_IO)
        .read_string(PORT, BUFFER, READS)
        .power_off();
    let started = rig::start(program, vec![(SLOT, function.clone())]);

    let deadline = Instant::now() + LIMIT;
    while function.reads() == 0 {
        assert!(Instant::now() < deadline, "no read in {LIMIT:?}");
        thread::yield_now();
    }
    assert_eq!(started.running.stop(), End::Stopped);
    let reads = function.reads();
    assert!(reads < READS / 2, "{reads}");
}
