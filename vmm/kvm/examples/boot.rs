//! Boots an unpacked Linux kernel, with the functions behind the given sockets from slot 3 on.
//!
//! ```text
//! boot VMLINUX INITRD COMMAND_LINE [SOCKET...]
//! ```
//!
//! The console's output goes to standard output. At the end, the numbers of exits are printed.

use std::{
    io::Write,
    sync::Arc,
    time::{Duration, Instant},
};

use nicforge_kvm::{End, RemoteFunction, Vm, VmConfig};

/// Time limit of the whole run.
const LIMIT: Duration = Duration::from_secs(300);
/// Time limit of a call to a server.
const CALL: Duration = Duration::from_secs(5);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kernel, initrd, command_line, sockets @ ..] = &arguments[..] else {
        return Err("usage: boot VMLINUX INITRD COMMAND_LINE [SOCKET...]".into());
    };

    let begin = Instant::now();
    let config = VmConfig::new(kernel).initrd(initrd).command_line(command_line);
    let mut vm = Vm::new(&config)?;
    vm.serial(0, Box::new(std::io::stdout()))?;
    for (slot, socket) in (3..).zip(sockets) {
        vm.plug(slot, Arc::new(RemoteFunction::connect(socket, CALL)?))?;
    }

    let running = vm.start()?;
    eprintln!("set up in {:?}", begin.elapsed());
    let end = running.wait(LIMIT);
    eprintln!("{end:?} after {:?}: {:?}", begin.elapsed(), running.exits());
    std::io::stdout().flush()?;
    match running.stop() {
        End::PowerOff => Ok(()),
        end => Err(format!("{end:?}").into()),
    }
}
