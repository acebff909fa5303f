//! Once queues have their full size, messages are sent and received without an allocation.

#![allow(unsafe_code, clippy::unwrap_used, reason = "tests; an allocator that counts")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::{Cell, RefCell},
    collections::VecDeque,
    rc::Rc,
};

use nicforge_bgl::{
    Error,
    message::{Arrival, Buffer, Callbacks, Config, Disposition, MessageLayer, Received, Region, Sent},
    packet::{PacketDevice, PayloadReader, Place, Rank, Shape, Verdict},
};
use nicforge_hwi::torus::{CHUNK, FIFO, HEADER, MAX_PAYLOAD, PacketHeader};
use nicforge_shm::{SharedMemory, Window};

thread_local! {
    /// Counts this thread alone, because the test harness has other threads.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: the system's allocator does all the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Packets that a wire holds.
const WIRE: usize = 8;

type Packet = (PacketHeader, [u8; MAX_PAYLOAD]);

/// One of two ranks with a wire in each direction. It reverses the order of the packets, and
/// allocates nothing.
struct Port {
    place: Place,
    wires: Rc<[RefCell<VecDeque<Packet>>; 2]>,
    ring: Window,
}

impl Port {
    fn pair() -> [Self; 2] {
        let wires = Rc::new([(); 2].map(|()| RefCell::new(VecDeque::with_capacity(WIRE))));
        let shape = Shape { last: [1, 0, 0], wraps: [false; 3] };
        [0, 1].map(|node| Port {
            place: Place { rank: Rank::new(node, 0), life: 1, coordinates: [node as u8, 0, 0], shape },
            wires: wires.clone(),
            ring: SharedMemory::create("ring", FIFO as usize).unwrap().window(0, FIFO).unwrap(),
        })
    }

    fn node(&self) -> usize {
        self.place.rank.node().into()
    }
}

impl PacketDevice for Port {
    fn place(&self) -> &Place {
        &self.place
    }

    fn life(&self, _rank: Rank) -> Result<u16, Error> {
        Ok(1)
    }

    fn life_changes(&self) -> Result<u32, Error> {
        Ok(0)
    }

    fn send<'a>(
        &mut self,
        header: PacketHeader,
        payload: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> Result<bool, Error> {
        let mut wire = self.wires[1 - self.node()].borrow_mut();
        if wire.len() == WIRE {
            return Ok(false);
        }

        let (mut bytes, mut len) = ([0; MAX_PAYLOAD], 0);
        for piece in payload {
            bytes[len..len + piece.len()].copy_from_slice(piece);
            len += piece.len();
        }
        wire.push_front((header.with_payload(len), bytes));
        Ok(true)
    }

    fn publish(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn has_sent_all(&self) -> bool {
        self.wires[1 - self.node()].borrow().is_empty()
    }

    fn receive(
        &mut self,
        mut handler: impl FnMut(PacketHeader, PayloadReader<'_>) -> Verdict,
    ) -> Result<usize, Error> {
        let mut wire = self.wires[self.node()].borrow_mut();
        let mut taken = 0;
        while let Some((header, payload)) = wire.front() {
            let chunks = header.chunks();
            self.ring.write(HEADER as u64, &payload[..chunks as usize * CHUNK - HEADER]).unwrap();
            if handler(*header, PayloadReader::new(&self.ring, 0, chunks)) == Verdict::Left {
                break;
            }
            wire.pop_front();
            taken += 1;
        }
        Ok(taken)
    }
}

/// Receives into memory that it has, and keeps the memory of messages that were sent.
#[derive(Default)]
struct Program {
    memory: Vec<Vec<u8>>,
    received: usize,
    sent: usize,
}

impl Callbacks for Program {
    fn recvnew(&mut self, arrival: &Arrival) -> Disposition {
        let memory = self.memory.pop().unwrap();
        let region = Region { start: 1, len: arrival.length };
        Disposition::Receive(Buffer::region(memory, region).unwrap())
    }

    fn recvdone(&mut self, received: Received) {
        self.memory.push(received.buffer.unwrap().into_memory());
        self.received += 1;
    }

    fn senddone(&mut self, sent: Sent) {
        self.memory.push(sent.buffer.into_memory());
        self.sent += 1;
    }
}

/// Sends messages of each protocol in both directions, and waits for their end.
fn exchange_messages(layers: &mut [MessageLayer<Port>; 2], programs: &mut [Program; 2]) {
    const SIZES: [usize; 5] = [0, 100, 900, 10_000, 50_000];
    let ends =
        programs.each_ref().map(|program| (program.received + SIZES.len(), program.sent + SIZES.len()));

    for len in SIZES {
        for node in [0, 1] {
            let memory = programs[node].memory.pop().unwrap();
            let buffer = Buffer::region(memory, Region { start: 3, len }).unwrap();
            layers[node].postsend(Rank::new(1 - node as u16, 0), [0; 16], buffer).unwrap();
        }
    }

    while programs.each_ref().map(|program| (program.received, program.sent)) != ends {
        for node in [0, 1] {
            layers[node].advance(&mut programs[node]).unwrap();
        }
    }
}

#[test]
fn messages_of_warm_connections_allocate_nothing() {
    let mut layers = Port::pair().map(|port| MessageLayer::init(port, Config::default()).unwrap());
    let mut programs = [(); 2]
        .map(|()| Program { memory: (0..20).map(|_| vec![0; 50_010]).collect(), ..Program::default() });
    for _ in 0..5 {
        exchange_messages(&mut layers, &mut programs);
    }

    let before = ALLOCATIONS.get();
    for _ in 0..20 {
        exchange_messages(&mut layers, &mut programs);
    }

    assert_eq!(ALLOCATIONS.get(), before);
    assert!(
        layers.iter().all(|layer| layer.statistics().packets_stored > 0 && layer.statistics().malformed == 0)
    );
}
