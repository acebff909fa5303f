//! Boots a Linux kernel, with the given functions from slot 3 on.
//!
//! ```text
//! boot KERNEL INITRD COMMAND_LINE [FUNCTION...]
//! ```
//!
//! A function is `rng`, a source of random bytes of the machine's own; `disk:FILE`, a read-only
//! disk of its own; or the path of a served function's socket.
//!
//! The console's output goes to standard output. The process is confined while the guest runs, and
//! a guest that resets its machine starts anew. At the end, the numbers of exits are printed.

use std::{
    io::Write,
    sync::Arc,
    time::{Duration, Instant},
};

use nicforge_kvm::{End, Function, LocalFunction, RemoteFunction, Vm, VmConfig, confine};
use nicforge_virtio_devices::{
    blk::{
        VirtioBlk,
        image::{Access, Image},
    },
    rng::VirtioRng,
};

/// Slot of the first function.
const FIRST_SLOT: u8 = 3;
/// Time limit of the whole run.
const LIMIT: Duration = Duration::from_secs(300);
/// Time limit of a call to a function's server.
const CALL_LIMIT: Duration = Duration::from_secs(5);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kernel, initrd, command_line, functions @ ..] = &arguments[..] else {
        return Err("usage: boot KERNEL INITRD COMMAND_LINE [rng | disk:FILE | SOCKET]...".into());
    };

    let begin = Instant::now();
    let config = VmConfig::new(kernel).initrd(initrd).command_line(command_line);
    let mut vm = Vm::new(&config)?;
    vm.serial(0, Box::new(std::io::stdout()))?;
    for (slot, text) in (FIRST_SLOT..).zip(functions) {
        vm.plug(slot, make_function(text)?)?;
    }

    let mut running = vm.start()?;
    confine()?;
    eprintln!("set up in {:?}", begin.elapsed());
    let mut end = running.wait(LIMIT);
    while end == Some(End::Reset) {
        eprintln!("reset after {:?}: {:?}", begin.elapsed(), running.exits());
        running = running.restart()?;
        end = running.wait(LIMIT.saturating_sub(begin.elapsed()));
    }
    eprintln!("{end:?} after {:?}: {:?}", begin.elapsed(), running.exits());
    std::io::stdout().flush()?;
    match running.stop() {
        End::PowerOff => Ok(()),
        end => Err(format!("{end:?}").into()),
    }
}

/// Makes the function that an argument of the command line names.
fn make_function(text: &str) -> Result<Arc<dyn Function>, Box<dyn std::error::Error>> {
    if text == "rng" {
        return Ok(Arc::new(LocalFunction::of_device("rng", Box::new(VirtioRng::device()))?));
    }
    if let Some(file) = text.strip_prefix("disk:") {
        let image = Image::open(file.as_ref(), Access::ReadOnly)?;
        return Ok(Arc::new(LocalFunction::of_device("disk", Box::new(VirtioBlk::device(image, "disk")))?));
    }
    Ok(Arc::new(RemoteFunction::connect(text, CALL_LIMIT)?))
}
