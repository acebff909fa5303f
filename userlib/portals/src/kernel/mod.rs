//! The kernel's part: it boots the node, lets processes use the network, and matches the messages
//! of those in host-based mode.

mod host;
mod lists;
mod messages;
mod outbox;
mod state;

use std::{
    fmt,
    sync::{Arc, Mutex, TryLockError},
    time::Duration,
};

use nicforge_driver::{Cancel, Deadline, Device, Waiter, runtime};
use nicforge_hwi::seastar::{
    Command, CommandResult, KERNEL, KernelCommand, MAX_KERNEL_EVENTS, MAX_RANGES, PIECES, Piece, code,
    kernel_command, kernel_flag, vector,
};

use crate::{Error, KernelConfig, Refusal, region::Pieces};
use nicforge_seastar_firmware::matching::Limits;
pub use outbox::KernelBacklog;
use state::State;

/// Maximum number of events that one call handles, so that it ends while events keep coming.
const MAX_EVENTS: usize = 256;
/// The longest sleep of [`Kernel::serve`] without an interrupt.
const MAX_SLEEP: Duration = Duration::from_millis(100);
/// Maximum number of bytes of a range of an address map: whole pages, in a length of 32 bits.
const MAX_RANGE: u64 = u32::MAX as u64 & !0xfff;

/// Bytes of each range of a granted process's address map. The ranges lie behind each other, from
/// address 0 on.
const GRANTED_RANGE: u64 = 4032 << 20;

/// Checks that memory lies in a single range of the address map of a granted process.
pub(crate) fn check_granted(base: u64, length: u64) -> Result<(), Error> {
    let range = base / GRANTED_RANGE;
    let is_in_one_range =
        length > 0 && base.checked_add(length - 1).is_some_and(|last| last / GRANTED_RANGE == range);
    if is_in_one_range && range < MAX_RANGES as u64 {
        return Ok(());
    }
    Err(Error::Refused { call: "allocating memory of a granted process", reason: Refusal::Segment })
}

/// The kernel of a node: the holder of its admin attachment. The interfaces of the node's processes
/// share it.
///
/// # Host-based mode
/// The kernel runs inside the calls of interfaces in host-based mode, and of [`Kernel::progress`].
/// Interfaces in NIC-based mode do not run it. A program whose threads compute for long, or wait
/// for events of NIC-based processes alone, runs [`Kernel::serve`] on a thread of its own, which
/// sleeps until the card interrupts it.
pub struct Kernel {
    state: Mutex<State>,
    device: Device,
    node: u32,
    nodes: u32,
    config: KernelConfig,
}

impl Kernel {
    /// Boots the node whose admin attachment `device` is: from now on it takes messages.
    ///
    /// # Errors
    /// - [`Error::WrongDevice`] if it is no SeaStar's admin attachment.
    /// - [`Error::Refused`] for a number of events that the card does not take.
    /// - [`Error::FirmwareHalted`], [`Error::Timeout`] if the firmware does not start.
    /// - Errors of the driver.
    pub fn boot(device: Device, config: KernelConfig) -> Result<Arc<Self>, Error> {
        if device.attachment() != u32::from(KERNEL) {
            let found = format!("attachment {}", device.attachment());
            return Err(Error::WrongDevice { wanted: "the admin attachment of a SeaStar", found });
        }
        let events = config.events;
        if !events.is_power_of_two() || !(64..=MAX_KERNEL_EVENTS).contains(&events) {
            return Err(Error::Refused { call: "boot", reason: Refusal::Segment });
        }

        let (state, position) = State::boot(&device, &config)?;
        let state = Mutex::new(state);
        let (node, nodes) = (position.node, position.nodes);
        Ok(Arc::new(Self { state, device, node, nodes, config }))
    }

    /// Returns the number of the node.
    pub fn node(&self) -> u32 {
        self.node
    }

    /// Returns the number of nodes of the network.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// Returns the device of the admin attachment.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns how many messages of processes in host-based mode are in the kernel's queues.
    pub fn backlog(&self) -> KernelBacklog {
        runtime::lock(&self.state).outbox.backlog()
    }

    /// Handles events that the card has written. If another thread uses the kernel, the call
    /// returns at once.
    ///
    /// # Errors
    /// Those of a lost card: [`Error::is_gone`].
    pub fn progress(&self) -> Result<(), Error> {
        match self.state.try_lock() {
            Ok(mut state) => state.progress(MAX_EVENTS).map(drop),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().progress(MAX_EVENTS).map(drop),
            Err(TryLockError::WouldBlock) => Ok(()),
        }
    }

    /// Handles events, and sleeps until the card's interrupt while there are none. It returns when
    /// `cancel` is cancelled.
    ///
    /// # Errors
    /// Those of a lost card: [`Error::is_gone`].
    pub fn serve(&self, cancel: &Cancel) -> Result<(), Error> {
        let interrupt = self.device.interrupt(vector::EVENT.into())?;
        let waiter = Waiter::new(&self.device, Deadline::never(), Some(cancel));

        while waiter.check().is_ok() {
            let handled = runtime::lock(&self.state).progress(MAX_EVENTS)?;
            if handled == 0 {
                interrupt.sleep(Deadline::after(MAX_SLEEP), Some(cancel))?;
            }
        }
        Ok(())
    }

    /// Lets other programs use a process of this node in NIC-based mode, one after the other: each
    /// opens its attachment by [`crate::Interface::attach`]. The process may name all addresses
    /// below 63 GiB of its attachment, where its program's memory lies. The memory of other
    /// attachments is out of its reach.
    ///
    /// The grant ends with the kernel, which needs no call for it.
    ///
    /// # Errors
    /// - [`Refusal::Process`] if the node has no such process, or it has an interface already.
    /// - [`Refusal::NoSpace`] if the card has no room for another process.
    /// - [`Error::is_gone`] names those of a lost card or node.
    pub fn grant(&self, process: u16) -> Result<(), Error> {
        const CALL: &str = "granting a process";
        // Each command adds as many ranges to the address map as it can hold. The first one starts
        // the process. Its program may use it at once, and memory at high addresses a moment later.
        let command = |first: u64| KernelCommand {
            kind: if first == 0 { kernel_command::START_PROCESS } else { kernel_command::MAP },
            flags: if first == 0 { kernel_flag::PERMANENT } else { 0 },
            process,
            count: PIECES as u16,
            pieces: std::array::from_fn(|index| Piece {
                address: (first + index as u64) * GRANTED_RANGE,
                length: GRANTED_RANGE as u32,
                attachment: process + 1,
                reserved: 0,
            }),
            ..KernelCommand::default()
        };

        let mut state = runtime::lock(&self.state);
        state.command(CALL, command(0))?;
        for first in (0..MAX_RANGES as u64).step_by(PIECES).skip(1) {
            if let Err(error) = state.command(CALL, command(first)) {
                let stop =
                    KernelCommand { kind: kernel_command::STOP_PROCESS, process, ..KernelCommand::default() };
                let _ = state.command(CALL, stop);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Returns the limits of each process in host-based mode.
    pub(crate) fn limits(&self) -> Limits {
        self.config.limits
    }

    /// Returns the longest time for the answer to a command.
    pub(crate) fn timeout(&self) -> Duration {
        self.config.timeout
    }

    /// Lets a process use the network in NIC-based mode.
    pub(crate) fn start_nic_based(&self, process: u16) -> Result<(), Error> {
        let start =
            KernelCommand { kind: kernel_command::START_PROCESS, process, ..KernelCommand::default() };
        runtime::charge(runtime::Cost::SystemCall, 1);
        runtime::lock(&self.state).command("PtlNIInit", start).map(drop)
    }

    /// Adds memory of a process in NIC-based mode to its address map, in as many ranges as needed.
    pub(crate) fn map(&self, process: u16, base: u64, length: u64) -> Result<(), Error> {
        const CALL: &str = "mapping a region";
        let mut pieces = [Piece::default(); PIECES];
        let count = length.div_ceil(MAX_RANGE);
        if count > PIECES as u64 {
            return Err(Error::Refused { call: CALL, reason: Refusal::Segment });
        }

        for (index, piece) in (0..count).zip(&mut pieces) {
            let start = index * MAX_RANGE;
            let length = (length - start).min(MAX_RANGE) as u32;
            *piece = Piece { address: base + start, length, attachment: process + 1, reserved: 0 };
        }
        runtime::charge(runtime::Cost::SystemCall, 1);
        let count = count as u16;
        let map =
            KernelCommand { kind: kernel_command::MAP, process, count, pieces, ..KernelCommand::default() };
        runtime::lock(&self.state).command(CALL, map).map(drop)
    }

    /// Lets a process use the network in host-based mode. Returns the number of this start.
    pub(crate) fn start_host_based(&self, process: u16) -> Result<u32, Error> {
        let start = KernelCommand {
            kind: kernel_command::START_PROCESS,
            flags: kernel_flag::HOST_BASED,
            process,
            ..KernelCommand::default()
        };
        runtime::charge(runtime::Cost::SystemCall, 1);

        let mut state = runtime::lock(&self.state);
        state.command("PtlNIInit", start)?;
        Ok(state.add_process(process, &self.config))
    }

    /// Adds memory of a process in host-based mode.
    pub(crate) fn add_region(&self, process: u16, pieces: &Arc<Pieces>) {
        runtime::charge(runtime::Cost::SystemCall, 1);
        runtime::lock(&self.state).add_region(process, pieces);
    }

    /// Ends a process's use of the network. `start` is the number of its start in host-based mode.
    pub(crate) fn stop(&self, process: u16, start: Option<u32>) {
        let mut state = runtime::lock(&self.state);
        if let Some(start) = start {
            state.remove_process(process, start);
        }
        let stop = KernelCommand { kind: kernel_command::STOP_PROCESS, process, ..KernelCommand::default() };
        // On a lost card, the process has ended already.
        let _ = state.command("PtlNIFini", stop);
    }

    /// Carries out a call of a process in host-based mode. `start` is the number of the process's
    /// start.
    pub(crate) fn system_call(
        &self,
        process: u16,
        start: u32,
        command: &Command,
    ) -> Result<CommandResult, Error> {
        runtime::charge(runtime::Cost::SystemCall, 1);
        let mut state = runtime::lock(&self.state);
        // Messages that have arrived are matched first, because their interrupts came before the
        // call.
        state.progress(MAX_EVENTS)?;
        state.process_command(process, start, command).map(|result| {
            result.unwrap_or(CommandResult { code: code::NO_INTERFACE, ..CommandResult::default() })
        })
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").field("node", &self.node).finish()
    }
}
