//! Each node greets the next one, in the order of their numbers. `nicforge run` starts this program
//! on each node.

use nicforge_bgl::{
    message::{Arrival, Buffer, Callbacks, Config, Disposition, MessageLayer, Received, Sent},
    packet::{PacketDevice, Rank, Torus},
};
use nicforge_driver::{Deadline, Device, OpenOptions, environment};

/// The state of the program.
#[derive(Default)]
struct Greeting {
    is_received: bool,
    is_sent: bool,
}

impl Callbacks for Greeting {
    fn recvnew(&mut self, arrival: &Arrival) -> Disposition {
        Disposition::Receive(Buffer::from(vec![0; arrival.length]))
    }

    fn recvdone(&mut self, received: Received) {
        let text = received.buffer.map(Buffer::into_memory).unwrap_or_default();
        println!("{} says: {}", received.source, String::from_utf8_lossy(&text));
        self.is_received = true;
    }

    fn senddone(&mut self, _sent: Sent) {
        self.is_sent = true;
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The first socket of NICFORGE_SOCKET is core 0 of this node.
    let device = Device::open_env(environment::SOCKET, OpenOptions::default())?;
    let torus = Torus::open(device)?;

    let place = *torus.place();
    let nodes = place.shape.nodes() as u16;
    let next = Rank::new((place.rank.node() + 1) % nodes, 0);
    torus.wait_for_peer(next, Deadline::never(), None)?;

    let mut layer = MessageLayer::init(torus, Config::default())?;
    let text = format!("hello from {} at {:?}", environment::node()?, place.coordinates);
    let information = [0; 16];
    layer.postsend(next, information, Buffer::from(text.into_bytes()))?;

    let mut greeting = Greeting::default();
    layer.wait_until(&mut greeting, Deadline::never(), None, |greeting| {
        greeting.is_received && greeting.is_sent
    })?;
    Ok(())
}
