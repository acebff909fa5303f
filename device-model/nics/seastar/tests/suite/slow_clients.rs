//! Clients that answer DMA messages slowly, each within its limit, and the other processes of
//! their nodes.

use std::collections::VecDeque;

use nicforge_core::{
    companion::CompanionMode,
    machine::{Next, Outgoing},
    time::Nanos,
};
use nicforge_hwi::seastar::Piece;
use nicforge_seastar::Options;
use nicforge_seastar_firmware::chip::{Chip, Client, Event, Pieces, TransferStatus};
use nicforge_test_kit::{BUDGET, take_messages};

use crate::common::{MEMORY, Message, Rig, User};

/// Start of memory that only messages reach, and its length.
const REMOTE: u64 = 0x4000_0000;
const REMOTE_BYTES: u64 = 16 << 20;
/// The process with such memory, and the other one.
const SLOW: u16 = 1;
const QUICK: u16 = 2;
/// Bytes of a message.
const LENGTH: u32 = 8 << 10;
/// Maximum number of nanoseconds that the clock advances in a step.
const TICK: u64 = 10_000;
/// Messages of each process.
const COUNT: u32 = 20;
/// The longest time that the messages of the other process may take. It is the budget of a client,
/// its refill in this time, and some room for the messages themselves.
const LONGEST: u64 = 80_000_000;

/// Two nodes. The second one has a slow process and possibly another one.
struct Neighbours {
    rig: Rig,
    _slow: User,
    quick: Option<User>,
    /// Messages that the slow process has not answered, and when it does.
    unanswered: VecDeque<(Nanos, Outgoing)>,
    /// Time for which it leaves each message.
    delay: u64,
}

impl Neighbours {
    fn new(delay: u64, has_other: bool) -> Self {
        let mut rig = Rig::new(CompanionMode::Stepped, &[2], Options::default());
        let slow = User::attach(&mut rig.bed, rig.functions[1], SLOW);
        slow.client.map_remote(&mut rig.bed, REMOTE, REMOTE_BYTES);
        let quick = has_other.then(|| User::attach(&mut rig.bed, rig.functions[1], QUICK));
        rig.settle();
        Self { rig, _slow: slow, quick, unanswered: VecDeque::new(), delay }
    }

    /// Steps once. The slow process answers the oldest message whose time has come, and no other
    /// one.
    fn step(&mut self) {
        let now = self.rig.now();
        let due = now.after(self.delay);
        self.unanswered.extend(take_messages(&mut self.rig.bed).into_iter().map(|message| (due, message)));

        if self.unanswered.front().is_some_and(|(due, _)| *due <= now)
            && let Some((_, message)) = self.unanswered.pop_front()
        {
            let bed = &mut self.rig.bed;
            // The device may have given up waiting for an answer.
            let _ = match message {
                Outgoing::DmaRead { id, function, attachment, length, .. } => {
                    bed.dma_read_done(function, attachment, id, Ok(&vec![7; length]))
                }
                Outgoing::DmaWrite { id, function, attachment, .. } => {
                    bed.dma_write_done(function, attachment, id, Ok(()))
                }
            };
            // It answers one message after the other.
            for (due, _) in &mut self.unanswered {
                *due = now.after(self.delay);
            }
        }

        let (now, next) = (self.rig.now(), self.rig.bed.step(BUDGET));
        let latest = now.after(TICK);
        match next {
            Next::Now => {}
            Next::Poll => self.rig.bed.advance_to(latest),
            Next::At(time) => self.rig.bed.advance_to(time.min(latest)),
        }
    }

    /// Steps until a condition holds. Returns the time that has passed.
    #[track_caller]
    fn until(&mut self, limit: u64, mut condition: impl FnMut(&mut Rig) -> bool) -> u64 {
        let start = self.rig.now();
        self.rig.bed.rescan();
        while !condition(&mut self.rig) {
            let passed = self.rig.now().0 - start.0;
            assert!(passed < limit, "not within {limit} ns: {:?}", self.rig.scripts[1].transmitted());
            self.step();
        }
        self.rig.now().0 - start.0
    }
}

fn memory_of(process: u16) -> Pieces {
    let address = if process == SLOW { REMOTE } else { MEMORY };
    Pieces::One(Piece { address, length: LENGTH, attachment: process, reserved: 0 })
}

/// Receives a message in the memory of the process that its number names.
fn receive_by_number(chip: &mut dyn Chip, event: &Event) {
    if let Event::Header { packet, stream: Some(stream), .. } = *event {
        let process = if packet.message.match_bits % 2 == 0 { SLOW } else { QUICK };
        chip.receive(stream, packet.trusted.length, memory_of(process)).unwrap();
    }
}

/// Returns a message of a process of node 1 to node 0.
fn from_process(name: u32, process: u16) -> Message {
    Message { pieces: memory_of(process), ..Message::put(name, 0, 0, LENGTH as usize) }
}

#[test]
fn process_that_answers_reads_slowly_does_not_starve_the_others() {
    let mut neighbours = Neighbours::new(40_000_000, true);
    neighbours.rig.scripts[0].on_event(|chip, event| {
        if let Event::Header { packet, stream: Some(stream), .. } = *event {
            chip.receive(stream, packet.trusted.length, Pieces::None).unwrap();
        }
    });
    for pair in 0..COUNT {
        neighbours.rig.send(1, from_process(2 * pair, SLOW));
        neighbours.rig.send(1, from_process(2 * pair + 1, QUICK));
    }

    // Without a budget the slow process would hold the engine for 40 ms in each of its messages.
    neighbours.until(LONGEST, |rig| rig.scripts[1].transmitted().len() == 2 * COUNT as usize);
    let ends = neighbours.rig.scripts[1].transmitted();
    assert_eq!(ends[0], (0, TransferStatus::Complete), "the budget allows for the first wait");
    let of_other = ends.iter().filter(|(name, _)| name % 2 == 1);
    assert!(of_other.clone().all(|(_, end)| *end == TransferStatus::Complete));
    assert!(neighbours.rig.counter(1, "over_budget") > 0);
}

#[test]
fn process_that_answers_writes_slowly_does_not_starve_the_others() {
    let mut neighbours = Neighbours::new(30_000_000, true);
    neighbours.rig.scripts[1].on_event(receive_by_number);
    for name in 0..2 * COUNT {
        neighbours.rig.send(0, Message::put(name, 1, 0, LENGTH as usize));
    }

    neighbours.until(LONGEST, |rig| rig.scripts[1].received().len() == 2 * COUNT as usize);
    let ends = neighbours.rig.scripts[1].received();
    assert_eq!(ends[0], TransferStatus::Complete, "the budget allows for the first wait");
    let of_other = ends.iter().skip(1).step_by(2);
    assert!(of_other.clone().all(|end| *end == TransferStatus::Complete));
    assert!(neighbours.rig.counter(1, "over_budget") > 0);
}

#[test]
fn process_that_answers_the_writes_of_events_slowly_does_not_starve_the_others() {
    let mut neighbours = Neighbours::new(30_000_000, true);
    for event in 0..u64::from(COUNT) {
        neighbours.rig.start(1, move |chip| {
            chip.write_host(Client(SLOW), REMOTE + 64 * event, &[1; 64]).unwrap();
            chip.write_host(Client(SLOW), MEMORY + 64 * event, &[1; 64]).unwrap();
            chip.write_host(Client(QUICK), MEMORY + 64 * event, &[2; 64]).unwrap();
        });
        if event % 8 == 7 {
            neighbours.rig.settle();
        }
    }

    let quick = neighbours.quick.take().unwrap();
    let last = 64 * (COUNT as usize - 1);
    neighbours.until(LONGEST, |_| quick.read(last, 64) == [2; 64]);
    assert!(neighbours.rig.counter(1, "over_budget") > 0);
}

#[test]
fn process_that_answers_at_once_is_not_charged() {
    let mut neighbours = Neighbours::new(150_000, true);
    neighbours.rig.scripts[1].on_event(receive_by_number);
    // All waits together are longer than the budget. Each is short.
    for _ in 0..30 {
        for name in 0..20 {
            neighbours.rig.send(0, Message::put(2 * name, 1, 0, LENGTH as usize));
        }
        let before = neighbours.rig.scripts[1].received().len();
        neighbours.until(1_000_000_000, |rig| rig.scripts[1].received().len() == before + 20);
    }
    assert!(neighbours.rig.scripts[1].received().iter().all(|end| *end == TransferStatus::Complete));
    assert_eq!(neighbours.rig.counter(1, "over_budget"), 0);
}

#[test]
fn slow_process_without_neighbours_stays_in_its_budget() {
    let mut neighbours = Neighbours::new(30_000_000, false);
    neighbours.rig.scripts[1].on_event(receive_by_number);
    for name in 0..10 {
        neighbours.rig.send(0, Message::put(2 * name, 1, 0, LENGTH as usize));
    }

    neighbours.until(10_000_000_000, |rig| rig.scripts[1].received().len() == 10);
    assert!(neighbours.rig.scripts[1].received().iter().all(|end| *end == TransferStatus::Complete));
}
