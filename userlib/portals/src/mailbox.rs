//! A mailbox of the card: commands that this process writes, and their results.

use std::{mem::offset_of, sync::atomic::Ordering, time::Duration};

use nicforge_driver::{Deadline, Device, Doorbell, Waiter, runtime};
use nicforge_hwi::{
    pci,
    seastar::{
        BAR_MIRROR, BAR_WINDOW, COMMAND_BYTES, CommandResult, RESULT_BYTES, SLOTS, code, firmware, mirror,
        window,
    },
};
use nicforge_shm::{SharedU32, Window};
use zerocopy::{FromBytes, IntoBytes};

use crate::Error;

/// Offset of the word of a result that is written last.
const LAST_WORD_OFFSET: u64 = RESULT_BYTES as u64 - 8;

/// A client's position in the network, from the card's mirror.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetworkPosition {
    /// Number of the client's node.
    pub(crate) node: u32,
    /// Number of nodes of the network.
    pub(crate) nodes: u32,
    /// The client's process, or `None` for the kernel.
    pub(crate) process: Option<u16>,
    /// Number of processes that the node can have.
    pub(crate) processes: u32,
}

/// An incarnation of the firmware, with the words by which a client recognises that it has ended.
#[derive(Clone)]
pub(crate) struct Incarnation {
    device: Device,
    /// Value of [`Device::resets`] when the mailbox was opened.
    resets: u32,
    /// State of the firmware, in the card's mirror.
    state: SharedU32,
    /// Number of the firmware's starts, in the card's mirror.
    epoch: SharedU32,
    /// Value of `epoch` when the mailbox was opened.
    own_epoch: u32,
}

impl Incarnation {
    /// Returns the device.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Checks that the firmware's incarnation is the one in which the mailbox was opened.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Error> {
        let state = self.state.load(Ordering::Acquire);
        if state == firmware::RUNNING
            && self.epoch.load(Ordering::Acquire) == self.own_epoch
            && self.device.resets() == self.resets
        {
            return Ok(());
        }
        Err(self.end_reason(state))
    }

    /// Returns the error that names why the incarnation has ended. `state` is the firmware's state.
    #[cold]
    fn end_reason(&self, state: u32) -> Error {
        if self.device.resets() != self.resets {
            Error::Reset
        } else if state == firmware::HALTED {
            Error::FirmwareHalted
        } else {
            Error::Restarted
        }
    }
}

/// Maximum number of commands that are posted without a wait for a result.
const MAX_POSTED: u32 = SLOTS / 2;
/// Offset of the code in a result.
const CODE_OFFSET: u64 = offset_of!(CommandResult, code) as u64;

/// A mailbox. A thread that calls waits for the result of its command. Puts and gets that the card
/// cannot refuse are *posted*: the call returns at once, and the next call that waits checks their
/// results.
pub(crate) struct Mailbox {
    incarnation: Incarnation,
    doorbell: Doorbell,
    /// Slots of commands.
    commands: Window,
    /// Number of commands written, in the mailbox.
    tail: SharedU32,
    /// Slots of results.
    results: Window,
    /// Number of the next command.
    next: u32,
    /// Number of posted commands before the next one whose results no call has checked.
    posted: u32,
    /// Number of further puts and gets for which the card has said that it has room.
    room: u32,
    /// A posted command was refused, and no call has reported that.
    has_refused: bool,
    /// A command was not answered in time, or its result is being awaited. No other can be written.
    is_stuck: bool,
    /// The longest time for an answer.
    timeout: Duration,
}

impl Mailbox {
    /// Opens the mailbox of a device when its firmware runs.
    pub(crate) fn open(device: &Device, timeout: Duration) -> Result<(Self, NetworkPosition), Error> {
        let identity = device.identity();
        if (identity.vendor, identity.device) != (pci::VENDOR_ID, pci::DEVICE_SEASTAR) {
            let found = format!("PCI {:04x}:{:04x}", identity.vendor, identity.device);
            return Err(Error::WrongDevice { wanted: "a SeaStar", found });
        }

        let mirrors = device.bar(BAR_MIRROR)?.window(mirror::BASE, mirror::SIZE)?;
        let windows = device.bar(BAR_WINDOW)?.window(window::BASE, window::SIZE)?;
        let word = |offset| mirrors.u32(offset);
        let state = word(mirror::FIRMWARE)?;
        let (deadline, what) = (Deadline::after(timeout), "the firmware's start");
        device.wait_for(deadline, None, what, || match state.load(Ordering::Acquire) {
            firmware::RUNNING => Ok(Some(())),
            firmware::HALTED => Err(Error::FirmwareHalted),
            _ => Ok(None),
        })?;

        let process = mirrors.load_u32_relaxed(mirror::PROCESS)?;
        let position = NetworkPosition {
            node: mirrors.load_u32_relaxed(mirror::NODE)?,
            nodes: mirrors.load_u32_relaxed(mirror::NODES)?,
            process: (process != mirror::NO_PROCESS).then_some(process as u16),
            processes: mirrors.load_u32_relaxed(mirror::PROCESSES)?,
        };

        let epoch = word(mirror::EPOCH)?;
        let own_epoch = epoch.load(Ordering::Acquire);
        let tail = windows.u32(window::COMMAND_TAIL)?;
        let slots = u64::from(SLOTS);
        let mailbox = Self {
            incarnation: Incarnation {
                device: device.clone(),
                resets: device.resets(),
                state,
                epoch,
                own_epoch,
            },
            doorbell: device.doorbell(),
            commands: windows.window(window::COMMANDS, slots * COMMAND_BYTES as u64)?,
            next: tail.load(Ordering::Acquire),
            tail,
            results: mirrors.window(mirror::RESULTS, slots * RESULT_BYTES as u64)?,
            posted: 0,
            room: 0,
            has_refused: false,
            is_stuck: false,
            timeout,
        };
        Ok((mailbox, position))
    }

    /// Returns the firmware's incarnation in which the mailbox was opened.
    pub(crate) fn incarnation(&self) -> &Incarnation {
        &self.incarnation
    }

    /// Writes a command and waits for its result. The firmware answers each command without
    /// waiting for anything. If a posted command was refused, the process has lost its interface:
    /// the call returns [`code::NO_INTERFACE`] instead of writing a command.
    pub(crate) fn call(&mut self, command: &impl AsCommand) -> Result<CommandResult, Error> {
        self.check()?;
        if std::mem::take(&mut self.has_refused) {
            // The posted command's own code would look like a refusal of this one.
            return Ok(CommandResult { code: code::NO_INTERFACE, ..CommandResult::default() });
        }

        self.write(command)?;
        self.take_result()
    }

    /// Starts a put or a get. It is posted if the card cannot refuse it: if all that it names is
    /// valid, as `is_valid` says, and the card has room. Otherwise its result is awaited.
    pub(crate) fn start(&mut self, command: &impl AsCommand, is_valid: bool) -> Result<CommandResult, Error> {
        let is_posted = is_valid && self.room > 0 && self.posted < MAX_POSTED && !self.has_refused;
        if !is_posted {
            let result = self.call(command)?;
            // The value of the result is the number of puts and gets that may follow.
            self.room = result.value.try_into().unwrap_or(0);
            return Ok(result);
        }

        self.check()?;
        self.write(command)?;
        self.posted += 1;
        self.room -= 1;
        Ok(CommandResult::default())
    }

    /// Waits until the card has carried out all posted commands.
    pub(crate) fn await_posted(&mut self) -> Result<(), Error> {
        if self.posted == 0 {
            return Ok(());
        }
        self.check()?;
        self.posted -= 1;
        self.take_result().map(drop)
    }

    /// Checks that a command can be written.
    fn check(&self) -> Result<(), Error> {
        self.incarnation.check()?;
        if self.is_stuck { Err(Error::Unresponsive) } else { Ok(()) }
    }

    /// Writes the next command and rings the doorbell. Its slot is free, because at most
    /// [`MAX_POSTED`] commands before it may be unanswered.
    fn write(&mut self, command: &impl AsCommand) -> Result<(), Error> {
        let slot = u64::from(self.next % SLOTS);
        runtime::charge(runtime::Cost::Burst, COMMAND_BYTES / 64);
        self.commands.write_array(slot * COMMAND_BYTES as u64, command.bytes())?;
        self.next = self.next.wrapping_add(1);
        self.tail.store(self.next, Ordering::Release);
        runtime::note_store();
        Ok(self.doorbell.after_store()?)
    }

    /// Waits for the result of the last command, and checks those of the posted ones before it.
    fn take_result(&mut self) -> Result<CommandResult, Error> {
        let last = self.next.wrapping_sub(1);
        // An error of the wait leaves the mailbox stuck.
        self.is_stuck = true;
        self.await_result(result_slot(last))?;
        // The result lies in the card's memory, so that a load of it crosses the bus.
        runtime::charge(runtime::Cost::TrappedAccess, 1);
        let mut bytes = [0; RESULT_BYTES];
        self.results.read_array(result_slot(last), &mut bytes)?;
        self.is_stuck = false;

        // Commands are answered in order: those before the last one have their results, too.
        for distance in 1..=std::mem::take(&mut self.posted) {
            let result = result_slot(last.wrapping_sub(distance));
            let code = self.results.load_u32_relaxed(result + CODE_OFFSET)?;
            self.has_refused |= code != code::OK;
        }
        Ok(CommandResult::read_from_bytes(&bytes).unwrap_or_default())
    }

    /// Waits until the result of the last command, which is at the offset `result`, has arrived.
    fn await_result(&self, result: u64) -> Result<(), Error> {
        let device = &self.incarnation.device;
        let mut waiter: Option<Waiter<'_>> = None;

        for iteration in 0_u64.. {
            let last_word = self.results.load_u64_acquire(result + LAST_WORD_OFFSET)?;
            // A result has the number of its command plus 1. That is `next` for the last command.
            if (last_word >> 32) as u32 == self.next {
                return Ok(());
            }

            self.incarnation.check()?;
            let waiter =
                waiter.get_or_insert_with(|| Waiter::new(device, Deadline::after(self.timeout), None));
            // Most results arrive within two iterations, which cost less than reading the clock.
            if iteration > 1 {
                waiter.check().map_err(|_| Error::Unresponsive)?;
            }
            waiter.pause(device)?;
        }
        Err(Error::Unresponsive)
    }
}

/// Returns the offset of the result of a command.
fn result_slot(number: u32) -> u64 {
    u64::from(number % SLOTS) * RESULT_BYTES as u64
}

/// A command of a mailbox.
pub(crate) trait AsCommand {
    /// Returns the bytes of the command.
    fn bytes(&self) -> &[u8; COMMAND_BYTES];
}

macro_rules! as_command {
    ($($command:ty),*) => {
        $(impl AsCommand for $command {
            fn bytes(&self) -> &[u8; COMMAND_BYTES] {
                const EMPTY: &[u8; COMMAND_BYTES] = &[0; COMMAND_BYTES];
                // The sizes are equal by the definition of the commands.
                self.as_bytes().try_into().unwrap_or(EMPTY)
            }
        })*
    };
}

as_command!(nicforge_hwi::seastar::Command, nicforge_hwi::seastar::KernelCommand);
