//! Sends a frame back and forth between two cards. `courier run` and `courier boot` start it on
//! each of them: the first card begins, and the other one answers.

use std::{env, error::Error, time::Duration};

use courier::driver::Courier;
use nicforge_driver::{Deadline, Device, OpenOptions, environment};

/// Number of round trips.
const ROUNDS: usize = 100;
/// Time limit of one frame. An emulated guest may still boot.
const LIMIT: Duration = Duration::from_secs(300);

fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::open_env(environment::SOCKET, OpenOptions::default())?;
    let mut card = Courier::open(&device)?;
    let is_first = env::var("NICFORGE_RANK")? == "0";
    let deadline = || Deadline::after(LIMIT);

    for round in 0..ROUNDS {
        let ping = format!("ping {round}");
        if is_first {
            card.send(ping.as_bytes(), deadline(), None)?;
        }

        let frame = card.receive(deadline(), None)?;
        if frame != ping.as_bytes() {
            return Err(format!("expected {ping:?}, got {:?}", String::from_utf8_lossy(&frame)).into());
        }
        if !is_first {
            card.send(&frame, deadline(), None)?;
        }
    }

    println!("{ROUNDS} frames went to and fro");
    Ok(())
}
