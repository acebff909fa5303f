//! `nicforge vm`: runs one of our own virtual machines ([`nicforge_kvm`]) in this process. `boot`
//! and users of `nicforge-guest` start it for each guest.
//!
//! - In: a kernel, an initramfs, sockets of served functions, those of serial ports, and an image
//!   for `/share`.
//! - Out: the exit code: 0 for a machine that ended by itself, by power-off or reset. With
//!   `--reboots` a machine that resets itself starts anew.
//! - The process gives up the system calls that a running machine does not need ([`confine`]).
//!
//! It is a command of every program made from [`crate::App`], and no program of its own. So a guest
//! with devices of the user's has it without a further file, and a user of the library names any
//! such program (`Provision::vm`).

use std::{
    io::{ErrorKind, Read},
    os::unix::net::UnixStream,
    path::PathBuf,
    str::FromStr,
    sync::{Arc, PoisonError, RwLock},
    thread,
    time::Duration,
};

use clap::Args;
use nicforge_kvm::{End, LocalFunction, RemoteFunction, Running, Vm, VmConfig, confine};
use nicforge_virtio_devices::blk::{
    VirtioBlk,
    image::{Access, Image},
};

use crate::failure::{ErrorContext, Failure};

/// Time limit of a call to a server, generous enough for a host whose processors are emulated.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// The interval between two checks whether the guest takes input again.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);
/// The slot of the disk for `/share`, where the guest's first process looks for it. Those of
/// functions begin after it.
const SHARE_SLOT: u8 = 2;
/// The longest single wait for the machine's end. A wait that is over is repeated.
const MAX_SINGLE_WAIT: Duration = Duration::from_secs(3600);

/// The machine.
#[derive(Debug, Args)]
pub(crate) struct VmOptions {
    /// An unpacked kernel (vmlinux) with a PVH entry.
    #[arg(long, value_name = "FILE")]
    kernel: PathBuf,
    /// An initramfs.
    #[arg(long, value_name = "FILE")]
    initrd: Option<PathBuf>,
    /// The kernel's command line.
    #[arg(long, value_name = "TEXT", default_value = "", allow_hyphen_values = true)]
    append: String,
    /// MiB of memory.
    #[arg(long, value_name = "MIB", default_value_t = 512)]
    memory: u32,
    /// Processors.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    cpus: u8,
    /// Start the machine anew when it resets itself.
    #[arg(long)]
    reboots: bool,
    /// A UNIX socket to connect to the next serial port; may be given up to three times.
    #[arg(long = "serial", value_name = "SOCKET")]
    serial_ports: Vec<PathBuf>,
    /// The image of a file system: a read-only disk in slot 2, where guests have /share.
    #[arg(long, value_name = "FILE")]
    share: Option<PathBuf>,
    /// A served function for a slot of the bus; may be given several times.
    #[arg(long = "function", value_name = "SLOT=SOCKET")]
    functions: Vec<FunctionWord>,
}

/// A function and its slot, as in `3=/tmp/pset/cn0.core0`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FunctionWord {
    slot: u8,
    socket: PathBuf,
}

impl FromStr for FunctionWord {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (slot, socket) =
            text.split_once('=').ok_or("write SLOT=SOCKET, such as 3=/tmp/pset/cn0.core0")?;
        let slot = slot.parse().map_err(|_| format!("{slot} is no number of a slot"))?;
        Ok(Self { slot, socket: socket.into() })
    }
}

/// Runs the machine until it ends.
pub(crate) fn main(options: VmOptions) -> Result<u8, Failure> {
    let lines = connect_lines(&options.serial_ports)?;
    let mut vm = make_vm(&options)?;
    for (port, line) in lines.iter().enumerate() {
        let output = line.try_clone().context(|| "a serial port".into())?;
        vm.serial(port, Box::new(output)).context(|| "a serial port".into())?;
    }

    let machine = Arc::new(Machine::start(vm)?);
    for (port, line) in lines.into_iter().enumerate() {
        let machine = machine.clone();
        let feeder = thread::Builder::new().name(format!("serial {port}"));
        // The thread ends with the process.
        feeder.spawn(move || feed(&machine, port, line)).context(|| "a serial port's thread".into())?;
    }
    confine().context(|| "the virtual machine's process".into())?;

    let mut end = machine.wait();
    while end == End::Reset && options.reboots {
        machine.restart()?;
        end = machine.wait();
    }
    match end {
        End::PowerOff | End::Reset | End::Stopped => Ok(0),
        End::Failed(reason) => Err(Failure::environment(format!("the virtual machine failed: {reason}"))),
    }
}

/// The running machine, which the main thread shares with the threads of its serial ports. It is
/// `None` while the machine starts anew, and after a failed restart.
struct Machine(RwLock<Option<Running>>);

impl Machine {
    /// Starts a machine.
    fn start(vm: Vm) -> Result<Self, Failure> {
        let running = vm.start().context(|| "the virtual machine".into())?;
        Ok(Self(RwLock::new(Some(running))))
    }

    /// Waits for the machine's end, and returns the reason of it.
    fn wait(&self) -> End {
        loop {
            let machine = self.0.read().unwrap_or_else(PoisonError::into_inner);
            let Some(running) = machine.as_ref() else { return End::Stopped };
            if let Some(end) = running.wait(MAX_SINGLE_WAIT) {
                tracing::debug!(?end, exits = ?running.exits(), "the virtual machine ended");
                return end;
            }
        }
    }

    /// Starts a machine that has ended anew.
    fn restart(&self) -> Result<(), Failure> {
        let mut machine = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let restarted = machine.take().map(Running::restart).transpose();
        *machine = restarted.context(|| "the virtual machine, after a reset".into())?;
        Ok(())
    }

    /// Sends input to a serial port. Returns the number of bytes that the port has taken.
    fn send(&self, port: usize, bytes: &[u8]) -> usize {
        let machine = self.0.read().unwrap_or_else(PoisonError::into_inner);
        machine.as_ref().map_or(0, |running| running.send(port, bytes))
    }
}

/// Connects to the sockets of the serial ports.
fn connect_lines(sockets: &[PathBuf]) -> Result<Vec<UnixStream>, Failure> {
    let connect = |path: &PathBuf| UnixStream::connect(path).context(|| path.display().to_string());
    sockets.iter().map(connect).collect()
}

/// Makes the machine with its functions.
fn make_vm(options: &VmOptions) -> Result<Vm, Failure> {
    let mut config = VmConfig::new(&options.kernel)
        .command_line(&options.append)
        .memory(u64::from(options.memory) << 20)
        .processors(options.cpus);
    if let Some(initrd) = &options.initrd {
        config = config.initrd(initrd);
    }

    let mut vm = Vm::new(&config).context(|| "the virtual machine".into())?;
    for FunctionWord { slot, socket } in &options.functions {
        let function = RemoteFunction::connect(socket, CALL_TIMEOUT);
        let function = function.context(|| format!("slot {slot}: {}", socket.display()))?;
        vm.plug(*slot, Arc::new(function)).context(|| "the virtual machine".into())?;
    }
    if let Some(path) = &options.share {
        let image = Image::open(path, Access::ReadOnly).context(|| "the disk for /share".into())?;
        let disk = LocalFunction::of_device("share", Box::new(VirtioBlk::device(image, "share")));
        let disk = disk.context(|| "the disk for /share".into())?;
        vm.plug(SHARE_SLOT, Arc::new(disk)).context(|| "the virtual machine".into())?;
    }
    Ok(vm)
}

/// Passes the bytes of a socket to a serial port until the socket is closed.
fn feed(machine: &Machine, port: usize, mut line: UnixStream) {
    let mut buffer = [0; 4096];
    loop {
        let mut rest = match line.read(&mut buffer) {
            Ok(0) => return,
            Ok(length) => &buffer[..length],
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return tracing::debug!(%error, port, "a serial port"),
        };

        while !rest.is_empty() {
            let taken = machine.send(port, rest);
            rest = &rest[taken..];
            // The port does not report when the guest has read, so a full one is polled. That is
            // rare.
            if taken == 0 {
                thread::sleep(CHECK_INTERVAL);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn function_has_a_slot_and_a_socket() {
        assert_eq!("3=/a=b".parse(), Ok(FunctionWord { slot: 3, socket: "/a=b".into() }));
        for wrong in ["", "/a", "=/a", "x=/a", "256=/a"] {
            assert!(wrong.parse::<FunctionWord>().is_err(), "{wrong}");
        }
    }
}
