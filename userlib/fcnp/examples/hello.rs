//! Every compute node greets the I/O node of its pset. `nicforge run` starts this program on each
//! node.

use nicforge_driver::{Device, OpenOptions, environment};
use nicforge_fcnp::{ComputeCore, Config, IoNode};

/// Number of cores of a node.
const CORES: u32 = 4;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The first socket of NICFORGE_SOCKET is core 0 of this node.
    let device = Device::open_env(environment::SOCKET, OpenOptions::default())?;

    if environment::role()? == "io" {
        let io = IoNode::open(device, Config::default())?;
        let mut buffer = [0; 256];
        for node in 0..io.cores() / CORES {
            let core = node * CORES;
            let size = io.read(core, &mut buffer)?;
            let text = String::from_utf8_lossy(&buffer[..size]);
            println!("core {core} (compute node {node}) says: {text}");
        }
    } else {
        // The open waits until the I/O node's program is there.
        let core = ComputeCore::open(device, Config::default())?;
        let text = format!("hello from {}", environment::node()?);
        core.write(text.as_bytes())?;
    }
    Ok(())
}
